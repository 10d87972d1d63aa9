"""Models steps/s over workers, machines, network and environment cost: fitted to short measurements, checked against others.

    parl-like bench scale                          # measure, fit, check, and print predicted beside measured
    parl-like bench scale --json > FILE            # the same as JSON; --device cuda measures a learner there, too
    parl-like bench scale --tables FILE …          # put what FILE says into docs/scaling.json and docs/scaling.md

Training is PPO in sync mode, of 2×64 networks and of the Nature CNN, with environments that burn a given time. What a network
takes is measured by itself; the framework's own constants are fitted to whole runs whose environments take nothing. The checks
are whole runs that no constant was fitted to: other costs of the environment, other numbers of agents and workers, async mode,
and Ray with several nodes on this machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch

from benchmarks.common import machine, report
from benchmarks.processes import IMAGE, SMALL, Still
from benchmarks.scaling_model import CoreCosts, NetworkCosts, Work, as_dict, fit_core, fit_network, period
from benchmarks.scaling_tables import RAY, check_lines, write_page
from parl_like import ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import PPO
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.models import ConvActorCritic, MLPActorCritic

TWO = gym.spaces.Discrete(2)
IMAGE_BYTES = int(np.prod(IMAGE.shape))
MLP, CORNER, CNN = "2 × 64", "2 × 64 on a corner of the image", "Nature CNN"
SERVES: tuple[Literal["replica", "central"], ...] = ("replica", "central")
FITTED = ("loop", "step", "step_byte", "turn", "asked_row", "unroll_row", "sent_byte", "given", "round")
"""Constants of the framework; that of a byte of parameters is measured by itself."""


class CornerFeatures(torch.nn.Module):
    """Features of an image that cost next to nothing: its first four numbers."""

    out_size = 4

    def forward(self, obs: Any) -> torch.Tensor:
        return obs[..., 0, 0, :4].float() / 255  # type: ignore[no-any-return]


def make_task(network: str, work: Work, device: str = "cpu") -> ComputationTask:
    """Return a task that learns by PPO as `work` says."""
    how = {"epochs": work.epochs, "minibatches": work.minibatches}
    model: Any = ConvActorCritic if network == CNN else MLPActorCritic
    options: dict[str, Any] = {"obs": SMALL if network == MLP else IMAGE, "act": TWO}
    if network != CNN:
        options |= {"hidden": [64, 64], "activation": "tanh"}
    if network == CORNER:
        options["trunk"] = CornerFeatures()
    return ComputationTask(create_algorithm_func(model, options, PPO, how), partial(OnPolicyHelper, unroll=work.unroll),
                           device=device, serve=work.serve if work.workers else "central")


@dataclass
class Measured:
    """A whole run.

    Attributes:
        seconds: Of a period; a tenth of them took less. Others' work on the machine only adds to it.
        median: Of a period's seconds: far above `seconds` where the machine was busy.
    """

    seconds: float
    median: float


def timed(work: Callable[[], object], seconds: float) -> float:
    """Return the seconds that a call takes, the least of three or as many as fit."""
    def finished() -> None:
        work()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    finished()
    best, end = float("inf"), perf_counter() + seconds
    done = 0
    while done < 3 or perf_counter() < end:
        begin = perf_counter()
        finished()
        best, done = min(best, perf_counter() - begin), done + 1
    return best


def whole_run(work: Work, network: str, driver: Any, rounds: int, seconds: float, device: str = "cpu") -> Measured:
    """Train for `rounds` times some `seconds`, after runs that do not count. In sync mode every period is timed, in async
    mode every round, for there updates and steps come in any order."""
    space = SMALL if network == MLP else IMAGE
    task = make_task(network, work, device)
    seen: list[tuple[int, int, float]] = [(0, 0, 0.0)]

    def note(robot: Any) -> bool:
        if task.learns != seen[-1][0]:
            seen.append((task.learns, robot.env_steps, perf_counter()))
        return False

    with Robot(partial(Still, space, work.env_s), tasks={"RL": task}, n_agents=work.agents, driver=driver,
               mode=work.mode) as robot:
        robot.run(StopAfterSteps(2 * work.rows))
        begin = perf_counter()
        robot.run(StopAfterSteps(2 * work.rows))
        periods = max(round(rounds * seconds / (perf_counter() - begin) * 2), 2 * rounds)
        robot.run(StopAfterSteps((1 + periods) * work.rows) | StopWhen(note))
    times = seen[2:] if work.mode == "sync" else seen[2::max((len(seen) - 3) // rounds, 1)]
    found = [(after - before) * work.rows / (steps - first) for (_, first, before), (_, steps, after) in pairwise(times)
             if steps > first]
    return Measured(float(np.quantile(found, 0.1)), float(np.median(found)))


def measure_network(network: str, device: str, seconds: float) -> NetworkCosts:
    """Return what a network takes on a device, from batches and updates of several sizes."""
    rng = np.random.default_rng(0)
    space = SMALL if network == MLP else IMAGE

    def observations(n: int) -> Any:
        return rng.random((n, *space.shape), np.float32) if network == MLP else rng.integers(0, 256, (n, *space.shape), np.uint8)

    sizes, (few, many) = ((1, 4, 16), (16, 48)) if (network, device) == (CNN, "cpu") else (
        (1, 8, 64), (64, 256)) if network == CORNER else ((1, 8, 64, 256), (256, 1024))
    task = make_task(network, Work(workers=0, agents=1), device)
    task.build()
    predicted = []
    for n in sizes:
        inputs = {"obs": observations(n)}
        predicted.append((n, timed(lambda inputs=inputs: task.act(inputs), seconds)))
    learned = []
    for n, epochs, minibatches in ((few, 1, 1), (many, 1, 1), (few, 3, 1), (many, 3, 1), (few, 1, 4), (many, 3, 4)):
        task = make_task(network, Work(workers=0, agents=1, epochs=epochs, minibatches=minibatches), device)
        task.build()
        obs = observations(n + 1)
        rows = {"obs": obs[:-1], "obs_next": obs[1:], "act": rng.integers(0, 2, n), "rew": rng.random(n, np.float32),
                "terminated": rng.random(n) < 0.05, "truncated": np.zeros(n, bool), "last": np.arange(n) % 16 == 15}
        learned.append((n, epochs, minibatches, timed(lambda task=task, rows=rows: task.learn(rows), seconds)))
    return fit_network(predicted, learned)


def weight_bytes(network: str) -> int:
    """Return the bytes of the parameters that replicas get."""
    task = make_task(network, Work(workers=0, agents=1))
    task.build()
    return sum(parameter.numel() * parameter.element_size() for parameter in task.optimized())


def fit_settings(most: int) -> Iterator[tuple[str, Work]]:
    """Yield ways to train whose periods tell the constants of the framework apart, with `most` workers at most: network, work."""
    yield MLP, Work(workers=0, agents=8)
    yield MLP, Work(workers=0, agents=64)
    yield MLP, Work(workers=0, agents=16, unroll=64)
    yield MLP, Work(workers=0, agents=2, unroll=128)
    yield MLP, Work(workers=1, agents=16, unroll=64)
    yield MLP, Work(workers=most, agents=16, unroll=64)
    for serve in SERVES:
        yield MLP, Work(workers=1, agents=16, serve=serve)
        yield MLP, Work(workers=1, agents=64, serve=serve)
        yield MLP, Work(workers=most, agents=16, serve=serve)
        yield MLP, Work(workers=most, agents=64, serve=serve)
    yield CORNER, Work(workers=0, agents=16, epochs=1, minibatches=1, obs_bytes=IMAGE_BYTES)
    for serve in SERVES:
        yield CORNER, Work(workers=1, agents=16, epochs=1, minibatches=1, obs_bytes=IMAGE_BYTES, serve=serve)


def ray_settings() -> Iterator[tuple[str, Work]]:
    """Yield ways to train with one worker, which tell the constants of Ray's messages apart."""
    for serve in SERVES:
        yield MLP, Work(workers=1, agents=16, serve=serve)
        yield MLP, Work(workers=1, agents=64, serve=serve)


