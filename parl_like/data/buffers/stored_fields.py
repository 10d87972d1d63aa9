"""The way from the fields that a buffer is given to those that it stores, and what is kept beside the rows: what they led to
where no next row tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parl_like.data.buffers._rows import RowBlock
from parl_like.data.buffers.fields import FLAGS, Positions, as_array, convert_rows, is_part, loaded_columns
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec

Names = list[str]
_KNOWN = Spec("fresh", (), np.dtype(np.bool_))


class StoredFields:
    """The way from the fields that are given to those that are stored, and back.

    Args:
        specs: The fields as they are given.
        stack: Frames of an observation that is read.
        ignore_obs_next: Whether obs_next is not stored.
        only_last: Whether observations come as stacks, of which the newest frame is stored.

    Attributes:
        rew, flags: Their places in `specs`; None where there is no reward.
        given: All fields, of single frames. next_names: names of those of obs_next. readable: those that reading gives, obs_next
            also where it was never given.
        kept: What is stored; `number` is the place of each by name.
        ignore_obs_next: As given.
        as_given: Every value is stored as it comes. as_stored: every field is read as it is stored.
        parts: `split` of all that is readable.

    Raises:
        SpecError: an observation that should be a stack of frames is a single number. ValueError: obs and obs_next differ where
            one is read from the other.
    """

    def __init__(self, specs: Sequence[Spec], stack: int = 1, ignore_obs_next: bool = False, only_last: bool = False) -> None:
        self.specs, self._stack, self.ignore_obs_next, self._only_last = tuple(specs), stack, ignore_obs_next, only_last
        names = [spec.name for spec in specs]
        self.rew = names.index("rew") if "rew" in names else None
        self.flags = [names.index(name) for name in FLAGS if name in names]
        self.next_names = [name for name in names if is_part(name, "obs_next")]
        looked_up = ["obs_next" + name[3:] for name in names if is_part(name, "obs")] if ignore_obs_next else []
        self.readable = (*names, *(name for name in looked_up if name not in names))
        framed = [only_last and (is_part(name, "obs") or name in self.next_names) for name in names]
        own = {spec.name: (spec.shape, spec.dtype) for spec in specs}
        for spec, is_framed in zip(specs, framed, strict=True):
            if is_framed and not spec.shape:
                raise spec.error("a single number", "save_only_last_obs takes observations of stacked frames, frames first")
            obs = f"obs{spec.name[8:]}"
            if (ignore_obs_next or stack > 1) and spec.name in self.next_names and own.get(obs) != (spec.shape, spec.dtype):
                raise ValueError(f"ReplayBuffer: field {spec.name!r} is {spec.shape} {spec.dtype}, and {obs!r} is not; with "
                                 "ignore_obs_next or stack_num both need the same fields")
        self.given = [replace(s, shape=s.shape[1:], low=None, high=None) if f else s for s, f in zip(specs, framed, strict=True)]
        keep = [not (ignore_obs_next and name in self.next_names) for name in names]
        self.kept = [spec for spec, kept in zip(self.given, keep, strict=True) if kept]
        self.number = {spec.name: i for i, spec in enumerate(self.kept)}
        self._stored = [(i, framed[i]) for i in range(len(names)) if keep[i]]
        self._nexts = [(i, framed[i]) for i in range(len(names)) if not keep[i]]
        self.nested = any("." in name or name.startswith("_") for name in names)
        self.as_given = all(keep) and not any(framed)
        self.as_stored = stack == 1 and self.readable == tuple(self.number)
        self.parts = self.split(self.readable)

    def of(self, specs: Sequence[Spec]) -> StoredFields:
        """Return the way of other fields, with the same options.

        Raises:
            SpecError, ValueError: a field does not fit these: it is no stack of frames, or obs and obs_next differ.
        """
        return StoredFields(specs, self._stack, self.ignore_obs_next, self._only_last)

    def split(self, names: Sequence[str]) -> tuple[Names, Names, Names, Names]:
        """Fields that are read of the row itself, of the last row that counts, as stacks of frames, and those of obs_next that
        are more than a stored field."""
        stacked = [name for name in names if self._stack > 1 and is_part(name, "obs")]
        nexts = [name for name in names if is_part(name, "obs_next")]
        late = [name for name in names if name in FLAGS or (name in nexts and name in self.number)]
        now = [name for name in names if name not in late and name not in nexts and name not in stacked]
        return now, late, stacked, [] if self.as_stored else nexts

    def stored(self, values: tuple[object, ...], rows: bool = False, framed: bool = True) -> tuple[object, ...]:
        """Return those of the values of `specs` that are stored; `framed`: observations are stacks, where this buffer takes
        such."""
        return self._pick(self._stored, values, rows, framed)

    def nexts(self, values: tuple[object, ...], rows: bool = False, framed: bool = True) -> tuple[object, ...]:
        """Return the values of obs_next that are not stored."""
        return self._pick(self._nexts, values, rows, framed)

    def _pick(self, which: list[tuple[int, bool]], values: tuple[object, ...], rows: bool, framed: bool) -> tuple[object, ...]:
        if len(values) != len(self.specs):
            raise IndexError
        return tuple([self._newest_frame(i, values[i], rows) if is_framed and framed else values[i] for i, is_framed in which])

    def _newest_frame(self, i: int, value: object, rows: bool) -> Array:
        stack = as_array(value)
        if stack.shape[int(rows) :] != self.specs[i].shape:
            raise self.specs[i].error(f"{stack.shape} {stack.dtype}", "save_only_last_obs takes stacks of that many frames", rows)
        return stack[:, -1] if rows else stack[-1]


class FinalObservations:
    """The observations that rows led to, where no next row tells: of every lane's newest row, and of truncated ones.

    Args:
        specs: The fields of obs_next, single frames.
        before: Of the same buffer when it had fewer lanes or fields.

    Attributes:
        table: Position of a truncated row → its obs_next, by field.
    """

    def __init__(self, specs: Sequence[Spec], n_lanes: int, before: FinalObservations | None = None) -> None:
        self.specs = tuple(specs)
        self.newest, self._spare = RowBlock(self.specs, n_lanes), RowBlock(self.specs, 1)
        self.known = np.zeros(n_lanes, bool)  # whether `newest` has what the lane's newest row led to
        self.table: dict[int, dict[str, Array]] = {}
        if before is not None:
            self.known[: len(before.known)] = before.known
            for name, column in before.newest.arrays.items():
                self.newest.arrays[name][: len(column)] = column
            zeros = {spec.name: spec.zeros(1)[0] for spec in self.specs}
            self.table = {position: {**zeros, **row} for position, row in before.table.items()}

    def check(self, nexts: tuple[object, ...]) -> None:
        """Refuse values of one row that do not fit; raises SpecError."""
        self._spare.write(0, nexts)

    def convert(self, nexts: tuple[object, ...], n: int) -> list[Array]:
        """Return values of n rows as [n, …] of each field. Raises SpecError where one does not fit."""
        return [convert_rows(spec, value, n) for spec, value in zip(self.specs, nexts, strict=True)]

    def keep(self, lane: int, position: int, nexts: tuple[object, ...], truncated: bool) -> None:
        """After a row was written at `position`."""
        self.table.pop(position, None)
        self.newest.write(lane, nexts)
        self.known[lane] = True
        if truncated:
            self.settle(lane, position)

    def keep_rows(self, lanes: Positions, positions: Positions, nexts: list[Array], truncated: Array) -> None:
        """Keep what k rows led to, after they were written: lanes and positions [k], nexts [k, …] each, truncated [k] bool."""
        for position in positions.tolist() if self.table else ():
            self.table.pop(position, None)
        for spec, array in zip(self.specs, nexts, strict=True):
            self.newest.arrays[spec.name][lanes] = array  # of several rows of a lane the last one stays
        self.known[lanes] = True
        for i in np.flatnonzero(truncated).tolist():
            self.table[int(positions[i])] = {spec.name: array[i].copy() for spec, array in zip(self.specs, nexts, strict=True)}

    def settle(self, lane: int, position: int) -> None:
        """The lane's newest row, at `position`, is truncated."""
        if self.known[lane]:
            self.table[position] = self._of_newest(lane)

    def _of_newest(self, lane: int) -> dict[str, Array]:
        return {name: column[lane].copy() for name, column in self.newest.arrays.items()}

    def find(self, position: int, newest: Positions) -> dict[str, Array]:
        """Return what the row at `position` led to, by field and without a row axis; {} if it is not known.

        Args:
            newest: [n_lanes] positions of the lanes' newest rows.
        """
        if position in self.table:
            return self.table[position]
        lanes = np.flatnonzero((newest == position) & self.known).tolist()
        return self._of_newest(lanes[0]) if lanes else {}

    def clear(self, lane: int, positions: range) -> None:
        self.known[lane] = False
        self.table = {position: row for position, row in self.table.items() if position not in positions}

    def state_dict(self) -> State:
        at = sorted(self.table)
        rows = {s.name: np.stack([self.table[p][s.name] for p in at]) if at else s.zeros(0) for s in self.specs}
        return {"positions": np.array(at, np.int64), "rows": rows, "fresh": self.known.copy(),
                "pending": {name: column.copy() for name, column in self.newest.arrays.items()}}

    def load_state_dict(self, state: State, capacity: int) -> None:
        """Takes over what `state_dict` of a buffer of that many slots gave. Raises ValueError where it is none."""
        n, at = len(self.known), plain.array(state["positions"]).astype(np.int64).tolist()
        if at and not 0 <= min(at) <= max(at) < capacity:
            raise ValueError(f"final observations of positions {min(at)} to {max(at)}; expected some of {capacity} slots")
        self.known = convert_rows(_KNOWN, state["fresh"], n).copy()
        pending, rows = plain.entries(state["pending"]), plain.entries(state["rows"])
        for spec, column in zip(self.specs, loaded_columns("final observations", self.specs, pending, n), strict=True):
            self.newest.arrays[spec.name][:] = column
        columns = loaded_columns("final observations", self.specs, rows, len(at))
        self.table = {p: {spec.name: c[i].copy() for spec, c in zip(self.specs, columns, strict=True)} for i, p in enumerate(at)}
