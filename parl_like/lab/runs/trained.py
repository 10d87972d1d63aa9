"""Runs that others need: trained in processes of their own, to the end, and not again."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import RunDir

Train = Callable[[Sequence[str]], int]
"""Runs `parl-like` with these words and returns its exit code."""


def train_to_the_end(name: str, seed: int, folder: Path, words: Sequence[str] = (), train: Train | None = None) -> None:
    """Trains an experiment in `folder`, unless that is done; a run that was interrupted is resumed. One that has saved nothing is
    moved aside, and begins anew.

    Args:
        words: Configuration on top of the experiment's.
        train: None: in a new process.

    Raises:
        RunError: the run failed.
    """
    if is_finished(folder):
        return
    checkpoints = Checkpoints(folder / "checkpoints")
    go_on, exact = checkpoints.newest() is not None, ["--exact"] * checkpoints.has_rows()
    if not go_on and not is_under_way(folder):
        _move_aside(folder)
    again = ["--from", name] if {":", "."} & {*name} else []
    begin = ["train", name, f"run_dir={folder}", f"seed={seed}"]
    command = ["resume", str(folder), *exact, *again] if go_on else begin
    if returned := (train or in_a_process)([*command, *words]):
        raise RunError(f"{folder}: exit code {returned}, see its log.txt")


def is_finished(folder: Path) -> bool:
    """Return whether there is a run that has come to its end."""
    try:
        run = RunDir.open(folder)
        return run.info().state == "finished" and run.result() is not None
    except RunError:
        return False


def is_under_way(folder: Path) -> bool:
    """Return whether a process trains in this directory."""
    try:
        return RunDir.open(folder).state() == "running"
    except RunError:
        return False


def _move_aside(folder: Path) -> None:
    """Give a directory that a run has left another name, so that nothing in it is lost."""
    if os.path.lexists(folder / "run.json"):
        names = (folder.with_name(f"{folder.name}_left{count}") for count in itertools.count(1))
        folder.rename(next(name for name in names if not os.path.lexists(name)))


def in_a_process(words: Sequence[str]) -> int:
    """Run `parl-like` with these words in a new process, quietly, and return its exit code."""
    # As many processes as jobs, so one thread of BLAS and the like in each.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "parl_like", *words], env=env, stdout=subprocess.DEVNULL, check=False).returncode
