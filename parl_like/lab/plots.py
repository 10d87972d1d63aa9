"""Learning curves over one or several runs, and the statistics that go with them."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_like.data.disk import replace_file
from parl_like.lab.config import ExperimentConfig, UsageError
from parl_like.lab.experiment import ExperimentError, get
from parl_like.lab.metrics import EVALUATION, evaluations, read_metrics
from parl_like.lab.rundir import RunDir

Floats = npt.NDArray[np.float64]

DEFAULT_METRIC = "return/mean"
EVALUATED = f"{EVALUATION}mean_return"
MISSING = "no picture: matplotlib is not installed; `pip install 'parl_like[plot]'`"
POINTS = 200  # of the common axis of several runs
RESAMPLES = 2_000


class PlotError(UsageError):
    """There is nothing to draw, or nothing to draw it with."""


BOOKKEEPING = frozenset(ExperimentConfig.__struct_fields__) - {"n_agents", "driver"}
"""Configuration that does not make runs of one experiment another experiment."""


def matplotlib_missing() -> bool:
    return importlib.util.find_spec("matplotlib") is None


def iqm(values: npt.ArrayLike) -> Floats:
    """Interquartile mean over the first axis: without the floor(n / 4) smallest and as many largest values.

    The 25 % trimmed mean of Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice". With n < 4 it is the mean.

    Args: [n, ...], n ≥ 1. Returns: [...] float64.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=0)
    cut = len(ordered) // 4
    mean: Floats = ordered[cut : len(ordered) - cut].mean(axis=0)
    return mean


