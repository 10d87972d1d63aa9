"""Solvers of games beside OpenSpiel's (extra `games`): what is left to win after so many iterations, and what one of them costs.

    python -m benchmarks.games [--json] [--scale X]

CFR and CFR+ on Kuhn and Leduc poker (the suits told apart, as there), external and outcome sampling on Kuhn, a best response.
External sampling with three players has the mean of five seeds, beside both ways of averaging that OpenSpiel has.
Milliseconds are the process's own time, so that what else runs on the machine counts less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any

import numpy as np

from benchmarks.common import machine, report
from parl_like.algorithms.games import CFR, CFRPlus, ExternalSampling, OutcomeSampling, nash_conv
from parl_like.algorithms.games.game_tree import GameTree
from parl_like.envs.games import Kuhn, Leduc, uniform

MARKS = (10, 100, 300)


def run(solver: Any, step: Callable[[], object], measure: Callable[[], float], marks: Sequence[int]) -> dict[str, Any]:
    """`nash_conv` after each number of iterations, and milliseconds of one."""
    spent, done, gains = 0.0, 0, {}
    for mark in marks:
        begin = process_time()
        for _ in range(mark - done):
            step()
        spent, done = spent + process_time() - begin, mark
        gains[str(mark)] = measure()
    return {"nash_conv": gains, "ms": 1e3 * spent / done}


def with_three_players(marks: Sequence[int], seeds: int = 5) -> dict[str, Any]:
    """External sampling of Kuhn poker with three players, as `run` gives it, in the mean over seeds. OpenSpiel sums either at the
    next player's moves or in walks over the whole tree."""
    import pyspiel
    from open_spiel.python.algorithms import exploitability, external_sampling_mccfr

    game, theirs, found = Kuhn(3), pyspiel.load_game("kuhn_poker", {"players": 3}), {}
    tree, kinds = GameTree(game), external_sampling_mccfr.AverageType
    for who, average in (("ours", None), ("simple", kinds.SIMPLE), ("full", kinds.FULL)):
        runs = []
        for seed in range(seeds):
            if average is None:
                one = ExternalSampling(game, seed=seed)
                runs.append(run(one, one.learn, lambda one=one: nash_conv(tree, one.average_policy()), marks))
            else:
                np.random.seed(seed)
                other = external_sampling_mccfr.ExternalSamplingSolver(theirs, average)
                runs.append(run(other, other.iteration,
                                lambda other=other: exploitability.nash_conv(theirs, other.average_policy()), marks))
        gains = {str(mark): float(np.mean([one["nash_conv"][str(mark)] for one in runs])) for mark in marks}
        found[who] = {"nash_conv": gains, "ms": float(np.mean([one["ms"] for one in runs]))}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.games", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args(argv)
    import pyspiel
    from open_spiel.python.algorithms import cfr, exploitability, external_sampling_mccfr, outcome_sampling_mccfr

    marks = tuple(dict.fromkeys(max(int(mark * options.scale), 1) for mark in MARKS))
    cases: dict[str, dict[str, Any]] = {}
    for name, game in (("kuhn", Kuhn()), ("leduc", Leduc(suits=True))):
        tree, theirs = GameTree(game), pyspiel.load_game(f"{name}_poker")
        for kind, ours in (("CFR", CFR), ("CFRPlus", CFRPlus)):
            one = ours(tree)
            case = cases[f"{kind} {name}"] = {
                "ours": run(one, one.learn, lambda one=one, tree=tree: nash_conv(tree, one.average_policy()), marks)}
            others = {"C++": getattr(pyspiel, f"{kind}Solver")(theirs), "Python": getattr(cfr, f"{kind}Solver")(theirs)}
            for who, other in others.items():
                few = marks if who == "C++" or name == "kuhn" else marks[:1]
                measure = pyspiel.nash_conv if who == "C++" else exploitability.nash_conv
                case[who] = run(other, other.evaluate_and_update_policy,
                                lambda other=other, measure=measure, theirs=theirs: measure(theirs, other.average_policy()), few)
        begin = process_time()
        nash_conv(tree, uniform)
        middle = process_time()
        exploitability.nash_conv(theirs, cfr.CFRSolver(theirs).average_policy())
        cases[f"nash_conv {name}"] = {"ours": {"ms": 1e3 * (middle - begin)}, "Python": {"ms": 1e3 * (process_time() - middle)}}
    theirs, tree = pyspiel.load_game("kuhn_poker"), GameTree(Kuhn())
    for kind, ours, other in (
        ("external sampling", ExternalSampling, external_sampling_mccfr.ExternalSamplingSolver(theirs)),
        ("outcome sampling", OutcomeSampling, outcome_sampling_mccfr.OutcomeSamplingSolver(theirs)),
    ):
        one = ours(Kuhn())
        cases[f"{kind} kuhn"] = {
            "ours": run(one, one.learn, lambda one=one: nash_conv(tree, one.average_policy()), [10 * marks[-1]]),
            "Python": run(other, other.iteration,
                          lambda other=other: exploitability.nash_conv(theirs, other.average_policy()), [10 * marks[-1]])}
    cases["external sampling kuhn3"] = with_three_players([10 * mark for mark in marks])
    lines = []
    for name, case in cases.items():
        for who, one in case.items():
            gains = "  ".join(f"{mark}: {gain:.6f}" for mark, gain in one.get("nash_conv", {}).items())
            lines.append(f"{name:24} {who:7} {one['ms']:9.3f} ms  {gains}")
    report({"bench": "games", "machine": machine(), "cases": cases}, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
