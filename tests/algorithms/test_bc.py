"""Behaviour cloning against its formula, and on recorded data of every kind of action."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from parl_like import ComputationTask, OfflineHelper, Robot, create_algorithm_func
from parl_like.algorithms import BC
from parl_like.data.datasets import from_arrays
from parl_like.learning.model import Model
from parl_like.models import MLPActorCritic, RecurrentActorCritic
from parl_like.models.heads import CategoricalHead
from parl_like.values.batch import Batch

OBS = Box(-1, 1, (1,), np.float32)


class Fixed(Model):
    """Three actions with the logits log 2, 0, 0 in every state; no value at all."""

    def __init__(self):
        super().__init__(OBS, Discrete(3))
        self.head = CategoricalHead(1, 3)
        with torch.no_grad():
            self.head.linear.weight.zero_()
            self.head.linear.bias.copy_(torch.tensor([math.log(2.0), 0.0, 0.0]))

    def policy(self, obs, state=None):
        return self.head(obs), {}


@pytest.mark.parametrize("entropy", [0.0, 0.5])
def test_the_loss_worked_out_by_hand(entropy):
    """π = ½, ¼, ¼, so −log π of the actions 0, 0, 2, 1 is log 2 · (1, 1, 2, 2), in the mean 1.5 log 2; H = 1.5 log 2, too."""
    algorithm = BC(Fixed, entropy=entropy)
    result = algorithm.learn(Batch(obs=torch.zeros(4, 1), act=torch.tensor([0, 0, 2, 1])))
    assert float(result["loss"].detach()) == pytest.approx(1.5 * math.log(2) * (1 - entropy))
    assert float(result["log_prob"]) == pytest.approx(-1.5 * math.log(2))
    result["loss"].backward()
    # d loss / d logit = π − share of the action among the rows; of the entropy −π (log π + H)
    slope = [p * (math.log(p) + 1.5 * math.log(2)) for p in (0.5, 0.25, 0.25)]
    expected = [0.5 - 0.5 + entropy * slope[0], 0.25 - 0.25 + entropy * slope[1], 0.25 - 0.25 + entropy * slope[2]]
    np.testing.assert_allclose(algorithm.model.head.linear.bias.grad, expected, atol=1e-6)


def test_a_model_with_a_memory_is_refused():
    with pytest.raises(TypeError, match="BC: RecurrentActorCritic has a memory"):
        BC(lambda: RecurrentActorCritic(OBS, Discrete(2)))


class Repeat(gym.Env):
    """The less is paid, the farther the action is from the teacher's."""

    observation_space = OBS

    def __init__(self, act):
        self.action_space = act

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.x = 10, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, {}

    def step(self, act):
        wanted = teacher(self.action_space, self.x[None])
        error = sum(float(np.abs(np.asarray(a) - b[0]).mean()) for a, b in zip(arrays(act), arrays(wanted), strict=True))
        self.left, self.x = self.left - 1, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x, -error, False, self.left == 0, {}


def arrays(act):
    return [a for part in (act.values() if isinstance(act, dict) else act if isinstance(act, tuple) else [act])
            for a in (arrays(part) if isinstance(part, (dict, tuple)) else [part])]


def teacher(space, x):
    """The teacher's actions [N, ...] in states x [N, 1]."""
    if isinstance(space, Dict):
        return {key: teacher(part, x) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(teacher(part, x) for part in space.spaces)
    if isinstance(space, Box):
        return np.float32(2) - np.repeat(x, 2, 1) * np.float32(1.5)  # between 0.5 and 3.5
    above = (x > 0).astype(np.int64)
    return above[:, 0] + space.start if isinstance(space, Discrete) else np.repeat(above, 2, 1)


@pytest.mark.parametrize("space", [
    Discrete(2, start=3), MultiDiscrete([2, 3]), MultiBinary(2), Box(0, 4, (2,), np.float32),
    Dict({"arm": Tuple((Discrete(2), Box(0, 4, (2,), np.float32))), "flags": MultiBinary(2)}),
], ids=lambda space: type(space).__name__)
def test_every_kind_of_action_is_cloned_from_recorded_rows(space):
    """400 rows of the environment's own actions, 300 optimiser steps: errors of about 1 per part fall below a tenth."""
    x = np.random.default_rng(0).uniform(-1, 1, (400, 1)).astype(np.float32)
    data = from_arrays(obs=x, act=teacher(space, x), rew=np.zeros(400), terminated=np.ones(400, bool),
                       truncated=np.zeros(400, bool), obs_next=x)
    func = create_algorithm_func(MLPActorCritic, dict(obs=OBS, act=space, hidden=[32]), BC, dict(lr=0.01))
    with Robot(tasks={"RL": ComputationTask(func, lambda: OfflineHelper(data, batch_size=64))}, seed=0) as robot:
        before = robot.evaluate(10, env=lambda: Repeat(space)).mean_return / 10
        robot.run(300)
        assert robot.tasks["RL"].algorithm.updates == 300
        after = robot.evaluate(10, env=lambda: Repeat(space)).mean_return / 10
    n = len(list(arrays(teacher(space, x))))
    assert after > -0.1 * n, (before, after)
    assert isinstance(space, Discrete) or before < -0.2 * n  # an untrained network may happen to know a sign
