"""Checkpoints of robots that learn from recorded rows: they name the data set, and refuse another one."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, OfflineHelper, Robot, create_algorithm_func
from parl_like.agents.warm_start import WarmStartHelper
from parl_like.algorithms import BC, DQN
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.datasets import from_arrays
from parl_like.models import MLPQ, MLPActorCritic
from parl_like.values.batch_leaf import same


def recorded(path, seed=0):
    """Writes 60 rows of random actions; returns the path."""
    rng, env = np.random.default_rng(seed), gym.make("CartPole-v1")
    obs = rng.normal(size=(60, 4)).astype(np.float32)
    from_arrays(obs=obs, act=rng.integers(2, size=60), rew=np.ones(60), terminated=np.arange(60) % 10 == 9, obs_next=obs,
                action_space=env.action_space).save(path)
    return str(path)


def robot(data, helper=OfflineHelper, **options):
    env = gym.make("CartPole-v1")
    offline = helper is OfflineHelper
    func = create_algorithm_func(MLPActorCritic if offline else MLPQ, {"obs": env.observation_space, "act": env.action_space,
                                                                       "hidden": [8]}, BC if offline else DQN, {})
    task = ComputationTask(func, lambda: helper(data, batch_size=8, **options))
    return Robot(None if offline else "CartPole-v1", tasks={"RL": task}, seed=0)


def weights(one):
    return one.tasks["RL"].algorithm.model.state_dict()


def test_a_checkpoint_names_the_rows_and_goes_on_with_them(tmp_path):
    data = recorded(tmp_path / "data")
    with robot(data) as one, robot(data) as two:
        one.run(10)
        one.save(tmp_path / "saved")
        kept = one.state_dict()["buffer.RL"]
        assert kept.keys() == {"recorded", "rng"} and kept["recorded"]["path"] == data and len(kept["recorded"]["sha256"]) == 64
        assert sum(file.stat().st_size for file in (tmp_path / "saved").rglob("buffer.RL*")) < 4_000
        two.load(tmp_path / "saved")
        for each in (one, two):
            each.run(10)
        assert same(weights(one), weights(two)) and len(two.buffers["RL"]) == 60


def test_other_rows_are_refused(tmp_path):
    data = recorded(tmp_path / "data")
    with robot(data) as one:
        one.run(10)
        one.save(tmp_path / "saved")
    moved = recorded(tmp_path / "moved")  # the same rows elsewhere
    with robot(moved) as one:
        one.load(tmp_path / "saved")
    other = recorded(tmp_path / "other", seed=1)
    with robot(other) as one:
        before = {name: value.clone() for name, value in weights(one).items()}
        with pytest.raises(ValueError, match=r"task 'RL': the checkpoint learned from the rows of .*data with the sha256 .*, and "
                                             r".*other has others .*; put those rows back, or give data="):
            one.load(tmp_path / "saved")
        assert same(weights(one), before)
    in_memory = ReplayBuffer.load(data)
    with robot(in_memory) as one, pytest.raises(ValueError, match="which it does not hold; build the robot with data="):
        one.load(tmp_path / "saved")


def test_rows_that_were_added_are_saved(tmp_path):
    data = recorded(tmp_path / "data")
    with robot(data) as one:
        one.run(10)
        buffer = one.buffers["RL"]
        buffer.push(0, tuple(column[0] for column in buffer.columns.values()))
        one.save(tmp_path / "saved")
        assert len(one.state_dict()["buffer.RL"]["columns"]["obs"]) == len(buffer) == 60  # the oldest made room
        rows = buffer.columns["obs"].copy()
    with robot(recorded(tmp_path / "again")) as two:
        two.load(tmp_path / "saved")
        assert np.array_equal(two.buffers["RL"].columns["obs"], rows)
        assert "columns" in two.state_dict()["buffer.RL"]


def test_rows_in_memory_are_saved(tmp_path):
    with robot(ReplayBuffer.load(recorded(tmp_path / "data"))) as one:
        one.run(10)
        assert len(one.state_dict()["buffer.RL"]["columns"]["obs"]) == 60


def test_who_goes_on_online_learns_from_the_same_recorded_rows(tmp_path):
    data, options = recorded(tmp_path / "data"), {"size": 200, "warmup": 8, "offline_updates": 4}
    with robot(data, WarmStartHelper, **options) as one:
        one.run(30)
        one.save(tmp_path / "saved")
    with robot(data, WarmStartHelper, **options) as two:
        two.load(tmp_path / "saved")
    other = recorded(tmp_path / "other", seed=1)
    with robot(other, WarmStartHelper, **options) as two, pytest.raises(ValueError, match="has others .*; put those rows back"):
        two.load(tmp_path / "saved")


def test_rows_that_were_added_are_no_recorded_ones_of_another_robot(tmp_path):
    data = recorded(tmp_path / "data")
    with robot(data) as one:
        buffer = one.buffers["RL"]
        buffer.push(0, tuple(column[0] for column in buffer.columns.values()))
        with robot(data) as two:
            assert two.state_dict()["buffer.RL"].keys() == {"recorded", "rng"}
