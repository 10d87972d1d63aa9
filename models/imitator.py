"""A policy and a value beside a discriminator, which tells whether a step is an expert's: for GAIL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.action_spaces import taken_by
from parl_like.models.heads import Distribution
from parl_like.models.mlp import MLP, MLPActorCritic


class MLPImitator(MLPActorCritic):
    """An `MLPActorCritic` with a discriminator of the same sizes, which reads observation and action.

    Args:
        As for `MLPActorCritic`; `act` is Discrete or a Box.

    Raises:
        TypeError: `act` is another space.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), *, activation: str = "tanh",
        shared: bool = False, orthogonal: bool = True, log_std_init: float = 0.0, state_dependent_std: bool = False,
        trunk: nn.Module | None = None, distribution: Distribution = "gaussian",
    ) -> None:
        super().__init__(obs, act, hidden, activation=activation, shared=shared, orthogonal=orthogonal, log_std_init=log_std_init,
                         state_dependent_std=state_dependent_std, trunk=trunk, distribution=distribution)
        if not isinstance(act, (gym.spaces.Discrete, gym.spaces.Box)):
            raise TypeError(f"MLPImitator: act is {act}; expected Discrete or a Box{taken_by(act)}")
        self.choices = int(act.n) if isinstance(act, gym.spaces.Discrete) else 0
        size: Any = self.perception.out_size
        numbers = self.choices or int(torch.Size(act.shape or ()).numel())
        self.discriminator = MLP([size + numbers, *hidden, 1], activation)

    def discriminate(self, obs: Any, act: Tensor) -> Tensor:
        """The log odds [N] that rows are the expert's; `act` in the policy's units."""
        numbers = F.one_hot(act.long(), self.choices) if self.choices else act.reshape(len(act), -1)
        features = self.perception(obs).detach()
        return self.discriminator(torch.cat([features, numbers.to(features.dtype)], -1)).squeeze(-1)  # type: ignore[no-any-return]
