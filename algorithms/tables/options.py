"""Option-critic (Bacon, Harb and Precup 2017): a table learns options, when each ends, and which to follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parl_like.learning.algorithm import Algorithm, Schedule, Window, value_of
from parl_like.learning.model import Model
from parl_like.learning.model_check import check_methods
from parl_like.values.batch import Batch


class OptionCritic(Algorithm):
    """Learns options ω, their policies π_ω, and the probability β_ω(s) that they end in s, all from each step (s, ω, a, r, s'):

        y = r + γ · [(1 − β_ω(s')) · Q(s', ω) + β_ω(s') · max Q(s', ·)]                     y = r where the episode terminated
        Q(s, ω) ← Q(s, ω) + α · (y − Q(s, ω))                                               intra-option Q-learning
        Q_U(s, ω, a) ← Q_U(s, ω, a) + α · (y − Q_U(s, ω, a))
        θ ← θ + α_π · ∇ log π_ω(a|s) · T · (Q_U(s, ω, a) − Q(s, ω))                              π_ω = softmax(θ_ω(s, ·) / T)
        ϑ ← ϑ − α_β · ∇ β_ω(s') · (Q(s', ω) − max Q(s', ·) + ξ)                                  β_ω = σ(ϑ_ω)

    ξ is the deliberation cost: to end an option has to be worth that much. With one option there is nothing to choose and to end:
    it is an actor-critic. With β = 1 it is Q-learning among options. Agents follow options by
    `parl_like.robots.options.OptionAgent`.

    Differences:
        - Q(s, ω) has a table of its own, with the targets of Q_U, as in the authors' program; in the paper it is the mean of Q_U
          over π_ω.
        - The gradient of θ has Q(s, ω) as a baseline; that of the paper's theorem has Q_U alone.
        - α_π has the T in it that the gradient brings, as in the authors' programs.
        - What ends an option is its distance from the best one; the paper's is that from the mean over options.

    Args:
        model: With the arrays of `OptionTable`.
        lr: α. policy_lr: α_π. end_lr: α_β. Numbers, or schedules over the updates.
        gamma: γ, discount per step, 0 to 1.
        temperature: T, above 0.
        epsilon: Share of random options among those that are chosen.
        deliberation_cost: ξ, at least 0.

    Raises:
        ValueError: a number is out of its range.
    """

    calls = {"q": "q(obs) -> [N, O], the value of every option,", "end": "end(obs) -> [N, O], β,",
             "logits": "logits(obs) -> [N, O, A], θ,", "inside": "inside, the array Q_U [S, O, A],"}
    fitting_models = "OptionTable"
    takes = None
    one_reward, takes_priorities = True, False
    window = Window(in_order=True)  # policies learn from what they have done

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.5, policy_lr: float | Schedule = 0.25,
                 end_lr: float | Schedule = 0.25, gamma: float = 0.99, temperature: float = 0.01, epsilon: float = 0.01,
                 deliberation_cost: float = 0.0) -> None:
        super().__init__(model, lr=lr)
        check_methods(self)
        if not temperature > 0.0 or not deliberation_cost >= 0.0 or not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"OptionCritic: temperature is {temperature}, deliberation_cost {deliberation_cost}, "
                             f"epsilon {epsilon}; expected a temperature above 0, a cost of at least 0, and a "
                             "share between 0 and 1")
        self.policy_lr, self.end_lr, self.gamma, self.temperature = policy_lr, end_lr, gamma, temperature
        self.epsilon, self.deliberation_cost = epsilon, deliberation_cost

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        """Return, of each state, `choice` [N, O]: the probability that an option is chosen; `end` [N, O]: β; `policy` [N, O, A]:
        π."""
        q = self.model.q(inputs.obs)
        best = q == q.max(-1, keepdims=True)
        choice = self.epsilon / q.shape[-1] + (1.0 - self.epsilon) * best / best.sum(-1, keepdims=True)
        return {"choice": choice, "end": self.model.end(inputs.obs), "policy": self.probabilities(self.model.logits(inputs.obs))}

    def probabilities(self, logits: Any) -> Any:
        """π of θ, [..., A]."""
        scaled = np.exp((logits - logits.max(-1, keepdims=True)) / self.temperature)
        return scaled / scaled.sum(-1, keepdims=True)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        rows = (np.atleast_1d(batch.obs), np.reshape(batch.act, (-1, 2)), np.atleast_1d(batch.rew), np.atleast_1d(batch.obs_next),
                np.atleast_1d(batch.terminated))
        return {"td": float(np.mean([abs(self.learn_row(*row)) for row in zip(*rows, strict=True)]))}

    def learn_row(self, s: Any, act: Any, rew: float, after: Any, terminated: bool) -> float:
        """Move all tables by one step, whose `act` is (option, action). Return y − Q(s, ω) before it."""
        model, (option, action) = self.model, act
        table, inside = model.table, model.inside
        target, ending, q_next = rew, 0.0, table[after]
        if not terminated:
            ending = model.end(after)[option]
            target += self.gamma * ((1.0 - ending) * q_next[option] + ending * q_next.max())
        error, rate = target - table[s, option], value_of(self.lr, self.updates)
        table[s, option] += rate * error
        inside[s, option, action] += rate * (target - inside[s, option, action])
        logits = model.theta[s, option]
        gradient = -self.probabilities(logits)
        gradient[action] += 1.0
        logits += value_of(self.policy_lr, self.updates) * (inside[s, option, action] - table[s, option]) * gradient
        if not terminated:
            advantage = q_next[option] - q_next.max() + self.deliberation_cost
            model.ending[after, option] -= value_of(self.end_lr, self.updates) * ending * (1.0 - ending) * advantage
        return float(error)
