"""Evaluations in a process of their own, while training goes on (`eval_process=true`)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from parl_like.data.storage.archive import ArchiveError, read_archive, write_archive
from parl_like.data.storage.safe_files import remove_folder
from parl_like.lab import config as configs
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.evaluations import evaluation_episodes, evaluation_seed
from parl_like.lab.experiment import Experiment
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.rundir import RunDir
from parl_like.values.plain import State

FOLDER = "evaluating"
"""The folder of a run directory with what acted at the step of an evaluation that is not done."""
LOOK_S = 0.05


class Done(NamedTuple):
    """An evaluation that has ended.

    Attributes:
        step: Env step that it is of. row: The run's metrics of that step. state: What acted.
        numbers: What it gave; {}: it failed. problem: Why; empty: it did not.
    """

    step: int
    row: dict[str, float]
    state: State
    numbers: dict[str, float]
    problem: str


class EvaluationProcess:
    """At most one evaluation at a time, of a state that is written to the run directory and stays there until it is done: so a
    run that is resumed goes on with it.

    Args:
        experiment, config: Of the run.
    """

    def __init__(self, run: RunDir, experiment: Experiment, config: ExperimentConfig) -> None:
        self._run, self._folder = run, run.path / FOLDER
        source = run.info().source
        texts = {key: value for key, value in configs.flat(configs.to_dict(config)).items() if isinstance(value, str)}
        self._asked = {
            "run": str(run.path.absolute()), "source": "" if source is None else source.file or source.module,
            # The user has typed these for the training; a run directory alone may not choose what is imported.
            "overrides": {key: value for key, value in texts.items() if ":" in value and key != "run_dir"},
            "episodes": evaluation_episodes(experiment, config), "seed": evaluation_seed(config)}
        self._threads = config.torch_threads
        self._child: subprocess.Popen[bytes] | None = None
        self._step = -1
        self._said: IO[bytes] | None = None

    def begin(self, step: int, state: Mapping[str, object], row: Mapping[str, float]) -> None:
        """Begin an evaluation of what acts now; there is none under way. Raises OSError where the disk refuses,
        and RunError where something else is at the folder."""
        self._run.folder(self._folder)
        row = {key: value for key, value in row.items() if value == value}
        write_archive(self._path(step), state, {"step": step, "row": row}, over=True)
        self._start(step)

    def go_on(self, step: int, last: int) -> int | None:
        """End the evaluation that is under way, and begin again what an earlier process has not finished up to `step`, behind the
        `last` that is done; remove what else it has left. Returns the step of what was begun; None: nothing was."""
        self.stop()
        left = Checkpoints(self._folder).steps()
        waiting = [one for one in left if last < one <= step]
        for one in {*left} - {*waiting[:1]}:
            remove_folder(self._path(one))
        if not waiting:
            return None
        self._start(waiting[0])
        return waiting[0]

    def take(self, waits: Callable[[], bool] = lambda: False) -> Done | None:
        """Return what has ended, once; None: nothing has. While `waits` says so, wait for it."""
        if self._child is None:
            return None
        while self._child.poll() is None:
            if not waits():
                return None
            time.sleep(LOOK_S)
        assert self._said is not None and self._child.stdout is not None
        code, out = self._child.returncode, self._child.stdout.read()
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 4096))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        step, path = self._step, self._path(self._step)
        self._forget()
        problem, numbers = "", dict[str, float]()
        if code:
            problem = lines[-1] if lines and code > 0 else f"its process ended with {code}"
        try:
            numbers = {} if problem else json.loads(out)
            state, manifest = read_archive(path)
            meta: Any = manifest.meta
            row = {str(key): float(value) for key, value in meta["row"].items()}
        except (ArchiveError, ValueError, TypeError, LookupError, AttributeError) as error:
            return Done(step, {}, {}, {}, problem or str(error))
        with contextlib.suppress(OSError):
            remove_folder(path)
        return Done(step, row, state, numbers, problem)

    def stop(self) -> None:
        """End what is under way; what it was of stays for a run that goes on."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._forget()

    def _path(self, step: int) -> Path:
        return self._folder / f"{step:09d}"

    def _start(self, step: int) -> None:
        self._step, self._said = step, tempfile.TemporaryFile()  # noqa: SIM115  closed in `_forget`
        # A session of its own: Ctrl-C is the run's.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "parl_like.lab.evaluation_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": str(self._threads)})
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._child.stdin as asked:
            asked.write(json.dumps({**self._asked, "archive": str(self._path(step).absolute())}).encode())

    def _forget(self) -> None:
        if self._child is not None and self._child.stdout is not None:
            self._child.stdout.close()
        if self._said is not None:
            self._said.close()
        self._child = self._said = None


def main() -> None:
    """Evaluate what standard input asks for, and print the numbers as JSON."""
    from parl_like.lab import runner
    from parl_like.lab.yaml_text import UsageError

    asked, out = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr  # whatever an environment prints
    try:
        found = runner.evaluate(asked["run"], episodes=asked["episodes"], seed=asked["seed"], which=Path(asked["archive"]),
                                overrides=asked["overrides"], source=asked["source"])
    except (UsageError, ArchiveError) as error:
        sys.exit(" ".join(str(error).split()))
    json.dump({key: value for key, value in found.items() if key not in ("run", "experiment", "step", "seed")}, out)


if __name__ == "__main__":
    main()
