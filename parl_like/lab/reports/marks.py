"""Marks: what the experiments reach, over seeds. `parl-like marks` trains them and keeps the scores in a file and a table.

Each run is an ordinary one in a process of its own, below one directory; its score is the evaluation at the end of training, not
that of a best checkpoint. A run whose configuration and code are those of a mark in the file is not made again, and one that was
interrupted is resumed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from parl_like.data.storage.safe_files import open_folder, read_named, replace_file
from parl_like.lab import config as configs
from parl_like.lab import doctor, recording, user_experiments
from parl_like.lab import experiment as experiments
from parl_like.lab.runs.metrics import Table, evaluations, number
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import Git, RunDir
from parl_like.lab.runs.trained import Train, train_to_the_end
from parl_like.lab.text import for_markdown
from parl_like.lab.writing import written
from parl_like.lab.yaml_text import Tree, UsageError

MAX_BYTES = 100_000_000  # of a file of marks
CURVE = 24  # points of a curve
_NOT_THE_RESULT = ("seed", "run_dir", "keep_checkpoints", "log_every_s", "tensorboard", "trace")


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The outcome of one run. `configuration` and `code` are hashes: of all values that can change a score but the seed, and of
    the package's sources; `score` is the evaluation's, by the experiment's `eval_score`; `expect` is result → [least, most] as
    the experiment had it; `seconds` are those of training. `curve`: up to CURVE rows of environment steps, seconds and mean
    return while training, and for learners from data the evaluations instead, whose seconds are not known (0). `machine`: its
    processor and cores. Both may be empty, in marks of older versions."""

    experiment: experiments.Name
    seed: int
    differs: Tree
    env_steps: int
    score: float
    evaluation: dict[str, float | None]
    expect: dict[str, tuple[float | None, float | None]]
    solved: bool | None
    seconds: float
    configuration: str
    code: str
    versions: dict[str, str]
    git: Git | None
    machine: str = ""
    curve: list[tuple[int, float, float]] = []

    @property
    def key(self) -> tuple[str, int]:
        """Which run it is: one mark of a seed is kept for each configuration."""
        return self.configuration, self.seed

    @property
    def title(self) -> str:
        """Markdown: the experiment, and what differs from it."""
        return " ".join([f"`{self.experiment}`", *(for_markdown(f"{key}={value}") for key, value in self.differs.items())])


class MarksOutcome(NamedTuple):
    """The marks that were asked for, and a line for each run that failed, which has none."""

    marks: list[Mark]
    failed: list[str]


def measure(names: Sequence[str], seeds: int, overrides: Mapping[str, object], *, file: Path, runs: Path, jobs: int = 1,
            say: Callable[[str], None] = print, train: Train | None = None) -> MarksOutcome:
    """Makes the marks that are missing, and returns all that are asked for; `file` (JSON) and the table beside it (`.md`) are
    written after each. A run that fails keeps no other one from being made.

    Args:
        names: Experiments; none: all that expect something.
        seeds: Each is trained with the seeds 0 … seeds - 1.
        overrides: Values of the configuration on top of the experiment's, as on the command line of `train`.
        runs: Directory of the run directories.
        jobs: Runs at a time, each in a process of its own.
        train: Runs `parl-like` with these words and returns its exit code; None: in a new process.

    Raises:
        UsageError: an unknown experiment, a configuration that its robot refuses, or a file that holds no marks.
    """
    if "seed" in overrides:
        raise UsageError(f"seed={overrides['seed']}: marks trains the seeds 0 … N - 1; give --seeds N instead")
    chosen = [(word, user_experiments.chosen(word)) for word in names or experiments.names()]
    chosen = [(word, one) for word, one in chosen if names or one.expect]
    marks = {mark.key: mark for mark in load(file)}
    ours, wanted, missing, failed = code_hash(), [], [], dict[tuple[str, int], str]()
    for word, one in chosen:
        code, data = user_experiments.code_hash(one.name, ours), _data_of(one, overrides, train, say) if seeds else {}
        for seed in range(seeds):
            config = configs.resolve(one.module().Config, one.config, overrides, {"seed": seed})
            key = configuration_hash(one.name, configs.to_dict(config), data), seed
            wanted.append(key)
            if key not in marks or marks[key].code != code:
                missing.append((word, key, code, runs / f"{one.name}_{key[0][:8]}_{code[:8]}_s{seed}"))
    words = [f"{name}={json.dumps(value)}" for name, value in overrides.items()]
    with written(f"marks to {file}", "--out"):  # before anything is trained
        file.parent.mkdir(parents=True, exist_ok=True)
    say(f"{len(wanted)} run{'s' * (len(wanted) != 1)}, {len(wanted) - len(missing)} measured before")

    def make(name: str, key: tuple[str, int], code: str, folder: Path) -> Mark:
        train_to_the_end(name, key[1], folder, words, train)
        return _mark(folder, key, code)

    with ThreadPoolExecutor(jobs) as pool:
        for (name, key, *_), future in [(job, pool.submit(make, *job)) for job in missing]:
            try:
                mark = future.result()
            except (RunError, UsageError) as error:
                failed[key] = f"{name} seed {key[1]}: {error}"
                say(failed[key])
            else:
                say(f"{name} seed {mark.seed}: {mark.score:.4g} in {mark.seconds:.0f} s")
                keep(mark, marks, file)
    return MarksOutcome([marks[key] for key in wanted if key not in failed], [*failed.values()])


