"""Compiled search trees beside plain ones: CPU seconds of searches in which nothing else costs time.

    python -m benchmarks.search [--trees 32] [--actions 4] [--simulations 50]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.common import machine
from parl_like.algorithms.search._tree import Kernel
from parl_like.algorithms.search.plain import PlainTrees
from parl_like.algorithms.search.tree import Evaluation, SearchRule, SearchTree


def seconds(kernel: Any, n: int, actions: int, simulations: int, times: int) -> float:
    """Return the least CPU seconds of one search."""
    rng, found = np.random.default_rng(0), []
    leaves = Evaluation(rng.normal(size=n), np.zeros(n, bool), rng.normal(size=n), rng.normal(size=(n, actions)))
    tree = SearchTree(n, actions, simulations, SearchRule(gamma=0.99, normalize=True), kernel)
    for _ in range(times):
        begin = time.process_time()
        tree.begin(leaves.logits, leaves.value)
        tree.run(simulations, lambda _: leaves)
        found.append(time.process_time() - begin)
    return min(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=(__doc__ or "").splitlines()[0])
    for name, default in (("trees", 32), ("actions", 4), ("simulations", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    numbers = given.trees, given.actions, given.simulations
    compiled, plain = seconds(Kernel, *numbers, 30), seconds(PlainTrees, *numbers, 5)
    if given.json:
        print(json.dumps({"bench": "search", "machine": machine(), "compiled_s": compiled, "plain_s": plain}))
        return 0
    print(f"{given.trees} trees, {given.simulations} simulations: compiled {1e3 * compiled:.2f} ms, plain {1e3 * plain:.2f} ms, "
          f"{plain / compiled:.0f} times as long")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
