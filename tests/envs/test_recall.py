"""The recall environment: what it shows, when it pays, and that its state can be cloned."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import parl_like.envs  # noqa: F401  # makes its id known
from parl_like.envs.recall import Recall


def test_an_episode_shows_the_cue_then_nothing_then_asks_and_pays_for_the_right_answer():
    env = Recall(length=3, cues=3)
    for seed in range(10):
        for right in (True, False):
            first, _ = env.reset(seed=seed)
            cue = int(first[:3].argmax())
            assert first.tolist() == [*np.eye(3)[cue], 0.0]
            for _ in range(3):
                obs, rew, terminated, truncated, _ = env.step(cue)
                assert not obs.any() and (rew, terminated, truncated) == (0.0, False, False)
            obs, rew, terminated, _, _ = env.step(cue)
            assert obs.tolist() == [0, 0, 0, 1] and not rew and not terminated
            _, rew, terminated, truncated, _ = env.step(cue if right else (cue + 1) % 3)
            assert (rew, terminated, truncated) == (float(right), True, False)
            with pytest.raises(gym.error.ResetNeeded):
                env.step(0)
    cues = {int(env.reset()[0].argmax()) for _ in range(50)}
    assert cues == {0, 1, 2}


def test_it_is_an_environment_of_gymnasium_with_an_id_and_a_length():
    env = gym.make("Recall-v0", length=5)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    assert sum(1 for _ in iter(lambda: env.step(0)[2], True)) == 6  # and one that ends it
    for options in (dict(length=-1), dict(cues=1)):
        with pytest.raises(ValueError, match="expected at least"):
            Recall(**options)
    with pytest.raises(ValueError, match="action is 2"):
        env.reset()
        env.unwrapped.step(2)


def test_a_cloned_state_goes_on_alike():
    env, other = Recall(), Recall()
    env.reset(seed=4)
    env.step(0)
    other.restore_state(env.clone_state())
    for _ in range(60):
        obs, *rest = env.step(1)
        also, *too = other.step(1)
        assert np.array_equal(obs, also) and rest == too
        if rest[1]:
            assert np.array_equal(env.reset()[0], other.reset()[0])
