"""Tianshou's discrete BCQ, CQL and CRR on a data set of ours: its own settings, the updates of its own tests.

    python offline_peers.py DATA --seeds 3       # DATA: a directory that `parl-like record cartpole-replay` made

Prints a JSON line for each seed: the mean return of 50 episodes at the end, start states 0 … 49, best actions.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import DiscreteBCQ, DiscreteCQL, DiscreteCRR
from tianshou.algorithm.imitation.discrete_bcq import DiscreteBCQPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, ReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

from parl_like.data.buffers.replay_buffer import ReplayBuffer as Recorded

UPDATES = {"BCQ": (10_000, 64), "CQL": (5_000, 32), "CRR": (5_000, 64)}


def made(name, env):
    space, hidden = env.action_space, (64, 64)
    net = Net(state_shape=env.observation_space.shape, action_shape=64)
    if name == "BCQ":
        parts = [DiscreteActor(preprocess_net=net, action_shape=2, hidden_sizes=hidden, softmax_output=False) for _ in range(2)]
        policy = DiscreteBCQPolicy(model=parts[0], imitator=parts[1], action_space=space, target_update_freq=320,
                                   unlikely_action_threshold=0.6)
        return DiscreteBCQ(policy=policy, optim=AdamOptimizerFactory(lr=3e-4), n_step_return_horizon=3, target_update_freq=320)
    if name == "CQL":
        net = Net(state_shape=env.observation_space.shape, action_shape=2, hidden_sizes=(64,), num_atoms=200)
        return DiscreteCQL(policy=QRDQNPolicy(model=net, action_space=space), optim=AdamOptimizerFactory(lr=3e-3),
                           n_step_return_horizon=3, target_update_freq=500)
    actor = DiscreteActor(preprocess_net=net, action_shape=2, hidden_sizes=hidden, softmax_output=False)
    critic = DiscreteCritic(preprocess_net=net, hidden_sizes=hidden, last_size=2)
    return DiscreteCRR(policy=DiscreteActorPolicy(actor=actor, action_space=space, deterministic_eval=True), critic=critic,
                       optim=AdamOptimizerFactory(lr=7e-4), target_update_freq=320)


def main(argv=None):
    words = argparse.ArgumentParser()
    words.add_argument("data")
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--json", action="store_true", help="it is JSON in any case")
    given = words.parse_args(argv)
    rows = Recorded.load(given.data)
    order = rows.sample_indices(0)
    buffer = ReplayBuffer(len(order))
    taken = {name: rows.columns[name][order] for name in ("obs", "act", "rew", "terminated", "truncated", "obs_next")}
    for i in range(len(order)):
        buffer.add(Batch(**{name: column[i] for name, column in taken.items()}, info={}))
    env = gym.make("CartPole-v1")
    for seed in range(given.seeds):
        for name, (updates, size) in UPDATES.items():
            torch.manual_seed(seed)
            np.random.seed(seed)
            algorithm, began = made(name, env), time.process_time()
            with policy_within_training_step(algorithm.policy):
                for _ in range(updates):
                    algorithm.update(buffer=buffer, sample_size=size)
            seconds, returns = time.process_time() - began, []
            algorithm.policy.eval()
            for episode in range(50):
                obs, done, total = env.reset(seed=episode)[0], False, 0.0
                while not done:
                    with torch.no_grad():
                        act = algorithm.policy(Batch(obs=obs[None], info={})).act
                    obs, rew, terminated, truncated, _ = env.step(int(act[0]))
                    total, done = total + float(rew), terminated or truncated
                returns.append(total)
            print(json.dumps({"peer": f"Tianshou {name}", "seed": seed, "updates": updates,
                              "mean_return": float(np.mean(returns)), "cpu_seconds": round(seconds, 1)}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
