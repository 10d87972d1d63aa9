"""REDQ and DroQ: which critics make targets, who learns when, and that without their novelties they are SAC."""

import copy
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import REDQ, SAC, DroQ
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPActorQ
from parl_like.models.mlp import DropoutEnsembleMLP, EnsembleMLP
from parl_like.values.batch import Batch

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Box(-1, 1, (2,), np.float32)


class Plain(Model):
    """The action is always w = ½, with log π = −1; Q_i(s, a) = c_i · (s + a) with c = 1, 2, 4."""

    def __init__(self):
        super().__init__(gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))
        self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor([0.5]))])
        self.c = torch.nn.Parameter(torch.tensor([1.0, 2.0, 4.0]))
        self.head = SimpleNamespace(draw=lambda out, noise: (out["mean"], torch.full((len(noise),), -1.0)))

    def policy(self, obs):
        return {"mean": self.actor[0].expand(len(obs), 1)}

    def q(self, obs, act):
        return self.c[:, None] * (obs + act)[:, 0]


def hand_rows():
    one = np.ones((2, 1), np.float32)
    return {"obs": one, "obs_next": 2 * one, "act": 0 * one, "rew": np.array([1.0, 3.0], np.float32),
            "terminated": np.array([False, True]), "truncated": np.array([False, False])}


def rows(seed=0, n=8, discrete=False):
    rng = np.random.default_rng(seed)
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "obs_next": rng.normal(size=(n, 3)).astype(np.float32),
            "act": rng.integers(3, size=n) if discrete else rng.uniform(-1, 1, (n, 2)).astype(np.float32),
            "rew": rng.normal(size=n).astype(np.float32), "terminated": np.arange(n) % 3 == 0, "truncated": np.zeros(n, bool)}


@pytest.mark.parametrize(("subset", "shares"), [(1, {1: 1 / 3, 2: 1 / 3, 4: 1 / 3}), (2, {1: 2 / 3, 2: 1 / 3}), (3, {1: 1.0})])
def test_the_targets_worked_out_by_hand(subset, shares):
    """y = 1 + ½ (min c_i · 2.5 + 2 · 1), and 3 at the end; the least of a pair is c = 2 in one of three pairs."""
    algorithm = REDQ(Plain(), gamma=0.5, alpha=2.0, subset=subset)
    batch = Batch({name: torch.from_numpy(value) for name, value in hand_rows().items()})
    before = torch.get_rng_state()
    with torch.no_grad():
        targets = torch.stack([algorithm.process(batch).target for _ in range(300)])
    assert torch.equal(torch.get_rng_state(), before)  # the task's own generator draws
    assert (targets[:, 1] == 3.0).all()
    for c, share in shares.items():
        assert (targets[:, 0] == 1 + 0.5 * (c * 2.5 + 2)).float().mean() == pytest.approx(share, abs=0.1)
    assert len(targets[:, 0].unique()) == len(shares)


@pytest.mark.parametrize(("least", "value"), [(False, 7 / 3 * 1.5), (True, 1.5)])
def test_the_losses_worked_out_by_hand(least, value):
    """y = 1 + ½ (2.5 + 2) = 3.25 and 3; Q(1, 0) = 1, 2, 4. The actor goes by the mean of Q_i(1, ½) = 1.5, 3, 6."""
    out = ComputationTask(REDQ(Plain(), gamma=0.5, alpha=2.0, subset=3, delay=1, actor_min=least, lr=0.0)).learn(hand_rows())
    errors = np.array([[1.0], [2.0], [4.0]]) - [3.25, 3.0]
    assert out["critic"] == pytest.approx((errors**2).mean(1).sum()) and out["actor"] == pytest.approx(2 * -1 - value)
    np.testing.assert_allclose(out["priority"], np.abs(errors).max(0))


@pytest.mark.parametrize("discrete", [False, True])
def test_redq_without_its_novelties_is_sac(discrete):
    """Two critics, both in the targets, one update a step, the least of both for the actor; and DroQ without dropout and layer
    norm is REDQ."""
    model = MLPActorQ(OBS, gym.spaces.Discrete(3) if discrete else ACT, (8,))
    off = {"subset": 2, "delay": 1}
    # by torch: the gradients of SAC are written out, and those of the others are not, which round differently
    tasks = [ComputationTask(make(copy.deepcopy(model)), native=False) for make in (
        SAC, lambda m: REDQ(m, **off, actor_min=True), lambda m: REDQ(m, **off), lambda m: DroQ(m, **off))]
    for seed in range(20):
        for task in tasks:
            task.learn(rows(seed, discrete=discrete))
    sac, same, redq, droq = (task.algorithm.model.weights_hash() for task in tasks)
    assert sac == same != redq == droq
    assert tasks[0].algorithm.log_alpha.item() == tasks[1].algorithm.log_alpha.item() != 0.0


