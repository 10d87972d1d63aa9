"""Convolutional perception for image observations, and the value and actor-critic models on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import torch
from torch import Tensor, nn

from parl_like.learning.layers import Brief, orthogonal_
from parl_like.learning.layers import activation as activation_named
from parl_like.models.flat_obs import FlatObs
from parl_like.models.heads import mask_names
from parl_like.models.mlp import MLP, MLPQ, RELU_GAIN, MLPActorCritic
from parl_like.values.spec import specs_of

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""(filters, kernel, stride) of each layer in Mnih et al. 2015, for 84 × 84 pixels."""
SMALL = ((16, 2, 1), (32, 2, 1), (64, 2, 1))
"""For images of a few cells, such as the 7 × 7 view of a grid world."""


class ConvTrunk(nn.Module, metaclass=Brief):
    """Image → [..., out_size] features: convolutions, then one linear layer, each followed by the activation.

    The image is the one array of the observation with three axes; other leaves of a Dict join before the linear layer, flat.
    Pixels of dtype uint8 are divided by their largest legal value, 255 as a rule.

    Args:
        obs: Observation space.
        convs: (filters, kernel, stride) of each convolution; None: `NATURE` from 36 pixels a side on, else `SMALL`.
        out_size: Number of features.
        layout: 'HWC' or 'CHW'; None: the shorter of the first and the last axis holds the channels, the last if they are equal.
        skip: Flat names of leaves that are no features (`obs.mask`).

    Raises:
        ValueError: no image or several, or one too small for the convolutions.
    """

    def __init__(
        self, obs: gym.Space[Any], convs: Sequence[tuple[int, int, int]] | None = None, out_size: int = 512,
        *, layout: Literal["HWC", "CHW"] | None = None, activation: str = "relu", orthogonal: bool = False,
        skip: Sequence[str] = (),
    ) -> None:
        super().__init__()
        specs = specs_of(obs, "obs")
        images = [name for name, spec in specs.items() if len(spec.shape) == 3]
        if len(images) != 1:
            shapes = {name: spec.shape for name, spec in specs.items()}
            raise ValueError("ConvTrunk: expected one array with three axes (height, width, channels) in the observation, got "
                             f"{shapes}")
        spec = specs[images[0]]
        if layout not in (None, "HWC", "CHW"):
            raise ValueError(f"ConvTrunk: layout is {layout!r}; expected 'HWC', 'CHW' or None")
        self.layout = layout or ("CHW" if spec.shape[0] < spec.shape[2] else "HWC")
        channels, height, width = spec.shape if self.layout == "CHW" else (spec.shape[2], *spec.shape[:2])
        self.path = images[0].split(".")[1:]
        self.scale = 1.0 / max(int(spec.high.max(initial=1)), 1) if spec.dtype.name == "uint8" else 1.0
        convs = convs or (NATURE if min(height, width) >= 36 else SMALL)
        self.convs = nn.ModuleList()
        for filters, kernel, stride in convs:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if min(height, width) < 1:
                raise ValueError(f"ConvTrunk: image {spec.shape} is too small for convs={tuple(convs)}; give smaller kernels or "
                                 "strides")
            self.convs.append(nn.Conv2d(channels, filters, kernel, stride))
            channels = filters
        skip = (*skip, images[0])
        self.rest = FlatObs(obs, skip) if any(name not in skip for name in specs) else None
        size = math.prod((channels, height, width)) + (0 if self.rest is None else self.rest.out_size)
        self.linear = MLP([size, out_size], activation, activate_last=True, orthogonal=orthogonal)
        self.activation, self.orthogonal, self.out_size = activation_named(activation), orthogonal, out_size
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New initial values of the convolutions; the linear layer has its own rule."""
        for conv in self.convs:
            assert isinstance(conv, nn.Conv2d)
            conv.reset_parameters()
            if self.orthogonal:
                orthogonal_(conv.weight, RELU_GAIN)
                assert conv.bias is not None
                nn.init.zeros_(conv.bias)

    def forward(self, obs: Any) -> Tensor:
        """obs: the image [..., H, W, C] or [..., C, H, W], or the mapping that holds it; leading axes [N] or [T, B]."""
        image: Any = obs
        for key in self.path:
            image = image[key]
        x: Tensor = image.reshape(-1, *image.shape[-3:])
        if self.layout == "HWC":
            x = x.permute(0, 3, 1, 2)  # a view; the convolution reads this order of memory as it is
        else:
            # One pass over the pixels, while they are bytes, makes the gradient of the first layer three times as fast.
            # (By axes, for torch.vmap knows no other formats.)
            x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        # In place: a third of the time of bytes times a number, half of the memory, and the same bits.
        x = x.float() if self.scale == 1.0 else x.to(torch.float32, copy=True).mul_(self.scale)
        for conv in self.convs:
            x = self.activation(conv(x))
        x = x.flatten(1)
        x = x.reshape(*image.shape[:-3], x.shape[1])
        if self.rest is not None:
            x = torch.cat([x, self.rest(obs)], -1)
        features: Tensor = self.linear(x)
        return features


class ConvQ(MLPQ):
    """`MLPQ` on a `ConvTrunk`: q(obs) -> [N, A]. With the defaults, the network of Mnih et al. 2015 on 84 × 84 × 4 pixels.

    Args:
        hidden: Sizes of layers between the trunk's features and the values.
        dueling, noisy, heads: As for `MLPQ`; noise is in the layers behind the trunk.
        features, convs, layout: `out_size`, `convs` and `layout` of the trunk.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, heads: int = 1,
        features: int = 512, convs: Sequence[tuple[int, int, int]] | None = None, layout: Literal["HWC", "CHW"] | None = None,
    ) -> None:
        trunk = ConvTrunk(obs, convs, features, layout=layout, activation=activation, skip=mask_names(obs, act))
        super().__init__(obs, act, hidden, activation=activation, dueling=dueling, noisy=noisy, heads=heads, trunk=trunk)


class ConvActorCritic(MLPActorCritic):
    """`MLPActorCritic` on a `ConvTrunk` that policy and value share; each has a linear head, after `hidden` layers of its own.

    Args:
        features, convs, layout: `out_size`, `convs` and `layout` of the trunk. auxiliary: As for `MLPActorCritic`.
    """

    keeps_values = True

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (), *, activation: str = "relu",
        orthogonal: bool = True,
        features: int = 512, convs: Sequence[tuple[int, int, int]] | None = None, layout: Literal["HWC", "CHW"] | None = None,
        auxiliary: bool = False,
    ) -> None:
        trunk = ConvTrunk(obs, convs, features, layout=layout, activation=activation, orthogonal=orthogonal,
                          skip=mask_names(obs, act))
        super().__init__(obs, act, hidden, activation=activation, orthogonal=orthogonal, trunk=trunk, auxiliary=auxiliary)
