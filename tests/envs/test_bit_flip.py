"""BitFlip: what flipping earns, that hindsight on its rows gives its own rewards, and that its state can be cloned."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import parl_like.envs  # noqa: F401  # makes its id known
from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.data.transforms import Hindsight
from parl_like.data.transforms.hindsight import goal_reached
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.bit_flip import BitFlip
from parl_like.models import MLPQ


def test_flipping_the_bits_that_differ_reaches_the_goal_and_the_episode_goes_on():
    env = BitFlip(6)
    obs, _ = env.reset(seed=3)
    wrong = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
    assert 1 < len(wrong) < 6
    for k in range(6):
        before = obs
        obs, rew, terminated, truncated, info = env.step(wrong[min(k, len(wrong) - 1)])
        assert np.abs(obs["observation"] - before["observation"]).sum() == 1.0  # what was handed out stays as it was
        here = np.array_equal(obs["achieved_goal"], obs["desired_goal"])
        assert rew == (0.0 if here else -1.0) and here == (k >= len(wrong) - 1 and (k - len(wrong)) % 2 == 1)
        assert (terminated, truncated, info["is_success"]) == (False, k == 5, k >= len(wrong) - 1)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_rewards_of_many_rows_are_those_that_hindsight_gives():
    rng = np.random.default_rng(0)
    achieved, goal = rng.integers(2, size=(2, 50, 3)).astype(np.float32)
    rew = BitFlip(3).compute_reward(achieved, goal)
    np.testing.assert_array_equal(rew, goal_reached(achieved, goal))
    assert {*rew.tolist()} == {0.0, -1.0}


def test_hindsight_gives_rows_goals_that_were_reached():
    """Of 10 bits, which 10 random steps do not set, without it (share 0) none is at its goal."""
    spaces = dict(obs=BitFlip(10).observation_space, act=BitFlip(10).action_space)
    reached = {}
    for share in (0.0, 0.8):
        func = create_algorithm_func(MLPQ, {**spaces, "hidden": (4,)}, DQN, dict(epsilon=1.0))
        helper = partial(OffPolicyHelper, size=500, batch_size=16, learn_every=100, transforms=[Hindsight(share=share)])
        with Robot(lambda: BitFlip(10), tasks={"RL": ComputationTask(func, helper)}, n_agents=2, seed=0) as robot:
            robot.run(StopAfterSteps(400))
            rows, at = robot.agents[0].helpers["RL"].sample(400)
        np.testing.assert_array_equal(rows["rew"], goal_reached(rows["obs_next.achieved_goal"], rows["obs_next.desired_goal"]))
        np.testing.assert_array_equal(rows["obs.desired_goal"], rows["obs_next.desired_goal"])
        reached[share] = (rows["rew"] == 0.0).mean()
    # A row t of 10 has its own future goal with probability 1 / (10 − t): on average 0.29, of four fifths of the rows.
    assert reached[0.0] < 0.01 and abs(reached[0.8] - 0.8 * 0.29) < 0.1


def test_it_is_an_environment_of_gymnasium_and_goes_on_from_a_cloned_state():
    env = gym.make("BitFlip-v0", n=4)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    env.step(1)
    other = BitFlip(4)
    other.restore_state(env.unwrapped.clone_state())
    for act in (0, 2, 3):
        (obs, *rest), (also, *too) = env.step(act), other.step(act)
        assert all(np.array_equal(obs[name], also[name]) for name in obs) and rest == too
    (obs, _), (also, _) = env.reset(), other.reset()
    assert all(np.array_equal(obs[name], also[name]) for name in obs)
    with pytest.raises(ValueError, match="n is 0"):
        BitFlip(0)
    with pytest.raises(ValueError, match="action is 4"):
        other.step(4)
