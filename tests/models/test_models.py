"""The models that come with the house: perception, heads, values, policies, memory."""

import copy
import math
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn
from torch.distributions import Categorical, Normal
from torch_fakes import normal

from parl_like.models import (
    MLP,
    MLPQ,
    CategoricalHead,
    ConvActorCritic,
    ConvCategoricalQ,
    ConvFractionQ,
    ConvImplicitQ,
    ConvQ,
    ConvTrunk,
    EnsembleMLP,
    FlatObs,
    GaussianHead,
    MLPActorCritic,
    MLPCategoricalQ,
    MLPFractionQ,
    MLPImplicitQ,
    MultiCategoricalHead,
    RecurrentActorCritic,
    make_head,
)
from parl_like.values.batch import Batch
from parl_like.values.spec import leaves

OBS = Box(-1.0, 1.0, (3,), np.float32)
ACT = Discrete(4)
PIXELS = Box(0, 255, (9, 8, 3), np.uint8)
MASKED = Dict({"mask": MultiBinary(4), "x": OBS})


pytestmark = pytest.mark.usefixtures("seeded")


def integers(high, *shape, seed=1, dtype=torch.int64):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


ALL = {
    "MLPQ": lambda: MLPQ(OBS, ACT),
    "MLPQ dueling": lambda: MLPQ(OBS, ACT, dueling=True),
    "MLPQ noisy with heads": lambda: MLPQ(OBS, ACT, dueling=True, noisy=0.5, heads=3),
    "MLPCategoricalQ": lambda: MLPCategoricalQ(OBS, ACT, atoms=5),
    "MLPImplicitQ": lambda: MLPImplicitQ(OBS, ACT, dueling=True, noisy=0.1),
    "MLPFractionQ": lambda: MLPFractionQ(OBS, ACT),
    "ConvFractionQ": lambda: ConvFractionQ(PIXELS, ACT, features=8),
    "ConvCategoricalQ": lambda: ConvCategoricalQ(PIXELS, ACT, features=8, dueling=True),
    "ConvImplicitQ": lambda: ConvImplicitQ(PIXELS, ACT, features=8),
    "MLPActorCritic": lambda: MLPActorCritic(OBS, ACT),
    "MLPActorCritic shared": lambda: MLPActorCritic(OBS, Box(-1, 1, (2,)), shared=True, orthogonal=False),
    "MLPActorCritic state-dependent": lambda: MLPActorCritic(OBS, Box(-1, 1, (2,)), state_dependent_std=True),
    "ConvQ": lambda: ConvQ(PIXELS, ACT, features=8),
    "ConvActorCritic": lambda: ConvActorCritic(PIXELS, MultiDiscrete([2, 3]), features=8),
    "RecurrentActorCritic gru": lambda: RecurrentActorCritic(OBS, ACT, hidden=(4,), size=5),
    "RecurrentActorCritic attention": lambda: RecurrentActorCritic(OBS, Box(-1, 1, (2,)), memory="attention", size=8),
    "RecurrentActorCritic lstm": lambda: RecurrentActorCritic(OBS, Box(-1, 1, (2,)), memory="lstm", size=5),
}


