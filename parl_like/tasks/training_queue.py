"""TrainingQueue: rows that agents want a task to learn from, and the returns of its updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np

from parl_like.interfaces import Learned
from parl_like.tasks.queues import RequestBatch, RequestQueue
from parl_like.tasks.tickets import Ticket, number
from parl_like.values.errors import Dropped
from parl_like.values.spec import Array, SpecError


class TrainingQueue(RequestQueue):
    """Learning batches of many agents, concatenated when they are served.

    Attributes:
        last_result: Metrics of the newest training return.
        env_steps: Of the pool whose requests these are.
    """

    kind = "learn"
    last_result: Learned = {}
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
            number(batch.tickets)
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
        def misfit(name: str, shape: tuple[int, ...], dtype: object, whose: str) -> SpecError:
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
        result = self.task.learn(joined_rows(batch))
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


def joined_rows(batch: RequestBatch) -> Mapping[str, Array]:
    """Return the rows of all training requests of a batch, in their order."""
    parts = batch.parts
    return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
