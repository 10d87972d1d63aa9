"""The command `parl-like`. Verbs import what they need when they run: so `--help` loads no library, and `list` no torch."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import parl_like
from parl_like.lab import text
from parl_like.values.errors import shortened, unknown, without_trace

if TYPE_CHECKING:
    from parl_like.lab.runs.rundir import RunDir
    from parl_like.lab.yaml_text import Tree

ERROR, USAGE, STOPPED, INTERRUPTED = 1, 2, 3, 130
RUNS_DIR = "runs"  # where `train` makes run directories
MAX_LINE, MAX_CELL = text.LONGEST - 200, 400  # characters of an error, and of what one cell of a table shows
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")

EPILOG = """Exit codes: 0 done, 1 error, 2 bad usage or configuration, 3 stopped by a signal after a clean save,
4 training diverged.
First run: parl-like list; parl-like train NAME; parl-like play RUN"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (default: that of the process) and returns its exit code."""
    with text.printing():
        return _run(list(sys.argv[1:] if argv is None else argv), last=argv is None)


def _run(words: list[str], last: bool) -> int:
    """`last`: the process ends with this command."""
    try:
        args = _parse(words)
        code: int = args.verb(args) or 0
        sys.stdout.flush()
        if last:  # from here on Python shuts down, and is not to show tracebacks of that
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return code
    except SystemExit as error:  # argparse: help was printed, or the usage was wrong
        return error.code if isinstance(error.code, int) else 0
    except KeyboardInterrupt:
        if last:  # this process ends now; the next Ctrl-C ends it at once, without tracebacks of what is being cleaned up
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except Exception as error:  # noqa: BLE001  the last border: whatever it is, it becomes one line and an exit code
        from parl_like.lab.yaml_text import UsageError
        from parl_like.values.user_calls import users_lines, whole

        ours, debug = isinstance(error, UsageError), whole() or not {"--debug", "--traceback"}.isdisjoint(words)
        if debug:
            traceback.print_exc()
        elif not ours:
            print("".join(f"{line}\n" for line in users_lines(error)), end="", file=sys.stderr)
        name, hint = "" if ours else f"{type(error).__name__}: ", "" if debug or ours else " (`--traceback` shows where)"
        print(f"error: {name}{shortened(' '.join(without_trace(error).split()), MAX_LINE)}{hint}", file=sys.stderr)
        return USAGE if ours else ERROR


# ------------------------------------------------------------------------------------------------ verbs


def _train(args: argparse.Namespace) -> int:
    from parl_like.lab import config, user_experiments, yaml_text

    chosen = user_experiments.chosen(args.experiment)
    file = yaml_text.load_yaml_file(Path(args.config)) if args.config else {}
    # Before torch: seconds matter here.
    from parl_like.lab.progress import width_of, wrapped

    line = f"{chosen.name}: {chosen.description or 'loading'} ..."
    print(wrapped(line, width_of(args.stream)), file=args.stream, flush=True)
    from parl_like.lab import recorded, runner

    resolved = config.resolve(chosen.module().Config, chosen.config, file, args.overrides)
    if args.show_config:
        shown = runner.describe(chosen, resolved)
        _show(args, yaml_text.load_yaml(shown), shown.rstrip("\n").split("\n"))
        return 0
    if waiting := recorded.missing(getattr(resolved, "parts", {})):
        from parl_like.lab import recording

        for name in waiting:
            recording.make(name, say=lambda line: print(line, file=args.stream, flush=True))
    return runner.train(chosen, resolved, command=args.words, stream=args.stream, debug=args.debug, report=args.report,
                        timeline=args.timeline, sources=not args.no_snapshot)


def _resume(args: argparse.Namespace) -> int:
    from parl_like.lab.runs import rundir

    run = rundir.RunDir.open(args.run)
    print(f"{run.path}: loading ...", file=args.stream, flush=True)
    from parl_like.lab import runner

    return runner.resume(run.path, args.overrides, which=args.checkpoint, command=args.words, stream=args.stream,
                         debug=args.debug, report=args.report, source=args.source, timeline=args.timeline,
                         sources=not args.no_snapshot)


