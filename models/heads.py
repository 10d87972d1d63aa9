"""Policy heads: features → what an explorer reads, and the log-probability and entropy that learning needs.

Written with log_softmax and gather instead of torch.distributions, whose checks cost more than the arithmetic of a small batch.
Actions are indices from 0 (Discrete) or raw Gaussian samples (Box): shifting by `start`, clipping and scaling to the space come
later, between explorer and environment.

An observation space that is a Dict with a top-level `mask` of the same shape as the logits declares the legal actions, 1 or True
for legal; for actions that are a Dict or Tuple it is one, too, with a mask for each part that may be illegal. Illegal actions get
the logit −1e9: probability 0 exactly, and still a finite number, so that 0 · log 0 stays 0. Where a row (of several choices: a
choice) allows nothing, everything is legal, see `parl_like.learning.explorers.legal`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parl_like.learning._written import Categorical, Gaussian
from parl_like.learning.explorers import legal, log_beta, log_slope, log_squashed, n_logits, part_of
from parl_like.learning.layers import Brief, orthogonal_
from parl_like.learning.native import NetworkLayers, float32_of
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, leaf_spaces, parts_of

ILLEGAL = -1e9
LOG_2PI = math.log(2.0 * math.pi)
Out = Mapping[str, Tensor]
Distribution = Literal["gaussian", "squashed", "gsde", "beta"]
NODES = np.polynomial.hermite_e.hermegauss(32)
"""Places and weights of a sum that stands for an expectation over a standard normal number; the weights add up to √(2π)."""


def mask_key(obs: gym.Space[Any], act: gym.Space[Any]) -> str | None:
    """'mask' if the observation declares the legal actions, else None.

    Raises:
        ValueError: there is a `mask`, but not one number per logit.
    """
    return "mask" if mask_names(obs, act) else None


def mask_names(obs: gym.Space[Any], act: gym.Space[Any]) -> tuple[str, ...]:
    """Flat names of the legal masks, if there are any: they are no features.

    Raises:
        ValueError: a mask is not named like a choice of `act`, or has not one number for each action.
    """
    numbers = {name.replace("act", "mask", 1): n for name, part in leaf_spaces(act, "act") if (n := n_logits(part))}
    if not isinstance(obs, gym.spaces.Dict) or "mask" not in obs.spaces or not numbers:
        return ()
    masks = dict(leaf_spaces(obs.spaces["mask"], "mask"))
    for name, space in masks.items():
        if name not in numbers:
            raise ValueError(f"observation {name!r} is {space}; expected masks named like the choices of {act}: "
                             f"{', '.join(numbers)}")
        if space.shape != (numbers[name],):
            raise ValueError(f"observation {name!r} has shape {space.shape}; expected {(numbers[name],)}, one number per action "
                             f"of {act}")
    return tuple(f"obs.{name}" for name in masks)


def masked(values: Tensor, mask: Any, nvec: Sequence[int] | None = None) -> Tensor:
    """Values or logits [..., A] with −1e9 in place of those of illegal actions. mask: see `parl_like.learning.explorers.legal`;
    None: all are legal."""
    return values if mask is None else values.masked_fill(~legal(mask, nvec), ILLEGAL)


class OrthogonalLinear(nn.Linear):
    """Linear layer with orthogonal weights of this gain and zero bias; `gain=None`: torch's default."""

    def __init__(self, in_size: int, out_size: int, gain: float | None) -> None:
        self.gain = gain
        super().__init__(in_size, out_size)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.gain is not None:
            orthogonal_(self.weight, self.gain)
            nn.init.zeros_(self.bias)

    def forward(self, features: Tensor) -> Tensor:
        weights = self._parameters  # looked up directly and called as .forward: 3 µs less per call than through nn.Module
        return F.linear(features, weights["weight"], weights["bias"])  # type: ignore[arg-type]

    def native_layers(self, network: NetworkLayers, source: int) -> int:
        """Add it behind layer `source`; return its number."""
        return network.dense_layer(source, self.weight, self.bias)


