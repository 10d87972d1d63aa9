"""Games with all their players, as PettingZoo defines environments of several (extra `pettingzoo`)."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.rng import rng_state, set_rng_state
from parl_like.envs.games.env import draw
from parl_like.envs.games.game import CHANCE, SIMULTANEOUS, Game, State
from parl_like.values.spec import Array

AECEnv: Any = import_module("pettingzoo").AECEnv if find_spec("pettingzoo") else object
ParallelEnv: Any = import_module("pettingzoo").ParallelEnv if find_spec("pettingzoo") else object
_KEPT = ("agents", "rewards", "terminations", "truncations", "agent_selection", "_cumulative_rewards", "_skip_agent_selection")


def _require(name: str) -> None:
    """Raises ImportError where PettingZoo is not installed."""
    if find_spec("pettingzoo") is None:
        raise ImportError(f"{name} needs PettingZoo; install the extra: pip install 'parl_like[pettingzoo]'")


class Seats:
    """The seats of a game's players: their names, spaces and views.

    Args:
        game: With tensors. who: Names the environment in errors. render_mode: "ansi", the true state as text, or None.

    Attributes:
        names: `player_0` …, in the order of the game. number: Name → seat.
        observation_spaces: Name → a Dict of `observation` [tensor_size] float32, what this player knows, and `action_mask`
            [n_actions] int8, 1 for the legal actions. action_spaces: Name → Discrete(n_actions).

    Raises:
        ValueError: there is no such render mode.
    """

    def __init__(self, game: Game, who: str, render_mode: str | None) -> None:
        if render_mode not in (None, "ansi"):
            raise ValueError(f"{who}: render_mode is {render_mode!r}; expected 'ansi' or None")
        self.names = [f"player_{i}" for i in range(game.n_players)]
        self.number = {name: i for i, name in enumerate(self.names)}
        self.observation_spaces = {name: gym.spaces.Dict({
            "observation": gym.spaces.Box(0.0, 1.0, (game.tensor_size,), np.float32),
            "action_mask": gym.spaces.Box(0, 1, (game.n_actions,), np.int8)}) for name in self.names}
        self.action_spaces = {name: gym.spaces.Discrete(game.n_actions) for name in self.names}

    def see(self, state: State, name: str) -> dict[str, Array]:
        """Return what a player sees of a state. Its mask is zeros where it does not move."""
        seat = self.number[name]
        mask = np.zeros(state.game.n_actions, np.int8)
        mask[list(state.legal_of(seat))] = 1
        return {"observation": state.tensor(seat), "action_mask": mask}


def after_chance(state: State, rng: np.random.Generator) -> None:
    """Let chance move until somebody else does, or the game is over."""
    while state.player == CHANCE:
        state.apply(draw(state.chance(), rng))


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
        ImportError: PettingZoo is not installed.
    """

    metadata = {"render_modes": ["ansi"], "is_parallelizable": False, "render_fps": 2}

    def __init__(self, game: Game, *, render_mode: str | None = None) -> None:
        _require("GameAEC")
        super().__init__()
        game.traits.require("GameAEC (of a game of simultaneous moves take GameParallel(game), or take TurnBased(game))",
                            dynamics="sequential", styles=("tensor",))
        self.seats = seats = Seats(game, "GameAEC", render_mode)
        self.game, self.traits, self.render_mode = game, game.traits, render_mode
        self.metadata = {**type(self).metadata, "name": str(game)}
        self.possible_agents, self._seats = list(seats.names), seats.number
        self.observation_spaces, self.action_spaces = seats.observation_spaces, seats.action_spaces
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
        after_chance(state, self.np_random)
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
        return self.seats.see(self.state_now, agent)

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


class GameParallel(ParallelEnv):  # type: ignore[misc]  # PettingZoo may not be there
    """A game of simultaneous moves with all its players, a parallel environment of PettingZoo. Chance moves by itself.

    Players and what each sees: as in `GameAEC`. In a step all of them act. Where the game lets one player alone move, the others'
    masks are zeros, and what they do counts for nothing. Reward: the change of the player's utility. `reset` takes no options.

    Args:
        game: The game, such as a `MatrixGame`.
        render_mode: "ansi": the true state as text.

    Attributes:
        traits: Of the game. state_now: Its position.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 2}

    def __init__(self, game: Game, *, render_mode: str | None = None) -> None:
        _require("GameParallel")
        super().__init__()
        game.traits.require("GameParallel (of a game of turns take GameAEC(game))", dynamics="simultaneous", styles=("tensor",))
        self.seats = Seats(game, "GameParallel", render_mode)
        self.game, self.traits, self.render_mode = game, game.traits, render_mode
        self.metadata = {**type(self).metadata, "name": str(game)}
        self.possible_agents = list(self.seats.names)
        self.np_random = np.random.default_rng()
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return self.seats.observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        return self.seats.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.state_now = self.game.start()
        after_chance(self.state_now, self.np_random)
        return self._all(self.agents)

    def step(self, actions: Mapping[str, int]) -> tuple[dict[str, Any], ...]:
        """Make the moves of all. Raises ValueError for one that is not legal, `ResetNeeded` where the game is over."""
        if not self.agents:
            raise gym.error.ResetNeeded("GameParallel: step() without an open game; call reset() first")
        state, before = self.state_now, self.state_now.returns()
        chosen = {name: operator.index(actions[name]) for name in self.agents}
        for name, action in chosen.items():
            legal = state.legal_of(self.seats.number[name])
            if legal and action not in legal:
                raise ValueError(f"GameParallel: {name} takes {action} in {state}; legal are {', '.join(map(str, legal))}")
        moves = list(chosen.values())
        state.apply(self.game.joint(moves) if state.player == SIMULTANEOUS else moves[state.player])
        after_chance(state, self.np_random)
        players, over = self.agents, state.is_terminal
        rewards = dict(zip(players, np.subtract(state.returns(), before).tolist(), strict=True))
        self.agents = [] if over else players
        obs, infos = self._all(players)
        return obs, rewards, dict.fromkeys(players, over), dict.fromkeys(players, False), infos

    def _all(self, players: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        return {name: self.seats.see(self.state_now, name) for name in players}, {name: {} for name in players}

    def render(self) -> Any:
        return str(self.state_now) if self.render_mode == "ansi" else None

    def close(self) -> None:
        return

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on: plain values. Raises `ResetNeeded` before the first reset."""
        if not hasattr(self, "state_now"):
            raise gym.error.ResetNeeded(f"clone_state: {self} has no game yet; reset it first")
        return {"history": list(self.state_now.history), "rng": rng_state(self.np_random), "playing": bool(self.agents)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a state. Raises ValueError where it is of another game."""
        self.state_now = self.game.replay(state["history"])
        set_rng_state(self.np_random, state["rng"])
        self.agents = self.possible_agents[:] if state["playing"] else []
