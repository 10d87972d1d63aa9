"""Several rewards at once: weighted to one number that learners see, with every part in the metrics; else refused by name."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from agent_fakes import a2c, dqn, ppo
from transport_fakes import OVER_RAY, connected, one_ray  # noqa: F401 - fixtures

from parl_like import Agent, ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import IMPALA
from parl_like.algorithms.impala import Stream
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.state import clone_state, restore_state
from parl_like.environment.stop_conditions import StopAtReturn, StopWhen, StopWithoutImprovement
from parl_like.envs.vector import make_vector_env
from parl_like.envs.wrappers import RewardWeights
from parl_like.learning.model import Model
from parl_like.models import MLPActorCritic
from parl_like.values.errors import AgentFailed


class TwoAims(gym.Env):
    """Rewards (1, t) for step t = 1 … 4, in one array that is written again and again; returns (4, 10)."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    reward_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self):
        self.rew = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, act):
        self.t += 1
        self.rew[:] = 1, self.t
        return np.full(2, self.t / 4, np.float32), self.rew, self.t == 4, False, {}


class Silent(TwoAims):
    """Says nothing of its two rewards."""

    reward_space = None


def weighted():
    return RewardWeights(TwoAims(), (0.5, 2.0))  # 0.5 · 4 + 2 · 10 = 22 an episode


def robot_of(env, algorithm=None, helper=lambda: OnPolicyHelper(unroll=8), **options):
    return Robot(env, tasks={"RL": ComputationTask(algorithm or a2c(weighted), helper)}, seed=0, **{"n_agents": 2, **options})


@pytest.mark.parametrize("options", [
    dict(), dict(driver="threads"), dict(driver=Processes(workers=2)),
    pytest.param(dict(driver=OVER_RAY.values[0]), marks=OVER_RAY.marks), dict(agent=lambda: VectorAgent(n_envs=3)),
    dict(env=lambda: make_vector_env(weighted, 3), agent=VectorAgent, n_agents=1),
    dict(algorithm=dqn(weighted), helper=lambda: OffPolicyHelper(size=100, batch_size=8)), dict(algorithm=ppo(weighted)),
], ids=["single", "threads", "processes", "ray", "vector", "our vector", "dqn", "ppo"])
def test_weighted_rewards_are_numbers_and_metrics_keep_the_parts(options, tmp_path):
    options = {"env": weighted, **options}
    with robot_of(**options) as robot, robot_of(**options) as other:
        robot.run(120)
        metrics = robot.metrics()
        assert (metrics["return/mean"], metrics["return/part_0"], metrics["return/part_1"]) == (22.0, 4.0, 10.0)
        assert robot.tasks["RL"].algorithm.updates and robot.evaluate(3).mean_return == 22.0
        robot.save(tmp_path / "c")
        other.load(tmp_path / "c")
        assert other.metrics()["return/part_1"] == 10.0


def test_learners_see_the_weighted_number():
    with robot_of(weighted, n_agents=1) as robot:
        robot.collect(n_step=4)
        assert robot.buffers["RL"].columns["rew"][:4].tolist() == [2.5, 4.5, 6.5, 8.5]


def test_a_weighted_environment_is_carried_with_its_sums():
    env, other = weighted(), weighted()
    env.reset(seed=0)
    for _ in range(2):
        env.step(0)

    class CanClone(TwoAims):
        def clone_state(self):
            return {"t": self.t}

        def restore_state(self, state):
            self.t = state["t"]

    env, other = (RewardWeights(CanClone(), (1, 1)) for _ in range(2))
    env.reset()
    env.step(0)
    other.reset()
    restore_state(other, clone_state(env))
    for _ in range(3):
        *_, info = other.step(0)
    assert info["return_parts"].tolist() == [4.0, 10.0] and info["reward_parts"].tolist() == [1.0, 4.0]


