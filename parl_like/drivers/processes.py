"""The processes driver: worker processes with many agents each; the tasks stay here.

A worker (`parl_like.drivers.worker`) sends what all its agents wait for as one message per task and turn, over ZeroMQ in a folder
that only this user may enter. Here the rows go into the same queues as everywhere, and are served by the rules of the cooperative
driver: sync, when every worker waits, in the order of the workers, so that two runs with one seed and as many workers are the same;
async, as soon as something waits.

One supervisor watches the workers while it waits for them: one that ends, or says nothing for `step_limit` seconds, is replaced.
Its agents begin anew; what it had sent is served, what it had not sent is lost.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from parl_like.acting import tensors_of
from parl_like.drivers.base import CALLED_BY_AGENT, same_agents
from parl_like.drivers.cards import TaskCard
from parl_like.drivers.cooperative import CooperativeDriver
from parl_like.drivers.links import Link, LocalLink
from parl_like.drivers.shared import LARGE, Parameters, task_file
from parl_like.drivers.worker import ERRORS, Recipe, _as_text, _text
from parl_like.errors import AgentFailed
from parl_like.process.child import readable, shielded
from parl_like.queues import INFINITE, Ticket
from parl_like.spec import Array
from parl_like.wire import Kind, Message, WireError, join, pack, pack_state, split, unpack, unpack_state

if TYPE_CHECKING:
    from parl_like.computation_task import ComputationTask
    from parl_like.computation_wrapper import ComputationWrapper
    from parl_like.queues import RequestQueue

STOP_PATIENCE = 3.0
"""Seconds that a stop waits for a worker that is busy in an environment; then it is ended, and replaced at the next start."""

SLOW_TIMES, SLOW_SECONDS = 10.0, 0.05
"""A worker is called slow when its turns take so many times as long as those of the others, and so many seconds."""

LISTEN_S = 0.5
"""Seconds that the robot waits for messages at most before it looks after its workers."""

_log = logging.getLogger("parl_like.processes")

_open: weakref.WeakSet[ProcessesDriver] = weakref.WeakSet()
_Options = TypeVar("_Options")


@atexit.register
def _end_all() -> None:
    for driver in list(_open):
        driver.close()


GONE = ("remote", "listen", "key", "allow")
"""Options of earlier versions, whose workers could come from other machines."""


def refuses_gone(cls: type[_Options]) -> type[_Options]:
    """Makes the constructor refuse the options in `GONE`, with a word about what has taken their place."""
    made = cls.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **options: Any) -> None:
        for name in options:
            if name in GONE:
                raise TypeError(f"{cls.__name__}: {name} is no option any more; workers on other machines are actors of a Ray cluster: "
                                "driver=Ray(address=ADDRESS) of parl_like.drivers.ray_cluster")
        made(self, *args, **options)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@refuses_gone
@dataclass(frozen=True, kw_only=True)
class Processes:
    """Options of the driver: `Robot(driver=Processes(workers=4))`; `driver="processes"` takes them as they are here.

    Attributes:
        workers: Processes of this machine; None: as many as there are cores, at most one per agent.
        start_limit: Seconds that a worker may take to build its agents and environments.
        step_limit: Seconds without a sign of life after which a worker that owes one is replaced.
        memory_limit: Bytes of resident memory above which a worker is replaced; None: no bound.
        max_restarts, period: So many replacements of one worker within `period` seconds end the run.
        agent_restarts: So many times within 60 s an agent whose code or environment raises begins anew, with a new environment; after that, and
            with 0 at once, its error ends the run.
    """

    workers: int | None = None
    start_limit: float = 60.0
    step_limit: float = 60.0
    memory_limit: int | None = None
    max_restarts: int = 10
    period: float = 60.0
    agent_restarts: int = 0
    name: str = field(default="processes", init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("workers", "start_limit", "step_limit", "memory_limit", "max_restarts", "period"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected more than 0")
        if self.agent_restarts < 0:
            raise ValueError(f"{type(self).__name__}: agent_restarts is {self.agent_restarts}; expected at least 0")

    def make_link(self) -> Link:
        """How the robot's process and its workers reach each other."""
        return LocalLink()

    def place(self, tasks: Mapping[str, ComputationTask]) -> Mapping[str, ComputationTask]:
        """Tasks stay with the robot."""
        return tasks


class RemoteError(Exception):
    """The traceback of an error in another process; the `__cause__` of what is raised here."""


