"""C51: the distribution of returns as probabilities of a fixed support (Bellemare, Dabney and Munos 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from parl_like.algorithms.distributions import of_actions, project
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import row_mean
from parl_like.batch import Batch
from parl_like.contract import answer, check_shape


class C51(DQN):
    """p' = Φ(Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · z, p⁻(s', a*)),   loss = −Σ_i p'_i log p_i(s, a),

    with the support z, p the softmax of the network's logits, p⁻ that of the target copy, and Φ the projection on the support,
    see `distributions.project`; a* is the best action by the means Σ_i p_i z_i of the network, or without `double` of the target,
    as published. Priority of a row: KL(p' ‖ p) (Hessel et al. 2018). Acting goes by the means; that and everything else is as in
    `DQN`.

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