def test_actor_and_temperature_learn_in_every_third_update():
    task = ComputationTask(REDQ(MLPActorQ(OBS, ACT, (8,), critics=4), delay=3, tau=0.5))
    model, target, seen = task.algorithm.model, task.algorithm.target, []

    def state():
        return (model.head.linear.bias.tolist(), task.algorithm.log_alpha.item(), model.critics.bias0.tolist(),
                target.critics.bias0.tolist())

    for seed in range(6):
        before = state()
        task.learn(rows(seed))
        seen.append([one != other for one, other in zip(before, state(), strict=True)])
    assert seen == 2 * [[False, False, True, True], [False, False, True, True], [True, True, True, True]]


def test_more_critics_in_the_targets_than_there_are_is_an_error():
    with pytest.raises(ContractError, match=r"at least 3 critics.*`subset`.*got 2"):
        ComputationTask(REDQ(MLPActorQ(OBS, ACT, (8,)), subset=3))
    with pytest.raises(ValueError, match="subset is 0"):
        REDQ(MLPActorQ(OBS, ACT, (8,)), subset=0)
    with pytest.raises(ValueError, match="dropout is 1.0"):
        MLPActorQ(OBS, ACT, (8,), dropout=1.0)


@pytest.mark.parametrize("norm", [False, True])
def test_an_ensemble_with_dropout_is_that_of_single_networks(norm):
    ensemble = DropoutEnsembleMLP(3, [5, 4, 6, 2], "relu", 0.5, norm).eval()
    for part in ensemble.norms if norm else ():
        torch.nn.init.normal_(part.scale)
        torch.nn.init.normal_(part.shift)
    x, parts = torch.randn(7, 5), []
    for i in range(3):
        h = x
        for k, (weight, bias) in enumerate(ensemble.layers()):
            h = h @ weight[i] + bias[i]
            if k < 2:
                if norm:
                    h = (h - h.mean(1, keepdim=True)) / (h.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
                    h = h * ensemble.norms[k].scale[i] + ensemble.norms[k].shift[i]
                h = torch.relu(h)
        parts.append(h)
    torch.testing.assert_close(ensemble(x), torch.stack(parts))
    torch.testing.assert_close(ensemble.one(1, x), parts[1])


def test_dropout_comes_before_the_layer_norm():
    """So each row has mean 0 and variance 1 before the activation, whatever was left out of it."""
    ensemble, seen = DropoutEnsembleMLP(2, [5, 64, 1], "relu", 0.5), []
    ensemble.activation = lambda h: (seen.append(h), torch.relu(h))[1]
    ensemble(torch.randn(7, 5))
    torch.testing.assert_close(seen[0].mean(-1), torch.zeros(2, 7), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen[0].var(-1, correction=0), torch.ones(2, 7), atol=1e-3, rtol=0)
    assert all(len(row.unique()) < 60 for row in seen[0].flatten(0, 1))  # what was left out is one number


def test_dropout_is_in_every_update_and_nowhere_else():
    task = ComputationTask(DroQ(MLPActorQ(OBS, ACT, (32,), dropout=0.5, layer_norm=True), lr=0.0))
    obs, act = torch.zeros(4, 3), torch.zeros(4, 2)
    model, seen = task.algorithm.model, []
    for network, name in ((model, "model"), (task.algorithm.target, "target")):
        plain = network.q

        def q(obs, act, plain=plain, name=name):
            values = plain(obs, act)
            seen.append((name, torch.equal(values, plain(obs, act))))
            return values

        network.q = q
    for _ in range(20):
        task.learn(rows())
    assert {name for name, _ in seen} == {"model", "target"} and not any(equal for _, equal in seen)
    seen.clear()
    model.q(obs, act)
    task.predict({"obs": obs.numpy()})
    assert seen == [("model", True)]
    plain = MLPActorQ(OBS, ACT, (32,))
    assert type(plain.critics) is EnsembleMLP
