"""CentralState: each player of a parallel environment also sees the state of all, for critics that know more than the policy.
Players of different kinds may be brought to one size, so that they share a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.environment.player_view import PlayerView, has_players, takes_turns
from parl_like.environment.players_env import keeper
from parl_like.values.spec import Array


class OneSize:
    """The size of the largest, for what players see and do, where they differ.

    Observations become flat, [d] float32, filled up with zeros. Discrete actions become numbers from 0, of which a mask tells
    those that the player has. Of a Box [n] a player takes the first numbers, as many as its own has.

    Args:
        views: Of all players.

    Attributes:
        obs: Space of the observations; None: they are of one size. act: Space of the actions; None: so they are.
        masked: Whether a mask is needed for the actions.

    Raises:
        TypeError: actions differ and are neither all Discrete nor all Boxes of one axis.
    """

    def __init__(self, views: Sequence[PlayerView]) -> None:
        seen, acts = [view.bare for view in views], [view.action_space for view in views]
        self.obs: gym.spaces.Box | None = None
        if any(space != seen[0] for space in seen):
            self.obs = gym.spaces.Box(-np.inf, np.inf, (max(map(gym.spaces.flatdim, seen)),), np.float32)
        self.act: gym.Space[Any] | None = None
        self.masked = False
        if all(space == acts[0] for space in acts):
            return
        if all(isinstance(space, gym.spaces.Discrete) for space in acts):
            self.act, self.masked = gym.spaces.Discrete(max(int(space.n) for space in acts)), True
        elif all(isinstance(space, gym.spaces.Box) and len(space.shape) == 1 for space in acts):
            size = max(space.shape[0] for space in acts)
            low, high = min(space.low.min() for space in acts), max(space.high.max() for space in acts)
            self.act = gym.spaces.Box(low, high, (size,), acts[0].dtype)
        else:
            raise TypeError("CentralState: alike=True brings actions to one size that are all Discrete, or Boxes of one axis; "
                            f"they are {', '.join(map(str, acts))}")

    def see(self, view: PlayerView, bare: Any) -> Any:
        """Return a player's observation in the one size."""
        if self.obs is None:
            return bare
        flat = np.zeros(self.obs.shape, np.float32)
        own = np.ravel(gym.spaces.flatten(view.bare, bare))  # type: ignore[arg-type]
        flat[: len(own)] = own
        return flat

    def mask(self, view: PlayerView, own: Array | None, ended: bool) -> Array:
        """Return the mask of a player, [actions] int8, zeros after a true end. `own`: its mask of its own actions, if any."""
        n = int(view.action_space.n)
        out = np.zeros(int(self.act.n) if isinstance(self.act, gym.spaces.Discrete) else n, np.int8)
        out[:n] = own if own is not None else not ended
        return out

    def own(self, view: PlayerView, act: Any) -> Any:
        """Return the action that the environment takes from a player."""
        if self.act is None:
            return act
        space = view.action_space
        if not self.masked:
            return np.clip(act[: space.shape[0]], space.low, space.high)
        return int(act) + int(space.start)


class CentralState:
    """A parallel environment of PettingZoo's whose players have one more thing in their observations, the state of all.

    Observation of each, a Dict: `obs`, the player's own; `who` [n] float32, which player it is, one-hot; `state` [m] float32,
    the environment's `state()`, or where it has no `state_space` what all players see, side by side, zeros for who is gone;
    `mask` [actions] int8, 1 for legal, where the environment has masks. A policy leaves `state` aside, such as that of
    `MLPCentralActorCritic`, so trained players do not need it.

    Args:
        env: The parallel environment.
        state: Whether there is a state; without it players learn independently.
        alike: Players who see or do different things get observations and actions of one size, see `OneSize`, so that they may
            share a task. `who` tells them apart.

    Raises:
        TypeError: it is no parallel environment, or actions cannot be brought to one size.
    """

    def __init__(self, env: Any, *, state: bool = True, alike: bool = False) -> None:
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
        self._tells_state = state
        self._size = OneSize(list(self._views.values()) if alike else [])
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
        spaces: dict[str, gym.Space[Any]] = {"obs": self._size.obs or view.bare,
                                             "who": gym.spaces.Box(0.0, 1.0, (len(self._who),), np.float32)}
        if self._tells_state:
            spaces["state"] = self.state_space
        if self._size.masked or view.masked:
            spaces["mask"] = gym.spaces.MultiBinary(len(self._size.mask(view, None, False)))
        return gym.spaces.Dict(spaces)

    def observation_space(self, agent: object) -> gym.spaces.Dict:
        """Return the space of a player's observations, with the state in it."""
        return self._spaces[agent]

    def action_space(self, agent: object) -> gym.Space[Any]:
        """Return the space of a player's actions, that of the environment, or the one size of all."""
        return self._size.act or self._views[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begin an episode; return observations and infos, by player."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._all(obs, infos, {}), infos

    def step(self, actions: Mapping[Any, Any]) -> tuple[dict[Any, Any], Any, Any, Any, Any]:
        """Take a step; return observations, rewards, terminated, truncated and infos, by player."""
        own = {player: self._size.own(self._views[player], act) for player, act in actions.items()}
        obs, rewards, terminations, truncations, infos = self.env.step(own)
        return self._all(obs, infos, terminations), rewards, terminations, truncations, infos

    def state(self) -> Array:
        """Return the state that players see, [m] float32."""
        return self._now

    def _all(self, obs: Mapping[Any, Any], infos: Mapping[Any, Any], terminations: Mapping[Any, bool]) -> dict[Any, Any]:
        ended = {player: bool(terminations.get(player, False)) for player in obs}
        seen = {player: self._views[player].see(own, infos.get(player, {}), ended[player]) for player, own in obs.items()}
        bare = {player: one["obs"] if self._views[player].masked else one for player, one in seen.items()}
        self._now = self._state(bare)
        out: dict[Any, Any] = {}
        for player, one in seen.items():
            view = self._views[player]
            out[player] = {"obs": self._size.see(view, bare[player]), "who": self._who[player]}
            if self._tells_state:
                out[player]["state"] = self._now
            if self._size.masked or view.masked:
                out[player]["mask"] = self._size.mask(view, one["mask"] if view.masked else None, ended[player])
        return out

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
