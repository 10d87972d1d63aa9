"""The threads driver: a thread per agent, two per wrapper (prediction, training), for environments that wait or release the GIL.

One lock guards all queues and counts. Every wait says above it what ends it; a stop answers every open request, so no wait
outlives the run. `parl_like.tasks.rounds` says when a batch closes and when a round begins, from who acts and who waits; whoever
changes that calls `_look`, which wakes the threads that have something to do.

The agent whose request completes a prediction batch serves it in its own thread: it would wait anyway, and two switches of
threads per batch are saved. A wrapper's prediction thread serves what the clock closes, and what waits behind `max_rows`.
"""

from __future__ import annotations

import atexit
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import torch

from parl_like.drivers.agent_threads import Beside
from parl_like.drivers.waiting import InService, Server, has_ended, locked, release
from parl_like.process.child import shielded
from parl_like.run.driver import CALLED_BY_AGENT, Driver, foreign
from parl_like.tasks.rounds import Rounds
from parl_like.tasks.tickets import INFINITE
from parl_like.values.errors import TaskFailed, WrongCaller

if TYPE_CHECKING:
    from parl_like.agents.agent import Agent
    from parl_like.interfaces import ActingAgent
    from parl_like.tasks.queues import RequestQueue
    from parl_like.tasks.tickets import Ticket
    from parl_like.tasks.wrapper import ComputationWrapper

PATIENCE_S = 0.001
"""The seconds that a prediction batch stays open for agents that are busy in their environments, unless the task's rule says
otherwise."""

OPEN, WAITED, SERVED, READ = range(4)
"""A ticket's `state`: nobody waits for it; its agent waits and is not counted as acting; answered; answered and waited for."""

_started: weakref.WeakSet[ThreadsDriver] = weakref.WeakSet()
"""Drivers that may have threads."""


@atexit.register
def _end_all() -> None:
    """Ends the threads of robots that nobody closed: one that comes back from torch into an interpreter that is gone aborts the
    process ("terminate called without an active exception")."""
    for driver in list(_started):
        driver.halt(list(driver.agents), "stop")
    for driver in list(_started):
        driver.join(5.0)


