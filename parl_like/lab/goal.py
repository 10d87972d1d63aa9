"""The goal of a run: what its experiment expects of the numbers at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from parl_like.lab import config as configs
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.experiment import Experiment


class Goal:
    """The expectation of an experiment for one run: none where the run has another environment than the experiment.

    Args:
        experiment: Says what it expects, and of which environment.
        config: That of the run.
    """

    def __init__(self, experiment: Experiment, config: ExperimentConfig) -> None:
        own = _env_of(configs.resolve(type(config), experiment.config))
        self.named = experiment
        self.judged = experiment if _env_of(config) == own else msgspec.structs.replace(experiment, expect={})

    def bounds(self) -> dict[str, list[float | None]]:
        """Return the least and the most of each number with an expectation; None: no limit."""
        return {key: [one.at_least, one.at_most] for key, one in self.judged.bounds.items()}

    def verdict(self, results: Mapping[str, float]) -> bool | None:
        """As `Experiment.verdict`: None where there is no goal."""
        return self.judged.verdict(results)

    def line(self, solved: bool | None, results: Mapping[str, float], steps: int) -> str:
        """The verdict for people.

        Args:
            results: Metrics of the run, and the numbers of its evaluation.
            steps: Env steps after which they were taken.
        """
        got = f"mean return {results.get('mean_return', math.nan):.4g} over {int(results['episodes'])} episodes"
        if solved is None:
            why = "'s goal is one of another environment" if self.named.bounds and not self.judged.bounds else " names no goal"
            return f"finished: {got} (this experiment{why})"
        wishes = []
        for key, bounds in self.judged.bounds.items():
            limits = {"at least": bounds.at_least, "at most": bounds.at_most}
            value = "" if key == "mean_return" else f" (is {results.get(key, math.nan):.4g})"
            wanted = (f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)
            wishes.append(f"{key} {' and '.join(wanted)}{value}")
        expected, whole = ", ".join(wishes), self.named.config.get("total_steps", steps)
        if not solved and steps < whole:
            return f"finished: {got} after {steps:,} of the experiment's {whole:,} steps; at their end it expects {expected}"
        return f"{'solved' if solved else 'not solved'}: {got}; expected {expected}"


def _env_of(config: object) -> object:
    """Return what `env` of a configuration says, but for how its copies are stepped; None where it has none."""
    env = msgspec.to_builtins(getattr(config, "env", None))
    return {**env, "vector": 0} if isinstance(env, dict) else env
