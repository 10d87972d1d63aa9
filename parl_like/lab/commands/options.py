"""Describes the arguments of the verbs, and what several of them share. Loads no library: `--help` needs this."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

ERROR, USAGE, STOPPED, INTERRUPTED = 1, 2, 3, 130
RUNS_DIR = "runs"  # where `train` makes run directories

Option = tuple[str, dict[str, Any]]
"""The name of an argument, and how argparse is to take it."""


class Verb(NamedTuple):
    """A command: its name, its line of help, the function that does it, its arguments, and pairs of them of which the first
    leaves nothing to the second."""

    name: str
    help: str
    do: Callable[[argparse.Namespace], int | None]
    options: tuple[Option, ...]
    apart: tuple[tuple[str, str], ...] = ()


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Let a parser take these arguments. What is not given is not among what it reads, see `complete`. Of several options for one
    thing it takes one."""
    several = Counter(_dest(one) for one in options)
    groups = {name: parser.add_mutually_exclusive_group() for name, n in several.items() if n > 1}
    for one in options:
        name, how = one
        groups.get(_dest(one), parser).add_argument(name, **{**how, "default": argparse.SUPPRESS})


def complete(args: argparse.Namespace, verb: Verb, parser: argparse.ArgumentParser) -> None:
    """Put the defaults of a verb's arguments in the place of those that are not given; `args.given` has the names of the others.
    Exits where two are given of which one would have no effect beside the other."""
    args.given = [one[0] for one in verb.options if hasattr(args, _dest(one))]
    for one in verb.options:
        if not hasattr(args, _dest(one)):
            setattr(args, _dest(one), one[1].get("default", False if one[1].get("action") == "store_true" else None))
    for first, other in verb.apart:
        if {first, other} <= {*args.given}:
            parser.error(f"{first} leaves nothing to {'key=value' if other == 'assignments' else other}; leave one of them out")


def _dest(one: Option) -> str:
    """Return the name that an argument has among those that were read."""
    name, how = one
    return str(how.get("dest", name.lstrip("-").replace("-", "_")))


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number from `least` on."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least}, got {text!r}")
        return int(text)

    return read


def option(name: str, text: str | None = None, **how: object) -> Option:
    return name, {"help": text, **how}


def words(text: str) -> Option:
    return option("assignments", text, nargs="*", default=[], metavar="key=value")


def checkpoint(default: str, more: str = "") -> Option:
    return option("--checkpoint", f"{more}latest, best, or a step; default: {default}", default=default, metavar="WHICH")


EXPERIMENT = option("experiment", "one of `parl-like list`, or your own: FILE.py, FILE.py:NAME, package.module:NAME",
                    metavar="EXPERIMENT")
RUN = option("run", "run directory, as `parl-like list` shows them", metavar="RUN")
RUNS = option("runs", "run directories, of one or several experiments", nargs="+", metavar="RUN")
AGAIN = words("what names a module, given again (env=module:Id)")
BEST = option("--best", "the same as --checkpoint best: that of the best evaluation while training (eval_every=)",
              dest="checkpoint", action="store_const", const="best")
EXACT = option("--exact", "the same as --checkpoint exact: the newest of the schedule; what came after it is done again, and "
                          "the run's trace is that of one that was never interrupted", dest="checkpoint",
               action="store_const", const="exact")
TIMELINE = option("--timeline", "also write timeline.json in the run directory: what the robot does and when, for the page "
                                "ui.perfetto.dev", action="store_true")
QUIET = option("--quiet", "show nothing: log.txt in the run directory has it all, the exit code says how it ended",
               action="store_true")
NO_SNAPSHOT = option("--no-snapshot", "do not keep the Python sources in the run directory", action="store_true")
SNAPSHOT = (option("--snapshot", "by the sources that the run was trained with, in a process of its own", action="store_true"),
            option("--trust", "the same for sources that you have not run yourself, but have read: their hash, which --snapshot "
                              "names", default="", metavar="HASH"))
PRETRAINED = option("--pretrained", "RUN is the name of an experiment whose trained policy ships: it is copied to "
                                    "runs/pretrained/NAME", action="store_true")
SOURCE = option("--from", "file or module that registers the run's experiment, where that is your own", dest="source",
                default="", metavar="FILE")