class CategoricalHead(nn.Module, metaclass=Brief):
    """One of n actions: softmax of `logits`.

    Args:
        in_size: Number of features.
        n: Number of actions.
        gain: Of the orthogonal weights; small values start near the uniform policy. None: torch's default weights.
    """

    explorer = "categorical"
    nvec: Any = None

    def __init__(self, in_size: int, n: int, gain: float | None = 0.01) -> None:
        super().__init__()
        self.n = n
        self.linear = OrthogonalLinear(in_size, n, gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Features [N, in_size] and perhaps the legal actions [N, n], 0 for illegal → {'logits': [N, n]}."""
        return self.read(self.linear.forward(features), mask)

    def native_layers(self, network: NetworkLayers, source: int) -> int:
        """Add its layer behind layer `source`; return its number. What that gives out `read` reads."""
        return network.add(self.linear, source)  # type: ignore[no-any-return]

    def read(self, logits: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return what `forward` does, of what the linear layer gave out."""
        return {"logits": logits if mask is None else masked(logits, mask.reshape(logits.shape), self.nvec)}

    def written(self, numbers: Array, act: Tensor, mask: Tensor | None = None) -> Categorical:
        """Return log π(act) and the entropy, with their gradients, of what the linear layer gave out."""
        if mask is not None:
            numbers = self.read(torch.from_numpy(numbers), mask)["logits"].numpy()
        return Categorical(numbers, self.nvec or [self.n], act.long().reshape(len(act), -1).contiguous().numpy())

    def read_array(self, logits: Array) -> dict[str, Array]:
        """As `read`, of an array, without a mask."""
        return {"logits": logits}

    def log_probs(self, out: Out) -> Tensor:
        """log π of every action, [N, n]. `out` may carry a `mask` [N, n] beside its `logits`."""
        return torch.log_softmax(masked(out["logits"], out.get("mask"), self.nvec), -1)

    def log_prob(self, out: Out, act: Tensor) -> Tensor:
        """log π(act) [N]; act [N] integer from 0."""
        return -F.nll_loss(self.log_probs(out), act.long(), reduction="none")  # gather, with a cheaper gradient

    def entropy(self, out: Out) -> Tensor:
        """−Σ π log π over all actions (of all choices), [N], in nats."""
        log_p = self.log_probs(out)
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, out: Out, other: Out) -> Tensor:
        """KL(π ‖ π') = Σ π (log π − log π') [N], in nats, from what π and π' gave out for the same rows."""
        log_p = self.log_probs(out)
        return (log_p.exp() * (log_p - self.log_probs(other))).sum(-1)


class MultiCategoricalHead(CategoricalHead):
    """Several independent choices at once: `logits` [N, Σ nvec] hold their logits side by side, `n` = Σ nvec.

    Args:
        nvec: Number of actions of each choice.
    """

    explorer = "multi_categorical"
    offsets: Tensor
    native_layers, written = CategoricalHead.native_layers, CategoricalHead.written

    def __init__(self, in_size: int, nvec: Sequence[int], gain: float | None = 0.01) -> None:
        super().__init__(in_size, sum(nvec), gain)
        self.nvec = [int(n) for n in nvec]
        self.register_buffer("offsets", torch.tensor([0, *self.nvec[:-1]]).cumsum(0), persistent=False)

    def log_probs(self, out: Out) -> Tensor:
        """log π of every action of every choice, side by side, [N, Σ nvec]."""
        logits = masked(out["logits"], out.get("mask"), self.nvec)
        return torch.cat([torch.log_softmax(part, -1) for part in torch.split(logits, self.nvec, -1)], -1)

    def log_prob(self, out: Out, act: Tensor) -> Tensor:
        """Sum over the choices, [N]; act [N, ...] integers from 0, one per choice."""
        return self.log_probs(out).gather(-1, act.long().flatten(1) + self.offsets).sum(-1)


