"""Environment steps per second, one thread, random actions, automatic reset with the same step; and generated levels per second.

Sokoban, Boxoban's size (10×10, 4 boxes): `fresh` draws whole images into a new array, `in place` only what changes into the same array,
`planes` are symbolic; `boards` is the bare call, `vector env` gymnasium's interface on top. A reset is of all boards, observations
included. Actions are drawn beforehand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.common import compare, machine, report
from parl_like.envs.sokoban import SPRITES, Boards, Levels, SokobanVectorEnv

COUNTS, MILLISECONDS, ACTIONS = (16, 64), 200.0, 512
GENERATED = ((7, 2), (10, 4))


def rate(call: Callable[[int], Any], per_call: int, milliseconds: float) -> float:
    """Units per second of at least so many milliseconds of calls, the first of them not counted. `call` gets its number."""
    call(0)
    calls, begin = 0, perf_counter()
    while True:
        for _ in range(16):
            call(calls)
            calls += 1
        seconds = perf_counter() - begin
        if seconds * 1000 >= milliseconds:
            return calls * per_call / seconds


def steps_of(n: int, levels: Levels, planes: bool, in_place: bool) -> Callable[[int], Any]:
    boards = Boards(n, levels.size, levels.packed, SPRITES, autoreset=2, planes=planes)
    rew, terminated, truncated = np.empty(n, np.float32), np.empty(n, np.bool_), np.empty(n, np.bool_)
    own = np.empty((n, *boards.obs_shape), np.uint8)
    actions = np.random.default_rng(n).integers(0, 5, (ACTIONS, n))

    def step(k: int) -> None:
        obs = own if in_place else np.empty_like(own)
        boards.step(actions[k % ACTIONS], rew, terminated, truncated, obs, None, in_place)

    return step


def vector_of(n: int, levels: Levels, obs: str, copy: bool) -> Callable[[int], Any]:
    envs = SokobanVectorEnv(n, levels, obs=obs, copy=copy, autoreset_mode="SameStep")
    envs.reset(seed=0)
    actions = np.random.default_rng(n).integers(0, 5, (ACTIONS, n))
    return lambda k: envs.step(actions[k % ACTIONS])


def resets_of(n: int, levels: Levels, planes: bool) -> Callable[[int], Any]:
    boards = Boards(n, levels.size, levels.packed, SPRITES, planes=planes)
    obs = np.empty((n, *boards.obs_shape), np.uint8)

    def reset(k: int) -> None:
        boards.reset()
        boards.observe(obs, True)

    return reset


def making(size: int, n_boxes: int) -> Callable[[int], Any]:
    return lambda k: Levels.generate(20, size, n_boxes, seed=1, first=20 * k)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench envs", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the calls, for a quick look")
    parser.add_argument("--levels", default=None, help="a Boxoban file or folder; without it: the levels that ship with the package")
    options = parser.parse_args(argv)
    levels = Levels.load(options.levels) if options.levels else Levels.shipped(10, 4)
    result, lines = measure(levels, options.rounds, MILLISECONDS * options.scale)
    report(result, options.json, lines)
    return 0


def measure(levels: Levels, rounds: int, milliseconds: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {"bench": "envs", "unit": "steps/s", "machine": machine(), "sokoban": {}, "reset_us": {}, "levels_per_s": {}}
    lines = []
    for n in COUNTS:
        calls = {
            "boards, fresh": steps_of(n, levels, False, False), "boards, in place": steps_of(n, levels, False, True),
            "boards, planes fresh": steps_of(n, levels, True, False), "boards, planes in place": steps_of(n, levels, True, True),
            "vector env, fresh": vector_of(n, levels, "image", True), "vector env, in place": vector_of(n, levels, "image", False),
            "vector env, planes fresh": vector_of(n, levels, "planes", True), "vector env, planes in place": vector_of(n, levels, "planes", False),
        }
        rates = compare({name: lambda call=call: rate(call, n, milliseconds) for name, call in calls.items()}, rounds)
        result["sokoban"][str(n)] = rates
        lines += [f"Sokoban, {n} boards, {name}: {r['median']:,.0f} steps/s (spread {r['spread']:.2f})" for name, r in rates.items()]
        resets = {"image": resets_of(n, levels, False), "planes": resets_of(n, levels, True)}
        rates = compare({name: lambda call=call: rate(call, n, milliseconds) for name, call in resets.items()}, rounds)
        result["reset_us"][str(n)] = {name: 1e6 / r["median"] for name, r in rates.items()}
        lines += [f"Sokoban, {n} boards, reset, {name}: {1e6 / r['median']:.2f} µs (spread {r['spread']:.2f})" for name, r in rates.items()]
    rates = compare({f"{size}x{size}, {n_boxes} boxes": lambda size=size, n_boxes=n_boxes: rate(making(size, n_boxes), 20, milliseconds)
                     for size, n_boxes in GENERATED}, rounds)
    result["levels_per_s"] = rates
    lines += [f"Sokoban generator, {name}: {r['median']:,.0f} solvable levels/s (spread {r['spread']:.2f})" for name, r in rates.items()]
    return result, lines


if __name__ == "__main__":
    raise SystemExit(main())
