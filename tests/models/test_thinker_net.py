"""ThinkerNet: published sizes and costs, planning against learning, frames, gradients, normalisation; encodings of numbers."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from parl_like.models.encodings import Scalar, TwoHot, make_encoding, squash, unsquash
from parl_like.models.thinker_net import ThinkerNet
from parl_like.models.thinker_parts import ResBlock

SOKOBAN, ATARI = Box(0, 255, (3, 80, 80), np.uint8), Box(0, 255, (12, 96, 96), np.uint8)
BOARD = Box(0, 255, (3, 40, 40), np.uint8)
PLANES = Box(0.0, 1.0, (4, 7, 7), np.float32)
VECTOR = Box(np.array([-1.0, 0.0, 2.0], np.float32), np.array([1.0, 4.0, 2.0], np.float32))
ACT = Discrete(5)
SMALL = dict(channels=4, strides=(1, 1, 2, 1), zero_init=False)

VARIANTS = {
    "dual": (PLANES, {}),
    "published strides": (BOARD, dict(channels=4, strides=(2, 2, 2, 2))),
    "two-hot": (PLANES, dict(value_encoding="two_hot")),
    "other channels for VP": (PLANES, dict(vp_channels=8)),
    "no ends": (PLANES, dict(predict_done=False)),
    "depth 1": (BOARD, dict(decoder_depth=1)),
    "depth 2": (BOARD, dict(decoder_depth=2)),
    "depth 3": (BOARD, dict(decoder_depth=3)),
    "depth 4": (BOARD, dict(decoder_depth=4)),
    "stacked": (PLANES, dict(frame_stack=2)),
    "stacked features": (BOARD, dict(frame_stack=3, decoder_depth=1)),
    "latent": (PLANES, dict(latent_planning=True)),
    "latent stacked": (PLANES, dict(latent_planning=True, frame_stack=4)),
    "latent, other channels for VP": (PLANES, dict(latent_planning=True, vp_channels=8)),
    "residual": (PLANES, dict(residual=True)),
    "residual, sigmoid, stacked": (PLANES, dict(residual=True, sigmoid=True, frame_stack=2)),
    "markov": (PLANES, dict(markov=True)),
    "markov, all": (PLANES, dict(markov=True, residual=True, sigmoid=True, frame_stack=2)),
    "recurrent norm": (PLANES, dict(recurrent_norm=True)),
    "single": (PLANES, dict(net="single")),
    "vector": (VECTOR, {}),
    "vector latent": (VECTOR, dict(latent_planning=True)),
    "vector single": (VECTOR, dict(net="single")),
}


pytestmark = pytest.mark.usefixtures("seeded")


def observations(space, *rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(*rows, *space.shape, generator=generator)
    return (x * 255).to(torch.uint8) if space.dtype == np.uint8 else x


def actions(*rows, seed=2):
    return torch.randint(0, 5, rows, generator=torch.Generator().manual_seed(seed))


def made(name):
    """A variant, with statistics of batch normalisation that are not those of a new network, in eval mode."""
    space, options = VARIANTS[name]
    model = ThinkerNet(space, ACT, **{**SMALL, **options})
    model.train()
    for seed in range(3):
        model.unroll(observations(space, 4, 3, seed=seed), actions(4, 3))
    return space, model.eval()


# ------------------------------------------------------------------------------------------------------------ published sizes


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def n_norms(model):
    return sum(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())


def test_published_size_for_sokoban():
    m = ThinkerNet(SOKOBAN, ACT)
    assert m.parameter_count() == 6_637_133 and n_norms(m) == 18
    assert (count(m.vp_encoder), count(m.vp_rnn), count(m.vp_heads)) == (743_360, 2_126_817, 97_062)
    assert (count(m.sr_encoder, m.sr_decoder), count(m.sr_rnn), count(m.sr_heads)) == (2_066_947, 1_509_089, 93_858)
    assert m.state_shapes() == {"sr_h": (128, 5, 5), "vp_h": (128, 5, 5)}


def test_published_size_for_atari():
    m = ThinkerNet(ATARI, Discrete(18), blocks=2, frame_stack=4)
    assert m.parameter_count() == 11_162_592 and n_norms(m) == 36
    assert count(m.vp_encoder, m.vp_rnn, m.vp_heads) == 4_920_727
    assert m.state_shapes() == {"sr_h": (128, 6, 6), "vp_h": (128, 6, 6), "last_x": (9, 96, 96)}


def test_published_sizes_of_the_other_nets():
    single, perfect = ThinkerNet(SOKOBAN, ACT, net="single"), ThinkerNet(SOKOBAN, ACT, net="perfect")
    assert single.parameter_count() == 3_236_873
    assert perfect.parameter_count() == 1_726_182 - 885_760  # the published one builds two maps that it never uses
    assert single.state_shapes() == perfect.state_shapes() == {"vp_h": (128, 5, 5)}


@pytest.mark.parametrize(("depth", "size", "shape"), [
    (0, 3_669_894, (3, 80, 80)), (1, 3_592_835, (64, 40, 40)), (2, 3_461_699, (128, 20, 20)), (3, 2_904_003, (128, 10, 10)),
    (4, 2_641_731, (128, 5, 5)),
])  # fmt: skip
def test_published_decoder_depths(depth, size, shape):
    m = ThinkerNet(SOKOBAN, ACT, decoder_depth=depth).eval()
    assert count(m.sr_encoder, m.sr_decoder, m.sr_rnn, m.sr_heads) == size
    with torch.inference_mode():
        _, _, state = m.initial(observations(SOKOBAN, 2))
        x = m.recurrent(state, actions(2))[-1]
        assert x.shape == m.decode(state).shape == (2, *shape)


@pytest.mark.parametrize(("space", "options", "initial", "recurrent"), [
    (SOKOBAN, {}, 1320, 1285), (ATARI, dict(blocks=2, frame_stack=4), 3637, 3299),
])  # fmt: skip
def test_published_cost(space, options, initial, recurrent):
    """MFLOP of one row; convolutions and linear layers only."""
    model = ThinkerNet(space, Discrete(5 if space is SOKOBAN else 18), **options).eval()
    with torch.no_grad():
        with FlopCounterMode(display=False) as first:
            _, _, state = model.initial(observations(space, 1))
        with FlopCounterMode(display=False) as then:
            model.recurrent(state, actions(1))
    assert first.get_total_flops() / 1e6 == pytest.approx(initial, rel=0.005)
    assert then.get_total_flops() / 1e6 == pytest.approx(recurrent, rel=0.005)


def test_latent_planning_costs_a_fraction():
    model = ThinkerNet(SOKOBAN, ACT, latent_planning=True).eval()
    with torch.no_grad():
        _, _, state = model.initial(observations(SOKOBAN, 1))
        with FlopCounterMode(display=False) as flops:
            model.recurrent(state, actions(1), decode=False)
    assert flops.get_total_flops() / 1e6 < 0.2 * 1285


@pytest.mark.parametrize(("space", "strides", "hidden"), [
    (Box(0, 255, (3, 40, 40), np.uint8), (2, 2, 2, 2), (3, 3)), (Box(0, 255, (3, 56, 48), np.uint8), (2, 2, 2, 2), (4, 3)),
    (PLANES, (1, 1, 2, 1), (4, 4)), (PLANES, (1, 1, 1, 1), (7, 7)), (PLANES, (2, 2, 2, 2), (1, 1)),
])  # fmt: skip
def test_any_size_of_image(space, strides, hidden):
    model = ThinkerNet(space, ACT, channels=4, strides=strides).eval()
    assert model.state_shapes()["sr_h"] == (8, *hidden)
    v, logits, state = model.initial(observations(space, 2))
    assert model.recurrent(state, actions(2))[-1].shape == model.decode(state).shape == (2, *space.shape)


# --------------------------------------------------------------------------------------------------------------------- planning


@pytest.mark.parametrize("name", VARIANTS)
def test_planning_step_by_step_equals_the_unroll(name):
    """The unroll of learning and the calls of planning are one network."""
    space, model = made(name)
    obs, acts = observations(space, 6, 4), actions(6, 4)
    with torch.no_grad():
        unroll = model.unroll(obs, acts)
        v, logits, state = model.initial(obs[:, 0], acts[:, 0])
        for t in range(4):
            np.testing.assert_allclose(v, model.code.decode(unroll.value[:, t]), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(logits, unroll.logits[:, t], rtol=1e-4, atol=1e-5)
            assert {key: tuple(value.shape[1:]) for key, value in state.items()} == model.state_shapes()
            assert model.hs(state).shape == (6, *model.hs_shape)
            if t == 3:
                break
            r, done, v, logits, state, x = model.recurrent(state, acts[:, t + 1])
            np.testing.assert_allclose(r, model.code.decode(unroll.reward[:, t]), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(done, unroll.done[:, t].sigmoid() if unroll.done is not None else np.zeros(6), rtol=1e-4,
                                       atol=1e-5)
            if x is not None:
                np.testing.assert_allclose(x, unroll.x[:, t, -x.shape[1] :], rtol=1e-4, atol=1e-5)
    assert (x is None) == (model.net == "single")
    assert x is None or model.depth or x.shape == (6, *model.x_shape)
    assert float(v.std()) > 3e-4 and float(logits.std()) > 1e-3  # they say something


def test_rows_of_a_batch_never_meet():
    space, model = made("stacked")
    obs, acts = observations(space, 3), actions(3)
    with torch.no_grad():
        v, logits, state = model.initial(obs, acts)
        whole = model.recurrent(state, acts)
        for i in range(3):
            alone = model.recurrent(model.initial(obs[i : i + 1], acts[i : i + 1])[2], acts[i : i + 1])
            np.testing.assert_allclose(alone[2], whole[2][i : i + 1], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(alone[5], whole[5][i : i + 1], rtol=1e-4, atol=1e-5)


def test_a_perfect_model_judges_what_it_is_shown():
    model = ThinkerNet(PLANES, ACT, net="perfect", **SMALL).eval()
    obs, acts = observations(PLANES, 3, 4), actions(3, 4)
    unroll = model.unroll(obs, acts)
    for t in range(4):
        v, logits, _ = model.initial(obs[:, t], acts[:, t])
        torch.testing.assert_close(v, unroll.value[:, t, 0])
        torch.testing.assert_close(logits, unroll.logits[:, t])
    with pytest.raises(ValueError, match="net='perfect' imagines nothing; step the environment"):
        model.recurrent({}, acts[:, 0])


def test_no_action_is_action_zero():
    space, model = made("dual")
    obs = observations(space, 2)
    torch.testing.assert_close(model.initial(obs)[1], model.initial(obs, torch.zeros(2, dtype=torch.int64))[1])
    assert not torch.equal(model.initial(obs)[1], model.initial(obs, torch.ones(2, dtype=torch.int64))[1])


def test_only_the_newest_frame_is_imagined():
    """Frames 0 … 3 of one channel; after one step 1 2 3 x, after two 2 3 x y."""
    model = ThinkerNet(PLANES, ACT, frame_stack=4, **SMALL).eval()
    obs = observations(PLANES, 2)
    _, _, state = model.initial(obs)
    torch.testing.assert_close(state["last_x"], obs[:, 1:])
    *_, one, x = model.recurrent(state, actions(2))
    torch.testing.assert_close(x[:, :3], obs[:, 1:])
    torch.testing.assert_close(x[:, 3:], model.decode(one))
    *_, two, y = model.recurrent(one, actions(2))
    torch.testing.assert_close(y[:, :2], obs[:, 2:])
    torch.testing.assert_close(y[:, 2:3], x[:, 3:])
    torch.testing.assert_close(two["last_x"], y[:, 1:])


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_residual_images_are_the_last_one_and_what_changes(stack, sigmoid):
    """A decoder that says nothing repeats the newest frame, one that says c everywhere adds c, or c to the logits."""
    model = ThinkerNet(Box(0, 1, (4, 6, 6)), ACT, frame_stack=stack, residual=True, sigmoid=sigmoid, **SMALL).eval()
    frame = 4 // stack
    for c in (0.0, 0.75):
        with torch.no_grad():
            last = model.sr_decoder.stages[-1][-1]
            last.weight.zero_()
            last.bias.fill_(c)
        obs = torch.rand(2, 4, 6, 6) * 0.8 + 0.1  # away from 0 and 1, where logits are held back
        expected, state = obs, model.initial(obs)[2]
        torch.testing.assert_close(model.decode(state), obs[:, -frame:])
        for _ in range(2):
            before = expected[:, -frame:]
            after = (before.logit() + c).sigmoid() if sigmoid else before + c
            expected = torch.cat([expected[:, frame:], after], 1)
            *_, state, x = model.recurrent(state, actions(2))
            torch.testing.assert_close(x, expected)
            torch.testing.assert_close(model.decode(state), expected[:, -frame:])


def test_residual_planes_of_0_and_1_are_held_back():
    """Certainty at 0.02 and 0.98: the logit of a 0 would be −∞, and nothing could change it."""
    model = ThinkerNet(Box(0, 1, (4, 6, 6)), ACT, residual=True, sigmoid=True, **SMALL).eval()
    with torch.no_grad():
        last = model.sr_decoder.stages[-1][-1]
        last.weight.zero_()
        last.bias.zero_()
    obs = torch.randint(0, 2, (2, 4, 6, 6)).float()
    x = model.recurrent(model.initial(obs)[2], actions(2))[-1]
    torch.testing.assert_close(x, 0.02 + 0.96 * obs)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_markov_nodes_are_what_a_root_of_their_observation_would_be(sigmoid):
    model = ThinkerNet(PLANES, ACT, frame_stack=2, markov=True, sigmoid=sigmoid, **SMALL).eval()
    state, act = model.initial(observations(PLANES, 5))[2], actions(5)
    *_, v, logits, state, x = model.recurrent(state, act)
    assert not sigmoid or ((x[:, 2:] > 0.5).any() and (x[:, 2:] < 0.5).any())
    expected = model.initial((x > 0.5).float() if sigmoid else x, act)
    torch.testing.assert_close((v, logits, state), expected)


def test_latent_planning_decodes_only_for_display(monkeypatch):
    space, model = made("latent")
    _, _, state = model.initial(observations(space, 2))
    shown = model.recurrent(state, actions(2))
    assert shown[-1].shape == (2, *PLANES.shape)
    monkeypatch.setattr(model.sr_decoder, "forward", None)
    monkeypatch.setattr(model.vp_encoder, "forward", None)
    quiet = model.recurrent(state, actions(2), decode=False)
    assert quiet[-1] is None
    torch.testing.assert_close(quiet[2], shown[2])


def test_hidden_states_side_by_side():
    space, model = made("other channels for VP")
    _, _, state = model.initial(observations(space, 2))
    hs = model.hs(state)
    assert hs.shape == (2, 8 + 16, 4, 4)
    assert torch.equal(hs[:, :8], state["sr_h"]) and torch.equal(hs[:, 8:], state["vp_h"])


@pytest.mark.parametrize("encoding", ["scalar", "two_hot", "two_hot_biased"])
def test_first_predictions_are_zero_and_uniform(encoding):
    model = ThinkerNet(PLANES, ACT, channels=4, value_encoding=encoding).eval()
    v, logits, state = model.initial(observations(PLANES, 2))
    r, done, v1, logits1, _, _ = model.recurrent(state, actions(2))
    for zero in (v, logits, r, v1, logits1):
        assert not zero.any()
    assert ((done > 0.2) & (done < 0.8) & (done != 0.5)).all()  # of the end's head the weights only
    again = model.clone(copy=False)
    assert not again.initial(observations(PLANES, 2))[1].any() and again.weights_hash() != model.weights_hash()


def test_predictions_are_clipped_in_planning_only():
    model = ThinkerNet(PLANES, ACT, reward_clip=1.0, gamma=0.75, **SMALL).eval()
    for heads in (model.sr_heads, model.vp_heads):
        for linear in heads.linear.values():
            torch.nn.init.constant_(linear.bias, 100.0)
    v, _, state = model.initial(observations(PLANES, 2))
    r = model.recurrent(state, actions(2))[0]
    assert v.tolist() == [4.0, 4.0] and r.tolist() == [1.0, 1.0]
    unroll = model.unroll(observations(PLANES, 2, 1), actions(2, 2))
    assert (unroll.value > 50).all() and (unroll.reward > 50).all()


def test_half_precision_is_near_and_hands_out_float32():
    space, model = made("stacked")
    obs, acts = observations(space, 4), actions(4)
    with torch.inference_mode():
        exact = model.recurrent(model.initial(obs)[2], acts)
        model.low_precision = True
        v, logits, state = model.initial(obs)
        near = model.recurrent(state, acts)
    for a, b in zip((*exact[:4], exact[5]), (*near[:4], near[5]), strict=True):
        assert b.dtype == torch.float32 and not torch.equal(a, b)
        np.testing.assert_allclose(b, a, rtol=0.1, atol=0.05)
    assert all(value.dtype == torch.float32 for value in (v, logits, *state.values(), *near[4].values()))
    unroll = model.train().unroll(observations(space, 4, 1), actions(4, 3))
    assert unroll.value.dtype == unroll.x.dtype == torch.float32


@pytest.mark.parametrize("name", ["dual", "other channels for VP", "markov, all", "recurrent norm", "single"])
def test_a_frozen_copy_folds_its_normalisation_and_stays_what_it_was(name):
    """Convolution and normalisation in one, equal to rounding; anew after copies of weights and statistics, and in pickles."""
    space, model = made(name)
    frozen = model.clone().requires_grad_(False).eval()
    obs, acts = observations(space, 6), actions(6)

    def predictions(net):
        v, logits, state = net.initial(obs, acts)
        r, done, *more = net.recurrent(state, acts)
        return [v, logits, r, done, *more[:2], *more[2].values()]

    def assert_equal(*nets):
        with torch.inference_mode():
            for a, b in zip(*map(predictions, nets), strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)

    folds = []
    blocks = [part for part in frozen.modules() if isinstance(part, ResBlock) and part.norm]
    for block in blocks:
        block._fold = lambda fold=block._fold: folds.append(1) or fold()
    with torch.inference_mode(), CountNorms() as norms:
        predictions(frozen)
    used = len(folds)  # a single net predicts features for learning only
    assert norms.count == 0 and used in (len(blocks), len(blocks) - 1)
    assert_equal(model, frozen)
    assert len(folds) == used  # not again for the same weights
    model.train().unroll(observations(space, 4, 3, seed=9), actions(4, 3))  # other statistics
    for parameter in model.parameters():
        parameter.data.mul_(1.1)
    frozen.sync_from(model.eval())
    assert_equal(model, frozen)
    assert len(folds) == 2 * used
    for block in blocks:
        del block._fold
    assert_equal(model, pickle.loads(pickle.dumps(frozen)))
    assert_equal(model.to(torch.float64).to(torch.float32), frozen.to(memory_format=torch.channels_last))
    frozen.train().unroll(observations(space, 4, 3, seed=10), actions(4, 3))  # moves statistics, which have no version
    model.load_state_dict(frozen.state_dict())
    assert_equal(model, frozen.eval())


class CountNorms(TorchDispatchMode):
    """Counts batch normalisations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "batch_norm" in func.name()
        return func(*args, **(kwargs or {}))


