"""CRR, critic-regularised regression (Wang et al. 2020): clones the rows that a critic thinks better than the policy."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from parl_like.algorithms.actor_q import expected
from parl_like.algorithms.sac import SAC
from parl_like.algorithms.targets import rewards_and_discount, row_mean
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class CRR(SAC):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · E_{a'~π⁻(s')} min_i Q⁻_i(s', a'),

    critic loss = Σ_i mean (Q_i(s, a) − y)²,   actor loss = −mean f(A) log π(a|s),
    A = min_i Q_i(s, a) − E_{a'~π} min_i Q_i(s, a'),

    f(A) = 1[A > 0] ('binary'), or min(exp(A / β), weight_max) ('exp'). Expectations over π are exact where actions are Discrete,
    and the mean of `samples` drawn actions for a Box. The target copies follow as in `SAC`; there is no temperature. With f = 1
    (β → ∞) the actor is cloned as in `BC`.

    Differences:
        - Two critics give plain values, of which the least counts; the paper has one critic, of the distribution of returns.
        - Target copies follow in every update, by 0.005; the authors' code copies them every 100 updates.
        - Targets expect over 4 drawn actions, the advantage's number; the authors' code has one there.
        - Acting goes by the policy; in the paper the critic may choose among its draws.

    Args:
        model: As for `SAC`; its head has `log_prob`.
        weight: 'exp' or 'binary'.
        beta: β; 1 as published. weight_max: 20 as published.
        samples: Drawn actions for each expectation over a Box; 4 as published.
        The others: As for `SAC`.

    Raises:
        ValueError: weight is another word.
    """

    takes: Takes | None = Takes(("Discrete", "Box"), images=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, weight: Literal["exp", "binary"] = "exp", beta: float = 1.0,
        weight_max: float = 20.0, samples: int = 4, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005, delay: int = 1,
        lr: float | Schedule = 3e-4, actor_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, learn_alpha=False, delay=delay, lr=lr, actor_lr=actor_lr,
                         max_grad_norm=max_grad_norm)
        if weight not in ("exp", "binary"):
            raise ValueError(f"CRR: weight is {weight!r}; expected 'exp' or 'binary'")
        self.weight, self.beta, self.weight_max, self.samples = weight, beta, weight_max, samples

    def fixed_settings(self) -> dict[str, str]:
        return Algorithm.fixed_settings(self)

    def mean_value(self, policy: Any, obs: Any, critic: Any) -> Tensor:
        """E_{a~π(s)} min_i Q_i(s, a), [N]."""
        out = policy.policy(obs)
        if self.discrete:
            return expected(policy.head.log_probs(out), critic.q(obs).amin(0))[0]
        return torch.stack([critic.q(obs, self.drawn(out)[0]).amin(0) for _ in range(self.samples)]).mean(0)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = rewards_and_discount(batch, self.discounts)
        batch.target = rew + discount * self.mean_value(self.target, batch.obs_next, self.target)
        return batch

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        yield self.critic_update(batch)
        if self.due("actor"):
            with torch.no_grad():
                q = self.model.q(batch.obs, *(() if self.discrete else (batch.act,)))
                q = q[:, range(len(batch)), batch.act] if self.discrete else q
                advantage = q.amin(0) - self.mean_value(self.model, batch.obs, self.model)
                weight = ((advantage / self.beta).exp().clamp(max=self.weight_max) if self.weight == "exp" else
                          (advantage > 0.0).float())
            log_p = self.model.head.log_prob(self.model.policy(batch.obs), batch.act)
            yield {"actor": -row_mean(weight * log_p, batch), "weight_of_rows": weight.mean(), "log_prob": log_p.detach().mean()}
