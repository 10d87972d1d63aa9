"""Native networks: the kernels against their twin in NumPy and against autograd, and when torch computes instead."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from parl_like.learning import _native, native
from parl_like.learning.native import Network, NetworkLayers, NotNative
from parl_like.models import MLPQ, MLPActorCritic, MLPActorQ
from parl_like.models.mlp import MLP, DropoutEnsembleMLP, EnsembleMLP

BEST = _native.level()
CARTPOLE = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)
SHAPES = [(1, 3, 1, 1), (7, 4, 64, 2), (64, 5, 33, 7), (300, 17, 40, 1), (5, 9, 300, 3), (13, 1, 16, 48), (2, 40, 31, 32)]
"""Rows, inputs, hidden numbers, outputs."""


@pytest.fixture(autouse=True)
def best_kernels():
    yield
    _native.level(BEST)


def network_of(module, n_in):
    layers = NetworkLayers(n_in)
    ends = layers.add(module)
    layers.outputs = {str(i): end for i, end in enumerate(ends if isinstance(ends, list) else [ends])}
    return Network(layers)


def modules(n_in, hidden, out, activation):
    torch.manual_seed(hidden + out)
    yield MLP([n_in, hidden, hidden, out], activation)
    yield MLP([n_in, out], activation, activate_last=True)
    yield EnsembleMLP(3, [n_in, hidden, out], activation)
    norms = DropoutEnsembleMLP(2, [n_in, hidden, hidden, out], activation)
    for norm in norms.norms:
        nn.init.uniform_(norm.scale, 0.5, 2.0)
        nn.init.uniform_(norm.shift, -1.0, 1.0)
    yield norms


def rows(n, size, seed=0):
    return np.random.default_rng(seed).standard_normal((n, size)).astype(np.float32)


def passed(network, x, seed=0):
    """Outputs, flat gradient and that of the input, for random gradients of the outputs."""
    assert network.ready()
    out, kept = network.keep(x)
    given = [rows(*one.shape, seed=i + 1) for i, one in enumerate(out)]
    flat = np.full(network.size, np.nan, np.float32)
    return out, flat, network.backward(kept, given, flat, to_input=True), given


def close(a, b):
    b = np.asarray(b)
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=3e-6 * max(1.0, float(np.abs(b).max(initial=0.0))))


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_give_what_their_twin_and_autograd_give(shape, activation):
    n, n_in, hidden, n_out = shape
    x = rows(n, n_in)
    for level in {BEST, min(BEST, 1), 0}:
        for module in modules(n_in, hidden, n_out, activation):
            _native.level(level)
            network = network_of(module, n_in)
            out, flat, dx, given = passed(network, x)
            values = native.forward_twin(network.description, x)
            names = network.description.outputs
            twin_dx, into = native.backward_twin(network.description, values, dict(zip(names, given, strict=True)))
            for one, layer in zip(out, names.values(), strict=True):
                close(one, values[layer]["y"])
            close(dx, twin_dx)
            for gradient, parameter in zip(native.parts(network, flat), network.parameters, strict=True):
                close(gradient, into[id(parameter)])

            tensor = torch.from_numpy(x).requires_grad_()
            whole = module(tensor)
            whole.backward(torch.from_numpy(np.stack(given) if whole.ndim == 3 else given[0]))
            close(whole.detach().reshape(-1), np.concatenate(out).ravel())
            close(dx, tensor.grad)
            for gradient, parameter in zip(native.parts(network, flat), network.parameters, strict=True):
                close(gradient, parameter.grad)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_avx2_and_avx512_give_the_same_bits(activation):
    if BEST < 2:
        pytest.skip("the processor has no AVX-512")
    for n, n_in, hidden, n_out in SHAPES:
        for module in modules(n_in, hidden, n_out, activation):
            results = []
            for level in (1, 2):
                _native.level(level)
                out, flat, dx, _ = passed(network_of(module, n_in), rows(n, n_in))
                results.append([one.tobytes() for one in (*out, flat, dx)])
            assert results[0] == results[1]


def test_a_row_gives_the_same_bits_in_any_company():
    for module in modules(9, 65, 3, "tanh"):
        network, x = network_of(module, 9), rows(600, 9)
        assert network.ready()
        whole = network.forward(x)
        for some in ([0], range(7), range(250, 270), range(100, 500)):
            for one, all_rows in zip(network.forward(x[list(some)]), whole, strict=True):
                assert one.tobytes() == all_rows[list(some)].tobytes()
        for kept, all_rows in zip(network.keep(x)[0], whole, strict=True):
            assert kept.tobytes() == all_rows.tobytes()


def test_activations_are_exact_to_float32_and_let_nan_pass():
    x = np.concatenate([np.linspace(-100, 100, 20_001), np.logspace(-30, 2, 2000), [np.nan]]).astype(np.float32)[:, None]
    wide = x.astype(np.float64)
    exact = {"tanh": np.tanh(wide), "relu": np.maximum(wide, 0), "silu": wide / (1 + np.exp(-wide))}
    for activation, expected in exact.items():
        module = MLP([1, 1], activation, activate_last=True)
        nn.init.ones_(module.layers[0].weight)
        nn.init.zeros_(module.layers[0].bias)
        network = network_of(module, 1)
        for level in range(BEST + 1):
            _native.level(level)
            assert network.ready()
            np.testing.assert_allclose(network.forward(x)[0], expected, rtol=4e-7, atol=1e-30)


def models():
    torch.manual_seed(0)
    box = gymnasium.spaces.Box(-1, 1, (3,))
    masked = gymnasium.spaces.Dict(obs=CARTPOLE[0], mask=gymnasium.spaces.MultiBinary(2))
    yield MLPActorCritic(*CARTPOLE)
    yield MLPActorCritic(CARTPOLE[0], box, shared=True, activation="silu")
    yield MLPActorCritic(CARTPOLE[0], box, state_dependent_std=True)
    yield MLPActorCritic(masked, CARTPOLE[1])
    yield MLPActorCritic(gymnasium.spaces.Discrete(5), gymnasium.spaces.MultiDiscrete([2, 3]))
    yield MLPQ(*CARTPOLE)
    yield MLPActorQ(CARTPOLE[0], box)
    yield MLPActorQ(CARTPOLE[0], box, policy="deterministic", layer_norm=True)
    yield MLPActorQ(*CARTPOLE)


def answers(model, obs, act):
    if isinstance(model, MLPActorCritic):
        out, value = model.evaluate(obs)
        parts = [*out.values(), value, *model.policy(obs)[0].values(), model.value(obs)]
    elif isinstance(model, MLPQ):
        parts = [model.q(obs)]
    else:
        acts = model.act(obs) if isinstance(model.head, nn.Linear) else model.policy(obs)
        parts = [*(acts.values() if isinstance(acts, dict) else [acts]), model.q(obs, act)]
    return parts


def observed(model, n=12):
    spec = {"obs": torch.from_numpy(rows(n, 4))}
    if isinstance(model.obs_space, gymnasium.spaces.Dict):
        return spec | {"mask": torch.tensor([[1, 0], [1, 1], [0, 1]] * (n // 3))}
    return torch.arange(n) % 5 if isinstance(model.obs_space, gymnasium.spaces.Discrete) else spec["obs"]


def test_models_compute_the_same_natively_with_and_without_gradient():
    for model in models():
        other = copy.deepcopy(model)
        model.native = native.networks_of(model)
        obs, act = observed(model), torch.from_numpy(rows(12, 3)).clamp(-1, 1)
        act = None if isinstance(model, MLPActorQ) and model.discrete else act
        with torch.no_grad():
            for a, b in zip(answers(model, obs, act), answers(other, obs, act), strict=True):
                close(a, b)
        for one in (model, other):
            sum((part * torch.linspace(0.5, 1.5, part.numel()).view(part.shape)).clamp(-50, 50).sum()
                for part in answers(one, obs, act)).backward()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            close(a.grad, b.grad)


def test_gradients_have_gradients():
    """As the products with a Hessian have that TRPO solves for its step."""
    for model in models():
        other = copy.deepcopy(model)
        model.native = native.networks_of(model)
        obs, act = observed(model), torch.from_numpy(rows(12, 3)).clamp(-1, 1)
        act = None if isinstance(model, MLPActorQ) and model.discrete else act
        found = []
        for one in (model, other):
            own = list(one.parameters())
            y = sum(part.clamp(-50, 50).square().sum() for part in answers(one, obs, act))
            slopes = torch.autograd.grad(y, own, create_graph=True, materialize_grads=True)
            found.append(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), own, materialize_grads=True))
        for a, b in zip(*found, strict=True):
            close(a, b)


def test_parameters_that_others_stand_in_for_are_left_to_torch():
    """As searches have it that compute the policies of several candidates at once."""
    x = torch.from_numpy(rows(5, 4))
    for first in (True, False):
        model = MLPQ(*CARTPOLE)
        held = {name: torch.stack([p, 2.0 * p]).detach() for name, p in model.named_parameters()}
        expected = torch.vmap(lambda one, model=model: torch.func.functional_call(model.net, one, x))(
            {name.removeprefix("net."): p for name, p in held.items()})
        model.native = native.networks_of(model)
        if first:
            assert model.native["q"].ready()

        class Q(nn.Module):
            def __init__(self, model=model):
                super().__init__()
                self.model = model

            def forward(self, x):
                return self.model.q(x)

        both, q = {f"model.{name}": p for name, p in held.items()}, Q()

        def one_of(parameters, x, q=q):
            return torch.func.functional_call(q, parameters, x)

        for given, axis in ((x, None), (torch.stack([x, x]), 0)):
            close(torch.vmap(one_of, in_dims=(0, axis))(both, given).detach(), expected.detach())
        assert model.native["q"].ready()


def test_copies_compute_with_their_own_parameters():
    for model in models():
        model.native = native.networks_of(model)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            own = {id(p) for p in other.parameters()}
            assert other.native.keys() == model.native.keys()
            assert all(id(p) in own for network in other.native.values() for p in network.parameters)
            before = [one.clone() for one in answers(model, observed(model), torch.zeros(12, 3))] if not (
                isinstance(model, MLPActorQ) and model.discrete) else None
            with torch.no_grad():
                for p in other.parameters():
                    p.add_(1.0)
            if before is not None:
                for a, b in zip(before, answers(model, observed(model), torch.zeros(12, 3)), strict=True):
                    assert torch.equal(a, b)


def test_new_memory_of_a_parameter_is_followed():
    model = MLPQ(*CARTPOLE)
    model.native = native.networks_of(model)
    x = torch.from_numpy(rows(5, 4))
    model.q(x)
    for p in model.parameters():
        p.data = p.data * 2.0
    with torch.no_grad():
        close(model.q(x), model.net(x))
    model.double()
    assert not model.native["q"].ready()


@pytest.mark.parametrize("size", [2, 65, 4000])
def test_other_shapes_of_parameters_are_left_to_torch(size):
    model, x = MLPQ(*CARTPOLE), torch.from_numpy(rows(5, 4))
    model.native = native.networks_of(model)
    first, second, *_ = model.net.layers
    before = [one.data for one in (first.weight, first.bias, second.weight)]
    expected = model.q(x).detach()
    first.weight.data, first.bias.data = torch.ones(size, 4), torch.zeros(size)
    second.weight.data = torch.full((64, size), 1.0 / size)
    assert not model.native["q"].ready() and torch.equal(model.q(x), model.net(x))
    for one, data in zip((first.weight, first.bias, second.weight), before, strict=True):
        one.data = data
    assert model.native["q"].ready() and torch.equal(model.q(x), expected)


def test_shorter_views_of_the_same_memory_are_left_to_torch():
    model = MLPQ(*CARTPOLE)
    network = native.networks_of(model)["q"]
    assert network.ready()
    for p in list(model.parameters())[-2:]:
        p.data = p.data[:1]
    assert not network.ready()


def test_memory_that_moved_while_another_parameter_was_not_fit_is_followed():
    model, x = MLPQ(*CARTPOLE), torch.from_numpy(rows(5, 4))
    model.native = native.networks_of(model)
    model.q(x)
    first, second, *_ = model.net.layers
    first.weight.data = first.weight.data * 2.0
    second.weight.data = second.weight.data.double()
    assert not model.native["q"].ready()
    second.weight.data = second.weight.data.float()
    assert model.native["q"].ready()
    with torch.no_grad():
        close(model.q(x), model.net(x))


def changes():
    def hook(model):
        model.net.register_forward_hook(lambda *_: None)

    def forward(model):
        model.net.forward = lambda x: x

    def method(model):
        model.q = lambda obs: obs

    def part(model):
        model.net = MLP([4, 2])

    def activation(model):
        model.net.activation = torch.relu

    def parameter(model):
        model.net.layers[0].weight = nn.Parameter(torch.zeros(64, 4))

    return [hook, forward, method, part, activation, parameter]


@pytest.mark.parametrize("change", changes(), ids=lambda f: f.__name__)
def test_a_network_that_was_changed_is_left_to_torch(change):
    model = MLPQ(*CARTPOLE)
    network = native.networks_of(model)["q"]
    assert network.ready()
    model.eval()
    assert network.ready()
    model.note = 1
    assert network.ready()
    change(model)
    assert not network.ready()


class OwnQ(MLPQ):
    def q(self, obs):
        return super().q(obs) * 2


def of_one_weight(model):
    model.net.layers[1].weight = model.net.layers[0].weight
    return model


def refused():
    yield of_one_weight(MLPQ(gymnasium.spaces.Box(-1, 1, (8,)), CARTPOLE[1], hidden=(8, 8))), "share a parameter"
    yield OwnQ(*CARTPOLE), "OwnQ"
    yield MLPQ(*CARTPOLE, dueling=True), "dueling"
    yield MLPQ(*CARTPOLE, noisy=0.5), "noisy"
    yield MLPQ(*CARTPOLE, activation="elu"), "elu"
    yield MLPQ(*CARTPOLE).double(), "float64"
    yield MLPQ(*CARTPOLE).to("meta"), "meta"
    yield MLPActorQ(CARTPOLE[0], gymnasium.spaces.Box(-1, 1, (2,)), dropout=0.1), "dropout"
    yield MLPActorCritic(CARTPOLE[0], gymnasium.spaces.Box(-1, 1, (2,)), distribution="gsde"), "GSDEHead"
    hooked = MLPQ(*CARTPOLE)
    hooked.net.register_forward_hook(lambda *_: None)
    yield hooked, "hooks"
    normed = MLPQ(*CARTPOLE)
    nn.utils.parametrizations.weight_norm(normed.net.layers[1])
    yield normed, "Linear"


@pytest.mark.parametrize(("model", "reason"), list(refused()))
def test_what_only_torch_computes_is_refused_with_the_reason(model, reason):
    with pytest.raises(NotNative, match=reason):
        native.networks_of(model)


def test_rows_and_gradients_of_other_sizes_are_refused():
    network = native.networks_of(MLPQ(*CARTPOLE))["q"]
    assert network.ready()
    with pytest.raises(ValueError, match="expected 4"):
        network.forward(rows(3, 5))
    out, kept = network.keep(rows(3, 4))
    with pytest.raises(ValueError, match="expected 3 × 2"):
        network.backward(kept, [rows(3, 3)], np.zeros(network.size, np.float32))
    with pytest.raises(ValueError, match="room for 7"):
        network.backward(kept, [rows(3, 2)], np.zeros(7, np.float32))


def test_what_no_gradient_goes_through_has_none_whatever_its_weights_are():
    module = EnsembleMLP(2, [4, 20, 1], activate_last=False)
    network, x = network_of(module, 4), rows(5, 4)
    given = torch.from_numpy(x).requires_grad_()
    module(given)[0].sum().backward()
    with torch.no_grad():
        module.weight0[1].fill_(np.nan)
    assert network.ready()
    out, kept = network.keep(x)
    flat = np.full(network.size, np.nan, np.float32)
    dx = network.backward(kept, [np.ones((5, 1), np.float32), None], flat, to_input=True)
    close(dx, given.grad)
    for parameter, part in zip(network.parameters, native.parts(network, flat), strict=True):
        close(part, parameter.grad)
    assert not network.backward(kept, [None, None], flat, to_input=True).any() and not flat.any()


def test_weights_that_come_back_after_others_learned_give_what_they_gave():
    network, x = network_of(MLP([4, 20, 3]), 4), rows(5, 4)
    biases = [one for one in network.parameters if one.ndim == 1]
    assert network.ready()
    (before,), kept = network.forward(x), [one.detach().clone() for one in biases]
    with torch.no_grad():
        for one in biases:
            one += 0.5
        network.keep(x)
        for one, old in zip(biases, kept, strict=True):
            one.copy_(old)
    np.testing.assert_array_equal(network.forward(x)[0], before)


def test_threads_of_one_model_get_the_numbers_of_one():
    model, x = MLPQ(*CARTPOLE, hidden=[60, 61]), torch.from_numpy(rows(2000, 4))
    model.native = native.networks_of(model)
    expected = model.q(x).detach()

    def ask(i):
        if i % 3 == 0:
            with torch.no_grad():
                return torch.equal(model.q(x[:7]), expected[:7])
        q = model.q(x)
        q.sum().backward()
        return torch.equal(q, expected)

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(ask, range(90)))


class Asking(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.q(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_what_torch_records_casts_or_watches_it_computes():
    model, x = MLPQ(*CARTPOLE), torch.from_numpy(rows(5, 4))
    model.native = native.networks_of(model)
    network = model.native["q"]
    assert network.learns()
    with torch.no_grad():
        close(torch.jit.trace(Asking(model), x, check_trace=False)(2 * x), model.q(2 * x))
        assert not network.learns()
    with torch.inference_mode():
        assert not network.learns()
    with torch.autocast("cpu", torch.bfloat16):
        assert model.q(x).dtype is torch.bfloat16 and not network.learns()
    calls = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: calls.append(type(module)))
    model.q(x)
    assert MLP in calls and not network.learns()
    handle.remove()
    assert network.learns()
