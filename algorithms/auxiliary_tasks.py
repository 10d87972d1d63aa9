"""Auxiliary tasks on a shared trunk: UNREAL's reward prediction, feature control and value replay (Jaderberg et al. 2017), and
SPR, self-predictive representations (Schwarzer et al. 2021).

z(s) are the features of the trunk that a policy task shares. `weight` scales the gradient that goes into it: with 0 the trunk,
and so the policy, is what it would be without the auxiliary task, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.algorithms.targets import rewards_and_discount
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class Auxiliary(Algorithm):
    """The base of auxiliary tasks: features of the shared trunk, whose gradient is scaled.

    Args:
        model: Offers `trunk`, see `parl_like.models.auxiliary_heads`.
        weight: Of the gradient that goes into the trunk, at least 0.

    Raises:
        ValueError: weight is negative.
    """

    takes_priorities = takes_rewards = False
    window = Window(in_order=False)

    def __init__(self, model: Model | Callable[[], Model], *, weight: float = 1.0, lr: float | Schedule = 1e-3,
                 max_grad_norm: float | None = None) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        if not weight >= 0.0:
            raise ValueError(f"{type(self).__name__}: weight is {weight}; expected a number of at least 0")
        self.weight = weight

    def features(self, obs: Any) -> Tensor:
        """Return z(s) [N, F], through which `weight` times the gradient goes."""
        if self.weight == 0.0:
            with torch.no_grad():
                return self.model.trunk(obs)  # type: ignore[no-any-return]
        z: Tensor = self.model.trunk(obs)
        return z if self.weight == 1.0 else self.weight * z + (1.0 - self.weight) * z.detach()


class RewardPrediction(Auxiliary):
    """loss = ½ mean over rows with r ≠ 0 [−log p(sign r | z(s))] + ½ mean over rows with r = 0 [−log p(0 | z(s))].

    It says whether the next reward is negative, zero or positive; both halves count alike.
    Where an update has rows of one kind alone, it is their mean.

    Differences:
        - It reads the features of one observation; the paper's reads those of three frames.
        - Rows are drawn evenly, and both halves of the loss count alike; the paper draws as many rows of both kinds.
        - It steps by an Adam of its own; the paper sums the losses of all tasks, and steps by RMSProp.

    Args:
        model: `RewardClasses`. weight: As for `Auxiliary`.
    """

    calls = {"classes": "classes(features) -> [N, 3], logits of a reward below, at and above 0,", "trunk": "trunk,"}
    fitting_models = "RewardClasses"
    one_reward = takes_rewards = True

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        sign = batch.rew.sign().long()
        losses = F.cross_entropy(self.model.classes(self.features(batch.obs)), sign + 1, reduction="none")
        kinds = [losses[kind].mean() for kind in (sign == 0, sign != 0) if bool(kind.any())]
        return {"loss": torch.stack(kinds).mean(), "rewarded": (sign != 0).float().mean()}


class FeatureControl(Auxiliary):
    """loss = mean over rows and cells c of (δ_c(s, s') + γ (1 − terminated) max_b Q⁻_c(s', b) − Q_c(s, a))².

    Values of actions that change the observation most, cell by cell: pixel control, for whatever the changes δ are (`change` of
    the model). Q⁻ is the copy that follows. A row with a `duration` d is discounted by γᵈ.

    Differences:
        - Returns have one step; the paper's have up to 20.
        - Cells are squares with a side of 2 pixels, or single numbers where there is no image; the paper's have a side of 4
          pixels.
        - It steps by an Adam of its own; the paper sums the losses of all tasks, and steps by RMSProp.

    Args:
        model: `CellQ`. weight: As for `Auxiliary`.
        gamma: γ, 0.9 as published.
        tau: After each update Q⁻ ← (1 − tau) · Q⁻ + tau · Q.
    """

    calls = {"change": "change(obs, obs_next) -> [N, C],", "q": "q(features) -> [N, A, C],", "trunk": "trunk,"}
    fitting_models = "CellQ"

    def __init__(self, model: Model | Callable[[], Model], *, gamma: float = 0.9, tau: float = 0.01, weight: float = 1.0,
                 lr: float | Schedule = 1e-3, max_grad_norm: float | None = None) -> None:
        super().__init__(model, weight=weight, lr=lr, max_grad_norm=max_grad_norm)
        self.gamma, self.tau = gamma, tau
        self.target = self.model.clone()

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets [N, C]."""
        _, discount = rewards_and_discount(batch, (1.0, self.gamma))
        future = self.target.q(self.target.trunk(batch.obs_next)).amax(1)
        batch.target = self.model.change(batch.obs, batch.obs_next) + discount.unsqueeze(1) * future
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        q = self.model.q(self.features(batch.obs))
        return {"loss": F.mse_loss(q[torch.arange(len(q), device=q.device), batch.act], batch.target)}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, tau=self.tau)


