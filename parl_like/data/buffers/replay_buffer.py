"""ReplayBuffer: the raw rows of one helper, in circular lanes of one preallocated memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from parl_like.data.buffers._adding import EpisodeCounts
from parl_like.data.buffers.base import Random
from parl_like.data.buffers.fields import (
    Positions,
    check_fields,
    check_saved,
    convert_rows,
    difference,
    in_units,
    is_part,
    like,
    loaded_specs,
)
from parl_like.data.buffers.given_rows import OWNER, GivenRows
from parl_like.data.buffers.lane_memory import LaneMemory
from parl_like.data.buffers.reading import Lanes
from parl_like.data.buffers.stored_fields import StoredFields
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec, SpecError, leaves
from parl_like.values.user_calls import border

_FIRST_LANE: Positions = np.zeros(1, np.int64)
RESERVED = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")
# What `threadsafe=True` puts under the lock: whatever writes rows or counters, or needs them to stand still.
LOCKED = (
    "push", "push_rows", "add", "update", "truncate_open", "clear_lane", "add_lanes", "reset", "sample", "sample_indices",
    "gather", "get",
    "next_observations", "next_position", "newest", "nested", "rows_in_order", "use_fields",
    "n_step", "to_go", "sequences", "serials", "prev", "next", "episode_end", "load_state_dict", "state_dict", "in_policy_units",
)  # fmt: skip


class ReplayBuffer(Lanes):
    """Rows in circular lanes: a lane is one environment's rows in time order, and a full lane gives up its oldest row.

    A *position* is a slot of the memory, 0 … capacity − 1; lane k owns the slots k · lane_size … (k + 1) · lane_size − 1.
    `buffer.obs` is the whole column [capacity, …], slots without a row included; nested observations come as a Batch of columns.
    Slices (`buffer[:]`, `buffer[-5:]`) count rows in time order, lane after lane; integers and integer arrays are positions.

    Reserved names of a row at time t: obs, act, rew (of that act), terminated, truncated, done (computed: terminated or
    truncated), obs_next (obs at t + 1, at an episode's end the true final one), info, policy (whatever predict wants kept).

    Rows that are read (`sample`, `buffer[…]`, `get`, `gather`) have what these options leave out in memory put together again:

    - `stack_num` > 1: obs and obs_next are the newest `stack_num` frames, [N, stack_num, …]. Frames never cross an episode's
      start; for those that are missing the oldest one stands. obs_next has the frames of obs but the oldest, and the one after
      them.
    - `ignore_obs_next`: obs_next is obs of the next row, so it is not stored. What no next row has is kept beside the rows: the
      final observation of a truncated episode, and what the newest row of a lane led to. At a terminated row, where nothing may
      be looked up, obs_next is obs.

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
        source: The directory that its rows were read from, a `parl_like.data.buffers.source.DirectoryRows`; None: none.

    Raises:
        ValueError: size, n_lanes or stack_num is below 1, or a lane has fewer slots than a stack has frames.
    """

    locked: tuple[str, ...] = LOCKED
    source: object = None

    def __init__(
        self, size: int, n_lanes: int = 1, rng: Random = None, *, stack_num: int = 1, ignore_obs_next: bool = False,
        save_only_last_obs: bool = False, sample_avail: bool = False, rew_dtype: npt.DTypeLike = np.float64,
        threadsafe: bool = False,
    ) -> None:  # fmt: skip
        if size < 1 or n_lanes < 1 or stack_num < 1:
            raise ValueError(f"{type(self).__name__}: size is {size}, n_lanes {n_lanes}, stack_num {stack_num}; expected all at "
                             "least 1")
        if stack_num > -(-size // n_lanes):
            raise ValueError(f"{type(self).__name__}: lanes of {-(-size // n_lanes)} rows are smaller than a stack of "
                             f"{stack_num} frames; give it size ≥ {stack_num * n_lanes}")
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
        self._exposed: frozenset[str] = frozenset()
        self._memory = LaneMemory(StoredFields((), stack_num, ignore_obs_next, save_only_last_obs), n_lanes, self.lane_size)
        self._open = EpisodeCounts(self._memory.ring.cursor)
        self.lock: AbstractContextManager[object] = nullcontext()
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
                raise ValueError(f"{self!r}: already allocated; {difference(self.specs, specs)}; make a new buffer for other "
                                 "fields")
            return
        self.use_fields(specs)

    def push(self, lane: int, values: tuple[object, ...]) -> int:
        """Writes one row: `values` in the order of `specs`. Returns its position. Episode statistics are `add`'s business.

        Raises:
            SpecError: a value does not fit; the buffer is as before.
            ValueError: no such lane, or `allocate` was not called.
        """
        memory = self._memory
        try:
            if memory.finals is None and memory.fields.as_given:  # hot: a call less, of 0.55 µs
                return memory.ring.push(lane, values)
            return memory.push(lane, values)
        except IndexError:
            raise self._not_pushed(lane, len(values)) from None

    def _not_pushed(self, lane: int, n_values: int) -> ValueError:
        if not self.specs:
            return ValueError(f"{self!r}: push needs to know the fields; call allocate(specs) first, or write with add")
        if not 0 <= lane < self.n_lanes:
            return self._no_lane(lane)
        return ValueError(f"{self!r}: push got {n_values} values; expected one for each of "
                          f"{', '.join(s.name for s in self.specs)}")

    def _no_lane(self, lane: object) -> ValueError:
        return ValueError(f"{self!r}: there is no lane {lane}; lanes are 0 to {self.n_lanes - 1}, set by n_lanes")

    def _lanes(self, lanes: Sequence[int] | Positions) -> Positions:
        if type(lanes) is np.ndarray and lanes.dtype == np.int64 and lanes.ndim == 1:
            return lanes
        array = np.asarray(lanes)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
            raise ValueError(f"{self!r}: lanes are {lanes!r}; expected a list or array of integers")
        return array.astype(np.int64, copy=False)

    def push_rows(self, lanes: Sequence[int] | Positions, values: Sequence[object]) -> Positions:
        """Writes row i into lane `lanes[i]`: `values` are arrays [k, …] in the order of `specs`. Returns the positions [k].

        Raises:
            SpecError, ValueError: as `push`; nothing is written.
        """
        if not self.specs or len(values) != len(self.specs):
            raise ValueError(f"{self!r}: push_rows got {len(values)} values; call allocate(specs) first, then give one per spec")
        return self._store(self._lanes(lanes), values if type(values) is tuple else tuple(values))

    @border
    def add(
        self, batch: Batch | Mapping[str, object], lanes: Sequence[int] | Positions | None = None
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
        fields = self._memory.fields
        one, values = lanes is None and self.n_lanes == 1, self._memory.paths.values(batch)
        into = _FIRST_LANE if one else np.arange(self.n_lanes) if lanes is None else self._lanes(lanes)
        if values is not None:  # the usual case: exactly the fields of `specs`, each as it is stored
            try:
                if one:
                    position, ends = self.push(0, values), [bool(values[i]) for i in fields.flags]
                    return self._open.count_row(0, position, 0.0 if fields.rew is None else values[fields.rew], any(ends))
                return self._counted(into, self._store(into, values), values)
            except SpecError:  # they are to be converted, or refused with the field's name
                pass
        given = GivenRows(batch, dict(leaves(batch, "", loose=True)), len(into), not one)
        specs = given.declare(self, self.specs, self.rew_dtype)
        columns = given.columns(specs)
        if (wrong := into[(into < 0) | (into >= self.n_lanes)]).size:  # before fields are laid out
            raise self._no_lane(wrong[0])
        self.use_fields(specs, given.empty_groups())
        return self._counted(into, self._store(into, rows := tuple(columns.values())), rows)

    def _counted(self, lanes: Positions, positions: Positions, values: tuple[object, ...]
                 ) -> tuple[Positions, Array, Positions, Positions]:
        """Return what `add` does for the rows `values`, arrays [k, …] in the order of `specs`, which have been stored."""
        fields = self._memory.fields
        rew = np.zeros(len(lanes)) if fields.rew is None else values[fields.rew]
        return positions, *self._open.count(lanes, positions, rew, *[values[i] for i in fields.flags])

    def update(self, other: ReplayBuffer, cut: Literal["join", "truncate"] = "join") -> Positions:
        """Appends all rows of `other` in time order: lane to lane, or all into the only lane. Returns their new positions.

        Actions are converted to the units of those here; see `act_space`.

        Args:
            other: Any buffer; fields that only one of the two knows are zero in the other's rows.
            cut: What becomes of an episode that is still open where rows of two sources meet. "join": nothing, so it goes on
                into the next source's first row, as if that were its continuation. "truncate": the newest row of this buffer's
                lane, and of every lane of `other`, is marked truncated here (`other` itself stays as it is).

        Raises:
            ValueError: unknown cut, or several lanes here but another number there.
            SpecError: a field of `other` does not fit ours; the buffer is as before.
        """
        if cut not in ("join", "truncate"):
            raise ValueError(f"update: cut is {cut!r}; expected 'join' or 'truncate'")
        if self.n_lanes not in (1, other.n_lanes):
            raise ValueError(f"update: {other.n_lanes} lanes cannot go into {self.n_lanes}; use equal numbers, or a target with "
                             "one lane")
        rows = other.rows_in_order()
        if not len(rows):
            return rows
        if self.act_space is None and not len(self):
            self.act_space = other.act_space
        flat = in_units(other.take(rows), other.act_space, self.act_space, repr(other))
        fields = other._memory.fields
        if fields.ignore_obs_next:
            flat |= other.next_observations(rows, fields.next_names, {}, 1)  # single frames, as they are stored
        if cut == "truncate":
            newest = np.isin(rows, other.newest())
            flat["truncated"] = flat["truncated"] | (newest & ~flat["terminated"])
        known = {spec.name for spec in self.specs}
        acts = {name: column for name, column in flat.items() if is_part(name, "act")}
        specs = self.specs + tuple(self._declared(like(spec, acts)) for spec in fields.given if spec.name not in known)
        single = self._memory.fields.of(specs).given
        arrays = tuple(convert_rows(s, flat[s.name], len(rows)) if s.name in flat else s.zeros(len(rows)) for s in single)
        self.use_fields(specs)
        lanes = rows // other.lane_size if self.n_lanes > 1 else np.zeros_like(rows)
        if cut == "truncate":
            for lane in set(lanes.tolist()):
                self.truncate_open(lane)
        return self._store(lanes, arrays, framed=False)

    def in_policy_units(self, space: gym.Space[object]) -> ReplayBuffer:
        """These rows with the policy's actions of this action space: itself, or a buffer that has memory of its own for actions
        alone.

        Raises:
            SpecError: its actions are of another space.
        """
        filled = self._memory.filled()
        given = self.take(filled, [name for name in self.columns if is_part(name, "act")])
        if (actions := in_units(given, self.act_space, space, repr(self))) is given:
            return self
        made = copy(self)
        made.act_space = space
        made._memory = self._memory.with_columns([like(spec, actions) for spec in self.specs], filled, actions)
        made._bind()
        return made

    def _declared(self, single: Spec) -> Spec:
        """A field of single frames as rows for `add` would have it."""
        stacked = self.save_only_last_obs and (is_part(single.name, "obs") or is_part(single.name, "obs_next"))
        return replace(single, shape=(self.stack_num, *single.shape)) if stacked else single

    def truncate_open(self, lane: int) -> bool:
        """Marks the newest row of a lane as truncated, for an episode that will not go on, and forgets its open statistics.

        Returns whether a row was marked: not if the lane is empty or its newest row ends an episode already. Raises ValueError
        where there is no such lane.
        """
        if not 0 <= lane < self.n_lanes:
            raise self._no_lane(lane)
        self._open.forget(lane)
        if not self._memory.ring.count[lane]:
            return False
        newest = int(self.newest()[lane])
        if self._done(newest):
            return False
        self._memory.truncate(lane, newest)
        return True

    def reset(self, keep_statistics: bool = False) -> None:
        """Drops all rows; the memory, its fields and the generator stay.

        Args:
            keep_statistics: Whether return and length of open episodes go on counting (for rows collected in mid-episode).
        """
        for lane in range(self.n_lanes):
            self.clear_lane(lane)
        if not keep_statistics:
            self._open.forget()

    def add_lanes(self, n: int) -> None:
        """`n` more, empty lanes of the same size; positions of rows stay what they are."""
        more = n * self.lane_size
        self.n_lanes, self.size, self.capacity = self.n_lanes + n, self.size + more, self.capacity + more
        self._open.add_lanes(self._memory.add_lanes(n))
        if self.specs:
            self._bind()

    def clear_lane(self, lane: int) -> None:
        """Drops the rows of one lane; statistics of its open episode go on counting.

        Raises:
            ValueError: there is no such lane.
        """
        if not 0 <= lane < self.n_lanes:
            raise self._no_lane(lane)
        self._memory.clear(lane)
        self._open.moved(lane, lane * self.lane_size)

    # ---- reading rows

    def __getitem__(self, index: object) -> Batch:
        """Rows as a Batch: a slice in time order, an integer (one row, no row axis), integer array or bool mask by position.

        Raises:
            IndexError: a position that holds no row.
        """
        with self.lock:
            return self._batch(self.positions(index))

    if TYPE_CHECKING:  # `buffer.obs` and its like: set by `_expose`

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: object) -> None:
        if name in RESERVED or name in self.__dict__.get("_exposed", ()):
            raise ValueError(f"ReplayBuffer: {name!r} names stored rows and cannot be assigned; write rows with add or push")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        tops = list(dict.fromkeys(spec.name.partition(".")[0] for spec in self.specs))
        fields = " ".join(tops[:8]) + (" …" if len(tops) > 8 else "") if tops else "none yet"
        return f"{type(self).__name__}(rows={len(self)} of {self.capacity}, lanes={self.n_lanes}, fields={fields})"

    # ---- saving

    def __getstate__(self) -> dict[str, object]:
        """Without what belongs to one object in one process: views, bound methods, the lock."""
        gone = {"lock", *self.locked, *self._exposed}
        return {**{key: value for key, value in self.__dict__.items() if key not in gone}, "_exposed": frozenset(),
                "threadsafe": "push" in self.__dict__}

    def __setstate__(self, state: dict[str, object]) -> None:
        threadsafe = state.pop("threadsafe")
        self.__dict__.update(state, lock=nullcontext())
        if self.specs:
            self._bind()
        if threadsafe:
            self.make_threadsafe()

    def state_dict(self) -> State:
        """Everything that the rows to come depend on: plain dicts of JSON values, and under "columns" arrays of the filled
        rows."""
        return {"size": self.size, "n_lanes": self.n_lanes, "options": self._options(), **self._memory.state_dict(),
                "open": self._open.state_dict(), "rng": rng_state(self.rng)}

    def _options(self) -> dict[str, bool | float]:
        """Return the options that decide how rows are stored and drawn, beside the size."""
        return {"stack_num": self.stack_num, "ignore_obs_next": self.ignore_obs_next,
                "save_only_last_obs": self.save_only_last_obs, "sample_avail": self.sample_avail}

    def load_state_dict(self, state: State) -> None:
        """Takes over what `state_dict` gave. This buffer may have no fields yet, or the first of those saved.

        Raises:
            ValueError: another size, number of lanes, other fields or none of these. KeyError, TypeError: it is no state.
        """
        check_saved(self, state, {"size": self.size, "n_lanes": self.n_lanes})
        saved = loaded_specs(OWNER, state["specs"])
        if saved and tuple(saved[: len(self.specs)]) != self.specs:
            raise ValueError(f"{self!r}: the saved fields are others; {difference(self.specs, saved)}")
        for key, own in self._options().items():
            theirs = plain.entries(state.get("options", {})).get(key, own)
            if theirs != own and key in ("ignore_obs_next", "save_only_last_obs"):
                raise ValueError(f"{self!r}: saved with {key}={theirs}, this buffer has {own}; build it as it was saved")
        columns = self._memory.saved_columns(self, saved, state)
        if saved:
            self.use_fields((*self.specs, *saved[len(self.specs) :]), [str(key) for key in plain.listed(state["empty_keys"])])
        self._memory.load(state, columns)
        self._summed = None
        self._open.load_state_dict(plain.entries(state["open"]), np.arange(self.n_lanes) * self.lane_size, self.lane_size)
        set_rng_state(self.rng, state["rng"])

    # ---- inside

    def use_fields(self, specs: Sequence[Spec], empty_keys: Sequence[str] = ()) -> None:
        """Makes `specs`, of which the present ones come first, the stored fields; new columns are zero."""
        new_keys = [key for key in empty_keys if key not in self._memory.empty_keys]
        if len(specs) != len(self.specs) or new_keys:
            check_fields(specs)
            self._memory.use(specs, new_keys)
            self._bind()

    def _bind(self) -> None:
        """Makes what shows the memory."""
        self.specs, self.columns = self._memory.fields.specs, self._memory.columns
        self._expose()

    def _expose(self) -> None:
        """Sets `buffer.obs` and its like, except where the class or an instance means something else by that name.

        Real attributes, because a `__getattr__` slows every attribute access: 0.64 against 0.55 µs per `push`.
        """
        keys = {name.partition(".")[0] for name in (*self.columns, *self.empty_keys)}
        own = self.__dict__.keys() - self._exposed
        self._exposed = frozenset(key for key in keys if key not in own and not hasattr(type(self), key))
        self.__dict__.update((key, self._read(key, None)) for key in self._exposed)

    def _store(self, lanes: Positions, values: tuple[object, ...], framed: bool = True) -> Positions:
        """Writes row i of `values` into lane `lanes[i]`, or refuses all of them; returns the positions.

        Args:
            framed: Whether observations are stacks of which the newest frame is to be kept, where this buffer takes stacks.
        """
        try:
            return self._memory.push_rows(lanes, values, framed)
        except IndexError:
            raise self._no_lane(lanes[(lanes < 0) | (lanes >= self.n_lanes)][0]) from None


VectorReplayBuffer = ReplayBuffer  # the name that others use for lanes; here they are built in


def _under(lock: threading.RLock, method: Callable[..., object]) -> Callable[..., object]:
    @wraps(method)
    def locked(*args: object, **kwargs: object) -> object:
        with lock:
            return method(*args, **kwargs)

    return locked
