"""Targets that several value learners share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.data.returns import n_step_return
from parl_like.learning.explorers import legal
from parl_like.values.batch import Batch

MAX_N_STEP = 10_000  # rewards in each row of an update


def powers(gamma: float, n_step: int) -> list[float]:
    """γ⁰ … γⁿ.

    Raises:
        ValueError: gamma is not in [0, 1], or n_step is not in 1 … MAX_N_STEP.
    """
    if not 0.0 <= gamma <= 1.0 or not 1 <= n_step <= MAX_N_STEP:
        raise ValueError(f"gamma is {gamma} and n_step {n_step}; expected gamma in [0, 1] and n_step 1 to {MAX_N_STEP}")
    return [gamma**k for k in range(n_step + 1)]


def rewards_and_discount(batch: Batch, discounts: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Σ_{k<m} γᵏ r_{t+k} [N], and the factor γᵐ (1 − terminated) [N] of the value of `obs_next`; m ≤ n rewards until the end of
    the episode. A truncated episode bootstraps. A row with a `duration` d is discounted by γᵈ.

    Args:
        batch: With `rew` [N], for n > 1 [N, n] and `valid`, see `Window`; `terminated` [N]; perhaps `duration` [N].
        discounts: `powers(gamma, n)`.
    """
    rew, alive = batch.rew.float(), (~batch.terminated).float()
    if "duration" in batch:  # rows of actions that take several steps, such as goals; their helpers refuse n > 1
        return rew, discounts[1] ** batch.duration.float() * alive
    if len(discounts) == 2:
        return rew, discounts[1] * alive
    total, factor = n_step_return(rew, discounts, batch.valid)
    return total, factor * alive


def along(rew: Tensor, discount: Tensor, valid: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns of up to n steps of every row of a sequence: G = Σ_{k<m} D_k r_{t+k} + D_m · (what follows), D_k the product of the
    discounts of the k rows from t on; m ≤ n rows until the end of the sequence.

    Args:
        rew, discount: [N, L]; discount 0 where the episode terminated.
        valid: [N, L] bool, rows that are real: the first so many of each sequence.

    Returns:
        Σ_{k<m} D_k r_{t+k}, D_m, and t + m, the row before which it ends (L: after the last one), all [N, L].
    """
    real = F.pad(valid, (0, n - 1))
    discounts = torch.where(real, F.pad(discount, (0, n - 1)), 1.0).unfold(1, n, 1)
    rewards = torch.where(real, F.pad(rew, (0, n - 1)), 0.0).unfold(1, n, 1)
    then = torch.minimum(torch.arange(rew.shape[1], device=rew.device) + n, valid.sum(1, keepdim=True))
    return *n_step_return(rewards, discounts), then


def rescale(x: Tensor, eps: float) -> Tensor:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x, which makes large values small (Pohlen et al. 2018)."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + eps * x


def rescale_inverse(y: Tensor, eps: float) -> Tensor:
    """h⁻¹ of `rescale`: s = √(|x| + 1) is the root of ε s² + s = 1 + ε + |y|."""
    c = 1.0 + eps + y.abs()
    s = 2.0 * c / (1.0 + (1.0 + 4.0 * eps * c).sqrt())  # this form of the root loses no digits where ε is small, or 0
    return y.sign() * (s * s - 1.0)


def legal_actions(obs: Any) -> Tensor | None:
    """Bool [..., A], by the `mask` of observations; None where they have none."""
    return None if isinstance(obs, Tensor) or "mask" not in obs else legal(obs["mask"])


def row_mean(values: Tensor, batch: Batch) -> Tensor:
    """The mean over the rows [..., N] → [...], each times its `weight`, where a prioritised buffer gave it one."""
    return (values * batch.weight if "weight" in batch else values).mean(-1)


def soft_maximum(q: Tensor, temperature: float) -> Tensor:
    """T log Σ_a exp(q_a / T) of values [..., A] → [...]: what π = softmax(q / T) expects of q, plus T times its entropy;
    max q where T → 0. So T log π(a) = q_a − soft_maximum(q)."""
    best = q.amax(-1, keepdim=True)
    return (best + temperature * ((q - best) / temperature).exp().sum(-1, keepdim=True).log()).squeeze(-1)
