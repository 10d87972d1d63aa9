"""Copies of what comes from an environment and is kept: no array in it may be one that the environment changes later.

This is the rule's one place. `EnvFace` and `VectorFace` put everything that they hand out through `own`, so what an agent keeps
of a step, for as long as it likes and in whatever control flow, stays what it was. And what `predict` hands out is `fixed`: a
helper knows an action by its object, and stores with it what the policy said of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import getrefcount
from typing import Any

import numpy as np

from parl_like.values.batch import Batch
from parl_like.values.spec import Array


def own(value: Any) -> Any:
    """`value`, where an array that somebody else holds, too, or memory that belongs to no array, is replaced by a copy of it.

    An array is its giver's no longer where nobody refers to it but the caller, to be seen by its count of references; images that
    an environment makes anew for each step are therefore not copied. (Tried with CPython 3.11; where a count does not show a
    second holder, everything is copied.) Everything inside a container is copied. Objects of other kinds, and what is inside
    them, are left as they are.
    """
    kind = type(value)
    if kind is np.ndarray:
        base = value.base
        if base is None:
            return value if getrefcount(value) <= _HELD else value.copy()
        alone = type(base) is np.ndarray and base.base is None and getrefcount(value) <= _HELD and getrefcount(base) <= _BASE_HELD
        return value if alone else value.copy()
    return value if kind in _FIXED else copied(value)


_FIXED = frozenset((float, int, bool, str, bytes, type(None), np.float32, np.float64, np.int64, np.bool_))


def read_only(array: Array) -> Array:
    """The same numbers, which cannot be changed through this."""
    view = array.view()
    view.flags.writeable = False
    return view


class FixedDict(dict[str, Any]):
    """A dict that nobody changes; copies of it are plain dicts."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise TypeError("an action that predict returned cannot be changed, for its outputs are stored with it; make another, "
                        "such as {**act, 'part': value}")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def fixed(value: object) -> Any:
    """A nested action, whose arrays are `read_only`, with dicts that are fixed, too."""
    if isinstance(value, dict):
        return FixedDict({key: fixed(part) for key, part in value.items()})
    return tuple(map(fixed, value)) if isinstance(value, tuple) else value


def copied(value: Any) -> Any:
    """`value` with copies of all arrays, tensors and containers in it; a mapping becomes a dict."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Batch):
        return Batch(value, copy=True)
    if hasattr(value, "data_ptr"):  # a tensor
        return value.clone()
    return value


def _held_by_one() -> tuple[int, int]:
    """Return what `getrefcount` says in `own` of an array that only the caller holds, and of one that only that array looks
    into."""

    def counts(value: Any) -> tuple[int, int]:
        base = value.base
        return getrefcount(value), getrefcount(base)

    value = np.empty((1, 2)).T
    one = counts(value)
    also, view = value, value.base
    two = counts(value)
    return one if two[0] > one[0] and two[1] > one[1] and also is not view else (-1, -1)


_HELD, _BASE_HELD = _held_by_one()
