"""Requests per second through Agent → helper → communicator → wrapper → task, beside the least code that could do the work.

The network is an MLP 4-64-64-2, the environment does nothing. Contestants at each number of agents:
  cooperative, threads    the framework, its default agent's predict and an environment step that returns constants
  bare greenlets          greenlets that append to a list, one forward pass on the stacked rows, no framework at all
  plain queues            a thread per agent with a `queue.Queue` to and from one serving thread, as most would write it
  simple queues           the same with `queue.SimpleQueue`, which is written in C
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from queue import Empty, Queue, SimpleQueue
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from greenlet import getcurrent, greenlet

from benchmarks.common import compare, machine, ratio, report
from parl_like import Agent, ComputationTask, Robot, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.environment.stop_conditions import StopWhen
from parl_like.models import MLPQ

OBS = np.zeros(4, np.float32)
PAIRS = [("cooperative", "bare greenlets"), ("threads", "plain queues"), ("threads", "simple queues")]


class Idle(gym.Env):
    """Does nothing; here for its spaces."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return OBS, {}


class PredictingAgent(Agent):
    """Only predicts."""

    n = 0

    def run_one_episode(self) -> None:
        predict = self.helpers["RL"].predict
        done = self.robot.done
        for i in range(self.n):
            predict(OBS)
            done[self.index] = i


def framework(driver: str, n_agents: int, requests: int) -> float:
    """Requests/s of the whole path, the start of the agents not counted."""
    func = create_algorithm_func(MLPQ, dict(obs=Idle.observation_space, act=Idle.action_space, hidden=[64, 64]), DQN,
                                 dict(target_period=0))
    each = requests // n_agents

    class Once(PredictingAgent):
        n = each

        def run(self) -> None:
            self.run_one_episode()

    robot = Robot(Idle, tasks={"RL": ComputationTask(func)}, agent=Once, n_agents=n_agents, driver=driver)
    robot.done = [0] * n_agents
    begin = perf_counter()
    robot.run(StopWhen(lambda robot: False))
    seconds = perf_counter() - begin
    served = robot.wrappers["RL"].predictions.counters
    assert served.rows == each * n_agents, (served.rows, each * n_agents)
    robot.mean_batch = served.rows / served.batches
    robot.close()
    return served.rows / seconds


def network() -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        relu = torch.nn.ReLU
        return torch.nn.Sequential(torch.nn.Linear(4, 64), relu(), torch.nn.Linear(64, 64), relu(), torch.nn.Linear(64, 2))


def bare_greenlets(n_agents: int, requests: int) -> float:
    net, waiting, replies = network(), [], {}
    hub = getcurrent()
    each = requests // n_agents

    def agent(i: int) -> None:
        for _ in range(each):
            waiting.append((i, OBS))
            hub.switch()
            replies.pop(i)

    fibers = [greenlet(agent) for _ in range(n_agents)]
    begin = perf_counter()
    for i, fiber in enumerate(fibers):
        fiber.switch(i)
    with torch.inference_mode():
        while waiting:
            batch, waiting[:] = list(waiting), []
            out = net(torch.from_numpy(np.stack([obs for _, obs in batch]))).argmax(1).tolist()
            for (i, _), act in zip(batch, out, strict=True):
                replies[i] = act
            for i, _ in batch:
                fibers[i].switch()
    return each * n_agents / (perf_counter() - begin)


def bare_threads(kind: Any, n_agents: int, requests: int) -> float:
    net, queue = network(), kind()
    each = requests // n_agents
    back = [kind() for _ in range(n_agents)]

    def agent(i: int) -> None:
        for _ in range(each):
            queue.put((i, OBS))
            back[i].get()

    def serve() -> None:
        left = each * n_agents
        with torch.inference_mode():
            while left:
                batch = [queue.get()]
                try:
                    while True:
                        batch.append(queue.get_nowait())
                except Empty:
                    pass
                out = net(torch.from_numpy(np.stack([obs for _, obs in batch]))).argmax(1).tolist()
                for (i, _), act in zip(batch, out, strict=True):
                    back[i].put(act)
                left -= len(batch)

    threads = [threading.Thread(target=agent, args=(i,)) for i in range(n_agents)] + [threading.Thread(target=serve)]
    begin = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return each * n_agents / (perf_counter() - begin)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench transport", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--driver", choices=("cooperative", "threads", "processes", "ray"), action="append",
                        help="default: cooperative and threads")
    parser.add_argument("--agents", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the work, for a quick look")
    parser.add_argument("--part", action="append",
                        help="of the driver processes: small, images, busy, weights, recovery; default: all")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    drivers = options.driver or ["cooperative", "threads"]
    result: dict[str, Any] = {"bench": "transport", "unit": "requests/s", "machine": machine(), "agents": {}}
    lines = []
    if "processes" in drivers:
        from benchmarks.processes import measure

        result["processes"], lines = measure(options.rounds, options.scale, options.part or ())
    if "ray" in drivers:
        from benchmarks.processes import measure_ray

        result["ray"], found = measure_ray(options.rounds, options.scale)
        lines += found
    for n in options.agents if {"cooperative", "threads"} & set(drivers) else ():
        long, short = (round(options.scale * k) for k in ((120_000, 30_000) if n >= 16 else (30_000, 10_000)))
        work: dict[str, Callable[[], float]] = {}
        if "cooperative" in drivers:
            work["cooperative"] = lambda n=n, k=long: framework("cooperative", n, k)
            work["bare greenlets"] = lambda n=n, k=long: bare_greenlets(n, k)
        if "threads" in drivers:
            work["threads"] = lambda n=n, k=short: framework("threads", n, k)
            work["plain queues"] = lambda n=n, k=short: bare_threads(Queue, n, k)
            work["simple queues"] = lambda n=n, k=short: bare_threads(SimpleQueue, n, k)
        rates = compare(work, options.rounds)
        ratios = {f"{ours} vs {bare}": ratio(rates[ours], rates[bare]) for ours, bare in PAIRS if ours in rates}
        result["agents"][n] = {"rates": rates, "ratios": ratios}
        lines.append(f"{n:>3} agents: " + ", ".join(f"{name} {rate['median']:,.0f}" for name, rate in rates.items()) + "; "
                     + ", ".join(f"{name} {value:.2f}×" for name, value in ratios.items()))
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
