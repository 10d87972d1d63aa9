"""Two tasks at two paces: where the car should be, and how to get there. `hierarchy=false` is the same learner without the goals.

MountainCar-v0 pays −1 per step until the flag is reached, and the engine is too weak to drive there directly. A single policy that
explores step by step hardly ever swings high enough to see a different reward. Here a goal task picks one of a few positions and keeps
it for up to `horizon` steps, and a worker is paid for getting closer to it. The worker is soon good at pushing towards a position;
from then on even random goals swing the car up, and the goal task learns which to ask for when.

Deterministic evaluation over 50 episodes after 120,000 steps, seeds 0–4 (−200: never reached the flag):

RESULTS
"""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from msgspec import Meta

from parl_like.agent_helper import OnPolicyHelper
from parl_like.algorithm import create_algorithm_func
from parl_like.algorithms.actor_critic import PPO
from parl_like.computation_task import ComputationTask
from parl_like.lab.config import ExperimentConfig
from parl_like.models.mlp import MLPActorCritic
from parl_like.robot import Robot
from parl_like.robots.goal_agent import GOAL_EXTRAS, GoalAgent
from parl_like.robots.spaces import schedule

Positive = Annotated[int, Meta(ge=1)]
LOW, HIGH, FASTEST = -1.2, 0.6, 0.07  # of MountainCar: leftmost and rightmost position, largest speed


class Config(ExperimentConfig, frozen=True, kw_only=True):
    """Both tasks are PPO with networks of the same size.

    Attributes:
        hierarchy: False: one PPO policy on the environment's own reward, everything else equal.
        goals: Positions to choose from, evenly spaced. horizon: Steps after which a goal is given up.
        worker_unroll, goal_unroll: Steps, and goals, of each agent between two learning batches of the task.
        gamma: Discount per step, at both levels; a goal that took n steps is discounted by its n-th power.
        worker_gamma: That of the worker, whose episodes are short.
    """

    hierarchy: bool = True
    hidden: tuple[Positive, ...] = (64, 64)
    goals: Annotated[int, Meta(ge=2)] = 6
    horizon: Positive = 20
    worker_unroll: Positive = 64
    goal_unroll: Positive = 16
    gamma: Annotated[float, Meta(ge=0, le=1)] = 0.995
    worker_gamma: Annotated[float, Meta(ge=0, le=1)] = 0.95
    lr: Annotated[float, Meta(gt=0)] = 1e-3
    lr_decay: Annotated[float, Meta(ge=0, le=1)] = 0.0
    epochs: Positive = 10
    minibatches: Positive = 4
    entropy: Annotated[float, Meta(ge=0)] = 0.01


class CarAgent(GoalAgent):
    """Goals are positions, by number. A goal is achieved where the car reaches or passes it."""

    def __init__(self, goals: int, horizon: int) -> None:
        self.places = np.linspace(LOW + 0.1, HIGH - 0.1, goals, dtype=np.float32)
        self.goal_horizon = horizon
        self._side = 0.0

    def goal_obs(self, obs: Any, prev_goal: Any) -> Any:
        return np.concatenate([scaled(obs), np.eye(len(self.places), dtype=np.float32)[prev_goal]])

    def worker_obs(self, obs: Any, goal: Any) -> Any:
        return np.append(scaled(obs), self.places[goal])

    def follow(self, start: Any, goal: Any, prev_goal: Any) -> tuple[Any, bool]:
        self._side = np.sign(self.places[goal] - start[0])
        return super().follow(start, goal, prev_goal)

    def goal_achieved(self, obs: Any, goal: Any) -> bool:
        away = self.places[goal] - obs[0]
        return bool(abs(away) < 0.05 or np.sign(away) != self._side)

    def intrinsic_reward(self, obs: Any, goal: Any, obs_next: Any) -> float:
        """Ten times the distance gained, and 1 for arriving."""
        place = self.places[goal]
        return float(10.0 * (abs(obs[0] - place) - abs(obs_next[0] - place)) + self.goal_achieved(obs_next, goal))


def scaled(obs: Any) -> Any:
    """Position and speed, both within about [−1, 1]."""
    return np.array([(obs[0] - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2), obs[1] / FASTEST], np.float32)


class ScaledCar(gym.ObservationWrapper[Any, Any, Any]):
    """MountainCar with the observation that `CarAgent` gives its networks, for the robot without goals."""

    def __init__(self) -> None:
        super().__init__(gym.make("MountainCar-v0", disable_env_checker=True))
        self.observation_space = box(2)

    def observation(self, observation: Any) -> Any:
        return scaled(observation)


def box(n: int) -> gym.spaces.Box:
    return gym.spaces.Box(-2.0, 2.0, (n,), np.float32)


def build(config: Config) -> Robot:
    def ppo(obs: gym.Space[Any], act: gym.Space[Any], rows_per_step: float, unroll: int, **options: Any) -> Any:
        batches = config.total_steps * rows_per_step / (config.n_agents * unroll)
        updates = int(batches * config.epochs * config.minibatches)
        return create_algorithm_func(
            MLPActorCritic, {"obs": obs, "act": act, "hidden": config.hidden}, PPO,
            {"lam": 0.95, "lr": schedule(config.lr, config.lr_decay, updates), "epochs": config.epochs,
             "minibatches": config.minibatches, "entropy": config.entropy, **options})

    actions = gym.spaces.Discrete(3)
    if not config.hierarchy:
        policy = ppo(box(2), actions, 1.0, config.worker_unroll, gamma=config.gamma, reward_scale=0.05)
        return Robot(ScaledCar, tasks={"RL": ComputationTask(policy, lambda: OnPolicyHelper(unroll=config.worker_unroll), device=config.device)},
                     n_agents=config.n_agents, driver=config.driver, seed=config.seed, trace=config.trace)
    goal = ppo(box(2 + config.goals), gym.spaces.Discrete(config.goals), 1.0 / config.horizon, config.goal_unroll,
               gamma=config.gamma, reward_scale=0.05)
    worker = ppo(box(3), actions, 1.0, config.worker_unroll, gamma=config.worker_gamma)
    tasks = {
        "goal": ComputationTask(goal, lambda: OnPolicyHelper(unroll=config.goal_unroll, extras=GOAL_EXTRAS), device=config.device),
        "RL": ComputationTask(worker, lambda: OnPolicyHelper(unroll=config.worker_unroll), device=config.device),
    }
    return Robot("MountainCar-v0", agent=lambda: CarAgent(config.goals, config.horizon), tasks=tasks, n_agents=config.n_agents,
                 driver=config.driver, seed=config.seed, trace=config.trace)