def outputs(model):
    """Everything the model gives for seven fixed rows."""
    obs = integers(256, 7, *PIXELS.shape, dtype=torch.uint8) if model.obs_space == PIXELS else normal(7, 3)
    with torch.no_grad():
        if hasattr(model, "q"):
            return [model.q(obs)]
        out, state = model.policy(obs)
        return [*out.values(), *state.values(), model.value(obs)]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_copies_are_equal_then_independent_and_new_ones_differ(make):
    model = make()
    for other in (model.clone(), copy.deepcopy(model), pickle.loads(pickle.dumps(model)), make()):
        other.load_state_dict(model.state_dict())
        assert equal(outputs(other), outputs(model))
        before = outputs(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(0.1)
        assert equal(outputs(model), before) and not equal(outputs(other), before)
        other.sync_from(model)
        assert equal(outputs(other), outputs(model))
    new = model.clone(copy=False)
    assert not equal(outputs(new), outputs(model))
    assert new.parameter_count() == model.parameter_count()


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_drawing_anew_follows_the_rules_of_construction(make):
    """Same seed, same values, whether the model is constructed or drawn anew: gains and zero biases included."""
    model = make()
    torch.manual_seed(4)
    new = make()
    torch.manual_seed(4)
    assert model.clone(copy=False).weights_hash() == new.weights_hash() != model.weights_hash()


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_rows_of_a_batch_never_meet(make):
    model = make()
    obs = integers(256, 5, *PIXELS.shape, dtype=torch.uint8) if model.obs_space == PIXELS else normal(5, 3)
    call = model.q if hasattr(model, "q") else model.value
    with torch.no_grad():
        alone = torch.cat([call(obs[i : i + 1]) for i in range(5)])
        torch.testing.assert_close(call(obs), alone)
        assert call(obs[:0]).shape[0] == 0


# -------------------------------------------------------------------------------------------------------------- perception


def test_flat_obs_worked_out_by_hand():
    space = Dict({
        "a": Discrete(3, start=5), "b": Dict({"image": Box(0, 255, (1, 2, 1), np.uint8)}), "c": MultiDiscrete([2, 3]),
        "d": Box(-1.0, 1.0, (), np.float64), "e": MultiBinary(2),
    })
    obs = {
        "a": torch.tensor([6]), "b": {"image": torch.tensor([[[[51], [255]]]], dtype=torch.uint8)}, "c": torch.tensor([[1, 2]]),
        "d": torch.tensor([0.5], dtype=torch.float64), "e": torch.tensor([[1, 0]], dtype=torch.int8),
    }
    flat = FlatObs(space)
    expected = torch.tensor([[0, 1, 0, 51 / 255, 1, 0, 1, 0, 0, 1, 0.5, 1, 0]])
    torch.testing.assert_close(flat(obs), expected)
    assert flat.out_size == 13
    assert flat(obs).dtype == torch.float32
    # Two leading axes, [T, B], are kept.
    double = {"a": obs["a"][None], "b": {"image": obs["b"]["image"][None]}, **{k: obs[k][None] for k in "cde"}}
    torch.testing.assert_close(flat(double), expected[None])
    for given in (obs, double):
        back = dict(leaves(flat.inverse(flat(given)), ""))
        assert list(back) == ["a", "b.image", "c", "d", "e"]
        for name, value in leaves(given, ""):
            assert back[name].dtype == value.dtype and torch.equal(back[name], value)


def test_numbers_that_are_no_observation_stand_for_the_nearest_one():
    space = Dict({"a": Discrete(2, start=5), "b": Box(0, 200, (2,), np.uint8), "c": Box(np.float32([-1, 0]), np.inf),
                  "d": Tuple((MultiBinary(2), Box(-3, 3, (), np.int64)))})
    back = FlatObs(space).inverse(torch.tensor([0.1, -0.2, 0.5031, 1.2, -2.0, 7.5, 0.6, 1.7, -1.6]))
    assert back["a"] == 5 and back["b"].tolist() == [101, 200] and back["c"].tolist() == [-1.0, 7.5]
    assert back["d"]["0"].tolist() == [1, 1] and back["d"]["1"] == -2
    assert FlatObs(space, skip=["obs.d.0"]).inverse(torch.zeros(7, 7)).keys() == {"a", "b", "c", "d"}


@pytest.mark.parametrize(("space", "obs", "expected"), [
    (Discrete(3), torch.tensor([2, 0]), [[0, 0, 1], [1, 0, 0]]),
    (Box(-1, 1, (2,), np.float64), torch.tensor([[1.0, 2.0]], dtype=torch.float64), [[1, 2]]),
    (Box(0, 9, (2,), np.int32), torch.tensor([[1, 9]], dtype=torch.int32), [[1, 9]]),
    (Box(0, 10, (2,), np.uint8), torch.tensor([[1, 10]], dtype=torch.uint8), [[0.1, 1.0]]),
    (Box(-1, 1, (2, 2), np.float32), torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), [[1, 2, 3, 4]]),
])
def test_flat_obs_of_one_array(space, obs, expected):
    flat = FlatObs(space)
    y = flat(obs)
    assert y.dtype == torch.float32 and y.shape[1] == flat.out_size
    torch.testing.assert_close(y, torch.tensor(expected, dtype=torch.float32))


