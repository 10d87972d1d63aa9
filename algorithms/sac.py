"""Soft actor-critic (Haarnoja et al. 2018a, 2018b), and its discrete form (Christodoulou 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from parl_like.algorithms.actor_critic import explorer_of
from parl_like.algorithms.actor_q import (
    TargetEntropy,
    WrittenActorQ,
    actor_and_critics,
    check_actor_q,
    critic_terms,
    default_entropy,
    evaluated_actor_q,
    expected,
    written_actor_q,
)
from parl_like.algorithms.targets import powers, rewards_and_discount
from parl_like.learning._written import Squashed, least
from parl_like.learning.action_spaces import BOX, CHOICES, NESTED, NESTED_CHOICES, Takes
from parl_like.learning.algorithm import Algorithm, Loss, Schedule, Window
from parl_like.learning.array_prediction import gives
from parl_like.learning.explorers import Explorer
from parl_like.learning.model import Model
from parl_like.learning.native import WrittenLoss, has_native_learn, twin_of, written_product
from parl_like.values.batch import Batch
from parl_like.values.spec import Array


class SAC(Algorithm):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · E_{a'~π(s')} [min_i Q⁻_i(s', a') − α log π(a'|s')],

    critic loss = Σ_i mean (Q_i(s, a) − y)²,   actor loss = mean E_{a~π(s)} [α log π(a|s) − min_i Q_i(s, a)],
    temperature loss = −log α · (E log π(a|s) + target entropy),   Q⁻ ← (1 − τ) · Q⁻ + τ · Q after each update.

    The expectation is one drawn action where actions are a Box (with gradients through the draw), and the exact sum where they
    are Discrete. Of structured actions it is both: the numbers are drawn, and the choices summed over. Each array of such an
    action has an entropy, a temperature and a target of its own, α log π = Σ_k α_k log π_k, as a sum of nats of choices and of
    numbers would be ruled by the larger part. Rows, rewards, ends, weights and priorities are as in `TD3`.

    Differences:
        - It is the algorithm of 2018b; that of 2018a has a network of state values besides, and no learned temperature.
        - The temperature's loss is a product with log α, as in the authors' program; the paper's is one with α.
        - The critics' loss lacks the papers' factor ½.
        - A structured action has a temperature for each of its arrays; the papers have one kind of action at a time.

    Args:
        model: Offers `policy(obs) -> outputs` and `head`: for a Box with `head.draw(outputs, noise) -> (act, log π [N])`, for
            Discrete with `head.log_probs(outputs) -> [N, A]`; `q(obs, act) -> [critics, N]`, for Discrete `q(obs) -> [critics, N,
            A]`; and `actor`, the modules of the layers that are only the policy's. For structured actions also `parts` and
            `expected_q(obs, numbers, p)`, see `parl_like.models.action_parts`.
        alpha: The temperature α; with `learn_alpha` where it begins.
        target_entropy: In nats, of a structured action a number for each array; None: −(numbers of an action) for a Box, 0.98 ·
            log A for Discrete, as published, A counting the legal actions of each row, and for several choices their sum.
        delay: Actor and temperature learn in every so many updates.
        lr: Adam's learning rate, of the critics and, where they are None, of the actor and of log α.

    Raises:
        ValueError: alpha is not above 0, or target_entropy has not one number for each array.
    """

    one_reward = True
    calls = {"policy": "policy(obs) -> what its head reads,", "q": "q(obs, act) -> [critics, N], for Discrete q(obs) -> "
             "[critics, N, A],", "head": "head, which draws actions and knows log π,", "actor": "actor, the policy's own layers,"}
    fitting_models = "MLPActorQ"
    takes: Takes | None = Takes((*CHOICES, BOX, NESTED_CHOICES, NESTED), images=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005, alpha: float = 1.0,
        learn_alpha: bool = True, target_entropy: TargetEntropy = None, delay: int = 1,
        lr: float | Schedule = 3e-4, actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        if not alpha > 0.0:
            raise ValueError(f"{type(self).__name__}: alpha is {alpha}; expected a number above 0")
        self.discrete = isinstance(self.model.act_space, gym.spaces.Discrete)
        self.tau, self.target_entropy, self.window = tau, target_entropy, Window(n_step=n_step, in_order=False)
        self.discounts = powers(gamma, n_step)
        self.target = self.model.clone()
        self.parts = getattr(self.model, "parts", None)
        shape = () if self.parts is None else (len(self.parts.names),)
        if target_entropy is not None and np.shape(target_entropy) != shape:
            raise ValueError(f"{type(self).__name__}: target_entropy is {target_entropy}; expected " + (
                "one number" if self.parts is None else f"a number for each array of the action: {', '.join(self.parts.names)}"))
        self.log_alpha = torch.nn.Parameter(torch.full(shape, math.log(alpha)), requires_grad=learn_alpha)
        self.actor_lr, self.alpha_lr, self.delay = actor_lr, alpha_lr, delay
        temperature = {"temperature": Loss(self.log_alpha, "alpha_lr", every="delay")}
        self.losses = actor_and_critics(self, "delay") | (temperature if learn_alpha else {})

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def fixed_settings(self) -> dict[str, str]:
        fixed = {**super().fixed_settings(), "alpha": "`log_alpha` began with it; change that: log_alpha.data.fill_(…)"}
        return fixed if "temperature" in (self.losses or {}) else {**fixed, "alpha_lr": "learn_alpha is False"}

    def check_model(self, inputs: Batch) -> None:
        check_actor_q(self, inputs, "log_probs" if self.discrete else "draw")

    def explorer(self) -> Explorer:
        return explorer_of(self.model.head, self.model.act_space)

    @gives("policy")
    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return self.model.policy(inputs.obs)  # type: ignore[no-any-return]

    def pool(self, q: Tensor, of_target: bool = False) -> Tensor:
        """Reduce the values [critics, …] of the critics, or of their target copies, to what they are worth together, [N] or [N,
        A]."""
        return q.amin(0)

    def drawn(self, out: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """An action [N, …] in a Box for each row of what the policy gave out, and log π [N] of it."""
        noise = torch.randn(out["mean"].shape, generator=self.torch_rng, device=out["mean"].device)
        return self.model.head.draw(out, noise)  # type: ignore[no-any-return]

    def soft(self, obs: Any, critic: Any, seen: Any = None) -> tuple[Tensor, Tensor]:
        """E Q(s, a) by these critics and E log π(a|s), both [N], over the policy's actions; of a structured action log π [arrays,
        N]. `seen`: what the critics see in place of obs; None: the same."""
        out, seen = self.model.policy(obs), obs if seen is None else seen
        if self.parts is not None:
            rows = len(next(iter(out.values())))
            noise = torch.randn((rows, self.parts.size), generator=self.torch_rng, device=self.log_alpha.device)
            numbers, p, log_p = self.parts(out, noise)
            return self.pool(critic.expected_q(seen, numbers, p), critic is self.target), log_p
        if self.discrete:
            return expected(self.model.head.log_probs(out), self.pool(critic.q(seen), critic is self.target))
        act, log_p = self.drawn(out)
        return self.pool(critic.q(seen, act), critic is self.target), log_p

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = rewards_and_discount(batch, self.discounts)
        written = evaluated_actor_q(self.model, self.target, batch.obs_next) if self.natively_soft() else None
        q, log_p = self.soft(batch.obs_next, self.target) if written is None else self._target_terms(written)
        batch.target = rew + discount * (q - self.cost(self.log_alpha.exp(), log_p))
        return batch

    def cost(self, alpha: Tensor, log_p: Tensor) -> Tensor:
        """α log π [N]."""
        return alpha * log_p if self.parts is None else alpha @ log_p

    def critic_update(self, batch: Batch) -> dict[str, Tensor]:
        """The critics' loss, and the rows' priorities."""
        q = self.model.q(batch.obs)[:, range(len(batch)), batch.act] if self.discrete else self.model.q(batch.obs, batch.act)
        return critic_terms(q - batch.target, batch)

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        yield self.critic_update(batch)
        yield from self.actor_updates(batch)

    def actor_updates(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        """The losses of actor and temperature, where they are due."""
        if self.due("actor"):
            alpha = self.log_alpha.detach().exp()
            q, log_p = self.soft(batch.obs, self.model)
            entropy = -log_p.detach().mean(-1)
            of_parts = {} if self.parts is None else {
                f"{key}.{name}": value for key, values in (("entropy", entropy), ("alpha", alpha))
                for name, value in zip(self.parts.names, values, strict=True) if name}
            yield {"actor": (self.cost(alpha, log_p) - q).mean(), "entropy": entropy.sum(), "alpha": alpha.mean(), **of_parts}
            if self.log_alpha.requires_grad:
                yield {"temperature": (self.log_alpha * (entropy - self.wanted_entropy(batch.obs))).sum()}

    def wanted_entropy(self, obs: Any) -> Any:
        """In nats, for these observations; of a structured action [arrays]."""
        if self.target_entropy is not None:
            return self.target_entropy if self.parts is None else self.log_alpha.new_tensor(self.target_entropy)
        return default_entropy(self.model.act_space, obs) if self.parts is None else self.parts.entropies(obs)

    @twin_of(learn, actor_updates, critic_update, soft, drawn, pool, cost, wanted_entropy)
    def native_learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None] | None:
        written = None if self.discrete else written_actor_q(self.model, batch.obs)
        return None if written is None else self._written_steps(batch, written)

    def natively_soft(self) -> bool:
        """Return whether `soft` is what the compiled loops compute."""
        return not self.discrete and has_native_learn(self)

    def _draw(self, numbers: Array) -> Squashed:
        noise = torch.randn((len(numbers), numbers.shape[1] // 2), generator=self.torch_rng)
        return Squashed(numbers, noise.numpy())

    def _target_terms(self, written: WrittenActorQ) -> tuple[Tensor, Tensor]:
        drawn = self._draw(written.actor.forward(written.features)[0])
        q, _ = least(written.without_gradients(drawn.act), 0.0)
        return torch.from_numpy(q), torch.from_numpy(drawn.log_prob)

    def _written_steps(self, batch: Batch, written: WrittenActorQ) -> Generator[Mapping[str, Any], None, None]:
        yield written.critic_terms(batch)
        if self.due("actor"):
            numbers, kept = written.policy()
            drawn = self._draw(numbers)
            values, of_critics = written.values(drawn.act)
            q, d_q = least(values, -1.0 / len(numbers))
            alpha, log_p = float(self.log_alpha.detach().exp()), float(drawn.log_prob.mean())

            def write() -> None:
                written.write_policy(kept, drawn.gradient(written.by_act(of_critics, d_q), alpha / len(numbers)))

            yield {"actor": WrittenLoss(alpha * log_p - float(q.mean()), write), "entropy": -log_p, "alpha": alpha}
            if self.log_alpha.requires_grad:
                yield {"temperature": written_product(self.log_alpha, -(log_p + self.wanted_entropy(batch.obs)))}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, tau=self.tau)
