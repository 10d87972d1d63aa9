"""CentralState: each player of a parallel environment also sees the state of all, for critics that know more than the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.environment.player_view import PlayerView, has_players, takes_turns
from parl_like.environment.players_env import keeper
from parl_like.values.spec import Array


class CentralState:
    """A parallel environment of PettingZoo's whose players have one more thing in their observations, the state of all.

    Observation of each, a Dict: `obs`, the player's own; `who` [n] float32, which player it is, one-hot; `state` [m] float32,
    the environment's `state()`, or where it has no `state_space` what all players see, side by side, zeros for who is gone;
    `mask` [actions] int8, 1 for legal, where the environment has masks. A policy leaves `state` aside, such as that of
    `MLPCentralActorCritic`, so trained players do not need it.

    Args:
        env: The parallel environment.

    Raises:
        TypeError: it is no parallel environment.
    """

    def __init__(self, env: Any) -> None:
        if not has_players(env) or takes_turns(env):
            raise TypeError(f"CentralState: expected a parallel environment of PettingZoo's, got {type(env).__name__}; of an AEC "
                            "one give pettingzoo.utils.aec_to_parallel(env)")
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.metadata, self.render_mode = getattr(env, "metadata", {}), getattr(env, "render_mode", None)
        self._views = {player: PlayerView(env, player) for player in self.possible_agents}
        self._who = dict(zip(self.possible_agents, np.eye(len(self.possible_agents), dtype=np.float32), strict=True))
        given: Any = getattr(env, "state_space", None)
        self._has_own = isinstance(given, gym.spaces.Box)
        size = int(np.prod(given.shape)) if self._has_own else sum(gym.spaces.flatdim(view.bare) for view in self._views.values())
        self.state_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self._now: Array = np.zeros(size, np.float32)
        self._spaces = {player: self._space(view) for player, view in self._views.items()}

    @property
    def agents(self) -> list[Any]:
        """The players that are there now."""
        return self.env.agents  # type: ignore[no-any-return]

    @property
    def unwrapped(self) -> Any:
        """The parallel environment without wrappers."""
        return self.env.unwrapped

    def _space(self, view: PlayerView) -> gym.spaces.Dict:
        spaces: dict[str, gym.Space[Any]] = {"obs": view.bare, "who": gym.spaces.Box(0.0, 1.0, (len(self._who),), np.float32),
                                             "state": self.state_space}
        if view.masked:
            spaces["mask"] = view.observation_space["mask"]
        return gym.spaces.Dict(spaces)

    def observation_space(self, agent: object) -> gym.spaces.Dict:
        """Return the space of a player's observations, with the state in it."""
        return self._spaces[agent]

    def action_space(self, agent: object) -> gym.Space[Any]:
        """Return the space of a player's actions, that of the environment."""
        return self._views[agent].action_space  # type: ignore[no-any-return]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin an episode; return observations and infos, by player."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._all(obs, infos, {}), infos

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], Any, Any, Any, Any]:
        """Take a step; return observations, rewards, terminated, truncated and infos, by player."""
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        return self._all(obs, infos, terminations), rewards, terminations, truncations, infos

    def state(self) -> Array:
        """Return the state that players see, [m] float32."""
        return self._now

    def _all(self, obs: Mapping[Any, Any], infos: Mapping[Any, Any], terminations: Mapping[Any, bool]) -> dict[Any, Any]:
        seen = {player: self._views[player].see(own, infos.get(player, {}), bool(terminations.get(player, False)))
                for player, own in obs.items()}
        state = self._state({player: one["obs"] if self._views[player].masked else one for player, one in seen.items()})
        self._now = state
        return {player: {**(one if self._views[player].masked else {"obs": one}), "who": self._who[player], "state": state}
                for player, one in seen.items()}

    def _state(self, bare: Mapping[Any, Any]) -> Array:
        if self._has_own:
            return np.array(self.env.state(), np.float32).ravel()
        parts = [np.ravel(gym.spaces.flatten(view.bare, bare[player])) if player in bare  # type: ignore[arg-type]
                 else np.zeros(gym.spaces.flatdim(view.bare)) for player, view in self._views.items()]
        return np.concatenate(parts, dtype=np.float32)

    def render(self) -> Any:
        """Return what the environment draws."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on. Raises TypeError as `keeper` does."""
        return keeper(self.env).clone_state()  # type: ignore[no-any-return]

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        keeper(self.env).restore_state(state)
