"""Layers with learned noise in their weights, which explores in the place of random actions (Fortunato et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.layers import Brief


class NoisyLinear(nn.Module, metaclass=Brief):
    """y = (W + S ⊙ f(ε_out) f(ε_in)ᵀ) x + b + s ⊙ f(ε_out),   f(ε) = sign(ε) √|ε| of standard normal numbers:

    the factorised noise of the paper, with learned S and s, which begin at `std` / √in_size. W and b begin as those of torch's
    Linear. Noise lasts until `draw_noise` makes another; there is none before the first.

    Args:
        in_size, out_size: Numbers of a row of the input, and of the output.
        std: σ₀, above 0.

    Attributes:
        noise_in, noise_out: f(ε_in) [in_size] and f(ε_out) [out_size]: buffers, so they are saved and sent with the weights.
        noisy: Whether the noise counts, see `without_noise`.

    Raises:
        ValueError: std is not above 0.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, in_size: int, out_size: int, std: float = 0.5) -> None:
        super().__init__()
        if not std > 0.0:
            raise ValueError(f"NoisyLinear: std is {std}; expected a number above 0")
        self.std, self.noisy = std, True
        self.weight, self.weight_std = (nn.Parameter(torch.empty(out_size, in_size)) for _ in range(2))
        self.bias, self.bias_std = (nn.Parameter(torch.empty(out_size)) for _ in range(2))
        self.register_buffer("noise_in", torch.zeros(in_size))
        self.register_buffer("noise_out", torch.zeros(out_size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        bound = 1.0 / math.sqrt(len(self.noise_in))
        for mean in (self.weight, self.bias):
            mean.uniform_(-bound, bound)
        for std in (self.weight_std, self.bias_std):
            std.fill_(self.std * bound)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_size] → [..., out_size]."""
        if not self.noisy:
            return F.linear(x, self.weight, self.bias)
        noise = self.noise_out
        weight = torch.addcmul(self.weight, self.weight_std, torch.outer(noise, self.noise_in))  # cheaper than a second product
        return F.linear(x, weight, torch.addcmul(self.bias, self.bias_std, noise))


def noisy_layers(*networks: nn.Module) -> list[NoisyLinear]:
    """Return the noisy layers of all networks, each once."""
    return list({id(part): part for network in networks for part in network.modules() if isinstance(part, NoisyLinear)}.values())


@torch.no_grad()
def draw_noise(layers: Iterable[NoisyLinear], generator: torch.Generator) -> None:
    """New noise for each of the layers."""
    noises = [noise for layer in layers for noise in (layer.noise_in, layer.noise_out)]
    if noises:
        sizes = [len(noise) for noise in noises]
        drawn = torch.randn(sum(sizes), generator=generator, device=generator.device)
        torch._foreach_copy_(noises, list(torch.split(drawn.sign() * drawn.abs().sqrt(), sizes)))


@contextmanager
def without_noise(layers: Iterable[NoisyLinear]) -> Iterator[None]:
    """The layers use W and b alone, such as in tests."""
    try:
        for layer in layers:
            layer.noisy = False
        yield
    finally:
        for layer in layers:
            layer.noisy = True
