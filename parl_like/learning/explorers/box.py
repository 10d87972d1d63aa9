"""Explorers of actions that are real numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from parl_like.learning.explorers.base import Explorer, read
from parl_like.learning.schedule import Schedule, value_of
from parl_like.values.spec import Array, Spec


class Gaussian(Explorer):
    """act = `mean` + exp(`log_std`) · ε, ε standard normal. The mean itself is the best action.

    Args:
        shape: Of one action, or how many numbers it has. `mean` and `log_std` are [N, numbers], the actions [N, *shape].
    """

    needs: tuple[str, ...] = ("mean", "log_std")
    settings: tuple[str, ...] = ("shape", "log_prob")

    def __init__(self, shape: int | Sequence[int], log_prob: bool = False) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.log_prob = log_prob
        self.noise = Spec("noise", self.shape, np.dtype(np.float32))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.standard_normal((n, *self.shape), dtype=np.float32)

    def greedy(self) -> float | Array:
        return np.zeros(self.shape, np.float32)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        mean, log_std = read(out, "mean", self), read(out, "log_std", self)
        flat = noise.reshape(mean.shape)
        act = (mean + np.exp(log_std) * flat).reshape(noise.shape)
        return {"act": act, "log_prob": _log_normal(flat, log_std)} if self.log_prob else {"act": act}


def _log_normal(z: Array, log_std: Array) -> Array:
    """Log density [N] of normal numbers [N, dim] that are z standard deviations from their mean."""
    return (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)  # type: ignore[no-any-return]


class SquashedGaussian(Gaussian):
    """act = tanh(`mean` + exp(`log_std`) · ε), ε standard normal; tanh of the mean is the best action.

    Args:
        correlation: ρ between the ε of two acts in a row of an episode, ε_t = ρ ε_{t−1} + √(1 − ρ²) ξ_t, ξ standard normal. Each
            action alone is distributed as without it; together they go further, which helps where much has to be done before
            anything is rewarded (Eberhard et al. 2023). About 1 / (1 − ρ) acts go the same way.
        The others: As for `Gaussian`; `log_prob` is that of each action alone, as it is found when it is learned from.

    Raises:
        ValueError: correlation is outside [0, 1).
    """

    def __init__(self, shape: int | Sequence[int], log_prob: bool = False, correlation: float = 0.0) -> None:
        super().__init__(shape, log_prob)
        if not 0.0 <= correlation < 1.0:
            raise ValueError(f"SquashedGaussian: correlation is {correlation}; expected a number in [0, 1)")
        self.correlation = correlation
        if correlation:
            self.kept = self.noise

    def refuses(self, name: str, value: object) -> str:
        if name == "correlation" and self.kept is None:
            return "with noise that remembers nothing"
        return super().refuses(name, value)

    def begin(self, rng: np.random.Generator, n: int) -> Array:
        return super().draw(rng, 0, n)

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        drawn = super().draw(rng, step, n)
        if self.kept is None:
            return drawn
        self.memory = np.float32(self.correlation) * self.memory + np.float32(math.sqrt(1.0 - self.correlation**2)) * drawn
        return self.memory

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        act = np.tanh(super().act(out, noise)["act"])
        if not self.log_prob:
            return {"act": act}
        mean, log_std = out["mean"], out["log_std"]
        log_prob = log_squashed(*map(torch.tensor, (mean, log_std, act.reshape(mean.shape))))
        return {"act": act, "log_prob": log_prob.float().numpy()}


def log_slope(u: torch.Tensor) -> torch.Tensor:
    """Return log of the derivative of tanh at u, in the shape and dtype of u."""
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))


def log_squashed(mean: torch.Tensor, log_std: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
    """Log density [N] of actions [N, dim] = tanh u in [−1, 1], u normal; the bounds count as the nearest numbers within."""
    u = torch.atanh(act.clamp(-1.0 + 1e-6, 1.0 - 1e-6))
    z = (u - mean) * torch.exp(-log_std)
    log_normal = -0.5 * z.square().sum(-1) - log_std.expand_as(z).sum(-1) - 0.5 * math.log(2.0 * math.pi) * z.shape[-1]
    return log_normal - log_slope(u).sum(-1)


class Noisy(Explorer):
    """act = clip(`mean` + σ · ε, −1, 1), ε standard normal: for deterministic policies. The mean itself is the best action.

    Args:
        shape: Of one action.
        std: σ, a number or a schedule over the acts of one helper.
    """

    needs, settings = ("mean",), ("shape",)

    def __init__(self, shape: int | Sequence[int], std: float | Schedule = 0.1) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.std = std
        self.noise = Spec("noise", self.shape, np.dtype(np.float32))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        std = np.array([value_of(self.std, step + i) for i in range(1, n + 1)], np.float32)
        return rng.standard_normal((n, *self.shape), dtype=np.float32) * std.reshape(n, *(1,) * len(self.shape))

    def greedy(self) -> float | Array:
        return np.zeros(self.shape, np.float32)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        mean = read(out, "mean", self)
        return {"act": np.clip(mean.reshape(noise.shape) + noise, -1.0, 1.0)}


class OrnsteinUhlenbeck(Noisy):
    """act = clip(`mean` + x, −1, 1) with noise that remembers (Uhlenbeck & Ornstein 1930; Lillicrap et al. 2016),

    x ← x − θ x dt + σ √dt · ε, ε standard normal, from x = 0 where an episode begins. With a = 1 − θ dt the t-th x has variance
    σ² dt (1 − a²ᵗ) / (1 − a²).

    Args:
        shape: Of one action.
        std: σ, a number or a schedule over the acts of one helper.
        theta, dt: θ, how strongly it is drawn back, and the length of a step.
    """

    def __init__(self, shape: int | Sequence[int], std: float | Schedule = 0.2, theta: float = 0.15, dt: float = 1.0) -> None:
        super().__init__(shape, std)
        self.theta, self.dt = theta, dt
        self.kept = Spec("x", self.shape, np.dtype(np.float32))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        left, width = np.float32(1.0 - self.theta * self.dt), np.float32(math.sqrt(self.dt))
        self.memory = left * self.memory + width * super().draw(rng, step, n)
        return self.memory


class GSDE(Gaussian):
    """act = `mean` + Σ_i `basis`_i · ε_i, generalised state-dependent exploration (Raffin et al. 2021), for `GSDEHead`.

    ε [features, numbers], standard normal, is drawn where an episode begins: so within it an action is a function of the state.
    The noise has variance Σ_i basis_i², the square of exp(`log_std`).

    Args:
        shape: Of one action.
        features: Rows of `basis` [N, features, numbers].
        log_prob: As for `Gaussian`.
        period: Acts after which ε is drawn anew also within an episode; None: never.

    Raises:
        ValueError: period is below 1.
    """

    needs, settings = ("mean", "log_std", "basis"), ("shape", "log_prob", "features")

    def __init__(self, shape: int | Sequence[int], features: int, log_prob: bool = False, period: int | None = None) -> None:
        super().__init__(shape, log_prob)
        if period is not None and period < 1:
            raise ValueError(f"GSDE: period is {period}; expected at least 1")
        self.period, self.features, self.size = period, features, (features, math.prod(self.shape))
        self.noise = self.kept = Spec("noise", self.size, np.dtype(np.float32))

    def begin(self, rng: np.random.Generator, n: int) -> Array:
        return rng.standard_normal((n, *self.size), dtype=np.float32)

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        if self.period is not None and step // n % self.period == 0:
            self.memory = self.begin(rng, n)
        return self.memory.copy()

    def greedy(self) -> float | Array:
        return np.zeros(self.size, np.float32)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        mean, log_std = read(out, "mean", self), read(out, "log_std", self)
        deviation = np.einsum("nfd,nfd->nd", read(out, "basis", self), noise)
        act = {"act": (mean + deviation).reshape(len(mean), *self.shape)}
        return {**act, "log_prob": _log_normal(deviation / np.exp(log_std), log_std)} if self.log_prob else act


TRIES = 8
"""Candidates of which a gamma number is the first accepted; each is with probability ≥ 0.95, so all fail once in 10¹⁰."""


class Beta(Explorer):
    """act = 2 x − 1, x ~ Beta(`alpha`, `beta`), both above 1, each [N, numbers] (Chou et al. 2017). The mean is the best action.

    x = g / (g + h), where g and h have the gamma distributions of alpha and beta, made of a fixed number of normal and uniform
    numbers (Marsaglia & Tsang 2000), so that the noise can be drawn before the prediction is known.

    Args:
        shape: Of one action.
    """

    needs, settings = ("alpha", "beta"), ("shape", "log_prob")

    def __init__(self, shape: int | Sequence[int], log_prob: bool = False) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.log_prob = log_prob
        self.size = math.prod(self.shape), 2, 2, TRIES
        self.noise = Spec("noise", self.size, np.dtype(np.float32))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        noise = np.empty((n, *self.size), np.float32)
        noise[:, :, :, 0] = rng.standard_normal(noise[:, :, :, 0].shape, dtype=np.float32)
        noise[:, :, :, 1] = 1.0 - rng.random(noise[:, :, :, 1].shape, dtype=np.float32)  # above 0
        return noise

    def greedy(self) -> float | Array:
        return np.full(self.size, 2.0, np.float32)  # uniform numbers are at most 1

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        alpha, beta = (read(out, name, self).astype(np.float64) for name in ("alpha", "beta"))
        noise = noise.astype(np.float64).reshape(len(alpha), *self.size)
        g, h = (_gamma(shape, noise[:, :, i]) for i, shape in enumerate((alpha, beta)))
        x = np.where(noise[..., 0, 1, 0] > 1.0, alpha / (alpha + beta), g / (g + h))
        act = (2.0 * x - 1.0).astype(np.float32)
        made = {"act": act.reshape(len(act), *self.shape)}
        if self.log_prob:
            made["log_prob"] = log_beta(*map(torch.from_numpy, (alpha, beta, act))).float().numpy()
        return made


def _gamma(a: Array, noise: Array) -> Array:
    """Gamma numbers [N, dim] of shape a ≥ 1 and scale 1 from normal and uniform noise [N, dim, 2, TRIES]."""
    z, u = noise[..., 0, :], noise[..., 1, :]
    d = a[..., None] - 1.0 / 3.0
    v = (1.0 + z / np.sqrt(9.0 * d)) ** 3
    log_v = np.log(np.maximum(v, 1e-30))
    accepted = (v > 0.0) & (np.log(u) < 0.5 * z**2 + d - d * v + d * log_v)
    first = np.take_along_axis(v, accepted.argmax(-1)[..., None], -1)
    return np.where(accepted.any(-1), d[..., 0] * first[..., 0], a)


def log_beta(alpha: torch.Tensor, beta: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
    """Log density [N] of actions [N, dim] in [−1, 1], of which the bounds themselves count as the nearest numbers within:

    Σ (α − 1) log x + (β − 1) log(1 − x) − log B(α, β) − log 2, x = (act + 1) / 2.
    """
    x = (0.5 * (act + 1.0)).clamp(1e-6, 1.0 - 1e-6)
    log_b = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    return ((alpha - 1.0) * x.log() + (beta - 1.0) * torch.log1p(-x) - log_b - math.log(2.0)).sum(-1)
