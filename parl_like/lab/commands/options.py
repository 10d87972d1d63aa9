"""Describes the arguments of the verbs, and what several of them share. Loads no library: `--help` needs this."""

from __future__ import annotations

import argparse
from collections.abc import Callable
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


def refuse_idle(args: argparse.Namespace, verb: Verb, parser: argparse.ArgumentParser) -> None:
    """Exit where two arguments are given of which one would have no effect beside the other."""
    dests = {name: str(how.get("dest", name.lstrip("-").replace("-", "_"))) for name, how in verb.options}
    told = {name for name, dest in dests.items() if getattr(args, dest) != parser.get_default(dest)}
    for one, other in verb.apart:
        if {one, other} <= told:
            parser.error(f"{one} leaves nothing to {'key=value' if other == 'assignments' else other}; leave one of them out")


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


RUN = option("run", "run directory, as `parl-like list` shows them", metavar="RUN")
RUNS = option("runs", "run directories, of one or several experiments", nargs="+", metavar="RUN")
AGAIN = words("what names a module, given again (env=module:Id); another eval_score=")
BEST = option("--best", "the same as --checkpoint best", dest="checkpoint", action="store_const", const="best")
EXACT = option("--exact", "the same as --checkpoint exact: the newest of the schedule; what came after it is done again, and "
                          "the run's trace is that of one that was never interrupted", dest="checkpoint",
               action="store_const", const="exact")
TIMELINE = option("--timeline", "also write timeline.json in the run directory: what the robot does and when, for the page "
                                "ui.perfetto.dev", action="store_true")
QUIET = option("--quiet", "show nothing: log.txt in the run directory has it all, the exit code says how it ended",
               action="store_true")
NO_SNAPSHOT = option("--no-snapshot", "do not keep the Python sources in the run directory", action="store_true")
SNAPSHOT = (option("--snapshot", "by the sources that the run was trained with, in a process of its own", action="store_true"),
            option("--trust", "the same where you have not run these sources yourself: their hash, as the refusal names it",
                   default="", metavar="HASH"))
PRETRAINED = option("--pretrained", "RUN is the name of an experiment whose trained policy ships: it is copied to "
                                    "runs/pretrained/NAME", action="store_true")
SOURCE = option("--from", "file or module that registers the run's experiment, where that is your own", dest="source",
                default="", metavar="FILE")
