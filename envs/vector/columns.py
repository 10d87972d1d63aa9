"""Spaces as flat columns of n rows, and the memory that environments and their caller share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from parl_like.environment.value_check import BadOutput
from parl_like.process.shared_memory import Column, map_file, size_of, views
from parl_like.values.spec import Array, parts_of


class Leaf(NamedTuple):
    """One array of a nested space. `path` is its name in messages, '' where the space itself is the leaf."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return self.path or "the observation"


def _leaves(space: gym.Space[Any], path: str = "") -> Iterator[Leaf]:
    parts = parts_of(space)
    if parts is not None:
        for name, part in parts.items():
            yield from _leaves(part, f"{path}.{name}" if path else name)
        return
    which = f"make_vector_env: the space {path or 'itself'} is {space}"
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"{which}; expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them, which have a "
                        "fixed size; wrap the environment, or give a gymnasium SyncVectorEnv instead")
    shape = tuple(space.shape or ())
    if 0 in shape:
        raise ValueError(f"{which}, which holds no number; leave it out, or give it a size")
    yield Leaf(path, shape, np.dtype(space.dtype))


def _nest(space: gym.Space[Any], values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _nest(sub, values) for name, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(sub, values) for sub in space.spaces)
    return next(values)


def _split(space: gym.Space[Any], value: Any, path: str = "") -> Iterator[Any]:
    parts = parts_of(space)
    if parts is None:
        yield value
    elif isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(parts):
            got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise BadOutput(f"{path or 'the value'}: expected a mapping with {sorted(parts)}, got {got}")
        for name, part in parts.items():
            yield from _split(part, value[name], f"{path}.{name}" if path else name)
    else:
        if not isinstance(value, (tuple, list)) or len(value) != len(parts):
            got = f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
            raise BadOutput(f"{path or 'the value'}: expected a tuple of {len(parts)}, got {got}")
        for (name, part), inner in zip(parts.items(), value, strict=True):
            yield from _split(part, inner, f"{path}.{name}" if path else name)


class ColumnLayout:
    """A space as flat columns: leaf j of n values is an array [n, *leaves[j].shape]."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self.leaves = list(_leaves(space))
        self.flat = parts_of(space) is None

    def split(self, value: Any) -> list[Any]:
        """The leaves of a value of the space. Raises BadOutput: its structure is another."""
        return [value] if self.flat else list(_split(self.space, value))

    def nest(self, values: list[Any]) -> Any:
        """The inverse of `split`."""
        return values[0] if self.flat else _nest(self.space, iter(values))

    def row(self, columns: list[Array], i: int) -> Any:
        """Value i as a copy: the environment may keep it, and the column is soon overwritten."""
        return columns[0][i].copy() if self.flat else self.nest([column[i].copy() for column in columns])

    def checked(self, value: Any) -> list[Array]:
        """The leaves of one value, with the right shapes and dtypes.

        Raises:
            BadOutput: A structure, shape or dtype that is not the space's.
        """
        out = []
        for leaf, part in zip(self.leaves, self.split(value), strict=True):
            try:
                array = part if part.__class__ is np.ndarray else np.asarray(part)
            except ValueError as error:
                raise BadOutput(f"{leaf} is ragged ({error}); expected {leaf.shape} {leaf.dtype}") from None
            if array.shape != leaf.shape:
                raise BadOutput(f"{leaf} has shape {array.shape}; expected {leaf.shape} {leaf.dtype}")
            if array.dtype != leaf.dtype and not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                own = isinstance(part, (np.ndarray, np.generic))  # else a Python number, which has no dtype, only a value
                integers = array.dtype.kind in "bui" and leaf.dtype.kind in "ui"
                if own or not integers or (array.astype(leaf.dtype) != array).any():
                    raise BadOutput(f"{leaf} is {array.dtype}; expected {leaf.shape} {leaf.dtype}")
            out.append(array)
        return out

    def nan(self, arrays: list[Array]) -> str | None:
        """Say in words where there is a NaN; None: nowhere."""
        for leaf, array in zip(self.leaves, arrays, strict=True):
            if leaf.dtype.kind == "f" and np.isnan(array).any():
                where = tuple(int(x) for x in np.argwhere(np.isnan(array))[0])
                return f"NaN in {leaf} at {where}"
        return None


class Status:
    """The state of groups of environments, written by them and read by who waits for them.

    Args:
        groups: How many.
        memory: File descriptor of the file whose beginning this is; −1: it lies in this process.

    Attributes:
        deadline: [groups] float64, `time.monotonic` when the group is overdue.
        at: [groups] int64, the environment i that it has called; ~i: that it is making.
    """

    def __init__(self, groups: int, memory: int = -1) -> None:
        shapes = _status(groups)
        self.deadline, self.at = views(_block(shapes, memory), shapes)


class Columns:
    """All arrays that environments and their caller share, n rows each, in one block of memory.

    Args:
        obs, act: Of observations and actions.
        n, groups: Environments, and groups of them.
        memory: File descriptor of the file that they lie in, behind the `Status`; −1: they lie in this process.

    Attributes:
        obs, final: Leaves of observations; `final` has those that ended an episode, where a step also reset.
        act: Leaves of actions.
        rew: [n] float64. terminated, truncated: [n] bool.
    """

    def __init__(self, obs: ColumnLayout, act: ColumnLayout, n: int, groups: int, memory: int = -1) -> None:
        shapes = [*_status(groups), ((n,), np.float64), ((n,), np.bool_), ((n,), np.bool_)]
        shapes += [((n, *leaf.shape), leaf.dtype) for leaf in (*obs.leaves, *obs.leaves, *act.leaves)]
        _, _, self.rew, self.terminated, self.truncated, *arrays = views(_block(shapes, memory), shapes)
        k = len(obs.leaves)
        self.obs, self.final, self.act = arrays[:k], arrays[k:2 * k], arrays[2 * k:]


def _status(groups: int) -> list[Column]:
    return [((groups,), np.float64), ((groups,), np.int64)]


def _block(shapes: list[Column], memory: int) -> Any:
    return np.zeros(size_of(shapes), np.uint8) if memory < 0 else map_file(memory, size_of(shapes))
