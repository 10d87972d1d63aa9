"""Slow twins of `parl_like.data.returns`, in plain NumPy: they say the same as the formulas, and are what the tests trust."""

from __future__ import annotations

import numpy as np
import torch

from parl_like.data.returns import n_step_return
from parl_like.values.spec import Array


def lambda_return_reference(rew: Array, discount: Array, value_next: Array, last: Array, lam: float) -> Array:
    """`lambda_return` as its formula says."""
    out = np.zeros_like(rew)
    for t in reversed(range(len(rew))):
        cut = last[t] if t < len(rew) - 1 else True
        # By choice and not by weights of 0, so that nothing from over a cut counts, not even an infinity.
        mixed = 0.0 if cut is True else out[t + 1] if lam == 1.0 else (1.0 - lam) * value_next[t] + lam * out[t + 1]
        out[t] = rew[t] + discount[t] * np.where(cut, value_next[t], mixed)
    return out


def discounted_return_reference(rew: Array, discount: Array, last: Array, value_next: Array | None = None) -> Array:
    """`discounted_return` as its formula says."""
    out = np.zeros_like(rew)
    after = np.zeros_like(rew) if value_next is None else value_next
    for t in reversed(range(len(rew))):
        following = after[t] if t == len(rew) - 1 else np.where(last[t], after[t], out[t + 1])
        out[t] = rew[t] + discount[t] * following
    return out


def gae_reference(rew: Array, discount: Array, value: Array, value_next: Array, last: Array, lam: float) -> Array:
    """`gae` as its formula says."""
    delta: Array = rew + discount * value_next - value
    out = np.zeros_like(delta)
    advantage = np.zeros_like(delta[0])
    for t in reversed(range(len(rew))):
        advantage = out[t] = delta[t] + discount[t] * lam * np.where(last[t], 0.0, advantage)
    return out


def n_step_targets(rew: Array, discount: Array, value_next: Array, last: Array, n: int) -> Array:
    """n-step targets [T, ...] of an unroll by `n_step_return`: the value after a cut counts as a reward, and nothing after it."""
    rew, discount, value_next = map(np.asarray, (rew, discount, value_next))
    rows, dtype = len(rew), np.float32 if rew.dtype == np.float32 else np.float64
    cut = np.array(last)
    cut[-1] = True
    earned = np.where(cut, rew + discount * value_next, rew)
    more = np.zeros((n - 1, *rew.shape[1:]), dtype)  # rows after the end
    windows = [torch.from_numpy(np.concatenate([x, more]).astype(dtype)).unfold(0, n, 1)
               for x in (earned, np.where(cut, 0, discount))]
    total, weight = (part.numpy() for part in n_step_return(*windows))
    after = value_next[np.minimum(np.arange(rows) + n - 1, rows - 1)]
    return np.asarray(total + weight * np.where(weight > 0, after, 0), dtype)


def n_step_targets_reference(rew: Array, discount: Array, value_next: Array, last: Array, n: int) -> Array:
    """`n_step_targets`, each target for itself."""
    out = np.zeros_like(rew)
    for at in np.ndindex(rew.shape):
        weight, (t, *column) = 1.0, at
        for s in range(t, min(t + n, len(rew))):
            row = (s, *column)
            out[at] += weight * rew[row]
            weight *= discount[row]
            if last[row]:
                break
        out[at] += weight * value_next[row]
    return out


def vtrace_reference(
    rew: Array,
    discount: Array, value: Array, value_next: Array, log_ratio: Array,
    last: Array, rho_bar: float = 1.0, c_bar: float = 1.0,
    lam: float = 1.0,
) -> tuple[Array, Array]:
    """`vtrace` as its formulas say."""
    ratio = _exp(log_ratio)
    rho, c = np.minimum(rho_bar, ratio), lam * np.minimum(c_bar, ratio)
    delta = rho * (rew + discount * value_next - value)
    targets, advantages = np.zeros_like(rew), np.zeros_like(rew)
    x = np.zeros_like(rew[0])
    for t in reversed(range(len(rew))):
        x = np.where(last[t], 0.0, x)
        advantages[t] = rho[t] * (rew[t] + discount[t] * (value_next[t] + x) - value[t])
        x = delta[t] + discount[t] * c[t] * x
        targets[t] = value[t] + x
    return targets, advantages


def next_values_reference(value: Array, last: Array, boot: Array) -> Array:
    """`next_values` row by row."""
    following = iter(boot)
    return np.array([next(following) if last[t] else value[t + 1] for t in range(len(value))], value.dtype)


def n_step_return_reference(rew: Array, valid: Array, gamma: float) -> tuple[Array, Array]:
    """`n_step_return` as its formula says."""
    sums = [sum(gamma**k * row[k] for k in range(m)) for row, m in zip(rew, valid, strict=True)]
    return np.array(sums, rew.dtype), np.array([gamma ** int(m) for m in valid], rew.dtype)


def _exp(log_ratio: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):  # infinite is clipped, 0 is meant
        ratio: Array = np.exp(log_ratio)
    return ratio
