"""Deep exploration in a small grid: only one long plan pays, and each of its steps costs."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.values.limits import check_array


class DeepSea(gym.Env[Any, Any]):
    """A diver starts at the left of a square of `size` rows and sinks one row with each step, to the right or to the left. Right
    costs 0.01 / `size`; right in the last corner, which only steps to the right lead to, pays 1. So the best return is 0.99,
    always left earns 0, and random actions find the corner in one of 2^`size` episodes (Osband et al. 2019, bsuite).

    Observation [size²] float32: the cell, one-hot; nothing after the last row. Which of the two actions means right is drawn for
    each cell, once.

    Args:
        size: Rows, which is the length of an episode; at most some 2,900.
        mapping: Seed of what the actions mean.

    Raises:
        ValueError: an argument does not fit, or an action is none.
    """

    def __init__(self, size: int = 10, mapping: int = 0) -> None:
        if size < 1:
            raise ValueError(f"DeepSea: size is {size}; expected at least 1")
        check_array(f"DeepSea: size is {size}", size, size, dtype=np.int64)
        self.size, self.row, self.column = size, size, 0
        self.right = np.random.default_rng(mapping).integers(2, size=(size, size))
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row = self.column = 0
        return self.observe(), {}

    def observe(self) -> Any:
        """Return the observation, [size²] float32, newly allocated: the cell, one-hot, or zeros after the last row."""
        out = np.zeros((self.size, self.size), np.float32)
        if self.row < self.size:
            out[self.row, self.column] = 1.0
        return out.ravel()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Goes one row down, to the left or to the right.

        Raises:
            ResetNeeded: no episode is open.
            ValueError: action is neither 0 nor 1.
        """
        if self.row == self.size:
            raise gym.error.ResetNeeded("DeepSea: reset before the first step, and after the last")
        action = operator.index(action)
        if action not in (0, 1):
            raise ValueError(f"DeepSea: action is {action}; expected 0 or 1")
        right, last, rew = action == self.right[self.row, self.column], self.size - 1, 0.0
        if right:
            rew = float(self.column == last) - 0.01 / self.size
        self.column = min(max(self.column + (1 if right else -1), 0), last)
        self.row += 1
        return self.observe(), rew, self.row == self.size, False, {}

    def clone_state(self) -> dict[str, Any]:
        """Row and column."""
        return {"row": self.row, "column": self.column}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state."""
        self.row, self.column = state["row"], state["column"]
