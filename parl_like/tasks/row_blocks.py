"""RowBlocks: the memory that rows of requests are written into."""

from __future__ import annotations

from collections.abc import Callable

from parl_like.data.buffers._rows import RowBlock
from parl_like.values.spec import Spec


class RowBlocks:
    """Blocks of columns for the batches of one queue; a block is used again when its batch was answered.

    Args:
        specs: The columns of a block, in the order in which a row has its values.
        capacity: Rows of a new block. It grows with the batches.

    Attributes:
        make: Makes a block, from specs and a number of rows.
    """

    def __init__(self, specs: list[Spec], capacity: int) -> None:
        self.specs, self._capacity = specs, capacity
        self._free: list[RowBlock] = []
        self.make: Callable[[list[Spec], int], RowBlock] = RowBlock

    def take(self) -> RowBlock:
        """Return a block for a new batch."""
        while self._free:
            block = self._free.pop()
            if block.capacity >= self._capacity:
                return block
        return self.make(self.specs, self._capacity)

    def grown(self, block: RowBlock, filled: int, more: int) -> RowBlock:
        """Return a larger block with the first `filled` rows of this one, and room for `more`."""
        self._capacity = max(self._capacity, 2 * block.capacity, filled + more)
        return _copy(block, slice(0, filled), self.make(self.specs, self._capacity))

    def copied(self, block: RowBlock, rows: slice) -> RowBlock:
        """Return a block of its own with these rows."""
        return _copy(block, rows, RowBlock(self.specs, rows.stop - rows.start))

    def give_back(self, block: RowBlock) -> None:
        """Keep a block for a later batch."""
        self._free.append(block)


def _copy(block: RowBlock, rows: slice, other: RowBlock) -> RowBlock:
    """Some rows of a block, at the beginning of another."""
    for name, column in block.arrays.items():
        other.arrays[name][: rows.stop - rows.start] = column[rows]
    return other
