"""Natural policy gradients: NPG, whose steps have a given length in KL divergence, and TRPO, which makes sure that they do."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parl_like.algorithms.actor_critic import ActorCritic
from parl_like.algorithms.unrolls import minibatches_of, parts_of
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Loss, Schedule, value_of
from parl_like.learning.model import Model
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, Spec, leaves, nest


class NPG(ActorCritic):
    """Natural policy gradient (Kakade 2001; Rajeswaran et al. 2017 for the length of the step), one step per update:

        g = ∇ mean(ρ A),   ρ = π(a|s) / π_old(a|s),   F = ∇² mean(KL(π_old ‖ π)) + damping,   F x = g by conjugate gradients,
        θ ← θ + √(2 δ / xᵀ F x) · x,          so that the divergence is δ as far as it is quadratic;

    then `value_epochs` passes of minibatches over the rows for the values: loss = mean((G − V)²), A from GAE, G = A + V.

    The two move different parameters. What both read, such as a trunk, follows the policy alone, or the values' steps would move
    it again.

    Differences:
        - F is the second derivative of the mean divergence, plus `damping`; Kakade's is the expected outer product of ∇ log π,
          which it equals at π_old.
        - Advantages are GAE's, normalised; Kakade has compatible values, which are fitted by the same features as the policy.

    Args:
        model: As for A2C, without memory; its values have parameters of their own.
        delta: δ, in nats, a number or a schedule over the updates.
        cg_steps: Of the conjugate gradients. damping: Times the identity, added to F.
        lr, max_grad_norm, value_epochs, value_minibatches: Of the values; a schedule counts updates.
        The rest: see `ActorCritic`.

    Raises:
        TypeError: the model has a memory.
        ValueError: delta is not above 0, damping is negative, or a count is below 1; or the values have no parameters of their
            own.
    """

    compares = True
    fitting_models = "MLPActorCritic and ConvActorCritic"
    takes = Takes()
    calls = {**ActorCritic.calls, "head": f"{ActorCritic.calls['head']} kl(out, other) -> [N],"}

    def __init__(
        self, model: Model | Callable[[], Model], *, delta: float | Schedule = 0.01, cg_steps: int = 10,
        damping: float = 0.1, value_epochs: int = 10, value_minibatches: int = 16, gamma: float = 0.99, lam: float = 0.95,
        normalize: bool = True, reward_scale: float = 1.0, lr: float | Schedule = 1e-3, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, lam=lam, normalize=normalize, reward_scale=reward_scale, lr=lr,
                         max_grad_norm=max_grad_norm)
        name = type(self).__name__
        if self.recurrent:
            raise TypeError(f"{name}: {type(self.model).__name__} has a memory; use a model without one, such as MLPActorCritic")
        if not value_of(delta, 0) > 0.0 or damping < 0.0 or min(cg_steps, value_epochs, value_minibatches) < 1:
            raise ValueError(f"{name}: delta is {delta}, damping {damping}, cg_steps {cg_steps}, value_epochs {value_epochs} and "
                             f"value_minibatches {value_minibatches}; expected delta above 0, damping of at least 0, the others "
                             "of at least 1")
        self.delta, self.cg_steps, self.damping = delta, cg_steps, damping
        self.value_epochs, self.value_minibatches = value_epochs, value_minibatches
        moves, values = (list(part.values()) for part in divided(self.model))
        self.moves = moves
        if not values:
            raise ValueError(f"{name}: the policy of {type(self.model).__name__} reads all parameters that its values read; give "
                             "these some of their own, as MLPActorCritic does")
        self.losses = {"critic": Loss(values, "lr", "max_grad_norm")}

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        self.check_kl(inputs)

    def surrogate(self, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """mean(ρ A), and what the head reads."""
        out, _ = self.model.policy(batch.obs)
        return ((self.model.head.log_prob(out, batch.act) - batch.log_prob).exp() * batch.advantage).mean(), out

    def divergence(self, batch: Batch, out: Mapping[str, Tensor]) -> Tensor:
        """mean KL(π_old ‖ π), π_old that at the beginning of the update."""
        return self.model.head.kl(batch.out, out).mean()  # type: ignore[no-any-return]

    def direction(self, batch: Batch) -> tuple[Tensor, float]:
        """The whole step, one flat vector, and mean(ρ A) where it begins."""
        before, out = self.surrogate(batch)
        gradient = slopes(before, self.moves)
        slope = slopes(self.divergence(batch, out), self.moves, again=True)

        def product(v: Tensor) -> Tensor:
            return slopes(slope @ v, self.moves) + self.damping * v

        x = conjugate_gradients(product, gradient, self.cg_steps)
        curvature = float((x @ product(x)).detach())
        length = math.sqrt(2.0 * value_of(self.delta, self.updates) / curvature) if curvature > 0.0 else 0.0
        return length * x, float(before.detach())

    def move(self, batch: Batch, step: Tensor, before: float) -> float:
        """Takes it; returns which share of it."""
        self.add(step)
        return 1.0

    @torch.no_grad()
    def add(self, step: Tensor) -> None:
        begin = 0
        for parameter in self.moves:
            parameter.add_(step[begin : begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, Mapping[str, Any]]:
        step, before = self.direction(batch)
        share = self.move(batch, step, before)
        with torch.no_grad():
            after, out = self.surrogate(batch)
            result = {"kl": self.divergence(batch, out), "share": share, "improvement": after - before,
                      "entropy": self.model.head.entropy(out).mean()}
        fields = Batch(obs=batch.obs, returns=batch.returns)
        parts = parts_of(self, len(batch.last), self.value_minibatches, "value_minibatches")
        for _ in range(self.value_epochs):
            for rows in minibatches_of(fields, batch.last, parts, self.rng, whole=False):
                yield {"critic": (self.model.value(rows.obs) - rows.returns).square().mean()}
        return result


class TRPO(NPG):
    """Trust region policy optimisation (Schulman et al. 2015): NPG's step, shortened by `shrink` until it brings a gain and a
    divergence of at most δ; after `backtracks` times there is none.

    The divergence of a Box of d numbers is that of their joint distribution, the sum over them. sb3-contrib (2.9) takes the mean
    over them, so its δ allows d times the divergence, and steps about √d times as long: for its steps give d · δ. With one
    number, and with Discrete actions, both are equal.

    Differences:
        - Advantages are GAE's, normalised, with learned values; the paper sums the rewards of single paths, or of vines.
        - F is made of all rows, and `damping` is added; the paper makes it of a part of them (appendix C).

    Args:
        backtracks: Times that it is shortened; None: the whole step is taken, as by NPG.
        shrink: Factor of each time.
        The rest: see `NPG`.

    Raises:
        ValueError: shrink is not between 0 and 1, or backtracks is negative.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, backtracks: int | None = 10, shrink: float = 0.8,
        delta: float | Schedule = 0.01, cg_steps: int = 10, damping: float = 0.1, value_epochs: int = 10,
        value_minibatches: int = 16, gamma: float = 0.99, lam: float = 0.95, normalize: bool = True, reward_scale: float = 1.0,
        lr: float | Schedule = 1e-3, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, delta=delta, cg_steps=cg_steps, damping=damping, value_epochs=value_epochs,
                         value_minibatches=value_minibatches, gamma=gamma, lam=lam, normalize=normalize,
                         reward_scale=reward_scale, lr=lr, max_grad_norm=max_grad_norm)
        if not 0.0 < shrink < 1.0 or backtracks is not None and backtracks < 0:
            raise ValueError(f"TRPO: backtracks is {backtracks} and shrink {shrink}; expected at least 0, or None, and a number "
                             "between 0 and 1")
        self.backtracks, self.shrink = backtracks, shrink

    @torch.no_grad()
    def move(self, batch: Batch, step: Tensor, before: float) -> float:
        if self.backtracks is None:
            return super().move(batch, step, before)
        start = [parameter.clone() for parameter in self.moves]
        for share in (self.shrink**k for k in range(self.backtracks + 1)):
            self.add(share * step)
            after, out = self.surrogate(batch)
            if after > before and self.divergence(batch, out) <= value_of(self.delta, self.updates):
                return share
            for parameter, value in zip(self.moves, start, strict=True):
                parameter.copy_(value)
        return 0.0


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int, tolerance: float = 1e-10) -> Tensor:
    """x with F x ≈ b (Hestenes & Stiefel 1952), from x = 0.

    Args:
        product: v [n] → F v [n], F symmetric and positive definite.
        b: [n].
        steps: At most so many; n are enough but for rounding.
        tolerance: Squared norm of the residual at which it ends.
    """
    x, residual = torch.zeros_like(b), b.clone()
    along, norm = b.clone(), b @ b
    for _ in range(steps):
        if norm <= tolerance:
            break
        image = product(along)
        rate = norm / (along @ image)
        x += rate * along
        residual -= rate * image
        before, norm = norm, residual @ residual
        along = residual + norm / before * along
    return x


