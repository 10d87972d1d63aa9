"""Learning beside stable-baselines3, sb3-contrib and Tianshou: the same task, environment steps and seeds, one run after the
other on one torch thread.

Ours are shipped experiments, some with other settings; theirs have the settings of RL Baselines3 Zoo, or of Tianshou's examples,
whose value learners get as many updates as ours. Out of the box, ours is `Robot.of(name, env)`, theirs has its classes' defaults.
A run is evaluated greedily at `--points` places, whose time does not count, and all contestants in the same episodes, as far as
their first states go, for in some tasks these are worth more than what was learned: `score` is the mean return of `--episodes`
at the end (no best checkpoint), with the interquartile mean over the seeds and its 95 % bootstrap interval; `to_mark` are the
seconds of processor time after which an evaluation was at the mark for the first time. Processor time, for these runs take long
and the machine may have other work.

Where the peer is not installed ours are alone. The lunar lander needs pip install 'gymnasium[box2d]', the MinAtar games pip
install --no-deps minatar, MuJoCo's hopper pip install 'mujoco<4' imageio (gymnasium 1.4 finds no MuJoCo in version 4), GAIL the
expert's rows: parl-like record pendulum-expert. The hopper's episodes have up to 1,000 steps, so `--episodes 10 --points 10` is
advisable there. With `--out FILE` each run is kept as it ends, and those that the file has already are not run again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import getsource, isfunction
from itertools import count
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any
from zlib import crc32

import gymnasium as gym
import numpy as np
import torch

import parl_like.envs  # noqa: F401  # makes its ids known
from benchmarks import learning_tianshou as tianshou
from benchmarks.common import machine, report
from benchmarks.learning_peers import LinearDecay, Point, Sb3, first_start
from benchmarks.learning_tianshou import Tianshou
from parl_like import Robot
from parl_like.data.storage.safe_files import replace_file
from parl_like.envs.wrappers import Discretize
from parl_like.lab import config as configs
from parl_like.lab import experiment as experiments
from parl_like.lab.recorded import directory_of, named_in
from parl_like.lab.reports.plots import bootstrap_interval, iqm
from parl_like.lab.yaml_text import ConfigError


@dataclass(frozen=True, kw_only=True)
class Case:
    """One task and algorithm.

    Attributes:
        env: Id of the task. inner: Id of what is inside of the wrappers that our experiment has of its own; None: it has none.
        steps: Environment steps of a run. mark: Mean return that counts as solved.
        ours: Experiment that trains for us; empty: `Robot.of` does, out of the box, by this `algorithm`. changes: Settings on top
            of it. peer: Who else trains.
    """

    env: str
    steps: int
    mark: float
    peer: Sb3 | Tianshou
    ours: str = ""
    algorithm: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    inner: str | None = None

    def robot(self, steps: int, seed: int) -> Robot:
        if self.algorithm:
            return Robot.of(self.algorithm, self.env, total_steps=steps, seed=seed, **self.changes)
        experiment = experiments.get(self.ours)
        module = experiment.module()
        own = {"env": self.inner or self.env, "total_steps": steps, "seed": seed}
        return module.build(configs.resolve(module.Config, experiment.config, self.changes, own))  # type: ignore[no-any-return]

    def settings(self, steps: int) -> str:
        """A fingerprint of all settings of ours: runs with others are not the same work."""
        with self.robot(steps, 0) as robot:
            return fingerprint(json.dumps(robot.parts.complete(), sort_keys=True))

    def peer_settings(self) -> str:
        """The same of the peer's; a function counts by its source."""
        own = {key: getsource(value) if isfunction(value) else repr(value) for key, value in vars(self.peer).items()}
        return fingerprint(json.dumps(own, sort_keys=True))


def fingerprint(text: str) -> str:
    """Eight hexadecimal digits, others for another text."""
    return f"{crc32(text.encode()):08x}"


