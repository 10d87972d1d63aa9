"""Tiny environments with known answers: a few states, two actions, a reward and an end for each pair of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

ACTIONS = {"Discrete": gym.spaces.Discrete(2), "Box": gym.spaces.Box(-1, 1, (1,), np.float32)}


class Move(NamedTuple):
    """Effect of an action: the reward, the state after it, and how the episode ends there ('': it goes on)."""

    rew: float
    after: int
    end: str = "terminated"


Table = Mapping[int, tuple[Move, Move]]
"""State → what action 0 and action 1 lead to."""


class Tiny(gym.Env[Any, Any]):
    """Episodes begin in one of the states `starts`, drawn at random. An observation is the state: its number, or 1 at its place.

    Args:
        table: State → the outcomes of action 0 and 1. A Box of actions counts as 1 above 0.
        starts: The states that episodes begin in.
        act, obs: 'Discrete' or 'Box'.
        in_place: It writes all observations into one array.
        masked: In a Dict, `mask` says which action is legal, another one at each step; it remembers in `illegal` what is taken
            against that.

    Attributes:
        chosen: State → the last choice there.
    """

    def __init__(self, table: Table, starts: tuple[int, ...], act: str = "Discrete",
                 obs: str = "Box", in_place: bool = False, masked: bool = False) -> None:
        self.table, self.starts, self.n, self.in_place, self.masked = table, starts, len(table), in_place, masked
        self.chosen: dict[int, int] = {}
        self.action_space = ACTIONS[act]
        one: gym.Space[Any] = (gym.spaces.Discrete(self.n) if obs == "Discrete"
                               else gym.spaces.Box(0, 1, (self.n,), np.float32))
        self.observation_space = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(2), "state": one}) if masked else one
        self.memory, self.mask, self.illegal, self.state = np.zeros(self.n, np.float32), np.ones(2, np.int8), 0, 0

    def shown(self, state: int) -> Any:
        """Return the observation of a state."""
        if isinstance(self.observation_space, gym.spaces.Discrete):
            return state
        memory = self.memory if self.in_place else np.zeros(self.n, np.float32)
        memory[:] = 0
        memory[state] = 1
        if not self.masked:
            return memory
        self.mask = np.ones(2, np.int8)
        self.mask[self.np_random.integers(2)] = 0
        return {"mask": self.mask, "state": memory}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = int(self.np_random.choice(self.starts))
        return self.shown(self.state), {}

    def step(self, act: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        choice = int(act) if isinstance(self.action_space, gym.spaces.Discrete) else int(np.ravel(act)[0] > 0)
        self.illegal += not self.mask[choice]
        self.chosen[self.state] = choice
        rew, self.state, end = self.table[self.state][choice]
        return self.shown(self.state), rew, end == "terminated", end == "truncated", {}

    def clone_state(self) -> dict[str, Any]:
        """Return the state of the open episode, as plain values."""
        return {"state": self.state, "rng": self.np_random.bit_generator.state}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Go on from a state of `clone_state`."""
        self.state = state["state"]
        self.np_random.bit_generator.state = state["rng"]


def same(rew: float, after: int, end: str = "terminated") -> tuple[Move, Move]:
    """Return the outcomes of a state whose two actions do the same."""
    return Move(rew, after, end), Move(rew, after, end)
