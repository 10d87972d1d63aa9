"""The robot that predicts values: its score is −RMS error from the exact ones, over the states in which the policy acts."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like.lab import config as configs
from parl_like.lab.yaml_text import ConfigError
from parl_like.robots import prediction

WALK = {"env": {"id": "RandomWalk-v0", "options": {"rewards": [0.0, 1.0]}}, "gamma": 1.0}


def build(**overrides):
    return prediction.build(configs.resolve(prediction.Config, {}, {**WALK, **overrides}))


@pytest.mark.parametrize("algorithm", ["TD", "NStepTD", "MonteCarloPrediction"])
def test_the_score_is_the_error_from_the_exact_values(algorithm):
    """Of the walk of Sutton & Barto they are 1/6 … 5/6; the ends do not count."""
    with build(algorithm=algorithm) as robot:
        table = robot.tasks["RL"].algorithm.model.table
        table[:] = [9.0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 9.0]
        assert robot.evaluate(1, seed=0).score == pytest.approx(0.0, abs=1e-12)
        table[1] += 0.3
        table[4] -= 0.4
        assert robot.evaluate(1, seed=0).score == pytest.approx(-np.sqrt(0.25 / 5))
        robot.run(300)
        assert robot.evaluate(1, seed=0).score > -0.2


def test_the_policy_that_is_valued_is_the_target_where_there_is_one():
    """Episodes of even play; valued is who always goes right, who gets 1 from everywhere."""
    right = [[0.0, 1.0]] * 7
    with build(algorithm="MonteCarloPrediction", **{"MonteCarloPrediction.target": right}) as robot:
        robot.tasks["RL"].algorithm.model.table[:] = 1.0
        exact, acts = prediction.values_of(robot.tasks["RL"].algorithm, gym.make("RandomWalk-v0", rewards=(0.0, 1.0)))
        assert exact[1:-1].tolist() == [1.0] * 5 and acts.tolist() == [False, False, False, True, True, True, False]
        assert robot.evaluate(1, seed=0).score == 0.0


@pytest.mark.parametrize(("overrides", "error", "match"), [
    ({"algorithm": "QLearning"}, ConfigError, "QLearning values no policy of its own; expected TD"),
    ({"policy": None}, ConfigError, "TD values no policy of its own"),
    ({"env": "Testbed-v0"}, TypeError, "has no table P"),
    ({"env": "RiverSwim-v0"}, ValueError, "gamma is 1, and the policy may go on for ever"),
])
def test_what_it_refuses(overrides, error, match):
    with pytest.raises(error, match=match):
        build(**overrides)
