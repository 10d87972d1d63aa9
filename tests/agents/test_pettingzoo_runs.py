"""PettingZoo's own environments and one of MPE learn a little: by turns and at once, with masks, and with players who die."""

import warnings

import numpy as np
import pytest

from parl_like.run.robot import Robot

pytest.importorskip("pettingzoo")


def made(module, kind="env", **options):
    """A factory of environments of a package that says that its way of making them is old."""
    def make():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package, name = module.rsplit(".", 1)
            return getattr(getattr(pytest.importorskip(package), name, None) or pytest.importorskip(module), kind)(**options)

    return make


@pytest.mark.parametrize("module, n", [("pettingzoo.classic.tictactoe_v3", 2), ("pettingzoo.classic.connect_four_v3", 2),
                                       ("pettingzoo.classic.rps_v2", 2)])
@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_classic_games_are_played_by_all_players(module, n, algorithm):
    pytest.importorskip("pygame")
    sizes = {"warmup": 30, "batch_size": 16} if algorithm == "DQN" else {"unroll": 8, "minibatches": 1, "epochs": 1}
    with Robot.of(algorithm, made(module), n_agents=2, hidden=[16], **sizes) as robot:
        robot.run(150)
        assert robot.tasks["RL"].learns and {len(agent.helpers) for agent in robot.agents} == {n}
        if robot.episodes:
            assert np.sum(robot.recent_returns[-1]) == 0  # what one wins another loses


@pytest.mark.parametrize("driver", ["cooperative", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_simple_spread_is_played_at_once(driver):
    pytest.importorskip("mpe2")
    make = made("mpe2.simple_spread_v3", "parallel_env", max_cycles=10)
    with Robot.of("PPO", make, n_agents=2, unroll=10, minibatches=1, epochs=1, hidden=[16], driver=driver) as robot:
        robot.run(60)
        assert robot.episodes == 6 and robot.tasks["RL"].learns and robot.metrics()["return/agent_2"] < 0


def test_knights_archers_and_zombies_who_die_one_by_one():
    pytest.importorskip("pygame")
    pytest.importorskip("pymunk")
    make = made("pettingzoo.butterfly.knights_archers_zombies_v11", "parallel_env", max_cycles=60, spawn_delay=2, max_zombies=30)
    with Robot.of("PPO", make, n_agents=1, unroll=20, minibatches=1, epochs=1, hidden=[16]) as robot:
        robot.run(150)
        assert robot.tasks["RL"].learns and robot.episodes >= 1 and len(robot.agents[0].helpers) == 4
        assert robot.recent_lengths[-1] <= 60