def _as_it_was(args: argparse.Namespace) -> int | None:
    """Run the command by the sources of its run, where `--snapshot` asks for them, and return the exit code; None: go on here."""
    if not (args.snapshot or args.trust):
        return None
    from parl_like.lab import snapshot
    from parl_like.lab.runs import rundir

    return snapshot.run_again(rundir.RunDir.open(args.run), args.words[1:], args.trust)


def _shipped(args: argparse.Namespace) -> None:
    """Let RUN be a run directory of the policy that ships for an experiment, where `--pretrained` says that it names one."""
    if args.pretrained:
        from parl_like.lab import pretrained

        args.run = str(pretrained.run_of(args.run))


def _eval(args: argparse.Namespace) -> int | None:
    _shipped(args)
    if (code := _as_it_was(args)) is not None:
        return code
    from parl_like.lab import runner

    numbers = runner.evaluate(args.run, episodes=args.episodes, seed=args.seed, which=args.checkpoint, overrides=args.overrides,
                              source=args.source)
    _show(args, numbers, (f"{key:12} {_cell(value, '.6g')}" for key, value in numbers.items()))
    return None


def _play(args: argparse.Namespace) -> int | None:
    _shipped(args)
    if (code := _as_it_was(args)) is not None:
        return code
    from parl_like.lab import runner

    # Frames go into a file: pygame needs no window, and complains where there cannot be one.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    episodes = runner.play(args.run, episodes=args.episodes, seed=args.seed, which=args.checkpoint, max_steps=args.steps,
                           stream=args.stream, overrides=args.overrides, source=args.source)
    _show(args, episodes, (f"{episode['path']}  return {episode['return']:.4g}" for episode in episodes))
    return None


def _record(args: argparse.Namespace) -> None:
    import msgspec

    from parl_like.lab import recorded, recording
    from parl_like.lab.yaml_text import UsageError

    known = recorded.recipes().get(args.run)
    if known is not None and not os.path.exists(args.run):
        if given := [name for name in ("policy", "episodes", "checkpoint", "seed", "minari") if getattr(args, name)]:
            raise UsageError(f"the data set {args.run!r} is made as robots/datasets.yaml says; leave out --{given[0]}, or record "
                             "a run")
        found = recording.make(args.run, args.out, say=lambda line: print(line, file=args.stream, flush=True))
    else:
        if not args.out:
            raise UsageError("record: --out DIR is needed: the directory of the data set")
        found = recording.record(args.run, args.out, policy=args.policy or "expert", episodes=args.episodes or 20,
                                 checkpoint=args.checkpoint, seed=args.seed, minari=args.minari, source=args.source,
                                 overrides=args.overrides)
    numbers = msgspec.to_builtins(found)
    _show(args, numbers, (f"{key:14} {_cell(value, '.6g')}" for key, value in numbers.items()))


def _export(args: argparse.Namespace) -> None:
    import msgspec

    from parl_like.lab.policies import exporting

    _shipped(args)
    path, found = exporting.export(args.run, args.to, args.out, task=args.task, checkpoint=args.checkpoint, source=args.source,
                                   overrides=args.overrides)
    rows = [{"name": one.name, "shape": str(["N", *one.shape]), "dtype": one.dtype, "low": one.low, "high": one.high}
            for one in (*found.observations, *found.state, *found.actions, *found.outputs)]
    _show(args, {"path": str(path), **msgspec.to_builtins(found)},
          [*_table(rows), f"in {path}; `parl_like.Policy.load({str(path)!r})` is a function of observations"])


