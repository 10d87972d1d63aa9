"""Rows per second into and out of replay buffers: ours, a plain dict of arrays, and those of Tianshou, stable-baselines3, TorchRL
and cpprb.

Inserting rows one by one and in batches of 64 lanes; sampling batches of 256: float32[4], stacks of 4 frames 84 × 84, 3-step
returns, prioritised with an update. `push` is what agents store with; `add` takes a dict of fields, as most of the others do. The
dict of arrays has no checks, no episodes and no lanes: the least that can be done. Libraries that are not installed are skipped
with a word.

At the end the memory of a stored Atari transition, and the time of prioritised writing, sampling and updating among 10⁶ rows
against 10⁴ rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import compare, machine, ratio, report
from benchmarks.replay_peers import BATCH, FRAMES, LANES, OBS, PEERS, SIZES, STACK, TD, Ours
from parl_like import PrioritizedReplayBuffer, ReplayBuffer

INSERT_ONE, INSERT_MANY = "insert 1 row", f"insert {LANES} lanes"
SAMPLES = {f"sample {BATCH}": "rows", f"sample {BATCH} images": "images", f"sample {BATCH} n-step": "n-step",
           f"sample {BATCH} prioritised": "prioritised"}  # fmt: skip
CALLS = {INSERT_ONE: 20_000, INSERT_MANY: 5_000, **dict.fromkeys(SAMPLES, 4_000), f"sample {BATCH} images": 60}


class DictOfArrays:
    def __init__(self) -> None:
        values = {"obs": OBS, "act": np.int64(1), "rew": np.float64(1), "terminated": np.False_, "truncated": np.False_,
                  "obs_next": OBS}
        self.columns = {name: np.zeros((SIZES["rows"], *value.shape), value.dtype) for name, value in values.items()}
        self.row = OBS, 1, 1.0, False, False, OBS
        self.rows = [np.stack([value] * LANES) for value in values.values()]
        self.lanes = np.arange(LANES) * (SIZES["rows"] // LANES)
        self.rng = np.random.default_rng(0)

    def one(self, i: int) -> None:
        at = i % SIZES["rows"]
        for column, value in zip(self.columns.values(), self.row, strict=True):
            column[at] = value

    def many(self, i: int) -> None:
        at = self.lanes + i % (SIZES["rows"] // LANES)
        for column, values in zip(self.columns.values(), self.rows, strict=True):
            column[at] = values

    def sample(self) -> dict[str, Any]:
        at = self.rng.integers(SIZES["rows"], size=BATCH)
        return {name: column[at] for name, column in self.columns.items()}


def rate(call: Callable[[], Any], calls: int, rows: int) -> float:
    begin = perf_counter()
    for _ in range(calls):
        call()
    return calls * rows / (perf_counter() - begin)


def counted(call: Callable[[int], Any]) -> Callable[[], Any]:
    at = 0

    def step() -> None:
        nonlocal at
        call(at)
        at += 1

    return step


def full(contestant: Any, kind: str) -> Callable[[], Any]:
    for i in range(SIZES[kind]):
        contestant.one(i)
    contestant.sample()
    return contestant.sample  # type: ignore[no-any-return]


def contestants(case: str, peers: dict[str, Any]) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Return what each contestant does in one call, and why some do not take part."""
    makers: dict[str, Callable[[], Any]] = {"push": partial(Ours), "add": partial(Ours, dicts=True), **peers}
    calls: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    if case in SAMPLES:
        kind = SAMPLES[case]
        for name, make in makers.items():
            if name != "add":
                try:
                    calls["sample" if name == "push" else name] = full(make(kind), kind)
                except (NotImplementedError, RuntimeError) as error:  # TorchRL's prioritised sampler needs a compiled part
                    missing[name] = str(error)
        if kind == "rows":
            calls["dict of arrays"] = DictOfArrays().sample
    elif case == INSERT_ONE:
        calls = {name: counted(make("rows").one) for name, make in makers.items()}
        calls["dict of arrays"] = counted(DictOfArrays().one)
    else:
        calls = {name: counted(make("rows", LANES).many) for name, make in makers.items()}
        calls["dict of arrays"] = counted(DictOfArrays().many)
    return calls, missing


