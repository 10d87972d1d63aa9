"""PQN: its targets by hand, that λ = 0 is DQN without a target copy, its network, and a learning run."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from value_rows import ACT, OBS, batch_of, rows

from parl_like import ComputationTask, Robot
from parl_like.algorithms import DQN, PQN
from parl_like.models import MLPQ
from parl_like.models.mlp import NormedMLP


class Table(MLPQ):
    """Its values are the observation times 1, 2 and 3."""

    def __init__(self):
        super().__init__(gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(3), ())
        self.scale = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def q(self, obs):
        return obs * self.scale


def unrolls():
    """Two segments: of three rows, whose last one is cut, and of two, whose last one is an end."""
    return {"obs": np.float32([[1], [2], [3], [4], [5]]), "obs_next": np.float32([[2], [3], [9], [5], [7]]),
            "act": np.array([0, 1, 2, 0, 1]), "rew": np.float32([1, 2, 3, 4, 5]),
            "terminated": np.array([False, False, False, False, True]), "last": np.array([False, False, True, False, True])}


def test_targets_and_loss_by_hand():
    """γ ½, λ ½; max Q(s) is 3 s. G₂ = 3 + ½ · 27, G₁ = 2 + ½ (½ G₂ + ½ · 9), G₀ = 1 + ½ (½ G₁ + ½ · 6); G₄ = 5,
    G₃ = 4 + ½ (½ · 5 + ½ · 15)."""
    algorithm = PQN(Table(), gamma=0.5, lam=0.5)
    with torch.no_grad():
        batch = algorithm.process(batch_of(unrolls()))
    g2 = 3 + 13.5
    g1 = 2 + 0.25 * g2 + 2.25
    assert batch.target.tolist() == pytest.approx([1 + 0.25 * g1 + 1.5, g1, g2, 4 + 1.25 + 3.75, 5.0])
    errors = batch.target - torch.tensor([1.0, 4.0, 9.0, 4.0, 10.0])  # Q of what was done
    assert algorithm.learn(batch)["loss"].item() == pytest.approx(0.5 * errors.square().mean().item())


def test_with_lambda_zero_targets_are_those_of_dqn_without_a_target_copy():
    model = MLPQ(OBS, ACT, (8,))
    fields = {**rows(1), "last": np.array([False, True, False, False, True, False, True, True])}
    follows = np.flatnonzero(~fields["last"])
    fields["obs_next"][follows] = fields["obs"][follows + 1]
    fields["terminated"] &= fields["last"]
    with torch.no_grad():
        ours = PQN(model, lam=0.0).process(batch_of(fields)).target
        theirs = DQN(model, target_period=0, double=False).process(batch_of(fields)).target
    torch.testing.assert_close(ours, theirs)


def test_layer_norm_worked_out_by_hand():
    """relu of the hidden numbers in standard deviations from their mean; no norm behind the last layer."""
    model = MLPQ(OBS, ACT, (5,), layer_norm=True)
    x = torch.randn(7, 3)
    (w, b), (w2, b2) = model.net.layers()
    h = x @ w[0] + b[0]
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    assert type(model.net) is NormedMLP
    torch.testing.assert_close(model.q(x), torch.relu(h) @ w2[0] + b2[0])
    with pytest.raises(ValueError, match="layer_norm goes with neither dueling nor noisy"):
        MLPQ(OBS, ACT, (5,), layer_norm=True, dueling=True)


def test_every_row_is_learned_from_in_each_epoch():
    seen = []

    class Looks(PQN):
        def learn(self, batch):
            seen.append(batch.target.tolist())
            return super().learn(batch)

    task = ComputationTask(Looks(Table(), epochs=3, minibatches=2))
    task.learn(unrolls())
    assert task.algorithm.updates == 6 and len(seen) == 6
    for epoch in range(3):
        rows_seen = sorted(seen[2 * epoch] + seen[2 * epoch + 1])
        assert len(rows_seen) == 5 and rows_seen == sorted(seen[0] + seen[1])


def test_lambda_is_refused_outside_its_range():
    with pytest.raises(ValueError, match="PQN: lam is 1.5"):
        PQN(Table(), lam=1.5)


@pytest.mark.slow
def test_it_learns_to_balance():
    with Robot.of("PQN", "CartPole-v1", seed=0, total_steps=60_000) as robot:
        robot.run(60_000)
        assert robot.evaluate(10).mean_return > 150