class _RemoteEnv:
    """What hooks may ask of an environment that is in a worker: the episode that has just ended there."""

    def __init__(self, agent: RemoteAgent) -> None:
        self._agent = agent
        self.episode_return: Any = 0.0
        self.episode_length = self.time_steps = self.env_index = 0
        self.post_episode: list[Callable[..., None]] = []

    def observe(self, hooks: list[Any]) -> None:
        self.post_episode = self._agent.driver.check_hooks(hooks)

    def close(self) -> None:
        """The worker closes it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"env.{name}: {self._agent}'s environment is in a worker process; here it has episode_return, episode_length and env_index")


class RemoteAgent:
    """What the robot knows of an agent that runs in a worker."""

    def __init__(self, driver: ProcessesDriver, index: int, label: str, like: Any) -> None:
        self.driver, self.robot, self.index, self._label = driver, driver.crew, index, f"{label} {index}"
        self.n_envs, self.vector, self.learns = like.n_envs, like.vector, like.learns
        self.helpers: dict[str, Any] = {}
        self.steps = 0  # as of the last stop or checkpoint
        self.env: Any = None if like.env is None else _RemoteEnv(self)
        self.fresh = True
        self.signal: str | None = None
        self.quota_steps: int | None = None
        self.quota_episodes: int | None = None

    def __str__(self) -> str:
        return self._label

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {self.__dict__.get('_label', 'an agent')} is in a worker process; here it has index, steps and, in hooks, its "
                             "environment's last episode")


class Seat:
    """One worker's place: its agents, who sits there now, and what it was sent."""

    def __init__(self, number: int, agents: list[Any]) -> None:
        self.number, self.agents = number, agents
        self.incarnation = -1
        self.taken = False  # a worker has been begun and has not ended
        self.up = False  # has said hello and not ended
        self.running = False  # its agents have been started
        self.paused = False  # its agents could go on without the robot, which has a say first
        self.sent = self.seen = 0  # messages to it, and how many of them it had taken in at its last turn
        self.inbox: deque[Message] = deque()
        self.silent = 0.0  # seconds since it last said something, or began to owe it, in which the robot listened
        self.owes = 0.0  # since when it has owed a turn
        self.pace = 0.0  # seconds of a turn, a running mean
        self.slow = False  # has been called slow
        self.states: deque[Any] = deque()
        self.deaths: deque[float] = deque()

    @property
    def identity(self) -> bytes:
        return f"{self.number}.{self.incarnation}".encode()

    @property
    def quiet(self) -> bool:
        """Its agents all wait, or are not there."""
        return not self.running or self.seen == self.sent

    def __str__(self) -> str:
        return f"worker {self.number} (agents {self.agents[0].index} to {self.agents[-1].index})"


