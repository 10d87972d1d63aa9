"""What a policy is worth by the data of another one: within 2 % of the exact value of a table."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import BC, DQN, TD3
from parl_like.algorithms.estimates import FQE, importance_sampling
from parl_like.algorithms.estimates.fqe import policy_of
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ

P = np.array([  # [S, A, S'], in tenths; state 3 is the end
    [[0.0, 0.7, 0.3, 0.0], [0.1, 0.0, 0.8, 0.1]],
    [[0.2, 0.3, 0.0, 0.5], [0.0, 0.4, 0.6, 0.0]],
    [[0.5, 0.0, 0.2, 0.3], [0.0, 0.1, 0.1, 0.8]]])
R = np.array([[1.0, 0.0], [2.0, -1.0], [0.5, 3.0]])
PI, B = np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]]), np.array([[0.5, 0.5], [0.6, 0.4], [0.4, 0.6]])
GAMMA = 0.9


def exact(policy):
    """v [3] and q [3, 2] by the linear equations."""
    step = np.einsum("sa,sat->st", policy, P[:, :, :3])
    v = np.linalg.solve(np.eye(3) - GAMMA * step, (policy * R).sum(1))
    return v, R + GAMMA * P[:, :, :3] @ v


def one_hot(states):
    return np.eye(4, dtype=np.float32)[states]


def test_fitted_values_are_those_of_the_table():
    """Every transition as often as it is probable; a layer without a hidden one on the state's number is a table."""
    s, a, t, n = (np.array(column) for column in zip(*[
        (s, a, t, round(10 * P[s, a, t])) for s in range(3) for a in range(2) for t in range(4) if P[s, a, t]], strict=True))
    s, a, t = (np.repeat(column, n) for column in (s, a, t))
    rows = {"obs": one_hot(s), "act": a, "rew": R[s, a].astype(np.float32), "obs_next": one_hot(t), "terminated": t == 3,
            "truncated": np.zeros(len(s), bool)}
    policy = torch.tensor(np.vstack([PI, [0.5, 0.5]]), dtype=torch.float32)
    model = MLPQ(gym.spaces.Box(0, 1, (4,), np.float32), gym.spaces.Discrete(2), ())
    task = ComputationTask(FQE(model, lambda obs: obs @ policy, gamma=GAMMA, tau=0.3, lr=0.03))
    for _ in range(500):
        task.learn(rows)
    v, q = exact(PI)
    found = task.predict({"obs": one_hot(np.arange(3))})["value"]
    np.testing.assert_allclose(found, v, rtol=0.02)
    np.testing.assert_allclose(model.q(torch.from_numpy(one_hot(np.arange(3)))).detach(), q, rtol=0.02)


def test_the_loss_of_fqe_by_hand():
    """Q = 0 everywhere but for the biases 1 and 3; π = ¼, ¾: V = 2.5. The first row goes on, y = 1 + ½ · 2.5; the second ends."""
    model = MLPQ(gym.spaces.Box(0, 1, (4,), np.float32), gym.spaces.Discrete(2), ())
    with torch.no_grad():
        weight, bias = model.net.parameters()
        weight.zero_()
        bias.copy_(torch.tensor([1.0, 3.0]))
    task = ComputationTask(FQE(model, lambda obs: torch.tensor([[0.25, 0.75]]).expand(len(obs), 2), gamma=0.5, lr=0.0))
    out = task.learn({"obs": one_hot([0, 1]), "obs_next": one_hot([1, 2]), "act": np.array([0, 1]),
                      "rew": np.array([1, 5], np.float32), "terminated": np.array([False, True]), "truncated": np.zeros(2, bool)})
    assert out["loss"] == pytest.approx((1.25**2 + 2.0**2) / 2)
    np.testing.assert_allclose(out["priority"], [1.25, 2.0])


def test_fqe_of_a_box_by_a_policy_that_has_learned():
    """A bandit whose reward is 1 − a²: of the action 0.5 it is worth 0.75."""
    torch.manual_seed(0)
    obs, act = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)
    task = ComputationTask(FQE(MLPActorQ(obs, act, (32,), critics=1), lambda seen: seen.new_full((len(seen), 1), 0.5), lr=0.01))
    rng = np.random.default_rng(0)
    rows = {"obs": rng.uniform(-1, 1, (256, 2)).astype(np.float32), "act": rng.uniform(-1, 1, (256, 1)).astype(np.float32)}
    rows |= {"obs_next": rows["obs"], "rew": (1 - rows["act"][:, 0] ** 2), "terminated": np.ones(256, bool),
             "truncated": np.zeros(256, bool)}
    for _ in range(300):
        task.learn(rows)
    assert task.predict({"obs": rows["obs"]})["value"].mean() == pytest.approx(0.75, abs=0.03)