def keep(mark: Mark, marks: dict[tuple[str, int], Mark], file: Path) -> None:
    """Adds a mark to `marks`, by `key`, in the place of those of the experiment as it was; and writes the file and its table.
    What another command has added to the file meanwhile stays."""
    with written(f"marks to {file}", "--out"):
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = open_folder(file.parent, file.parent)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # until it is closed
            _keep(mark, marks, file)
        finally:
            os.close(folder)


def _keep(mark: Mark, marks: dict[tuple[str, int], Mark], file: Path) -> None:
    marks.update({one.key: one for one in load(file)})
    stale = [key for key, one in marks.items() if key[0] != mark.configuration and one.title == mark.title]
    for key in stale:
        del marks[key]
    marks[mark.key] = mark
    ordered = sorted(marks.values(), key=_order)
    replace_file(file, b"[\n" + b",\n".join(map(msgspec.json.encode, ordered)) + b"\n]\n")  # a line for each
    replace_file(file.with_suffix(".md"), page(ordered).encode())


def load(file: Path) -> list[Mark]:
    """The marks of a file; none where there is no file. Raises UsageError where it holds something else."""
    try:
        return msgspec.json.decode(read_named(file, limit=MAX_BYTES), type=list[Mark])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}; give another --out") from None
    except ValueError as error:
        raise UsageError(f"{file} holds no marks: {error}; give another --out, or remove it") from None


def table(marks: Sequence[Mark]) -> list[str]:
    """Lines of a Markdown table, one for each experiment and configuration: scores by seed, median, how many are solved. Not how
    long they took, for who knows what else the machine did."""
    lines = ["| experiment | steps | expected | scores of seeds 0, 1, … | median | solved |",
             "|---|---|---|---|---|---|"]
    for _, group in groupby(sorted(marks, key=_order), key=lambda mark: _order(mark)[:2]):
        same = list(group)
        one = same[0]
        scores = " ".join(f"{mark.score:.4g}" for mark in same)
        solved = f"{sum(mark.solved is True for mark in same)} of {len(same)}" if one.expect else "–"
        lines.append(f"| {one.title} | {one.env_steps:,} | {_expected(one)} | {scores} "
                     f"| {median(mark.score for mark in same):.4g} | {solved} |")
    return lines


