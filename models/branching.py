"""Values of the alternatives of several choices at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from parl_like.learning.action_spaces import NESTED_CHOICES, kind_of, nvec_of, taken_by
from parl_like.learning.model import Model
from parl_like.models.flat_obs import perception
from parl_like.models.heads import inside, mask_key, masked
from parl_like.models.mlp import MLP, EnsembleMLP
from parl_like.values.spec import leaf_spaces


class MLPBranchingQ(Model):
    """q(obs) -> [N, Σ nvec], side by side for each choice d: Q_d = v + a_d − mean(a_d) (Tavakoli, Pardo and Kormushev 2018).

    v and each a_d have a last hidden layer of their own behind common ones; all a_d are computed side by side.

    Args:
        obs, act: Spaces; `act` is MultiDiscrete, MultiBinary, or a Dict or Tuple of these and Discrete. A Dict observation may
            hold `mask`, see `parl_like.models.heads`: 1 for legal.
        hidden: Sizes of the hidden layers; the last is that of each stream.
        trunk: A perception with `out_size`, perhaps shared with another task's model; None: the flat observation.

    Raises:
        TypeError: `act` is no such space.
    """

    real: Tensor

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), activation: str = "relu",
        trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act)
        if kind_of(act) not in ("MultiDiscrete", "MultiBinary", NESTED_CHOICES):
            raise TypeError(f"MLPBranchingQ: act is {act}; expected several choices, MultiDiscrete or the like{taken_by(act)}")
        self.parts = [(name.removeprefix("act").removeprefix("."), nvec_of(space)) for name, space in leaf_spaces(act, "act")]
        self.nvec = [n for _, nvec in self.parts for n in nvec]
        self.mask = mask_key(obs, act)
        self.perception = perception(obs, act, trunk)
        size: Any = self.perception.out_size
        self.body = MLP([size, *hidden[:-1]], activation, activate_last=True)
        streams: Any = [self.body.out_size, *hidden[-1:]]
        self.v = MLP([*streams, 1], activation)
        self.net = EnsembleMLP(len(self.nvec), [*streams, max(self.nvec)], activation, activate_last=False)
        real = torch.arange(max(self.nvec)) < torch.tensor(self.nvec)[:, None]
        self.register_buffer("real", real, persistent=False)  # [D, max nvec]: of what is computed, what there is

    def q(self, obs: Any) -> Tensor:
        features = self.body(self.perception(obs))
        a = self.net(features).movedim(0, -2)
        mean = (a * self.real).sum(-1, keepdim=True) / self.real.sum(-1, keepdim=True)
        q: Tensor = (self.v(features).unsqueeze(-1) + a - mean)[..., self.real]
        return q if self.mask is None else masked(q, self._whole_mask(obs[self.mask], q), self.nvec)

    def _whole_mask(self, mask: Any, q: Tensor) -> Tensor:
        """Return the masks of all arrays of the action side by side; where one has none, all is legal."""
        found = ((inside(mask, name), nvec) for name, nvec in self.parts)
        return torch.cat([q.new_ones(*q.shape[:-1], sum(nvec)) if one is None else one.reshape(*q.shape[:-1], -1)
                          for one, nvec in found], -1)
