"""Reports: what groups of runs have reached, side by side, with how sure that is. `parl-like report` writes them.

A run counts with its last evaluation: the one after training, or, where it has not finished, the last one while training. Runs
that differ in nothing but seed and bookkeeping are one group. The statistics are those of Agarwal et al. 2021, "Deep RL at the
edge of the statistical precipice", for one task: the bootstrap has one stratum to draw from, the runs of a group.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from parl_like.lab.experiment import get
from parl_like.lab.reports import plots
from parl_like.lab.reports.plots import Floats
from parl_like.lab.runs.metrics import EVALUATION, as_csv, each_evaluation, last_evaluation, last_row
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.text import for_csv, for_html, for_markdown, for_picture
from parl_like.lab.writing import written
from parl_like.lab.yaml_text import Tree, UsageError

Row = dict[str, Any]
Found = Mapping[str, list[Any]]
"""The rows and notes that `report` returns, under its four names."""
Interval = tuple[float, float]
ENVIRONMENT = ("env", "env_options", "eval_env", "eval_options")  # keys of configurations that say what is played
STYLE = ("body{font:15px sans-serif;margin:2em}table{border-collapse:collapse;display:block;overflow-x:auto;margin:1em 0}"
         "th,td{border:1px solid #bbb;padding:.3em .6em;text-align:left}img{max-width:100%}")
LEGEND = (
    "Scores: of each run's last evaluation. IQM: mean without the lowest and the highest quarter (of fewer than four: mean).",
    "In brackets: 95 % percentile bootstrap over the runs of a group; of few runs it is too narrow.",
    "Optimality gap: mean of max(0, mark − score), in units of the score, since no scale with a meaningful zero is known.",
    "Steps to the mark: of the first evaluation while training that is at the mark; the median over the runs that have any, of "
    "which one that does not get there counts as infinite.",
)


def report(runs: Sequence[RunDir], mark: float | None = None) -> dict[str, list[Any]]:
    """Return what runs have reached: `groups` and `runs`, rows of numbers, None where there is none; `improvements`: for two
    groups the probability that a run of `a` has a higher score than one of `b`; `notes`: what a reader must know of these runs.

    Args:
        runs: One that is given twice counts once.
        mark: The score to be reached; None: what the runs' experiment expects.

    Raises:
        UsageError: there are no runs, they are of different tasks or scores, or one has no evaluation.
    """
    runs = list({run.path.resolve(): run for run in runs}.values())
    if not runs:
        raise UsageError("expected run directories, got none; `parl-like list` shows the runs")
    if mark is not None and not math.isfinite(mark):
        raise UsageError(f"--mark: expected a finite number, got {mark:g}; without it, it is what the experiment expects")
    for what, of_run in (("the same task", task_of), ("the same eval_score", _scored_by)):
        kinds = {of_run(run): run.path for run in runs}
        if len(kinds) > 1:
            came = ", ".join(f"{kind} ({path})" for kind, path in kinds.items())
            raise UsageError(f"expected runs of {what}, got {came}; scores of one can be compared, so make a report of each")
    found = [[_outcome(run, title, mark) for run in alike] for title, alike in plots.grouped(runs).items()]
    groups = [_group(outcomes) for outcomes in found]
    pairs = [(a, b, improvement(a["scores"], b["scores"])) for a, b in combinations(groups, 2)]
    return {"groups": groups, "runs": [one for outcomes in found for one in outcomes], "notes": _notes(found),
            "improvements": [{"a": a["group"], "b": b["group"], "probability": share, "interval": interval}
                             for a, b, (share, interval) in pairs]}


def improvement(a: Sequence[float], b: Sequence[float]) -> tuple[float, Interval | None]:
    """P(a > b): the share of pairs in which the score of `a` is higher, equal ones counted half (U of Mann and Whitney over the
    number of pairs). With the 95 % percentile bootstrap, both drawn anew; None where one has a single score."""
    wins = (np.sign(np.subtract.outer(np.asarray(a, np.float64), np.asarray(b, np.float64))) + 1) / 2
    if min(wins.shape) < 2:
        return float(wins.mean()), None
    rng = np.random.default_rng(0)
    # How often each run was drawn, over how many were.
    drawn = [rng.multinomial(n, np.full(n, 1 / n), plots.RESAMPLES) / n for n in wins.shape]
    low, high = np.quantile((drawn[0] @ wins * drawn[1]).sum(1), [0.025, 0.975])
    return float(wins.mean()), (float(low), float(high))


def profile(scores: Sequence[float], thresholds: npt.ArrayLike) -> Floats:
    """Performance profile: for each threshold [n] the share of the scores that are above it, [n] float64 in [0, 1]."""
    shares: Floats = np.greater.outer(np.asarray(scores, np.float64), np.asarray(thresholds, np.float64)).mean(0)
    return shares


def markdown(found: Found, pictures: Sequence[Path] = ()) -> str:
    """The report as Markdown; `pictures` lie beside it."""
    parts = []
    for header, *rows in _tables(found, for_markdown):
        lines = [header, ["---"] * len(header), *rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    parts.append("\n".join(f"- {note}" for note in [*map(for_markdown, found["notes"]), *LEGEND]))
    return "\n\n".join([*parts, *(f"![{_title(path)}]({path.name})" for path in pictures)]) + "\n"


def page(found: Found, pictures: Sequence[Path] = ()) -> str:
    """The report as one HTML page that needs nothing else; `pictures`: PNG files, which it contains."""
    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"

    parts = [f"<table>{row('th', header)}{''.join(row('td', cells) for cells in rows)}</table>"
             for header, *rows in _tables(found, for_html)]
    parts.append(f"<ul>{''.join(f'<li>{for_html(note)}</li>' for note in [*found['notes'], *LEGEND])}</ul>")
    parts += [f'<h2>{_title(path)}</h2><img alt="{_title(path)}" src="data:image/png;base64,'
              f'{base64.b64encode(path.read_bytes()).decode()}">' for path in pictures]
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Report</title><style>{STYLE}</style></head>'
            f"<body><h1>Report</h1>{''.join(parts)}</body></html>\n")


def write(found: Found, runs: Sequence[RunDir], out: Path) -> tuple[list[Path], list[str]]:
    """Writes report.md, report.html, report.csv (groups), runs.csv and pictures into a folder. Returns their paths, and why
    pictures are missing. Raises UsageError where the folder cannot be written to."""
    pictures, missing = [], []
    for draw in (_curves, _profiles):
        try:
            pictures.append(draw(found, runs, out))
        except plots.PlotError as error:
            missing.append(str(error))
    files = {"report.md": markdown(found, pictures).encode(), "report.html": page(found, pictures).encode(),
             "report.csv": _table(found["groups"]), "runs.csv": _table(found["runs"])}
    with written(f"the report to {out}", "--out"):
        for name, data in files.items():
            plots.put(out / name, data, runs)
    return [*(out / name for name in files), *pictures], list(dict.fromkeys(missing))


# ------------------------------------------------------------------------------------------------ from directories to numbers


def _outcome(run: RunDir, group: str, mark: float | None) -> Row:
    result, (last, final) = run.result() or {}, last_evaluation(run)
    score = last.get("score", last.get("mean_return", math.nan))
    if not math.isfinite(score):
        has = f"its last one has {score:g}" if last else "it has none"
        raise UsageError(f"{run.path} (state {run.state()}): expected an evaluation with a score, but {has}; finish the run with "
                         f"`parl-like resume {run.typed}`, train with eval_every=, or leave the run out")
    mark = _expected(run, last) if mark is None else mark
    best, evaluated, reached = score, 0, None
    for step, one in each_evaluation(run):
        best, evaluated = max(best, one), evaluated + 1  # NaN, which is not greater, is no score
        if reached is None and mark is not None and one >= mark:
            reached = step
    steps = result.get("env_steps") or last_row(run).get("step", 0)
    return {"run": str(run.path), "group": group, "seed": _played(run).seed, "state": run.state(),
            "env_steps": int(steps) if math.isfinite(steps) else 0, "score": score, "after_training": final,
            "best": best, "seconds": result.get("seconds"), "mark": mark, "evaluated": evaluated, "steps_to_mark": reached}


def _group(runs: Sequence[Row]) -> Row:
    scores = np.array([run["score"] for run in runs])
    low, high = plots.bootstrap_interval(scores, np.random.default_rng(0))
    mark = runs[0]["mark"] if len({run["mark"] for run in runs}) == 1 else None
    seconds = [run["seconds"] for run in runs if run["seconds"] is not None]
    first = [run["steps_to_mark"] for run in runs if run["evaluated"]]
    steps = [math.inf if step is None else step for step in first]
    middle = float(np.median(steps)) if steps else math.inf
    return {"group": runs[0]["group"], "runs": len(runs), "scores": scores.tolist(),
            "env_steps": [pick(run["env_steps"] for run in runs) for pick in (min, max)], "iqm": float(plots.iqm(scores)),
            "interval": (float(low), float(high)) if len(runs) > 1 else None, "median": float(np.median(scores)),
            "mean": float(scores.mean()), "best": max(run["best"] for run in runs), "mark": mark,
            "optimality_gap": None if mark is None else float(np.maximum(0.0, mark - scores).mean()),
            "seconds": float(np.median(seconds)) if seconds else None, "evaluated": len(steps),
            "reached": None if mark is None else sum(map(math.isfinite, steps)),
            "steps_to_mark": middle if mark is not None and math.isfinite(middle) else None}


def _notes(groups: Sequence[Sequence[Row]]) -> list[str]:
    notes = [f"{run['run']} is {run['state']}: its score is that of its last evaluation while training."
             for runs in groups for run in runs if not run["after_training"]]
    for runs in groups:
        if len({run["seed"] for run in runs}) < len(runs):
            notes.append(f"{runs[0]['group']}: several runs have the same seed, so they may be less different than other runs.")
        if len({run["mark"] for run in runs}) > 1:
            notes.append(f"{runs[0]['group']}: its runs expect different scores, so it has no mark; give one with --mark.")
    if len({frozenset(run["mark"] for run in runs) for runs in groups}) > 1:
        notes.append("The marks of the groups differ, so gaps and steps to them cannot be compared; --mark gives all the same.")
    return notes


class _Env(msgspec.Struct, frozen=True):
    id: str = ""
    options: Tree | None = None


class _Played(msgspec.Struct, frozen=True):
    """Values of a configuration that a report reads."""

    seed: int | None = None
    eval_score: str | None = None
    env: str | _Env | None = None
    eval_env: str | _Env | None = None
    env_options: Tree | None = None
    eval_options: Tree | None = None


def _played(run: RunDir) -> _Played:
    """Read it. Raises RunError where a value has another type."""
    try:
        return msgspec.convert(run.config(), _Played)
    except (msgspec.ValidationError, UnicodeError) as error:  # a half of a surrogate pair is no text
        raise RunError(f"{run.config_file} is not readable: {error}") from None


def _scored_by(run: RunDir) -> str:
    return _played(run).eval_score or "mean_return"


def task_of(run: RunDir) -> str:
    """Return the environment that evaluations play, with its options; the experiment where the configuration names none."""
    config = _played(run)
    env, instead = (_Env(one) if isinstance(one, str) else one or _Env() for one in (config.env, config.eval_env))
    name = instead.id or env.id or run.info().experiment
    parts = [config.env_options, config.eval_options, env.options if name == env.id else None, instead.options]
    options: Row = {key: value for part in parts for key, value in (part or {}).items()}
    return " ".join([name, *(f"{key}={value}" for key, value in sorted(options.items()))])


def _expected(run: RunDir, last: Mapping[str, float]) -> float | None:
    """The least score that the run's experiment expects; None where it expects none, or one of another environment."""
    by, result = _scored_by(run), run.result() or {}
    if last.get(by) != last.get("score", last.get(by)):  # the robot has a score of its own, of which nothing is expected
        return None
    if "expect" in result:
        least: float | None = result["expect"].get(by, (None, None))[0]
        return least
    with suppress(UsageError):  # an experiment that the registry does not know
        bounds = get(run.info().experiment).bounds.get(by)
        if bounds is not None and not any(key.split(".")[0] in ENVIRONMENT for key in run.info().differs):
            return bounds.at_least
    return None


