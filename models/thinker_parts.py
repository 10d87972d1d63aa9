"""The parts of a ThinkerNet: encoder, decoder, recurrence and heads, for images and for vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.models import small_images
from parl_like.models._conv import Seen
from parl_like.models.small_images import Conv2d, Flatten


class ResBlock(nn.Module):
    """relu(skip(x) + conv(relu(conv(x)))), 3 × 3, each convolution followed by batch normalisation if `norm`; [N, c, H, W] → [N,
    out, H, W].

    In a frozen copy that only predicts (eval mode, no parameter wants a gradient) normalisation is part of the convolutions, to
    rounding: w γ/σ and β − μ γ/σ, computed anew when something was written into them.
    """

    has_modes = True
    compiled = False

    def __init__(self, channels: int, out: int | None = None, norm: bool = True) -> None:
        super().__init__()
        out = out or channels
        self.norm = norm
        self._seen: dict[bool, tuple[Seen, bool]] = {}
        self._folded: tuple[list[Tensor], list[int], list[Tensor]] | None = None  # tensors, their versions, what they make
        norms = [nn.BatchNorm2d(channels), nn.BatchNorm2d(out)] if norm else [nn.Identity(), nn.Identity()]
        self.body = nn.Sequential(
            Conv2d(channels, channels, 3, padding=1, bias=False), norms[0], nn.ReLU(inplace=True),
            Conv2d(channels, out, 3, padding=1, bias=False), norms[1],
        )  # fmt: skip
        self.skip = nn.Identity() if out == channels else Conv2d(channels, out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        layers: Any = self.body
        plain = self.norm and self._is_plain()
        if self.training or not plain or layers[0].weight.requires_grad:
            if self._folded is not None:
                self._folded = None  # the statistics that learning moves have no version
            if (self.compiled and self.training and plain and len(x) % small_images.ROWS == 0
                    and small_images.block_fits(x, self.body, self.skip)):
                return small_images.block(x, self.body, getattr(self.skip, "weight", None))
            return F.relu(self.skip(x) + self.body(x))
        folded = self._folded
        if folded is None or [tensor._version for tensor in folded[0]] != folded[1]:
            folded = self._folded = self._fold()
        first, first_bias, second, second_bias = folded[2]
        if (self.compiled and not torch.is_grad_enabled() and small_images.fits(x, first, second)
                and small_images.skip_fits(x, self.skip, len(second))):
            return small_images.frozen_block(x, folded[2], getattr(self.skip, "weight", None))
        y = F.conv2d(x, first, first_bias, padding=1).relu_()
        return F.conv2d(y, second, second_bias, padding=1).add_(self.skip(x)).relu_()

    def _is_plain(self) -> bool:
        """Return whether the parts are those of any such block, as `is_plain_block` has it; asked again when one was changed."""
        seen = self._seen.get(self.training)
        if seen is None or not seen[0].same():
            dicts = [self._modules]
            for part in (*self.body.modules(), *self.skip.modules()):
                own = vars(part)
                dicts += [own, *(value for value in own.values() if isinstance(value, dict))]
            plain = small_images.is_plain_block(self.body, self.skip, self.training)
            seen = self._seen[self.training] = Seen(dicts, [*self.body.modules(), *self.skip.modules()]), plain
        return seen[1]

    def _fold(self) -> tuple[list[Tensor], list[int], list[Tensor]]:
        tensors = [*self.body.parameters(), *self.body.buffers()]
        versions = [tensor._version for tensor in tensors]  # before they are read: what is written meanwhile counts as new
        made: list[Tensor] = []
        with torch.inference_mode(False), torch.no_grad():
            layers: Any = self.body
            for conv, norm in ((layers[0], layers[1]), (layers[3], layers[4])):
                scale = norm.weight / (norm.running_var + norm.eps).sqrt()
                weight = conv.weight * scale.view(-1, 1, 1, 1)
                made += [weight.contiguous() if self.compiled else weight, norm.bias - norm.running_mean * scale]
        return tensors, versions, made

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._folded = None  # to another device or format: the tensors are others
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folded": None, "_seen": {}}


class ResMLP(nn.Module):
    """x + linear(relu(linear(norm(x)))); [N, size] → [N, size]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size), nn.ReLU(inplace=True), nn.Linear(size, size))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.body(x)
        return y


