"""Continuous actions of any shape, from a single number to a matrix, from the explorer to the environment and back into
learning."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, MultiBinary

from parl_like import ComputationTask, OffPolicyHelper, OnPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms import A2C, IMPALA, PPO
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Gaussian, Noisy, OrnsteinUhlenbeck, SquashedGaussian
from parl_like.learning.model import ArrayModel
from parl_like.models import MLPActorCritic, RecurrentActorCritic

each_shape = pytest.mark.parametrize("shape", [(), (1,), (2, 2)], ids=str)
OBS = Box(-1, 1, (3,), np.float32)
CASES = ("bounded", "unbounded", "masked", "recurrent")


class Aim(gym.Env):
    """The reward is less, the farther the action is from 0.5 in each of its numbers. The observation may be a Dict with a mask,
    which says nothing here.

    Attributes:
        acts: The actions, as they came.
    """

    def __init__(self, shape, high=2.0, masked=False):
        self.observation_space = Dict({"mask": MultiBinary(4), "x": OBS}) if masked else OBS
        self.action_space = Box(-high, high, shape, np.float32)
        self.acts = []

    def obs(self):
        x = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return x if self.observation_space is OBS else {"mask": np.zeros(4, np.int8), "x": x}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.obs(), {}

    def step(self, act):
        # gymnasium's own vector environments hand out a NumPy scalar where the shape is ().
        assert isinstance(act, (np.ndarray, np.float32)) and act.shape == self.action_space.shape
        assert self.action_space.contains(np.asarray(act))
        self.acts.append(np.array(act))
        self.left -= 1
        return self.obs(), -float(np.abs(act - 0.5).sum()), False, self.left == 0, {}


def task_of(env, algorithm=PPO, model=MLPActorCritic, **options):
    func = create_algorithm_func(model, dict(obs=env.observation_space, act=env.action_space, hidden=[16]), algorithm,
                                 dict(lr=0.01))
    return ComputationTask(func, lambda: OnPolicyHelper(unroll=16, store_policy=algorithm is IMPALA), **options)


@each_shape
@pytest.mark.parametrize("algorithm, case", [
    *[(PPO, case) for case in CASES], (A2C, "recurrent"), (IMPALA, "unbounded"),
    *[pytest.param(A2C, case, marks=pytest.mark.slow) for case in CASES if case != "recurrent"],
    *[pytest.param(IMPALA, case, marks=pytest.mark.slow) for case in CASES if case != "unbounded"],
])  # fmt: skip
def test_agents_act_and_learn_with_actions_of_any_shape(algorithm, shape, case):
    def make():
        return Aim(shape, np.inf if case == "unbounded" else 2.0, case == "masked")

    task = task_of(make(), algorithm, RecurrentActorCritic if case == "recurrent" else MLPActorCritic)
    with Robot(make, tasks={"RL": task}, n_agents=2, seed=1) as robot:
        robot.run(StopAfterSteps(64))
        assert task.learns == 2 and np.isfinite(robot.evaluate(2).returns).all()
        raw = robot.buffers["RL"].columns["act"]
        assert raw.shape[1:] == shape and len(np.unique(raw)) > 20  # every number drawn by itself
        state = robot.state_dict()
        robot.load_state_dict(state)


@each_shape
def test_vector_agents_act_and_learn_with_actions_of_any_shape(shape):
    envs = gym.vector.SyncVectorEnv([lambda: Aim(shape)] * 3)
    task = task_of(Aim(shape))
    with Robot(lambda: envs, tasks={"RL": task}, agent=VectorAgent, seed=1) as robot:
        robot.run(StopAfterSteps(96))
        assert task.learns == 2
        assert all(len(env.acts) == 32 for env in envs.envs)


@pytest.mark.parametrize("shape, serve", [
    ((), "central"), ((2, 2), "replica"),
    *[pytest.param(*one, marks=pytest.mark.slow) for one in (((), "replica"), ((2, 2), "central"), ((1,), "central"),
                                                             ((1,), "replica"))]], ids=str)
def test_worker_processes_act_with_actions_of_any_shape(shape, serve):
    def weights(driver, **options):
        task = task_of(Aim(shape), **options)
        with Robot(lambda: Aim(shape), tasks={"RL": task}, n_agents=2, driver=driver, seed=1) as robot:
            for _ in range(2):
                robot.train_iter()
            return torch.nn.utils.parameters_to_vector(task.algorithm.model.parameters())

    # Nearly equal: a replica predicts one row at a time, which torch rounds in another way than two.
    torch.testing.assert_close(weights(Processes(workers=2), serve=serve), weights("cooperative"), rtol=1e-3, atol=1e-5)


class Precise(ArrayModel):
    """What NumPy makes: float64."""


class Fixed(Algorithm):
    def __init__(self, model, explorer):
        super().__init__(model)
        self.own, self.size = explorer, int(np.prod(model.act_space.shape))

    def explorer(self):
        return self.own and self.own(self.model.act_space.shape)

    def predict(self, inputs):
        mean = np.full((*np.shape(inputs.obs)[:-1], self.size), 0.1)
        act = mean.reshape((*mean.shape[:-1], *self.model.act_space.shape))
        return {"mean": mean, "log_std": mean} if self.own else {"act": act}

    def learn(self, batch):
        assert batch.act.dtype == np.float32


@each_shape
@pytest.mark.parametrize("explorer", [Gaussian, SquashedGaussian, Noisy, OrnsteinUhlenbeck, None])
@pytest.mark.parametrize("high", [2.0, np.inf])
@pytest.mark.parametrize("helper", [lambda: OffPolicyHelper(size=50, batch_size=4, learn_every=4), OnlineHelper,
                                    lambda: OnPolicyHelper(unroll=4, store_policy=True)])
def test_policies_may_be_more_precise_than_the_space(shape, explorer, high, helper):
    if explorer in (Noisy, OrnsteinUhlenbeck, None) and isinstance(helper(), OnPolicyHelper):
        pytest.skip("no log-probability")
    algorithm = Fixed(Precise(OBS, Box(-high, high, shape, np.float32)), explorer)
    with Robot(lambda: Aim(shape, high), tasks={"RL": ComputationTask(algorithm, helper)}, seed=0) as robot:
        robot.run(StopAfterSteps(20))
        assert all(robot.agents[0].env.action_space.contains(act) for act in robot.agents[0].env.unwrapped.acts)
        assert robot.tasks["RL"].learns > 0


def test_an_action_learns_to_be_what_is_paid():
    """A matrix of four numbers, each paid for itself: the mean return of 5 steps rises from about −19 to above −10."""
    task = task_of(Aim((2, 2)))
    with Robot(lambda: Aim((2, 2)), tasks={"RL": task}, n_agents=8, seed=0) as robot:
        before = np.mean(robot.evaluate(20).returns)
        robot.run(StopAfterSteps(6_000))
        assert np.mean(robot.evaluate(20).returns) > 0.6 * before


def test_log_probabilities_are_of_the_whole_action():
    """Σ over the numbers of −½ ε² − log σ − ½ log 2π, whatever the shape."""
    for shape in ((), (4,), (2, 2)):
        explorer = Gaussian(shape, log_prob=True)
        noise = explorer.draw(np.random.default_rng(0), 0, 5)
        size = int(np.prod(shape))
        mean, log_std = np.ones((5, size), np.float32), np.full((5, size), -1.0, np.float32)
        out = explorer.act({"mean": mean, "log_std": log_std}, noise)
        assert noise.shape == out["act"].shape == (5, *shape) and out["log_prob"].shape == (5,)
        flat = noise.reshape(5, -1)
        np.testing.assert_allclose(out["log_prob"], (-0.5 * flat**2 + 1 - 0.5 * np.log(2 * np.pi)).sum(1), rtol=1e-5)
        np.testing.assert_allclose(out["act"].reshape(5, -1), 1 + np.exp(-1) * flat, rtol=1e-5)
    assert Gaussian(3).draw(np.random.default_rng(0), 0, 2).shape == (2, 3)
