"""Vector environments of other libraries, passed through to an agent: ale_py's and EnvPool's, each where it is installed."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import Plain, Recorder, robot_of, rows
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_like import OffPolicyHelper, VectorAgent
from parl_like.envs.sokoban import SokobanVectorEnv
from parl_like.envs.vector import make_vector_env


def keep():
    return OffPolicyHelper(size=2000, batch_size=1, learn_every=10**9)


def still(envs):
    """Always the first action."""
    return Recorder(Plain(envs.single_observation_space, envs.single_action_space))


def test_a_factory_without_a_number_is_asked_once():
    made = []

    def make():
        made.append(SokobanVectorEnv(3, size=5, n_boxes=1))
        return made[-1]

    assert make_vector_env(make) is made[0] and len(made) == 1
    assert type(make_vector_env(partial(SyncVectorEnv, [partial(gym.make, "CartPole-v1")] * 2))) is SyncVectorEnv
    with pytest.raises(ValueError, match="n is None; expected at least 1 environment of .* which makes a single one"):
        make_vector_env(partial(gym.make, "CartPole-v1"))


@pytest.mark.parametrize("options",
                         [{"seed": 3}, {"autoreset": "NextStep"}, {"restart": True}, {"step_timeout": 1.0}, {"workers": 1},
                          {"copy": False}], ids=str)
def test_options_that_come_too_late_are_refused(options):
    name = next(iter(options))
    with pytest.raises(ValueError, match=f"{name} came too late for .*; give such things to its constructor, and a seed to its "
                                         "reset"):
        make_vector_env(SokobanVectorEnv(2, size=5, n_boxes=1), **options)


def ale(mode, **options):
    vector = pytest.importorskip("ale_py.vector_env")
    return vector.AtariVectorEnv("breakout", 3, autoreset_mode=mode, max_num_frames_per_episode=200, img_height=20, img_width=16,
                                 stack_num=2, **options)


def test_ales_modes_do_not_mix():
    first = make_vector_env(ale("NextStep"))
    second = make_vector_env(ale("SameStep"))
    assert first.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert second.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_agent_plays_ales_environments(mode):
    envs = make_vector_env(lambda: ale(mode, noop_max=0, use_fire_reset=False))
    ale("SameStep" if mode == "NextStep" else "NextStep")  # writes its mode into the class
    with robot_of(still(envs), keep, env=lambda: envs, agent=VectorAgent) as robot:
        seen = robot.collect(n_episode=6)
        stored = [rows(robot, lane=lane) for lane in range(3)]
    assert seen.lengths == [50] * 6  # 200 raw frames, four a step
    for lane in stored:
        assert lane["truncated"].tolist() == ([False] * 49 + [True]) * 2 and not lane["terminated"].any()
        inner = np.arange(100) % 50 != 49
        at = np.flatnonzero(inner)
        np.testing.assert_array_equal(lane["obs_next"][at], lane["obs"][at + 1])  # every row goes on where it ended
        assert (lane["obs_next"][49] != lane["obs"][50]).any()  # a final frame is not the next game's first


def test_an_agent_plays_envpools_environments():
    """Installed by hand (`pip install envpool`): it is large. EnvPool resets in the next step, and is seeded where it is made."""
    envpool = pytest.importorskip("envpool")
    envs = make_vector_env(lambda: envpool.make_gymnasium("CartPole-v1", num_envs=4, seed=5))
    with (
        pytest.warns(UserWarning, match="seeds are fixed"),
        robot_of(still(envs), keep, env=lambda: envs, agent=VectorAgent) as robot,
    ):
        seen = robot.collect(n_episode=8)
        lane = rows(robot, lane=2)
    assert seen.n_steps == sum(seen.lengths) == int(sum(seen.returns))  # no row that only resets
    ends = np.flatnonzero(lane["terminated"])
    assert len(ends) >= 2
    inner = np.setdiff1d(np.arange(len(lane["rew"]) - 1), ends)
    np.testing.assert_array_equal(lane["obs_next"][inner], lane["obs"][inner + 1])
