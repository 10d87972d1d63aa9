"""Two tasks at two paces: what to go for next, and how to get it. `hierarchy=false` is the same learner without the goals.

In MiniGrid's DoorKey rooms a key must be fetched and a door unlocked before the way to the exit is free, and nothing is paid
until the exit is reached. A single policy that explores step by step hardly ever does all three in order. Here a goal task picks
one of the three things and keeps it for up to `horizon` steps, and a worker is paid for getting there and for handling it. The
worker soon knows its three short trips; from then on the goal task needs only the right order of them, and random orders find it
often.

Deterministic evaluation over 50 episodes after 100,000 steps, seeds 0–4 (a success pays 1 − 0.9 · steps / limit, else 0):

    with goals        0.950  0.951  0.950  0.949  0.951
    hierarchy=false   0      0      0.677  0.226  0.487

It is a matter of steps: after 150,000 the single policy, too, reaches 0.86, 0.71 and 0.93 with three seeds of five.
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
from parl_like.robots.spaces import Positive, robot_with, schedule
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
    gamma: Annotated[float, Meta(ge=0, le=1)] = 0.99
    worker_gamma: Annotated[float, Meta(ge=0, le=1)] = 0.95
    lr: Annotated[float, Meta(gt=0)] = 1e-3
    lr_decay: Annotated[float, Meta(ge=0, le=1)] = 0.0
    epochs: Positive = 6
    minibatches: Positive = 4
    entropy: Annotated[float, Meta(ge=0)] = 0.01


def carries(obs: Any) -> bool:
    return bool(obs[9])


def is_open(obs: Any) -> bool:
    return bool(obs[10])


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
        return carries(obs) if goal == KEY else is_open(obs) if goal == DOOR else not way(obs, EXIT).any()

    def intrinsic_reward(self, obs: Any, goal: Any, obs_next: Any) -> float:
        """The distance gained, as a share of the room's size, and 1 for arriving."""
        if self.goal_achieved(obs_next, goal):
            return 1.0
        return float(np.abs(way(obs, goal)).sum() - np.abs(way(obs_next, goal)).sum())


def box(n: int) -> gym.spaces.Box:
    return gym.spaces.Box(-1.0, 1.0, (n,), np.float32)


def build(config: Config) -> Robot:
    def ppo(obs: gym.Space[Any], act: gym.Space[Any], rows_per_step: float, unroll: int, **options: Any) -> Any:
        batches = config.total_steps * rows_per_step / (config.n_agents * unroll)
        updates = int(batches * config.epochs * config.minibatches)
        return create_algorithm_func(
            MLPActorCritic, {"obs": obs, "act": act, "hidden": config.hidden}, PPO,
            {"lam": 0.95, "lr": schedule(config.lr, config.lr_decay, updates), "epochs": config.epochs,
             "minibatches": config.minibatches, "entropy": config.entropy, **options})

    actions = gym.spaces.Discrete(len(DoorKey.ACTIONS))

    def room() -> DoorKey:
        return DoorKey(config.size, config.max_steps)

    try:
        room().close()
    except ImportError as error:
        raise ConfigError(f"Config: {error}") from None
    if not config.hierarchy:
        policy = ppo(box(17), actions, 1.0, config.worker_unroll, gamma=config.gamma)
        learner = ComputationTask(policy, lambda: OnPolicyHelper(unroll=config.worker_unroll), device=config.device)
        return robot_with(config, room, {"RL": learner})
    goal = ppo(box(20), gym.spaces.Discrete(3), 2.0 / config.horizon, config.goal_unroll, gamma=config.gamma)
    worker = ppo(box(22), actions, 1.0, config.worker_unroll, gamma=config.worker_gamma)
    tasks = {
        "goal": ComputationTask(goal, lambda: OnPolicyHelper(unroll=config.goal_unroll, extras=GOAL_EXTRAS),
                                device=config.device),
        "RL": ComputationTask(worker, lambda: OnPolicyHelper(unroll=config.worker_unroll), device=config.device),
    }
    return robot_with(config, room, tasks, lambda: KeyAgent(config.horizon))
