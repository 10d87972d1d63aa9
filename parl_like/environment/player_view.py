"""PlayerView: one player of a PettingZoo environment, its spaces and what it sees, with a legal mask under our name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.values.spec import Array

NAMED = {"observation", "action_mask"}
"""The keys of a Dict observation that PettingZoo's environments give where not every action is legal."""


def has_players(env: object) -> bool:
    """Return whether this is an environment of several players, as PettingZoo defines them."""
    return hasattr(env, "possible_agents") and not isinstance(env, (gym.Env, gym.vector.VectorEnv))


def takes_turns(env: object) -> bool:
    """Return whether its players act by turns (AEC), and not at once (parallel)."""
    return hasattr(env, "agent_iter")


def mask_of(obs: object, info: Mapping[str, object]) -> tuple[Array | None, Any]:
    """Return the mask of an observation, from itself or from the infos, None where there is none; and the observation without
    it."""
    if isinstance(obs, dict) and obs.keys() == NAMED:
        return np.asarray(obs["action_mask"], np.int8), obs["observation"]
    return np.asarray(info["action_mask"], np.int8) if "action_mask" in info else None, obs


class PlayerView:
    """One player of an AEC or a parallel environment.

    A Dict of `observation` and `action_mask` is called `obs` and `mask` ([A] int8) here, as all of our models know it. Where the
    mask comes in the infos (`mask=True`), the observation is put beside it in the same way. After a true end the mask is zeros,
    whatever the environment says; of a game that was only cut it stays, for its value is asked for.

    Args:
        env: The PettingZoo environment. player: One of its `possible_agents`.
        mask: Whether a mask comes as `action_mask` of the infos.

    Attributes:
        observation_space, action_space: Of this player. bare: The space of the observation without a mask.
        masked: Whether there is a mask.

    Raises:
        TypeError: there is a mask and no Discrete actions.
    """

    def __init__(self, env: Any, player: Any, *, mask: bool = False) -> None:
        self.action_space: Any = env.action_space(player)
        inner: Any = env.observation_space(player)
        named = isinstance(inner, gym.spaces.Dict) and set(inner.spaces) == NAMED
        self.masked = mask or named
        self.bare: Any = inner["observation"] if named else inner
        self.observation_space: Any = self.bare
        if self.masked:
            if not isinstance(self.action_space, gym.spaces.Discrete):
                raise TypeError(f"player {player!r}: a mask of legal actions needs Discrete actions, not {self.action_space}")
            mask_space = gym.spaces.MultiBinary(int(self.action_space.n))
            self.observation_space = gym.spaces.Dict({"mask": mask_space, "obs": self.bare})

    def see(self, obs: object, info: Mapping[str, object], terminated: bool = False) -> Any:
        """Return the environment's observation for this player, as its spaces here say."""
        if not self.masked:
            return obs
        mask, bare = mask_of(obs, info)
        if terminated or mask is None:
            mask = np.zeros(int(self.action_space.n), np.int8)
        return {"mask": mask, "obs": bare}
