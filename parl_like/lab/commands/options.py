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
    """A command: its name, its line of help, the function that does it, and its arguments."""

    name: str
    help: str
    do: Callable[[argparse.Namespace], int | None]
    options: tuple[Option, ...]


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
