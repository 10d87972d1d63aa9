"""The relatives of DQN: targets and losses by hand, and that each with its novelty switched off is a simpler one."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from value_rows import ACT, MASKED, OBS, Fixed, after_updates, batch_of, hand_rows, rows

from parl_like import ComputationTask, algorithms
from parl_like.algorithms import (
    BDQ,
    C51,
    DQN,
    FQF,
    IQN,
    MDQN,
    PQN,
    QMIX,
    QRDQN,
    R2D2,
    REM,
    VDN,
    BasicDQN,
    BootstrappedDQN,
    DiscreteBCQ,
    DiscreteCQL,
    Rainbow,
)
from parl_like.algorithms.targets import soft_maximum
from parl_like.models import (
    MLPQ,
    MLPBootstrappedQ,
    MLPBranchingQ,
    MLPCategoricalQ,
    MLPFractionQ,
    MLPImitationQ,
    MLPImplicitQ,
    MLPTeamMix,
    MLPTeamQ,
    RecurrentQ,
)

# ------------------------------------------------------------------------------------------------------------------ all

NETWORKS = {DQN: MLPQ, MDQN: MLPQ, REM: MLPQ, QRDQN: MLPQ, C51: MLPCategoricalQ, Rainbow: MLPCategoricalQ, IQN: MLPImplicitQ,
            FQF: MLPFractionQ, BootstrappedDQN: MLPBootstrappedQ, BDQ: MLPBranchingQ, R2D2: RecurrentQ, BasicDQN: MLPQ,
            VDN: MLPTeamQ, QMIX: MLPTeamMix, DiscreteCQL: MLPQ, DiscreteBCQ: MLPImitationQ, PQN: MLPQ}
TEAM = (gym.spaces.Dict(obs=gym.spaces.Box(-1, 1, (2, 3), np.float32), state=OBS), gym.spaces.MultiDiscrete([4, 4]))
SPACES = {BDQ: (OBS, gym.spaces.MultiDiscrete([4])), VDN: TEAM, QMIX: TEAM}


def test_the_networks_are_those_of_all_relatives():
    every = (getattr(algorithms, name) for name in algorithms.__all__)
    assert {one for one in every if issubclass(one, DQN)} == set(NETWORKS)


@pytest.mark.parametrize("kind", NETWORKS, ids=lambda kind: kind.__name__)
def test_optimisers_have_the_epsilon_that_was_asked_for(kind):
    """All of them: FQF has two. BasicDQN's default is that of its source."""
    for options, eps in (({}, 1e-8 if kind is BasicDQN else 1e-5), ({"adam_eps": 3e-4}, 3e-4)):
        task = ComputationTask(kind(NETWORKS[kind](*SPACES.get(kind, (OBS, ACT)), (8,)), **options))
        groups = [group for optimizer in task.optimizers.values() for group in optimizer.param_groups]
        assert [group["eps"] for group in groups] == [eps] * (1 + (kind is FQF))


@pytest.mark.parametrize(("kind", "options", "errors"), [
    (DQN, {}, [3.0, 0.5, 2.0]), (Rainbow, {"n_step": 1}, [3.0, 0.5, 2.0]),
    (MDQN, {"temperature": 1e-9, "alpha": 1.0, "floor": -1.0}, [2.0, 0.5, 2.0])])
def test_priorities_and_weighted_losses_worked_out_by_hand(kind, options, errors):
    """Values 2 and 4, the second is better: y = 3 + ½ · 4, and 4.5 and 2 at ends. For Munchausen's policy action 0 is so unlikely
    that it costs the floor, 1. Priorities are |y − Q|, neither squared nor weighted."""
    algorithm = kind(Fixed([[2.0], [4.0]]), gamma=0.5, **options)
    fields = hand_rows([0, 1, 1], [3.0, 4.5, 2.0], [False, True, True], weight=np.array([2.0, 1.0, 0.5], np.float32))
    with torch.no_grad():
        batch = algorithm.process(batch_of(fields))
    out = algorithm.learn(batch)
    np.testing.assert_allclose(out["priority"], errors, rtol=1e-6)
    assert out["loss"].item() == pytest.approx((2 * (errors[0] - 0.5) + 0.125 + 0.5 * 1.5) / 3)


# ------------------------------------------------------------------------------------------------------------- Munchausen


def test_the_soft_maximum():
    """2 log(e^(0/2) + e^(2 log 3 / 2)) = 2 log 4; illegal actions count for nothing; it is the maximum where T → 0."""
    q = torch.tensor([[0.0, 2 * np.log(3.0), -1e9]])
    assert soft_maximum(q, 2.0).item() == pytest.approx(2 * np.log(4.0))
    assert soft_maximum(torch.tensor([[1.5, 3.25, -2.0], [7.0, 7.0, 7.0]]), 1e-12).tolist() == [3.25, 7.0]
    p = torch.softmax(q / 2.0, -1)
    assert (p * (q - 2.0 * p.clamp(min=1e-30).log())).sum().item() == pytest.approx(2 * np.log(4.0), rel=1e-6)


