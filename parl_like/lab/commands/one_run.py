"""The verbs of one run: train, resume, eval, play, record, export, verify. Each imports what it needs when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from parl_like.lab.commands.options import (
    AGAIN,
    BEST,
    ERROR,
    EXACT,
    EXPERIMENT,
    NO_SNAPSHOT,
    PRETRAINED,
    QUIET,
    RUN,
    SNAPSHOT,
    SOURCE,
    TIMELINE,
    Verb,
    checkpoint,
    option,
    whole,
    words,
)
from parl_like.lab.commands.printing import cell, show, table


def _train(args: argparse.Namespace) -> int:
    from parl_like.lab import config, progress, user_experiments, yaml_text

    chosen = user_experiments.chosen(args.experiment)
    file = yaml_text.load_yaml_file(Path(args.config)) if args.config else {}
    # Before torch: seconds matter here.
    about = f"{chosen.description.removesuffix('.')}; " if chosen.description else ""
    line = f"{chosen.name}: {about}loading ..."
    progress.show(args.stream, progress.wrapped(line, progress.width_of(args.stream or sys.stdout)))
    from parl_like.lab import recorded, runner

    resolved = config.resolve(chosen.module().Config, chosen.config, file, args.overrides)
    if args.show_config:
        shown = runner.describe(chosen, resolved)
        show(args, yaml_text.load_yaml(shown), shown.rstrip("\n").split("\n"))
        return 0
    if waiting := recorded.missing(getattr(resolved, "parts", {})):
        from parl_like.lab import recording

        for name in waiting:
            recording.make(name, say=lambda line: progress.show(args.stream, line))
    return runner.train(chosen, resolved, command=args.words, stream=args.stream, debug=args.debug, report=args.report,
                        timeline=args.timeline, sources=not args.no_snapshot)


def _resume(args: argparse.Namespace) -> int:
    from parl_like.lab import progress
    from parl_like.lab.runs import rundir

    run = rundir.RunDir.open(args.run)
    progress.show(args.stream, f"{run.path}: loading ...")
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
    show(args, numbers, (f"{key:12} {cell(value, '.6g')}" for key, value in numbers.items()))
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
    show(args, episodes, (f"{episode['path']}  return {episode['return']:.4g}" for episode in episodes))
    return None


def _record(args: argparse.Namespace) -> None:
    import msgspec

    from parl_like.lab import progress, recorded, recording
    from parl_like.lab.yaml_text import UsageError

    known = recorded.recipes().get(args.run)
    if known is not None and not os.path.exists(args.run):
        if given := [name for name in args.given if name not in ("run", "--out")]:
            raise UsageError(f"the data set {args.run!r} is made as robots/datasets.yaml says; leave out "
                             f"{given[0].replace('assignments', 'key=value')}, or record a run")
        found = recording.make(args.run, args.out, say=lambda line: progress.show(args.stream, line))
    else:
        if not args.out:
            raise UsageError("record: --out DIR is needed: the directory of the data set")
        found = recording.record(args.run, args.out, policy=args.policy, episodes=args.episodes,
                                 checkpoint=args.checkpoint, seed=args.seed, minari=args.minari, source=args.source,
                                 overrides=args.overrides)
    numbers = msgspec.to_builtins(found)
    show(args, numbers, (f"{key:14} {cell(value, '.6g')}" for key, value in numbers.items()))


def _export(args: argparse.Namespace) -> None:
    import msgspec

    from parl_like.lab.policies import exporting

    _shipped(args)
    path, found = exporting.export(args.run, args.to, args.out, task=args.task, checkpoint=args.checkpoint, source=args.source,
                                   overrides=args.overrides)
    rows = [{"name": one.name, "shape": str(["N", *one.shape]), "dtype": one.dtype, "low": one.low, "high": one.high}
            for one in (*found.observations, *found.state, *found.actions, *found.outputs)]
    show(args, {"path": str(path), **msgspec.to_builtins(found)},
         [*table(rows), f"in {path}; `parl_like.Policy.load({str(path)!r})` is a function of observations"])


def _verify(args: argparse.Namespace) -> int:
    from parl_like.lab.runs import rundir
    from parl_like.lab.runs.checkpoint import verify

    run = rundir.RunDir.open(args.run)
    checked = verify(run.checkpoints)
    good = bool(checked) and all(whole for _, whole, _ in checked)
    rows = [{"checkpoint": name, "good": whole, "problem": problem} for name, whole, problem in checked]
    lines = [f"{name}  {'good' if whole else problem}" for name, whole, problem in checked]
    show(args, {"run": str(run.path), "good": good, "checkpoints": rows}, lines or ["no checkpoint was saved yet"])
    return 0 if good else ERROR


AFTER, NEWEST = "default: as after training", "newest (the last that no failure made), exact (see --exact), "

VERBS = (
    Verb("train", "train an experiment in a new run directory", _train, (
        EXPERIMENT, words("configuration, e.g. total_steps=20000 seed=3 hidden=[64,64]"),
        option("--config", "YAML file of configuration values; where a key=value word gives another value, the word counts",
               metavar="FILE"),
        option("--show-config", "print all that can be set, as it is, and stop", action="store_true"),
        TIMELINE, QUIET, NO_SNAPSHOT,
    )),
    Verb("resume", "continue a run from its last checkpoint", _resume, (
        RUN, words("e.g. total_steps=40000"),
        checkpoint("newest", NEWEST), EXACT, SOURCE, TIMELINE, QUIET, NO_SNAPSHOT,
    )),
    Verb("eval", "evaluate a trained run without exploration", _eval, (
        RUN, words(f"{AGAIN[1]['help']}; another eval_score="),
        option("--episodes", f"how many; {AFTER}", type=whole(1), default=0, metavar="N"),
        option("--seed", f"of the environments; {AFTER}", type=whole(0), metavar="N"), checkpoint("latest"), BEST, SOURCE,
        *SNAPSHOT, PRETRAINED,
    )),
    Verb("play", "record episodes of a trained run as GIF files in its videos/; of a planning robot also its plans", _play, (
        RUN, AGAIN,
        option("--episodes", "how many, each in a file (default: 1)", type=whole(1), default=1, metavar="N"),
        option("--seed", "of the environment (default: the run's)", type=whole(0), metavar="N"),
        option("--steps", "stop after so many env steps (default: at the end)", type=whole(1), default=0, metavar="N"),
        checkpoint("latest"), BEST, SOURCE, *SNAPSHOT, PRETRAINED,
    )),
    Verb("record", "record episodes of a trained run, or what it has stored, as a data set to learn from", _record, (
        option("run", "run directory; or the name of a data set that an experiment learns from", metavar="RUN"), AGAIN,
        option("--policy", "expert (default: as evaluations play), medium (the checkpoint halfway to it), replay (what training "
                           "has stored), random", default="expert", metavar="WHO"),
        option("--episodes", "how many (default: 20)", type=whole(1), default=20, metavar="N"),
        option("--out", "the directory to make", default="", metavar="DIR"),
        option("--minari", "also make the Minari data set of this id", default="", metavar="ID"),
        option("--seed", "of the environments (default: 2,000,000 + the run's)", type=whole(0), metavar="N"),
        option("--checkpoint", "latest, best, exact, or a step; default: latest", default="", metavar="WHICH"), SOURCE,
    )),
    Verb("export", "write a trained run's policy, which then needs neither robot nor environment", _export, (
        RUN, AGAIN,
        option("--to", "safetensors (default: weights, for parl_like.Policy) or onnx (a graph, for any runtime)",
               choices=("safetensors", "onnx"), default="safetensors"),
        option("--out", "the directory to make (default: policies/RUN_KIND)", default="", metavar="DIR"),
        option("--task", "which task's answers, where several make the actions", default="", metavar="TASK"),
        checkpoint("latest"), BEST, SOURCE, PRETRAINED,
    )),
    Verb("verify", "check every checkpoint of a run against its checksums", _verify, (RUN,)),
)
