"""The service of queues under the threads driver: a thread each, and agents that serve the prediction batches they complete."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import torch

from parl_like.drivers.acting_agents import OPEN, SERVED
from parl_like.drivers.waiting import has_ended, locked, release
from parl_like.tasks.rounds import Serve
from parl_like.tasks.tickets import INFINITE
from parl_like.values.errors import TaskFailed

if TYPE_CHECKING:
    from parl_like.agents.agent import Agent
    from parl_like.drivers.acting_agents import ActingAgents
    from parl_like.drivers.round_state import RoundState
    from parl_like.interfaces import ActingAgent
    from parl_like.tasks.queues import RequestQueue
    from parl_like.tasks.tickets import Ticket

PATIENCE_S = 0.001
"""The seconds that a prediction batch stays open for agents that are busy in their environments, unless the task's rule says
otherwise."""


class Server:
    """The service of one queue in one run.

    Attributes:
        bell: What its thread sleeps on.
        asleep: The thread sleeps until the bell, so the first request of a batch must ring; else it wakes by the clock.
        given: The oldest batch is the thread's to serve, which has not begun. (An agent may serve it instead.)
    """

    __slots__ = ("asleep", "bell", "given", "queue", "thread", "training")

    def __init__(self, queue: RequestQueue, serve_forever: Callable[[Server], None]) -> None:
        self.queue, self.training = queue, queue.kind == "learn"
        self.bell, self.asleep, self.given = locked(), False, False
        self.thread = threading.Thread(target=serve_forever, args=(self,), name=f"{queue.task.name} {queue.kind}", daemon=True)

    def has_clock(self) -> bool:
        """Return whether the clock may close the oldest batch."""
        return self.queue.rows > 0 and self.queue.closing.patience is not None


class Serving:
    """The servers of a run.

    Args:
        lock: The driver's.
        callers: Threads of agents → the agent, but for one that serves a batch at the moment.
        look: Wakes whoever has something to do; called with the lock held.
        failed: Called with an agent and an error that may end the run, without the lock.
    """

    def __init__(self, lock: threading.Lock, state: RoundState, acting: ActingAgents, callers: dict[int, Agent],
                 look: Callable[[], object], failed: Callable[[object, BaseException], None]) -> None:
        self._lock, self._round, self._acting, self._callers = lock, state, acting, callers
        self._look, self._failed = look, failed
        self._servers: list[Server] = []
        self._until = INFINITE  # when the clock may close a batch
        self._busy: set[RequestQueue] = set()  # of which a batch is given out, and not answered
        state.rounds.serving = self._busy

    def begin(self, queues: Sequence[RequestQueue], sync: bool) -> None:
        """A run begins; the threads are not started yet."""
        self._servers = [Server(queue, self._serve_forever) for queue in queues]
        self._busy.clear()
        for server in self._servers:
            server.queue.server = server
            server.queue.begin(sync, PATIENCE_S)

    def threads(self) -> list[threading.Thread]:
        """Return the threads of the queues, in the order of tasks."""
        return [server.thread for server in self._servers]

    # ------------------------------------------------------------------------------------------------- what waits, what is due

    def give_out(self, mine: Server | None = None) -> bool:
        """Give out what is to be served now, batch by batch as the scheduler names them. The caller holds the lock.

        Args:
            mine: The server of a queue that the caller would serve itself.

        Returns:
            Whether its batch is the caller's to serve; the others are given to the threads of their queues.
        """
        now, state, is_mine = perf_counter(), self._round, False
        while isinstance(step := state.next(now), Serve):
            server: Server = step.queue.server
            self._busy.add(step.queue)
            state.rounds.served(step.queue)
            if server is not mine:
                server.given = True
                release(server.bell)
                continue
            is_mine = True
            for other in self._servers:
                if other.queue.rows and other is not server:
                    break
            else:  # hot: to ask once more would cost an agent that is alone 5 % of a request
                self._until = INFINITE
                return True
        self._until = step.until
        if step.until < INFINITE:
            for server in self._servers:
                if server.asleep and server.has_clock():
                    release(server.bell)
        return is_mine

    def is_idle(self) -> bool:
        """Return whether no request is open. The caller holds the lock."""
        return not self._busy and not any(server.queue.rows for server in self._servers)

    def is_busy(self, trainings: bool = False) -> bool:
        """Return whether agents act, or anything is served; or only whether a training is."""
        with self._lock:
            if trainings:
                return any(queue.kind == "learn" for queue in self._busy)
            return self._round.rounds.acting > 0 or bool(self._busy)

    def waiting_agents(self) -> Iterable[ActingAgent]:
        """Yield the agents that wait for what is not served yet. The caller holds the lock."""
        for server in self._servers:
            for batch in server.queue.batches:
                yield from (ticket.agent for ticket in batch.tickets if ticket.state != OPEN)

    # ---------------------------------------------------------------------------------------------------------------- serving

    def _serve_forever(self, server: Server) -> None:
        torch.get_num_threads()  # see `ThreadsDriver._main`
        queue, served = server.queue, -1
        while True:
            with self._lock:
                if queue.server is not server:
                    return
                if not server.given:
                    self._look()
                mine, server.given = server.given, False
                left = max(self._until - perf_counter(), 0.0) if server.has_clock() else INFINITE
                if left == INFINITE and queue.closing.patience and served != queue.counters.batches:
                    # Batches come: a look every so often, as long as the next batch may wait costs less than a bell for each.
                    left = min(queue.closing.patience, PATIENCE_S)
                server.asleep = left == INFINITE and not mine
                served = queue.counters.batches
            if mine:
                try:
                    self.serve(server)
                except BaseException:  # noqa: BLE001  `serve` has reported it, and answered everybody
                    return
            else:
                # Ended by `give_out`, by a request that opens a batch, by `end`, or by the clock.
                server.bell.acquire(timeout=-1 if left == INFINITE else left)

    def serve(self, server: Server, own: Ticket | None = None) -> None:
        """Serves the oldest batch, in the server's thread or in that of the agent with the ticket `own`, after `give_out`
        has named it."""
        queue, me = server.queue, threading.get_ident()
        tickets: list[Ticket] = []
        caller = self._callers.pop(me, None)
        try:
            tickets = queue.serve()
            if caller is not None:
                self._callers[me] = caller
            if server.training and tickets and tickets[0].error is not None and queue.task.on_error == "stop":
                self._failed(tickets[0].agent, tickets[0].error)
            with self._lock:
                self._busy.discard(queue)
                if server.training and self._round.hold(tickets):
                    tickets = []
                first = self._acting.count_in(tickets, own)
                if queue.rows or server.training or self._round.rounds.acting <= 0:
                    self._look()
        except BaseException as error:
            self._break(server, tickets, error)
            raise
        self._acting.wake(first)

    def _break(self, server: Server, tickets: list[Ticket], error: BaseException) -> None:
        """Serving itself failed, not the task: nobody may wait for this queue any more, and the run ends."""
        queue = server.queue
        text = "".join(traceback.format_exception(error)).rstrip()
        message = f"the threads driver could not go on with {queue.kind} after {text}"
        failed = [ticket for ticket in tickets if ticket.state < SERVED]
        for ticket in failed:
            ticket.error = TaskFailed(f"{ticket.agent}, task {queue.task.name!r}: {message}")
        failed += queue.fail_all(message, TaskFailed)
        with self._lock:
            self._busy.discard(queue)
            self._acting.fail(failed)
        self._failed("nobody", TaskFailed(f"task {queue.task.name!r}: {message}"))

    # ----------------------------------------------------------------------------------------------------------------- the end

    def fail_all(self, why: str) -> list[Ticket]:
        """Take no further request until `reopen`, and return those that were open, with an error each."""
        return [ticket for server in self._servers for ticket in server.queue.fail_all(why)]

    def reopen(self) -> None:
        """Take requests again, after `fail_all`."""
        for server in self._servers:
            server.queue.stopped = None

    def end(self) -> None:
        """Let the threads end. The caller holds the lock."""
        for server in self._servers:
            server.queue.server = None
            release(server.bell)

    def join(self, end: float) -> None:
        """Wait until the threads have ended, until the time `end` or a little longer."""
        for thread in self.threads():
            has_ended(thread, max(end, monotonic() + 0.1))

    def late(self) -> list[str]:
        """Return the names of the threads that are alive."""
        return [thread.name for thread in self.threads() if not has_ended(thread)]

    def busy_names(self) -> list[str]:
        """Return the names of the threads whose queue is being served. The caller holds the lock."""
        return [server.thread.name for server in self._servers if server.queue in self._busy]
