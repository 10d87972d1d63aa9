"""Munchausen DQN (Vieillard, Pietquin and Geist 2020): a soft DQN that adds to the reward how likely its policy was to act so."""

from __future__ import annotations

from collections.abc import Callable

from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import soft_maximum
from parl_like.learning.algorithm import Schedule
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class MDQN(DQN):
    """y = r + α · clip(T log π(a|s), l₀, 0) + γ (1 − terminated) · Σ_a' π(a'|s') (Q⁻(s', a') − T log π(a'|s')),

    π(·|s) = softmax(Q⁻(s, ·) / T) over the legal actions, Q⁻ the target copy;   loss = huber(y − Q(s, a)). The sum is
    T log Σ_a' exp(Q⁻(s', a') / T). With α = 0 it is soft Q-learning; with T → 0, too, DQN with neither `double` nor n steps: the
    added term belongs to each reward, and the states between are not there. Ends, `duration`, weights, priorities, acting, target
    copy and noise are as in `DQN`.

    Differences:
        - None in the targets: they are M-DQN's, with the paper's α, temperature and floor. Loss, clipping and copies to the
          target are those of `DQN` here.

    Args:
        temperature: T > 0, in the units of the values.
        alpha: α in [0, 1].
        floor: l₀ ≤ 0, which the added term, before α, never falls below.
        The others: As for `DQN`.

    Raises:
        ValueError: temperature, alpha or floor is outside of its range.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, temperature: float = 0.03, alpha: float = 0.9,
        floor: float = -1.0, target_period: int = 500, tau: float | None = None, epsilon: float | Schedule = 0.1,
        lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, target_period=target_period, tau=tau, double=False, epsilon=epsilon, lr=lr,
                         max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        if not (temperature > 0.0 and 0.0 <= alpha <= 1.0 and floor <= 0.0):
            raise ValueError(f"MDQN: temperature is {temperature}, alpha {alpha} and floor {floor}; expected temperature > 0, "
                             "alpha in [0, 1] and floor ≤ 0")
        self.temperature, self.alpha, self.floor = temperature, alpha, floor

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = self.begin(batch)
        q = self.target.q(batch.obs)
        log_pi = q.gather(1, batch.act.unsqueeze(1)).squeeze(1) - soft_maximum(q, self.temperature)  # times T
        q_next = soft_maximum(self.target.q(batch.obs_next), self.temperature)
        batch.target = rew + self.alpha * log_pi.clamp(self.floor, 0.0) + discount * q_next
        return batch
