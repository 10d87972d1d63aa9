"""Values of the alternatives of several choices at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.model import Model
from parl_like.models.flat_obs import perception
from parl_like.models.heads import mask_key, masked
from parl_like.models.mlp import MLP, EnsembleMLP


class MLPBranchingQ(Model):
    """q(obs) -> [N, Σ nvec], side by side for each choice d: Q_d = v + a_d − mean(a_d) (Tavakoli, Pardo and Kormushev 2018).

    v and each a_d have a last hidden layer of their own behind common ones; all a_d are computed side by side.

    Args:
        obs, act: Spaces; `act` is MultiDiscrete. A Dict observation may hold `mask` [Σ nvec]: 1 for legal.
        hidden: Sizes of the hidden layers; the last is that of each stream.
        trunk: A perception with `out_size`, perhaps shared with another task's model; None: the flat observation.

    Raises:
        TypeError: `act` is not MultiDiscrete.
    """

    real: Tensor

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), activation: str = "relu",
        trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act)
        if not isinstance(act, gym.spaces.MultiDiscrete):
            raise TypeError(f"MLPBranchingQ: act is {act}; expected MultiDiscrete, several choices{taken_by(act)}")
        self.nvec: list[int] = act.nvec.ravel().tolist()
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
        return q if self.mask is None else masked(q, obs[self.mask], self.nvec)
