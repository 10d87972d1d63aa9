"""Microseconds of an optimiser step, in compiled loops and by torch: whole updates of a task, on one thread.

PPO with 2×64 tanh networks of actor and critic, minibatches of 64 and 256 of 1,024 rows; DQN with 2×64 and 64 rows; SAC and TD3
with 2×256 and 256 rows.
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.common import compare, machine, ratio, report
from parl_like import ComputationTask, create_algorithm_func
from parl_like.algorithms import DQN, PPO, SAC, TD3
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ

OBS, TWO, BOX = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,))
CASES: dict[str, tuple[Any, ...]] = {
    "PPO, 64 rows": (PPO, dict(minibatches=16), MLPActorCritic, dict(hidden=[64, 64]), TWO, 1024),
    "PPO, 256 rows": (PPO, dict(minibatches=4), MLPActorCritic, dict(hidden=[64, 64]), TWO, 1024),
    "DQN, 64 rows": (DQN, {}, MLPQ, dict(hidden=[64, 64]), TWO, 64),
    "SAC, 256 rows": (SAC, {}, MLPActorQ, dict(hidden=[256, 256]), BOX, 256),
    "TD3, 256 rows": (TD3, {}, MLPActorQ, dict(hidden=[256, 256], policy="deterministic"), BOX, 256),
}


def rate(task: ComputationTask, rows: dict[str, Any], updates: int) -> float:
    """Optimiser steps per second."""
    begin, before = perf_counter(), task.algorithm.updates
    for _ in range(updates):
        task.learn(rows)
    return (task.algorithm.updates - before) / (perf_counter() - begin)


def contestants(case: str, updates: int) -> dict[str, Any]:
    algorithm, options, model, of_model, act, n = CASES[case]
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((n + 1, 4)).astype(np.float32)
    acts = rng.integers(0, 2, n) if act is TWO else np.tanh(rng.standard_normal((n, 2))).astype(np.float32)
    rows = dict(obs=obs[:-1], obs_next=obs[1:], act=acts, rew=rng.standard_normal(n).astype(np.float32),
                terminated=rng.random(n) < 0.05, truncated=np.zeros(n, bool), last=np.arange(n) % 16 == 15)
    ways = {}
    for name, native in (("parl_like", True), ("by torch", False)):
        func = create_algorithm_func(model, dict(obs=OBS, act=act, **of_model), algorithm, options)
        task = ComputationTask(func, native=native)
        task.build()
        task.learn(rows)
        ways[name] = lambda task=task: rate(task, rows, updates)
    return ways


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench native-update", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the updates, for a quick look")
    parser.add_argument("--case", choices=list(CASES), action="append", help="default: all")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    result: dict[str, Any] = {"bench": "native-update", "unit": "optimiser steps/s", "machine": machine(), "cases": {}}
    lines = []
    for case in options.case or CASES:
        rates = compare(contestants(case, max(round(20 * options.scale), 1)), options.rounds)
        times = ratio(rates["parl_like"], rates["by torch"])
        result["cases"][case] = {"rates": rates, "ratios": {"vs by torch": times}}
        lines.append(f"{case}: " + ", ".join(f"{k} {1e6 / v['median']:,.0f} µs" for k, v in rates.items()) + f"; {times:.2f}×")
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
