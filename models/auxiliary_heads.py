"""Heads of auxiliary tasks on a trunk that they share with a policy (`parl_like.algorithms.auxiliary_tasks`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.learning.model import Model
from parl_like.models.dynamics import Trunk, encoded, numbers_of
from parl_like.models.mlp import MLP


class RewardClasses(Model):
    """A head that says whether the next reward is below, at or above 0.

    Args:
        trunk: See `Trunk`. hidden: Sizes of the hidden layers of the head.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], trunk: Trunk, hidden: Sequence[int] = (64,)) -> None:
        super().__init__(obs, act)
        self.trunk = trunk
        self.head = MLP([trunk.out_size, *hidden, 3])

    def classes(self, features: Tensor) -> Tensor:
        """Return the logits [N, 3]."""
        out: Tensor = self.head(features)
        return out


class CellQ(Model):
    """Values of Discrete actions for each cell of an observation: of an image squares of pixels, else each number.

    Args:
        trunk: See `Trunk`. hidden: Sizes of the hidden layers of the head.
        cell: Pixels of a square's side.

    Raises:
        TypeError: `act` is not Discrete. ValueError: `cell` is below 1, or larger than an image.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], trunk: Trunk, hidden: Sequence[int] = (64,),
                 cell: int = 2) -> None:
        super().__init__(obs, act)
        if not isinstance(act, gym.spaces.Discrete):
            raise TypeError(f"CellQ: act is {act}; expected Discrete")
        shape = obs.shape or ()
        self.image = isinstance(obs, gym.spaces.Box) and len(shape) == 3
        self.channels_last = self.image and shape[2] == min(shape)
        if cell < 1 or self.image and cell > sorted(shape)[1]:
            raise ValueError(f"CellQ: cell is {cell}; expected at least 1 and no more pixels than an image of {shape} has")
        self.trunk, self.cell, self.n_actions = trunk, cell, int(act.n)
        height, width = (shape[:2] if self.channels_last else shape[1:]) if self.image else (0, 0)
        self.n_cells = (height // cell) * (width // cell) if self.image else trunk.in_size
        self.head = MLP([trunk.out_size, *hidden, self.n_actions * self.n_cells])

    def change(self, obs: Any, obs_next: Any) -> Tensor:
        """Return how much each cell changes [N, C], the mean over its pixels and channels (Jaderberg et al. 2017)."""
        if not self.image:
            numbers: Tensor = (self.trunk.flat(obs_next) - self.trunk.flat(obs)).abs()
            return numbers
        pixels = (obs_next.float() - obs.float()).abs() / (255.0 if obs.dtype == torch.uint8 else 1.0)
        pixels = pixels.movedim(-1, 1) if self.channels_last else pixels
        return F.avg_pool2d(pixels.mean(1, keepdim=True), self.cell).flatten(1)

    def q(self, features: Tensor) -> Tensor:
        """Return the values [N, A, C]."""
        out: Tensor = self.head(features)
        return out.reshape(len(features), self.n_actions, self.n_cells)


class FeatureModel(Model):
    """Features of a step later, by a model of them, a projection and a predictor. Discrete or Box actions.

    Args:
        trunk: See `Trunk`. hidden: Sizes of the hidden layers of the model of features.
        size: Numbers of a projection.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], trunk: Trunk, hidden: Sequence[int] = (64,),
                 size: int = 64) -> None:
        super().__init__(obs, act)
        self.n, self.discrete = numbers_of(self)
        self.trunk = trunk
        self.step = MLP([trunk.out_size + self.n, *hidden, trunk.out_size])
        self.project = MLP([trunk.out_size, size])
        self.predictor = MLP([size, size])

    def projected(self, features: Tensor) -> Tensor:
        """Return the projection [N, size]."""
        out: Tensor = self.project(features)
        return out

    def ahead(self, features: Tensor, act: Tensor) -> Tensor:
        """Return what the projection of the next features is expected to be, [N, size]."""
        features = self.step(torch.cat([features, encoded(act, self.n, self.discrete)], 1))
        out: Tensor = self.predictor(self.projected(features))
        return out
