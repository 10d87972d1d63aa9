"""A trunk for several tasks, and the model of an auxiliary task on it: what the environment does next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.model import Model
from parl_like.models.mlp import MLP, FlatObs


class Trunk(nn.Module):
    """Observation of any space → [..., out_size] features in (−1, 1): the flat observation through tanh layers.

    Args:
        obs: The observation space.
        hidden: Sizes of the layers; the last one is `out_size`.
        choices: The observation is a uint8 image of numbers below `choices`, not of intensities: one-hot.
    """

    def __init__(self, obs: gym.Space[Any], hidden: Sequence[int] = (64,), choices: int = 0, activation: str = "relu") -> None:
        super().__init__()
        self.choices = choices
        self.flat = FlatObs(obs)
        size = self.flat.out_size * (choices or 1)
        self.net = MLP([size, *hidden], activation, activate_last=True)
        self.in_size, self.out_size = size, hidden[-1]

    def rows(self, obs: Any) -> Tensor:
        """The observation as numbers [..., in_size]."""
        if self.choices:
            return F.one_hot(obs.long().clamp_max(self.choices - 1), self.choices).flatten(1).float()
        x: Tensor = self.flat(obs)
        return x

    def forward(self, obs: Any) -> Tensor:
        x: Tensor = self.net(self.rows(obs))
        return x


class Dynamics(Model):
    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], trunk: Any, hidden: Sequence[int] = (64,)) -> None:
        super().__init__(obs, act)
        self.trunk = trunk
        self.n = int(act.n)
        z = trunk.out_size
        self.forward_net = MLP([z + self.n, *hidden, trunk.in_size])
        self.reward_net = MLP([z + self.n, *hidden, 1])
        self.inverse_net = MLP([2 * z, *hidden, self.n])

    def joined(self, z: Tensor, act: Tensor) -> Tensor:
        return torch.cat([z, F.one_hot(act, self.n).float()], -1)

    def next_obs(self, z, act, obs_next):
        """−log p(s' | s, a) [N]"""
        out = self.forward_net(self.joined(z, act))
        target = self.trunk.rows(obs_next)
        if isinstance(self.obs_space, gym.spaces.Discrete):
            return -(torch.log_softmax(out, -1) * target).sum(-1)
        if self.trunk.choices:
            k = self.trunk.choices
            return -(torch.log_softmax(out.unflatten(-1, (-1, k)), -1) * target.unflatten(-1, (-1, k))).sum((-1, -2))
        return (out - target).square().sum(-1)

    def reward(self, z, act):
        return self.reward_net(self.joined(z, act)).squeeze(-1)

    def inverse(self, z, z_next):
        return self.inverse_net(torch.cat([z, z_next], -1))
