"""Target copies follow in `post_process`, in one way, whatever the algorithm."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from value_rows import ACT, OBS, rows

from parl_like import ComputationTask
from parl_like.algorithms import DDPG, DQN, MPO, REDQ, SAC, TD3
from parl_like.models import MLPQ, MLPActorQ
from parl_like.values.batch import Batch

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


def box_rows(seed):
    return rows(seed, act=np.random.default_rng(seed).uniform(-1, 1, (8, 2)).astype(np.float32))


def deterministic():
    return MLPActorQ(OBS, BOX, (8,), policy="deterministic")


CASES = {
    "dqn": (lambda: MLPQ(OBS, ACT, (8,)), DQN, {"target_period": 3}, rows, None, 3),
    "dqn, tau": (lambda: MLPQ(OBS, ACT, (8,)), DQN, {"target_period": 3, "tau": 0.25}, rows, 0.25, 1),
    "sac": (lambda: MLPActorQ(OBS, BOX, (8,)), SAC, {"tau": 0.25}, box_rows, 0.25, 1),
    "sac, discrete, delayed": (lambda: MLPActorQ(OBS, ACT, (8,)), SAC, {"tau": 0.25, "delay": 2}, rows, 0.25, 1),
    "redq": (lambda: MLPActorQ(OBS, BOX, (8,), critics=3), REDQ, {"tau": 0.25}, box_rows, 0.25, 1),
    "td3": (deterministic, TD3, {"tau": 0.25, "delay": 3}, box_rows, 0.25, 3),
    "ddpg": (deterministic, DDPG, {"tau": 0.25}, box_rows, 0.25, 1),
    "mpo": (lambda: MLPActorQ(OBS, BOX, (8,)), MPO, {"target_period": 3, "n_step": 1, "samples": 4}, box_rows, None, 3),
}
each_case = pytest.mark.parametrize(("make", "kind", "options", "given", "tau", "period"), CASES.values(), ids=CASES)


def flat(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def divided(kind, parts):
    """The algorithm, whose training requests take so many optimiser steps."""

    class Divided(kind):
        def minibatches(self, batch):
            n = len(batch) // parts
            for k in range(parts):
                yield batch[slice(k * n, (k + 1) * n)]

    return Divided


@each_case
def test_after_every_request_the_copy_is_that_of_its_formula(make, kind, options, given, tau, period):
    task = ComputationTask(kind(make, **options))
    algorithm, expected = task.algorithm, flat(task.algorithm.target)
    for seed in range(7):
        task.learn(given(seed))
        if (seed + 1) % period == 0:
            share = 1.0 if tau is None else tau
            expected = (1.0 - share) * expected + share * flat(algorithm.model)
        torch.testing.assert_close(flat(algorithm.target), expected)


@each_case
def test_learn_leaves_the_copy_as_it_is(make, kind, options, given, tau, period):
    """Several optimiser steps of a request have one target; so it is `post_process` that changes it."""
    class Still(kind):
        def post_process(self, batch):
            pass

    task = ComputationTask(Still(make, **options))
    before = flat(task.algorithm.target)
    for seed in range(4):
        task.learn(given(seed))
    assert torch.equal(flat(task.algorithm.target), before) and not torch.equal(flat(task.algorithm.model), before)


@each_case
def test_a_request_of_several_steps_counts_each(make, kind, options, given, tau, period):
    task = ComputationTask(divided(kind, 4)(make, **options))
    before = flat(task.algorithm.target)
    task.learn(given(0))
    kept = 0.0 if tau is None else (1.0 - tau) ** (4 // period)
    torch.testing.assert_close(flat(task.algorithm.target), kept * before + (1.0 - kept) * flat(task.algorithm.model))
    assert (task.algorithm.updates_before, task.algorithm.updates) == (0, 4)


def test_without_a_copy_nothing_follows():
    task = ComputationTask(DQN(lambda: MLPQ(OBS, ACT, (8,)), target_period=0))
    task.learn(rows())
    algorithm = task.algorithm
    algorithm.update_target(algorithm.model, tau=0.5)
    algorithm.updates_before, other = 0, algorithm.model.clone()
    before = flat(other)
    task.learn(rows(1))
    algorithm.update_target(other, period=0)
    assert torch.equal(flat(other), before)
    algorithm.post_process(Batch())
    algorithm.update_target(other, tau=0.5)
    torch.testing.assert_close(flat(other), (before + flat(algorithm.model)) / 2)
