"""Marks of solvers of games: −`nash_conv` of the average policy after so many iterations, beside those of experiments.

    python -m benchmarks.solvers [NAME ...] [--seeds 5] [--out docs/marks.json] [--json]

What draws nothing is measured once. `ROWS` has what each is to reach: the figures of OpenSpiel's solvers where these are exact,
the bounds of its tests, or a floor of ours.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import msgspec
import numpy as np

from parl_like.algorithms.games import (
    CFR,
    CFRPlus,
    DeepCFR,
    ExploitabilityDescent,
    ExternalSampling,
    FictitiousPlay,
    OutcomeSampling,
    expected_returns,
    nash_conv,
)
from parl_like.data.storage.tree_encoding import versions
from parl_like.envs.games import Game, Kuhn, Leduc
from parl_like.lab import doctor
from parl_like.lab.reports import marks
from parl_like.lab.runs.rundir import PACKAGES, git_state


class SolverRow(NamedTuple):
    """A solver, its game, its iterations, and the most that its policy may give away."""

    solver: type
    game: Callable[[], Game]
    iterations: int
    most: float


SUITS = partial(Leduc, suits=True)
ROWS = {
    "cfr-kuhn": SolverRow(CFR, Kuhn, 300, 0.006069), "cfr-leduc": SolverRow(CFR, SUITS, 300, 0.071049),
    "cfrplus-kuhn": SolverRow(CFRPlus, Kuhn, 300, 0.000868), "cfrplus-leduc": SolverRow(CFRPlus, SUITS, 300, 0.004582),
    "externalsampling-kuhn": SolverRow(ExternalSampling, Kuhn, 10_000, 0.04),
    "outcomesampling-kuhn": SolverRow(OutcomeSampling, Kuhn, 10_000, 0.17),
    "outcomesampling-kuhn3": SolverRow(OutcomeSampling, partial(Kuhn, 3), 10_000, 0.22),
    "outcomesampling-leduc": SolverRow(OutcomeSampling, Leduc, 10_000, 3.07),
    "fictitiousplay-kuhn": SolverRow(FictitiousPlay, Kuhn, 300, 0.01),
    "exploitabilitydescent-kuhn": SolverRow(ExploitabilityDescent, Kuhn, 1_000, 0.02),
    "deepcfr-kuhn": SolverRow(DeepCFR, Kuhn, 100, 0.10),
}
"""Name → what is measured."""


def configuration(name: str) -> str:
    """Return the hash of a row."""
    row = ROWS[name]
    game = row.game()
    return marks.configuration_hash(name, {"solver": row.solver.__name__, "game": str(game), "iterations": row.iterations})


def draws(solver: type) -> bool:
    """Return whether a solver has a seed."""
    return "seed" in inspect.signature(solver).parameters


def measure(name: str, seed: int, code: str) -> marks.Mark:
    """Return the mark of a row. Seconds are the process's own time, without that of other points of the curve."""
    row = ROWS[name]
    game, begin = row.game(), process_time()
    one: Any = row.solver(game, **({"seed": seed} if draws(row.solver) else {}))
    learned, curve = process_time() - begin, []
    points = np.unique(np.geomspace(1, row.iterations, marks.CURVE).round().astype(int))
    for before, after in pairwise([0, *points.tolist()]):
        begin = process_time()
        one.learn(after - before)
        learned += process_time() - begin
        copied = deepcopy(one)  # for a policy that is a network is learned by drawing
        begin = process_time()
        policy = copied.average_policy()
        spent, left = learned + process_time() - begin, nash_conv(game, policy)
        curve.append((after, round(spent, 2), -left))
    value = float(expected_returns(game, policy)[0])
    return marks.Mark(
        experiment=name, seed=seed, differs={}, env_steps=row.iterations, score=-left,
        evaluation={"nash_conv": left, "return of player 0": value, "score": -left}, expect={"score": (-row.most, None)},
        solved=left <= row.most, seconds=round(spent, 1), configuration=configuration(name), code=code,
        versions=versions(*PACKAGES), git=git_state(), machine=doctor.processor_and_cores(), curve=curve)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solvers", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(ROWS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/marks.json"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in ROWS]:
        parser.error(f"no rows {', '.join(unknown)}; there are {', '.join(ROWS)}")
    kept, found, code = {mark.key: mark for mark in marks.load(options.out)}, [], marks.code_hash()
    for name in options.names or ROWS:
        for seed in range(options.seeds if draws(ROWS[name].solver) else 1):
            found.append(mark := measure(name, seed, code))
            marks.keep(mark, kept, options.out)
            if not options.json:
                print(f"{name} seed {seed}: {mark.score:.6f} in {mark.seconds} s")
    print(json.dumps(msgspec.to_builtins(found)) if options.json else "\n".join(marks.table(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
