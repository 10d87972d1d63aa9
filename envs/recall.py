"""A task of pure memory: what was shown first is asked for at the end."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values.limits import check_array


class Recall(gym.Env[Any, Any]):
    """The first observation shows one of several cues, `length` blank ones follow, and the last asks which it was: reward 1 for
    the action with its number. No other action counts, so without memory nothing better than 1 / `cues` is possible.

    Observation [cues + 1] float32: the cue, one-hot, and whether it is asked for. An episode has `length` + 2 steps.

    Args:
        length: Blank observations in between.
        cues: How many cues, and actions, there are.

    Raises:
        ValueError: an argument does not fit, or an action is none.
    """

    def __init__(self, length: int = 20, cues: int = 2) -> None:
        if length < 0 or cues < 2:
            raise ValueError(f"Recall: length is {length} and cues {cues}; expected at least 0 and 2")
        check_array(f"Recall: cues is {cues}", cues + 1)
        self.length, self.cues, self.cue, self.t = length, cues, 0, -1
        self.observation_space = gym.spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = gym.spaces.Discrete(cues)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(self.cues)), 0
        return self.observe(), {}

    def observe(self) -> Any:
        """Return the observation, [cues + 1] float32, newly allocated."""
        out = np.zeros(self.cues + 1, np.float32)
        if self.t == 0:
            out[self.cue] = 1.0
        out[-1] = self.t == self.length + 1
        return out

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action.

        Raises:
            ResetNeeded: no episode is open.
            ValueError: action is no number of a cue.
        """
        if self.t < 0 or self.t > self.length + 1:
            raise gym.error.ResetNeeded("Recall: reset before the first step, and after the last")
        action = operator.index(action)
        if not 0 <= action < self.cues:
            raise ValueError(f"Recall: action is {action}; expected 0 … {self.cues - 1}")
        asked, self.t = self.t == self.length + 1, self.t + 1
        return self.observe(), float(asked and action == self.cue), asked, False, {}

    def clone_state(self) -> dict[str, Any]:
        """Cue, step and generator."""
        return {"cue": self.cue, "t": self.t, "rng": rng_state(self.np_random)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state."""
        self.cue, self.t = state["cue"], state["t"]
        set_rng_state(self.np_random, state["rng"])
