"""Observations with numbers that mean nothing: what a network has to learn to ignore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs


class NoisyObservation(gym.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Appends `n` fresh standard normal numbers, from the environment's own generator, to every observation vector."""

    def __init__(self, env: gym.Env[Any, Any], n: int) -> None:
        RecordConstructorArgs.__init__(self, n=n)
        super().__init__(env)
        if n < 0 or len(env.observation_space.shape or ()) != 1:
            raise ValueError(f"NoisyObservation: n is {n}, observations {env.observation_space}; expected n ≥ 0 and a vector")
        self.n = n
        size = env.observation_space.shape[0]  # type: ignore[index]
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size + n,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.concatenate([observation, self.unwrapped.np_random.standard_normal(self.n)]).astype(np.float32)

    def own_state(self) -> dict[str, Any]:
        """The generator: environments whose own chance comes from elsewhere do not have it in their state."""
        return {"rng": self.unwrapped.np_random.bit_generator.state}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        self.unwrapped.np_random.bit_generator.state = state["rng"]
