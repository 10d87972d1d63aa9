"""Targets and losses of those who learn the distribution of returns: hand numbers are in tests/algorithms/test_distributions.py.

A distribution is either probabilities of returns that are given (a *support*), or returns of probabilities that are given
(*quantiles* at fractions τ).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.learning.algorithm import Algorithm
from parl_like.learning.model_check import answer, check_shape
from parl_like.values.batch import Batch


def check_values(algorithm: Algorithm, inputs: Batch, k: int | None = None) -> None:
    """That the model has `values(obs) -> [N, A, K]`, for this K or, where it is None, any; raises ContractError."""
    values = answer(algorithm, "values", inputs.obs)
    check_shape(algorithm, "values", values, (2, int(algorithm.model.act_space.n), values.shape[-1] if k is None else k))


def of_actions(values: Tensor, act: Tensor) -> Tensor:
    """Return [N, K]: of the numbers [N, A, K] of all actions those of the actions `act` [N]."""
    return values[torch.arange(len(act), device=act.device), act]


def project(returns: Tensor, p: Tensor, support: Tensor) -> Tensor:
    """Each probability goes to the two neighbours of its return on the support, to each the more the nearer it is (Bellemare et
    al. 2017, equation 7). So the mean stays as it is, but for returns beyond the ends of the support, which count as the ends.

    Args:
        returns, p: [N, J] returns and their probabilities.
        support: [K ≥ 2], rising, evenly spaced.

    Returns:
        [N, K] probabilities.
    """
    last, step = len(support) - 1, support[1] - support[0]
    place = ((returns - support[0]) / step).clamp(0.0, last)
    left = place.floor().clamp(max=last - 1)
    share, index = place - left, left.long()
    out = p.new_zeros(len(p), len(support))
    return out.scatter_add_(1, index, p * (1.0 - share)).scatter_add_(1, index + 1, p * share)


def midpoints(n: int, device: torch.device | str | None = None) -> Tensor:
    """(i + ½) / n [n], the fractions whose quantiles make the best n equal steps (Dabney et al. 2018a, lemma 2)."""
    return (torch.arange(n, device=device) + 0.5) / n


def quantile_huber(quantiles: Tensor, targets: Tensor, fractions: Tensor, kappa: float) -> Tensor:
    """Σ_i mean_j |τ_i − [y_j < θ_i]| · H(y_j − θ_i),   H(u) = u² / 2κ up to |u| = κ, |u| − κ/2 beyond (Dabney et al. 2018a,
    equation 10, divided by κ as in 2018b); κ = 0: quantile regression.

    Args:
        quantiles, fractions: θ [..., N, K] at τ, [N, K] or [K].
        targets: y [N, J], each as probable as the others.

    Returns:
        [..., N].
    """
    shape = (*quantiles.shape, targets.shape[1])
    y, theta = targets.unsqueeze(1).expand(shape), quantiles.unsqueeze(-1).expand(shape)
    fractions = fractions.unsqueeze(-1)
    asymmetry = torch.where(y < theta, 1.0 - fractions, fractions)
    losses: Tensor = asymmetry * F.smooth_l1_loss(theta, y, reduction="none", beta=kappa)
    return losses.mean(-1).sum(-1)


def truncated(quantiles: Tensor, drop: int) -> Tensor:
    """All quantiles [C, N, K] of C distributions without the C · `drop` largest of each row: [N, C · (K − drop)], rising."""
    pooled = quantiles.transpose(0, 1).flatten(1).sort(1).values
    return pooled[:, : len(quantiles) * (quantiles.shape[2] - drop)]
