"""A point in a square, for skills that need no reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np


class Plane(gym.Env[Any, Any]):
    """A point moves by a tenth of its action, and stays within the square. It starts in the middle, and nothing is paid.

    Observation [2] float32 in [−1, 1]: the place. Action [2] in [−1, 1].
    """

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.place: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = np.zeros(2, np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Moves the point.

        Raises:
            ResetNeeded: there was no reset.
        """
        if self.place is None:
            raise gym.error.ResetNeeded("Plane: reset before the first step")
        self.place = np.clip(self.place + 0.1 * np.clip(np.asarray(action, np.float32), -1.0, 1.0), -1.0, 1.0)
        return self.place.copy(), 0.0, False, False, {}

    def clone_state(self) -> dict[str, Any]:
        """The place."""
        return {"place": self.place.copy()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state."""
        self.place = state["place"].copy()
