"""Deterministic policy gradients: DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import torch

from parl_like.algorithms.actor_q import (
    WrittenActorQ,
    actor_and_critics,
    critic_terms,
    evaluated_actor_q,
    written_actor_q,
)
from parl_like.algorithms.targets import powers, rewards_and_discount
from parl_like.learning._written import least
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.array_prediction import gives
from parl_like.learning.explorers import Explorer, Noisy
from parl_like.learning.fixed_settings import explorers_have
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_shape
from parl_like.learning.native import WrittenLoss, has_native_learn, twin_of
from parl_like.values.batch import Batch


class TD3(Algorithm):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · min_i Q⁻_i(s', clip(π⁻(s') + ε, −1, 1)),   ε = clip(σ·N(0, 1), −c, c),

    critic loss = Σ_i mean (Q_i(s, a) − y)²,   and in every `delay`-th update: actor loss = −mean Q_1(s, π(s)), then the target
    copies π⁻, Q⁻ ← (1 − τ) · target + τ · network. m, rewards and ends: `targets.rewards_and_discount`. Rows of a prioritised
    buffer count by their `weight`, and get max_i |Q_i − y| as priority. The critics also move what they share with the actor, a
    perception; the actor moves its own layers alone.

    Differences:
        None: with its defaults it is the paper's Algorithm 1. Several rewards in a row, weights of rows and a shared perception
            are additions.

    Args:
        model: Offers `act(obs) -> [N, *shape]` in [−1, 1], `q(obs, act) -> [critics, N]`, and `actor`, the module of the layers
            that are only the policy's.
        noise: Standard deviation of what is added to actions in acting, a number or a schedule over a helper's acting steps.
        smoothing, smoothing_clip: σ and c.
        lr: Adam's learning rate, of the critics and, where `actor_lr` is None, of the actor; numbers or schedules over updates.
    """

    one_reward = True
    calls = {"act": "act(obs) -> [N, *shape], the actions in [−1, 1],", "q": "q(obs, act) -> [critics, N], their values,",
             "actor": "actor, the module of the policy's own layers,"}
    fitting_models = "MLPActorQ with policy='deterministic'"
    takes = Takes(("Box",), images=False, masks=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005,
        noise: float | Schedule = 0.1, delay: int = 2, smoothing: float = 0.2, smoothing_clip: float = 0.5,
        lr: float | Schedule = 1e-3, actor_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.tau, self.noise, self.smoothing, self.smoothing_clip = tau, noise, smoothing, smoothing_clip
        self.window = Window(n_step=n_step, in_order=False)
        self.discounts = powers(gamma, n_step)
        self.target = self.model.clone()
        self.actor_lr, self.delay = actor_lr, delay
        self.losses = actor_and_critics(self, "delay")

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "noise": explorers_have("std")}

    def check_model(self, inputs: Batch) -> None:
        act = answer(self, "act", inputs.obs)
        check_shape(self, "act", act, (2, *self.model.act_space.shape))
        check_shape(self, "q", q := answer(self, "q", inputs.obs, act), (len(q), 2))

    def explorer(self) -> Explorer:
        return Noisy(self.model.act_space.shape, self.noise)

    @gives("act")
    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"mean": self.model.act(inputs.obs)}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        written = evaluated_actor_q(self.target, self.target, batch.obs_next) if has_native_learn(self) else None
        act = (self.target.act(batch.obs_next) if written is None else
               torch.from_numpy(written.actor.forward(written.features)[0]).tanh_())
        act = self.smoothed(act)
        rew, discount = rewards_and_discount(batch, self.discounts)
        q = (self.target.q(batch.obs_next, act).amin(0) if written is None else
             torch.from_numpy(least(written.without_gradients(act.numpy()), 0.0)[0]))
        batch.target = rew + discount * q
        return batch

    def smoothed(self, act: torch.Tensor) -> torch.Tensor:
        """clip(act + ε, −1, 1)."""
        if not self.smoothing:
            return act
        noise = torch.randn(act.shape, generator=self.torch_rng, device=act.device) * self.smoothing
        return (act + noise.clamp(-self.smoothing_clip, self.smoothing_clip)).clamp(-1.0, 1.0)

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        yield critic_terms(self.model.q(batch.obs, batch.act) - batch.target, batch)
        yield from self.actor_updates(batch)

    def actor_updates(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        """The actor's loss, where it is due."""
        if self.due("actor"):
            q = self.model.q(batch.obs, self.model.act(batch.obs))[0].mean()
            yield {"actor": -q, "q": q.detach()}

    @twin_of(learn, actor_updates)
    def native_learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None] | None:
        written = written_actor_q(self.model, batch.obs)
        return None if written is None else self._written_steps(batch, written)

    def _written_steps(self, batch: Batch, written: WrittenActorQ) -> Generator[Mapping[str, Any], None, None]:
        yield written.critic_terms(batch)
        if self.due("actor"):
            numbers, kept = written.policy()
            act = np.tanh(numbers)
            first = WrittenActorQ(written.actor, self.model.native["first critic"], written.features)
            (values,), of_first = first.values(act)
            q = float(values.mean())

            def write() -> None:
                d_q = np.full_like(values, -1.0 / len(act))
                written.write_policy(kept, first.by_act(of_first, [d_q]) * (1.0 - act * act))

            yield {"actor": WrittenLoss(-q, write), "q": q}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, tau=self.tau, period=self.delay)


class DDPG(TD3):
    """TD3 as it was before: the actor learns in every update, and the target's action gets no noise. Give the model one critic
    (`critics=1`).

    Differences:
        - Noise in acting is normal and independent; the paper's is an Ornstein-Uhlenbeck process.
        - τ is 0.005, and actor and critic learn by 10⁻³; the paper has 0.001, and 10⁻⁴ for the actor.
        - There is neither weight decay of the critic nor batch norm; the paper has both.
    """

    native_learn = TD3.native_learn

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, tau: float = 0.005,
        noise: float | Schedule = 0.1, lr: float | Schedule = 1e-3, actor_lr: float | Schedule | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, tau=tau, noise=noise, delay=1, smoothing=0.0, lr=lr,
                         actor_lr=actor_lr, max_grad_norm=max_grad_norm)
