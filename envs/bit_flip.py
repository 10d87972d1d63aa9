"""A task with goals, all of which are easy to name and hard to hit by chance."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values.limits import check_array
from parl_like.values.spec import Array


class BitFlip(gym.Env[Any, Any]):
    """An action flips one of `n` bits; the reward is 0 where they are those of the goal, else −1 (Andrychowicz et al. 2017, 3.1).
    Bits and goal are drawn for each episode, which is truncated after `n` steps and never terminates.

    Observations are those of a `GoalEnv` of gymnasium-robotics: `observation`, `achieved_goal` (the same) and `desired_goal`, [n]
    float32 each. Info `is_success`: whether the goal was reached in this episode.

    Args:
        n: Bits, and actions.

    Raises:
        ValueError: an argument does not fit, or an action is none.
    """

    def __init__(self, n: int = 15) -> None:
        if n < 1:
            raise ValueError(f"BitFlip: n is {n}; expected at least 1")
        check_array(f"BitFlip: n is {n}", 2, n, dtype=np.int64)
        self.n, self.t, self.reached = n, n, False
        self.bits = self.goal = np.zeros(n, np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = gym.spaces.Dict({name: gym.spaces.Box(0.0, 1.0, (n,), np.float32) for name in names})
        self.action_space = gym.spaces.Discrete(n)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(2, size=(2, self.n)).astype(np.float32)
        self.t, self.reached = 0, False
        return self.observe(), {}

    def observe(self) -> Any:
        """Return the observation, a dict of three arrays [n] float32 of 0 and 1, each newly allocated."""
        return {"observation": self.bits.copy(), "achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any = None) -> Any:
        """Return the reward of goals [n], or of rows of them [N, n], as `parl_like.data.transforms.Hindsight` gives it by
        default."""
        return np.where((achieved_goal == desired_goal).all(-1), 0.0, -1.0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Flips a bit.

        Raises:
            ResetNeeded: no episode is open.
            ValueError: action is no number of a bit.
        """
        if self.t == self.n:
            raise gym.error.ResetNeeded("BitFlip: reset before the first step, and after the last")
        action = operator.index(action)
        if not 0 <= action < self.n:
            raise ValueError(f"BitFlip: action is {action}; expected 0 … {self.n - 1}")
        self.bits[action] = 1.0 - self.bits[action]
        rew = float(self.compute_reward(self.bits, self.goal))
        self.t, self.reached = self.t + 1, self.reached or rew == 0.0
        return self.observe(), rew, False, self.t == self.n, {"is_success": self.reached}

    def clone_state(self) -> dict[str, Any]:
        """Bits, goal, step, whether it was reached, and generator."""
        return {"bits": self.bits.copy(), "goal": self.goal.copy(), "t": self.t, "reached": self.reached,
                "rng": rng_state(self.np_random)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state."""
        self.bits, self.goal = state["bits"].copy(), state["goal"].copy()
        self.t, self.reached = state["t"], state["reached"]
        set_rng_state(self.np_random, state["rng"])
