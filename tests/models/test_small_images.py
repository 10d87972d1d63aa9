"""Convolutions of small images in compiled loops have torch's values, gradients and statistics; what does not fit is torch's."""

import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from parl_like import ComputationTask
from parl_like.algorithms.world_model import WorldModel
from parl_like.models import _conv
from parl_like.models.small_images import ROWS, Conv2d, Flatten, fits, flat, laid
from parl_like.models.thinker_net import ThinkerNet
from parl_like.models.thinker_parts import ResBlock

LEVELS = (2, 1, 0)
SHAPES = [(32, 5, 7, 6, 6, 3), (16, 8, 16, 5, 7, 3),
          (33, 6, 5, 4, 3, 3), (48, 3, 4, 1, 1, 3), (16, 4, 4, 2, 9, 3), (20, 21, 9, 6, 6, 1)]


@pytest.fixture(params=LEVELS, ids="level {}".format)
def level(request):
    if _conv.level(request.param) != request.param:
        _conv.level()
        pytest.skip("this processor has no such instructions")
    yield request.param
    _conv.level()


def compiled(module, on=True):
    for part in module.modules():
        if hasattr(type(part), "compiled"):
            part.compiled = on
    return module




def close(a, b):
    torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5 * max(float(b.detach().abs().max()), 1e-3))


@pytest.mark.parametrize(("n", "c", "out", "h", "w", "k"), SHAPES)
def test_a_convolution_and_its_gradients_are_those_of_torch(level, n, c, out, h, w, k):
    torch.manual_seed(0)
    ours, theirs = compiled(Conv2d(c, out, k, padding=k // 2)), nn.Conv2d(c, out, k, padding=k // 2).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(n, c, h, w, requires_grad=True)
    x_theirs, g = x.detach().double().requires_grad_(), torch.randn(n, out, h, w)
    y, expected = ours(x), theirs(x_theirs)
    close(y, expected)
    y.backward(g)
    expected.backward(g.double())
    close(x.grad, x_theirs.grad)
    close(ours.weight.grad, theirs.weight.grad)
    close(ours.bias.grad, theirs.bias.grad)
    with torch.inference_mode():
        close(ours(x), expected)


@pytest.mark.parametrize(("n", "c", "out", "h", "w"), [(32, 8, 8, 6, 6), (16, 7, 5, 3, 4), (48, 21, 16, 6, 6)])
def test_a_residual_block_learns_as_with_torch(level, n, c, out, h, w):
    """With the statistics of batch normalisation that it leaves."""
    torch.manual_seed(0)
    ours, theirs = compiled(ResBlock(c, out)), ResBlock(c, out)
    with torch.no_grad():
        for p in ours.parameters():
            p.add_(0.3 * torch.randn_like(p))
    theirs.load_state_dict(ours.state_dict())
    theirs.double()
    for _ in range(2):
        x = torch.randn(n, c, h, w, requires_grad=True)
        x_theirs, g = x.detach().double().requires_grad_(), torch.randn(n, out, h, w)
        y, expected = ours(x), theirs(x_theirs)
        close(y, expected)
        y.backward(g)
        expected.backward(g.double())
        close(x.grad, x_theirs.grad)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(a.grad, b.grad)
    for (name, a), b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        assert a.dtype == b.float().dtype or name.endswith("tracked")
        close(a, b.double())


def changes():
    def frozen(block):
        block.body[1].eval()

    def average(block):
        block.body[4].momentum = None

    def no_statistics(block):
        block.body[1] = nn.BatchNorm2d(6, track_running_stats=False)

    def no_scale(block):
        block.body[1] = nn.BatchNorm2d(6, affine=False)

    def groups(block):
        block.body[4] = nn.GroupNorm(2, 4)

    def smooth(block):
        block.body[2] = nn.Tanh()

    def bias(block):
        block.body[0].bias = nn.Parameter(torch.ones(6))

    def dilated(block):
        block.body[3] = Conv2d(6, 4, 3, padding=2, dilation=2)

    def hook(block):
        block.body[0].register_forward_hook(lambda _, __, out: out + 1.0)

    def other_skip(block):
        block.skip = nn.Sequential(block.skip, nn.Tanh())

    def strided(block):
        block.body[4].bias = nn.Parameter(torch.arange(8.0)[::2])

    return [frozen, average, no_statistics, no_scale, groups, smooth, bias, dilated, hook, other_skip, strided]


@pytest.mark.parametrize("learns", [True, False], ids=["learns", "acts"])
@pytest.mark.parametrize("change", changes(), ids=lambda f: f.__name__)
def test_a_block_with_other_parts_does_what_these_do(change, learns):
    torch.manual_seed(0)
    theirs = ResBlock(6, 4).train(learns).requires_grad_(learns)
    with torch.no_grad():
        for tensor in (*theirs.parameters(), *theirs.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.2, 1.0)
    change(theirs)
    ours, x = compiled(copy.deepcopy(theirs)), torch.randn(32, 6, 5, 5)
    layers = dict(theirs.body.named_children())
    y, z = ours(x), x
    for layer in layers.values():
        z = layer(z)
    expected = torch.relu(theirs.skip(x) + z)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    if learns:
        y.square().sum().backward()
        expected.square().sum().backward()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3 * max(float(b.grad.abs().max()), 1.0))


def test_what_is_no_number_goes_through_a_block_as_with_torch(level):
    torch.manual_seed(0)
    theirs = ResBlock(3)
    ours, x = compiled(copy.deepcopy(theirs)), torch.randn(16, 3, 4, 4)
    x[3, 1, 2, 2] = torch.nan
    for block in (ours, theirs):
        y = block(x)
        y.backward(torch.ones_like(y))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [3, 9])