def test_a_discrete_value_outside_its_space_is_refused():
    with pytest.raises(RuntimeError, match="Class values"):
        FlatObs(Discrete(3))(torch.tensor([3]))


# ------------------------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize("shape", [(6, 3), (3,), (2, 5, 3), (2, 2, 5, 3), (2, 0, 3)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("activate_last", [False, True])
def test_mlp_is_linear_layers_in_a_row(activate_last, activation, shape):
    mlp = MLP([3, 5, 4, 2], activation, activate_last)
    parts = [part for layer in mlp.layers for part in (layer, nn.Tanh() if activation == "tanh" else nn.ReLU())]
    reference = nn.Sequential(*(parts if activate_last else parts[:-1]))
    x = normal(*shape)
    torch.testing.assert_close(mlp(x), reference(x))
    gradients = torch.autograd.grad(mlp(x).square().sum(), list(mlp.parameters()))
    expected = torch.autograd.grad(reference(x).square().sum(), list(mlp.parameters()))
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_twins_are_two_mlps(orthogonal):
    twins, x = EnsembleMLP(2, [3, 5, 4], "tanh", orthogonal), normal(2, 6, 3)
    for i in (0, 1):
        mlp = MLP([3, 5, 4], "tanh", activate_last=True)
        with torch.no_grad():
            for layer, (weight, bias) in zip(mlp.layers, twins.layers(), strict=True):
                layer.weight.copy_(weight[i].T)
                layer.bias.copy_(bias[i, 0])
        torch.testing.assert_close(twins(x)[i], mlp(x))
        torch.testing.assert_close(twins.one(i, x), mlp(x))
    assert not torch.allclose(*twins(x))
    copied = copy.deepcopy(twins)
    with torch.no_grad():
        twins.layers()[0][0].zero_()
    assert not torch.equal(copied(x)[0], twins(x)[0])
    bounds = [weight.abs().max() * weight.shape[1] ** 0.5 for weight, _ in copied.layers()]
    assert orthogonal or all(0.8 < bound <= 1 for bound in bounds)  # as torch's Linear


def test_mlp_of_one_size_is_the_identity():
    x = normal(2, 3)
    assert MLP([3], activate_last=True)(x) is x and MLP([3]).out_size == 3


def test_mlp_follows_its_parameters_wherever_they_go():
    """Its forward looks parameters up in the layers; conversions, copies and replacements must show."""
    mlp, x = MLP([3, 4, 2]), normal(5, 3)
    twin = copy.deepcopy(mlp)
    with torch.no_grad():
        mlp.layers[1].bias.fill_(7.0)
        mlp.layers[1].weight.zero_()
    assert mlp(x).tolist() == [[7.0, 7.0]] * 5 and not torch.equal(twin(x), mlp(x))
    mlp.layers[1].bias = nn.Parameter(torch.ones(2))
    assert mlp(x).tolist() == [[1.0, 1.0]] * 5
    assert mlp.double()(x.double()).dtype == torch.float64


@pytest.mark.parametrize("hidden", [(), (4,), (5, 4)])
def test_q_dueling_adds_value_and_centred_advantage(hidden):
    model = MLPQ(OBS, ACT, hidden=hidden, dueling=True)
    with torch.no_grad():
        for stream, bias in ((model.v, [10.0]), (model.net, [1.0, 2.0, 3.0, 6.0])):  # mean a = 3
            stream.layers[-1].weight.zero_()
            stream.layers[-1].bias.copy_(torch.tensor(bias))
    assert model.q(normal(2, 3)).tolist() == [[8.0, 9.0, 10.0, 13.0]] * 2
    assert (0 if model.body is None else len(model.body.layers), len(model.v.layers)) == {0: (0, 1), 1: (0, 2), 2: (1, 2)}[
        len(hidden)]


def test_q_is_the_mean_of_the_heads_each_of_which_is_dueling():
    model = MLPQ(OBS, Discrete(2), hidden=(), dueling=True, heads=2)
    with torch.no_grad():
        for stream, bias in ((model.v, [10.0, 20.0]), (model.net, [1.0, 2.0, 3.0, 6.0])):  # mean a = 2 and 4
            stream.layers[-1].weight.zero_()
            stream.layers[-1].bias.copy_(torch.tensor(bias))
    assert model.values(normal(1, 3)).tolist() == [[[9.0, 18.0], [11.0, 22.0]]]
    assert model.q(normal(1, 3)).tolist() == [[13.5, 16.5]]
    with pytest.raises(ValueError, match="heads is 0"):
        MLPQ(OBS, ACT, heads=0)


