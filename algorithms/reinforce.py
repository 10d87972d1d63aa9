"""REINFORCE: the policy gradient from the returns of whole episodes, with or without a learned baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from parl_like.algorithms.actor_critic import ActorCritic
from parl_like.algorithms.unrolls import discounts, normalized
from parl_like.data.returns import discounted_return
from parl_like.learning.algorithm import Schedule, value_of
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class REINFORCE(ActorCritic):
    """One optimiser step per update (Williams 1992; Sutton & Barto 2018, 13.3 and 13.4), with G = Σ_k γᵏ r_{t+k} to the end:

        loss = −mean(log π(a|s) · A) − entropy · mean(H),                     A = G, normalised
        loss = … + value_weight · mean((G − V)²)                              A = G − V(s), with a baseline

    For an `EpisodicHelper`, whose updates have whole episodes. An episode that a time limit has cut goes on with the value of its
    final observation; without a baseline there is none, and what it has earned counts.

    Differences:
        - The factor γᵗ of the gradient is left out, as usual.
        - Without a baseline returns are normalised over an update; the sources do not say so.
        - An update is one step of Adam by all its episodes, with clipped gradients; the book takes a step for each action.

    Args:
        model: As for A2C; without a baseline it needs no `value` and no `evaluate`, unless it has a memory.
        baseline: Whether values are learned and subtracted: A2C with λ = 1.
        normalize: Without a baseline: the returns of an update to mean 0 and standard deviation 1. lr: Of Adam.
        The rest: see `ActorCritic`.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, baseline: bool = False, gamma: float = 0.99,
        entropy: float | Schedule = 0.0, value_weight: float = 0.5, normalize: bool = True, reward_scale: float = 1.0,
        lr: float | Schedule = 1e-3, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, gamma=gamma, lam=1.0, entropy=entropy, value_weight=value_weight,
                         normalize=normalize and not baseline, reward_scale=reward_scale, lr=lr, max_grad_norm=max_grad_norm)
        self.baseline = baseline
        if not baseline and not self.recurrent:
            self.calls = {name: ActorCritic.calls[name] for name in ("policy", "head")}

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "baseline": "the model was checked for it; build a new algorithm with another"}

    def evaluate(self, batch: Batch) -> tuple[Mapping[str, torch.Tensor], Any]:
        if self.baseline or self.recurrent:
            return super().evaluate(batch)
        return self.model.policy(batch.obs)[0], None

    def process(self, batch: Batch) -> Batch:
        """Adds `returns` and `advantage` [N]."""
        if self.baseline:
            return super().process(batch)
        rew = (batch.rew.cpu().numpy() * self.reward_scale).astype(np.float32)
        discount = discounts(batch, self.gamma, ~batch.terminated)
        batch.returns = torch.from_numpy(discounted_return(rew, discount, batch.last.cpu().numpy())).to(batch.rew.device)
        batch.advantage = normalized(batch.returns) if self.normalize else batch.returns
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, value = self.evaluate(batch)
        policy_loss = -(self.model.head.log_prob(out, batch.act) * batch.advantage).mean()
        entropy = self.model.head.entropy(out).mean()
        loss = policy_loss - value_of(self.entropy, self.updates) * entropy
        result = {"policy_loss": policy_loss.detach(), "entropy": entropy.detach()}
        if self.baseline:
            result["value_loss"] = (batch.returns - value).square().mean()
            loss = loss + self.value_weight * result["value_loss"]
        return {"loss": loss, **result}
