"""Environment steps per second of gymnasium's classic control and toy text in one process: `make_vector_env`, a loop over single
environments of `gym.make`, gymnasium's SyncVectorEnv, and its CartPoleVectorEnv.

All reset by themselves in the step that ends an episode (the loop calls `reset`; CartPoleVectorEnv resets in the next step).
Actions are random, and drawn beforehand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import cycle
from time import perf_counter
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.common import compare, machine, ratio, report
from parl_like.envs.vector import make_vector_env

IDS = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "FrozenLake-v1",
       "CliffWalking-v1", "Taxi-v4")
COUNTS, MILLISECONDS, ACTIONS = (8, 64), 200.0, 512


def stepping(env: Any, n: int, milliseconds: float) -> Callable[[], float]:
    """A function that steps a vector environment for so long, and returns environment steps per second."""
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = cycle([env.action_space.sample() for _ in range(ACTIONS)])

    def run() -> float:
        begin, steps = perf_counter(), 0
        while (seconds := perf_counter() - begin) * 1000 < milliseconds or not steps:
            for _ in range(32):
                env.step(next(actions))
            steps += 32 * n
        return steps / seconds

    return run


def looping(id: str, n: int, milliseconds: float) -> Callable[[], float]:
    """The same of n single environments, one after the other."""
    envs = [gym.make(id) for _ in range(n)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    envs[0].action_space.seed(0)
    actions = cycle([envs[0].action_space.sample() for _ in range(ACTIONS)])

    def run() -> float:
        begin, steps = perf_counter(), 0
        while (seconds := perf_counter() - begin) * 1000 < milliseconds or not steps:
            for env in envs:
                _, _, terminated, truncated, _ = env.step(next(actions))
                if terminated or truncated:
                    env.reset()
            steps += n
        return steps / seconds

    return run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench gym-envs", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the time, for a quick look")
    options = parser.parse_args(argv)
    result, lines = measure(options.rounds, MILLISECONDS * options.scale)
    report(result, options.json, lines)
    return 0


def measure(rounds: int, milliseconds: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {"bench": "gym-envs", "unit": "environment steps/s", "machine": machine(), "cases": {}}
    lines = []
    for id in IDS:
        for n in COUNTS if id in gym.registry else ():
            sync = SyncVectorEnv([lambda id=id: gym.make(id)] * n, autoreset_mode=AutoresetMode.SAME_STEP)  # type: ignore[misc]
            sides = {"ours": stepping(make_vector_env(id, n), n, milliseconds), "loop": looping(id, n, milliseconds),
                     "SyncVectorEnv": stepping(sync, n, milliseconds)}
            if gym.spec(id).vector_entry_point is not None:
                own = gym.make_vec(id, n, vectorization_mode="vector_entry_point")
                sides[type(own.unwrapped).__name__] = stepping(own, n, milliseconds)
            rates = compare(sides, rounds)
            ratios = {f"vs {name}": ratio(rates["ours"], rates[name]) for name in rates if name != "ours"}
            result["cases"][f"{id} × {n}"] = {"rates": rates, "ratios": ratios}
            lines.append(f"{id} × {n}: {rates['ours']['median']:,.0f} steps/s; "
                         + ", ".join(f"{name} {r:.1f}×" for name, r in ratios.items()))
    return result, lines


if __name__ == "__main__":
    raise SystemExit(main())
