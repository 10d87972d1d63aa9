"""A2C and PPO against their formulas, written out in NumPy."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.algorithms import A2C, PPO
from parl_like.learning.algorithm import Linear
from parl_like.models import MLPActorCritic, RecurrentActorCritic
from parl_like.values.batch import Batch

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTS = {"discrete": gym.spaces.Discrete(4), "joint": gym.spaces.MultiDiscrete([2, 3]),
        "box": gym.spaces.Box(-1, 1, (2,), np.float32)}
each_space = pytest.mark.parametrize("space", ACTS)


def algorithm_of(kind, space, **options):
    torch.manual_seed(1)
    algorithm = kind(MLPActorCritic(obs=OBS, act=ACTS[space], hidden=[8]), **options)
    for parameter in algorithm.model.parameters():  # heads begin near 0, where many errors would not show
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return algorithm


def rows_of(space, n=12, seed=0):
    rng = np.random.default_rng(seed)
    act = {"discrete": lambda: rng.integers(4, size=n), "joint": lambda: rng.integers([2, 3], size=(n, 2)),
           "box": lambda: rng.normal(size=(n, 2)).astype(np.float32)}
    last = np.zeros(n, bool)
    last[[3, 7, n - 1]] = True
    terminated = np.zeros(n, bool)
    terminated[3] = True  # row 7 is truncated, the last one cut in its episode
    obs, obs_next = rng.uniform(-1, 1, (2, n, 3)).astype(np.float32)
    fields = {"obs": obs, "act": act[space](), "rew": rng.normal(size=n), "terminated": terminated,
              "truncated": last & ~terminated, "obs_next": obs_next, "last": last}
    return Batch({name: torch.from_numpy(value) for name, value in fields.items()})


def log_pi(out, act, space):
    """log π(act) [N] and entropy [N], float64."""
    out = {k: v.detach().double().numpy() for k, v in out.items()}
    if space == "box":
        mean, log_std = out["mean"], np.broadcast_to(out["log_std"], out["mean"].shape)
        z = (act - mean) / np.exp(log_std)
        return (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(1), (log_std + 0.5 * np.log(2 * np.pi * np.e)).sum(1)
    parts = (
        [(out["logits"], act)] if space == "discrete" else [(out["logits"][:, :2], act[:, 0]), (out["logits"][:, 2:], act[:, 1])]
    )
    total, entropy = 0, 0
    for logits, index in parts:
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        total = total + log_p[np.arange(len(index)), index]
        entropy = entropy - (np.exp(log_p) * log_p).sum(1)
    return total, entropy


@each_space
@pytest.mark.parametrize("kind", [A2C, PPO])
def test_advantages_cross_no_cut_and_bootstrap_only_where_the_episode_did_not_terminate(kind, space):
    algorithm = algorithm_of(kind, space, gamma=0.9, lam=0.8, reward_scale=0.5, normalize=False)
    rows = rows_of(space)
    out, value = algorithm.model.evaluate(rows.obs)
    v, v_next = value.detach().double().numpy(), algorithm.model.evaluate(rows.obs_next)[1].detach().double().numpy()
    v_after = np.append(v[1:], 0.0)
    rew, last, terminated = 0.5 * rows.rew.numpy(), rows.last.numpy(), rows.terminated.numpy()
    advantage, carry = np.zeros(12), 0.0
    for t in reversed(range(12)):
        after = 0.0 if terminated[t] else v_next[t] if last[t] else v_after[t]
        carry = rew[t] + 0.9 * after - v[t] + (0.0 if last[t] else 0.9 * 0.8 * carry)
        advantage[t] = carry
    with torch.no_grad():
        batch = algorithm.process(rows)
    np.testing.assert_allclose(batch.advantage.numpy(), advantage, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(batch.returns.numpy(), advantage + v, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(batch.log_prob.numpy(), log_pi(out, rows.act.numpy(), space)[0], rtol=1e-4, atol=1e-6)


def test_with_a_memory_the_value_behind_a_cut_is_that_after_its_last_row():
    """Two segments, the memory of each from what is stored with its first row: A = r + γ V(s' | m') − V(s | m) for λ = 0."""
    torch.manual_seed(1)
    model = RecurrentActorCritic(OBS, ACTS["discrete"], [4], size=4)
    algorithm = A2C(model, gamma=0.9, lam=0.0, normalize=False)
    rows = rows_of("discrete")[:5]
    rows.last = torch.tensor([False, True, False, False, True])
    rows.terminated[:], memory = False, torch.randn(5, 4)
    expected = torch.empty(5)
    with torch.no_grad():
        for segment in ([0, 1], [2, 3, 4]):
            state = {"h": memory[segment[:1]]}
            for t in segment:
                memory[t] = state["h"][0]  # as the agent that acted had stored it
                value, (_, after) = model.value(rows.obs[t : t + 1], state), model.policy(rows.obs[t : t + 1], state)
                expected[t] = rows.rew[t] + 0.9 * model.value(rows.obs_next[t : t + 1] if t == segment[-1]
                                                              else rows.obs[t + 1 : t + 2], after) - value
                state = after
        rows.state = Batch(h=memory)
        np.testing.assert_allclose(algorithm.process(rows).advantage, expected, rtol=1e-4, atol=1e-6)


def test_a_rows_duration_discounts_what_follows_it():
    """One row per segment: A = r + γ^d V(s') − V(s)."""
    algorithm = algorithm_of(A2C, "discrete", gamma=0.9, normalize=False)
    rows = rows_of("discrete")
    rows.duration, rows.last = torch.arange(1, 13), torch.ones(12, dtype=torch.bool)
    with torch.no_grad():
        v, v_next = algorithm.model.evaluate(rows.obs)[1], algorithm.model.evaluate(rows.obs_next)[1]
        expected = rows.rew + 0.9**rows.duration * ~rows.terminated * v_next - v
        np.testing.assert_allclose(algorithm.process(rows).advantage, expected, rtol=1e-4, atol=1e-6)


@each_space
def test_a2c_loss(space):
    algorithm = algorithm_of(A2C, space, entropy=0.03, value_weight=0.7)
    with torch.no_grad():
        batch = algorithm.process(rows_of(space))
    out, value = algorithm.model.evaluate(batch.obs)
    log_prob, entropy = log_pi(out, batch.act.numpy(), space)
    policy_loss = -(log_prob * batch.advantage.numpy()).mean()
    value_loss = ((batch.returns.numpy() - value.detach().numpy()) ** 2).mean()
    result = algorithm.learn(batch)
    expected = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy.mean(),
                "loss": policy_loss + 0.7 * value_loss - 0.03 * entropy.mean()}
    assert {name: float(result[name].detach()) for name in expected} == pytest.approx(expected, rel=1e-4)