def test_policies_of_algorithms_that_have_learned():
    obs, box = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)
    seen, two = torch.randn(5, 2), gym.spaces.Discrete(2)
    probabilities, greedy = policy_of(BC(MLPActorCritic(obs, two)))(seen), policy_of(dqn := DQN(MLPQ(obs, two)))(seen)
    assert torch.allclose(probabilities.sum(1), torch.ones(5)) and ((0 < probabilities) & (probabilities < 1)).all()
    assert (greedy.argmax(1) == dqn.model.q(seen).argmax(1)).all() and (greedy.sum(1) == 1).all()
    td3 = TD3(MLPActorQ(obs, box, (8,), policy="deterministic"))
    assert torch.equal(policy_of(td3)(seen), td3.model.act(seen))


def episodes(n, rng):
    """Rows of n episodes of b: s, a, r, last."""
    state, alive, columns = np.zeros(n, int), np.arange(n), []
    while len(alive):
        s = state[alive]
        a = (rng.random(len(s)) >= B[s, 0]).astype(int)
        t = (rng.random((len(s), 1)) > P[s, a].cumsum(1)).sum(1)
        columns.append((alive, s, a, R[s, a], t == 3))
        state[alive] = t
        alive = alive[t != 3]
    number, s, a, r, last = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(number, kind="stable")
    return s[order], a[order], r[order], last[order]


def test_weighted_returns_are_within_two_percent_of_the_exact_value():
    s, a, r, last = episodes(30_000, np.random.default_rng(0))
    (v, q), n = exact(PI), last.sum()
    found = importance_sampling(r, np.log(PI[s, a] / B[s, a]), last, GAMMA, q=q[s, a], v=v[s])
    assert [round(one / v[0], 2) for one in found[:5]] == pytest.approx([1.0] * 5, abs=0.02)
    assert abs(v[0] - exact(B)[0][0]) > 0.08 * v[0], "the other policy is worth something else"
    assert 0 < found.effective < n
    same = importance_sampling(r, np.zeros(len(r)), last, GAMMA)
    assert same.effective == pytest.approx(n) and len({round(one, 9) for one in same[:4]}) == 1 and math.isnan(same.doubly_robust)


def test_the_estimates_by_hand():
    """Two episodes of rewards 1, 2 and 3, γ = ½; ρ = 2, ½ and 3: w = 2, 1 and 3. Returns 2 and 3."""
    found = importance_sampling(np.array([1.0, 2.0, 3.0]), np.log([2.0, 0.5, 3.0]), np.array([False, True, True]), 0.5,
                                q=np.array([1.0, 0.0, 2.0]), v=np.array([0.5, 1.0, 1.0]))
    assert found.ordinary == pytest.approx((1 * 2 + 3 * 3) / 2) and found.weighted == pytest.approx((1 * 2 + 3 * 3) / (1 + 3))
    assert found.per_decision == pytest.approx(((2 * 1 + 0.5 * 1 * 2) + 3 * 3) / 2)
    assert found.weighted_per_decision == pytest.approx((2 * 1 + 3 * 3) / 5 + 0.5 * (1 * 2) / (1 + 3))
    second = 1.0 + 0.5 * 2.0  # v + ρ (r − q) of the last row of the first episode
    assert found.doubly_robust == pytest.approx(((0.5 + 2 * (1 + 0.5 * second - 1)) + (1 + 3 * (3 - 2))) / 2)
    assert found.effective == pytest.approx(16 / 10)
    never = importance_sampling(np.ones(2), np.array([-np.inf, 0.0]), np.array([True, True]))
    assert never.weighted == 1.0 and never.ordinary == 0.5


@pytest.mark.parametrize(("columns", "message"), [
    (([1.0], [0.0, 0.0], [True]), "log_ratio is"), (([1.0], [0.0], [False]), "ends no episode"),
    (([], [], []), "at least one row"),
    (([math.nan], [0.0], [True]), "rew has NaN in row 0")])
def test_bad_columns_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        importance_sampling(*map(np.array, columns))
    with pytest.raises(ValueError, match="expected q and v"):
        importance_sampling(np.ones(1), np.zeros(1), np.ones(1, bool), q=np.ones(1))
