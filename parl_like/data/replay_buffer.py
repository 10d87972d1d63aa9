"""ReplayBuffer: the raw rows of one helper, in circular lanes of one preallocated memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from parl_like.batch import Batch, ready_batch
from parl_like.data.files import Savable
from parl_like.data.frames import frame_positions, next_stack
from parl_like.data.rows import Ring, RowBlock
from parl_like.spec import Array, Spec, SpecError

Positions = npt.NDArray[np.int64]
Random = np.random.Generator | np.random.SeedSequence | int | None

RESERVED = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")
REQUIRED = ("obs", "act", "rew", "terminated", "truncated")
FLAGS = ("terminated", "truncated")
OWNER = "replay buffer"
# What `threadsafe=True` puts under the lock: whatever writes rows or counters, or needs them to stand still.
LOCKED = (
    "push", "push_rows", "add", "update", "truncate_open", "clear_lane", "add_lanes", "reset", "sample", "sample_indices", "gather", "get",
    "n_step", "sequences", "serials", "prev", "next", "episode_end", "load_state_dict", "state_dict",
)  # fmt: skip


class ReplayBuffer(Savable):
    """Rows in circular lanes: a lane is one environment's rows in time order, and a full lane gives up its oldest row.

    A *position* is a slot of the memory, 0 … capacity − 1; lane k owns the slots k · lane_size … (k + 1) · lane_size − 1.
    `buffer.obs` is the whole column [capacity, …], slots without a row included; nested observations come as a Batch of columns.
    Slices (`buffer[:]`, `buffer[-5:]`) count rows in time order, lane after lane; integers and integer arrays are positions.

    Reserved names of a row at time t: obs, act, rew (of that act), terminated, truncated, done (computed: terminated or truncated),
    obs_next (obs at t + 1, at an episode's end the true final one), info, policy (whatever predict wants kept).

    Rows that are read (`sample`, `buffer[…]`, `get`, `gather`) have what the options below leave out in memory put together again:

    - `stack_num` > 1: obs and obs_next are the newest `stack_num` frames, [N, stack_num, …]. Frames never cross an episode's start;
      for those that are missing the oldest one stands. obs_next has the frames of obs but the oldest, and the one after them.
    - `ignore_obs_next`: obs_next is obs of the next row, so it is not stored. What no next row has is kept beside the rows: the final
      observation of a truncated episode, and what the newest row of a lane led to. At a terminated row, where nothing may be
      looked up, obs_next is obs.

    `columns`, `buffer.obs`, `take` and `lane_rows` show the memory as it is.

    Args:
        size: Rows in all; every lane holds ceil(size / n_lanes).
        n_lanes: Environments that write here, each into its own lane.
        rng: Generator, or what seeds one; None seeds with 0, so that runs repeat.
        stack_num: Frames of one observation.
        ignore_obs_next: Whether obs_next is left out in memory.
        save_only_last_obs: Whether observations come stacked already, frames first, and only the newest frame is to be stored.
        sample_avail: Whether only rows are drawn whose episode is as old as the stack. (Rows whose frames were overwritten are
            never drawn.)
        rew_dtype: Of the reward where `add` infers the specs.
        threadsafe: Whether one lock guards writing and sampling.

    Attributes:
        capacity, lane_size, n_lanes: Slots in all, slots per lane, lanes.
        specs: The fields, in the order in which `push` takes their values; () before the first row.
        columns: Dotted name -> [capacity, ...], the memory itself. To be read; rows are written with push and add.
    """

    locked: tuple[str, ...] = LOCKED

    def __init__(
        self, size: int, n_lanes: int = 1, rng: Random = None, *, stack_num: int = 1, ignore_obs_next: bool = False,
        save_only_last_obs: bool = False, sample_avail: bool = False, rew_dtype: npt.DTypeLike = np.float64, threadsafe: bool = False,
    ) -> None:  # fmt: skip
        if size < 1 or n_lanes < 1 or stack_num < 1:
            raise ValueError(f"{type(self).__name__}: size is {size}, n_lanes {n_lanes}, stack_num {stack_num}; expected all at least 1")
        if stack_num > -(-size // n_lanes):
            raise ValueError(f"{type(self).__name__}: lanes of {-(-size // n_lanes)} rows are smaller than a stack of {stack_num} frames; "
                             f"give it size ≥ {stack_num * n_lanes}")
        self.size = size
        self.stack_num, self.ignore_obs_next = stack_num, ignore_obs_next
        self.save_only_last_obs, self.sample_avail = save_only_last_obs, sample_avail
        self.n_lanes = n_lanes
        self.lane_size = -(-size // n_lanes)
        self.capacity = self.lane_size * n_lanes
        self.rng = np.random.default_rng(0 if rng is None else rng)
        self.rew_dtype = np.dtype(rew_dtype)
        self.specs: tuple[Spec, ...] = ()
        self.columns: dict[str, Array] = {}
        self._empty_keys: tuple[str, ...] = ()  # seen, but without a leaf so far: `info={}`
        self._exposed: frozenset[str] = frozenset()
        self._ring = Ring((), n_lanes, self.lane_size)
        self._finals: _Finals | None = None
        self._plan: _Plan = _Plan(())
        self._open_return: Array = np.zeros(n_lanes)
        self._open_length: Positions = np.zeros(n_lanes, np.int64)
        self._open_start: Positions = self._ring.cursor.copy()
        self.lock: Any = nullcontext()
        if threadsafe:
            self.make_threadsafe()

    def make_threadsafe(self) -> None:
        """From now on `lock` guards writing and sampling; hold it over several reads that must see the same rows."""
        self.lock = threading.RLock()
        for name in self.locked:
            setattr(self, name, _under(self.lock, getattr(type(self), name).__get__(self)))

    # ---- writing

    def allocate(self, specs: Sequence[Spec]) -> None:
        """Declares the fields, as flat dotted names, and takes the memory. Repeating the same specs does nothing.

        Raises:
            ValueError: `terminated` or `truncated` is missing or not one bool, a name is double, is `done`, or is both a leaf and
                a group, a field does not hold numbers, or other specs are in use.
        """
        if self.specs:
            if tuple(specs) != self.specs:
                raise ValueError(
                    f"{self!r}: already allocated; {_difference(self.specs, specs)}; make a new buffer for other fields"
                )
            return
        self._use(specs)

    def push(self, lane: int, values: tuple[Any, ...]) -> int:
        """Writes one row: `values` in the order of `specs`. Returns its position. Episode statistics are `add`'s business.

        Raises:
            SpecError: a value does not fit; the buffer is as before.
            ValueError: no such lane, or `allocate` was not called.
        """
        try:
            if self._finals is None:
                position = self._ring.push(lane, values if self._plan.as_given else self._plan.stored(values))
                return position
            stored, nexts = self._plan.stored(values), self._plan.nexts(values)
            self._finals.check(nexts)
            position = self._ring.push(lane, stored)
        except IndexError:
            raise self._not_pushed(lane, len(values)) from None
        terminated, truncated = (self.columns[name][position] for name in FLAGS)
        self._finals.keep(lane, position, nexts, truncated and not terminated)
        return position

    def _not_pushed(self, lane: int, n_values: int) -> ValueError:
        if not self.specs:
            return ValueError(f"{self!r}: push needs to know the fields; call allocate(specs) first, or write with add")
        if not 0 <= lane < self.n_lanes:
            return self._no_lane(lane)
        return ValueError(f"{self!r}: push got {n_values} values; expected one for each of {', '.join(s.name for s in self.specs)}")

    def push_rows(self, lanes: Sequence[int] | Positions, values: Sequence[Any]) -> Positions:
        """Writes row i into lane `lanes[i]`: `values` are arrays [k, …] in the order of `specs`. Returns the positions [k].

        Raises:
            SpecError, ValueError: as `push`; nothing is written.
        """
        if not self.specs or len(values) != len(self.specs):
            raise ValueError(f"{self!r}: push_rows got {len(values)} values; call allocate(specs) first, then give one per spec")
        return self._store(self._lanes(lanes), values if type(values) is tuple else tuple(values))

    def add(
        self, batch: Batch | Mapping[str, Any], lanes: Sequence[int] | Positions | None = None
    ) -> tuple[Positions, Array, Positions, Positions]:
        """Writes the row of one environment, or with lanes row i of the batch into lane `lanes[i]`; infers specs at first use.

        A field first seen now is zero in the earlier rows; a field missing now is zero in this row. `done` is computed.

        Args:
            batch: obs, act, rew, terminated, truncated, and whatever else is to be kept, nested or not; with lanes every leaf
                has a leading axis [k]. Flags may be 0 and 1.
            lanes: None is the only lane of a buffer with one (then the leaves have no row axis), else all of them.

        Returns:
            Position, return and length of the episode that ended with this row (0 while it runs), and position of the first row
            of its episode; each [k], the return of a vector reward [k, …]. Statistics count the rows given to `add`.

        Raises:
            SpecError: a value does not fit its field, or is no number; the buffer is as before.
            ValueError: a required field is missing, no such lane, wrong number of rows.
        """
        rows = lanes is not None or self.n_lanes > 1
        lanes = np.arange(self.n_lanes) if lanes is None else self._lanes(lanes)
        empty: list[str] = []
        flat = dict(_leaves(batch, "", empty))
        try:
            values, positions = self._add_as_known(flat, lanes, rows)
        except (KeyError, SpecError):  # other fields, or values that are to be converted or refused with the field's name
            values, positions = self._add_anything(flat, lanes, rows, empty)
        return positions, *self._count_episodes(lanes, positions, values)

    def _add_as_known(self, flat: dict[str, Any], lanes: Positions, rows: bool) -> tuple[dict[str, Any], Positions]:
        """The usual case: exactly the fields of `specs`, each as it is stored. Raises where it is not the case, and nothing is written."""
        values = tuple([flat[spec.name] for spec in self.specs])
        if len(values) < len(flat) or not values:
            raise KeyError
        if rows:
            return flat, self._store(lanes, values)
        return flat, np.array([self.push(0, values)])

    def _add_anything(self, flat: dict[str, Any], lanes: Positions, rows: bool, empty: list[str]) -> tuple[dict[str, Any], Positions]:
        self._check_fields(flat)
        flat = {name: self._loosely(name, value) for name, value in flat.items()}
        known = {spec.name for spec in self.specs}
        specs = self.specs + tuple(_infer(name, value, rows) for name, value in flat.items() if name not in known)
        arrays = tuple(
            self._convert(spec, flat[spec.name], len(lanes), rows) if spec.name in flat else spec.zeros(len(lanes))
            for spec in specs
        )
        self._use(specs, empty)
        return dict(zip((spec.name for spec in specs), arrays, strict=True)), self._store(lanes, arrays)

    def update(self, other: ReplayBuffer, seam: Literal["join", "truncate"] = "join") -> Positions:
        """Appends all rows of `other` in time order: lane to lane, or all into the only lane. Returns their new positions.

        Args:
            other: Any buffer; fields that only one of the two knows are zero in the other's rows.
            seam: What becomes of an episode that is still open where rows of two sources meet. "join": nothing, so it goes on
                into the next source's first row, as if that were its continuation. "truncate": the newest row of this buffer's
                lane, and of every lane of `other`, is marked truncated here (`other` itself stays as it is).

        Raises:
            ValueError: unknown seam, or several lanes here but another number there.
            SpecError: a field of `other` does not fit ours; the buffer is as before.
        """
        if seam not in ("join", "truncate"):
            raise ValueError(f"update: seam is {seam!r}; expected 'join' or 'truncate'")
        if self.n_lanes not in (1, other.n_lanes):
            raise ValueError(
                f"update: {other.n_lanes} lanes cannot go into {self.n_lanes}; use equal numbers, or a target with one lane"
            )
        rows = other._rows()
        if not len(rows):
            return rows
        flat = other._one_by_one(rows)
        if seam == "truncate":
            newest = np.isin(rows, other._newest())
            flat["truncated"] = flat["truncated"] | (newest & ~flat["terminated"])
        known = {spec.name for spec in self.specs}
        specs = self.specs + tuple(self._declared(spec) for spec in other._plan.given if spec.name not in known)
        single = self._make_plan(specs).given
        arrays = tuple(self._convert(s, flat[s.name], len(rows)) if s.name in flat else s.zeros(len(rows)) for s in single)
        self._use(specs)
        lanes = rows // other.lane_size if self.n_lanes > 1 else np.zeros_like(rows)
        if seam == "truncate":
            for lane in set(lanes.tolist()):
                self.truncate_open(lane)
        return self._store(lanes, arrays, framed=False)

    def _declared(self, single: Spec) -> Spec:
        """A field of single frames as rows for `add` would have it."""
        stacked = self.save_only_last_obs and (_is(single.name, "obs") or _is(single.name, "obs_next"))
        return replace(single, shape=(self.stack_num, *single.shape)) if stacked else single

    def truncate_open(self, lane: int) -> bool:
        """Marks the newest row of a lane as truncated, for an episode that will not go on, and forgets its open statistics.

        Returns whether a row was marked: not if the lane is empty or its newest row ends an episode already.
        """
        if not 0 <= lane < self.n_lanes:
            raise self._no_lane(lane)
        self._open_return[lane], self._open_length[lane] = 0.0, 0
        if not self._ring.count[lane]:
            return False
        newest = int(self._newest()[lane])
        if self._done(newest):
            return False
        self.columns["truncated"][newest] = True
        if self._finals is not None:
            self._finals.settle(lane, newest)
        return True

    def reset(self, keep_statistics: bool = False) -> None:
        """Drops all rows; the memory, its fields and the generator stay.

        Args:
            keep_statistics: Whether return and length of open episodes go on counting (for rows collected in mid-episode).
        """
        for lane in range(self.n_lanes):
            self.clear_lane(lane)
        if not keep_statistics:
            self._open_return[:] = 0.0
            self._open_length[:] = 0

    def add_lanes(self, n: int) -> None:
        """`n` more, empty lanes of the same size; positions of rows stay what they are."""
        before = self.capacity
        self.n_lanes += n
        self.size += n * self.lane_size
        self.capacity = self.lane_size * self.n_lanes
        old, first = self._ring, np.arange(before, self.capacity, self.lane_size)
        zeros = np.zeros(n, np.int64)
        columns = {name: np.concatenate([c, np.zeros((len(first) * self.lane_size, *c.shape[1:]), c.dtype)]) for name, c in self.columns.items()}
        state = np.append(old.count, zeros), np.append(old.cursor, first), np.append(old.written, zeros)
        self._ring = Ring(old.block.specs, self.n_lanes, self.lane_size, columns or None, state)
        self._open_return = np.concatenate([self._open_return, np.zeros((n, *self._open_return.shape[1:]))])
        self._open_length, self._open_start = np.append(self._open_length, zeros), np.append(self._open_start, first)
        if self._finals is not None:
            self._finals.add_lanes(n)
        if self.specs:
            self._bind()

    def is_full(self, lane: int) -> bool:
        """Whether the next row of a lane takes the place of its oldest one."""
        return bool(self._ring.count[lane] == self.lane_size)

    def clear_lane(self, lane: int) -> None:
        """Drops the rows of one lane; statistics of its open episode go on counting."""
        if not 0 <= lane < self.n_lanes:
            raise self._no_lane(lane)
        self._ring.clear(lane)
        self._open_start[lane] = lane * self.lane_size
        if self._finals is not None:
            self._finals.clear(lane, range(lane * self.lane_size, (lane + 1) * self.lane_size))

    # ---- choosing rows

    def __len__(self) -> int:
        return self._ring.total

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

    def _rows(self) -> Positions:
        """All rows, lane after lane in time order."""
        return np.concatenate([self.lane_positions(lane) for lane in range(self.n_lanes)])

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
                raise ValueError(f"{self!r}: none of {len(rows)} rows has {max(self.stack_num - 1, behind)} rows before it and {ahead} after it; "
                                 "add rows first")
            drawn[bad] = rng.choice(whole, len(bad), p=self._shares(whole))

    def _shares(self, rows: Positions) -> Array | None:
        """Probabilities of rows among themselves; None: equal."""
        return None

    def sample(self, n: int | None, rng: np.random.Generator | None = None) -> tuple[Batch, Positions]:
        """Rows as `sample_indices` chooses them, and their positions: `batch == buffer[indices]`.

        Raises:
            ValueError: n > 0 and the buffer is empty.
        """
        if n is not None and n > 0 and not len(self):
            raise ValueError(f"{self!r}: cannot sample {n} rows from an empty buffer; add rows first, or ask len(buffer)")
        indices = self.sample_indices(n, rng)
        return self._batch(indices), indices

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
        """Position of the first row of the lane's newest episode, ended or not, that is still kept; −1 where the lane is empty."""
        order = self.lane_positions(lane)
        if not len(order):
            return -1
        ends = np.flatnonzero(self._done(order[:-1]))
        return int(order[ends[-1] + 1 if len(ends) else 0])

    def window(self, start: int, stop: int) -> Positions:
        """Positions start, start + 1, … before stop, running round inside one lane; none if the two are equal.

        Raises:
            ValueError: the two lie in different lanes.
        """
        lane = start // self.lane_size
        first, end = lane * self.lane_size, (lane + 1) * self.lane_size
        if not (0 <= lane < self.n_lanes and first <= stop <= end):
            raise ValueError(
                f"window: {start} to {stop} leaves its lane; lanes hold {self.lane_size} slots, this one {first} to {end - 1}"
            )
        length = stop - start if stop >= start else stop - start + self.lane_size
        return first + (start - first + np.arange(length)) % self.lane_size

    def n_step(self, indices: Positions, n: int) -> dict[str, Array]:
        """The next n rewards of each row, inside its episode and lane.

        Args:
            indices: [N] positions of rows, as `sample_indices` gives them; not checked.
            n: At least 1.

        Returns:
            rew [N, n] (vector reward [N, n, …]): rew[i, k] of the k-th row from `indices[i]`, 0 after the end.
            valid [N] int: rows followed, this one included; fewer than n where the episode or the lane ended.
            last_index [N]: position of the last of them, whose obs_next is the state to bootstrap from.
        """
        if n < 1:
            raise ValueError(f"n_step: n is {n}; expected at least 1")
        if "rew" not in self.columns:
            raise ValueError(f"{self!r}: n_step needs the field 'rew'")
        if n == 1:
            return {"rew": self.columns["rew"][indices][:, None], "valid": np.ones(len(indices), np.int64), "last_index": indices}
        return self._ring.n_step(indices, n, self._plan.number["rew"])

    def sequences(self, indices: Positions, length: int, burn_in: int = 0) -> tuple[Positions, Array]:
        """The rows from each of `indices` on, in time order, inside its episode and lane.

        Args:
            indices: [N] positions of rows, as `sample_indices` gives them; not checked.
            length: Rows of a sequence, the row of `indices` first.
            burn_in: Rows before it, for a recurrent memory to warm up on.

        Returns:
            Positions [N, burn_in + length], and [N, burn_in + length] bool: False where the episode or the lane has no such row; there
            the nearest one stands.
        """
        if length < 1 or burn_in < 0:
            raise ValueError(f"sequences: length is {length}, burn_in {burn_in}; expected at least 1 and 0")
        return self._ring.around(indices, burn_in, length - 1)

    def around(self, positions: Positions, back: int, ahead: int) -> tuple[Positions, Array]:
        """`sequences`, of the rows from `back` before to `ahead` after each."""
        return self._ring.around(positions, back, ahead)

    def serials(self, positions: Positions) -> Positions:
        """[N]: the numbers of rows in the history of their lane, from 0. Of a row that is overwritten meanwhile it is another one then, of
        one that was dropped −1."""
        return self._ring.serials(positions)

    # ---- reading rows

    def __getitem__(self, index: Any) -> Batch:
        """Rows as a Batch: a slice in time order, an integer (one row, no row axis), integer array or bool mask by position.

        Raises:
            IndexError: a position that holds no row.
        """
        with self.lock:
            return self._batch(self.positions(index))

    def get(self, index: Any, key: str) -> Any:
        """`buffer[index].key`, without building the rest: an array, or a Batch if the field is nested. Dotted keys are fine."""
        return self._read(key, self.positions(index))

    def take(self, positions: Positions, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Rows as they are stored, flat: dotted name -> [N, …], a copy. Positions are not checked; `names` None is every stored field."""
        columns = self.columns
        return {name: columns[name].take(positions, axis=0) for name in (columns if names is None else names)}

    def gather(self, positions: Positions, last: Positions | None = None, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Rows as they are learned from, flat: dotted name -> [N, …], copies, with frames stacked and obs_next looked up.

        Args:
            positions: [N] positions of rows; not checked.
            last: [N] rows whose obs_next, terminated and truncated are wanted, of n steps the last; None: the same rows.
            names: Fields; None: all.
        """
        plan, stack = self._plan, self.stack_num
        if plan.as_stored and last is None and names is None:
            return self.take(positions)
        late = positions if last is None else last
        wanted = plan.readable if names is None else names
        obs = [name for name in wanted if _is(name, "obs")]
        nexts = [name for name in wanted if _is(name, "obs_next")]
        then = [name for name in wanted if name in FLAGS or (name in nexts and name in plan.number)]
        now = [name for name in wanted if name not in then and name not in nexts and (stack == 1 or name not in obs)]
        out = self.take(positions, now) | self.take(late, then)
        if stack > 1:
            out |= self._stacked(positions, obs, stack)
        if nexts and not plan.as_stored:
            out |= self._nexts(late, nexts, out, stack)
        return {name: out[name] for name in wanted}

    def _stacked(self, positions: Positions, names: Sequence[str], stack: int) -> dict[str, Array]:
        """Fields [N, stack, …], the newest frame last; [N, …] for a stack of one."""
        if stack == 1:
            return self.take(positions, names)
        return self.take(frame_positions(self._ring, positions, stack), names)

    def _nexts(self, positions: Positions, names: Sequence[str], stored: Mapping[str, Array], stack: int) -> dict[str, Array]:
        """obs_next of the rows, by its names; `stored` has its newest frames where they are stored."""
        own = ["obs" + name[len("obs_next") :] for name in names]
        if self._finals is None:  # only the frames before it are to be fetched
            frames = self._stacked(positions, own, stack)
            return {name: next_stack(frames[theirs], stored[name]) for name, theirs in zip(names, own, strict=True)}
        following = self._ring.next(positions)
        frames = self._stacked(following, own, stack)
        out = {name: frames[theirs] for name, theirs in zip(names, own, strict=True)}
        newest = self._newest()
        for i in np.flatnonzero((following == positions) & ~self.columns["terminated"][positions]).tolist():
            final = self._finals.find(int(positions[i]), newest)
            for name in final if final is not None else ():
                assert final is not None
                array = out[name]
                array[i] = final[name] if stack == 1 else next_stack(array[i : i + 1], final[name][None])[0]
        return out

    def read_shape(self, name: str) -> tuple[int, ...]:
        """Shape of one row of a stored field as `gather` gives it, frames included."""
        shape = self.columns[name].shape[1:]
        return (self.stack_num, *shape) if self.stack_num > 1 and _is(name, "obs") else shape

    def _one_by_one(self, positions: Positions) -> dict[str, Array]:
        """Rows with obs_next, but of single frames."""
        flat = self.take(positions)
        if self._finals is not None:
            flat |= self._nexts(positions, self._plan.next_names, {}, 1)
        return flat

    def lane_rows(self, lane: int) -> dict[str, Array]:
        """The rows of a lane in time order, flat as from `take`. Perhaps views: copy what must outlive the next write."""
        first, count = lane * self.lane_size, int(self._ring.count[lane])
        if count < self.lane_size or self._ring.cursor[lane] == first:
            return {name: column[first : first + count] for name, column in self.columns.items()}
        return self.take(self.lane_positions(lane))

    @property
    def done(self) -> Array:
        """[capacity] bool: terminated or truncated."""
        return self.columns["terminated"] | self.columns["truncated"]

    if TYPE_CHECKING:  # `buffer.obs` and its like: set by `_expose`

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RESERVED or name in self.__dict__.get("_exposed", ()):
            raise ValueError(f"ReplayBuffer: {name!r} names stored rows and cannot be assigned; write rows with add or push")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        tops = list(dict.fromkeys(spec.name.partition(".")[0] for spec in self.specs))
        fields = " ".join(tops[:8]) + (" …" if len(tops) > 8 else "") if tops else "none yet"
        return f"{type(self).__name__}(rows={len(self)} of {self.capacity}, lanes={self.n_lanes}, fields={fields})"

    # ---- saving

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to one object in one process: views, bound methods, the lock."""
        gone = {"lock", *self.locked, *self._exposed}
        return {**{key: value for key, value in self.__dict__.items() if key not in gone}, "_exposed": frozenset(),
                "threadsafe": "push" in self.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        threadsafe = state.pop("threadsafe")
        self.__dict__.update(state, lock=nullcontext())
        if self.specs:
            self._bind()
        if threadsafe:
            self.make_threadsafe()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rows to come depend on: plain dicts of JSON values, and under "columns" arrays of the filled rows."""
        filled = self._filled()
        return {
            "size": self.size,
            "n_lanes": self.n_lanes,
            "options": self._options(),
            "count": self._ring.count.tolist(),
            "cursor": self._ring.cursor.tolist(),
            "written": self._ring.written.tolist(),
            "specs": [{"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype.str} for spec in self.specs],
            "empty_keys": list(self._empty_keys),
            "columns": self.take(filled),
            "open": {
                "return": self._open_return.tolist(),
                "length": self._open_length.tolist(),
                "start": self._open_start.tolist(),
            },
            "finals": {} if self._finals is None else self._finals.state_dict(),
            "rng": self.rng.bit_generator.state,
        }

    def _options(self) -> dict[str, Any]:
        """What decides how rows are stored and drawn, beside the size."""
        return {"stack_num": self.stack_num, "ignore_obs_next": self.ignore_obs_next, "save_only_last_obs": self.save_only_last_obs,
                "sample_avail": self.sample_avail}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave. This buffer may have no fields yet, or the first of those saved.

        Raises:
            ValueError: another size, number of lanes, kind of generator, or other fields; the buffer is as before.
        """
        for key, own in (("size", self.size), ("n_lanes", self.n_lanes)):
            if state[key] != own:
                raise ValueError(f"{self!r}: the saved {key} is {state[key]}, this buffer's {own}; build it with the saved one")
        kind = type(self.rng.bit_generator).__name__
        if state["rng"]["bit_generator"] != kind:
            raise ValueError(
                f"{self!r}: saved with a {state['rng']['bit_generator']} generator, this one has {kind}; use that kind"
            )
        saved = [Spec(s["name"], tuple(s["shape"]), np.dtype(s["dtype"]), owner=OWNER) for s in state["specs"]]
        if saved and tuple(saved[: len(self.specs)]) != self.specs:
            raise ValueError(f"{self!r}: the saved fields are others; {_difference(self.specs, saved)}")
        for key, own in self._options().items():
            theirs = state.get("options", {}).get(key, own)
            if theirs != own and key in ("ignore_obs_next", "save_only_last_obs"):
                raise ValueError(f"{self!r}: saved with {key}={theirs}, this buffer has {own}; build it as it was saved")
        stored = self._make_plan(saved).kept
        arrays = [self._convert(spec, state["columns"][spec.name], sum(state["count"])) for spec in stored]
        if saved:
            self._use((*self.specs, *saved[len(self.specs) :]), state["empty_keys"])
        self._ring.set(state["count"], state["cursor"], state.get("written", state["count"]))
        filled = self._filled()
        for spec, array in zip(stored, arrays, strict=True):
            self.columns[spec.name][:] = 0
            self.columns[spec.name][filled] = array
        opened = state["open"]
        self._open_return = np.array(opened["return"], np.float64)
        self._open_length, self._open_start = np.array(opened["length"], np.int64), np.array(opened["start"], np.int64)
        if self._finals is not None:
            if state["finals"]:
                self._finals.load_state_dict(state["finals"])
            else:
                self._finals = _Finals(self._finals.specs, self.n_lanes)
        self.rng.bit_generator.state = state["rng"]

    # ---- inside

    def _use(self, specs: Sequence[Spec], empty_keys: Sequence[str] = ()) -> None:
        """Makes `specs`, of which the present ones come first, the stored fields; new columns are zero."""
        new_keys = [key for key in empty_keys if key not in self._empty_keys]
        if len(specs) == len(self.specs) and not new_keys:
            return
        _check_specs(specs)
        plan = self._make_plan(specs)
        self._ring = Ring(plan.kept, self.n_lanes, self.lane_size, self.columns, (self._ring.count, self._ring.cursor, self._ring.written))
        if self.ignore_obs_next:
            finals = _Finals([spec for spec in plan.given if _is(spec.name, "obs_next")], self.n_lanes)
            if self._finals is not None:
                finals.take_over(self._finals)
            self._finals = finals
        self.specs, self._plan = tuple(specs), plan
        self._empty_keys = (*self._empty_keys, *new_keys)
        self._bind()

    def _make_plan(self, specs: Sequence[Spec]) -> _Plan:
        return _Plan(specs, self.stack_num, self.ignore_obs_next, self.save_only_last_obs)

    def _bind(self) -> None:
        """Makes what shows the memory."""
        self.columns = self._ring.block.arrays
        self._expose()

    def _expose(self) -> None:
        """Sets `buffer.obs` and its like, except where the class or an instance means something else by that name.

        Real attributes, because a `__getattr__` slows every attribute access: 0.64 against 0.55 µs per `push`.
        """
        keys = {name.partition(".")[0] for name in (*self.columns, *self._empty_keys)}
        own = self.__dict__.keys() - self._exposed
        self._exposed = frozenset(key for key in keys if key not in own and not hasattr(type(self), key))
        self.__dict__.update((key, self._read(key, None)) for key in self._exposed)

    def _store(self, lanes: Positions, values: tuple[Any, ...], framed: bool = True) -> Positions:
        """Writes row i of `values` into lane `lanes[i]`, or refuses all of them; returns the positions.

        Args:
            framed: Whether observations are stacks of which the newest frame is to be kept, where this buffer takes stacks.
        """
        plan, finals = self._plan, self._finals
        stored = values if plan.as_given else plan.stored(values, rows=True, framed=framed)
        nexts = [] if finals is None else finals.convert(plan.nexts(values, rows=True, framed=framed), len(lanes))
        try:
            positions = self._ring.push_rows(lanes, stored)
        except IndexError:
            self.check_lanes(lanes)
            raise
        if finals is None:
            return positions
        ends = self.columns["truncated"][positions] & ~self.columns["terminated"][positions]
        finals.keep_rows(lanes, positions, nexts, ends)
        return positions

    def _count_episodes(self, lanes: Positions, positions: Positions, values: Mapping[str, Any]) -> tuple[Array, Positions, Positions]:
        """Adds rows to the statistics of their episodes; returns [k, …] returns, [k] lengths and starts, as `add` does."""
        n = len(lanes)
        shape = next((spec.shape for spec in self.specs if spec.name == "rew"), ())
        if self._open_return.shape[1:] != shape:
            self._open_return = np.zeros((self.n_lanes, *shape))
        rew = np.ascontiguousarray(_array(values["rew"]), np.float64).reshape(n, *shape) if "rew" in values else np.zeros((n, *shape))
        done = np.logical_or(*(_array(values[name]).reshape(n) for name in FLAGS)).view(np.uint8)
        if not shape:
            return self._ring.count_episodes(lanes, positions, rew, done, self._open_return, self._open_length, self._open_start)
        # Of vectors each component is counted like a number, the rest of the books once.
        books = [self._open_length.copy(), self._open_start.copy()]
        parts = []
        for k in np.ndindex(shape):
            self._open_length[:], self._open_start[:] = books
            totals = np.ascontiguousarray(self._open_return[(slice(None), *k)])
            parts.append(self._ring.count_episodes(
                lanes, positions, np.ascontiguousarray(rew[(slice(None), *k)]), done, totals, self._open_length, self._open_start))
            self._open_return[(slice(None), *k)] = totals
        returns = np.stack([part[0] for part in parts], axis=-1).reshape(n, *shape)
        return returns, *parts[0][1:]

    def _check_fields(self, flat: dict[str, Any]) -> None:
        """Required fields are there; `done` is taken out."""
        tops = dict.fromkeys(name.partition(".")[0] for name in flat)
        stored = {spec.name.partition(".")[0] for spec in self.specs}
        missing = [name for name in REQUIRED if name not in tops and (not stored or name in stored)]
        if missing:
            raise ValueError(
                f"{self!r}: add needs {missing[0]!r}; got {', '.join(tops) or 'nothing'} (done is computed, never given)"
            )
        if "done" in flat:
            given = np.asarray(flat.pop("done"))
            if not np.array_equal(given, np.logical_or(*(np.asarray(flat[name]) for name in FLAGS))):
                raise ValueError(f"{self!r}: field 'done' disagrees with terminated or truncated; leave it out, it is computed")

    def _loosely(self, name: str, value: Any) -> Any:
        """What `add` takes and `push` does not: flags written 0 and 1, and a reward of another float type."""
        if name in FLAGS:
            array = np.asarray(value)
            return array.astype(bool) if array.dtype.kind in "iu" and np.isin(array, (0, 1)).all() else value
        if name == "rew":
            array = np.asarray(value)
            own = next((spec.dtype for spec in self.specs if spec.name == "rew"), self.rew_dtype)
            return array.astype(own) if own.kind == "f" and array.dtype.kind in "biuf" else value
        return value

    def _convert(self, spec: Spec, value: Any, n: int, rows: bool = True) -> Array:
        array = spec.convert(value, rows)
        array = array if rows else array.reshape(1, *spec.shape)
        if len(array) != n:
            raise spec.error(f"{array.shape} {array.dtype}", f"give {n} rows", True)
        return array

    def _lanes(self, lanes: Sequence[int] | Positions) -> Positions:
        if type(lanes) is np.ndarray and lanes.dtype == np.int64 and lanes.ndim == 1:
            return lanes
        array = np.asarray(lanes)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
            raise ValueError(f"{self!r}: lanes are {lanes!r}; expected a list or array of integers")
        return array.astype(np.int64, copy=False)

    def check_lanes(self, lanes: Sequence[int] | Positions) -> Positions:
        """Lanes as int64. Raises ValueError where one does not exist."""
        array = self._lanes(lanes)
        wrong = array[(array < 0) | (array >= self.n_lanes)]
        if len(wrong):
            raise self._no_lane(wrong[0])
        return array

    def _no_lane(self, lane: object) -> ValueError:
        return ValueError(f"{self!r}: there is no lane {lane}; lanes are 0 to {self.n_lanes - 1}, set by n_lanes")

    def _filled(self) -> Positions:
        """Positions that hold a row, in storage order."""
        return np.concatenate([lane * self.lane_size + np.arange(count) for lane, count in enumerate(self._ring.count.tolist())])

    def lane_positions(self, lane: int) -> Positions:
        """Positions of a lane, oldest row first."""
        first, count = lane * self.lane_size, int(self._ring.count[lane])
        oldest = int(self._ring.cursor[lane]) - first if count == self.lane_size else 0
        return first + (oldest + np.arange(count)) % self.lane_size

    def _newest(self) -> Positions:
        """Position of the newest row of every lane; meaningless for an empty lane."""
        first = np.arange(self.n_lanes) * self.lane_size
        return np.asarray(first + (self._ring.cursor - first - 1) % self.lane_size, np.int64)

    def _done(self, positions: Any) -> Any:
        return self.columns["terminated"][positions] | self.columns["truncated"][positions]

    def positions(self, index: Any) -> Positions:
        """A checked index as positions: of any shape, () for an integer."""
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
        wrong = self._ring.first_empty(positions.reshape(-1))
        if wrong >= 0:
            raise IndexError(f"{self!r}: position {array.reshape(-1)[wrong]} holds no row; positions with rows are buffer.sample_indices(0)")
        return positions

    def _read(self, key: str, positions: Positions | None) -> Any:
        """A field as a whole: as it is stored where `positions` is None, else as it is learned from, for positions of any shape."""
        if key == "done" and self.columns:
            return self._done(slice(None) if positions is None else positions)
        names = [name for name in (self._plan.readable if positions is not None else self.columns) if _is(name, key)]
        if not names and key not in self._empty_keys:
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
        batch = Batch.nest(flat) if self._plan.nested else ready_batch(flat)
        for key in self._empty_keys:
            if key not in batch:
                batch[key] = Batch()
        return batch


class _Plan:
    """How the fields that are given become those that are stored.

    Attributes:
        given: All fields, of single frames. names: theirs. next_names: those of obs_next. readable: those that reading gives, obs_next
            also where it was never given.
        kept: What is stored; `number` is the place of each by name.
        as_given: Every value is stored as it comes. as_stored: every field is read as it is stored.
    """

    def __init__(self, specs: Sequence[Spec], stack: int = 1, ignore_obs_next: bool = False, only_last: bool = False) -> None:
        self.specs = tuple(specs)
        self.names = tuple(spec.name for spec in specs)
        self.next_names = [name for name in self.names if _is(name, "obs_next")]
        looked_up = ["obs_next" + name[3:] for name in self.names if _is(name, "obs")] if ignore_obs_next else []
        self.readable = (*self.names, *(name for name in looked_up if name not in self.names))
        framed = [only_last and (_is(name, "obs") or _is(name, "obs_next")) for name in self.names]
        for spec, is_framed in zip(specs, framed, strict=True):
            if is_framed and not spec.shape:
                raise spec.error("a single number", "save_only_last_obs takes observations of stacked frames, frames first")
        self.given = [replace(s, shape=s.shape[1:], low=None, high=None) if f else s for s, f in zip(specs, framed, strict=True)]
        if ignore_obs_next or stack > 1:
            own = {spec.name: (spec.shape, spec.dtype) for spec in specs}
            for spec in specs:
                if _is(spec.name, "obs_next") and own.get("obs" + spec.name[len("obs_next") :]) != (spec.shape, spec.dtype):
                    raise ValueError(f"ReplayBuffer: field {spec.name!r} is {spec.shape} {spec.dtype}, and 'obs{spec.name[8:]}' is not; with "
                                     "ignore_obs_next or stack_num both need the same fields")
        keep = [not (ignore_obs_next and _is(name, "obs_next")) for name in self.names]
        self.kept = [spec for spec, kept in zip(self.given, keep, strict=True) if kept]
        self.number = {spec.name: i for i, spec in enumerate(self.kept)}
        self._stored = [(i, framed[i]) for i in range(len(self.names)) if keep[i]]
        self._nexts = [(i, framed[i]) for i in range(len(self.names)) if not keep[i]]
        self.nested = any("." in name or name.startswith("_") for name in self.names)
        self.as_given = all(keep) and not any(framed)
        self.as_stored = stack == 1 and self.readable == tuple(self.number)

    def stored(self, values: tuple[Any, ...], rows: bool = False, framed: bool = True) -> tuple[Any, ...]:
        return self._pick(self._stored, values, rows, framed)

    def nexts(self, values: tuple[Any, ...], rows: bool = False, framed: bool = True) -> tuple[Any, ...]:
        return self._pick(self._nexts, values, rows, framed)

    def _pick(self, which: list[tuple[int, bool]], values: tuple[Any, ...], rows: bool, framed: bool) -> tuple[Any, ...]:
        if len(values) != len(self.names):
            raise IndexError
        return tuple([self._newest_frame(i, values[i], rows) if is_framed and framed else values[i] for i, is_framed in which])

    def _newest_frame(self, i: int, value: Any, rows: bool) -> Array:
        stack = _array(value)
        if stack.shape[int(rows) :] != self.specs[i].shape:
            raise self.specs[i].error(f"{stack.shape} {stack.dtype}", "save_only_last_obs takes stacks of that many frames", rows)
        return stack[:, -1] if rows else stack[-1]


class _Finals:
    """What rows led to, where no next row tells: of every lane's newest row, and of truncated ones.

    Args:
        specs: The fields of obs_next, single frames.
    """

    def __init__(self, specs: Sequence[Spec], n_lanes: int) -> None:
        self.specs = tuple(specs)
        self.block, self.spare = RowBlock(self.specs, n_lanes), RowBlock(self.specs, 1)
        self.fresh = np.zeros(n_lanes, bool)  # whether the lane's newest row has its obs_next in `block`
        self.table: dict[int, dict[str, Array]] = {}

    def check(self, nexts: tuple[Any, ...]) -> None:
        self.spare.write(0, nexts)

    def convert(self, nexts: tuple[Any, ...], n: int) -> list[Array]:
        arrays = [spec.convert(value, rows=True) for spec, value in zip(self.specs, nexts, strict=True)]
        for spec, array in zip(self.specs, arrays, strict=True):
            if len(array) != n:
                raise spec.error(f"{array.shape} {array.dtype}", f"give {n} rows", True)
        return arrays

    def keep(self, lane: int, position: int, nexts: tuple[Any, ...], truncated: bool) -> None:
        """After a row was written at `position`."""
        if self.table:
            self.table.pop(position, None)
        self.block.write(lane, nexts)
        self.fresh[lane] = True
        if truncated:
            self.settle(lane, position)

    def keep_rows(self, lanes: Positions, positions: Positions, nexts: list[Array], truncated: Array) -> None:
        if self.table:
            for position in positions.tolist():
                self.table.pop(position, None)
        for spec, array in zip(self.specs, nexts, strict=True):
            self.block.arrays[spec.name][lanes] = array  # of several rows of a lane the last one stays
        self.fresh[lanes] = True
        for i in np.flatnonzero(truncated).tolist():
            self.table[int(positions[i])] = {spec.name: array[i].copy() for spec, array in zip(self.specs, nexts, strict=True)}

    def settle(self, lane: int, position: int) -> None:
        """The lane's newest row, at `position`, is truncated."""
        if self.fresh[lane]:
            self.table[position] = self._pending(lane)

    def _pending(self, lane: int) -> dict[str, Array]:
        return {name: column[lane].copy() for name, column in self.block.arrays.items()}

    def find(self, position: int, newest: Positions) -> dict[str, Array] | None:
        if position in self.table:
            return self.table[position]
        lane = int(np.flatnonzero(newest == position)[0]) if (newest == position).any() else -1
        return self._pending(lane) if lane >= 0 and self.fresh[lane] else None

    def clear(self, lane: int, positions: range) -> None:
        self.fresh[lane] = False
        self.table = {position: row for position, row in self.table.items() if position not in positions}

    def add_lanes(self, n: int) -> None:
        larger = _Finals(self.specs, len(self.fresh) + n)
        larger.take_over(self)
        self.block, self.fresh = larger.block, larger.fresh

    def take_over(self, other: _Finals) -> None:
        """The rows of `other`, which has fewer lanes or fields."""
        self.fresh[: len(other.fresh)] = other.fresh
        for name, column in other.block.arrays.items():
            self.block.arrays[name][: len(column)] = column
        zeros = {spec.name: spec.zeros(1)[0] for spec in self.specs}
        self.table = {position: {**zeros, **row} for position, row in other.table.items()}

    def state_dict(self) -> dict[str, Any]:
        positions = sorted(self.table)
        rows = {s.name: np.stack([self.table[p][s.name] for p in positions]) if positions else s.zeros(0) for s in self.specs}
        return {"positions": np.array(positions, np.int64), "rows": rows, "fresh": self.fresh.copy(),
                "pending": {name: column.copy() for name, column in self.block.arrays.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.fresh[:] = state["fresh"]
        for name, column in self.block.arrays.items():
            column[:] = state["pending"][name]
        self.table = {p: {s.name: state["rows"][s.name][i].copy() for s in self.specs} for i, p in enumerate(state["positions"].tolist())}


VectorReplayBuffer = ReplayBuffer  # the name that others use for lanes; here they are built in


def _array(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _is(name: str, key: str) -> bool:
    """Whether a field is `key`, or a leaf of it."""
    return name == key or name.startswith(key + ".")


def _under(lock: threading.RLock, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return method(*args, **kwargs)

    return locked


def _leaves(value: Any, name: str, empty: list[str]) -> Iterator[tuple[str, Any]]:
    """Dotted names and leaves of nested dicts and Batches; the names of top-level groups without any go to `empty`."""
    for key, part in value.items():
        path = f"{name}.{key}" if name else str(key)
        if not isinstance(part, (Batch, Mapping)):
            yield path, part
        elif len(tuple(part.keys())):
            yield from _leaves(part, path, empty)
        elif not name:
            empty.append(path)


def _infer(name: str, value: Any, rows: bool) -> Spec:
    """The spec of a field first seen as `value`."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    mend = "rows hold numbers of one shape: encode it, or leave it out"
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SpecError(f"{OWNER}, field {name!r}: got a ragged {type(value).__name__} ({error}); {mend}") from None
    if array.dtype.kind not in "biuf":
        raise SpecError(f"{OWNER}, field {name!r}: got {value!r} ({type(value).__name__}); {mend}")
    dtype = np.dtype(bool) if name in FLAGS else array.dtype
    return Spec(name, array.shape[1:] if rows else array.shape, dtype, owner=OWNER)


def _check_specs(specs: Sequence[Spec]) -> None:
    by_name = {spec.name: spec for spec in specs}
    if len(by_name) != len(specs):
        raise ValueError(f"ReplayBuffer: a field name is double in {' '.join(spec.name for spec in specs)}; names are unique")
    for name in FLAGS:
        if name not in by_name or by_name[name].shape or by_name[name].dtype != np.bool_:
            raise ValueError(f"ReplayBuffer: field {name!r} is {by_name.get(name, 'missing')}; expected one bool per row")
    for spec in specs:
        if spec.name.partition(".")[0] == "done":
            raise ValueError("ReplayBuffer: field 'done' is computed from terminated and truncated; leave it out")
        if spec.dtype.kind not in "biuf":
            raise ValueError(f"ReplayBuffer: field {spec.name!r} has dtype {spec.dtype}; rows hold numbers")
        parts = spec.name.split(".")
        for i in range(1, len(parts)):
            if ".".join(parts[:i]) in by_name:
                raise ValueError(f"ReplayBuffer: {'.'.join(parts[:i])!r} cannot be both an array and the group of {spec.name!r}")


def _difference(own: Sequence[Spec], other: Sequence[Spec]) -> str:
    """The first difference between two lists of fields, in words."""
    for mine, theirs in zip(own, other, strict=False):
        if mine != theirs:
            return f"{mine.name!r} {mine.shape} {mine.dtype} here, {theirs.name!r} {theirs.shape} {theirs.dtype} there"
    longer, where = (own, "here") if len(own) > len(other) else (other, "there")
    return f"{longer[min(len(own), len(other))].name!r} only {where}"