@each_space
def test_ppo_loss_and_gradient_are_those_of_the_clipped_ratio(space):
    """Old log-probabilities far away, so that for both signs of A rows are clipped on both sides."""
    algorithm = algorithm_of(PPO, space, entropy=0.03, value_weight=0.7, clip=0.1)
    with torch.no_grad():
        batch = algorithm.process(rows_of(space))
        batch.log_prob = batch.log_prob + torch.linspace(-0.5, 0.5, 12)
    advantage = ((batch.advantage - batch.advantage.mean()) / batch.advantage.std()).numpy()
    out, value = algorithm.model.evaluate(batch.obs)
    log_prob, entropy = log_pi(out, batch.act.numpy(), space)
    ratio = np.exp(log_prob - batch.log_prob.numpy())
    sides = {(bool(a > 0), bool(r > 1)) for a, r in zip(advantage, ratio, strict=True) if abs(r - 1) > 0.1}
    assert sides == {(a, r) for a in (True, False) for r in (True, False)}
    policy_loss = -np.minimum(ratio * advantage, np.clip(ratio, 0.9, 1.1) * advantage).mean()
    value_loss = ((batch.returns.numpy() - value.detach().numpy()) ** 2).mean()
    result = algorithm.learn(batch)
    expected = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy.mean(),
                "kl": (ratio - 1 - np.log(ratio)).mean(), "loss": policy_loss + 0.7 * value_loss - 0.03 * entropy.mean()}
    assert {name: float(result[name].detach()) for name in expected} == pytest.approx(expected, rel=1e-3)

    result["loss"].backward()
    got = [p.grad.clone() for p in algorithm.model.parameters()]
    algorithm.model.zero_grad()
    out, value = algorithm.model.evaluate(batch.obs)
    ratio = (algorithm.model.head.log_prob(out, batch.act) - batch.log_prob).exp()
    a = torch.from_numpy(advantage)
    loss = (-torch.min(ratio * a, ratio.clamp(0.9, 1.1) * a).mean() + 0.7 * (batch.returns - value).square().mean()
            - 0.03 * algorithm.model.head.entropy(out).mean())
    loss.backward()
    for mine, parameter in zip(got, algorithm.model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-3, atol=1e-6)


def test_every_pass_deals_out_every_row_once():
    algorithm = algorithm_of(PPO, "discrete", epochs=3, minibatches=5)
    batch = rows_of("discrete")
    with torch.no_grad():
        batch = algorithm.process(batch)
    batch.act = torch.arange(12)
    parts = [part.act.tolist() for part in algorithm.minibatches(batch)]
    assert [len(part) for part in parts] == [2, 2, 3, 2, 3] * 3
    passes = [sum(parts[k : k + 5], []) for k in (0, 5, 10)]
    assert all(sorted(p) == list(range(12)) for p in passes)
    assert passes[0] != passes[1] != passes[2]


def test_fewer_rows_than_minibatches_make_fewer_minibatches():
    algorithm = algorithm_of(PPO, "discrete", epochs=1, minibatches=4)
    rows = rows_of("discrete")[1:4]
    with torch.no_grad():
        batch = algorithm.process(rows)
    assert [len(part.act) for part in algorithm.minibatches(batch)] == [1, 1, 1]


def test_passes_end_where_the_policy_has_moved_too_far():
    algorithm = algorithm_of(PPO, "discrete", epochs=4, minibatches=2, target_kl=0.01)
    with torch.no_grad():
        batch = algorithm.process(rows_of("discrete"))
    for kl, expected in ((0.009, 8), (0.011, 2)):
        algorithm._kl = kl
        assert len(list(algorithm.minibatches(batch))) == expected


def test_an_entropy_weight_may_follow_a_schedule_over_the_optimiser_steps():
    algorithm = algorithm_of(PPO, "discrete", entropy=Linear(0.5, 0.0, 10))
    with torch.no_grad():
        batch = algorithm.process(rows_of("discrete"))
    losses = []
    for algorithm.updates in (0, 5, 10, 20):
        result = algorithm.learn(batch)
        part = result["loss"].detach() - result["policy_loss"] - 0.5 * result["value_loss"]
        losses.append(float(part / result["entropy"]))
    assert losses == pytest.approx([-0.5, -0.25, 0.0, 0.0], abs=1e-5)
