"""Spec: name, shape, dtype and bounds of one array, and the translation between nested values and flat, dotted field names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Number
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Space: TypeAlias = gym.Space[Any]
Env: TypeAlias = gym.Env[Any, Any]
Info: TypeAlias = dict[str, Any]
"""Named values that an environment gives beside its observation, or is given when it is reset."""


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

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, np.dtype):  # np.float32, which is how people write it
            object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def owned_by(self, owner: str) -> Spec:
        return Spec(self.name, self.shape, self.dtype, self.low, self.high, owner)

    def zeros(self, rows: int) -> Array:
        """Return zeros [rows, *shape] of this dtype."""
        return np.zeros((rows, *self.shape), self.dtype)

    def legal(self, rows: int) -> Array:
        """Return rows [rows, *shape] of this dtype that the bounds allow, 0 where they do, for trials of a network."""
        zeros = self.zeros(rows)
        return zeros if self.low is None else np.clip(zeros, self.low, self.high).astype(self.dtype)

    def error(self, got: str, mend: str, rows: bool = False) -> SpecError:
        shape = ("N", *self.shape) if rows else self.shape
        where = f"{self.owner}, " if self.owner else ""
        return SpecError(f"{where}field {self.name!r}: expected {shape} {self.dtype}, got {got}; {mend}")

    def convert(self, value: object, rows: bool = False) -> Array:
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
            if is_pair(value):
                raise self.error("the pair (observation, info)", PAIR, rows) from None
            raise self.error(f"a ragged {type(value).__name__} ({error})", "give rows of equal shape", rows) from None
        expected = (len(array), *self.shape) if rows and array.ndim else self.shape
        if array.shape != expected or (rows and not array.ndim):
            if array.dtype.kind in _NO_NUMBERS and (array.ndim == 0 or not isinstance(value, (list, tuple, np.ndarray))):
                raise self._no_numbers(value, array, rows)
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
                raise self.error(_text(array), f"astype('{self.dtype}')", rows) if known else self._no_numbers(value, array, rows)
            if array.dtype.kind in "ui" and self.dtype.kind in "ui" and array.size:
                bounds = np.iinfo(self.dtype)
                if array.min() < bounds.min or array.max() > bounds.max:
                    raise self.error(f"{_text(array)} with values up to {array.max()}",
                                     f"stay within [{bounds.min}, {bounds.max}]", rows)
            with np.errstate(over="ignore"):  # said better here
                narrow = array.astype(self.dtype)
            if self.dtype.kind == "f" and np.isinf(narrow).any() and not np.isinf(array).any():
                raise self.error(f"{_text(array)} with values up to {np.abs(array).max():.4g}",
                                 f"stay within ±{np.finfo(self.dtype).max:.4g}", rows)
            array = narrow
        if array.dtype.kind == "f" and np.isnan(array).any():
            where = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
            raise self.error(f"{_text(array)} with NaN at {where}", "find out which computation made it; NaN is never stored",
                             rows)
        return array if array.flags.c_contiguous else array.copy()  # not ascontiguousarray: it makes a scalar (1,)

    def _no_numbers(self, value: object, array: Array, rows: bool) -> SpecError:
        """Why `value`, which became `array`, cannot be converted: in words, since a dtype like <U3 or object says little."""
        where = "" if rows else f" in the shape {self.shape}" if self.shape else ", here just one"
        mend = f"give numbers{where}"
        if isinstance(value, (str, bytes)):
            return self.error(f"{_text(array)}, the text {value!r:.50}", f"{mend}, not text", rows)
        if not isinstance(value, (list, tuple, np.ndarray, Number)):
            return self.error(f"a {type(value).__name__} object", mend, rows)
        if array.dtype.kind not in _NO_NUMBERS:
            return self.error(_text(array), "give real numbers", rows)
        odd = next((x for x in array.flat if not isinstance(x, Number)), array.flat[0] if array.size else None)
        text = isinstance(odd, (str, bytes))
        odd = str(odd) if isinstance(odd, str) else odd  # np.str_ would name its type
        return self.error(f"{_text(array)} with {'the text ' if text else ''}{odd!r:.50} in it",
                          f"{mend}, not text" if text else mend, rows)

    @cached_property
    def integer_bounds(self) -> tuple[Array | int, Array | int] | None:
        """`low` and `high`, numbers or arrays of `shape`, where they allow less than the integer dtype does; else None."""
        if self.dtype.kind not in "iu" or self.low is None or self.high is None:
            return None
        limits = np.iinfo(self.dtype)
        all_legal = np.min(self.high, initial=limits.max) >= limits.max and np.max(self.low, initial=limits.min) <= limits.min
        return None if all_legal else (self.low, self.high)

    def check_bounds(self, array: Array) -> None:
        """Refuses integers outside [low, high]. Without such bounds (floats, 0 … 255 in a uint8) it looks at nothing.

        Args:
            array: What `convert` returned: [*shape], or rows [n, *shape].

        Raises:
            SpecError: the first value that is outside, with its place and the bounds there.
        """
        if self.integer_bounds is None:
            return
        low, high = self.integer_bounds
        if not array.ndim and low <= int(array) <= high:  # one action: ten times as fast as the lines below
            return
        legal = (low <= array) & (array <= high)
        if legal.all():
            return
        at = tuple(int(i) for i in np.argwhere(~legal)[0])
        low, high = (np.broadcast_to(bound, array.shape)[at] for bound in (low, high))
        where = f" at {at}" if at else ""
        raise self.error(f"{array[at]}{where}", f"stay within [{low}, {high}], the bounds of the space",
                         array.ndim > len(self.shape))


PAIR = "that is what reset() returns; take the first of it: obs, info = env.reset()"
"""The way out where `is_pair`."""


def is_pair(value: object) -> bool:
    """Return whether a value is an observation and its info, as `reset` returns them, in place of the observation alone."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict)


