"""A robot that learns what states are worth under a given policy; its score says how far it is from the exact values.

    score = −√(mean (V(s) − v_π(s))²)       over all states s in which π may have to act

The exact values v_π are those of the environment's table, by `policy_evaluation`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parl_like.algorithms.tables.dynamic_programming import model_of, policy_evaluation
from parl_like.algorithms.tables.prediction import ValuePrediction, probabilities
from parl_like.environment.factory import make_one
from parl_like.lab.yaml_text import ConfigError
from parl_like.robots import single
from parl_like.robots.spaces import Env
from parl_like.run.robot import Robot
from parl_like.values.spec import Array


class Config(single.Config, frozen=True, kw_only=True):
    """As that of `single`, whose robot this is.

    Attributes:
        algorithm: One that predicts values of a policy, such as `TD`.
    """

    algorithm: str = "TD"
    env: Env = Env(id="RandomWalk-v0")


def build(config: Config) -> Robot:
    """Return the robot of a configuration.

    Raises:
        ConfigError: the algorithm predicts no values, or has no policy.
        TypeError: the environment has no table.
        ValueError: there is no discount, and the policy may go on for ever.
    """
    robot = single.build(config)
    try:
        exact, acts = values_of(robot.tasks["RL"].algorithm, make_one(robot.pool.options.env))
    except BaseException:
        robot.close()
        raise

    def score(robot: Robot, episodes: object) -> float:
        error = robot.tasks["RL"].algorithm.model.table - exact
        return -float(np.sqrt(np.mean(error[acts] ** 2)))

    robot.score = score
    return robot


def values_of(learner: Any, env: Any) -> tuple[Array, Array]:
    """Return the exact values [S] of the policy that an algorithm values, and [S] bool in which states it may have to act.

    Raises:
        ConfigError, TypeError, ValueError: as `build`.
    """
    if not isinstance(learner, ValuePrediction) or learner.behaviour is None:
        raise ConfigError(f"Config: {type(learner).__name__} values no policy of its own; expected TD, NStepTD or "
                          "MonteCarloPrediction with a policy, or the robot 'single'")
    given, model = getattr(learner, "target", None), model_of(env)
    policy = learner.behaviour if given is None else probabilities(given, learner.model, type(learner).__name__)
    exact, acts = policy_evaluation(model, policy, learner.gamma), model.start > 0
    moves = (policy[:, None] @ model.moves)[:, 0] > 0
    while (more := acts | moves[acts].any(0)).sum() > acts.sum():
        acts = more
    if np.isnan(exact[acts]).any():
        raise ValueError(f"{type(learner).__name__}: gamma is 1, and the policy may go on for ever; expected a smaller gamma")
    return exact, acts
