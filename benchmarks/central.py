"""Requests per second of 2 workers with 32 agents each, under the drivers `processes` and `ray`.

    parl-like bench central [--driver processes]

The network is an MLP 4-64-64-2, the environment does nothing: all that takes time is asking. Contestants:
  processes, ray          workers ask the robot's process
  …, replicas             workers predict by themselves
They take turns; a ratio is the median of those of neighbouring runs. Beside the rate stand its spread, the 99th percentile of a
request's time, and the CPU seconds of all processes per million requests, which a busy machine changes least.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import psutil
import torch

from benchmarks.common import compare, machine, ratio, report
from benchmarks.processes import AGENTS, SMALL, asking, mlp
from parl_like.drivers.workers.processes import Processes

EACH = {"central": 2500, "replica": 5000}
"""Requests of each agent in one run."""


def cpu_seconds() -> dict[int, float]:
    """CPU seconds of this process and of all that it has started, by process id."""
    own, found = psutil.Process(), {}
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            found[process.pid] = sum(process.cpu_times()[:2])
    return found


class TimedAsking:
    """One driver and one way of serving; a call is one run, and returns its requests per second.

    Attributes:
        late: The 99th percentile of each run, seconds. cpu: CPU seconds per million requests of each run.
    """

    def __init__(self, driver: Callable[[], Any], serve: str, scale: float) -> None:
        self._driver, self._task, self._each = driver, partial(mlp, serve), max(round(EACH[serve] * scale), 10)
        self.late: list[float] = []
        self.cpu: list[float] = []

    def __call__(self) -> float:
        clocks: list[dict[int, float]] = []
        rate, late = asking(self._driver(), self._each, SMALL, self._task, lambda: clocks.append(cpu_seconds()))
        before, after = clocks
        self.late.append(late)
        self.cpu.append(1e6 * sum(after[pid] - before.get(pid, 0.0) for pid in after) / (AGENTS * self._each))
        return rate


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench central", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--driver", choices=("processes", "ray"), action="append", help="default: both")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the work, for a quick look")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    drivers: dict[str, Callable[[], Any]] = {}
    if "processes" in (options.driver or ["processes"]):
        drivers["processes"] = partial(Processes, workers=2)
    ray: Any = None
    if "ray" in (options.driver or ["ray"]):
        import ray

        from parl_like.drivers.ray.cluster import Ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
        drivers["ray"] = partial(Ray, workers=2)
    work = {name if serve == "central" else f"{name}, replicas": TimedAsking(driver, serve, options.scale)
            for serve in EACH for name, driver in drivers.items()}
    try:
        rates = compare(work, options.rounds)
    finally:
        if ray is not None:
            ray.shutdown()
    result: dict[str, Any] = {
        "bench": "central", "unit": "requests/s", "machine": machine(), "rates": rates,
        "p99_s": {name: one.late for name, one in work.items()},
        "cpu_s_per_million": {name: one.cpu for name, one in work.items()}}
    lines = [f"{name}: {rates[name]['median']:,.0f} requests/s (spread {rates[name]['spread']:.2f}), p99 "
             f"{1e3 * median(one.late):.2f} ms, {median(one.cpu):.1f} CPU s per million" for name, one in work.items()]
    if len(drivers) == 2:
        result["ray vs processes"] = {kind or "central": ratio(rates[f"ray{kind}"], rates[f"processes{kind}"])
                                      for kind in ("", ", replicas")}
        lines += [f"ray{kind}: {ratio(rates[f'ray{kind}'], rates[f'processes{kind}']):.2f} of processes{kind}"
                  for kind in ("", ", replicas")]
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
