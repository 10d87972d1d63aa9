"""MPO, maximum a posteriori policy optimisation, off-policy, and what V-MPO shares with it. The policy is fitted to a better
one, which weighs its actions anew, no further than given divergences away from where it was; the temperature of the weights and
the prices of the divergences are Lagrange multipliers that are learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from parl_like.algorithms.actor_q import actor_and_critics, check_actor_q, critic_terms
from parl_like.algorithms.sac import SAC
from parl_like.algorithms.targets import powers, rewards_and_discount
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Loss, Schedule, Window
from parl_like.learning.array_prediction import gives
from parl_like.learning.explorers import Categorical, Explorer, SquashedGaussian
from parl_like.learning.model import Model
from parl_like.values.batch import Batch

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


def kl_penalty(head: Any, old: Out, new: Out, log_alpha: Tensor, epsilons: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Constraints mean KL(π_old ‖ π_i) ≤ ε_i, one for each of `one_by_one`, with multipliers α_i:

    penalty = Σ_i α_i KL_i, which moves the policy, and Σ_i log α_i · (ε_i − KL_i), the loss of the multipliers. Its slopes in
    log α are those of the published one, Σ_i α_i (ε_i − KL_i), but for a factor α_i, for which Adam would take small steps down
    from a multiplier that has been large.

    Args:
        old, new: What the head reads, of the same rows; `old` without a gradient.
        log_alpha: log α, as many as there may be constraints; those that there are not stay as they are.

    Returns:
        The penalty, the loss of the multipliers, and the divergences, in nats.
    """
    kl = torch.stack([head.kl(old, one).mean() for one in one_by_one(old, new)])
    log_alpha = log_alpha[: len(kl)]
    room = log_alpha.new_tensor(epsilons[: len(kl)]) - kl.detach()
    return (log_alpha.detach().exp() * kl).sum(), (log_alpha * room).sum(), kl.detach()


def multipliers(eta: float, alpha: float, *epsilons: float) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    """log η and two log α, which begin there; logarithms, so that they stay above 0. Their bounds are checked, too.

    Raises:
        ValueError: a number is not above 0.
    """
    if min(eta, alpha, *epsilons) <= 0.0:
        raise ValueError(f"temperature and multipliers begin at {eta} and {alpha}, and the bounds of divergences are {epsilons}; "
                         "expected numbers above 0")
    return torch.nn.Parameter(torch.tensor(eta).log()), torch.nn.Parameter(torch.tensor([alpha, alpha]).log())


def metrics(log_eta: Tensor, log_alpha: Tensor, kl: Tensor) -> dict[str, Tensor]:
    """The temperature, each divergence and its multiplier."""
    alpha = log_alpha.detach().exp()
    out = {"eta": log_eta.detach().exp()}
    for i, name in enumerate(("", "_std")[: len(kl)]):
        out |= {f"kl{name}": kl[i], f"alpha{name}": alpha[i]}
    return out