ZOO_DQN = {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99,
           "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
           "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]}}
ZOO_DDPG = {"gamma": 0.98, "buffer_size": 200_000, "learning_starts": 10_000, "gradient_steps": 1, "train_freq": 1,
            "learning_rate": 1e-3, "policy_kwargs": {"net_arch": [400, 300]}, "noise": 0.1}

# As MinAtar was published (Young and Tian 2019), but for its optimiser, with Adam in RMSprop's place, and with fewer steps.
MINATAR_DQN = {"learning_rate": 2.5e-4, "batch_size": 32, "buffer_size": 100_000, "learning_starts": 5000, "gamma": 0.99,
               "target_update_interval": 1000, "train_freq": 1, "gradient_steps": 1, "exploration_fraction": 1 / 3,
               "exploration_final_eps": 0.1}

gym.register("MinAtarSpaceInvaders-v0", "parl_like.envs.minatar:MinAtar", kwargs={"game": "space_invaders"})
gym.register("DiscretePendulum-v0", lambda: Discretize(gym.make("Pendulum-v1"), bins=9, joint=False))

CASES = {
    "ppo cartpole": Case(env="CartPole-v1", steps=100_000, mark=475, ours="ppo-cartpole", peer=Sb3(
        name="PPO", n_envs=8, settings={"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
                                        "ent_coef": 0.0, "learning_rate": LinearDecay(1e-3), "clip_range": LinearDecay(0.2)})),
    "dqn cartpole": Case(env="CartPole-v1", steps=50_000, mark=400, ours="dqn-cartpole", peer=Sb3(
        name="DQN", settings=ZOO_DQN)),
    "qrdqn cartpole": Case(env="CartPole-v1", steps=50_000, mark=400, ours="qrdqn-cartpole", peer=Sb3(
        name="QRDQN", library="sb3-contrib", settings={**ZOO_DQN, "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10}})),
    "c51 cartpole": Case(env="CartPole-v1", steps=50_000, mark=400, ours="c51-cartpole",
                         peer=Tianshou(build=tianshou.c51, updates=4)),
    "iqn cartpole": Case(env="CartPole-v1", steps=50_000, mark=400, ours="iqn-cartpole",
                         peer=Tianshou(build=tianshou.iqn, collect=10, updates=5, n_envs=10)),
    "fqf cartpole": Case(env="CartPole-v1", steps=50_000, mark=400, ours="fqf-cartpole",
                         peer=Tianshou(build=tianshou.fqf, collect=10, updates=5, n_envs=10, warmup=640)),
    "sac cartpole": Case(env="CartPole-v1", steps=50_000, mark=400, ours="sac-cartpole",
                         peer=Tianshou(build=tianshou.discrete_sac, collect=10, updates=5, n_envs=10, warmup=10)),
    "a2c cartpole": Case(env="CartPole-v1", steps=200_000, mark=450, ours="a2c-cartpole", peer=Sb3(
        name="A2C", n_envs=8, settings={"ent_coef": 0.0})),
    "reinforce cartpole": Case(env="CartPole-v1", steps=200_000, mark=400, ours="reinforce-cartpole", peer=Tianshou(
        build=tianshou.reinforce, collect=8, batch=None, repeat=2, whole=True)),
    "ars cartpole": Case(env="CartPole-v1", steps=300_000, mark=475, ours="ars-cartpole", peer=Sb3(
        name="ARS", library="sb3-contrib", policy="LinearPolicy", settings={"n_delta": 2})),
    "ppo recall": Case(env="Recall-v0", steps=150_000, mark=0.95, ours="ppo-recall", peer=Sb3(
        name="RecurrentPPO", library="sb3-contrib", policy="MlpLstmPolicy", n_envs=8)),
    "ppo acrobot": Case(env="Acrobot-v1", steps=300_000, mark=-90, ours="ppo-acrobot", peer=Sb3(
        name="PPO", n_envs=16, normalize=True, settings={"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4,
                                                         "ent_coef": 0.0})),
    "ppo lunar lander": Case(env="LunarLander-v3", steps=500_000, mark=200, ours="ppo-lander", peer=Sb3(
        name="PPO", n_envs=16, settings={"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
                                         "ent_coef": 0.01})),
    "ppo mountain car": Case(env="MountainCarContinuous-v0", steps=100_000, mark=88, ours="ppo-mountaincar", peer=Sb3(
        name="PPO", normalize=True, settings={
            "n_steps": 8, "batch_size": 256, "gamma": 0.9999, "learning_rate": 7.77e-05, "ent_coef": 0.00429, "clip_range": 0.1,
            "n_epochs": 10, "gae_lambda": 0.9, "max_grad_norm": 5, "vf_coef": 0.19, "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False}})),
    "dqn lunar lander": Case(env="LunarLander-v3", steps=300_000, mark=150, ours="dqn-lander", peer=Sb3(
        name="DQN", settings={"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0,
                              "gamma": 0.99, "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1,
                              "exploration_fraction": 0.12, "exploration_final_eps": 0.1,
                              "policy_kwargs": {"net_arch": [256, 256]}})),
    "dqn mountain car": Case(env="MountainCar-v0", steps=120_000, mark=-120, ours="dqn-mountaincar", peer=Sb3(
        name="DQN", settings={"learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1000,
                              "gamma": 0.98, "target_update_interval": 600, "train_freq": 16, "gradient_steps": 8,
                              "exploration_fraction": 0.2, "exploration_final_eps": 0.07,
                              "policy_kwargs": {"net_arch": [256, 256]}})),
    "trpo pendulum": Case(env="Pendulum-v1", steps=300_000, mark=-250, ours="trpo-pendulum", peer=Sb3(
        name="TRPO", library="sb3-contrib", n_envs=2,
        settings={"n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3, "n_critic_updates": 15, "use_sde": True,
                  "sde_sample_freq": 4})),
    "npg pendulum": Case(env="Pendulum-v1", steps=300_000, mark=-250, ours="npg-pendulum", peer=Tianshou(
        build=tianshou.npg, n_envs=16, collect=2048, batch=None, repeat=2, size=50_000)),
    "gail pendulum": Case(env="Pendulum-v1", steps=200_000, mark=-1100, ours="gail-cartpole", changes={
        "data": "pendulum-expert", "unroll": 256, "gamma": 0.9}, peer=Tianshou(
            build=tianshou.gail, n_envs=16, collect=16, whole=True, batch=128, repeat=2)),
    "icm cartpole": Case(env="CartPole-v1", steps=100_000, mark=195, algorithm="PPO", changes={  # PPO's: as in ppo-cartpole
        "curiosity": "ICM", "rewards": {"curiosity": 0.01}, "n_agents": 32, "unroll": 32, "PPO.epochs": 10, "PPO.minibatches": 4,
        "PPO.lr": {"start": 0.001, "end": 0.0}, "PPO.gamma": 0.99, "PPO.reward_scale": 0.05}, peer=Tianshou(
            build=tianshou.icm, n_envs=20, collect=2000, repeat=10)),
    "bdq pendulum": Case(env="DiscretePendulum-v0", inner="Pendulum-v1", steps=30_000, mark=-250, ours="bdq-pendulum",
                         peer=Tianshou(build=tianshou.bdq, n_envs=10, collect=10, updates=10, batch=128, warmup=1280,
                                       epsilon=lambda steps: max(0.76 * (1 - 1e-4) ** steps, 0.01))),
    "redq pendulum": Case(env="Pendulum-v1", steps=5_000, mark=-250, ours="redq-pendulum", peer=Tianshou(
        build=tianshou.redq, n_envs=1, collect=1, updates=3, warmup=1000, random=True)),
    "redq pendulum, same critics and updates": Case(env="Pendulum-v1", steps=5_000, mark=-250, ours="redq-pendulum", changes={
        "critics": 4, "updates": 3, "delay": 3, "lr": 1e-3}, peer=Tianshou(
            build=tianshou.redq, n_envs=1, collect=1, updates=3, warmup=1000, random=True)),
    "rainbow breakout": Case(env="MinAtar-v0", steps=300_000, mark=6, ours="rainbow-minatar", peer=Sb3(
        name="DQN", policy="CnnPolicy", images=True, settings=MINATAR_DQN)),
    "rainbow space invaders": Case(env="MinAtarSpaceInvaders-v0", steps=300_000, mark=20, ours="rainbow-minatar", peer=Sb3(
        name="DQN", policy="CnnPolicy", images=True, settings=MINATAR_DQN)),
    "sac pendulum": Case(env="Pendulum-v1", steps=20_000, mark=-180, ours="sac-pendulum", peer=Sb3(
        name="SAC", settings={"learning_rate": 1e-3})),
    "sac pendulum, same networks": Case(env="Pendulum-v1", steps=20_000, mark=-180, ours="sac-pendulum", changes={
        "hidden": [256, 256], "size": 200_000, "warmup": 100}, peer=Sb3(name="SAC", settings={"learning_rate": 1e-3})),
    "td3 pendulum": Case(env="Pendulum-v1", steps=20_000, mark=-200, ours="td3-pendulum", peer=Sb3(
        name="TD3", settings=ZOO_DDPG)),
    "ddpg pendulum": Case(env="Pendulum-v1", steps=20_000, mark=-200, ours="ddpg-pendulum", peer=Sb3(
        name="DDPG", settings=ZOO_DDPG)),
    "tqc pendulum": Case(env="Pendulum-v1", steps=20_000, mark=-180, ours="tqc-pendulum", peer=Sb3(
        name="TQC", library="sb3-contrib", settings={"learning_rate": 1e-3})),
    "crossq pendulum": Case(env="Pendulum-v1", steps=20_000, mark=-180, ours="crossq-pendulum", peer=Sb3(
        name="CrossQ", library="sb3-contrib")),
    "crossq pendulum, same networks": Case(env="Pendulum-v1", steps=20_000, mark=-180, ours="crossq-pendulum", peer=Sb3(
        name="CrossQ", library="sb3-contrib", settings={
            "batch_size": 128, "policy_kwargs": {"net_arch": {"pi": [64, 64], "qf": [128, 128]}}})),
    "sac mountain car": Case(env="MountainCarContinuous-v0", steps=50_000, mark=88, ours="sac-mountaincar",
                             peer=Sb3(name="SAC", settings={
                                 "learning_rate": 3e-4, "buffer_size": 50_000, "batch_size": 512, "ent_coef": 0.1,
                                 "train_freq": 32, "gradient_steps": 32, "gamma": 0.9999, "tau": 0.01,
                                 "learning_starts": 0, "use_sde": True,
                                 "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]}})),
    "sac lunar lander": Case(env="LunarLanderContinuous-v3", steps=500_000, mark=200, ours="sac-pendulum", changes={
        "hidden": [400, 300], "lr": {"start": 7.3e-4, "end": 0.0}, "tau": 0.01, "size": 1_000_000, "warmup": 10_000,
        "random_steps": 10_000}, peer=Sb3(name="SAC", settings={
            "batch_size": 256, "learning_rate": LinearDecay(7.3e-4), "buffer_size": 1_000_000, "tau": 0.01,
            "learning_starts": 10_000, "policy_kwargs": {"net_arch": [400, 300]}})),
    "sac hopper": Case(env="Hopper-v5", steps=100_000, mark=1000, ours="sac-pendulum", changes={
        "hidden": [256, 256], "lr": 3e-4, "size": 1_000_000, "warmup": 10_000, "random_steps": 10_000}, peer=Sb3(
            name="SAC", settings={"learning_starts": 10_000})),
    **{f"{name.lower()} {task}, out of the box": Case(env=env, steps=steps, mark=mark, algorithm=name, peer=Sb3(
        name=name, library=library))
        for name, library in (("DQN", "stable-baselines3"), ("QRDQN", "sb3-contrib"))
        for task, env, steps, mark in (("cartpole", "CartPole-v1", 40_000, 400), ("acrobot", "Acrobot-v1", 30_000, -100),
                                       ("lunar lander", "LunarLander-v3", 50_000, 150))},
}


class Start(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that begins where the seed says that the peers' begin, whatever it is told."""

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        super().__init__(env)
        self.seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=self.seed, options=options)


def starts(env_id: str, first: int) -> Callable[[], gym.Env[Any, Any]]:
    """A factory of environments that begin with the seeds `first`, `first` + 1, …."""
    seeds = count(first)
    return lambda: Start(gym.make(env_id), next(seeds))


def train_ours(case: Case, steps: int, seed: int, stops: list[int], episodes: int) -> list[Point]:
    curve: list[Point] = []
    seconds = 0.0
    with case.robot(steps, seed) as robot:
        for stop in stops:
            begin = process_time()
            for _ in robot.iterate(stop):
                pass
            seconds += process_time() - begin
            seen = robot.evaluate(episodes, seed=seed, n_agents=episodes, env=starts(case.env, first_start(seed)))
            curve.append((robot.env_steps, seconds, seen.mean_return))
    return curve


def train_peer(case: Case, steps: int, seed: int, stops: list[int], episodes: int) -> list[Point]:
    return case.peer.train(case.env, steps, seed, stops, episodes)


def summary(curves: list[list[Point]], mark: float) -> dict[str, Any]:
    """Summarise the runs of one contestant; `to_mark` and its median count a run that never got there as None."""
    scores = [curve[-1][2] for curve in curves]
    reached = [next((point for point in curve if point[2] >= mark), None) for curve in curves]
    low, high = bootstrap_interval(scores, np.random.default_rng(0))
    ordered = sorted(point[1] if point else float("inf") for point in reached)
    middle = median(ordered)
    return {"scores": scores, "iqm": float(iqm(scores)), "interval": [float(low), float(high)],
            "to_mark": [point and point[1] for point in reached], "steps_to_mark": [point and point[0] for point in reached],
            "median_to_mark": middle if np.isfinite(middle) else None,
            "seconds": median(curve[-1][1] for curve in curves), "curves": curves}


def told(name: str, one: Mapping[str, Any], runs: int) -> str:
    seconds, (low, high) = one["median_to_mark"], one["interval"]
    reached = sum(point is not None for point in one["to_mark"])
    return (f"  {name}: {', '.join(f'{score:.0f}' for score in one['scores'])}; IQM {one['iqm']:.1f} [{low:.1f}, {high:.1f}]; at "
            f"the mark after {'never' if seconds is None else f'{seconds:.1f} s'} ({reached} of {runs} runs); whole run "
            f"{one['seconds']:.1f} s")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench learning", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", choices=list(CASES), action="append", help="default: all")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each contestant")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps, for a quick look")
    parser.add_argument("--episodes", type=int, default=50, help="of one evaluation")
    parser.add_argument("--points", type=int, default=20, help="evaluations of a run")
    parser.add_argument("--out", type=Path, help="file of the runs")
    options = parser.parse_args(argv)
    kept: dict[str, list[Point]] = {}
    if options.out is not None and options.out.exists():
        kept = json.loads(options.out.read_text())
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    lines = []
    result: dict[str, Any] = {"bench": "learning", "unit": "seconds of processor time", "machine": machine(), "cases": {},
                              "skipped": {}}
    for name in options.case or CASES:
        case = CASES[name]
        try:
            gym.make(case.env).close()
            for data in named_in(case.changes):
                directory_of(data)
        except (gym.error.Error, ImportError, ConfigError) as error:
            result["skipped"][name] = reason = str(error).splitlines()[0]
            lines.append(f"{name}: skipped: {reason}")
            continue
        steps = max(int(case.steps * options.scale), 1)
        stops = [max(steps * k // options.points, 1) for k in range(1, options.points + 1)]
        runs: dict[str, list[list[Point]]] = {"parl_like": []}
        if find_spec(case.peer.module) is None:
            lines.append(f"{case.peer.library} is not installed: skipped (pip install {case.peer.library})")
        else:
            runs[case.peer.library] = []
        settings = {"parl_like": case.settings(steps), case.peer.library: case.peer_settings()}
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for who, curves in runs.items():
                key = (f"{name}, {steps} steps, {options.points} evaluations of {options.episodes} episodes, {who} "
                       f"with settings {settings[who]}, seed {seed}")
                if key not in kept:
                    train = train_ours if who == "parl_like" else train_peer
                    kept[key] = train(case, steps, seed, stops, options.episodes)
                    if options.out is not None:
                        replace_file(options.out, json.dumps(kept, indent=1).encode())
                curves.append(kept[key])
        measured = {who: summary(curves, case.mark) for who, curves in runs.items()}
        result["cases"][name] = {"env": case.env, "steps": steps, "mark": case.mark, **measured}
        lines += [f"{name}: {case.env}, {steps:,} steps, mark {case.mark:g}",
                  *(told(who, one, options.seeds) for who, one in measured.items())]
    report(result, options.json, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
