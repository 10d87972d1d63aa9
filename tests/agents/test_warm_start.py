"""Offline and online in one run: updates from recorded rows before the first act, rows of both afterwards, and no loss."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, Robot, create_algorithm_func
from parl_like.agents.warm_start import WarmStartHelper
from parl_like.algorithms import DQN
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.datasets import from_arrays
from parl_like.data.transforms import Tier, Transform
from parl_like.models import MLPQ

OBS, ACT = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(3, start=2)


class Pick(gym.Env):
    """An episode is one step: 1 for the choice whose number is the largest."""

    observation_space, action_space = OBS, ACT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-0.8, 0.8, 3).astype(np.float32)
        return self.obs, {}

    def step(self, act):
        return self.obs, float(self.obs.argmax() == act - 2), True, False, {}


def data(n=600):
    """Rows that random actions have made, at places that the environment never shows."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-0.8, 0.8, (n, 3)).astype(np.float32) + np.float32(0.1)
    act = rng.integers(3, size=n)
    return from_arrays(obs=obs, act=act + 2, rew=(obs.argmax(1) == act).astype(float), terminated=np.ones(n, bool), obs_next=obs,
                       action_space=ACT)


def robot(seed=0, n_agents=1, updates=200, **options):
    func = create_algorithm_func(MLPQ, dict(obs=OBS, act=ACT, hidden=(32,)), DQN, dict(lr=5e-3, epsilon=0.0))
    given = {"size": 500, "batch_size": 32, "learn_every": 4, "offline_updates": updates, **options}
    rows = data()
    return Robot(Pick, tasks={"RL": ComputationTask(func, lambda: WarmStartHelper(rows, **given))}, n_agents=n_agents, seed=seed)


def watched(robot):
    """The updates from now on: observations, and how many steps were made before."""
    seen, task = [], robot.tasks["RL"]
    learn = task.learn

    def noted(batch):
        seen.append((robot.env_steps, batch["obs"].copy()))
        return learn(batch)
    task.learn = noted
    return seen


@pytest.mark.parametrize("n_agents", [1, 3])
def test_first_the_data_alone_then_both(n_agents):
    recorded = {tuple(row) for row in data().columns["obs"].tolist()}
    with robot(n_agents=n_agents) as one:
        seen = watched(one)
        one.run(240)
        own = {tuple(row) for row in one.buffers["RL"].columns["obs"].tolist()}
    before, after = [obs for steps, obs in seen if not steps], [obs for steps, obs in seen if steps]
    assert 200 <= len(before) <= 202 and len(after) > 30, "each agent does its part of them, rounded up"
    assert all(tuple(row) in recorded for obs in before for row in obs.tolist())
    for obs in after:
        assert sum(tuple(row) in recorded for row in obs.tolist()) == 16 == sum(tuple(row) in own for row in obs.tolist())


def test_what_was_learned_offline_is_not_lost_online():
    with robot(updates=400) as one:
        one.run(1)
        offline = one.evaluate(200, seed=1).mean_return
        scores = []
        for _ in range(4):
            one.run(100)
            scores.append(one.evaluate(200, seed=1).mean_return)
    assert offline > 0.8 and min(scores) >= 0.8 * offline, (offline, scores)


def test_it_is_resumed_without_the_offline_part(tmp_path):
    with robot() as one, robot(seed=1) as other:
        one.run(20)
        one.save(tmp_path / "state")
        other.load(tmp_path / "state")
        seen = watched(other)
        other.run(40)
        assert len(seen) <= 12 and other.tasks["RL"].learns == one.tasks["RL"].learns + len(seen)


def test_without_a_share_later_updates_have_no_recorded_rows():
    recorded = {tuple(row) for row in data().columns["obs"].tolist()}
    with robot(share=0.0, updates=3) as one:
        seen = watched(one)
        one.run(100)
    assert len(seen) > 10 and not any(tuple(row) in recorded for steps, obs in seen if steps for row in obs.tolist())


class Lengths(Transform):
    """`length` of the buffer that a row is from, and its reward as it stands there."""

    tier = Tier.BUFFER

    def replay(self, rows, source):
        at = source.indices
        return rows | {"length": np.full(len(at), len(source.buffer)), "there": source.buffer.get(at, "rew")}


def test_a_transform_reads_the_buffer_that_the_rows_are_from():
    with robot(transforms=[Lengths()], updates=2) as one:
        task, seen = one.tasks["RL"], []
        learn = task.learn
        task.learn = lambda batch: seen.append({key: np.array(value) for key, value in batch.items()}) or learn(batch)
        one.run(60)
    assert len(seen) > 4 and all((rows["there"] == rows["rew"]).all() for rows in seen)
    assert all((rows["length"] == 600).all() for rows in seen[:2])
    assert all((rows["length"] == 600).sum() == 16 for rows in seen[2:])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="WarmStartHelper: batch_size is 700"):
        WarmStartHelper(data(), batch_size=700)
    with pytest.raises(ValueError, match="recorded rows have no priorities"):
        robot(buffer=PrioritizedReplayBuffer)
    func = create_algorithm_func(MLPQ, dict(obs=OBS, act=ACT), DQN, dict(n_step=3))
    with pytest.raises(ValueError, match="DQN looks at 3 rows at a time.*give n_step=1"):
        Robot(Pick, tasks={"RL": ComputationTask(func, lambda: WarmStartHelper(data()))})