# --------------------------------------------------------------------------------------------------------------------- learning


def test_markov_nodes_are_judged_in_one_pass():
    """VP's encoder runs once for all steps of an update, and the result is that of each by itself, up to the shared
    statistics."""
    space, model = made("markov, all")
    seen = []
    model.vp_encoder.register_forward_hook(lambda _, args, z: seen.append(len(z)))
    obs, acts = observations(space, 3, 1), actions(3, 4)
    out = model.train().unroll(obs, acts)
    assert seen == [12] and out.value.shape == (3, 4, 1) and out.z.shape[:2] == (3, 3)
    assert not any(name.startswith("vp_rnn") for name, _ in model.named_parameters())


def gradients(module):
    return [p.grad for p in module.parameters()]


def test_values_and_policies_teach_nothing_to_sr():
    model = ThinkerNet(PLANES, ACT, **SMALL).train()
    out = model.unroll(observations(PLANES, 4, 1), actions(4, 4))
    (out.value.sum() + out.logits.square().sum()).backward()
    assert all(p.grad is None for name, p in model.named_parameters() if name.startswith("sr_"))
    assert all(p.grad is not None and p.grad.any() for name, p in model.named_parameters() if name.startswith("vp_encoder"))


def test_images_and_rewards_teach_nothing_to_vp():
    model = ThinkerNet(PLANES, ACT, **SMALL).train()
    out = model.unroll(observations(PLANES, 4, 1), actions(4, 4))
    (out.reward.sum() + out.done.sum() + out.x.square().sum()).backward()
    assert all(p.grad is None for name, p in model.named_parameters() if name.startswith("vp_"))
    assert all(p.grad is not None for name, p in model.named_parameters() if name.startswith("sr_"))


