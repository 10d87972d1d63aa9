"""The two-step game by its table, and environments of mpe2 by their ids."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like import Robot, make_env
from parl_like.environment.state import clone_state, restore_state
from parl_like.envs.central_state import CentralState
from parl_like.envs.joint import Joint
from parl_like.envs.two_step import TwoStep


def test_its_payoffs_are_those_of_the_paper():
    env = gym.make("TwoStep-v0").unwrapped
    earned = {}
    for first in (0, 1):
        for acts in ((0, 0), (0, 1), (1, 0), (1, 1)):
            obs, _ = env.reset(seed=0)
            assert obs["state"].tolist() == [1, 0, 0] and obs["obs"].tolist() == [[1, 0, 0]] * 2
            obs, rew, terminated, truncated, _ = env.step(np.array([first, acts[0]]))
            assert (rew, terminated, truncated) == (0.0, False, False) and obs["state"].argmax() == 1 + first
            _, rew, terminated, truncated, info = env.step(np.array(acts))
            assert (terminated, truncated) == (True, False) and info["rewards"].tolist() == [rew, rew]
            earned[(first, *acts)] = rew
    assert list(earned.values()) == [7, 7, 7, 7, 0, 1, 1, 8]


def test_pettingzoos_own_test_passes():
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import parallel_api_test

    parallel_api_test(TwoStep(), num_cycles=20)


def test_it_goes_on_from_a_cloned_state():
    env, other = Joint(TwoStep()), Joint(TwoStep())
    env.reset()
    other.reset()
    env.step([1, 0])
    restore_state(other, clone_state(env))
    assert other.step([1, 1])[1:4] == (16.0, True, False)
    restore_state(other, clone_state(env))
    assert other.step([0, 1])[1:4] == (2.0, True, False)


@pytest.mark.parametrize("view", [Joint, CentralState])
def test_a_wrapper_that_remembers_is_not_passed_over(view):
    """It passes on the environment's own methods, which know nothing of it."""
    pytest.importorskip("pettingzoo")
    from pettingzoo.utils import BaseParallelWrapper

    class Counts(BaseParallelWrapper):
        def step(self, actions):
            self.steps = getattr(self, "steps", 0) + 1
            return super().step(actions)

    env = view(BaseParallelWrapper(TwoStep()))
    env.reset()
    assert clone_state(env)
    env = view(Counts(TwoStep()))
    env.reset()
    with pytest.raises(TypeError, match="clone_state: what .*Counts remembers is not known; give it the methods"):
        clone_state(env)


class Unequal(TwoStep):
    """Its players have actions of one and of three numbers."""

    def action_space(self, agent):
        return gym.spaces.Box(-2, 0, (1,)) if agent == "player_0" else gym.spaces.Box(0, 3, (3,))

    def step(self, actions):
        assert {name: act.tolist() for name, act in actions.items()} == {"player_0": [-1.5], "player_1": [1.0, 2.0, 3.0]}
        return super().step(dict.fromkeys(actions, 1))


def test_boxes_of_different_lengths_are_as_long_as_the_longest_and_the_rest_is_ignored():
    env = Joint(Unequal())
    assert env.action_space == gym.spaces.Box(np.array([[-2, 0, 0], [0, 0, 0]], np.float32),
                                              np.array([[0, 1, 1], [3, 3, 3]], np.float32), (2, 3), np.float32)
    env.reset()
    env.step(np.array([[-1.5, 0.4, 0.6], [1.0, 2.0, 3.0]], np.float32))


def test_environments_of_mpe2_are_known_by_their_ids():
    pytest.importorskip("mpe2")
    with Robot.of("QMIX", "mpe2/simple_spread_v3", total_steps=100, n_agents=1, warmup=16, batch_size=8, hidden=(8,)) as robot:
        robot.run(50)
        assert robot.tasks["RL"].version > 0
    with pytest.raises(ValueError, match="mpe2: no environment 'simple_sprad_v3'; did you mean 'simple_spread_v3'"):
        Robot.of("QMIX", "mpe2/simple_sprad_v3")
    env = make_env("mpe2/simple_spread_v3", max_cycles=3)
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("central", [True, False])
def test_maddpg_learns_from_rewards_of_each_player(central):
    class Apart(Unequal):
        def step(self, actions):
            return TwoStep.step(self, dict.fromkeys(actions, 1))

    options = {"total_steps": 100, "n_agents": 1, "warmup": 16, "random_steps": 8, "batch_size": 8, "learn_every": 4}
    with Robot.of("MADDPG", lambda: Joint(Apart(), reward="each"), central=central, hidden=(8,), **options) as robot:
        robot.run(60)
        assert robot.tasks["RL"].version > 0