class ValueReplay(Auxiliary):
    """loss = mean (r + γ (1 − terminated) V(s') − V(s))², of rows that are drawn from a buffer: the critic of an actor-critic
    learns from old rows, too. The target has no gradient. A row with a `duration` d is discounted by γᵈ.

    Differences:
        - Targets have one step, of single rows; the paper's are returns of up to 20 steps, of sequences.
        - It steps by an Adam of its own; the paper sums the losses of all tasks, and steps by RMSProp.

    Args:
        model: That of the policy task itself, as a `Shared` one. weight: Of the loss.
        gamma: γ.
    """

    calls = {"value": "value(obs) -> [N],"}
    fitting_models = "the policy's"
    one_reward = takes_rewards = True

    def __init__(self, model: Model | Callable[[], Model], *, gamma: float = 0.99, weight: float = 1.0,
                 lr: float | Schedule = 1e-3, max_grad_norm: float | None = None) -> None:
        super().__init__(model, weight=weight, lr=lr, max_grad_norm=max_grad_norm)
        self.gamma = gamma

    def process(self, batch: Batch) -> Batch:
        """Adds the targets [N]."""
        rew, discount = rewards_and_discount(batch, (1.0, self.gamma))
        batch.target = rew + discount * self.model.value(batch.obs_next)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        return {"loss": self.weight * F.mse_loss(self.model.value(batch.obs), batch.target)}


class SPR(Auxiliary):
    """loss = 1 − mean cos(q(p(h(z(s), a))), p⁻(z⁻(s'))):  features say what the next features will be.

    h is a model of the features, p a projection, q a predictor; z⁻ and p⁻ are copies that follow, without a gradient.
    Only features are predicted, so noise falls away.

    Differences:
        - One step is predicted; the paper predicts five in a row.
        - Observations are not augmented; the paper shifts images and changes their brightness.
        - It serves any policy on the trunk, by an Adam of its own; the paper adds its loss to that of Rainbow.

    Args:
        model: `FeatureModel`. weight: As for `Auxiliary`.
        tau: After each update the copies ← (1 − tau) · copies + tau · themselves.
    """

    calls = {"ahead": "ahead(features, act) -> [N, P], what is predicted,", "projected": "projected(features) -> [N, P],",
             "trunk": "trunk,"}
    fitting_models = "FeatureModel"

    def __init__(self, model: Model | Callable[[], Model], *, tau: float = 0.01, weight: float = 1.0,
                 lr: float | Schedule = 1e-3, max_grad_norm: float | None = None) -> None:
        super().__init__(model, weight=weight, lr=lr, max_grad_norm=max_grad_norm)
        self.tau = tau
        self.target = self.model.clone()

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def process(self, batch: Batch) -> Batch:
        """Adds what is to be predicted, [N, P]."""
        batch.target = self.target.projected(self.target.trunk(batch.obs_next))
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        alike = F.cosine_similarity(self.model.ahead(self.features(batch.obs), batch.act), batch.target, dim=1).mean()
        return {"loss": 1.0 - alike, "alike": alike.detach()}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, tau=self.tau)
