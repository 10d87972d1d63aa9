"""ReservoirBuffer: a uniform sample of all rows that were ever seen, in preallocated memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Never

import numpy as np

from parl_like.data.buffers._rows import RowBlock
from parl_like.data.buffers.base import Buffer, Random
from parl_like.data.buffers.fields import (
    Positions,
    check_numbers,
    check_saved,
    in_words,
    infer,
    loaded_columns,
    loaded_specs,
    saved_specs,
)
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec, SpecError, leaves

OWNER = "reservoir buffer"

IN_TIME = frozenset((
    "prev", "next", "n_step", "window", "done", "unfinished_index", "episode_start", "truncate_open", "lane_rows", "clear_lane"))
"""Names that ReplayBuffer has and a reservoir cannot have."""


class ReservoirBuffer(Buffer):
    """Keeps each row seen so far with the same probability, size / seen: Vitter 1985, "Random Sampling with a Reservoir",
    algorithm R.

    Row number k takes the place of a random kept row with probability size / k, and is dropped otherwise.

    This is the memory of an average policy, which must weigh all past iterations alike, where a circular buffer forgets: the
    supervised memory of NFSP (Heinrich & Silver 2016) and both memories of Deep CFR (Brown et al. 2019; there the iteration
    number is a field of the row, and weighs the loss). Rows are independent of each other: the fields are whatever the learner
    needs, with no flag required, and there are no episodes, no n-step returns and no row before or after another.

    A *position* is a slot of the memory, 0 … size − 1; slots 0 … len(buffer) − 1 hold rows. Nothing is locked.

    Args:
        size: Rows that are kept at most, at least 1.
        rng: Generator, or what seeds one; None seeds with 0, so that runs repeat. It decides what is kept, and what is sampled.

    Attributes:
        seen: Rows pushed so far, kept or not.
        specs: The stored fields, in the order in which `push` takes their values; () before the first row.
        columns: Dotted name -> [size, …], the memory itself. To be read; rows are written with push and add.

    Raises:
        ValueError: size is below 1.
    """

    def __init__(self, size: int, rng: Random = None) -> None:
        if size < 1:
            raise ValueError(f"ReservoirBuffer: size is {size}; expected at least 1")
        self.size = size
        self.rng = np.random.default_rng(0 if rng is None else rng)
        self.seen = 0
        self.use_fields(())

    def use_fields(self, specs: Sequence[Spec]) -> None:
        self.specs = tuple(specs)
        self._block, self._spare = RowBlock(specs, self.size), RowBlock(specs, 1)
        self.columns: dict[str, Array] = self._block.arrays

    # ---- writing

    def allocate(self, specs: Sequence[Spec]) -> None:
        """Declares the fields, as flat dotted names, and takes the memory. Repeating the same specs does nothing.

        Raises:
            ValueError: there is no field, a name is double or both a leaf and a group, a field does not hold numbers, or other
                specs are in use.
        """
        if self.specs:
            if tuple(specs) != self.specs:
                raise ValueError(f"{self!r}: already allocated as {in_words(self.specs)}, not {in_words(specs)}; make a new "
                                 "buffer")
            return
        if not specs or len({spec.name for spec in specs}) != len(specs):
            raise ValueError(f"ReservoirBuffer: the fields are {in_words(specs)}; expected at least one, and each name once")
        check_numbers("ReservoirBuffer", specs)
        self.use_fields(specs)

    def push(self, values: tuple[object, ...]) -> int:
        """Sees one row: `values` in the order of `specs`. Returns its position, or −1 where it is not kept.

        Raises:
            SpecError: a value does not fit. The buffer is as before, generator included, whether the row would have been kept or
                not.
            IndexError: another number of values than of fields.
            ValueError: `allocate` was not called.
        """
        if not self.specs:
            raise ValueError("ReservoirBuffer: push needs to know the fields; call allocate(specs) first, or write with add")
        position = self.seen
        if position < self.size:
            self._block.write(position, values)  # a row that fails half way is not counted
        else:
            # In a spare row first: a bad row must not be found out only when chance keeps it, nor damage the one it replaces.
            self._spare.write(0, values)
            position = int(self.rng.integers(self.seen + 1))
            if position < self.size:
                self._block.write(position, values)
        self.seen += 1
        return position if position < self.size else -1

    def add(self, row: Batch | Mapping[str, object]) -> int:
        """Sees one row, nested or not, whose leaves have no row axis; the first one says which fields there are. Returns as
        `push`.

        Raises:
            SpecError: a value does not fit its field or is no number, or the fields are not those of the first row. The buffer is
                as before.
            ValueError: the row is empty.
        """
        flat = dict(leaves(row, "", loose=True))
        if not self.specs:
            specs = [infer(OWNER, name, value) for name, value in flat.items()]
            for spec in specs:
                spec.convert(flat[spec.name])  # raises before memory is taken
            self.allocate(specs)
        names = {spec.name for spec in self.specs}
        for name in sorted(names ^ flat.keys()):
            what = "is missing in this row" if name in names else "is not stored here"
            raise SpecError(f"{OWNER}, field {name!r}: {what}; all rows have the fields of the first one: {in_words(self.specs)}")
        return self.push(tuple(flat[spec.name] for spec in self.specs))

    # ---- reading rows

    def __len__(self) -> int:
        return min(self.seen, self.size)

    def take(self, positions: Positions) -> dict[str, Array]:
        """Rows as flat arrays: dotted name -> [N, …], a copy. Positions are not checked."""
        return {name: column.take(positions, axis=0) for name, column in self.columns.items()}

    def _draw(self, n: int, rng: np.random.Generator) -> Positions:
        return rng.integers(len(self), size=n)

    def _batch(self, positions: Positions) -> Batch:
        return Batch.nest(self.take(positions))

    def __getattr__(self, name: str) -> Never:
        if name in IN_TIME:
            raise AttributeError(
                f"ReservoirBuffer has no {name!r}: it keeps single rows of any time in any order, so a row has no neighbours "
                "and no episode; use ReplayBuffer for what needs them, or store what you need of them in the row")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"ReservoirBuffer(rows={len(self)} of {self.size}, seen={self.seen}, fields={in_words(self.specs)})"

    # ---- saving

    def state_dict(self) -> State:
        """Everything that the rows to come depend on: plain dicts of JSON values, and under "columns" arrays of the kept rows."""
        return {"size": self.size, "seen": self.seen, "specs": saved_specs(self.specs),
                "columns": self.take(np.arange(len(self))), "rng": rng_state(self.rng)}

    def load_state_dict(self, state: State) -> None:
        """Takes over what `state_dict` gave. This buffer may have no fields yet, or those saved.

        Raises:
            ValueError: another size, number of rows, other fields or none of these. KeyError, TypeError: it is no state.
        """
        check_saved(self, state, {"size": self.size})
        saved = loaded_specs(OWNER, state["specs"])
        if (saved and self.specs and tuple(saved) != self.specs) or (state["seen"] and not saved):
            raise ValueError(f"{self!r}: the saved fields are {in_words(saved)}; load into a new buffer")
        seen = plain.whole(state["seen"])
        count = min(seen, self.size)
        arrays = loaded_columns(self, saved, plain.entries(state["columns"]), count)
        if saved:
            self.allocate(saved)
        for spec, array in zip(saved, arrays, strict=True):
            self.columns[spec.name][:count] = array
        self.seen = seen
        set_rng_state(self.rng, state["rng"])
