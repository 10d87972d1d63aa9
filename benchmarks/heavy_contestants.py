"""The contestants of `bench heavy-envs`: each trains PPO in a process of its own and prints one JSON object.

    python -m benchmarks.heavy_contestants NAME [--spend spin] [--us 1000] [--agents 32] [--workers 2] [--seconds 6]

All have the same environment, network (2 x 64, tanh), rows per update (1,024), 4 epochs of 4 minibatches, and one torch thread.
Environments count their own steps in files that this process maps, so one clock measures all contestants alike, from the first
update on.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch

BATCH, EPOCHS, MINIBATCHES = 1024, 4, 4
COUNTS = "PARL_LIKE_HEAVY_COUNTS"
KIND = "PARL_LIKE_HEAVY_KIND"
"""Variables of the process's environment: the folder where environments count their steps; what steps spend, and how much."""


class HeavyEnv(gym.Env[Any, Any]):
    """Each step takes `us` microseconds: of the processor's time ('spin'), or of waiting ('sleep'). Episodes of 1,000 steps."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32), gym.spaces.Discrete(2)
    render_mode = None

    def __init__(self, spend: str = "spin", us: float = 1000.0) -> None:
        self.spend, self.seconds = spend, us * 1e-6
        self.obs = np.zeros(4, np.float32)
        with tempfile.NamedTemporaryFile(dir=os.environ[COUNTS], delete=False) as file:
            file.write(bytes(8))
            file.flush()
            self.count = np.frombuffer(mmap.mmap(file.fileno(), 8), np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.spend == "sleep":
            sleep(self.seconds)
        else:
            end = thread_time() + self.seconds
            while thread_time() < end:
                pass
        self.t += 1
        self.count[0] += 1
        return self.obs, 1.0, False, self.t == 1000, {}


class Meter:
    """Measures a training run from outside, in a thread of its own.

    Args:
        updates: Returns how many optimiser steps were taken so far.
        seconds: To measure for, once `warm` steps were made.
        then: Called at the end.
    """

    def __init__(self, folder: str, updates: Callable[[], int], seconds: float, warm: int,
                 then: Callable[[], None] = lambda: None) -> None:
        self.done, self.result, self._then = False, {}, then
        self._folder, self._updates, self._seconds, self._warm = Path(folder), updates, seconds, warm
        self._counts: dict[Path, Any] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def _steps(self) -> int:
        for path in self._folder.iterdir():
            if path not in self._counts and path.stat().st_size == 8:
                self._counts[path] = np.memmap(path, np.int64, "r")
        return sum(int(count[0]) for count in self._counts.values())

    @staticmethod
    def _cpu() -> float:
        me, total = psutil.Process(), 0.0
        for process in [me, *me.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def _run(self) -> None:
        while self._steps() < self._warm or not self._updates():
            sleep(0.02)
        begin, steps, cpu, updates = perf_counter(), self._steps(), self._cpu(), self._updates()
        while perf_counter() < begin + self._seconds:
            sleep(0.05)
        steps = self._steps() - steps
        seconds = perf_counter() - begin
        cpu, updates = self._cpu() - cpu, self._updates() - updates
        self.result = {"steps_per_s": steps / seconds, "cpu_us_per_step": 1e6 * cpu / steps, "cores": cpu / seconds,
                       "optimiser_steps_per_batch": updates * BATCH / steps}
        self.done = True
        self._then()


def parl_like(options: argparse.Namespace, folder: str, mode: str, **task: Any) -> dict[str, float]:
    from parl_like import ComputationTask, OnPolicyHelper, Robot, create_algorithm_func
    from parl_like.algorithms import PPO
    from parl_like.drivers.workers.processes import Processes
    from parl_like.models import MLPActorCritic

    func = create_algorithm_func(
        MLPActorCritic, dict(obs=HeavyEnv.observation_space, act=HeavyEnv.action_space, hidden=[64, 64], activation="tanh"), PPO,
        dict(epochs=EPOCHS, minibatches=MINIBATCHES, lr=3e-4))
    unroll = BATCH // options.agents
    tasks = {"RL": ComputationTask(func, partial(OnPolicyHelper, unroll=unroll), **task)}
    with Robot(partial(HeavyEnv, options.spend, options.us), tasks=tasks, n_agents=options.agents, mode=mode,
               driver=Processes(workers=options.workers)) as robot:
        meter = Meter(folder, lambda: robot.tasks["RL"].algorithm.updates, options.seconds, BATCH + 64, robot.request_stop)
        robot.run(1 << 30)
    return meter.result


def heavy_env(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> HeavyEnv:
    """Make an environment of Sample Factory's processes, which know nothing but this function and the variables."""
    spend, us = os.environ[KIND].split()
    return HeavyEnv(spend, float(us))