def test_images_with_other_channels_are_refused_as_by_torch(channels):
    for grad in (True, False):
        with torch.set_grad_enabled(grad), pytest.raises(RuntimeError, match="channels"):
            compiled(Conv2d(6, 4, 3, padding=1))(torch.randn(16, channels, 4, 4))


def test_other_parameters_of_a_convolution_count():
    torch.manual_seed(0)
    theirs, x = Conv2d(6, 4, 3, padding=1), torch.randn(16, 6, 5, 5)
    for weight, bias in ((torch.randn(4, 6, 3, 1), torch.randn(4)), (torch.randn(4, 6, 5, 5), torch.randn(4)),
                         (torch.randn(4, 6, 3, 3), torch.arange(8.0)[::2])):
        theirs.weight, theirs.bias = nn.Parameter(weight), nn.Parameter(bias)
        torch.testing.assert_close(compiled(copy.deepcopy(theirs))(x), theirs(x))
    ours = compiled(copy.deepcopy(theirs))
    found = torch.func.grad(lambda p: torch.func.functional_call(ours, p, x).square().sum())(dict(ours.named_parameters()))
    theirs(x).square().sum().backward()
    torch.testing.assert_close(found["weight"], theirs.weight.grad)


@pytest.mark.parametrize("n", [1, 16, 27])
def test_a_frozen_block_predicts_as_with_torch_for_any_number_of_rows(level, n):
    torch.manual_seed(0)
    for out in (6, 4):
        block = ResBlock(6, out)
        block(torch.randn(32, 6, 5, 5))
        block.eval().requires_grad_(False)
        x = torch.randn(n, 6, 5, 5)
        with torch.inference_mode():
            expected = compiled(block, False)(x)
            torch.testing.assert_close(compiled(block)(x), expected)


def test_an_image_has_the_same_bits_whatever_the_others_are():
    torch.manual_seed(0)
    layer, x = compiled(Conv2d(5, 9, 3, padding=1)), torch.randn(40, 5, 6, 6)
    with torch.inference_mode():
        whole = layer(x)
        assert torch.equal(whole[7:9], layer(x[7:9])) and torch.equal(whole[:16], layer(x[:16]))


