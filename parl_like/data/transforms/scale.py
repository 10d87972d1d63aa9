"""Transforms that treat each number alone: scale, clip, cast; of observations and of rewards."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from parl_like.data.transforms.chain import Fields, Flat, Source, Transform, leaf_of, map_space, next_name, obs_names
from parl_like.values.spec import Array


class ObservationTransform(Transform):
    """Treats each row of the named fields alone, in obs and obs_next. Subclasses give `apply` and `box`.

    Args:
        fields: Leaves of the observation, by dotted name.
    """

    def __init__(self, fields: Fields = ("obs",)) -> None:
        self.fields = obs_names(self, fields)

    def apply(self, name: str, x: Array) -> Array:
        """Return the field `name` of N rows, [N, …], transformed. Subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__}: write apply(self, name, x), the field transformed, [N, …]")

    def box(self, name: str, space: gym.spaces.Box) -> gym.spaces.Box:
        """Return the space of the field `name` behind the transform, of the shape and dtype of what `apply` returns."""
        raise NotImplementedError(f"{type(self).__name__}: write box(self, name, space), the Box of what apply returns")

    def space(self, space: gym.Space[object]) -> gym.Space[object]:
        return map_space(self, space, self._boxed)

    def _boxed(self, name: str, space: gym.Space[object]) -> gym.Space[object]:
        if not isinstance(space, gym.spaces.Box):
            raise self.error(name, "a Box", space)
        return self.box(name, space)

    def observe(self, obs: Flat) -> Flat:
        return obs | {name: self.apply(name, leaf_of(self, obs, name)) for name in self.fields}

    def replay(self, rows: Flat, source: Source) -> Flat:
        keys = {key: name for name in self.fields for key in (name, next_name(name)) if key in rows}
        return rows | {key: self.apply(name, rows[key]) for key, name in keys.items()}


class ImageScale(ObservationTransform):
    """uint8 0 … 255 to float32 `low` … 1, where `low` is 0 or −1."""

    def __init__(self, low: float = 0.0, fields: Fields = ("obs",)) -> None:
        super().__init__(fields)
        self.low = low
        if low not in (0, -1):
            raise self.error("low", "0 or -1", low)

    def apply(self, name: str, x: Array) -> Array:
        if x.dtype != np.uint8:
            raise self.error(name, "uint8", x.dtype)
        return np.divide(x, np.float32(255 / (1 - self.low)), dtype=np.float32) + np.float32(self.low)

    def box(self, name: str, space: gym.spaces.Box) -> gym.spaces.Box:
        if space.dtype != np.uint8:
            raise self.error(name, "uint8", space)
        return gym.spaces.Box(self.low, 1.0, space.shape, np.float32)


class _Monotone(ObservationTransform):
    """Its results lie between those of the bounds."""

    def box(self, name: str, space: gym.spaces.Box) -> gym.spaces.Box:
        low, high = self.apply(name, space.low), self.apply(name, space.high)
        return gym.spaces.Box(low, high, dtype=low.dtype.type)


class ObservationClip(_Monotone):
    """Values cut to [low, high]; the dtype stays."""

    def __init__(self, low: float, high: float, fields: Fields = ("obs",)) -> None:
        super().__init__(fields)
        self.low, self.high = low, high
        check_bounds(self, low, high)

    def apply(self, name: str, x: Array) -> Array:
        return np.clip(x, self.low, self.high).astype(x.dtype, copy=False)


class ObservationCast(_Monotone):
    """Another dtype."""

    def __init__(self, dtype: npt.DTypeLike = np.float32, fields: Fields = ("obs",)) -> None:
        super().__init__(fields)
        self.dtype = np.dtype(dtype)

    def apply(self, name: str, x: Array) -> Array:
        return x.astype(self.dtype, copy=False)


class RewardTransform(Transform):
    """Treats each reward alone. Subclasses give `apply`."""

    def apply(self, rew: Array) -> Array:
        """Return rewards of any shape, transformed, in the same shape. Subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__}: write apply(self, rew), rewards of the same shape")

    def reward(self, rew: Array) -> Array:
        return self.apply(rew)

    def replay(self, rows: Flat, source: Source) -> Flat:
        if "rew" not in rows:
            return rows
        rew = self.apply(rows["rew"])
        return rows | {"rew": np.where(counted(rows), rew, np.zeros((), rew.dtype))}


class RewardClipping(RewardTransform):
    """Rewards cut to [low, high]."""

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = low, high
        check_bounds(self, low, high)

    def apply(self, rew: Array) -> Array:
        return np.clip(rew, self.low, self.high)


class RewardScaling(RewardTransform):
    """Rewards times `scale`."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def apply(self, rew: Array) -> Array:
        return rew * self.scale


class RewardShifting(RewardTransform):
    """Rewards plus `shift`."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def apply(self, rew: Array) -> Array:
        return rew + self.shift


class FunctionalReward(RewardTransform):
    """Rewards through a function of arrays of any shape. On use, ValueError where it changes the shape or gives NaN."""

    def __init__(self, function: Callable[[Array], npt.ArrayLike]) -> None:
        self.function = function

    def apply(self, rew: Array) -> Array:
        out = np.asarray(self.function(rew))
        check_reward(self, out, rew.shape)
        return out


FunctionalRewardTransformer = FunctionalReward


def check_bounds(transform: Transform, low: float, high: float) -> None:
    """Raise ValueError unless `low` is below `high`."""
    if not low < high:
        raise transform.error("low", f"below high, {high}", low)


def check_reward(transform: Transform, rew: Array, shape: tuple[int, ...]) -> None:
    """Refuse a reward of another shape, or with NaN, in the name of the transform; raises its error, a ValueError."""
    if rew.shape != shape or rew.dtype.kind not in "biuf":
        raise transform.error("rew", f"{shape} numbers", f"{rew.shape} {rew.dtype}")
    if np.isnan(rew).any():
        raise transform.error("rew", "numbers", f"NaN at {tuple(int(i) for i in np.argwhere(np.isnan(rew))[0])}")


def counted(rows: Flat) -> Array:
    """Return which rewards count, bool [N, n, 1 …] that broadcasts against rew: all, but of rows that look n steps ahead the
    first `valid`."""
    rew = rows["rew"]
    if "valid" not in rows:
        return np.ones((1,) * rew.ndim, bool)
    real = np.arange(rew.shape[1]) < rows["valid"][:, None]
    return real.reshape(real.shape + (1,) * (rew.ndim - 2))
