"""Timeline: what a robot does and when, as spans for ui.perfetto.dev or chrome://tracing.

All times are those of one clock, that of the robot's process. A robot without a timeline knows nothing of it: the timeline puts
functions of its own in the places of methods of queues and workers, and takes them away again.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from parl_like.data.storage.trace_events import WAITING, Recorder, args_of
from parl_like.drivers.workers.hosted import HostedDriver
from parl_like.environment.hooks import Hook
from parl_like.tasks.queues import RequestBatch, RequestQueue
from parl_like.tasks.tickets import Ticket

if TYPE_CHECKING:
    from parl_like.agents.agent import Agent
    from parl_like.drivers.workers.handle import WorkerHandle, WorkerStatus
    from parl_like.run.robot import Robot

NEVER = 2**63
"""Later than any time, in nanoseconds."""
SHARES = 16
"""A window takes at most this part of the file, so that there are so many at least."""
UNSEEN = ("a span is a turn of a worker's agents: as long as the worker's clock says, and it ends when the robot hears of it; "
          "the environment steps in it happen in another process and are not shown")
"""The remark beside the name of the workers."""
CALLS = {"evaluate": "evaluation", "checkpoint_boundary": "checkpoint: episodes end", "state_dict": "checkpoint: state"}
"""Methods of a robot that are spans, whether a window is open or not."""


class Replaced:
    """Functions that stand in the places of methods of some objects, until `undo`."""

    def __init__(self) -> None:
        self._done: list[tuple[object, str]] = []

    def put(self, owner: object, name: str, function: Callable[..., Any]) -> None:
        """Let `owner.name` be this function."""
        setattr(owner, name, function)
        self._done.append((owner, name))

    def undo(self) -> None:
        """Let all objects have their own methods again."""
        for owner, name in self._done:
            vars(owner).pop(name, None)
        self._done.clear()


class AgentSpans(Hook):
    """Episodes and environment steps of agents, and the requests that they waited for, while a window is open.

    Attributes:
        began: When each agent, by its index, began its last step; 0: not in this window.
        asked: The last request of each agent, and when it asked.
    """

    def __init__(self, recorder: Recorder, agents: Sequence[Agent]) -> None:
        self._recorder, self._agents = recorder, agents
        self._lanes = {agent.index: recorder.lane("agents", str(agent)) for agent in agents}
        n = 1 + max(self._lanes, default=0)
        self.began, self.asked = [0] * n, self._nobody(n)
        self._episodes: dict[tuple[int, int], int] = {}
        began, steps, add, now, spans = self.began, self.heads("step"), recorder.add, perf_counter_ns, recorder.spans

        def pre_act(agent: Agent, act: object) -> None:
            began[agent.index] = now()

        def post_act(agent: Agent) -> None:
            index = agent.index
            if begin := began[index]:
                add((steps[index], begin, now(), ""))
                if len(spans) > WAITING:
                    recorder.write()

        # No methods of a class: a call of those costs more, and these come at each step.
        self.pre_act, self.post_act = pre_act, post_act  # type: ignore[method-assign]

    @staticmethod
    def _nobody(n: int) -> list[tuple[Ticket | None, int]]:
        return [(None, 0)] * n

    def heads(self, name: str) -> list[str]:
        """Return the beginnings of spans of this name, by the index of the agent."""
        return [self._lanes[i].head(name) if i in self._lanes else "" for i in range(len(self.began))]

    def begin(self, now: int) -> None:
        """A window opens; of what began before it is known only that it goes on."""
        self.began[:] = [0] * len(self.began)
        self.asked[:] = self._nobody(len(self.asked))
        self._episodes = {(agent.index, 0): now for agent in self._agents
                          if not agent.vector and agent.env is not None and agent.env.n_open()}

    def end(self, now: int) -> None:
        """A window closes, in the middle of what goes on."""
        for key, begin in self._episodes.items():
            self._add(key, begin, now, args_of(goes_on=True))
        self._episodes = {}

    def pre_episode(self, agent: Agent) -> None:
        self._episodes[agent.index, agent.env.env_index] = perf_counter_ns()

    def post_episode(self, agent: Agent, interrupted: bool) -> None:
        key = agent.index, agent.env.env_index
        if (begin := self._episodes.pop(key, None)) is not None:
            said = args_of(steps=agent.env.episode_length, interrupted=interrupted)
            self._add(key, begin, perf_counter_ns(), said)

    def _add(self, key: tuple[int, int], begin: int, end: int, more: str) -> None:
        index, env = key
        lane = self._lanes[index]
        if self._agents[0].vector:  # whose episodes lie side by side
            lane = self._recorder.lane("agents", f"{lane.name}, environment {env}")
        self._recorder.add((lane.head("episode"), begin, end, more))

    def answered(self, heads: Sequence[str], batch: RequestBatch, now: int) -> None:
        """Note for how long agents have waited for a batch: those that have asked for nothing else since, and not acted."""
        asked, began, add = self.asked, self.began, self._recorder.add
        for ticket in batch.tickets:
            index = ticket.agent.index
            who, begin = asked[index]
            if who is ticket and began[index] < begin:
                add((heads[index], begin, now, ""))


class QueueSpans:
    """The batches of one queue: how long each waited and was served, and the rows that wait.

    Args:
        agents: Whose requests these are; None: workers'.
        look: Tells, of a time, whether a window is open; may open or close it.
    """

    def __init__(self, queue: RequestQueue, recorder: Recorder, agents: AgentSpans | None, look: Callable[[int], bool]) -> None:
        predicts = queue.kind == "predict"
        self._queue, self._agents = queue, agents
        name = f"{queue.task.name} {'predictions' if predicts else 'updates'}"
        head, waits = recorder.lane("tasks", name).head("predict" if predicts else "update"), json.dumps(f"{name} wait")
        heads = [] if agents is None else agents.heads(f"waits for {name}")
        work = queue.work

        def traced(batch: RequestBatch, *more: Any) -> list[Ticket]:
            begin = perf_counter_ns()
            if not look(begin):
                return work(batch, *more)
            said = f'{{"rows":{batch.rows},"requests":{len(batch.tickets)}}}'
            recorder.waited(waits, int(batch.born * 1e9), begin, said, queue.rows)
            try:
                return work(batch, *more)
            finally:
                end = perf_counter_ns()
                recorder.add((head, begin, end, f',"args":{said}'))
                if agents is not None:
                    agents.answered(heads, batch, end)

        self.work = traced

    def see_requests(self, replaced: Replaced) -> None:
        """Note from now on who asks, and when."""
        if self._agents is None:
            return
        put, asked, now = self._queue.put, self._agents.asked, perf_counter_ns

        def traced(ticket: Ticket, values: object) -> list[Ticket] | None:
            asked[ticket.agent.index] = ticket, now()
            return put(ticket, values)

        replaced.put(self._queue, "put", traced)


class WorkerSpans:
    """The turns of a worker while a window is open, and what becomes of its process at all times."""

    def __init__(self, worker: WorkerHandle, recorder: Recorder, replaced: Replaced, is_open: Callable[[], bool]) -> None:
        lane = recorder.lane("workers", str(worker))
        head, heard_turn, become = lane.head("turn"), worker.heard_turn, worker.become
        before = 0

        def traced(notes: dict[str, Any]) -> None:
            nonlocal before
            heard_turn(notes)
            if is_open() and "took" in notes:
                end = perf_counter_ns()
                begin, before = max(end - int(notes["took"] * 1e9), before), end
                recorder.add((head, begin, end, args_of(steps=notes.get("steps", 0))))

        def becomes(status: WorkerStatus) -> None:
            become(status)
            recorder.mark(lane, status.value, {"process": worker.name})

        replaced.put(worker, "heard_turn", traced)
        replaced.put(worker, "become", becomes)


class Timeline(Hook):
    """Writes what a robot does as a trace for ui.perfetto.dev: steps and episodes of agents, what they wait for, batches in
    queues, predictions and updates of tasks, turns of workers, evaluations, checkpoints.

    A robot does 100,000 things a second, and a trace of all of them could not be read. So windows of some seconds are recorded:
    one at the beginning, and others at 8, 16, 32, … times their length. Evaluations, checkpoints, and beginnings and ends of
    worker processes are recorded at all times. The file is complete after each run, also where it was ended by Ctrl-C or an
    error; what a killed process leaves can be read, too.

    Args:
        path: The file; one that is there is kept, and the new one gets a number.
        seconds: Length of a window.
        max_bytes: The file never grows beyond that.

    Attributes:
        path: Where the file is, once a run has begun.

    Raises:
        ValueError: `seconds` is not above 0, or `max_bytes` is below 65,536.
    """

    outward = True  # a stranger's run directory may not ask for it, see `parl_like.lab.foreign`

    def __init__(self, path: str | PathLike[str] = "timeline.json", seconds: float = 1.0, max_bytes: int = 64 << 20) -> None:
        if not 0 < seconds < 1e6 or max_bytes < 1 << 16:
            raise ValueError(f"Timeline: seconds is {seconds}, max_bytes is {max_bytes}; expected above 0, and at least 65536")
        self.path, self.seconds, self.max_bytes = Path(path), seconds, max_bytes
        self._recorder: Recorder | None = None
        self._robot: weakref.ref[Robot] | None = None
        self._always, self._detail = Replaced(), Replaced()
        self._queues: list[QueueSpans] = []
        self._agents: AgentSpans | None = None
        self._switch_at, self._opened, self._n = NEVER, 0, 0  # the next switch; since when a window is open; how many there were
        self._first = self._began = 0  # of the first run, of this one
        self._switching = threading.Lock()

    # ------------------------------------------------------------------------------------------------------- a run

    def pre_experiment(self, robot: Robot) -> None:
        """Begin to look on. Raises OSError: the file cannot be made; ValueError: the timeline looks on at another robot."""
        if self._began:
            raise ValueError("Timeline: it looks on at a run already; make one for each robot that runs at the same time")
        if self._recorder is None:
            self._recorder = Recorder(self.path, self.max_bytes)
            self.path, self._first = self._recorder.path, perf_counter_ns()
        recorder, pool, now = self._recorder, robot.pool, perf_counter_ns()
        self._began = now
        if self._robot is None or self._robot() is not robot:
            self._robot = weakref.ref(robot)
            for name, span in CALLS.items():
                setattr(robot, name, partial(self._call, getattr(type(robot), name), span))
        driver = pool.driver
        if isinstance(driver, HostedDriver):
            recorder.explain("workers", UNSEEN)
            for worker in driver.workers:
                WorkerSpans(worker, recorder, self._always, lambda: self._look(perf_counter_ns()))
        else:
            self._agents = AgentSpans(recorder, robot.agents)
        for wrapper in pool.wrappers.values():
            for queue in (wrapper.predictions, wrapper.trainings):
                self._queues.append(spans := QueueSpans(queue, recorder, self._agents, self._look))
                self._always.put(queue, "work", spans.work)
        self._switch_at = max(now, self._starts(self._n))
        self._look(now)

    def post_experiment(self, robot: Robot) -> None:
        """Look away, and write everything."""
        recorder, now = self._recorder, perf_counter_ns()
        if recorder is None or not self._began:
            return
        with self._switching:
            if self._opened:
                self._close(now)
            self._switch_at = NEVER
        self._always.undo()
        self._queues, self._agents = [], None
        lane, said = recorder.lane("robot", "run"), args_of(env_steps=robot.env_steps)
        recorder.add((lane.head("run"), self._began, perf_counter_ns(), said))
        self._began = 0
        recorder.write()

    def _call(self, method: Callable[..., Any], name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the robot, which is a span."""
        (robot, recorder), begin = self._parts(), perf_counter_ns()
        try:
            return method(robot, *args, **options)
        finally:
            recorder.add((recorder.lane("robot", "run").head(name), begin, perf_counter_ns(), ""))
            if not self._began:
                recorder.write()

    def _parts(self) -> tuple[Robot, Recorder]:
        robot = self._robot() if self._robot is not None else None
        assert robot is not None and self._recorder is not None  # a run holds both
        return robot, self._recorder

    # ------------------------------------------------------------------------------------------------------- windows

    def _starts(self, n: int) -> int:
        """Return when the n-th window opens."""
        return self._first + int((2.0 ** (n + 2) * self.seconds if n else 0.0) * 1e9)

    def _look(self, now: int) -> bool:
        """Return whether a window is open; first open or close it, where it is time."""
        recorder = self._recorder
        if recorder is None:
            return False
        if now >= self._switch_at or (self._opened and recorder.full):
            if self._switching.acquire(blocking=False):
                try:
                    self._close(now) if self._opened else self._open(now)
                finally:
                    self._switching.release()
        elif len(recorder.spans) > WAITING:
            recorder.write()
        return self._opened > 0

    def _open(self, now: int) -> None:
        robot, recorder = self._parts()
        self._switch_at = now + int(self.seconds * 1e9)
        self._opened = now
        recorder.begin_share(self.max_bytes // SHARES)
        if self._agents is not None:
            self._agents.begin(now)
            for queue in self._queues:
                queue.see_requests(self._detail)
            robot.pool.hooks.last = (self._agents,)
            robot.pool.hooks.tell_agents()

    def _close(self, now: int) -> None:
        robot, recorder = self._parts()
        if self._agents is not None:
            robot.pool.hooks.last = ()
            robot.pool.hooks.tell_agents()
            self._agents.end(now)
        self._detail.undo()
        recorder.add((recorder.lane("robot", "recorded").head("recorded"), self._opened, now, args_of(full=recorder.full)))
        recorder.end_share()
        self._opened = 0
        while self._starts(self._n) <= now:
            self._n += 1
        self._switch_at = self._starts(self._n)