def test_q_needs_discrete_actions():
    with pytest.raises(TypeError, match="expected Discrete"):
        MLPQ(OBS, Box(-1, 1, (2,)))


def test_illegal_actions_have_no_value_and_no_probability():
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.int8)
    obs = {"x": normal(2, 3), "mask": mask}
    q = MLPQ(MASKED, ACT).q(obs)
    assert (q[mask == 0] == -1e9).all() and (q[mask == 1].abs() < 100).all()
    for model in (MLPActorCritic(MASKED, ACT), RecurrentActorCritic(MASKED, ACT)):
        assert all(key != "perception.mask" for key in model.state_dict())
        out, _ = model.policy(obs)
        probability = out["logits"].softmax(-1)
        assert (probability[mask == 0] == 0).all() and probability[1].tolist() == [0.0, 0.0, 0.0, 1.0]
        entropy = model.head.entropy(out)
        assert entropy[0].item() == pytest.approx(math.log(2), abs=1e-3) and entropy[1].item() == 0.0
    out, value = RecurrentActorCritic(MASKED, ACT).evaluate({"x": obs["x"][None], "mask": mask[None]})
    assert (out["logits"][mask == 0] == -1e9).all() and value.shape == (2,)


def test_a_mask_that_allows_nothing_allows_everything():
    """As if there were no mask: values, logits and log-probabilities; of several choices, in the choice that it is about."""
    x, none, everything = normal(2, 3), torch.zeros(2, 4), torch.ones(2, 4)
    for model in (MLPQ(MASKED, ACT), MLPActorCritic(MASKED, ACT), RecurrentActorCritic(MASKED, ACT)):
        ask = (
            (lambda obs, m=model: m.q(obs))
            if isinstance(model, MLPQ)
            else (lambda obs, m=model: m.policy(obs, None)[0]["logits"])
        )
        torch.testing.assert_close(ask({"x": x, "mask": none}), ask({"x": x, "mask": everything}))
    head = MultiCategoricalHead(3, [2, 3], gain=1.0)
    half = torch.tensor([[0, 0, 0, 1, 0]] * 2)
    free, first = head(x)["logits"], head(x, half)["logits"]
    torch.testing.assert_close(first[:, :2], free[:, :2])
    assert (first[:, [2, 4]] == -1e9).all()
    torch.testing.assert_close(head.log_probs({**head(x), "mask": half}), head.log_probs({"logits": first}))


def test_the_mask_is_no_feature():
    assert MLPQ(MASKED, ACT).perception.out_size == 3
    assert MLPActorCritic(MASKED, Box(-1, 1, (2,))).perception.out_size == 3 + 4  # no legal mask of a continuous action
    with pytest.raises(ValueError, match=r"'mask' has shape \(5,\); expected \(4,\)"):
        MLPQ(Dict({"mask": MultiBinary(5), "x": OBS}), ACT)


# ------------------------------------------------------------------------------------------------------------------ policies


@pytest.mark.parametrize("make", [
    lambda: MLPActorCritic(OBS, ACT), lambda: MLPActorCritic(OBS, ACT, shared=True), lambda: RecurrentActorCritic(OBS, ACT),
])
def test_acting_computes_no_value(make):
    """Nothing of the critic has a part in the policy's gradient."""
    model = make()
    out, _ = model.policy(normal(2, 3))
    out["logits"].sum().backward()
    if isinstance(model, MLPActorCritic):
        assert model.value_head.weight.grad is None
        assert all(not weight.grad[1].any() and weight.grad[0].any() for weight, _ in model.own.layers())
    else:
        assert all(p.grad is None for p in model.critic.parameters())


