"""The threads driver: a thread per agent, two per wrapper (prediction, training), for environments that wait or release the GIL.

One lock guards all queues and counts. Every wait says above it what ends it; a stop answers every open request, so no wait
outlives the run. The counts `_acting` and `_learners` tell when nobody is left who could still come, which closes a batch.

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

from parl_like.driver import CALLED_BY_AGENT, Driver
from parl_like.errors import TaskFailed
from parl_like.process.child import shielded
from parl_like.queues import INFINITE

if TYPE_CHECKING:
    from parl_like.agent import Agent
    from parl_like.computation_wrapper import ComputationWrapper
    from parl_like.queues import RequestQueue, Ticket

PATIENCE_S = 0.001
"""How long a prediction batch stays open for agents that are busy in their environments, unless the task's rule says
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


def _has_ended(thread: threading.Thread | None, end: float = 0.0) -> bool:
    """Whether a thread has ended or was never started; waits for that until the time `end`.

    Ctrl-C waits meanwhile, 50 ms at most: struck by it, `Thread.join` and `is_alive` take a running thread for an ended one.
    """
    if thread is None or thread.ident is None:
        return True
    while True:
        with shielded():
            thread.join(min(max(end - monotonic(), 0.0), 0.05))
            if not thread.is_alive():
                return True
        if monotonic() >= end:
            return False


class _Server:
    """How one queue is served in one run.

    Attributes:
        bell: Lock that the thread sleeps on; released to wake it.
        asleep: The thread sleeps until the bell, so the first request of a batch must ring; else it wakes by the clock.
        busy: A batch is being computed, by the thread or by an agent.
    """

    __slots__ = ("asleep", "bell", "busy", "queue", "thread", "training")

    def __init__(self, queue: RequestQueue) -> None:
        self.queue = queue
        self.training = queue.kind == "learn"
        self.bell = threading.Lock()
        self.bell.acquire()
        self.asleep = self.busy = False
        self.thread: threading.Thread | None = None

    def ring(self) -> None:
        """Wakes the thread; the caller holds the driver's lock."""
        if self.bell.locked():
            self.bell.release()


