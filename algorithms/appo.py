"""APPO: PPO for rows that an older policy may have taken, with V-trace in place of GAE."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from parl_like.algorithms.ppo import PPO
from parl_like.data.returns import next_values, vtrace
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class APPO(PPO):
    """Asynchronous PPO (Petrenko et al. 2020; V-trace: Espeholt et al. 2018). μ took the rows, π_0 is the policy at the beginning
    of the update, ρ_0 = π_0(a|s) / μ(a|s):

        δ_t = min(ρ̄, ρ_0)(r + d V(s') − V),   v_t = V + δ_t + d λ min(c̄, ρ_0)(v_{t+1} − V_{t+1}),   A = r + d v_{t+1} − V

    and then the epochs of `PPO` with ρ = π(a|s) / μ(a|s), so that a row counts little where π has left μ already. With μ = π_0
    and λ = 1 the targets are n-step returns, and this is PPO with λ = 1.

    Differences:
        - V-trace is computed once in an update, by its first policy; the authors' code computes it anew in each minibatch.
        - Ratios are cut at 1 ± ε; the authors' code cuts them at 1 + ε and at 1 / (1 + ε).
        - An update has 4 epochs by default; the authors' code has one.

    Args:
        rho_bar, c_bar: ρ̄ ≥ c̄. lam: λ.
        The rest: see `PPO`. Helpers keep μ with `store_policy=True`, as they do in asynchronous runs.

    Raises:
        ValueError: c_bar is below 0, or above rho_bar.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, rho_bar: float = 1.0, c_bar: float = 1.0, lam: float = 1.0,
        clip: float = 0.2, epochs: int = 4, minibatches: int = 4,
        minibatch_rows: int | None = None, target_kl: float | None = None, dual_clip: float | None = None,
        value_clip: float | None = None, kl_weight: float = 0.0, adaptive_kl: float | None = None, gamma: float = 0.99,
        entropy: float | Schedule = 0.0, value_weight: float = 0.5, normalize: bool = True, reward_scale: float = 1.0,
        lr: float | Schedule = 3e-4, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, clip=clip, epochs=epochs, minibatches=minibatches, minibatch_rows=minibatch_rows,
                         target_kl=target_kl, dual_clip=dual_clip, value_clip=value_clip, kl_weight=kl_weight,
                         adaptive_kl=adaptive_kl, gamma=gamma, lam=lam, entropy=entropy, value_weight=value_weight,
                         normalize=normalize, reward_scale=reward_scale, lr=lr, max_grad_norm=max_grad_norm)
        if not 0.0 <= c_bar <= rho_bar:
            raise ValueError(f"APPO: c_bar is {c_bar} and rho_bar {rho_bar}; expected 0 ≤ c_bar ≤ rho_bar")
        self.rho_bar, self.c_bar = rho_bar, c_bar

    def estimates(self, batch: Batch, out: Mapping[str, torch.Tensor], value: torch.Tensor,
                  boot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rew, discount, cuts, now, then = self.columns(batch, value, boot)
        log_ratio = (self.model.head.log_prob(out, batch.act) - batch.log_prob).cpu().numpy()
        v, _ = vtrace(rew, discount, now, then, log_ratio, cuts, rho_bar=self.rho_bar, c_bar=self.c_bar, lam=self.lam)
        after = next_values(v, cuts, boot.cpu().numpy())
        advantage = torch.from_numpy(rew + discount * after - now)
        return advantage.to(value.device), torch.from_numpy(v).to(value.device)