class ProcessesDriver(CooperativeDriver):
    """Agents in worker processes. See `CooperativeDriver` for the arguments."""

    defaults: type[Processes] = Processes

    def __init__(
        self, sync: bool, failed: Callable[[Any, BaseException], None], on_error: Callable[[Any, BaseException], None],
        options: Processes | None = None,
    ) -> None:
        super().__init__(sync, failed, on_error)
        self.options = options or self.defaults()
        self.link: Link = self.options.make_link()
        self.workers: list[Seat] = []
        self.restarts = self.agent_restarts = 0  # of workers, and of agents in them
        self.crew: Any = None
        self._recipes: Callable[[Seat], Recipe] | None = None
        self._owner = 0  # the process that opened the link; 0: it is closed
        self._halting = self._hello = False  # whether agents are being interrupted; whether a worker has said hello
        self._calling = False  # a hook or a stop condition is being called
        self.collecting = False
        self._checked = 0.0
        self._teachers: ThreadPoolExecutor | None = None  # of asynchronous lessons
        self._bell = -1  # an eventfd: a lesson has ended
        self._uncopied: set[str] = set()
        self._held: list[Ticket] = []  # sync: replies to lessons, given when the run goes on
        self._told = False  # what the agents know of `collecting`
        self._say = False  # the robot has a say before paused workers go on
        self._areas: dict[str, Parameters | None] = {}
        self._publications = 0
        self._published: dict[str, int] = {}  # versions of the parameters that replicas have

    # ----------------------------------------------------------------------------------------------------------- making workers

    def make_agents(self, crew: Any, n: int) -> list[Any]:
        """Divides agents over the workers, in blocks; they are made when the robot starts.

        Raises:
            WireError: a field of an observation has a name or a dtype that no message can have.
        """
        self.crew = crew
        like, seats, trace = crew.make_example(), crew.new_seeds(n), crew.trace is not None
        for name, wrapper in crew.wrappers.items():
            pack(Kind.PREDICT, task=name, arrays={spec.name: spec.zeros(1) for spec in wrapper.request_specs})  # refuses what could not travel
        agents = [RemoteAgent(self, index, crew._label, like) for index, _ in seats]
        blocks = np.array_split(np.arange(len(seats)), min(self._n_workers(), len(seats)))
        self.workers = [Seat(number, [agents[i] for i in block]) for number, block in enumerate(blocks)]
        cards = {name: TaskCard(task) for name, task in crew.tasks.items()}
        seeds = {index: seed for index, seed in seats}
        root = crew._seeds

        def recipe(worker: Seat) -> Recipe:
            for name, card in cards.items():
                card.version, card.learns = crew.tasks[name].version, crew.tasks[name].learns
            again = (worker.incarnation,) if worker.incarnation else ()  # the agents of a new worker do not repeat the old one's luck
            return Recipe(
                worker.number, worker.incarnation, cards, crew._env, crew._make_agent, crew._label, crew.mode, self.sync,
                [(a.index, seeds[a.index].entropy, (*seeds[a.index].spawn_key, *again)) for a in worker.agents],
                (root.entropy, (*root.spawn_key, 2_000_000 + worker.number, *again)), trace, self.options.agent_restarts,
            )

        self._recipes = recipe
        return agents

    def _n_workers(self) -> int:
        """How many there would be if there were agents enough."""
        return self.options.workers or os.cpu_count() or 1

    def _open(self) -> None:
        if not self._owner:
            self.link.open()
            self._owner = os.getpid()
            _open.add(self)

    def _begin(self, worker: Seat) -> None:
        assert self._recipes is not None
        worker.incarnation += 1
        worker.up = worker.running = worker.paused = False
        worker.sent = worker.seen = 0
        worker.inbox.clear()
        worker.states.clear()
        worker.silent, worker.pace, worker.slow = 0.0, 0.0, False
        recipe = self._recipes(worker)
        with shielded():  # a worker that nobody knew of would never be ended
            self.link.begin(worker, recipe)
            worker.taken = True

    # --------------------------------------------------------------------------------------------------------------- hooks

    def check_hooks(self, hooks: list[Any]) -> list[Callable[..., None]]:
        """The hooks' methods for ended episodes.

        Raises:
            ValueError: a hook listens to what happens in the workers.
        """
        from parl_like.stages import overridden

        hooks = [hook for hook in hooks if hook is not self.crew.trace]  # the workers have their own
        for hook in hooks:
            heard = [stage for stage in ("pre_episode", "pre_act", "post_act") if overridden([hook], stage)]
            if heard and not getattr(hook, "counts_only", False):
                raise ValueError(f"{type(hook).__name__} listens to {', '.join(heard)}, which happen in worker processes; under driver={self.crew.driver_name!r} hooks hear "
                                 "of the experiment and of ended episodes (post_episode). Put the rest into the agent, or use another driver")
        self._counting = [hook.post_act for hook in hooks if getattr(hook, "counts_only", False)]
        return overridden(hooks, "post_episode")

    _counting: Sequence[Callable[..., None]] = ()

    # ------------------------------------------------------------------------------------------------------------- messages

    def _send(self, worker: Seat, kind: Kind, **parts: Any) -> None:
        if not worker.up:
            return
        if kind is not Kind.STATE:  # parameters call for no answer
            if worker.sent == worker.seen:
                worker.silent, worker.owes = 0.0, monotonic()  # from now on it owes a sign of life
            worker.sent += 1
            worker.paused = False
        self.link.send(worker, join(pack(kind, **parts)))

    def _order(self, order: str, workers: Sequence[Seat] | None = None, arrays: Mapping[str, Array] | None = None, **notes: Any) -> None:
        for worker in self.workers if workers is None else workers:
            self._send(worker, Kind.ORDER, notes={"order": order, **notes}, arrays=arrays or {})

    def _with_quotas(self, order: str, worker: Seat, agents: Sequence[Any]) -> None:
        def numbers(name: str) -> Array:
            return np.array([-1 if getattr(a, name) is None else getattr(a, name) for a in agents], np.int64)

        arrays = {"agents": np.array([a.index for a in agents], np.int32), "steps": numbers("quota_steps"), "episodes": numbers("quota_episodes")}
        self._order(order, [worker], arrays, collecting=self.collecting)

    def _pump(self, seconds: float = 0.5) -> None:
        """Takes in everything that is there; where that is nothing, waits for a message or the end of a worker."""
        ended = False
        if not self._drain() and seconds > 0:
            # Some descriptors (of ZeroMQ) tell of changes only, so `_drain` came first.
            told = readable([*self.link.descriptors(), *([self._bell] if self.lessons else [])], min(seconds, LISTEN_S))
            ended = not self._drain() and bool(told)
        if self.lessons:
            self._end_lessons()
        if ended or monotonic() - self._checked > 0.05:
            self._supervise()

    def _drain(self) -> bool:
        """Takes in the messages that have come; whether there were any."""
        came = self.link.receive()
        broken: set[Seat] = set()
        for worker, frames in came:
            if worker not in broken:
                try:
                    self._hear(worker, frames)
                except WireError as error:
                    broken.add(worker)  # what else it had sent is not its successor's
                    self._kill(worker, f"sent a message that cannot be read: {error}")
        return bool(came)

    def _hear(self, worker: Seat, frames: list[Any]) -> None:
        if not worker.taken:
            return
        worker.silent = 0.0
        message = unpack(split(frames))
        kind = message.kind
        if kind is Kind.HELLO:
            worker.up = self._hello = True
        elif kind is Kind.STATE:
            if message.notes.get("answer") == worker.sent:  # else to an order that was given up
                worker.states.append(unpack_state(message.arrays))
        elif kind is Kind.FAILED:
            self._agent_failed(worker, message)
        else:
            worker.inbox.append(message)
            if "turn" in message.notes:
                worker.seen = int(message.notes["turn"])  # type: ignore[arg-type]
                worker.paused = "paused" in message.notes
                if worker.seen:  # the first turn was asked for by nobody
                    took = monotonic() - worker.owes
                    worker.pace = 0.98 * worker.pace + 0.02 * took if worker.pace else took

    def _count(self, worker: Seat, steps: int, time_steps: int) -> None:
        crew = self.crew
        if worker.agents[0].env is not None:
            worker.agents[0].env.time_steps += time_steps
        crew.env_steps += steps
        self._calling = True
        try:
            for call in self._counting:
                call(worker.agents[0])
            if crew._stop is not None and crew._stop(crew):
                crew.request_stop()
        except BaseException as error:  # noqa: BLE001  as in an agent
            self._failed(worker.agents[0], error)
        finally:
            self._calling = False

    def _events(self, worker: Seat, message: Message) -> None:
        arrays, first = message.arrays, worker.agents[0].index
        if "alive" in arrays:
            alive, parked = set(arrays["alive"].tolist()), set(arrays["parked"].tolist())
            self.agents = [a for a in self.agents if a not in worker.agents or a.index in alive]
            for agent in worker.agents:
                if agent.index in parked and agent not in self.parked:
                    self.parked.append(agent)
                    if agent.quota_steps is not None:
                        agent.quota_steps = 0
                elif agent.index not in parked and agent in self.parked:
                    self.parked.remove(agent)
        if "steps" in arrays:
            for agent, steps in zip(worker.agents, arrays["steps"].tolist(), strict=True):
                agent.steps = steps
        if "count.return" in arrays:
            for value, length in zip(arrays["count.return"].tolist(), arrays["count.length"].tolist(), strict=True):
                self.crew.count_episode(np.array(value) if isinstance(value, list) else value, length)
        if "episode.agent" not in arrays:
            return
        columns = (arrays[f"episode.{name}"].tolist() for name in ("agent", "env", "return", "length"))
        for index, env, episode_return, length in zip(*columns, strict=True):
            agent = worker.agents[index - first]
            value = np.array(episode_return) if isinstance(episode_return, list) else episode_return
            agent.env.episode_return, agent.env.episode_length, agent.env.env_index = value, length, env
            self._calling = True
            try:
                for call in agent.env.post_episode:
                    call(agent, False)
            except BaseException as error:  # noqa: BLE001  as in an agent
                self._failed(agent, error)
            finally:
                self._calling = False

    def _agent_failed(self, worker: Seat, message: Message) -> None:
        index = int(message.notes["agent"])  # type: ignore[arg-type]
        name, text = str(message.notes["type"]), _text(message)
        agent = worker.agents[index - worker.agents[0].index] if index >= 0 else worker.agents[0]
        if message.notes["again"]:
            self.agent_restarts += 1
            _log.warning("%s begins anew after %s: %s\n%s", agent, name, text, _text(message, "trace"))
            return
        if name in ERRORS and name != "ValueError":
            error: BaseException = ERRORS[name](text)
        else:
            what = f"{agent}: run_one_episode" if index >= 0 else f"{worker}: building its agents"
            error = AgentFailed(f"{what} raised {name}: {text.removeprefix(f'{agent}: ')}")
        error.__cause__ = RemoteError(f"in {worker}:\n{_text(message, 'trace')}")
        if index < 0:  # those that are still being built would fail likewise, and tell it to the next run
            for other in self.workers:
                if other.taken and not other.up:
                    self.link.kill(other)
                    self._forget(other)
        self._failed(agent, error)

    # ------------------------------------------------------------------------------------------------------------ supervisor

    def _supervise(self) -> None:
        """Replaces workers that have ended, hang, have grown too large, or have never come up."""
        options, now = self.options, monotonic()
        # Of the time in which this process did something else, or stood still, no worker's silence is known.
        listened, self._checked = min(now - self._checked, LISTEN_S), now
        for worker, how in self.link.ended():
            self._drain()  # what it had sent
            if worker.taken:
                self._lost(worker, how)
        for worker in self.workers:
            if not worker.taken:
                continue
            worker.silent += listened
            if worker.up and worker.seen != worker.sent and worker.silent > options.step_limit:
                self._kill(worker, f"said nothing for {options.step_limit:g} s; an environment hangs, or takes longer than step_limit")
            elif not worker.up and worker.silent > options.start_limit:
                self._kill(worker, f"was not ready after {options.start_limit:g} s (start_limit)")
            elif options.memory_limit is not None:
                used = self.link.memory(worker)
                if used > options.memory_limit:
                    self._kill(worker, f"uses {used >> 20} MiB of memory; memory_limit is {options.memory_limit >> 20} MiB")
        self._call_slow([worker for worker in self.workers if worker.up])

    def _call_slow(self, workers: Sequence[Seat]) -> None:
        """Names, once, a worker whose turns take far longer than those of the others."""
        for worker in workers:
            others = [other.pace for other in workers if other is not worker and other.pace]
            if not others or worker.slow or worker.seen < 10 or worker.pace < max(SLOW_TIMES * float(np.median(others)), SLOW_SECONDS):
                continue
            worker.slow = True
            waits = "all others wait for it" if self.sync else "nobody waits for it"
            _log.warning("%s is slow: a turn of its agents takes %.2g s, of the other workers %.2g s; %s", worker, worker.pace, np.median(others), waits)

    def _kill(self, worker: Seat, why: str) -> None:
        self.link.kill(worker)
        self._lost(worker, why)

    def _lost(self, worker: Seat, why: str) -> None:
        """A worker has ended: what it had sent is still served, and nobody waits for it; another takes its place."""
        self._take_in()
        self._forget(worker)
        now = monotonic()
        deaths = worker.deaths
        deaths.append(now)
        while deaths[0] < now - self.options.period:
            deaths.popleft()
        for wrapper in self.wrappers:
            for queue in (wrapper.predictions, wrapper.trainings):
                for batch in queue.batches:
                    for ticket in batch.tickets:
                        if ticket.agent is worker and not ticket.abandoned:
                            ticket.abandoned = True
                            queue.abandoned += 1
        self.parked = [agent for agent in self.parked if agent not in worker.agents]
        self.agents = [agent for agent in self.agents if agent not in worker.agents]
        if len(deaths) > self.options.max_restarts:
            self._failed(worker.agents[0], AgentFailed(f"{worker} {why}; it was replaced {self.options.max_restarts} times within {self.options.period:g} s"))
            return
        self.restarts += 1
        _log.warning("%s %s; it is replaced, its agents begin anew", worker, why)
        self._begin(worker)

    def _forget(self, worker: Seat) -> None:
        with shielded():
            self.link.forget(worker)
            worker.taken = worker.up = worker.running = worker.paused = False
        worker.inbox.clear()

    # ------------------------------------------------------------------------------------------------ lessons and parameters

    def _serve(self, queue: Any) -> None:
        """In async mode learning runs in a thread: agents that wait for predictions get them meanwhile, from copies of the networks."""
        if self.sync or queue.kind == "predict":
            super()._serve(queue)
            return
        while queue in self.lessons:
            self._pump()
        batch = queue.take()
        if batch is not None:
            if self._teachers is None:
                self._teachers = ThreadPoolExecutor(len(self.wrappers), "learn", torch.get_num_threads)  # asking limits a thread's own threads
                self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            with shielded():  # one that nobody knew of would not be waited for
                self.lessons[queue] = lesson = self._teachers.submit(self._teach, queue, batch)
            lesson.add_done_callback(lambda _: os.eventfd_write(self._bell, 1))

    def _make_acting_copies(self) -> None:
        for wrapper in self.wrappers:
            task = wrapper.task
            if task.train and task.serve == "central" and task.acting is None and task.name not in self._uncopied:
                try:
                    task.publish()
                except Exception as error:  # noqa: BLE001  the user's algorithm may hold anything
                    self._uncopied.add(task.name)
                    _log.warning("task %r: its algorithm cannot be copied (%s: %s), so predictions wait for optimiser steps", task.name,
                                 type(error).__name__, error)

    def _teach(self, queue: Any, batch: Any) -> tuple[list[Ticket], list[Any]]:
        tickets = queue.work(batch)
        due = self._unpublished()
        for wrapper in self.wrappers:
            task = wrapper.task
            if task.acting is not None and task.acting.version != task.version:
                task.publish()
        return tickets, due

    def _end_lessons(self) -> None:
        """Tells the agents whose lessons have ended."""
        for queue, lesson in list(self.lessons.items()):
            if lesson.done():
                with suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
                del self.lessons[queue]
                tickets, due = lesson.result()
                self._publish(due)
                self._answer(queue, tickets)

    def _unpublished(self, always: bool = False, note: bool = True) -> list[tuple[Any, dict[str, Any], dict[str, Array]]]:
        """Tasks whose replicas are `sync_every` optimiser steps behind, and their parameters.

        Args:
            always: Also those that are not.
            note: All workers are to get them; else only some, and the others are as far behind as they were.
        """
        out = []
        for wrapper in self.wrappers:
            task = wrapper.task
            if task.serve == "replica" and (always or task.version - self._published.get(task.name, 0) >= task.sync_every):
                with task.lock:
                    if note:
                        self._published[task.name] = task.version
                    notes = {"version": task.version, "updates": task.algorithm.updates}
                    area = self._area(task)
                    if area is None:
                        out.append((task, notes, pack_state(task.networks_state())))
                    else:
                        self._publications += 1
                        area.write(tensors_of(task.networks_state()), self._publications)
                        out.append((task, {**notes, "number": self._publications}, {}))
        return out

    def _area(self, task: Any) -> Parameters | None:
        """Where its parameters are given to the workers; None: in messages, for they are small, or the workers share no memory."""
        if task.name not in self._areas:
            like = tensors_of(task.networks_state())
            large = sum(tensor.numel() * tensor.element_size() for tensor in like.values()) >= LARGE
            place = self.link.folder if large else ""
            try:
                self._areas[task.name] = Parameters(Path(place, task_file(task.name)), like) if place else None
            except OSError:  # no room
                self._areas[task.name] = None
        return self._areas[task.name]

    def _publish(self, due: Sequence[tuple[Any, dict[str, Any], dict[str, Array]]], workers: Sequence[Seat] | None = None) -> None:
        for task, notes, arrays in due:
            for worker in self.workers if workers is None else workers:
                self._send(worker, Kind.STATE, task=task.name, notes=notes, arrays=arrays)

    # ------------------------------------------------------------------------------------------------------- the robot's side

    def start(self, agents: Sequence[Any], wrappers: Sequence[ComputationWrapper]) -> None:
        self.wrappers = list(wrappers)
        self.agents, self.parked = list(agents), []
        self._schooled = any(agent.learns for agent in agents)
        self.begin_queues()
        self._open()
        for worker in self.workers:
            worker.running = False
            if not worker.taken:
                worker.deaths.clear()
                self._begin(worker)
        self._await_hello()
        for agent in agents:
            agent.signal = None
        self._start_agents()

    def _await_hello(self) -> None:
        """Returns when every worker has said hello."""
        while not self.stopping and not all(worker.up for worker in self.workers):
            self._pump()
            self.crew._raise()

    def _start_agents(self) -> None:
        """Starts the agents of workers that are up and have not been told."""
        self._hello = self._halting
        if not self.sync and not self.lessons:
            self._make_acting_copies()
        starting = [worker for worker in self.workers if worker.up and not worker.running and not self._halting]
        if starting:
            self._publish(self._unpublished(always=True, note=len(starting) == len(self.workers)), starting)
            for worker in starting:
                worker.running = True
                self.agents += [agent for agent in worker.agents if agent not in self.agents]
                self._with_quotas("start", worker, worker.agents)

    def resume(self, agents: Sequence[Any]) -> None:
        for worker in self.workers:
            mine = [agent for agent in worker.agents if agent in agents and agent in self.parked]
            if mine:
                self.parked = [agent for agent in self.parked if agent not in mine]
                self._with_quotas("resume", worker, mine)
            others = [agent for agent in worker.agents if agent not in mine and agent not in self.parked]
            if others and worker.running and self.collecting != self._told:
                self._with_quotas("limit", worker, others)
        self._told = self.collecting

    def iterate(self, slices: int = 64) -> bool:
        """See `CooperativeDriver.iterate`; agents with replicas let the robot have a say from time to time, too."""
        return super().iterate(slices) or (self._say and not self.stopping)

    def _run_ready(self) -> None:
        """Waits until all workers wait (sync), or something has waited long enough for them (async); then it is in the queues."""
        say, self._say = self._say, False
        if self._held:
            held, self._held = self._held, []
            self._publish(self._unpublished())  # before the replies, after which the agents act
            self._reply(held)
        while not self.stopping:
            if self._hello:
                self._start_agents()
            quiet = all(worker.quiet for worker in self.workers)
            paused = []
            if quiet or not self.sync:
                self._take_in()
                paused = [worker for worker in self.workers if worker.paused]
            if self.stopping:
                break
            if paused:
                if self.sync and any(wrapper.predictions.rows for wrapper in self.wrappers):
                    self._order("go", paused)
                    break
                if self.sync and not (say or self._halting or any(wrapper.trainings.rows for wrapper in self.wrappers)):
                    self._say = True
                    break
                self._order("go", paused)
                say = False
                if not self.sync and not self._halting:
                    self._say = True
                    break
            elif quiet and (self._something_waits() or not self._coming()):
                break
            left = LISTEN_S if self.sync else min([self._due(q) for w in self.wrappers for q in (w.predictions, w.trainings)], default=INFINITE)
            if left <= 0:
                break
            self._pump(min(left, LISTEN_S))
        self._take_in()

    patience = 0.0
    # (Waiting even 0.1 ms by default was measured to cost more than fuller batches give: workers that wait together do not overlap.)

    def _can_still_come(self, queue: RequestQueue) -> bool:
        """See `CooperativeDriver._can_still_come`; in async mode agents that are busy in their workers may come, too."""
        if queue.kind == "predict":
            return not self.sync and self._busy()
        return super()._can_still_come(queue)

    def _busy(self) -> bool:
        return any(worker.running and (worker.paused or not worker.quiet) for worker in self.workers)

    def _something_waits(self) -> bool:
        return any(w.predictions.rows or (w.trainings.rows and w.trainings not in self.lessons) for w in self.wrappers)

    def _coming(self) -> bool:
        """Whether a lesson is being given, or a worker is being replaced, whose agents will act again."""
        if self.lessons or self._halting:
            return bool(self.lessons)
        return any(worker.taken and not worker.running for worker in self.workers)

    def _take_in(self, requests: bool = True) -> None:
        """Counts what has happened and puts requests into the queues, in the order of the workers.

        Args:
            requests: False after a stop: nobody waits for them any more.
        """
        for worker in self.workers:
            while worker.inbox:
                message = worker.inbox.popleft()
                if message.kind is Kind.EVENT:
                    self._events(worker, message)
                if "turn" in message.notes:
                    if "steps" in message.notes:
                        self._count(worker, int(message.notes["steps"]), int(message.notes["time"]))  # type: ignore[arg-type]
                    if "late" in message.notes:
                        for name, wrapper in self.crew.wrappers.items():
                            for queue in (wrapper.predictions, wrapper.trainings):
                                queue.counters.late += int(message.notes.get(f"late.{queue.kind}.{name}", 0))  # type: ignore[arg-type]
                    self._count_served(message.notes)
                    self.crew.bad_values += int(message.notes.get("bad", 0))  # type: ignore[arg-type]
                    for name in self.crew.wrappers:
                        if f"learned.{name}" in message.notes:
                            self.crew.rows.count(name, int(message.notes[f"learned.{name}"]), int(message.notes[f"dropped.{name}"]))  # type: ignore[arg-type]
                    if "stop" in message.notes:
                        self.crew.request_stop()
                if message.kind is Kind.EVENT or not requests:
                    continue
                wrapper = self.crew.wrappers.get(message.task)
                ticket = Ticket(worker, None)
                ticket.waiter = (worker.incarnation, message.request, int(message.notes["n"]))  # type: ignore[arg-type]
                ticket.rows = message.rows
                ticket.state = "learner" in message.notes
                try:
                    if wrapper is None:
                        raise WireError(f"a request for task {message.task!r}; expected one of {', '.join(self.crew.wrappers)}")
                    if message.kind is Kind.PREDICT:
                        queue = wrapper.predictions
                        names = [spec.name for spec in queue.specs]
                        if "block" in message.notes:
                            message.arrays = dict(self.link.rows(worker, queue.specs, tuple(message.notes["block"]), message.rows))  # type: ignore[arg-type]
                        if message.arrays.keys() != set(names):
                            raise WireError(f"a request for task {message.task!r} with {', '.join(message.arrays)}; expected {', '.join(names)}")
                        queue.put(ticket, tuple(message.arrays[name] for name in names))
                    else:
                        # Copies: a frame is read-only, and tensors are made of these.
                        dropped = wrapper.trainings.put(ticket, {name: value.copy() for name, value in message.arrays.items()})
                        if dropped:
                            self._wake(dropped)
                except Exception as error:  # noqa: BLE001  the sender's fault, and to be told to it alone
                    ticket.error = error
                    self._wake([ticket])

    def _count_served(self, notes: Mapping[str, Any]) -> None:
        """What replicas have answered."""
        for name, wrapper in self.crew.wrappers.items():
            for what in ("requests", "rows", "batches", "errors"):
                n = notes.get(f"served.{what}.{name}", 0)
                if n:
                    counters = wrapper.predictions.counters
                    setattr(counters, what, getattr(counters, what) + n)

    def _train_round(self) -> bool:
        """In async mode without those that are given already, for which nobody else shall wait, and not while agents could still come."""
        if self.sync:
            return super()._train_round()
        if self._say:
            return False
        served = False
        for wrapper in self.wrappers:
            if wrapper.trainings.batches and wrapper.trainings not in self.lessons:
                self._serve(wrapper.trainings)
                served = True
        return served

    def _wake(self, tickets: list[Ticket]) -> None:
        """In sync mode those who learn hear when the run goes on: agents would act at once, some before and some after what comes between."""
        for ticket in tickets:
            if ticket.queue is not None:
                ticket.queue.counters.requests += ticket.waiter[2] - 1  # of as many agents
        if self.sync and tickets and tickets[0].queue is not None and tickets[0].queue.kind == "learn":
            self._held += tickets
        else:
            self._reply(tickets)

    def _reply(self, tickets: list[Ticket]) -> None:
        tickets = [t for t in tickets if not t.abandoned and t.waiter[0] == t.agent.incarnation]
        last = {ticket.agent: ticket for ticket in tickets}
        for ticket in tickets:
            worker, request = ticket.agent, ticket.waiter[1]
            more = {} if last[worker] is ticket else {"more": True}  # the agents of a worker go on together
            if ticket.error is not None:
                self._send(worker, Kind.FAILED, request=request, notes={"type": type(ticket.error).__name__, **more}, arrays={"text": _as_text(ticket.error)})
                continue
            rows = slice(ticket.start, ticket.start + ticket.rows)
            arrays = {}
            for name, value in ticket.out.items():
                array = np.asarray(value)
                arrays[name] = array[rows] if array.ndim else array
            notes = {"version": ticket.version, "learns": ticket.queue.task.learns, **more}
            self._send(worker, Kind.REPLY, request=request, rows=ticket.rows, arrays=arrays, notes=notes)

    def _learner_acts(self) -> bool:
        """See `CooperativeDriver._learner_acts`; in async mode also agents that are busy in their workers may still come."""
        return (not self.sync and self._busy()) or any(t.state for w in self.wrappers for b in w.predictions.batches for t in b.tickets)

    def halt(self, agents: Sequence[Any], signal: str, patience: float | None = None) -> list[Any]:
        """See `CooperativeDriver.halt`."""
        self.refuse_agents()
        self.stopping = False
        if signal == "stop":
            for wrapper in self.wrappers:
                for queue in (wrapper.predictions, wrapper.trainings):
                    queue.fail_all("the robot stopped")
            self._held.clear()
            self._order("stop")
            while self.lessons:  # as everywhere, a lesson that has begun is finished
                self._pump()
            for wrapper in self.wrappers:
                wrapper.task.acting = None  # nothing learns beside predictions now
            self._until_quiet(STOP_PATIENCE)
            self._take_in(requests=False)
            for worker in self.workers:
                worker.running = False
            self.agents.clear()
            self.parked.clear()
            return []
        self.parked = []
        self._halting = True  # a worker that is replaced meanwhile begins when the run goes on
        try:
            self._order("interrupt")
            self._finish()
        finally:
            self._halting, self._hello = False, True
        self._publish(self._unpublished(always=True))  # as in a robot that is made anew and loads this moment
        self._order("settle")
        self._until_quiet(60.0, again=True)
        self._take_in(requests=False)
        return []

    def _until_quiet(self, seconds: float, again: bool = False) -> None:
        """Waits until the workers have obeyed; one that does not in time is ended, and replaced at once (`again`) or at the next start."""
        end, late = monotonic() + seconds, False
        while busy := [worker for worker in self.workers if worker.up and worker.seen != worker.sent]:
            if not late:
                left = end - monotonic()
                late = left <= 0  # and what came while this process stood still is read first
                self._pump(max(left, 0.0))
                continue
            for worker in busy:
                why = f"did not obey within {seconds:g} s"
                if again:
                    self._kill(worker, why)
                    continue
                _log.warning("%s %s; it is ended", worker, why)
                self.link.kill(worker)
                self._forget(worker)
            return

    def refuse_agents(self) -> None:
        """See `CooperativeDriver.refuse_agents`; here the callers are hooks and stop conditions."""
        if self._calling:
            raise RuntimeError(CALLED_BY_AGENT)

    def join(self, timeout: float | None = None) -> list[Any]:
        return []

    # ----------------------------------------------------------------------------------------------------------------- state

    def _ask(self, order: str, states: Sequence[Any] | None = None) -> list[Any]:
        """Every worker's answer to an order, while no agent runs. Workers are started where there are none."""
        self._open()
        for worker in self.workers:
            if not worker.taken:
                self._begin(worker)
        self._await_hello()
        workers = self.workers
        for worker in workers:
            worker.states.clear()
        asked: dict[Seat, int] = {}
        while not all(worker.states for worker in workers):
            for worker in workers:
                if worker.up and asked.get(worker) != worker.incarnation:  # again, where another has taken its place meanwhile
                    asked[worker] = worker.incarnation
                    self._order(order, [worker], None if states is None else pack_state(states[worker.number]))
            self._pump()
            self.crew._raise()
        return [worker.states.popleft() for worker in workers]

    def need_local(self, what: str, why: str) -> None:
        raise ValueError(f"{what}: under driver={self.crew.driver_name!r} {why}")

    def digests(self, here: dict[int, bytes]) -> dict[int, bytes]:
        return {int(i): bytes.fromhex(d) for part in self._ask("trace") for i, d in part.items()}

    def state_dict(self) -> dict[str, Any]:
        """The state of every worker: 'agents', 'buffers', 'trace'."""
        return {"workers": {str(number): state for number, state in enumerate(self._ask("state"))}}

    def state_keys(self) -> set[str]:
        return {"workers"}

    def check_state(self, state: Mapping[str, Any]) -> None:
        saved = state["workers"]
        same_agents([index for part in saved.values() for index in part["agents"]], self.crew.agents)
        if len(saved) != len(self.workers):
            raise ValueError(f"Robot: the saved state has {len(saved)} workers, this robot {len(self.workers)}; set Processes(workers={len(saved)})")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        learns = {name: task.learns for name, task in self.crew.tasks.items()}
        states = [{**state["workers"][str(worker.number)], "learns": learns} for worker in self.workers]
        self._ask("load", states)
        for worker, part in zip(self.workers, states, strict=True):
            if worker.agents[0].env is not None:
                worker.agents[0].env.time_steps = sum(agent.get("time_steps", 0) for agent in part["agents"].values())

    def close(self) -> None:
        """Ends the workers."""
        if self._owner != os.getpid():  # never opened; or this is a forked copy of the process, which has no workers
            return
        self._order("end")
        end = monotonic() + 5.0
        for worker in self.workers:
            if worker.taken:
                if not worker.up:  # it has not heard of the end
                    self.link.kill(worker)
                elif not self.link.wait(worker, end - monotonic()):
                    _log.warning("%s did not close its environments within 5 s; it is ended", worker)
                    self.link.kill(worker)
                self._forget(worker)
        if self._teachers is not None:
            self._teachers.shutdown()
            self._teachers = None
            os.close(self._bell)
        self.link.close()
        self._areas.clear()
        self._owner = 0
        _open.discard(self)
