"""Importance sampling (Precup, Sutton and Singh 2000; doubly robust: Jiang and Li 2016): the returns that a policy would have,
from episodes of another one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parl_like.values.spec import Array


class ReturnEstimates(NamedTuple):
    """Estimates of the mean discounted return of a policy π, from n episodes of a policy b. With ρ_t = π(a_t|s_t) / b(a_t|s_t),
    w_t = ρ_0 ⋯ ρ_t and G the return of an episode:

    Attributes:
        ordinary: mean of w_T G; unbiased. weighted: Σ w_T G / Σ w_T; biased, of less variance.
        per_decision: mean of Σ_t γᵗ w_t r_t; unbiased. weighted_per_decision: Σ_t γᵗ (Σ w_t r_t) / (Σ w_t), where the weight of
            an episode that is over stays what it was.
        doubly_robust: mean of V_0, V_t = v(s_t) + ρ_t (r_t + γ V_{t+1} − q(s_t, a_t)); NaN without values.
        effective: (Σ w_T)² / Σ w_T², how many episodes the weights are worth.
    """

    ordinary: float
    weighted: float
    per_decision: float
    weighted_per_decision: float
    doubly_robust: float
    effective: float


def importance_sampling(rew: Array, log_ratio: Array, last: Array, gamma: float = 1.0, *, q: Array | None = None,
                        v: Array | None = None) -> ReturnEstimates:
    """Estimate what a policy is worth, by the episodes of another one.

    Differences:
        It estimates the return of whole episodes; Precup et al. estimate the values of states and actions.

    Args:
        rew: Rewards [N], in time order, episode after episode.
        log_ratio: log π(a|s) − log b(a|s) [N]; −∞ where π would not act so.
        last: Bool [N]: the rows that end an episode; the last one of all does.
        gamma: Discount.
        q, v: Estimates of q_π(s, a) and v_π(s), [N] each, such as `FQE` gives, for `doubly_robust`.

    Raises:
        ValueError: arrays of different lengths, no rows, a last row that ends nothing, or NaN; one of q and v alone.
    """
    if (q is None) != (v is None):
        raise ValueError("importance_sampling: expected q and v, or none of them")
    given = {"rew": rew, "log_ratio": log_ratio, "last": last, **({} if q is None or v is None else {"q": q, "v": v})}
    columns = {name: np.asarray(value, bool if name == "last" else np.float64) for name, value in given.items()}
    for name, column in columns.items():
        if column.shape != columns["last"].shape or column.ndim != 1 or not len(column):
            raise ValueError(f"importance_sampling: {name} is {column.shape}; expected [N] with at least one row, as last has "
                             f"{columns['last'].shape}")
        if np.isnan(column).any():
            raise ValueError(f"importance_sampling: {name} has NaN in row {int(np.argmax(np.isnan(column)))}")
    if not columns["last"][-1]:
        raise ValueError("importance_sampling: the last row ends no episode; leave the open one out")
    ends = np.flatnonzero(columns["last"])
    starts = np.r_[0, ends[:-1] + 1]
    lengths = ends - starts + 1
    n, steps = len(ends), int(lengths.max())
    grid = np.minimum(starts[:, None] + np.arange(steps), ends[:, None])  # [n, T]; after its end an episode stays at it
    real = np.arange(steps) < lengths[:, None]
    with np.errstate(over="ignore"):
        ratio = np.exp(np.where(real, columns["log_ratio"][grid], 0.0))
    weight = np.cumprod(ratio, 1)
    discounted = np.where(real, columns["rew"][grid] * gamma ** np.arange(steps), 0.0)
    whole, returns = weight[:, -1], discounted.sum(1)
    sums = weight.sum(0)
    robust = float("nan")
    if q is not None:
        after = np.zeros(n)
        for t in reversed(range(steps)):
            now = columns["v"][grid[:, t]] + ratio[:, t] * (columns["rew"][grid[:, t]] + gamma * after - columns["q"][grid[:, t]])
            after = np.where(real[:, t], now, after)
        robust = float(after.mean())
    with np.errstate(invalid="ignore", divide="ignore"):
        return ReturnEstimates(
            float((whole * returns).mean()), float((whole * returns).sum() / whole.sum()),
            float((weight * discounted).sum(1).mean()),
            float(np.where(sums > 0, (weight * discounted).sum(0) / sums, 0.0).sum()), robust,
            float(whole.sum() ** 2 / (whole**2).sum()))
