"""MADDPG: targets and losses by hand, that one player is DDPG, and who moves what."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import DDPG, MADDPG
from parl_like.models import MLPTeamActorQ
from parl_like.values.batch import Batch

TEAM = gym.spaces.Dict(obs=gym.spaces.Box(-1, 1, (2, 3), np.float32))
ACT = gym.spaces.Box(-1, 1, (2, 1), np.float32)


def rows(seed=0, n=8, players=2, numbers=1, rewards=()):
    rng = np.random.default_rng(seed)
    made = {"act": rng.uniform(-1, 1, (n, players, numbers)).astype(np.float32), "rew": rng.normal(size=(n, *rewards)),
            "terminated": np.arange(n) % 3 == 0, "truncated": np.arange(n) % 3 == 1}
    return made | {f"{name}.obs": rng.normal(size=(n, players, 3)).astype(np.float32) for name in ("obs", "obs_next")}


def batch_of(fields):
    return Batch.nest({name: torch.from_numpy(np.array(value)) for name, value in fields.items()})


class Fixed(MLPTeamActorQ):
    """π_i = w, Q_1 = a_1 + 10 a_2, Q_2 = 100 a_1 + 1000 a_2, times a weight."""

    def __init__(self, weight=0.5):
        super().__init__(TEAM, ACT, ())
        self.w = torch.nn.Parameter(torch.tensor([1.0]))
        self.actor = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(weight))])

    def act(self, obs):
        return self.actor[0].expand(len(obs["obs"]), 2, 1)

    def q(self, obs, act):
        act = act if act.ndim == 4 else act.expand(2, *act.shape)
        return self.w * torch.stack([act[0, :, 0, 0] + 10 * act[0, :, 1, 0], 100 * act[1, :, 0, 0] + 1000 * act[1, :, 1, 0]])


def test_targets_and_losses_by_hand():
    """γ ½, π ½: Q_1(π, π) = 5.5, Q_2 = 550. Joint actions (0.1, 0.2): Q_1 = 2.1, Q_2 = 210. The actors' loss has each policy
    beside the other's own action: 0.5 + 2 and 10 + 500."""
    learner = MADDPG(Fixed(), gamma=0.5)
    fields = {**rows(n=2), "act": np.array([[[0.1], [0.2]]] * 2, np.float32), "terminated": np.array([False, True])}
    for rew, targets in (([1.0, 2.0], [[3.75, 2.0], [276.0, 2.0]]),
                         ([[1.0, 7.0], [2.0, 8.0]], [[3.75, 2.0], [282.0, 8.0]])):
        with torch.no_grad():
            batch = learner.process(batch_of({**fields, "rew": np.array(rew)}))
        assert batch.target.tolist() == targets
        critic, actor = learner.learn(batch)
        error = np.array([[2.1, 2.1], [210.0, 210.0]]) - np.array(targets)
        assert critic["critic"].item() == pytest.approx((error**2).mean(1).sum(), rel=1e-5)
        assert critic["priority"].numpy() == pytest.approx(np.abs(error).max(0), rel=1e-5)
        assert actor["actor"].item() == pytest.approx(-(2.5 + 510.0), rel=1e-5)


ONE = gym.spaces.Dict(obs=gym.spaces.Box(-1, 1, (1, 3), np.float32))


def test_a_player_that_has_ended_gets_nothing_more_and_durations_count():
    """As above, with γ² and no value for the second player of the first row."""
    learner = MADDPG(Fixed(), gamma=0.5)
    fields = {**rows(n=2), "act": np.array([[[0.1], [0.2]]] * 2, np.float32), "rew": np.array([[1.0, 7.0], [2.0, 8.0]]),
              "terminated": np.array([False, False]), "info.ended": np.array([[False, True], [False, False]]),
              "duration": np.array([2, 1])}
    with torch.no_grad():
        assert learner.process(batch_of(fields)).target.tolist() == [[1 + 5.5 / 4, 2 + 5.5 / 2], [7.0, 8 + 550 / 2]]


class AsOne(MLPTeamActorQ):
    """A team of one, which DDPG can call, too."""

    def __init__(self):
        super().__init__(ONE, gym.spaces.Box(-1, 1, (1, 2), np.float32), (8,))


@pytest.mark.parametrize("central", [True, False])
def test_with_one_player_it_is_ddpg(central):
    torch.manual_seed(0)
    hashes = []
    first = AsOne()
    for kind in (MADDPG, DDPG):
        model = AsOne()
        model.central = central
        model.load_state_dict(first.state_dict())
        task = ComputationTask(lambda kind=kind, model=model: kind(model, gamma=0.9, tau=0.01, lr=1e-3, max_grad_norm=None))
        for seed in range(20):
            task.learn(rows(seed, players=1, numbers=2))
        hashes.append(task.algorithm.model.weights_hash())
    assert hashes[0] == hashes[1] != first.weights_hash()


@pytest.mark.parametrize("central", [True, False])
def test_a_critic_knows_all_players_or_its_own(central):
    model = MLPTeamActorQ(TEAM, ACT, (8,), central=central)
    obs, act = {"obs": torch.randn(5, 2, 3)}, torch.rand(5, 2, 1)
    other = {"obs": torch.cat([obs["obs"][:, :1], torch.randn(5, 1, 3)], 1)}, torch.cat([act[:, :1], torch.rand(5, 1, 1)], 1)
    assert torch.equal(model.act(obs)[:, 0], model.act(other[0])[:, 0])
    assert torch.equal(model.q(obs, act)[0], model.q(*other)[0]) is not central
    each = torch.stack([act, 2 * act])
    assert torch.allclose(model.q(obs, each), torch.stack([model.q(obs, act)[0], model.q(obs, 2 * act)[1]]))


def test_a_policy_learns_from_its_own_critic_alone():
    """Of player 1 the second critic says nothing, though it knows player 1's action."""
    learner = MADDPG(MLPTeamActorQ(TEAM, ACT, (8,)))
    batch = batch_of(rows())
    q = learner.model.q(batch.obs, learner.each_by_itself(batch)).mean(1)
    grads = torch.autograd.grad(q[1], list(learner.model.actor.parameters()))
    assert all(not grad[0].any() and grad[1].any() for grad in grads)


def test_an_action_that_is_no_row_for_each_player_is_refused():
    with pytest.raises(TypeError, match=r"MLPTeamActorQ: act is Box.*expected a Box \[players, n\]"):
        MLPTeamActorQ(TEAM, gym.spaces.Box(-1, 1, (2,)))


def test_rewards_of_another_number_of_players_are_refused():
    learner = MADDPG(MLPTeamActorQ(TEAM, ACT, (8,)))
    with pytest.raises(ValueError, match=r"rewards have the shape \(3,\); expected one number, or one for each of 2 players"):
        learner.process(batch_of(rows(rewards=(3,))))