def page(marks: Sequence[Mark]) -> str:
    """The Markdown page that is written beside the file."""
    made = sorted({f"{mark.git.commit[:7]}{' with changes' * mark.git.dirty}" for mark in marks if mark.git is not None})
    solvers = ["Solvers of games are measured by `python -m benchmarks.solvers`: steps are iterations, and the score is",
               "−`nash_conv` of the average policy."]
    lines = ["# Marks", "",
             "Made by `parl-like marks`: the score of the evaluation after training, which is the mean return unless",
             "the experiment names another `eval_score`; of all seeds, none chosen.",
             *(solvers if any("nash_conv" in mark.evaluation for mark in marks) else ()), "",
             *table(marks), "", f"Code: {', '.join(made) or 'not in a checkout'}."]
    return "\n".join(lines) + "\n"


def configuration_hash(experiment: str, config: Mapping[str, object], data: Mapping[str, str] | None = None) -> str:
    """Return a hash of an experiment's name and all values that can change its score, but the seed. `data`: recorded rows that it
    learns from, by name, as their sha256."""
    values = {name: value for name, value in config.items() if name not in _NOT_THE_RESULT}
    of = [experiment, values, data] if data else [experiment, values]
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


def _data_of(one: experiments.Experiment, overrides: Mapping[str, object], train: Train | None,
             say: Callable[[str], None]) -> dict[str, str]:
    """Return the sha256 of the data sets that an experiment learns from, which are made first where they are not there."""
    settings = getattr(configs.resolve(one.module().Config, one.config, overrides), "parts", {})
    return recording.rows_of(settings, train, say)


def code_hash() -> str:
    """Return a hash of the sources of the package; those of the libraries are known by their versions."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[2]
    for path in sorted(path for kind in ("*.py", "*.pyx") for path in _files(package, kind)):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _files(package: Path, kind: str) -> list[Path]:
    # In a checkout algorithms/, models/ … are links, which rglob does not follow.
    folders = [package, *(path for path in package.iterdir() if path.is_symlink() and path.is_dir())]
    return [path for folder in folders for path in folder.rglob(kind)]


def _mark(folder: Path, key: tuple[str, int], code: str) -> Mark:
    run = RunDir.open(folder)
    info, result = run.info(), run.result() or {}
    differs = {name: value for name, value in info.differs.items() if name not in _NOT_THE_RESULT}
    try:
        return msgspec.convert({
            "experiment": info.experiment, "seed": key[1], "differs": differs, "env_steps": result["env_steps"],
            "score": result["evaluation"]["score"], "evaluation": result["evaluation"], "expect": result["expect"],
            "solved": result["solved"], "seconds": round(result["seconds"], 1), "configuration": key[0], "code": code,
            "versions": info.versions, "git": info.git and msgspec.structs.asdict(info.git),
            "machine": doctor.processor_and_cores(), "curve": _curve(run)}, Mark)
    except (LookupError, TypeError, msgspec.ValidationError) as error:
        raise RunError(f"{folder}: its result.json is not that of a finished run ({type(error).__name__}: {error}); remove the "
                       "directory, and it is trained anew") from None


def _curve(run: RunDir) -> list[tuple[int, float, float]]:
    """The mean return while training, or else the evaluations, thinned out to CURVE rows of equal distance."""
    table, names = Table(run), ("step", "elapsed_s", "return/mean")
    rows = (tuple(map(number, cells)) for cells in (table.cells(names) if {*names} <= {*table.header} else ()))
    points = [(int(step), round(seconds, 2), float(f"{value:.5g}")) for step, seconds, value in rows
              if all(map(math.isfinite, (step, seconds, value)))]
    points = points or [(step, 0.0, float(f"{score:.5g}")) for step, score in evaluations(run) if math.isfinite(score)]
    last = len(points) - 1
    return [points[at * last // (CURVE - 1)] for at in range(CURVE)] if last >= CURVE else points


def _order(mark: Mark) -> tuple[str, str, int]:
    return mark.experiment, mark.configuration, mark.seed


def _expected(mark: Mark) -> str:
    least = [f"{for_markdown(name)} ≥ {low:g}" for name, (low, _) in mark.expect.items() if low is not None]
    most = [f"{for_markdown(name)} ≤ {high:g}" for name, (_, high) in mark.expect.items() if high is not None]
    return ", ".join(least + most).replace("mean_return ", "") or "–"
