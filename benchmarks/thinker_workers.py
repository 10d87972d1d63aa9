"""Augmented steps per second of a Thinker experiment with its agents in worker processes, against the cooperative driver.

Every contestant is the whole robot, which acts and learns at the experiment's replay ratio; they take turns. `cpu`: seconds of a
core per 1,000 augmented steps, in the robot's process and in its workers. Where the cores are shared with others, `cpu` alone
means something: the larger of the two says what one core each would allow.

    parl-like bench thinker-workers --also "driver=processes n_agents=2 env_n=8" --also "driver=processes mode=sync"
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter, process_time
from typing import Any

import psutil
import torch

from benchmarks.common import compare, machine, ratio, report
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments

GOAL = 1.6


class Contestant:
    """A robot that has begun to learn, and goes on where it is."""

    def __init__(self, experiment: str, words: str, steps: int, warmup: int) -> None:
        known = experiments.get(experiment)
        module = known.module()
        self.config: Any = configs.resolve(module.Config, known.config, {"model_warm_up_n": warmup},
                                           configs.parse_assignments(words.split()))
        self.robot = module.build(self.config)
        self.steps, self.cpu, self.updates = steps, [], []
        self.go_on(2 * warmup + 20 * self.config.env_n)

    def go_on(self, steps: int) -> int:
        robot, before = self.robot, self.robot.env_steps
        for _ in robot.iterate(before + steps):
            pass
        return int(robot.env_steps - before)

    def work(self) -> float:
        def cpu() -> tuple[float, float]:
            own, link = process_time(), getattr(self.robot.pool.driver, "link", None)
            if link is None:
                return own, 0.0
            times = [psutil.Process(link.pid(worker)).cpu_times() for worker in self.robot.pool.driver.workers]
            return own, sum(t.user + t.system for t in times)

        (own, theirs), learned, begin = cpu(), self.robot.tasks["model"].rows_learned, perf_counter()
        taken = self.go_on(self.steps)
        seconds, (own_after, theirs_after) = perf_counter() - begin, cpu()
        augmented = taken * self.config.rec_t
        self.cpu.append((1000 * (own_after - own) / augmented, 1000 * (theirs_after - theirs) / augmented))
        self.updates.append((self.robot.tasks["model"].rows_learned - learned) * self.config.model_unroll_len / taken)
        return augmented / seconds


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench thinker-workers", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--experiment", default="thinker-sokoban-mini")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3000, help="real steps of a round")
    parser.add_argument("--warmup", type=int, default=300, help="rows before the model learns")
    parser.add_argument("--all", default="", metavar="WORDS", help="key=value … of every contestant")
    parser.add_argument("--also", action="append", default=[], metavar="WORDS", help="a further contestant: key=value …")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    names = ["driver=cooperative", "driver=processes", *options.also]
    contestants = {name: Contestant(options.experiment, f"{options.all} {name}", options.steps, options.warmup) for name in names}
    try:
        rates = compare({name: one.work for name, one in contestants.items()}, options.rounds)
    finally:
        for one in contestants.values():
            one.robot.close()
    result: dict[str, Any] = {"bench": "thinker-workers", "experiment": options.experiment, "machine": machine()}
    lines = []
    for name, one in contestants.items():
        own, theirs = (median(side) for side in zip(*one.cpu, strict=True))
        rate = rates[name]
        result[name] = {**rate, "vs cooperative": ratio(rate, rates[names[0]]), "cpu": [own, theirs],
                        "replay_ratio": median(one.updates)}
        goal = f" (goal: ≥ {GOAL})" if name == names[1] else ""
        lines.append(f"{name}: {rate['median']:,.0f} augmented steps/s, {result[name]['vs cooperative']:.2f}x cooperative{goal}; "
                     f"{median(one.updates):.2f} learned steps per real one; cpu {own:.2f} s + {theirs:.2f} s in workers per "
                     f"1,000 (spread {rate['spread']:.2f})")
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
