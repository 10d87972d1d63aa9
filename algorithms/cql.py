"""CQL, conservative Q-learning (Kumar et al. 2020): critics that think little of actions that the data does not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from parl_like.algorithms.actor_q import TargetEntropy, box_only
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.sac import SAC
from parl_like.algorithms.targets import row_mean
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class DiscreteCQL(DQN):
    """DQN whose loss also lowers the values of all actions, and raises that of the row's, CQL(H):

    loss = huber(y − Q(s, a)) + conservative · mean [log Σ_a' exp Q(s, a') − Q(s, a)].

    With `conservative` 0 it is DQN. Targets, ends, weights and priorities are as there.

    Differences:
        It is upon `DQN`, with its Huber loss and double Q-learning; the paper's is upon QR-DQN.

    Args:
        model: Offers `q(obs) -> [N, A]`.
        conservative: Weight of the second term; α in the paper.
        The others: As for `DQN`.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, conservative: float = 1.0, gamma: float = 0.99, n_step: int = 1,
        target_period: int = 500, tau: float | None = None, double: bool = True, epsilon: float | Schedule = 0.1,
        lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double, epsilon=epsilon,
                         lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        self.conservative = conservative

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out = super().learn(batch)
        if not self.conservative:
            return out
        q = self.model.q(batch.obs)
        gap = row_mean(q.logsumexp(1) - q.gather(1, batch.act.unsqueeze(1)).squeeze(1), batch)
        return {**out, "loss": out["loss"] + self.conservative * gap, "gap": gap.detach()}


class CQL(SAC):
    """SAC whose critics' loss also lowers the values of actions that the policy would take, and of random ones, CQL(H):

    critic loss = Σ_i mean (Q_i(s, a) − y)² + conservative · Σ_i mean [log (1/3n) Σ_k exp(Q_i(s, a_k) − log μ_k) − Q_i(s, a)],

    with n actions a_k each that are even in [−1, 1], of π(s) and of π(s'), and μ_k their density: an importance-weighted estimate
    of log ∫ exp Q_i(s, a) da. With `conservative` 0 it is SAC. Targets, actor and temperature are as there.

    Differences:
        - α stays as it is given; the authors' code by default adapts it to a threshold.
        - Targets have the entropy term of `SAC`; the authors' code leaves it out.
        - The actor learns as in `SAC` from the first update on; in the authors' code it clones rows for 40,000 updates, and
          learns by 10⁻⁴.

    Args:
        model: As for `SAC` with a Box; its head has `draw`.
        conservative: Weight of the second term; α in the paper, which has 5 and 10 for MuJoCo.
        samples: n; 10 as published.
        The others: As for `SAC`.
    """

    takes: Takes | None = Takes(("Box",), images=False, masks=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, conservative: float = 5.0, samples: int = 10, gamma: float = 0.99,
        n_step: int = 1, tau: float = 0.005, alpha: float = 1.0, learn_alpha: bool = True, target_entropy: TargetEntropy = None,
        delay: int = 1, lr: float | Schedule = 3e-4, actor_lr: float | Schedule | None = None,
        alpha_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, alpha=alpha, learn_alpha=learn_alpha,
                         target_entropy=target_entropy, delay=delay, lr=lr, actor_lr=actor_lr, alpha_lr=alpha_lr,
                         max_grad_norm=max_grad_norm)
        box_only(self)
        self.conservative, self.samples = conservative, samples

    def critic_update(self, batch: Batch) -> dict[str, Tensor]:
        out = super().critic_update(batch)
        if not self.conservative:
            return out
        acts, log_density = self.candidates(batch)
        rows = torch.arange(len(batch), device=acts.device).repeat(len(acts))
        q = self.model.q(batch.obs[rows], acts.flatten(0, 1)).unflatten(1, acts.shape[:2])
        soft = (q - log_density).logsumexp(1) - math.log(len(acts))
        gap = row_mean(soft - self.model.q(batch.obs, batch.act), batch).sum()
        return {**out, "critic": out["critic"] + self.conservative * gap, "gap": gap.detach()}

    @torch.no_grad()
    def candidates(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Actions [3n, N, …] and their log densities [3n, N]: even ones, those of the policy, and those of the policy in the next
        state."""
        shape = (self.samples, *batch.act.shape)
        even = torch.rand(shape, generator=self.torch_rng, device=batch.act.device) * 2.0 - 1.0
        acts, log_density = [even], [even.new_full(shape[:2], -math.log(2.0) * even[0, 0].numel())]
        for obs in (batch.obs, batch.obs_next):
            out = self.model.policy(obs)
            drawn = [self.drawn(out) for _ in range(self.samples)]
            acts.append(torch.stack([act for act, _ in drawn]).reshape(shape))
            log_density.append(torch.stack([log_p for _, log_p in drawn]))
        return torch.cat(acts), torch.cat(log_density)
