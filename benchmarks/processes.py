"""The drivers `processes` and `ray` with 2 workers, beside the least code that could do the work.

    parl-like bench transport --driver processes [--part NAME]

  small      64 agents, MLP 4-64-64-2, an environment that does nothing: requests/s and the 99th percentile of a request's
             time; beside one process per agent that talks over `multiprocessing.Queue` to one that serves (all begun before the
             clock, as our workers are), and the cooperative driver; central serving, and replicas (`serve="replica"`), whose
             workers predict by themselves
  images     the same agents with observations of 84 x 84 x 4 bytes and a task that looks at one number of each: bytes/s beside a
             bare copy from one process to another through shared memory (both begun and warm before the clock)
  busy       64 agents whose environment burns 200 us of CPU per step: steps/s beside the cooperative driver, acting only, and
             training with PPO (updates are given in one process, so training gains less)
  weights    the published Thinker network (26.6 MB) given to the replicas of 2 workers while their agents predict: ms from the
             beginning of the copy until a worker's predictions use it, and what the longest pause between two predictions of an
             agent is with and without
  recovery   seconds from the kill of a worker to the next step of its agents, with half of 64 agents in it
  ray        (--driver ray) the small work, beside the driver `processes` and beside 16 actors that call one that serves
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import shared_memory
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.common import compare, ratio
from parl_like import Agent, ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN, PPO
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps, StopWhen
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.model import Model
from parl_like.models import MLPQ, MLPActorCritic

AGENTS = 64
IMAGE = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)


class Still(gym.Env[Any, Any]):
    """Does nothing, after burning `seconds` of CPU."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: gym.Space[Any], seconds: float = 0.0) -> None:
        self.observation_space, self.seconds = space, seconds
        self.obs = np.zeros(space.shape or (), space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.obs, {}

    def step(self, act: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = perf_counter() + self.seconds
        while self.seconds and perf_counter() < end:
            pass
        return self.obs, 0.0, False, False, {}


class TimedPredicting(Agent):
    """Predicts `n` times, and leaves what every tenth took in a file."""

    def __init__(self, n: int, folder: str) -> None:
        super().__init__()
        self.n, self.folder = n, folder

    def run(self) -> None:
        predict, obs = self.helpers["RL"].predict, self.env.obs
        times = []
        for i in range(self.n):
            begin = perf_counter()
            predict(obs)
            if not i % 10:
                times.append(perf_counter() - begin)
        np.save(Path(self.folder) / f"{self.index}.npy", times)


class Sum(Algorithm):
    """Looks at one number of every image."""

    def __init__(self) -> None:
        super().__init__(Model(IMAGE, gym.spaces.Discrete(2)))

    def predict(self, inputs: Any) -> dict[str, torch.Tensor]:
        return {"act": inputs.obs[:, 0, 0, 0].long()}


class Heavy(Algorithm):
    """Has the published Thinker network, and answers without it: what is measured is what giving it away costs."""

    def __init__(self) -> None:
        from benchmarks.thinker import make_net

        model = Model(gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2))
        model.net = make_net("published")
        super().__init__(model)

    def predict(self, inputs: Any) -> dict[str, torch.Tensor]:
        return {"act": (inputs.obs[:, 0] > 0).long()}


class Watching(Agent):
    """Predicts for some seconds; leaves when each version was first seen, and its longest pauses, in a file."""

    def __init__(self, seconds: float, folder: str) -> None:
        super().__init__()
        self.seconds, self.folder = seconds, folder

    def run(self) -> None:
        comm, obs = self.helpers["RL"].comm, (np.zeros(4, np.float32),)
        last, begin, seen, pauses = -1, perf_counter(), [], []
        before = begin
        while before < begin + self.seconds:
            version = comm.predict(obs).version
            now = perf_counter()
            pauses.append(now - before)
            before = now
            if version != last:
                seen.append((version, now))
                last = version
        np.savez(Path(self.folder) / f"{self.index}.npz", seen=seen, pauses=np.sort(pauses)[-200:])


def weights(publish: bool, seconds: float = 3.0) -> dict[str, float]:
    """One agent in each of two workers; a publication every 100 ms, or none."""
    with tempfile.TemporaryDirectory() as folder, Robot(
        partial(Still, gym.spaces.Box(-1, 1, (4,), np.float32)), tasks={"RL": ComputationTask(Heavy, serve="replica")},
        agent=partial(Watching, seconds, folder), n_agents=2, driver=Processes(workers=2), mode="async",
    ) as robot:
        task, driver = robot.tasks["RL"], robot.pool.driver
        sent: dict[int, float] = {}
        copying: list[float] = []

        take_in = driver._take_in

        def give(requests: bool = True) -> None:
            take_in(requests)
            if publish and (not sent or perf_counter() > max(sent.values()) + 0.1):
                task.version += 1
                begin = sent[task.version] = perf_counter()
                driver.supervisor.publish(driver.publisher.due())
                copying.append(perf_counter() - begin)

        driver._take_in = give
        robot.run(StopWhen(lambda robot: False))
        found = [np.load(Path(folder) / f"{i}.npz") for i in range(2)]
    delays = [when - sent[version] for one in found for version, when in one["seen"] if version in sent]
    pauses = np.concatenate([one["pauses"] for one in found])
    out = {"longest_pause_s": float(pauses.max()), "pauses_above_2_ms": int((pauses > 2e-3).sum())}
    return out | ({"delay_s": float(np.median(delays)), "copying_s": float(np.median(copying)), "publications": len(copying)}
                  if publish else {})


def ray_calls(each: int, callers: int = 16) -> float:
    """Plain Ray: actors that call an actor, one observation at a time; the forward pass is the same."""
    import ray

    from benchmarks.transport import network

    class Serves:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.net = network()

        def predict(self, obs: Any) -> int:
            with torch.inference_mode():
                return int(self.net(torch.from_numpy(obs[None])).argmax(1))

    class Calls:
        def run(self, server: Any, n: int) -> None:
            obs = np.zeros(4, np.float32)
            for _ in range(n):
                ray.get(server.predict.remote(obs))

    server = ray.remote(Serves).options(num_cpus=0).remote()
    actors = [ray.remote(Calls).options(num_cpus=0).remote() for _ in range(callers)]
    ray.get([actor.run.remote(server, 2) for actor in actors])
    begin = perf_counter()
    ray.get([actor.run.remote(server, each) for actor in actors])
    seconds = perf_counter() - begin
    for actor in [server, *actors]:
        ray.kill(actor)
    return callers * each / seconds


def measure_ray(rounds: int, scale: float = 1.0) -> tuple[dict[str, Any], list[str]]:
    import ray

    from parl_like.drivers.ray.cluster import Ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    try:
        rates = compare({
            "ray": lambda: asking(Ray(workers=2), round(1500 * scale), SMALL, mlp)[0],
            "processes": lambda: asking(Processes(workers=2), round(3000 * scale), SMALL, mlp)[0],
            "ray, replicas": lambda: asking(Ray(workers=2), round(6000 * scale), SMALL, partial(mlp, "replica"))[0],
            "plain ray calls": lambda: ray_calls(round(100 * scale))}, rounds)
    finally:
        ray.shutdown()
    result = {"rates": rates, "vs processes": ratio(rates["ray"], rates["processes"]),
              "processes vs plain ray calls": ratio(rates["processes"], rates["plain ray calls"])}
    return result, [f"ray: {rates['ray']['median']:,.0f} requests/s, {result['vs processes']:.2f}x processes; with replicas "
                    f"{rates['ray, replicas']['median']:,.0f}; 16 actors that call one "
                    f"{rates['plain ray calls']['median']:,.0f}; processes {result['processes vs plain ray calls']:.0f}x these"]


SPACES: dict[str, Any] = {"obs": gym.spaces.Box(-1, 1, (4,), np.float32), "act": gym.spaces.Discrete(2)}


def mlp(serve: Any = "central") -> ComputationTask:
    """A task that only predicts."""
    return ComputationTask(create_algorithm_func(MLPQ, {**SPACES, "hidden": [64, 64]}, DQN, {"target_period": 0}), serve=serve)


def ppo(serve: Any = "central") -> ComputationTask:
    """A task that learns from 16 steps of each agent."""
    func = create_algorithm_func(MLPActorCritic, {**SPACES, "hidden": [64, 64], "activation": "tanh"}, PPO,
                                 {"epochs": 4, "minibatches": 4})
    return ComputationTask(func, partial(OnPolicyHelper, unroll=16), serve=serve)


def asking(driver: Any, each: int, space: gym.Space[Any], task: Callable[[], ComputationTask],
           clock: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """Requests/s of the second run, whose workers are there, and the 99th percentile of a request's seconds; `clock` is called
    before and after that run."""
    with tempfile.TemporaryDirectory() as folder, Robot(
        partial(Still, space), tasks={"RL": task()}, agent=partial(TimedPredicting, each, folder), n_agents=AGENTS, driver=driver,
        mode="async",
    ) as robot:
        robot.run(StopWhen(lambda robot: False))
        clock()
        begin = perf_counter()
        robot.run(StopWhen(lambda robot: False))
        seconds = perf_counter() - begin
        clock()
        times = np.concatenate([np.load(Path(folder) / f"{i}.npy") for i in range(AGENTS)])
    return AGENTS * each / seconds, float(np.percentile(times, 99))


def _one_agent(requests: Any, replies: Any, i: int, each: int) -> None:
    obs = np.zeros(4, np.float32)
    for _ in range(1 + each):  # the first comes before the clock
        requests.put((i, obs))
        replies.get()


def queues(each: int) -> float:
    """One process per agent and `multiprocessing.Queue`, as most would write it; the forward pass is the same.

    Requests/s once all processes are there: the clock starts when each has asked once, and before any of these is answered.
    """
    from benchmarks.transport import network

    context = multiprocessing.get_context("fork")
    requests: Any = context.Queue()
    replies: list[Any] = [context.Queue() for _ in range(AGENTS)]
    processes = [context.Process(target=_one_agent, args=(requests, replies[i], i, each), daemon=True) for i in range(AGENTS)]
    net = network()
    for process in processes:
        process.start()

    def serve(batch: list[Any]) -> None:
        out = net(torch.from_numpy(np.stack([obs for _, obs in batch]))).argmax(1).tolist()
        for (i, _), act in zip(batch, out, strict=True):
            replies[i].put(act)

    with torch.inference_mode():
        there = [requests.get() for _ in range(AGENTS)]
        begin = perf_counter()
        serve(there)
        left = AGENTS * each
        while left:
            batch = [requests.get()]
            while not requests.empty() and len(batch) < AGENTS:
                batch.append(requests.get())
            serve(batch)
            left -= len(batch)
    seconds = perf_counter() - begin
    for process in processes:
        process.join()
    return AGENTS * each / seconds


WARM = 20  # blocks that a bare copy hands over before the clock


def _copy_in(name: str, size: int, times: int, full: Any, free: Any) -> None:
    block = shared_memory.SharedMemory(name)
    target, source = np.frombuffer(block.buf, np.uint8)[:size], np.ones(size, np.uint8)
    for _ in range(WARM + times):
        free.acquire()
        target[:] = source
        full.release()
    del target
    block.close()


def bare_copy(times: int) -> float:
    """Bytes/s of 32 images at a time, copied into shared memory by one process and out of it by another, both of them warm."""
    size = AGENTS // 2 * int(np.prod(IMAGE.shape))
    context = multiprocessing.get_context("fork")
    full, free = context.Semaphore(0), context.Semaphore(1)
    block = shared_memory.SharedMemory(create=True, size=size)
    source, target = np.frombuffer(block.buf, np.uint8)[:size], np.empty(size, np.uint8)
    process = context.Process(target=_copy_in, args=(block.name, size, times, full, free))
    process.start()
    begin = 0.0
    for number in range(WARM + times):
        if number == WARM:
            begin = perf_counter()
        full.acquire()
        target[:] = source
        free.release()
    seconds = perf_counter() - begin
    process.join()
    del source
    block.close()
    block.unlink()
    return size * times / seconds


def busy(driver: Any, steps: int, serve: Any = "central", learns: bool = False) -> float:
    """Steps/s of the second half of a run, whose environments burn 200 us a step.

    `learns`: PPO in sync mode, 16 steps of each agent, 4 epochs of 4 minibatches; else the agents only act, in async mode.
    """
    space = gym.spaces.Box(-1, 1, (4,), np.float32)
    task = ppo(serve) if learns else mlp(serve)
    with Robot(partial(Still, space, 200e-6), tasks={"RL": task}, n_agents=AGENTS, driver=driver, mode="sync" if learns
               else "async") as robot:
        robot.run(StopAfterSteps(steps))
        before, begin = robot.env_steps, perf_counter()
        robot.run(StopAfterSteps(steps))
        return (robot.env_steps - before) / (perf_counter() - begin)


def recovery() -> float:
    """Seconds from the kill of one of two workers to the first request of its successor."""
    space = gym.spaces.Box(-1, 1, (4,), np.float32)
    with Robot(partial(Still, space), tasks={"RL": mlp()}, n_agents=AGENTS, driver=Processes(workers=2), mode="async") as robot:
        robot.run(StopAfterSteps(1000))
        driver = robot.pool.driver
        moments: list[float] = []

        def kill(robot: Any) -> bool:
            if not moments and robot.env_steps > 5000:
                os.kill(driver.link.pid(driver.workers[0]), signal.SIGKILL)
                moments.append(perf_counter())
            return len(moments) > 1

        take_in = driver._take_in

        def watched(requests: bool = True) -> None:
            worker = driver.workers[0]
            if len(moments) == 1 and worker.incarnation and any("n" in message.notes for message in worker.inbox):
                moments.append(perf_counter())
            take_in(requests)

        driver._take_in = watched
        robot.run(StopWhen(kill))
    return moments[1] - moments[0]


SMALL = gym.spaces.Box(-1, 1, (4,), np.float32)
Found = tuple[dict[str, Any], list[str]]


def measure_small(rounds: int, scale: float) -> Found:
    two = Processes(workers=2)
    late: list[float] = []

    def ours() -> float:
        rate, p99 = asking(two, round(6000 * scale), SMALL, mlp)
        late.append(p99)
        return rate

    rates = compare({
        "processes": ours, "replicas": lambda: asking(two, round(12_000 * scale), SMALL, partial(mlp, "replica"))[0],
        "multiprocessing.Queue": lambda: queues(round(200 * scale)),
        "cooperative": lambda: asking("cooperative", round(3000 * scale), SMALL, mlp)[0]}, rounds)
    result = {"rates": rates, "p99_s": late,
              "vs multiprocessing.Queue": ratio(rates["processes"], rates["multiprocessing.Queue"])}
    return result, [f"small: {rates['processes']['median']:,.0f} requests/s, p99 {1e3 * float(np.median(late)):.2f} ms; "
                    f"{result['vs multiprocessing.Queue']:.1f}x a process per agent on multiprocessing.Queue; with replicas "
                    f"{rates['replicas']['median']:,.0f}; cooperative {rates['cooperative']['median']:,.0f}"]


def measure_images(rounds: int, scale: float) -> Found:
    two, size = Processes(workers=2), float(np.prod(IMAGE.shape))
    rates = compare({
        "processes": lambda: asking(two, round(300 * scale), IMAGE, lambda: ComputationTask(Sum))[0] * size,
        "replicas": lambda: asking(two, round(1500 * scale), IMAGE, lambda: ComputationTask(Sum, serve="replica"))[0] * size,
        "bare copy": lambda: bare_copy(round(1000 * scale))}, rounds)
    result = {"bytes_per_s": rates, "vs bare copy": ratio(rates["processes"], rates["bare copy"])}
    return result, [f"images: {rates['processes']['median'] / 1e9:.2f} GB/s, {result['vs bare copy']:.2f}x a bare copy "
                    f"({rates['bare copy']['median'] / 1e9:.1f} GB/s); with replicas {rates['replicas']['median'] / 1e9:.2f}"]


def measure_busy(rounds: int, scale: float) -> Found:
    two = Processes(workers=2)
    result: dict[str, Any] = {}
    lines: list[str] = []
    for name, learns in (("acting", False), ("training", True)):
        rates = compare({
            "processes": lambda learns=learns: busy(two, round(20_000 * scale), learns=learns),
            "replicas": lambda learns=learns: busy(two, round(20_000 * scale), "replica", learns),
            "cooperative": lambda learns=learns: busy("cooperative", round(10_000 * scale), learns=learns)}, rounds)
        found = {"steps_per_s": rates, "vs cooperative": ratio(rates["processes"], rates["cooperative"]),
                 "replicas vs cooperative": ratio(rates["replicas"], rates["cooperative"])}
        result[name] = found
        lines.append(f"busy, {name}: {rates['processes']['median']:,.0f} steps/s, {found['vs cooperative']:.2f}x cooperative; "
                     f"with replicas {found['replicas vs cooperative']:.2f}x")
    return result, lines


def measure_weights(rounds: int, scale: float) -> Found:
    seconds = max(3 * scale, 0.5)
    still, given = weights(False, seconds), weights(True, seconds)
    return {"without": still, "with": given}, [
        f"weights of 26.6 MB: {1e3 * given['delay_s']:.1f} ms until a worker acts with them ({1e3 * given['copying_s']:.1f} ms "
        f"of the robot's process); longest pause {1e3 * given['longest_pause_s']:.1f} ms, {given['pauses_above_2_ms']} above 2 "
        f"ms in {given['publications']} publications; without any {1e3 * still['longest_pause_s']:.1f} ms, "
        f"{still['pauses_above_2_ms']}"]


def measure_recovery(rounds: int, scale: float) -> Found:
    seconds = [recovery() for _ in range(rounds)]
    return {"seconds": seconds}, [f"recovery: {', '.join(f'{1e3 * s:.0f}' for s in seconds)} ms"]


PARTS: dict[str, Callable[[int, float], Found]] = {
    "small": measure_small, "images": measure_images, "busy": measure_busy, "weights": measure_weights,
    "recovery": measure_recovery}


def measure(rounds: int, scale: float = 1.0, parts: Sequence[str] = ()) -> Found:
    """The parts (default: all); ratios are of neighbouring runs. `scale`: share of the work."""
    result: dict[str, Any] = {}
    lines: list[str] = []
    for name in parts or PARTS:
        result[name], more = PARTS[name](rounds, scale)
        lines += more
    return result, lines
