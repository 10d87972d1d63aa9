"""A robot whose second task chooses where each episode begins. `curriculum=false` is the same learner without it.

The task `curriculum` sees how episodes of each level ended, and chooses the level in which most is learned now. The agent asks it
before each episode, and tells it after it. Evaluations play the environment as it is. Scores: docs/skills.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import gymnasium as gym
import msgspec

from parl_like.agents.agent import Agent
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms.tables.curriculum import LearningProgress
from parl_like.algorithms.tables.temporal_difference import QLearning
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.tabular import QTable
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import Env, PartsConfig, env_of, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask


class Config(PartsConfig, frozen=True, kw_only=True):
    """Everything else are arguments of what the robot is built of: `QLearning.lr`, `LearningProgress.epsilon`, ….

    Attributes:
        curriculum: Whether there is the second task.
        levels: What the option of the environment's reset is in each level: states in which episodes begin, numbers of tasks.
        option: Name of that option: `state`, or of a `Multitask` environment `task`.
    """

    curriculum: bool = True
    env: Env = Env(id="CombinationLock-v0")
    levels: tuple[int, ...] = tuple(reversed(range(20)))
    option: Annotated[str, msgspec.Meta(min_length=1)] = "state"


class CurriculumAgent(Agent):
    """Asks task "curriculum" for the level of each episode, which tasks "RL" plays, and stores what the episode returned.

    Args:
        levels: The options of `reset`, for each level.
    """

    def __init__(self, levels: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        self.levels = levels

    def level_obs(self) -> Any:
        """Return what the curriculum's task sees before an episode. Default: nothing, the one state 0."""
        return 0

    def run_one_episode(self) -> None:
        teacher, helper = self.helpers["curriculum"], self.helpers["RL"]
        if teacher.context.mode == "test":
            obs, _ = self.env.reset()
        else:
            seen = self.level_obs()
            level = teacher.predict(seen)
            obs, _ = self.env.reset(options=self.levels[int(level)])
        total, done = 0.0, False
        while not done:
            act = helper.predict(obs)
            obs_next, rew, terminated, truncated, info = self.env.step(act)
            helper.store(obs, act, rew, obs_next, terminated, truncated, info)
            obs, total, done = obs_next, total + float(rew), terminated or truncated
        if teacher.context.mode != "test":
            teacher.store(seen, level, total, self.level_obs(), True, False)


def build(config: Config) -> Robot:
    """Return the robot of a configuration.

    Raises:
        ConfigError: there are no levels, or the environment is one of several players or environments. ValueError: it has other
            spaces than Discrete.
    """
    parts = Parts(config.parts, {}, config.__struct_fields__, Span(config.total_steps))
    source = env_of(config.env, parts)
    spaces, agent = probed(source)
    if agent is not Agent or not config.levels:
        raise ConfigError(f"Config: env is {config.env.id} with {len(config.levels)} levels; expected a single environment of "
                          "one player, and at least one level")

    def task(name: str, algorithm: type, spaces: dict[str, Any]) -> ComputationTask:
        where = f"tasks.{name}"
        func = create_algorithm_func(QTable, {**spaces, **parts.args(where, QTable)}, algorithm,
                                     parts.args(where, algorithm, updates=config.total_steps, acts=config.total_steps))
        return ComputationTask(func, made_anew(OnlineHelper, parts.args(where, OnlineHelper)), device=config.device,
                               **parts.args(where, ComputationTask, skip=("device",)))

    tasks = {"RL": task("RL", QLearning, spaces)}
    if not config.curriculum:
        return robot_with(config, source, tasks, agent, parts=parts)
    tasks["curriculum"] = task("curriculum", LearningProgress, {"obs": gym.spaces.Discrete(1),
                                                                "act": gym.spaces.Discrete(len(config.levels))})
    levels = [{config.option: one} for one in config.levels]
    return robot_with(config, source, tasks, partial(CurriculumAgent, levels), parts=parts)
