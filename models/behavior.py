"""Networks that also know what the data's policy does: for BCQ and PLAS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from parl_like.learning.array_prediction import NativeReader
from parl_like.learning.native import NetworkLayers
from parl_like.models.actor_q import MLPActorQ
from parl_like.models.heads import OrthogonalLinear, masked
from parl_like.models.mlp import MLP, MLPQ

LOG_STD = (-4.0, 15.0)
"""Bounds of the encoder's log standard deviation, as published."""


class MLPImitationQ(MLPQ):
    """An `MLPQ` with a second network of the same sizes, for how probable each action is in the data.

    Args:
        As for `MLPQ`.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "relu",
        dueling: bool = False, noisy: float = 0.0, heads: int = 1, trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act, hidden, activation=activation, dueling=dueling, noisy=noisy, heads=heads, trunk=trunk)
        size: Any = self.perception.out_size
        self.imitation = MLP([size, *hidden, self.out_shape[0]], activation)

    def imitation_logits(self, obs: Any) -> Tensor:
        """Logits [N, A] of the data's policy; −1e9 for illegal actions."""
        return masked(self.imitation(self.perception(obs)), None if self.mask is None else obs[self.mask])


class MLPLatentActorQ(MLPActorQ):
    """Critics as of `MLPActorQ`, a conditional variational autoencoder of the rows' actions, and a policy that names a code,
    which is decoded to an action: a = decode(s, bound · tanh(actor(s))). So actions stay near those of the data.

    Args:
        latent: Numbers of a code; 0: twice those of an action, as published.
        bound: The largest number in a code that the policy names; 2 as published for PLAS.
        perturbs: The actor reads an action beside the observation, and gives a change of it, as in BCQ; then it names no code.
        The others: As for `MLPActorQ`.

    Attributes:
        behavior: The autoencoder's layers.
        tries: Codes [10, latent] for whoever acts by several decoded actions (`BCQ`): the same in all states, so that acting
            needs no generator.
    """

    tries: Tensor

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (256, 256), *, activation: str = "relu",
        critics: int = 2, latent: int = 0, bound: float = 2.0, perturbs: bool = False, trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act, hidden, activation=activation, critics=critics, policy="deterministic", trunk=trunk)
        size: Any = self.perception.out_size
        self.latent, self.bound, self.perturbs = latent or 2 * self.dim, bound, perturbs
        self.encoder = MLP([size + self.dim, *hidden, 2 * self.latent], activation)
        self.decoder = MLP([size + self.latent, *hidden, self.dim], activation)
        self.behavior = nn.ModuleList([self.encoder, self.decoder])
        if perturbs:
            self.body = MLP([size + self.dim, *hidden], activation, activate_last=True)
        else:
            self.head = OrthogonalLinear(self.body.out_size, self.latent, None)
        self.actor = nn.ModuleList([self.body, self.head])
        self.register_buffer("tries", torch.randn(10, self.latent).clamp(-0.5, 0.5))

    def native_networks(self) -> dict[str, NetworkLayers]:
        """The critics alone."""
        return {"critics": super().native_networks()["critics"]} if not self.perturbs else {}

    def native_reader(self, method: str) -> NativeReader | None:
        """Return None: torch decodes."""
        return None

    def decode(self, obs: Any, code: Tensor) -> Tensor:
        """The actions [N, *shape] of codes [N, latent]."""
        flat = torch.tanh(self.decoder(torch.cat([self.perception(obs), code], -1)))
        return flat.reshape(flat.shape[0], *self.act_specs["act"].shape)

    def encode(self, obs: Any, act: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, [N, latent] each, of the codes of actions."""
        mean, log_std = self.encoder(self.critic_inputs(self.perception(obs), act)).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def act(self, obs: Any) -> Tensor:
        """The policy's actions in [−1, 1], [N, *shape]."""
        return self.decode(obs, self.bound * torch.tanh(self.head(self.body(self.perception(obs)))))

    def perturbed(self, obs: Any, act: Tensor, reach: float) -> Tensor:
        """clip(a + reach · tanh(actor(s, a)), −1, 1), for actions [N, *shape]."""
        change = torch.tanh(self.head(self.body(self.critic_inputs(self.perception(obs), act))))
        return (act + reach * change.reshape(act.shape)).clamp(-1.0, 1.0)