class ThreadsDriver(Driver):
    """Agents as threads. See `CooperativeDriver` for the arguments."""

    def __init__(self, sync: bool, failed: Callable[[object, BaseException], None]) -> None:
        self.sync = sync
        self._failed = failed
        self.lock = threading.Lock()
        self._news = locked()  # what the robot's thread sleeps on
        self._run: object | None = None  # this run; agents of an earlier one that come late see another
        self._owner = 0  # the thread that started it, the robot's
        self._callers: dict[int, Agent] = {}  # threads of agents, but for one that serves a batch at the moment
        self._servers: list[Server] = []
        self._trainings: list[Server] = []  # those of them that train
        self.agents: list[Agent] = []
        self.parked: list[Agent] = []
        self._gates: dict[int, threading.Lock] = {}  # what parked agents sleep on
        self._threads: list[tuple[Agent, threading.Thread]] = []
        self.rounds = Rounds()
        self.rounds.serving = InService()
        self._asked = False  # sync: an update waits, as far as `_look` has seen
        self._done = False  # sync: a round is over, and who was answered in it has not gone on
        self._trained = False  # sync: a round is done, or a batch was closed by its own rule, and `iterate` has not said so
        self._held: list[Ticket] = []  # replies of a finished round, given when the next iteration begins
        self.stopping = False
        self._beside = Beside()
        self._closing = False  # at a stop: trainings that wait for nobody are still served

    # --------------------------------------------------------------------------------------------------- the agents' side

    def waiter(self) -> Any:
        return locked()

    def put(self, queue: RequestQueue, ticket: Ticket, values: Any, wait: bool) -> None:
        ticket.error = None
        mine = False
        if self.pool.hooks.observing is not None or self._callers.get(threading.get_ident()) is not ticket.agent:
            self.check_caller(ticket.agent)
            if self.is_beside():
                self._put_beside(queue, ticket, values, wait)
                return
        with self.lock:
            dropped = queue.put(ticket, values)
            first = self._count_in(dropped) if dropped else ()
            ticket.state = OPEN
            server = queue.server
            if wait and server is not None:
                ticket.state = WAITED
                self.rounds.acting = acting = self.rounds.acting - 1
                if not server.training:
                    self._tell(ticket.agent)
                if server.training:
                    self._asked = self.sync
                    self.rounds.waits(ticket.agent)
                    self._look()
                elif acting <= 0 or queue.rows >= queue.closing.enough:
                    if not (server.busy or self.stopping):  # whoever is at it looks again afterwards
                        mine = server.busy = True
                    if acting <= 0:
                        self._look()
                elif server.asleep:
                    release(server.bell)
                if self._asked and acting > 0 and not server.training:
                    self._look()  # its steps may have been what an update waited for
            elif server is not None:
                self._asked = self._asked or (self.sync and server.training)
                self._look()
        if first:
            self._wake(first)
        if mine:
            self._serve(server, ticket)
        if wait:
            self.wait(ticket)

    def _put_beside(self, queue: RequestQueue, ticket: Ticket, values: object, wait: bool) -> None:
        """`put` in a thread that an agent has registered."""
        self._beside.wait()
        with self.lock:
            first = self._count_in(queue.put(ticket, values) or [])
            ticket.state = OPEN
            self._asked = self._asked or (self.sync and queue.kind == "learn")
            self._look()
        self._wake(first)
        if wait:
            self.wait(ticket)

    def wait(self, ticket: Ticket) -> None:
        if ticket.state != READ and self._beside.threads and self.is_beside():
            ticket.waiter.acquire()  # ended by `_count_in`, whoever sleeps on it
            ticket.state = READ
        if ticket.state == OPEN:
            if ticket.queue.server is None or threading.get_ident() == self._owner:
                # No run is on; or no round would begin while the robot's thread waits: the queue is served, whatever its rule.
                while ticket.state < SERVED and ticket.queue.batches:
                    tickets = ticket.queue.serve()
                    with self.lock:
                        first = self._count_in(tickets)
                    self._wake(first)
            with self.lock:
                if ticket.state == OPEN:
                    ticket.state = WAITED
                    self._leave(ticket.agent, ticket.queue.kind == "learn")
        if ticket.state != READ:
            try:
                # Ended by `_count_in`: the batch was served, the run stopped, or the server broke.
                ticket.waiter.acquire()
            except BaseException:
                self._give_up(ticket)  # Ctrl-C, in a call from the main thread
                raise
            ticket.state = READ
            after = ticket.after
            if after is not None:
                ticket.after = None
                after.waiter.release()
        if ticket.error is not None:
            raise ticket.error

    def check_caller(self, agent: object) -> None:
        super().check_caller(agent)
        me = threading.get_ident()
        if self.pool.hooks.observing == me:
            raise WrongCaller(f"{agent}: a helper was asked from a hook or a stop condition, which agents in threads wait for; "
                              "ask from the agent, or use driver='cooperative'")
        if self._beside.belongs_to(agent, self._run):
            return
        if self._run is not None and me != self._owner and self._callers.get(me) is not agent:
            raise foreign(agent)

    def is_served(self, ticket: Ticket) -> bool:
        return ticket.state >= SERVED

    def is_beside(self) -> bool:
        return self._beside.is_here()

    def start_thread(self, agent: Agent, function: Callable[[], object]) -> None:
        self.check_caller(agent)
        if self._run is not None:
            self._beside.start(agent, function, self._run, lambda: self._run, self._failed)

    def _give_up(self, ticket: Ticket) -> None:
        """The caller of `wait` was interrupted: whoever it should wake must not wait for it."""
        with self.lock:
            if ticket.state == WAITED:
                self.rounds.acting += 1
                self._come(ticket)
                ticket.state = OPEN
            elif ticket.after is not None:
                ticket.after.waiter.release()
                ticket.after = None

    def park(self, agent: Agent) -> None:
        with self.lock:
            if agent.signal is not None:
                return  # `halt` came between the agent's last look and this
            self.parked.append(agent)
            self._leave(agent)
            release(self._news)
        self._gates[id(agent)].acquire()  # ended by `resume` or `halt`

    def _leave(self, agent: ActingAgent, learner: bool = True) -> None:
        """An agent stops acting; `learner`: and it will send no training request for now. The caller holds the lock."""
        self.rounds.acting -= 1
        if self.rounds.acting <= 0 or (learner and agent in self.rounds.learners):
            if learner:
                self.rounds.waits(agent)
            self._look()

    def _come(self, ticket: Ticket) -> None:
        """An agent no longer waits for an update. The caller holds the lock."""
        if ticket.queue.kind == "learn" and ticket.agent.learns:
            self.rounds.running(ticket.agent)
            self._tell(ticket.agent)

    def _tell(self, agent: ActingAgent) -> None:
        """Say that an agent waits: updates see it as it is now, until it says more itself, between its steps. In the middle of
        one the step may have been counted and the row not, or the row and not the update."""
        agent.last_progress = agent.count_progress() if self.sync else None

    def _look(self) -> None:
        """Wakes whoever has something to do, after what may have closed or opened a batch. The caller holds the lock."""
        if self._asked and not (self.rounds.in_round or self._done) and (self._closing or not self.stopping):
            self._asked = any(server.queue.rows for server in self._trainings) and not self.rounds.begin_round()
        for server in self._servers:
            left = self._due(server)
            if left <= 0 or (left < INFINITE and server.asleep):
                release(server.bell)
        if self._idle() or (self.stopping and self.rounds.acting <= 0):
            release(self._news)

    def _idle(self) -> bool:
        """Nothing can happen any more without the robot: every agent is parked or has ended, and no request is open."""
        return len(self.parked) == len(self.agents) and not any(server.busy or server.queue.rows for server in self._servers)

    # ----------------------------------------------------------------------------------------------------- the wrappers' side

    def _due(self, server: Server) -> float:
        """Seconds until the queue's oldest batch closes (`RequestQueue.due`). The caller holds the lock."""
        queue = server.queue
        if not queue.rows or server.busy or (self.stopping and not (self._closing and server.training)):
            return INFINITE
        return self.rounds.due(queue, perf_counter())

    def _serve_forever(self, server: Server) -> None:
        torch.get_num_threads()  # see `_main`
        queue, served = server.queue, -1
        while True:
            with self.lock:
                if queue.server is not server:
                    return
                left = self._due(server)
                if left <= 0:
                    server.busy = True
                elif left == INFINITE and queue.closing.patience and served != queue.counters.batches:
                    # Batches come and go meanwhile: a nap as long as the next batch may wait costs less than a bell for each.
                    left = min(queue.closing.patience, PATIENCE_S)
                server.asleep = left == INFINITE
                served = queue.counters.batches
            if left <= 0:
                try:
                    self._serve(server)
                except BaseException:  # noqa: BLE001  `_serve` has reported it, and answered everybody
                    return
            else:
                # Ended by `_look`, by a request that opens a batch, by join(), or by the clock.
                server.bell.acquire(timeout=-1 if left == INFINITE else left)

    def _serve(self, server: Server, own: Ticket | None = None) -> None:
        """Serves the oldest batch, in the server's thread or in that of the agent with the ticket `own`; the caller has set
        `busy`."""
        queue, me = server.queue, threading.get_ident()
        tickets: list[Ticket] = []
        caller = self._callers.pop(me, None)
        try:
            tickets = queue.serve()
            if caller is not None:
                self._callers[me] = caller
            if server.training and tickets and tickets[0].error is not None and queue.task.on_error == "stop":
                self._failed(tickets[0].agent, tickets[0].error)
            with self.lock:
                server.busy = False
                if server.training and self.rounds.in_round and (self._closing or not self.stopping):
                    self._held += tickets
                    tickets = []
                    if not any(other.busy or other.queue.rows for other in self._servers if other.training):
                        self.rounds.in_round, self._done, self._trained = False, True, True
                        release(self._news)
                elif server.training and self.sync:
                    self._trained = True
                    release(self._news)
                first = self._count_in(tickets, own)
                if queue.rows or self.rounds.acting <= 0:
                    self._look()
        except BaseException as error:
            self._break(server, tickets, error)
            raise
        self._wake(first)

    def _break(self, server: Server, tickets: list[Ticket], error: BaseException) -> None:
        """Serving itself failed, not the task: nobody may wait for this queue any more, and the run ends."""
        queue = server.queue
        text = "".join(traceback.format_exception(error)).rstrip()
        message = f"the threads driver could not go on with {queue.kind} after {text}"
        failed = [ticket for ticket in tickets if ticket.state < SERVED]
        for ticket in failed:
            ticket.error = TaskFailed(f"{ticket.agent}, task {queue.task.name!r}: {message}")
        failed += queue.fail_all(message, TaskFailed)
        with self.lock:
            server.busy = False
            for ticket in failed:  # one by one, in case `_count_in` is what failed
                self.rounds.acting += ticket.state == WAITED
                ticket.state = SERVED
                ticket.waiter.release()
        self._failed("nobody", TaskFailed(f"task {queue.task.name!r}: {message}"))

    def _count_in(self, tickets: list[Ticket], own: Ticket | None = None) -> list[Ticket]:
        """Marks tickets as served, and counts the agents that wait for them as acting again. The caller holds the lock.

        Only the first two agents are woken by the caller, with `_wake`, and each that runs wakes the next but one: one runs while
        one is on its way. All at once would fight for the GIL (64 agents on 2 cores: 43,000 against 53,000 requests/s).

        Args:
            own: The ticket of the agent that calls; it is already awake, so it comes first.
        """
        waited = []
        for ticket in tickets:
            if ticket.state == WAITED:
                waited.append(ticket)
                self._come(ticket)
            else:
                ticket.waiter.release()  # nobody sleeps on it
            ticket.state = SERVED
        self.rounds.acting += len(waited)
        if own in waited:
            waited.remove(own)
            waited.insert(0, own)
        for ticket, after in zip(waited, waited[2:], strict=False):
            ticket.after = after
        return waited[:2]

    @staticmethod
    def _wake(tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            ticket.waiter.release()

    # ------------------------------------------------------------------------------------------------------- the robot's side

    def start(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        """Starts all threads. Where it raises, `halt` and `join` end those that have started."""
        late = self._late()
        if late:
            raise RuntimeError(f"still busy since the last stop: {', '.join(map(str, late))}; nobody can start twice, so wait "
                               "for them, or give the environment's step() a time limit")
        _started.add(self)
        run = self._run = object()
        self._owner = threading.get_ident()
        self.agents, self.parked, self._held = list(agents), [], []
        self._done, self._trained, self._asked = False, False, self.sync
        queues = [queue for wrapper in wrappers for queue in (wrapper.predictions, wrapper.trainings)]
        learners = [agent for agent in agents if agent.learns]
        self.rounds.begin(self.sync, queues, learners, bool(learners))
        self.rounds.acting = len(agents)
        self._servers = [Server(queue, self._serve_forever) for queue in queues]
        self._trainings = [server for server in self._servers if server.training]
        for server in self._servers:
            server.queue.server = server
            server.queue.begin(self.sync, PATIENCE_S)
        self._gates = {id(agent): locked() for agent in agents}
        for agent in agents:
            agent.signal = None
            self._tell(agent)
        self._threads = [(a, threading.Thread(target=self._main, args=(a, run), name=str(a), daemon=True)) for a in agents]
        with shielded():
            for thread in [*(server.thread for server in self._servers), *(thread for _, thread in self._threads)]:
                thread.start()

    def _main(self, agent: Agent, run: object) -> None:
        # Asking makes torch give this thread the number of OpenMP threads that the process has set; without it a small forward
        # pass takes all cores, 2 to 30 times as long when they are busy.
        torch.get_num_threads()
        self._callers[threading.get_ident()] = agent
        try:
            agent.run()
        except BaseException as error:  # noqa: BLE001  whatever ends an agent is reported, unless the run was given up before
            if self._run is run:
                self._failed(agent, error)
        finally:
            self._callers.pop(threading.get_ident(), None)
            with self.lock:
                self.agents.remove(agent)
                self._leave(agent)
                release(self._news)

    def request_stop(self) -> None:
        self.stopping = True
        # Called by agents and by hooks in agents' threads, never with the lock held.
        with self.lock:
            release(self._news)

    def resume(self, agents: Sequence[Agent]) -> None:
        with shielded(), self.lock:
            self._open_gates(agents)

    def _open_gates(self, agents: Sequence[Agent]) -> None:
        for agent in agents:
            if agent in self.parked:
                self.parked.remove(agent)
                self.rounds.acting += 1
                self.rounds.running(agent)
                self._tell(agent)
                self._gates[id(agent)].release()

    def _next_unroll(self) -> list[Ticket]:
        """Ends a finished round: the next unroll begins. The caller holds the lock, and gives the result to `_wake` when it no
        longer does."""
        held, self._held = self._held, []
        self.rounds.in_round = self._done = self._trained = False
        first = self._count_in(held)
        self._look()
        return first

    def iterate(self) -> bool:
        """Run an iteration. Where no round of training ends it, it takes 50 ms. A training batch that its own rule closed before
        everybody came ends it, too."""
        self._beside.go()
        self._go_on()
        end = monotonic() + 0.05
        while True:
            with self.lock:
                if self._trained or self.stopping or self._idle():
                    break
                left = 0.05 if self.rounds.end_iterations(self.agents, self.parked) else end - monotonic()
                if self._asked:
                    self._look()  # at the steps of agents that ask nobody
            if left <= 0:
                break
            # Ended by the round's end, by a stop, by an agent that parks or ends; or by the clock.
            self._news.acquire(timeout=left)
        with self.lock:
            trained, self._trained = self._trained, False
            return not self.stopping and (trained or not self._idle())

    def pause(self, patience: float) -> list[object]:
        """See `Driver.pause`. Nothing is served until `go_on`."""
        end = monotonic() + patience
        self._beside.hold()
        going = True
        while going:
            while self._busy() and monotonic() < end:
                self._news.acquire(timeout=0.05)  # ended by the last agent that parks or waits, or by the clock
            with self.lock:
                self._closing = not (self.sync and any(agent.learns for agent in self.parked))  # who would have gone on
                self._look()
            while self._busy(trainings=True) and monotonic() < end:
                self._news.acquire(timeout=0.05)
            self._closing = False
            with shielded():
                with self.lock:
                    going = self._done and monotonic() < end
                    first = self._next_unroll() if going else []
                self._wake(first)  # who waited for them goes on until it would act
        with self.lock:
            waiting = [ticket for server in self._servers for batch in server.queue.batches for ticket in batch.tickets]
            still = {*self.parked, *(ticket.agent for ticket in waiting + self._held if ticket.state != OPEN)}
            late = [agent for agent in self.agents if agent not in still]
            return late + [server.thread.name for server in self._servers if server.busy]

    def _busy(self, trainings: bool = False) -> bool:
        """Return whether agents act, or anything is served; or only whether a training is, or will be."""
        with self.lock:
            if trainings:
                return any(server.busy or self._due(server) <= 0 for server in self._trainings)
            return self.rounds.acting > 0 or any(server.busy for server in self._servers)

    def go_on(self) -> None:
        self._owner = threading.get_ident()
        with shielded(), self.lock:
            for agent in self.agents:
                agent.signal = None
            self.stopping = False
            self._open_gates(list(self.parked))
            self._look()

    def forsake(self) -> None:
        for agent in self.agents:
            agent.signal = "stop"
        failed = [ticket for server in self._servers for ticket in server.queue.fail_all("the robot is gone")]
        with self.lock:
            self._run, self.stopping = None, True
            first = self._next_unroll() + self._count_in(failed)
            self._open_gates(list(self.parked))
            for server in self._servers:
                server.queue.server = None
                release(server.bell)
        self._wake(first)
        self._beside.go()

    def _go_on(self) -> None:
        """The next unroll begins, where a round is done that `iterate` has told of."""
        if self._done and not self._trained:
            with shielded():
                with self.lock:
                    first = self._next_unroll()
                self._wake(first)

    def halt(self, agents: Sequence[Agent], signal: str, patience: float | None = None) -> list[Agent]:
        self.refuse_agents()
        self._beside.hold()
        end = INFINITE if patience is None else monotonic() + patience
        with shielded():
            self.stopping = signal == "stop"
            for agent in agents:
                agent.signal = signal
            failed: list[Ticket] = []
            if signal == "stop":
                failed = [ticket for server in self._servers for ticket in server.queue.fail_all("the robot stopped")]
            with self.lock:
                first = self._next_unroll() + self._count_in(failed) if signal == "stop" else []
                self._open_gates(list(self.parked))
                self._look()  # also at what waited while `stopping` was set
            self._wake(first)
            if signal == "stop":
                self._beside.go()  # and hear of it
        while signal == "interrupt":
            self._trained = False
            self._go_on()
            with self.lock:
                if not self._done and self._idle():
                    return []
                if monotonic() >= end:
                    return [agent for agent in self.agents if agent not in self.parked]
            self._news.acquire(timeout=0.05)  # ended by the end of a round, by an agent that parks or ends, or by the clock
        return []

    def refuse_agents(self) -> None:
        if any(thread is threading.current_thread() for _, thread in self._threads):
            raise RuntimeError(CALLED_BY_AGENT)

    def reopen(self) -> None:
        for server in self._servers:
            server.queue.stopped = None

    def _late(self) -> list[Any]:
        """Agents, and names of the wrappers' threads, that are alive."""
        late: list[Agent | str] = [agent for agent, thread in self._threads if not has_ended(thread)]
        late += self._beside.late()
        return late + [server.thread.name for server in self._servers if not has_ended(server.thread)]

    def join(self, timeout: float | None = None) -> list[object]:
        """Ends the wrappers' threads once the agents have ended.

        Returns:
            The agents, and the names of the wrappers' threads, that have not ended within `timeout` seconds.
        """
        end = monotonic() + (timeout if timeout is not None else threading.TIMEOUT_MAX / 2)
        for thread in [*(thread for _, thread in self._threads), *self._beside.threads.values()]:
            has_ended(thread, end)
        with self.lock:
            self._run = None
            for server in self._servers:
                server.queue.server = None
                release(server.bell)
        for server in self._servers:
            has_ended(server.thread, max(end, monotonic() + 0.1))
        return self._late()
