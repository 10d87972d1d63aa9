"""Learning curves over one or several runs, and the statistics that go with them."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_like.data.storage.safe_files import replace_file
from parl_like.lab.config import ExperimentConfig
from parl_like.lab.experiment import ExperimentError, get
from parl_like.lab.runs.metrics import EVALUATION, Table, number
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.text import for_picture
from parl_like.lab.yaml_text import UsageError
from parl_like.values.errors import nearest

Floats = npt.NDArray[np.float64]

DEFAULT_METRIC = "return/mean"
FIRST_OPEN = "episode/first_open"  # environments whose first episode has not ended; empty where there are none any more
EVALUATED = f"{EVALUATION}mean_return"
MISSING = "no picture: matplotlib is not installed; `pip install 'parl_like[plot]'`"
COMMON = 200  # points of the common axis of several runs
SHOWN = 30  # columns that an error names
POINTS = 1 << 14  # of a curve, some twenty for each column of pixels; longer ones are thinned out
RESAMPLES = 2_000
DRAWN = 1e150  # beyond that, sums and squares of the drawing overflow


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


def learning_curve(runs: Sequence[RunDir], out: Path, *, metric: str = DEFAULT_METRIC, least: int = 1) -> Path:
    """Draws a metric against environment steps: a line per run; per setting with several runs also their IQM with the 95 %
    bootstrap band; a dashed line where an experiment expects a `mean_return` and the metric is a return. With the default metric
    also the mean returns of evaluations while training, dotted.

    Args:
        runs: At least one; runs of one experiment with the same configuration, apart from seed and bookkeeping, are its seeds.
        out: The picture; its suffix decides the format (png, svg, pdf). Without one it gets `.png`. The path is returned.
        least: Points that the longest curve must have.

    Raises:
        PlotError: matplotlib is missing, a run has no rows of this metric, no curve is long enough, or the picture cannot be
            written.
    """
    if matplotlib_missing():
        raise PlotError(MISSING)
    also = [EVALUATED] if metric == DEFAULT_METRIC else []
    groups = {setting: [(run, curves(run, metric, also)) for run in alike] for setting, alike in grouped(runs).items()}
    longest = max(len(steps) for alike in groups.values() for _, of_run in alike for steps, _ in of_run.values())
    if longest < least:  # said before matplotlib is loaded, which takes half a second
        raise PlotError(f"no picture: the learning curve has {longest} of {least} points; train for longer")
    from matplotlib.figure import Figure  # not pyplot: no global state, no window

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for nth, (setting, alike) in enumerate(groups.items()):
        title = setting if len(alike) == 1 < len(groups) else ""  # what tells it from the others; else the runs' names
        found = [(title or run.path.name, of_run) for run, of_run in alike]
        style = {"marker": "."} if metric.startswith(EVALUATION) else {}  # evaluations are few
        _draw(axes, f"C{nth % 10}", setting, [(name, *of_run[metric]) for name, of_run in found], **style)
        evaluated = [(f"{name}, evaluated", *of_run[EVALUATED]) for name, of_run in found if EVALUATED in of_run and also]
        if evaluated:
            _draw(axes, f"C{nth % 10}", f"{setting}, evaluated", evaluated, linestyle=":", marker=".")
    expected = metric.removeprefix(EVALUATION) if metric.startswith(EVALUATION) else "mean_return"
    for experiment in dict.fromkeys(run.info().experiment for run in runs) if metric.startswith(("return", EVALUATION)) else ():
        with suppress(ExperimentError):  # one that the registry does not know
            goal = get(experiment).bounds.get(expected)
            if goal is not None and goal.at_least is not None:
                axes.axhline(goal.at_least, color="0.4", linestyle="--", linewidth=1.0,
                             label=for_picture(f"{experiment}: expected {goal.at_least:g}"))
    return finish(figure, axes, "environment steps", metric, out, runs)


def finish(figure: Any, axes: Any, across: str, up: str, out: Path, runs: Sequence[RunDir]) -> Path:
    """Labels a picture of these runs and writes it; the path, as `learning_curve`. Raises PlotError."""
    axes.set_xlabel(for_picture(across))
    axes.set_ylabel(for_picture(up))
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


def _draw(axes: Any, colour: str, setting: str, curves: Sequence[tuple[str, Floats, Floats]], **style: object) -> None:
    """The curves (name, steps, values) of one setting, and of several their IQM and its band."""
    single = len(curves) == 1
    for name, steps, values in curves:
        axes.plot(steps, values, color=colour, linewidth=1.5 if single else 0.7, alpha=1.0 if single else 0.4,
                  label=for_picture(name) if single else None, **style)
    if not single:
        steps, rows = on_common_steps([(steps, values) for _, steps, values in curves])
        low, high = bootstrap_interval(rows, np.random.default_rng(0))
        axes.plot(steps, iqm(rows), color=colour, linewidth=2.0, label=for_picture(f"{setting}, IQM of {len(rows)} runs"),
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


def _leaves(tree: object, key: str = "") -> dict[str, object]:
    """Dotted key → value; lists and empty mappings are values."""
    if not isinstance(tree, Mapping) or not tree:
        return {key: tree}
    return {where: value for name, part in tree.items() for where, value in _leaves(part, f"{key}.{name}".lstrip(".")).items()}


def curves(run: RunDir, metric: str, also: Sequence[str] = ()) -> dict[str, tuple[Floats, Floats]]:
    """Steps and values of one metric, and of those of `also` that have any, without the rows that have none.

    A curve of over POINTS rows is thinned out as the table is read, so its memory does not grow with its length.

    Raises:
        PlotError: the run has no such column, or nothing in it.
    """
    table = Table(run)
    names = [name for name in (metric, *also) if name in table.header]
    if metric not in names or "step" not in table.header:
        raise PlotError(f"{run.path}: {_no_metric(metric, table.header)}")
    found, early = [[Curve() for _ in names] for _ in range(2)]
    # The first episodes to end are short ones: a mean of returns begins when each environment has ended one.
    counted = [FIRST_OPEN] if metric.startswith("return/") and FIRST_OPEN in table.header else []
    for step, *cells in table.cells(["step", *names, *counted]):
        still_open = bool(counted) and number(cells.pop() or "0") > 0
        for name, cell, before, after in zip(names, cells, early, found, strict=True):
            one = before if still_open and name == metric else after  # evaluations are whole from the first on
            if cell and math.isfinite(value := number(cell)) and math.isfinite(at := number(step)):
                one.add(min(max(at, -DRAWN), DRAWN), min(max(value, -DRAWN), DRAWN))
    points = {name: (*one.points(),) for name, one in zip(names, found, strict=True)}
    if not points[metric][0].size:  # a short run has no others
        points = {name: (*one.points(),) for name, one in zip(names, early, strict=True)}
    if not points[metric][0].size:
        other = next((name for name in table.header if name.endswith("/loss")), "")
        raise PlotError(f"{run.path}: metric {metric!r} has no value yet; train for longer"
                        f"{f', or draw another, such as --metric {other}' if other else ''}")
    return {name: of_one for name, of_one in points.items() if of_one[0].size}


class Curve:
    """Takes the points of a curve as they come: of over POINTS every 2ⁿ ones leave one, peaks first, so that some POINTS / 2 to
    POINTS are left.

    Args:
        rows: Numbers of a point; the second is the value, whose peaks stay.
    """

    def __init__(self, rows: int = 2) -> None:
        self._new: list[tuple[float, ...]] = []
        self._before = np.empty((rows, 0))  # what was taken in, thinned out n times
        self._later = np.empty((rows, 0))  # what came with `extend`, and is not taken in yet
        self._n = 0

    def add(self, *point: float) -> None:
        self._new.append(point)
        if len(self._new) >= POINTS:
            self._gather()

    def extend(self, points: Floats) -> None:
        """Take points, [rows, n]."""
        self._later = np.concatenate([self._later, points], axis=1)
        if self._later.shape[1] >= POINTS:
            self._take_in()

    def points(self) -> Floats:
        """[rows, n]; the newest are not taken in for good, so they are thinned out like all others when more have come."""
        self._gather()
        return np.concatenate([self._before, self._thin(self._later)], axis=1)

    def _gather(self) -> None:
        if self._new:
            new, self._new = self._new, []
            self.extend(np.array(new).T)

    def _thin(self, points: Floats) -> Floats:
        for _ in range(self._n):
            points = thinned(points)
        return points

    def _take_in(self) -> None:
        self._before = np.concatenate([self._before, self._thin(self._later)], axis=1)
        self._later = self._later[:, :0]
        while self._before.shape[1] > POINTS:
            self._before, self._n = thinned(self._before), self._n + 1


def thinned(curve: Floats) -> Floats:
    """About half of the points of a curve, [2 or more, n], steps, values and more: of each four neighbours the least and the
    greatest one, and all that are left over, the first and the last."""
    n = curve.shape[1]
    fours = curve[1, : n // 4 * 4].reshape(-1, 4)
    keep = np.arange(n) >= fours.size
    for of_four in (fours.argmin(1), 3 - fours[:, ::-1].argmax(1)):  # of four equal ones the first and the last
        keep[np.arange(len(fours)) * 4 + of_four] = True
    keep[:1] = keep[-1:] = True
    return curve[:, keep]


def _no_metric(metric: str, header: Sequence[str]) -> str:
    names = list(header)[1:]
    if not names:
        return f"no metric {metric!r}; it has no rows yet"
    near, more = nearest(metric, names), len(names) - SHOWN
    return (f"no metric {metric!r}; {f'did you mean {near!r}? ' if near else ''}it has {', '.join(names[:SHOWN])}"
            f"{f' and {more} more' if more > 0 else ''}")


def on_common_steps(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Curves of several runs on one axis, interpolated between their own points: steps [p] over the range that all runs cover,
    and values [runs, p].

    Raises:
        PlotError: no step is in the range of all.
    """
    start, stop = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    if start > stop:
        raise PlotError("these runs have no environment steps in common; plot them one by one")
    axis = np.linspace(start, stop, COMMON)
    return axis, np.stack([np.interp(axis, steps, values) for steps, values in curves])

