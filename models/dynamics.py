"""A trunk that several tasks share, and a model of what the environment does next on top of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.layers import Brief
from parl_like.model import Model
from parl_like.models.mlp import MLP, FlatObs


class Trunk(nn.Module, metaclass=Brief):
    """Observation of any space → features [..., out_size]: the flat observation through fully connected layers.

    Wrap it in `Shared` and give it as `trunk=` to the models of several tasks.

    Args:
        obs: The observation space.
        hidden: Sizes of the layers; the last one is `out_size`.
    """

    def __init__(self, obs: gym.Space[Any], hidden: Sequence[int] = (64,), activation: str = "relu") -> None:
        super().__init__()
        self.flat = FlatObs(obs)
        self.net = MLP([self.flat.out_size, *hidden], activation, activate_last=True)
        self.in_size, self.out_size = self.flat.out_size, hidden[-1]

    def forward(self, obs: Any) -> Tensor:
        features: Tensor = self.net(self.flat(obs))
        return features


class Dynamics(Model):
    """Two heads on a trunk z(s): the next observation from (z(s), a), and the action from (z(s), z(s')). Discrete or Box actions.

    Args:
        trunk: Offers `in_size`, `out_size` and `flat`, see `Trunk`.
        hidden: Sizes of the hidden layers of each head.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], trunk: Trunk, hidden: Sequence[int] = (64,)) -> None:
        super().__init__(obs, act)
        self.discrete = isinstance(act, gym.spaces.Discrete)
        if not self.discrete and not isinstance(act, gym.spaces.Box):
            raise TypeError(f"Dynamics: act is {act}; expected Discrete or Box")
        self.trunk, self.n = trunk, int(act.n) if isinstance(act, gym.spaces.Discrete) else math.prod(act.shape or ())
        self.forward_head = MLP([trunk.out_size + self.n, *hidden, trunk.in_size])
        self.inverse_head = MLP([2 * trunk.out_size, *hidden, self.n])

    def encode(self, act: Tensor) -> Tensor:
        """Actions [N] as one-hot numbers [N, A]; those of a Box side by side, [N, n]."""
        return F.one_hot(act, self.n).float() if self.discrete else act.reshape(len(act), -1).float()

    def next_obs(self, features: Tensor, act: Tensor) -> Tensor:
        """Features [N, F] and actions [N, …] → the flat next observation [N, in_size]."""
        out: Tensor = self.forward_head(torch.cat([features, self.encode(act)], 1))
        return out

    def between(self, features: Tensor, features_next: Tensor) -> Tensor:
        """Features of two successive observations → what the action between them was: logits [N, A], or the mean [N, n]."""
        out: Tensor = self.inverse_head(torch.cat([features, features_next], 1))
        return out

    def surprise(self, features: Tensor, features_next: Tensor, act: Tensor) -> Tensor:
        """Mean of −log p(a | z(s), z(s')); of a Box ½ ‖a − â‖², that of a normal distribution of width 1 but for a constant."""
        guess = self.between(features, features_next)
        if self.discrete:
            return F.cross_entropy(guess, act)
        return 0.5 * (guess - self.encode(act)).square().sum(1).mean()
