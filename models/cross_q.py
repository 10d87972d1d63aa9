"""Critics with batch norm, for CrossQ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from parl_like.models.actor_q import MLPActorQ
from parl_like.models.mlp import EnsembleMLP


class BatchNorms(nn.Module):
    """Batch renormalisation (Ioffe 2017) of the rows of n networks, [n, N, size] → [n, N, size]:

    (h − m) / s · scale + shift   with the running mean m and standard deviation s = √(var + 10⁻³); and where it learns
    ((h − μ) / σ · r + d) · scale + shift,   r = clip(σ / s, ⅓, 3),   d = clip((μ − m) / s, −5, 5),

    with the mean μ and standard deviation σ of the rows, and r and d as constants. In the first `renorm_after` passes that learn
    r = 1 and d = 0, which is batch norm (Ioffe & Szegedy 2015). m and var follow those of the rows by 0.01 of the difference.

    What a pass does is said by whoever calls it, and not by a mode: so nothing else moves the statistics, nor does a pass without
    gradients. They are buffers.
    """

    mean: Tensor
    var: Tensor
    passes: Tensor

    def __init__(self, n: int, size: int, renorm_after: int) -> None:
        super().__init__()
        self.renorm_after = renorm_after
        self.scale, self.shift = (nn.Parameter(torch.empty(n, 1, size)) for _ in range(2))
        for name in ("mean", "var"):
            self.register_buffer(name, torch.empty(n, 1, size))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for one in (self.scale, self.var):
            one.fill_(1.0)
        for other in (self.shift, self.mean, self.passes):
            other.zero_()

    def forward(self, h: Tensor) -> Tensor:
        return torch.addcmul(self.shift, (h - self.mean) * (self.var + 1e-3).rsqrt(), self.scale)

    def learn(self, h: Tensor) -> Tensor:
        """By the statistics of these rows, which the running ones follow."""
        moving = torch.is_grad_enabled()
        var, mean = torch.var_mean(h, 1, correction=0, keepdim=True)
        normal = (h - mean) * (var + 1e-3).rsqrt()
        with torch.no_grad():
            if self.passes >= self.renorm_after:
                std = (self.var + 1e-3).sqrt()
                r, d = ((var + 1e-3).sqrt() / std).clamp(1 / 3, 3.0), ((mean - self.mean) / std).clamp(-5.0, 5.0)
            else:
                r, d = torch.ones_like(mean), torch.zeros_like(mean)
            if moving:
                self.mean.lerp_(mean, 0.01)
                self.var.lerp_(var, 0.01)
                self.passes += 1
        return torch.addcmul(self.shift, normal * r + d, self.scale)


class BatchNormEnsembleMLP(EnsembleMLP):
    """`EnsembleMLP` that normalises what goes into each product, see `BatchNorms`; no activation follows the last."""

    def __init__(self, n: int, sizes: Sequence[int], activation: str = "relu", renorm_after: int = 100_000) -> None:
        super().__init__(n, sizes, activation, activate_last=False)
        self.norms = nn.ModuleList(BatchNorms(n, size, renorm_after) for size in sizes[:-1])

    def forward(self, x: Tensor, learn: bool = False) -> Tensor:
        h = x.reshape(-1, x.shape[-1]).expand(self.n, -1, -1)
        layers = self.layers()
        for i, ((weight, bias), norm) in enumerate(zip(layers, self.norms, strict=True), 1):
            h = torch.baddbmm(bias, norm.learn(h) if learn else norm(h), weight)  # type: ignore[operator]
            if i < len(layers):
                h = self.activation(h)
        return h.reshape(self.n, *x.shape[:-1], self.out_size)

    def one(self, i: int, x: Tensor) -> Tensor:
        return self(x)[i]  # type: ignore[no-any-return]


class MLPCrossQ(MLPActorQ):
    """`MLPActorQ` with batch norm in its critics, by running statistics that `joint_q` alone moves.

    Args:
        hidden, critic_hidden: Sizes of the hidden layers of the policy, and of each critic.
        renorm_after: Passes that learn before batch norm becomes batch renorm.
        The others: As for `MLPActorQ`.
    """

    def __init__(
        self, obs: gym.Space[Any], act: gym.Space[Any], hidden: Sequence[int] = (256, 256), *, activation: str = "relu",
        critics: int = 2, critic_hidden: Sequence[int] = (2048, 2048), renorm_after: int = 100_000,
        trunk: nn.Module | None = None,
    ) -> None:
        super().__init__(obs, act, hidden, activation=activation, critics=1, trunk=trunk)
        sizes = [self.critics.layers()[0][0].shape[1], *critic_hidden, self.dim if self.discrete else 1]
        self.critics: Any = BatchNormEnsembleMLP(critics, sizes, activation, renorm_after)

    def joint_q(self, obs: Any, act: Tensor | None, obs_next: Any, act_next: Tensor | None) -> tuple[Tensor, Tensor]:
        """Values of both, [critics, N] each, or [critics, N, A], normalised by the statistics of both together."""
        x = torch.cat([self.critic_inputs(self.perception(obs), act), self.critic_inputs(self.perception(obs_next), act_next)])
        q: Tensor = self.critics(x, learn=True)
        first, second = (q if self.discrete else q.squeeze(-1)).chunk(2, 1)
        return first, second
