"""Planning with a learned model, in a table: Dyna-Q and prioritised sweeping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parl_like.algorithms.tables.temporal_difference import QLearning
from parl_like.learning.algorithm import Schedule, value_of
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class DynaQ(QLearning):
    """Dyna-Q (Sutton 1990; Sutton & Barto 2018, 8.2): Q-learning from each step, and from `planning_steps` remembered ones.

    The model of the world is what followed each pair of state and action the last time: `model.reward`, `model.after` and
    `model.ended` [S, A], where `model.seen` is 1. Pairs are drawn uniformly. With no planning steps it is Q-learning.

    Differences:
        - None: it is the book's tabular Dyna-Q, whose model is the last outcome of each pair. Sutton's bonus for pairs that were
          not tried for long (Dyna-Q+) is not here.

    Args:
        planning_steps: Remembered steps that each row is followed by.
        The others: As for `QLearning`.
    """

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1, planning_steps: int = 5) -> None:
        super().__init__(model, lr=lr, gamma=gamma, epsilon=epsilon)
        self.planning_steps = planning_steps
        for name in ("reward", "after", "ended", "seen"):
            self.model.keep(name, self.model.table.shape)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        columns = [np.atleast_1d(one) for one in (batch.obs, batch.act, batch.rew, batch.obs_next, batch.terminated)]
        rate, errors = value_of(self.lr, self.updates), []
        for s, a, rew, after, ended in zip(*(column.tolist() for column in columns), strict=True):
            model = self.model
            model.reward[s, a], model.after[s, a], model.ended[s, a], model.seen[s, a] = rew, after, ended, 1.0
            errors.append(abs(self.step(s, a, rate)))
            self.plan(s, a, rate)
        return {"td": np.array(errors) if np.ndim(batch.rew) else errors[0]}

    def remembered_error(self, s: int, a: int) -> float:
        """Return the error of a pair by what followed it the last time."""
        model = self.model
        value = 0.0 if model.ended[s, a] else float(model.table[int(model.after[s, a])].max())
        return float(model.reward[s, a] + self.gamma * value - model.table[s, a])

    def step(self, s: int, a: int, rate: float) -> float:
        """Learn from a pair and what followed it the last time; return its error."""
        error = self.remembered_error(s, a)
        self.model.add((s, a), error, rate)
        return error

    def plan(self, s: int, a: int, rate: float) -> None:
        """Learn from remembered steps, after one from (s, a)."""
        if self.planning_steps:
            seen = np.flatnonzero(self.model.seen)
            for pair in seen[self.rng.integers(len(seen), size=self.planning_steps)].tolist():
                self.step(pair // self.model.n_actions, pair % self.model.n_actions, rate)


class PrioritizedSweeping(DynaQ):
    """Prioritised sweeping (Moore & Atkeson 1993; Sutton & Barto 2018, 8.4): Dyna-Q that learns where most is to be learned.

    The pair with the largest error comes first, and then the pairs that led to its state, if their errors are above `threshold`;
    up to `planning_steps` pairs after each row. `model.priority` [S, A] is the size of the errors that wait.

    Differences:
        - Each real step is learned from at once, before the pairs that wait; the book puts it among these.
        - A pair that waits gets the size of its newest error, also a smaller one; the book says nothing of it.
        - The model is the last outcome of a pair, as in the book; that of Moore and Atkeson has probabilities.

    Args:
        threshold: θ, at least 0: smaller errors do not wait.
        The others: As for `DynaQ`.
    """

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1, planning_steps: int = 5, threshold: float = 1e-4) -> None:
        super().__init__(model, lr=lr, gamma=gamma, epsilon=epsilon, planning_steps=planning_steps)
        self.threshold = threshold
        self.model.keep("priority", self.model.table.shape)

    def wait(self, s: int, a: int) -> None:
        """Let a pair wait, if its error is large enough."""
        size = abs(self.remembered_error(s, a))
        self.model.priority[s, a] = size if size > self.threshold else 0.0

    def plan(self, s: int, a: int, rate: float) -> None:
        model, priority = self.model, self.model.priority
        self.wait(s, a)
        self._led_to(s)
        for _ in range(self.planning_steps):
            s, a = divmod(int(priority.argmax()), model.n_actions)
            if not priority[s, a]:
                return
            self.step(s, a, rate)
            self.wait(s, a)
            self._led_to(s)

    def _led_to(self, state: int) -> None:
        """The value of a state has changed: let the pairs wait that led to it."""
        model = self.model
        for s, a in zip(*(one.tolist() for one in np.nonzero((model.after == state) & (model.seen > model.ended))), strict=True):
            self.wait(s, a)