class GaussianHead(nn.Module, metaclass=Brief):
    """Independent normal distributions: `mean` and `log_std`, each [N, dim].

    Args:
        in_size: Number of features.
        dim: Numbers in one action.
        log_std_init: Initial natural logarithm of the standard deviations.
        state_dependent: `log_std` comes from the features too, kept within [−20, 2]; otherwise it is a parameter of its own.
    """

    explorer = "gaussian"

    def __init__(
        self, in_size: int, dim: int, log_std_init: float = 0.0, state_dependent: bool = False, gain: float | None = 0.01
    ) -> None:
        super().__init__()
        self.dim, self.log_std_init, self.state_dependent = dim, log_std_init, state_dependent
        self.linear = OrthogonalLinear(in_size, 2 * dim if state_dependent else dim, gain)
        self.log_std = None if state_dependent else nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initial log std; the linear layer has its own rule."""
        (self.linear.bias[self.dim :] if self.log_std is None else self.log_std).fill_(self.log_std_init)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Features [N, in_size] → {'mean': [N, dim], 'log_std': [N, dim]}; a mask has no meaning here."""
        return self.read(self.linear.forward(features))

    native_layers = CategoricalHead.native_layers

    def read(self, mean: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return what `forward` does, of what the linear layer gave out."""
        if self.log_std is not None:
            return {"mean": mean, "log_std": self.log_std.expand_as(mean)}
        mean, log_std = mean.chunk(2, -1)
        return {"mean": mean, "log_std": log_std.clamp(-20.0, 2.0)}

    def written(self, numbers: Array, act: Tensor, mask: Tensor | None = None) -> Gaussian:
        """Return log π(act) and the entropy, with their gradients, of what the linear layer gave out."""
        own = None if self.log_std is None else self.log_std.detach().numpy()
        return Gaussian(numbers, own, float32_of(act).reshape(len(act), -1))

    def read_array(self, numbers: Array) -> dict[str, Array]:
        """As `read`, of an array."""
        if self.log_std is not None:
            own: Any = self._parameters["log_std"]
            log_std = np.empty_like(numbers)
            log_std[:] = own.detach().numpy()
            return {"mean": numbers, "log_std": log_std}
        log_std = np.minimum(np.maximum(numbers[:, self.dim :], -20.0), 2.0)
        return {"mean": numbers[:, : self.dim].copy(), "log_std": log_std}

    def log_prob(self, out: Out, act: Tensor) -> Tensor:
        """log density [N] = Σ −½ ((act − mean) / std)² − log std − ½ log 2π; act [N, ...] with dim numbers per row."""
        mean, log_std = out["mean"], out["log_std"]
        z = (act.reshape(mean.shape) - mean) * torch.exp(-log_std)
        return -0.5 * z.square().sum(-1) - log_std.sum(-1) - 0.5 * LOG_2PI * self.dim

    def entropy(self, out: Out) -> Tensor:
        """Σ log std + ½ (1 + log 2π), [N], in nats."""
        return out["log_std"].sum(-1) + 0.5 * (1.0 + LOG_2PI) * self.dim

    def kl(self, out: Out, other: Out) -> Tensor:
        """KL(π ‖ π') = Σ log (std' / std) + ½ (std² + (mean − mean')²) / std'² − ½, [N], in nats; the same after a tanh."""
        wider = out["log_std"] - other["log_std"]
        z = (out["mean"] - other["mean"]) * torch.exp(-other["log_std"])
        return (0.5 * (torch.exp(2.0 * wider) + z.square() - 1.0) - wider).sum(-1)


class SquashedGaussianHead(GaussianHead):
    """tanh of independent normal distributions: actions in (−1, 1); `mean` and `log_std` [N, dim] are those before the tanh.

    log π(a) = log N(u; mean, std) − Σ log(1 − tanh² u), a = tanh u (Haarnoja et al. 2018a, appendix C), where log(1 − tanh² u) =
    2 (log 2 − u − softplus(−2u)) is exact at any u.

    Args:
        state_dependent: As for `GaussianHead`.
    """

    explorer = "squashed_gaussian"
    native_layers = GaussianHead.native_layers

    def __init__(self, in_size: int, dim: int, log_std_init: float = 0.0, state_dependent: bool = True,
                 gain: float | None = None) -> None:
        super().__init__(in_size, dim, log_std_init, state_dependent, gain)

    def draw(self, out: Out, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [N, dim] and log π [N] of standard normal `noise` [N, dim]; both with gradients."""
        u = out["mean"] + torch.exp(out["log_std"]) * noise
        log_normal = (-0.5 * noise.square() - out["log_std"]).sum(-1) - 0.5 * LOG_2PI * self.dim
        return torch.tanh(u), log_normal - log_slope(u).sum(-1)

    def log_prob(self, out: Out, act: Tensor) -> Tensor:
        """log density [N], see `parl_like.learning.explorers.log_squashed`; `act` [N, ...] in [−1, 1] with dim numbers per
        row."""
        return log_squashed(out["mean"], out["log_std"], act.reshape(out["mean"].shape))

    def entropy(self, out: Out) -> Tensor:
        """−E log π = that of the normal distribution + Σ E log(1 − tanh² u), [N], in nats.

        The second part has no formula: it is the Gauss–Hermite sum over 32 values of each u, whose error is below 10⁻⁴ up to a
        standard deviation of 1.6, 0.002 at 2.7 and 0.1 at 7.4, the largest of those that depend on the state.
        """
        places, weights = (out["mean"].new_tensor(numbers) for numbers in NODES)
        u = out["mean"] + torch.exp(out["log_std"]) * places[:, None, None]
        return super().entropy(out) + weights @ log_slope(u).sum(-1) / math.sqrt(2.0 * math.pi)


class GSDEHead(GaussianHead):
    """Normal distributions whose noise is a function of the state, drawn anew for each episode (Raffin et al. 2021): `basis`
    [N, in_size, dim] = φ_i σ_ij, with the features φ, which it does not move, and a parameter σ [in_size, dim];

    `log_std` = ½ log(Σ_i φ_i² σ_ij² + 10⁻⁶) is that of the noise Σ_i φ_i σ_ij ε_ij of a standard normal ε.
    """

    explorer = "gsde"

    def __init__(self, in_size: int, dim: int, log_std_init: float = 0.0, gain: float | None = 0.01) -> None:
        super().__init__(in_size, dim, log_std_init, gain=gain)
        self.in_size, self.log_std = in_size, nn.Parameter(torch.full((in_size, dim), log_std_init))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Features [N, in_size] → {'mean': [N, dim], 'log_std': [N, dim], 'basis': [N, in_size, dim]}."""
        assert self.log_std is not None
        basis = features.detach()[..., None] * torch.exp(self.log_std)
        return {"mean": self.linear.forward(features), "basis": basis, "log_std": 0.5 * (basis.square().sum(-2) + 1e-6).log()}


class BetaHead(nn.Module, metaclass=Brief):
    """Actions 2 x − 1 in (−1, 1) with independent x ~ Beta(`alpha`, `beta`), each [N, dim] and 1 + softplus, so that there is one
    maximum (Chou et al. 2017)."""

    explorer = "beta"
    outputs = ("alpha", "beta")

    def __init__(self, in_size: int, dim: int, gain: float | None = 0.01) -> None:
        super().__init__()
        self.dim, self.linear = dim, OrthogonalLinear(in_size, 2 * dim, gain)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Features [N, in_size] → {'alpha': [N, dim], 'beta': [N, dim]}; a mask has no meaning here."""
        alpha, beta = (1.0 + F.softplus(self.linear.forward(features))).chunk(2, -1)
        return {"alpha": alpha, "beta": beta}

    def log_prob(self, out: Out, act: Tensor) -> Tensor:
        """log density [N], see `parl_like.learning.explorers.log_beta`; act [N, ...] with dim numbers per row."""
        return log_beta(out["alpha"], out["beta"], act.reshape(out["alpha"].shape))

    def entropy(self, out: Out) -> Tensor:
        """Σ log B(α, β) − (α − 1) ψ(α) − (β − 1) ψ(β) + (α + β − 2) ψ(α + β) + log 2, [N], in nats."""
        a, b = out["alpha"], out["beta"]
        log_b = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
        digammas = (a + b - 2.0) * torch.digamma(a + b) - (a - 1.0) * torch.digamma(a) - (b - 1.0) * torch.digamma(b)
        return (log_b + digammas + math.log(2.0)).sum(-1)

    def kl(self, out: Out, other: Out) -> Tensor:
        """KL(π ‖ π') = Σ log B(α', β') / B(α, β) + (α − α') ψ(α) + (β − β') ψ(β) + (α' − α + β' − β) ψ(α + β), [N], in nats."""
        a, b, a2, b2 = out["alpha"], out["beta"], other["alpha"], other["beta"]
        log_b = [torch.lgamma(x) + torch.lgamma(y) - torch.lgamma(x + y) for x, y in ((a, b), (a2, b2))]
        digammas = (a - a2) * torch.digamma(a) + (b - b2) * torch.digamma(b) + (a2 - a + b2 - b) * torch.digamma(a + b)
        return (log_b[1] - log_b[0] + digammas).sum(-1)


class StructuredHead(nn.Module, metaclass=Brief):
    """A head for each array of a Dict or Tuple, on the same features: given these, the parts are independent of each other, so
    log-probabilities and entropies are sums. Its outputs are theirs under dotted names: `logits.arm.grip`.

    Args:
        heads: Name of the array without `act`, such as `arm.grip` → its head.
    """

    explorer = "structured"

    def __init__(self, heads: Mapping[str, CategoricalHead | GaussianHead | BetaHead]) -> None:
        super().__init__()
        self.names, self.heads = list(heads), nn.ModuleList(heads.values())

    @property
    def parts(self) -> list[tuple[str, Any]]:
        return list(zip(self.names, self.heads, strict=True))

    def forward(self, features: Tensor, mask: Any = None) -> dict[str, Tensor]:
        """Features [N, in_size] and perhaps the masks of some arrays, nested like the action."""
        return {f"{kind}.{name}": value for name, head in self.parts
                for kind, value in head(features, None if mask is None else inside(mask, name)).items()}

    def log_prob(self, out: Out, act: Any) -> Tensor:
        """log π(act) [N]; act is nested like the space."""
        parts = [head.log_prob(part_of(out, name), inside(act, name)) for name, head in self.parts]
        return torch.stack(parts).sum(0)

    def entropy(self, out: Out) -> Tensor:
        """Sum of the heads' entropies, [N], in nats."""
        return torch.stack([head.entropy(part_of(out, name)) for name, head in self.parts]).sum(0)

    def kl(self, out: Out, other: Out) -> Tensor:
        """Sum of the heads' divergences KL(π ‖ π'), [N], in nats."""
        return torch.stack([head.kl(part_of(out, name), part_of(other, name)) for name, head in self.parts]).sum(0)


def inside(nested: Any, name: str) -> Any:
    """Return what nested mappings hold under a dotted name, '' is the whole; None where they have no such part."""
    for key in name.split(".") if name else ():
        if not isinstance(nested, (Mapping, Batch)) or key not in nested:
            return None
        nested = nested[key]
    return nested


Head = CategoricalHead | MultiCategoricalHead | GaussianHead | BetaHead | StructuredHead


def make_head(
    in_size: int, act: gym.Space[Any], gain: float | None = 0.01, log_std_init: float = 0.0, state_dependent_std: bool = False,
    distribution: Distribution = "gaussian",
) -> Head:
    """The head that fits an action space; of Box actions with this distribution.

    Args:
        in_size: Features of a row that the head reads, [N, in_size].
        gain: Of the orthogonal weights of its last layer; None: torch's own.
        log_std_init, state_dependent_std: Of a Box: log σ at the start, and whether it is computed from the features.

    Raises:
        TypeError: there is none for it. ValueError: a Dict or Tuple with a part that holds no number, an unknown distribution,
            'beta' or 'squashed' for a Box without finite bounds.
    """
    if distribution not in get_args(Distribution):
        raise ValueError(f"distribution is {distribution!r}; expected {', '.join(map(repr, get_args(Distribution)))}")
    if parts_of(act) is not None:
        heads: Any = {name.removeprefix("act."): make_head(in_size, part, gain, log_std_init, state_dependent_std, distribution)
                      for name, part in leaf_spaces(act, "act")}
        return StructuredHead(heads)
    if isinstance(act, gym.spaces.Discrete):
        return CategoricalHead(in_size, int(act.n), gain)
    if isinstance(act, gym.spaces.MultiDiscrete):
        return MultiCategoricalHead(in_size, act.nvec.ravel().tolist(), gain)
    if isinstance(act, gym.spaces.MultiBinary):
        return MultiCategoricalHead(in_size, [2] * math.prod(act.shape), gain)
    if isinstance(act, gym.spaces.Box):
        dim = math.prod(act.shape)
        if distribution in ("beta", "squashed") and not np.isfinite([act.low, act.high]).all():
            raise ValueError(f"distribution={distribution!r} is for a Box with finite bounds; got {act}, take 'gaussian'")
        if distribution == "beta":
            return BetaHead(in_size, dim, gain)
        if distribution == "squashed":
            return SquashedGaussianHead(in_size, dim, log_std_init, state_dependent_std, gain)
        if distribution == "gsde":
            return GSDEHead(in_size, dim, log_std_init, gain)
        return GaussianHead(in_size, dim, log_std_init, state_dependent_std, gain)
    raise TypeError(f"no policy head for actions in {act}; expected Discrete, MultiDiscrete, MultiBinary, Box, or a "
                    "Dict or Tuple of these")
