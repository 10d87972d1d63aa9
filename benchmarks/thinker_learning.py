"""Measures what planning is worth on small Sokoban: the mini experiments of Thinker, several seeds each, after the same number of
real steps.

    python -m benchmarks.thinker_learning --json docs/thinker-mini.json --plot docs/thinker-mini.png

Solve rate over the last 500 training episodes along the run, and of 500 episodes on held-out levels at its end, with drawn
actions, as the published numbers have it. One process per run, with as many torch threads as its configuration says, `--jobs` of
them at a time. Runs that the file has already are kept.
`--setting` makes another experiment of all three, to be kept in a file of its own; key=value before the options goes on top:

    python -m benchmarks.thinker_learning total_steps=50000 --setting boxes-deep --json two-boxes.json --plot two-boxes.png
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from parl_like.data.storage.safe_files import replace_file

EXPERIMENTS = ("raw-sokoban-mini", "thinker-sokoban-mini", "thinker-perfect-mini")
SOLVED = 5.0  # a solved level of n boxes returns 10 + n less 0.01 a step, another at most n - 1
POINTS, WINDOW, EPISODES = 20, 500, 500
BOXES = {"env_options": {"size": 6, "n_boxes": 2, "obs": "planes", "max_steps": 80}, "total_steps": 200_000}
DEEP = {"rec_t": 10, "max_depth": 5, "actor_unroll_len": 20}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # What differs for all experiments, and for those with a tree. CPU minutes of one run of thinker-sokoban-mini:
    "mini": ({}, {}),  # 10
    "deep": ({}, DEEP),  # 14
    "long": ({"total_steps": 300_000}, {}),  # 30
    "deep-long": ({"total_steps": 300_000}, DEEP),  # 42
    "boxes": (BOXES, {}),  # 22
    "boxes-deep": (BOXES, DEEP),  # 30
    "boxes-deep-long": ({**BOXES, "total_steps": 300_000}, DEEP),  # 45
}


def run(name: str, seed: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """One run, measured."""
    import numpy as np
    import torch

    from parl_like.environment.hooks import Hook
    from parl_like.environment.stop_conditions import StopAfterSteps
    from parl_like.lab import config as configs
    from parl_like.lab import experiment as experiments

    experiment = experiments.get(name)
    module = experiment.module()
    config = configs.resolve(module.Config, experiment.config, overrides, {"seed": seed})
    torch.set_num_threads(config.torch_threads)
    ended: deque[bool] = deque(maxlen=WINDOW)

    curve: list[list[float]] = []
    begin, begin_cpu = time.perf_counter(), time.process_time()

    class Solved(Hook):
        """In one run from start to end: one in slices leaves out the episodes open at their ends, which are mostly failures."""

        def post_episode(self, agent: Any, interrupted: bool) -> None:
            if interrupted:
                return
            ended.append(agent.env.episode_return > SOLVED)
            if robot.env_steps >= config.total_steps * (len(curve) + 1) // POINTS:
                curve.append([robot.env_steps, float(np.mean(ended))])
                print(f"  {name}, seed {seed}: {robot.env_steps:,} steps, {time.perf_counter() - begin:.0f} s, "
                      f"{100 * curve[-1][1]:.0f} %", file=sys.stderr, flush=True)

    with module.build(config) as robot:
        robot.run(StopAfterSteps(config.total_steps), hooks=[Solved()])
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        returns = np.array(robot.evaluate(EPISODES, seed=12345).returns)
        counters = robot.counters()
    solved = float((returns > SOLVED).mean())
    error = 1.96 * math.sqrt(solved * (1 - solved) / len(returns))
    return {"experiment": name, "seed": seed, "overrides": overrides, "steps": config.total_steps, "seconds": round(seconds, 1),
            "cpu_seconds": round(cpu, 1), "board": config.env_options, "solved": solved,
            "confidence": [solved - error, solved + error], "mean_return": float(returns.mean()), "counters": counters,
            "curve": curve}


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels = {"raw-sokoban-mini": "no planning", "thinker-sokoban-mini": "learned model", "thinker-perfect-mini": "perfect model"}
    for name, colour in zip(EXPERIMENTS, ("tab:grey", "tab:blue", "tab:green"), strict=True):
        own = [r for r in runs if r["experiment"] == name]
        for i, r in enumerate(own):
            rates = ", ".join(f"{100 * x['solved']:.0f}" for x in own)
            axes.plot(*zip(*r["curve"], strict=True), color=colour, alpha=0.8, label=f"{labels[name]}: held out {rates} %"
                      if not i else None)
    board = runs[0]["board"]
    axes.set(xlabel="real steps", ylabel=f"solved, last {WINDOW} training episodes", ylim=(0, 1),
             title="{0}x{0} Sokoban, boxes: {1}".format(board["size"], board["n_boxes"]))
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.thinker_learning", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("thinker-mini.json"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", default=list(EXPERIMENTS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--setting", choices=SETTINGS, default="mini")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    options = parser.parse_args(argv)
    overrides = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in options.overrides)}
    if options.one:
        name, seed = options.one
        of_all, of_trees = SETTINGS[options.setting]
        print(json.dumps(run(name, int(seed), {**of_all, **(of_trees if name.startswith("thinker") else {}), **overrides})))
        return 0
    runs: list[dict[str, Any]] = json.loads(options.json.read_text()) if options.json.exists() else []
    known = {(r["experiment"], r["seed"]) for r in runs}
    waiting = [(name, seed) for seed in options.seeds for name in options.only if (name, seed) not in known]
    going: list[subprocess.Popen[str]] = []
    while waiting or going:
        while waiting and len(going) < options.jobs:
            name, seed = waiting.pop(0)
            words = [sys.executable, "-m", "benchmarks.thinker_learning", *options.overrides, "--setting", options.setting,
                     "--one", name, str(seed)]
            going.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ))
        time.sleep(0.5)
        for process in [p for p in going if p.poll() is not None]:
            going.remove(process)
            out = process.stdout.read() if process.stdout is not None else ""
            if process.returncode:
                raise SystemExit(f"a run failed with code {process.returncode}")
            runs.append(json.loads(out.splitlines()[-1]))
            r = runs[-1]
            print(f"{r['experiment']}, seed {r['seed']}: {100 * r['solved']:.1f} % of {EPISODES} held-out episodes solved, "
                  f"{r['steps']:,} real steps, {r['seconds']:.0f} s",
                  flush=True)
            runs.sort(key=lambda one: (EXPERIMENTS.index(one["experiment"]), one["seed"]))
            replace_file(options.json, (json.dumps(runs, indent=1) + "\n").encode())
    if options.plot:
        plot(runs, options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
