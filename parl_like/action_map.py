"""From a policy's actions to the environment's and back, by the action space."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from parl_like.spec import Array, Spec


class ActionMap(Protocol):
    """From a policy's actions [N, ...] to the environment's."""

    def __call__(self, act: Array) -> Array: ...

    def inverse(self, act: Array) -> Array:
        """From the environment's actions to the policy's; up to clipping."""


def action_map(space: Any) -> ActionMap | None:
    """What an environment's action space makes of a policy's actions; None: they are the same.

    A Box with finite bounds: clip to [−1, 1], then scale to the bounds. With some infinite bounds: clip to those there are.
    Discrete and MultiDiscrete that do not start at 0: shift. Several choices: into the shape and dtype of the space.
    """
    if isinstance(space, gym.spaces.Discrete):
        return _Choices(space, int(space.start)) if space.start else None
    if isinstance(space, gym.spaces.MultiDiscrete):
        plain = len(space.shape) == 1 and not space.start.any() and space.dtype == np.int64
        return None if plain else _Choices(space, space.start)
    if isinstance(space, gym.spaces.MultiBinary):
        return _Choices(space, 0)
    if isinstance(space, gym.spaces.Box):
        if np.isfinite(space.low).all() and np.isfinite(space.high).all():
            return _Scale(space)
        if np.isfinite(space.low).any() or np.isfinite(space.high).any() or space.dtype.kind != "f":
            return _Clip(space)
    return None


def stored_spec(space: Any, spec: Spec) -> Spec:
    """What is stored of an action: the policy's. Continuous ones are real numbers also where the environment rounds them, and
    several choices stand side by side, whatever their shape in the space. Without bounds, which are the environment's."""
    if isinstance(space, gym.spaces.Box):
        return Spec(spec.name, spec.shape, spec.dtype if spec.dtype.kind == "f" else np.dtype(np.float32))
    if isinstance(space, (gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        return Spec(spec.name, (int(np.prod(spec.shape)),), np.dtype(np.int64))
    return Spec(spec.name, spec.shape, spec.dtype)


class _Choices:
    """Choices from 0, side by side ↔ the space's own numbers and shape."""

    def __init__(self, space: Any, start: Any) -> None:
        self.shape, self.dtype, self.start = space.shape, space.dtype, np.asarray(start)

    def __call__(self, act: Array) -> Array:
        return np.asarray(act.reshape(len(act), *self.shape) + self.start, self.dtype)

    def inverse(self, act: Array) -> Array:
        leading = act.shape[: act.ndim - len(self.shape)]
        size = (int(np.prod(self.shape)),) if self.shape else ()
        return np.asarray((act - self.start).reshape(*leading, *size), np.int64)


class _Clip:
    def __init__(self, space: Any) -> None:
        self.low, self.high, self.dtype = space.low, space.high, space.dtype
        self.raw = np.dtype(self.dtype if self.dtype.kind == "f" else np.float32)

    def __call__(self, act: Array) -> Array:
        return self._fit(act)

    def _fit(self, act: Array) -> Array:
        """Rounded to the space's dtype and inside its bounds, which rounding may have passed."""
        return np.clip(np.rint(act) if self.dtype.kind != "f" else act, self.low, self.high).astype(self.dtype)

    def inverse(self, act: Array) -> Array:
        return np.asarray(act, self.raw)


class _Scale(_Clip):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        # In the raw dtype: the width of an integer space may not fit its own (255 − 0 in int8 terms), nor that of a float32 one.
        low, high = (np.asarray(bound, np.float64) / 2 for bound in (space.low, space.high))
        self.middle, self.half = (low + high).astype(self.raw), (high - low).astype(self.raw)

    def __call__(self, act: Array) -> Array:
        return self._fit(self.middle + act * self.half)

    def inverse(self, act: Array) -> Array:
        return np.asarray((act - self.middle) / np.where(self.half == 0, 1, self.half), self.raw)
