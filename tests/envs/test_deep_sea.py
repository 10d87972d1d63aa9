"""DeepSea: what a dive earns, which actions mean right, and that its state can be cloned."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import parl_like.envs  # noqa: F401  # makes its id known
from parl_like.envs.deep_sea import DeepSea


def dive(env, choose):
    obs, total, ended = env.reset()[0], 0.0, False
    cells = []
    while not ended:
        cells.append(divmod(int(obs.argmax()), env.size))
        assert obs.sum() == 1.0
        obs, rew, ended, truncated, _ = env.step(choose(*cells[-1]))
        total += rew
    assert not obs.any() and not truncated
    return total, cells


def test_only_right_all_the_way_pays():
    env = DeepSea(size=10)
    total, cells = dive(env, lambda row, column: env.right[row, column])
    assert total == pytest.approx(0.99) and cells == [(i, i) for i in range(10)]
    assert dive(env, lambda row, column: 1 - env.right[row, column]) == (0.0, [(i, 0) for i in range(10)])
    # One step to the left on the way: nine to the right cost 0.001 each, and lead to the corner's neighbour.
    total, cells = dive(env, lambda row, column: env.right[row, column] ^ (row == 4))
    assert total == pytest.approx(-0.009) and cells[-1] == (9, 7)


def test_what_actions_mean_is_drawn_once():
    assert np.array_equal(DeepSea(8).right, DeepSea(8).right) and {*DeepSea(8).right.ravel()} == {0, 1}
    assert not np.array_equal(DeepSea(8).right, DeepSea(8, mapping=1).right)


def test_it_is_an_environment_of_gymnasium_and_goes_on_from_a_cloned_state():
    env = gym.make("DeepSea-v0", size=5)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    env.step(1)
    other = DeepSea(5)
    other.restore_state(env.unwrapped.clone_state())
    for _ in range(4):
        obs, *rest = env.step(0)
        also, *too = other.step(0)
        assert np.array_equal(obs, also) and rest == too
    with pytest.raises(gym.error.ResetNeeded):
        other.step(0)
    with pytest.raises(ValueError, match="size is 0"):
        DeepSea(0)
    with pytest.raises(ValueError, match="action is 2"):
        other.reset()
        other.step(2)
