"""The cost of a timeline: CPU seconds of a run with and without it, by turns; each run is a new robot's, with the same seed.

`windows`: as a user has it, who gets a second at 0, 8, 16, 32, … s. `inside`: everything is recorded, as inside of a window. The
CPU seconds of each kind are the least of the rounds. Without a timeline there is no code of it, so that is the base. They are
those of the robot's process, which writes it; with `--driver processes` and `ray` the agents have others.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.common import machine, report
from parl_like import Robot
from parl_like.data.storage.trace_events import read_events
from parl_like.drivers.timeline import Timeline

KINDS: dict[str, dict[str, Any]] = {"none": {}, "windows": {"seconds": 1.0}, "inside": {"seconds": 1e5, "max_bytes": 1 << 34}}
ROBOTS = {"PPO, CartPole": ("PPO", "CartPole-v1", 200_000), "DQN, CartPole": ("DQN", "CartPole-v1", 25_000),
          "SAC, Pendulum": ("SAC", "Pendulum-v1", 1_200)}


def costs(algorithm: str, env: str, steps: int, rounds: int, folder: Path, driver: str) -> dict[str, float]:
    """Return kind → CPU seconds of so many steps."""
    found, file = dict.fromkeys(KINDS, float("inf")), folder / "timeline.json"
    for _ in range(rounds):
        for kind, options in KINDS.items():
            with Robot.of(algorithm, env, seed=0, total_steps=steps, driver=driver) as robot:
                if driver in ("processes", "ray"):
                    robot.run(64)  # workers are there
                hooks = [] if kind == "none" else [Timeline(file, **options)]
                begin = process_time()
                robot.run(steps, hooks=hooks)
                found[kind] = min(found[kind], process_time() - begin)
            file.unlink(missing_ok=True)
    return found


COLORS = {"step": "#2a9d8f", "waits for RL predictions": "#cfd8dc", "waits for RL updates": "#f4c8a8", "predict": "#3d6fb4",
          "update": "#e76f51", "episode": "none", "turn": "#2a9d8f"}


def picture(out: str) -> None:
    """Draw a second of a real trace, and a few milliseconds of it, as the page ui.perfetto.dev shows them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    with tempfile.TemporaryDirectory() as folder, Robot.of("PPO", "CartPole-v1", seed=0) as robot:
        robot.run(4_096)
        robot.run(60_000, hooks=(timeline := Timeline(Path(folder) / "timeline.json", 1.2)))
        events = read_events(timeline.path)
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    spans = [one for one in events if one["ph"] == "X" and one["name"] in COLORS]
    lanes = sorted({(one["pid"], one["tid"]) for one in spans})
    updates = [one["ts"] for one in spans if one["name"] == "update"]
    figure, axes = plt.subplots(2, 1, figsize=(11, 6.4), dpi=80)
    for axis, (begin, length, unit) in zip(axes, ((100e3, 1e6, "ms"), (updates[1] - 2_400, 3e3, "ms")), strict=True):
        for row, lane in enumerate(lanes):
            for name, color in COLORS.items():
                shown = [(max(one["ts"] - begin, 0) / 1e3, min(one["ts"] + one["dur"] - begin, length) / 1e3) for one in spans
                         if (one["pid"], one["tid"]) == lane and one["name"] == name
                         and one["ts"] < begin + length and one["ts"] + one["dur"] > begin]
                axis.broken_barh([(low, high - low) for low, high in shown], (row + (0.1 if color != "none" else 0.02), 0.8),
                                 facecolors=color, edgecolors="#555555" if color == "none" else "none", linewidth=0.5)
        axis.set_yticks([row + 0.5 for row in range(len(lanes))], [names[lane] for lane in lanes], fontsize=8)
        axis.set_xlim(0, length / 1e3)
        axis.invert_yaxis()
        axis.set_xlabel(f"{unit} of one second" if length == 1e6 else f"{unit} of three, at the end of an unroll", fontsize=9)
    figure.legend(handles=[Patch(facecolor=color, label=name.replace("RL ", "")) for name, color in COLORS.items()
                           if color != "none" and name != "turn"], ncols=5, loc="upper center", fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(out)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench timeline", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps, for a quick look")
    parser.add_argument("--driver", default="cooperative", choices=("cooperative", "threads", "processes", "ray"))
    parser.add_argument("--picture", metavar="FILE", help="instead: draw a second of a trace")
    options = parser.parse_args(argv)
    import torch

    torch.set_num_threads(1)
    if options.picture:
        picture(options.picture)
        return 0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (algorithm, env, steps) in ROBOTS.items():
            seconds = costs(algorithm, env, max(int(steps * options.scale), 64), options.rounds, Path(folder),
                            options.driver)
            found[name] = {"cpu_s": seconds, **{kind: seconds[kind] / seconds["none"] - 1 for kind in ("windows", "inside")}}
    lines = [f"{name:16} without {one['cpu_s']['none']:.3f} s; windows {one['windows']:+.1%}; inside of one {one['inside']:+.1%}"
             for name, one in found.items()]
    report({"bench": "timeline", "machine": machine(), "driver": options.driver, "costs": found}, options.json, lines)
    return 0
