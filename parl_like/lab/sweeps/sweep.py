"""The runs of a sweep: ordinary ones, in processes of their own, several at a time.

A run's directory is named by its experiment, its settings and its seed. So what is finished is not run again, and the same
command goes on where it was killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from math import isfinite, isnan, nan
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from msgspec.structs import replace

from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab import recorded, recording, runner, user_experiments
from parl_like.lab.reports.marks import configuration_hash
from parl_like.lab.reports.report import report, task_of
from parl_like.lab.runs.metrics import last_evaluation, last_row
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.runs.trained import is_finished, is_under_way, train_to_the_end
from parl_like.lab.sweeps.spaces import Settings, Space, each_value, in_words
from parl_like.lab.writing import written
from parl_like.lab.yaml_text import ConfigError, UsageError
from parl_like.values.errors import shortened

LOOK_S = 1.0
"""Seconds between two looks at the processes."""
ON_RAY = 256
"""Runs that Ray has to choose from at a time."""
MAX_REASON = 300
STATES = ("running", "failed", "pruned", "finished", "waiting")

Stop = Callable[[], bool]
Start = Callable[[Sequence[str], Stop], int]
"""Runs `parl-like` with these words, ends it by SIGTERM where the function says so, and returns its exit code."""


@dataclass
class Trial:
    """A run of a sweep: its settings with its seed, its directory, and what has become of it.

    Attributes:
        state: waiting, running, finished, failed, or pruned.
        reason: Why it failed.
    """

    settings: Settings
    seed: int
    folder: Path
    state: str = "waiting"
    reason: str = ""
    stop: Stop = field(default=bool)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def title(self) -> str:
        """Return what it differs in, as words of the command."""
        return " ".join(in_words({**self.settings, "seed": self.seed}))

    def score(self) -> float:
        """Return the score of its evaluation after training; NaN where it has none, or one that is not finite."""
        try:
            numbers, _ = last_evaluation(RunDir.open(self.folder))
        except RunError:  # it was damaged since
            return nan
        found = numbers.get("score", numbers.get("mean_return", nan))
        return found if isfinite(found) else nan


class Sweep:
    """Makes the runs of an experiment.

    Args:
        name: The experiment, as `parl-like train` takes it.
        fixed: Settings of all runs.
        out: Directory of the run directories.
        jobs: Runs at a time.
        start: None: each in a new process. It may be assigned until the first run begins.
        say: Called with what is done before the first run.

    Attributes:
        trials: All that were asked for so far.
        start: See above.
        changed: Called whenever the state of a run has changed.

    Raises:
        UsageError: there is no such experiment.
    """

    changed: Callable[[Trial], object]

    def __init__(self, name: str, fixed: Settings, out: Path, jobs: int = 1, start: Start | None = None,
                 say: Callable[[str], object] = bool) -> None:
        self.experiment: experiments.Experiment = user_experiments.chosen(name)
        self.out, self.jobs, self.fixed = out, jobs, fixed
        self._name, self.start, self._say, self.changed = name, start or in_a_process, say, bool
        self._made, self._lock = dict[Path, Trial](), threading.Lock()
        self._rows: dict[tuple[str, ...], dict[str, str]] = {}
        self._ended = threading.Event()

    @property
    def trials(self) -> list[Trial]:
        return list(self._made.values())

    def check(self, space: Space, seed: int) -> None:
        """Build the robot, on the CPU, with each value of a space once: only what it is built of knows its settings. Then make
        the directory of the runs.

        Raises:
            UsageError: it refuses a setting, or what follows its runs is missing; the words of the settings are named. Or there
                can be no such directory.
        """
        for settings in each_value(space):
            try:
                config = self._config(settings, seed)
                self._data_of(config)  # of which it may be built
                runner.check(self.experiment, replace(config, device="cpu"))
            except UsageError as error:
                words = " ".join(in_words(settings))
                raise UsageError(f"{words}: {error}" if words else str(error)) from None
        with written(f"runs to {self.out}", "--out"):
            self.out.mkdir(parents=True, exist_ok=True)

    def _config(self, settings: Settings, seed: int) -> configs.ExperimentConfig:
        if "run_dir" in {**self.fixed, **settings}:
            raise ConfigError("run_dir: each run of a sweep has a directory of its own; leave it out, and give --out")
        kind: type[configs.ExperimentConfig] = self.experiment.module().Config
        return configs.resolve(kind, self.experiment.config, self.fixed, settings, {"seed": seed})

    def trial(self, settings: Settings, seed: int) -> Trial:
        """Return the run of these settings, which is added to the others; one that is there already is that one.

        Raises:
            ConfigError: the robot's configuration has no such setting, or not of this type; or it says where runs are.
        """
        config = self._config(settings, seed)
        with self._lock:
            key = configuration_hash(self.experiment.name, configs.to_dict(config), self._data_of(config))
            key = user_experiments.code_hash(self.experiment.name, key)  # of the user's own, other code makes other runs
            folder = self.out / f"{self.experiment.name}_{key}_s{seed}"
            if folder not in self._made:
                self._made[folder] = Trial(settings, seed, folder, "finished" if is_finished(folder) else "waiting")
            return self._made[folder]

    def data(self) -> dict[str, str]:
        """Return the sha256 of the recorded rows that its runs learn from, by name, where no setting that varies names others."""
        return self._data_of(configs.resolve(self.experiment.module().Config, self.experiment.config, self.fixed))

    def _data_of(self, config: configs.ExperimentConfig) -> dict[str, str]:
        """Return the sha256 of the recorded rows that a run learns from; they are made first, before several runs would."""
        settings = getattr(config, "parts", {})
        names = tuple(recorded.named_in(settings))
        if names not in self._rows:
            self._rows[names] = recording.rows_of(settings, say=self._say) if names else {}
        return self._rows[names]

    def run(self, trial: Trial) -> None:
        """Make a run that waits; a failure is noted in it, and raises nothing. Who asks for one under way waits for it."""
        with trial.lock:
            if trial.state == "waiting" and not self._ended.is_set():
                self._run(trial)

    def _run(self, trial: Trial) -> None:
        try:
            while not self._trained(trial):
                pass
        except Exception as error:  # noqa: BLE001  whatever it is, the others go on
            if self._ended.is_set():
                self._set(trial, "waiting")
            elif trial.stop():
                self._set(trial, "pruned")
            else:
                trial.reason = shortened(" ".join(str(error).split()), MAX_REASON)
                self._set(trial, "failed")
        else:
            self._set(trial, "finished")

    def _trained(self, trial: Trial) -> bool:
        """Train it. Returns False where another process has begun to at the same time, or has just done it.

        Raises:
            RunError: the run failed.
        """
        while is_under_way(trial.folder) and not self._ended.is_set():  # a killed sweep leaves its runs to their ends
            sleep(LOOK_S)
        self._set(trial, "running")
        try:
            train_to_the_end(self._name, trial.seed, trial.folder, in_words({**self.fixed, **trial.settings}),
                             lambda words: self.start(words, lambda: self._ended.is_set() or trial.stop()))
        except RunError:
            ended = self._ended.is_set() or trial.stop()
            if ended or not (is_under_way(trial.folder) or is_finished(trial.folder)):
                raise
            return False
        return True

    def run_all(self, work: Sequence[Callable[[], object]], look: Callable[[], object] = lambda: None) -> None:
        """Do pieces of work, `jobs` at a time; `look` is called every second. Ctrl-C and errors end all runs, which save."""
        with ThreadPoolExecutor(self.jobs, "sweep") as pool:
            try:
                left: Iterable[Future[object]] = {pool.submit(one) for one in work}
                while left:
                    done, left = wait(left, LOOK_S, "FIRST_COMPLETED")
                    for one in done:
                        one.result()
                    look()
            except BaseException:
                self._ended.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    @property
    def failed(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == "failed"]

    def _set(self, trial: Trial, state: str) -> None:
        trial.state = state
        self.changed(trial)


def in_a_process(words: Sequence[str], stop: Stop) -> int:
    """Run `parl-like` with these words in a new process, quietly, and return its exit code; see `Start`.

    Raises:
        RunError: it failed; with its last line.
    """
    with tempfile.TemporaryFile() as said:
        # As many processes as jobs, so one thread of BLAS and the like in each.
        # A session of its own: Ctrl-C would strike it, too, and the second signal ends a run without a save.
        child = subprocess.Popen([sys.executable, "-m", "parl_like", *words], env={**os.environ, "OMP_NUM_THREADS": "1"},
                                 stdout=subprocess.DEVNULL, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = _watched(child, stop)
        except BaseException:
            child.terminate()
            child.wait()
            raise
        said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
        lines = said.read().decode(errors="replace").strip().splitlines()
    if code and lines:
        raise RunError(lines[-1].removeprefix("error: "))
    return code


def _watched(child: subprocess.Popen[Any], stop: Stop) -> int:
    asked = False
    while True:
        try:
            return child.wait(0.2)
        except subprocess.TimeoutExpired:
            if not asked and stop():
                child.terminate()  # it saves, and ends
                asked = True


def on_ray(address: str) -> Start:
    """Return what starts runs as Ray's tasks of one CPU each, where Ray has room for them.

    Run directories are made where the tasks run, so on other machines these need the same folders.

    Args:
        address: As for `ray.init`; empty: a Ray of this machine.
    """
    import ray

    if not ray.is_initialized():
        ray.init(address=address or None, include_dashboard=False, log_to_driver=False)
    task = ray.remote(num_cpus=1, max_retries=0)(_on_ray)
    folder, path = os.getcwd(), list(sys.path)

    def start(words: Sequence[str], stop: Stop) -> int:
        made = task.remote(list(words), folder, path)
        while not ray.wait([made], timeout=LOOK_S)[0]:
            if stop():
                ray.cancel(made)
        try:
            return int(ray.get(made))
        except ray.exceptions.TaskCancelledError:
            return 3
        except ray.exceptions.RayTaskError as error:
            raise RunError(str(error.cause)) from None

    return start


def _on_ray(words: list[str], folder: str, path: list[str]) -> int:
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(one for one in path if one)
    return in_a_process(words, bool)


def table(trials: Sequence[Trial], rows: int, since: float) -> list[str]:
    """Return at most so many lines: how many runs are in which state, and the runs; those that are under way first, those that
    wait last."""
    known = [trial for state in STATES for trial in trials if trial.state == state]
    counts = {state: sum(trial.state == state for trial in trials) for state in STATES}
    head = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    lines = [f"{len(trials)} runs: {head}; {monotonic() - since:.0f} s", f"{'state':8}  {'steps':>11}  {'return':>9}  settings"]
    return lines + [f"{trial.state:8}  {_progress(trial)}  {trial.title}" for trial in known[: max(0, rows - 4)]]


def line(trial: Trial) -> str:
    """Return what is said of a run that has ended."""
    if trial.state != "finished":
        return f"{trial.title}: {trial.state}{f': {trial.reason}' if trial.reason else ''}"
    score, seconds = trial.score(), (RunDir(trial.folder).result() or {}).get("seconds", nan)
    return f"{trial.title}: {'no score' if isnan(score) else f'{score:.4g}'} in {seconds:.0f} s"


def outcome(trials: Sequence[Trial]) -> tuple[dict[str, Any], list[str]]:
    """Return what the finished runs have reached, as `report` has it, and its lines; the best settings come first. Of several
    environments each has a table of its own, in `tasks`. A run without a score is named, and is not among them."""
    scores = {trial.folder: trial.score() for trial in trials if trial.state == "finished"}
    runs = [RunDir.open(folder) for folder, score in scores.items() if not isnan(score)]
    without = [f"no score: {trial.title}" for trial in trials if isnan(scores.get(trial.folder, 0.0))]
    rows = [{"run": str(trial.folder), "state": trial.state, "seed": trial.seed, "settings": trial.settings,
             "reason": trial.reason} for trial in trials]
    settings = {str(trial.folder): " ".join(in_words(trial.settings)) for trial in trials}
    by_task: dict[str, list[RunDir]] = {}
    if not runs:
        return {"trials": rows}, ["no run has ended with a score", *without]
    try:
        for run in runs:
            by_task.setdefault(task_of(run), []).append(run)
        tables = {task: report(members) for task, members in by_task.items()}
    except UsageError as error:  # of different scores
        return {"trials": rows}, [str(error), *without]
    lines = []
    for task, found in tables.items():
        lines += [f"{task}:"] * (len(tables) > 1) + _reached(found, settings)
    (one, *more) = tables.values()
    return {"trials": rows, **({"tasks": tables} if more else one)}, lines + without


def _reached(found: dict[str, list[Any]], settings: Mapping[str, str]) -> list[str]:
    """Return a table of the groups of runs, the best first, with the words of their settings by run."""
    found["groups"].sort(key=lambda group: -group["iqm"])
    first = {run["group"]: settings[run["run"]] for run in reversed(found["runs"])}
    lines = [f"{'IQM':>9}  {'95 %':>19}  {'runs':>4}  settings"]
    for group in found["groups"]:
        low, high = group["interval"] or (nan, nan)
        between = "" if isnan(low) else f"{low:.4g} to {high:.4g}"
        lines.append(f"{group['iqm']:>9.4g}  {between:>19}  {group['runs']:>4}  {first[group['group']]}")
    return lines


def _progress(trial: Trial) -> str:
    try:
        row = last_row(RunDir.open(trial.folder))
    except RunError:
        row = {}
    steps, mean = row.get("step"), row.get("return/mean", nan)
    return f"{'' if steps is None else f'{steps:,.0f}':>11}  {'' if isnan(mean) else f'{mean:.4g}':>9}"
