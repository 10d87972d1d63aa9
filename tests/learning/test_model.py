"""Model: specs, building, cloning, synchronisation, checkpoint keys."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch_fakes import normal

from parl_like.learning import layers
from parl_like.learning.layers import UnbuiltError
from parl_like.learning.model import Model, reinitialise, sync
from parl_like.values.spec import Spec

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
ACT = gym.spaces.Discrete(2)


pytestmark = pytest.mark.usefixtures("seeded")


class Normed(Model):
    """A model of lazy layers with every kind of tensor in its state dict: parameters, and the buffers of a normalisation."""

    def __init__(self, obs=OBS, act=ACT, size=4):
        super().__init__(obs, act)
        self.hidden = layers.fc(size, "relu")
        self.norm = layers.batch_norm()
        self.out = layers.fc(int(act.n))

    def q(self, obs):
        return self.out(self.norm(self.hidden(obs)))


class Remembering(Model):
    def __init__(self, obs=OBS, act=ACT):
        super().__init__(obs, act)
        self.memory, self.out, self.critic = layers.gru(5), layers.fc(2), layers.fc(1)

    def state_specs(self):
        return {"h": Spec("h", (5,), np.dtype(np.float32))}

    def policy(self, obs, state=None):
        y, state = self.memory(obs, state)
        return {"logits": self.out(y)}, state

    def evaluate(self, obs, state=None, first=None):
        steps, rows = obs.shape[:2]
        y = self.memory(obs, state, first)[0].reshape(steps * rows, 5)
        return {"logits": self.out(y)}, self.critic(y).squeeze(-1)


def trained(model):
    """The model after it has seen something: no tensor has its initial value."""
    for seed in (11, 12):
        loss = model.q(normal(16, 3, seed=seed) + 2.0).square().sum()
        loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    return model


# -------------------------------------------------------------------------------------------------------------------- specs


def test_specs_of_flat_and_nested_spaces():
    nested = gym.spaces.Dict({"image": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), "goal": gym.spaces.Discrete(5)})
    model = Model(nested, ACT)
    assert set(model.obs_specs) == {"obs.image", "obs.goal"} and list(model.act_specs) == ["act"]
    assert model.obs_specs["obs.image"] == Spec("obs.image", (8, 8, 3), np.dtype(np.uint8))
    assert model.state_specs() == {} and model.inputs() == model.obs_specs
    assert model.obs_space is nested and model.act_space is ACT


def test_inputs_of_a_recurrent_model_carry_its_state():
    inputs = Remembering().inputs()
    assert list(inputs) == ["obs", "state.h"]
    assert inputs["state.h"] == Spec("state.h", (5,), np.dtype(np.float32))


def test_a_space_is_asked_for():
    with pytest.raises(TypeError, match="act is int; expected a gymnasium space"):
        Model(OBS, 2)


# ----------------------------------------------------------------------------------------------------------------- building


def test_lazy_layers_are_built_when_the_constructor_returns():
    model = Normed()
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == {
        "hidden.w": (3, 4), "hidden.b": (4,), "norm.w": (4,), "norm.b": (4,), "norm.running_mean": (4,), "norm.running_var": (4,),
        "out.w": (4, 2), "out.b": (2,),
    }
    assert model.norm.running_var.tolist() == [1.0] * 4  # the pass of zeros left no trace
    assert model.parameter_count() == 3 * 4 + 4 + 4 + 4 + 4 * 2 + 2
    assert Remembering().critic.w.shape == (5, 1)  # only `evaluate` reaches the critic


def test_parameters_of_a_model_that_cannot_build_itself_are_refused():
    class Odd(Model):
        def __init__(self):
            super().__init__(OBS, ACT)
            self.fc = layers.fc(4)

    with pytest.raises(UnbuiltError, match="^Odd: layer .* has no parameters yet.* evaluate of Odd .* predict of its algorithm"):
        torch.optim.SGD(Odd().parameters(), lr=0.1)


def test_initial_values_are_a_function_of_the_seed():
    hashes = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        hashes.append(Normed().weights_hash())
    assert hashes[0] == hashes[1] != hashes[2]


def test_checkpoint_keys_and_values_are_the_same_in_another_process():
    """The process-wide layer names differ (another layer came first there); neither keys nor hash know them."""
    code = """