def sample_factory(options: argparse.Namespace, folder: str) -> dict[str, float]:
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    os.environ[KIND] = f"{options.spend} {options.us}"
    register_env("heavy", heavy_env)
    parser, _ = parse_sf_args(argv := [
        "--env=heavy", "--experiment=heavy", f"--train_dir={folder}.out", "--device=cpu", "--serial_mode=False",
        f"--num_workers={options.workers}", f"--num_envs_per_worker={options.agents // options.workers}",
        f"--rollout={BATCH // options.agents}", "--recurrence=1", "--use_rnn=False", f"--batch_size={BATCH // MINIBATCHES}",
        f"--num_batches_per_epoch={MINIBATCHES}", f"--num_epochs={EPOCHS}", "--normalize_input=False",
        "--normalize_returns=False", "--encoder_mlp_layers", "64", "64",
        "--nonlinearity=tanh", "--learning_rate=3e-4", "--train_for_seconds=100000",
        "--save_every_sec=100000", "--experiment_summaries_interval=100000"])
    cfg, runner = make_runner(parse_full_cfg(parser, argv))
    runner.init()
    meter = Meter(folder, lambda: int(runner.buffer_mgr.policy_versions[0]), options.seconds, BATCH + 64)

    def finish() -> None:  # its processes end late, or not at all
        while not meter.done:
            sleep(0.05)
        out(meter.result)
        for process in psutil.Process().children(recursive=True):
            process.kill()
        os._exit(0)

    threading.Thread(target=finish, daemon=True).start()
    runner.run()
    raise SystemExit("Sample Factory has ended before it was measured")


def stable_baselines3(options: argparse.Namespace, folder: str) -> dict[str, float]:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([partial(HeavyEnv, options.spend, options.us)] * options.agents, start_method="fork")
    model = PPO("MlpPolicy", envs, n_steps=BATCH // options.agents, batch_size=BATCH // MINIBATCHES, n_epochs=EPOCHS,
                device="cpu")
    meter = Meter(folder, lambda: model._n_updates * MINIBATCHES, options.seconds, BATCH + 64)
    model.learn(1 << 40, callback=lambda local, others: not meter.done)
    envs.close()
    return meter.result


CONTESTANTS: dict[str, Callable[[argparse.Namespace, str], dict[str, float]]] = {
    "parl_like": partial(parl_like, mode="sync"),
    "parl_like, async": partial(parl_like, mode="async"),
    "parl_like, central": partial(parl_like, mode="sync", serve="central"),
    "parl_like, central, async": partial(parl_like, mode="async", serve="central"),
    "parl_like, replicas": partial(parl_like, mode="sync", serve="replica"),
    "parl_like, replicas, async": partial(parl_like, mode="async", serve="replica"),
    "Sample Factory": sample_factory,
    "stable-baselines3": stable_baselines3,
}


def out(result: dict[str, float]) -> None:
    os.write(1, (json.dumps(result) + "\n").encode())


def run_one(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=CONTESTANTS)
    parser.add_argument("--spend", default="spin", choices=["spin", "sleep"])
    parser.add_argument("--us", type=float, default=1000.0)
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[COUNTS] = folder
        out(CONTESTANTS[options.name](options, folder))
    return 0


if __name__ == "__main__":
    sys.exit(run_one())