@pytest.mark.parametrize("act",
                         [ACT, MultiDiscrete([2, 3]), MultiBinary(3), Box(-1, 1, (2,)), Box(-1, 1, ()), Box(-1, 1, (2, 2))],
                         ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_evaluate_is_policy_and_value(act, shared):
    model, x = MLPActorCritic(OBS, act, hidden=(8,), shared=shared), normal(5, 3)
    act.seed(0)
    taken = torch.as_tensor(np.stack([act.sample() for _ in range(5)]))
    out, value = model.evaluate(x)
    acting, state = model.policy(x, {})
    assert state == {}
    for name in out:
        torch.testing.assert_close(out[name], acting[name])
    torch.testing.assert_close(value, model.value(x))
    assert model.head.log_prob(out, taken).shape == model.head.entropy(out).shape == value.shape == (5,)


def test_a_new_policy_is_nearly_uniform():
    """Head gain 0.01: test_predict of PARL, uniform to one decimal; here to three."""
    out, _ = MLPActorCritic(OBS, ACT).policy(normal(50, 3))
    torch.testing.assert_close(out["logits"].softmax(-1), torch.full((50, 4), 0.25), atol=5e-3, rtol=0)
    zeros, _ = MLPActorCritic(OBS, ACT).policy(torch.zeros(1, 3))
    torch.testing.assert_close(zeros["logits"].softmax(-1), torch.full((1, 4), 0.25))


def test_gains_of_the_orthogonal_weights():
    model = MLPActorCritic(OBS, ACT, hidden=(16, 8))
    # All rows (or columns) of an orthogonal matrix with gain g have norm g.
    (actor, critic), _ = model.own.layers()[1]
    for weight, gain in [(actor.T, 2**0.5), (critic.T, 2**0.5), (model.value_head.weight, 1.0), (model.head.linear.weight, 0.01)]:
        torch.testing.assert_close(weight.norm(dim=1), torch.full((len(weight),), gain))
    assert all(not parameter.any() for name, parameter in model.named_parameters() if "bias" in name)


def test_actor_and_critic_are_apart_unless_shared():
    x = normal(4, 3)
    model = MLPActorCritic(OBS, ACT)
    model.value(x).sum().backward()
    assert all(not weight.grad[0].any() for weight, _ in model.own.layers())
    shared = MLPActorCritic(OBS, ACT, shared=True)
    assert shared.parameter_count() == (3 * 64 + 64) + (64 * 64 + 64) + (64 * 4 + 4) + (64 + 1)
    assert model.parameter_count() == 2 * ((3 * 64 + 64) + (64 * 64 + 64)) + (64 * 4 + 4) + (64 + 1)


def test_a_shared_trunk_learns_from_both_tasks_and_survives_one():
    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.out_size, self.net = 6, nn.Linear(3, 6)

        def forward(self, obs):
            return torch.tanh(self.net(obs))

    trunk, x = Trunk(), normal(4, 3)
    policy, auxiliary = MLPActorCritic(OBS, ACT, hidden=(), trunk=trunk), MLPQ(OBS, ACT, hidden=(), trunk=trunk)
    assert policy.perception is auxiliary.perception
    with torch.no_grad():
        before, q = policy.value(x), auxiliary.q(x)
    optimizer = torch.optim.SGD(auxiliary.parameters(), lr=0.1)
    auxiliary.q(x).sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.equal(policy.value(x), before) and not torch.equal(auxiliary.q(x), q)
        after = policy.value(x)
        del auxiliary, optimizer
        assert torch.equal(policy.value(x), after)


def test_a_trunk_says_how_many_features_it_gives():
    with pytest.raises(TypeError, match="trunk Linear has no `out_size`"):
        MLPQ(OBS, ACT, trunk=nn.Linear(3, 3))


# ---------------------------------------------------------------------------------------------------------------------- heads


def test_categorical_head_equals_torchs_distribution():
    head, act = CategoricalHead(6, 4, gain=1.0), integers(4, 9)
    out = head(normal(9, 6))
    reference = Categorical(logits=out["logits"])
    torch.testing.assert_close(head.log_prob(out, act), reference.log_prob(act))
    torch.testing.assert_close(head.entropy(out), reference.entropy())
    assert head.explorer == "categorical"


def test_multi_categorical_head_is_a_sum_over_choices():
    head = MultiCategoricalHead(6, [2, 4, 3], gain=1.0)
    out = head(normal(9, 6))
    act = torch.stack([integers(n, 9, seed=n) for n in (2, 4, 3)], 1)
    parts = [Categorical(logits=logits) for logits in out["logits"].split([2, 4, 3], 1)]
    torch.testing.assert_close(head.log_prob(out, act), sum(part.log_prob(act[:, i]) for i, part in enumerate(parts)))
    torch.testing.assert_close(head.entropy(out), sum(part.entropy() for part in parts))
    assert out["logits"].shape == (9, 9) and list(head.state_dict()) == ["linear.weight", "linear.bias"]


@pytest.mark.parametrize("state_dependent", [False, True])
def test_gaussian_head_equals_torchs_distribution(state_dependent):
    head, act = GaussianHead(6, 3, -0.5, state_dependent, gain=1.0), normal(9, 3)
    out = head(normal(9, 6, seed=2))
    assert out["mean"].shape == out["log_std"].shape == (9, 3)
    reference = Normal(out["mean"], out["log_std"].exp())
    torch.testing.assert_close(head.log_prob(out, act), reference.log_prob(act).sum(1))
    torch.testing.assert_close(head.entropy(out), reference.entropy().sum(1))
    start = head(torch.zeros(1, 6))
    assert start["mean"].tolist() == [[0.0] * 3] and start["log_std"].tolist() == [[-0.5] * 3]


def test_gaussian_log_std_stays_in_range():
    head = GaussianHead(1, 1, state_dependent=True)
    with torch.no_grad():
        head.linear.weight.fill_(1.0)
    assert head(torch.tensor([[100.0], [-100.0]]))["log_std"].tolist() == [[2.0], [-20.0]]


@pytest.mark.parametrize("head", [CategoricalHead(6, 4, gain=1.0), MultiCategoricalHead(6, [2, 2], gain=1.0)],
                         ids=["one", "joint"])
def test_a_mask_beside_the_logits_counts(head):
    mask = torch.tensor([[True, False, True, False]])
    features = normal(1, 6).requires_grad_()
    out = {**head(features), "mask": mask}
    torch.testing.assert_close(head.log_probs(out), head.log_probs(head(features, mask)))
    (head.entropy(out) + head.log_prob(out, torch.tensor([0] if type(head) is CategoricalHead else [[0, 0]]))).sum().backward()
    assert torch.isfinite(features.grad).all()
    if type(head) is CategoricalHead:
        kept = head(features)["logits"][:, [0, 2]]
        torch.testing.assert_close(head.log_probs(out)[:, [0, 2]], torch.log_softmax(kept, -1))
    else:
        assert head.log_prob(out, torch.tensor([[0, 0]])).item() == 0.0  # one legal value in each choice


def test_a_row_without_a_legal_action_stays_finite():
    out = CategoricalHead(6, 4)(normal(1, 6), torch.zeros(1, 4, dtype=torch.bool))
    assert CategoricalHead(6, 4).entropy(out).item() == pytest.approx(math.log(4), abs=1e-3)  # nearly uniform, as without a mask


@pytest.mark.parametrize(("act", "kind", "size"), [
    (Discrete(5), CategoricalHead, 5), (MultiDiscrete([[2, 3], [4, 2]]), MultiCategoricalHead, 11),
    (MultiBinary(3), MultiCategoricalHead, 6),
    (Box(-1, 1, (2, 3)), GaussianHead, 6),
])
def test_the_head_that_fits_an_action_space(act, kind, size):
    head = make_head(4, act)
    assert type(head) is kind and next(iter(head(normal(2, 4)).values())).shape == (2, size)


def test_no_head_for_other_spaces():
    with pytest.raises(TypeError, match="expected Discrete, MultiDiscrete"):
        make_head(4, gym.spaces.Text(3))


# --------------------------------------------------------------------------------------------------------------------- images


def test_the_network_of_the_nature_paper():
    model = ConvQ(Box(0, 255, (4, 84, 84), np.uint8), ACT)
    # 32·(8·8·4+1) + 64·(4·4·32+1) + 64·(3·3·64+1) + 512·(7·7·64+1) + 4·(512+1)
    assert model.parameter_count() == 8224 + 32832 + 36928 + 1606144 + 2052
    assert model.perception.layout == "CHW"
    assert model.q(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 4)


def test_layouts_give_the_same_features():
    last, first = ConvTrunk(PIXELS, out_size=8), ConvTrunk(Box(0, 255, (3, 9, 8), np.uint8), out_size=8)
    assert (last.layout, first.layout) == ("HWC", "CHW")
    first.load_state_dict(last.state_dict())
    obs = integers(256, 5, 9, 8, 3, dtype=torch.uint8)
    torch.testing.assert_close(last(obs), first(obs.permute(0, 3, 1, 2)))
    assert ConvTrunk(Box(0, 255, (9, 9, 9), np.uint8), layout="CHW").layout == "CHW"


@pytest.mark.parametrize("orthogonal", [True, False])
def test_convolutions_of_an_actor_critic_are_orthogonal_on_request(orthogonal):
    model = ConvActorCritic(PIXELS, ACT, features=8, orthogonal=orthogonal)
    weight = model.perception.convs[1].weight.flatten(1)  # [32, 16·2·2], rows of norm √2
    assert torch.allclose(weight @ weight.T, 2.0 * torch.eye(32), atol=1e-5) is orthogonal
    assert bool(model.perception.convs[1].bias.any()) is not orthogonal


def test_pixels_are_scaled_once():
    trunk = ConvTrunk(PIXELS, out_size=8)
    obs = integers(256, 5, 9, 8, 3, dtype=torch.uint8)
    as_float = ConvTrunk(Box(0.0, 1.0, PIXELS.shape, np.float32), out_size=8)
    as_float.load_state_dict(trunk.state_dict())
    torch.testing.assert_close(trunk(obs), as_float(obs / 255))


def test_channels_are_last_in_memory_and_the_order_of_sums_is_all_that_changes():
    trunk = ConvTrunk(Box(0, 255, (4, 84, 84), np.uint8), out_size=8)
    obs = integers(256, 5, 4, 84, 84, dtype=torch.uint8)
    seen = []
    trunk.convs[0].register_forward_hook(lambda _, inputs, out: seen.extend([inputs[0], out]))
    trunk(obs).sum().backward()
    assert all(x.is_contiguous(memory_format=torch.channels_last) and x.dtype == torch.float32 for x in seen)
    found = [p.grad for p in trunk.parameters()]
    trunk.zero_grad()
    x = obs.float() / 255.0
    for conv in trunk.convs:
        x = torch.relu(conv(x))
    expected = trunk.linear(x.flatten(1))
    torch.testing.assert_close(trunk(obs), expected, rtol=1e-5, atol=1e-6)
    expected.sum().backward()
    for parameter, gradient in zip(trunk.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(9, 8, 3), (3, 9, 8)])
