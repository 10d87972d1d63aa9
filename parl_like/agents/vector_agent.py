"""VectorAgent: one agent that drives a gymnasium vector environment with one request of n rows."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from parl_like.agents.agent import Agent
from parl_like.environment.factory import REWARD_WEIGHTS, one_player, reward_shape
from parl_like.environment.process_guard import watched
from parl_like.environment.together import EnvsTogether
from parl_like.environment.vector_face import VectorFace
from parl_like.values.copying import copied
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import Info

SMALL = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.")
"""Modules of environments that may take one compiled step together."""


class VectorAgent(Agent):
    """Acts in n environments at once. The robot's `env` may be a vector environment, or a single one, of which `n_envs` are made.

    PRE_EPISODE and POST_EPISODE fire per environment; `run_one_episode` itself runs until the robot stops, or until every
    environment has had its share of the episodes that a collection or an evaluation asks for.

    Args:
        n_envs: Environments that are made of a single one.

    Raises:
        ValueError: n_envs is below 1.
    """

    vector = True
    env: VectorFace

    def __init__(self, n_envs: int = 8) -> None:
        super().__init__()
        if n_envs < 1:
            raise ValueError(f"VectorAgent: n_envs is {n_envs}; expected at least 1")
        self.n_envs = n_envs

    def join(self, make: Callable[[], object]) -> None:
        """Make the vector environment, or `n_envs` single ones that step together.

        Args:
            make: Zero-argument function that gives a vector environment, or a single one at each call.

        Raises:
            ValueError: it gives one environment several times, or such with several rewards a step.
        """
        with watched(self, "made"):
            made = [one_player(make())]
        env = made[0] if isinstance(made[0], VectorEnv) else self._copies(made, make)
        inner: object = env.unwrapped
        if isinstance(inner, SyncVectorEnv) and not isinstance(inner, EnvsTogether):
            if inner.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP:
                inner.envs = [_owning(one) for one in inner.envs]
        self.n_envs = int(env.num_envs)
        self.env = VectorFace(env, self)

    def _copies(self, envs: list[Any], make: Callable[[], object]) -> VectorEnv[Any, Any, Any]:
        """Put environments together, of which the list has the first one, and nobody else holds it."""
        envs += [make() for _ in range(self.n_envs - 1)]
        if len({id(env) for env in envs}) < len(envs):
            raise ValueError(f"{self}: {self.n_envs} environments are needed, and the robot has one; give it a factory or an id")
        if shape := reward_shape(envs[0]):
            raise ValueError(f"{self}: its environments give rewards of shape {shape}, and a vector environment takes numbers; "
                             f"{REWARD_WEIGHTS}")
        if type(getattr(envs[0], "unwrapped", None)).__module__.startswith(SMALL):
            compiled: VectorEnv[Any, Any, Any] | None = import_module("parl_like.envs.vector.make").together(envs)
            if compiled is not None:
                return compiled
        return EnvsTogether(envs)

    def run_one_episode(self) -> None:
        """Act in all environments until each has had its share of episodes, or else until the robot stops: the first task acts,
        and the helpers of all tasks store every step. Raises AgentFailed where the robot has no task."""
        env, choose = self.env, self.choose
        if not self.helpers:
            raise AgentFailed(f"{self}: the robot has no task that could act; give it one, or write run_one_episode")
        env.quotas = None
        if self.quota.episodes is not None:
            share, rest = divmod(self.quota.episodes, env.n)
            env.quotas = np.array([share + (i < rest) for i in range(env.n)])
        obs, info = env.reset()
        while env.quotas is None or env.quotas.any():
            act = choose(obs, info)
            obs_next, rew, terminated, truncated, info = env.step(act)
            self.remember(obs, act, rew, terminated, truncated, info)
            env.end_episodes()
            obs = obs_next

    def choose(self, obs: Any, info: Info) -> Any:
        """Return what to do about observations [n, …] and the `info` that came with them; by default what the first task says."""
        return next(iter(self.helpers.values())).predict(obs)

    def remember(self, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, info: Info) -> None:
        """Store the step that `env.step` has just made, [n, ...] each; by default in the helpers of all tasks."""
        for helper in self.helpers.values():
            helper.store(obs, act, rew, self.env.obs_next, terminated, truncated, info, self.env.valid)


def _owning(env: object) -> Any:
    """gymnasium keeps final observations as they come, and resets the environment before it gives them away."""
    return _Owning(env) if isinstance(env, gym.Env) and not isinstance(env, _Owning) else env


class _Owning(gym.Wrapper[Any, Any, Any, Any]):
    """Gives observations that the environment does not change later."""

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, dict[str, object]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return copied(obs), info

    def step(self, action: object) -> tuple[object, Any, bool, bool, dict[str, object]]:
        obs, *rest = self.env.step(action)
        return copied(obs), *rest
