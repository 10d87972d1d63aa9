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
from parl_like.envs.recall import Recall
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


def memory(act=None, **more):
    torch.manual_seed(0)
    return RecurrentActorCritic(OBS, act or Discrete(3), (), size=8, **more)


def test_what_is_remembered_begins_with_the_first_real_row():
    """Two sequences of three rows with two before them: the first has one real row before it, the second ends after two."""
    model = memory()
    algorithm = BC(model, sequence=3, burn_in=2)
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 1)).astype(np.float32))
    act, valid = torch.tensor([[0, 1, 2, 0, 1]] * 2), torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()
    found = algorithm.learn(Batch(obs=obs, act=act, valid=valid))
    expected = []
    for row, rows, skipped in ((0, range(1, 5), 1), (1, range(4), 2)):
        state = {"h": torch.zeros(1, 8)}
        for at, t in enumerate(rows):
            out, state = model.policy(obs[row : row + 1, t], state)
            if at >= skipped:
                expected.append(float(out["logits"].log_softmax(1)[0, act[row, t]].detach()))
    assert len(expected) == 5 and float(found["log_prob"]) == pytest.approx(np.mean(expected), rel=1e-5)
    assert float(found["loss"].detach()) == pytest.approx(-np.mean(expected), rel=1e-5)


def test_a_model_that_forgets_everything_is_cloned_as_one_without_a_memory():
    class Forgets(RecurrentActorCritic):
        def policy(self, obs, state=None):
            return self.head(torch.cat([obs] * 8, -1)), state

        def evaluate(self, obs, state=None, first=None):
            return self.head(torch.cat([obs] * 8, -1).flatten(0, 1)), torch.zeros(obs.shape[0] * obs.shape[1])

    class Flat(MLPActorCritic):
        def policy(self, obs, state=None):
            return self.head(torch.cat([obs] * 8, -1)), {}

    torch.manual_seed(0)
    one, other = Forgets(OBS, Discrete(3), (), size=8), Flat(OBS, Discrete(3), (8,))
    other.head.load_state_dict(one.head.state_dict())
    tasks = [ComputationTask(BC(model, **more)) for model, more in ((one, dict(sequence=4)), (other, {}))]
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = {"obs": rng.normal(size=(8, 4, 1)).astype(np.float32), "act": rng.integers(3, size=(8, 4))}
        tasks[0].learn({**rows, "valid": np.ones((8, 4), bool)})
        tasks[1].learn({name: column.swapaxes(0, 1).reshape(32, *column.shape[2:]) for name, column in rows.items()})
    assert torch.equal(one.head.linear.weight, other.head.linear.weight)
    with pytest.raises(ValueError, match="sequence is 1 and burn_in 0"):
        BC(memory, sequence=1)


@pytest.mark.parametrize("remembers", [True, False])
def test_with_a_memory_it_clones_what_no_observation_says(remembers):
    """Of a player that knows the cue of `Recall`, which is gone when it is asked for."""
    rng, length = np.random.default_rng(0), 4
    cues, rows = rng.integers(2, size=100), length + 2
    obs = np.zeros((100, rows, 3), np.float32)
    obs[np.arange(100), 0, cues] = obs[:, -1, 2] = 1.0
    ends = np.tile(np.arange(rows) == rows - 1, 100)
    obs, after = obs.reshape(-1, 3), np.roll(obs.reshape(-1, 3), -1, 0)
    data = from_arrays(obs=obs, act=np.repeat(cues, rows), rew=ends.astype(float), terminated=ends, obs_next=after,
                       action_space=Discrete(2))
    env = Recall(length)
    model, sizes = (RecurrentActorCritic, dict(size=16)) if remembers else (MLPActorCritic, {})
    func = create_algorithm_func(model, dict(obs=env.observation_space, act=Discrete(2), hidden=[16], **sizes), BC,
                                 dict(lr=0.01, sequence=rows))
    with Robot(tasks={"RL": ComputationTask(func, lambda: OfflineHelper(data, batch_size=32))}, seed=0) as robot:
        robot.run(150)
        score = robot.evaluate(40, env=lambda: Recall(length), seed=0).mean_return
    assert score == 1.0 if remembers else score < 0.8


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
