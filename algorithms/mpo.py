"""Maximum a posteriori policy optimisation: V-MPO, on-policy. The policy is fitted to better weights of what it did, no further
than given divergences away from where it was; temperature and penalties are Lagrange multipliers that are learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from parl_like.algorithm import Loss, Schedule
from parl_like.algorithms.actor_critic import ActorCritic, dealt
from parl_like.batch import Batch
from parl_like.model import Model

Out = Mapping[str, Tensor]


def reweighted(values: Tensor, log_eta: Tensor, epsilon: float, log_prior: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The weights ψ_k ∝ p_k exp(x_k / η) over K things of value x_k, and the loss of the temperature η,

        g(η) = η ε + η · mean log Σ_k p_k exp(x_k / η),   least where mean KL(ψ ‖ p) = ε (Abdolmaleki et al. 2018a).

    Args:
        values: x [..., K]. log_prior: log p [..., K]; None: all are equally probable.
        log_eta: log η, one number; the loss moves it.
        epsilon: ε, in nats.

    Returns:
        ψ [..., K] without a gradient, and g.
    """
    eta = log_eta.exp()
    scores = values.detach() / eta + (-math.log(values.shape[-1]) if log_prior is None else log_prior.detach())
    return torch.softmax(scores, -1).detach(), eta * (epsilon + torch.logsumexp(scores, -1).mean())


def one_by_one(old: Out, new: Out) -> Sequence[Out]:
    """`new` where only one thing has changed from `old`: of normal distributions first the means, then the standard deviations
    (Abdolmaleki et al. 2018b); of others all at once."""
    spread = {name for name in new if name.partition(".")[0] == "log_std"}
    if not spread:
        return (new,)
    return ({name: (old if name in spread else new)[name] for name in new},
            {name: (new if name in spread else old)[name] for name in new})


def held(head: Any, old: Out, new: Out, log_alpha: Tensor, epsilons: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Constraints mean KL(π_old ‖ π_i) ≤ ε_i, one for each of `one_by_one`, with multipliers α_i:

    penalty = Σ_i α_i KL_i, which moves the policy, and Σ_i α_i (ε_i − KL_i), the loss of the multipliers.

    Args:
        old, new: What the head reads, of the same rows; `old` without a gradient.
        log_alpha: log α, as many as there may be constraints; those that there are not stay as they are.

    Returns:
        The penalty, the loss of the multipliers, and the divergences, in nats.
    """
    kl = torch.stack([head.kl(old, one).mean() for one in one_by_one(old, new)])
    alpha = log_alpha.exp()[: len(kl)]
    return (alpha.detach() * kl).sum(), (alpha * (alpha.new_tensor(epsilons[: len(kl)]) - kl.detach())).sum(), kl.detach()


def logarithm(*numbers: float) -> torch.nn.Parameter:
    """Multipliers are kept as logarithms, so they stay above 0, and move by shares of themselves."""
    if min(numbers) <= 0.0:
        raise ValueError(f"temperature and multipliers begin at {', '.join(map(str, numbers))}; expected numbers above 0")
    return torch.nn.Parameter(torch.tensor(numbers if len(numbers) > 1 else numbers[0]).log())


def metrics(algorithm: Any, kl: Tensor) -> dict[str, Tensor]:
    """The temperature, each divergence and its multiplier."""
    alpha = algorithm.log_alpha.detach().exp()
    out = {"eta": algorithm.log_eta.detach().exp()}
    for i, name in enumerate(("", "_std")[: len(kl)]):
        out |= {f"kl{name}": kl[i], f"alpha{name}": alpha[i]}
    return out


class VMPO(ActorCritic):
    """On-policy maximum a posteriori policy optimisation (Song et al. 2020): of each minibatch the half with the largest
    advantages, weighed by these,

        ψ ∝ exp(A / η),   policy loss = −Σ_half ψ log π(a|s) + Σ_i α_i · mean(KL_i),   value loss = mean((G − V)²),

    dual loss = η ε_η + η log mean_half exp(A / η) + Σ_i α_i (ε_i − mean(KL_i)), A from GAE, G = A + V.

    KL_1 = KL(π_old ‖ π) for discrete actions; for normal distributions KL_1 is the part of the means, KL_2 that of the standard
    deviations. π_old is the policy at the beginning of the lesson: a minibatch is what the paper calls a batch, and a lesson, one
    pass in the paper, is the life of its target network.

    Args:
        model: As for A2C; its head has `kl`.
        epsilon_eta: ε_η, in nats. epsilon_alpha, epsilon_std: ε_1 and ε_2.
        eta, alpha: Where η and all α begin; for discrete actions 1 and 5 as published.
        dual_lr: Adam's rate of their logarithms.
        epochs, minibatches: As for PPO.
        The rest: see `ActorCritic`; the paper has n-step returns (`lam=1`).
    """

    calls = {**ActorCritic.calls, "head": f"{ActorCritic.calls['head']} kl(out, other) -> [N],"}

    def __init__(
        self, model: Model | Callable[[], Model], *, epsilon_eta: float = 0.02, epsilon_alpha: float = 0.01,
        epsilon_std: float = 5e-5, eta: float = 1.0, alpha: float = 5.0, dual_lr: float | Schedule = 0.01, epochs: int = 1,
        minibatches: int = 4, gamma: float = 0.99, lam: float = 0.95, value_weight: float = 0.5, normalize: bool = False,
        reward_scale: float = 1.0, lr: float | Schedule = 3e-4, max_grad_norm: float | None = 0.5,
    ) -> None:
        super().__init__(model, gamma=gamma, lam=lam, value_weight=value_weight, normalize=normalize, reward_scale=reward_scale,
                         lr=lr, max_grad_norm=max_grad_norm)
        if epochs < 1 or minibatches < 1 or min(epsilon_eta, epsilon_alpha, epsilon_std) <= 0.0:
            raise ValueError(f"VMPO: epochs is {epochs}, minibatches {minibatches}, epsilon_eta {epsilon_eta}, epsilon_alpha "
                             f"{epsilon_alpha} and epsilon_std {epsilon_std}; expected at least 1, and bounds above 0")
        self.epsilon_eta, self.epsilons = epsilon_eta, (epsilon_alpha, epsilon_std)
        self.epochs, self.n_minibatches = epochs, minibatches
        self.log_eta, self.log_alpha = logarithm(eta), logarithm(alpha, alpha)
        self.losses = {"policy": Loss(self.model, lr, max_grad_norm), "dual": Loss([self.log_eta, self.log_alpha], dual_lr)}

    def check_model(self, inputs: Batch) -> None:
        super().check_model(inputs)
        self.check_kl(inputs)

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        names = ["obs", "act", "advantage", "returns", "out", *(("last", "state") if self.recurrent else ())]
        fields, parts = Batch({name: batch[name] for name in names}), min(self.n_minibatches, len(batch.last))
        for _ in range(self.epochs):
            yield from dealt(fields, batch.last, parts, self.rng, self.recurrent)

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        out, value = self.evaluate(batch)
        best = torch.topk(batch.advantage, (len(batch.advantage) + 1) // 2).indices
        weights, dual = reweighted(batch.advantage[best], self.log_eta, self.epsilon_eta)
        policy_loss = -(weights * self.model.head.log_prob(out, batch.act)[best]).sum()
        penalty, prices, kl = held(self.model.head, batch.out, out, self.log_alpha, self.epsilons)
        value_loss, entropy = self.value_and_entropy(out, value, batch)
        yield {"policy": policy_loss + penalty + self.value_weight * value_loss, "dual": dual + prices,
               "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, **metrics(self, kl)}
