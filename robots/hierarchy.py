"""Two tasks at two paces: what to go for next, and how to get it. `hierarchy=false` is the same learner without the goals.

In DoorKey rooms nothing is paid until a key was fetched, a door unlocked and the exit reached, which a single policy hardly ever
does by chance. A worker that is paid for each of these three trips soon knows them; from then on the goal task needs only their
right order, which random orders find often. `levels=3` has a task between the two, which leads to a thing cell by cell: then the
worker learns no way at all, but to enter the next cell, or to use what is there. Scores: docs/robots.md, docs/skills.md.
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
from parl_like.robots.goal_agent import GOAL_EXTRAS, Followed, GoalAgent
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
        levels: Of a hierarchy: 2, or 3 with the task `way`.
        size: Of the square room, walls included. max_steps: Steps after which an episode is cut.
        horizon: Steps after which a goal is given up.
        cell_horizon: Steps after which the way to the next cell is given up.
    """

    hierarchy: bool = True
    levels: Annotated[int, Meta(ge=2, le=3)] = 2
    size: Annotated[int, Meta(ge=5, le=16)] = 8
    max_steps: Positive = 300
    horizon: Positive = 30
    cell_horizon: Positive = 5


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


HEADINGS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
"""MiniGrid's: east, south, west, north, as steps (x, y)."""


def ways(obs: Any) -> Any:
    """Return the ways to the three things, [3, 2] (east, south), as shares of the room's size."""
    east, south = HEADINGS[int(obs[:4].argmax())]
    return obs[11:17].reshape(3, 2) @ np.array([[east, south], [-south, east]], np.float32)


class CellAgent(GoalAgent):
    """Goals are the four directions, MiniGrid's numbers of headings: be in the next cell there, or have taken or opened what is
    there. A goal is given up in another cell, and at the horizon.

    Attributes:
        start: The observation in which the goal was chosen.
    """

    tasks = ("way", "RL")
    start: Any = None

    def __init__(self, size: int, horizon: int) -> None:
        self.size, self.goal_horizon = size, horizon

    def follow(self, start: Any, goal: Any) -> Followed:
        self.start = start
        return super().follow(start, goal)

    def worker_obs(self, obs: Any, goal: Any) -> Any:
        """Return what lies ahead, key, door, and where the goal is: ahead, to the right, behind, to the left; [11] float32."""
        return np.concatenate([obs[4:11], np.eye(4, dtype=np.float32)[(goal - int(obs[:4].argmax())) % 4]])

    def moved(self, obs: Any) -> Any:
        """Return the cells (east, south) since the goal was chosen."""
        return np.rint((ways(self.start)[EXIT] - ways(obs)[EXIT]) * self.size).astype(int)

    def goal_name(self, goal: Any) -> str:
        return ("east", "south", "west", "north")[int(goal)]

    def goal_achieved(self, obs: Any, goal: Any) -> bool:
        used = bool((obs[9:11] > self.start[9:11]).any()) and int(obs[:4].argmax()) == goal  # not a door that is shut again
        return used or bool((self.moved(obs) == HEADINGS[goal]).all())

    def aborted(self, obs: Any, goal: Any, steps: int) -> bool:
        return bool(self.moved(obs).any()) or super().aborted(obs, goal, steps)


class WayAgent(KeyAgent):
    """A `KeyAgent` whose worker chooses the next cell, which a `CellAgent` below it gets."""

    tasks = ("goal", "way")

    def __init__(self, horizon: int, size: int, cell_horizon: int) -> None:
        super().__init__(horizon)
        self.below = CellAgent(size, cell_horizon)

    def worker_obs(self, obs: Any, goal: Any) -> Any:
        return np.concatenate([obs, np.eye(3, dtype=np.float32)[goal], ways(obs).ravel()])


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
    things = partial(learner, "goal", 20, gym.spaces.Discrete(3), 2.0 / config.horizon, GOAL_EXTRAS)
    if config.levels == 3:
        tasks = {
            "goal": things(unroll=4),
            "way": learner("way", 26, gym.spaces.Discrete(4), 0.5, GOAL_EXTRAS, unroll=16, gamma=0.95),
            "RL": learner("RL", 11, actions, 1.0, unroll=16, gamma=0.9),
        }
        return robot_with(config, room, tasks, partial(WayAgent, config.horizon, config.size, config.cell_horizon), parts=parts)
    tasks = {
        "goal": things(unroll=8),
        "RL": learner("RL", 22, actions, 1.0, unroll=64, gamma=0.95),  # a worker's episodes are short
    }
    return robot_with(config, room, tasks, partial(KeyAgent, config.horizon), parts=parts)
