"""The check of a saved state before anything takes it over: it must be like the state that its taker has itself."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

MOST = 2**62  # of a count, a position or a seed; generators check their own, which are longer


OPTIONAL = ", carried"
"""End of the places where None may stand whatever the taker has: an agent carries an episode, or it does not."""


def check_alike(saved: object, own: object, at: str) -> None:
    """Raises ValueError, which names the place, where `saved` has other types than `own`, the state of what is to take it over.

    Mappings, and dicts that were packed, are compared key by key, where both have the key; lists element by element with the last
    own one for those behind it; arrays by dtype and by all of the shape but the first axis. A whole number that is no bool and
    none below 0 stays so. None and what is empty in `own` tell nothing of what may come there: whoever takes it looks for itself.
    """
    if isinstance(own, Mapping):
        if saved is None and at.endswith(OPTIONAL):
            return
        if not isinstance(saved, Mapping):
            raise _wrong(at, "values by name", saved)
        theirs, mine = _packed_dict(saved), _packed_dict(own)
        if theirs is not None and mine is not None:  # the keys of an info come and go from step to step
            saved, own = theirs, mine
        for name, value in saved.items():
            if name in own:
                check_alike(value, own[name], f"{at}, {name}" if at else str(name))
    elif isinstance(own, (list, tuple)):
        if not isinstance(saved, (list, tuple)):
            raise _wrong(at, "a list", saved)
        for i, value in enumerate(saved if own else ()):
            check_alike(value, own[min(i, len(own) - 1)], f"{at}, {i}")
    elif isinstance(own, np.ndarray) and own.shape == (0,):  # nothing was counted yet, not even the shape
        if not isinstance(saved, np.ndarray) or saved.dtype != own.dtype:
            raise _wrong(at, f"an array of {own.dtype}", saved)
    elif isinstance(own, np.ndarray):
        kind = own.dtype, own.ndim, own.shape[1:]
        if not isinstance(saved, np.ndarray) or (saved.dtype, saved.ndim, saved.shape[1:]) != kind:
            raise _wrong(at, f"an array {('n', *own.shape[1:]) if own.ndim else ()} {own.dtype}", saved)
    elif isinstance(own, (bool, np.bool_)):
        if not isinstance(saved, (bool, np.bool_)):
            raise _wrong(at, "true or false", saved)
    elif isinstance(own, Integral):
        check_count(saved, at, 0 if 0 <= int(own) < MOST else None)
    elif isinstance(own, Real):
        if not isinstance(saved, Real) or isinstance(saved, bool) or isinstance(saved, Integral) and abs(int(saved)) >= MOST:
            raise _wrong(at, "a number", saved)
    elif isinstance(own, str) and not isinstance(saved, str):
        raise _wrong(at, "text", saved)


def _packed_dict(packed: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values by key of a dict that was packed (`parl_like.learning.saved_state.pack`); None: it is none."""
    items = packed.get("items")
    if packed.get("kind") != "dict" or not isinstance(items, (list, tuple)):
        return None
    if not all(isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str) for item in items):
        return None
    return dict(items)


def check_count(saved: Any, at: str, least: int | None = 0) -> None:
    """Raises ValueError where it is no whole number of at least `least`, under 2⁶²; None: any whole number."""
    whole = isinstance(saved, Integral) and not isinstance(saved, bool)
    if not whole or least is not None and not least <= int(saved) < MOST:
        raise _wrong(at, "a whole number" if least is None else f"a whole number of at least {least}", saved)


def _wrong(at: str, expected: str, saved: object) -> ValueError:
    kind = f" {saved.shape} {saved.dtype}" if hasattr(saved, "shape") and hasattr(saved, "dtype") else f" {saved!r:.60}"
    return ValueError(f"{at}: expected {expected}, got {type(saved).__name__}{kind}")
