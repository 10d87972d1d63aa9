"""Models of what the environment does next: one on a trunk that several tasks share, and an ensemble of probabilistic ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning.layers import Brief
from parl_like.learning.model import Model
from parl_like.models.flat_obs import FlatObs
from parl_like.models.mlp import MLP, EnsembleMLP
from parl_like.values.action_codec import ActionCodec
from parl_like.values.spec import Spec


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


def numbers_of(model: Model) -> tuple[int, bool]:
    """Numbers of an action of Discrete or a Box, as `encoded` has them, and whether it is Discrete; raises TypeError."""
    act = model.act_space
    if isinstance(act, gym.spaces.Discrete):
        return int(act.n), True
    if not isinstance(act, gym.spaces.Box):
        raise TypeError(f"{type(model).__name__}: act is {act}; expected Discrete or Box")
    return math.prod(act.shape), False


def encoded(act: Tensor, n: int, discrete: bool) -> Tensor:
    """Actions [N] as one-hot numbers [N, n]; those of a Box side by side, [N, n]."""
    return F.one_hot(act, n).float() if discrete else act.reshape(len(act), -1).float()


class Dynamics(Model):
    """Two heads on a trunk z(s): the next observation from (z(s), a), and the action from (z(s), z(s')). Discrete or Box actions.

    Args:
        trunk: Offers `in_size`, `out_size` and `flat`, see `Trunk`.
        hidden: Sizes of the hidden layers of each head.
    """

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], trunk: Trunk, hidden: Sequence[int] = (64,)) -> None:
        super().__init__(obs, act)
        self.n, self.discrete = numbers_of(self)
        self.trunk = trunk
        self.forward_head = MLP([trunk.out_size + self.n, *hidden, trunk.in_size])
        self.inverse_head = MLP([2 * trunk.out_size, *hidden, self.n])

    def encode(self, act: Tensor) -> Tensor:
        """Actions [N] as one-hot numbers [N, A]; those of a Box side by side, [N, n]."""
        return encoded(act, self.n, self.discrete)

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


class EnsembleDynamics(Model):
    """Several probabilistic networks, one batched product per layer: (s, a) → the normal distribution of (s' − s, r), and the
    probability that the episode ends. s are all numbers of an observation, as `FlatObs` has them, a mask's too. What goes in and
    comes out is put to mean 0 and standard deviation 1 by what has been seen.

    Args:
        obs, act: Spaces; `obs` is any, `act` Discrete or a Box.
        hidden: Sizes of the hidden layers of each network. Published: four of 200.
        members: Networks. Published: seven, of which the best five are asked.

    Attributes:
        max_log_var, min_log_var: Soft bounds of the log variances, learned (Chua et al. 2018).
    """

    seen: Tensor
    input_mean: Tensor
    input_var: Tensor
    target_mean: Tensor
    target_var: Tensor

    def __init__(self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (64, 64), members: int = 5,
                 activation: str = "silu") -> None:
        super().__init__(obs, act)
        self.n, self.discrete = numbers_of(self)
        self.flat = FlatObs(obs)
        self.members, self.size = members, self.flat.out_size
        self.net = EnsembleMLP(members, [self.size + self.n, *hidden, 2 * self.size + 3], activation, activate_last=False)
        self.max_log_var = nn.Parameter(torch.full((self.size + 1,), 0.5))
        self.min_log_var = nn.Parameter(torch.full((self.size + 1,), -10.0))
        self.register_buffer("seen", torch.zeros(()))
        for name, size in (("input", self.size + self.n), ("target", self.size + 1)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_var", torch.ones(size))

    def inputs(self) -> dict[str, Spec]:
        """Actions as the policy has them, and helpers store them."""
        return {**self.obs_specs, **{spec.name: spec for spec in ActionCodec(self.act_space).specs}}

    def raw(self, obs: Any, act: Tensor) -> Tensor:
        return torch.cat([self.flat(obs), encoded(act, self.n, self.discrete)], 1)

    def change(self, obs: Any, obs_next: Any, rew: Tensor) -> Tensor:
        return torch.cat([self.flat(obs_next) - self.flat(obs), rew.float().unsqueeze(1)], 1)

    def observe(self, obs: Any, act: Tensor, obs_next: Any, rew: Tensor) -> None:
        """Counts these rows into the means and variances."""
        n, before = len(rew), self.seen.clone()
        self.seen += n
        for name, x in (("input", self.raw(obs, act)), ("target", self.change(obs, obs_next, rew))):
            mean, var = getattr(self, f"{name}_mean"), getattr(self, f"{name}_var")
            apart = x.mean(0) - mean
            share = n / self.seen
            var += share * (x.var(0, unbiased=False) - var + apart.square() * (before / self.seen))
            mean += share * apart

    def features(self, obs: Any, act: Tensor) -> Tensor:
        """Return what the networks see, [N, in]."""
        return (self.raw(obs, act) - self.input_mean) / self.input_var.sqrt().clamp(min=1e-6)

    def targets(self, obs: Any, obs_next: Any, rew: Tensor) -> Tensor:
        """Return the targets of the networks, [N, out]."""
        return (self.change(obs, obs_next, rew) - self.target_mean) / self.target_var.sqrt().clamp(min=1e-6)

    def drawn(self, obs: Any, y: Tensor) -> tuple[Any, Tensor]:
        """Return what `targets` stand for: the observations of the space that are nearest to the next ones, and the rewards
        [N]."""
        plain = y * self.target_var.sqrt().clamp(min=1e-6) + self.target_mean
        return self.flat.inverse(self.flat(obs) + plain[:, :-1]), plain[:, -1]

    def each(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of its own for each network, [members, N, in] → means and log variances [members, N, out], logits of an end
        [members, N]."""
        mean, log_var, end = torch.split(self.net.each(x), [self.size + 1, self.size + 1, 1], -1)
        log_var = self.max_log_var - F.softplus(self.max_log_var - log_var)
        return mean, self.min_log_var + F.softplus(log_var - self.min_log_var), end.squeeze(-1)
