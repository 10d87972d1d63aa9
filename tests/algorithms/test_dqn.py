"""DQN against its formula on tables."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import DQN, BasicDQN
from parl_like.learning.model import Model
from parl_like.models import MLPQ
from parl_like.values.batch import Batch

STATES, ACTIONS = 5, 3


class Table(Model):
    def __init__(self):
        super().__init__(gym.spaces.Discrete(STATES), gym.spaces.Discrete(ACTIONS))
        self.table = torch.nn.Parameter(torch.randn(STATES, ACTIONS, generator=torch.Generator().manual_seed(0)))

    def q(self, obs):
        return self.table[obs.long()]


def rows_of(n=8, n_step=1, seed=0):
    rng = np.random.default_rng(seed)
    rew = rng.normal(size=(n, n_step) if n_step > 1 else n)
    valid = rng.integers(1, n_step + 1, n)
    if n_step > 1:
        rew[np.arange(n_step) >= valid[:, None]] = 0.0
    fields = {"obs": rng.integers(STATES, size=n), "act": rng.integers(ACTIONS, size=n), "rew": rew,
              "terminated": rng.random(n) < 0.4,
              "obs_next": rng.integers(STATES, size=n)} | ({"valid": valid} if n_step > 1 else {})
    fields["truncated"] = ~fields["terminated"] & (rng.random(n) < 0.5)
    return Batch({name: torch.from_numpy(value) for name, value in fields.items()})


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("copy", [0, 100])
def test_targets_and_loss(n_step, double, copy):
    algorithm = DQN(Table(), gamma=0.9, n_step=n_step, target_period=copy, double=double)
    if copy:
        algorithm.target.table.data = algorithm.target.table.data.flip(0, 1)
    q, frozen = algorithm.model.table.detach().numpy(), algorithm.target.table.detach().numpy()
    rows = rows_of(n_step=n_step)
    batch = algorithm.process(rows)
    expected = []
    for i in range(8):
        m = int(rows.valid[i]) if n_step > 1 else 1
        rewards = np.atleast_1d(rows.rew[i].numpy())[:m]
        s = int(rows.obs_next[i])
        best = np.argmax(q[s] if double else frozen[s])
        tail = 0.0 if rows.terminated[i] else 0.9**m * frozen[s, best]
        expected.append(sum(0.9**k * r for k, r in enumerate(rewards)) + tail)
    np.testing.assert_allclose(batch.target.detach().numpy(), expected, rtol=1e-5)
    error = np.abs(np.array(expected) - q[rows.obs, rows.act])
    huber = np.where(error < 1, 0.5 * error**2, error - 0.5).mean()
    assert float(algorithm.learn(batch)["loss"].detach()) == pytest.approx(huber, rel=1e-5)


def test_a_rows_duration_discounts_it():
    algorithm = DQN(Table(), gamma=0.9, double=False)
    rows = rows_of()
    rows.duration = torch.arange(1, 9)
    batch = algorithm.process(rows)
    best = algorithm.target.q(rows.obs_next).amax(1)
    np.testing.assert_allclose(batch.target.detach(), (rows.rew + 0.9**rows.duration * ~rows.terminated * best).detach(),
                               rtol=1e-5)


def test_the_target_follows_every_few_steps_or_a_little_at_each():
    algorithm = DQN(Table(), target_period=3)
    begin = algorithm.target.table.clone()
    algorithm.model.table.data += 1.0

    def update(algorithm, steps):
        algorithm.updates_before = algorithm.updates  # as the task does
        algorithm.process(rows_of())
        algorithm.updates += steps
        algorithm.post_process(Batch())

    for _ in range(2):
        update(algorithm, 1)
        assert torch.equal(algorithm.target.table, begin)
    update(algorithm, 2)  # past the third
    assert torch.equal(algorithm.target.table, algorithm.model.table)
    algorithm.model.table.data += 1.0
    update(algorithm, 1)
    assert not torch.equal(algorithm.target.table, algorithm.model.table)
    for steps, share in ((1, 0.25), (2, 0.4375)):
        algorithm = DQN(Table(), tau=0.25)
        algorithm.model.table.data += 1.0
        update(algorithm, steps)
        torch.testing.assert_close(algorithm.target.table.detach(), begin.detach() + share)


def test_the_mask_goes_to_the_explorer():
    obs = gym.spaces.Dict(state=gym.spaces.Discrete(STATES), mask=gym.spaces.MultiBinary(ACTIONS))

    class Masked(Table):
        def __init__(self):
            super().__init__()
            self.obs_space = obs

        def q(self, obs):
            return self.table[obs["state"].long()].masked_fill(~obs["mask"].bool(), -1e9)

    algorithm = DQN(Masked())
    inputs = Batch(obs=Batch(state=torch.arange(5), mask=torch.tensor([[1, 0, 1]] * 5)))
    assert algorithm.predict(inputs)["mask"].tolist() == [[True, False, True]] * 5


@pytest.mark.parametrize("options", [{"gamma": 1.5}, {"n_step": 0}, {"target_period": -1}, {"tau": 1.5}])
def test_bad_options_are_named(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        DQN(Table(), **options)


MASKED = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "x": gym.spaces.Box(-1, 1, (2,), np.float32)})


@pytest.mark.parametrize("double", [False, True])
def test_a_next_state_whose_mask_allows_nothing_is_valued_over_all_actions(double):
    """A time limit may fall on a state for which the environment names no legal action; its future is worth what the network
    says."""
    algorithm = DQN(MLPQ(MASKED, gym.spaces.Discrete(3), hidden=[8]), gamma=0.9, double=double)
    algorithm.target.net.layers[-1].bias.data += torch.tensor([3.0, 1.0, 2.0])
    x = torch.tensor([[0.5, -0.5], [0.5, -0.5], [0.5, -0.5]])
    masks = torch.tensor([[0, 0, 0], [1, 1, 1], [0, 1, 0]])
    q, frozen = ((network.net(x[:1])[0]).tolist() for network in (algorithm.model, algorithm.target))
    best = int(np.argmax(q if double else frozen))
    batch = algorithm.process(Batch(obs=Batch(mask=masks, x=x), obs_next=Batch(mask=masks, x=x),
                                    act=torch.zeros(3, dtype=torch.int64),
                                    rew=torch.ones(3), terminated=torch.zeros(3, dtype=torch.bool)))
    expected = [1 + 0.9 * frozen[best], 1 + 0.9 * frozen[best], 1 + 0.9 * frozen[1]]
    np.testing.assert_allclose(batch.target.detach().numpy(), expected, rtol=1e-5)


def test_the_target_is_in_test_mode_while_the_network_learns():
    """Its dropout and its running statistics are those of a network that acts: the network's own, as of the last copy."""

    class Normed(Model):
        has_modes = True

        def __init__(self):
            super().__init__(gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(ACTIONS))
            self.layer, self.norm = torch.nn.Linear(3, ACTIONS), torch.nn.BatchNorm1d(ACTIONS)

        def q(self, obs):
            modes.append(self.norm.training)
            return self.norm(self.layer(obs))

    modes = []
    task = ComputationTask(DQN(Normed(), target_period=2))
    algorithm = task.algorithm
    rows = {"obs": np.eye(3, dtype=np.float32), "obs_next": np.ones((3, 3), np.float32), "act": np.arange(3) % ACTIONS,
            "rew": np.ones(3, np.float32), "terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool)}
    means = [algorithm.target.norm.running_mean.clone()]
    for _ in range(2):
        modes.clear()
        task.learn(rows)
        assert modes == [False, True, True]  # the target's values, the choice of the next action, the loss
        means.append(algorithm.target.norm.running_mean.clone())
    assert torch.equal(means[0], means[1]) and torch.equal(means[2], algorithm.model.norm.running_mean)
    assert not torch.equal(means[1], means[2])


def test_the_residual_gradient_of_basic_dqn_by_hand():
    """One row, q(0, 1) = 0.3, max q(2, ·) = q(2, 2) = 0.5, r = 1, γ = 0.9: y = 1.45, error 1.15, Huber's slope 1. The value of
    the action rises by it, and the target's falls by γ times it."""
    algorithm = BasicDQN(Table(), gamma=0.9)
    with torch.no_grad():
        algorithm.model.table.copy_(torch.tensor([[0.0, 0.3, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.4, 0.5], [0, 0, 0], [0, 0, 0]]))
    row = Batch({"obs": torch.tensor([0]), "act": torch.tensor([1]), "rew": torch.tensor([1.0]), "obs_next": torch.tensor([2]),
                 "terminated": torch.tensor([False]), "truncated": torch.tensor([True])})
    loss = algorithm.learn(algorithm.process(row))["loss"]
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1.15 - 0.5)
    expected = np.zeros((STATES, ACTIONS))
    expected[0, 1], expected[2, 2] = -1.0, 0.9
    np.testing.assert_allclose(algorithm.model.table.grad.numpy(), expected, rtol=1e-6)


def test_basic_dqn_is_dqn_where_every_episode_ends():
    """And not where it goes on."""
    def learned(kind, ends, **options):
        task = ComputationTask(kind(Table(), gamma=0.9, adam_eps=1e-8, **options))
        for seed in range(20):
            rows = {name: value.numpy() for name, value in rows_of(seed=seed).items()}
            task.learn(rows | {"terminated": np.full(8, ends)})
        return task.algorithm.model.table.detach().numpy()

    plain = {"target_period": 0, "double": False}
    np.testing.assert_array_equal(learned(BasicDQN, True), learned(DQN, True, **plain))
    assert np.abs(learned(BasicDQN, False) - learned(DQN, False, **plain)).max() > 0.01
