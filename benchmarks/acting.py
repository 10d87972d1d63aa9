"""Acting alone: predictions of a task with compiled networks beside those through torch, one VectorAgent beside n agents, and
what a step costs with many agents.

Predictions: `task.predict` of 1, 8 and 64 rows; calls per second. Agents: environment steps per second in CartPole-v1, where
nothing is learned, and where PPO learns from 128 steps of each environment. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.common import compare, machine, ratio, report
from parl_like import ComputationTask, OnPolicyHelper, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import DDPG, DQN, PPO, SAC
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.learning.native import Network, networks_of
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ

OBS, TWO, BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Discrete(2), gym.spaces.Box(-1.0, 1.0, (6,), np.float32)
KINDS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "PPO 2 × 64": (MLPActorCritic, PPO, TWO, {}), "PPO 2 × 64, Box": (MLPActorCritic, PPO, BOX, {}),
    "DQN 2 × 64": (MLPQ, DQN, TWO, {}), "SAC 2 × 256": (MLPActorQ, SAC, BOX, {"hidden": (256, 256)}),
    "DDPG 2 × 256": (MLPActorQ, DDPG, BOX, {"hidden": (256, 256), "policy": "deterministic"}),
}  # fmt: skip
ROWS, MANY, UNROLL = (1, 8, 64), (64, 256, 512, 1024), 128


def task_of(kind: str) -> ComputationTask:
    model, algorithm, act, options = KINDS[kind]
    task = ComputationTask(create_algorithm_func(model, {"obs": OBS, "act": act, **options}, algorithm, {}), train=False)
    task.build()
    return task


def ppo() -> Callable[[], Any]:
    env = gym.make("CartPole-v1")
    return create_algorithm_func(MLPActorCritic, {"obs": env.observation_space, "act": env.action_space}, PPO, {})


def predicting(task: ComputationTask, rows: int, native: Mapping[str, Network], calls: int) -> float:
    model, inputs = task.algorithm.model, {"obs": np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)}
    before, model.native = model.native, native
    try:
        begin = perf_counter()
        for _ in range(calls):
            task.predict(inputs)
        return calls / (perf_counter() - begin)
    finally:
        model.native = before


def stepping(steps: int, n: int, vector: bool, learns: bool = False) -> float:
    many: dict[str, Any] = {"agent": partial(VectorAgent, n)} if vector else {"n_agents": n}
    task = ComputationTask(ppo(), partial(OnPolicyHelper, unroll=UNROLL) if learns else None, train=learns)
    with Robot("CartPole-v1", tasks={"RL": task}, seed=0, **many) as robot:
        robot.run(StopAfterSteps((UNROLL if learns else 2) * n))
        begin, before = perf_counter(), robot.env_steps
        robot.run(StopAfterSteps(max(steps, 4 * n)))
        return (robot.env_steps - before) / (perf_counter() - begin)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench acting", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the calls and steps, for a quick look")
    options = parser.parse_args(argv)
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result, lines = measure(options.rounds, options.scale)
    finally:
        torch.set_num_threads(threads)
    report(result, options.json, lines)
    return 0


def measure(rounds: int, scale: float) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {"bench": "acting", "machine": machine(), "predict": {}, "agents": {}, "many": {}}
    lines = []
    for kind in KINDS:
        task = task_of(kind)
        networks = networks_of(task.algorithm.model)
        for n in ROWS:
            work = partial(predicting, task, n, calls=max(int(2_000 * scale), 2))
            rates = compare({"native": partial(work, networks), "torch": partial(work, {})}, rounds)
            result["predict"][f"{kind}, {n} rows"] = {"rates": rates, "ratio": ratio(rates["native"], rates["torch"])}
            took = ", ".join(f"{name} {1e6 / rate['median']:.1f} µs" for name, rate in rates.items())
            lines.append(f"{kind}, {n} rows: {took}, {ratio(rates['native'], rates['torch']):.1f}×")
    for n in (8, 64):
        for learns in (False, True):
            work_of = partial(stepping, int((80_000 if learns else 20_000) * scale), n, learns=learns)
            rates = compare({"VectorAgent": partial(work_of, True), "agents": partial(work_of, False)}, rounds)
            name = f"{n}, PPO learns" if learns else f"{n}"
            result["agents"][name] = {"rates": rates, "ratio": ratio(rates["VectorAgent"], rates["agents"])}
            lines.append(f"{name}: " + ", ".join(f"{who} {rate['median']:,.0f} steps/s" for who, rate in rates.items())
                         + f", {ratio(rates['VectorAgent'], rates['agents']):.2f}×")
    counts = [n for n in MANY if n <= max(MANY[-1] * scale, 64)]
    rates = compare({str(n): partial(stepping, int(40_000 * scale), n, False) for n in counts}, rounds)
    base = counts[min(1, len(counts) - 1)]
    for n in counts:
        rate, cost = rates[str(n)], ratio(rates[str(base)], rates[str(n)])
        result["many"][str(n)] = {"rate": rate, "cost": cost}
        lines.append(f"{n} agents: {1e6 / rate['median']:.1f} µs a step, {cost:.2f}× that of {base}")
    return result, lines


if __name__ == "__main__":
    raise SystemExit(main())
