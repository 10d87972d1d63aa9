"""MiniGrid's DoorKey room with a short vector of what is where as observation (extra `grid`)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class DoorKey(gym.Env[Any, Any]):
    """MiniGrid's DoorKey with a vector of what is where as observation.

    Observation [17] float32: heading (4, one-hot), what lies ahead (5, one-hot: free, wall, key, door, exit), key carried, door open, and for
    key, door and exit the way there, (forward, right) in the agent's own frame, divided by the size. Actions as in MiniGrid without
    `drop` and `done`: left, right, forward, pick up, toggle.

    Args:
        size: Of the square room, walls included; at least 5.
        max_steps: Steps after which an episode is truncated.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    AHEAD = {"wall": 1, "key": 2, "door": 3, "goal": 4}
    ACTIONS = (0, 1, 2, 3, 5)

    def __init__(self, size: int = 8, max_steps: int = 300) -> None:
        try:
            from minigrid.envs.doorkey import DoorKeyEnv
        except ImportError:
            raise ImportError("DoorKey needs MiniGrid; install the extra: pip install 'parl_like[grid]'") from None
        self.grid_env: Any = DoorKeyEnv(size=size, max_steps=max_steps, render_mode="rgb_array")
        self.size = size
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (17,), np.float32)
        self.action_space = gym.spaces.Discrete(len(self.ACTIONS))
        self.render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        _, info = self.grid_env.reset(seed=seed)
        cells = {cell.type: (i % self.size, i // self.size) for i, cell in enumerate(self.grid_env.grid.grid) if cell is not None}
        self.places = [np.array(cells[kind]) for kind in ("key", "door", "goal")]
        self.door: Any = self.grid_env.grid.get(*cells["door"])
        return self.observe(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.grid_env.step(self.ACTIONS[action])
        return self.observe(), float(reward), terminated, truncated, info

    def observe(self) -> Any:
        env = self.grid_env
        out = np.zeros(17, np.float32)
        out[env.agent_dir] = 1.0
        ahead = env.grid.get(*env.front_pos)
        out[4 + (0 if ahead is None else self.AHEAD[ahead.type])] = 1.0
        out[9], out[10] = env.carrying is not None, self.door.is_open
        for i, place in enumerate(self.places):
            way = place - env.agent_pos
            out[11 + 2 * i], out[12 + 2 * i] = way @ env.dir_vec / self.size, way @ env.right_vec / self.size
        return out

    def render(self) -> Any:
        return self.grid_env.render()

    def close(self) -> None:
        self.grid_env.close()
