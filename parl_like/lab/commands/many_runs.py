"""The verbs of many runs: list, plot, report, dashboard, diff, marks, sweep. Each imports what it needs when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from parl_like.lab import text
from parl_like.lab.commands.options import ERROR, EXPERIMENT, RUN, RUNS, RUNS_DIR, SOURCE, STOPPED, Verb, option, whole, words
from parl_like.lab.commands.printing import show, table

if TYPE_CHECKING:
    from parl_like.lab.runs.rundir import RunDir
    from parl_like.lab.yaml_text import Tree


def _list(args: argparse.Namespace) -> None:
    if args.spaces:
        from parl_like.learning import action_spaces

        show(args, {"algorithms": action_spaces.table()}, table(action_spaces.in_words()))
        return
    from parl_like.lab import experiment, families, user_experiments
    from parl_like.lab.runs import rundir
    from parl_like.lab.yaml_text import UsageError

    if args.source:
        user_experiments.registered(args.source)
    if "--runs" in args.given and not os.path.isdir(args.runs):
        raise UsageError(f"--runs {args.runs}: there is no such directory; give the one that run directories are in")
    known: list[Tree] = []
    installed = experiment.installed()
    for name in experiment.names():
        if name in installed and not experiment.is_registered(name):  # a list imports nobody's package
            known.append({"family": installed[name].module, "name": name, "robot": installed[name].module,
                          "description": "of an installed package"})
            continue
        try:
            one = experiment.get(name)
            known.append({"family": families.family(one), "name": name, "robot": one.robot, "description": one.description})
        except UsageError as error:  # one broken file must not hide the others
            known.append({"family": "?", "name": name, "robot": "?", "description": f"error: {error}"})
    known.sort(key=lambda one: (one["family"], one["name"]))
    runs = [run_row(run) for run in rundir.runs_in(Path(args.runs))]
    shown = [{**run, "differs": " ".join(f"{key}={value}" for key, value in run["differs"].items())} for run in runs]
    width = max((len(one["name"]) for one in known), default=0)
    lines = [] if known else ["no experiments are installed"]
    for name, members in groupby(known, key=lambda one: one["family"]):
        lines.append(f"{name}: {families.title(name)}".rstrip(": "))
        lines += [*(f"  {one['name']:{width}}  {one['description']}" for one in members), ""]
    show(args, {"experiments": known, "runs": runs}, lines + (table(shown) if shown else []))


def run_row(run: RunDir) -> Tree:
    """Return what `list` says of a run: `score` is that of its last evaluation, `best` that of the best one while it trained,
    `differs` what is not as its experiment has it."""
    from parl_like.lab.runs.metrics import last_row
    from parl_like.lab.yaml_text import UsageError

    row: Tree = {"run": run.path.name, "experiment": "?", "state": "", "steps": 0, "score": None, "best": None,
                           "best_step": None, "last_return": None, "differs": {}}
    try:
        info, last = run.info(), last_row(run)
        found = {"score": info.evaluated.get("score"), **((run.result() or {}).get("evaluation") or {})}
        score = found["score"] if found["score"] is not None else found.get("mean_return")
        row |= {"experiment": info.experiment, "state": run.state(), "last_return": last.get("return/last"),
                "differs": info.differs, **{key: info.evaluated.get(key) for key in ("best", "best_step")}}
        row |= {"steps": int(last.get("step", 0)), "score": score if isinstance(score, (int, float)) else None}
    except (UsageError, AttributeError, ValueError, OverflowError) as error:
        row["state"] = f"unreadable: {error}"
    return row


def _runs_of(words: Sequence[str]) -> list[RunDir]:
    """The runs at these paths, or in folders of runs where all are such; a file or folder among runs, as `runs/*` also means, is
    passed over with a word."""
    from parl_like.lab.runs import rundir

    folders = {word: rundir.runs_in(Path(word)) for word in words if not os.path.lexists(Path(word, "run.json"))}
    others = {word: "file, not a run directory" for word in words if os.path.isfile(word)} | {
        word: f"folder of runs ({text.escaped(word)}/*)" for word, runs in folders.items() if runs}
    if all(folders.get(word) for word in words):
        return [run for word in words for run in folders[word]]
    if len(others) == len(words):  # of nothing but files the error says what was expected
        others = {}
    for word, what in others.items():
        print(f"{text.escaped(word)} is a {what}: passed over", file=sys.stderr)
    return [rundir.RunDir.open(word) for word in words if word not in others]


def _plot(args: argparse.Namespace) -> None:
    from parl_like.lab.reports import plots

    runs = _runs_of(args.runs)
    default = runs[0].plots / "learning_curve.png" if len(runs) == 1 else runs[0].path.parent / "learning_curves.png"
    path = plots.learning_curve(runs, Path(args.out) if args.out else default, metric=args.metric or plots.DEFAULT_METRIC)
    show(args, {"picture": str(path)}, [str(path)])


def _report(args: argparse.Namespace) -> None:
    from parl_like.lab.reports import report

    runs = _runs_of(args.runs)
    found = report.report(runs, args.mark)
    files, missing = report.write(found, runs, Path(args.out)) if args.out else ([], [])
    for line in [*missing, *map(str, files)]:
        print(line, file=sys.stderr)
    show(args, {**found, "files": list(map(str, files))}, report.markdown(found).rstrip().split("\n"))


def _dashboard(args: argparse.Namespace) -> None:
    from parl_like.lab.dashboard import command

    command.show(args.runs, args.host, args.port, args.open, args.export, partial(show, args))


def _diff(args: argparse.Namespace) -> None:
    from parl_like.lab.reports import difference
    from parl_like.lab.runs import rundir

    found = difference.difference(rundir.RunDir.open(args.run), rundir.RunDir.open(args.other))
    same = [] if found["files"] else ["settings, versions, code, recorded rows and results are the same"]
    lines = table(found["rows"]) if found["rows"] else same
    show(args, found, [*lines, *difference.in_words(found)])


def _marks(args: argparse.Namespace) -> int:
    if args.keep:
        from parl_like.lab import pretrained
        from parl_like.lab.yaml_text import UsageError

        if not args.names:
            raise UsageError("--keep: name the experiments whose policies are to be kept")
        kept = {name: pretrained.make(name, Path(args.runs), lambda line: print(line, file=args.stream, flush=True))
                for name in args.names}
        show(args, kept, (f"{name}: score {one.score:.6g}, {len(one.files)} files" for name, one in kept.items()))
        return 0
    from parl_like.lab.reports import marks

    found = marks.measure(args.names, args.seeds, args.overrides, file=Path(args.out), runs=Path(args.runs), jobs=args.jobs,
                          say=lambda line: print(line, file=args.stream, flush=True))
    show(args, found.marks, [*marks.table(found.marks), *(f"failed: {line}" for line in found.failed)])
    return ERROR if found.failed else 0


def _sweep(args: argparse.Namespace) -> int:
    from time import monotonic

    from parl_like.lab import progress, screen, signals, yaml_text
    from parl_like.lab.sweeps import spaces, sweep

    if "--address" in args.given and not args.ray:
        raise yaml_text.UsageError(f"--address {args.address} is that of a Ray cluster; give --ray, too, or leave it out")
    space, since = spaces.space_of(args.assignments), monotonic()
    seeds_given = space.pop("seed", None)
    fixed = {key: space.pop(key)[0] for key, values in [*space.items()] if isinstance(values, list) and len(values) == 1}
    made = sweep.Sweep(args.experiment, fixed, Path(args.out),
                       args.jobs or (sweep.ON_RAY if args.ray else 1), say=lambda line: say(line))
    seeds = spaces.seeds_of(seeds_given or [made.experiment.config.get("seed", 0)])
    made.check(space, seeds[0])
    if args.ray:
        made.start = sweep.on_ray(args.address)
    drawing = screen.Screen(args.stream) if screen.can_draw(args.stream) else None

    def say(line: str) -> None:
        if drawing is None:
            print(line, file=args.stream, flush=True)
        else:
            drawing.above(progress.wrapped(line, drawing.size()[0] - 1))

    def look() -> None:
        if drawing is not None:
            drawing.draw(sweep.table(made.trials, drawing.size()[1], since))

    def changed(trial: sweep.Trial) -> None:
        if trial.state != "running":
            say(sweep.line(trial))

    made.changed, found = changed, ""
    try:
        with signals.like_ctrl_c():
            if args.optuna:
                from parl_like.lab.sweeps import tuning

                found = tuning.best(tuning.tune(made, space, args.optuna, seeds, look), space)
            else:
                chosen = spaces.drawn(space, args.random) if args.random else spaces.grid(space)
                made.run_all([partial(made.run, made.trial(one, seed)) for one in chosen for seed in seeds], look)
    except KeyboardInterrupt:
        print("stopped; runs that were under way have saved, and the same command goes on", file=sys.stderr)
        return STOPPED
    finally:
        if drawing is not None:
            drawing.close()
    rows, lines = sweep.outcome(made.trials)
    lines += [found] if found else []
    lines += [f"failed: {trial.title}: {trial.reason}" for trial in made.failed]
    show(args, {"best": found, **rows}, lines)
    return ERROR if made.failed else 0


VERBS = (
    Verb("list", "list the experiments, and the runs in runs/", _list, (
        option("--runs", "where runs are (default: runs)", default=RUNS_DIR, metavar="DIR"),
        option("--spaces", "instead: which algorithm takes which actions, observations, masks, memory", action="store_true"),
        (SOURCE[0], {**SOURCE[1], "help": "also list the experiments that this file or module registers"}),
    ), (("--spaces", "--runs"), ("--spaces", "--from"))),
    Verb("plot", "draw the learning curve of one or several runs", _plot, (
        RUNS,
        option("--out", "the picture (png, svg or pdf; default: in the plots/ of one run, else beside the runs)", metavar="FILE"),
        option("--metric", "column of metrics.csv (default: return/mean)", metavar="KEY"),
    )),
    Verb("report", "compare what groups of runs have reached, as a Markdown table", _report, (
        RUNS,
        option("--mark", "a score to be reached (default: what the experiment expects)", type=float, metavar="X"),
        option("--out", "also write report.md, .html, .csv, runs.csv and pictures there", metavar="DIR"),
    )),
    Verb("dashboard", "show runs on a local page, live and finished: curves, robot, events, settings", _dashboard, (
        option("runs", "run directories, or folders with such (default: runs)", nargs="*", default=[RUNS_DIR], metavar="RUN"),
        option("--open", "open the page in the browser", action="store_true"),
        option("--port", "where to listen (default: 8765, or the next free one; 0: any)", type=whole(0), metavar="N"),
        option("--host", "address of this machine to listen at (default: 127.0.0.1, for this machine alone)",
               default="127.0.0.1", metavar="ADDRESS"),
        option("--export", "instead: write one HTML file that shows them without a server", default="", metavar="FILE"),
    ), (("--export", "--open"), ("--export", "--port"), ("--export", "--host"))),
    Verb("diff", "say why two runs differ: settings, versions, code, data, results, and from which step on", _diff, (
        RUN, option("other", "another one", metavar="RUN"),
    )),
    Verb("marks", "train experiments with several seeds, and keep their scores in a file and a table", _marks, (
        option("names", "experiments (default: all that expect something)", nargs="*", default=[], metavar="EXPERIMENT"),
        words("configuration on top of the experiments'"),
        option("--seeds", "train with the seeds 0 … N - 1 (default: 5)", type=whole(1), default=5, metavar="N"),
        option("--jobs", "runs at a time (default: 1)", type=whole(1), default=1, metavar="N"),
        option("--out", "default: docs/marks.json; the table is written beside it, as .md", default="docs/marks.json",
               metavar="FILE"),
        option("--runs", "where the run directories are (default: runs/marks)", default="runs/marks", metavar="DIR"),
        option("--keep", "instead: train seed 0 alone, and keep its policy in robots/pretrained, for --pretrained",
               action="store_true"),
    ), (("--keep", "--seeds"), ("--keep", "--jobs"), ("--keep", "--out"), ("--keep", "assignments"))),
    Verb("sweep", "train an experiment with many settings and seeds, and compare what they reach", _sweep, (
        EXPERIMENT, words("what to vary, e.g. seed=0..4 lr=1e-4,1e-3 (all combinations)"),
        option("--random", "instead: N settings at random, also of intervals (lr=1e-5..1e-2)", type=whole(1), default=0,
               metavar="N"),
        option("--optuna", "instead: N settings that Optuna chooses by the scores so far; it ends runs early that fall behind "
                           "(eval_every=)", type=whole(1), default=0, metavar="N"),
        option("--jobs", "runs at a time (default: 1; with --ray 256)", type=whole(1), default=0, metavar="N"),
        option("--ray", "run them as tasks of Ray, where it has room", action="store_true"),
        option("--address", "of the Ray cluster (default: a Ray of this machine)", default="", metavar="HOST:PORT"),
        option("--out", "where the run directories are (default: runs/sweeps)", default=f"{RUNS_DIR}/sweeps", metavar="DIR"),
    ), (("--random", "--optuna"),)),
)
