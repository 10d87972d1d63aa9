"""V-MPO, on-policy maximum a posteriori policy optimisation (Song et al. 2020): the policy is fitted to the better half of its
own actions, no further than given divergences away from where it was; see `parl_like.algorithms.mpo`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import torch

from parl_like.algorithms.actor_critic import ActorCritic
from parl_like.algorithms.mpo import kl_penalty, metrics, multipliers, reweighted
from parl_like.algorithms.unrolls import minibatches_of, parts_of
from parl_like.learning.algorithm import Loss, Schedule
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class VMPO(ActorCritic):
    """On-policy maximum a posteriori policy optimisation (Song et al. 2020): of each minibatch the half with the largest
    advantages, weighed by these,

        ψ ∝ exp(A / η),   policy loss = −Σ_half ψ log π(a|s) + Σ_i α_i · mean(KL_i),   value loss = mean((G − V)²),

    dual loss = η ε_η + η log mean_half exp(A / η) + Σ_i α_i (ε_i − mean(KL_i)), A from GAE, G = A + V.

    KL_1 = KL(π_old ‖ π) for discrete actions; for normal distributions KL_1 is the part of the means, KL_2 that of the standard
    deviations. π_old is the policy at the beginning of the update.

    Differences:
        - Advantages are GAE's; the paper has n-step returns (`lam=1`).
        - A minibatch is what the paper calls a batch, and an update, one pass in the paper, is the life of its target network.
        - The multipliers' loss has log α in place of α as the factor of each bound, see `mpo.kl_penalty`.
        - Values are not rescaled; the paper's agents of many tasks have PopArt.

    Args:
        model: As for A2C; its head has `kl`.
        epsilon_eta: ε_η, in nats. epsilon_alpha, epsilon_std: ε_1 and ε_2.
        eta, alpha: Where η and all α begin; for discrete actions 1 and 5 as published.
        dual_lr: Adam's rate of their logarithms.
        epochs, minibatches: As for PPO. normalize: Off, for η is in the units of the advantages.
        The rest: see `ActorCritic`.
    """

    compares = True
    calls = {**ActorCritic.calls, "head": f"{ActorCritic.calls['head']} kl(out, other) -> [N],"}

    def __init__(
        self, model: Model | Callable[[], Model], *, epsilon_eta: float = 0.02, epsilon_alpha: float = 0.01,
        epsilon_std: float = 5e-5, eta: float = 1.0, alpha: float = 5.0, dual_lr: float | Schedule = 0.01, epochs: int = 1,
        minibatches: int = 4, gamma: float = 0.99, lam: float = 0.95, value_weight: float = 0.5, normalize: bool = False,
        reward_scale: float = 1.0, lr: float | Schedule = 3e-4, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, gamma=gamma, lam=lam, value_weight=value_weight, normalize=normalize, reward_scale=reward_scale,
                         lr=lr, max_grad_norm=max_grad_norm)
        self.epochs, self.n_minibatches = epochs, minibatches
        self.epsilon_eta, self.epsilons = epsilon_eta, (epsilon_alpha, epsilon_std)
        self.log_eta, self.log_alpha = multipliers(eta, alpha, epsilon_eta, *self.epsilons)
        self.dual_lr = dual_lr
        self.losses = {"policy": Loss(self.model, "lr", "max_grad_norm"), "dual": Loss([self.log_eta, self.log_alpha], "dual_lr")}

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "minibatches": "it is kept as `n_minibatches`; assign that"}

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        self.check_kl(inputs)

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        names = ["obs", "act", "advantage", "returns", "out", *(("last", "state") if self.recurrent else ())]
        fields = Batch({name: batch[name] for name in names})
        parts = parts_of(self, len(batch.last), self.n_minibatches, "minibatches")
        for _ in range(self.epochs):
            yield from minibatches_of(fields, batch.last, parts, self.rng, self.recurrent)

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        out, value = self.evaluate(batch)
        best = torch.topk(batch.advantage, (len(batch.advantage) + 1) // 2).indices
        weights, dual = reweighted(batch.advantage[best], self.log_eta, self.epsilon_eta)
        policy_loss = -(weights * self.model.head.log_prob(out, batch.act)[best]).sum()
        penalty, prices, kl = kl_penalty(self.model.head, batch.out, out, self.log_alpha, self.epsilons)
        value_loss, entropy = self.value_and_entropy(out, value, batch)
        yield {"policy": policy_loss + penalty + self.value_weight * value_loss, "dual": dual + prices,
               "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy,
               **metrics(self.log_eta, self.log_alpha, kl)}
