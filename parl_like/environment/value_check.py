"""Acceptance: what an environment may return, and what is done with values that are not finite or not of its space."""

from __future__ import annotations

import inspect
import math
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.environment.factory import reward_shape
from parl_like.values.action_codec import Unclipped
from parl_like.values.spec import Spec, SpecError, leaves, nest, specs_of


def contains(space: gym.Space[object], act: Any) -> bool:
    """As `space.contains`, but a number is an array of shape (), and only shape and bounds of arrays count."""
    if isinstance(space, gym.spaces.Box):
        value = np.asarray(act)
        return value.shape == space.shape and (isinstance(space, Unclipped) or bool(
            (value >= space.low).all() and (value <= space.high).all()))
    if isinstance(space, gym.spaces.Dict):
        return act.keys() == space.spaces.keys() and all(contains(part, act[name]) for name, part in space.spaces.items())
    if isinstance(space, gym.spaces.Tuple):
        return isinstance(act, (tuple, list)) and len(act) == len(space.spaces) and all(map(contains, space.spaces, act))
    return bool(space.contains(act))


def described(value: object) -> str:
    """A value as messages show it: arrays by their shape, text quoted, anything long cut short."""
    if isinstance(value, np.ndarray) and value.size > 1:
        return f"an array of shape {value.shape}"
    if isinstance(value, (tuple, list)):
        return f"{len(value)} values, a {type(value).__name__} ({', '.join(type(one).__name__ for one in value[:5])})"
    return f"the text {value!r:.60}" if isinstance(value, str) else "None" if value is None else f"{value!r:.60}"


class Acceptance:
    """The rule for an environment's observations and rewards: what they must be like, and what can be mended.

    Args:
        env: Its `observation_space` and, where rewards are vectors, `reward_space` are what is declared. What has no fixed shape
            is not looked at.
        mend: Numbers that are not finite become 0, and those outside the bounds the nearest legal ones. Else they are refused.
    """

    def __init__(self, env: Any, mend: bool) -> None:
        self.mend = mend
        try:
            self.specs = specs_of(env.observation_space, "obs")
        except (AttributeError, TypeError):
            self.specs = {}
        self.reward = Spec("rew", reward_shape(env), np.dtype(np.float64))

    def observation(self, obs: object) -> Any:
        """`obs` itself where it is as declared, else mended.

        Raises:
            SpecError: what it is not.
        """
        if not self.specs:
            return obs
        flat = dict(leaves(obs, "obs"))
        if flat.keys() != self.specs.keys():
            raise SpecError(f"field 'obs': expected {', '.join(self.specs)}, got {', '.join(flat) or 'nothing'}; give the keys "
                            "of the space")
        mended = {name: self.value(spec, flat[name]) for name, spec in self.specs.items()}
        return obs if all(mended[name] is flat[name] for name in flat) else nest(mended)["obs"]

    def value(self, spec: Spec, value: object) -> Any:
        """The same for one array."""
        if type(value) is float and math.isfinite(value) and spec is self.reward and not spec.shape:
            return value  # what nearly all rewards are
        array = value
        try:
            numbers = np.asarray(value)
        except (TypeError, ValueError):
            numbers = spec.convert(value)  # which says what is wrong with it
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            if not self.mend:
                raise spec.error(f"{value!r:.60}", "give finite numbers")
            array = np.nan_to_num(numbers, nan=0, posinf=0, neginf=0)
        row = spec.convert(array)
        if spec.low is not None and not ((row >= spec.low) & (row <= spec.high)).all():
            if not self.mend:
                raise spec.error(f"{value!r:.60}", "stay within the bounds of the space")
            array = np.clip(row, spec.low, spec.high).astype(row.dtype)
        return array


def takes_option(function: Any, name: str) -> bool:
    """Return whether the function can be called with this keyword, as far as its signature is known."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
