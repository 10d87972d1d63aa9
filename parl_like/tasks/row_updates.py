"""RowUpdates: updates of a model of arrays by single rows, in the agent that stores them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from parl_like.interfaces import Learned, RowLearner
from parl_like.tasks.task import ComputationTask
from parl_like.values.batch import Batch
from parl_like.values.errors import Diverged


class RowUpdates:
    """Updates of one task whose model is made of arrays, by rows without their axis: no batch, and no copy of before.

    Raises:
        ValueError: the task has `rewards` of others.
    """

    def __init__(self, task: ComputationTask) -> None:
        if task.rewards:
            raise ValueError(f"{task.owner()}: its updates are single rows (OnlineHelper), which no other task is asked for; "
                             "leave out rewards=, or let it learn from batches (OffPolicyHelper)")
        self.algorithm, self.owner, self.counts, self.learned = task.algorithm, task.owner, task.counts, task.learned

    def learn(self, row: Batch) -> Learned:
        """Take one row: `process`, `learn`, `post_process`, and nothing beside.

        Returns:
            What `learn` returned.

        Raises:
            Diverged: a number in that is not finite. The arrays are as `learn` left them, for there is no copy of before.
            TypeError: it returned no numbers by name.
        """
        algorithm = self.algorithm
        attributes = algorithm.__dict__  # past `__setattr__`: this is in every step of an environment
        with self.learned.lock:
            before, attributes["mode"] = algorithm.mode, "update"
            try:
                given: Any = algorithm.learn(algorithm.process(row))
                attributes["updates_before"] = attributes["updates"]
                attributes["updates"] += 1
                algorithm.post_process(row)
            finally:
                attributes["mode"] = before
            self._count()
        if given is None:
            return {}
        out: Learned = given
        try:
            for name, value in out.items():
                if not isfinite(value):
                    raise self._diverged(name, value)
        except (AttributeError, TypeError):
            what = f"{out!r:.80}" if isinstance(out, Mapping) else type(out).__name__
            raise TypeError(f"{self.owner()}: learn of {type(algorithm).__name__} gives {what} for a row; expected a mapping of "
                            "numbers, or None") from None
        return out

    def learn_numbers(self, learner: RowLearner, *row: Any) -> float:
        """Take one row of numbers by the algorithm's `row_learner`; return what that returned. Raises as `learn`."""
        with self.learned.lock:
            out = learner.learn(*row)
            self._count()
        if not isfinite(out):
            raise self._diverged(learner.reports, out)
        return out

    def _count(self) -> None:
        self.counts.learns += 1
        self.counts.rows_learned += 1
        self.learned.new_version()

    def _diverged(self, name: str, value: float) -> Diverged:
        return Diverged(f"{self.owner()}: {name} is {value} at update {self.algorithm.updates}, and has been learned from; lower "
                        "the learning rate, or look for extreme rewards")