class WithAction(nn.Module):
    """A network on features and one-hot action [N, A], which is tiled over height and width and joins the channels."""

    compiled = False

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        y: Tensor
        if self.compiled and small_images.fits(x):
            y = self.net(small_images.with_action(x, action))
            return y
        action = action.view(*action.shape, *(1,) * (x.ndim - 2)).expand(-1, -1, *x.shape[2:])
        y = self.net(channels_last(torch.cat([x, action], 1)))
        return y


class Encoder(nn.Module):
    """Image and action → features, in four stages that each shrink it by its stride (published: 2, 2, 2, 2).

    conv → c, n blocks; conv → 2c, n blocks; average pooling, n blocks; average pooling. An image that SR leaves half decoded
    enters at the later stage `start` of that size.
    """

    def __init__(self, inputs: int, channels: int, blocks: int, strides: Sequence[int]) -> None:
        super().__init__()
        c1, c2 = channels, 2 * channels

        def pool(stride: int) -> nn.Module:
            return nn.AvgPool2d(3, 2, 1) if stride == 2 else nn.Identity()

        self.first = WithAction(Conv2d(inputs, c1, 3, strides[0], 1))
        self.rest = nn.ModuleList([
            nn.Sequential(nn.ReLU(), *(ResBlock(c1) for _ in range(blocks)), Conv2d(c1, c2, 3, strides[1], 1)),
            nn.Sequential(nn.ReLU(), *(ResBlock(c2) for _ in range(blocks)), pool(strides[2])),
            nn.Sequential(*(ResBlock(c2) for _ in range(blocks)), pool(strides[3])),
        ])  # fmt: skip

    def forward(self, x: Tensor, action: Tensor, start: int = 0) -> Tensor:
        if start == 0:
            x = self.first(x, action)
        for stage in self.rest[max(start - 1, 0) :]:
            x = stage(x)
        return x


class Decoder(nn.Module):
    """Hidden state → image, the encoder's stages backwards; stops `depth` stages early. No activation at the end.

    Args:
        sizes: (height, width) of the image and after each stage of the encoder; what a transposed convolution makes too large is
            cropped.
    """

    def __init__(self, outputs: int, channels: int, blocks: int, strides: Sequence[int], sizes: Sequence[tuple[int, int]],
                 depth: int) -> None:
        super().__init__()
        c1, c2 = channels, 2 * channels
        self.sizes = list(reversed(sizes[depth:4]))
        self.first = nn.Sequential(*(ResBlock(c2) for _ in range(blocks)))
        stages = []
        for residual, out, stride in ((0, c2, strides[3]), (c2, c2, strides[2]), (0, c1, strides[1]),
                                      (c1, outputs, strides[0]))[: 4 - depth]:
            into = residual or c2
            up = nn.ConvTranspose2d(into, out, 4, 2, 1) if stride == 2 else Conv2d(into, out, 3, 1, 1)
            stages.append(nn.Sequential(*(ResBlock(residual) for _ in range(blocks if residual else 0)), nn.ReLU(), up))
        self.stages = nn.ModuleList(stages)

    def forward(self, h: Tensor) -> Tensor:
        h = self.first(h)
        for stage, (height, width) in zip(self.stages, self.sizes, strict=True):
            h = stage(h)[..., :height, :width]
        return h


class Heads(nn.Module):
    """Hidden state → {name: [N, size]} through a small trunk and one linear layer each.

    Args:
        zero: Names whose weights start at zero, so that the first predictions are 0 and uniform. zero_bias: the same for biases.
    """

    def __init__(self, trunk: nn.Module, features: int, sizes: Mapping[str, int], zero: Sequence[str],
                 zero_bias: Sequence[str]) -> None:
        super().__init__()
        self.trunk = trunk
        self.linear = nn.ModuleDict({name: nn.Linear(features, size) for name, size in sizes.items()})
        self.zero, self.zero_bias = tuple(zero), tuple(zero_bias)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for name, linear in self.linear.items():
            assert isinstance(linear, nn.Linear)
            linear.reset_parameters()
            if name in self.zero:
                linear.weight.zero_()
            if name in self.zero_bias:
                linear.bias.zero_()

    def forward(self, h: Tensor) -> dict[str, Tensor]:
        features = self.trunk(h)
        return {name: linear(features).float() for name, linear in self.linear.items()}


