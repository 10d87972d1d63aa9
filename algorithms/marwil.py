"""MARWIL and AWR: a policy clones rows, those with larger advantages more, by returns instead of critics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from parl_like.algorithms.actor_critic import ActorCritic
from parl_like.learning.algorithm import Schedule, value_of
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class MARWIL(ActorCritic):
    """Monotonic advantage re-weighted imitation learning (Wang et al. 2018):

    loss = −mean(min(exp(β A / c), weight_max) log π(a|s)) + value_weight · mean((G − V)²) − entropy · mean(H),

    A = G − V from GAE with λ = 1, G the return of the rest of the segment, bootstrapped with V where it is cut; c² follows the
    mean of A², c² ← c² + rate · (mean A² − c²) before each update. Rows come in the order in which they were stored, as in `A2C`:
    from an `OfflineHelper`, or from the agents. With β = 0 it is `BC` beside a value. With c held at 1 (`rate` 0) and λ = 0.95 it
    is AWR, advantage-weighted regression (Peng et al. 2019). A memory begins each segment with the state that was stored.

    Differences:
        - Weights are cut off at `weight_max`, as those of AWR are; those of MARWIL are not.
        - AWR takes many steps for its values, and then many for its policy, by SGD with momentum; here one Adam moves both at
          once.

    Args:
        model: As for A2C.
        beta: β. weight_max: The largest weight of a row; 20 as published for AWR.
        rate: Of the moving average c².
        lam: λ. value_weight, normalize, lr: 1, never and 10⁻³ here. The rest: see `ActorCritic`.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, beta: float = 1.0, weight_max: float = 20.0, rate: float = 1e-2,
        gamma: float = 0.99, lam: float = 1.0, entropy: float | Schedule = 0.0, value_weight: float = 1.0,
        reward_scale: float = 1.0, lr: float | Schedule = 1e-3, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, gamma=gamma, lam=lam, entropy=entropy, value_weight=value_weight, normalize=False,
                         reward_scale=reward_scale, lr=lr, max_grad_norm=max_grad_norm)
        self.beta, self.weight_max, self.rate = beta, weight_max, rate
        self.square = torch.nn.Parameter(torch.ones(()), requires_grad=False)  # c²

    def process(self, batch: Batch) -> Batch:
        """Adds what `ActorCritic.process` does, and `row_weight` [N]."""
        batch = super().process(batch)
        self.square.add_(self.rate * (batch.advantage.square().mean() - self.square))
        scaled = self.beta * batch.advantage / self.square.sqrt().clamp(min=1e-8)
        batch.row_weight = scaled.exp().clamp(max=self.weight_max)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, value = self.evaluate(batch)
        log_p, entropy = self.model.head.log_prob(out, batch.act), self.model.head.entropy(out).mean()
        policy_loss, value_loss = -(batch.row_weight * log_p).mean(), (batch.returns - value).square().mean()
        loss = policy_loss + self.value_weight * value_loss - value_of(self.entropy, self.updates) * entropy
        return {"loss": loss, "policy_loss": policy_loss.detach(), "value_loss": value_loss.detach(), "entropy": entropy.detach(),
                "log_prob": log_p.detach().mean()}
