"""TQC and QR-SAC: targets and losses by hand, what they are without their novelties, and what their quantiles come to."""

import copy
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import QRSAC, SAC, TQC
from parl_like.algorithms.distributions import midpoints, quantile_huber, truncated
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPActorQ
from parl_like.values.batch import Batch

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Box(-1, 1, (2,), np.float32)
QUANTILES = [[1.0, 5.0, 6.0], [0.0, 2.0, 11.0]]  # means 4 and 13/3


class Plain(Model):
    """The action is always w = ½, with log π = −1; the quantiles of the critics are `quantiles` · (s + a)."""

    def __init__(self, quantiles=QUANTILES):
        super().__init__(gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))
        self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([0.5]))])
        self.quantiles = torch.nn.Parameter(torch.tensor(quantiles))
        self.head = SimpleNamespace(draw=lambda out, noise: (out["mean"], torch.full((len(noise),), -1.0)))

    def policy(self, obs):
        return {"mean": self.actor[0].expand(len(obs), 1)}

    def values(self, obs, act):
        return self.quantiles[:, None] * (obs + act)

    def q(self, obs, act):
        return self.values(obs, act).mean(-1)


def hand_rows():
    one = np.ones((2, 1), np.float32)
    return {"obs": one, "obs_next": 1.5 * one, "act": 0 * one, "rew": np.array([1.0, 3.0], np.float32),
            "terminated": np.array([False, True]), "truncated": np.array([False, False])}


def batch_of(fields):
    return Batch({name: torch.from_numpy(value) for name, value in fields.items()})


def rows(seed=0, n=8, **more):
    rng = np.random.default_rng(seed)
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "obs_next": rng.normal(size=(n, 3)).astype(np.float32),
            "act": rng.uniform(-1, 1, (n, 2)).astype(np.float32), "rew": rng.normal(size=n).astype(np.float32),
            "terminated": np.arange(n) % 3 == 0, "truncated": np.zeros(n, bool), **more}


def test_truncation_worked_out_by_hand():
    """Of all critics of a row together, not of each: the first one loses 6 and 5 here, the second 11 and, in the other row, 9."""
    quantiles = torch.tensor([[[1.0, 5.0, 6.0], [1.0, 2.0, 3.0]], [[0.0, 2.0, 11.0], [9.0, 7.0, 8.0]]])
    assert truncated(quantiles, 0).tolist() == [[0.0, 1.0, 2.0, 5.0, 6.0, 11.0], [1.0, 2.0, 3.0, 7.0, 8.0, 9.0]]
    assert truncated(quantiles, 1).tolist() == [[0.0, 1.0, 2.0, 5.0], [1.0, 2.0, 3.0, 7.0]]
    assert truncated(quantiles, 2).tolist() == [[0.0, 1.0], [1.0, 2.0]]


@pytest.mark.parametrize(("make", "z", "value"), [
    (lambda: TQC(Plain(), gamma=0.5, alpha=2.0, drop=1, lr=0.0), [0, 1, 2, 5], (4 + 13 / 3) / 2),
    (lambda: QRSAC(Plain(), gamma=0.5, alpha=2.0, lr=0.0), [1, 5, 6], 4),
])
def test_targets_and_losses_worked_out_by_hand(make, z, value):
    """s' + a' = 2: y_j = 1 + ½ (2 z_j + 2 · 1), and 3 at the end; s + a = 1. The actor goes by means times 1.5."""
    algorithm = make()
    with torch.no_grad():
        y = algorithm.process(batch_of(hand_rows())).target
    assert y.tolist() == [[2.0 + one for one in z], [3.0] * len(z)]
    out = ComputationTask(algorithm).learn(hand_rows())
    theta, tau, loss = np.array(QUANTILES), np.array([1, 3, 5]) / 6, 0.0
    for c, i, row, j in np.ndindex(2, 3, 2, len(z)):
        u = float(y[row, j]) - theta[c, i]
        huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
        loss += abs(tau[i] - (u < 0)) * huber / (3 * 2 * len(z))
    assert out["critic"] == pytest.approx(loss, rel=1e-5) and out["actor"] == pytest.approx(2 * -1 - 1.5 * value, rel=1e-5)
    np.testing.assert_allclose(out["priority"], [max(abs(float(row.mean()) - theta.ravel())) for row in y], rtol=1e-5)


