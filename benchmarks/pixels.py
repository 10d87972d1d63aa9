"""PPO and DQN on Atari-like frames, 84 × 84 × 4 uint8, with the network of Mnih et al. 2015: steps/s and memory.

The environment gives single frames of noise, so that it costs nothing and a frame is like none before. Both sides stack
them: ours with `FrameStacker`, stable-baselines3 with `VecFrameStack`. Settings are those of its Zoo: PPO with 8 × 128 rows,
4 epochs, minibatches of 256; DQN with an update of 32 rows every 4 steps, from a full buffer of 10,000 rows. Each run is a
process of its own. Rates are of its processor's seconds, beside those of the clock; memory is the most that it ever had.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.common import machine, of_rounds, ratio, report

SIDE, EPISODE, ACTIONS = 84, 1_000, 6
ROWS, ENVS, BATCH, EPOCHS = 128, 8, 256, 4  # of PPO
KEPT, DRAWN, EVERY = 10_000, 32, 4  # of DQN


class Frames(gym.Env[Any, Any]):
    """Frames [84, 84] or [84, 84, 1] uint8 of noise; rewards are noise, too."""

    def __init__(self, channel: bool = False) -> None:
        shape = (SIDE, SIDE, 1) if channel else (SIDE, SIDE)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(ACTIONS)
        self._noise = np.random.default_rng(0).integers(0, 256, (2 * SIDE * SIDE,), np.uint8)
        self._left = 0

    def _frame(self) -> Any:
        at = int(self.np_random.integers(SIDE * SIDE))
        return self._noise[at : at + SIDE * SIDE].copy().reshape(self.observation_space.shape)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = EPISODE
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._frame(), float(self._left % 50 == 0), self._left == 0, False, {}


class RunMeter:
    """Seconds of the clock and of the processor from here on."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), time.process_time()

    def rates(self, steps: int) -> dict[str, float]:
        """Return steps per second of each, and the largest memory of this process so far, in MB."""
        return {"steps_per_s": steps / (time.perf_counter() - self._begin[0]),
                "steps_per_cpu_s": steps / (time.process_time() - self._begin[1]),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


def ours(name: str, warmup: int, steps: int, /, **options: Any) -> dict[str, float]:
    from parl_like import Robot
    from parl_like.data.transforms import FrameStacker

    with Robot.of(name, Frames, transforms=[FrameStacker(4)], total_steps=10**6, **options) as robot:
        for _ in robot.iterate(warmup):
            pass
        before, meter = robot.env_steps, RunMeter()
        for _ in robot.iterate(before + steps):
            pass
        return meter.rates(robot.env_steps - before)


def theirs(name: str, n_envs: int, warmup: int, steps: int, /, **options: Any) -> dict[str, float]:
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    envs = VecFrameStack(make_vec_env(lambda: Frames(channel=True), n_envs), 4)
    model = getattr(stable_baselines3, name)("CnnPolicy", envs, device="cpu", **options)
    model.learn(warmup)
    before, meter = model.num_timesteps, RunMeter()
    model.learn(steps, reset_num_timesteps=False)
    return meter.rates(model.num_timesteps - before)


def ppo_ours(scale: float) -> dict[str, float]:
    return ours("PPO", ROWS * ENVS, steps_of(2, scale), n_agents=ENVS, unroll=ROWS, epochs=EPOCHS, clip=0.1, lr=2.5e-4,
                minibatches=ROWS * ENVS // BATCH, entropy=0.01)


def ppo_sb3(scale: float) -> dict[str, float]:
    return theirs("PPO", ENVS, ROWS * ENVS, steps_of(2, scale), n_steps=ROWS, batch_size=BATCH, n_epochs=EPOCHS, clip_range=0.1,
                  learning_rate=2.5e-4, ent_coef=0.01)


def steps_of(unrolls: int, scale: float) -> int:
    return max(round(unrolls * scale), 1) * ROWS * ENVS


def dqn_ours(scale: float) -> dict[str, float]:
    return ours("DQN", KEPT + 100, round(800 * scale), n_agents=1, size=KEPT, batch_size=DRAWN, learn_every=EVERY, warmup=KEPT,
                random_steps=KEPT, lr=1e-4, epsilon=0.01, target_period=250, double=False, n_step=1)


def dqn_sb3(scale: float) -> dict[str, float]:
    return theirs("DQN", 1, KEPT + 100, round(800 * scale), buffer_size=KEPT, batch_size=DRAWN, train_freq=EVERY,
                  gradient_steps=1, learning_starts=KEPT, learning_rate=1e-4, target_update_interval=1_000,
                  exploration_fraction=1e-6, exploration_final_eps=0.01)


CASES: dict[str, dict[str, Callable[[float], dict[str, float]]]] = {
    "PPO": {"parl_like": ppo_ours, "stable-baselines3": ppo_sb3}, "DQN": {"parl_like": dqn_ours, "stable-baselines3": dqn_sb3}}


def in_own_process(case: str, name: str, scale: float) -> dict[str, float]:
    """Return what a run measures in a process of its own, with one torch thread."""
    command = [sys.executable, "-m", "benchmarks.pixels", "--one", case, name, "--scale", str(scale)]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).resolve().parent.parent)
    found: dict[str, float] = json.loads(out.stdout.splitlines()[-1])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench pixels", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the measured steps, for a quick look")
    parser.add_argument("--case", choices=list(CASES), action="append", help="default: all")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "NAME"), help="measure one run in this process")
    options = parser.parse_args(argv)
    if options.one:
        import torch

        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        case, name = options.one
        print(json.dumps(CASES[case][name](options.scale)))
        return 0
    result: dict[str, Any] = {"bench": "pixels", "machine": machine(), "cases": {}}
    peers = find_spec("stable_baselines3") is not None
    lines = [] if peers else ["stable-baselines3 is not installed: skipped (pip install 'parl_like[peers]')"]
    for case in options.case or CASES:
        names = [name for name in CASES[case] if peers or name == "parl_like"]
        rounds = [{name: in_own_process(case, name, options.scale) for name in names} for _ in range(options.rounds)]
        found = {what: {name: of_rounds([one[name][what] for one in rounds]) for name in names}
                 for what in ("steps_per_cpu_s", "steps_per_s", "peak_mb")}
        ratios = {what: ratio(each["parl_like"], each[names[-1]]) for what, each in found.items()} if peers else {}
        result["cases"][case] = {**found, "ratios": ratios}
        lines += [f"{case}, {what}: " + ", ".join(f"{name} {one['median']:,.0f} (spread {one['spread']:.2f})"
                                                  for name, one in each.items())
                  + (f"; {ratios[what]:.2f}×" if ratios else "") for what, each in found.items()]
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
