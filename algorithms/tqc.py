"""Soft actor-critics with the quantiles of returns: TQC (Kuznetsov et al. 2020) and QR-SAC (Wurman et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from parl_like.algorithms.actor_q import TargetEntropy, box_only
from parl_like.algorithms.distributions import midpoints, quantile_huber, truncated
from parl_like.algorithms.sac import SAC
from parl_like.algorithms.targets import rewards_and_discount, row_mean
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_shape, refuse
from parl_like.values.batch import Batch


class TQC(SAC):
    """SAC whose C critics have K quantiles θ_ci each, of which those that are too good to be true make no targets:

    y_j = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · (z_j − α log π(a'|s')),   a' ~ π(s'),   with z the quantiles θ⁻(s', a') of
    all target copies together without their C · `drop` largest;

    critic loss = Σ_c 1/K · Σ_i mean_j |τ_i − [y_j < θ_ci]| · H_κ(y_j − θ_ci),
    actor loss = mean [α log π(a|s) − mean_ci θ_ci(s, a)],   a ~ π(s),

    with τ_i = (i + ½) / K and H_κ as in `QRDQN`. Priority of a row: the largest of |mean_j y_j − θ_ci|. Everything else is as in
    `SAC`, for actions in a Box.

    Differences:
        - None in targets and losses: they are those of its algorithm 1. The published 5 critics of 25 quantiles, 2 of each
          dropped, are settings.

    Args:
        model: As for `SAC`, and it offers `values(obs, act) -> [critics, N, K]`, the quantiles, with `q` their means.
        drop: Quantiles left out per critic, below K; the more, the lower are the values.
        kappa: κ ≥ 0, in the units of the values.
        The others: As for `SAC`.

    Raises:
        ValueError: drop or kappa is negative, or drop leaves no quantile.
    """

    calls = {**SAC.calls, "q": "q(obs, act) -> [critics, N], the means,",
             "values": "values(obs, act) -> [critics, N, K], quantiles of the returns,"}
    fitting_models = "MLPActorQ with `heads`"
    takes: Takes | None = Takes(("Box",), images=False, masks=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005, drop: int = 2,
        kappa: float = 1.0, alpha: float = 1.0, learn_alpha: bool = True, target_entropy: TargetEntropy = None, delay: int = 1,
        lr: float | Schedule = 3e-4, actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, alpha=alpha, learn_alpha=learn_alpha,
                         target_entropy=target_entropy, delay=delay, lr=lr, actor_lr=actor_lr, alpha_lr=alpha_lr,
                         max_grad_norm=max_grad_norm)
        box_only(self)
        if drop < 0 or not kappa >= 0.0:
            raise ValueError(f"{type(self).__name__}: drop is {drop} and kappa {kappa}; expected numbers of at least 0")
        self.drop, self.kappa = drop, kappa

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        values = answer(self, "values", inputs.obs, torch.zeros(2, *self.model.act_space.shape))
        check_shape(self, "values", values, (len(values), 2, values.shape[-1]))
        if values.shape[2] <= self.drop:
            raise refuse(self, "values", f"more than the {self.drop} quantiles that are left out of each critic (`drop`); see "
                         f"`heads` of {type(self.model).__name__}", values.shape[2])

    def target_quantiles(self, quantiles: Tensor) -> Tensor:
        """Return the quantiles that targets go by, [N, J], of those of the target copy, [critics, N, K]."""
        return truncated(quantiles, self.drop)

    def pool(self, q: Tensor, of_target: bool = False) -> Tensor:
        return q.mean(0)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, J]."""
        rew, discount = rewards_and_discount(batch, self.discounts)
        act, log_p = self.drawn(self.model.policy(batch.obs_next))
        z = self.target_quantiles(self.target.values(batch.obs_next, act))
        batch.target = rew[:, None] + discount[:, None] * (z - (self.log_alpha.exp() * log_p)[:, None])
        return batch

    def critic_update(self, batch: Batch) -> dict[str, Tensor]:
        quantiles = self.model.values(batch.obs, batch.act)
        n = quantiles.shape[2]
        losses = quantile_huber(quantiles, batch.target, midpoints(n, quantiles.device), self.kappa) / n
        errors = (batch.target.mean(1, keepdim=True) - quantiles.detach()).abs()
        return {"critic": row_mean(losses, batch).sum(), "priority": errors.amax((0, 2))}


class QRSAC(TQC):
    """TQC whose targets are all quantiles of that one critic whose mean θ⁻(s', a') is least, and whose actor goes by the least
    mean, as in `SAC`.

    Differences:
        - `n_step` is 1 by default; the published agent has 7. Its 2 critics of 32 quantiles are settings of the model.

    Args:
        The others: As for `TQC`.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005,
        kappa: float = 1.0, alpha: float = 1.0, learn_alpha: bool = True, target_entropy: TargetEntropy = None, delay: int = 1,
        lr: float | Schedule = 3e-4, actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, drop=0, kappa=kappa, alpha=alpha, learn_alpha=learn_alpha,
                         target_entropy=target_entropy, delay=delay, lr=lr, actor_lr=actor_lr, alpha_lr=alpha_lr,
                         max_grad_norm=max_grad_norm)

    def target_quantiles(self, quantiles: Tensor) -> Tensor:
        least = quantiles.mean(2).argmin(0)
        return quantiles[least, torch.arange(len(least), device=least.device)]

    def pool(self, q: Tensor, of_target: bool = False) -> Tensor:
        return q.amin(0)
