"""SegmentTree and its plain NumPy twin."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from parl_like.data._segment_tree import SegmentTree

__all__ = ["SegmentTree", "SegmentTreeReference"]

Positions = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]


class SegmentTreeReference:
    """`SegmentTree` without a tree: slow, obvious, and what the tests trust. Sums are rounded in another order."""

    def __init__(self, n: int, kind: Literal["sum", "min"] = "sum") -> None:
        if n < 1 or kind not in ("sum", "min"):
            raise ValueError(f"SegmentTreeReference: n is {n}, kind {kind!r}")
        self.n = n
        self.kind = kind
        self.values: Weights = np.full(n, np.inf if kind == "min" else 0.0)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, positions: Any) -> Any:
        return self.values[self._legal(positions)]

    def __setitem__(self, positions: Any, values: Any) -> None:
        where, weights = self._legal(positions), np.asarray(values, np.float64)
        if weights.shape not in ((), where.shape):
            raise ValueError(f"{weights.shape} weights for {where.shape} positions")
        size = 1 << (self.n - 1).bit_length()
        greatest = np.inf if self.kind == "min" else np.finfo(np.float64).max / size
        if not ((weights >= 0) & (weights <= greatest)).all():
            raise ValueError(f"weights {weights}")
        for position, weight in zip(where.flat, np.broadcast_to(weights, where.shape).flat, strict=True):
            self.values[position] = weight

    def fill(self, values: Any) -> None:
        self[np.arange(self.n)] = values

    @property
    def total(self) -> float:
        return self.reduce()

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        end = self.n if end is None else end
        if not 0 <= start <= end <= self.n:
            raise IndexError(f"range [{start}, {end})")
        part = self.values[start:end]
        return float(part.min(initial=np.inf) if self.kind == "min" else part.sum())

    def find(self, values: Any) -> Any:
        array = np.asarray(values, np.float64)
        if self.kind == "min" or not ((array >= 0) & (array < self.total)).all():
            raise ValueError(f"find: {values}")
        return self._search(array)

    def sample(self, n: int, rng: np.random.Generator) -> Positions:
        if self.kind == "min" or n < 0 or (n and not self.total):
            raise ValueError(f"sample: {n}")
        return self._search(self.total * (1.0 - rng.random(n)))

    def _search(self, values: Weights) -> Positions:
        return np.searchsorted(np.cumsum(self.values), values, side="left").astype(np.int64)

    def _legal(self, positions: Any) -> Positions:
        where = np.asarray(positions)
        if where.size and (where.dtype.kind not in "iu" or where.min() < 0 or where.max() >= self.n):
            raise IndexError(f"positions {positions}")
        return where.astype(np.int64)
