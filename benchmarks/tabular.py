"""Measures what a step of Q-learning on a table costs: a bare NumPy loop, and a robot whose helper learns online.

    python -m benchmarks.tabular [--json] [--rounds N] [--scale X]

The same random walk, formula and ε for all. `FrozenLake` is gymnasium's slippery lake, whose own steps take most of the time, and
`table` a table of it (`TableEnv.from_gymnasium`). `robot` is a whole run (agent, environment face, stop condition, helper, task);
`helper` is `predict` and `store` alone, beside the choice and the update of the loop alone. Microseconds are the process's own
time per step, best of the rounds, so that what else runs on the machine counts less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time

import gymnasium as gym
import numpy as np

from benchmarks.common import machine, report
from parl_like import ComputationTask, Robot, create_algorithm_func
from parl_like.agents.online import OnlineHelper
from parl_like.algorithms import QLearning
from parl_like.envs.tabular import RandomWalk, TableEnv
from parl_like.models import QTable

LENGTH, LR, GAMMA, EPSILON = 19, 0.1, 0.99, 0.1


def choose(q: np.ndarray, s: int, rng: np.random.Generator) -> int:
    return int(rng.random() * q.shape[1]) if rng.random() < EPSILON else int(q[s].argmax())


def lake() -> gym.Env:
    return gym.make("FrozenLake-v1", disable_env_checker=True)


def table() -> gym.Env:
    return gym.wrappers.TimeLimit(TableEnv.from_gymnasium(gym.make("FrozenLake-v1")), 100)


def walk() -> gym.Env:
    return RandomWalk(LENGTH)


def bare_loop(steps: int, make_env: Callable[[], gym.Env] = walk) -> None:
    env, rng = make_env(), np.random.default_rng(0)
    q = np.zeros((env.observation_space.n, env.action_space.n))
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


def make(make_env: Callable[[], gym.Env] = walk) -> Robot:
    env = make_env()
    func = create_algorithm_func(QTable, dict(obs=env.observation_space, act=env.action_space), QLearning,
                                 dict(lr=LR, gamma=GAMMA, epsilon=EPSILON))
    return Robot(make_env, tasks={"RL": ComputationTask(func, OnlineHelper)})


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

    with make() as robot, make() as other, make(lake) as on_ice, make(table) as in_table:
        helper = other.agents[0].helpers["RL"]

        def helper_parts(steps: int) -> None:
            for _ in range(steps):
                helper.store(5, helper.predict(5), 0.0, 6, False, False)

        for _ in range(options.rounds):
            timed("loop", bare_loop)
            timed("robot", robot.run)
            timed("loop, FrozenLake", partial(bare_loop, make_env=lake))
            timed("robot, FrozenLake", on_ice.run)
            timed("loop, table", partial(bare_loop, make_env=table))
            timed("robot, table", in_table.run)
            timed("choice and update", bare_parts)
            timed("helper", helper_parts)
    ours = {"helper": best["helper"] - best["choice and update"], "robot": best["robot"] - best["loop"]}
    report({"bench": "tabular", "machine": machine(), "us_per_step": best, "ours_us_per_step": ours}, options.json,
           [f"{name:18} {us:6.2f} µs a step" for name, us in best.items()]
           + [f"ours: {ours['helper']:.2f} µs of the helper and the task, {ours['robot']:.2f} µs of the whole robot"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
