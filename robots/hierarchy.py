"""Two tasks at two paces: what to go for next, and how to get it. `hierarchy=false` is the same learner without the goals.

In DoorKey rooms nothing is paid until a key was fetched, a door unlocked and the exit reached, which a single policy hardly ever
does by chance. A worker that is paid for each of these three trips soon knows them; from then on the goal task needs only their
right order, which random orders find often. Scores: docs/robots.md.
"""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from msgspec import Meta

from parl_like.algorithm import create_algorithm_func
from parl_like.algorithms.actor_critic import PPO
from parl_like.computation_task import ComputationTask
from parl_like.envs.doorkey import DoorKey
from parl_like.lab.config import ConfigError, ExperimentConfig
from parl_like.models.mlp import MLPActorCritic
from parl_like.robot import Robot
from parl_like.robots.goal_agent import GOAL_EXTRAS, GoalAgent
from parl_like.robots.spaces import Positive, Rate, Share, Weight, robot_with, schedule
from parl_like.schedules import OnPolicyHelper

KEY, DOOR, EXIT = range(3)


class Config(ExperimentConfig, frozen=True, kw_only=True):
    """Both tasks are PPO with networks of the same size.

    Attributes:
        hierarchy: False: one PPO policy on the environment's own reward and the same observation, everything else equal.
        size: Of the square room, walls included. max_steps: Steps after which an episode is cut.
        horizon: Steps after which a goal is given up.
        worker_unroll, goal_unroll: Steps, and goals, of each agent between two learning batches of the task.
        gamma: Discount per step, at both levels; a goal that took n steps is discounted by its n-th power.
        worker_gamma: That of the worker, whose episodes are short.
    """

    hierarchy: bool = True
    size: Annotated[int, Meta(ge=5, le=16)] = 8
    max_steps: Positive = 300
    hidden: tuple[Positive, ...] = (64, 64)
    horizon: Positive = 30
    worker_unroll: Positive = 64
    goal_unroll: Positive = 8
    gamma: Share = 0.99
    worker_gamma: Share = 0.95
    lr: Rate = 1e-3
    lr_decay: Share = 0.0
    epochs: Positive = 6
    minibatches: Positive = 4
    entropy: Weight = 0.01


def way(obs: Any, goal: int) -> Any:
    """(forward, right) to a thing, as a share of the room's size."""
    return obs[11 + 2 * goal : 13 + 2 * goal]


class KeyAgent(GoalAgent):
    """Goals are the three things, by number: have the key, have the door open, be at the exit."""

    def __init__(self, horizon: int) -> None:
        self.goal_horizon = horizon

    def goal_obs(self, obs: Any, prev_goal: Any) -> Any:
        return np.concatenate([obs, np.eye(3, dtype=np.float32)[prev_goal]])

    def worker_obs(self, obs: Any, goal: Any) -> Any:
        return np.concatenate([obs, np.eye(3, dtype=np.float32)[goal], way(obs, goal)])

    def goal_achieved(self, obs: Any, goal: Any) -> bool:
        return bool(obs[9]) if goal == KEY else bool(obs[10]) if goal == DOOR else not way(obs, EXIT).any()

    def intrinsic_reward(self, obs: Any, goal: Any, obs_next: Any) -> float:
        """The distance gained, as a share of the room's size, and 1 for arriving."""
        if self.goal_achieved(obs_next, goal):
            return 1.0
        return float(np.abs(way(obs, goal)).sum() - np.abs(way(obs_next, goal)).sum())


def build(config: Config) -> Robot:
    def learner(obs: int, act: gym.Space[Any], rows_per_step: float, unroll: int, gamma: float, extras: Any = ()) -> Any:
        """A task that learns by PPO from `obs` numbers."""
        updates = int(config.total_steps * rows_per_step / (config.n_agents * unroll) * config.epochs * config.minibatches)
        func = create_algorithm_func(
            MLPActorCritic, {"obs": gym.spaces.Box(-1.0, 1.0, (obs,), np.float32), "act": act, "hidden": config.hidden}, PPO,
            {"lam": 0.95, "lr": schedule(config.lr, config.lr_decay, updates), "epochs": config.epochs,
             "minibatches": config.minibatches, "entropy": config.entropy, "gamma": gamma})
        return ComputationTask(func, lambda: OnPolicyHelper(unroll=unroll, extras=extras), device=config.device)

    actions = gym.spaces.Discrete(len(DoorKey.ACTIONS))

    def room() -> DoorKey:
        return DoorKey(config.size, config.max_steps)

    try:
        room().close()
    except ImportError as error:
        raise ConfigError(f"Config: {error}") from None
    if not config.hierarchy:
        return robot_with(config, room, {"RL": learner(17, actions, 1.0, config.worker_unroll, config.gamma)})
    tasks = {
        "goal": learner(20, gym.spaces.Discrete(3), 2.0 / config.horizon, config.goal_unroll, config.gamma, GOAL_EXTRAS),
        "RL": learner(22, actions, 1.0, config.worker_unroll, config.worker_gamma),
    }
    return robot_with(config, room, tasks, lambda: KeyAgent(config.horizon))
