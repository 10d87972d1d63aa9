"""The two-step game: two players with one reward, of which a sum of values cannot tell the best (Rashid et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.envs.joint import Joint
from parl_like.values.spec import Array

PAYOFFS = (((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))
"""Game → action of the first → action of the second → reward."""


class TwoStep:
    """A parallel environment of PettingZoo's. First `player_0` chooses one of two games, for nothing; then both play it: in game
    0 everything earns 7, in game 1 two actions earn 8 together, and one of them alone 1.

    Observation of each, and `state()`: [3] float32, one-hot: the choice, game 0, game 1. Actions: Discrete(2). Both get the whole
    reward; `Joint(reward="mean")` counts it once.
    """

    metadata = {"name": "two_step", "render_modes": []}
    state_space = gym.spaces.Box(0.0, 1.0, (3,), np.float32)

    def __init__(self) -> None:
        self.possible_agents = ["player_0", "player_1"]
        self.agents: list[str] = []
        self._act = gym.spaces.Discrete(2)
        self._at = 0

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of a player's observations, Box [3] float32."""
        return self.state_space

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of a player's actions, Discrete(2)."""
        return self._act

    def state(self) -> Array:
        """Return the state, [3] float32, newly allocated."""
        seen: Array = np.eye(3, dtype=np.float32)[self._at]
        return seen

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode; return observations and infos, by player."""
        self.agents, self._at = list(self.possible_agents), 0
        return self._each(self.state), self._each(dict)

    def step(self, actions: Mapping[str, int]) -> tuple[Any, ...]:
        """Make the moves of both; return observations, rewards, terminated, truncated and infos, by player."""
        first, second = (int(actions[player]) for player in self.possible_agents)
        over, reward = self._at > 0, 0.0
        if over:
            reward, self.agents = PAYOFFS[self._at - 1][first][second], []
        else:
            self._at = 1 + first
        return (self._each(self.state), self._each(lambda: reward), self._each(lambda: over), self._each(lambda: False),
                self._each(dict))

    def _each(self, value: Any) -> dict[str, Any]:
        return {player: value() for player in self.possible_agents}

    @property
    def unwrapped(self) -> TwoStep:
        """The game itself."""
        return self

    def render(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Hold nothing."""

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on."""
        return {"at": self._at, "playing": bool(self.agents)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        self._at, self.agents = state["at"], list(self.possible_agents) if state["playing"] else []


def two_step() -> Joint:
    """Return the game as one environment of joint rows."""
    return Joint(TwoStep(), reward="mean")
