"""OAC, a soft actor-critic that explores where its critics allow the best to be (Ciosek et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from parl_like.algorithms.actor_q import TargetEntropy, box_only
from parl_like.algorithms.sac import SAC
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class OAC(SAC):
    """SAC whose agents explore by another normal distribution than the policy's N(μ, Σ) before the tanh, with the mean

    μ_E = μ + shift · Σ g / √(gᵀ Σ g),   g = ∂/∂u [mean_i Q_i(s, tanh u) + beta_ub · std_i Q_i(s, tanh u)] at u = μ,

    and the same Σ: of all whose divergence from the policy is at most ½ shift² the one that promises most by the upper bound on
    the values (proposition 7 of the paper, with shift = √2δ). Of two critics the standard deviation is ½ |Q_1 − Q_2|. Tests, and
    other tasks that ask, get the policy itself. Losses and targets are those of `SAC`, which it is with `beta_ub` and `shift` 0;
    the least of two critics is the paper's lower bound with β_LB = −1. For actions in a Box.

    Differences:
        - None in exploring: it is proposition 7, with the published `beta_ub` and `shift`. All else is `SAC` as it is here.

    Args:
        model: As for `SAC`; its policy gives out `mean` and `log_std` [N, dim].
        beta_ub: β_UB; 4.66 as published.
        shift: How far the mean is moved, in standard deviations; 6.86 as published.
        The others: As for `SAC`.

    Raises:
        ValueError: shift is negative.
    """

    takes: Takes | None = Takes(("Box",), images=False, masks=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005,
        beta_ub: float = 4.66, shift: float = 6.86, alpha: float = 1.0, learn_alpha: bool = True,
        target_entropy: TargetEntropy = None, delay: int = 1, lr: float | Schedule = 3e-4,
        actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, alpha=alpha, learn_alpha=learn_alpha,
                         target_entropy=target_entropy, delay=delay, lr=lr, actor_lr=actor_lr, alpha_lr=alpha_lr,
                         max_grad_norm=max_grad_norm)
        box_only(self)
        if not shift >= 0.0:
            raise ValueError(f"OAC: shift is {shift}; expected a number of at least 0")
        self.beta_ub, self.shift = beta_ub, shift

    def fixed_settings(self) -> dict[str, str]:
        fixed = dict.fromkeys(("beta_ub", "shift"), "copies that act have one of their own; build a new algorithm with another")
        return {**super().fixed_settings(), **fixed}

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        out = self.model.policy(inputs.obs)
        if self.mode != "collect":
            return out  # type: ignore[no-any-return]
        with torch.inference_mode(False), torch.enable_grad():
            u = out["mean"].clone().requires_grad_()
            q = self.model.q(inputs.obs, torch.tanh(u))
            # Where all critics agree the root has no slope, and the mean alone counts.
            upper = q.mean(0) + self.beta_ub * q.var(0, correction=0).clamp(min=1e-12).sqrt()
            slope, = torch.autograd.grad(upper.sum(), u)
        moved = torch.exp(2.0 * out["log_std"]) * slope
        length = (moved * slope).sum(-1, keepdim=True).sqrt()
        return {**out, "mean": out["mean"] + self.shift * moved / length.clamp(min=1e-12)}
