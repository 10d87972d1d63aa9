"""Ensembles of critics that learn much from every step: REDQ (Chen et al. 2021) and DroQ (Hiraoka et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from parl_like.algorithms.actor_q import TargetEntropy, any_action
from parl_like.algorithms.sac import SAC
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, refuse
from parl_like.values.batch import Batch


class REDQ(SAC):
    """SAC with n critics, of which a random few make the targets, so that it can learn from many batches between two steps:

    y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · E_{a'~π(s')} [min_{i ∈ M} Q⁻_i(s', a') − α log π(a'|s')],

    with M a subset of `subset` critics, drawn anew in each update, and in every `delay`-th update

    actor loss = mean E_{a~π(s)} [α log π(a|s) − 1/n · Σ_i Q_i(s, a)].

    Everything else is as in `SAC`, which it is with two critics, a subset of 2, `delay` 1 and `actor_min`. The published agent
    has 10 critics, and 20 updates a step (`OffPolicyHelper.updates`), in the last of which the actor learns.

    Differences:
        - The entropy that is wanted is −(numbers of an action), as in `SAC`; the authors' program has a number for each
          environment, from MBPO.

    Args:
        model: As for `SAC`.
        subset: How many of the critics; where it is all of them, none are drawn.
        delay: As for `SAC`; as many as there are updates a step, so that the actor learns once a step.
        actor_min: The actor goes by the least of the values, as in `SAC`, and not by their mean.
        The others: As for `SAC`.

    Raises:
        ValueError: subset is below 1.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005, subset: int = 2,
        delay: int = 20, actor_min: bool = False, alpha: float = 1.0, learn_alpha: bool = True,
        target_entropy: TargetEntropy = None, lr: float | Schedule = 3e-4,
        actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, alpha=alpha, learn_alpha=learn_alpha,
                         target_entropy=target_entropy, delay=delay, lr=lr, actor_lr=actor_lr, alpha_lr=alpha_lr,
                         max_grad_norm=max_grad_norm)
        if subset < 1:
            raise ValueError(f"{type(self).__name__}: subset is {subset}; expected at least 1 critic")
        self.subset, self.actor_min = subset, actor_min

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        q = answer(self, "q", inputs.obs, *(() if self.discrete else (any_action(self.model.act_space),)))
        if len(q) < self.subset:
            raise refuse(self, "q", f"values of at least {self.subset} critics, of which the targets draw so many (`subset`)",
                         len(q))

    def pool(self, q: Tensor, of_target: bool = False) -> Tensor:
        if not of_target:
            return q.amin(0) if self.actor_min else q.mean(0)
        if self.subset < len(q):
            q = q[torch.randperm(len(q), generator=self.torch_rng, device=q.device)[: self.subset]]
        return q.amin(0)


class DroQ(REDQ):
    """REDQ with two critics instead of ten, which are others in each update by dropout, those of the targets, too, and have layer
    norm behind it: `MLPActorQ(dropout=0.01, layer_norm=True)`. Without both, and with as many critics, it is REDQ.

    Differences:
        - None in the losses: they are those of its algorithm 2. Dropout and layer norm come with the model, and the 20 updates of
          a step with the helper.
    """

    always_test = ()  # the targets' dropout is part of it
