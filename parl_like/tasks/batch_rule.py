"""BatchRule: when a queue of requests is served, and how many rows a batch has."""

from __future__ import annotations

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
