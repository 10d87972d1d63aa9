"""What several value learners hold their predictions against."""

from __future__ import annotations

import torch
from torch import Tensor

from parl_like.batch import Batch


def powers(gamma: float, n_step: int) -> Tensor:
    """γ⁰ … γⁿ, float32 [n + 1]."""
    if not 0.0 <= gamma <= 1.0 or n_step < 1:
        raise ValueError(f"gamma is {gamma} and n_step {n_step}; expected gamma in [0, 1] and n_step ≥ 1")
    return torch.tensor([gamma**k for k in range(n_step + 1)], dtype=torch.float32)


def rewards_and_discount(batch: Batch, discounts: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_{k<m} γᵏ r_{t+k} [N], and the factor γᵐ (1 − terminated) [N] of the value of `obs_next`; m ≤ n rewards until the end of
    the episode. A truncated episode bootstraps. A row with a `duration` d is discounted by γᵈ.

    Args:
        batch: With `rew` [N], for n > 1 [N, n] and `valid`, see `Window`; `terminated` [N]; perhaps `duration` [N].
        discounts: `powers(gamma, n)`.
    """
    discounts = discounts.to(batch.rew.device)
    rew, alive = batch.rew.float(), (~batch.terminated).float()
    if "duration" in batch:  # rows of actions that take several steps, such as goals; their helpers refuse n > 1
        return rew, discounts[1] ** batch.duration.float() * alive
    if len(discounts) == 2:
        return rew, discounts[1] * alive
    return rew @ discounts[:-1], discounts[batch.valid] * alive  # rewards are zero after the end: missing ones add nothing


def row_mean(values: Tensor, batch: Batch) -> Tensor:
    """The mean over the rows [..., N] → [...], each times its `weight`, where a prioritised buffer gave it one."""
    return (values * batch.weight if "weight" in batch else values).mean(-1)


def soft_maximum(q: Tensor, temperature: float) -> Tensor:
    """T log Σ_a exp(q_a / T) of values [..., A] → [...]: what π = softmax(q / T) expects of q, plus T times its entropy;
    max q where T → 0. So T log π(a) = q_a − soft_maximum(q)."""
    best = q.amax(-1, keepdim=True)
    return (best + temperature * ((q - best) / temperature).exp().sum(-1, keepdim=True).log()).squeeze(-1)
