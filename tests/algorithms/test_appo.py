"""APPO: targets by hand, and that on its own rows it is PPO."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import APPO, PPO
from parl_like.models import MLPActorCritic, RecurrentActorCritic
from parl_like.values.batch import Batch

OBS, TWO = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def rows(n=24, seed=0, **fields):
    rng = np.random.default_rng(seed)
    obs, obs_next = rng.uniform(-1, 1, (2, n, 3)).astype(np.float32)
    last = np.arange(n) % 8 == 7
    terminated = last & (np.arange(n) < 8)  # the others are cut
    made = {"obs": obs, "act": rng.integers(2, size=n), "rew": rng.normal(size=n), "terminated": terminated,
            "truncated": np.zeros(n, bool), "obs_next": obs_next, "last": last}
    return made | fields


def test_targets_and_advantages_by_hand():
    """γ ½, V = 1, 2 and 4 behind the cut, rewards 1, 1, ρ = 2, ½, bounds 1:
    δ = 1 · (1 + ½ · 2 − 1) = 1, ½ (1 + ½ · 4 − 2) = ½;  v₁ = 2.5, v₀ = 1 + 1 + ½ · 1 · (2.5 − 2) = 2.25;
    A = 1 + ½ · 2.5 − 1 = 1.25, 1 + ½ · 4 − 2 = 1, without ρ, which the surrogate has."""
    algorithm = APPO(MLPActorCritic(OBS, TWO, hidden=[4]), gamma=0.5)
    out = {"logits": torch.zeros(2, 2)}
    batch = Batch(act=torch.zeros(2, dtype=torch.int64), rew=torch.ones(2), terminated=torch.zeros(2, dtype=torch.bool),
                  last=torch.tensor([False, True]), log_prob=torch.tensor([0.25, 1.0]).log())
    advantage, returns = algorithm.estimates(batch, out, torch.tensor([1.0, 2.0]), torch.tensor([4.0]))
    np.testing.assert_allclose(returns, [2.25, 2.5], rtol=1e-6)
    np.testing.assert_allclose(advantage, [1.25, 1.0], rtol=1e-6)


@pytest.mark.parametrize("model", [MLPActorCritic, pytest.param(RecurrentActorCritic, marks=pytest.mark.slow)])
def test_with_rows_of_its_own_policy_it_is_ppo_with_lambda_one(model):
    """In the same order of minibatches; with rows of another policy it is not."""
    tasks = []
    for kind in (APPO, PPO, APPO):
        torch.manual_seed(0)
        tasks.append(ComputationTask(kind(model(OBS, TWO, hidden=[8]), lam=1.0, lr=3e-3, entropy=0.01, epochs=2, minibatches=2)))
        tasks[-1].build()
    extra = {"state.h": np.zeros((24, 64), np.float32)} if model is RecurrentActorCritic else {}
    for step in range(20):
        given = rows(seed=step, **extra)
        for i, task in enumerate(tasks):
            task.learn(given if i < 2 else {**given, "policy.log_prob": np.full(24, -0.9, np.float32)})
    appo, ppo, other = ([p.detach() for p in task.algorithm.model.parameters()] for task in tasks)
    for one, two in zip(appo, ppo, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    assert not all(torch.allclose(one, two, rtol=1e-3, atol=1e-4) for one, two in zip(appo, other, strict=True))


def test_bounds_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="expected 0 ≤ c_bar ≤ rho_bar"):
        APPO(MLPActorCritic(OBS, TWO), c_bar=2.0)
