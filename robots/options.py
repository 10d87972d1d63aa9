"""A robot that learns options, and follows one until it ends. `options=1` is the same learner without a choice: an actor-critic.

An option is a policy with an end of its own. The agent holds the one that it follows, as plain code; the task says in which
states it ends, which one to choose then, and what to do. Scores: docs/skills.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms.tables.options import OptionCritic
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.tabular import OptionTable
from parl_like.robots.following import FollowingAgent
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import Env, EvalEnv, PartsConfig, check_eval_env, env_of, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask


class Config(PartsConfig, frozen=True, kw_only=True):
    """Everything else are arguments of what the robot is built of: `OptionTable.options`, `OptionCritic.deliberation_cost`, ….

    Attributes:
        eval_env: What evaluations have instead, as far as it is said.
    """

    env: Env = Env(id="FourRooms-v0")
    eval_env: EvalEnv | None = None


class OptionAgent(FollowingAgent):
    """Follows an option of task "RL" until that ends, and chooses the next. A row's action is (option, action).

    Attributes:
        option: The one that is followed.
    """

    option = 0
    _begins = True

    def caption(self) -> str:
        return f"option {self.option}"

    def begin(self) -> None:
        self._begins = True

    def drawn(self, chances: Any) -> int:
        """Return a number drawn with these probabilities."""
        return min(int(np.searchsorted(np.cumsum(chances), self.rng.random(), side="right")), len(chances) - 1)

    def choose(self, seen: Any) -> tuple[int, Any]:
        known = self.helpers["RL"].predict(seen)
        if self._begins or self.rng.random() < known["end"][self.option]:
            self.option, self._begins = self.drawn(known["choice"]), False
        act = self.drawn(known["policy"][self.option])
        return act, np.array([self.option, act])


def minus_length(robot: Robot, episodes: Any) -> float:
    """Return −(the mean steps of an episode)."""
    return -float(episodes.mean_length)


def build(config: Config) -> Robot:
    """Return the robot of a configuration; its score is −(the mean steps of an episode).

    Raises:
        ConfigError: the environment is one of several players or environments. ValueError: it has other spaces than Discrete.
    """
    parts = Parts(config.parts, {}, config.__struct_fields__, Span(config.total_steps))
    source = env_of(config.env, parts)
    spaces, agent = probed(source)
    if agent is not Agent:
        raise ConfigError(f"Config: key 'env': {config.env.id} is no single environment of one player, in which options act")
    eval_env = None
    if config.eval_env is not None:
        check_eval_env(eval_env := env_of(config.eval_env.over(config.env), parts, "eval_env"), spaces)
    where = "tasks.RL"
    func = create_algorithm_func(OptionTable, {**spaces, **parts.args(where, OptionTable)}, OptionCritic,
                                 parts.args(where, OptionCritic, updates=config.total_steps))
    task = ComputationTask(func, made_anew(OnlineHelper, parts.args(where, OnlineHelper)), device=config.device,
                           **parts.args(where, ComputationTask, skip=("device",)))
    return robot_with(config, source, {"RL": task}, OptionAgent, parts=parts, eval_env=eval_env, score=minus_length)
