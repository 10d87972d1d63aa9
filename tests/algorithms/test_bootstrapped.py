"""Bootstrapped DQN: its targets by hand, which rows belong to which head, the priors, and that one head is DQN."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from value_rows import ACT, MASKED, OBS, Fixed, after_updates, batch_of, hand_rows, rows

from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN, BootstrappedDQN
from parl_like.algorithms.bootstrapped import belongs
from parl_like.environment.hooks import Hook
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.deep_sea import DeepSea
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.models import MLPQ, MLPBootstrappedQ
from parl_like.values.batch import Batch


def test_targets_loss_and_priorities_by_hand():
    """γ ½. Head 0 prefers action 1 (worth 4 there, 6 to its target copy), head 1 action 0 (3, and 1 to its copy)."""
    learner = BootstrappedDQN(Fixed([[2.0, 3.0], [4.0, 0.0]]), gamma=0.5)
    learner.target.table.data = torch.tensor([[5.0, 1.0], [6.0, 7.0]])
    number = np.flatnonzero((belongs(np.arange(99), 2, 0.5) == (True, False)).all(1))[:2]  # rows of head 0 alone
    with torch.no_grad():
        batch = learner.process(batch_of(hand_rows([0, 1], [1.0, 8.0], [False, True], number=number)))
    assert batch.target.tolist() == [[4.0, 1.5], [8.0, 8.0]] and batch.mask.tolist() == [[True, False]] * 2
    out = learner.learn(batch)
    # |y − q|: 2 and 1.5; 4 and 8. Huber of those of head 0: 1.5 and 3.5
    assert out["priority"].tolist() == [1.75, 6.0] and out["loss"].item() == pytest.approx((1.5 / 2 + 3.5 / 2) / 2)
    plain = BootstrappedDQN(Fixed([[2.0, 3.0], [4.0, 0.0]]), gamma=0.5, double=False, share=1.0)
    plain.target.table.data = learner.target.table.data
    with torch.no_grad():
        batch = plain.process(batch_of(hand_rows([0], [1.0], [False], number=[0])))
    assert batch.target.tolist() == [[4.0, 4.5]] and batch.mask.all()


@pytest.mark.parametrize("obs", [OBS, MASKED])
def test_one_head_that_has_every_row_is_dqn(obs):
    model = MLPQ(obs, ACT, (8,))
    legal = {"obs.mask": np.ones((8, 4), np.int8)} if obs is MASKED else {}  # what was done was legal
    one, other = after_updates(BootstrappedDQN(copy.deepcopy(model), share=1.0, target_period=5, n_step=2),
                               DQN(model, target_period=5, n_step=2), n_step=2, masked=obs is MASKED, number=np.arange(8),
                               weight=np.linspace(0.5, 1.0, 8, dtype=np.float32), **legal)
    assert one == other


def test_a_row_belongs_to_heads_by_chance_and_for_good():
    numbers = np.arange(20_000) | np.arange(20_000) % 3 << 40
    for share in (0.25, 0.5):
        mask = belongs(numbers, 4, share)
        assert np.array_equal(mask[100:200], belongs(numbers[100:200], 4, share))
        np.testing.assert_allclose(mask.mean(0), share, atol=4 * 0.5 / np.sqrt(20_000))
        correlation = np.corrcoef(np.concatenate([mask.T, np.roll(mask, 1, 0).T]))
        assert np.abs(correlation - np.eye(8)).max() < 4 / np.sqrt(20_000) + 0.005
    assert belongs(numbers, 4, 1.0).all()


def test_priors_stand_still_and_heads_differ():
    model = MLPBootstrappedQ(OBS, ACT, (8,), heads=5, prior=2.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    task = ComputationTask(BootstrappedDQN(model, target_period=3, lr=0.01))
    for seed in range(5):
        task.learn(rows(seed, number=np.arange(8)))
    after = model.state_dict()
    assert {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])} == {"net"}
    target = task.algorithm.target
    assert all(torch.equal(target.state_dict()[name], after[name]) for name in after if name.startswith("fixed"))
    x = torch.randn(6, 3)
    values = model.values(x)
    expected = model.net(x) + 2.0 * model.fixed["net"](x)
    torch.testing.assert_close(values, expected.movedim(0, -1))
    assert values.shape == (6, 4, 5) and (values.std(-1) > 0.01).all()
    torch.testing.assert_close(model.q(x), values.mean(-1))


def test_priors_keep_the_trunk_of_the_beginning():
    """Which goes on learning for the rest."""
    trunk = torch.nn.Linear(3, 6)
    trunk.out_size = 6
    model = MLPBootstrappedQ(OBS, ACT, (8,), heads=3, trunk=trunk)
    before, x = copy.deepcopy(trunk), torch.randn(4, 3)
    prior = model.fixed["net"](before(x))
    ComputationTask(BootstrappedDQN(model, lr=0.01)).learn(rows(number=np.arange(8)))
    assert not torch.equal(trunk.weight, before.weight)
    torch.testing.assert_close(model.values(x), (model.net(trunk(x)) + 3.0 * prior).movedim(0, -1))


class Heads(Hook):
    def __init__(self):
        self.seen = []

    def post_act(self, agent):
        self.seen.append(agent.helpers["RL"].memory[0].item())


def test_each_episode_follows_one_head_and_tests_the_mean():
    spaces = dict(obs=gym.spaces.Box(0, 1, (16,), np.float32), act=gym.spaces.Discrete(2))
    func = create_algorithm_func(MLPBootstrappedQ, {**spaces, "hidden": (8,), "heads": 6}, BootstrappedDQN, {})
    tasks = {"RL": ComputationTask(func, lambda: OffPolicyHelper(size=200, batch_size=16))}
    hook = Heads()
    with Robot(lambda: DeepSea(4), tasks=tasks, seed=0) as robot:
        robot.run(StopAfterSteps(80), hooks=[hook])
        heads = np.array(hook.seen).reshape(20, 4)
        assert (heads == heads[:, :1]).all() and len({*heads[:, 0]}) == 6
        algorithm, x = robot.tasks["RL"].algorithm, torch.rand(3, 16)
        values = algorithm.model.values(x)
        q = algorithm.predict(Batch(obs=x, head=torch.tensor([2, -1, 5])))["q"]
        torch.testing.assert_close(q, torch.stack([values[0, :, 2], values[1].mean(-1), values[2, :, 5]]))
        torch.testing.assert_close(algorithm.predict(Batch(obs=x))["q"], values.mean(-1))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: BootstrappedDQN(MLPQ(OBS, ACT), share=0.0), "share is 0"), (lambda: MLPBootstrappedQ(OBS, OBS), "expected Discrete"),
    (lambda: MLPBootstrappedQ(OBS, ACT, heads=0), "heads is 0"), (lambda: MLPBootstrappedQ(OBS, ACT, prior=-1.0), "prior is -1"),
])
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


class Own(Model):
    """Two values of each of four actions, and as many heads as are said."""

    def __init__(self, **said):
        super().__init__(OBS, ACT)
        self.net = torch.nn.Linear(3, 8)
        vars(self).update(said)

    def values(self, obs):
        return self.net(obs).reshape(-1, 4, 2)

    def q(self, obs):
        return self.values(obs).mean(-1)


def test_a_model_says_how_many_heads_it_has():
    assert ComputationTask(BootstrappedDQN(Own(out_shape=(4, 2)))).algorithm.heads == 2
    with pytest.raises(ContractError, match=r"calls out_shape, \(A, heads\), of its model, and Own has no out_shape"):
        ComputationTask(BootstrappedDQN(Own()))
    with pytest.raises(ContractError, match=r"values: expected \(2, 4, 3\) for a batch of 2 rows, got \(2, 4, 2\)"):
        ComputationTask(BootstrappedDQN(Own(out_shape=(4, 3))))