def check_settings(workers: Sequence[int]) -> Iterator[tuple[str, Work]]:
    """Yield ways to train that no constant is fitted to: network, work."""
    yield MLP, Work(workers=0, agents=24)
    yield MLP, Work(workers=0, agents=8, env_s=200e-6)
    for w in reversed(workers):
        yield MLP, Work(workers=w, agents=8 * w, env_s=200e-6)
        yield MLP, Work(workers=w, agents=8 * w, env_s=200e-6, mode="async")
        yield MLP, Work(workers=w, agents=8 * w, env_s=200e-6, serve="central")
        yield MLP, Work(workers=w, agents=8 * w, env_s=200e-6, serve="central", mode="async")
        yield MLP, Work(workers=w, agents=4 * w, env_s=1e-3)
    most = workers[-1]
    few = workers[min(1, len(workers) - 1)]
    yield MLP, Work(workers=most, agents=32 * most, env_s=20e-6)
    yield MLP, Work(workers=most, agents=32 * most, env_s=20e-6, mode="async")
    yield MLP, Work(workers=most, agents=8 * most, env_s=200e-6, unroll=64, epochs=2)
    yield CORNER, Work(workers=few, agents=8 * few, env_s=200e-6, epochs=1, minibatches=1, obs_bytes=IMAGE_BYTES)
    yield CNN, Work(workers=few, agents=4 * few, unroll=8, epochs=1, minibatches=1, env_s=1e-3, obs_bytes=IMAGE_BYTES)