import numpy as np, gymnasium as gym, torch
from parl_like import layers
from parl_like.models import MLPQ, RecurrentActorCritic
layers.gru(3)
torch.manual_seed(7)
model = RecurrentActorCritic(gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(2), hidden=(4,), size=5)
print(model.memory.name, model.weights_hash(), *model.state_dict())
"""
    from parl_like.models import RecurrentActorCritic

    torch.manual_seed(7)
    model = RecurrentActorCritic(OBS, ACT, hidden=(4,), size=5)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, digest, *keys = done.stdout.split()
    assert name == "gru_1"
    assert digest == model.weights_hash() and keys == list(model.state_dict())


def test_weights_hash_sees_every_tensor():
    model = trained(Normed())
    for value in model.state_dict().values():
        before = model.weights_hash()
        with torch.no_grad():
            value.view(-1)[0] += 1.0
        assert model.weights_hash() != before


# ------------------------------------------------------------------------------------------------------------ clone and share


def test_a_part_is_what_was_set_last_however_it_was_set():
    model, other = Normed(), nn.Linear(3, 3)

    def parts():
        return model.extra, dict(model.named_children()).get("extra")

    model.extra = nn.Linear(3, 2)
    assert parts() == (model._modules["extra"],) * 2
    model.extra = other
    assert parts() == (other, other)
    model.extra = None
    assert model.extra is None
    model.add_module("extra", other)
    assert parts() == (other, other) and "extra.weight" in model.state_dict()
    copy = model.clone()
    assert copy.extra is copy._modules["extra"] is not other
    del model.extra
    assert not hasattr(model, "extra") and "extra.weight" not in model.state_dict()


def test_clone_is_equal_and_independent():
    model = trained(Normed())
    clone = model.clone()
    x = normal(5, 3)
    with torch.no_grad():
        assert torch.equal(clone.q(x), model.q(x))
        pointers = {value.data_ptr() for value in model.state_dict().values()}
        assert pointers.isdisjoint(value.data_ptr() for value in clone.state_dict().values())
        before = model.q(x)
        clone.hidden.w.add_(1.0)
        assert torch.equal(model.q(x), before) and not torch.equal(clone.q(x), before)


def test_clone_without_copy_is_drawn_anew():
    model = trained(Normed())
    clone = model.clone(copy=False)
    x = normal(5, 3)
    with torch.no_grad():
        assert not torch.equal(clone.q(x), model.q(x))
    assert clone.out.b.tolist() == [0.0, 0.0] and clone.norm.running_mean.tolist() == [0.0] * 4
    torch.manual_seed(3)
    expected = Normed().hidden.w
    torch.manual_seed(3)
    assert torch.equal(model.clone(copy=False).hidden.w, expected)


def test_a_part_that_cannot_be_drawn_anew_is_named():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

    model = Normed()
    model.scale = Scale()
    before = model.weights_hash()
    with pytest.raises(TypeError, match=r"part 'scale' \(Scale\) has parameters \(factor\) but no reset_parameters"):
        reinitialise(model)
    assert model.weights_hash() == before


def test_one_model_in_two_hands_has_one_storage():
    model = Normed()
    a, b = {"model": model}, {"model": model}
    x = normal(5, 3)
    with torch.no_grad():
        before = b["model"].q(x)
    torch.optim.SGD(a["model"].parameters(), lr=0.1).zero_grad()
    a["model"].q(x).sum().backward()
    torch.optim.SGD(a["model"].parameters(), lr=0.1).step()
    with torch.no_grad():
        assert not torch.equal(b["model"].q(x), before)


def test_shared_parameters_count_once():
    class Tied(Model):
        def __init__(self):
            super().__init__(OBS, ACT)
            self.one = layers.fc(3, in_size=3)
            self.two = layers.fc(3, w=self.one, in_size=3)

    assert Tied().parameter_count() == 9 + 3 + 3


# --------------------------------------------------------------------------------------------------------------------- sync


def test_sync_makes_parameters_and_statistics_equal():
    model, other = Normed(), trained(Normed())
    x = normal(5, 3)
    with torch.no_grad():
        assert not torch.equal(model.q(x), other.q(x))
        before = other.weights_hash()
        model.sync_from(other)
        assert torch.equal(model.q(x), other.q(x))
    for key, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key
        assert model.state_dict()[key].data_ptr() != value.data_ptr(), key
    assert other.weights_hash() == before


def test_slow_sync_averages_parameters_and_copies_statistics():
    model, other = Normed(), Normed()
    with torch.no_grad():
        model.hidden.w.fill_(1.0)
        other.hidden.w.fill_(2.0)
        model.norm.running_mean.fill_(1.0)
        other.norm.running_mean.fill_(2.0)
    model.sync_from(other, decay=0.7)
    torch.testing.assert_close(model.hidden.w.data, torch.full((3, 4), 0.7 * 1.0 + 0.3 * 2.0))
    assert model.norm.running_mean.tolist() == [2.0] * 4
    model.sync_from(other, decay=1.0)
    torch.testing.assert_close(model.hidden.w.data, torch.full((3, 4), 1.3))
    for _ in range(100):
        model.sync_from(other, decay=0.7)
    torch.testing.assert_close(model.out.w.data, other.out.w.data)


def test_a_tied_weight_is_averaged_once():
    def tied():
        one = layers.fc(2, in_size=2)
        return nn.ModuleList([one, layers.fc(2, w=one, in_size=2)])

    mine, theirs = tied(), tied()
    with torch.no_grad():
        mine[0].w.fill_(0.0)
        theirs[0].w.fill_(1.0)
    sync(mine, theirs, decay=0.5)
    assert mine[1].w.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_synchronised_parameters_still_learn():
    model = Normed()
    model.sync_from(Normed(), decay=0.5)
    model.q(normal(5, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("other", "message"), [
    (lambda: Normed(size=5), r"'hidden.w' is \(3, 4\) here and \(3, 5\) in the other"),
    (lambda: Remembering(), r"'hidden.w' is \(3, 4\) here and missing in the other"),
])
def test_networks_of_other_structure_are_refused_by_name(other, message):
    model = Normed()
    before = model.weights_hash()
    with pytest.raises(ValueError, match=message):
        model.sync_from(other())
    assert model.weights_hash() == before


def test_a_tensor_that_only_the_other_has_is_named_too():
    other = Normed()
    other.extra = layers.fc(2, in_size=2)
    with pytest.raises(ValueError, match=r"'extra.w' is missing here and \(2, 2\) in the other"):
        Normed().sync_from(other)


def test_a_layer_replaced_after_the_first_sync_is_seen():
    model, other = Normed(), Normed()
    model.sync_from(other)
    other.out = layers.fc(2, in_size=4)
    model.sync_from(other)
    assert torch.equal(model.out.w, other.out.w)


def test_sync_before_the_layers_exist_fails():
    with pytest.raises(UnbuiltError, match="has no parameters yet"):
        sync(nn.ModuleList([layers.fc(2)]), nn.ModuleList([layers.fc(2)]))


@pytest.mark.parametrize("decay", [-0.1, 1.1])
def test_decay_is_a_fraction(decay):
    with pytest.raises(ValueError, match=r"expected a number in \[0, 1\]"):
        Normed().sync_from(Normed(), decay)
