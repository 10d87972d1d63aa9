"""Rows per second into and out of a replay buffer of float32[4] observations, beside a plain dict of arrays.

Inserting rows one by one (`push`, as agents store; `add`, as users do) and in batches of 64 lanes; sampling batches of 256. The
dict writes and reads the same columns with the least code that can: no checks, no episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import compare, machine, ratio, report
from parl_like import Batch, ReplayBuffer, Spec

SIZE, LANES, BATCH = 65_536, 64, 256
OBS = np.ones(4, np.float32)
ROW = (OBS, 1, 1.0, False, False, OBS)
SPECS = [Spec("obs", (4,), np.dtype(np.float32)), Spec("act", (), np.dtype(np.int64)), Spec("rew", (), np.dtype(np.float64)),
         Spec("terminated", (), np.dtype(bool)), Spec("truncated", (), np.dtype(bool)), Spec("obs_next", (4,), np.dtype(np.float32))]
ROWS = tuple(np.stack([np.asarray(value, spec.dtype)] * LANES) for spec, value in zip(SPECS, ROW, strict=True))
NAMES = [spec.name for spec in SPECS]


def buffer(lanes: int) -> ReplayBuffer:
    made = ReplayBuffer(SIZE, lanes, np.random.default_rng(0))
    made.allocate(SPECS)
    return made


def columns() -> dict[str, Any]:
    return {spec.name: np.zeros((SIZE, *spec.shape), spec.dtype) for spec in SPECS}


def rate(call: Callable[[int], Any], calls: int, rows: int) -> float:
    begin = perf_counter()
    for i in range(calls):
        call(i)
    return calls * rows / (perf_counter() - begin)


def push(n: int) -> float:
    into = buffer(1)
    return rate(lambda i: into.push(0, ROW), n, 1)


def add(n: int) -> float:
    into = buffer(1)
    fields = dict(zip(NAMES, ROW, strict=True))
    return rate(lambda i: into.add(Batch(fields)), n, 1)


def dict_row(n: int) -> float:
    into = list(columns().values())

    def write(i: int) -> None:
        at = i % SIZE
        for column, value in zip(into, ROW, strict=True):
            column[at] = value

    return rate(write, n, 1)


def push_lanes(n: int) -> float:
    into, lanes = buffer(LANES), np.arange(LANES)
    return rate(lambda i: into.push_rows(lanes, ROWS), n, LANES)


def dict_lanes(n: int) -> float:
    into, step = list(columns().values()), np.arange(LANES) * (SIZE // LANES)

    def write(i: int) -> None:
        at = step + i % (SIZE // LANES)
        for column, values in zip(into, ROWS, strict=True):
            column[at] = values

    return rate(write, n, LANES)


def sample(n: int) -> float:
    full = buffer(LANES)
    for _ in range(SIZE // LANES):
        full.push_rows(np.arange(LANES), ROWS)
    return rate(lambda i: full.sample(BATCH), n, BATCH)


def dict_sample(n: int) -> float:
    full, rng = columns(), np.random.default_rng(0)

    def read(i: int) -> dict[str, Any]:
        at = rng.integers(SIZE, size=BATCH)
        return {name: column[at] for name, column in full.items()}

    return rate(read, n, BATCH)


CASES: dict[str, tuple[int, dict[str, Callable[[int], float]]]] = {
    "insert 1 row": (100_000, {"push": push, "dict of arrays": dict_row}),
    "add 1 row": (20_000, {"add": add, "dict of arrays": dict_row}),
    "insert 64 lanes": (10_000, {"push_rows": push_lanes, "dict of arrays": dict_lanes}),
    "sample 256": (10_000, {"sample": sample, "dict of arrays": dict_sample}),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench replay", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the calls, for a quick look")
    options = parser.parse_args(argv)
    result: dict[str, Any] = {"bench": "replay", "unit": "rows/s", "machine": machine(), "cases": {}}
    lines = []
    for case, (calls, contestants) in CASES.items():
        work = {name: partial(run, max(int(calls * options.scale), 1)) for name, run in contestants.items()}
        rates = compare(work, options.rounds)
        ours, plain = contestants
        ratios = {f"vs {plain}": ratio(rates[ours], rates[plain])}
        result["cases"][case] = {"rates": rates, "ratios": ratios}
        lines.append(f"{case}: " + ", ".join(f"{name} {r['median']:,.0f}" for name, r in rates.items()) + f"; vs {plain} {ratios[f'vs {plain}']:.2f}×")
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
