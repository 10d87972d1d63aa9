"""Several networks for the values of actions, each on a prior of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from parl_like.learning.action_spaces import taken_by
from parl_like.learning.model import Model
from parl_like.models.flat_obs import perception
from parl_like.models.heads import mask_key, masked
from parl_like.models.mlp import EnsembleMLP


class MLPBootstrappedQ(Model):
    """values(obs) -> [N, A, heads], q(obs) -> [N, A] their mean: Q_k = f_k + prior · p_k (Osband, Aslanides and Cassirer 2018).

    f_k are networks that learn, p_k networks of the same sizes that never do: so where nothing was learned the heads differ,
    however much they learned elsewhere. All are computed side by side.

    Args:
        obs, act: Spaces, as for `MLPQ`.
        hidden: Sizes of the hidden layers, of each network.
        heads: How many.
        prior: The weight of the priors, ≥ 0.
        trunk: A perception with `out_size`, perhaps shared with another task's model, before all f_k; the priors keep a copy of
            what it is when they are made. None: the flat observation.

    Raises:
        TypeError: `act` is not Discrete.
        ValueError: heads is below 1, or prior is negative.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
        heads: int = 10, prior: float = 3.0, trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act)
        if not isinstance(act, gym.spaces.Discrete):
            raise TypeError(f"MLPBootstrappedQ: act is {act}; expected Discrete, for one value per action{taken_by(act)}")
        if heads < 1 or not prior >= 0.0:
            raise ValueError(f"MLPBootstrappedQ: heads is {heads} and prior {prior}; expected at least 1 head, and prior ≥ 0")
        self.out_shape, self.prior = (int(act.n), heads), prior
        self.mask = mask_key(obs, act)
        self.perception = perception(obs, act, trunk)
        sizes: Any = [self.perception.out_size, *hidden, int(act.n)]
        self.net = EnsembleMLP(heads, sizes, activation, activate_last=False)
        self.fixed = nn.ModuleDict({"perception": copy.deepcopy(self.perception),
                                    "net": EnsembleMLP(heads, sizes, activation, activate_last=False)}).requires_grad_(False)

    def values(self, obs: Any) -> Tensor:
        """[..., A, heads], of illegal actions too."""
        values: Tensor = self.net(self.perception(obs))
        if self.prior:
            values = values + self.prior * self.fixed["net"](self.fixed["perception"](obs))
        return values.movedim(0, -1)

    def q(self, obs: Any) -> Tensor:
        q = self.values(obs).mean(-1)
        return q if self.mask is None else masked(q, obs[self.mask])
