"""Values of discrete actions with the distribution of returns behind them: `MLPQ` with more to say than its means.

Of quantiles at fixed fractions (QR-DQN) `MLPQ(heads=…)` itself is the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import torch
from torch import Tensor, nn

from parl_like.models.conv import ConvTrunk
from parl_like.models.heads import OrthogonalLinear, mask_names, masked
from parl_like.models.mlp import MLP, MLPQ

Convs = Sequence[tuple[int, int, int]] | None
Layout = Literal["HWC", "CHW"] | None


class MLPCategoricalQ(MLPQ):
    """`logits(obs) -> [N, A, atoms]` of the returns `support` [atoms], evenly spaced; q is their mean (Bellemare et al. 2017).

    Args:
        atoms: How many returns, at least 2.
        v_min, v_max: The first and the last of them. Returns beyond count as these, so give what the task's rewards allow.
            Values begin at their middle. Keep it near what an untrained policy earns: too high values come down slowly.
        The others: As for `MLPQ`.

    Raises:
        ValueError: atoms is below 2, or v_min is not below v_max.
    """

    support: Tensor

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, atoms: int = 51, v_min: float = -10.0, v_max: float = 10.0,
        trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act, hidden, activation=activation, dueling=dueling, noisy=noisy, heads=atoms, trunk=trunk)
        if atoms < 2 or not v_min < v_max:
            raise ValueError(f"{type(self).__name__}: atoms is {atoms}, v_min {v_min} and v_max {v_max}; expected at least 2 "
                             "atoms, and v_min < v_max")
        self.register_buffer("support", torch.linspace(v_min, v_max, atoms), persistent=False)

    def logits(self, obs: Any) -> Tensor:
        return self.values(obs)

    def mean(self, values: Tensor) -> Tensor:
        return torch.softmax(values, -1) @ self.support


class MLPImplicitQ(MLPQ):
    """`quantiles(obs, fractions [N, K]) -> [N, A, K]`, any of them, of features(s) ⊙ φ(τ),

    φ_j(τ) = relu(Σ_{i<cosines} cos(π i τ) w_ij + b_j) (Dabney, Ostrovski et al. 2018b, equation 4). Of several `hidden` layers
    the last one comes behind the product, as in the paper. q is the mean of `points` quantiles at (i + ½) / points.

    Args:
        cosines: Numbers that say what τ is.
        points: Quantiles that q is the mean of: K of the paper.
        The others: As for `MLPQ`.

    Raises:
        ValueError: cosines or points is below 1.
    """

    fractions: Tensor
    frequencies: Tensor

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, cosines: int = 16, points: int = 32, trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act, hidden, activation=activation, dueling=dueling, noisy=noisy, trunk=trunk)
        if cosines < 1 or points < 1:
            raise ValueError(f"{type(self).__name__}: cosines is {cosines} and points {points}; expected at least 1")
        size: Any = self.perception.out_size if self.body is None else self.body.out_size
        self.embedding = MLP([cosines, size], "relu", activate_last=True, noisy=noisy)
        self.register_buffer("frequencies", math.pi * torch.arange(cosines), persistent=False)
        self.register_buffer("fractions", (torch.arange(points) + 0.5) / points, persistent=False)

    def common(self, layers: int) -> int:
        return max(layers - 1, min(layers, 1))

    def quantiles_of(self, features: Tensor, fractions: Tensor) -> Tensor:
        """Features [N, size] and fractions, [N, K] or [K] for all → [N, A, K]."""
        embedded: Tensor = self.embedding(torch.cos(fractions.unsqueeze(-1) * self.frequencies))
        return self.values_of(features.unsqueeze(1) * embedded).squeeze(-1).transpose(1, 2)

    def quantiles(self, obs: Any, fractions: Tensor) -> Tensor:
        return self.quantiles_of(self.features(obs), fractions)

    def values(self, obs: Any) -> Tensor:
        """[N, A, points]."""
        return self.quantiles_of(self.features(obs), self.fractions)


class MLPFractionQ(MLPImplicitQ):
    """`MLPImplicitQ` that chooses the fractions itself (Yang et al. 2019): `edges(obs) -> [N, points + 1]`, from 0 to 1, in steps
    that are a softmax of the features; q is the sum of the quantiles at their middles, each times its step."""

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, cosines: int = 16, points: int = 32, trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act, hidden, activation=activation, dueling=dueling, noisy=noisy, cosines=cosines,
                         points=points, trunk=trunk)
        self.proposal = OrthogonalLinear(self.embedding.out_size, points, 0.01)

    def edges_of(self, features: Tensor) -> Tensor:
        """Features [N, size], which learn nothing from it → fractions [N, points + 1]."""
        inner = torch.softmax(self.proposal(features.detach()), -1).cumsum(-1)[:, :-1]
        return torch.cat([inner.new_zeros(inner.shape[0], 1), inner.clamp(max=1.0), inner.new_ones(inner.shape[0], 1)], -1)

    def edges(self, obs: Any) -> Tensor:
        return self.edges_of(self.features(obs))

    def q(self, obs: Any) -> Tensor:
        features = self.features(obs)
        edges = self.edges_of(features)
        quantiles = self.quantiles_of(features, (edges[:, 1:] + edges[:, :-1]) / 2)
        q = (quantiles * edges.diff().unsqueeze(1)).sum(-1)
        return q if self.mask is None else masked(q, obs[self.mask])


class ConvCategoricalQ(MLPCategoricalQ):
    """`MLPCategoricalQ` on a `ConvTrunk`; the arguments are those of it and of `ConvQ`."""

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, atoms: int = 51, v_min: float = -10.0, v_max: float = 10.0,
        features: int = 512, convs: Convs = None, layout: Layout = None,
    ) -> None:
        trunk = ConvTrunk(obs, convs, features, layout=layout, activation=activation, skip=mask_names(obs, act))
        super().__init__(obs, act, hidden, activation=activation, dueling=dueling, noisy=noisy, atoms=atoms, v_min=v_min,
                         v_max=v_max, trunk=trunk)


class ConvImplicitQ(MLPImplicitQ):
    """`MLPImplicitQ` on a `ConvTrunk`; the arguments are those of it and of `ConvQ`. The product is with the `features` of the
    trunk's linear layer; in the paper it is with what goes into that."""

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, cosines: int = 64, points: int = 32,
        features: int = 512, convs: Convs = None, layout: Layout = None,
    ) -> None:
        trunk = ConvTrunk(obs, convs, features, layout=layout, activation=activation, skip=mask_names(obs, act))
        super().__init__(obs, act, hidden, activation=activation, dueling=dueling, noisy=noisy, cosines=cosines,
                         points=points, trunk=trunk)


class ConvFractionQ(MLPFractionQ):
    """`MLPFractionQ` on a `ConvTrunk`, as `ConvImplicitQ` is; the arguments are those of it and of `ConvQ`."""

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, cosines: int = 64, points: int = 32,
        features: int = 512, convs: Convs = None, layout: Layout = None,
    ) -> None:
        trunk = ConvTrunk(obs, convs, features, layout=layout, activation=activation, skip=mask_names(obs, act))
        super().__init__(obs, act, hidden, activation=activation, dueling=dueling, noisy=noisy, cosines=cosines,
                         points=points, trunk=trunk)