@pytest.mark.parametrize(("critics", "make"), [
    (1, lambda m: TQC(m, drop=0, kappa=1024.0)), (2, lambda m: QRSAC(m, kappa=1024.0))])
def test_with_one_quantile_they_are_sac(critics, make):
    """TQC with one critic, of which nothing is dropped, QR-SAC with two. Within κ the loss is u² / 4κ: so rows weigh 4 κ here."""
    model = MLPActorQ(OBS, ACT, (8,), critics=critics)
    # by torch: the gradients of SAC are written out, and those of the others are not, which round differently
    plain, same, other = (ComputationTask(make(copy.deepcopy(model)), native=False) for make in (SAC, make, make))
    for seed in range(20):
        plain.learn(rows(seed, weight=np.ones(8, np.float32)))
        same.learn(rows(seed, weight=np.full(8, 4096.0, np.float32)))
        other.learn(rows(seed))
    assert plain.algorithm.model.weights_hash() == same.algorithm.model.weights_hash() != other.algorithm.model.weights_hash()


def test_the_targets_of_all_quantiles_of_one_critic_have_the_mean_of_sacs():
    """Same noise, same mean of the target copy's quantiles."""
    model = MLPActorQ(OBS, ACT, (8,), critics=1, heads=50)
    with torch.no_grad():
        many, one = (make(copy.deepcopy(model)).process(batch_of(rows())).target for make in (lambda m: TQC(m, drop=0), SAC))
    torch.testing.assert_close(many.mean(1), one)


def test_many_quantiles_of_one_critic_have_the_mean_that_sacs_critic_learns():
    """Of skewed rewards with mean 1, median 0.69."""
    rew = -np.log(1 - (np.arange(40) + 0.5) / 40).astype(np.float32)
    one, end = np.ones((40, 1), np.float32), np.ones(40, bool)
    fields = {"obs": one, "obs_next": one, "act": 0 * one, "rew": rew, "terminated": end, "truncated": ~end}
    found = []
    for quantiles, make in ((np.linspace(0, 2, 20)[None], TQC), (np.zeros((1, 1)), SAC)):
        model = Plain(quantiles.astype(np.float32).tolist())
        task = ComputationTask(make(model, lr=0.05, **({"drop": 0, "kappa": 0.0} if make is TQC else {})))
        for _ in range(100):
            task.learn(fields)
        found.append(model.quantiles.mean().item())
    assert found[0] == pytest.approx(found[1], abs=0.03) and found[1] == pytest.approx(rew.mean(), abs=0.01)


def test_the_more_is_dropped_the_lower_are_the_targets():
    model = MLPActorQ(OBS, ACT, (8,), critics=3, heads=10)
    with torch.no_grad():
        means = [TQC(copy.deepcopy(model), drop=drop).process(batch_of(rows())).target.mean().item() for drop in (0, 2, 5)]
    assert means[0] > means[1] > means[2]


def test_the_loss_of_an_ensemble_is_that_of_each_of_its_members():
    theta, y = torch.randn(3, 4, 5), torch.randn(4, 7)
    each = torch.stack([quantile_huber(one, y, midpoints(5), 1.0) for one in theta])
    torch.testing.assert_close(quantile_huber(theta, y, midpoints(5), 1.0), each)


def test_what_does_not_fit_is_named():
    with pytest.raises(ContractError, match=r"more than the 2 quantiles .*`drop`.*got 2"):
        ComputationTask(TQC(MLPActorQ(OBS, ACT, (8,), heads=2)))
    with pytest.raises(TypeError, match=r"QRSAC: actions are Discrete\(3\); expected a Box"):
        QRSAC(MLPActorQ(OBS, gym.spaces.Discrete(3), (8,)))
    with pytest.raises(ValueError, match="drop is -1"):
        TQC(MLPActorQ(OBS, ACT, (8,)), drop=-1)
    values = MLPActorQ(OBS, gym.spaces.Discrete(3), (8,), critics=2, heads=4)
    assert values.values(torch.zeros(5, 3)).shape == (2, 5, 3, 4) and values.q(torch.zeros(5, 3)).shape == (2, 5, 3)
