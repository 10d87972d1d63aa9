"""Bandits: which arm is best, where an episode is one pull: ε-greedy, upper confidence bounds, gradient, Thompson sampling.

The observation says which slot machine it is; there may be one alone, `Discrete(1)`. Sutton & Barto (2018), chapter 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parl_like.algorithms.tables.temporal_difference import QLearning, check_no_prior, check_rewards
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule, value_of
from parl_like.learning.explorers import UCB, Categorical, EpsilonGreedy, Explorer, Thompson
from parl_like.learning.fixed_settings import explorers_have
from parl_like.learning.model import Model
from parl_like.learning.model_check import check_methods
from parl_like.values.batch import Batch


class Bandit(Algorithm):
    """The base of bandits: Q(s, a) moves to the rewards of arm a.

        Q(s, a) ← Q(s, a) + α · (r − Q(s, a))

    Of a table with the prior 0 and α = 1 values are the means of all rewards; with a smaller α and no prior they follow rewards
    that change.

    Args:
        model: With `q(obs)`, the array `table` [S, A] and `add`, such as `QTable`.
        lr: α, a number or a schedule over the updates.

    Raises:
        ValueError: In `learn`: a reward is not finite; nothing is counted.
    """

    calls, fitting_models = QLearning.calls, QLearning.fitting_models
    takes: Takes | None = QLearning.takes
    one_reward, takes_priorities = True, False

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 1.0) -> None:
        super().__init__(model, lr=lr)
        check_methods(self)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"q": self.model.q(inputs.obs)}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        check_rewards(self, batch.rew)
        error = batch.rew - self.model.table[batch.obs, batch.act]
        self.model.add((batch.obs, batch.act), error, value_of(self.lr, self.updates))
        return {"error": abs(error)}

    def counted(self) -> Any:
        """Return how often each arm was pulled, [S, A], of a table that has a prior.

        Raises:
            ValueError: the table has no prior.
        """
        if self.model.prior is None:
            raise ValueError(f"{type(self).__name__}: the table has no prior, so nobody counts pulls; give it one "
                             "(QTable.prior=0)")
        return self.model.visits


class EpsilonGreedyBandit(Bandit):
    """The best arm by its mean reward, or with probability ε any (2.2).

    Differences:
        - None: with the prior 0 and `lr` 1 it is the book's simple bandit algorithm (2.4).

    Args:
        epsilon: ε, a number or a schedule over the acts of one agent.
        The others: As for `Bandit`.
    """

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 1.0,
                 epsilon: float | Schedule = 0.1) -> None:
        super().__init__(model, lr=lr)
        self.epsilon = epsilon

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "epsilon": explorers_have("epsilon")}

    def explorer(self) -> Explorer:
        return EpsilonGreedy(self.epsilon, random_ties=True)


class UCBBandit(Bandit):
    """The arm with the largest Q(s, a) + c · √(ln t / n(s, a)) (Auer et al. 2002; 2.7), t pulls of the machine, n of the arm.

    Differences:
        - c is 2, as in the book's figure 2.4; UCB1 of Auer et al. has √2, for rewards in [0, 1].

    Args:
        c: Weight of the bonus.
        The others: As for `Bandit`; the table needs a prior.
    """

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 1.0, c: float = 2.0) -> None:
        super().__init__(model, lr=lr)
        self.c = c
        self.counted()

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "c": explorers_have("c")}

    def explorer(self) -> Explorer:
        return UCB(self.c)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"q": self.model.q(inputs.obs), "counts": self.model.visits[inputs.obs]}


class ThompsonBandit(Bandit):
    """The arm with the largest value drawn from its posterior (Thompson 1933), of normal rewards of a known deviation σ.

        mean of arm a ~ N(n Q / (n + σ²/τ²),  σ² / (n + σ²/τ²)),   N(0, τ²) before the first pull

    Differences:
        - Rewards are normal and their deviation is known; Thompson's are successes and failures of two treatments.

    Args:
        noise: σ, the standard deviation of rewards.
        spread: τ, the standard deviation of the arms' means before anything is known.
        lr: 1, and the table has the prior 0: the posterior needs means of rewards.
        model: As for `Bandit`.

    Raises:
        ValueError: of another prior or lr.
    """

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 1.0, noise: float = 1.0,
                 spread: float = 1.0) -> None:
        super().__init__(model, lr=lr)
        self.noise, self.spread = noise, spread
        self.counted()
        if self.model.prior != 0.0 or lr != 1.0:
            raise ValueError(f"ThompsonBandit: the table has the prior {self.model.prior}, lr is {lr}; expected 0 and 1, so "
                             "that values are means of rewards, as the posterior needs")

    def fixed_settings(self) -> dict[str, str]:
        why = "agents elsewhere predict by what it was when they were built; build a new algorithm with another"
        return {**super().fixed_settings(), "noise": why, "spread": why, "lr": "the posterior needs means of rewards"}

    def explorer(self) -> Explorer:
        return Thompson(self.model.n_actions)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        n = self.model.visits[inputs.obs]
        known = n + (self.noise / self.spread) ** 2
        return {"q": n * self.model.q(inputs.obs) / known, "std": self.noise / np.sqrt(known)}


class GradientBandit(Bandit):
    """Arms drawn by softmax of preferences H, which follow the gradient of the mean reward (Williams 1992; 2.8).

        H(s, b) ← H(s, b) + α · (r − r̄) · (1[b = a] − π(b|s)),   π = softmax H(s, ·),   r̄ the mean reward of s so far

    `model.table` is H.

    Differences:
        - None: it is equation 2.12 of the book, with r̄ of the rewards before this one.

    Args:
        lr: α, a number or a schedule over the updates.
        baseline: Whether r̄ is subtracted.
        model: With `q(obs)`, the array `table` [S, A] and `keep`, such as `QTable` without a prior.
    """

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, baseline: bool = True) -> None:
        super().__init__(model, lr=lr)
        self.baseline = baseline
        check_no_prior(self)
        for name in ("mean_reward", "pulls"):
            self.model.keep(name, (self.model.n_states,))

    def explorer(self) -> Explorer:
        return Categorical()

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"logits": self.model.q(inputs.obs).astype(np.float32)}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        check_rewards(self, batch.rew)
        model, s, a = self.model, np.atleast_1d(batch.obs), np.atleast_1d(batch.act)
        better = np.atleast_1d(batch.rew) - model.mean_reward[s] * self.baseline
        policy = np.exp(model.table[s] - model.table[s].max(1, keepdims=True))
        policy /= policy.sum(1, keepdims=True)
        direction = -policy
        direction[np.arange(len(s)), a] += 1.0
        np.add.at(model.table, s, value_of(self.lr, self.updates) * better[:, None] * direction)
        np.add.at(model.pulls, s, 1.0)
        np.add.at(model.mean_reward, s, (np.atleast_1d(batch.rew) - model.mean_reward[s]) / model.pulls[s])
        return {"better": better if np.ndim(batch.rew) else float(better[0])}