def bootstrap_interval(values: npt.ArrayLike, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """95 % percentile bootstrap of `iqm`: n rows are drawn from the n with replacement, again and again.

    Args:
        values: [n, ...], n ≥ 1; a row is one run.

    Returns: Lower and upper bound, each [...] float64.
    """
    rows = np.asarray(values, dtype=np.float64)
    resampled = np.stack([iqm(rows[rng.integers(len(rows), size=len(rows))]) for _ in range(RESAMPLES)])
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    return low, high


def learning_curve(runs: Sequence[RunDir], out: Path, *, metric: str = DEFAULT_METRIC) -> Path:
    """Draws a metric against environment steps: a line per run; per setting with several runs also their IQM with the 95 %
    bootstrap band; a dashed line where an experiment expects a `mean_return` and the metric is a return. With the default metric
    also the mean returns of evaluations while training, dotted.

    Args:
        runs: At least one; runs of one experiment with the same configuration, apart from seed and bookkeeping, are its seeds.
        out: The picture; its suffix decides the format (png, svg, pdf). Without one it gets `.png`. The path is returned.

    Raises:
        PlotError: matplotlib is missing, a run has no rows of this metric, or the picture cannot be written.
    """
    if matplotlib_missing():
        raise PlotError(MISSING)
    from matplotlib.figure import Figure  # not pyplot: no global state, no window

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (setting, alike) in enumerate(grouped(runs).items()):
        _draw(axes, f"C{number % 10}", setting, [(run.path.name, *curve(run, metric)) for run in alike])
        evaluated = [run for run in alike if evaluations(run)] if metric == DEFAULT_METRIC else []
        if evaluated:
            found = [(f"{run.path.name}, evaluated", *curve(run, EVALUATED)) for run in evaluated]
            _draw(axes, f"C{number % 10}", f"{setting}, evaluated", found, linestyle=":", marker=".")
    for experiment in dict.fromkeys(run.info().experiment for run in runs) if metric.startswith("return") else ():
        with suppress(ExperimentError):  # one that the registry does not know
            goal = get(experiment).bounds.get("mean_return")
            if goal is not None and goal.at_least is not None:
                axes.axhline(goal.at_least, color="0.4", linestyle="--", linewidth=1.0,
                             label=f"{experiment}: expected {goal.at_least:g}")
    return finish(figure, axes, "environment steps", metric, out, runs)


def finish(figure: Any, axes: Any, across: str, up: str, out: Path, runs: Sequence[RunDir]) -> Path:
    """Labels a picture of these runs and writes it; the path, as `learning_curve`. Raises PlotError."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    out = out if out.suffix else out.with_suffix(".png")
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=out.suffix[1:], dpi=120)
        put(out, picture.getvalue(), runs)
    except (OSError, ValueError) as error:  # a folder that cannot be written, a format that does not exist
        raise PlotError(f"cannot write the picture {out}: {error}") from None
    return out


def put(out: Path, data: bytes, runs: Sequence[RunDir]) -> None:
    """Writes what was made of these runs; below the directory of one of them no link is followed. Raises OSError."""
    inside = next((run.path for run in runs if out.is_relative_to(run.path)), None)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, data, base=inside)


def _draw(axes: Any, colour: str, setting: str, curves: Sequence[tuple[str, Floats, Floats]], **style: Any) -> None:
    """The curves (name, steps, values) of one setting, and of several their IQM and its band."""
    single = len(curves) == 1
    for name, steps, values in curves:
        axes.plot(steps, values, color=colour, linewidth=1.5 if single else 0.7, alpha=1.0 if single else 0.4,
                  label=name if single else None, **style)
    if not single:
        steps, rows = on_common_steps([(steps, values) for _, steps, values in curves])
        low, high = bootstrap_interval(rows, np.random.default_rng(0))
        axes.plot(steps, iqm(rows), color=colour, linewidth=2.0, label=f"{setting}, IQM of {len(rows)} runs",
                  linestyle=style.get("linestyle", "-"))
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0, label="95 % bootstrap band")


def grouped(runs: Sequence[RunDir]) -> dict[str, list[RunDir]]:
    """Runs that differ in nothing but seed and bookkeeping, by their setting."""
    groups: dict[str, list[RunDir]] = {}
    for run, setting in zip(runs, settings(runs), strict=True):
        groups.setdefault(setting, []).append(run)
    return groups


def settings(runs: Sequence[RunDir]) -> list[str]:
    """For each run its experiment and, where runs of the same one differ in more than seed and bookkeeping, in what.

    A key that the others do not have, since another part has it (the options of another algorithm), is named only where runs
    could not be told apart without it.
    """
    configs = [_leaves({key: value for key, value in run.config().items() if key not in BOOKKEEPING}) for run in runs]
    names = [run.info().experiment for run in runs]

    def titles(shared: bool) -> list[str]:
        out = []
        for name, config in zip(names, configs, strict=True):
            alike = [other for other, same in zip(configs, names, strict=True) if same == name]
            differs = (f"{key}={value}" for key, value in sorted(config.items())
                       if any((key in other or not shared) and other.get(key) != value for other in alike))
            out.append(" ".join([name, *differs]))
        return out

    short, whole = titles(shared=True), titles(shared=False)
    return short if len(set(short)) == len(set(whole)) else whole


def _leaves(tree: Any, key: str = "") -> dict[str, Any]:
    """Dotted key → value; lists and empty mappings are values."""
    if not isinstance(tree, Mapping) or not tree:
        return {key: tree}
    return {where: value for name, part in tree.items() for where, value in _leaves(part, f"{key}.{name}".lstrip(".")).items()}


def curve(run: RunDir, metric: str) -> tuple[Floats, Floats]:
    """Steps and values of one metric, without the rows that have none."""
    columns = read_metrics(run)
    if metric not in columns or "step" not in columns:
        has = f"it has {', '.join(list(columns)[1:])}" if columns else "it has no rows yet"
        raise PlotError(f"{run.path}: no metric {metric!r}; {has}")
    steps, values = np.asarray(columns["step"]), np.asarray(columns[metric])
    known = np.isfinite(values) & np.isfinite(steps)
    if not known.any():
        raise PlotError(f"{run.path}: metric {metric!r} has no value yet; train for longer")
    return steps[known], values[known]


def on_common_steps(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Curves of several runs on one axis, interpolated between their own points: steps [p] over the range that all runs cover,
    and values [runs, p]."""
    start, stop = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    if start > stop:
        raise PlotError("these runs have no environment steps in common; plot them one by one")
    axis = np.linspace(start, stop, POINTS)
    return axis, np.stack([np.interp(axis, steps, values) for steps, values in curves])

