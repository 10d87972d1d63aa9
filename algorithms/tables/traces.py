"""Control with targets of several steps, in a table: SARSA(λ), Watkins's Q(λ), and n-step SARSA and Q-learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from parl_like.algorithms.tables.prediction import LastSteps, Traces, check_traces, each_row
from parl_like.algorithms.tables.temporal_difference import QLearning
from parl_like.learning.algorithm import Schedule, Window, value_of
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class SARSALambda(QLearning):
    """SARSA(λ) (Rummery & Niranjan 1994; Sutton & Barto 2018, 12.7): each error moves all pairs by how lately they were visited.

        δ = r + γ · Q(s', a') − Q(s, a)          a': the next action; Q is 0 where the episode terminated; z: see `Traces`

    λ = 0 is SARSA. Where the next action is not known (a row of a batch at a cut) the row teaches nothing, and the trace ends.

    Differences:
        - Traces replace by default (`trace`); those of Rummery and Niranjan accumulate.

    Args:
        lam: λ, 0 to 1.
        trace: "replacing", "accumulating" or "dutch", which is true online SARSA(λ).
        The others: As for `QLearning`.

    Raises:
        ValueError: lam or trace is none of these, or the table has a prior.
    """

    window = Window(in_order=True, fields=("first", "lane", "next_act"))
    of_the_policy = True  # whether the target is the value of the policy that acts

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1, lam: float = 0.9, trace: str = "replacing") -> None:
        super().__init__(model, lr=lr, gamma=gamma, epsilon=epsilon)
        check_traces(type(self).__name__, lam, trace, self.model.prior)
        if trace == "dutch" and not self.of_the_policy:
            raise ValueError(f"{type(self).__name__}: trace is 'dutch', which is for the policy that acts; take 'replacing' or "
                             "'accumulating'")
        self.lam, self.trace = lam, trace
        self.traces = Traces()

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "trace": "traces of the other kind are under way; build a new one"}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        table, rate, decay, errors = self.model.table, value_of(self.lr, self.updates), self.gamma * self.lam, []
        for lane, first, s, a, rew, after, terminated, truncated, next_act, has_next in each_row(batch, "next_act", "has_next"):
            if first:
                self.traces.clear(lane)
            if terminated or has_next:
                value, following = float(table[s, a]), 0.0 if terminated else float(table[after, next_act])
                delta = rew + self.gamma * following - value
                self.traces.move(lane, table, (s, a), delta, value=value, after=following, rate=rate, decay=decay,
                                 kind=self.trace)
                errors.append(abs(delta))
            if terminated or truncated or not has_next:
                self.traces.clear(lane)
        return {"td": float(np.mean(errors))} if errors else {}


class QLambda(SARSALambda):
    """Q(λ) of Watkins (1989; Sutton & Barto 2018, 12.10): as SARSA(λ), but the trace ends where a random action was taken.

        δ = r + γ · max_b Q(s', b) − Q(s, a)          z ← 0 before a step whose action is not one of the best

    λ = 0 is Q-learning. The arguments are those of `SARSALambda`.

    Differences:
        - Traces replace by default (`trace`), which came later than the thesis (Singh and Sutton 1996).

    Raises:
        ValueError: trace is "dutch".
    """

    window = Window(in_order=True, fields=("first", "lane"))
    of_the_policy = False

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        table, rate, decay, errors = self.model.table, value_of(self.lr, self.updates), self.gamma * self.lam, []
        for lane, first, s, a, rew, after, terminated, truncated in each_row(batch):
            value, following = float(table[s, a]), 0.0 if terminated else float(table[after].max())
            if first or value < table[s].max():
                self.traces.clear(lane)
            delta = rew + self.gamma * following - value
            self.traces.move(lane, table, (s, a), delta, value=value, after=following, rate=rate, decay=decay, kind=self.trace)
            if terminated or truncated:
                self.traces.clear(lane)
            errors.append(abs(delta))
        return {"td": float(np.mean(errors))}


class NStepQ(QLearning):
    """Targets of n steps (Sutton & Barto 2018, 7.2); with n = 1 SARSA, expected SARSA or Q-learning.

        Q(s_t, a_t) ← Q(s_t, a_t) + α · (r_{t+1} + γ r_{t+2} + … + γⁿ · value(s_{t+n}) − Q(s_t, a_t))      fewer steps at an end

    value is "sarsa": Q(s_{t+n}, a_{t+n}), "expected": the mean over the policy that explores, or "max". The rewards between are
    those of the policy that explored, which "max" does not correct.

    Differences:
        - None for "sarsa" and "expected", which are the book's. "max" leaves out the corrections for random actions that the
          book's 7.3 and 7.5 have.

    Args:
        n: Steps.
        target: What the value is. Where "sarsa" knows no next action it takes the mean.
        The others: As for `QLearning`.

    Raises:
        ValueError: target is none of these.
    """

    TARGETS = ("sarsa", "expected", "max")

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1, n: int = 4, target: str = "sarsa") -> None:
        super().__init__(model, lr=lr, gamma=gamma, epsilon=epsilon)
        if target not in self.TARGETS:
            raise ValueError(f"NStepQ: target is {target!r}; expected one of {', '.join(self.TARGETS)}")
        self.n, self.target, self.steps = n, target, LastSteps(n, "NStepQ")
        self.more: tuple[str, ...] = ("next_act", "has_next") if target == "sarsa" else ()
        self.window = Window(in_order=True, fields=("first", "lane", *self.more[:1]))
        if target != "max":
            self.read_epsilon()
        if "step" in self.window.fields:
            self.more += ("step",)

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "n": "rows that wait were counted by it; build a new algorithm with another",
                "target": "rows come with what it needs; build a new algorithm with another"}

    def value(self, state: int, next_act: int | None, step: int | None = None) -> float:
        """Return what follows, where the episode goes on in this state after the act of this number."""
        q = self.model.table[state]
        if next_act is not None:
            return float(q[next_act])
        epsilon = 0.0 if self.target == "max" else self.epsilon_of(step)
        return float(epsilon * q.mean() + (1.0 - epsilon) * q.max())

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        model, rate, errors = self.model, value_of(self.lr, self.updates), []
        for lane, first, s, a, rew, after, terminated, truncated, *known in each_row(batch, *self.more):
            told = dict(zip(self.more, known, strict=True))
            next_act = told["next_act"] if told.get("has_next") else None
            value = partial(self.value, after, next_act, told.get("step"))
            for where, target in self.steps.targets(lane, (s, a), rew, value, first=first, terminated=terminated,
                                                    truncated=truncated, gamma=self.gamma):
                error = target - float(model.table[where])
                model.add(where, error, rate)
                errors.append(abs(error))
        return {"td": float(np.mean(errors))} if errors else {}
