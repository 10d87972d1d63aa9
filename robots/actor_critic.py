"""A robot with one task that learns a policy on-policy (PPO or A2C), for discrete and continuous actions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from parl_like.algorithm import create_algorithm_func
from parl_like.algorithms.actor_critic import A2C, PPO
from parl_like.computation_task import ComputationTask
from parl_like.env_source import EnvSource
from parl_like.lab.config import ExperimentConfig
from parl_like.models.conv import ConvActorCritic
from parl_like.models.mlp import MLPActorCritic
from parl_like.robot import Robot
from parl_like.robots.spaces import network, one_task_robot, probed, schedule
from parl_like.schedules import OnPolicyHelper

Positive = Annotated[int, Meta(ge=1)]


class Config(ExperimentConfig, frozen=True, kw_only=True):
    """One learning batch has `n_agents` × `unroll` rows.

    Attributes:
        algorithm: `ppo` or `a2c`.
        env: gymnasium id.
        unroll: Steps of each agent between two learning batches.
        lr: Adam's learning rate; lr_decay: share of it that is gone at the end of the run.
        lam: λ of GAE. entropy: weight of the entropy bonus. normalize: advantages to mean 0, standard deviation 1.
        reward_scale: Rewards are multiplied by it in learning; reported returns are the environment's.
        epochs, minibatches, clip: Of PPO alone.
    """

    algorithm: Literal["ppo", "a2c"] = "ppo"
    env: str = "CartPole-v1"
    hidden: tuple[Positive, ...] = (64, 64)
    unroll: Positive = 128
    gamma: Annotated[float, Meta(ge=0, le=1)] = 0.99
    lam: Annotated[float, Meta(ge=0, le=1)] = 0.95
    lr: Annotated[float, Meta(gt=0)] = 3e-4
    lr_decay: Annotated[float, Meta(ge=0, le=1)] = 0.0
    entropy: Annotated[float, Meta(ge=0)] = 0.0
    value_weight: Annotated[float, Meta(ge=0)] = 0.5
    normalize: bool = True
    reward_scale: Annotated[float, Meta(gt=0)] = 1.0
    max_grad_norm: Annotated[float, Meta(gt=0)] = 0.5
    epochs: Positive = 4
    minibatches: Positive = 4
    clip: Annotated[float, Meta(gt=0, lt=1)] = 0.2


def build(config: Config, env: EnvSource = None) -> Robot:
    """The robot of a configuration; `env` in place of its id: a factory, or an environment for one agent."""
    iterations = config.total_steps // (config.n_agents * config.unroll)
    ppo = config.algorithm == "ppo"
    updates = iterations * (config.epochs * config.minibatches if ppo else 1)
    options: dict[str, Any] = dict(
        gamma=config.gamma, lam=config.lam, entropy=config.entropy, value_weight=config.value_weight, normalize=config.normalize,
        reward_scale=config.reward_scale, max_grad_norm=config.max_grad_norm, lr=schedule(config.lr, config.lr_decay, updates))
    if ppo:
        options |= dict(epochs=config.epochs, minibatches=config.minibatches, clip=config.clip)
    source = config.env if env is None else env
    spaces, agent = probed(source)
    model, sizes = network(spaces, MLPActorCritic, ConvActorCritic, config.hidden, Config().hidden)
    func = create_algorithm_func(model, sizes, PPO if ppo else A2C, options)
    return one_task_robot(config, source, agent,
                          ComputationTask(func, lambda: OnPolicyHelper(unroll=config.unroll), device=config.device))