def test_pixels_that_come_as_floats_are_left_as_they_are(shape):
    trunk = ConvTrunk(Box(0, 255, shape, np.uint8), out_size=8)
    obs = integers(256, 5, *shape, dtype=torch.uint8)
    given = obs.float()
    torch.testing.assert_close(trunk(given), trunk(obs), rtol=0, atol=0)
    assert torch.equal(given, obs.float())


def test_images_keep_their_leading_axes():
    trunk = ConvTrunk(PIXELS, out_size=8)
    obs = integers(256, 2, 3, 9, 8, 3, dtype=torch.uint8)
    torch.testing.assert_close(trunk(obs), trunk(obs.flatten(0, 1)).reshape(2, 3, 8))


def test_an_image_beside_other_leaves():
    space = Dict({"direction": Discrete(4), "image": PIXELS, "mask": MultiBinary(4)})
    obs = {"direction": torch.tensor([1, 3]), "image": integers(256, 2, 9, 8, 3, dtype=torch.uint8),
           "mask": torch.ones(2, 4).char()}
    model = ConvActorCritic(space, ACT, features=8)
    assert model.perception.rest.out_size == 4
    turned = {**obs, "direction": torch.tensor([1, 0])}
    with torch.no_grad():
        before, after = model.value(obs), model.value(turned)
    assert before[0] == after[0] and before[1] != after[1]


