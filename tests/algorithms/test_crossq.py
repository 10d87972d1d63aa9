"""CrossQ: batch norm and renorm by hand, when their statistics move, and that without them it is SAC with τ = 1."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import SAC, CrossQ
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPActorQ, MLPCrossQ
from parl_like.models.cross_q import BatchNormEnsembleMLP, BatchNorms

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Box(-1, 1, (2,), np.float32)


def rows(seed=0, n=8, discrete=False, **more):
    rng = np.random.default_rng(seed)
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "obs_next": 5 + rng.normal(size=(n, 3)).astype(np.float32),
            "act": rng.integers(3, size=n) if discrete else rng.uniform(-1, 1, (n, 2)).astype(np.float32),
            "rew": rng.normal(size=n).astype(np.float32), "terminated": np.arange(n) % 3 == 0, "truncated": np.zeros(n, bool),
            **more}


def model(act=ACT, **options):
    return MLPCrossQ(OBS, act, (8,), critic_hidden=(16,), **options)


def test_batch_norm_worked_out_by_hand():
    """Of two networks: rows 1, 5 have mean 3 and σ² = 4, rows 0, 0 mean 0 and no variance."""
    norm = BatchNorms(2, 1, renorm_after=1)
    norm.scale.data[0], norm.shift.data[0] = 2.0, 10.0
    h = torch.tensor([[[1.0], [5.0]], [[0.0], [0.0]]])
    one = 1 / np.sqrt(1.0 + 0.001 / 4)
    np.testing.assert_allclose(norm.learn(h).detach().ravel(), [10 - 2 * one, 10 + 2 * one, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(norm.mean.ravel(), [0.03, 0.0], rtol=1e-5)
    np.testing.assert_allclose(norm.var.ravel(), [1 + 0.01 * 3, 0.99], rtol=1e-5)
    plain = (np.array([1.0, 5.0]) - 0.03) / np.sqrt(1.031) * 2 + 10
    np.testing.assert_allclose(norm(h).detach().ravel(), [*plain, 0, 0], rtol=1e-5)
    assert norm.passes == 1


def test_batch_renorm_worked_out_by_hand():
    """Within the bounds it is what the running statistics make of the rows; beyond, σ / s = 20 counts as 3, (μ − m) / s as 5."""
    norm = BatchNorms(1, 2, renorm_after=0)
    norm.mean[:], norm.var[:] = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0])
    h = torch.tensor([[[1.0, 80.0], [5.0, 120.0]]], requires_grad=True)
    expected = norm(h)[..., 0].detach().clone()
    out = norm.learn(h)
    torch.testing.assert_close(out[..., 0], expected)
    np.testing.assert_allclose(out[0, :, 1].detach(), [5 - 3, 5 + 3], atol=1e-4)
    out[0, 0].sum().backward()
    assert h.grad[0, :, 0].sum().abs() < 1e-6  # through the statistics of the rows, too: a shift of all changes nothing


@pytest.mark.parametrize("discrete", [False, True])
def test_without_normalisation_it_is_sac_with_a_target_that_is_the_network(discrete):
    class Plain(MLPActorQ):
        def joint_q(self, obs, act, obs_next, act_next):
            return self.q(obs, act), self.q(obs_next, act_next)

    one = Plain(OBS, gym.spaces.Discrete(3) if discrete else ACT, (8,))
    tasks = [ComputationTask(algorithm) for algorithm in (
        SAC(copy.deepcopy(one), tau=1.0, delay=3, lr=1e-3), CrossQ(copy.deepcopy(one), beta1=0.9), CrossQ(copy.deepcopy(one)))]
    for seed in range(20):
        for task in tasks:
            task.learn(rows(seed, discrete=discrete))
    sac, same, other = (task.algorithm.model.weights_hash() for task in tasks)
    assert sac == same != other and set(tasks[1].algorithm.networks()) == {"model"}


def test_both_halves_are_normalised_together():
    """Of each critic, as in a network of its own."""
    network = BatchNormEnsembleMLP(3, [2, 4, 1], "relu")
    x, parts = torch.randn(6, 2) * 3 + 1, []
    for i in range(3):
        h = x
        for k, (weight, bias) in enumerate(network.layers()):
            h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-3).sqrt()
            h = h @ weight[i] + bias[i]
            h = torch.relu(h) if k == 0 else h
        parts.append(h)
    torch.testing.assert_close(network(x, learn=True), torch.stack(parts), rtol=1e-4, atol=1e-5)
    one = model()
    obs, act = torch.randn(4, 3), torch.randn(4, 2)
    twin = copy.deepcopy(one)
    whole = twin.critics(torch.cat([torch.cat([obs, act], 1), torch.cat([obs + 9, -act], 1)]), learn=True).squeeze(-1)
    assert all(torch.equal(*pair) for pair in zip(one.joint_q(obs, act, obs + 9, -act), whole.chunk(2, 1), strict=True))


def test_an_update_is_one_pass_of_the_rows_and_of_what_follows():
    """Its loss is made of the two halves of that pass; their statistics are those of both."""
    task = ComputationTask(CrossQ(model(), gamma=0.5, alpha=0.25, learn_alpha=False, lr=0.0))
    algorithm, network = task.algorithm, task.algorithm.model
    twin, given = copy.deepcopy(network), rows()
    algorithm.torch_rng.manual_seed(0)
    out = task.learn(given)
    assert all(norm.passes == 1 for norm in network.critics.norms)
    algorithm.torch_rng.manual_seed(0)
    obs, act, rew, after = (torch.from_numpy(given[name]) for name in ("obs", "act", "rew", "obs_next"))
    act_next, log_p = algorithm.drawn(twin.policy(after))
    q, q_next = twin.joint_q(obs, act, after, act_next)
    y = rew + 0.5 * (~torch.from_numpy(given["terminated"])) * (q_next.amin(0) - 0.25 * log_p)
    assert out["critic"] == pytest.approx((q - y).square().mean(1).sum().item(), rel=1e-5)


def statistics(network):
    return {name: value.clone() for name, value in network.named_buffers()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_only_the_critics_update_moves_the_statistics():
    task = ComputationTask(CrossQ(model(), delay=1))
    network, seen = task.algorithm.model, []
    plain = network.q

    def q(*given):
        before = statistics(network)
        values = plain(*given)
        seen.append(equal(before, statistics(network)))
        return values

    network.q = q
    start = statistics(network)
    task.predict({"obs": rows()["obs"]})
    assert equal(start, statistics(network)) and not any(int(value) for name, value in start.items() if name.endswith("passes"))
    task.learn(rows())
    after = statistics(network)
    assert seen == [True] and not any(torch.equal(start[name], after[name]) for name in start)  # the actor's look at them
    for one in (False, True):
        network.train(one)
        together = plain(torch.from_numpy(rows()["obs"]), torch.from_numpy(rows()["act"]))
        alone = plain(torch.from_numpy(rows()["obs"][2:3]), torch.from_numpy(rows()["act"][2:3]))
        torch.testing.assert_close(together[:, 2:3], alone)
    assert equal(after, statistics(network))


def test_copies_checkpoints_and_steps_that_are_left_out_keep_the_statistics():
    task = ComputationTask(CrossQ(model()))
    for seed in range(3):
        task.learn(rows(seed))
    known = statistics(task.algorithm.model)
    assert equal(known, statistics(task.algorithm.acting_copy().model)) and equal(known, statistics(task.algorithm.model.clone()))
    other = ComputationTask(CrossQ(model()))
    other.load_state_dict(task.state_dict())
    assert equal(known, statistics(other.algorithm.model))
    task.learn(rows(4, rew=np.full(8, np.nan, np.float32)))
    assert task.skipped == 1 and equal(known, statistics(task.algorithm.model))
    fresh = task.algorithm.clone(copy=False).model
    assert all((value == (1.0 if name.endswith("var") else 0.0)).all() for name, value in statistics(fresh).items())


def test_a_model_without_batch_norm_is_refused():
    with pytest.raises(ContractError, match=r"joint_q.*MLPActorQ has no joint_q; MLPCrossQ has it"):
        ComputationTask(CrossQ(MLPActorQ(OBS, ACT, (8,))))
