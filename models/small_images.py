"""Convolutions of small images, in compiled loops instead of torch's.

Torch's convolutions of boards of 6 × 6 with 8 to 32 channels take up to seven times as long as their arithmetic. Here images lie
with their rows innermost, [C][H][W][N], so that a vector of the processor holds one pixel of 16 images: neither channels nor
pixels need padding. To torch such a tensor is [N, C, H, W] like any other, and what it computes number by number keeps the order.

A module with `compiled` (`parl_like.learning.native.choose` sets it, as a task wants it) takes this way where `fits` says so:
float32 on the CPU, at most `CHANNELS` and `PIXELS`, kernels of 3 × 3 or 1 × 1 that keep the size. Values and gradients are
torch's, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.native import watched
from parl_like.models import _conv

CHANNELS, PIXELS, ROWS = 48, 144, 16
"""The most channels and pixels of an image for which this way is the faster one; images come in multiples of `ROWS`."""


def fits(x: Tensor, *weights: Tensor) -> bool:
    """Return whether images [N, C, H, W] can be convolved here with each of these weights [out, C, k, k], k 1 or 3."""
    if type(x) is not Tensor or not _readable(x) or watched():
        return False
    shape = x.shape
    if len(shape) != 4 or not 0 < shape[2] * shape[3] <= PIXELS or not shape[0]:
        return False
    for w in weights:
        kernel = w.shape
        if (len(kernel) != 4 or kernel[1] != shape[1] or kernel[0] > CHANNELS or kernel[1] > CHANNELS or kernel[2] != kernel[3]
                or kernel[2] not in (1, 3) or not _readable(w)):
            return False
    return True


def _readable(tensor: Tensor) -> bool:
    return (tensor.dtype is torch.float32 and tensor.is_cpu and type(tensor) in (Tensor, nn.Parameter)
            and not torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _is_vector(tensor: Tensor | None, n: int) -> bool:
    """Return whether this is a vector of n numbers in order."""
    return tensor is not None and tensor.shape == (n,) and tensor.is_contiguous() and _readable(tensor)


def laid(x: Tensor) -> Tensor:
    """Return images [N, C, H, W] as [C, H, W, N] in order; without a copy where they lie so."""
    if x.is_contiguous():  # torch turns matrices in blocks
        return x.flatten(1).t().contiguous().view(*x.shape[1:], len(x))
    return x.permute(1, 2, 3, 0).contiguous()


class _Flat(torch.autograd.Function):
    """[C, H, W, N] → [N, C H W], whose gradient is turned back at once: what comes before it would go through it in steps of C H
    W numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.flatten(0, 2).t().contiguous()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.t().contiguous().view(ctx.shape)


def flat(x: Tensor) -> Tensor:
    """Return images [N, C, H, W] as rows [N, C H W]."""
    rows = x.permute(1, 2, 3, 0)
    if rows.is_contiguous() and not x.is_contiguous():
        return _Flat.apply(rows)  # type: ignore[no-any-return, no-untyped-call]
    return x.flatten(1)