def slopes(y: Tensor, parameters: Sequence[Tensor], again: bool = False) -> Tensor:
    """The gradient of a scalar as one flat vector, zeros for what it does not depend on; `again`: with a graph of its own."""
    found = torch.autograd.grad(y, tuple(parameters), retain_graph=True, create_graph=again, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in found])


def divided(model: Model) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.nn.Parameter]]:
    """By name the parameters that the policy reads, and those that only the values read, if there are any.

    A tensor that holds numbers of both, as `EnsembleMLP` has them, is in both: the gradient of either is zero in the other's
    numbers. Which numbers matter is found out with random parameters and rows.

    A memory is random, too, for from an empty one its weights have no slope, and what is written into it counts as read: a later
    step may read it. The second step is for memories that look at nothing before they hold two steps.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    other: Any = model.clone()
    own = [p for p in other.parameters() if p.requires_grad]
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in own:
            parameter.add_(torch.from_numpy(0.3 * rng.standard_normal(tuple(parameter.shape))).to(parameter.dtype))
    rows = nest({name: torch.from_numpy(_random(spec, rng)) for name, spec in model.inputs().items()})
    obs, state = rows["obs"], rows.get("state", {})
    out, after = other.policy(obs, state or None)
    if state:
        out, after = other.policy(obs, {**state, **after})
        out = {"out": out, "state": after}

    def read_by(outputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(sum(part.square().sum() for part in outputs), own, materialize_grads=True)  # type: ignore

    policy = read_by(part for _, part in leaves(out, "", loose=True))
    value = read_by([other.value(obs)]) if hasattr(other, "value") else [torch.zeros_like(p) for p in own]
    found = list(zip(parameters.items(), policy, value, strict=True))
    return ({name: p for (name, p), a, _ in found if a.any()},
            {name: p for (name, p), a, b in found if b.any() and not (a * b).any()})


def _random(spec: Spec, rng: np.random.Generator) -> Array:
    """Eight rows within the bounds."""
    shape = 8, *spec.shape
    if spec.dtype.kind == "f":
        numbers = rng.standard_normal(shape)
        return (numbers if spec.low is None else np.clip(numbers, spec.low, spec.high)).astype(spec.dtype)
    low, high = (0, 1) if spec.low is None else (spec.low, spec.high)
    return rng.integers(low, high, shape, endpoint=True).astype(spec.dtype)