_NO_NUMBERS = "USO"
"""Kinds of dtype that NumPy falls back to: text, bytes, objects."""


def _text(array: Array) -> str:
    """Shape and dtype, for messages only: NumPy takes 2 µs to spell a dtype."""
    return f"{array.shape} {array.dtype}"


def specs_of(space: gym.Space[object], name: str) -> dict[str, Spec]:
    """Flat specs of a gymnasium space: `Dict` and `Tuple` become dotted names, `Discrete` an int64 scalar.

    Raises:
        TypeError: a space without a fixed shape (Graph, Sequence, Text …).
        ValueError: see `leaf_spaces`.
    """
    return {leaf: _spec_of(part, leaf) for leaf, part in leaf_spaces(space, name)}


def _spec_of(space: gym.Space[object], name: str) -> Spec:
    if isinstance(space, gym.spaces.Discrete):
        low = int(space.start)
        return Spec(name, (), np.dtype(np.int64), low, low + int(space.n) - 1)
    if isinstance(space, gym.spaces.Box):
        bounds: tuple[Any, ...] = space.low, space.high
    elif isinstance(space, gym.spaces.MultiDiscrete):
        bounds = space.start, space.start + space.nvec - 1
    elif isinstance(space, gym.spaces.MultiBinary):
        bounds = ()
    else:
        raise TypeError(f"space of {name!r} is {type(space).__name__}, which has no fixed shape; wrap the environment so that it "
                        "gives Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these")
    return Spec(name, tuple(space.shape), np.dtype(space.dtype), *bounds)


def leaf_spaces(space: gym.Space[object], name: str) -> Iterator[tuple[str, gym.Space[object]]]:
    """The spaces of single arrays under dotted names, as `leaves` names the values.

    Raises:
        ValueError: a key of a Dict that `leaves` refuses, or a space that holds no number: a Box of size 0, an empty Dict or
            Tuple.
    """
    parts = parts_of(space)
    if not parts if parts is not None else 0 in (space.shape or ()):
        raise ValueError(f"space of {name!r} is {space}, which holds no number; leave it out of the environment's spaces, or "
                         "give it a size")
    if parts is None:
        yield name, space
        return
    for key, part in parts.items():
        if "." in key or not key:
            raise _unnamable(key, name)
        yield from leaf_spaces(part, f"{name}.{key}")


def parts_of(space: gym.Space[object]) -> dict[str, gym.Space[object]] | None:
    """The spaces that a Dict or a Tuple consists of, by key or number; None of any other space, which is a leaf."""
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    return {str(i): part for i, part in enumerate(space.spaces)} if isinstance(space, gym.spaces.Tuple) else None


def as_space(space: gym.Space[object], flat: Mapping[str, object], name: str) -> Any:
    """Values under the dotted names of `leaf_spaces`, nested as the space nests them: dicts and tuples."""
    if isinstance(space, gym.spaces.Dict):
        return {key: as_space(part, flat, f"{name}.{key}") for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple([as_space(part, flat, f"{name}.{i}") for i, part in enumerate(space.spaces)])
    return flat[name]


_LEAVES = frozenset((np.ndarray, int, float, bool))


def leaves(value: Any, name: str, loose: bool = False) -> Iterator[tuple[str, Any]]:
    """The leaves of a nested value under dotted names, in the order of its keys.

    A Batch counts as a mapping of its fields, a tuple as keys '0', '1', … What is empty (a mapping, a tuple, a reserved field of
    a Batch) has no leaf, so `nest` does not bring it back.

    Args:
        value: Mappings, Batches and tuples, nested; anything else is a leaf.
        name: What the names begin with; '' for nothing.
        loose: A tuple is a leaf, and keys may be dotted names themselves.

    Raises:
        ValueError: a key is empty or has a dot in it, which `nest` would take for another level.
    """
    if type(value) in _LEAVES:  # before the others, which cost more than all the rest here
        yield name, value
        return
    if not loose and isinstance(value, tuple) and not hasattr(value, "dtype"):
        value = {str(i): part for i, part in enumerate(value)}
    if isinstance(value, Mapping) or hasattr(value, "leaves"):  # a Batch, whose module imports this one
        for key, inner in value.items():
            part = str(key)
            if not loose and ("." in part or not part):
                raise _unnamable(part, name)
            path = f"{name}.{part}" if name else part
            if type(inner) in _LEAVES:  # spares a generator for each
                yield path, inner
            else:
                yield from leaves(inner, path, loose)
    else:
        yield name, value


def nest(flat: Mapping[str, object]) -> dict[str, Any]:
    """The inverse of `leaves`: dotted names back to nested dicts.

    Raises:
        ValueError: a name is both a leaf and the beginning of another.
    """
    out: dict[str, object] = {}
    for name, value in flat.items():
        node: object = out
        *path, last = name.split(".") if "." in name else (name,)
        for part in path:
            node = node.setdefault(part, {}) if type(node) is dict else node
        if type(node) is not dict or last in node:
            group, member = next((a, b) for a in flat for b in flat if b.startswith(f"{a}.") and name in (a, b))
            raise ValueError(f"{group!r} is both a value and the group of {member!r}; rename one of them")
        node[last] = value
    return out


def _unnamable(key: str, name: str) -> ValueError:
    where = f" of {name!r}" if name else ""
    return ValueError(f"key {key!r}{where}: expected a name without dots, since dots separate the levels of flat names; rename "
                      f"it, e.g. {key.replace('.', '_') or 'value'!r}")
