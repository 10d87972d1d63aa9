"""A curriculum that goes where something is learned: the teacher of teacher-student learning (Matiisen et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parl_like.algorithms.tables.bandits import Bandit
from parl_like.algorithms.tables.temporal_difference import check_no_prior, check_rewards
from parl_like.learning.algorithm import Schedule, value_of
from parl_like.learning.explorers import EpsilonGreedy, Explorer
from parl_like.learning.fixed_settings import explorers_have
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class LearningProgress(Bandit):
    """The authors' online algorithm. The reward of having played level a with the score x is the change since it was played last:

        r = x − x_last(a),   Q(a) ← Q(a) + α · (r − Q(a)),   the level with the largest |Q| is played next, or with ε any one

    Levels that are learned, or are forgotten, change their score. Levels that are too easy or too hard do not. All are 0 in the
    beginning, and equals are drawn evenly.

    Differences:
        - None: it is the paper's Online algorithm, with an ε-greedy choice. Its other three, Naive, Window and Sampling, are not
          here.

    Args:
        model: With `q(obs)`, the array `table` [S, A], `add` and `keep`, such as `QTable` without a prior. S is 1, A the levels.
        lr: α.
        epsilon: ε.

    Raises:
        ValueError: the table has a prior. In `learn`: a score is not finite; nothing is counted.
    """

    takes = None  # a task beside others, which no agent acts by alone

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1,
                 epsilon: float | Schedule = 0.2) -> None:
        super().__init__(model, lr=lr)
        check_no_prior(self)
        self.epsilon = epsilon
        self.model.keep("newest", self.model.table.shape)

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "epsilon": explorers_have("epsilon")}

    def explorer(self) -> Explorer:
        return EpsilonGreedy(self.epsilon, random_ties=True)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"q": np.abs(self.model.q(inputs.obs))}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        check_rewards(self, batch.rew)
        rows = np.atleast_1d(batch.obs), np.atleast_1d(batch.act), np.atleast_1d(batch.rew)
        rate, changes = value_of(self.lr, self.updates), []
        for s, a, score in zip(*rows, strict=True):
            change = float(score - self.model.newest[s, a])
            self.model.newest[s, a] = score
            self.model.add((s, a), change - self.model.table[s, a], rate)
            changes.append(abs(change))
        return {"change": float(np.mean(changes))}