# ---------------------------------------------------------------------------------- from numbers to text and pictures


def _tables(found: Found, name: Callable[[str], str]) -> list[list[list[str]]]:
    """Rows of text, a header first: of the groups, and where there are several of their pairs. `name`: a name as the page shows
    it; all else is ours."""
    def steps(group: Row) -> str:
        if group["mark"] is None or not group["evaluated"]:
            return "–"
        middle = "∞" if group["steps_to_mark"] is None else f"{group['steps_to_mark']:,.0f}"
        return f"{middle} ({group['reached']} of {group['evaluated']})"

    header = ["group", "runs", "env steps", "scores", "IQM [95 %]", "median", "mean", "best", "seconds", "mark", "optimality gap",
              "steps to the mark"]
    rows = [[name(one["group"]), str(one["runs"]), " to ".join(f"{n:,}" for n in dict.fromkeys(one["env_steps"])),
             " ".join(map(_cell, one["scores"])), _cell(one["iqm"]) + _bounds(one["interval"]),
             *(_cell(one[key]) for key in ("median", "mean", "best", "seconds", "mark", "optimality_gap")), steps(one)]
            for one in found["groups"]]
    pairs = [[name(one["a"]), name(one["b"]), _cell(one["probability"]) + _bounds(one["interval"])]
             for one in found["improvements"]]
    return [[header, *rows], *([["a", "b", "P(a > b) [95 %]"], *pairs] for _ in pairs[:1])]


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _bounds(interval: Interval | None) -> str:
    return "" if interval is None else f" [{interval[0]:.4g}, {interval[1]:.4g}]"


