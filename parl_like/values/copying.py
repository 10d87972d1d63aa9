"""Copies of what comes from an environment and is kept: no array in it may be one that the environment changes later.

This is the rule's one place. `EnvFace` and `VectorFace` put everything that they hand out through `copied`, so what an agent
keeps of a step, for as long as it likes and in whatever control flow, stays what it was. And what `predict` hands out is `fixed`:
a helper knows an action by its object, and stores with it what the policy said of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_like.values.batch import Batch
from parl_like.values.spec import Array


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


_FIXED = frozenset((float, int, bool, str, bytes, type(None), np.float32, np.float64, np.int64, np.bool_))


def copied(value: Any) -> Any:
    """Return `value` with copies of all arrays, tensors and containers in it; a mapping becomes a dict. Other objects
    stay as they are."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in _FIXED:
        return value
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
