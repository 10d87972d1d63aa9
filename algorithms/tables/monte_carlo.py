"""Monte Carlo: values from the returns of whole episodes, of a policy that improves, or of a given one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parl_like.algorithms.tables.prediction import ValuePrediction, probabilities
from parl_like.algorithms.tables.temporal_difference import QLearning
from parl_like.data.returns import discounted_return
from parl_like.learning.algorithm import Schedule, Window, value_of
from parl_like.learning.model import Model
from parl_like.values.batch import Batch
from parl_like.values.spec import Array


def returns(batch: Batch, gamma: float, after: Array) -> Array:
    """Return [N] float64 the discounted return of each row up to the end of its segment; where that is no termination, what
    follows is worth `after` [N]."""
    check_episodes(batch)
    discount = gamma * (1.0 - batch.terminated)
    return discounted_return(np.asarray(batch.rew, np.float64), discount, np.asarray(batch.last), after)


def check_episodes(batch: Batch) -> None:
    """Raises ValueError for single rows, which are no episodes."""
    if not np.ndim(batch.rew):
        raise ValueError("Monte Carlo learns from whole episodes, and got a single row; use an EpisodicHelper")


def first_visits(batch: Batch, keys: Array) -> Array:
    """[N] bool: the first row of each segment with its key [N]."""
    segment = np.concatenate([[0], np.cumsum(batch.last)[:-1]])
    _, first = np.unique(segment * (int(keys.max()) + 1) + keys, return_index=True)
    found = np.zeros(len(keys), bool)
    found[first] = True
    return found


class MonteCarlo(QLearning):
    """On-policy Monte Carlo control (Sutton & Barto 2018, 5.4): Q(s, a) moves to the returns that followed (s, a).

        Q(s, a) ← Q(s, a) + α · (G − Q(s, a)),   G = r + γ r' + γ² r'' + … to the end of the episode

    for an `EpisodicHelper`. Of a table with the prior 0 and α = 1 values are the means of all returns. An episode that was cut
    goes on with the mean value of the policy that explores.

    Differences:
        - None where episodes end: with the prior 0 and `lr` 1 it is the book's on-policy first-visit control (5.4). The book has
          no episodes that are cut.

    Args:
        lr: α.
        first_visit: Whether only the first visit of a pair in each episode counts; else every one.
        The others: As for `QLearning`.
    """

    window = Window(in_order=True, whole=True)

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 1.0, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1, first_visit: bool = True) -> None:
        super().__init__(model, lr=lr, gamma=gamma, epsilon=epsilon)
        self.first_visit = first_visit
        self.read_epsilon()

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        check_episodes(batch)
        q, epsilon = self.model.q(batch.obs_next), self.epsilon_of(batch.get("step"))
        error = returns(batch, self.gamma, epsilon * q.mean(1) + (1.0 - epsilon) * q.max(1))
        error -= self.model.table[batch.obs, batch.act]
        s, a = batch.obs, batch.act
        if self.first_visit:
            first = first_visits(batch, s * self.model.n_actions + a)
            s, a, error = s[first], a[first], error[first]
        self.model.add((s, a), error, value_of(self.lr, self.updates))
        return {"td": float(abs(error).mean())}


class MonteCarloPrediction(ValuePrediction):
    """Values of a policy from the returns of whole episodes (Sutton & Barto 2018, 5.1, 5.5), for an `EpisodicHelper`.

        V(s) ← V(s) + α · (G − V(s))                                                    of the policy that acts
        V(s) ← V(s) + α · (ρG − V(s)),        ρ = Π π(a|s) / b(a|s) to the end           ordinary importance sampling
        V(s) ← V(s) + α · ρ / C(s) · (G − V(s)),   C(s) = Σ ρ of all visits of s         weighted importance sampling

    With α = 1 and the prior 0 the first two are means over all visits; weighted they are with any prior.

    Differences:
        - None where episodes end: it is the book's 5.1, and 5.5 with a target. What follows an episode that was cut is worth V of
          its last state; the book has none.

    Args:
        lr: α.
        first_visit: Whether only the first visit of a state in each episode counts; else every one.
        target: π, [S, A] probabilities of the policy that is valued; None: `policy`, which acts, b.
        importance: "weighted" or "ordinary".
        The others: As for `ValuePrediction`.

    Raises:
        ValueError: importance is none of these, a target comes without a policy, or takes actions that the policy never takes.
    """

    window = Window(in_order=True, whole=True)

    def __init__(self, model: Model | Callable[[], Model], *, policy: Array | str | None = "uniform",
                 lr: float | Schedule = 1.0, gamma: float = 0.99, first_visit: bool = True,
                 target: Array | None = None, importance: str = "weighted") -> None:
        super().__init__(model, policy=policy, lr=lr, gamma=gamma)
        if importance not in ("weighted", "ordinary") or target is not None and policy is None:
            raise ValueError(f"MonteCarloPrediction: importance is {importance!r}, policy {policy!r:.40}; expected 'weighted' or "
                             "'ordinary', and the policy that acts where there is a target")
        self.first_visit, self.target, self.importance = first_visit, target, importance
        self.ratio: Array | None = None
        if target is not None and self.behaviour is not None:
            pi = probabilities(target, self.model, "MonteCarloPrediction")
            if (pi[self.behaviour == 0] > 0).any():
                raise ValueError("MonteCarloPrediction: the target takes actions that the policy never takes; expected a policy "
                                 "that takes all of them now and then")
            self.ratio = np.divide(pi, self.behaviour, out=np.zeros_like(pi), where=self.behaviour > 0)
            self.model.keep("weights", self.model.table.shape)

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "target": "its ratios are made; build a new algorithm with another",
                "importance": "sums of ratios belong to it; build a new algorithm with another"}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        total, s = returns(batch, self.gamma, self.model.v(batch.obs_next)), batch.obs
        counted = first_visits(batch, s) if self.first_visit else np.ones(len(s), bool)
        rate, value = value_of(self.lr, self.updates), self.model.table[s]
        if self.ratio is None:
            error = (total - value)[counted]
            self.model.add(s[counted], error, rate)
            return {"td": float(abs(error).mean())}
        rho = ratios(self.ratio[s, batch.act], np.asarray(batch.last))
        if self.importance == "ordinary":
            error = (rho * total - value)[counted]
            self.model.add(s[counted], error, rate)
        else:
            s, rho, error = s[counted], rho[counted], (total - value)[counted]
            np.add.at(self.model.weights, s, rho)
            whole = np.where(self.model.weights[s] > 0, self.model.weights[s], 1.0)
            np.add.at(self.model.table, s, rate * rho / whole * error)
        return {"td": float(abs(error).mean())}


def ratios(each: Array, last: Array) -> Array:
    """[N] the product of `each` [N] from a row to the end of its segment."""
    found, product = np.empty(len(each)), 1.0
    for t in range(len(each) - 1, -1, -1):
        product = each[t] * (1.0 if last[t] or t == len(each) - 1 else product)
        found[t] = product
    return found
