"""The robot's side of drivers whose agents are in other processes: worker processes of this machine, or Ray actors.

A worker (`parl_like.drivers.workers.worker`) sends what all its agents wait for as one message per task and turn, over a link.
What it has sent is kept in its handle until it goes into the same queues as everywhere, in the order of the workers; these are
served by the rules of the cooperative driver: sync, when every worker waits, so that two runs with one seed and as many workers
are the same; async, as soon as something waits.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic, perf_counter
from typing import Any, cast

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.drivers.cooperative import CooperativeDriver
from parl_like.drivers.messages import Kind, Message
from parl_like.drivers.workers.background_updates import BackgroundUpdates
from parl_like.drivers.workers.handle import WorkerHandle, WorkerStatus
from parl_like.drivers.workers.proxies import RemoteAgent
from parl_like.drivers.workers.recipes import Recipes
from parl_like.drivers.workers.replica_rule import settle_serving
from parl_like.drivers.workers.reports import Reports
from parl_like.drivers.workers.requests import put_request, replies
from parl_like.drivers.workers.shared_parameters import Publisher
from parl_like.drivers.workers.supervisor import LISTEN_S, Link, Supervisor
from parl_like.drivers.workers.worker_states import WorkerStates
from parl_like.process.child import RestartBudget
from parl_like.run.agent_pool import AgentPool
from parl_like.run.driver import CALLED_BY_AGENT, Pool
from parl_like.tasks.queues import RequestQueue
from parl_like.tasks.rounds import Learner, RoundDone, Serve, Wait
from parl_like.tasks.tickets import Ticket
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.errors import AgentFailed

STOP_PATIENCE = 3.0
"""Seconds that a stop waits for a worker that is busy in an environment; then it is ended, and replaced at the next start."""

_open: weakref.WeakSet[HostedDriver] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for driver in list(_open):
        driver.close()


class HostedPhase(Enum):
    """The phases of a run whose agents are in workers."""

    RUNNING = "agents act when they are answered"
    CUTTING = "episodes are being ended; a worker that is replaced meanwhile begins when the run goes on"
    WAITING = "agents wait between two runs; replies to their updates are kept for the next one"


RUNNING, CUTTING, WAITING = HostedPhase


class HostedDriver(CooperativeDriver):
    """Agents in other processes, the tasks here. See `CooperativeDriver` for the other arguments.

    Args:
        options: Of the driver; None: its `defaults`.

    Attributes:
        link: How its workers are begun, heard and ended.
        supervisor: Who begins, hears, watches and replaces them.
        reports: Where what they say has happened is counted.
        workers: All of them, by number.
        publisher: Which of them get new parameters.
    """

    pool: AgentPool
    defaults: Callable[[], Any]
    workers: list[WorkerHandle]
    patience = 0.0  # see `_patience_for`

    def __init__(self, sync: bool, failed: Callable[[Any, BaseException], None], options: Any = None) -> None:
        super().__init__(sync, failed)
        self.options = options or self.defaults()
        self.link: Link = self.options.make_link()
        self.supervisor = Supervisor(self.link, self.options, lambda worker: self._recipes.make(self.pool, worker),
                                     lambda worker, why: self._lost(worker, why), self._agent_failed, sync)
        self.reports = Reports(lambda: self.pool, failed)
        self.workers = self.supervisor.workers
        self._updates = BackgroundUpdates()
        self.updates = self.rounds.serving = self._updates.running  # queues whose task learns at this moment
        self._owner = 0  # the process that opened the link; 0: it is closed
        self._phase = RUNNING
        self._known_collecting: bool | str = False  # what the workers know of `collecting`
        self._robots_turn = False  # before paused workers go on
        self._update_replies: list[Ticket] = []  # sync, or between two runs: given when the run goes on

    @property
    def restarts(self) -> int:
        """Return how often workers were restarted."""
        return self.supervisor.restarts

    @property
    def agent_restarts(self) -> int:
        """Return how often an agent began anew in its worker."""
        return self.reports.agent_restarts

    # ----------------------------------------------------------------------------------------------------------- making agents

    def make_agents(self, pool: Pool, n: int) -> list[Any]:
        """Divides agents over the workers, in blocks; they are made when the robot starts."""
        assert isinstance(pool, AgentPool)
        self.pool = pool
        settled = settle_serving(pool.tasks)
        pool.maker.notes += settled.values()
        if any(pool.tasks[name].serve == "replica" for name in settled):  # nobody asked for runs that end later than others
            self.supervisor.rounds = lambda under_way: self.reports.free_rounds(sum(agent.n_envs for agent in self.agents),
                                                                                under_way)
        like, seeds = pool.maker.make_example(), pool.maker.new_seeds(n)
        stand_ins = [RemoteAgent(pool, index, like, self.reports.observe) for index, _ in seeds]
        agents = cast(list[Agent], stand_ins)
        options, blocks = self.options, np.array_split(np.arange(n), self.options.count(n))
        self.workers[:] = [WorkerHandle(number, [agents[i] for i in block],
                                        RestartBudget(options.max_restarts, options.period, 0.0))
                           for number, block in enumerate(blocks)]
        self._recipes = Recipes(pool.tasks, dict(seeds), self.sync, options.agent_restarts)
        return agents

    def _connect(self) -> None:
        """Open the link, begin workers where there are none, and return when every worker has said hello."""
        if not self._owner:
            self.link.open()
            self.publisher = Publisher(list(self.pool.tasks.values()), self.link.folder)
            self._owner = os.getpid()
            _open.add(self)
        for worker in self.workers:
            if not worker.taken:
                self.supervisor.begin(worker)
        while not self.stopping and not all(worker.up for worker in self.workers):
            self._pump()
            self.pool.lifecycle.raise_error()

    def need_local(self, what: str, why: str) -> None:
        raise ValueError(f"{what}: under driver={self.pool.driver_name!r} {why}")

    # ----------------------------------------------------------------------------------------------------------------- running

    def move_ends(self, key: str, ends: Sequence[int]) -> None:
        self.supervisor.move_ends(key, ends)

    def start(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        self.parked = []
        self._begin(agents, wrappers)
        self._updates.tasks = [wrapper.task for wrapper in wrappers]
        for worker in self.workers:
            worker.rest()
            if not worker.taken:
                worker.budget.clear()
        self._connect()
        self._take_in(requests=False)  # what was said before, as after a load, says nothing of the agents that begin now
        for agent in agents:
            agent.go_on()
        self._start_agents()

    def _start_agents(self) -> None:
        """Starts the agents of workers that are up and have not been told."""
        starting = [worker for worker in self.workers if worker.up and not worker.running and self._phase is not CUTTING]
        if not starting:
            return
        if not self.sync and not self.updates:
            self._updates.make_copies()
        to_all = len(starting) == len(self.workers)
        self.supervisor.publish(self.publisher.due(always=True, to_all=to_all), starting)
        for worker in starting:
            worker.become(WorkerStatus.RUNNING)
            self.agents += [agent for agent in worker.agents if agent not in self.agents]
            self.supervisor.order_agents("start", worker, worker.agents, self.collecting)
            worker.started = worker.sent

    def resume(self, agents: Sequence[Agent]) -> None:
        for worker in self.workers:
            mine = [agent for agent in worker.agents if agent in agents and agent in self.parked]
            if mine:
                self.parked = [agent for agent in self.parked if agent not in mine]
                self.supervisor.order_agents("resume", worker, mine, self.collecting)
            others = [agent for agent in worker.agents if agent not in mine and agent not in self.parked]
            if others and worker.running and self.collecting != self._known_collecting:
                self.supervisor.order_agents("limit", worker, others, self.collecting)
        self._known_collecting = self.collecting

    def iterate(self) -> bool:
        """Between pauses of agents with replicas the robot has its turn, too."""
        return super().iterate() or (self._robots_turn and not self.stopping)

    def run_ready(self) -> None:
        """Waits until all workers wait (sync), or something has waited long enough for them (async); then it is in the queues."""
        had, self._robots_turn = self._robots_turn, False
        if self._update_replies and not self.stopping:
            answered, self._update_replies = self._update_replies, []
            self.supervisor.publish(self.publisher.due())  # before the replies, after which the agents act
            self.supervisor.reply(replies(answered))
        while not self.stopping:
            self._start_agents()
            quiet = all(worker.quiet for worker in self.workers)
            paused = []
            if quiet or not self.sync:
                self._take_in()
                paused = [worker for worker in self.workers if worker.paused]
            if self.stopping:
                break
            if paused and self.sync and self.reports.take_hooks_called():  # parameters may be others, as in go_on
                self.supervisor.publish(self.publisher.due(always=self.publisher.follows_every_step()))
            if paused:
                if self.sync and any(queue.rows for queue in self.predictions):
                    self.supervisor.order("go", paused)
                    break
                if self.sync and not self.rounds.update_waits():
                    break
                if self.sync and not (had or self._phase is CUTTING or any(queue.rows for queue in self.trainings)
                                      or self.rounds.end_iterations(self.agents, self.parked)):
                    self._robots_turn = True
                    break
                self.supervisor.order("go", paused)
                had = False
                if not self.sync and self._phase is not CUTTING:
                    self._robots_turn = True
                    break
            elif quiet:
                begins_anew = self._phase is not CUTTING and any(worker.taken and not worker.running for worker in self.workers)
                if any(queue.rows and queue not in self.updates for queue in self.queues) or not (self.updates or begins_anew):
                    break
            left = LISTEN_S
            if not self.sync:
                step = self._next()
                if not isinstance(step, Wait):
                    break
                left = min(left, step.until - perf_counter())
            self._pump(left)
        self._take_in()

    def _pump(self, seconds: float = 0.5) -> None:
        """Deliver what workers were sent, and take in everything that is there; where that is nothing, wait for a message or the
        end of a worker."""
        self.supervisor.deliver()
        ended = False
        if not self.supervisor.drain() and seconds > 0:
            told = self.supervisor.listen(min(seconds, LISTEN_S), self._updates.descriptors if self.updates else ())
            ended = told and not self.supervisor.drain()
        if self.updates:
            for queue, tickets, publications in self._updates.ended():
                self.supervisor.publish(publications)
                self._answer(queue, tickets)
        if ended or monotonic() - self.supervisor.looked > 0.05:
            self.supervisor.look()

    def _learners(self, agents: Sequence[Agent]) -> tuple[Sequence[Learner], bool]:
        """Return the workers, for which updates wait here, and whether any agent learns."""
        if not agents:  # as long as there is no run
            return [], False
        return self.workers, any(agent.learns for agent in agents)

    def _next(self) -> Serve | RoundDone | Wait:
        """Tell the scheduler first how many workers run, and for how long predictions wait for them; in sync mode all wait."""
        if not self.sync:
            self.rounds.acting = sum(worker.busy for worker in self.workers)
            for queue in self.predictions:
                if queue.closing.by_default and queue.rows:
                    queue.closing.patience = self._patience_for(queue)
        return super()._next()

    def _patience_for(self, queue: RequestQueue) -> float:
        """Return for how many seconds after the batch before a prediction waits for workers that are busy (async, no rule).

        Twice the time that those take from a reply to their next request, where that is less than a batch takes to serve: else
        two halves of the agents would take turns, and each wait for the other's batch. 0 where workers take longer: waiting,
        even for 0.1 ms, then costs more than fuller batches give, for workers that wait together do not overlap.
        """
        cost = queue.counters.compute_s()
        back = [worker.turn_s for worker in self.workers if worker.running and not worker.quiet and 0 < worker.turn_s < cost]
        return 2.0 * max(back, default=0.0)

    # ---------------------------------------------------------------------------------------------- updates and lost workers

    def _lost(self, worker: WorkerHandle, why: str) -> None:
        """A worker has ended: what it had sent is still served, and nobody waits for it; another takes its place."""
        self._take_in()
        self.supervisor.forget(worker)
        for queue in self.queues:
            for ticket in (ticket for batch in queue.batches for ticket in batch.tickets):
                if ticket.waiter.worker is worker and not ticket.abandoned:
                    ticket.abandoned = True
                    queue.abandoned += 1
        self.parked = [agent for agent in self.parked if agent not in worker.agents]
        self.agents = [agent for agent in self.agents if agent not in worker.agents]
        if not self.supervisor.replace(worker, why):
            options = self.options
            self._failed(worker.agents[0], AgentFailed(f"{worker} {why}; it was replaced {options.max_restarts} times within "
                                                       f"{options.period:g} s"))

    def _serve(self, queue: RequestQueue) -> None:
        """In async mode learning runs in a thread: agents that wait for predictions get them meanwhile, from copies of the
        networks."""
        if self.sync or queue.kind == "predict":
            super()._serve(queue)
            return
        while queue in self.updates:
            self._pump()
        batch = queue.take()
        if batch is not None:
            self._updates.give(queue, batch, self.publisher.due)

    # ---------------------------------------------------------------------------------------------------------------- messages

    def _agent_failed(self, worker: WorkerHandle, message: Message) -> None:
        if again := self.reports.begun_anew(worker, message):
            self.supervisor.warn_once(*again)
            return
        if message.notes["agent"] < 0:  # those that are still being built would fail likewise, and tell it to the next run
            for other in self.workers:
                if other.taken and not other.up:
                    self.supervisor.end(other)
        self._failed(*self.reports.error_of(worker, message))

    def _take_in(self, requests: bool = True) -> None:
        """Counts what has happened and puts requests into the queues, in the order of the workers; those first whose last request
        was divided over two batches, so that `max_rows` holds up all alike.

        Args:
            requests: False after a stop: nobody waits for them any more.
        """
        if not any(worker.inbox for worker in self.workers):
            return
        workers = sorted(self.workers, key=lambda worker: not worker.divided)
        if turns := [(worker, message.arrays) for worker in workers for message in worker.inbox if "round" in message.arrays]:
            self.reports.count_episodes(turns)
        for worker in workers:
            while worker.inbox:
                message = worker.inbox.popleft()
                if message.kind is Kind.EVENT:
                    self._note_events(worker, message)
                if "turn" in message.notes:
                    self.reports.count(worker, self.queues, message.notes)
                if requests and message.kind is not Kind.EVENT:
                    if answered := put_request(self.pool.wrappers, self.link, worker, message):
                        self.wake(answered)

    def _note_events(self, worker: WorkerHandle, message: Message) -> None:
        """Which agents have parked or ended, their steps, and episodes that have ended."""
        notes = message.notes
        if "alive" in notes and notes["heard"] >= worker.started:  # else of those before the agents that begin now
            self.agents = [agent for agent in self.agents if agent not in worker.agents or agent.index in notes["alive"]]
            for agent in worker.agents:
                if agent.index in notes["parked"] and agent not in self.parked:
                    self.parked.append(agent)
                    if agent.quota.steps is not None:
                        agent.quota.steps = 0
                elif agent.index not in notes["parked"] and agent in self.parked:
                    self.parked.remove(agent)
        for agent, steps in zip(worker.agents, notes.get("agent_steps", ()), strict=False):
            agent.steps = steps
        if "round" not in message.arrays:
            self.reports.count_episodes([(worker, message.arrays)])

    def wake(self, tickets: list[Ticket]) -> None:
        """In sync mode those who learn hear when the run goes on: agents would act at once, some before and some after what comes
        between."""
        for ticket in tickets:
            if ticket.queue is not None:
                ticket.queue.counters.requests += ticket.waiter.agents
                ticket.waiter.agents = 0
        later = self.sync or self._phase is WAITING
        if later and tickets and tickets[0].queue is not None and tickets[0].queue.kind == "learn":
            self._update_replies += tickets
        else:
            self.supervisor.reply(replies(tickets))

    # ------------------------------------------------------------------------------------------------------------------ ending

    def halt(self, agents: Sequence[Agent], signal: AgentSignal, patience: float | None = None) -> list[Any]:
        self.refuse_agents()
        self.stopping, self._phase = False, RUNNING
        if signal == AgentSignal.STOP:
            for queue in self.queues:
                queue.fail_all("the robot stopped")
            self._update_replies.clear()
            self.supervisor.order("stop")
            while self.updates:  # as everywhere, an update that has begun is finished
                self._pump()
            self._updates.drop_copies()
            self._until_quiet(STOP_PATIENCE)
            self._take_in(requests=False)
            for worker in self.workers:
                worker.rest()
            self.agents.clear()
            self.parked.clear()
        else:
            self.parked = []
            self._phase = CUTTING
            try:
                self.supervisor.order("interrupt")
                self._finish()
            finally:
                self._phase = RUNNING
            for worker in self.workers:
                worker.divided = False
            self.supervisor.publish(self.publisher.due(always=True))  # as in a robot that is made anew and loads this moment
            self.supervisor.order("settle")
            self._until_quiet(60.0, again=True)
            self._take_in(requests=False)
        return []

    def _end_round(self) -> bool:
        """Async, `pause` does it."""
        if not self.sync or any(worker.paused or not worker.quiet for worker in self.workers):
            return False
        return self._serve_at_end()  # the replies are given in the next run

    def pause(self, patience: float) -> list[object]:
        """See `Driver.pause`. Workers come to rest by themselves, for nobody answers them. Those that take longer are heard
        in the next run."""
        self.stopping = False
        for agent in self.agents:
            agent.go_on()
        self._phase, end = WAITING, monotonic() + patience
        self.supervisor.order("pause", [worker for worker in self.workers if worker.running])
        while any(w.owing if w.running else w.taken and not w.up for w in self.workers) and monotonic() < end:
            self._pump(max(end - monotonic(), 0.0))
        self._take_in()
        if not self.sync:
            for queue in self.trainings:
                while queue.batches:
                    self._serve(queue)
            while self.updates:
                self._pump()
            self._updates.drop_copies()
        self.stopping = False
        return []

    def go_on(self) -> None:
        self._phase = RUNNING
        if not self.sync:
            self._updates.make_copies()
        # Somebody may have changed them meanwhile. Those that lag are sent when their time has come.
        self.supervisor.publish(self.publisher.due(always=self.publisher.follows_every_step()))

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
            why = f"did not obey within {seconds:g} s"
            for worker in busy:
                if again:
                    self.supervisor.kill(worker, why)
                else:
                    self.supervisor.end(worker, why)
            return

    @property
    def states(self) -> WorkerStates:
        return WorkerStates(self.supervisor, self._recipes, self.pool, self._connect, self._pump)

    def refuse_agents(self) -> None:
        """As `Driver.refuse_agents`. The callers that would wait for themselves are hooks and stop conditions here."""
        if self.reports.calling:
            raise RuntimeError(CALLED_BY_AGENT)

    def close(self) -> None:
        if self._owner != os.getpid():  # never opened; or this is a forked copy of the process, which has no workers
            return
        self.supervisor.order("end")
        self.supervisor.deliver()
        end = monotonic() + 5.0
        for worker in self.workers:
            if worker.up and self.link.wait(worker, end - monotonic()):
                self.supervisor.forget(worker)
            elif worker.taken:  # else it has not heard of the end
                self.supervisor.end(worker, "did not close its environments within 5 s" if worker.up else "")
        self.supervisor.sum_up()
        self._updates.close()
        self.link.close()
        self._owner = 0
        _open.discard(self)
