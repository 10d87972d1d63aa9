"""C51, the distribution of returns as probabilities of a fixed support (Bellemare, Dabney and Munos 2017), and Rainbow on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from parl_like.algorithms.distributions import of_actions, project
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import row_mean
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_shape
from parl_like.values.batch import Batch


class C51(DQN):
    """p' = Φ(Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · z, p⁻(s', a*)),   loss = −Σ_i p'_i log p_i(s, a),

    with the support z, p the softmax of the network's logits, p⁻ that of the target copy, and Φ the projection on the support,
    see `distributions.project`; a* is the best action by the means Σ_i p_i z_i of the network, or without `double` of the target.
    Priority of a row: KL(p' ‖ p) (Hessel et al. 2018). Acting goes by the means; that and everything else is as in
    `DQN`.

    Differences:
        - The network chooses a* by default; in the paper the target copy does (`double=False`).
        - Adam has a learning rate of 10⁻³ and an ε of 10⁻⁵, and gradients are cut to a norm of 10; the paper has 2.5·10⁻⁴, 3·10⁻⁴
          and no cut.
        - Several rewards in a row and priorities are additions (Hessel et al. 2018).

    Args:
        model: Offers `q(obs) -> [N, A]`, the means, `logits(obs) -> [N, A, K]` and `support` [K]: the returns between which all
            are to lie.
        The others: As for `DQN`.
    """

    calls = {"q": "q(obs) -> [N, A], the mean return of every action,", "logits": "logits(obs) -> [N, A, K], of each return,",
             "support": "support, the K returns,"}
    fitting_models = "MLPCategoricalQ and ConvCategoricalQ"

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        check_shape(self, "logits", answer(self, "logits", inputs.obs), (2, int(self.model.act_space.n), len(self.model.support)))

    def process(self, batch: Batch) -> Batch:
        """Adds the target probabilities p' [N, K]."""
        rew, discount = self.begin(batch)
        support = self.model.support
        p = torch.softmax(of_actions(self.target.logits(batch.obs_next), self.best(batch.obs_next)), -1)
        batch.target = project(rew[:, None] + discount[:, None] * support, p, support)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        log_p = torch.log_softmax(of_actions(self.model.logits(batch.obs), batch.act), -1)
        crossed = -(batch.target * log_p).sum(1)
        entropy = -torch.xlogy(batch.target, batch.target).sum(1)
        return {"loss": row_mean(crossed, batch), "priority": (crossed.detach() - entropy).clamp(min=0.0),
                "q": (log_p.detach().exp() @ self.model.support).mean()}


class Rainbow(C51):
    """C51 with five more parts (Hessel et al. 2018), each of which can be left out; without all six it is DQN:

    `double` and `n_step` here; a model with `dueling` and `noisy`; a `PrioritizedReplayBuffer` in the helper; and the
    distribution itself: of a model without one (`MLPQ`) targets and losses are those of `DQN`. Noise explores in the place of
    random actions, `epsilon`.

    Differences:
        - Adam has a learning rate of 10⁻³ and an ε of 10⁻⁵, and gradients are cut to a norm of 10; the paper has 6.25·10⁻⁵ and
          1.5·10⁻⁴, and names no cut.
        - Priorities have an exponent of 0.6 by default; the paper's have 0.5.
        - The target is copied every 500 updates, in robots of `Robot.of` every 200; in the paper every 2,000, which are 32,000
          frames.

    Args:
        model: As for `C51`; or it offers `q(obs) -> [N, A]` alone.
        The others: As for `DQN`.
    """

    calls = {"q": C51.calls["q"]}
    fitting_models = "MLPCategoricalQ, ConvCategoricalQ, MLPQ and ConvQ"

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 3, target_period: int = 500,
        tau: float | None = None, double: bool = True, epsilon: float | Schedule = 0.0, lr: float | Schedule = 1e-3,
        max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double,
                         epsilon=epsilon, lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        self.kind: type[DQN] = C51 if hasattr(self.model, "support") else DQN

    def check_model(self, inputs: Batch) -> None:
        self.kind.check_model(self, inputs)

    def process(self, batch: Batch) -> Batch:
        return self.kind.process(self, batch)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        return self.kind.learn(self, batch)
