"""Rewards in standard deviations of the discounted return: counted over checkpoints, too, and resumed exactly."""

from collections import defaultdict

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import a2c
from test_carried_episodes import Clonable, Lottery, robot_of, vector

from parl_like import ComputationTask, Hook, OnPolicyHelper, Robot, VectorAgent
from parl_like.data.transforms import ReturnScaling

GAMMA = 0.9


class Returns(Hook):
    """R ← γ R + r of every environment, by hand."""

    def __init__(self, carried):
        self.carried, self.now, self.seen = carried, defaultdict(float), []

    def post_episode(self, agent, interrupted):
        if not (interrupted and self.carried):  # else it goes on
            self.now[agent.index, agent.env.env_index] = 0.0

    def post_act(self, agent):
        rew = agent.env.last_step[2]
        rows = [(i, rew[i]) for i in np.flatnonzero(agent.env.valid).tolist()] if agent.vector else [(0, rew)]
        for i, value in rows:
            self.now[agent.index, i] = GAMMA * self.now[agent.index, i] + value
            self.seen.append(self.now[agent.index, i])


def build(kind, env=Clonable, hooks=()):
    task = ComputationTask(a2c(Lottery), lambda: OnPolicyHelper(unroll=7, transforms=[ReturnScaling(GAMMA)]))
    if kind == "single":
        return robot_of(env, task, hooks=hooks)
    if kind == "next step":
        def group():
            return gym.vector.SyncVectorEnv([env] * 3, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)
        return robot_of(group, task, agent=VectorAgent, n_agents=1, hooks=hooks)
    return robot_of(vector(env), task, agent=VectorAgent, n_agents=1, hooks=hooks)


@pytest.mark.parametrize("kind", ["single", "same step", "next step"])
@pytest.mark.parametrize("env", [Clonable, Lottery], ids=["carried", "cut"])
def test_the_deviation_is_that_of_returns_counted_by_hand_and_a_resume_is_exact(kind, env, tmp_path):
    counted = Returns(env is Clonable)

    def go_on(robot, path):
        for _ in range(2):
            robot.run(robot.env_steps + 42)
            robot.save(tmp_path / path)

    with build(kind, env, [counted]) as whole, build(kind, env) as part:
        go_on(whole, "half")
        go_on(whole, "end")
        moments = next(iter(whole.transforms["RL"])).moments["return"].state_dict()
        assert moments["n"].tolist() == [len(counted.seen)]
        np.testing.assert_allclose([moments["mean"][0], moments["var"][0]], [np.mean(counted.seen), np.var(counted.seen)])
        part.load(tmp_path / "half")
        go_on(part, "again")
        assert part.trace_hash() == whole.trace_hash()
        np.testing.assert_equal(next(iter(part.transforms["RL"])).moments["return"].state_dict(), moments)


def test_an_update_has_the_scale_of_its_own_unroll():
    """Its first update, too: rewards of 100 are not learned from as they are."""
    rewards = []

    class Rich(Clonable):
        def step(self, act):
            obs, rew, *rest = super().step(act)
            return obs, 100 * rew, *rest

    task = ComputationTask(a2c(Rich), lambda: OnPolicyHelper(unroll=64, transforms=[ReturnScaling(GAMMA, clip=None)]))
    with Robot(Rich, tasks={"RL": task}, seed=0) as robot:
        learn = robot.tasks["RL"].algorithm.learn
        robot.tasks["RL"].algorithm.learn = lambda batch: rewards.append(np.asarray(batch.rew)) or learn(batch)
        robot.run(128)
    assert len(rewards) == 2 and all(0 < np.abs(rew).max() < 10 for rew in rewards)
