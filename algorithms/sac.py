"""Soft actor-critic (Haarnoja et al. 2018a, 2018b), and its discrete form (Christodoulou 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from parl_like.algorithm import Algorithm, Loss, Schedule, Window
from parl_like.algorithms.actor_q import actor_and_critics, check_actor_q
from parl_like.algorithms.targets import legal_actions, powers, rewards_and_discount, row_mean
from parl_like.batch import Batch
from parl_like.explorer import Categorical, Explorer, SquashedGaussian
from parl_like.model import Model


class SAC(Algorithm):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · E_{a'~π(s')} [min_i Q⁻_i(s', a') − α log π(a'|s')],

    critic loss = Σ_i mean (Q_i(s, a) − y)²,   actor loss = mean E_{a~π(s)} [α log π(a|s) − min_i Q_i(s, a)],
    temperature loss = −log α · (E log π(a|s) + target entropy),   Q⁻ ← (1 − τ) · Q⁻ + τ · Q after each update.

    The expectation is one drawn action where actions are a Box (with gradients through the draw), and the exact sum where they
    are Discrete. Rows, rewards, ends, weights and priorities are as in `TD3`.

    Args:
        model: Offers `policy(obs) -> outputs` and `head`: for a Box with `head.draw(outputs, noise) -> (act, log π [N])`, for
            Discrete with `head.log_probs(outputs) -> [N, A]`; `q(obs, act) -> [critics, N]`, for Discrete `q(obs) -> [critics, N,
            A]`; and `actor`, the modules of the layers that are only the policy's.
        alpha: The temperature α; with `learn_alpha` where it begins.
        target_entropy: In nats; None: −(numbers of an action) for a Box, 0.98 · log A for Discrete, as published, A counting the
            legal actions of each row.
        delay: Actor and temperature learn in every so many updates.
        lr: Adam's learning rate, of the critics and, where they are None, of the actor and of log α.
    """

    one_reward = True
    calls = {"policy": "policy(obs) -> what its head reads,", "q": "q(obs, act) -> [critics, N], for Discrete q(obs) -> "
             "[critics, N, A],", "head": "head, which draws actions and knows log π,", "actor": "actor, the policy's own layers,"}
    fitting_models = "MLPActorQ"

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005, alpha: float = 1.0,
        learn_alpha: bool = True, target_entropy: float | None = None, delay: int = 1, lr: float | Schedule = 3e-4,
        actor_lr: float | Schedule | None = None, alpha_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        if not alpha > 0.0:
            raise ValueError(f"{type(self).__name__}: alpha is {alpha}; expected a number above 0")
        act = self.model.act_space
        self.discrete = isinstance(act, gym.spaces.Discrete)
        standard = 0.98 * math.log(act.n) if self.discrete else -float(math.prod(act.shape))
        self.target_entropy = standard if target_entropy is None else target_entropy
        self.by_mask = target_entropy is None and self.discrete
        self.tau, self.window = tau, Window(n_step=n_step, in_order=False)
        self.discounts = powers(gamma, n_step)
        self.target = self.model.clone()
        self.log_alpha = torch.nn.Parameter(torch.tensor(math.log(alpha)), requires_grad=learn_alpha)
        temperature = {"temperature": Loss(self.log_alpha, lr if alpha_lr is None else alpha_lr, every=delay)}
        self.losses = actor_and_critics(self, lr if actor_lr is None else actor_lr, delay) | (temperature if learn_alpha else {})

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def check_model(self, inputs: Batch) -> None:
        check_actor_q(self, inputs, "log_probs" if self.discrete else "draw")

    def explorer(self) -> Explorer:
        return Categorical() if self.discrete else SquashedGaussian(self.model.act_space.shape)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return self.model.policy(inputs.obs)  # type: ignore[no-any-return]

    def target_value(self, q: Tensor) -> Tensor:
        """What targets go by, [N] or [N, A], of the values [critics, …] of the target copy."""
        return q.amin(0)

    def actor_value(self, q: Tensor) -> Tensor:
        """The same for the actor, of the values of the critics themselves."""
        return q.amin(0)

    def drawn(self, out: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """An action [N, …] in a Box for each row of what the policy gave out, and log π [N] of it."""
        noise = torch.randn(out["mean"].shape, generator=self.torch_rng, device=out["mean"].device)
        return self.model.head.draw(out, noise)  # type: ignore[no-any-return]

    def expected(self, out: Mapping[str, Tensor], q: Tensor) -> tuple[Tensor, Tensor]:
        """E q and E log π, both [N], over the Discrete actions with the values q [N, A]."""
        log_p = self.model.head.log_probs(out)
        p = log_p.exp()
        return (p * q).sum(-1), (p * log_p).sum(-1)

    def soft(self, obs: Any, critic: Any, pool: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """E [pool(Q(s, a))] of these critics and E [log π(a|s)], both [N], over the policy's actions."""
        out = self.model.policy(obs)
        if self.discrete:
            return self.expected(out, pool(critic.q(obs)))
        act, log_p = self.drawn(out)
        return pool(critic.q(obs, act)), log_p

    def wanted_entropy(self, obs: Any) -> Any:
        """The target entropy, on average over the rows where masks make it differ."""
        if not self.by_mask or (legal := legal_actions(obs)) is None:
            return self.target_entropy
        return 0.98 * legal.sum(-1).log().mean()

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = rewards_and_discount(batch, self.discounts)
        q, log_p = self.soft(batch.obs_next, self.target, self.target_value)
        batch.target = rew + discount * (q - self.log_alpha.exp() * log_p)
        return batch

    def critic_lesson(self, batch: Batch) -> dict[str, Tensor]:
        """The critics' loss, and the rows' priorities."""
        q = self.model.q(batch.obs)[:, range(len(batch)), batch.act] if self.discrete else self.model.q(batch.obs, batch.act)
        error = q - batch.target
        return {"critic": row_mean(error.square(), batch).sum(), "priority": error.detach().abs().amax(0)}

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        yield self.critic_lesson(batch)
        if self.due("actor"):
            alpha = self.log_alpha.detach().exp()
            q, log_p = self.soft(batch.obs, self.model, self.actor_value)
            yield {"actor": (alpha * log_p - q).mean(), "entropy": -log_p.detach().mean(), "alpha": alpha}
            if self.log_alpha.requires_grad:
                yield {"temperature": -self.log_alpha * (log_p.detach().mean() + self.wanted_entropy(batch.obs))}
        if self.target is not self.model:
            self.target.sync_from(self.model, decay=1.0 - self.tau)
