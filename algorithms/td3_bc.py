"""TD3+BC (Fujimoto and Gu 2021): TD3 whose actor also does what the rows did, for data without an environment."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from parl_like.algorithms.ddpg import TD3
from parl_like.algorithms.targets import row_mean
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class TD3BC(TD3):
    """TD3 with, in every `delay`-th update,

    actor loss = −λ · mean Q_1(s, π(s)) + bc · mean (π(s) − a)²,   λ = alpha / mean |Q_1(s, π(s))|, a constant,

    so that both terms have one size whatever the rewards are. With `bc` 0, where λ is 1, it is TD3. Critics, targets, weights and
    priorities are as there.

    Differences:
        - Observations are as the data have them; the paper normalises them to mean 0 and standard deviation 1 over the data.

    Args:
        model: As for `TD3`.
        alpha: How much values count against the rows; 2.5 as published.
        bc: Weight of the cloning; 1 as published.
        lr: 3 · 10⁻⁴ as published.
        The others: As for `TD3`.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, alpha: float = 2.5, bc: float = 1.0, gamma: float = 0.99, n_step: int = 1,
        tau: float = 0.005, noise: float | Schedule = 0.1, delay: int = 2, smoothing: float = 0.2, smoothing_clip: float = 0.5,
        lr: float | Schedule = 3e-4, actor_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, noise=noise, delay=delay, smoothing=smoothing,
                         smoothing_clip=smoothing_clip, lr=lr, actor_lr=actor_lr, max_grad_norm=max_grad_norm)
        self.alpha, self.bc = alpha, bc

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        for losses in super().learn(batch):
            if "actor" not in losses or not self.bc:
                yield losses
                continue
            act = self.model.act(batch.obs)
            q = self.model.q(batch.obs, act)[0]
            error = row_mean((act - batch.act).square().unsqueeze(1).flatten(1).mean(1), batch)
            scale = self.alpha / q.detach().abs().mean().clamp(min=1e-8)
            yield {**losses, "actor": -scale * q.mean() + self.bc * error, "cloning": error.detach()}
