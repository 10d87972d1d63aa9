"""Anything callable is a policy, anything with reset and step an environment: run, counted as an evaluation, filmed."""

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import Corridor
from PIL import Image

from parl_like.environment.hooks import EpisodeStats
from parl_like.environment.stop_conditions import StopAfterEpisodes
from parl_like.envs import make_vector_env
from parl_like.run.run_policy import run_policy


class Found(Corridor):
    def step(self, act):
        *out, info = super().step(act)
        return *out, {**info, "is_success": bool(act)}


def test_it_returns_what_an_evaluation_does():
    acts = iter([0, 1, 0, 0, 1, 1, 0, 0, 0, 1])
    seen = run_policy(lambda obs: next(acts), lambda: Found(2), StopAfterEpisodes(4), hooks := EpisodeStats())
    assert seen.returns == [2.0] * 4 == hooks.returns and seen.lengths == [2] * 4 and seen.n_steps == 8
    assert seen.success_rate == 0.5 and seen.mean_return == 2.0
    seen = run_policy(lambda obs: 0, lambda: Found(5), 12)  # a number of steps, as for a robot
    assert (seen.n_episodes, seen.n_steps) == (2, 12)


class Walls(Corridor):
    def render(self):
        return None


class Policy:
    """Any callable: one that looks at the environment keeps it."""

    def __init__(self, env):
        self.env = env

    def __call__(self, obs):
        return self.env.action_space.sample()


def test_a_policy_may_look_at_its_environment_and_be_filmed(tmp_path):
    env = Corridor(4, render_mode="rgb_array")
    assert run_policy(Policy(env), env, 8, film=tmp_path / "a.gif").lengths == [4, 4]
    assert Image.open(tmp_path / "a.gif").n_frames >= 8
    assert run_policy(lambda obs: 0, Corridor, film=tmp_path / "b.gif").lengths == [5]
    with pytest.raises(ValueError, match="cannot be drawn"):
        run_policy(lambda obs: 0, lambda: gym.wrappers.TimeLimit(Walls(), 3), film=tmp_path / "c.gif")


def test_what_is_no_policy_is_told():
    with pytest.raises(TypeError, match="policy is 0; expected a function observation → action"):
        run_policy(0, Corridor)
    with pytest.raises(ValueError, match="run_policy: .* 4 environments at once; give it a single one"):
        run_policy(lambda obs: np.zeros(4, int), lambda: make_vector_env("CartPole-v1", 4))


@pytest.mark.parametrize("episodes", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_random_policy_keeps_the_pole_up_for_22_steps(episodes):
    """Its length has a standard deviation of 11.8; published for 10,000 episodes: 21 ± 2."""
    rng = np.random.default_rng(1)
    seen = run_policy(lambda obs: int(rng.integers(2)), "CartPole-v1", StopAfterEpisodes(episodes), seed=1)
    assert seen.mean_length == pytest.approx(22.2, abs=3 * 11.8 / episodes**0.5 + 0.2)
    if episodes == 10_000:
        assert 19 <= seen.mean_length <= 23
