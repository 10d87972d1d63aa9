"""RequestQueue: requests of many agents gather in batches; `BatchClosing` says when the oldest of them closes.

A queue owns no thread and no loop: a driver asks `due`, calls `serve`, wakes the members of the batch, and decides how agents
wait. So the rules of batching, failing and counting stand here once for all drivers.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter
from typing import Any

from parl_like.data.buffers._rows import RowBlock
from parl_like.process.child import Unshielded, shielded
from parl_like.tasks.batch_rule import BatchClosing, BatchRule
from parl_like.tasks.no_progress import Asking
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.tickets import INFINITE, Counters, Ticket
from parl_like.values.errors import Stopped, TaskFailed
from parl_like.values.spec import Array


@dataclass(slots=True, eq=False)
class RequestBatch:
    """Requests that are served together.

    Attributes:
        block: The rows of predictions; parts: those of training requests, one after the other.
        born: When the first request came, in `perf_counter` seconds.
    """

    block: RowBlock = None  # type: ignore[assignment]  # training requests have none
    tickets: list[Ticket] = field(default_factory=list)
    rows: int = 0
    parts: list[Mapping[str, Array]] = field(default_factory=list)
    born: float = 0.0


class RequestQueue(ABC):
    """Waiting requests of one kind, already divided into batches; the last batch is open for more.

    Attributes:
        rule: When a batch closes.
        lock: Held while a request is written or a batch is taken. A driver with threads guards its own counts with it too.
        rows: Waiting rows.
        closing: When the oldest batch closes.
        passed: 1 + how often a driver has served another queue since it last served this one.
        abandoned: Open requests that nobody waits for any more.
        stopped: Why new requests are refused; None: they are taken.
        served_by: The thread that serves a batch at this moment; 0: none does.
        server: The driver's own.
    """

    kind = ""
    served_by = 0

    def __init__(self, task: ComputationTask, rule: BatchRule, lock: Any) -> None:
        self.task, self.rule, self.max_rows, self.lock = task, rule, rule.max_rows, lock
        self.batches: deque[RequestBatch] = deque()
        self.counters, self.asking = Counters(), Asking(self.kind)
        self.rows, self.passed, self.abandoned = 0, 1, 0
        self.stopped: str | None = None
        self._refusal: type[Exception] = Stopped
        self.server: Any = None
        self.closing = BatchClosing(rule, self.kind == "learn", sync=True)

    def begin(self, sync: bool, patience: float | None = None) -> None:
        """A run begins; `patience`: seconds, see `BatchClosing`."""
        since = self.closing.free_since
        self.closing = BatchClosing(self.rule, self.kind == "learn", sync, patience)
        self.closing.free_since = since

    def due(self, now: float, can_still_come: bool) -> float:
        """Return the seconds until the oldest batch closes, see `BatchClosing.due`; infinity where none waits."""
        return self.closing.due(now, self.rows, self.batches[0].born, can_still_come) if self.batches else INFINITE

    def _room_for(self, rows: int) -> RequestBatch:
        """The open batch, or a new one where `rows` more would pass `max_rows`."""
        batch = self.batches[-1] if self.batches else None
        if batch is None or (self.max_rows is not None and batch.rows + rows > self.max_rows):
            batch = self._new_batch()
            batch.born = perf_counter()
            self.batches.append(batch)
        return batch

    def _new_batch(self) -> RequestBatch:
        return RequestBatch()

    def _refused(self, ticket: Ticket) -> Exception:
        """Return the error that `fail_all` was given."""
        return self._refusal(f"{self._where(ticket)}: {self.stopped}")

    def _where(self, ticket: Ticket) -> str:
        return f"{ticket.agent}, task {self.task.name!r}"

    def serve(self) -> list[Ticket]:
        """Serves the oldest batch and returns its tickets, replied to but not yet woken; none where none waits.

        Whatever the task raises becomes the tickets' error. An interruption that is no `Exception` (Ctrl-C) is raised here, and
        the batch is put back.
        """
        batch = self.take()
        return [] if batch is None else self.work(batch)

    def serve_outside(self, wake: Callable[[list[Ticket]], None]) -> None:
        """`serve` for a caller that is no driver's loop, and wake the tickets. Ctrl-C is heard while the task computes, and after
        all else: no batch is lost between its queue and those who wait for it."""
        with shielded() as unshielded:
            batch = self.take()
            if batch is not None:
                wake(self.work(batch, unshielded))

    def take(self) -> RequestBatch | None:
        """The oldest batch, which no longer waits; None where none does."""
        with self.lock:
            if not self.batches:
                return None
            batch = self.batches.popleft()
            self.rows -= batch.rows
        if batch.born >= self.asking.next_look:
            self.asking.look(batch.born, self.task.name, (ticket.agent for ticket in batch.tickets))
        return batch

    def work(self, batch: RequestBatch, unshielded: Unshielded | None = None) -> list[Ticket]:
        """`serve`, for a batch that was taken; `unshielded`: in the middle of `shielded`."""
        begin = perf_counter()
        tickets = batch.tickets
        self.served_by = get_ident()
        try:
            if unshielded is None:
                self._run(batch)
            else:
                unshielded(self._run, batch)
        except Exception as error:  # noqa: BLE001  a task may raise anything, and its agents must hear of it
            self._fail(error, tickets)
        except BaseException:
            with self.lock:
                self.batches.appendleft(batch)
                self.rows += batch.rows
            raise
        finally:
            self.served_by = 0
        counters = self.counters
        counters.requests += len(tickets)
        counters.rows += batch.rows
        counters.batches += 1
        counters.waits.append(begin - batch.born)
        self.closing.free_since = end = perf_counter()
        counters.computes.append(end - begin)
        if self.abandoned:
            counters.late += self.count_late(tickets)
        self.recycle(batch)
        return tickets

    def count_late(self, tickets: Sequence[Ticket]) -> int:
        """Count how many of these, which have been answered, nobody waits for any more."""
        late = sum(ticket.abandoned for ticket in tickets)
        self.abandoned -= late
        return late

    def _fail(self, error: Exception, tickets: list[Ticket]) -> None:
        """Answers these requests with what the task raised, named and with its traceback."""
        self.counters.errors += 1
        names = [str(ticket.agent) for ticket in tickets[:4]] + (["…"] if len(tickets) > 4 else [])
        text = "".join(traceback.format_exception(error)).rstrip()
        message = (f"task {self.task.name!r}: {self.kind} failed for a batch of {len(tickets)} requests ({', '.join(names)}): "
                   f"{type(error).__name__}: {error}\n{text}")
        for ticket in tickets:
            ticket.error = TaskFailed(message)
            ticket.error.__cause__ = error

    @abstractmethod
    def put(self, ticket: Ticket, values: Any) -> list[Ticket] | None:
        """Adds a request; returns those that a full queue gave up for it, to wake. The caller holds `lock`."""

    @abstractmethod
    def _run(self, batch: RequestBatch) -> None:
        """Asks the task, and gives every ticket its reply; raises what the task does."""

    def recycle(self, batch: RequestBatch) -> None:  # noqa: B027  only predictions have memory of their own
        """Keeps the memory of a batch that was answered for a later one."""

    def fail_all(self, reason: str, kind: type[Exception] = Stopped) -> list[Ticket]:
        """Answers every queued request with the error `kind`, and refuses new ones with it; returns the tickets to wake."""
        with self.lock:
            self.stopped, self._refusal = reason, kind
            tickets = [ticket for batch in self.batches for ticket in batch.tickets]
            self.batches.clear()
            self.rows = self.abandoned = 0
        for ticket in tickets:
            ticket.error = self._refused(ticket)
        return tickets
