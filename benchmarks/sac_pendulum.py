"""Training steps per second of SAC and TD3 on Pendulum-v1, one update per step: networks 2 × 256, two critics, batch 256.

The update is nearly all of it. Contestants are made once and train on in short slices, in turn: parl_like and stable-baselines3
(left out with a word when it is not installed), on one torch thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import process_time
from typing import Any

import gymnasium as gym

from benchmarks.training import run
from parl_like import ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import SAC, TD3
from parl_like.models import MLPActorQ

ENV = "Pendulum-v1"
WARMUP, STEPS = 300, 300


def timed(train: Callable[[int], Any], steps: int) -> float:
    """Steps per second of processor time."""
    begin = process_time()
    train(steps)
    return steps / (process_time() - begin)


@cache
def ours(algorithm: type = SAC) -> Callable[[int], Any]:
    env = gym.make(ENV)
    policy = "squashed" if algorithm is SAC else "deterministic"
    func = create_algorithm_func(MLPActorQ, dict(obs=env.observation_space, act=env.action_space, hidden=[256, 256],
                                                 policy=policy), algorithm, dict(gamma=0.99, tau=0.005, lr=3e-4))
    helper = lambda: OffPolicyHelper(size=50_000, batch_size=256, learn_every=1, warmup=WARMUP)  # noqa: E731
    robot = Robot(ENV, tasks={"RL": ComputationTask(func, helper=helper)})

    def train(steps: int) -> None:
        before, updates = robot.env_steps, robot.tasks["RL"].algorithm.updates
        for _ in robot.iterate(before + steps):
            pass
        assert robot.env_steps - before == steps
        assert before < WARMUP or robot.tasks["RL"].algorithm.updates - updates == steps

    train(WARMUP + 20)
    return train


@cache
def peer(name: str = "SAC") -> Callable[[int], Any]:
    import stable_baselines3

    kind = getattr(stable_baselines3, name)
    model = kind("MlpPolicy", gym.make(ENV), learning_rate=3e-4, buffer_size=50_000, learning_starts=WARMUP, batch_size=256,
                 gamma=0.99, tau=0.005, device="cpu", policy_kwargs=dict(net_arch=[256, 256]))
    model.learn(WARMUP + 20)
    return lambda steps: model.learn(steps, reset_num_timesteps=False)


CASES = {"an update per step": {"parl_like": lambda scale: timed(ours(), max(int(scale * STEPS), 1)),
                               "stable-baselines3": lambda scale: timed(peer(), max(int(scale * STEPS), 1))},
         "TD3": {"parl_like": lambda scale: timed(ours(TD3), max(int(scale * STEPS), 1)),
                 "stable-baselines3": lambda scale: timed(peer("TD3"), max(int(scale * STEPS), 1))}}


def main(argv: list[str] | None = None) -> int:
    return run("sac-pendulum", CASES, argv)


if __name__ == "__main__":
    raise SystemExit(main())
