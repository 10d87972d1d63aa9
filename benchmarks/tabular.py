"""Measures what a step of Q-learning on a table costs: a bare NumPy loop, and a robot whose helper learns online.

    python -m benchmarks.tabular [--json] [--rounds N] [--scale X]

The same random walk, formula and ε for all. `robot` is a whole run (agent, environment face, stop condition, helper, task);
`helper` is `predict` and `store` alone, beside the choice and the update of the loop alone. Microseconds are the process's own
time per step, best of the rounds, so that what else runs on the machine counts less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from time import process_time

import numpy as np

from benchmarks.common import machine, report
from parl_like import ComputationTask, Robot, create_algorithm_func
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms import QLearning
from parl_like.envs.tabular import RandomWalk
from parl_like.models import QTable

LENGTH, LR, GAMMA, EPSILON = 19, 0.1, 0.99, 0.1


def choose(q: np.ndarray, s: int, rng: np.random.Generator) -> int:
    return int(rng.random() * 2) if rng.random() < EPSILON else int(q[s].argmax())


def bare_loop(steps: int) -> None:
    env, rng, q = RandomWalk(LENGTH), np.random.default_rng(0), np.zeros((LENGTH, 2))
    s, _ = env.reset(seed=0)
    for _ in range(steps):
        a = choose(q, s, rng)
        s_next, rew, terminated, truncated, _ = env.step(a)
        q[s, a] += LR * (rew + GAMMA * (1.0 - terminated) * q[s_next].max() - q[s, a])
        s = env.reset()[0] if terminated or truncated else s_next


def bare_parts(steps: int) -> None:
    rng, q = np.random.default_rng(0), np.zeros((LENGTH, 2))
    for _ in range(steps):
        a = choose(q, 5, rng)
        q[5, a] += LR * (0.0 + GAMMA * (1.0 - False) * q[6].max() - q[5, a])


def make() -> Robot:
    env = RandomWalk(LENGTH)
    func = create_algorithm_func(QTable, dict(obs=env.observation_space, act=env.action_space), QLearning,
                                 dict(lr=LR, gamma=GAMMA, epsilon=EPSILON))
    return Robot(lambda: RandomWalk(LENGTH), tasks={"RL": ComputationTask(func, OnlineHelper)})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args(argv)
    steps = max(int(20_000 * options.scale), 10)
    best: dict[str, float] = {}

    def timed(name: str, work: Callable[[int], None]) -> None:
        begin = process_time()
        work(steps)
        best[name] = min(best.get(name, np.inf), (process_time() - begin) / steps * 1e6)

    with make() as robot, make() as other:
        helper = other.agents[0].helpers["RL"]

        def helper_parts(steps: int) -> None:
            for _ in range(steps):
                helper.store(5, helper.predict(5), 0.0, 6, False, False)

        for _ in range(options.rounds):
            timed("loop", bare_loop)
            timed("robot", robot.run)
            timed("choice and update", bare_parts)
            timed("helper", helper_parts)
    ours = {"helper": best["helper"] - best["choice and update"], "robot": best["robot"] - best["loop"]}
    report({"bench": "tabular", "machine": machine(), "us_per_step": best, "ours_us_per_step": ours}, options.json,
           [f"{name:18} {us:6.2f} µs a step" for name, us in best.items()]
           + [f"ours: {ours['helper']:.2f} µs of the helper and the task, {ours['robot']:.2f} µs of the whole robot"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