@pytest.mark.parametrize(("space", "options", "message"), [
    (OBS, {}, "expected one array with three axes"),
    (Dict({"a": PIXELS, "b": PIXELS}), {}, "expected one array with three axes"),
    (PIXELS, {"convs": [(4, 8, 4), (4, 4, 2)]}, r"image \(9, 8, 3\) is too small"),
    (PIXELS, {"layout": "NHWC"}, "expected 'HWC', 'CHW' or None"),
])
def test_observations_that_are_no_image(space, options, message):
    with pytest.raises(ValueError, match=message):
        ConvTrunk(space, **options)


# --------------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("memory", ["gru", "lstm", "attention"])
def test_learning_sees_what_acting_saw(memory):
    """evaluate over [T, B] with `first` = policy step by step with the state cleared at episode starts, in time-major order."""
    model = RecurrentActorCritic(OBS, ACT, hidden=(4,), memory=memory, size=8)
    names = {"gru": ["h"], "lstm": ["h", "c"], "attention": ["h", "c", "keys", "values", "filled"]}[memory]
    specs = model.state_specs()
    assert list(specs) == names and set(model.inputs()) == {"obs", *(f"state.{name}" for name in names)}
    assert memory == "attention" or all(spec.shape == (8,) and spec.dtype == np.float32 for spec in specs.values())
    obs = normal(6, 3, 3)
    first = torch.zeros(6, 3, dtype=torch.bool)
    first[0, 0] = first[2, 1] = first[3, 1] = first[5, 2] = True
    start = state = {name: torch.full((3,), 2) if name == "filled" else normal(3, *specs[name].shape, seed=i + 5)
                     for i, name in enumerate(names)}
    logits, values = [], []
    for t in range(6):
        state = {name: value * ~first[t].reshape(-1, *(1,) * (value.ndim - 1)) for name, value in state.items()}
        values.append(model.value(obs[t], state))
        out, state = model.policy(obs[t], state)
        logits.append(out["logits"])
    out, value = model.evaluate(obs, start, first)
    torch.testing.assert_close(out["logits"], torch.cat(logits))
    torch.testing.assert_close(value, torch.cat(values))
    assert out["logits"].shape == (18, 4) and value.shape == (18,)


