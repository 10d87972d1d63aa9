"""The tables of docs/scaling.md, made from what `parl-like bench scale` has measured (docs/scaling.json): constants, checks, and
what the model says of machines that were not there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.scaling_model import CoreCosts, NetworkCosts, Period, Work, as_dict, period

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKER = "<!-- made by parl-like bench scale -->"
Result = dict[str, Any]

ENVS = (20e-6, 200e-6, 1e-3, 5e-3)
NETWORKS = {"2 × 64": 16, "Nature CNN": 84 * 84 * 4}
"""Network → bytes of an observation."""
CORES = {8: 1, 64: 1, 1024: 16}
"""Cores → machines that have them."""
AGENTS, UNROLL, EPOCHS, MINIBATCHES = 8, 32, 4, 8
"""Settings of the extrapolations; agents are per worker."""
LATENCY_S, BYTES_PER_S = 50e-6, 1.25e9
"""The assumed network between machines: 10 Gbit/s."""
RAY = ("turn", "asked_row", "given")
"""Constants that Ray's messages have of their own."""


def duration(seconds: float) -> str:
    """Return seconds in a unit that fits: '20 µs', '5 ms'."""
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def rate(steps_per_s: float) -> str:
    """Return a rate with three digits: '1,230', '45.6'."""
    if steps_per_s < 100:
        return f"{steps_per_s:.3g}"
    digits = len(f"{steps_per_s:.0f}") - 3
    return f"{round(steps_per_s, -digits):,.0f}"


def machine_name(result: Result) -> str:
    """Return what the machine of a result is called: its cores and its GPU."""
    gpu = result["machine"]["gpu"]
    return f"{result['machine']['cores']} cores" + (f", {gpu}" if gpu else "")


def way(one: Result) -> str:
    """Return how a whole run trained, in words."""
    work = one["work"]
    parts = [f"{work['workers']} workers" if work["workers"] > 1 else "1 worker" if work["workers"] else "no worker",
             f"{work['agents']} agents", f"environment {duration(work['env_s']) if work['env_s'] else '0'}"]
    if work["workers"]:
        parts.append("central" if work["serve"] == "central" else "replicas")
    parts.append(work["mode"])
    if one["driver"].startswith("ray"):
        parts.insert(0, one["driver"].capitalize())
    if one["network"] != "2 × 64":
        parts.insert(0, one["network"])
    if one["device"] != "cpu":
        parts.append("learner on the GPU")
    if (work["unroll"], work["epochs"]) != (16, 4):
        parts.append(f"unroll {work['unroll']}, {work['epochs']} epoch{'s' * (work['epochs'] > 1)}")
    return ", ".join(parts)


def check_lines(checks: Sequence[Result]) -> list[str]:
    """Return a line for each whole run: measured, predicted, error."""
    lines = []
    for one in checks:
        if "failed" in one:
            lines.append(f"| {way(one)} | failed | – | – | – |")
        else:
            lines.append(f"| {way(one)} | {rate(one['steps_per_s'])} | {rate(one['predicted'])} | {100 * one['error']:+.0f} % "
                         f"| {one['bottleneck']} |")
    return lines


def network_costs(result: Result, network: str, device: str) -> NetworkCosts | None:
    """Return the measured constants of a network on a device; None: it was not measured there."""
    found = result["networks"][network].get(device)
    return None if found is None else NetworkCosts(**found)


def core_costs(results: Mapping[str, Result], of: Result, driver: str) -> CoreCosts:
    """Return the framework's constants of a result. Those of Ray's messages come from whichever result has them, else they are
    those of processes."""
    core = CoreCosts(**of["core"]["processes"])
    rays = [one["core"]["ray"] for one in [of, *results.values()] if "ray" in one["core"]]
    if driver == "ray" and rays:
        core = replace(core, **{name: rays[0][name] for name in RAY})
    return core


def ways(cores: int, network: str, weights: int, env_s: float, mode: str) -> Iterator[Work]:
    """Yield the ways to train of which a table shows the faster: replicas and central serving. In async mode one core is the
    learner's."""
    workers = cores if mode == "sync" else cores - 1
    for serve in ("replica", "central"):
        yield Work(workers=workers, agents=AGENTS * workers, unroll=UNROLL, env_s=env_s, epochs=EPOCHS, minibatches=MINIBATCHES,
                   obs_bytes=NETWORKS[network], weight_bytes=weights, serve=serve, mode=mode,  # type: ignore[arg-type]
                   cores=cores, machines=CORES.get(cores, 1), latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S)