class Flatten(nn.Module):
    """`flat` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return flat(x)


def filled(x: Tensor) -> Tensor:
    """Return rows and as many of zeros as make their number a multiple of `ROWS`."""
    rest = -len(x) % ROWS
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, rest)) if rest else x


def small(shape: Sequence[int]) -> bool:
    """Return whether images of this shape [C, H, W] can be convolved here."""
    return len(shape) == 3 and shape[0] <= CHANNELS and shape[1] * shape[2] <= PIXELS


def rows_for(module: nn.Module, shapes: Iterable[Sequence[int]], *rows: Tensor) -> list[Tensor]:
    """Return rows for a prediction of a module with `compiled`, whose layers make images of these shapes [C, H, W]: `filled`
    where `compiled` is set and one of them is `small`, once for all layers."""
    pays = module.compiled and not module.training and any(map(small, shapes))
    return [filled(one) for one in rows] if pays else list(rows)


def convolve(x: Tensor, w: Tensor, bias: Tensor | None = None, add: Tensor | None = None, relu: bool = False) -> Tensor:
    """Return [relu](x ∗ w [+ bias] [+ add]) without a gradient; x, add and what is returned are [C, H, W, N], N a multiple of
    `ROWS`."""
    shape = (w.shape[1], w.shape[0], *x.shape[1:], w.shape[2])
    out = x.new_empty(w.shape[0], *x.shape[1:])
    w = w.contiguous()
    _conv.convolve(shape, x.data_ptr(), w.data_ptr(), 0 if bias is None else bias.data_ptr(),
                   0 if add is None else add.data_ptr(), relu, out.data_ptr())
    return out


def _turned(w: Tensor) -> Tensor:
    return w.transpose(0, 1).flip(2, 3)


def _weight_gradient(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    out = x.new_empty(w.shape)
    _conv.weight_gradient((len(x), len(g), *x.shape[1:], w.shape[2]), x.data_ptr(), g.data_ptr(),
                          out.data_ptr())
    return out


def _relu_gradient(g: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(g)
    _conv.relu_gradient(g.data_ptr(), y.data_ptr(), g.numel(), out.data_ptr())
    return out


def _torch_convolution(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(x.permute(3, 0, 1, 2), w, bias, padding=w.shape[2] // 2).permute(1, 2, 3, 0)


def _torch_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor | None], g: Tensor) -> list[Tensor | None]:
    """Return gradients of which there will be gradients again: these torch has to compute."""
    wanted = [one for one in inputs if one is not None and one.requires_grad]
    found = iter(torch.autograd.grad(function(*inputs), wanted, g, create_graph=True))
    return [next(found) if one is not None and one.requires_grad else None for one in inputs]


class _Convolution(torch.autograd.Function):
    """x ∗ w [+ bias] of [C, H, W, N]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w, bias)
        return convolve(x, w, bias)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w, _ = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(_torch_gradients(_torch_convolution, ctx.saved_tensors, g))
        g = g.contiguous()
        wants_x, wants_w, wants_bias = ctx.needs_input_grad
        bias = g.new_empty(len(g)) if wants_bias else None
        if bias is not None:
            _conv.channel_sums(g.data_ptr(), len(g), g[0].numel(), bias.data_ptr())
        return convolve(g, _turned(w)) if wants_x else None, _weight_gradient(x, g, w) if wants_w else None, bias