def _list(args: argparse.Namespace) -> None:
    if args.spaces:
        from parl_like.learning import action_spaces

        _show(args, {"algorithms": action_spaces.table()}, _table(action_spaces.in_words()))
        return
    from parl_like.lab import experiment, families, user_experiments
    from parl_like.lab.runs import rundir
    from parl_like.lab.yaml_text import UsageError

    if args.source:
        user_experiments.registered(args.source)
    if args.runs != RUNS_DIR and not os.path.isdir(args.runs):
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
    runs = [_run_row(run) for run in rundir.runs_in(Path(args.runs))]
    shown = [{**run, "differs": " ".join(f"{key}={value}" for key, value in run["differs"].items())} for run in runs]
    width = max((len(one["name"]) for one in known), default=0)
    lines = [] if known else ["no experiments are installed"]
    for name, members in groupby(known, key=lambda one: one["family"]):
        lines.append(f"{name}: {families.title(name)}".rstrip(": "))
        lines += [*(f"  {one['name']:{width}}  {one['description']}" for one in members), ""]
    _show(args, {"experiments": known, "runs": runs}, lines + (_table(shown) if shown else []))


def _runs_of(words: Sequence[str]) -> list[RunDir]:
    """The runs at these paths; a file among them, as `runs/*` also means, is passed over with a word."""
    from parl_like.lab.runs import rundir

    files = [word for word in words if os.path.isfile(word)]
    files = [] if len(files) == len(words) else files  # of nothing but files the error says what was expected
    for word in files:
        print(f"{text.escaped(word)} is a file, not a run directory: passed over", file=sys.stderr)
    return [rundir.RunDir.open(word) for word in words if word not in files]


def _plot(args: argparse.Namespace) -> None:
    from parl_like.lab.reports import plots

    runs = _runs_of(args.runs)
    default = runs[0].plots / "learning_curve.png" if len(runs) == 1 else runs[0].path.parent / "learning_curves.png"
    path = plots.learning_curve(runs, Path(args.out) if args.out else default, metric=args.metric or plots.DEFAULT_METRIC)
    _show(args, {"picture": str(path)}, [str(path)])


def _report(args: argparse.Namespace) -> None:
    from parl_like.lab.reports import report

    runs = _runs_of(args.runs)
    found = report.report(runs, args.mark)
    files, missing = report.write(found, runs, Path(args.out)) if args.out else ([], [])
    for line in [*missing, *map(str, files)]:
        print(line, file=sys.stderr)
    _show(args, {**found, "files": list(map(str, files))}, report.markdown(found).rstrip().split("\n"))


def _dashboard(args: argparse.Namespace) -> None:
    from parl_like.lab.dashboard import command

    command.show(args.runs or [RUNS_DIR], args.host, args.port, args.open, args.export, partial(_show, args))


def _diff(args: argparse.Namespace) -> None:
    from parl_like.lab.reports import difference
    from parl_like.lab.runs import rundir

    found = difference.difference(rundir.RunDir.open(args.run), rundir.RunDir.open(args.other))
    lines = _table(found["rows"]) if found["rows"] else ["settings, versions, code and results are the same"]
    _show(args, found, [*lines, *difference.in_words(found)])


def _marks(args: argparse.Namespace) -> None:
    if args.keep:
        from parl_like.lab import pretrained

        kept = {name: pretrained.make(name, Path(args.runs), lambda line: print(line, file=args.stream, flush=True))
                for name in args.names}
        _show(args, kept, (f"{name}: score {one.score:.6g}, {len(one.files)} files" for name, one in kept.items()))
        return
    from parl_like.lab.reports import marks

    found = marks.measure(args.names, args.seeds, args.overrides, file=Path(args.out), runs=Path(args.runs), jobs=args.jobs,
                          say=lambda line: print(line, file=args.stream, flush=True))
    _show(args, found, marks.table(found))


def _sweep(args: argparse.Namespace) -> int:
    from time import monotonic

    from parl_like.lab import screen, signals, yaml_text
    from parl_like.lab.sweeps import spaces, sweep

    if args.random and args.optuna:
        raise yaml_text.UsageError("--random and --optuna are two ways to choose settings; leave one out")
    space, since = spaces.space_of(args.assignments), monotonic()
    seeds_given = space.pop("seed", None)
    fixed = {key: space.pop(key)[0] for key, values in [*space.items()] if isinstance(values, list) and len(values) == 1}
    made = sweep.Sweep(args.experiment, fixed, Path(args.out or f"{RUNS_DIR}/sweeps"),
                       args.jobs or (sweep.ON_RAY if args.ray else 1), sweep.on_ray(args.address) if args.ray else None,
                       lambda line: say(line))
    seeds = spaces.seeds_of(seeds_given or [made.experiment.config.get("seed", 0)])
    drawing = screen.Screen(args.stream) if screen.can_draw(args.stream) else None

    def say(line: str) -> None:
        print(line, file=args.stream if drawing is None else sys.stdout, flush=True)

    def look() -> None:
        if drawing is not None:
            drawing.draw(sweep.table(made.trials, *drawing.size(), since))

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
    _show(args, {"best": found, **rows}, lines)
    return ERROR if made.failed else 0


