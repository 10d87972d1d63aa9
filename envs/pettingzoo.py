"""One player of a PettingZoo AEC environment as a gymnasium environment (extra `pettingzoo`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.environment.player_view import PlayerView, mask_of
from parl_like.envs.games import FRUITLESS

Choice = Callable[[Any, np.random.Generator], Any]
"""Observation of a player whose turn it is, and the environment's generator → action. Where there is a mask, the observation has
it."""


def random_choice(space: gym.Space[Any]) -> Choice:
    """Draws uniformly from the legal actions of a Discrete space, and from other spaces as they do themselves."""

    def choose(obs: Any, rng: np.random.Generator) -> Any:
        if isinstance(space, gym.spaces.Discrete):
            legal = np.flatnonzero(obs["mask"]) if isinstance(obs, dict) and "mask" in obs else np.arange(space.n)
            return int(rng.choice(legal) + space.start)
        space.seed(int(rng.integers(2**31)))
        return space.sample()

    return choose


class AECPlayer(gym.Env[Any, Any]):
    """One player of a PettingZoo AEC environment; the others act by given rules between its turns.

    Observation: PettingZoo's own of this player, a mask of legal actions under the name `mask`, as `PlayerView` has it.

    Reward: of this player since its last turn; what it got before its first turn comes with its first step. Games that are over
    before its first turn are played again. `terminated` and `truncated` are this player's own. Info: this player's.

    A PettingZoo environment has no way to copy its state, so there is no `clone_state`; our own games have one in `GameEnv`.

    Args:
        env: The AEC environment (`raw_env` or `env`), not a parallel one.
        player: Name of the agent, or its number in `possible_agents`.
        others: How the others act: a rule for all, or agent → rule; who has none takes random legal actions.
        mask: Whether a mask comes as `action_mask` of the infos.

    Raises:
        TypeError: it is no AEC environment, or has a mask and no Discrete actions.
        ValueError: there is no such agent.
    """

    def __init__(self, env: Any, player: str | int = 0, others: Choice | Mapping[str, Choice] | None = None, *,
                 mask: bool = False) -> None:
        if missing := [name for name in ("agent_iter", "last", "possible_agents", "observe") if not hasattr(env, name)]:
            raise TypeError(f"AECPlayer: {type(env).__name__} is no AEC environment, it has no {', '.join(missing)}; of a "
                            "parallel one use pettingzoo.utils.parallel_to_aec")
        self.env = env
        agents = list(env.possible_agents)
        if isinstance(player, int):
            if not 0 <= player < len(agents):
                raise ValueError(f"AECPlayer: player is {player}; expected 0 to {len(agents) - 1}, or one of "
                                 f"{', '.join(map(str, agents))}")
            player = agents[player]
        rules = {} if others is None else dict.fromkeys(agents, others) if callable(others) else dict(others)
        if unknown := {player, *rules} - set(agents):
            raise ValueError(f"AECPlayer: there is no agent {', '.join(map(repr, sorted(unknown)))}; there are "
                             f"{', '.join(map(str, agents))}")
        self.player = player
        self.rules = {agent: rules.get(agent) or random_choice(env.action_space(agent)) for agent in agents}
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = {"render_modes": [], "render_fps": 2} | dict(getattr(env, "metadata", None) or {})
        self._view = PlayerView(env, player, mask=mask)
        self.action_space, self.observation_space = self._view.action_space, self._view.observation_space
        self._over = True
        self._early = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        for _ in range(FRUITLESS):
            self.env.reset(seed=seed, options=options)
            obs, self._early, terminated, truncated, info = self._next_turn()
            if not (terminated or truncated):
                self._over = False
                return obs, dict(info)
            seed = None
        raise RuntimeError(f"AECPlayer: {self.player} had no turn in {FRUITLESS} games")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action of the agent's player, and those of the others up to its next turn.

        Raises:
            ResetNeeded: no game is open.
        """
        if self._over:
            raise gym.error.ResetNeeded("AECPlayer: step() without an open game; call reset() first")
        self.env.step(action)
        obs, reward, terminated, truncated, info = self._next_turn()
        self._over = terminated or truncated
        reward, self._early = reward + self._early, 0.0
        return obs, reward, terminated, truncated, dict(info)

    def _next_turn(self) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Lets the others act until it is the player's turn, or it is out of the game."""
        env = self.env
        while env.agents:
            agent = env.agent_selection
            obs, reward, terminated, truncated, info = env.last()
            if agent == self.player:
                seen = self._view.see(obs, info, bool(terminated))
                return seen, float(reward), bool(terminated), bool(truncated), info
            mask, bare = mask_of(obs, info)
            seen = obs if mask is None else {"mask": mask, "obs": bare}
            env.step(None if terminated or truncated else self.rules[agent](seen, self.np_random))
        raise RuntimeError(f"AECPlayer: {env} ended without a last turn of {self.player}, so its last reward is unknown; agents "
                           "that are done must be stepped once more, with None")

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()
