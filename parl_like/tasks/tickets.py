"""Ticket: one request of one helper and its reply; Counters: what a queue counts of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from parl_like.interfaces import ActingAgent, QueuePort
from parl_like.values.spec import Array

INFINITE = float("inf")


@dataclass(slots=True, eq=False)
class Ticket:
    """One request and, once it is served, its reply.

    Attributes:
        agent: Whose request it is.
        rows: Rows asked for; 0: a single one, without an axis of rows.
        start: First row of this request in its batch.
        out: Flat output name → array of the whole batch; rows `start` … `start` + `rows` − 1 are the reply.
        acts: The batch's actions as the environment takes them, one entry per row; None if the task gives no actions, or every
            request of the batch was one of `rows`.
        error: Raised instead of a reply.
        version: `ComputationTask.version` of the parameters that made the reply; of a training request, after it.
        queue: Where it was put.
        abandoned: Nobody waits for the reply any more.
        steps: Of an update: its agent's steps since the last one, at least 1.
        scheduled: Of an update: whether a schedule asked for it; else the agent itself did.
        waiter, state, after: The driver's own.
    """

    agent: ActingAgent
    waiter: Any
    queue: QueuePort[Ticket] = None  # type: ignore[assignment]  # until it is put
    rows: int = 0
    start: int = 0
    out: Any = None
    acts: Any = None
    error: BaseException | None = None
    version: int = 0
    state: int = 0
    abandoned: bool = False
    steps: int = 1
    scheduled: bool = True
    after: Ticket | None = None


def number(tickets: Sequence[Ticket]) -> None:
    """Set the first row of each request, where they stand one after the other."""
    start = 0
    for ticket in tickets:
        ticket.start = start
        start += ticket.rows or 1


def joined(tickets: Sequence[Ticket]) -> dict[str, Array]:
    """The replies to one request that may have been split."""
    parts = [{name: v[t.start : t.start + t.rows] for name, v in t.out.items()} for t in tickets]
    return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


@dataclass
class Counters:
    """The counts of a queue. Times are seconds; wait is that of a batch's first request, compute that of its whole service.

    `late` counts replies that nobody waited for any more, `dropped` the rows that a full queue gave up.
    """

    requests: int = 0
    rows: int = 0
    batches: int = 0
    errors: int = 0
    late: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        self.waits: deque[float] = deque(maxlen=1024)
        self.computes: deque[float] = deque(maxlen=1024)

    def compute_s(self) -> float:
        """Return the mean service time of the last eight batches, seconds; 0 before the first."""
        recent = [*islice(reversed(self.computes), 8)]
        return sum(recent) / max(len(recent), 1)

    def state_dict(self) -> dict[str, int]:
        """Return what was counted; the times are this process's own."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Take over a `state_dict`."""
        self.__dict__.update(state)

    def summary(self, queued_rows: int) -> dict[str, float]:
        """The counts, 'mean_batch' (rows), 'queue_depth' (rows), and 'wait_p50_s' … 'compute_p99_s' of the last 1,024 batches."""
        out: dict[str, float] = {**asdict(self), "mean_batch": self.rows / max(self.batches, 1), "queue_depth": queued_rows}
        for name, times in (("wait", self.waits), ("compute", self.computes)):
            p50, p99 = np.percentile(list(times), [50, 99]) if times else (0.0, 0.0)
            out |= {f"{name}_p50_s": float(p50), f"{name}_p99_s": float(p99)}
        return out
