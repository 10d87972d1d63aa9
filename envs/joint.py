"""Joint: all players of a parallel environment as one, for critics and mixers that see what everybody sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from parl_like.environment.player_view import PlayerView, has_players, takes_turns
from parl_like.environment.players_env import keeper
from parl_like.values.spec import Array


class Joint(gym.Env[Any, Any]):
    """A parallel environment of PettingZoo's (`reset`, `step(dict)`) as one gymnasium environment, whose rows are *joint*: they
    hold what all n players saw, did and got, in the order of `players`.

    Observation, a Dict: `obs` [n, …], the players' own, stacked; where their spaces differ each is flattened to float32 and
    filled up with zeros to the longest, [n, d]. `state` […], what a central critic may see, where the environment has
    `state_space`. `mask` [Σ actions] int8, 1 for legal, player after player, where an observation has a mask. `alive` [n] int8,
    with `alive=True`, who acts next.

    Action: MultiDiscrete, one choice of each player, or Box [n, …]. Where Boxes of one axis differ in length, it is [n, d] with
    the longest, and what is beyond a player's own is ignored. What is chosen for a player who is gone is ignored. Its
    observation is zeros, its reward 0, and of its mask the first action alone is 1, so that something is legal.

    Reward: of all players together. Info: `rewards` [n] float64; `alive` [n] int8, who acted in this step (of a reset: who will);
    `ended` [n] bool, who is gone by a true end, so that nothing comes after; `players`, the infos by player.

    The episode ends when nobody is left: truncated where anybody who left last was cut off, else terminated.

    Args:
        env: The parallel environment; of an AEC one give `pettingzoo.utils.aec_to_parallel(env)`.
        reward: "sum" or "mean" of the players' rewards, one number; "each": the vector [n], for algorithms that take several
            (`reward_space` says so).
        alive: Whether the observation says who acts next.

    Attributes:
        players: Names, all that may ever be there. n: how many.

    Raises:
        TypeError: it is no parallel environment, or has actions that are neither all Discrete, nor Boxes of one shape or one
            axis.
        ValueError: there is no such `reward`.
    """

    def __init__(self, env: Any, *, reward: Literal["sum", "mean", "each"] = "sum", alive: bool = False) -> None:
        if not has_players(env) or takes_turns(env):
            kind = "an AEC environment; give pettingzoo.utils.aec_to_parallel(env)" if takes_turns(env) else "no such environment"
            raise TypeError(f"Joint: expected a parallel environment of PettingZoo's, and {type(env).__name__} is {kind}")
        if reward not in ("sum", "mean", "each"):
            raise ValueError(f"Joint: reward is {reward!r}; expected 'sum', 'mean' or 'each'")
        self.env, self.reward = env, reward
        self.players: tuple[Any, ...] = tuple(env.possible_agents)
        self.n = len(self.players)
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = {"render_modes": []} | dict(getattr(env, "metadata", None) or {})
        self._views = [PlayerView(env, player) for player in self.players]
        self._alike = isinstance(self._views[0].bare, gym.spaces.Box) and all(v.bare == self._views[0].bare for v in self._views)
        self._tells = alive
        self._lengths: list[int] = []  # of the players' actions, where they differ
        spaces: dict[str, gym.Space[Any]] = {"obs": self._stacked()}
        if isinstance(state_space := getattr(env, "state_space", None), gym.spaces.Box):
            spaces["state"] = state_space
        self.action_space: Any = self._actions()
        if any(view.masked for view in self._views):
            spaces["mask"] = gym.spaces.MultiBinary(int(self.action_space.nvec.sum()))
        if alive:
            spaces["alive"] = gym.spaces.MultiBinary(self.n)
        self.observation_space, self._spaces = gym.spaces.Dict(spaces), spaces
        if reward == "each":
            self.reward_space = gym.spaces.Box(-np.inf, np.inf, (self.n,), np.float64)
        self._seen: dict[Any, Any] = {}
        self._ended = np.zeros(self.n, bool)

    def _stacked(self) -> gym.spaces.Box:
        first = self._views[0].bare
        if self._alike:
            return gym.spaces.Box(np.stack([first.low] * self.n), np.stack([first.high] * self.n), (self.n, *first.shape),
                                  first.dtype)
        size = max(gym.spaces.flatdim(view.bare) for view in self._views)
        return gym.spaces.Box(-np.inf, np.inf, (self.n, size), np.float32)

    def _actions(self) -> Any:
        spaces = [view.action_space for view in self._views]
        if all(isinstance(space, gym.spaces.Discrete) for space in spaces):
            return gym.spaces.MultiDiscrete([int(s.n) for s in spaces], start=[int(s.start) for s in spaces])
        first = spaces[0]
        if all(isinstance(space, gym.spaces.Box) for space in spaces):
            if all(space.shape == first.shape for space in spaces):
                return gym.spaces.Box(np.stack([s.low for s in spaces]), np.stack([s.high for s in spaces]),
                                      (self.n, *first.shape), first.dtype)
            if all(len(space.shape) == 1 for space in spaces):
                self._lengths = [space.shape[0] for space in spaces]
                low, high = (np.zeros((self.n, max(self._lengths)), first.dtype) for _ in range(2))
                high += 1
                for row, space in enumerate(spaces):
                    low[row, : space.shape[0]], high[row, : space.shape[0]] = space.low, space.high
                return gym.spaces.Box(low, high, low.shape, first.dtype)
        raise TypeError(f"Joint: the players' actions are {', '.join(map(str, spaces))}; expected all Discrete, or Boxes of one "
                        "shape or of one axis")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, infos = self.env.reset(seed=seed, options=options)
        self._seen, self._ended = {}, np.zeros(self.n, bool)
        return self._joint(obs, infos), self._info({}, self._alive(), infos)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes one action for each player.

        Raises:
            ResetNeeded: no episode is open.
        """
        acting = list(self.env.agents)
        if not acting:
            raise gym.error.ResetNeeded("Joint: step() without an open episode; call reset() first")
        alive = self._alive()
        lengths: list[Any] = self._lengths or [None] * self.n
        acts = {player: int(act) if np.ndim(act) == 0 else act[:length]
                for player, act, length in zip(self.players, action, lengths, strict=True) if player in acting}
        obs, rewards, terminations, truncations, infos = self.env.step(acts)
        self._ended |= np.array([bool(terminations.get(player, False)) for player in self.players])
        given = np.array([rewards.get(player, 0.0) for player in self.players], np.float64)
        over = not self.env.agents
        truncated = over and any(truncations.get(p, False) and not terminations.get(p, False) for p in acting)
        reward: Any = given.copy() if self.reward == "each" else float(given.sum() if self.reward == "sum" else given.mean())
        return self._joint(obs, infos), reward, over and not truncated, truncated, self._info(rewards, alive, infos)

    def _alive(self) -> Array:
        """Return [n] int8: who acts next."""
        return np.array([player in self.env.agents for player in self.players], np.int8)

    def _info(self, rewards: Mapping[Any, float], alive: Array, infos: Mapping[Any, Any]) -> dict[str, Any]:
        given = np.array([rewards.get(player, 0.0) for player in self.players], np.float64)
        said = {player: dict(info) for player, info in infos.items()}
        return {"rewards": given, "alive": alive, "ended": self._ended.copy(), "players": said}

    def _joint(self, obs: Mapping[Any, Any], infos: Mapping[Any, Any]) -> dict[str, Any]:
        """Return the joint observation. Of players who leave with this step it has what they see last."""
        space: Any = self._spaces["obs"]
        rows, masks = np.zeros(space.shape, space.dtype), []
        for i, (player, view) in enumerate(zip(self.players, self._views, strict=True)):
            n = int(view.action_space.n) if "mask" in self._spaces else 0
            mask = np.arange(n) == 0
            if player in obs:
                seen = view.see(obs[player], infos.get(player, {}))
                bare = seen["obs"] if view.masked else seen
                flat = bare if self._alike else np.ravel(gym.spaces.flatten(view.bare, bare))  # type: ignore[arg-type]
                rows[i][... if self._alike else slice(len(flat))] = flat
                if not self._ended[i]:  # of a player who is cut off the value is asked for
                    mask = seen["mask"] if view.masked else np.ones(n, np.int8)
            masks.append(mask.astype(np.int8))
        out: dict[str, Any] = {"obs": rows}
        if "state" in self._spaces:
            state: Any = self._spaces["state"]
            out["state"] = np.array(self.env.state(), state.dtype)
        if "mask" in self._spaces:
            out["mask"] = np.concatenate(masks)
        if self._tells:
            out["alive"] = self._alive()
        return out

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on. Raises TypeError as `keeper` does."""
        return {"env": keeper(self.env).clone_state(), "ended": self._ended.copy()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        keeper(self.env).restore_state(state["env"])
        self._ended = state["ended"].copy()
