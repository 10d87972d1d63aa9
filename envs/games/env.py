"""A game as one player's gymnasium environment."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.envs.games.game import CHANCE, TERMINAL, Game, Policy, asked, per_seat, uniform
from parl_like.values.spec import Array

FRUITLESS = 1000
"""Games in a row that are over before the player's first move, after which a reset gives up."""


def draw(moves: Sequence[tuple[int, float]], rng: np.random.Generator) -> int:
    """One of (action, probability), by one random number; the probabilities need not sum to exactly 1. Never one of probability
    0."""
    bounds = list(accumulate(chance for _, chance in moves))
    return moves[bisect_right(bounds[:-1], rng.random() * bounds[-1])][0]


class GameEnv(gym.Env[Any, Any]):
    """A game as one player's environment; chance and the other players move between its turns.

    Observation: `obs` [tensor_size] float32, what the player knows; `mask` [n_actions] int8, 1 for the legal actions, zeros at
    the end. Reward: the change of the player's utility since its last turn. Games that are over before its first turn are played
    again.

    Info of `reset`: `player`, its seat in this game. `reset` takes the option `player`.

    Args:
        game: The game.
        policy: Of the other players, or one for every seat (its own is not asked).
        player: Its seat; None: drawn anew for every game.
        illegal: What an illegal action does. None: it raises ValueError, since an agent that reads the mask takes none. A number:
            the game ends with this reward.
        render_mode: "ansi": the true state as text.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 2}

    def __init__(
        self, game: Game, policy: Policy | Sequence[Policy] = uniform, player: int | None = 0, *, illegal: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        game.traits.require("GameEnv", dynamics="sequential", styles=("tensor",))
        self.game = game
        self.policies = per_seat("GameEnv", game, policy)
        if render_mode not in (None, "ansi"):
            raise ValueError(f"GameEnv: render_mode is {render_mode!r}; expected 'ansi' or None")
        self.seat = self._checked(player)
        self.player = self.seat or 0
        self.illegal = illegal
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Dict({
            "mask": gym.spaces.MultiBinary(game.n_actions), "obs": gym.spaces.Box(0.0, 1.0, (game.tensor_size,), np.float32)})
        self.action_space = gym.spaces.Discrete(game.n_actions)
        self.state = game.start()
        self._over = True

    def _checked(self, player: Any) -> int | None:
        if player is None:
            return None
        seat = operator.index(player)
        if not 0 <= seat < self.game.n_players:
            raise ValueError(f"GameEnv: player is {seat}; expected 0 to {self.game.n_players - 1}, or None for a random one")
        return seat

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if unknown := set(options or {}) - {"player"}:
            raise ValueError(f"GameEnv: reset has no option {', '.join(map(repr, sorted(unknown)))}; there is 'player'")
        chosen = self._checked((options or {}).get("player", self.seat))
        for _ in range(FRUITLESS):
            self.player = int(self.np_random.integers(self.game.n_players)) if chosen is None else chosen
            self.state = self.game.start()
            self._others()
            if not self.state.is_terminal:
                self._over = False
                return self._observe(), {"player": self.player}
        raise RuntimeError(f"GameEnv: player {self.player} of {self.game} had no turn in {FRUITLESS} games")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Makes a move of the agent, and those of the others up to its next turn.

        Raises:
            ResetNeeded: no game is open.
        """
        if self._over:
            raise gym.error.ResetNeeded("GameEnv: step() without an open game; call reset() first")
        action = operator.index(action)
        if self.illegal is not None and action not in self.state.legal():
            self._over = True
            return {**self._observe(), "mask": np.zeros(self.game.n_actions, np.int8)}, float(self.illegal), True, False, {}
        before = self.state.returns()[self.player]
        self.state.apply(action)
        self._others()
        self._over = self.state.is_terminal
        return self._observe(), self.state.returns()[self.player] - before, self._over, False, {}

    def _others(self) -> None:
        """Lets chance and the other players move until it is the player's turn or the game is over."""
        state = self.state
        while (turn := state.player) not in (self.player, TERMINAL):
            if turn == CHANCE:
                moves = state.chance()
            else:
                chances = asked("GameEnv", self.policies[turn], state)
                moves = [(action, float(chances[action])) for action in state.legal()]
            state.apply(draw(moves, self.np_random))

    def _observe(self) -> dict[str, Array]:
        return {"mask": self.state.mask(), "obs": self.state.tensor(self.player)}

    def render(self) -> Any:
        return str(self.state) if self.render_mode == "ansi" else None

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on, but for what the other players' policies keep: plain values."""
        return {"history": list(self.state.history), "player": self.player, "over": self._over, "rng": rng_state(self.np_random)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state, also one of another environment with the same game and arguments."""
        position = self.game.replay(state["history"])
        set_rng_state(self.np_random, state["rng"])
        self.state, self.player, self._over = position, state["player"], state["over"]
