"""A trunk that several tasks share, and a model of what the environment does next on top of it."""

from __future__ import annotations

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
    """Two heads on a trunk z(s), for Discrete actions: the next observation from (z(s), a), and the action from (z(s), z(s')).

    Args:
        trunk: Offers `in_size`, `out_size` and `flat`, see `Trunk`.
        hidden: Sizes of the hidden layers of each head.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.spaces.Discrete, trunk: Trunk, hidden: Sequence[int] = (64,)) -> None:
        super().__init__(obs, act)
        self.trunk, self.n = trunk, int(act.n)
        self.forward_head = MLP([trunk.out_size + self.n, *hidden, trunk.in_size])
        self.inverse_head = MLP([2 * trunk.out_size, *hidden, self.n])

    def next_obs(self, features: Tensor, act: Tensor) -> Tensor:
        """Features [N, F] and actions [N] → the flat next observation [N, in_size]."""
        out: Tensor = self.forward_head(torch.cat([features, F.one_hot(act, self.n).float()], 1))
        return out

    def action_logits(self, features: Tensor, features_next: Tensor) -> Tensor:
        """Features of two successive observations → logits [N, A] of the action between them."""
        out: Tensor = self.inverse_head(torch.cat([features, features_next], 1))
        return out
