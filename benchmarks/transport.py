"""Requests per second through Agent → helper → communicator → wrapper → task, beside the least code that could do the work.

The network is an MLP 4-64-64-2, the environment does nothing. Contestants at each number of agents:
  cooperative, threads    the framework, its default agent's predict and an environment step that returns constants
  bare greenlets          greenlets that append to a list, one forward pass on the stacked rows, no framework at all
  bare threads            a thread per agent with a `queue.SimpleQueue` to and from one serving thread
"""

from __future__ import annotations

import argparse
import threading
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from greenlet import getcurrent, greenlet

from benchmarks.common import compare, machine, report
from parl_like import Agent, ComputationTask, Robot, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.models import MLPQ
from parl_like.stages import StopWhen

OBS = np.zeros(4, np.float32)


class Idle(gym.Env):
    """Does nothing; here for its spaces."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return OBS, {}


class Asking(Agent):
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
    func = create_algorithm_func(MLPQ, dict(obs=Idle.observation_space, act=Idle.action_space, hidden=[64, 64]), DQN, dict(target_period=0))
    each = requests // n_agents

    class Once(Asking):
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


def bare_threads(n_agents: int, requests: int) -> float:
    net, queue = network(), SimpleQueue()
    each = requests // n_agents
    back = [SimpleQueue() for _ in range(n_agents)]

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
    parser = argparse.ArgumentParser(prog="parl-like bench transport", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--driver", choices=("cooperative", "threads"), action="append", help="default: both")
    parser.add_argument("--agents", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    drivers = options.driver or ["cooperative", "threads"]
    result: dict[str, Any] = {"bench": "transport", "unit": "requests/s", "machine": machine(), "agents": {}}
    lines = ["requests/s (median)   " + "".join(f"{name:>16}" for name in ("cooperative", "bare greenlets", "ratio", "threads", "bare threads", "ratio"))]
    for n in options.agents:
        work: dict[str, Any] = {}
        for driver in drivers:
            quick = 120_000 if n >= 16 else 30_000
            quick = quick if driver == "cooperative" else quick // 4
            work[driver] = lambda d=driver, n=n, k=quick: framework(d, n, k)
        work["bare greenlets"] = lambda n=n: bare_greenlets(n, 120_000 if n >= 16 else 30_000)
        work["bare threads"] = lambda n=n: bare_threads(n, 30_000 if n >= 16 else 10_000)
        rates = compare(work, options.rounds)
        for driver, bare in (("cooperative", "bare greenlets"), ("threads", "bare threads")):
            if driver in rates:
                rates[driver]["ratio"] = rates[driver]["median"] / rates[bare]["median"]
        result["agents"][n] = rates

        def show(name: str, key: str = "median", rates: dict[str, Any] = rates) -> str:
            return f"{rates[name][key]:>16,.2f}" if key == "ratio" and name in rates else f"{rates[name][key]:>16,.0f}" if name in rates else f"{'–':>16}"

        lines.append(f"{n:>4} agents           " + show("cooperative") + show("bare greenlets") + show("cooperative", "ratio")
                     + show("threads") + show("bare threads") + show("threads", "ratio"))
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
