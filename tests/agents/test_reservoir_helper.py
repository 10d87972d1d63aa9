"""ReservoirHelper: keeps rows of all times alike, learns from them, and goes on after a checkpoint."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from parl_like import ComputationTask, Robot
from parl_like.agents.agent import Agent
from parl_like.agents.reservoir import ReservoirHelper
from parl_like.algorithms import BC
from parl_like.models import MLPActorCritic


class Parity(gym.Env):
    """Episodes of one step; the observation counts the steps of the whole run."""

    observation_space, action_space = gym.spaces.Box(0, 1e6, (1,), np.float32), gym.spaces.Discrete(2)

    def __init__(self):
        self.n = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n += 1
        return np.array([self.n], np.float32), {}

    def step(self, action):
        return np.array([self.n], np.float32), 0.0, True, False, {}


class Shows(Agent):
    """Stores, whatever the task would do, the parity of what it sees."""

    def run_one_episode(self):
        obs, _ = self.env.reset()
        self.env.step(0)
        self.helpers["copy"].store(obs, int(obs[0]) % 2, 0.0, obs, True, False)


def robot(n_agents=1, **options):
    spaces = {"obs": Parity.observation_space, "act": Parity.action_space}
    task = ComputationTask(lambda: BC(partial(MLPActorCritic, **spaces, hidden=[4])), partial(ReservoirHelper, **options))
    return Robot(Parity, tasks={"copy": task}, agent=Shows, n_agents=n_agents, seed=0)


def test_rows_of_all_times_are_kept_alike():
    with robot(size=50, batch_size=10, learn_every=10, warmup=20) as one:
        one.run(2000)
        helper = one.agents[0].helpers["copy"]
        kept = helper.reservoir.columns["obs"][:, 0]
        assert len(helper.reservoir) == 50 and helper.reservoir.seen == helper.steps == 2000
        assert 2000 * 0.35 < kept.mean() < 2000 * 0.65 and kept.min() < 400 < 1600 < kept.max()
        np.testing.assert_array_equal(helper.reservoir.columns["act"], kept.astype(int) % 2)
        task = one.tasks["copy"]
        assert task.learns == (2000 - 20) // 10 + 1 and task.rows_learned == 10 * task.learns


def test_it_goes_on_where_a_checkpoint_was(tmp_path):
    states = []
    for saves in (False, True):
        with robot(n_agents=2, size=30, batch_size=4, learn_every=3) as one:
            one.run(100)
            one.save(tmp_path / "half") if not saves else one.load(tmp_path / "half")
            one.run(100)
            states.append([agent.helpers["copy"].reservoir.columns["obs"].tolist() for agent in one.agents]
                          + [value.tolist() for value in one.tasks["copy"].algorithm.model.state_dict().values()])
    assert states[0] == states[1]


def test_an_evaluation_stores_nothing():
    with robot(size=30, batch_size=4) as one:
        one.run(20)
        seen = one.agents[0].helpers["copy"].reservoir.seen
        one.evaluate(3)
        assert one.agents[0].helpers["copy"].reservoir.seen == seen == 20


@pytest.mark.parametrize(("options", "message"), [
    ({"size": 0}, "size is 0; expected at least 1"), ({"learn_every": 0}, "learn_every is 0"),
    ({"size": 10, "batch_size": 11}, "batch_size .11. is above size .10."), ({"sizes": 1}, "'sizes'"),
])
def test_bad_options(options, message):
    with pytest.raises((ValueError, TypeError), match=f"ReservoirHelper: .*{message}"):
        ReservoirHelper(**options)
