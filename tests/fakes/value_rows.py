"""Rows, updates and a fixed table, for the tests of those who learn values of actions."""

import gymnasium as gym
import numpy as np
import torch

from parl_like import ComputationTask
from parl_like.models import MLPQ
from parl_like.values.batch import Batch

OBS, ACT = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(4)
MASKED = gym.spaces.Dict(mask=gym.spaces.MultiBinary(4), x=OBS)


def rows(seed=0, n=8, n_step=1, masked=False, **more):
    """Rows of a replay buffer; the masks of some allow nothing."""
    rng = np.random.default_rng(seed)
    valid = rng.integers(1, n_step + 1, n)
    rew = rng.normal(size=(n, n_step)).astype(np.float32) * (np.arange(n_step) < valid[:, None])
    made = {"act": rng.integers(4, size=n), "terminated": np.arange(n) % 3 == 0, "truncated": np.arange(n) % 3 == 1,
            "rew": rew if n_step > 1 else rew[:, 0], **({"valid": valid} if n_step > 1 else {})}
    for name in ("obs", "obs_next"):
        x, mask = rng.normal(size=(n, 3)).astype(np.float32), (rng.random((n, 4)) < 0.5).astype(np.int8)
        made |= {f"{name}.x": x, f"{name}.mask": mask} if masked else {name: x}
    return {**made, **more}


def batch_of(fields):
    return Batch.nest({name: torch.from_numpy(np.array(value)) for name, value in fields.items()})


def after_updates(*algorithms, updates=20, **options):
    """The weights of each of them after the same updates. By torch, bit for bit: some have a native update."""
    tasks = [ComputationTask(algorithm, native=False) for algorithm in algorithms]
    before = tasks[0].algorithm.model.weights_hash()
    for seed in range(updates):
        for task in tasks:
            task.learn(rows(seed, **options))
    assert tasks[0].algorithm.model.weights_hash() != before
    return [task.algorithm.model.weights_hash() for task in tasks]


class Fixed(MLPQ):
    """Its values are `table`, whatever it sees: [N, A, heads] = [N, 2, …]."""

    def __init__(self, table):
        super().__init__(gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2), (), heads=np.size(table[0]))
        self.table = torch.nn.Parameter(torch.tensor(table, dtype=torch.float32).reshape(2, -1))

    def values(self, obs):
        return self.table.expand(len(obs), -1, -1)


def hand_rows(act, rew, terminated, **more):
    n = len(act)
    return {"obs": np.zeros((n, 1), np.float32), "obs_next": np.zeros((n, 1), np.float32), "act": np.array(act),
            "rew": np.array(rew, np.float32), "terminated": np.array(terminated), "truncated": ~np.array(terminated), **more}
