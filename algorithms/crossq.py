"""CrossQ, a soft actor-critic with batch norm in its critics and without target networks (Bhatt et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from parl_like.algorithms.actor_q import TargetEntropy, critic_terms, expected
from parl_like.algorithms.sac import SAC
from parl_like.algorithms.targets import rewards_and_discount
from parl_like.learning.action_spaces import Takes
from parl_like.learning.adam import FusedAdam
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_shape
from parl_like.values.batch import Batch


class CrossQ(SAC):
    """Q, Q' = the critics' values of (s, a) and of (s', a'), a' ~ π(s'), in one pass of both, by whose statistics they normalise;

    y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · E_{a'~π(s')} [min_i Q'_i − α log π(a'|s')],
    critic loss = Σ_i mean (Q_i − y)²,

    with y as a constant. The actor goes by min_i Q_i(s, a) with the running statistics, which this loss, acting and evaluations
    leave as they are. Everything else is as in `SAC`; without normalisation it is SAC with τ = 1.

    Differences:
        - The actor has no batch norm; the paper's has it, too.
        - Discrete actions are an addition.

    Args:
        model: As for `SAC`, and it offers `joint_q(obs, act, obs_next, act_next) -> (q, q_next)`, each [critics, N]; for
            Discrete, where `act` and `act_next` are None, [critics, N, A].
        beta1: Of Adam, for critics and actor: how much of the gradients before counts.
        delay, lr: As for `SAC`; 3 and 10⁻³ as published.
        The others: As for `SAC`.
    """

    calls = {**SAC.calls, "joint_q": "joint_q(obs, act, obs_next, act_next) -> (q, q_next), each as of q,"}
    fitting_models = "MLPCrossQ"
    takes: Takes | None = Takes(("Discrete", "Box"), images=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, alpha: float = 1.0,
        learn_alpha: bool = True, target_entropy: TargetEntropy = None, delay: int = 3, beta1: float = 0.5,
        lr: float | Schedule = 1e-3, actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, alpha=alpha, learn_alpha=learn_alpha, target_entropy=target_entropy,
                         delay=delay, lr=lr, actor_lr=actor_lr, alpha_lr=alpha_lr, max_grad_norm=max_grad_norm)
        self.target = self.model
        adam = partial(FusedAdam, betas=(beta1, 0.999))
        self.losses = {name: loss if name == "temperature" else replace(loss, optimizer=adam)
                       for name, loss in (self.losses or {}).items()}

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model}

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        act = None if self.discrete else torch.zeros(2, *self.model.act_space.shape)
        for q in answer(self, "joint_q", inputs.obs, act, inputs.obs, act):
            check_shape(self, "joint_q", q, (len(q), 2, int(self.model.act_space.n)) if self.discrete else (len(q), 2))

    def process(self, batch: Batch) -> Batch:
        return batch  # targets come of the pass that learns

    def critic_update(self, batch: Batch) -> dict[str, Tensor]:
        rew, discount = rewards_and_discount(batch, self.discounts)
        with torch.no_grad():
            out = self.model.policy(batch.obs_next)
            drawn = None if self.discrete else self.drawn(out)
        if drawn is None:
            q, q_next = self.model.joint_q(batch.obs, None, batch.obs_next, None)
            q = q[:, range(len(batch)), batch.act]
            value, log_p = expected(self.model.head.log_probs(out), self.pool(q_next.detach(), True))
        else:
            act_next, log_p = drawn
            q, q_next = self.model.joint_q(batch.obs, batch.act, batch.obs_next, act_next)
            value = self.pool(q_next.detach(), True)
        error = q - (rew + discount * (value - self.log_alpha.detach().exp() * log_p))
        return critic_terms(error, batch)