def atari_bytes(rows: int) -> float:
    """Bytes that a buffer of `rows` filled Atari transitions takes, by the process's peak memory is too coarse: by its arrays."""
    import tracemalloc

    tracemalloc.start()  # NumPy tells it of its arrays
    before = tracemalloc.get_traced_memory()[0]
    buffer = ReplayBuffer(rows, stack_num=STACK, ignore_obs_next=True, save_only_last_obs=True)
    stack = FRAMES[:STACK]
    for i in range(rows):
        buffer.add({"obs": stack, "act": 1, "rew": 1.0, "terminated": False, "truncated": i % 1000 == 999, "obs_next": stack})
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / rows


def growth(calls: int) -> float:
    """Time of a prioritised write, sample and update of a batch among 10⁶ rows, over that among 10⁴ rows."""
    rows = {name: np.zeros(4096, dtype) for name, dtype in (("obs", np.int64), ("act", np.int64), ("rew", float),
                                                            ("terminated", bool), ("truncated", bool))}

    def filled(size: int) -> PrioritizedReplayBuffer:
        buffer = PrioritizedReplayBuffer(size)
        for _ in range(-(-size // 4096)):
            buffer.add(rows, np.zeros(4096, np.int64))
        return buffer

    def step(buffer: PrioritizedReplayBuffer) -> None:
        buffer.push(0, (1, 1, 1.0, False, False))
        buffer.update_weight(buffer.sample(BATCH)[1], TD)

    small, large = filled(10_000), filled(1_000_000)
    rates = compare({"10⁴": lambda: rate(lambda: step(small), calls, 1), "10⁶": lambda: rate(lambda: step(large), calls, 1)}, 5)
    return ratio(rates["10⁴"], rates["10⁶"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench replay", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the calls and rows, for a quick look")
    parser.add_argument("--case", action="append", help="only cases that contain this text")
    parser.add_argument("--alone", action="store_true", help="without the other libraries")
    options = parser.parse_args(argv)
    import torch

    torch.set_num_threads(1)
    peers = {name: make for name, make in PEERS.items() if not options.alone and find_spec(name) is not None}
    for name in PEERS.keys() - peers.keys():
        print(f"{name} is not installed: skipped" if not options.alone else f"{name}: left out", file=sys.stderr)
    SIZES.update({kind: min(size, max(int(size * options.scale), 1024)) for kind, size in SIZES.items()})
    result: dict[str, Any] = {"bench": "replay", "unit": "rows/s", "machine": machine(), "cases": {}}
    lines = []
    for case, calls in CALLS.items():
        if options.case and not any(text in case for text in options.case):
            continue
        work, missing = contestants(case, peers)
        per_call = 1 if case == INSERT_ONE else LANES if case == INSERT_MANY else BATCH
        rates = compare({name: partial(rate, call, max(int(calls * options.scale), 1), per_call) for name, call in work.items()},
                        options.rounds)
        mine = [name for name in rates if name in ("push", "add", "sample")]
        ratios = {f"{own} vs {other}": ratio(rates[own], rates[other]) for own in mine for other in rates if other not in mine}
        result["cases"][case] = {"rates": rates, "ratios": ratios, "missing": missing}
        lines += [f"{case}: " + ", ".join(f"{name} {r['median']:,.0f}" for name, r in rates.items())]
        lines += ["    " + ", ".join(f"{name} {value:.2f}×" for name, value in ratios.items())]
        lines += [f"    {name}: {why}" for name, why in missing.items()]
    if not options.case:
        rows = max(int(100_000 * options.scale), 1000)
        result["atari_bytes_per_row"], result["atari_rows"] = atari_bytes(rows), rows
        result["prioritised_growth"] = growth(max(int(2_000 * options.scale), 10))
        lines += [f"an Atari transition in a buffer of {rows:,}: {result['atari_bytes_per_row']:,.0f} bytes",
                  f"prioritised write + sample + update of {BATCH}: among 10⁶ rows {result['prioritised_growth']:.2f}× the time "
                  "among 10⁴"]
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