def _bench(args: argparse.Namespace) -> int:
    import importlib

    from parl_like.lab.yaml_text import UsageError

    root = Path(parl_like.__file__).resolve().parents[1]
    folder = root / "benchmarks"
    if not folder.is_dir():
        raise UsageError("benchmarks live in the repository, not in the installed package; clone it and run `pip install -e .`")
    files = [path for path in folder.glob("[a-z]*.py") if "\ndef main(" in path.read_text(encoding="utf-8")]
    known = sorted(path.stem.replace("_", "-") for path in files)
    if args.name is None:
        _show(args, known, known)
        return 0
    if args.name.replace("_", "-") not in known:
        raise UsageError(unknown("benchmark", args.name, known))
    sys.path.insert(0, str(root))  # in front, so that no other folder called benchmarks is meant
    module = importlib.import_module(f"benchmarks.{args.name.replace('-', '_')}")
    return module.main((["--json"] if args.json else []) + args.rest) or 0


def _verify(args: argparse.Namespace) -> int:
    from parl_like.lab.runs import rundir
    from parl_like.lab.runs.checkpoint import verify

    run = rundir.RunDir.open(args.run)
    checked = verify(run.checkpoints)
    good = bool(checked) and all(whole for _, whole, _ in checked)
    rows = [{"checkpoint": name, "good": whole, "problem": problem} for name, whole, problem in checked]
    lines = [f"{name}  {'good' if whole else problem}" for name, whole, problem in checked]
    _show(args, {"run": str(run.path), "good": good, "checkpoints": rows}, lines or ["no checkpoint was saved yet"])
    return 0 if good else ERROR


def _probe(args: argparse.Namespace) -> int:
    from parl_like.lab.probes import users

    found = users.probe(args.target, args.overrides)
    _show(args, found.plain(), found.lines())
    return ERROR if found.broken else 0


def _doctor(args: argparse.Namespace) -> int:
    from parl_like.lab import doctor

    found, lines = doctor.examine()
    _show(args, found, lines)
    return ERROR if "missing" in found["packages"].values() else 0


# ------------------------------------------------------------------------------------------------ words in, text out


def _show(args: argparse.Namespace, value: object, lines: Iterable[str]) -> None:
    """The outcome of a command: `value` for machines, `lines` for people."""
    _print_json(value) if args.json else print("\n".join(map(text.escaped, lines)))


def _print_json(value: object) -> None:
    from parl_like.lab.runs.rundir import plain

    print(json.dumps(plain(value), allow_nan=False))


def _run_row(run: RunDir) -> Tree:
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


