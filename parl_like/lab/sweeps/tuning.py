"""A search for settings by Optuna: each of its trials is a run for each seed, and its value is the mean of their scores.

What Optuna knows is kept in a file beside the runs, so the same command goes on where it was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from parl_like.data.storage.safe_files import open_file
from parl_like.lab import user_experiments
from parl_like.lab.runs.lock import process_started
from parl_like.lab.runs.metrics import evaluations
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.sweeps.spaces import Interval, Settings, Values, in_words
from parl_like.lab.sweeps.sweep import Sweep
from parl_like.lab.yaml_text import UsageError, show

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import Trial as Asked

MISSING = "--optuna needs Optuna; `pip install 'parl_like[sweep]'`"
STUDY = "optuna.log"
WHOSE = "process"
"""The attribute of a trial that says which process runs it: two sweeps may share a study."""


def study_of(sweep: Sweep, space: Mapping[str, Values], seeds: Sequence[int]) -> Study:
    """Return the study of this experiment, settings, space, seeds and rows, as the directory keeps it, or a new one.

    A trial that was under way when its process was killed is asked for again, first of all.

    Raises:
        UsageError: Optuna is not installed, or its file cannot be read.
    """
    try:
        import optuna
        from optuna.distributions import distribution_to_json
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise UsageError(MISSING) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    varied = {key: distribution_to_json(kind) for key, kind in distributions(space).items()}
    what = json.dumps([sweep.experiment.name, sweep.fixed, varied, list(seeds), sweep.data()], sort_keys=True)
    name = user_experiments.code_hash(sweep.experiment.name, hashlib.sha256(what.encode()).hexdigest()[:16])
    file = sweep.out / STUDY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            sweep.out.mkdir(parents=True, exist_ok=True)
            os.close(open_file(file, os.O_RDWR | os.O_CREAT))  # refuses what is no plain file
            study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(file))), study_name=name, load_if_exists=True, direction="maximize",
                pruner=optuna.pruners.MedianPruner())
        except (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise UsageError(f"cannot use {file}, where Optuna keeps what it knows: {error}; give another --out") from None
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials), constant_liar=sweep.jobs > 1)  # not the first draws again
    running = optuna.trial.TrialState.RUNNING
    for left in study.get_trials(states=(running,)):
        if not _lives(left.user_attrs.get(WHOSE)):
            study.tell(left.number, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(left.params)
    return study


def _me() -> list[object]:
    """Return which process this is: machine, pid, start."""
    return [os.uname().nodename, os.getpid(), process_started(os.getpid())]


def _lives(whose: object) -> bool:
    """Return whether the process of a trial, as `_me` gave it, has not ended; on another machine it cannot be asked."""
    match whose:
        case [str() as host, int() as pid, started]:
            return host != os.uname().nodename or started is not None and process_started(pid) == started
    return False


def distributions(space: Mapping[str, Values]) -> dict[str, BaseDistribution]:
    """Return the space in Optuna's words. A value that is no plain one (a list) is named by its YAML text."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, BaseDistribution] = {}
    for key, values in space.items():
        if not isinstance(values, Interval):
            found[key] = CategoricalDistribution([show(value) for value in values])
        elif values.whole:
            found[key] = IntDistribution(int(values.low), int(values.high))
        else:
            found[key] = FloatDistribution(values.low, values.high, log=values.logarithmic)
    return found


def tune(sweep: Sweep, space: Mapping[str, Values], trials: int, seeds: Sequence[int],
         look: Callable[[], object] = lambda: None) -> Study:
    """Run trials until the study has so many that finished or were pruned; return the study.

    The evaluations of a trial's first run while it trains (`eval_every`) are told to Optuna, which ends it early where it is
    below the median of the others.
    """
    study, kinds = study_of(sweep, space, seeds), distributions(space)  # which says where Optuna is missing
    from optuna.trial import TrialState

    def one() -> None:
        asked = study.ask(kinds)
        asked.set_user_attr(WHOSE, _me())
        runs = [sweep.trial(_settings(space, asked.params), seed) for seed in seeds]
        runs[0].stop = Pruner(asked, runs[0].folder)
        for run in runs:
            sweep.run(run)
            if run.state != "finished":
                break
        states = {run.state for run in runs}
        if states == {"finished"} and not isnan(score := fmean(run.score() for run in runs)):
            study.tell(asked, score)
        elif "waiting" not in states or states & {"failed", "pruned"}:
            study.tell(asked, state=TrialState.PRUNED if "pruned" in states else TrialState.FAIL)

    for known in study.get_trials(states=(TrialState.COMPLETE,)):
        for seed in seeds:
            sweep.trial(_settings(space, known.params), seed)
    left = trials - len(study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)))
    sweep.run_all([one] * max(left, 0), look)
    return study


def _settings(space: Mapping[str, Values], params: Mapping[str, Any]) -> Settings:
    """Return the settings that Optuna means."""
    return {key: values.rounded(params[key]) if isinstance(values, Interval) else
            next(one for one in values if show(one) == params[key]) for key, values in space.items()}


class Pruner:
    """Says whether a run is to end early, by its evaluations while it trains."""

    def __init__(self, asked: Asked, folder: Path) -> None:
        self._asked, self._folder, self._told, self._ends = asked, folder, -1, False

    def __call__(self) -> bool:
        try:
            found = evaluations(RunDir.open(self._folder)) if not self._ends else []
        except RunError:  # not begun
            found = []
        for step, score in found:
            if step > self._told:
                self._told = step
                self._asked.report(score, step)
                self._ends |= self._asked.should_prune()
        return self._ends


def best(study: Study, space: Mapping[str, Values]) -> str:
    """Return the words of the best settings, and their score; empty where no trial finished."""
    from optuna.trial import TrialState

    if not study.get_trials(states=(TrialState.COMPLETE,)):
        return ""
    return f"best: {' '.join(in_words(_settings(space, study.best_params)))} with {study.best_value:.4g}"
