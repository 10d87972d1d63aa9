"""Bootstrapped DQN: several values, of which each episode follows one (Osband et al. 2016), on randomised priors (Osband,
Aslanides and Cassirer 2018)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from parl_like.algorithms.distributions import check_values
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import legal_actions, row_mean
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Schedule, Window
from parl_like.learning.explorers import BootstrappedHeads, Explorer
from parl_like.learning.model import Model
from parl_like.values.batch import Batch
from parl_like.values.spec import Array


class BootstrappedDQN(DQN):
    """y_k = Σ_{j<m} γʲ r_{t+j} + γᵐ (1 − terminated) · Q⁻_k(s', a*_k),   loss = mean over k of mask_k · huber(y_k − Q_k(s, a)),

    for each head k, whose a*_k is the best action by itself, or without `double` by its target copy. Each row belongs to each
    head with probability `share`, once and for all, so that heads differ in what they have seen. Exploring, an episode follows
    one head; tests follow the mean of all. So exploration is deep: where nothing was seen, heads expect different things (by the
    priors of the model), and an episode pursues one expectation to its end. Priority of a row: the mean over the heads of
    |y_k − Q_k(s, a)|. Ends, `duration`, weights, target copy and noise are as in `DQN`; with one head, which has every row, it is
    DQN.

    Differences:
        - The loss is a mean over the heads; the paper of 2016 sums it, and divides the gradients of common layers by their
          number.
        - Tests follow the mean of all heads; in the paper of 2016 they follow what most heads vote for.
        - A head has half of the rows by default, as in Osband et al. 2019; it has all in 2016 on Atari and in 2018 (`share=1`).

    Args:
        model: Offers `values(obs) -> [N, A, heads]`, `q(obs) -> [N, A]`, their means, and `out_shape`, (A, heads).
        share: In (0, 1].
        The others: As for `DQN`.

    Raises:
        ValueError: share is not in (0, 1].
    """

    calls = {"q": "q(obs) -> [N, A], the mean value of every action,", "values": "values(obs) -> [N, A, heads], its values,",
             "out_shape": "out_shape, (A, heads),"}
    takes = Takes(("Discrete",), images=False)
    fitting_models = "MLPBootstrappedQ, and MLPQ and ConvQ with `heads`"

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, share: float = 0.5,
        target_period: int = 500, tau: float | None = None, double: bool = True, lr: float | Schedule = 1e-3,
        max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double, epsilon=0.0,
                         lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        if not 0.0 < share <= 1.0:
            raise ValueError(f"BootstrappedDQN: share is {share}; expected above 0, at most 1")
        self.share, self.heads = share, int(getattr(self.model, "out_shape", (0, 0))[1])  # a model without it is refused later
        self.window = Window(n_step=n_step, in_order=False, fields=("number",))

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        check_values(self, inputs, self.heads)

    def explorer(self) -> Explorer:
        return BootstrappedHeads(self.heads)

    def acts_by(self, inputs: Batch) -> dict[str, Any]:
        if "head" not in inputs:
            return super().acts_by(inputs)
        values, head = self.model.values(inputs.obs), inputs.head[:, None]
        one = values.gather(2, head.clamp(min=0)[:, None].expand(-1, values.shape[1], 1)).squeeze(2)
        return {"q": torch.where(head < 0, values.mean(2), one)}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, heads], and which heads each row belongs to, `mask` [N, heads]."""
        rew, discount = self.begin(batch)
        values = self.target.values(batch.obs_next)
        by = self.model.values(batch.obs_next) if self.double and self.target is not self.model else values
        if (legal := legal_actions(batch.obs_next)) is not None:
            by = by.masked_fill(~legal.unsqueeze(2), -torch.inf)
        batch.target = rew[:, None] + discount[:, None] * values.gather(1, by.argmax(1, keepdim=True)).squeeze(1)
        batch.mask = torch.from_numpy(belongs(batch.number.cpu().numpy(), self.heads, self.share)).to(rew.device)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        values = self.model.values(batch.obs)
        q = values.gather(1, batch.act[:, None, None].expand(-1, 1, self.heads)).squeeze(1)
        losses = torch.nn.functional.smooth_l1_loss(q, batch.target, reduction="none") * batch.mask
        return {"loss": row_mean(losses.mean(1), batch), "q": q.detach().mean(),
                "priority": (q - batch.target).detach().abs().mean(1)}


def belongs(number: Array, heads: int, share: float) -> Array:
    """Return which row belongs to which head, bool [N, heads]: a fixed function of the numbers [N] of rows. By the finaliser of
    SplitMix64 (Steele et al. 2014) it is as good as independent draws of that probability."""
    x: Any = number.astype(np.uint64)[:, None] * np.uint64(heads) + np.arange(1, heads + 1, dtype=np.uint64)
    x *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    out: Array = (x >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share
    return out
