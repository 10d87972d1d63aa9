"""Bounds on what an environment's arguments make it take of memory: a number costs nothing to write, and may come from somebody
else's configuration."""

from __future__ import annotations

from math import prod

import numpy as np

MOST_BYTES = 64 << 20
"""Bytes that one array of one environment may have: some 2,000 times an Atari game's observation. A space of it holds four such
arrays, and each agent has one."""


class TooLarge(ValueError, MemoryError):
    """A number makes an array that no environment needs.

    Attributes:
        size: Bytes of that array.
    """

    size = 0


def check_array(made_by: str, *shape: int, dtype: object = np.float32, lower: str = "it") -> None:
    """Raise TooLarge, a ValueError, where an array of this shape has more than `MOST_BYTES`. Nothing is allocated.

    Args:
        made_by: Owner and arguments, with their values, for the message.
        shape: Numbers of at least 0, however large.
        dtype: Of one number. lower: What the message says to lower.
    """
    size = prod(map(int, shape)) * np.dtype(dtype).itemsize  # type: ignore[call-overload]
    if size > MOST_BYTES:
        error = TooLarge(f"{made_by}; that makes arrays {tuple(map(int, shape))} of {in_words(size)} each; expected at most "
                         f"{in_words(MOST_BYTES)}; lower {lower}")
        error.size = size
        raise error


def in_words(size: int) -> str:
    """Return a number of bytes for people: `24.0 GiB`."""
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value >= 1024:
            value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"
