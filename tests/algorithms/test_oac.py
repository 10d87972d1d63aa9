"""OAC: where it explores, by hand, and that it is SAC without its optimism."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import OAC, SAC
from parl_like.learning.model import Model
from parl_like.models import MLPActorQ, SquashedGaussianHead

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Box(-1, 1, (2,), np.float32)


class Plain(Model):
    """μ = 0 and log σ = log 2, 0 everywhere; Q_i(s, a) = c_i · a + b_i: so ∂Q_i/∂u = c_i at μ."""

    def __init__(self, c, b):
        super().__init__(OBS, ACT)
        self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2))])
        self.c, self.b = torch.nn.Parameter(torch.tensor(c)), torch.tensor(b)
        self.head = SimpleNamespace(draw=lambda out, noise: (torch.tanh(out["mean"]), torch.zeros(len(noise))))

    def policy(self, obs):
        mean = self.actor[0].expand(len(obs), 2)
        return {"mean": mean, "log_std": torch.tensor([np.log(2.0), 0.0], dtype=torch.float32).expand(len(obs), 2)}

    def q(self, obs, act):
        return (act @ self.c.T + self.b).T


@pytest.mark.parametrize(("c", "b", "beta", "slope"), [
    ([[1.0, 0.0], [1.0, 2.0]], [0.0, 3.0], 0.0, [1.0, 1.0]),  # by the mean alone
    ([[1.0, 0.0], [1.0, 2.0]], [0.0, 3.0], 2.0, [1.0, 1.0 + 2.0]),  # ½ |Q_2 − Q_1| rises by ½ (c_2 − c_1) = 0, 1
    ([[1.0, 0.0], [1.0, 2.0]], [3.0, 0.0], 2.0, [1.0, 1.0 - 2.0]),
    ([[1.0, 0.0], [1.0, 2.0]], [0.0, 0.0], 2.0, [1.0, 1.0]),  # they agree
    ([[1.0, 0.0], [0.0, 0.0], [2.0, 3.0]], [2.0, 0.0, 4.0], 1.5, [1.0 + np.sqrt(1.5), 1.0 + 1.5 * np.sqrt(1.5)]),
    ([[0.0, 0.0]], [1.0], 2.0, [0.0, 0.0]),  # nowhere better
])
def test_the_mean_is_moved_as_worked_out_by_hand(c, b, beta, slope):
    """By shift · Σ g / √(gᵀ Σ g) with Σ = diag(4, 1). Critics 2, 0 and 4: their deviation √(8/3) rises by
    mean (Q_i − 2) c_i / √(8/3) = (⅔, 1) · √1.5."""
    task = ComputationTask(OAC(Plain(c, b), beta_ub=beta, shift=0.5))
    obs = np.zeros((3, 3), np.float32)
    moved, g = task.predict({"obs": obs})["mean"], np.array(slope)
    length = np.sqrt(g @ (np.array([4.0, 1.0]) * g))
    expected = 0.5 * np.array([4.0, 1.0]) * g / max(length, 1e-12)
    np.testing.assert_allclose(moved, np.tile(expected, (3, 1)), rtol=1e-5)
    for mode in ("test", "update"):
        assert not task.predict({"obs": obs}, mode)["mean"].any()
    assert all(parameter.grad is None for parameter in task.algorithm.model.parameters())


def test_its_divergence_from_the_policy_is_half_the_square_of_the_shift():
    torch.manual_seed(0)
    algorithm = OAC(MLPActorQ(OBS, ACT, (16,), critics=3), shift=1.5)
    task, head = ComputationTask(algorithm), algorithm.model.head
    assert isinstance(head, SquashedGaussianHead)
    rows = {"obs": np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)}
    explored, policy = ({name: torch.from_numpy(value) for name, value in task.predict(rows, mode).items()}
                        for mode in ("collect", "test"))
    np.testing.assert_allclose(head.kl(explored, policy), 1.5**2 / 2, rtol=1e-4)


class Line(gym.Env):
    """The reward falls with the distance of two numbers from those shown."""

    observation_space, action_space = OBS, ACT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.obs = 0, self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.obs, {}

    def step(self, act):
        rew, self.steps = -float(np.abs(act - self.obs[:2]).sum()), self.steps + 1
        self.obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.obs, rew, False, self.steps == 10, {}


def test_without_optimism_it_is_sac():
    """The same actions and the same weights."""
    left = []
    for algorithm, options in ((SAC, {}), (OAC, dict(beta_ub=0.0, shift=0.0)), (OAC, {})):
        func = create_algorithm_func(MLPActorQ, dict(obs=OBS, act=ACT, hidden=(8,)), algorithm, options)
        # by torch: the gradients of one are written out, and those of the other are not, which round differently
        task = ComputationTask(func, lambda: OffPolicyHelper(size=200, batch_size=16, learn_every=2), native=False)
        with Robot(Line, tasks={"RL": task}, n_agents=2, seed=3, trace=True) as robot:
            robot.run(100)
            assert task.algorithm.updates >= 20
            left.append((robot.trace_hash(), task.algorithm.model.weights_hash()))
    assert left[0] == left[1] and left[2][0] != left[0][0]


def test_what_does_not_fit_is_named():
    with pytest.raises(TypeError, match=r"OAC: actions are Discrete\(3\); expected a Box"):
        OAC(MLPActorQ(OBS, gym.spaces.Discrete(3), (8,)))
    with pytest.raises(ValueError, match="shift is -1"):
        OAC(MLPActorQ(OBS, ACT, (8,)), shift=-1.0)
