"""What planning is worth on small Sokoban: the mini experiments of Thinker, several seeds each, after the same number of real
steps.

    python -m benchmarks.thinker_learning --json docs/thinker-mini.json --plot docs/thinker-mini.png

Solve rate over the last 500 training episodes along the run, and of 500 episodes on held-out levels at its end, with drawn
actions, as the published numbers have it. One process and one torch thread per run, `--jobs` of them at a time. Runs that the
file has already are kept.
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

EXPERIMENTS = ("raw-sokoban-mini", "thinker-sokoban-mini", "thinker-perfect-mini")
SOLVED = 5.0  # a solved level of one box returns 11 less 0.01 a step, another at most 1
POINTS, WINDOW, EPISODES = 20, 500, 500


def run(name: str, seed: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """One run, measured."""
    import numpy as np
    import torch

    from parl_like.lab import config as configs
    from parl_like.lab import experiment as experiments
    from parl_like.stages import Hook, StopAfterSteps

    torch.set_num_threads(1)
    experiment = experiments.get(name)
    module = experiment.module()
    config = configs.resolve(module.Config, experiment.config, overrides, {"seed": seed})
    ended: deque[bool] = deque(maxlen=WINDOW)

    class Solved(Hook):
        def post_episode(self, agent: Any, interrupted: bool) -> None:
            if not interrupted:
                ended.append(agent.env.episode_return > SOLVED)

    curve, seconds = [], 0.0
    with module.build(config) as robot:
        for k in range(POINTS):
            begin = time.perf_counter()
            robot.run(StopAfterSteps(config.total_steps * (k + 1) // POINTS - robot.env_steps), hooks=[Solved()])
            seconds += time.perf_counter() - begin
            curve.append([robot.env_steps, float(np.mean(ended)) if ended else 0.0])
            print(f"  {name}, seed {seed}: {robot.env_steps:,} steps, {seconds:.0f} s, {100 * curve[-1][1]:.0f} %",
                  file=sys.stderr, flush=True)
        returns = np.array(robot.evaluate(EPISODES, seed=12345).returns)
        counters = robot.counters()
    solved = float((returns > SOLVED).mean())
    error = 1.96 * math.sqrt(solved * (1 - solved) / len(returns))
    return {"experiment": name, "seed": seed, "overrides": overrides, "steps": config.total_steps, "seconds": round(seconds, 1),
            "solved": solved, "confidence": [solved - error, solved + error], "mean_return": float(returns.mean()),
            "counters": counters, "curve": curve}


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
    axes.set(xlabel="real steps", ylabel=f"solved, last {WINDOW} training episodes", ylim=(0, 1), title="6x6 Sokoban, one box")
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
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    options = parser.parse_args(argv)
    overrides = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in options.overrides)}
    if options.one:
        print(json.dumps(run(options.one[0], int(options.one[1]), overrides)))
        return 0
    runs: list[dict[str, Any]] = json.loads(options.json.read_text()) if options.json.exists() else []
    known = {(r["experiment"], r["seed"]) for r in runs}
    waiting = [(name, seed) for seed in options.seeds for name in options.only if (name, seed) not in known]
    going: list[subprocess.Popen[str]] = []
    while waiting or going:
        while waiting and len(going) < options.jobs:
            name, seed = waiting.pop(0)
            words = [sys.executable, "-m", "benchmarks.thinker_learning", *options.overrides, "--one", name, str(seed)]
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
            options.json.write_text(json.dumps(runs, indent=1) + "\n")
    if options.plot:
        plot(runs, options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
