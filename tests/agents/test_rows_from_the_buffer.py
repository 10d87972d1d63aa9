"""A transform of one's own that reads the buffer: it gets buffer, positions and rows in the helper, before these are sent."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import Corridor, Recorder, robot_of

from parl_like import (
    EpisodicHelper,
    OffPolicyHelper,
    OnPolicyHelper,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Robot,
    VectorAgent,
)
from parl_like.data.transforms import Hindsight, RewardScaling, Tier, Transform, UntransformedTimeStep
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.algorithm import Window

GAMMA = 0.5


class Returns(Transform):
    """`ret`: the discounted rewards from a row to the newest row of its episode, as far as that is stored."""

    tier = Tier.BUFFER

    def replay(self, rows, source):
        at, ret, weight = source.indices, np.zeros(len(source.indices)), np.ones(len(source.indices))
        while weight.any():
            ret += weight * source.buffer.get(at, "rew")
            after = source.buffer.next(at)
            at, weight = after, np.where(after == at, 0.0, GAMMA * weight)
        return rows | {"ret": ret.astype(np.float32)}


class Paying(Corridor):
    """Step k pays k, from 1."""

    def step(self, act):
        obs, _, *rest = super().step(act)
        return obs, float(self.at), *rest


def by_hand(position, newest):
    return sum(GAMMA**k * (position + 1 + k) for k in range(newest - position))


class Rows(Recorder):
    takes_priorities = True

    def learn(self, batch):
        return {**super().learn(batch), "priority": np.ones(len(batch.rew))}


@pytest.mark.parametrize("buffer", [ReplayBuffer, partial(ReplayBuffer, ignore_obs_next=True), PrioritizedReplayBuffer])
@pytest.mark.parametrize("agent", [{}, {"agent": partial(VectorAgent, 2)}, {"n_agents": 3}], ids=str)
def test_a_return_from_later_rows_of_the_buffer(buffer, agent):
    """Episodes of 5 steps: each update comes when all rows of an episode are there, so each return is the whole one."""
    algorithm = Rows()
    helper = lambda: OffPolicyHelper(size=300, batch_size=20, learn_every=5, buffer=buffer,  # noqa: E731
                                     transforms=[Returns(), RewardScaling(10.0)])
    with robot_of(algorithm, helper, Paying, **agent) as robot:
        robot.collect(n_episode=6)
        for _ in range(4):
            robot.update("RL")
    assert algorithm.updates_seen
    for rows in algorithm.updates_seen:
        assert rows["ret"].tolist() == [by_hand(int(at), 5) for at in rows["obs"][:, 0]], "of raw rewards"
        assert rows["rew"].tolist() == [10.0 * (at + 1) for at in rows["obs"][:, 0]]


@pytest.mark.parametrize("helper", [lambda: OnPolicyHelper(unroll=3, transforms=[Returns()]),
                                    lambda: EpisodicHelper(transforms=[Returns()])], ids=["unrolls", "episodes"])
def test_also_of_rows_that_are_learned_from_once(helper):
    algorithm = Recorder()
    with robot_of(algorithm, helper, Paying) as robot:
        robot.run(StopAfterSteps(15))
    for rows in algorithm.updates_seen:
        ends = [i for i, last in enumerate(rows["last"]) if last]
        for i, at in enumerate(rows["obs"][:, 0]):
            newest = int(rows["obs"][min(end for end in ends if end >= i), 0]) + 1
            assert rows["ret"][i] == by_hand(int(at), newest), "what is not stored yet does not count"
    assert sum(len(rows["ret"]) for rows in algorithm.updates_seen) == 15


@pytest.mark.parametrize("window", [Window(sequence=3), Window(sequence=2, burn_in=1), Window(n_step=2)], ids=str)
def test_rows_of_sequences_and_of_several_steps(window):
    algorithm = Recorder()
    algorithm.window = window
    with robot_of(algorithm, lambda: OffPolicyHelper(size=60, batch_size=10, transforms=[Returns()]), Paying) as robot:
        robot.collect(n_episode=4)
        robot.update("RL")
    rows = algorithm.updates_seen[0]
    assert rows["ret"].shape == rows["obs"].shape[:-1]
    assert rows["ret"].ravel().tolist() == [by_hand(int(at), 5) for at in rows["obs"][..., 0].ravel()]


@pytest.mark.parametrize("options", [{"mode": "async"}, {"driver": "threads"}, {"driver": "processes"}], ids=str)
def test_under_other_drivers(options):
    algorithm = Recorder()
    helper = lambda: OffPolicyHelper(size=60, batch_size=10, learn_every=5, warmup=20, transforms=[Returns()])  # noqa: E731
    with robot_of(algorithm, helper, Paying, n_agents=2, **options) as robot:
        robot.run(60)
    assert algorithm.updates_seen and all(
        set(rows["ret"]) <= {by_hand(at, end) for at in range(5) for end in range(at + 1, 6)} for rows in algorithm.updates_seen)


class Goals(gym.Env):
    """Never played."""

    observation_space = gym.spaces.Dict({key: gym.spaces.Box(-1, 1, (2,))
                                         for key in ("observation", "achieved_goal", "desired_goal")})
    action_space = gym.spaces.Discrete(2)


@pytest.mark.parametrize("transform", [Returns(), UntransformedTimeStep(), Hindsight()], ids=lambda one: type(one).__name__)
def test_a_helper_without_rows_refuses_it_by_name(transform):
    told = f"{type(transform).__name__}.* changes rows of a buffer, and PopulationHelper keeps none; leave it out, or use a"
    with pytest.raises(ValueError, match=told):
        Robot.of("ES", Goals if isinstance(transform, Hindsight) else "CartPole-v1", transforms=[transform], population=4).close()
    Robot.of("ES", "CartPole-v1", transforms=[RewardScaling(2.0)], population=4).close()
