"""A policy task and an auxiliary task on one trunk. `auxiliary=false` is the same robot without the second task.

CartPole's four numbers come with `noise` more that mean nothing. The auxiliary task learns from the same steps, from a buffer and
at a pace of its own, to predict the next observation and the action between two, which only the four real numbers help with.
No setting was found that does without it at this budget (scores: docs/robots.md); with more steps or less noise the gap closes.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from parl_like.algorithm import Shared, create_algorithm_func
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.computation_task import ComputationTask
from parl_like.data.replay_buffer import ReplayBuffer
from parl_like.envs.wrappers import NoisyObservation
from parl_like.models.dynamics import Dynamics, Trunk
from parl_like.models.mlp import MLPQ
from parl_like.robot import Robot
from parl_like.robots import dqn
from parl_like.robots.spaces import Count, Positive, Rate, Share, Weight, robot_with, schedule, spaces_of


class Config(dqn.Config, frozen=True, kw_only=True):
    """DQN on the trunk, and what the environment does next on the same trunk.

    Attributes:
        auxiliary: Whether there is the second task.
        noise: Numbers without meaning in each observation.
        trunk, hidden: Sizes of the trunk's layers, and of the layers of each head on it.
        forward, inverse: Weights of the auxiliary task's two terms. auxiliary_lr, auxiliary_every: its learning rate and pace.
        The rest: see `parl_like.robots.dqn.Config`.
    """

    auxiliary: bool = True
    noise: Count = 200
    trunk: tuple[Positive, ...] = (64,)
    forward: Weight = 0.05
    inverse: Weight = 1.0
    auxiliary_lr: Rate = 1e-3
    auxiliary_every: Positive = 1
    hidden: tuple[Positive, ...] = (64,)
    lr_decay: Share = 0.9
    epsilon_share: dqn.Part = 0.3
    target_period: Count = 200
    size: Positive = 50_000
    learn_every: Positive = 2


def build(config: Config) -> Robot:
    def make() -> gym.Env[Any, Any]:
        return NoisyObservation(gym.make(config.env, disable_env_checker=True), config.noise)

    spaces_of(config.env)  # refuses an unknown id with a clear line
    spaces = spaces_of(make)
    trunk = Shared(Trunk, spaces["obs"], config.trunk)
    policy = create_algorithm_func(
        MLPQ, {**spaces, "trunk": trunk, "hidden": config.hidden, "dueling": config.dueling}, DQN, dqn.algorithm_args(config))
    dynamics = create_algorithm_func(
        Dynamics, {**spaces, "trunk": trunk, "hidden": config.hidden},
        DynamicsLearner, {"forward": config.forward, "inverse": config.inverse,
                          "lr": schedule(config.auxiliary_lr, config.lr_decay, config.total_steps // config.auxiliary_every)})

    tasks = {"RL": ComputationTask(policy, lambda: dqn.helper_of(config), device=config.device)}
    if config.auxiliary:
        pace = {"learn_every": config.auxiliary_every, "updates": 1, "buffer": ReplayBuffer}
        tasks["auxiliary"] = ComputationTask(dynamics, lambda: dqn.helper_of(config, **pace), device=config.device)
    return robot_with(config, make, tasks)
