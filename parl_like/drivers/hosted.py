"""The robot's side of drivers whose agents are in other processes: worker processes of this machine, or Ray actors.

A worker (`parl_like.drivers.worker`) sends what all its agents wait for as one message per task and turn, over a link. Here the
rows go into the same queues as everywhere, and are served by the rules of the cooperative driver: sync, when every worker waits,
in the order of the workers, so that two runs with one seed and as many workers are the same; async, as soon as something waits.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np

from parl_like.driver import CALLED_BY_AGENT, same_agents
from parl_like.drivers.cards import TaskCard
from parl_like.drivers.lessons import Lessons
from parl_like.drivers.links import Link
from parl_like.drivers.publisher import Publication, Publisher
from parl_like.drivers.remote_agent import RemoteAgent
from parl_like.drivers.supervisor import LISTEN_S
from parl_like.drivers.worker_crew import Recipe
from parl_like.drivers.worker_handle import WorkerHandle
from parl_like.drivers.worker_messages import WorkerMessages
from parl_like.errors import AgentFailed
from parl_like.process.budget import RestartBudget
from parl_like.process.child import readable
from parl_like.queues import INFINITE, RequestQueue
from parl_like.wire import Kind, pack_state

STOP_PATIENCE = 3.0
"""Seconds that a stop waits for a worker that is busy in an environment; then it is ended, and replaced at the next start."""

_open: weakref.WeakSet[HostedDriver] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for driver in list(_open):
        driver.close()


class HostedDriver(WorkerMessages):
    """Agents in other processes, the tasks here. See `CooperativeDriver` for the other arguments.

    Args:
        options: With the limits of `parl_like.drivers.processes.Processes`.
        link: How its workers are begun, heard and ended.

    Attributes:
        agent_restarts: How often an agent began anew in its worker.
    """

    patience = 0.0
    # (Waiting even 0.1 ms by default was measured to cost more than fuller batches give: workers that wait together do not
    # overlap.)

    def __init__(
        self, sync: bool, failed: Callable[[Any, BaseException], None], on_error: Callable[[Any, BaseException], None],
        options: Any, link: Link,
    ) -> None:
        super().__init__(sync, failed, on_error, options, link)
        self.options = options
        self.publisher, self._lessons = Publisher(), Lessons()
        self.lessons = self._lessons.running
        self._owner = 0  # the process that opened the link; 0: it is closed
        self._halting = False  # whether agents are being interrupted
        self._known_collecting = False  # what the workers know of `collecting`
        self._robots_turn = False  # before paused workers go on

    # ----------------------------------------------------------------------------------------------------------- making agents

    def make_agents(self, crew: Any, n: int) -> list[Any]:
        """Divides agents over the workers, in blocks; they are made when the robot starts."""
        self.crew = crew
        like, seeds = crew.make_example(), crew.new_seeds(n)
        agents = [RemoteAgent(crew, index, crew._label, like, self.check_hooks) for index, _ in seeds]
        options, blocks = self.options, np.array_split(np.arange(n), min(self.options.workers or os.cpu_count() or 1, n))
        self.supervisor.workers = [WorkerHandle(number, [agents[i] for i in block],
                                                RestartBudget(options.max_restarts, options.period, 0.0))
                                   for number, block in enumerate(blocks)]
        self._cards = {name: TaskCard(task) for name, task in crew.tasks.items()}
        self._seeds = dict(seeds)
        return agents

    def _recipe(self, worker: WorkerHandle) -> Recipe:
        """What a worker's next process is told."""
        crew, root = self.crew, self.crew._seeds
        for name, card in self._cards.items():
            card.version, card.learns = crew.tasks[name].version, crew.tasks[name].learns
        again = (worker.incarnation,) if worker.incarnation else ()  # the agents of a new worker do not repeat the old one's luck
        seeds = [(a.index, self._seeds[a.index].entropy, (*self._seeds[a.index].spawn_key, *again)) for a in worker.agents]
        return Recipe(
            worker.number, worker.incarnation, self._cards, crew._env, crew._make_agent, crew._label, crew.mode, self.sync, seeds,
            (root.entropy, (*root.spawn_key, 2_000_000 + worker.number, *again)), crew.trace is not None,
            self.options.agent_restarts,
        )

    def _open(self) -> None:
        if not self._owner:
            self.link.open()
            self._owner = os.getpid()
            _open.add(self)

    def need_local(self, what: str, why: str) -> None:
        raise ValueError(f"{what}: under driver={self.crew.driver_name!r} {why}")

    # ----------------------------------------------------------------------------------------------------------------- running

    def start(self, agents: Sequence[Any], wrappers: Sequence[Any]) -> None:
        self.wrappers = list(wrappers)
        self.agents, self.parked = list(agents), []
        self._schooled = any(agent.learns for agent in agents)
        self.begin_queues()
        self._open()
        for worker in self.workers:
            worker.running = False
            if not worker.taken:
                worker.budget.clear()
                self.supervisor.begin(worker)
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
            self._lessons.make_copies(self._tasks())
        starting = [worker for worker in self.workers if worker.up and not worker.running and not self._halting]
        if starting:
            self._publish(self._unpublished(always=True, to_all=len(starting) == len(self.workers)), starting)
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
            if others and worker.running and self.collecting != self._known_collecting:
                self._with_quotas("limit", worker, others)
        self._known_collecting = self.collecting

    def iterate(self) -> bool:
        """See `CooperativeDriver.iterate`; between pauses of agents with replicas the robot has its turn, too."""
        return super().iterate() or (self._robots_turn and not self.stopping)

    def _run_ready(self) -> None:
        """Waits until all workers wait (sync), or something has waited long enough for them (async); then it is in the queues."""
        had, self._robots_turn = self._robots_turn, False
        if self._lesson_replies:
            replies, self._lesson_replies = self._lesson_replies, []
            self._publish(self._unpublished())  # before the replies, after which the agents act
            self._reply(replies)
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
                if self.sync and not (had or self._halting or any(wrapper.trainings.rows for wrapper in self.wrappers)):
                    self._robots_turn = True
                    break
                self._order("go", paused)
                had = False
                if not self.sync and not self._halting:
                    self._robots_turn = True
                    break
            elif quiet and (self._something_waits() or not self._coming()):
                break
            left = LISTEN_S if self.sync else min([self._due(q) for w in self.wrappers for q in (w.predictions, w.trainings)],
                                                  default=INFINITE)
            if left <= 0:
                break
            self._pump(min(left, LISTEN_S))
        self._take_in()

    def _pump(self, seconds: float = 0.5) -> None:
        """Takes in everything that is there; where that is nothing, waits for a message or the end of a worker."""
        ended = False
        if not self._drain() and seconds > 0:
            # Some descriptors (of ZeroMQ) tell of changes only, so `_drain` came first.
            told = readable([*self.link.descriptors(), *(self._lessons.descriptors if self.lessons else [])],
                            min(seconds, LISTEN_S))
            ended = not self._drain() and bool(told)
        if self.lessons:
            for queue, tickets, publications in self._lessons.ended():
                self._publish(publications)
                self._answer(queue, tickets)
        if ended or monotonic() - self.supervisor.looked > 0.05:
            self.supervisor.look(self._drain)

    def _can_still_come(self, queue: RequestQueue) -> bool:
        """See `CooperativeDriver._can_still_come`; in async mode agents that are busy in their workers may come, too."""
        if queue.kind == "predict":
            return not self.sync and self._busy()
        return super()._can_still_come(queue)

    def _learner_acts(self) -> bool:
        """See `CooperativeDriver._learner_acts`; in async mode also agents that are busy in their workers may still come."""
        waiting = (ticket for w in self.wrappers for batch in w.predictions.batches for ticket in batch.tickets)
        return (not self.sync and self._busy()) or any(ticket.state for ticket in waiting)

    def _busy(self) -> bool:
        return any(worker.running and (worker.paused or not worker.quiet) for worker in self.workers)

    def _something_waits(self) -> bool:
        return any(w.predictions.rows or (w.trainings.rows and w.trainings not in self.lessons) for w in self.wrappers)

    def _coming(self) -> bool:
        """Whether a lesson is being given, or a worker is being replaced, whose agents will act again."""
        if self.lessons or self._halting:
            return bool(self.lessons)
        return any(worker.taken and not worker.running for worker in self.workers)

    # ---------------------------------------------------------------------------------------- lessons, parameters, lost workers

    def _lost(self, worker: WorkerHandle, why: str) -> None:
        """A worker has ended: what it had sent is still served, and nobody waits for it; another takes its place."""
        self._take_in()
        self.supervisor.forget(worker)
        for wrapper in self.wrappers:
            for queue in (wrapper.predictions, wrapper.trainings):
                for batch in queue.batches:
                    for ticket in batch.tickets:
                        if ticket.agent is worker and not ticket.abandoned:
                            ticket.abandoned = True
                            queue.abandoned += 1
        self.parked = [agent for agent in self.parked if agent not in worker.agents]
        self.agents = [agent for agent in self.agents if agent not in worker.agents]
        if not self.supervisor.replace(worker, why):
            options = self.options
            self._failed(worker.agents[0], AgentFailed(f"{worker} {why}; it was replaced {options.max_restarts} times within "
                                                       f"{options.period:g} s"))

    def _serve(self, queue: Any) -> None:
        """In async mode learning runs in a thread: agents that wait for predictions get them meanwhile, from copies of the
        networks."""
        if self.sync or queue.kind == "predict":
            super()._serve(queue)
            return
        while queue in self.lessons:
            self._pump()
        batch = queue.take()
        if batch is not None:
            self._lessons.give(queue, batch, self._tasks(), self._unpublished)

    def _tasks(self) -> list[Any]:
        return [wrapper.task for wrapper in self.wrappers]

    def _unpublished(self, always: bool = False, to_all: bool = True) -> list[Publication]:
        return self.publisher.due(self._tasks(), self.link.folder, always, to_all)

    def _publish(self, due: Sequence[Publication], workers: Sequence[WorkerHandle] | None = None) -> None:
        for task, notes, arrays in due:
            for worker in self.workers if workers is None else workers:
                self._send(worker, Kind.STATE, task=task, notes=notes, arrays=arrays)

    def _train_round(self) -> bool:
        """In async mode without those that are given already, for which nobody else shall wait, and not while agents could still
        come."""
        if self.sync:
            return super()._train_round()
        if self._robots_turn:
            return False
        served = False
        for wrapper in self.wrappers:
            if wrapper.trainings.batches and wrapper.trainings not in self.lessons:
                self._serve(wrapper.trainings)
                served = True
        return served

    # ------------------------------------------------------------------------------------------------------------------ ending

    def halt(self, agents: Sequence[Any], signal: str, patience: float | None = None) -> list[Any]:
        """See `CooperativeDriver.halt`."""
        self.refuse_agents()
        self.stopping = False
        if signal == "stop":
            for wrapper in self.wrappers:
                for queue in (wrapper.predictions, wrapper.trainings):
                    queue.fail_all("the robot stopped")
            self._lesson_replies.clear()
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
        """Waits until the workers have obeyed; one that does not in time is ended, and replaced at once (`again`) or at the next
        start."""
        end, late = monotonic() + seconds, False
        while busy := [worker for worker in self.workers if worker.owing]:
            if not late:
                left = end - monotonic()
                late = left <= 0  # and what came while this process stood still is read first
                self._pump(max(left, 0.0))
                continue
            for worker in busy:
                why = f"did not obey within {seconds:g} s"
                if again:
                    self.supervisor.kill(worker, why)
                else:
                    self.supervisor.warn_once(f"{why}; at the end", f"{worker} {why}; it is ended")
                    self.supervisor.end(worker)
            return

    def refuse_agents(self) -> None:
        """See `CooperativeDriver.refuse_agents`; here the callers are hooks and stop conditions."""
        if self._calling:
            raise RuntimeError(CALLED_BY_AGENT)

    def join(self, timeout: float | None = None) -> list[Any]:
        return []

    # ------------------------------------------------------------------------------------------------------------------- state

    def _ask(self, order: str, states: Sequence[Any] | None = None) -> list[Any]:
        """Every worker's answer to an order, while no agent runs. Workers are started where there are none."""
        self._open()
        for worker in self.workers:
            if not worker.taken:
                self.supervisor.begin(worker)
        self._await_hello()
        workers = self.workers
        for worker in workers:
            worker.states.clear()
        asked: dict[WorkerHandle, int] = {}
        while not all(worker.states for worker in workers):
            for worker in workers:
                if worker.up and asked.get(worker) != worker.incarnation:  # again, where another has taken its place meanwhile
                    asked[worker] = worker.incarnation
                    self._order(order, [worker], None if states is None else pack_state(states[worker.number]))
            self._pump()
            self.crew._raise()
        return [worker.states.popleft() for worker in workers]

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
            raise ValueError(f"Robot: the saved state has {len(saved)} workers, this robot {len(self.workers)}; set "
                             f"Processes(workers={len(saved)})")

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
                    why = "did not close its environments within 5 s"
                    self.supervisor.warn_once(why, f"{worker} {why}; it is ended")
                    self.link.kill(worker)
                self.supervisor.forget(worker)
        self.supervisor.sum_up()
        self._lessons.close()
        self.link.close()
        self.publisher.close()
        self._owner = 0
        _open.discard(self)
