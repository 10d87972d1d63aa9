"""MiniGrid's DoorKey room with a short vector of what is where as observation (extra `grid`)."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values.limits import check_array


class DoorKey(gym.Env[Any, Any]):
    """MiniGrid's DoorKey with a vector of what is where as observation.

    Observation [17] float32: heading (4, one-hot), what lies ahead (5, one-hot: free, wall, key, door, exit), key carried, door
    open, and for key, door and exit the way there, (forward, right) in the agent's own frame, divided by the size. Actions as in
    MiniGrid without `drop` and `done`: left, right, forward, pick up, toggle.

    Args:
        size: Of the square room, walls included; at least 5.
        max_steps: Steps after which an episode is truncated.

    Raises:
        ImportError: MiniGrid is not installed. ValueError: an argument does not fit.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    AHEAD = {"wall": 1, "key": 2, "door": 3, "goal": 4}
    ACTIONS = (0, 1, 2, 3, 5)

    def __init__(self, size: int = 8, max_steps: int = 300) -> None:
        try:
            from minigrid.envs.doorkey import DoorKeyEnv
        except ImportError:
            raise ImportError("DoorKey needs MiniGrid; install the extra: pip install 'parl_like[grid]'") from None
        if size < 5 or max_steps < 1:
            raise ValueError(f"DoorKey: size is {size}, max_steps {max_steps}; expected a size of at least 5 and a step")
        check_array(f"DoorKey: size is {size}", size, size, dtype=object)
        self.grid_env: Any = DoorKeyEnv(size=size, max_steps=max_steps, render_mode="rgb_array")
        self.size = size
        self.places: Any = None
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (17,), np.float32)
        self.action_space = gym.spaces.Discrete(len(self.ACTIONS))
        self.render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        _, info = self.grid_env.reset(seed=seed)
        cells = {cell.type: (i % self.size, i // self.size) for i, cell in enumerate(self.grid_env.grid.grid) if cell is not None}
        self.places = np.array([cells[kind] for kind in ("key", "door", "goal")])  # never written to; the key's stays
        return self.observe(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action, see the class.

        Raises:
            ResetNeeded: there was no reset.
            ValueError: action is none of `ACTIONS`.
        """
        if self.places is None:
            raise gym.error.ResetNeeded("DoorKey: reset before the first step")
        action = operator.index(action)
        if not 0 <= action < len(self.ACTIONS):
            raise ValueError(f"DoorKey: action is {action}; expected 0 … {len(self.ACTIONS) - 1}")
        _, reward, terminated, truncated, info = self.grid_env.step(self.ACTIONS[action])
        return self.observe(), float(reward), terminated, truncated, info

    def observe(self) -> Any:
        """Return the observation, [17] float32 within [−1, 1], newly allocated."""
        env = self.grid_env
        out = np.zeros(17, np.float32)
        out[env.agent_dir] = 1.0
        ahead = env.grid.get(*env.front_pos)
        out[4 + (0 if ahead is None else self.AHEAD[ahead.type])] = 1.0
        out[9], out[10] = env.carrying is not None, env.grid.get(*self.places[1]).is_open
        for i, place in enumerate(self.places):
            way = place - env.agent_pos
            out[11 + 2 * i], out[12 + 2 * i] = way @ env.dir_vec / self.size, way @ env.right_vec / self.size
        return out

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on, in arrays and plain values: room, agent, what it carries, steps, both
        generators.

        Raises:
            gymnasium.error.ResetNeeded: nothing has begun yet.
        """
        if self.places is None:
            raise gym.error.ResetNeeded("DoorKey: reset before clone_state")
        env = self.grid_env
        return {
            "grid": env.grid.encode(), "places": self.places, "pos": [int(x) for x in env.agent_pos], "dir": int(env.agent_dir),
            "carrying": [0, 0, 0] if env.carrying is None else [int(x) for x in env.carrying.encode()], "steps": env.step_count,
            "rng": rng_state(self.np_random), "grid_rng": rng_state(env.np_random),
        }  # fmt: skip

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state, also one of another room of the same size.

        Raises:
            ValueError: the room has another size.
        """
        from minigrid.core.grid import Grid
        from minigrid.core.world_object import WorldObj

        if state["grid"].shape != (self.size, self.size, 3):
            raise ValueError(f"DoorKey: the state is of a room {state['grid'].shape[:2]}; expected {(self.size, self.size)}")
        env = self.grid_env
        set_rng_state(self.np_random, state["rng"])
        set_rng_state(env.np_random, state["grid_rng"])
        env.grid, self.places = Grid.decode(state["grid"])[0], state["places"]
        env.agent_pos, env.agent_dir, env.step_count = tuple(state["pos"]), state["dir"], state["steps"]
        env.carrying = WorldObj.decode(*state["carrying"]) if any(state["carrying"]) else None

    def render(self) -> Any:
        return self.grid_env.render()

    def close(self) -> None:
        self.grid_env.close()
