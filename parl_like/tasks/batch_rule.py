"""BatchRule: when a queue of requests is served, and how many rows a batch has; BatchClosing applies it in a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from parl_like.values.user_calls import guarded


@guarded
@dataclass(frozen=True, kw_only=True)
class BatchRule:
    """When a queue closes a batch: at `min_rows` waiting rows, or `max_wait` seconds after the first, or when nobody is left
    who could still come; never with more than `max_rows` rows (one request that is larger makes a batch of its own).

    Attributes:
        min_rows: None: wait for everybody who could come.
        max_rows: None: no bound.
        max_wait: None: as long as it takes. In sync mode it also closes an update that others are still waited for; then two runs
            with one seed differ, for a clock has its say.
        max_queued: Waiting rows from which a training queue is full; None: no bound. (Each agent waits for its predictions, so
            their queue is bounded by the agents.)
        when_full: What a full training queue does with one more request: 'block' takes it, and its sender waits until it is
            served; 'drop_oldest' answers the oldest with `Dropped`, and counts its rows.
    """

    min_rows: int | None = None
    max_rows: int | None = None
    max_wait: float | None = None
    max_queued: int | None = None
    when_full: Literal["block", "drop_oldest"] = "block"

    def __post_init__(self) -> None:
        if self.when_full not in ("block", "drop_oldest"):
            raise ValueError(f"BatchRule: when_full is {self.when_full!r}; expected 'block' or 'drop_oldest'")
        for name in ("min_rows", "max_rows", "max_queued"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"BatchRule: {name} is {value}; expected at least 1, or None")
        if self.max_wait is not None and not self.max_wait >= 0:
            raise ValueError(f"BatchRule: max_wait is {self.max_wait}; expected seconds ≥ 0, or None")
        for name, why in (("max_rows", "no batch could close"), ("max_queued", "the queue would never hold enough")):
            bound = getattr(self, name)
            if self.min_rows and bound and self.min_rows > bound:
                raise ValueError(f"BatchRule: min_rows ({self.min_rows}) is above {name} ({bound}); {why}")


class BatchClosing:
    """The moment at which the oldest batch of one queue closes, by its rule and for the kind of run.

    Args:
        rule: The queue's.
        training: The queue holds updates, no predictions.
        sync: Updates wait for their round; else one whose rule names no `min_rows` waits for nobody.
        patience: Seconds that predictions stay open for agents that are busy, where the rule says nothing. They count from
            the end of the batch before: the agents that it woke would else miss this one, and two halves would take turns.

    Attributes:
        enough: Waiting rows with which the oldest batch is due whatever the clock says.
        by_default: Predictions whose rule says nothing of when a batch closes: their driver chooses the patience.
        patience: Seconds that the oldest batch stays open for more; None: no clock closes it.
        free_since: When the batch before was answered, in `perf_counter` seconds.
    """

    def __init__(self, rule: BatchRule, training: bool, sync: bool, patience: float | None = None) -> None:
        # A training batch that is full of rows is closed to more of them, but not therefore due: it waits for its round.
        limits = [rule.min_rows, None if training else rule.max_rows, 1 if rule.max_wait == 0 else None,
                  1 if training and not sync and rule.min_rows is None else None]
        self.enough: float = min((limit for limit in limits if limit is not None), default=math.inf)
        self.by_default = rule.max_wait is None and rule.min_rows is None and not training
        self.patience = patience if self.by_default else rule.max_wait
        self.free_since = 0.0

    def due(self, now: float, rows: int, born: float, can_still_come: bool) -> float:
        """Return the seconds until the oldest batch closes: 0, it is to be served; infinity: only another request, or the last
        who could have come, closes it.

        Args:
            now: `perf_counter()` seconds.
            rows: That wait in the queue, at least 1.
            born: When the first request of its oldest batch came.
            can_still_come: Whether anybody is left whose request could join and is to be waited for.
        """
        if not can_still_come or rows >= self.enough:
            return 0.0
        if self.patience is None:
            return math.inf
        return max((max(born, self.free_since) if self.by_default else born) + self.patience - now, 0.0)
