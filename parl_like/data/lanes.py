"""Lanes: which positions of a buffer hold rows, which rows belong together in time, and drawing some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_like.data.row_specs import FLAGS
from parl_like.data.rows import Ring
from parl_like.spec import Array

Positions = npt.NDArray[np.int64]


class Lanes:
    """Rows in circular lanes: a lane is one environment's rows in time order, and a full lane gives up its oldest row.

    A *position* is a slot of the memory, 0 … capacity − 1; lane k owns the slots k · lane_size … (k + 1) · lane_size − 1.

    Attributes:
        capacity, lane_size, n_lanes: Slots in all, slots per lane, lanes.
        columns: Dotted name -> [capacity, ...], the memory itself. To be read; rows are written with push and add.
    """

    n_lanes: int
    lane_size: int
    capacity: int
    columns: dict[str, Array]
    stack_num: int
    sample_avail: bool
    rng: np.random.Generator
    _ring: Ring

    def __len__(self) -> int:
        return self._ring.total

    def is_full(self, lane: int) -> bool:
        """Whether the next row of a lane takes the place of its oldest one."""
        return bool(self._ring.count[lane] == self.lane_size)

    def check_lanes(self, lanes: Sequence[int] | Positions) -> Positions:
        """Lanes as int64. Raises ValueError where one does not exist."""
        array = self._lanes(lanes)
        wrong = array[(array < 0) | (array >= self.n_lanes)]
        if len(wrong):
            raise self._no_lane(wrong[0])
        return array

    def _lanes(self, lanes: Sequence[int] | Positions) -> Positions:
        if type(lanes) is np.ndarray and lanes.dtype == np.int64 and lanes.ndim == 1:
            return lanes
        array = np.asarray(lanes)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
            raise ValueError(f"{self!r}: lanes are {lanes!r}; expected a list or array of integers")
        return array.astype(np.int64, copy=False)

    def _no_lane(self, lane: object) -> ValueError:
        return ValueError(f"{self!r}: there is no lane {lane}; lanes are 0 to {self.n_lanes - 1}, set by n_lanes")

    # ---- positions

    def lane_positions(self, lane: int) -> Positions:
        """Positions of a lane, oldest row first."""
        first, count = lane * self.lane_size, int(self._ring.count[lane])
        oldest = int(self._ring.cursor[lane]) - first if count == self.lane_size else 0
        return first + (oldest + np.arange(count)) % self.lane_size

    def _rows(self) -> Positions:
        """All rows, lane after lane in time order."""
        return np.concatenate([self.lane_positions(lane) for lane in range(self.n_lanes)])

    def _filled(self) -> Positions:
        """Positions that hold a row, in storage order."""
        return np.concatenate([lane * self.lane_size + np.arange(count) for lane, count in enumerate(self._ring.count.tolist())])

    def _newest(self) -> Positions:
        """Position of the newest row of every lane; meaningless for an empty lane."""
        first = np.arange(self.n_lanes) * self.lane_size
        return np.asarray(first + (self._ring.cursor - first - 1) % self.lane_size, np.int64)

    def positions(self, index: Any) -> Positions:
        """A checked index as positions: of any shape, () for an integer.

        Raises:
            IndexError: a position that holds no row, or an index of another kind.
        """
        if isinstance(index, slice):
            return self._rows()[index]
        array = np.asarray(index)
        if array.dtype == np.bool_:
            if array.shape != (self.capacity,):
                raise IndexError(f"{self!r}: a mask has shape {array.shape}; expected ({self.capacity},), one per slot")
            array = np.flatnonzero(array)
        if array.size == 0:
            return array.astype(np.int64)
        if array.dtype.kind not in "iu":
            raise IndexError(f"{self!r}: index {index!r}; expected a slice, integers, or a bool mask")
        positions = array.astype(np.int64, copy=False)
        known = self._ring.serials(positions.reshape(-1))
        if known.min() < 0:
            raise IndexError(f"{self!r}: position {array.reshape(-1)[known.argmin()]} holds no row; positions with rows are "
                             "buffer.sample_indices(0)")
        return positions

    def window(self, start: int, stop: int) -> Positions:
        """Positions start, start + 1, … before stop, running round inside one lane; none if the two are equal.

        Raises:
            ValueError: the two lie in different lanes.
        """
        lane = start // self.lane_size
        first, end = lane * self.lane_size, (lane + 1) * self.lane_size
        if not (0 <= lane < self.n_lanes and first <= stop <= end):
            raise ValueError(f"window: {start} to {stop} leaves its lane; lanes hold {self.lane_size} slots, this one {first} to "
                             f"{end - 1}")
        length = stop - start if stop >= start else stop - start + self.lane_size
        return first + (start - first + np.arange(length)) % self.lane_size

    def serials(self, positions: Positions) -> Positions:
        """[N]: the numbers of rows in the history of their lane, from 0. Of a row that is overwritten meanwhile it is another one
        then, of one that was dropped −1."""
        return self._ring.serials(positions)

    # ---- along time

    def _done(self, positions: Any) -> Any:
        return self.columns[FLAGS[0]][positions] | self.columns[FLAGS[1]][positions]

    def prev(self, index: Any) -> Positions:
        """The row before, within the episode; an episode's first row and the oldest row of a lane are their own."""
        positions = self.positions(index)
        return self._ring.prev(positions.ravel()).reshape(positions.shape)

    def next(self, index: Any) -> Positions:
        """The row after, within the episode; a row that ends one and the newest row of a lane are their own."""
        positions = self.positions(index)
        return self._ring.next(positions.ravel()).reshape(positions.shape)

    def episode_end(self, index: Any) -> Positions:
        """The newest row of the episode of each row, so far as it is stored."""
        positions = self.positions(index)
        return self._ring.episode_end(positions.ravel()).reshape(positions.shape)

    def unfinished_index(self) -> Positions:
        """The newest row of every lane whose episode is not over."""
        newest = self._newest()[self._ring.count > 0]
        return newest[~self._done(newest)] if len(newest) else newest

    def episode_start(self, lane: int) -> int:
        """Position of the first row of the lane's newest episode, ended or not, that is still kept; −1 where the lane is
        empty."""
        order = self.lane_positions(lane)
        if not len(order):
            return -1
        ends = np.flatnonzero(self._done(order[:-1]))
        return int(order[ends[-1] + 1 if len(ends) else 0])

    def sequences(self, indices: Positions, length: int, burn_in: int = 0) -> tuple[Positions, Array]:
        """The rows from `burn_in` before each of [N] positions to the `length`-th from it on, inside its episode and lane.

        Args:
            indices: [N] positions of rows, as `sample_indices` gives them; not checked.
            length: Rows of a sequence, the row of `indices` first.
            burn_in: Rows before it, for a recurrent memory to warm up on.

        Returns:
            Positions [N, burn_in + length], and [N, burn_in + length] bool: False where the episode or the lane has no such row;
            there the nearest one stands.
        """
        if length < 1 or burn_in < 0:
            raise ValueError(f"sequences: length is {length}, burn_in {burn_in}; expected at least 1 and 0")
        return self._ring.around(indices, burn_in, length - 1)

    # ---- choosing rows

    def sample_indices(self, n: int | None, rng: np.random.Generator | None = None, ahead: int = 0, behind: int = 0) -> Positions:
        """Positions of rows: n > 0 drawn with replacement; 0 all of them, lane after lane in time order.

        None draws as many as there are rows; n < 0, or an empty buffer, gives none. Here every row is as likely as the others.

        Args:
            n: How many.
            rng: Instead of the buffer's own generator.
            ahead: Rows that must follow a drawn one, unless its episode ends before.
            behind: Rows before a drawn one that must not have been overwritten; at least `stack_num` − 1.

        Raises:
            ValueError: no row has its whole stack of frames, or enough rows after it.
        """
        total = len(self)
        n = total if n is None else n
        if n < 0 or not total:
            return np.empty(0, np.int64)
        if n == 0:
            rows = self._rows()
            if self.sample_avail:
                rows = rows[self._whole(rows, ahead, behind)]
            return rows
        rng = self.rng if rng is None else rng
        drawn = self._draw(n, rng)
        if ahead or behind or self.stack_num > 1:
            self._redraw(drawn, rng, ahead, behind)
        return drawn

    def _whole(self, positions: Positions, ahead: int, behind: int) -> Array:
        return self._ring.whole(positions, max(self.stack_num, behind + 1), ahead, self.sample_avail)

    def _draw(self, n: int, rng: np.random.Generator) -> Positions:
        total = len(self)
        # Uniform to 2⁻⁵³ · total, in half the time of `integers`; below total also after rounding.
        drawn: Positions = (rng.random(n) * total).astype(np.int64)
        if total == self.capacity or self.n_lanes == 1:
            return drawn  # the filled slots are 0 … total − 1
        count = self._ring.count
        before = np.cumsum(count) - count
        lane = np.searchsorted(before + count, drawn, side="right")
        positions: Positions = drawn - before[lane] + lane * self.lane_size
        return positions

    def _redraw(self, drawn: Positions, rng: np.random.Generator, ahead: int, behind: int) -> None:
        """Replaces drawn rows that cannot be had whole. Those that can keep their shares, as if the others weighed nothing."""
        bad = np.flatnonzero(~self._whole(drawn, ahead, behind))
        for _ in range(8):
            if not len(bad):
                return
            drawn[bad] = self._draw(len(bad), rng)
            bad = bad[~self._whole(drawn[bad], ahead, behind)]
        if len(bad):  # they are rare, so all are looked for
            rows = self.sample_indices(0)
            whole = rows[self._whole(rows, ahead, behind)]
            if not len(whole):
                raise ValueError(f"{self!r}: none of {len(rows)} rows has {max(self.stack_num - 1, behind)} rows before it and "
                                 f"{ahead} after it; add rows first")
            drawn[bad] = rng.choice(whole, len(bad), p=self._shares(whole))

    def _shares(self, rows: Positions) -> Array | None:
        """Probabilities of rows among themselves; None: equal."""
        return None
