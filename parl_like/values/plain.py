"""State: the value of every `state_dict`, and how a saved one is read: nested plain values, whose kinds are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

from parl_like.values.spec import Array

if TYPE_CHECKING:
    import torch

Plain: TypeAlias = Union[None, bool, int, float, str, Array, "torch.Tensor", Sequence["Plain"], Mapping[str, "Plain"]]
"""A value that an archive stores and gives back: a plain value, an array or tensor of any shape, or a list or mapping of such."""

State: TypeAlias = Mapping[str, Plain]
"""The value of `state_dict`: plain values by name. One that comes from a file may hold anything under a name; so it is read by
the functions below, which raise TypeError where it is of another kind."""


def whole(value: Plain) -> int:
    """Return a whole number of any size; a bool is none."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise _wrong("a whole number", value)


def number(value: Plain) -> float:
    """Return a number; a bool is none."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise _wrong("a number", value)


def array(value: Plain) -> Array:
    """Return an array, of any shape and dtype."""
    if isinstance(value, np.ndarray):
        return value
    raise _wrong("an array", value)


def entries(value: Plain) -> State:
    """Return values by name."""
    if isinstance(value, Mapping):
        return value
    raise _wrong("values by name", value)


def listed(value: Plain) -> Sequence[Plain]:
    """Return a list or tuple, of any length."""
    if isinstance(value, (list, tuple)):
        return value
    raise _wrong("a list", value)


def wholes(value: Plain) -> list[int]:
    """Return a list of whole numbers, of any length."""
    return [whole(one) for one in listed(value)]


def _wrong(expected: str, value: object) -> TypeError:
    return TypeError(f"a saved state: expected {expected}, got {value!r:.60} ({type(value).__name__}); use an earlier one")
