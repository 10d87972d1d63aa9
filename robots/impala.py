"""A robot with one task that learns a policy by IMPALA: from rows that need not be the newest policy's."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from parl_like.algorithm import create_algorithm_func
from parl_like.algorithms.impala import IMPALA
from parl_like.computation_task import BatchRule, ComputationTask
from parl_like.env_source import EnvSource
from parl_like.lab.config import ExperimentConfig
from parl_like.models.conv import ConvActorCritic
from parl_like.models.mlp import MLPActorCritic
from parl_like.robot import Robot
from parl_like.robots.spaces import network, one_task_robot, probed, schedule
from parl_like.schedules import OnPolicyHelper

Positive = Annotated[int, Meta(ge=1)]


class Config(ExperimentConfig, frozen=True, kw_only=True):
    """One learning batch has `batch` × `unroll` rows; of `n_agents` / `batch` batches one after the other all but the first are
    off-policy.

    Attributes:
        env: gymnasium id.
        unroll: Steps of each agent between two of its training requests. batch: requests of one optimiser step, at most
            `n_agents`.
        lr: Adam's learning rate; lr_decay: share of it that is gone at the end of the run.
        lam: λ of V-trace. entropy: weight of the entropy bonus.
        reward_scale: Rewards are multiplied by it in learning; reported returns are the environment's.
    """

    env: str = "CartPole-v1"
    hidden: tuple[Positive, ...] = (64, 64)
    unroll: Positive = 20
    batch: Positive = 8
    gamma: Annotated[float, Meta(ge=0, le=1)] = 0.99
    lam: Annotated[float, Meta(ge=0, le=1)] = 1.0
    lr: Annotated[float, Meta(gt=0)] = 1e-3
    lr_decay: Annotated[float, Meta(ge=0, le=1)] = 0.0
    entropy: Annotated[float, Meta(ge=0)] = 0.01
    value_weight: Annotated[float, Meta(ge=0)] = 0.5
    reward_scale: Annotated[float, Meta(gt=0)] = 1.0
    max_grad_norm: Annotated[float, Meta(gt=0)] = 0.5


def build(config: Config, env: EnvSource = None) -> Robot:
    """The robot of a configuration; `env` in place of its id: a factory, or an environment for one agent."""
    source = config.env if env is None else env
    batch = min(config.batch, config.n_agents)
    updates = config.total_steps // (batch * config.unroll)
    spaces, agent = probed(source)
    model, sizes = network(spaces, MLPActorCritic, ConvActorCritic, config.hidden, Config().hidden)
    func = create_algorithm_func(model, sizes, IMPALA, dict(
        gamma=config.gamma, lam=config.lam, entropy=config.entropy, value_weight=config.value_weight,
        reward_scale=config.reward_scale, max_grad_norm=config.max_grad_norm, lr=schedule(config.lr, config.lr_decay, updates)))
    return one_task_robot(config, source, agent, ComputationTask(
        func, lambda: OnPolicyHelper(unroll=config.unroll, store_policy=True), device=config.device,
        training_rule=BatchRule(max_rows=batch * config.unroll)))