def test_munchausen_targets_worked_out_by_hand():
    """π = ¼, ¾ everywhere, V = 2 log 4 = 4 log 2. T log π of action 0 is −2 log 4, below the floor; of action 1 it is
    2 log ¾."""
    algorithm = MDQN(Fixed([[0.0], [2 * np.log(3.0)]]), gamma=0.5, temperature=2.0, alpha=0.5, floor=-1.0)
    fields = hand_rows([0, 1, 1], [1.0, 2.0, 3.0], [False, False, True])
    batch = algorithm.process(batch_of(fields))
    v = 2 * np.log(4.0)
    expected = [1 - 0.5 + 0.5 * v, 2 + 0.5 * 2 * np.log(0.75) + 0.5 * v, 3 + 0.5 * 2 * np.log(0.75)]
    np.testing.assert_allclose(batch.target.detach(), expected, rtol=1e-6)
    algorithm = MDQN(Fixed([[0.0], [2 * np.log(3.0)]]), gamma=0.5, temperature=2.0, alpha=0.0)  # soft Q-learning
    batch = algorithm.process(batch_of({**fields, "duration": np.array([1, 3, 2])}))
    np.testing.assert_allclose(batch.target.detach(), [1 + 0.5 * v, 2 + 0.125 * v, 3], rtol=1e-6)


def test_the_policy_of_munchausen_is_that_of_the_target_copy():
    """There π = ¼, ¾, as above; the network's own would be ½, ½."""
    algorithm = MDQN(Fixed([[5.0], [5.0]]), gamma=0.5, temperature=2.0, alpha=0.5, floor=-9.0)
    algorithm.target.table.data = torch.tensor([[0.0], [2 * np.log(3.0)]])
    batch = algorithm.process(batch_of(hand_rows([1, 1], [1.0, 3.0], [False, True])))
    expected = [1 + np.log(0.75) + np.log(4.0), 3 + np.log(0.75)]
    np.testing.assert_allclose(batch.target.detach(), expected, rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_munchausen_without_its_novelty_is_dqn(masked):
    """α = 0, T → 0; also where masks forbid actions, or all of them."""
    model = MLPQ(MASKED if masked else OBS, ACT, (8,))
    one, other, third = after_updates(
        MDQN(copy.deepcopy(model), alpha=0.0, temperature=1e-12, target_period=5),
        DQN(copy.deepcopy(model), double=False, target_period=5), MDQN(model, target_period=5), masked=masked)
    assert one == other != third


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"alpha": 1.5}, {"floor": 1.0}])
def test_bad_options_are_named(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}.*expected"):
        MDQN(MLPQ(OBS, ACT), **options)


# --------------------------------------------------------------------------------------------------------------------- REM


def test_rem_worked_out_by_hand():
    """Heads (0, 4) and (1, 5): action 1 is the best. With α = (α, 1 − α): y = r + ½ (α + 5 (1 − α)), or r at the end; Q of
    action 0 is 4 (1 − α)."""
    algorithm = REM(Fixed([[0.0, 4.0], [1.0, 5.0]]), gamma=0.5)
    seen = set()
    for _ in range(5):
        batch = algorithm.process(batch_of(hand_rows([0, 0], [1.0, 7.0], [False, True])))
        alpha, rest = batch.mixture[0].tolist()
        seen.add(alpha)
        assert alpha + rest == pytest.approx(1.0) and 0 <= alpha <= 1 and torch.equal(batch.mixture[0], batch.mixture[1])
        y, q = np.array([1 + 0.5 * (alpha + 5 * rest), 7.0]), 4 * rest
        np.testing.assert_allclose(batch.target.detach(), y, rtol=1e-6)
        out, error = algorithm.learn(batch), np.abs(y - q)
        huber = np.where(error < 1, 0.5 * error**2, error - 0.5)
        assert out["loss"].item() == pytest.approx(huber.mean(), rel=1e-5)
        np.testing.assert_allclose(out["priority"], error, rtol=1e-5)
    assert len(seen) == 5


@pytest.mark.parametrize("double", [False, True])
def test_the_best_action_of_rem_is_that_of_the_mixture(double):
    """Heads prefer different actions, 0 by (8, 0) and 1 by (0, 4): action 0 where 8 α > 4 (1 − α), that is α > ⅓. Even
    mixtures, of which the action was taken before, always say 0. The network chooses, or without `double` its copy, and the
    copy says what it is worth: (6, 2) and (10, 1)."""
    table, copied = [[8.0, 0.0], [0.0, 4.0]], [[6.0, 2.0], [10.0, 1.0]]
    algorithm, seen = REM(Fixed(table), gamma=0.5, double=double), set()
    algorithm.target.table.data = torch.tensor(copied)
    for _ in range(40):
        batch = algorithm.process(batch_of(hand_rows([0], [1.0], [False])))
        mixture = batch.mixture[0].numpy()
        best = int(np.argmax(np.array(table if double else copied) @ mixture))
        seen.add(best)
        assert batch.target.item() == pytest.approx(1 + 0.5 * np.dot(copied[best], mixture), rel=1e-5)
    assert seen == {0, 1}


def test_illegal_actions_are_no_mixtures_best():
    algorithm = REM(MLPQ(MASKED, ACT, (8,), heads=3), gamma=1.0)
    fields = {**rows(masked=True, n=64), "terminated": np.zeros(64, bool), "rew": np.zeros(64, np.float32)}
    mask = fields["obs_next.mask"] | ~fields["obs_next.mask"].any(1, keepdims=True)
    with torch.no_grad():
        batch = algorithm.process(batch_of(fields))
        q = (algorithm.model.values(batch.obs_next) * batch.mixture[:, None]).sum(2).numpy()
    np.testing.assert_allclose(batch.target, np.where(mask, q, -np.inf).max(1), rtol=1e-5, atol=1e-7)


def test_rem_with_one_head_is_dqn():
    model, weight = MLPQ(OBS, ACT, (8,)), np.linspace(0.5, 1.0, 8, dtype=np.float32)
    one, other = after_updates(REM(copy.deepcopy(model), target_period=5), DQN(model, target_period=5), weight=weight)
    assert one == other
