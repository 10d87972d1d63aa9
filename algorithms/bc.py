"""Behaviour cloning: a policy learns to do what the rows did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parl_like.algorithms.actor_critic import ActorCritic
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Schedule, Window, value_of
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class BC(ActorCritic):
    """Maximum likelihood of the actions in the rows (Pomerleau 1991), for all action spaces that have a policy head:

    loss = −mean(log π(a|s)) − entropy · mean(H)

    Rows may come from anywhere: an `OfflineHelper` with recorded data (`parl_like.data.datasets`), or a buffer. Of each row only
    `obs` and `act` are read. `learn` takes the policy's actions, as helpers store them; an `OfflineHelper` makes them of an
    environment's. The model needs no value.

    Args:
        model: Offers `policy` and `head`, see `parl_like.learning.model`; without memory, for rows come in any order.
        entropy: Weight of the entropy bonus, a number or a schedule over optimiser steps.
        lr, max_grad_norm: Of Adam, and the norm above which gradients are scaled down; None: never.

    Raises:
        TypeError: the model has a memory.
    """

    fitting_models = "MLPActorCritic and ConvActorCritic"
    takes = Takes()
    window, one_reward, takes_priorities = Window(), False, False
    calls = {name: ActorCritic.calls[name] for name in ("policy", "head")}

    def __init__(self, model: Model | Callable[[], Model], *, entropy: float | Schedule = 0.0, lr: float | Schedule = 1e-3,
                 max_grad_norm: float | None = None) -> None:
        super().__init__(model, entropy=entropy, lr=lr, max_grad_norm=max_grad_norm)
        if self.recurrent:
            raise TypeError(f"BC: {type(self.model).__name__} has a memory, of which single rows in any order say nothing; use a "
                            "model without one, such as MLPActorCritic")

    def process(self, batch: Batch) -> Batch:
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, _ = self.model.policy(batch.obs)
        log_prob, entropy = self.model.head.log_prob(out, batch.act).mean(), self.model.head.entropy(out).mean()
        loss = -log_prob - value_of(self.entropy, self.updates) * entropy
        return {"loss": loss, "log_prob": log_prob.detach(), "entropy": entropy.detach()}