@pytest.mark.parametrize("driver", ["cooperative", "processes", OVER_RAY])
@pytest.mark.parametrize("algorithm", [a2c, ppo, dqn, "impala"])
def test_several_rewards_are_refused_at_once_by_learners_of_one(algorithm, driver):
    if algorithm == "impala":
        func = create_algorithm_func(MLPActorCritic, dict(obs=TwoAims.observation_space, act=TwoAims.action_space), IMPALA, {})
    else:
        func = algorithm(TwoAims)
    helper = (lambda: OffPolicyHelper(size=100, batch_size=8)) if algorithm is dqn else (lambda: OnPolicyHelper(unroll=8))
    with pytest.raises(ValueError, match=r"rewards of shape \(2,\), and \w+ learns from one number a step; .*RewardWeights"):
        robot_of(TwoAims, func, helper, driver=driver)


def test_rewards_that_nobody_declared_are_refused_at_the_first_step():
    with pytest.raises(AgentFailed, match=r"gave a reward of shape \(2,\), and declares a number; .*RewardWeights"), \
            robot_of(Silent) as robot:
        robot.run(10)


def test_vector_agents_refuse_them_by_name():
    with pytest.raises(ValueError, match=r"environments give rewards of shape \(2,\), .*RewardWeights"):
        robot_of(TwoAims, a2c(weighted), agent=VectorAgent)


def test_an_algorithm_with_streams_takes_them():
    class TwoValues(Model):
        def __init__(self, obs, act):
            super().__init__(obs, act)
            self.inner = MLPActorCritic(obs, act, hidden=[8])
            self.values = torch.nn.Linear(2, 2)
            self.head = self.inner.head

        def policy(self, obs, state=None):
            return self.inner.policy(obs, state)

        def value(self, obs, state=None):
            return self.values(obs)

        def evaluate(self, obs, state=None, first=None):
            return self.policy(obs)[0], self.values(obs)

    func = create_algorithm_func(TwoValues, dict(obs=TwoAims.observation_space, act=TwoAims.action_space), IMPALA,
                                 dict(streams=[Stream(gamma=0.9), Stream(gamma=0.9, read=second, name="second")]))
    with robot_of(TwoAims, func, lambda: OnPolicyHelper(unroll=8, store_policy=True)) as robot:
        robot.run(64)
        metrics = robot.metrics()
        assert robot.tasks["RL"].algorithm.updates and (metrics["return/part_0"], metrics["return/part_1"]) == (4.0, 10.0)


def second(batch):
    return batch.rew[:, 1], ~batch.terminated, torch.ones_like(batch.terminated)


class Acts(Agent):
    """Of rewards that nobody learns from, vectors are welcome."""

    def run_one_episode(self):
        self.env.reset()
        while not self.env.is_over:
            self.env.step(0)


@pytest.mark.parametrize("stop", [StopAtReturn(3, episodes=1), StopWithoutImprovement(3)])
def test_rules_that_compare_returns_say_that_vectors_have_no_order(stop):
    with Robot(TwoAims, tasks={}, agent=Acts) as robot, pytest.raises(AgentFailed, match=r"returns are vectors of shape \(2,\)"):
        robot.run(stop)
    with Robot(TwoAims, tasks={}, agent=Acts) as robot:
        robot.run(StopWhen(lambda robot: bool(robot.recent_returns) and robot.recent_returns[-1][1] >= 10))
        assert robot.recent_returns[-1].tolist() == [4.0, 10.0]


def test_watching_gives_the_vector():
    with Robot(TwoAims, tasks={}, agent=Acts) as robot:
        from parl_like import Hook
        assert robot.watch(Hook()).tolist() == [4.0, 10.0]


@pytest.mark.parametrize(("weights", "message"), [((), "finite number for each kind"), ((1, np.nan), "finite number"), (
    (1, 2, 3), r"shape \(2,\); expected \(3,\)")])
def test_weights_that_do_not_fit_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        env = RewardWeights(TwoAims(), weights)
        env.reset()
        env.step(0)