class ImageParts:
    """The parts of one net for images [inputs, height, width].

    Attributes:
        size: Channels of the hidden state. shape: Its shape without rows, (size, height, width).
        sizes: (height, width) of the image and after each stage of the encoder.
    """

    def __init__(self, shape: tuple[int, ...], n_actions: int, channels: int, blocks: int, strides: Sequence[int],
                 norm: bool) -> None:
        self.inputs, self.n, self.channels, self.blocks = shape[0], n_actions, channels, blocks
        self.strides, self.norm = tuple(strides), norm
        height, width = shape[1:]
        self.sizes = [(height, width)]
        for stride in strides:
            height, width = -(-height // stride), -(-width // stride)
            self.sizes.append((height, width))
        self.size = 2 * channels
        self.shape = (self.size, height, width)

    def encoder(self) -> nn.Module:
        return Encoder(self.inputs + self.n, self.channels, self.blocks, self.strides)

    def decoder(self, outputs: int, depth: int) -> nn.Module:
        return Decoder(outputs, self.channels, self.blocks, self.strides, self.sizes, depth)

    def recurrence(self, features: int) -> nn.Module:
        rest = (ResBlock(self.size, norm=self.norm) for _ in range(4 * self.blocks))
        return WithAction(ResBlock(features + self.n, self.size, self.norm), *rest)

    def bridge(self) -> nn.Module:
        """Between hidden state and feature of a single net."""
        return nn.Sequential(ResBlock(self.size), Conv2d(self.size, self.size, 3, padding=1, bias=False))

    def shortcut(self, features: int) -> nn.Module:
        return WithAction(ResBlock(features + self.n, self.size, norm=False))

    def trunk(self) -> tuple[nn.Module, int]:
        # as published for 128 channels; a few units could all be dead from the start
        c1, c2 = max(self.size // 2, 16), max(self.size // 4, 16)
        convs = (Conv2d(self.size, c1, 3, padding=1), nn.ReLU(inplace=True), Conv2d(c1, c2, 3, padding=1),
                 nn.ReLU(inplace=True))
        return nn.Sequential(*convs, Flatten()), c2 * math.prod(self.shape[1:])


class VectorParts:
    """The same for vectors [inputs]; linear layers and layer normalisation."""

    def __init__(self, shape: tuple[int, ...], n_actions: int, channels: int, blocks: int) -> None:
        self.inputs, self.n, self.blocks = shape[0], n_actions, blocks
        self.size = 4 * channels
        self.shape = (self.size,)

    def encoder(self) -> nn.Module:
        return self.recurrence(self.inputs)

    def decoder(self, outputs: int, depth: int) -> nn.Module:
        return nn.Sequential(*self._blocks(), nn.Linear(self.size, outputs))

    def recurrence(self, features: int) -> nn.Module:
        return WithAction(nn.Linear(features + self.n, self.size), nn.LayerNorm(self.size), nn.Tanh(), *self._blocks())

    def _blocks(self) -> Iterator[ResMLP]:
        return (ResMLP(self.size) for _ in range(2 * self.blocks))

    def bridge(self) -> nn.Module:
        return nn.Sequential(ResMLP(self.size), nn.Linear(self.size, self.size, bias=False))

    def shortcut(self, features: int) -> nn.Module:
        return WithAction(nn.Linear(features + self.n, self.size), nn.ReLU(inplace=True), nn.Linear(self.size, self.size))

    def trunk(self) -> tuple[nn.Module, int]:
        return nn.Sequential(nn.Linear(self.size, self.size // 2), nn.ReLU(inplace=True)), self.size // 2


def channels_last(x: Tensor) -> Tensor:
    """Images as a CPU convolves them fastest; what follows stays so, whatever the format of its weights."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 and x.device.type == "cpu" else x


def half_gradient(x: Tensor) -> Tensor:
    """x, exactly; its gradient times ½."""
    return 0.5 * x + 0.5 * x.detach()
