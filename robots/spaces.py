"""What ready-made robots share: the spaces of an environment, a network that fits them, the robot around it all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from msgspec import Meta

from parl_like.agent import Agent
from parl_like.algorithm import Algorithm, Linear, create_algorithm_func
from parl_like.computation_task import ComputationTask
from parl_like.env_source import EnvSource, is_made, make_one
from parl_like.lab.config import ConfigError, ExperimentConfig
from parl_like.models.conv import ConvActorCritic
from parl_like.models.mlp import MLPActorCritic
from parl_like.robot import Robot
from parl_like.schedules import OnPolicyHelper
from parl_like.spec import specs_of
from parl_like.vector_agent import VectorAgent

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Weight = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

SMALLEST_IMAGE = 4
"""Pixels of the shorter side from which on three axes are an image, and not a table."""


def spaces_of(env: EnvSource) -> dict[str, Any]:
    """`{"obs": space, "act": space}` of an environment, of a vector environment those of one in it.

    Raises:
        ConfigError: gymnasium does not know the id, or a package that it needs is missing.
    """
    return probed(env)[0]


def probed(source: EnvSource) -> tuple[dict[str, Any], type[Agent]]:
    """Spaces as `spaces_of`, and the kind of agent: one that drives a vector environment whole, or a plain one."""
    try:
        env = make_one(source)
    except (gym.error.Error, ImportError) as error:
        if not isinstance(source, str):
            raise
        raise ConfigError(f"Config: key 'env': {str(error).splitlines()[0]}") from None
    many = isinstance(env, VectorEnv)
    obs, act = ((env.single_observation_space, env.single_action_space) if many else (env.observation_space, env.action_space))
    if not is_made(source) and hasattr(env, "close"):
        env.close()
    return {"obs": obs, "act": act}, VectorAgent if many else Agent


def network(spaces: dict[str, Any], flat: Callable[..., Any], conv: Callable[..., Any], hidden: tuple[int, ...],
            standard: tuple[int, ...]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The model for these spaces and its arguments: `conv` where the observation has an image, else `flat`.

    Args:
        hidden: Sizes of the hidden layers; where they are the `standard` ones of `flat`, the layers of `conv` are its own.
    """
    images = [spec for spec in specs_of(spaces["obs"], "obs").values() if len(spec.shape) == 3]
    if len(images) != 1 or sorted(images[0].shape)[1] < SMALLEST_IMAGE:
        return flat, {**spaces, "hidden": hidden}
    return conv, spaces if hidden == standard else {**spaces, "hidden": hidden}


def robot_with(config: ExperimentConfig, env: EnvSource, tasks: Mapping[str, ComputationTask], agent: Any = Agent) -> Robot:
    """The robot that a configuration says, with these tasks."""
    return Robot(env, tasks=tasks, agent=agent, n_agents=config.n_agents, driver=config.robot_driver(), seed=config.seed,
                 trace=config.trace)


def schedule(start: float, share: float, updates: int) -> Any:
    """`start` falling linearly to `start * (1 - share)` over `updates` optimiser steps; a number where `share` is 0."""
    return Linear(start, start * (1.0 - share), max(updates, 1)) if share else start


class PolicyConfig(ExperimentConfig, frozen=True, kw_only=True):
    """What robots with an actor-critic have in common.

    Attributes:
        env: gymnasium id.
        hidden: Sizes of the hidden layers.
        unroll: Steps of each agent between two of its training requests.
        lr: Adam's learning rate; lr_decay: share of it that is gone at the end of the run.
        gamma: Discount per step. lam: λ of GAE or V-trace.
        entropy: Weight of the entropy bonus. value_weight: of the value loss.
        reward_scale: Rewards are multiplied by it in learning; reported returns are the environment's.
    """

    env: str = "CartPole-v1"
    hidden: tuple[Positive, ...] = (64, 64)
    unroll: Positive = 128
    gamma: Share = 0.99
    lam: Share = 0.95
    lr: Rate = 3e-4
    lr_decay: Share = 0.0
    entropy: Weight = 0.0
    value_weight: Weight = 0.5
    reward_scale: Rate = 1.0
    max_grad_norm: Rate = 0.5

    def robot(self, env: EnvSource, algorithm: type[Algorithm], updates: int, helper: Mapping[str, Any], task: Mapping[str, Any],
              *also: str) -> Robot:
        """A robot whose task 'RL' learns a policy on-policy.

        Args:
            env: In place of the id: a factory, or an environment for one agent. None: the id.
            updates: Optimiser steps of the run, over which the learning rate falls.
            helper, task: Further arguments of the helper and the task. also: Names of further keys that are the algorithm's.
        """
        source = self.env if env is None else env
        spaces, agent = probed(source)
        model, sizes = network(spaces, MLPActorCritic, ConvActorCritic, self.hidden, type(self)().hidden)
        keys = ("gamma", "lam", "entropy", "value_weight", "reward_scale", "max_grad_norm", *also)
        options = {"lr": schedule(self.lr, self.lr_decay, updates), **{key: getattr(self, key) for key in keys}}
        func = create_algorithm_func(model, sizes, algorithm, options)
        tasks = {"RL": ComputationTask(func, lambda: OnPolicyHelper(unroll=self.unroll, **helper), device=self.device, **task)}
        return robot_with(self, source, tasks, agent)
