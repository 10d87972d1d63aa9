"""Lanes: how rows of a buffer are read: which belong together in time, drawing some, gathering their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parl_like.data.buffers.base import Buffer
from parl_like.data.buffers.fields import FLAGS, Positions, is_part
from parl_like.data.buffers.lane_memory import LaneMemory
from parl_like.values.batch import Batch
from parl_like.values.spec import Array
from parl_like.values.user_calls import Guarded


class Lanes(Buffer, Guarded):
    """The reading half of `ReplayBuffer`, which says what lanes and positions are."""

    n_lanes: int
    lane_size: int
    capacity: int
    columns: dict[str, Array]
    stack_num: int
    sample_avail: bool
    _memory: LaneMemory

    _summed: tuple[int, Array] | None = None
    """For `to_go`: of each position the rewards of all rows before it, lane after lane, with what `written` was then. Recorded
    rows stay, and an update must not go through all of them."""

    def __len__(self) -> int:
        return self._memory.ring.total

    def __str__(self) -> str:
        """Return what it is, a line for each column of the memory, and what is read without being stored."""
        fields = self._memory.fields
        lines = [f"{spec.name}: [{', '.join(map(str, (self.capacity, *spec.shape)))}] {spec.dtype}" for spec in fields.kept]
        if fields.ignore_obs_next:
            lines.append("obs_next: not stored; obs of the next row")
        if self.stack_num > 1:
            lines.append(f"obs and obs_next are read as stacks of {self.stack_num} frames")
        return "\n    ".join([repr(self), *(lines if fields.specs else [])])

    @property
    def written(self) -> int:
        """Return how many rows were ever stored."""
        return int(self._memory.ring.written.sum())

    def is_full(self, lane: int) -> bool:
        """Return whether the next row of a lane takes the place of its oldest one."""
        return bool(self._memory.ring.count[lane] == self.lane_size)

    # ---- positions

    def lane_positions(self, lane: int) -> Positions:
        """Return the positions of a lane, oldest row first, [n] int64."""
        first, count = lane * self.lane_size, int(self._memory.ring.count[lane])
        oldest = int(self._memory.ring.cursor[lane]) - first if count == self.lane_size else 0
        return first + (oldest + np.arange(count)) % self.lane_size

    def rows_in_order(self) -> Positions:
        """Return the positions of all rows, lane after lane in time order, [N] int64."""
        return np.concatenate([self.lane_positions(lane) for lane in range(self.n_lanes)])

    def newest(self) -> Positions:
        """Return the position of the newest row of every lane, [n_lanes] int64; meaningless for an empty lane."""
        first = np.arange(self.n_lanes) * self.lane_size
        return np.asarray(first + (self._memory.ring.cursor - first - 1) % self.lane_size, np.int64)

    def next_position(self, lane: int) -> int:
        """Return where the next row of a lane goes."""
        return int(self._memory.ring.cursor[lane])

    def positions(self, index: object) -> Positions:
        """A checked index as positions: of any shape, () for an integer.

        Raises:
            IndexError: a position that holds no row, or an index of another kind.
        """
        if isinstance(index, slice):
            return self.rows_in_order()[index]
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
        if (wrong := self._memory.ring.first_empty(positions.reshape(-1))) >= 0:
            raise IndexError(f"{self!r}: position {array.reshape(-1)[wrong]} holds no row; positions with rows are "
                             "buffer.sample_indices(0)")
        return positions

    def window(self, start: int, stop: int) -> Positions:
        """Return positions start, start + 1, … before stop, [n] int64, running round inside one lane; none if these are equal.

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
        return self._memory.ring.serials(positions)

    # ---- along time

    def _done(self, positions: Positions | slice | int) -> Array:
        return self.columns[FLAGS[0]][positions] | self.columns[FLAGS[1]][positions]

    def _each(self, index: object, walk: Callable[[Positions], Positions]) -> Positions:
        positions = self.positions(index)
        return walk(positions.ravel()).reshape(positions.shape)

    def prev(self, index: object) -> Positions:
        """Return the row before, within the episode: int64, in the shape of the index. An episode's first row and the oldest row
        of a lane are their own. Raises IndexError as `positions`."""
        return self._each(index, self._memory.ring.prev)

    def next(self, index: object) -> Positions:
        """Return the row after, within the episode: int64, in the shape of the index. A row that ends one and the newest row of a
        lane are their own. Raises IndexError as `positions`."""
        return self._each(index, self._memory.ring.next)

    def episode_end(self, index: object) -> Positions:
        """Return the newest row of the episode of each row, so far as it is stored: int64, in the shape of the index. Raises
        IndexError as `positions`."""
        return self._each(index, self._memory.ring.episode_end)

    def unfinished_index(self) -> Positions:
        """Return the newest row of every lane whose episode is not over, [n] int64, n ≤ n_lanes."""
        newest = self.newest()[self._memory.ring.count > 0]
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

        Raises:
            ValueError: `length` is below 1, or `burn_in` below 0.
        """
        if length < 1 or burn_in < 0:
            raise ValueError(f"sequences: length is {length}, burn_in {burn_in}; expected at least 1 and 0")
        return self._memory.ring.around(indices, burn_in, length - 1)

    def n_step(self, indices: Positions, n: int) -> dict[str, Array]:
        """The next n rewards of each row, inside its episode and lane.

        Args:
            indices: [N] positions of rows, as `sample_indices` gives them; not checked.
            n: At least 1.

        Returns:
            rew [N, n] (vector reward [N, n, …]): rew[i, k] of the k-th row from `indices[i]`, 0 after the end.
            valid [N] int: rows followed, this one included; fewer than n where the episode or the lane ended.
            last_index [N]: position of the last of them, whose obs_next is the state to bootstrap from.

        Raises:
            ValueError: `n` is below 1, or the buffer has no field `rew`.
        """
        if n < 1:
            raise ValueError(f"n_step: n is {n}; expected at least 1")
        if "rew" not in self.columns:
            raise ValueError(f"{self!r}: n_step needs the field 'rew'")
        return self._memory.ring.n_step(indices, n, self._memory.fields.number["rew"])

    def to_go(self, indices: Positions) -> Array:
        """Return the sum of the rewards from each of [N] positions to the end of its episode, as far as that is stored: float64
        [N]. Raises ValueError where the buffer has no field `rew`."""
        if "rew" not in self.columns:
            raise ValueError(f"{self!r}: to_go needs the field 'rew'")
        if self._summed is None or self._summed[0] != self.written:
            order = self.sample_indices(0)
            before = np.zeros(self.capacity)
            rew = self.columns["rew"][order].astype(np.float64)
            before[order] = np.cumsum(rew) - rew
            self._summed = self.written, before
        before, ends = self._summed[1], self._memory.ring.episode_end(indices)
        total: Array = before[ends] + self.columns["rew"][ends] - before[indices]
        return total

    # ---- choosing rows

    def sample_indices(self, n: int | None, rng: np.random.Generator | None = None, ahead: int = 0, behind: int = 0) -> Positions:
        """Return positions of rows, [n] int64: n > 0 drawn with replacement; 0 all of them, lane after lane in time order.

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
            rows = self.rows_in_order()
            return rows[self._whole(rows, ahead, behind)] if self.sample_avail else rows
        rng = self.rng if rng is None else rng
        drawn = self._draw(n, rng)
        if ahead or behind or self.stack_num > 1:
            self._redraw(drawn, rng, ahead, behind)
        return drawn

    def _whole(self, positions: Positions, ahead: int, behind: int) -> Array:
        return self._memory.ring.whole(positions, max(self.stack_num, behind + 1), ahead, self.sample_avail)

    def _draw(self, n: int, rng: np.random.Generator) -> Positions:
        total = len(self)
        # Uniform to 2⁻⁵³ · total, in half the time of `integers`; below total also after rounding.
        drawn: Positions = (rng.random(n) * total).astype(np.int64)
        if total == self.capacity or self.n_lanes == 1:
            return drawn  # the filled slots are 0 … total − 1
        return self._memory.ring.numbered(drawn)

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

    # ---- gathering fields

    def take(self, positions: Positions, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Rows as they are stored, flat: dotted name -> [N, …], a copy. Positions are not checked; `names` None is every stored
        field."""
        columns = self.columns
        return {name: columns[name].take(positions, axis=0) for name in (columns if names is None else names)}

    def lane_rows(self, lane: int) -> dict[str, Array]:
        """The rows of a lane in time order, flat as from `take`. Perhaps views: copy what must outlive the next write."""
        first, count = lane * self.lane_size, int(self._memory.ring.count[lane])
        if count < self.lane_size or self._memory.ring.cursor[lane] == first:
            return {name: column[first : first + count] for name, column in self.columns.items()}
        return self.take(self.lane_positions(lane))

    def gather(self, positions: Positions, last: Positions | None = None, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Rows as they are learned from, flat: dotted name -> [N, …], copies, with frames stacked and obs_next looked up.

        Args:
            positions: [N] positions of rows; not checked.
            last: [N] rows whose obs_next, terminated and truncated are wanted, of n steps the last; None: the same rows.
            names: Fields; None: all.
        """
        plan = self._memory.fields
        if plan.as_stored and last is None and names is None:
            return self.take(positions)
        late = positions if last is None else last
        now, then, obs, nexts = plan.parts if names is None else plan.split(names)
        out = self.take(positions, now)
        out |= self.take(late, then)
        if obs:
            out |= self.stacked(positions, obs, self.stack_num)
        if nexts:
            out |= self.next_observations(late, nexts, out, self.stack_num)
        return {name: out[name] for name in (plan.readable if names is None else names)}

    def stacked(self, positions: Positions, names: Sequence[str], stack: int) -> dict[str, Array]:
        """Fields [N, stack, …] as they are stored, of the rows [N] and those before them in their episodes."""
        return self.take(self._memory.ring.around(positions, stack - 1, 0)[0], names)

    def next_observations(
        self, positions: Positions, names: Sequence[str], stored: Mapping[str, Array], stack: int,
    ) -> dict[str, Array]:
        """Return obs_next of the rows [N], by its names, [N, …], with `stack` > 1 [N, stack, …].

        Args:
            stored: The newest frames [N, …] of obs_next, where they are stored.
        """
        own = {name: "obs" + name[8:] for name in names}
        if self._memory.finals is None:  # only the frames before it are to be fetched
            frames = self.stacked(positions, list(own.values()), stack)
            return {name: next_stack(frames[obs], stored[name]) for name, obs in own.items()}
        following = self._memory.ring.next(positions)
        frames = self.take(following, list(own.values())) if stack == 1 else self.stacked(following, list(own.values()), stack)
        out = {name: frames[obs] for name, obs in own.items()}
        newest = self.newest()
        for i in np.flatnonzero((following == positions) & ~self.columns["terminated"][positions]).tolist():
            for name, final in self._memory.finals.find(int(positions[i]), newest).items():
                if name in out:
                    out[name][i] = final if stack == 1 else next_stack(out[name][i : i + 1], final[None])[0]
        return out

    # ---- whole fields and rows

    @property
    def empty_keys(self) -> tuple[str, ...]:
        """Groups that rows have, and that had no leaf so far, such as `info={}`."""
        return self._memory.empty_keys

    def get(self, index: object, key: str) -> Any:
        """`buffer[index].key`, without building the rest: an array, or a Batch if the field is nested. Dotted keys are fine."""
        return self._read(key, self.positions(index))

    @property
    def done(self) -> Array:
        """[capacity] bool: terminated or truncated."""
        return self.columns["terminated"] | self.columns["truncated"]

    def _read(self, key: str, positions: Positions | None) -> object:
        """A field as a whole: as it is stored where `positions` is None, else as it is learned from, for positions of any
        shape."""
        if key == "done" and self.columns:
            return self._done(slice(None) if positions is None else positions)
        names = [name for name in (self._memory.fields.readable if positions is not None else self.columns) if is_part(name, key)]
        if not names and key not in self.empty_keys:
            raise KeyError(f"{self!r} has no field {key!r}")
        group = {name: self.columns[name] for name in names} if positions is None else self._shaped(positions, names)
        return group[key] if key in group else Batch.nest({name[len(key) + 1 :]: column for name, column in group.items()})

    def _shaped(self, positions: Positions, names: Sequence[str] | None = None) -> dict[str, Array]:
        """`gather` for positions of any shape."""
        if positions.ndim == 1:
            return self.gather(positions, names=names)
        flat = self.gather(positions.ravel(), names=names)
        return {name: column.reshape((*positions.shape, *column.shape[1:]))[()] for name, column in flat.items()}

    def _batch(self, positions: Positions) -> Batch:
        flat = self._shaped(positions)
        if flat:
            flat["done"] = flat["terminated"] | flat["truncated"]
        return self.nested(flat)

    def nested(self, flat: dict[str, Array]) -> Batch:
        """Return rows by flat names as a Batch, with the groups that have no leaf yet."""
        return self._memory.nested(flat)

    def read_shape(self, name: str) -> tuple[int, ...]:
        """Shape of one row of a stored field as `gather` gives it, frames included."""
        shape = self.columns[name].shape[1:]
        return (self.stack_num, *shape) if self.stack_num > 1 and is_part(name, "obs") else shape


# ---- stacks of frames, oldest first: those of the episode, the newest ones; for those that are missing the oldest one stands


def first_stack(frame: Array, stack: int) -> Array:
    """[N, stack, …] of the first frames [N, …] of episodes."""
    return np.repeat(frame[:, None], stack, axis=1)


def next_stack(frames: Array, newest: Array) -> Array:
    """The stacks [N, stack, …] that follow `frames` when `newest` [N, …] come; a new array."""
    return np.concatenate([frames[:, 1:], newest[:, None]], axis=1)
