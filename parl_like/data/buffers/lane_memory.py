"""LaneMemory: the preallocated memory of a buffer: the fields of its rows, their columns, and what is kept beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from parl_like.data.buffers._adding import FieldPaths
from parl_like.data.buffers._rows import Ring
from parl_like.data.buffers.fields import FLAGS, Positions, is_part, loaded_columns, saved_specs
from parl_like.data.buffers.stored_fields import FinalObservations, StoredFields
from parl_like.values import plain
from parl_like.values.batch import Batch, ready_batch
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec


class LaneMemory:
    """Rows as they are stored, in circular lanes, and what they led to where no next row tells.

    A position is a slot, 0 … capacity − 1; lane k owns the slots k · lane_size … (k + 1) · lane_size − 1.

    Args:
        fields: The fields, none so far, with the options of the buffer.
        n_lanes: Number of lanes.
        lane_size: Slots of each.

    Attributes:
        fields: The way from the fields that are given to those that are stored.
        ring: Memory of those that are stored, and where the next row of every lane goes.
        columns: Dotted name → [capacity, …], the memory itself.
        finals: What rows led to where no next row tells; None, where obs_next is stored.
        empty_keys: Groups of fields without a leaf so far, such as `info={}`.
        paths: Where the fields lie in rows given to `ReplayBuffer.add`.
    """

    def __init__(self, fields: StoredFields, n_lanes: int, lane_size: int) -> None:
        self.fields = fields
        self._take(Ring((), n_lanes, lane_size))
        self.finals: FinalObservations | None = None
        self.empty_keys: tuple[str, ...] = ()
        self.paths = FieldPaths(())

    def _take(self, ring: Ring) -> None:
        self.ring, self.columns = ring, ring.block.arrays

    # ---- fields and lanes

    def use(self, specs: Sequence[Spec], empty_keys: Sequence[str]) -> None:
        """Make `specs`, of which the present ones come first, the fields. Rows stay; new columns are zero.

        Raises:
            ValueError, SpecError: the fields do not fit the options of the buffer; nothing has changed.
        """
        fields = self.fields.of(specs)
        self._move(fields, self.columns)
        if fields.ignore_obs_next:
            nexts = [spec for spec in fields.given if is_part(spec.name, "obs_next")]
            self.finals = FinalObservations(nexts, self.ring.n_lanes, self.finals)
        self.empty_keys = (*self.empty_keys, *empty_keys)
        self.paths = FieldPaths([spec.name for spec in specs], self.empty_keys)

    def _move(self, fields: StoredFields, columns: Mapping[str, Array]) -> None:
        old = self.ring
        self._take(Ring(fields.kept, old.n_lanes, old.lane_size, columns, (old.count, old.cursor, old.written)))
        self.fields = fields

    def with_columns(self, specs: Sequence[Spec], positions: Positions, columns: Mapping[str, Array]) -> LaneMemory:
        """Return the same rows with other columns for some fields: these have memory of their own, the rest is shared.

        Args:
            specs: All fields as they are now.
            positions: [N] slots that hold a row.
            columns: Dotted name → [N, …], the values there.
        """
        made, capacity = copy(self), self.ring.n_lanes * self.ring.lane_size
        replaced = {spec.name: spec.zeros(capacity) for spec in specs if spec.name in columns}
        for name, column in columns.items():
            replaced[name][positions] = column
        made._move(self.fields.of(specs), self.columns | replaced)
        return made

    def add_lanes(self, n: int) -> Positions:
        """Make room for n more, empty lanes behind the others. Return their first slots, [n] int64."""
        old = self.ring
        capacity, more, zeros = old.n_lanes * old.lane_size, n * old.lane_size, np.zeros(n, np.int64)
        first = np.arange(capacity, capacity + more, old.lane_size)
        columns = {name: np.concatenate([c, np.zeros((more, *c.shape[1:]), c.dtype)]) for name, c in self.columns.items()}
        state = np.append(old.count, zeros), np.append(old.cursor, first), np.append(old.written, zeros)
        self._take(Ring(old.block.specs, old.n_lanes + n, old.lane_size, columns or None, state))
        if self.finals is not None:
            self.finals = FinalObservations(self.finals.specs, self.ring.n_lanes, self.finals)
        return first

    # ---- rows

    def push(self, lane: int, values: tuple[object, ...]) -> int:
        """Write one row, `values` in the order of the fields. Return its position.

        Raises:
            IndexError: no such lane, or another number of values. SpecError: a value does not fit. Nothing is written.
        """
        fields, finals = self.fields, self.finals
        if finals is None:
            return self.ring.push(lane, fields.stored(values))
        stored, nexts = fields.stored(values), fields.nexts(values)
        finals.check(nexts)
        position = self.ring.push(lane, stored)
        terminated, truncated = (self.columns[name][position] for name in FLAGS)
        finals.keep(lane, position, nexts, truncated and not terminated)
        return position

    def push_rows(self, lanes: Positions, values: tuple[object, ...], framed: bool) -> Positions:
        """Write row i of `values`, arrays [k, …] in the order of the fields, into lane `lanes[i]`. Return the positions [k].

        Args:
            framed: Whether observations are stacks of which the newest frame is to be kept, where the buffer takes stacks.

        Raises:
            IndexError, SpecError: as `push`; nothing is written.
        """
        fields, finals = self.fields, self.finals
        stored = values if fields.as_given else fields.stored(values, rows=True, framed=framed)
        if finals is None:
            return self.ring.push_rows(lanes, stored)
        nexts = finals.convert(fields.nexts(values, rows=True, framed=framed), len(lanes))
        positions = self.ring.push_rows(lanes, stored)
        ends = self.columns["truncated"][positions] & ~self.columns["terminated"][positions]
        finals.keep_rows(lanes, positions, nexts, ends)
        return positions

    def truncate(self, lane: int, position: int) -> None:
        """Mark a lane's newest row, at `position`, as truncated."""
        self.columns["truncated"][position] = True
        if self.finals is not None:
            self.finals.settle(lane, position)

    def clear(self, lane: int) -> None:
        """Drop the rows of a lane."""
        self.ring.clear(lane)
        if self.finals is not None:
            self.finals.clear(lane, range(lane * self.ring.lane_size, (lane + 1) * self.ring.lane_size))

    def filled(self) -> Positions:
        """Return the positions that hold a row, in the order of the slots, [N] int64."""
        size = self.ring.lane_size
        return np.concatenate([lane * size + np.arange(count) for lane, count in enumerate(self.ring.count.tolist())])

    def nested(self, flat: dict[str, Array]) -> Batch:
        """Return rows by flat names as a Batch, with the groups that have no leaf yet."""
        batch = Batch.nest(flat) if self.fields.nested else ready_batch(flat)
        for key in self.empty_keys:
            if key not in batch:
                batch[key] = Batch()
        return batch

    # ---- saving

    def state_dict(self) -> State:
        """Return the fields, the cursors, and the columns [N, …] of the slots that hold a row."""
        ring, filled = self.ring, self.filled()
        return {
            "count": ring.count.tolist(), "cursor": ring.cursor.tolist(), "written": ring.written.tolist(),
            "specs": saved_specs(self.fields.specs), "empty_keys": list(self.empty_keys),
            "columns": {name: column.take(filled, axis=0) for name, column in self.columns.items()},
            "finals": {} if self.finals is None else self.finals.state_dict(),
        }

    def saved_columns(self, owner: object, specs: Sequence[Spec], state: State) -> dict[str, Array]:
        """Return the columns of a saved state whose fields are `specs`, checked; nothing has changed.

        Raises:
            ValueError, SpecError: they are others, or of another number of rows; `owner` is named.
        """
        stored = self.fields.of(specs).kept
        arrays = loaded_columns(owner, stored, plain.entries(state["columns"]), sum(plain.wholes(state["count"])))
        return {spec.name: array for spec, array in zip(stored, arrays, strict=True)}

    def load(self, state: State, columns: Mapping[str, Array]) -> None:
        """Take over a saved state, whose fields are in use, with the columns [N, …] that `saved_columns` gave.

        Raises:
            ValueError: cursors or final observations are not those of such lanes.
        """
        self.ring.set(*(plain.wholes(state[key]) for key in ("count", "cursor", "written")))
        filled = self.filled()
        for name, array in columns.items():
            self.columns[name][:] = 0
            self.columns[name][filled] = array
        if self.finals is not None:
            self.finals = FinalObservations(self.finals.specs, self.ring.n_lanes)
            if state["specs"]:
                self.finals.load_state_dict(plain.entries(state["finals"]), self.ring.n_lanes * self.ring.lane_size)
