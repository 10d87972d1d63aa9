"""Acceptance: what an environment's observations and rewards must be like, and what becomes of those that are not."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.spec import Spec, SpecError, leaves, nest, specs_of


class Acceptance:
    """What an environment's observations and rewards must be like, and what can be mended.

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
        rewards = getattr(getattr(env, "unwrapped", env), "reward_space", None)
        self.reward = Spec("rew", rewards.shape if isinstance(rewards, gym.spaces.Box) else (), np.dtype(np.float64))

    def observation(self, obs: Any) -> Any:
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

    def value(self, spec: Spec, value: Any) -> Any:
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
            array = np.where(np.isfinite(numbers), numbers, 0).astype(numbers.dtype)
        row = spec.convert(array)
        if spec.low is not None and not ((row >= spec.low) & (row <= spec.high)).all():
            if not self.mend:
                raise spec.error(f"{value!r:.60}", "stay within the bounds of the space")
            array = np.clip(row, spec.low, spec.high).astype(row.dtype)
        return array
