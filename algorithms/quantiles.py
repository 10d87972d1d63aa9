"""The distribution of returns as quantiles: QR-DQN (Dabney, Rowland et al. 2018a), IQN (Dabney, Ostrovski et al. 2018b) and FQF
(Yang et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from parl_like.algorithms.distributions import check_values, midpoints, of_actions, quantile_huber
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.targets import row_mean
from parl_like.learning.algorithm import Loss, Schedule
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_methods, check_shape
from parl_like.values.batch import Batch


class QRDQN(DQN):
    """y_j = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · θ⁻_j(s', a*),   loss = Σ_i mean_j |τ_i − [y_j < θ_i]| · H_κ(y_j − θ_i),

    θ_i = θ_i(s, a) the network's quantiles at the midpoints τ_i = (i + ½) / K, θ⁻ those of the target copy, H_κ the Huber loss
    divided by κ, see `distributions.quantile_huber`; a* is the best action by the means of the network's quantiles, or without
    `double` of the target's. Priority of a row: the largest over i of |mean_j y_j − θ_i|. Acting goes by the
    means; that and everything else is as in `DQN`.

    Differences:
        - With `double`, the default, the network chooses a*; in the paper the target copy does.
        - H_κ is divided by κ, as in the paper of IQN; with κ = 1 this changes nothing.
        - Gradients are clipped at a norm of 10, and Adam's ε is 10⁻⁵; the paper names no clipping, and has 0.01 / 32.

    Args:
        model: Offers `q(obs) -> [N, A]`, the means, and `values(obs) -> [N, A, K]`, the quantiles.
        kappa: κ ≥ 0, in the units of the values.
        The others: As for `DQN`.

    Raises:
        ValueError: kappa is negative.
    """

    calls = {"q": "q(obs) -> [N, A], the mean return of every action,", "values": "values(obs) -> [N, A, K], its quantiles,"}
    fitting_models = "MLPQ and ConvQ, with `heads`"

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, target_period: int = 500,
        tau: float | None = None, double: bool = True, kappa: float = 1.0, epsilon: float | Schedule = 0.1,
        lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double,
                         epsilon=epsilon, lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        if not kappa >= 0.0:
            raise ValueError(f"{type(self).__name__}: kappa is {kappa}; expected a number of at least 0")
        self.kappa = kappa

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        check_values(self, inputs)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, K]."""
        rew, discount = self.begin(batch)
        quantiles = of_actions(self.target.values(batch.obs_next), self.best(batch.obs_next))
        batch.target = rew[:, None] + discount[:, None] * quantiles
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        quantiles = of_actions(self.model.values(batch.obs), batch.act)
        return quantile_update(batch, quantiles, midpoints(quantiles.shape[1], quantiles.device), self.kappa)


class IQN(QRDQN):
    """As QR-DQN, with quantiles at any τ: each row draws `n` for its predictions θ_i and `n_target` for its targets y_j, anew in
    each update:

        loss = Σ_i mean_j |τ_i − [y_j < θ_i]| · H_κ(y_j − θ_i),   θ_i = θ(s, a; τ_i),   τ_i, τ_j evenly from [0, 1).

    Acting goes by the means over fixed τ, the midpoints of as many steps as the model says.

    Differences:
        - Acting goes by fixed τ, so that an action depends on the observation alone; published agents draw 32 of them for each
          action.
        - With `double`, the default, the network chooses a*; in the paper the target copy does.
        - `n` and `n_target` are 8; Dopamine's settings for the paper have 64.
        - There are no distorted, risk-sensitive policies.

    Args:
        model: Offers `q(obs) -> [N, A]` and `quantiles(obs, fractions [N, K]) -> [N, A, K]`.
        n, n_target: N and N' of the paper.
        The others: As for `QRDQN`.

    Raises:
        ValueError: n or n_target is below 1.
    """

    calls = {"q": QRDQN.calls["q"], "quantiles": "quantiles(obs, fractions [N, K]) -> [N, A, K], its quantiles,"}
    fitting_models = "MLPImplicitQ and ConvImplicitQ"

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, target_period: int = 500,
        tau: float | None = None, double: bool = True, n: int = 8, n_target: int = 8, kappa: float = 1.0,
        epsilon: float | Schedule = 0.1, lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double, kappa=kappa,
                         epsilon=epsilon, lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        if n < 1 or n_target < 1:
            raise ValueError(f"IQN: n is {n} and n_target {n_target}; expected at least 1")
        self.n, self.n_target = n, n_target

    def check_model(self, inputs: Batch) -> None:
        DQN.check_model(self, inputs)
        quantiles = answer(self, "quantiles", inputs.obs, midpoints(3).expand(2, 3))
        check_shape(self, "quantiles", quantiles, (2, int(self.model.act_space.n), 3))

    def draw(self, rows: int, n: int, device: Any) -> Tensor:
        """Fractions τ [rows, n]."""
        return torch.rand(rows, n, generator=self.torch_rng, device=device)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, N']."""
        rew, discount = self.begin(batch)
        quantiles = self.target.quantiles(batch.obs_next, self.draw(len(rew), self.n_target, rew.device))
        batch.target = rew[:, None] + discount[:, None] * of_actions(quantiles, self.best(batch.obs_next))
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        fractions = self.draw(len(batch.act), self.n, batch.target.device)
        return quantile_update(batch, of_actions(self.model.quantiles(batch.obs, fractions), batch.act), fractions, self.kappa)


class FQF(QRDQN):
    """IQN whose fractions 0 = τ_0 < … < τ_K = 1 a small network chooses for each state, so that quantiles at their middles
    τ̂_i = (τ_i + τ_{i+1}) / 2 come nearest to the distribution, in the sense of Wasserstein's W₁:

    fraction loss = mean Σ_{0<i<K} τ_i · (2 θ(τ_i) − θ(τ̂_i) − θ(τ̂_{i−1})) − entropy · H(τ_{i+1} − τ_i),

    with the bracket, θ of the taken action, as a constant: it is ∂W₁/∂τ_i. It moves `proposal` alone. Quantile loss, targets (at
    the middles for s') and everything else are as in `QRDQN`.

    Differences:
        - `fraction_lr` is 10⁻⁵, and the optimiser Adam; published are 2.5e-9 and RMSProp.
        - Targets stand at the fractions that the network chooses for s'; in the authors' program the target copy chooses them.
        - With `double`, the default, the network chooses a*; in the paper the target copy does.

    Args:
        model: Offers `q(obs) -> [N, A]`, `quantiles(obs, fractions [N, K]) -> [N, A, K]`, `edges(obs) -> [N, K + 1]`, the
            fractions τ, and `proposal`, the module that chooses them.
        entropy: Weight of the entropy of the steps between fractions, which keeps them apart.
        fraction_lr: Adam's learning rate of the fraction loss.
        The others: As for `QRDQN`.
    """

    calls = {**IQN.calls, "edges": "edges(obs) -> [N, K + 1], fractions from 0 to 1,",
             "proposal": "proposal, which chooses them,"}
    fitting_models = "MLPFractionQ and ConvFractionQ"

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, target_period: int = 500,
        tau: float | None = None, double: bool = True, kappa: float = 1.0, entropy: float = 0.001,
        fraction_lr: float | Schedule = 1e-5, epsilon: float | Schedule = 0.1, lr: float | Schedule = 1e-3,
        max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=target_period, tau=tau, double=double, kappa=kappa,
                         epsilon=epsilon, lr=lr, max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        check_methods(self)  # the module that is read below, among them
        self.entropy, self.fraction_lr = entropy, fraction_lr
        own = {id(parameter) for parameter in self.model.proposal.parameters()}
        rest = [parameter for parameter in self.model.parameters() if id(parameter) not in own]
        self.losses = {"loss": Loss(rest, "lr", "max_grad_norm"),
                       "fractions": Loss(self.model.proposal, "fraction_lr", "max_grad_norm")}

    def check_model(self, inputs: Batch) -> None:
        DQN.check_model(self, inputs)
        edges = answer(self, "edges", inputs.obs)
        check_shape(self, "edges", edges, (2, edges.shape[-1]))
        quantiles = answer(self, "quantiles", inputs.obs, edges)
        check_shape(self, "quantiles", quantiles, (2, int(self.model.act_space.n), edges.shape[1]))

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N, K]."""
        rew, discount = self.begin(batch)
        edges = self.model.edges(batch.obs_next)
        quantiles = self.target.quantiles(batch.obs_next, (edges[:, 1:] + edges[:, :-1]) / 2)
        batch.target = rew[:, None] + discount[:, None] * of_actions(quantiles, self.best(batch.obs_next))
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        edges = self.model.edges(batch.obs)
        middles = (edges[:, 1:] + edges[:, :-1]).detach() / 2
        theta = of_actions(self.model.quantiles(batch.obs, middles), batch.act)
        with torch.no_grad():
            slope = 2 * of_actions(self.model.quantiles(batch.obs, edges[:, 1:-1]), batch.act) - theta[:, 1:] - theta[:, :-1]
        steps = edges.diff().clamp(min=torch.finfo(edges.dtype).tiny)  # a step that rounds to 0 would have no slope
        entropy = -torch.xlogy(steps, steps).sum(1)
        fractions = (edges[:, 1:-1] * slope).sum(1) - self.entropy * entropy
        return quantile_update(batch, theta, middles, self.kappa) | {"fractions": row_mean(fractions, batch),
                                                                     "entropy": entropy.detach().mean()}


def quantile_update(batch: Batch, quantiles: Tensor, fractions: Tensor, kappa: float) -> dict[str, Tensor]:
    """Return what `learn` returns, of the rows' quantiles [N, K] at these fractions, [N, K] or [K], and their targets [N, J]."""
    losses = quantile_huber(quantiles, batch.target, fractions, kappa)
    errors = (batch.target.mean(1, keepdim=True) - quantiles.detach()).abs()
    return {"loss": row_mean(losses, batch), "priority": errors.amax(1), "q": quantiles.detach().mean()}
