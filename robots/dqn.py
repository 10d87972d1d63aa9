"""A robot with one task that learns action values off-policy (DQN), for environments with discrete actions."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from parl_like.algorithm import Linear, create_algorithm_func
from parl_like.algorithms.dqn import DQN
from parl_like.computation_task import ComputationTask
from parl_like.data.prioritized import PrioritizedReplayBuffer
from parl_like.data.replay_buffer import ReplayBuffer
from parl_like.env_source import EnvSource
from parl_like.lab.config import ExperimentConfig
from parl_like.models.conv import ConvQ
from parl_like.models.mlp import MLPQ
from parl_like.robot import Robot
from parl_like.robots.spaces import Count, Positive, Rate, Share, Weight, network, probed, robot_with, schedule
from parl_like.schedules import OffPolicyHelper

Part = Annotated[float, Meta(gt=0, le=1)]


class Config(ExperimentConfig, frozen=True, kw_only=True):
    """Of `n_agents` agents that fill one buffer and together send one training request per `learn_every` environment steps.

    Attributes:
        env: gymnasium id.
        hidden: Sizes of the hidden layers. dueling: value and advantage streams.
        lr: Adam's learning rate; lr_decay: share of it that is gone at the end of the run.
        epsilon_start, epsilon_end: Exploration, linear over the first `epsilon_share` of the run.
        target_period: Optimiser steps between two copies to the target network.
        size: Rows of the buffer, all agents together. warmup: rows before learning begins.
        updates: Optimiser steps per training occasion.
        alpha: Exponent of prioritised replay; 0: all rows are drawn alike. beta: of its importance weights, from this to 1
            linearly.
    """

    env: str = "CartPole-v1"
    hidden: tuple[Positive, ...] = (128, 128)
    dueling: bool = False
    gamma: Share = 0.99
    n_step: Positive = 3
    double: bool = True
    lr: Rate = 1e-3
    lr_decay: Share = 0.0
    epsilon_start: Share = 1.0
    epsilon_end: Share = 0.05
    epsilon_share: Part = 0.2
    target_period: Count = 320
    size: Positive = 20_000
    batch_size: Positive = 64
    learn_every: Positive = 4
    updates: Positive = 1
    warmup: Count = 1_000
    alpha: Weight = 0.0
    beta: Share = 0.4


def algorithm_args(config: Config) -> dict[str, Any]:
    """What the configuration says of `DQN`."""
    per_agent = max(int(config.total_steps * config.epsilon_share / config.n_agents), 1)
    return {"gamma": config.gamma, "n_step": config.n_step, "double": config.double, "target_period": config.target_period,
            "lr": schedule(config.lr, config.lr_decay, _lessons(config)),
            "epsilon": Linear(config.epsilon_start, config.epsilon_end, per_agent)}


def helper_of(config: Config, **options: Any) -> OffPolicyHelper:
    """A helper of the task; `options` in place of what the configuration says."""
    buffer: Any = ReplayBuffer
    if config.alpha:
        buffer = partial(PrioritizedReplayBuffer, alpha=config.alpha, beta=Linear(config.beta, 1.0, max(_lessons(config), 1)))
    keys = ("size", "batch_size", "learn_every", "updates", "warmup")
    return OffPolicyHelper(**{**{key: getattr(config, key) for key in keys}, "buffer": buffer, **options})


def _lessons(config: Config) -> int:
    return config.total_steps * config.updates // config.learn_every


def build(config: Config, env: EnvSource = None) -> Robot:
    """The robot of a configuration; `env` in place of its id: a factory, or an environment for one agent."""
    source = config.env if env is None else env
    spaces, agent = probed(source)
    model, sizes = network(spaces, MLPQ, ConvQ, config.hidden, Config().hidden)
    func = create_algorithm_func(model, {**sizes, "dueling": config.dueling}, DQN, algorithm_args(config))
    task = ComputationTask(func, lambda: helper_of(config), device=config.device)
    return robot_with(config, source, {"RL": task}, agent)