class Extrapolation:
    """Predictions with the constants of one machine, and those of Ray.

    Args:
        results: Of all machines. of: Whose constants are taken.
    """

    def __init__(self, results: Mapping[str, Result], of: Result) -> None:
        self._results, self._of = results, of
        self.devices = [device for device in ("cpu", "cuda") if all(device in of["networks"][name] for name in NETWORKS)]

    def weights(self, network: str) -> int:
        """Return the bytes of a network's parameters."""
        return int(self._of["networks"][network]["weight_bytes"])

    def period(self, work: Work, network: str, device: str) -> Period:
        """Return what a period takes with the learner on a device; replicas predict on the CPU."""
        core = core_costs(self._results, self._of, "ray" if work.machines > 1 else "processes")
        learns, here = network_costs(self._of, network, device), network_costs(self._of, network, "cpu")
        assert learns is not None and here is not None
        return period(work, core, learns if work.serve == "central" else here, learns)

    def best(self, cores: int, network: str, device: str, env_s: float, mode: str) -> tuple[Period, Work]:
        """Return the faster of replicas and central serving."""
        found = [(self.period(work, network, device), work) for work in ways(cores, network, self.weights(network), env_s, mode)]
        return max(found, key=lambda one: one[0].steps_per_s)

    def rows(self) -> Iterator[tuple[str, str, float]]:
        """Yield network, device and cost of the environment of each row of the tables."""
        for network in NETWORKS:
            for device in self.devices:
                for env_s in ENVS:
                    yield network, device, env_s

    def speeds(self) -> list[str]:
        """Return the table of steps/s by cores."""
        lines = ["| network | learner | environment | " + " | ".join(f"{cores:,} cores, {mode}" for cores in CORES
                                                                    for mode in ("sync", "async")) + " |",
                 "|---|---|---|" + "---|" * (2 * len(CORES))]
        for network, device, env_s in self.rows():
            cells = []
            for cores in CORES:
                for mode in ("sync", "async"):
                    took, work = self.best(cores, network, device, env_s, mode)
                    cells.append(f"{rate(took.steps_per_s)} {took.bottleneck}" + (" ᶜ" if work.serve == "central" else ""))
            lines.append(f"| {network} | {'GPU' if device == 'cuda' else 'CPU'} | {duration(env_s)} | {' | '.join(cells)} |")
        return lines

    def changes(self, cores: int) -> list[str]:
        """Return the table of what one change is worth, beside sync mode with replicas."""
        names = ("async", "central", "unroll × 4", "agents × 4", "minibatches ÷ 4", "4 learners", "16 learners")
        lines = [f"| network | learner | environment | {cores:,} cores, sync, replicas | " + " | ".join(names) + " |",
                 "|---|---|---|---|" + "---|" * len(names)]
        for network, device, env_s in self.rows():
            base, central = ways(cores, network, self.weights(network), env_s, "sync")
            apart = next(ways(cores, network, self.weights(network), env_s, "async"))
            changed = (apart, central, replace(base, unroll=4 * base.unroll), replace(base, agents=4 * base.agents),
                       replace(base, minibatches=base.minibatches // 4), replace(base, learners=4), replace(base, learners=16))
            took = self.period(base, network, device)
            times = [self.period(work, network, device).steps_per_s / took.steps_per_s for work in changed]
            lines.append(f"| {network} | {'GPU' if device == 'cuda' else 'CPU'} | {duration(env_s)} | "
                         f"{rate(took.steps_per_s)} {took.bottleneck} | " + " | ".join(f"{x:.2f}" for x in times) + " |")
        return lines


def constants(results: Mapping[str, Result]) -> list[str]:
    """Return the table of fitted constants, a column for each machine."""
    lines = ["| constant | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    for driver in ("processes", "ray"):
        for name in as_dict(CoreCosts()):
            if driver == "ray" and name not in RAY:
                continue
            unit, times = ("ns", 1e9) if name.endswith("_byte") else ("µs", 1e6)
            values = [one["core"].get(driver) for one in results.values()]
            cells = ["–" if core is None else f"{core[name] * times:.3g}" for core in values]
            lines.append(f"| `{name}`{', Ray' * (driver == 'ray')}, {unit} | {' | '.join(cells)} |")
    for network in NETWORKS:
        for device in ("cpu", "cuda"):
            costs = [network_costs(one, network, device) for one in results.values()]
            if not any(costs):
                continue
            for pair in (("predict", "predict_row"), ("update", "update_row"), ("learn", "learn_row")):
                cells = ["–" if cost is None else " + ".join(f"{getattr(cost, name) * 1e6:.3g}" for name in pair) + "·n"
                         for cost in costs]
                lines.append(f"| {network}, {'GPU' if device == 'cuda' else 'CPU'}: `{pair[0]}` + `{pair[1]}`·n, µs | "
                             f"{' | '.join(cells)} |")
    return lines


def page(results: Mapping[str, Result]) -> list[str]:
    """Return the tables of the page, for results of one or more machines."""
    lines = [MARKER, "", "## Constants", "", *constants(results), ""]
    for name, one in results.items():
        busy = one["machine"]["load"] > one["machine"]["cores"] / 2
        said = f"The median of the errors without their signs is {100 * one['median_error']:.0f} %."
        lines += [f"## Checks: {name}", "", said + " Other work kept the machine busy." * busy + one.get("note", ""), "",
                  "| run | measured, steps/s | predicted | error | largest part |", "|---|---|---|---|---|",
                  *check_lines(one["checks"]), ""]
    of = max(results.values(), key=lambda one: (one["machine"]["gpu"] is not None, one["machine"]["cores"]))
    there = Extrapolation(results, of)
    lines += ["## Other machines", "",
              f"Constants are those of the machine with {machine_name(of)}. Each cell has steps/s and the largest part of the "
              "time. The mark ᶜ is for central serving, where it is faster than replicas.", "", *there.speeds(), "",
              "## What a change is worth", "",
              "The columns on the right have the factor by which one change alone moves the steps/s.", "", *there.changes(64), ""]
    return lines


def write_page(files: Sequence[Path], docs: Path = DOCS) -> list[str]:
    """Put results into scaling.json, by the names of their machines, and make the tables of scaling.md; return these.

    Args:
        files: JSON that the benchmark has printed; none: the tables are made of what scaling.json has.
        docs: The folder of both.
    """
    place, text = docs / "scaling.json", docs / "scaling.md"
    results = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    for file in files:
        result = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
        results[machine_name(result)] = result
    place.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = page(results)
    head = text.read_text(encoding="utf-8").partition(MARKER)[0]
    text.write_text(head + "\n".join(lines), encoding="utf-8")
    return lines