def device_settings(most: int) -> Iterator[tuple[str, Work]]:
    """Yield ways to train with the learner on another device."""
    yield MLP, Work(workers=most, agents=8 * most, env_s=200e-6)
    yield MLP, Work(workers=most, agents=8 * most, env_s=200e-6, mode="async")
    yield CNN, Work(workers=most, agents=8 * most, env_s=1e-3, obs_bytes=IMAGE_BYTES, serve="central")


class Measuring:
    """The measurements of one machine.

    Attributes:
        result: What is printed as JSON.

    Args:
        limit: Seconds after which no further check begins.
    """

    def __init__(self, rounds: int, seconds: float, workers: Sequence[int], device: str, say: Callable[[str], object],
                 limit: float = float("inf")) -> None:
        self._end = perf_counter() + limit
        self.rounds, self.seconds, self.workers, self.device, self._say = rounds, seconds, workers, device, say
        gpu = torch.cuda.get_device_name() if device.startswith("cuda") else None
        self.networks: dict[tuple[str, str], NetworkCosts] = {}
        self.bytes: dict[str, int] = {}
        here = machine() | {"gpu": gpu, "load": os.getloadavg()[0]}
        self.result: dict[str, Any] = {"bench": "scale", "machine": here, "workers": list(workers),
                                       "networks": {}, "core": {}, "fitted": [], "checks": [], "left_out": 0}

    def measure_networks(self) -> None:
        """Measure every network by itself, on the CPU and on the device."""
        share = self.seconds / 10
        for network in (MLP, CORNER, CNN):
            self.bytes[network] = weight_bytes(network)
            kinds = {}
            for device in dict.fromkeys(("cpu", self.device)):
                if device == "cpu" or network != CORNER:
                    self.networks[network, device] = kinds[device.partition(":")[0]] = measure_network(network, device, share)
            self.result["networks"][network] = {kind: as_dict(costs) for kind, costs in kinds.items()} | {
                "weight_bytes": self.bytes[network]}
            self._say(f"{network}: measured")

    def run(self, work: Work, network: str, driver: Any = None, device: str = "cpu") -> Measured:
        """Train as `work` says; `driver` None: by processes, or in this process."""
        driver = driver or (Processes(workers=work.workers) if work.workers else "cooperative")
        return whole_run(work, network, driver, self.rounds, self.seconds, device)

    def fit(self, settings: Iterable[tuple[str, Work]], known: CoreCosts, names: Sequence[str], make: Any = None,
            driver: str = "processes") -> CoreCosts:
        """Measure whole runs, and return `known` with the constants `names` fitted to them."""
        runs = [(network, replace(work, weight_bytes=self.bytes[network])) for network, work in settings]
        measured = [self.run(work, network, make and make(work)) for network, work in runs]
        core = fit_core([(work, self.networks[network, "cpu"], one.seconds) for (network, work), one
                         in zip(runs, measured, strict=True)], known, names)
        for (network, work), one in zip(runs, measured, strict=True):
            self._note("fitted", work, network, driver, one, core, "cpu")
        return core

    def check(self, work: Work, network: str, core: CoreCosts, make: Any = None, driver: str = "processes",
              device: str = "cpu") -> None:
        """Measure one whole run beside what the model says; a run that fails is said, and the others go on. After the limit there
        is none."""
        if perf_counter() > self._end:
            self.result["left_out"] += 1
            return
        work = replace(work, weight_bytes=self.bytes[network])
        try:
            measured = self.run(work, network, make and make(work), device)
        except Exception as error:  # noqa: BLE001  one of many, on a machine that may be lent for minutes
            self.result["checks"].append({"network": network, "driver": driver, "device": device, "work": asdict(work),
                                          "failed": f"{type(error).__name__}: {error}"[:300]})
            return
        self._note("checks", work, network, driver, measured, core, device)

    def _note(self, kind: str, work: Work, network: str, driver: str, measured: Measured, core: CoreCosts, device: str) -> None:
        learns = self.networks[network, device]
        acts = learns if work.serve == "central" else self.networks[network, "cpu"]
        said = period(work, core, acts, learns)
        rate = work.rows / measured.seconds
        self.result[kind].append({
            "network": network, "driver": driver if work.workers else "cooperative", "device": device.partition(":")[0],
            "work": asdict(work), "steps_per_s": rate, "median_steps_per_s": work.rows / measured.median,
            "predicted": said.steps_per_s,
            "error": said.steps_per_s / rate - 1, "bottleneck": said.bottleneck})
        self._say(check_lines(self.result[kind][-1:])[0])

    def all(self, ray: bool) -> None:
        """Measure, fit and check everything."""
        begin = perf_counter()
        self.measure_networks()
        cores = self.result["machine"]["cores"]
        most = max(w for w in self.workers if w <= max(8, self.workers[0]))
        two = max(most, 2)  # with one worker its rows are all rows, and no measurement tells the two apart
        block = np.ones(8 << 20, np.uint8)
        core = CoreCosts(weight_byte=timed(block.copy, 0.02) / block.size)
        core = self.fit(fit_settings(two), core, FITTED)
        self.result["core"]["processes"] = as_dict(core)
        if self.device != "cpu":
            for network, work in device_settings(most):
                self.check(replace(work, cores=cores), network, core, device=self.device)
        for network, work in check_settings(self.workers):
            self.check(replace(work, cores=cores), network, core)
        if ray:
            self.measure_ray(core)
        self.result["seconds"] = perf_counter() - begin

    def measure_ray(self, core: CoreCosts) -> None:
        """Fit what Ray's messages take on one node, and check two and three nodes of this machine."""
        from parl_like.drivers.ray.cluster import Ray

        def make(work: Work) -> Ray:
            return Ray(workers=work.workers)

        with ray_nodes() as add:
            core = self.fit(ray_settings(), core, RAY, make, "ray")
            self.result["core"]["ray"] = as_dict(core)
            for nodes in (2, 3):
                add()
                for work in (Work(workers=nodes, agents=8 * nodes, env_s=200e-6),
                             Work(workers=nodes, agents=8 * nodes, env_s=200e-6, serve="central"),
                             Work(workers=nodes, agents=8 * nodes, env_s=1e-3),
                             Work(workers=nodes, agents=8 * nodes, env_s=1e-3, mode="async")):
                    # Nodes of one machine share its cores, and have no network between them.
                    self.check(replace(work, cores=self.result["machine"]["cores"]), MLP, core, make, f"ray, {nodes} nodes")


