"""Offline algorithms of peers on a data set of ours: their own settings, the updates of our experiments.

    parl-like bench offline_peers DATA                     # Tianshou's discrete BCQ, CQL, CRR; DATA: cartpole-replay
    parl-like bench offline_peers DATA --library d3rlpy    # its IQL, TD3+BC, CQL with their defaults; DATA: pendulum-replay

DATA is a directory that `parl-like record` made. Prints a JSON line for each seed: the mean return of 50 episodes at the end,
from start states 0 … 49, with best actions.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch

from benchmarks.learning_tianshou import buffer_of
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.datasets import to_arrays


def played(env, act):
    """The mean return of 50 episodes."""
    returns = []
    for episode in range(50):
        obs, done, total = env.reset(seed=episode)[0], False, 0.0
        while not done:
            obs, rew, terminated, truncated, _ = env.step(act(obs))
            total, done = total + float(rew), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def tianshou(rows, seed, only):
    """Yields name, updates, CPU seconds and mean return of Tianshou's algorithms, with the settings of its own tests."""
    from tianshou.algorithm import DiscreteBCQ, DiscreteCQL, DiscreteCRR
    from tianshou.algorithm.imitation.discrete_bcq import DiscreteBCQPolicy
    from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from tianshou.utils.torch_utils import policy_within_training_step

    env, hidden = gym.make("CartPole-v1"), (64, 64)
    buffer = buffer_of(rows)

    def made(name):
        net, space = Net(state_shape=env.observation_space.shape, action_shape=64), env.action_space
        if name == "BCQ":
            parts = [DiscreteActor(preprocess_net=net, action_shape=2, hidden_sizes=hidden, softmax_output=False)
                     for _ in range(2)]
            policy = DiscreteBCQPolicy(model=parts[0], imitator=parts[1], action_space=space, target_update_freq=320,
                                       unlikely_action_threshold=0.6)
            return DiscreteBCQ(policy=policy, optim=AdamOptimizerFactory(lr=3e-4), n_step_return_horizon=3,
                               target_update_freq=320)
        if name == "CQL":
            net = Net(state_shape=env.observation_space.shape, action_shape=2, hidden_sizes=(64,), num_atoms=200)
            return DiscreteCQL(policy=QRDQNPolicy(model=net, action_space=space), optim=AdamOptimizerFactory(lr=3e-3),
                               n_step_return_horizon=3, target_update_freq=500)
        actor = DiscreteActor(preprocess_net=net, action_shape=2, hidden_sizes=hidden, softmax_output=False)
        critic = DiscreteCritic(preprocess_net=net, hidden_sizes=hidden, last_size=2)
        return DiscreteCRR(policy=DiscreteActorPolicy(actor=actor, action_space=space, deterministic_eval=True), critic=critic,
                           optim=AdamOptimizerFactory(lr=7e-4), target_update_freq=320)

    for name, (updates, size) in {"BCQ": (10_000, 64), "CQL": (5_000, 32), "CRR": (5_000, 64)}.items():
        if name not in only:
            continue
        torch.manual_seed(seed)
        np.random.seed(seed)
        algorithm, began = made(name), time.process_time()
        with policy_within_training_step(algorithm.policy):
            for _ in range(updates):
                algorithm.update(buffer=buffer, sample_size=size)
        seconds, policy = time.process_time() - began, algorithm.policy.eval()
        with torch.no_grad():
            score = played(env, lambda obs: int(policy(Batch(obs=obs[None], info={})).act[0]))  # noqa: B023
        yield f"Tianshou {name}", updates, seconds, score


def d3rlpy(rows, seed, only):
    """Yields the same of d3rlpy's algorithms with their defaults: networks of 256 x 256, and actions scaled to [-1, 1]. CQL has
    fewer updates than our experiment, for one takes a tenth of a second."""
    import d3rlpy
    from d3rlpy.algos import CQLConfig, IQLConfig, TD3PlusBCConfig
    from d3rlpy.preprocessing import MinMaxActionScaler

    env = gym.make("Pendulum-v1")
    space = env.action_space
    data = d3rlpy.dataset.MDPDataset(rows["obs"], rows["act"], rows["rew"].reshape(-1, 1), rows["terminated"].astype(np.float32),
                                     rows["truncated"].astype(np.float32))
    scaled = {"action_scaler": MinMaxActionScaler(minimum=space.low, maximum=space.high)}
    for name, (config, updates) in {"IQL": (IQLConfig, 10_000), "TD3+BC": (TD3PlusBCConfig, 10_000),
                                    "CQL": (CQLConfig, 2_000)}.items():
        if name not in only:
            continue
        d3rlpy.seed(seed)
        algorithm, began = config(**scaled).create(), time.process_time()
        algorithm.fit(data, n_steps=updates, n_steps_per_epoch=updates, show_progress=False,
                      logger_adapter=d3rlpy.logging.NoopAdapterFactory())
        seconds = time.process_time() - began
        yield f"d3rlpy {name}", updates, seconds, played(env, lambda obs: algorithm.predict(obs[None])[0])  # noqa: B023


NAMES = ("BCQ", "CQL", "CRR", "IQL", "TD3+BC")
LIBRARIES = {"tianshou": tianshou, "d3rlpy": d3rlpy}


def main(argv=None):
    words = argparse.ArgumentParser()
    words.add_argument("data")
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--only", choices=NAMES, nargs="+", default=NAMES)
    words.add_argument("--library", choices=LIBRARIES, default="tianshou")
    words.add_argument("--json", action="store_true", help="it is JSON in any case")
    given = words.parse_args(argv)
    rows = to_arrays(ReplayBuffer.load(given.data))
    for seed in range(given.seeds):
        for peer, updates, seconds, score in LIBRARIES[given.library](rows, seed, given.only):
            print(json.dumps({"peer": peer, "seed": seed, "updates": updates, "mean_return": score,
                              "cpu_seconds": round(seconds, 1)}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
