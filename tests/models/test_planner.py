"""Planner: the sizes of the original, which head acts when, what is seen, and the raw MDP."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from parl_like.learning.explorers import MultiCategorical
from parl_like.models import Planner
from parl_like.models.planner import ImageTrunk

INF = np.inf
A = 3
LSTM = dict(size=8, layers=2, heads=2, memory=3)


def box(*shape, high=INF, dtype=np.float32):
    return Box(0 if dtype == np.uint8 else -high, high, shape, dtype)


def space(n=A, tree=6, **more):
    return Dict({"tree_reps": box(tree), "last_act": MultiDiscrete([n, 2]), "last_rew": box(2), "step_status": Discrete(4),
                 **more})


def small(**options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Planner(space(), MultiDiscrete([A, 2]), **{"see_h": False, "lstm": LSTM, **options})


def rows(model, *lead, seed=1):
    """Random observations [*lead, ...] of the model's space, with every step status."""
    rng = np.random.default_rng(seed)
    obs = {}
    for name, spec in model.obs_specs.items():
        if spec.dtype.kind == "f":
            value = rng.normal(size=(*lead, *spec.shape))
        else:
            value = rng.integers(spec.low, np.asarray(spec.high, np.int64) + 1, (*lead, *spec.shape))
        obs[name.removeprefix("obs.")] = torch.from_numpy(value.astype(spec.dtype))
    return obs


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


@pytest.mark.parametrize(("tree", "size", "total", "encoder", "last_in"), [
    ("lstm", 79, 1_874_540, 1_128_640, 393), ("lstm", 111, 1_878_636, 1_132_736, 393), ("mlp", 111, 923_908, 178_400, 365),
])
def test_parameters_of_the_original(tree, size, total, encoder, last_in):
    """`network.actor_*` of the golden file: Sokoban with A = 5."""
    model = Planner(space(5, size, hs=box(256, 5, 5)), MultiDiscrete([5, 2]), tree=tree)
    assert model.parameter_count() == total
    assert count(model.encoders["hs"]) == 740_384
    assert count(*([model.tree] if tree == "mlp" else [model.tree_in, model.memory, model.tree_out])) == encoder
    assert model.head.linear.in_features == last_in
    if tree == "lstm":
        assert (count(model.head.imagined), count(model.head.linear), count(model.baseline)) == (1970, 1970 + 788, 788)


# ------------------------------------------------------------------------------------------------------------------ the heads


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("separate", [True, False])
def test_who_acts_depends_on_the_step_status(separate):
    """0, 1: imagined, the reset counts. 2, 3: real, by the other head, and no reset."""
    model = small(separate=separate)
    obs = rows(model, 4)
    obs["step_status"] = torch.arange(4)
    with torch.no_grad():
        features = model._features(obs, None, None)[0]
        real = model.head.linear(features).numpy()
        imagined = model.head.imagined(features).numpy() if separate else real[:, :A]
        out, _ = model.evaluate(obs)
    act = torch.tensor([[2, 1], [0, 0], [1, 0], [2, 0]])
    primary = log_softmax(np.concatenate([imagined[:2], real[2:, :A]]))
    reset = log_softmax(real[:, A:])
    expected = [primary[0, 2] + reset[0, 1], primary[1, 0] + reset[1, 0], primary[2, 1], primary[3, 2]]
    np.testing.assert_allclose(model.head.log_prob(out, act), expected, rtol=1e-5)
    entropy = -(np.exp(primary) * primary).sum(1) - np.where([1, 1, 0, 0], (np.exp(reset) * reset).sum(1), 0.0)
    np.testing.assert_allclose(model.head.entropy(out), entropy, rtol=1e-5)
    squares = lambda x: (x**2).sum(1)  # noqa: E731
    chosen = np.concatenate([imagined[:2], real[2:, :A]])
    penalty = 0.5 * (1e-6 * squares(features.numpy()) + 1e-3 * squares(chosen) + 1e-3 * squares(real[:, A:]))
    np.testing.assert_allclose(out["reg"], penalty, rtol=1e-5)