class ThreadsDriver(Driver):
    """Agents as threads. See `CooperativeDriver` for the arguments."""

    def __init__(self, sync: bool, failed: Callable[[Agent, BaseException], None],
                 on_error: Callable[[Any, BaseException], None]) -> None:
        self.sync = sync
        self._failed, self._on_error = failed, on_error
        self.lock = threading.Lock()
        # What the robot's thread waits on. A plain lock, for Ctrl-C strikes that thread anywhere, and a Condition struck while it
        # takes its lock back leaves with a lock that is not its own.
        self._news = self.waiter()
        self._run: object | None = None  # this run; threads of an earlier one that come late see another
        self._owner = 0  # the thread that started it, the robot's
        self._servers: list[_Server] = []
        self.agents: list[Agent] = []
        self.parked: list[Agent] = []
        self._gates: dict[int, threading.Semaphore] = {}
        self._threads: list[tuple[Agent, threading.Thread]] = []
        self._acting = 0  # agents that are neither waiting for a reply, nor parked, nor ended
        self._schooled = False  # whether helpers say when to learn; else any agent may come to train
        self._learners = 0  # learning agents that are neither waiting for training, nor parked, nor ended
        self._phase = "unroll"  # sync: unroll → train → done → unroll …
        self._told = False  # `iterate` has returned for the round that is done; else it is the next call's
        self._early = False  # sync: a training batch was closed by its own rule, before everybody came, since `iterate` returned
        self._held: list[Ticket] = []  # replies of a finished round, given when the next iteration begins
        self.stopping = False

    # ------------------------------------------------------------------------------------------- the agents' side (Link)

    def waiter(self) -> Any:
        lock = threading.Lock()
        lock.acquire()
        return lock

    def put(self, queue: Any, ticket: Ticket, values: Any, wait: bool) -> None:
        ticket.error = None
        mine = False
        with self.lock:
            dropped = queue.put(ticket, values)
            first = self._count_in(dropped) if dropped else ()
            ticket.state = OPEN
            server = queue.server
            if wait and server is not None:
                ticket.state = WAITED
                self._acting = acting = self._acting - 1
                if acting <= 0 or queue.rows >= queue.enough:
                    mine = self._closes(server)
                elif server.asleep:
                    server.ring()
                if server.training:
                    self._count_learner(ticket.agent)
            elif server is not None:
                server.ring()
                self._begin_round()
        if first:
            self._wake(first)
        if mine:
            self._serve(server, ticket)
        if wait:
            self.wait(ticket)

    def _closes(self, server: _Server) -> bool:
        """After a request: whether its agent shall serve the queue; rings for every other queue that may close now."""
        if self._acting <= 0:
            for other in self._servers:
                if other is not server and other.queue.rows and not other.busy:
                    other.ring()
        if server.busy or self.stopping:
            return False  # whoever is at it looks again afterwards; after a request to stop nothing more is served
        if server.training:
            server.ring()
            return False
        server.busy = True
        return True

    def wait(self, ticket: Ticket) -> None:
        if ticket.state == OPEN:
            if ticket.queue.server is None or threading.get_ident() == self._owner:
                self._serve_inline(ticket)
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

    def is_served(self, ticket: Ticket) -> bool:
        return ticket.state >= SERVED

    def _serve_inline(self, ticket: Ticket) -> None:
        """For a call while no run is on, or from the robot's thread, where no round would begin while it waits: serves the
        ticket's queue, whatever its rule, until the reply is there."""
        while ticket.state < SERVED and ticket.queue.batches:
            tickets = ticket.queue.serve()
            with self.lock:
                first = self._count_in(tickets)
            self._wake(first)

    def _give_up(self, ticket: Ticket) -> None:
        """The caller of `wait` was interrupted: whoever it should wake must not wait for it."""
        with self.lock:
            if ticket.state == WAITED:
                self._acting += 1
                self._learners += ticket.queue.kind == "learn" and ticket.agent.learns
                ticket.state = OPEN
            elif ticket.after is not None:
                ticket.after.waiter.release()
                ticket.after = None

    def park(self, agent: Agent) -> None:
        """Called by an agent: waits until `resume`, unless it has a signal to obey first."""
        with self.lock:
            if agent.signal is not None:
                return  # `halt` came between the agent's last look and this
            self.parked.append(agent)
            self._leave(agent, True)
            self._tell()
        self._gates[id(agent)].acquire()  # ended by `resume` or `halt`

    def _leave(self, agent: Agent, training: bool) -> None:
        """The agent stops acting; wakes whoever waited for nobody to be left. The caller holds the lock."""
        self._acting -= 1
        if self._acting <= 0:
            self._ring_all()
        if training:
            self._count_learner(agent)

    def _ring_all(self) -> None:
        """Nobody acts any more: wakes whoever waited for that. The caller holds the lock."""
        waiting = [server for server in self._servers if server.queue.rows]
        for server in waiting:
            server.ring()
        if not waiting:
            self._tell()

    def _tell(self) -> None:
        """Makes the robot's thread look; the caller holds the lock."""
        if self._news.locked():
            self._news.release()

    def _count_learner(self, agent: Agent) -> None:
        """The agent will send no training request for now; the caller holds the lock."""
        if agent.learns:
            self._learners -= 1
        self._begin_round()

    def _begin_round(self) -> None:
        """Training begins when no learning agent is left who could still come; sync: a round of it. The caller holds the lock."""
        if self._learners <= 0 and self._phase == "unroll" and (self.sync or self._schooled):
            due = [server for server in self._servers if server.training and server.queue.rows]
            if due and self.sync:
                self._phase = "train"
            for server in due:
                server.ring()

    # ----------------------------------------------------------------------------------------------------- the wrappers' side

    def _due(self, server: _Server) -> float:
        """Seconds until the queue's oldest batch closes (`RequestQueue.due`). The caller holds the lock."""
        queue = server.queue
        if not queue.rows or server.busy or self.stopping:
            return INFINITE
        if not server.training:
            can_still_come = self._acting > 0
        elif self.sync:
            can_still_come = self._phase != "train"
        else:  # whoever waits for a prediction acts again before anybody need wait for nobody
            predicting = any(other.busy or other.queue.rows for other in self._servers if not other.training)
            can_still_come = (self._acting > 0 or predicting) and not (self._schooled and self._learners <= 0)
        return queue.due(perf_counter(), can_still_come)

    def _serve_forever(self, server: _Server, run: object) -> None:
        torch.get_num_threads()  # see `_main`
        bell = server.bell
        served = -1
        while True:
            with self.lock:
                if self._run is not run:
                    return
                left = self._due(server)
                if left <= 0:
                    server.busy = True
                elif left == INFINITE and server.queue.patience and served != server.queue.counters.batches:
                    # Batches come and go meanwhile: a nap as long as the next batch may wait costs less than a bell for each.
                    left = min(server.queue.patience, PATIENCE_S)
                server.asleep = left == INFINITE
                served = server.queue.counters.batches
            if left <= 0:
                try:
                    self._serve(server)
                except BaseException:  # noqa: BLE001  `_serve` has reported it, and answered everybody
                    return
            else:
                # Ended by an agent that stops acting, by a request that completes or opens a batch, by join(), or by the clock.
                bell.acquire(timeout=-1 if left == INFINITE else left)

    def _serve(self, server: _Server, own: Ticket | None = None) -> None:
        """Serves the oldest batch, in the server's thread or in that of the agent with the ticket `own`; the caller has set
        `busy`."""
        queue = server.queue
        tickets: list[Ticket] = []
        try:
            tickets = queue.serve()
            if server.training and tickets and tickets[0].error is not None and queue.task.on_error == "stop":
                self._on_error(tickets[0].agent, tickets[0].error)
            with self.lock:
                server.busy = False
                if server.training and self._phase == "train" and not self.stopping:
                    self._held += tickets
                    tickets = []
                    if not any(s.busy or s.queue.rows for s in self._servers if s.training):
                        self._phase = "done"
                        self._tell()
                elif server.training and self.sync:
                    self._early = True
                    self._tell()
                first = self._count_in(tickets, own)
                if queue.rows:
                    server.ring()
                elif self._acting <= 0:  # nobody had waited for it
                    self._ring_all()
        except BaseException as error:
            self._break(server, tickets, error)
            raise
        self._wake(first)

    def _break(self, server: _Server, tickets: list[Ticket], error: BaseException) -> None:
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
                self._acting += ticket.state == WAITED
                ticket.state = SERVED
                ticket.waiter.release()
        self._on_error("nobody", TaskFailed(f"task {queue.task.name!r}: {message}"))

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
                if ticket.queue.kind == "learn" and ticket.agent.learns:
                    self._learners += 1
            else:
                ticket.waiter.release()  # nobody sleeps on it
            ticket.state = SERVED
        self._acting += len(waited)
        if own in waited:
            waited.remove(own)
            waited.insert(0, own)
        for ticket, after in zip(waited, waited[2:], strict=False):
            ticket.after = after
        return waited[:2]

    @staticmethod
    def _wake(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ticket.waiter.release()

    # ------------------------------------------------------------------------------------------------------- the robot's side

    def start(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        """Starts all threads. Where it raises, `halt` and `join` end those that have started.

        Raises:
            RuntimeError: an agent (in its environment) or a task is still busy since before the last stop, or the system gives no
                more threads.
        """
        late = self._late()
        if late:
            raise RuntimeError(f"still busy since the last stop: {', '.join(map(str, late))}; nobody can start twice, so wait "
                               "for them, or give the environment's step() a time limit")
        _started.add(self)
        run = self._run = object()
        self._owner = threading.get_ident()
        self.agents, self.parked, self._held = list(agents), [], []
        self._phase, self._told, self._early = "unroll", False, False
        self._acting = len(agents)
        self._learners = sum(agent.learns for agent in agents)
        self._schooled = self._learners > 0
        self._servers = [_Server(queue) for wrapper in wrappers for queue in (wrapper.predictions, wrapper.trainings)]
        self._gates = {id(agent): threading.Semaphore(0) for agent in agents}
        threads = []
        for server in self._servers:
            server.queue.server = server
            server.queue.begin(self.sync, PATIENCE_S)
            name = f"{server.queue.task.name} {server.queue.kind}"
            server.thread = threading.Thread(target=self._serve_forever, args=(server, run), name=name, daemon=True)
            threads.append(server.thread)
        self._threads = [(a, threading.Thread(target=self._main, args=(a, run), name=str(a), daemon=True)) for a in agents]
        for agent in agents:
            agent.signal = None
        with shielded():
            for thread in threads + [thread for _, thread in self._threads]:
                thread.start()

    def _main(self, agent: Agent, run: object) -> None:
        # Asking makes torch give this thread the number of OpenMP threads that the process has set; without it a small forward
        # pass takes all cores, 2 to 30 times as long when they are busy.
        torch.get_num_threads()
        try:
            agent.run()
        except BaseException as error:  # noqa: BLE001  whatever ends an agent is reported, unless the run was given up before
            if self._run is run:
                self._failed(agent, error)
        finally:
            with self.lock:
                self.agents.remove(agent)
                self._leave(agent, True)
                self._tell()

    def request_stop(self) -> None:
        self.stopping = True
        # Called by agents and by hooks in agents' threads, never with the lock held.
        with self.lock:
            self._tell()

    def resume(self, agents: Sequence[Agent]) -> None:
        with shielded(), self.lock:
            self._open_gates(agents)

    def _open_gates(self, agents: Sequence[Agent]) -> None:
        for agent in agents:
            if agent in self.parked:
                self.parked.remove(agent)
                self._acting += 1
                self._learners += agent.learns
                self._gates[id(agent)].release()

    def _next_unroll(self) -> None:
        with shielded():
            with self.lock:
                first = self._release()
            self._wake(first)

    def _release(self) -> list[Ticket]:
        """Ends a finished round: the next unroll begins. The caller holds the lock, and gives the result to `_wake` when it no
        longer does."""
        held, self._held = self._held, []
        self._phase, self._told = "unroll", False
        first = self._count_in(held)
        self._begin_round()
        return first

    def _idle(self) -> bool:
        """Nothing can happen any more without the robot: every agent is parked or has ended, and no request is open."""
        return len(self.parked) == len(self.agents) and not any(server.busy or server.queue.rows for server in self._servers)

    def _ended(self) -> bool:
        return self._phase == "done" or self._early or self.stopping or self._idle()

    def _rounds(self) -> bool:
        """Whether a learning agent is left, so that a round of training ends the iteration."""
        return self.sync and sum(agent.learns for agent in self.agents) > sum(agent.learns for agent in self.parked)

    def iterate(self) -> bool:
        """Runs until one round of training is done (sync), or 50 ms (async, or when nobody learns); False when all are idle.

        A training batch that its own rule closed before everybody came ends the iteration, too.
        """
        if self._told:
            self._next_unroll()
        end = monotonic() + 0.05
        while True:
            with self.lock:
                if self._ended():
                    break
                left = INFINITE if self._rounds() else end - monotonic()
            if left <= 0:
                break
            # Ended by the round's end, by a stop, by an agent that parks or ends; or by the clock where there are no rounds.
            self._news.acquire(timeout=-1 if left == INFINITE else left)
        with self.lock:
            trained = self._phase == "done" or self._early
            self._told, self._early = self._phase == "done", False
            return not self.stopping and (trained or not self._idle())

    def halt(self, agents: Sequence[Agent], signal: str, patience: float | None = None) -> list[Agent]:
        self.refuse_agents()
        end = INFINITE if patience is None else monotonic() + patience
        with shielded():
            self.stopping = signal == "stop"
            for agent in agents:
                agent.signal = signal
            failed: list[Ticket] = []
            if signal == "stop":
                failed = [ticket for server in self._servers for ticket in server.queue.fail_all("the robot stopped")]
            with self.lock:
                first = self._release() + self._count_in(failed) if signal == "stop" else []
                self._open_gates(list(self.parked))
                self._begin_round()
                for server in self._servers:  # what waited while `stopping` was set
                    server.ring()
            self._wake(first)
        while signal == "interrupt":
            if self._phase == "done":
                self._next_unroll()
            with self.lock:
                if self._phase != "done" and self._idle():
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
        agents: list[Any] = [agent for agent, thread in self._threads if not _has_ended(thread)]
        threads = [server.thread for server in self._servers if server.thread is not None]
        return agents + [thread.name for thread in threads if not _has_ended(thread)]

    def join(self, timeout: float | None = None) -> list[Any]:
        """Ends the wrappers' threads once the agents have ended.

        Returns:
            The agents, and the names of the wrappers' threads, that have not ended within `timeout` seconds.
        """
        end = monotonic() + (timeout if timeout is not None else threading.TIMEOUT_MAX / 2)
        for _, thread in self._threads:
            _has_ended(thread, end)
        with self.lock:
            self._run = None
            for server in self._servers:
                server.queue.server = None
                server.ring()
        for server in self._servers:
            _has_ended(server.thread, max(end, monotonic() + 0.1))
        return self._late()
