"""A game as one environment for an agent that plays all of its players."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.envs.games.env import draw
from parl_like.envs.games.game import CHANCE, Game
from parl_like.values.spec import Array


class AllSeats(gym.Env[Any, Any]):
    """A game whose every move is the agent's, but for those of chance, which are drawn.

    Observation: `obs` [tensor_size] float32, what the player to move knows; `mask` [n_actions] int8, 1 for its legal actions; at
    the end those of who moved last, with a mask of zeros. Reward: the change of player 0's utility. Info: `player`, who is to
    move (at the end who moved last), and `returns`, the utilities of all players so far.

    Args:
        game: Its players move one after another, and its states have tensors.

    Raises:
        ValueError: render_mode is neither "ansi" nor None.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 2}

    def __init__(self, game: Game, *, render_mode: str | None = None) -> None:
        game.traits.require("AllSeats", dynamics="sequential", chance=("deterministic", "explicit"), styles=("tensor",))
        if render_mode not in (None, "ansi"):
            raise ValueError(f"AllSeats: render_mode is {render_mode!r}; expected 'ansi' or None")
        self.game, self.render_mode = game, render_mode
        self.observation_space = gym.spaces.Dict({
            "mask": gym.spaces.MultiBinary(game.n_actions), "obs": gym.spaces.Box(0.0, 1.0, (game.tensor_size,), np.float32)})
        self.action_space = gym.spaces.Discrete(game.n_actions)
        self.state, self.player = game.start(), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.game.start()
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Makes the move of the player whose turn it is, and those of chance after it.

        Raises:
            ResetNeeded: no game is open.
        """
        if self.state.player < 0:  # chance moves first, or nobody any more
            raise gym.error.ResetNeeded("AllSeats: step() without an open game; call reset() first")
        before = self.state.returns()[0]
        self.state.apply(action)
        obs, info = self._observe()
        return obs, info["returns"][0] - before, self.state.is_terminal, False, info

    def _observe(self) -> tuple[dict[str, Array], dict[str, Any]]:
        while self.state.player == CHANCE:
            self.state.apply(draw(self.state.chance(), self.np_random))
        if self.state.player >= 0:
            self.player = self.state.player
        obs = {"mask": self.state.mask(), "obs": self.state.tensor(self.player)}
        return obs, {"player": self.player, "returns": self.state.returns()}

    def render(self) -> Any:
        return str(self.state) if self.render_mode == "ansi" else None

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on, as plain values."""
        return {"history": list(self.state.history), "player": self.player, "rng": rng_state(self.np_random)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state, also one of another environment with the same game."""
        self.state, self.player = self.game.replay(state["history"]), state["player"]
        set_rng_state(self.np_random, state["rng"])
