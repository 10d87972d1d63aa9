"""PQN: Q-learning on the rows of many environments at once, without replay and target copies (Gallici et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.unrolls import discounts, in_chunks, minibatches_of, parts_of
from parl_like.data.returns import lambda_return, next_values
from parl_like.learning.algorithm import Schedule, Window
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class PQN(DQN):
    """G_t = r_t + γ (1 − terminated) · (λ G_{t+1} + (1 − λ) · max_a Q(s_{t+1}, a)),   loss = ½ mean (G − Q(s, a))²,

    in several epochs of minibatches on the rows of one unroll, with the G of its begin. At the end of an unroll, and where an
    episode is truncated, λ is 0. Random actions do not cut the returns (Peng and Williams 1996). Layer norm keeps the values from
    growing without bounds (`MLPQ(layer_norm=True)`), which target copies do elsewhere. With λ = 0 targets are those of `DQN`
    without target copy. A row with a `duration` d is discounted by γᵈ.

    Differences:
        - The optimiser is Adam; published is RAdam.
        - Exploration and learning rate are constants by default; the paper lowers ε, and the rate in some of its environments.

    Args:
        model: Offers `q(obs) -> [N, A]`.
        lam: λ.
        epochs, minibatches: As for `PPO`.
        epsilon: Default exploration, a number or a schedule over a helper's acting steps.
        lr: Adam's learning rate, or a schedule over optimiser steps.

    Raises:
        ValueError: lam is not in [0, 1].
    """

    takes_priorities = False

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, lam: float = 0.65, epochs: int = 4,
        minibatches: int = 4, epsilon: float | Schedule = 0.1, lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0,
        adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, target_period=0, double=False, epsilon=epsilon, lr=lr, max_grad_norm=max_grad_norm,
                         adam_eps=adam_eps)
        if not 0.0 <= lam <= 1.0:
            raise ValueError(f"{type(self).__name__}: lam is {lam}; expected a number in [0, 1]")
        self.window = Window(in_order=True)
        self.lam, self.epochs, self.n_minibatches = lam, epochs, minibatches

    def fixed_settings(self) -> dict[str, str]:
        fixed = {**super().fixed_settings(), "minibatches": "it is kept as `n_minibatches`; assign that"}
        return {name: why for name, why in fixed.items() if name != "gamma"}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets G [N]."""
        last = batch.last
        best = in_chunks(lambda obs: self.model.q(obs).amax(1), batch.obs, batch.obs_next[last]).cpu().numpy()
        cuts = last.cpu().numpy()
        after = next_values(best[: len(cuts)], cuts, best[len(cuts) :])
        rew = batch.rew.float().cpu().numpy()
        target = lambda_return(rew, discounts(batch, self.gamma, ~batch.terminated), after, cuts, self.lam)
        batch.target = torch.from_numpy(target).to(batch.rew.device)
        return batch

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        fields = Batch({name: batch[name] for name in ("obs", "act", "target")})
        parts = parts_of(self, len(batch.last), self.n_minibatches, "minibatches")
        for _ in range(self.epochs):
            yield from minibatches_of(fields, batch.last, parts, self.rng, False)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        q = self.model.q(batch.obs).gather(1, batch.act.unsqueeze(1)).squeeze(1)
        return {"loss": 0.5 * F.mse_loss(q, batch.target), "q": q.detach().mean()}

    def post_process(self, batch: Batch) -> None:
        """Nothing follows the network."""
