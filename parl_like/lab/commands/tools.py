"""The verbs about this machine and about code of your own: bench, probe, doctor."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import parl_like
from parl_like.lab.commands.options import ERROR, Verb, option, words
from parl_like.lab.commands.printing import show
from parl_like.values.errors import unknown


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
        show(args, known, known)
        return 0
    if args.name.replace("_", "-") not in known:
        raise UsageError(unknown("benchmark", args.name, known))
    sys.path.insert(0, str(root))  # in front, so that no other folder called benchmarks is meant
    module = importlib.import_module(f"benchmarks.{args.name.replace('-', '_')}")
    return module.main((["--json"] if args.json else []) + args.rest) or 0


def _probe(args: argparse.Namespace) -> int:
    from parl_like.lab.probes import users

    found = users.probe(args.target, args.overrides)
    show(args, found.plain(), found.lines())
    return ERROR if found.broken else 0


def _doctor(args: argparse.Namespace) -> int:
    from parl_like.lab import doctor

    found, lines = doctor.examine()
    show(args, found, lines)
    return ERROR if doctor.MISSING in found["packages"].values() or doctor.MISSING in found["computing"]["compiled"] else 0


VERBS = (
    Verb("bench", "run a benchmark of the repository; without a name: list them", _bench, (
        option("name", "a file of benchmarks/", nargs="?", metavar="NAME"),
        option("rest", "passed on to the benchmark", nargs=argparse.REMAINDER, metavar="args"),
    )),
    Verb("probe", "try the laws that an algorithm, an environment or a buffer of your own should keep", _probe, (
        option("target", "its class: FILE.py:Name or module:Name", metavar="CLASS"),
        words("what an algorithm is built with, e.g. lr=1e-3 model=my_package.mine:MyNet"),
    )),
    Verb("doctor", "show what a bug report needs: versions, compiled modules, cores, threads, memory, extras", _doctor, ()),
)
