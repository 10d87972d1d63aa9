"""Shared memory for rows: large observations reach the robot's process without passing through a socket."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from parl_like.data.buffers._rows import RowBlock
from parl_like.process.shared_memory import size_of, views
from parl_like.values.spec import Array, Spec

LARGE = 1 << 18
"""Bytes of a block from which on it is shared. (Measured: 32 rows of 2 KB take as long by socket.)"""


def folder() -> str | None:
    """Return the folder where such files can be: in /dev/shm, or where the environment's PARL_LIKE_SHM says (empty: nowhere);
    None where there is no such place."""
    path = os.environ.get("PARL_LIKE_SHM", "/dev/shm")
    return path if path and os.access(path, os.W_OK) else None


def _size(specs: Sequence[Spec], capacity: int) -> int:
    return size_of([((capacity, *spec.shape), spec.dtype) for spec in specs])


def _columns(memory: mmap.mmap, specs: Sequence[Spec], capacity: int) -> dict[str, Array]:
    columns = views(memory, [((capacity, *spec.shape), spec.dtype) for spec in specs])
    return {spec.name: column for spec, column in zip(specs, columns, strict=True)}


class Blocks:
    """A worker's shared blocks, in the folder `where`, under its own name there. They are used again, so there are never more
    than batches on their way: at most one per agent that waits, and two as a rule."""

    def __init__(self, where: str, owner: str) -> None:
        self._where, self._owner = Path(where), owner
        self._blocks: list[RowBlock] = []

    def make(self, specs: Sequence[Spec], capacity: int) -> RowBlock:
        """A block, which is shared if it is large and there is room."""
        size = _size(specs, capacity)
        if size < LARGE:
            return RowBlock(specs, capacity)
        path = self._where / f"{self._owner}.{len(self._blocks)}"
        try:
            with open(path, "x+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # else the first write to a full /dev/shm would end the process
                block = RowBlock(specs, capacity, _columns(mmap.mmap(file.fileno(), size), specs, capacity))
        except OSError:
            path.unlink(missing_ok=True)
            return RowBlock(specs, capacity)
        self._blocks.append(block)
        return block

    def number_of(self, block: RowBlock) -> int | None:
        """Its number; None: it is not shared."""
        return next((number for number, shared in enumerate(self._blocks) if shared is block), None)


class Reader:
    """The robot's view of its workers' blocks."""

    def __init__(self, where: str) -> None:
        self._where = Path(where)
        self._columns: dict[tuple[str, int], dict[str, Array]] = {}

    def rows(self, owner: str, number: int, specs: Sequence[Spec], capacity: int, n: int) -> dict[str, Array]:
        """The first `n` rows of a block, as read-only views."""
        columns = self._columns.get((owner, number))
        if columns is None:
            path = self._where / f"{owner}.{number}"
            size = _size(specs, capacity)
            with open(path, "rb") as file:
                columns = _columns(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), specs, capacity)
            path.unlink()  # the memory stays for who has mapped it
            self._columns[owner, number] = columns
        return {name: column[:n] for name, column in columns.items()}

    def forget(self, owner: str) -> None:
        """Let go of the blocks of a worker that has ended, by its name."""
        self._columns = {key: columns for key, columns in self._columns.items() if key[0] != owner}
