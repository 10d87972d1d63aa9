"""Training with environments that take long: the driver `processes` beside Sample Factory 2 and stable-baselines3.

    parl-like bench heavy-envs [--case "spin 200"] [--of "parl_like, async"] [--peer-python PATH]

A case is how a step of the environment takes its time, and how many microseconds: 'spin' burns the processor's time of its own
thread (the clock stands still while another process runs, so more processes than cores gain nothing), 'sleep' waits. Each
contestant trains PPO end to end in a process of its own, by turns with the others (`benchmarks.heavy_contestants`). `processes`
comes as it is; Sample Factory has its own defaults, but for the network and the sizes of batches, and as many workers and
environments: asynchronous, two halves of a worker's environments by turns. stable-baselines3 has a process per environment.

Ratios are medians of the rounds' own ratios. `cores` is the processor time that a contestant took per second, and µs is that of a
step, the environment's own included: on a machine that does other work, too, this tells more than steps per second.

Sample Factory needs older versions of NumPy and gymnasium than this package allows, so give it an environment of its own:

    python -m venv sf && sf/bin/pip install sample-factory psutil
    parl-like bench heavy-envs --peer-python sf/bin/python

Where a peer is not there it is left out, with a word.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import compare, machine, ratio, report
from benchmarks.heavy_contestants import CONTESTANTS

CASES = {f"{spend} {us}": (spend, us) for spend in ("spin", "sleep") for us in (200, 1000, 5000)}
OURS = "parl_like"
DEFAULT = ("parl_like", "parl_like, async", "Sample Factory", "stable-baselines3")
MODULES = {"Sample Factory": "sample_factory", "stable-baselines3": "stable_baselines3"}


def python_of(name: str, peer: str) -> str:
    return peer if name == "Sample Factory" else sys.executable


def missing(name: str, peer: str) -> bool:
    """Return whether a contestant is not installed."""
    module = MODULES.get(name)
    return module is not None and bool(subprocess.run([python_of(name, peer), "-c", f"import {module}"], capture_output=True,
                                                      check=False).returncode)


def measured(name: str, spend: str, us: int, options: argparse.Namespace, found: list[dict[str, float]]) -> float:
    """Return the steps per second of one run, and keep all that it said."""
    words = [python_of(name, options.peer_python), "-m", "benchmarks.heavy_contestants", name, "--spend", spend, "--us", str(us),
             "--agents", str(options.agents), "--workers", str(options.workers), "--seconds", str(options.seconds)]
    root = str(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory() as folder:  # for what a peer leaves behind
        run = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300,
                             env={**os.environ, "PYTHONPATH": root, "TMPDIR": folder})
    if run.returncode:
        raise RuntimeError(f"{name} failed:\n{run.stderr[-2000:]}")
    found.append(json.loads(run.stdout.splitlines()[-1]))
    return found[-1]["steps_per_s"]


def measure(options: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:
    names = []
    result: dict[str, Any] = {"bench": "heavy-envs", "unit": "steps/s", "machine": machine(), "agents": options.agents,
                              "workers": options.workers, "cases": {}}
    for name in options.of or DEFAULT:
        if missing(name, options.peer_python):
            say(f"{name}: left out, {MODULES[name]} is not installed")
        else:
            names.append(name)
    for case in options.case or CASES:
        spend, us = CASES[case]
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        rates = compare({name: partial(measured, name, spend, us, options, found[name]) for name in names}, options.rounds)
        peers = [name for name in names if not name.startswith(OURS)]
        ours = [name for name in names if name.startswith(OURS)]
        result["cases"][case] = {"rates": rates, "runs": found,
                                 "ratios": {f"{one} vs {peer}": ratio(rates[one], rates[peer]) for one in ours for peer in peers}}
        for name in names:
            costs = min(run["cpu_us_per_step"] for run in found[name])
            against = "".join(f"; {ratio(rates[name], rates[peer]):.2f} x {peer}" for peer in peers if name in ours)
            say(f"{case} µs, {name}: {rates[name]['median']:,.0f} steps/s (spread {rates[name]['spread']:.2f}), "
                f"{costs:,.0f} µs of processor time a step{against}")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench heavy-envs", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured in each run")
    parser.add_argument("--case", action="append", choices=CASES, help="may be given several times; default: all")
    parser.add_argument("--of", action="append", choices=CONTESTANTS, help="a contestant; may be given several times")
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--peer-python", default=os.environ.get("PEER_PYTHON", sys.executable),
                        help="the Python that has Sample Factory; default: $PEER_PYTHON, or this one")
    options = parser.parse_args(argv)
    said: list[str] = []
    result = measure(options, said.append if options.json else partial(print, flush=True))
    if options.json:
        report(result, True, said)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
