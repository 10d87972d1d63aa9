"""LayerFunc: names, sharing, lazy building, the arithmetic of each kind, and the initialisers."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_fakes import normal

from parl_like.learning import layers
from parl_like.learning.layers import UnbuiltError, orthogonal_, variance_scaling_

pytestmark = pytest.mark.usefixtures("seeded")


def number(name):
    """'fc_7' -> 7; the count goes on from whatever ran before in this process."""
    return int(name.rsplit("_", 1)[1])


# ------------------------------------------------------------------------------------------------------------------- names


def test_automatic_names_count_per_kind():
    fcs = [layers.fc(4) for _ in range(3)]
    between = layers.gru(4)
    fourth = layers.fc(4)
    first = number(fcs[0].name)
    assert [layer.name for layer in (*fcs, fourth)] == [f"fc_{first + i}" for i in range(4)]
    assert between.name.startswith("gru_")
    assert fcs[0].param_names == (f"fc_{first}.w", f"fc_{first}.b")


def test_without_bias_there_is_no_bias_name():
    layer = layers.fc(4, bias=False, in_size=2)
    assert layer.param_names == (f"{layer.name}.w",)
    assert list(layer.state_dict()) == ["w"]


def test_custom_names_are_made_unique():
    a, b = layers.fc(4, name="policy", in_size=3), layers.fc(4, name="policy", in_size=3)
    assert number(b.name) == number(a.name) + 1 and a.name.startswith("policy_")
    assert not torch.equal(a(normal(2, 3)), b(normal(2, 3)))  # equal names asked for, still two layers


def test_a_shared_weight_bears_its_owners_name():
    table = layers.embedding(6, 5, name="words")
    conv = layers.conv2d(3, 2, w=table, name="my_conv")
    assert conv.param_names == (f"{table.name}.w", f"{conv.name}.b")


# ----------------------------------------------------------------------------------------------------------------- sharing


def test_calling_twice_shares_and_another_layer_differs():
    x = normal(5, 3)
    one, two = layers.fc(4), layers.fc(4)
    assert torch.equal(one(x), one(x))
    assert not torch.equal(one(x), two(x))
    assert len(list(one.parameters())) == 2


def test_one_hot_times_fc_is_embedding_lookup():
    table = layers.embedding(7, 5)
    fc = layers.fc(5, bias=False, w=table)
    index = torch.tensor([3, 0, 6, 3])
    torch.testing.assert_close(fc(F.one_hot(index, 7).float()), table(index))
    assert fc.w is table.w


def test_a_weight_can_be_shared_before_either_layer_is_built():
    one = layers.fc(4, init=nn.init.ones_)
    two = layers.fc(4, w=one, bias=False)
    x = normal(2, 3)
    y = two(x)  # builds the weight that `one` will find, by the rule of `one`
    torch.testing.assert_close(y, x.sum(1, keepdim=True).expand(2, 4))
    torch.testing.assert_close(one(x), y)  # biases start at zero
    assert one.w is two.w
    with torch.no_grad():
        one.w.add_(1.0)
    torch.testing.assert_close(two(x), x @ one.w)


def test_sharing_a_weight_of_another_shape_says_both():
    table = layers.embedding(7, 5, name="words")
    fc = layers.fc(4, w=table)
    with pytest.raises(ValueError, match=rf"shared with '{table.name}' must be \(7, 4\), but it is \(7, 5\)"):
        fc(torch.zeros(2, 7))
    with pytest.raises(TypeError, match="has a weight `w`"):
        layers.fc(4, w=layers.gru(3))


# ---------------------------------------------------------------------------------------------------------- building, copying


def test_a_lazy_layer_draws_what_a_sized_one_draws():
    """Nothing but torch's current generator decides the initial values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        lazy = layers.fc(4, act="relu")
        lazy(normal(9, 3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        sized = layers.fc(4, act="relu", in_size=3)
    assert torch.equal(lazy.w, sized.w)


@pytest.mark.parametrize("ask", [
    lambda fc: fc.w, lambda fc: fc.b, lambda fc: list(fc.parameters()), lambda fc: fc.state_dict(),
    lambda fc: fc.load_state_dict({"w": torch.zeros(3, 4), "b": torch.zeros(4)}),
    lambda fc: nn.ModuleList([fc]).state_dict(),
])
def test_asking_for_parameters_before_the_build_says_so(ask):
    fc = layers.fc(4)
    with pytest.raises(UnbuiltError, match=f"layer '{fc.name}' has no parameters yet.*in_size="):
        ask(fc)
    fc(torch.zeros(1, 3))
    ask(fc)


def test_a_first_call_under_inference_mode_makes_trainable_parameters():
    fc = layers.fc(4)
    with torch.inference_mode():
        fc(torch.zeros(1, 3))
    fc(torch.ones(1, 3)).sum().backward()
    assert torch.equal(fc.w.grad, torch.ones(3, 4))


def test_a_layer_built_for_one_size_refuses_another():
    fc = layers.fc(4, in_size=3)
    with pytest.raises(ValueError, match=r"must be \(5, 4\), but it is \(3, 4\)"):
        fc.build(5)


def test_clone_has_storage_and_name_of_its_own():
    fc = layers.fc(4, in_size=3)
    same, new = fc.clone(), fc.clone(copy=False)
    assert len({fc.name, same.name, new.name}) == 3
    assert torch.equal(same.w, fc.w) and same.w.data_ptr() != fc.w.data_ptr()
    assert not torch.equal(new.w, fc.w)
    with torch.no_grad():
        same.w.zero_()
    assert fc.w.abs().sum() > 0


@pytest.mark.parametrize("make", [
    lambda: layers.fc(4, in_size=3), lambda: layers.conv2d(2, 2, in_channels=1), lambda: layers.gru(4, in_size=3),
    lambda: layers.batch_norm(3),
])
def test_a_layer_takes_over_anothers_parameters_and_follows_slowly(make):
    mine, theirs = make(), make()
    for value in theirs.state_dict().values():
        value.add_(1.0)
    start, goal = ({key: v.clone() for key, v in layer.state_dict().items()} for layer in (mine, theirs))
    mine.sync_from(theirs, decay=0.75)
    parameters = dict(mine.named_parameters())
    for key, value in mine.state_dict().items():  # running statistics are copied
        torch.testing.assert_close(value, 0.75 * start[key] + 0.25 * goal[key] if key in parameters else goal[key])
    mine.sync_from(theirs)
    assert all(torch.equal(value, goal[key]) for key, value in mine.state_dict().items())
    assert {v.data_ptr() for v in mine.parameters()}.isdisjoint(v.data_ptr() for v in theirs.parameters())


def test_synchronising_a_layer_changes_all_that_share_its_weight():
    table, other = layers.embedding(7, 5), layers.embedding(7, 5)
    fc = layers.fc(5, bias=False, w=table)
    table.sync_from(other)
    index = torch.tensor([3, 0])
    torch.testing.assert_close(fc(F.one_hot(index, 7).float()), other(index))
    fc.sync_from(layers.fc(5, bias=False, w=other, in_size=7))  # through the borrower, too
    assert torch.equal(table.w, other.w) and fc.w is table.w


def test_layers_that_are_not_alike_are_not_synchronised():
    with pytest.raises(ValueError, match=r"'w' is \(3, 4\) here and \(2, 4\) in the other"):
        layers.fc(4, in_size=3).sync_from(layers.fc(4, in_size=2))
    with pytest.raises(ValueError, match="'b' is missing here"):
        layers.fc(4, in_size=3, bias=False).sync_from(layers.fc(4, in_size=3))
    with pytest.raises(UnbuiltError, match="fc_.* has no parameters yet"):
        layers.fc(4).sync_from(layers.fc(4, in_size=2))


def test_a_copied_network_shares_inside_and_not_outside():
    table = layers.embedding(7, 5)
    net = nn.ModuleList([table, layers.fc(5, w=table, in_size=7)])
    other = copy.deepcopy(net)
    assert other[1].w is other[0].w and other[1].w is not table.w
    assert other[1].param_names[0] == f"{other[0].name}.w" != f"{table.name}.w"
    alone = net[1].clone()
    assert alone.w.data_ptr() != table.w.data_ptr() and alone.param_names[0] != f"{table.name}.w"


@pytest.mark.parametrize("make", [
    lambda: layers.fc(4, "tanh"), lambda: layers.fc(4, "tanh", in_size=3), lambda: layers.gru(4), lambda: layers.batch_norm(),
])
def test_layers_travel_by_pickle_built_or_not(make):
    layer = make()
    other = pickle.loads(pickle.dumps(layer))
    x = normal(6, 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = layer(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        got = other(x)
    torch.testing.assert_close(got, expected)


# ---------------------------------------------------------------------------------------------------------- what layers compute


def test_fc_worked_out_by_hand():
    fc = layers.fc(2, act="relu", in_size=2)
    with torch.no_grad():
        fc.w.copy_(torch.tensor([[1.0, 2.0], [3.0, -4.0]]))
        fc.b.copy_(torch.tensor([0.5, 1.0]))
    # [1·1 + 2·3 + .5, 1·2 − 2·4 + 1] = [7.5, −5]; relu
    assert fc(torch.tensor([[1.0, 2.0]])).tolist() == [[7.5, 0.0]]
    assert fc(torch.ones(3, 5, 2)).shape == (3, 5, 2)


def test_unknown_activation_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'tanh'"):
        layers.fc(4, act="tahn")


@pytest.mark.parametrize("name", layers.ACTIVATIONS)
def test_activations_are_torchs_and_differentiable(name):
    x = normal(3, 4)
    reference = getattr(F, name)
    torch.testing.assert_close(layers.activation(name)(x.clone()), reference(x))
    fc = layers.fc(4, act=name, in_size=4)
    fc(x).sum().backward()
    w = fc.w.detach().clone().requires_grad_()
    reference(x @ w).sum().backward()
    torch.testing.assert_close(fc.w.grad, w.grad)


def test_tanh_is_exact_to_float32_everywhere():
    x = torch.cat([torch.linspace(-30, 30, 10_001), torch.tensor([0.0, 1e-4, -1e-4, 1e4, -1e4])])
    assert float((layers.activation("tanh")(x.clone()) - torch.tanh(x.double())).abs().max()) < 2e-7


def test_conv2d_is_torchs_convolution():
    x = normal(2, 3, 8, 8)
    conv = layers.conv2d(5, 3, stride=2, padding=1, act="relu")
    y = conv(x)
    assert conv.w.shape == (5, 3, 3, 3) and y.shape == (2, 5, 4, 4)
    torch.testing.assert_close(y, F.relu(F.conv2d(x, conv.w, conv.b, 2, 1)))


RECURRENT = [(layers.gru, nn.GRU, ("h",)), (layers.lstm, nn.LSTM, ("h", "c"))]


def twin(make, torch_class):
    """One of our layers and torch's, with equal weights."""
    ours, theirs = make(4, in_size=3), torch_class(3, 4)
    with torch.no_grad():
        for mine, other in zip((ours.w_x, ours.w_h, ours.b_x, ours.b_h), theirs.parameters(), strict=True):
            other.copy_(mine)
    return ours, theirs


@pytest.mark.parametrize(("make", "torch_class", "names"), RECURRENT)
def test_recurrent_layers_equal_torchs(make, torch_class, names):
    ours, theirs = twin(make, torch_class)
    x = normal(6, 5, 3)
    state = {name: normal(5, 4, seed=i + 2) for i, name in enumerate(names)}
    y, after = ours(x, state)
    given = tuple(s[None] for s in state.values())
    expected, last = theirs(x, given if len(names) == 2 else given[0])
    torch.testing.assert_close(y, expected)
    for name, value in zip(names, last if len(names) == 2 else (last,), strict=True):
        torch.testing.assert_close(after[name], value[0])


@pytest.mark.parametrize(("make", "torch_class", "names"), RECURRENT)
def test_step_by_step_is_the_whole_sequence(make, torch_class, names):
    layer = make(4)
    x, state, ys = normal(6, 5, 3), None, []
    whole, after = layer(x)
    for x_t in x:
        y, state = layer(x_t, state)
        ys.append(y)
    torch.testing.assert_close(torch.stack(ys), whole)
    for name in names:
        torch.testing.assert_close(state[name], after[name])


@pytest.mark.parametrize(("make", "torch_class", "names"), RECURRENT)
def test_memory_is_cleared_before_the_first_step_of_an_episode(make, torch_class, names):
    """Row 1 starts an episode at step 2, row 2 at step 0: two sequences in one equal two sequences."""
    layer = make(4)
    x = normal(5, 3, 3)
    state = {name: normal(3, 4, seed=i + 2) for i, name in enumerate(names)}
    first = torch.zeros(5, 3, dtype=torch.bool)
    first[2, 1] = first[0, 2] = True
    y, after = layer(x, state, first)

    def rows(i):
        return {name: value[i : i + 1] for name, value in state.items()}

    torch.testing.assert_close(y[:, :1], layer(x[:, :1], rows(0))[0])
    torch.testing.assert_close(y[:2, 1:2], layer(x[:2, 1:2], rows(1))[0])
    tail, end = layer(x[2:, 1:2])
    torch.testing.assert_close(y[2:, 1:2], tail)
    torch.testing.assert_close(after["h"][1:2], end["h"])
    torch.testing.assert_close(y[:, 2:], layer(x[:, 2:])[0])


def test_a_cleared_memory_forgets_even_nan():
    layer = layers.gru(4)
    x = normal(2, 3)
    y, _ = layer(x, {"h": torch.tensor([[float("nan")] * 4, [1.0] * 4])}, torch.tensor([True, False]))
    torch.testing.assert_close(y[:1], layer(x[:1])[0])


def test_recurrent_input_needs_rows():
    with pytest.raises(ValueError, match=r"shape \(3,\); expected \[N, size\]"):
        layers.lstm(4)(torch.zeros(3))


def test_layer_norm_worked_out_by_hand():
    layer = layers.layer_norm(eps=0.0)
    # mean 3, variance (4 + 4) / 2 = 4, so (x − 3) / 2
    assert layer(torch.tensor([[1.0, 5.0]])).tolist() == [[-1.0, 1.0]]
    assert layer.w.tolist() == [1.0, 1.0] and layer.b.tolist() == [0.0, 0.0]


def test_batch_norm_statistics_move_only_while_learning():
    layer = layers.batch_norm(eps=1e-12, momentum=0.5)
    x = torch.tensor([[1.0], [5.0]])
    torch.testing.assert_close(layer(x), torch.tensor([[-1.0], [1.0]]))
    # running mean 0.5·0 + 0.5·3; variance 0.5·1 + 0.5·8 (unbiased: (4 + 4) / 1)
    assert layer.running_mean.tolist() == [1.5] and layer.running_var.tolist() == [4.5]
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), (x - 1.5) / 4.5**0.5)  # a prediction, though nobody called eval()
    assert layer.running_mean.tolist() == [1.5]
    layer.eval()
    layer(x)
    assert layer.running_mean.tolist() == [1.5]
    layer.reset_parameters()
    assert layer.running_mean.tolist() == [0.0] and layer.running_var.tolist() == [1.0]


# ------------------------------------------------------------------------------------------------------------- initialisers


@pytest.mark.parametrize(("options", "std"), [
    ({}, 1 / 500**0.5),  # fan_in = 500
    ({"gain": 3.0}, 3 / 500**0.5),
    ({"mode": "fan_out"}, 1 / 2000**0.5),
    ({"mode": "fan_avg"}, 1 / 1250**0.5),
    ({"nonlinearity": "relu"}, (2 / 500) ** 0.5),
])
def test_a_million_weights_have_the_standard_deviation_of_the_formula(options, std):
    weight = torch.empty(2000, 500)
    variance_scaling_(weight, generator=torch.Generator().manual_seed(0), **options)
    assert weight.std().item() == pytest.approx(std, rel=0.01)
    assert weight.mean().item() == pytest.approx(0.0, abs=0.01 * std)


def test_truncated_weights_stay_within_two_of_their_standard_deviations():
    weight = variance_scaling_(torch.empty(1000, 1000), generator=torch.Generator().manual_seed(0))
    assert 0.999 < weight.abs().max() / (2 * 1000**-0.5 / 0.87962566) <= 1.0


def test_the_fans_of_a_convolution_count_its_window():
    weight = variance_scaling_(torch.empty(256, 64, 8, 8), generator=torch.Generator().manual_seed(0))
    assert weight.std().item() == pytest.approx((64 * 8 * 8) ** -0.5, rel=0.01)


def test_variance_scaling_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="did you mean 'fan_in'"):
        variance_scaling_(torch.empty(2, 2), mode="fan_inn")
    with pytest.raises(ValueError, match=r"expected \[out, in"):
        variance_scaling_(torch.empty(2))


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5), (6, 3, 2, 2)])
def test_orthogonal_rows_or_columns(shape):
    weight = orthogonal_(torch.empty(*shape), gain=2.0)
    matrix = weight.flatten(1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    torch.testing.assert_close(matrix @ matrix.T, 4.0 * torch.eye(len(matrix)), atol=1e-5, rtol=0)


def test_an_initialiser_given_to_a_layer_sees_out_times_in():
    seen = []
    layers.fc(5, in_size=3, init=lambda weight: seen.append(tuple(weight.shape)))
    layers.conv2d(5, 2, in_channels=3, init=lambda weight: seen.append(tuple(weight.shape)))
    assert seen == [(5, 3), (5, 3, 2, 2)]
    fc = layers.fc(3, in_size=8, init=orthogonal_)
    torch.testing.assert_close(fc.w.T @ fc.w, torch.eye(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [layers.gru, layers.lstm])
def test_a_memory_that_begins_as_one_that_keeps_has_another_bias_of_that_gate_alone(make):
    """After 20 blank steps it holds far more of what it has seen first."""
    made, held = [], []
    for keep in (0.0, 3.0):
        torch.manual_seed(0)
        made.append(layer := make(8, 2, keep=keep))
        states = [layer(x.expand(1, 2))[1] for x in (torch.ones(1), -torch.ones(1))]
        before = (states[0][layer.memory[-1]] - states[1][layer.memory[-1]]).norm()
        after = [layer(torch.zeros(20, 1, 2), state)[1][layer.memory[-1]] for state in states]
        held.append(((after[0] - after[1]).norm() / before).item())
    added = made[1].b_x - made[0].b_x
    assert added[8:16].tolist() == pytest.approx([3.0] * 8, abs=1e-6) and not added[:8].any() and not added[16:].any()
    assert torch.equal(made[0].w_x, made[1].w_x) and held[0] < 0.01 < 0.1 < held[1], held