class MPO(Algorithm):
    """Maximum a posteriori policy optimisation (Abdolmaleki et al. 2018a), with the parts of the policy held apart (2018b) and
    n-step targets (Hoffman et al. 2020). With K actions of π⁻ in s, all where these are Discrete, drawn ones for a Box:

        y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · E_{a'~π⁻(s')} min_j Q⁻_j(s', a'),
        critic loss = Σ_j mean (Q_j(s, a) − y)²,
        ψ_k ∝ p_k exp(min_j Q⁻_j(s, a_k) / η),   actor loss = −mean Σ_i Σ_k ψ_k log π_i(a_k|s) + Σ_i α_i · mean(KL_i),
        dual loss = η ε_η + η · mean log Σ_k p_k exp(min_j Q⁻_j(s, a_k) / η) + Σ_i α_i (ε_i − mean(KL_i)),

    where p = π⁻ for Discrete, 1/K for a Box; π_i is the policy, of a normal distribution π_1 with the standard deviations of π⁻
    and π_2 with its means; KL_i = KL(π⁻ ‖ π_i). A tanh after the normal distribution changes no divergence. Every `target_period`
    updates π⁻, Q⁻ ← π, Q. Rows, rewards, ends, weights and priorities are as in `TD3`.

    Differences:
        - Targets are uncorrected returns of `n_step` steps (Hoffman et al. 2020); those of 2018a are Retrace's.
        - Values are the least of all critics; with one critic (`critics=1`) they are the paper's.
        - A tanh bounds actions, and their numbers are independent; the normal distributions of 2018a are unbounded, with a full
          covariance.
        - The multipliers' loss has log α in place of α as the factor of each bound, see `kl_penalty`.

    Args:
        model: As for SAC; `head` also has `log_prob(out, act)`, `kl(out, other)` and `entropy(out)`.
        samples: K for a Box.
        epsilon_eta: ε_η, in nats. epsilon_alpha, epsilon_std: ε_1 and ε_2.
        eta, alpha: Where η and all α begin.
        lr, actor_lr, dual_lr: Adam's, of the critics, of the actor (None: the same), and of log η and log α.

    Raises:
        ValueError: samples or target_period is below 1, or a bound, η or an α is not above 0.
    """

    one_reward = True
    calls = {**SAC.calls, "head": "head: log_probs(out) -> [N, A], or draw and log_prob; kl(out, other) -> [N], "
             "entropy(out) -> [N],"}
    fitting_models = "MLPActorQ"
    takes = Takes(("Discrete", "Box"), images=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 5, target_period: int = 100,
        samples: int = 20, epsilon_eta: float = 0.1, epsilon_alpha: float = 0.0025, epsilon_std: float = 1e-5, eta: float = 1.0,
        alpha: float = 1.0, lr: float | Schedule = 3e-4, actor_lr: float | Schedule | None = None,
        dual_lr: float | Schedule = 0.01, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        if samples < 1 or target_period < 1:
            raise ValueError(f"MPO: samples is {samples} and target_period {target_period}; expected at least 1 each")
        self.discrete = isinstance(self.model.act_space, gym.spaces.Discrete)
        self.samples, self.target_period, self.window = samples, target_period, Window(n_step=n_step, in_order=False)
        self.discounts, self.target = powers(gamma, n_step), self.model.clone()
        self.epsilon_eta, self.epsilons = epsilon_eta, (epsilon_alpha, epsilon_std)
        self.log_eta, self.log_alpha = multipliers(eta, alpha, epsilon_eta, *self.epsilons)
        self.actor_lr, self.dual_lr = actor_lr, dual_lr
        self.losses = {**actor_and_critics(self), "dual": Loss([self.log_eta, self.log_alpha], "dual_lr")}

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def check_model(self, inputs: Batch) -> None:
        check_actor_q(self, inputs, "kl", "entropy", *(("log_probs",) if self.discrete else ("draw", "log_prob")))

    def explorer(self) -> Explorer:
        return Categorical() if self.discrete else SquashedGaussian(self.model.act_space.shape)

    @gives("policy")
    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return self.model.policy(inputs.obs)  # type: ignore[no-any-return]

    def weighed(self, obs: Any) -> Batch:
        """`out` of π⁻, actions `act` [N, K, …] (a Box), their `log_p` and `value`, both [N, K]."""
        out = Batch(self.target.policy(obs))
        if self.discrete:
            return Batch(out=out, log_p=self.target.head.log_probs(out), value=self.target.q(obs).amin(0))
        n, k = len(out.mean), self.samples
        index = torch.arange(n, device=out.mean.device).repeat_interleave(k)
        noise = torch.randn((n * k, *out.mean.shape[1:]), generator=self.torch_rng, device=out.mean.device)
        act, _ = self.target.head.draw(out[index], noise)
        value = self.target.q(obs[index], act).amin(0).reshape(n, k)
        return Batch(out=out, act=act.reshape(n, k, -1), log_p=torch.full_like(value, -math.log(k)), value=value)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N], and `old`, see `weighed`."""
        rew, discount = rewards_and_discount(batch, self.discounts)
        after = self.weighed(batch.obs_next)
        batch.target = rew + discount * (after.log_p.exp() * after.value).sum(1)
        batch.old = self.weighed(batch.obs)
        return batch

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        q = self.model.q(batch.obs)[:, range(len(batch)), batch.act] if self.discrete else self.model.q(batch.obs, batch.act)
        error = q - batch.target
        yield critic_terms(error, batch)
        old, out, head = batch.old, self.model.policy(batch.obs), self.model.head
        weights, dual = reweighted(old.value, self.log_eta, self.epsilon_eta, old.log_p)
        fit = sum((weights * self.log_probs(one, old)).sum(1).mean() for one in one_by_one(old.out, out))
        penalty, prices, kl = kl_penalty(head, old.out, out, self.log_alpha, self.epsilons)
        yield {"actor": penalty - fit, "dual": dual + prices, "entropy": head.entropy(out).mean(),
               **metrics(self.log_eta, self.log_alpha, kl)}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, period=self.target_period)

    def log_probs(self, out: Out, old: Batch) -> Tensor:
        """log π [N, K] of the actions in `old`."""
        if self.discrete:
            return self.model.head.log_probs(out)  # type: ignore[no-any-return]
        n, k = old.value.shape
        each = {name: part.repeat_interleave(k, 0) for name, part in out.items()}
        return self.model.head.log_prob(each, old.act.reshape(n * k, -1)).reshape(n, k)  # type: ignore[no-any-return]
