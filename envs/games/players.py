"""Games with all their players, as PettingZoo defines environments of several (extra `pettingzoo`)."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.envs.games.env import draw
from parl_like.envs.games.game import CHANCE, Game
from parl_like.values.spec import Array

AECEnv: Any = import_module("pettingzoo").AECEnv if find_spec("pettingzoo") else object
_KEPT = ("agents", "rewards", "terminations", "truncations", "agent_selection", "_cumulative_rewards", "_skip_agent_selection")


class GameAEC(AECEnv):  # type: ignore[misc]  # PettingZoo may not be there
    """A turn-based game with all its players, an AEC environment of PettingZoo. Chance moves by itself.

    Players: `player_0` …, in the order of the game. Observation of each: `observation` [tensor_size] float32, what this player
    knows; `action_mask` [n_actions] int8, 1 for the legal actions, zeros where it is not its turn. Reward: the change of the
    player's utility with each move. `reset` takes no options.

    Args:
        game: The game.
        render_mode: "ansi": the true state as text.

    Attributes:
        traits: Of the game. state_now: Its position.

    Raises:
        ValueError: render_mode is neither "ansi" nor None.
    """

    metadata = {"render_modes": ["ansi"], "is_parallelizable": False, "render_fps": 2}

    def __init__(self, game: Game, *, render_mode: str | None = None) -> None:
        import_module("pettingzoo")  # whose absence says what to install
        super().__init__()
        game.traits.require("GameAEC (of a game of simultaneous moves take TurnBased(game))", dynamics="sequential",
                            styles=("tensor",))
        if render_mode not in (None, "ansi"):
            raise ValueError(f"GameAEC: render_mode is {render_mode!r}; expected 'ansi' or None")
        self.game, self.traits, self.render_mode = game, game.traits, render_mode
        self.metadata = {**type(self).metadata, "name": str(game)}
        self.possible_agents = [f"player_{i}" for i in range(game.n_players)]
        self._seats = {name: i for i, name in enumerate(self.possible_agents)}
        self.observation_spaces = {name: gym.spaces.Dict({
            "observation": gym.spaces.Box(0.0, 1.0, (game.tensor_size,), np.float32),
            "action_mask": gym.spaces.Box(0, 1, (game.n_actions,), np.int8)}) for name in self.possible_agents}
        self.action_spaces = {name: gym.spaces.Discrete(game.n_actions) for name in self.possible_agents}
        self.np_random = np.random.default_rng()
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._skip_agent_selection: str | None = None
        self.state_now = self.game.start()
        self._go_on(self.possible_agents[-1])

    def _go_on(self, mover: str) -> None:
        """Let chance move, and say whose turn it is then; at the end that of the first after `mover`, to leave the game."""
        state = self.state_now
        while state.player == CHANCE:
            state.apply(draw(state.chance(), self.np_random))
        if state.is_terminal:
            self.terminations = dict.fromkeys(self.agents, True)
            self.agent_selection = self.agents[(self._seats[mover] + 1) % len(self.agents)]
        else:
            self.agent_selection = self.possible_agents[state.player]

    def step(self, action: int | None) -> None:
        """Make the move of who is to move; None where it has left the game. Raises ValueError for a move that is not legal."""
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        before = self.state_now.returns()
        self.state_now.apply(operator.index(action))  # type: ignore[arg-type]
        self._cumulative_rewards[agent] = 0.0
        self._go_on(agent)
        gains = np.subtract(self.state_now.returns(), before).tolist()
        self.rewards = dict(zip(self.possible_agents, gains, strict=True))
        self._accumulate_rewards()

    def observe(self, agent: str) -> dict[str, Array]:
        seat, state = self._seats[agent], self.state_now
        mask = state.mask() if state.player == seat else np.zeros(self.game.n_actions, np.int8)
        return {"observation": state.tensor(seat), "action_mask": mask}

    def render(self) -> Any:
        return str(self.state_now) if self.render_mode == "ansi" else None

    def close(self) -> None:
        return

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on: plain values. Raises `ResetNeeded` before the first reset."""
        if not hasattr(self, "state_now"):
            raise gym.error.ResetNeeded(f"clone_state: {self} has no game yet; reset it first")
        return {"history": list(self.state_now.history), "rng": rng_state(self.np_random),
                **{name.strip("_"): copy.deepcopy(getattr(self, name)) for name in _KEPT}}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a state. Raises ValueError where it is of another game."""
        position = self.game.replay(state["history"])
        if not {*state["agents"], *state["rewards"], state["agent_selection"]} <= self._seats.keys():
            raise ValueError(f"restore_state: the state has the players {', '.join(state['agents'])}; expected some of "
                             f"{', '.join(self.possible_agents)}")
        self.state_now = position
        set_rng_state(self.np_random, state["rng"])
        for name in _KEPT:
            setattr(self, name, copy.deepcopy(state[name.strip("_")]))
        self.infos = {agent: {} for agent in self.agents}