@contextmanager
def ray_nodes() -> Iterator[Callable[[], object]]:
    """A cluster of one node with one CPU, to which this process is connected, and a function that adds another such node. Every
    worker asks for one CPU, so each is on a node of its own."""
    import ray
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **memory})
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield lambda: cluster.add_node(num_cpus=1, **memory)
    finally:
        ray.shutdown()
        cluster.shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench scale", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one round of one whole run")
    parser.add_argument("--workers", default="1,2", help="numbers of workers of the checks, such as 1,2,4,8,15")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in the learner's process")
    parser.add_argument("--device", default="cpu", help="where a learner is measured beside the CPU, such as cuda")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no further check begins")
    parser.add_argument("--tables", nargs="*", type=Path, metavar="FILE", help="only put these results into docs/scaling.*")
    options = parser.parse_args(argv)
    if options.tables is not None:
        report({"bench": "scale", "machine": machine()}, options.json, write_page(options.tables))
        return 0
    torch.set_num_threads(options.threads)
    workers = sorted(int(one) for one in options.workers.split(","))
    measuring = Measuring(options.rounds, options.seconds, workers, options.device,
                          (lambda line: None) if options.json else partial(print, flush=True), options.limit)
    measuring.all(not options.no_ray)
    errors = [abs(one["error"]) for one in measuring.result["checks"] if "error" in one]
    measuring.result["median_error"] = float(np.median(errors))
    print(json.dumps(measuring.result)) if options.json else print(f"median error of the checks: {np.median(errors):.0%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