@pytest.mark.parametrize("name", ["dual", "single"])
def test_what_enters_vps_recurrence_has_half_of_its_gradient_in_training(name):
    """Of the value t steps ahead, the gradient on the encoder is 2^−(t + 1): the root's recurrence counts (a single net's root
    has none)."""
    space, model = made(name)
    gradient = {}
    for training in (False, True):
        model.training = training  # the parts stay in eval mode, so that only the halving differs
        for t in range(3):
            seen = []
            hook = model.vp_encoder.register_forward_hook(lambda _, __, z, seen=seen: seen.append(z))
            out = model.unroll(observations(space, 4, 1), actions(4, 3))
            hook.remove()
            (gradient[training, t],) = torch.autograd.grad(out.value[:, t].sum(), seen[0])
    first = 1 if name == "dual" else 0
    for t in range(3):
        torch.testing.assert_close(gradient[True, t], gradient[False, t] * 0.5 ** (t + first))
        assert gradient[True, t].any()


def statistics(model):
    return {name: value.clone() for name, value in model.named_buffers() if name in model.state_dict()}


def test_statistics_move_in_training_and_in_nothing_else():
    model = ThinkerNet(PLANES, ACT, **SMALL)
    obs, acts = observations(PLANES, 4, 1), actions(4, 3)
    before = statistics(model)
    model.eval().unroll(obs, acts)
    model.recurrent(model.initial(obs[:, 0])[2], acts[:, 0])
    assert all(torch.equal(value, before[name]) for name, value in statistics(model).items())
    model.train().unroll(obs, acts)
    steps = {name.split(".")[0]: int(value) for name, value in statistics(model).items() if name.endswith("num_batches_tracked")}
    assert steps == {"sr_encoder": 1, "sr_decoder": 2, "vp_encoder": 3}


