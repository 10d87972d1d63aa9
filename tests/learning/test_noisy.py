"""Noise in weights: the formula by hand, what is saved and sent, when it is drawn and when it counts."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from parl_like import ComputationTask
from parl_like.algorithms import DQN
from parl_like.learning.noisy import NoisyLinear, draw_noise, noisy_layers, without_noise
from parl_like.models import MLP, MLPQ
from parl_like.values.batch import Batch
from parl_like.values.batch_leaf import same

OBS, ACT = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def rows(seed=0, n=8):
    rng = np.random.default_rng(seed)
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "obs_next": rng.normal(size=(n, 3)).astype(np.float32),
            "act": rng.integers(2, size=n), "rew": rng.normal(size=n).astype(np.float32),
            "terminated": np.arange(n) % 3 == 0, "truncated": np.zeros(n, bool)}


def test_the_formula_worked_out_by_hand():
    """W = (1 2), S = (0.5 1), b = 3, s = 2, f(ε_in) = (2 −1), f(ε_out) = −3, x = (1 4)."""
    layer = NoisyLinear(2, 1)
    values = {"weight": [[1, 2]], "weight_std": [[0.5, 1]], "bias": [3], "bias_std": [2], "noise_in": [2, -1], "noise_out": [-3]}
    layer.load_state_dict({name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()})
    x = torch.tensor([[1.0, 4.0]])
    clean = 1 * 1 + 2 * 4 + 3
    assert layer(x).tolist() == [[clean + 0.5 * 2 * -3 * 1 + 1 * -1 * -3 * 4 + 2 * -3]]
    with without_noise([layer]):
        assert layer(x).tolist() == [[clean]]


def test_it_begins_as_a_linear_layer_whose_noise_has_the_papers_size():
    torch.manual_seed(0)
    plain = nn.Linear(16, 5)
    torch.manual_seed(0)
    layer = NoisyLinear(16, 5)
    assert torch.equal(plain.weight, layer.weight) and torch.equal(plain.bias, layer.bias)
    assert layer.weight_std.unique().tolist() == layer.bias_std.unique().tolist() == [0.125]
    assert torch.equal(layer(torch.ones(2, 16)), plain(torch.ones(2, 16)))  # nothing is drawn yet


def test_noise_is_the_signed_root_of_normal_numbers_and_comes_from_one_generator():
    layers = [NoisyLinear(3, 4), NoisyLinear(4, 2)]
    draw_noise(layers, torch.Generator().manual_seed(5))
    normal = torch.randn(13, generator=torch.Generator().manual_seed(5))
    drawn = torch.cat([noise for layer in layers for noise in (layer.noise_in, layer.noise_out)])
    torch.testing.assert_close(drawn.sign() * drawn.square(), normal)


def test_all_layers_of_the_model_are_noisy_and_those_of_a_dueling_one():
    assert len(noisy_layers(MLPQ(OBS, ACT, (4, 4), noisy=0.5))) == 3
    model = MLPQ(OBS, ACT, (4, 4), noisy=0.5, dueling=True)
    assert len(noisy_layers(model, model)) == 5 and noisy_layers(MLP([3, 4, 2])) == []


@pytest.mark.parametrize("options", [{"target_period": 2}, {"tau": 0.5}, {"target_period": 0}])
def test_each_update_draws_and_tests_are_without(options):
    task = ComputationTask(DQN(MLPQ(OBS, ACT, (8,), noisy=0.5), **options))
    algorithm, inputs = task.algorithm, {"obs": rows()["obs"]}

    def q(mode):
        return task.predict(inputs, mode)["q"]

    assert same(q("collect"), q("test"))  # before the first update there is no noise
    before = task.algorithm.torch_rng.get_state()
    seen = []
    for seed in range(3):
        task.learn(rows(seed))
        seen.append(algorithm.noisy[0].noise_in.clone())
        assert same(q("collect"), q("collect")) and not same(q("collect"), q("test"))
        with without_noise(algorithm.noisy):
            clean = algorithm.model.q(torch.from_numpy(inputs["obs"])).detach().numpy()
        assert same(q("test"), clean) and same(q("update"), clean)
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(task.algorithm.torch_rng.get_state(), before)
    state = task.algorithm.torch_rng.get_state()
    q("collect")
    assert torch.equal(task.algorithm.torch_rng.get_state(), state)  # acting draws nothing
    layers = noisy_layers(*algorithm.networks().values())  # of network and target
    old = [layer.noise_in.clone() for layer in layers]
    algorithm.process(Batch.nest({name: torch.from_numpy(value) for name, value in rows().items()}))
    noises = [layer.noise_in for layer in layers]
    assert len({tuple(noise.tolist()) for noise in noises}) == len(noises)
    assert not any(torch.equal(*pair) for pair in zip(old, noises, strict=True))


def test_a_checkpoint_holds_the_noise_and_acting_copies_have_it():
    task, other = (ComputationTask(DQN(MLPQ(OBS, ACT, (8,), noisy=0.5, dueling=True))) for _ in range(2))
    task.learn(rows())
    other.load_state_dict(task.state_dict())
    inputs = {"obs": rows()["obs"]}
    assert same(task.predict(inputs), other.predict(inputs)) and not same(task.predict(inputs), task.predict(inputs, "test"))
    for one in (task, other):
        one.learn(rows(1))
    assert same(task.state_dict(), other.state_dict())
    now = task.predict(inputs), task.predict(inputs, "test")
    task.publish()
    assert same((task.predict(inputs), task.predict(inputs, "test")), now)
    task.learn(rows(2))
    assert same((task.predict(inputs), task.predict(inputs, "test")), now)  # the copies are as they were
    task.publish()
    assert not same(task.predict(inputs), now[0]) and not same(task.predict(inputs, "test"), now[1])


def test_noise_of_size_zero_is_dqn():
    torch.manual_seed(0)
    plain = MLPQ(OBS, ACT, (8,))
    torch.manual_seed(0)
    model = MLPQ(OBS, ACT, (8,), noisy=0.5)
    for layer in noisy_layers(model):
        for std in (layer.weight_std, layer.bias_std):
            std.data.zero_()
            std.requires_grad_(False)
    tasks = [ComputationTask(DQN(model)), ComputationTask(DQN(plain))]
    for seed in range(20):
        for task in tasks:
            task.learn(rows(seed))
    weights = [{key: value for key, value in task.algorithm.model.state_dict().items() if "std" not in key and "noise" not in key}
               for task in tasks]
    assert weights[0].keys() == weights[1].keys() and all(torch.equal(weights[0][key], weights[1][key]) for key in weights[1])