@pytest.mark.parametrize("status", [1, 2])
def test_each_head_learns_from_its_own_steps(status):
    model = small()
    obs = rows(model, 5)
    obs["step_status"].fill_(status)
    out, _ = model.evaluate(obs)
    (model.head.log_prob(out, torch.zeros(5, 2, dtype=torch.int64)).sum() + model.head.entropy(out).sum()).backward()
    primary, reset = model.head.linear.weight.grad.split([A, 2])
    learned = {"real": primary, "imagined": model.head.imagined.weight.grad, "reset": reset}
    assert {name
            for name, grad in learned.items() if grad.abs().sum() > 0} == ({"imagined", "reset"} if status == 1 else {"real"})
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_the_explorer_of_joint_actions_never_resets_in_a_real_step_and_knows_the_probability():
    model = small()
    obs = rows(model, 400)
    explorer = MultiCategorical(model.head.nvec, log_prob=True)
    with torch.no_grad():
        out, state = model.policy(obs)
        assert set(out) == {"logits"} and state == {}
        noise = explorer.draw(np.random.default_rng(0), 0, 400)
        chosen = explorer.act({name: value.numpy() for name, value in out.items()}, noise)
        expected = model.head.log_prob(out, torch.from_numpy(chosen["act"]))
    real = obs["step_status"].numpy() >= 2
    assert not chosen["act"][real, 1].any() and set(chosen["act"][~real, 1]) == {0, 1}
    assert set(chosen["act"][real, 0]) == set(range(A))
    np.testing.assert_allclose(chosen["log_prob"], expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------------ what is seen


def test_baselines_begin_at_zero_and_may_be_bounded():
    model = small(value_bound=2.0)
    obs = rows(model, 6)
    with torch.no_grad():
        assert model.value(obs).tolist() == [[0.0, 0.0]] * 6
        model.baseline.bias.copy_(torch.tensor([-5.0, 1.5]))
        assert model.value(obs).tolist() == model.evaluate(obs)[1].tolist() == [[-2.0, 1.5]] * 6


def test_rewards_are_seen_up_to_one_and_choices_one_by_one():
    model = small()
    obs = rows(model, 1)
    obs["last_act"], obs["last_rew"] = torch.tensor([[2, 0]]), torch.tensor([[7.0, -0.25]])
    features = model._features(obs, None, None)[0]
    assert features[0, -7:].tolist() == [0, 0, 1, 1, 0, 1.0, -0.25]


SEEN = {
    "planes": dict(hs=box(4, 3, 3)), "numbers": dict(hs=box(9)),
    "imagined picture": dict(hs=box(4, 3, 3), xs=box(3, 40, 40)),
    "all": dict(hs=box(4, 3, 3), xs=box(3, 40, 40), real_states=box(3, 40, 40, high=255, dtype=np.uint8)),
    "small picture": dict(hs=box(5), real_states=box(4, 7, 7)), "numbers only": dict(hs=box(5), real_states=box(6)),
}


@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
def test_everything_that_is_seen_counts(seen):
    model = Planner(space(done=Discrete(2), **seen), MultiDiscrete([A, 2]), see_x="xs" in seen,
                    see_real_state="real_states" in seen)
    for p in model.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    obs = rows(model, 2)
    with torch.no_grad():
        before = model.value(obs)
        assert before.shape == (2, 2)
        for name in obs.keys() - {"done", "step_status"}:
            changed = {**obs, name: rows(model, 2, seed=2)[name]}
            if name == "last_act":
                changed[name] = (obs[name] + 1) % torch.tensor([A, 2])
            assert not torch.equal(model.value(changed), before), name
        assert torch.equal(model.value({**obs, "done": 1 - obs["done"]}), before)


def test_a_picture_that_stays_is_encoded_once():
    """Rows of a stage show one real observation: as many are encoded as there are changes, with equal values and gradients."""
    model = Planner(space(real_states=box(2, 6, 6, high=1, dtype=np.uint8)), MultiDiscrete([A, 2]), see_h=False,
                    see_real_state=True)
    for p in model.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    obs = rows(model, 9)
    kept = torch.tensor([0, 0, 0, 3, 3, 0, 6, 7, 7])  # the picture of which row
    obs["real_states"] = obs["real_states"][kept]
    seen = []
    hook = model.encoders["real_states"].register_forward_hook(lambda _, args, out: seen.append(len(out)))
    out, value = model.evaluate(obs)
    (out["logits"][:, 0].sum() + value.square().sum()).backward()
    assert seen == [5]
    hook.remove()
    together = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    alone = [model.evaluate({name: x[i : i + 1] for name, x in obs.items()}) for i in range(9)]
    (sum(o["logits"][:, 0].sum() + v.square().sum() for o, v in alone)).backward()
    torch.testing.assert_close(value, torch.cat([v for _, v in alone]))
    for name, p in model.named_parameters():
        torch.testing.assert_close(together[name], p.grad, rtol=1e-4, atol=1e-5)


def test_pictures_of_bytes_are_seen_from_0_to_1():
    """Small and whole: the encoder gets x / 255."""
    model = Planner(Dict({"real_states": box(2, 7, 7, high=255, dtype=np.uint8)}), Discrete(A), see_tree_rep=False, see_h=False,
                    see_real_state=True)
    obs = rows(model, 3)
    with torch.no_grad():
        expected = model.encoders["real_states"](obs["real_states"].float() / 255)
        torch.testing.assert_close(model._features(obs, None, None)[0], expected)


@pytest.mark.parametrize(("shape", "halve", "cells"), [((3, 80, 80), 16, 25), ((2, 33, 47), 16, 9), ((2, 7, 6), 0, 42)])
def test_an_image_trunk_worked_out_in_torch(shape, halve, cells):
    """Four halvings, rounded up; with residual pairs of weight 0, the convolutions and poolings alone."""
    trunk = ImageTrunk(shape, (16, 32, 32) if halve else (4, 4, 32), halve)
    assert trunk.linear.in_features == 32 * cells
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for group in trunk.groups:
            for conv in (group[2], group[4]):
                conv.weight.zero_()
                conv.bias.zero_()
        y = torch.relu(trunk.first(x)) if halve else x
        for group in trunk.groups:
            y = group[0](y)
            y = torch.nn.functional.max_pool2d(y, 3, 2, 1) if halve else y
        expected = torch.relu(trunk.linear(torch.relu(y.flatten(1))))
        torch.testing.assert_close(trunk(x), expected)
        group = trunk.groups[2]
        group[2].bias.fill_(0.3)  # x + 0.3, then the second pair: ReLU(x + 0.3) through one convolution that is the identity
        group[3].weight.copy_(torch.eye(32)[:, :, None, None] * (torch.arange(9) == 4).view(3, 3))
        group[3].bias.zero_()
        group[4].weight.copy_(group[3].weight)
        y = y + 0.3
        torch.testing.assert_close(trunk(x), torch.relu(trunk.linear(torch.relu((y + torch.relu(y)).flatten(1)))))


# ------------------------------------------------------------------------------------------------------------------ the raw MDP


RAW = {
    "a picture": box(3, 40, 40, high=255, dtype=np.uint8), "planes": Dict({"real_states": box(4, 7, 7)}), "numbers": box(5),
    "what was done": Dict({"real_states": box(4, 7, 7), "last_act": Discrete(A, start=2), "last_rew": box(1)}),
}


@pytest.mark.parametrize("obs_space", RAW.values(), ids=RAW)
def test_the_raw_mdp_has_one_policy_and_one_baseline(obs_space):
    model = Planner(obs_space, Discrete(A, start=2), see_tree_rep=False, see_h=False, see_real_state=True)
    obs = rows(model, 5) if isinstance(obs_space, Dict) else rows(model, 5)["obs"]
    out, state = model.policy(obs)
    assert out["logits"].shape == (5, A) and state == {} and model.head.explorer == "categorical"
    out, value = model.evaluate(obs)
    assert value.shape == model.value(obs).shape == out["reg"].shape == (5,)
    assert model.head.log_prob(out, torch.zeros(5, dtype=torch.int64)).shape == (5,)


# ------------------------------------------------------------------------------------------------------------------ as a model


MODELS = {"mlp": lambda: small(), "lstm": lambda: small(tree="lstm"), "one head": lambda: small(separate=False),
          "raw": lambda: Planner(box(3, 40, 40), Discrete(A), see_tree_rep=False, see_h=False, see_real_state=True)}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_copies_and_new_values(make):
    model = make()
    for other in (model.clone(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.weights_hash() == model.weights_hash()
    # `small` seeds itself; drawn anew from that seed, the values are those of construction
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = make()
        torch.manual_seed(0)
        assert model.clone(copy=False).weights_hash() == built.weights_hash()
    obs = rows(model, 5)
    obs = obs if isinstance(model.obs_space, Dict) else obs["obs"]
    one = lambda i: {k: v[i : i + 1] for k, v in obs.items()} if isinstance(obs, dict) else obs[i : i + 1]  # noqa: E731
    with torch.no_grad():
        alone = torch.cat([model.policy(one(i))[0]["logits"] for i in range(5)])
        torch.testing.assert_close(model.policy(obs)[0]["logits"], alone)


def test_memory_over_an_unroll_equals_acting_step_by_step():
    model = small(tree="lstm")
    model.baseline.weight.data.normal_(generator=torch.Generator().manual_seed(3))
    obs, first = rows(model, 6, 2), torch.zeros(6, 2, dtype=torch.bool)
    first[4, 1] = True
    with torch.no_grad():
        out, value = model.evaluate(obs, None, first)
        state = {name: torch.from_numpy(spec.zeros(2)) for name, spec in model.state_specs().items()}
        for t in range(6):
            state = {name: part.masked_fill(first[t].reshape(2, *[1] * (part.ndim - 1)), 0) for name, part in state.items()}
            now = {name: part[t] for name, part in obs.items()}
            torch.testing.assert_close(model.value(now, state), value[2 * t : 2 * t + 2])
            step, state = model.policy(now, state)
            torch.testing.assert_close(step["logits"], out["logits"][2 * t : 2 * t + 2])


def test_what_does_not_fit_is_refused():
    act = MultiDiscrete([A, 2])
    with pytest.raises(ValueError, match="expected hs; add it to the space, or set see_tree_rep, see_h"):
        Planner(space(), act)
    with pytest.raises(ValueError, match="something to see"):
        Planner(space(), act, see_tree_rep=False, see_h=False)
    for wrong in (MultiDiscrete([A, 3]), box(2), MultiDiscrete([A, 2, 2])):
        with pytest.raises(TypeError, match=r"expected MultiDiscrete\(\[A, 2\]\)"):
            Planner(space(), wrong, see_h=False)
    with pytest.raises(ValueError, match=r"'last_rew' has shape \(4,\); expected \(2,\) or \(3,\)"):
        Planner(space(last_rew=box(4)), act, see_h=False)
    with pytest.raises(ValueError, match=r"'hs' has shape \(4, 5\)"):
        Planner(space(hs=box(4, 5)), act)
    with pytest.raises(ValueError, match="tree is 'rnn'"):
        Planner(space(), act, see_h=False, tree="rnn")
    assert isinstance(space(), gym.Space)
