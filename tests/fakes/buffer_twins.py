"""Slow twins of the compiled kernels, in plain NumPy and Python: obvious, and what the tests trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from parl_like.values.spec import Array, Spec

Positions = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]


class RowBlockReference:
    """`RowBlock` in plain NumPy: slow, obvious, and what the tests trust."""

    def __init__(self, specs: Sequence[Spec], capacity: int, arrays: Mapping[str, Array] | None = None) -> None:
        self.specs = tuple(specs)
        self.names = tuple(spec.name for spec in self.specs)
        self.capacity = capacity
        self.arrays = dict(arrays) if arrays is not None else {spec.name: spec.zeros(capacity) for spec in self.specs}

    def write(self, row: int, values: tuple[Any, ...]) -> None:
        for spec, value in zip(self.specs, values, strict=True):
            array = spec.convert(value)
            spec.check_bounds(array)
            self.arrays[spec.name][row] = array

    def write_rows(self, start: int, n: int, values: tuple[Any, ...]) -> None:
        arrays = [spec.convert(value, rows=True) for spec, value in zip(self.specs, values, strict=True)]
        for spec, array in zip(self.specs, arrays, strict=True):
            if len(array) != n:
                raise spec.error(f"{array.shape} {array.dtype}", f"give {n} rows", rows=True)
            spec.check_bounds(array)
        for spec, array in zip(self.specs, arrays, strict=True):
            self.arrays[spec.name][start : start + n] = array


class RingReference:
    """`Ring` in plain NumPy and Python: a lane is a list of positions in time order."""

    def __init__(self, specs: Sequence[Spec], n_lanes: int, lane_size: int) -> None:
        self.block = RowBlockReference(specs, n_lanes * lane_size)
        self.n_lanes, self.lane_size = n_lanes, lane_size
        self.lanes: list[list[int]] = [[] for _ in range(n_lanes)]
        self.cursor = [lane * lane_size for lane in range(n_lanes)]
        self.written = [0] * n_lanes

    @property
    def count(self) -> list[int]:
        return [len(lane) for lane in self.lanes]

    @property
    def total(self) -> int:
        return sum(self.count)

    def clear(self, lane: int) -> None:
        self.lanes[lane] = []
        self.cursor[lane] = lane * self.lane_size

    def push(self, lane: int, values: tuple[Any, ...]) -> int:
        row = [spec.convert(value)
               for spec, value in zip(self.block.specs, values, strict=True)]  # refused before anything is written
        for spec, array in zip(self.block.specs, row, strict=True):
            spec.check_bounds(array)
        position = self.cursor[lane]
        self.block.write(position, tuple(row))
        self.lanes[lane] = [*self.lanes[lane], position][-self.lane_size :]
        self.cursor[lane] = lane * self.lane_size + (position + 1) % self.lane_size
        self.written[lane] += 1
        return position

    def push_rows(self, lanes: Array, values: tuple[Any, ...]) -> Array:
        columns = [spec.convert(value, rows=True) for spec, value in zip(self.block.specs, values, strict=True)]
        for spec, column in zip(self.block.specs, columns, strict=True):
            if len(column) != len(lanes):
                raise spec.error(f"{column.shape} {column.dtype}", f"give {len(lanes)} rows", True)
            spec.check_bounds(column)
        return np.array([self.push(lane, tuple(column[i] for column in columns)) for i, lane in enumerate(lanes)], np.int64)

    def _ends(self, position: int) -> bool:
        return bool(self.block.arrays["terminated"][position] or self.block.arrays["truncated"][position])

    def _after(self, position: int) -> int:
        lane = self.lanes[position // self.lane_size]
        at = lane.index(position)
        return position if at == len(lane) - 1 or self._ends(position) else lane[at + 1]

    def _before(self, position: int) -> int:
        lane = self.lanes[position // self.lane_size]
        at = lane.index(position)
        return position if at == 0 or self._ends(lane[at - 1]) else lane[at - 1]

    def next(self, positions: Array) -> Array:
        return np.array([self._after(position) for position in positions], np.int64)

    def prev(self, positions: Array) -> Array:
        return np.array([self._before(position) for position in positions], np.int64)

    def episode_end(self, positions: Array) -> Array:
        out = []
        for position in positions.tolist():
            while self._after(position) != position:
                position = self._after(position)
            out.append(position)
        return np.array(out, np.int64)

    def around(self, positions: Array, back: int, ahead: int) -> tuple[Array, Array]:
        rows, real = [], []
        for position in positions.tolist():
            before: list[int] = []
            after: list[int] = []
            while len(before) < back and self._before((before or [position])[-1]) != (before or [position])[-1]:
                before.append(self._before((before or [position])[-1]))
            while len(after) < ahead and self._after((after or [position])[-1]) != (after or [position])[-1]:
                after.append(self._after((after or [position])[-1]))
            row = [*before[::-1], position, *after]
            left, right = back - len(before), ahead - len(after)
            rows.append([row[0]] * left + row + [row[-1]] * right)
            real.append([False] * left + [True] * len(row) + [False] * right)
        return np.array(rows, np.int64).reshape(-1, back + 1 + ahead), np.array(real, bool).reshape(-1, back + 1 + ahead)

    def n_step(self, positions: Array, n: int, field: int) -> dict[str, Array]:
        rows, real = self.around(positions, 0, n - 1)
        rew = self.block.arrays[self.block.names[field]][rows]
        rew[~real] = 0
        return {"rew": rew, "valid": real.sum(1), "last_index": rows[:, -1]}

    def numbered(self, numbers: Array) -> Array:
        slots = [sorted(lane) for lane in self.lanes]
        return np.array([position for lane in slots for position in lane], np.int64)[numbers]

    def whole(self, positions: Array, stack: int, ahead: int, full: bool) -> Array:
        out = []
        for position in positions:
            lane = self.lanes[position // self.lane_size]
            behind = stack == 1 or len(lane) < self.lane_size or lane.index(position) >= stack - 1
            rows, real = self.around(np.array([position]), stack - 1, ahead)
            whole_stack = real[0, : stack - 1].all() or not full
            enough = real[0].all() or real[0, stack - 1 :].all() or self._ends(rows[0, -1])
            out.append(bool(behind and whole_stack and enough))
        return np.array(out, bool)


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


def sample_categorical_reference(logits: Array, noise: Array, log_prob: bool) -> dict[str, Array]:
    """`sample_categorical` in plain NumPy."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    sums = weights.cumsum(axis=1)
    act = (sums <= (noise * sums[:, -1])[:, None]).sum(axis=1)
    act = np.where(noise < 0, logits.argmax(axis=1), act)
    if not log_prob:
        return {"act": act}
    return {"act": act, "log_prob": np.log(weights[np.arange(len(act)), act] / sums[:, -1]).astype(np.float32)}


class EpisodeCountsReference:
    """`EpisodeCounts` in plain Python: of each lane the rewards of its open episode, and where it began."""

    def __init__(self, n_lanes: int) -> None:
        self.open: list[list[Array]] = [[] for _ in range(n_lanes)]
        self.starts = [0] * n_lanes

    def count(self, lanes: Array, positions: Array, rew: Array, done: Array) -> tuple[Array, Array, Array]:
        returns, lengths, starts = np.zeros(rew.shape), np.zeros(len(lanes), np.int64), np.zeros(len(lanes), np.int64)
        for i, lane in enumerate(lanes.tolist()):
            if not self.open[lane]:
                self.starts[lane] = int(positions[i])
            self.open[lane].append(rew[i].astype(np.float64))
            starts[i] = self.starts[lane]
            if done[i]:
                returns[i], lengths[i], self.open[lane] = sum(self.open[lane]), len(self.open[lane]), []
        return returns, lengths, starts
