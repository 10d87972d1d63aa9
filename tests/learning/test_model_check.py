"""What an algorithm calls of its model is there, and answers in the right shapes: found when the task is built, with the method's
name."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like import ComputationTask
from parl_like.algorithms import A2C, DQN, IMPALA, PPO, WorldModel
from parl_like.algorithms.dynamics import DynamicsLearner
from parl_like.learning.model import Model
from parl_like.models import MLPQ, ConvActorCritic, ConvQ, MLPActorCritic, RecurrentActorCritic
from parl_like.values.batch import Batch

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Discrete(4)
SPACES = {
    "discrete": ACT, "joint": gym.spaces.MultiDiscrete([2, 3]), "binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-1, 1, (2,), np.float32), "matrix": gym.spaces.Box(-1, 1, (2, 2), np.float32),
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("algorithm", [A2C, PPO, IMPALA])
@pytest.mark.parametrize("model", [MLPActorCritic, RecurrentActorCritic])
def test_models_of_the_house_keep_the_contract(algorithm, model, space):
    ComputationTask(algorithm(model(OBS, SPACES[space], hidden=[4])))


def test_images_keep_it_too():
    pixels = gym.spaces.Box(0, 255, (9, 9, 3), np.uint8)
    ComputationTask(DQN(ConvQ(pixels, ACT, features=4)))
    ComputationTask(PPO(ConvActorCritic(pixels, ACT, features=4)))
    nested = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(4), "x": OBS})
    ComputationTask(DQN(MLPQ(nested, ACT)))
    ComputationTask(PPO(RecurrentActorCritic(nested, ACT)))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: DQN(MLPActorCritic(OBS, ACT)), r"DQN calls q\(obs\) -> \[N, A\].*MLPActorCritic has no q; .*MLPQ"),
    (lambda: PPO(MLPQ(OBS, ACT)), r"PPO calls policy\(obs, state\) -> \(out, state\).*MLPQ has no policy; .*MLPActorCritic"),
    (lambda: A2C(MLPQ(OBS, ACT)), "A2C calls policy"), (lambda: IMPALA(MLPQ(OBS, ACT)), "IMPALA calls policy"),
    (lambda: WorldModel(MLPQ(OBS, ACT)), "WorldModel calls .*MLPQ has no"),
    (lambda: DynamicsLearner(MLPQ(OBS, ACT)), "DynamicsLearner calls trunk.*MLPQ has no trunk"),
])
def test_a_model_without_the_method_is_refused_with_what_it_should_return(make, message):
    with pytest.raises(TypeError, match=message):
        ComputationTask(make())


def critic(**methods):
    """MLPActorCritic with other methods."""
    return type("Own", (MLPActorCritic,), methods)(OBS, ACT, hidden=[4])


def head_with(**changes):
    model = critic()
    for name, value in changes.items():
        setattr(model.head, name, value)
    return model


OUT = {"logits": torch.zeros(2, 4)}


@pytest.mark.parametrize(("model", "method", "got"), [
    (critic(policy=lambda self, obs, state=None: OUT), "policy", "dict"),
    (critic(policy=lambda self, obs, state=None: (torch.zeros(2, 4), {})), "policy", "Tensor"),
    (critic(policy=lambda self, obs, state=None: ({"probs": torch.zeros(2, 4)}, {})), "policy", "'logits'.*probs"),
    (critic(policy=lambda self, obs, state=None: ({"logits": torch.zeros(2, 5)}, {})), "policy", r"logits.*\(2, 4\).*\(2, 5\)"),
    (critic(policy=lambda self, obs, state=None: (OUT, {"h": torch.zeros(2, 3)})), "policy", "state.*'h'"),
    (critic(policy=lambda self, obs: (OUT, {})), "policy", "positional argument"),
    (critic(value=lambda self, obs, state=None: torch.zeros(2, 1)), "value", r"\(2,\).*\(2, 1\)"),
    (critic(value=lambda self, obs, state=None: 3.0), "value", "float"),
    (critic(evaluate=lambda self, obs, state=None, first=None: torch.zeros(2)), "evaluate", "Tensor"),
    (critic(evaluate=lambda self, obs, state=None, first=None: (OUT, torch.zeros(2, 1))), "evaluate", r"\(2,\).*\(2, 1\)"),
    (critic(evaluate=lambda self, obs, state=None, first=None: ({}, torch.zeros(2))), "evaluate", "logits"),
    (head_with(explorer="boltzmann"), "head", "boltzmann"),
    (head_with(log_prob=lambda out, act: torch.zeros(2, 4)), "head", r"log_prob.*\(2,\).*\(2, 4\)"),
    (head_with(entropy=lambda out: torch.zeros(())), "head", r"entropy.*\(2,\).*\(\)"),
])
def test_wrong_answers_are_refused_with_the_right_one(model, method, got):
    with pytest.raises(TypeError, match=rf"(?s)task 'task': PPO calls {method}.*{got}"):
        ComputationTask(PPO(model))


def test_a_memory_that_the_policy_forgets():
    class Forgets(RecurrentActorCritic):
        def policy(self, obs, state=None):
            return super().policy(obs, state)[0], {}

    with pytest.raises(TypeError, match=r"task 'task': PPO calls policy.*the state.*'h'"):
        ComputationTask(PPO(Forgets(OBS, ACT)))


def test_outputs_and_memory_may_be_batches():
    class Batches(RecurrentActorCritic):
        def policy(self, obs, state=None):
            out, after = super().policy(obs, state)
            return Batch(out), Batch(after)

    ComputationTask(PPO(Batches(OBS, ACT)))


def test_values_of_too_few_actions():
    class Short(MLPQ):
        def q(self, obs):
            return super().q(obs)[:, :3]

    with pytest.raises(TypeError, match=r"task 'task': DQN calls q\(obs\).*expected \(2, 4\).*got \(2, 3\)"):
        ComputationTask(DQN(Short(OBS, ACT), target_period=0))
    with pytest.raises(TypeError, match="DQN.*Discrete"):
        ComputationTask(DQN(type("Boxed", (Model,), {"q": lambda self, obs: obs})(OBS, SPACES["box"]), target_period=0))


def test_the_trial_leaves_the_networks_as_they_were_built():
    """Also their statistics: it runs in eval mode."""
    class Norm(MLPActorCritic):
        def __init__(self, obs, act):
            super().__init__(obs, act, hidden=[4])
            self.norm = torch.nn.BatchNorm1d(3)

        def _features(self, obs):
            return self.norm(super()._features(obs))

    model = Norm(OBS, ACT)
    before = model.weights_hash()
    ComputationTask(PPO(model))
    assert model.weights_hash() == before
