"""The evaluations of a run: seed and episodes of each; while it trains, when one is due, and which was the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from parl_like.lab.config import ExperimentConfig
from parl_like.lab.evaluation_process import EvaluationProcess
from parl_like.lab.experiment import Experiment

DEFAULT_EVAL_EPISODES = 10
EVAL_SEED = 1_000_000  # evaluation is seeded with this plus the run's seed, far from the seeds people train with


def evaluation_seed(config: ExperimentConfig) -> int:
    return EVAL_SEED + config.seed


def evaluation_episodes(experiment: Experiment, config: ExperimentConfig) -> int:
    return config.eval_episodes or experiment.eval_episodes or DEFAULT_EVAL_EPISODES


class Evaluations:
    """Scores of evaluations while training, in order.

    Args:
        config: Its `eval_every` and `stop_score` count.
        scores: Env step and score of each one so far.
        process: Where they happen while training goes on; None: in the run's own process.

    Attributes:
        begun: Env step of the last one that has begun in a process of its own; -1: none has.
    """

    def __init__(self, config: ExperimentConfig, scores: Iterable[tuple[int, float]] = (),
                 process: EvaluationProcess | None = None) -> None:
        self.every, self.stop_score = config.eval_every, config.stop_score
        self.scores = list(scores)
        self.begun, self.process = -1, process

    def add(self, step: int, score: float) -> None:
        self.scores.append((step, score))

    def due(self, step: int) -> bool:
        """Return whether a multiple of `eval_every` lies after the last one and up to `step`; 0 is one, too."""
        return bool(self.every) and step // self.every > max(self.last(), self.begun) // self.every

    def begin(self, step: int, state: Mapping[str, object], row: Mapping[str, float]) -> None:
        """Begin one in the other process; see `EvaluationProcess.begin`."""
        self.begun = step
        if self.process is not None:
            self.process.begin(step, state, row)

    def go_on(self, step: int) -> None:
        """Begin again what an earlier process has left of `step` or before."""
        if self.process is not None:
            self.begun = self.process.go_on(step, self.last())

    def take(self, waits: Callable[[], bool] = lambda: False) -> None:
        """Note the one in the other process, if it has ended; see `EvaluationProcess.take`."""
        if self.process is not None:
            self.process.take(waits)

    def stop(self) -> None:
        """End the one in the other process; a run that is resumed goes on with it."""
        if self.process is not None:
            self.process.stop()

    def missing(self, step: int) -> bool:
        """Return whether the run has evaluations while it trains, and none of `step` or later."""
        return bool(self.every) and self.last() < step

    def reached(self) -> bool:
        """Return whether the last one has reached `stop_score`."""
        return self.stop_score is not None and bool(self.scores) and self.scores[-1][1] >= self.stop_score

    def best(self) -> tuple[int, float]:
        """Env step and score of the best one so far, the first of equal ones; a score that is no number is none."""
        return max((one for one in self.scores if not math.isnan(one[1])), key=lambda one: one[1], default=(-1, -math.inf))

    def summary(self) -> dict[str, float]:
        """As `RunInfo.evaluated`."""
        if not self.scores:
            return {}
        (step, score), (best_step, best) = self.scores[-1], self.best()
        return {"step": step, "score": score, "best_step": best_step, "best": best}

    def shown(self) -> dict[str, float]:
        """The summary as metrics that the progress shows."""
        if not (found := self.summary()):
            return {}
        return {"evaluation/last": found["score"], "evaluation/at step": found["step"], "evaluation/best": found["best"],
                "evaluation/best at step": found["best_step"]}

    def last(self) -> int:
        """Return the env step of the last one that is done; -1: there is none."""
        return self.scores[-1][0] if self.scores else -1
