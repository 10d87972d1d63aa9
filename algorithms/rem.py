"""REM, random ensemble mixture: DQN on a mixture of several values of each action (Agarwal, Schuurmans and Norouzi 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from parl_like.algorithms.distributions import check_values, of_actions
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import legal_actions, row_mean
from parl_like.values.batch import Batch


class REM(DQN):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · Σ_i α_i Q⁻_i(s', a*),   loss = huber(y − Σ_i α_i Q_i(s, a)),

    with α drawn anew for each update: α_i = u_i / Σ u, u uniform in [0, 1). a* is the best action by that mixture of the
    network's values, or without `double` of the target's. Acting goes by the even mixture. Ends, `duration`,
    weights, priorities, target copy and noise are as in `DQN`; with one head it is DQN.

    Differences:
        - With `double`, the default, the network chooses a*; in the paper the target copy does.
        - The paper is about fixed data; here rows may also come from agents, as in `DQN`.

    Args:
        model: Offers `q(obs) -> [N, A]`, the means, and `values(obs) -> [N, A, heads]`.
        The others: As for `DQN`.
    """

    calls = {"q": "q(obs) -> [N, A], the mean value of every action,", "values": "values(obs) -> [N, A, heads], its values,"}
    fitting_models = "MLPQ and ConvQ, with `heads`"

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        check_values(self, inputs)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N], and α in each row [N, heads]."""
        rew, discount = self.begin(batch)
        values = self.target.values(batch.obs_next)
        u = torch.rand(values.shape[2], generator=self.torch_rng, device=values.device)
        mixture = u / u.sum()
        q = (self.model.values(batch.obs_next) if self.double and self.target is not self.model else values) @ mixture
        if (legal := legal_actions(batch.obs_next)) is not None:
            q = q.masked_fill(~legal, -torch.inf)
        batch.target = rew + discount * (of_actions(values, q.argmax(1)) @ mixture)
        batch.mixture = mixture.expand(len(rew), -1)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        q = (batch.mixture * of_actions(self.model.values(batch.obs), batch.act)).sum(1)
        losses = torch.nn.functional.smooth_l1_loss(q, batch.target, reduction="none")
        return {"loss": row_mean(losses, batch), "q": q.detach().mean(), "priority": (q - batch.target).detach().abs()}
