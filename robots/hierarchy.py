"""Two tasks at two paces: what to go for next, and how to get it. `hierarchy=false` is the same learner without the goals.

In DoorKey rooms nothing is paid until a key was fetched, a door unlocked and the exit reached, which a single policy hardly ever
does by chance. A worker that is paid for each of these three trips soon knows them; from then on the goal task needs only their
right order, which random orders find often. Scores: docs/robots.md.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from msgspec import Meta

from parl_like.agents.agent import Agent
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.algorithms.ppo import PPO
from parl_like.envs.doorkey import DoorKey
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.mlp import MLPActorCritic
from parl_like.robots.goal_agent import GOAL_EXTRAS, GoalAgent
from parl_like.robots.settings import Parts, optimiser_steps
from parl_like.robots.spaces import PartsConfig, Positive, made_anew, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask

KEY, DOOR, EXIT = range(3)
DEFAULTS = {"PPO.lr": 1e-3, "PPO.epochs": 6, "PPO.entropy": 0.01}


class Config(PartsConfig, frozen=True, kw_only=True):
    """Both tasks are PPO with networks of the same size, whose arguments are settings: `robot.tasks.goal.PPO.lr`, ….

    Attributes:
        hierarchy: False: one PPO policy on the environment's own reward and the same observation, everything else equal.
        size: Of the square room, walls included. max_steps: Steps after which an episode is cut.
        horizon: Steps after which a goal is given up.
    """

    hierarchy: bool = True
    size: Annotated[int, Meta(ge=5, le=16)] = 8
    max_steps: Positive = 300
    horizon: Positive = 30


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

    def goal_name(self, goal: Any) -> str:
        return ("fetch the key", "open the door", "reach the exit")[int(goal)]

    def goal_achieved(self, obs: Any, goal: Any) -> bool:
        return bool(obs[9]) if goal == KEY else bool(obs[10]) if goal == DOOR else not way(obs, EXIT).any()

    def intrinsic_reward(self, obs: Any, goal: Any, obs_next: Any) -> float:
        """The distance gained, as a share of the room's size, and 1 for arriving."""
        if self.goal_achieved(obs_next, goal):
            return 1.0
        return float(np.abs(way(obs, goal)).sum() - np.abs(way(obs_next, goal)).sum())


def build(config: Config) -> Robot:
    """Return the robot of a configuration.

    Raises:
        ConfigError: MiniGrid is not installed.
    """
    parts = Parts(config.parts, DEFAULTS, config.__struct_fields__, Span(config.total_steps))

    def learner(name: str, obs: int, act: gym.Space[Any], rows_per_step: float, extras: Any = (), **defaults: Any) -> Any:
        """A task that learns by PPO from `obs` numbers."""
        where = f"tasks.{name}"
        rows = config.total_steps * rows_per_step / config.n_agents
        helper = parts.args(where, OnPolicyHelper, unroll=defaults.pop("unroll"))

        def updates(ppo: Any) -> float:
            unroll = parts.of(where, OnPolicyHelper)["unroll"]
            return optimiser_steps(rows / unroll, config.n_agents * unroll, ppo)

        func = create_algorithm_func(
            MLPActorCritic,
            {"obs": gym.spaces.Box(-1.0, 1.0, (obs,), np.float32), "act": act, **parts.args(where, MLPActorCritic)},
            PPO, parts.args(where, PPO, updates=updates, **defaults))
        return ComputationTask(func, made_anew(OnPolicyHelper, {"extras": extras, **helper}), device=config.device,
                               **parts.args(where, ComputationTask, skip=("device",)))

    actions = gym.spaces.Discrete(len(DoorKey.ACTIONS))

    def room() -> DoorKey:
        return DoorKey(config.size, config.max_steps)

    try:
        room().close()
    except ImportError as error:
        raise ConfigError(f"Config: {error}") from None
    if not config.hierarchy:
        return robot_with(config, room, {"RL": learner("RL", 17, actions, 1.0, unroll=64)}, Agent, parts=parts)
    tasks = {
        "goal": learner("goal", 20, gym.spaces.Discrete(3), 2.0 / config.horizon, GOAL_EXTRAS, unroll=8),
        "RL": learner("RL", 22, actions, 1.0, unroll=64, gamma=0.95),  # a worker's episodes are short
    }
    return robot_with(config, room, tasks, partial(KeyAgent, config.horizon), parts=parts)
