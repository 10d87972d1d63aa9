"""Arrays side by side in one block of memory, and memory that several processes map."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_like.values.spec import Array

ALIGNMENT = 64
"""Bytes of a cache line: each array begins on one of its own, so that two processes that write into neighbours do not slow each
other."""

Column = tuple[tuple[int, ...], npt.DTypeLike]
"""Shape and dtype of one array."""


def offsets(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return where arrays of so many bytes begin that lie side by side, and how many bytes all take."""
    begins, end = [], 0
    for size in sizes:
        begins.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return begins, end


def _layout(columns: Sequence[Column]) -> tuple[list[int], int]:
    return offsets(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in columns)


def size_of(columns: Sequence[Column]) -> int:
    """Bytes that these arrays take side by side."""
    return _layout(columns)[1]


def views(memory: Any, columns: Sequence[Column]) -> list[Array]:
    """Return the arrays that lie in `memory`, of the shapes and dtypes of the columns; they keep it alive.

    Args:
        memory: Anything with a buffer of at least `size_of(columns)` bytes; the arrays are read-only where it is.
    """
    return [np.ndarray(shape, dtype, memory, at) for (shape, dtype), at in zip(columns, _layout(columns)[0], strict=True)]


def nameless_file(name: str) -> int:
    """File descriptor of an empty file in memory that no folder lists, so that nothing of it can be left over.

    Args:
        name: For who lists the open files of a process.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"parl_like {name}")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def map_file(fd: int, size: int) -> mmap.mmap:
    """The first `size` bytes of a file, which becomes as long where it is shorter."""
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)
    return mmap.mmap(fd, size)