def _table(rows: Sequence[Tree]) -> list[str]:
    """Aligned columns under the rows' keys."""
    cells = [[key.upper() for key in rows[0]], *([_cell(value, ".4g") for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _cell(value: object, digits: str) -> str:
    if isinstance(value, float):
        return format(value, digits)
    return "-" if value is None else text.escaped(shortened(str(value), MAX_CELL))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"error: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(USAGE)


def _whole(least: int) -> Callable[[str], int]:
    """Reads a whole number from `least` on."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least}, got {text!r}")
        return int(text)

    return read


Option = tuple[str, dict[str, Any]]
"""The name of an argument, and how argparse is to take it."""


def _option(name: str, text: str | None = None, **how: object) -> Option:
    return name, {"help": text, **how}


def _words(text: str) -> Option:
    return _option("assignments", text, nargs="*", default=[], metavar="key=value")


def _checkpoint(default: str, more: str = "") -> Option:
    return _option("--checkpoint", f"{more}latest, best, or a step; default: {default}", default=default, metavar="WHICH")


RUN = _option("run", "run directory, as `parl-like list` shows them", metavar="RUN")
RUNS = _option("runs", "run directories, of one or several experiments", nargs="+", metavar="RUN")
AGAIN = _words("what names a module, given again (env=module:Id); another eval_score=")
BEST = _option("--best", "the same as --checkpoint best", dest="checkpoint", action="store_const", const="best")
EXACT = _option("--exact", "the same as --checkpoint exact: the newest of the schedule; what came after it is done again, and "
                           "the run's trace is that of one that was never interrupted", dest="checkpoint",
                action="store_const", const="exact")
TIMELINE = _option("--timeline", "also write timeline.json in the run directory: what the robot does and when, for the page "
                                 "ui.perfetto.dev", action="store_true")
NO_SNAPSHOT = _option("--no-snapshot", "do not keep the Python sources in the run directory", action="store_true")
SNAPSHOT = (_option("--snapshot", "by the sources that the run was trained with, in a process of its own", action="store_true"),
            _option("--trust", "the same where you have not run these sources yourself: their hash, as the refusal names it",
                    default="", metavar="HASH"))
PRETRAINED = _option("--pretrained", "RUN is the name of an experiment whose trained policy ships: it is copied to "
                                     "runs/pretrained/NAME", action="store_true")
SOURCE = _option("--from", "file or module that registers the run's experiment, where that is your own", dest="source",
                 default="", metavar="FILE")


class Verb(NamedTuple):
    """A command: its name, its line of help, the function that does it, and its arguments."""

    name: str
    help: str
    do: Callable[[argparse.Namespace], int | None]
    options: tuple[Option, ...]


AFTER, NEWEST = "default: as after training", "newest (the last that no failure made), exact (see --exact), "

VERBS = (
    Verb("train", "train an experiment in a new run directory", _train, (
        _option("experiment", "one of `parl-like list`, or your own: FILE.py, FILE.py:NAME, package.module:NAME",
                metavar="EXPERIMENT"),
        _words("configuration, e.g. total_steps=20000 seed=3 hidden=[64,64]"),
        _option("--config", "YAML file of configuration values; key=value words come before it", metavar="FILE"),
        _option("--show-config", "print all that can be set, as it is, and stop", action="store_true"), TIMELINE, NO_SNAPSHOT,
    )),
    Verb("resume", "continue a run from its last checkpoint", _resume, (
        RUN, _words("e.g. total_steps=40000"),
        _checkpoint("newest", NEWEST), EXACT, SOURCE, TIMELINE, NO_SNAPSHOT,
    )),
    Verb("eval", "evaluate a trained run without exploration", _eval, (
        RUN, AGAIN,
        _option("--episodes", f"how many; {AFTER}", type=_whole(1), default=0, metavar="N"),
        _option("--seed", f"of the environments; {AFTER}", type=_whole(0), metavar="N"), _checkpoint("latest"), BEST, SOURCE,
        *SNAPSHOT, PRETRAINED,
    )),
    Verb("play", "record episodes of a trained run as GIF files; of a planning robot also its plans", _play, (
        RUN, AGAIN,
        _option("--episodes", "how many, each in a file (default: 1)", type=_whole(1), default=1, metavar="N"),
        _option("--seed", "of the environment (default: the run's)", type=_whole(0), metavar="N"),
        _option("--steps", "stop after so many env steps (default: at the end)", type=_whole(1), default=0, metavar="N"),
        _checkpoint("latest"), BEST, SOURCE, *SNAPSHOT, PRETRAINED,
    )),
    Verb("record", "record episodes of a trained run, or what it has stored, as a data set to learn from", _record, (
        _option("run", "run directory; or the name of a data set that an experiment learns from", metavar="RUN"), AGAIN,
        _option("--policy", "expert (default: as evaluations play), medium (the checkpoint halfway to it), replay (what training "
                            "has stored), random", default="", metavar="WHO"),
        _option("--episodes", "how many (default: 20)", type=_whole(1), default=0, metavar="N"),
        _option("--out", "the directory to make", default="", metavar="DIR"),
        _option("--minari", "also make the Minari data set of this id", default="", metavar="ID"),
        _option("--seed", "of the environments (default: 2,000,000 + the run's)", type=_whole(0), metavar="N"),
        _option("--checkpoint", "latest, best, exact, or a step; default: latest", default="", metavar="WHICH"), SOURCE,
    )),
    Verb("export", "write a trained run's policy, which then needs neither robot nor environment", _export, (
        RUN, AGAIN,
        _option("--to", "safetensors (default: weights, for parl_like.Policy) or onnx (a graph, for any runtime)",
                choices=("safetensors", "onnx"), default="safetensors"),
        _option("--out", "the directory to make (default: policies/RUN_KIND)", default="", metavar="DIR"),
        _option("--task", "which task's answers, where several make the actions", default="", metavar="TASK"),
        _checkpoint("latest"), BEST, SOURCE, PRETRAINED,
    )),
    Verb("list", "list the experiments, and the runs in runs/", _list, (
        _option("--runs", "where runs are (default: runs)", default=RUNS_DIR, metavar="DIR"),
        _option("--spaces", "instead: which algorithm takes which actions, observations, masks, memory", action="store_true"),
        SOURCE,
    )),
    Verb("plot", "draw the learning curve of one or several runs", _plot, (
        RUNS,
        _option("--out", "the picture (png, svg or pdf)", metavar="FILE"),
        _option("--metric", "column of metrics.csv (default: return/mean)", metavar="KEY"),
    )),
    Verb("report", "compare what groups of runs have reached, as a Markdown table", _report, (
        RUNS,
        _option("--mark", "a score to be reached (default: what the experiment expects)", type=float, metavar="X"),
        _option("--out", "also write report.md, .html, .csv, runs.csv and pictures there", metavar="DIR"),
    )),
    Verb("dashboard", "show runs on a local page, live and finished: curves, robot, events, settings", _dashboard, (
        _option("runs", "run directories, or folders with such (default: runs)", nargs="*", metavar="RUN"),
        _option("--open", "open the page in the browser", action="store_true"),
        _option("--port", "where to listen (default: 8765, or the next free one; 0: any)", type=_whole(0), metavar="N"),
        _option("--host", "address of this machine to listen at (default: 127.0.0.1, for this machine alone)",
                default="127.0.0.1", metavar="ADDRESS"),
        _option("--export", "instead: write one HTML file that shows them without a server", default="", metavar="FILE"),
    )),
    Verb("diff", "say why two runs differ: settings, versions, code, results, and from which step on", _diff, (
        RUN, _option("other", "another one", metavar="RUN"),
    )),
    Verb("marks", "train experiments with several seeds, and keep their scores in a file and a table", _marks, (
        _option("names", "experiments (default: all that expect something)", nargs="*", metavar="EXPERIMENT"),
        _words("configuration on top of the experiments'"),
        _option("--seeds", "train with the seeds 0 … N - 1 (default: 5)", type=_whole(1), default=5, metavar="N"),
        _option("--jobs", "runs at a time (default: 1)", type=_whole(1), default=1, metavar="N"),
        _option("--out", "default: docs/marks.json; the table is written beside it, as .md", default="docs/marks.json",
                metavar="FILE"),
        _option("--runs", "where the run directories are (default: runs/marks)", default="runs/marks", metavar="DIR"),
        _option("--keep", "instead: train seed 0 alone, and keep its policy in robots/pretrained, for --pretrained",
                action="store_true"),
    )),
    Verb("sweep", "train an experiment with many settings and seeds, and compare what they reach", _sweep, (
        _option("experiment", "as for train", metavar="EXPERIMENT"),
        _words("what to vary, e.g. seed=0..4 lr=1e-4,1e-3 (all combinations)"),
        _option("--random", "instead: N settings at random, also of intervals (lr=1e-5..1e-2)", type=_whole(1), default=0,
                metavar="N"),
        _option("--optuna", "instead: N settings that Optuna chooses by the scores so far; it ends runs early that fall behind "
                            "(eval_every=)", type=_whole(1), default=0, metavar="N"),
        _option("--jobs", "runs at a time (default: 1; with --ray 256)", type=_whole(1), default=0, metavar="N"),
        _option("--ray", "run them as tasks of Ray, where it has room", action="store_true"),
        _option("--address", "of the Ray cluster (default: a Ray of this machine)", default="", metavar="HOST:PORT"),
        _option("--out", "where the run directories are (default: runs/sweeps)", default="", metavar="DIR"),
    )),
    Verb("bench", "run a benchmark of the repository; without a name: list them", _bench, (
        _option("name", "a file of benchmarks/", nargs="?", metavar="NAME"),
        _option("rest", "passed on to the benchmark", nargs=argparse.REMAINDER, metavar="args"),
    )),
    Verb("verify", "check every checkpoint of a run against its checksums", _verify, (RUN,)),
    Verb("probe", "try the laws that an algorithm, an environment or a buffer of your own should keep", _probe, (
        _option("target", "its class: FILE.py:Name or module:Name", metavar="CLASS"),
        _words("what an algorithm is built with, e.g. lr=1e-3 model=my_package.mine:MyNet"),
    )),
    Verb("doctor", "show versions, cores, memory and the extras found", _doctor, ()),
)


def _parser() -> _Parser:
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="JSON on standard output, for machines; the rest on standard error")
    common.add_argument("--traceback", "--debug", dest="debug", action="store_true",
                        help="show the whole traceback of an error, as PARL_LIKE_TRACEBACK=1 does")
    parser = _Parser(prog="parl-like", description="Train robots made of computation tasks that many agents share.",
                     epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"parl-like {parl_like.__version__}",
                        help="show the version and exit")
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    for verb in VERBS:
        one = verbs.add_parser(verb.name, parents=[common], help=verb.help, description=verb.help)
        one.set_defaults(verb=verb.do)
        for name, how in verb.options:
            one.add_argument(name, **how)
    return parser


def _parse(words: list[str]) -> argparse.Namespace:
    """Return the arguments of a verb; exits where help was asked for, or the usage was wrong."""
    parser, verbs = _parser(), [verb.name for verb in VERBS]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words and not words[0].startswith("-") and words[0] not in verbs:
        parser.error(unknown("verb", words[0], verbs))
    # argparse cannot take key=value words from behind an option, so they are taken out beforehand.
    split = bool(words) and words[0] in ("train", "resume", "eval", "play", "record", "export", "marks", "sweep", "probe")
    assignments = [word for word in words if split and _ASSIGNMENT.match(word)]
    args, unread = parser.parse_known_args([word for word in words if word not in assignments])
    if unread:
        hint = f"; configuration is written key=value, e.g. total_steps=2000; here: {_as_assignments(unread)}"
        parser.error(f"unrecognized arguments: {' '.join(unread)}{hint if unread[0].startswith('--') else ''}")
    # Where people read along: not where the machine reads.
    args.stream = sys.stderr if args.json or getattr(args, "show_config", False) else sys.stdout
    from parl_like.values.user_calls import whole

    if split:
        from parl_like.lab import config

        args.assignments = assignments + args.assignments
    if split and words[0] != "sweep":  # whose words stand for several values
        args.overrides = config.parse_assignments(args.assignments, lambda line: print(line, file=args.stream, flush=True))
    args.words, args.debug = ["parl-like", *words], args.debug or whole()
    args.report = _print_json if args.json else None
    return args


def _as_assignments(words: Sequence[str]) -> str:
    """Return `--key value`, `--key=value` and `--flag` as the words `key=value` that say the same."""
    pairs: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            pairs.append([*word[2:].split("=", 1)])
        elif pairs and len(pairs[-1]) == 1:
            pairs[-1].append(word)
    return " ".join(f"{key.replace('-', '_')}={value[0] if value else 'true'}" for key, *value in pairs)