def test_without_a_state_the_memory_is_zero():
    model, x = RecurrentActorCritic(OBS, ACT), normal(3, 3)
    zeros = {"h": torch.zeros(3, 64)}
    torch.testing.assert_close(model.value(x), model.value(x, zeros))
    torch.testing.assert_close(model.evaluate(x)[1], model.value(x))  # [N, ...] is one step
    _, after = model.policy(x)
    assert not torch.equal(model.value(x, after), model.value(x))


def test_gradients_flow_back_through_time_but_not_through_an_episode_start():
    model = RecurrentActorCritic(OBS, ACT)
    obs = normal(3, 1, 3).requires_grad_()
    for reset, reaches in ((False, True), (True, False)):
        first = torch.tensor([[False], [reset], [False]])
        gradient, = torch.autograd.grad(model.evaluate(obs, None, first)[1][-1], obs)
        assert bool(gradient[0].any()) is reaches and gradient[1].any()


def test_observations_arrive_as_batches_too():
    """What a task hands over: flat fields, nested into a Batch."""
    obs, h = {"x": normal(2, 3), "mask": torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.int8)}, normal(2, 64)
    inputs = Batch.nest({"obs.x": obs["x"], "obs.mask": obs["mask"], "state.h": h})
    model = RecurrentActorCritic(MASKED, ACT)
    out, _ = model.policy(inputs.obs, inputs.state)
    torch.testing.assert_close(out["logits"], model.policy(obs, {"h": h})[0]["logits"])
    q = MLPQ(MASKED, ACT)
    torch.testing.assert_close(q.q(inputs.obs), q.q(obs))


def test_memory_on_images():
    model = RecurrentActorCritic(PIXELS, ACT, hidden=(), trunk=ConvTrunk(PIXELS, out_size=8))
    out, value = model.evaluate(integers(256, 4, 2, 9, 8, 3, dtype=torch.uint8))
    assert out["logits"].shape == (8, 4) and value.shape == (8,)


def test_memory_is_one_of_three():
    with pytest.raises(ValueError, match="expected 'gru', 'lstm' or 'attention'"):
        RecurrentActorCritic(OBS, ACT, memory="rnn")