def test_what_does_not_fit_is_computed_by_torch():
    x = torch.randn(16, 4, 6, 6)
    small = torch.randn(4, 4, 3, 3)
    assert fits(x, small)
    assert not any(fits(one, small) for one in (
        x.double(), x[0], torch.randn(1, 4, 13, 12), x[:0], nn.Parameter(x), x.to("meta")))
    assert not fits(x, torch.randn(49, 4, 3, 3)) and not fits(x, small.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert not fits(x, small)
    for options in ({"stride": 2, "padding": 1}, {"padding": 0}, {"padding": 1, "groups": 2}, {"padding": 2, "dilation": 2},
                    {"padding": 1, "padding_mode": "circular"}):
        layer = Conv2d(4, 4, 3, **options)
        expected = layer(x)
        assert torch.equal(compiled(layer)(x), expected), options
    assert not torch.equal(laid(x), x) and torch.equal(laid(x).permute(3, 0, 1, 2), x)


@pytest.mark.parametrize("make", [lambda: Conv2d(3, 3, 3, padding=1), lambda: ResBlock(3), lambda: ResBlock(3, 4)])
def test_a_gradient_of_a_gradient_is_that_of_torch(make):
    torch.manual_seed(0)
    layer, data, second = make(), torch.randn(ROWS, 3, 4, 4), []
    for on in (True, False):
        compiled(layer, on).zero_grad()
        x = data.clone().requires_grad_()
        (g,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        g.square().sum().backward()
        second.append([x.grad, *(p.grad.clone() for p in layer.parameters())])
    for a, b in zip(*second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))


def test_images_become_rows_in_the_order_of_torch():
    x = torch.randn(16, 3, 4, 5)
    other = laid(x).permute(3, 0, 1, 2).requires_grad_()
    rows = flat(other)
    assert torch.equal(rows, x.flatten(1)) and torch.equal(Flatten()(x), x.flatten(1))
    g = torch.randn(16, 60)
    rows.backward(g)
    assert torch.equal(other.grad, g.view(16, 3, 4, 5))


# ------------------------------------------------------------------------------------------------------------- the world model

BOARDS = Box(0, 1, (5, 6, 6), np.uint8)


def net(**options):
    torch.manual_seed(0)
    return ThinkerNet(BOARDS, Discrete(5), channels=8, strides=(1, 1, 1, 1), zero_init=False, **options)


@pytest.mark.parametrize("options", [{}, {"sigmoid": True, "residual": True, "markov": True, "recurrent_norm": True}], ids=str)
@pytest.mark.parametrize("n", [32, 20])
def test_a_thinker_net_is_the_same_either_way(options, n):
    ours, theirs = compiled(net(**options)), net(**options)
    obs, acts = torch.randint(0, 2, (n, 2, 5, 6, 6), dtype=torch.uint8), torch.randint(0, 5, (n, 2))
    grads = []
    for one in (ours, theirs):
        out = one.train().unroll(obs, acts)
        (out.value.square().sum() + out.reward.square().sum() + out.logits.square().sum()).backward()
        grads.append([p.grad for p in one.parameters() if p.grad is not None])
        one.eval().requires_grad_(False)
    for a, b in zip(*grads, strict=True):
        assert (a - b).norm() <= 2e-3 * b.norm() + 1e-6
    with torch.inference_mode():
        (v, logits, state), (v2, logits2, state2) = (one.initial(obs[:, 0], acts[:, 0]) for one in (ours, theirs))
        close(v, v2.double()), close(logits, logits2.double())
        for a, b in zip(ours.recurrent(state, acts[:, 1])[:4], theirs.recurrent(state2, acts[:, 1])[:4], strict=True):
            close(a, b.double())
            assert len(a) == n


@pytest.mark.parametrize("channels, expected", [(8, 16), (64, 3)])
def test_rows_are_added_where_these_loops_compute(channels, expected):
    """Wide images are torch's: there an added row is work for nothing."""
    one, seen = compiled(ThinkerNet(BOARDS, Discrete(5), channels=channels, strides=(1, 1, 1, 1))).eval(), set()
    one.vp_heads.register_forward_hook(lambda module, given, out: seen.add(len(given[0])))
    with torch.inference_mode():
        obs, acts = torch.zeros(3, 5, 6, 6, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
        v, _, state = one.initial(obs, acts)
        r, *_ = one.recurrent(state, acts)
    assert seen == {expected} and len(v) == len(r) == 3


def test_a_task_decides_who_computes_and_copies_of_it_keep_to_that():
    for native in (True, False):
        task = ComputationTask(WorldModel(net()), native=native)
        task.publish()
        networks = [*task.algorithm.networks().values(), *task.acting.front.algorithm.networks().values()]
        assert {part.compiled for one in networks for part in one.modules() if hasattr(type(part), "compiled")} == {native}