def convolution(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Return x ∗ w [+ bias], with a gradient where torch keeps one; [N, C, H, W] of any N, in the order of this module."""
    n = len(x)
    out: Tensor
    if torch.is_grad_enabled():
        out = _Convolution.apply(laid(filled(x)), w, bias)  # type: ignore[no-untyped-call]
    else:
        out = convolve(laid(filled(x)), w, bias)
    out = out.permute(3, 0, 1, 2)
    return out if len(out) == n else out[:n]


class Conv2d(nn.Conv2d):
    """A convolution of torch that may go this way."""

    compiled = False

    def forward(self, input: Tensor) -> Tensor:
        if self.compiled and fits(input, self.weight) and self.keeps_size() and (
                self.bias is None or _is_vector(self.bias, len(self.weight))) and (
                len(input) % ROWS == 0 or not torch.is_grad_enabled()):  # a backward pass through added rows would not pay
            return convolution(input, self.weight, self.bias)
        return super().forward(input)

    def keeps_size(self) -> bool:
        """Return whether it is a plain one of 3 × 3 or 1 × 1, whose images have the size of the input."""
        plain = (self.kernel_size, self.padding) in (((3, 3), (1, 1)), ((1, 1), (0, 0)))
        return (plain and self.stride == (1, 1) and self.dilation == (1, 1) and self.groups == 1
                and self.padding_mode == "zeros")


def is_plain_block(body: nn.Module, skip: nn.Module, training: bool) -> bool:
    """Return whether `block` (training) or `frozen_block` is what these parts of a residual block do now: each is what it was
    made as, all norms are in this mode, and nothing has hooks."""
    layers: Any = tuple(body._modules.values())
    if tuple(map(type, layers)) != (Conv2d, nn.BatchNorm2d, nn.ReLU, Conv2d, nn.BatchNorm2d) or type(body) is not nn.Sequential:
        return False
    if type(skip) is not nn.Identity and not (
            type(skip) is Conv2d and skip.bias is None and skip.kernel_size == (1, 1) and skip.keeps_size()):
        return False
    for one in (body, skip, *layers):
        own = one.__dict__
        if (own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
                or "forward" in own):
            return False
    for conv, norm in ((layers[0], layers[1]), (layers[3], layers[4])):
        if conv.bias is not None or conv.kernel_size != (3, 3) or not conv.keeps_size() or norm.training is not training:
            return False
        if norm.weight is None or norm.running_mean is None or norm.num_batches_tracked is None or norm.momentum is None:
            return False
    return True


def block_fits(x: Tensor, body: nn.Sequential, skip: nn.Module) -> bool:
    """Return whether images can go through a residual block that `is_plain_block`."""
    layers: Any = tuple(body._modules.values())
    first, second = layers[0].weight, layers[3].weight
    if not fits(x, first, second) or len(first) != x.shape[1] or not skip_fits(x, skip, len(second)):
        return False
    return all(_is_vector(one, n) for norm, n in ((layers[1], len(first)), (layers[4], len(second)))
               for one in (norm.weight, norm.bias, norm.running_mean, norm.running_var))


def skip_fits(x: Tensor, skip: nn.Module, out: int) -> bool:
    """Return whether images can go by, to so many channels."""
    weight: Any = skip._parameters.get("weight")
    return out == x.shape[1] if weight is None else fits(x, weight) and weight.shape[0] == out and weight.shape[2] == 1


class _Normalised:
    """Batch normalisation of [C, H, W, N] in one pass: the result, and the statistics of each channel."""

    def __init__(self, norm: nn.BatchNorm2d, z: Tensor, add: Tensor | None) -> None:
        self.mean, variance, self.slope = z.new_empty(3, len(z))
        self.y, self.numbers = torch.empty_like(z), z[0].numel()
        _conv.normalise(z.data_ptr(), len(z), self.numbers, norm.eps, norm.weight.data_ptr(), norm.bias.data_ptr(),
                        0 if add is None else add.data_ptr(), True, self.mean.data_ptr(), variance.data_ptr(),
                        self.slope.data_ptr(), self.y.data_ptr())
        assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
        assert norm.momentum is not None
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(self.mean, norm.momentum)
        norm.running_var.lerp_(variance.mul_(self.numbers / max(self.numbers - 1, 1)), norm.momentum)


def _torch_block(eps: Sequence[float], x: Tensor, *parameters: Any) -> Tensor:
    (w1, scale1, shift1, w2, scale2, shift2, w3), y = parameters, x
    for w, scale, shift, small in ((w1, scale1, shift1, eps[0]), (w2, scale2, shift2, eps[1])):
        z = _torch_convolution(y.relu() if w is w2 else y, w, None).permute(3, 0, 1, 2)
        y = F.batch_norm(z, None, None, scale, shift, True, 0.0, small).permute(1, 2, 3, 0)
    return F.relu(y + (x if w3 is None else _torch_convolution(x, w3, None)))


class _Block(torch.autograd.Function):
    """relu(skip(x) + norm(conv(relu(norm(conv(x)))))) of [C, H, W, N]; parameters: weights, scale and shift of both, and the
    weights of the skip's 1 × 1 convolution, or None."""

    @staticmethod
    def forward(ctx: Any, norms: tuple[nn.BatchNorm2d, nn.BatchNorm2d], x: Tensor, *parameters: Any) -> Tensor:
        w1, scale1, shift1, w2, scale2, shift2, w3 = parameters
        z1 = convolve(x, w1)
        first = _Normalised(norms[0], z1, None)
        z2 = convolve(first.y, w2)
        second = _Normalised(norms[1], z2, x if w3 is None else convolve(x, w3))
        ctx.save_for_backward(x, w1, scale1, shift1, w2, scale2, shift2, w3, z1, first.y, first.mean, first.slope, z2, second.y,
                              second.mean, second.slope)
        ctx.eps = [norm.eps for norm in norms]
        return second.y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, w1, scale1, shift1, w2, scale2, shift2, w3, z1, y1, mean1, slope1, z2, y2, mean2, slope2 = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = (x, w1, scale1, shift1, w2, scale2, shift2, w3)
            return None, *_torch_gradients(partial(_torch_block, ctx.eps), inputs, g)
        past = _relu_gradient(g.contiguous(), y2)  # of what goes by, and of the second norm
        d2 = past.clone()
        norm2 = _norm_gradient(d2, z2, None, scale2, mean2, slope2)
        d1 = convolve(d2, _turned(w2))
        norm1 = _norm_gradient(d1, z1, y1, scale1, mean1, slope1)
        dx = None
        if ctx.needs_input_grad[1]:
            dx = convolve(d1, _turned(w1), add=past if w3 is None else convolve(past, _turned(w3)))
        return (None, dx, _weight_gradient(x, d1, w1), *norm1, _weight_gradient(y1, d2, w2), *norm2,
                None if w3 is None else _weight_gradient(x, past, w3))


def _norm_gradient(g: Tensor, z: Tensor, after: Tensor | None, scale: Tensor, mean: Tensor, slope: Tensor) -> Tensor:
    """Make g the gradient of z, and return those of scale and shift, [2, C]."""
    out = g.new_empty(2, len(g))
    _conv.normalise_gradient(g.data_ptr(), z.data_ptr(), 0 if after is None else after.data_ptr(), len(g), g[0].numel(),
                             scale.data_ptr(), mean.data_ptr(), slope.data_ptr(), out[0].data_ptr(), out[1].data_ptr())
    return out


def block(x: Tensor, body: nn.Sequential, skip: Tensor | None) -> Tensor:
    """Return relu(skip(x) + body(x)) of a residual block that learns; x [N, C, H, W], N a multiple of `ROWS`; `body`: 3 × 3
    convolution, batch normalisation, relu and the first two again; `skip`: weights of a 1 × 1 convolution."""
    layers: Any = body
    conv1, norm1, _, conv2, norm2 = layers
    out: Tensor = _Block.apply((norm1, norm2), laid(x), conv1.weight, norm1.weight, norm1.bias,  # type: ignore[no-untyped-call]
                               conv2.weight, norm2.weight, norm2.bias, skip)
    return out.permute(3, 0, 1, 2)


def frozen_block(x: Tensor, folded: Sequence[Tensor], skip: Tensor | None) -> Tensor:
    """Return relu(skip(x) + conv(relu(conv(x)))) without a gradient, for any N; `folded`: weights and biases of both."""
    first, first_bias, second, second_bias = folded
    rows = laid(filled(x))
    y = convolve(rows, first, first_bias, relu=True)
    out = convolve(y, second, second_bias, rows if skip is None else convolve(rows, skip), relu=True).permute(3, 0, 1, 2)
    return out if len(out) == len(x) else out[: len(x)]


def with_action(x: Tensor, action: Tensor) -> Tensor:
    """Return images with [N, A] numbers as planes behind their channels, in the order of this module."""
    n, shape = len(x), x.shape[2:]
    planes = action.to(x.dtype).t().reshape(-1, 1, 1, n).expand(-1, *shape, n)
    return torch.cat([laid(x), planes], 0).permute(3, 0, 1, 2)
