"""Spec: name, shape, dtype and bounds of one array, and the translation between nested values and flat, dotted field names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class SpecError(ValueError):
    """A value does not fit its spec. The message names the owner, the field, what was expected, what came, and the mend."""


@dataclass(frozen=True)
class Spec:
    """One array without its row axis.

    Attributes:
        name: Dotted field name, e.g. `obs` or `obs.goal`.
        shape: Shape of one row.
        dtype: NumPy dtype of the stored array.
        low, high: Bounds, or None where the space has none. `high` of a discrete value is its largest legal one.
        owner: Who checks, for messages: `task 'RL'`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Any = field(default=None, compare=False)
    high: Any = field(default=None, compare=False)
    owner: str = field(default="", compare=False)

    def owned_by(self, owner: str) -> Spec:
        return Spec(self.name, self.shape, self.dtype, self.low, self.high, owner)

    def zeros(self, rows: int) -> Array:
        return np.zeros((rows, *self.shape), self.dtype)

    def legal(self, rows: int) -> Array:
        """Rows that the bounds allow, 0 where they do: what a network can be tried out with."""
        zeros = self.zeros(rows)
        return zeros if self.low is None else np.clip(zeros, self.low, self.high).astype(self.dtype)

    def error(self, got: str, mend: str, rows: bool = False) -> SpecError:
        shape = ("N", *self.shape) if rows else self.shape
        where = f"{self.owner}, " if self.owner else ""
        text = "(" + ", ".join(map(repr, shape)) + ("," if len(shape) == 1 else "") + ")"
        return SpecError(f"{where}field {self.name!r}: expected {text} {self.dtype}, got {got}; {mend}")

    def convert(self, value: Any, rows: bool = False) -> Array:
        """`value` as an array of this spec, or a `SpecError`.

        A Python number, bool or list has no dtype of its own and is converted; an array must carry the right one, except that
        any real scalar serves where a single number is expected.

        Args:
            value: One row of `shape`, or with `rows` an array [n, *shape].
            rows: Whether `value` has the leading row axis.
        """
        if value is None:
            raise self.error("None", "give a value for this field", rows)
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise self.error(f"a ragged {type(value).__name__} ({error})", "give rows of equal shape", rows) from None
        expected = (len(array), *self.shape) if rows and array.ndim else self.shape
        if array.shape != expected or (rows and not array.ndim):
            if rows and array.shape == self.shape:
                mend = "add the row axis: value[None]"
            elif not rows and array.shape == (1, *self.shape):
                mend = "drop the row axis: value[0]"
            else:
                mend = "check the space that the environment or the model declares"
            raise self.error(_text(array), mend, rows)
        if array.dtype != self.dtype:
            has_dtype = isinstance(value, (np.ndarray, np.generic))
            kinds = {"b": 0, "u": 1, "i": 1, "f": 2}
            known = array.dtype.kind in kinds and self.dtype.kind in kinds
            widens = known and kinds[array.dtype.kind] <= kinds[self.dtype.kind] and self.dtype.kind != "b"
            if not widens or (has_dtype and self.shape and not np.can_cast(array.dtype, self.dtype)):
                raise self.error(_text(array), f"astype('{self.dtype}')" if known else "give numbers", rows)
            if array.dtype.kind in "ui" and self.dtype.kind in "ui" and array.size:
                bounds = np.iinfo(self.dtype)
                if array.min() < bounds.min or array.max() > bounds.max:
                    raise self.error(f"{_text(array)} with values up to {array.max()}", f"stay within [{bounds.min}, {bounds.max}]", rows)
            array = array.astype(self.dtype)
        if array.dtype.kind == "f" and np.isnan(array).any():
            where = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
            raise self.error(f"{_text(array)} with NaN at {where}", "find out which computation made it; NaN is never stored", rows)
        return array if array.flags.c_contiguous else array.copy()  # not ascontiguousarray: it makes a scalar (1,)


def _text(array: Array) -> str:
    """Shape and dtype, for messages only: NumPy takes 2 µs to spell a dtype."""
    return f"{array.shape} {array.dtype}"


def specs_of(space: gym.Space[Any], name: str) -> dict[str, Spec]:
    """Flat specs of a gymnasium space: `Dict` and `Tuple` become dotted names, `Discrete` an int64 scalar.

    Raises:
        TypeError: a space without a fixed shape (Graph, Sequence, Text …).
    """
    if isinstance(space, gym.spaces.Dict):
        return {k: v for key, part in space.spaces.items() for k, v in specs_of(part, f"{name}.{key}").items()}
    if isinstance(space, gym.spaces.Tuple):
        return {k: v for i, part in enumerate(space.spaces) for k, v in specs_of(part, f"{name}.{i}").items()}
    if isinstance(space, gym.spaces.Discrete):
        low = int(space.start)
        return {name: Spec(name, (), np.dtype(np.int64), low, low + int(space.n) - 1)}
    if isinstance(space, gym.spaces.Box):
        return {name: Spec(name, tuple(space.shape), np.dtype(space.dtype), space.low, space.high)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {name: Spec(name, tuple(space.shape), np.dtype(space.dtype), space.start, space.start + space.nvec - 1)}
    if isinstance(space, gym.spaces.MultiBinary):
        assert space.shape is not None
        return {name: Spec(name, tuple(space.shape), np.dtype(space.dtype))}
    raise TypeError(
        f"space of {name!r} is {type(space).__name__}, which has no fixed shape; wrap the environment so that it gives "
        "Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
    )


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The leaves of a nested value under dotted names, in the order of its keys; a tuple counts as keys '0', '1', …"""
    if isinstance(value, Mapping):
        for key in value:
            yield from leaves(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, tuple) and not hasattr(value, "dtype"):
        for i, part in enumerate(value):
            yield from leaves(part, f"{name}.{i}" if name else str(i))
    else:
        yield name, value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `leaves`: dotted names back to nested dicts."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        node = out
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return out