def _table(rows: Sequence[Row]) -> bytes:
    return as_csv([list(rows[0]), *([for_csv(value) for value in row.values()] for row in rows)])


def _title(picture: Path) -> str:
    return picture.stem.replace("_", " ")


def _curves(found: Found, runs: Sequence[RunDir], out: Path) -> Path:
    """Scores of evaluations where every run has some while training, else the returns of training."""
    metric = f"{EVALUATION}score" if all(run["evaluated"] for run in found["runs"]) else plots.DEFAULT_METRIC
    return plots.learning_curve(runs, out / "learning_curves.png", metric=metric)


def _profiles(found: Found, runs: Sequence[RunDir], out: Path) -> Path:
    if plots.matplotlib_missing():
        raise plots.PlotError(plots.MISSING)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    scores = np.clip(sorted(score for group in found["groups"] for score in group["scores"]), -plots.DRAWN, plots.DRAWN).tolist()
    margin = 0.05 * (scores[-1] - scores[0]) or 1.0
    thresholds = [scores[0] - margin, *scores, scores[-1] + margin]  # between two of them it is level
    for group in found["groups"]:
        axes.step(thresholds, profile(group["scores"], thresholds), where="post",
                  label=for_picture(f"{group['group']}, {group['runs']} runs"))
    return plots.finish(figure, axes, "score τ", "share of runs with score > τ", out / "performance_profile.png", runs)
