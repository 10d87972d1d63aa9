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
from typing import IO, Any

from parl_like.data.storage.archive import ArchiveError, read_archive, write_archive
from parl_like.data.storage.safe_files import remove_folder
from parl_like.lab import foreign
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.experiment import source_of
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.rundir import RunDir
from parl_like.values.plain import State

FOLDER = "evaluating"
"""The folder of a run directory with what acted at the step of an evaluation that is not done."""
LOOK_S = 0.05


Note = Callable[[int, Mapping[str, float], Mapping[str, float], State], None]
"""A function that gets an evaluation: its env step, its numbers, the run's metrics of that step, and what acted there."""


class EvaluationProcess:
    """At most one evaluation at a time, of a state that is written to the run directory and stays there until it is done: so a
    run that is resumed goes on with it.

    Args:
        run, config: Whose evaluations they are. episodes, seed: Of each.
        note: Called with one that has ended. warn: Called with a line where one could not be.
    """

    def __init__(self, run: RunDir, config: ExperimentConfig, episodes: int, seed: int, note: Note,
                 warn: Callable[[str], None]) -> None:
        self._run, self._folder, self._note, self._warn = run, run.path / FOLDER, note, warn
        source = source_of(run.info().experiment)  # which this process has imported; what the directory says is not trusted
        self._asked = {"run": str(run.path.absolute()), "source": "" if source is None else source.file or source.module,
                       "episodes": episodes, "seed": seed}
        self._config = config
        self._child: subprocess.Popen[bytes] | None = None
        self._step = -1
        self._said: IO[bytes] | None = None

    def begin(self, step: int, state: Mapping[str, object], row: Mapping[str, float]) -> None:
        """Begin an evaluation of what acts now; there is none under way. A disk that refuses the state is survived.

        Raises:
            RunError: the folder is a link.
        """
        row = {key: value for key, value in row.items() if value == value}
        try:
            self._run.folder(self._folder)
            write_archive(self._path(step), state, {"step": step, "row": row}, over=True)
        except OSError as error:
            self._warn(f"no evaluation at env step {step:,}: {error.strerror or error}; training goes on")
        else:
            self._start(step)

    def go_on(self, step: int, last: int) -> int:
        """End the evaluation that is under way, and begin again what an earlier process has not finished up to `step`, behind the
        `last` that is done; remove what else it has left. Return the step of what was begun; -1: nothing was."""
        self.stop()
        left = Checkpoints(self._folder).steps()
        waiting = [one for one in left if last < one <= step][:1]
        for one in {*left} - {*waiting}:
            remove_folder(self._path(one))
        for one in waiting:
            self._start(one)
        return waiting[0] if waiting else -1

    def take(self, waits: Callable[[], bool] = lambda: False) -> None:
        """Note what has ended, if it has. While `waits` says so, wait for it."""
        if self._child is None:
            return
        while self._child.poll() is None:
            if not waits():
                return
            time.sleep(LOOK_S)
        path = self._path(self._step)
        try:
            numbers = self._answer()
            state, manifest = read_archive(path)
            meta: Any = manifest.meta
            row = {str(key): float(value) for key, value in meta["row"].items()}
        except (ArchiveError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            self._run.event("not evaluated", step=self._step, reason=str(error))
            self._warn(f"the evaluation of env step {self._step:,} failed in its process ({error}); training goes on")
        else:
            self._note(self._step, numbers, row, state)
        self._forget()
        with contextlib.suppress(OSError):
            remove_folder(path)

    def _answer(self) -> dict[str, float]:
        """Return the numbers of the process that has ended. Raises RuntimeError with its last line, where it failed."""
        assert self._child is not None and self._child.stdout is not None and self._said is not None
        code = self._child.returncode
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 4096))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        if code:
            raise RuntimeError(lines[-1] if lines and code > 0 else f"its process ended with {code}")
        numbers: dict[str, float] = json.loads(self._child.stdout.read())
        return numbers

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
            [sys.executable, "-m", "parl_like.lab.evaluation_child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": str(self._config.torch_threads)})
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._child.stdin as asked:
            # What names a module has been typed, or checked, when this process resolved the configuration.
            asked.write(json.dumps({**self._asked, "overrides": foreign.imported(self._config),
                                    "archive": str(self._path(step).absolute())}).encode())

    def _forget(self) -> None:
        if self._child is not None and self._child.stdout is not None:
            self._child.stdout.close()
        if self._said is not None:
            self._said.close()
        self._child = self._said = None