def test_the_held_encoder_is_no_part_of_the_model():
    model = ThinkerNet(PLANES, ACT, **SMALL).train()
    before = statistics(model)
    x = observations(PLANES, 4).requires_grad_()
    z = model.held_feature(x, actions(4))
    torch.testing.assert_close(z,
                               model.vp_encoder(x,
                                                torch.nn.functional.one_hot(actions(4), 5).float()))  # which moves the statistics
    model.load_state_dict({**model.state_dict(), **before})
    z = model.held_feature(x, actions(4))
    z.square().sum().backward()
    assert x.grad.any() and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in statistics(model).items())


def test_a_copy_follows_with_its_statistics():
    space, model = made("dual")
    acting = ThinkerNet(space, ACT, **SMALL).eval()
    obs = observations(space, 3)
    assert not torch.equal(acting.initial(obs)[0], model.initial(obs)[0])
    acting.sync_from(model)
    assert acting.weights_hash() == model.weights_hash()
    torch.testing.assert_close(acting.initial(obs)[0], model.initial(obs)[0])
    assert pickle.loads(pickle.dumps(model)).weights_hash() == model.weights_hash()


# ---------------------------------------------------------------------------------------------------------- scales and refusals


def test_observations_are_scaled_by_their_bounds():
    pixels = ThinkerNet(SOKOBAN, ACT, channels=2, net="perfect")
    assert pixels.normalize(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    x = torch.tensor([-0.5, 0.2, 0.5, 2.0]).expand(1, 3, 1, 4)
    assert pixels.denormalize(x)[0, 0, 0].tolist() == [0, 51, 128, 255]
    vector = ThinkerNet(VECTOR, ACT, channels=2)
    assert vector.normalize(torch.tensor([[0.0, 1.0, 2.0]])).tolist() == [[0.5, 0.25, 0.0]]
    assert vector.denormalize(torch.tensor([[0.5, 0.25, 0.0]])).tolist() == [[0.0, 1.0, 2.0]]
    low, high = np.array([0, 5, 0, 5.0]), np.array([1, 7, 1, 7.0])
    stacked = ThinkerNet(Box(low, high, dtype=np.float64), ACT, channels=2, frame_stack=2)
    assert stacked.denormalize(torch.tensor([[0.5, 0.5]])).tolist() == [[0.5, 6.0]]
    given = ThinkerNet(Box(-np.inf, np.inf, (2,)), ACT, channels=2, bounds=(-4, [4, 12]))
    assert given.normalize(torch.tensor([0.0, 0.0])).tolist() == [0.5, 0.25]


@pytest.mark.parametrize(("space", "act", "options", "error", "match"), [
    (Box(-np.inf, np.inf, (4,)), ACT, {}, ValueError, r"some of these are infinite; give bounds=\(low, high\)"),
    (Box(-3.4e38, 3.4e38, (4,)), ACT, {}, ValueError, "some of these are infinite"),
    (VECTOR, ACT, dict(bounds=(1, 0)), ValueError, "expected low ≤ high"),
    (Dict(x=VECTOR), ACT, {}, TypeError, "expected a Box of images"),
    (Box(0, 1, (7, 7)), ACT, {}, TypeError, "expected a Box of images"),
    (PLANES, MultiDiscrete([2, 2]), {}, TypeError, "expected Discrete"),
    (PLANES, ACT, dict(net="duel"), ValueError, "did you mean 'dual'"),
    (PLANES, ACT, dict(frame_stack=3), ValueError, "expected a divisor of 4"),
    (PLANES, ACT, dict(strides=(2, 2)), ValueError, "four numbers, each 1 or 2"),
    (PLANES, ACT, dict(channels=3), ValueError, "even channels"),
    (PLANES, ACT, dict(decoder_depth=5), ValueError, "expected 0 … 4"),
    (PLANES, ACT, dict(decoder_depth=1, net="single"), ValueError, "only with net='dual'"),
    (PLANES, ACT, dict(decoder_depth=1, vp_channels=2), ValueError, "vp_channels must be 64"),
    (VECTOR, ACT, dict(decoder_depth=1), ValueError, "only with net='dual' and images"),
    (PLANES, ACT, dict(latent_planning=True, net="single"), ValueError, "expected net='dual'"),
    (PLANES, ACT, dict(latent_planning=True, decoder_depth=4), ValueError, "decoder_depth below 4"),
    (PLANES, ACT, dict(reward_clip=-1), ValueError, "a number above 0"),
    (PLANES, ACT, dict(value_encoding="two-hot"), ValueError, "did you mean 'two_hot'"),
    (PLANES, ACT, dict(value_encoding="two_hot", squash="sqr"), ValueError, "did you mean 'sqrt'"),
])  # fmt: skip
def test_refusals(space, act, options, error, match):
    with pytest.raises(error, match=match):
        ThinkerNet(space, act, **options)


def test_a_net_without_images_says_so():
    model = ThinkerNet(PLANES, ACT, net="single", **SMALL)
    with pytest.raises(ValueError, match="has no decoder; images need net='dual'"):
        model.decode(model.initial(observations(PLANES, 2))[2])


def test_shapes_without_weights():
    with torch.device("meta"):
        model = ThinkerNet(SOKOBAN, ACT, value_encoding="two_hot")
    assert model.hs_shape == (256, 5, 5) and model.x_shape == (3, 80, 80)


def test_a_planning_request():
    inputs = ThinkerNet(PLANES, ACT, **SMALL).inputs()
    assert {name: (spec.shape, str(spec.dtype)) for name, spec in inputs.items()} == {
        "obs": ((4, 7, 7), "float32"), "op": ((), "int64"), "act": ((), "int64"), "parent": ((), "int64"), "node": ((), "int64"),
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------------- encodings

X = [-100.0, -1.0, -0.5, 0.0, 0.01, 0.5, 1.0, 3.0, 10.0, 1000.0]
F0 = [-9.14987562, -0.41521356, -0.22524487, 0.0, 0.00499756, 0.22524487, 0.41521356, 1.003, 2.32662479, 31.63858404]
F1 = [-4.61512052, -0.69314718, -0.40546511, 0.0, 0.00995033, 0.40546511, 0.69314718, 1.38629436, 2.39789527, 6.90875478]


@pytest.mark.parametrize(("kind", "expected"), [("sqrt", F0), ("log", F1)])
def test_squashing_golden_and_back(kind, expected):
    x = torch.tensor(X, dtype=torch.float64)
    np.testing.assert_allclose(squash(x, kind), expected, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(unsquash(squash(x, kind), kind), x, rtol=1e-12)
    small = torch.tensor([1e-6, -3e-5])  # keep their digits in float32
    np.testing.assert_allclose(unsquash(squash(small, kind), kind), small, rtol=1e-6)


@pytest.mark.parametrize(("name", "weights"), [
    ("two_hot", {(0, 300): 0.765728, (0, 301): 0.234272, (1, 299): 0.836684, (1, 300): 0.163316}),
    ("two_hot_biased", {(0, 300): 0.695459, (0, 301): 0.304541, (1, 299): 0.873329, (1, 300): 0.126671}),
])  # fmt: skip
def test_two_hot_golden(name, weights):
    code = make_encoding(name)
    encoded = code.encode(torch.tensor([0.7, -2.5]))
    assert encoded.shape == (2, 601) and {tuple(at) for at in encoded.nonzero().tolist()} == weights.keys()
    for at, weight in weights.items():
        assert float(encoded[at]) == pytest.approx(weight,
                                                   abs=3e-5)  # golden atoms are 3e-5 off: float32
    np.testing.assert_allclose(code.decode(encoded.log()), [0.7, -2.5], rtol=1e-5)
    assert float(code.atoms[-1]) == pytest.approx(300.0 if code.biased else 58705.586)
    assert float(code.atoms[0]) == -float(code.atoms[-1])


@pytest.mark.parametrize("kind", ["sqrt", "log"])
@pytest.mark.parametrize("biased", [False, True])
def test_two_hot_laws(kind, biased):
    code = TwoHot(kind, biased)
    assert code.size == (601 if kind == "sqrt" else 41)
    x = torch.cat([torch.linspace(-30, 30, 61), code.atoms[[0, -1]] if not biased else torch.tensor([3.0, -3.0])])
    encoded = code.encode(x)
    assert ((encoded > 0).sum(-1) <= 2).all()
    np.testing.assert_allclose(encoded.sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(code.decode(encoded.log()), x, rtol=1e-4, atol=1e-4)
    beyond = code.encode(torch.tensor([1e12, -1e12]))
    assert beyond[0, -1] == 1 and beyond[1, 0] == 1
    assert not code.decode(torch.zeros(3, code.size)).any()
    # Cross-entropy is least where the prediction is the target.
    logits = encoded.clamp(min=1e-9).log().requires_grad_()
    (gradient,) = torch.autograd.grad(code.loss(logits, x).sum(), logits)
    assert float(gradient.abs().max()) < 1e-5


def test_scalars_are_themselves():
    code = Scalar()
    assert code.decode(torch.tensor([[2.0], [3.0]])).tolist() == [2.0, 3.0]
    assert code.loss(torch.tensor([[2.0], [3.0]]), torch.tensor([0.0, 3.5])).tolist() == [4.0, 0.25]
