"""The two queues of one task: requests of many agents gather in batches, and `due` says when the oldest of them closes.

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

import numpy as np

from parl_like.data.buffers._rows import RowBlock
from parl_like.learning.explorers import Explorer
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.no_progress import Asking
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.tasks.tickets import INFINITE, Counters, Ticket
from parl_like.values.action_codec import ActionCodec
from parl_like.values.errors import Dropped, Stopped, TaskFailed
from parl_like.values.spec import Array, Spec, SpecError


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
        enough: Waiting rows with which the oldest batch is due whatever the clock says.
        by_default: Predictions whose rule says nothing of when a batch closes: their driver chooses the patience.
        patience: Seconds that the oldest batch stays open for more; None: no clock closes it.
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
        self._free_since = 0.0
        self.begin(sync=True)

    def begin(self, sync: bool, patience: float | None = None) -> None:
        """A run begins.

        Args:
            sync: Training waits for its round; else an update whose rule names no `min_rows` waits for nobody.
            patience: Seconds that predictions stay open for agents that are busy, where the rule says nothing. They count from
                the end of the batch before: the agents that it woke would else miss this one, and two halves would take turns.
        """
        rule, training = self.rule, self.kind == "learn"
        # A training batch that is full of rows is closed to more of them, but not therefore due: it waits for its round.
        limits = [rule.min_rows, None if training else rule.max_rows, 1 if rule.max_wait == 0 else None,
                  1 if training and not sync and rule.min_rows is None else None]
        self.enough: float = min((limit for limit in limits if limit is not None), default=INFINITE)
        self.by_default = rule.max_wait is None and rule.min_rows is None and not training
        self.patience = patience if self.by_default else rule.max_wait

    def due(self, now: float, can_still_come: bool) -> float:
        """When the oldest batch closes: the one rule, which every driver asks.

        Args:
            now: `perf_counter()` seconds.
            can_still_come: Whether anybody is left whose request could join and is to be waited for.

        Returns:
            Seconds from now: 0, it is to be served; infinity: only another request, or the last who could have come, closes it.
        """
        if not self.batches:
            return INFINITE
        if not can_still_come or self.rows >= self.enough:
            return 0.0
        if self.patience is None:
            return INFINITE
        born = self.batches[0].born
        return max((max(born, self._free_since) if self.by_default else born) + self.patience - now, 0.0)

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
        """Return the error that `fail_all` was told."""
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

    def work(self, batch: RequestBatch) -> list[Ticket]:
        """`serve`, for a batch that was taken."""
        begin = perf_counter()
        tickets = batch.tickets
        self.served_by = get_ident()
        try:
            self._run(batch)
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
        self._free_since = end = perf_counter()
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


class PredictionQueue(RequestQueue):
    """Rows of many agents, written straight into preallocated columns.

    Attributes:
        codec: Makes the environment's actions of the task's outputs.
        make_block: Makes the columns of a batch, from their specs and a number of rows.
    """

    kind = "predict"

    def __init__(self, task: ComputationTask, rule: BatchRule, lock: Any, mode: Mode, specs: list[Spec],
                 codec: ActionCodec) -> None:
        super().__init__(task, rule, lock)
        self.mode: Mode = mode
        self.specs, self.codec = specs, codec
        self.explorer: Explorer | None = None
        self._capacity = rule.max_rows or 64
        self._free: list[RowBlock] = []
        self.make_block: Callable[[list[Spec], int], RowBlock] = RowBlock

    def add_explorer(self, explorer: Explorer, agent: object) -> None:
        """The explorer of one more agent.

        Raises:
            ValueError: it is of another kind than those of the other agents.
        """
        if self.explorer is None:
            self.explorer = explorer
            if explorer.noise is not None:
                self.specs = [*self.specs, explorer.noise.owned_by(f"task {self.task.name!r}")]
        elif self.explorer.kind() != explorer.kind():
            raise ValueError(f"{agent}, task {self.task.name!r}: explorer {explorer.kind()} differs from {self.explorer.kind()} "
                             "of the other agents; one batch has one kind of explorer, so give all helpers of a task the same")

    def portions(self, rows: int) -> list[int]:
        """Divide a request of `rows` rows from many agents: what the open batch still takes first, then whole batches."""
        limit = self.max_rows or rows
        room = limit - self.batches[-1].rows if self.batches and self.max_rows else 0
        first = min(room or limit, rows)
        return [first, *(min(limit, rows - start) for start in range(first, rows, limit))]

    def _new_batch(self) -> RequestBatch:
        while self._free:
            block = self._free.pop()
            if block.capacity >= self._capacity:
                return RequestBatch(block)
        return RequestBatch(self.make_block(self.specs, self._capacity))

    def put(self, ticket: Ticket, values: Any) -> None:
        """Adds a request for a row of values, or for `ticket.rows` rows of arrays. The caller holds `lock`."""
        if self.stopped is not None:
            raise self._refused(ticket)
        ticket.queue = self
        rows = ticket.rows or 1
        if self.batches and self.max_rows is None:
            batch = self.batches[-1]
        else:
            batch = self._room_for(rows)
        start = batch.rows
        if start + rows > batch.block.capacity:
            self._capacity = max(self._capacity, 2 * batch.block.capacity, start + rows)
            batch.block = _copy(batch.block, slice(0, start), self.make_block(self.specs, self._capacity))
        try:
            if ticket.rows:
                batch.block.write_rows(start, rows, values)
            else:
                batch.block.write(start, values)
        except Exception as error:
            if not start:
                self.batches.pop()
            raise type(error)(f"{ticket.agent}: {error}") from None
        batch.rows = start + rows
        batch.tickets.append(ticket)
        ticket.start = start
        self.rows += rows

    def _run(self, batch: RequestBatch) -> None:
        try:
            self._ask(batch)
        except Exception:
            if not self.task.bisect or len(batch.tickets) == 1:
                raise
            try:
                for half in self.halves(batch):
                    try:
                        self._run(half)
                    except Exception as again:  # noqa: BLE001  as above
                        self._fail(again, half.tickets)
            except BaseException:  # Ctrl-C: the batch is put back as it was
                _number(batch.tickets)
                for ticket in batch.tickets:
                    ticket.error = None
                raise

    def halves(self, batch: RequestBatch) -> list[RequestBatch]:
        """The requests of a batch that failed, as two with copies of their rows: asked again, they tell whose rows are bad."""
        middle, out = len(batch.tickets) // 2, []
        row = batch.tickets[middle].start
        for tickets, rows in ((batch.tickets[:middle], slice(0, row)), (batch.tickets[middle:], slice(row, batch.rows))):
            n = rows.stop - rows.start
            out.append(RequestBatch(_copy(batch.block, rows, RowBlock(self.specs, n)), tickets, n, born=batch.born))
            _number(tickets)
        return out

    def _ask(self, batch: RequestBatch) -> None:
        """One forward pass, and its answers to all requests of the batch."""
        n = batch.rows
        inputs = {name: column[:n] for name, column in batch.block.arrays.items()}
        noise = inputs.pop("noise", None)
        if noise is not None and self.explorer is not None and self.explorer.given is not None:
            inputs[self.explorer.given] = noise
        out, version = self.task.act(inputs, self.mode)
        if self.explorer is not None:
            for name, value in self.explorer.act(out, noise).items():
                if getattr(value, "shape", ())[:1] != (n,):
                    raise SpecError(f"{type(self.explorer).__name__}.act returned {name!r} as {type(value).__name__} of shape "
                                    f"{np.shape(value)} for {n} rows; expected an array with one row for each")
                # The columns are reused for the next batch, so an explorer's action must not live in them.
                out[name] = value.copy() if noise is not None and np.may_share_memory(value, noise) else value
        self.answer(batch.tickets, out, version)

    def answer(self, tickets: list[Ticket], out: dict[str, Array], version: int) -> None:
        """Gives the members of one batch its outputs."""
        acts = self.codec.listed(out)
        for ticket in tickets:
            ticket.out, ticket.acts, ticket.version = out, acts, version

    def recycle(self, batch: RequestBatch) -> None:
        self._free.append(batch.block)


def _copy(block: RowBlock, rows: slice, other: RowBlock) -> RowBlock:
    """Some rows of a block, at the beginning of another."""
    for name, column in block.arrays.items():
        other.arrays[name][: rows.stop - rows.start] = column[rows]
    return other


def _number(tickets: Sequence[Ticket]) -> None:
    """The first row of each request, where they stand one after the other."""
    start = 0
    for ticket in tickets:
        ticket.start = start
        start += ticket.rows or 1


class TrainingQueue(RequestQueue):
    """Learning batches of many agents, concatenated when they are served.

    Attributes:
        last_result: Metrics of the newest training return.
        env_steps: Of the pool whose requests these are.
    """

    kind = "learn"
    last_result: Mapping[str, Any] = {}
    env_steps: Callable[[], int] | None = None

    def put(self, ticket: Ticket, values: Mapping[str, Array]) -> list[Ticket]:
        """Adds a request; the caller holds `lock`, and wakes the tickets that were dropped for it."""
        if self.stopped is not None:
            raise self._refused(ticket)
        ticket.queue = self
        batch = self._room_for(ticket.rows)
        try:
            self._check(ticket, values, batch.parts[0] if batch.parts else None)
        except Exception:
            if not batch.parts:
                self.batches.pop()
            raise
        batch.parts.append(values)
        batch.tickets.append(ticket)
        ticket.start = batch.rows
        batch.rows += ticket.rows
        self.rows += ticket.rows
        bound = self.rule.max_queued
        return [] if bound is None or self.rule.when_full == "block" else self._drop_oldest(ticket, bound)

    def is_full(self) -> bool:
        """Return whether the sender of one more request must wait for it."""
        return self.rule.max_queued is not None and self.rule.when_full == "block" and self.rows >= self.rule.max_queued

    def _drop_oldest(self, newest: Ticket, bound: int) -> list[Ticket]:
        dropped = []
        while self.rows > bound and (batch := self.batches[0]).tickets[0] is not newest:
            ticket = batch.tickets.pop(0)
            batch.parts.pop(0)
            _number(batch.tickets)
            batch.rows -= ticket.rows
            self.rows -= ticket.rows
            self.counters.dropped += ticket.rows
            ticket.error = Dropped(f"{self._where(ticket)}: dropped {ticket.rows} rows to learn from; the queue holds {bound} "
                                   "and newer ones came")
            dropped.append(ticket)
            self.abandoned -= ticket.abandoned
            batch.born = perf_counter()
            if not batch.tickets:
                self.batches.popleft()
        return dropped

    def _check(self, ticket: Ticket, values: Mapping[str, Array], first: Mapping[str, Array] | None) -> None:
        """Rows of one batch are joined, so the first request must fit the model's inputs, and the others the first."""
        def misfit(name: str, shape: tuple[int, ...], dtype: Any, whose: str) -> SpecError:
            return SpecError(f"{self._where(ticket)}, training field {name!r}: expected rows of {shape} {dtype}, as in {whose}, "
                             f"got {values[name].shape[1:]} {values[name].dtype}")

        if first is None:
            inputs = self.task.algorithm.model.inputs()
            for name in values.keys() & inputs.keys():
                shape, value = inputs[name].shape, values[name]
                if value.ndim <= len(shape) or value.shape[value.ndim - len(shape) :] != shape:  # perhaps with an axis of time
                    raise misfit(name, shape, inputs[name].dtype, "the model")
            return
        if values.keys() != first.keys():
            raise ValueError(f"{self._where(ticket)}: training fields {sorted(values)} differ from {sorted(first)} of the "
                             "requests before; all helpers of a task must send the same fields")
        for name, other in first.items():
            if values[name].shape[1:] != other.shape[1:] or values[name].dtype != other.dtype:
                raise misfit(name, other.shape[1:], other.dtype, "the request before")

    def _run(self, batch: RequestBatch) -> None:
        if self.env_steps is not None:
            self.task.follow(self.env_steps())
        result = self.task.learn(self.joined(batch))
        self.last_result = {}
        for name, value in result.items():
            if not isinstance(value, np.ndarray) or not value.ndim:
                self.last_result[name] = value
            elif len(value) != batch.rows:
                raise ValueError(f"learn returned {name!r} with {len(value)} rows; expected a scalar or one row for each of "
                                 f"{batch.rows}")
        for ticket in batch.tickets:
            ticket.out = result
            ticket.version = self.task.version

    @staticmethod
    def joined(batch: RequestBatch) -> Mapping[str, Array]:
        """The rows of all requests of a batch, in their order."""
        parts = batch.parts
        return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
