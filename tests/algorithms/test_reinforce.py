"""REINFORCE by hand, and that with a baseline it is A2C with λ = 1."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import A2C, REINFORCE
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError
from parl_like.models import CategoricalHead, MLPActorCritic, RecurrentActorCritic
from parl_like.values.batch import Batch

OBS, TWO = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


class Even(Model):
    """A policy alone, which begins uniform over two actions."""

    def __init__(self, obs=OBS, act=TWO):
        super().__init__(obs, act)
        self.head = CategoricalHead(3, 2, gain=0.0)

    def policy(self, obs, state=None):
        return self.head(obs), {}


def rows(n=3, seed=0, **fields):
    rng = np.random.default_rng(seed)
    obs, obs_next = rng.uniform(-1, 1, (2, n, 3)).astype(np.float32)
    last = np.arange(n) == n - 1
    made = {"obs": obs, "act": np.arange(n) % 2, "rew": rng.normal(size=n), "terminated": last, "truncated": np.zeros(n, bool),
            "obs_next": obs_next, "last": last}
    return made | fields


def test_returns_advantages_and_loss_by_hand():
    """Rewards 1, 2, 3 and γ ½: returns 2.75, 3.5, 3, mean 37/12, standard deviation 0.3819; log-probabilities −ln 2."""
    task = ComputationTask(REINFORCE(Even(), gamma=0.5, entropy=0.1, normalize=False))
    batch = task.algorithm.process(Batch({k: torch.as_tensor(v) for k, v in rows(rew=np.array([1.0, 2.0, 3.0])).items()}))
    assert batch.returns.tolist() == batch.advantage.tolist() == [2.75, 3.5, 3.0]
    result = task.algorithm.learn(batch)
    assert result["policy_loss"].item() == pytest.approx(np.log(2) * 9.25 / 3)
    assert result["loss"].item() == pytest.approx(np.log(2) * 9.25 / 3 - 0.1 * np.log(2)) and "value_loss" not in result
    task.algorithm.normalize = True
    normal = task.algorithm.process(batch).advantage
    np.testing.assert_allclose(normal, (np.array([2.75, 3.5, 3.0]) - 37 / 12) / 0.381881, rtol=1e-5)


def test_the_gradient_is_that_of_the_log_probability_times_the_advantage():
    """Along the logits of a uniform policy that is ½ for the action taken and −½ for the other: −mean A (½, −½) φ."""
    algorithm = REINFORCE(Even(), gamma=0.5, normalize=False)
    given = rows(rew=np.array([1.0, 2.0, 3.0]))
    batch = algorithm.process(Batch({k: torch.as_tensor(v) for k, v in given.items()}))
    algorithm.learn(batch)["loss"].backward()
    signs = np.where(given["act"] == 0, 0.5, -0.5) * [2.75, 3.5, 3.0]
    expected = -(signs[:, None] * given["obs"]).mean(0)
    np.testing.assert_allclose(algorithm.model.head.linear.weight.grad, [expected, -expected], rtol=1e-4, atol=1e-7)


def test_episodes_never_meet_and_what_a_time_limit_cut_earned_counts():
    ends = np.array([True, False, True])
    given = rows(rew=np.array([1.0, 2.0, 3.0]), last=ends, terminated=ends & [True, True, False], truncated=ends & [0, 0, 1] > 0)
    batch = Batch({k: torch.as_tensor(v) for k, v in given.items()})
    algorithm = REINFORCE(Even(), gamma=0.5, normalize=False)
    assert algorithm.process(batch).returns.tolist() == [1.0, 3.5, 3.0]
    algorithm = REINFORCE(MLPActorCritic(OBS, TWO), gamma=0.5, baseline=True)
    boot = algorithm.model.value(batch.obs_next)[2].item()
    with torch.no_grad():
        returns = algorithm.process(batch).returns.tolist()
    assert returns == pytest.approx([1.0, 3.5 + 0.25 * boot, 3.0 + 0.5 * boot], rel=1e-5)


@pytest.mark.parametrize("model", [MLPActorCritic, RecurrentActorCritic])
def test_with_a_baseline_it_is_a2c_with_lambda_one(model):
    tasks = []
    for kind, options in ((REINFORCE, dict(baseline=True)), (A2C, dict(lam=1.0, normalize=False))):
        torch.manual_seed(0)
        tasks.append(ComputationTask(kind(model(OBS, TWO, hidden=[8]), lr=1e-2, entropy=0.01, **options)))
    extra = {"state.h": np.zeros((12, 64), np.float32)} if model is RecurrentActorCritic else {}
    for step in range(20):
        results = [task.learn(rows(12, step, **extra)) for task in tasks]
        assert results[0] == pytest.approx(results[1], rel=1e-4)
    for one, other in zip(*(task.algorithm.model.parameters() for task in tasks), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_policy_alone_is_enough_without_a_baseline():
    task = ComputationTask(REINFORCE(Even(), lr=0.1))
    for step in range(20):
        batch = rows(12, step)
        task.learn({**batch, "rew": (batch["act"] == 1) * 1.0, "last": np.ones(12, bool)})
    assert task.predict({"obs": np.zeros((1, 3), np.float32)})["logits"][0].argmax() == 1
    with pytest.raises(ContractError, match="Even has no value"):
        ComputationTask(REINFORCE(Even(), baseline=True))
