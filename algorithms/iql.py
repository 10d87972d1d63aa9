"""IQL, implicit Q-learning (Kostrikov, Nair and Levine 2022): learns from data, and asks for no action that is not in it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from parl_like.algorithms.actor_q import actor_and_critics, check_actor_q, critic_terms
from parl_like.algorithms.sac import SAC
from parl_like.algorithms.targets import powers, rewards_and_discount, row_mean
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.array_prediction import gives
from parl_like.learning.explorers import Explorer
from parl_like.learning.model import Model
from parl_like.learning.model_check import answer, check_methods, check_shape
from parl_like.values.batch import Batch


class IQL(Algorithm):
    """With u = min_i Q⁻_i(s, a) − V(s),

    value loss = mean |τ − 1[u < 0]| u²,

    critic loss = Σ_i mean (Q_i(s, a) − y)²,   y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · V(s'),
    actor loss = −mean min(exp(β u), weight_max) log π(a|s),   Q⁻ ← (1 − polyak) · Q⁻ + polyak · Q after each update.

    V is an expectile of what the rows' actions are worth: with τ = ½ their mean, so that Q is that of the policy that acted, as
    in SARSA; towards 1 their maximum. The actor clones rows, good ones more (advantage-weighted regression). Ends, weights and
    priorities are as in `TD3`.

    Differences:
        - The value and the critics step together, and all go by the value before; in the authors' code the value steps first, and
          others go by the new one.
        - The actor's learning rate stays; that of the authors' code falls as a cosine.
        - Discrete actions are an addition.

    Args:
        model: As for `SAC`, and it offers `value(obs) -> [N]` with the module `v`, whose layers are only the value's.
        expectile: τ; 0.7 as published for locomotion, 0.9 for mazes.
        beta: β, the inverse temperature; 3 as published for locomotion, 10 for mazes.
        weight_max: The largest weight of a row; 100 as published.
        polyak: How fast the target copies follow.
        lr: Adam's learning rate, of critics and value and, where `actor_lr` is None, of the actor.
    """

    one_reward = True
    calls = {**SAC.calls, "value": "value(obs) -> [N], the value of states,", "v": "v, the value's own layers,"}
    fitting_models = "MLPActorQ with value=True"
    takes = Takes(("Discrete", "Box"), images=False)

    def __init__(
        self, model: Model | Callable[[], Model], *, expectile: float = 0.7, beta: float = 3.0, weight_max: float = 100.0,
        gamma: float = 0.99, n_step: int = 1, polyak: float = 0.005, lr: float | Schedule = 3e-4,
        actor_lr: float | Schedule | None = None, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.discrete = isinstance(self.model.act_space, gym.spaces.Discrete)
        self.expectile, self.beta, self.weight_max, self.polyak = expectile, beta, weight_max, polyak
        self.window = Window(n_step=n_step, in_order=False)
        self.discounts = powers(gamma, n_step)
        self.target = self.model.clone()
        self.actor_lr = actor_lr
        check_methods(self)
        self.losses = actor_and_critics(self, value=self.model.v)

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def check_model(self, inputs: Batch) -> None:
        check_actor_q(self, inputs, "log_prob")
        check_shape(self, "value", answer(self, "value", inputs.obs), (2,))

    explorer: Callable[[IQL], Explorer] = SAC.explorer  # type: ignore[assignment]

    @gives("policy")
    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return self.model.policy(inputs.obs)  # type: ignore[no-any-return]

    def q(self, network: Any, batch: Batch) -> Tensor:
        """The values [critics, N] of the rows' actions."""
        q: Tensor = network.q(batch.obs)[:, range(len(batch)), batch.act] if self.discrete else network.q(batch.obs, batch.act)
        return q

    def process(self, batch: Batch) -> Batch:
        """Adds the targets `target` [N] of the critics, and `worth` [N], the least of the copies' values of the rows' actions."""
        rew, discount = rewards_and_discount(batch, self.discounts)
        batch.target = rew + discount * self.model.value(batch.obs_next)
        batch.worth = self.q(self.target, batch).amin(0)
        return batch

    def learn(self, batch: Batch) -> Generator[Mapping[str, Any], None, None]:
        u = batch.worth - self.model.value(batch.obs)
        yield {"value": row_mean((self.expectile - (u < 0.0).float()).abs() * u.square(), batch),
               **critic_terms(self.q(self.model, batch) - batch.target, batch)}
        weight = (self.beta * u.detach()).exp().clamp(max=self.weight_max)
        log_p = self.model.head.log_prob(self.model.policy(batch.obs), batch.act)
        yield {"actor": -row_mean(weight * log_p, batch), "weight_of_rows": weight.mean(), "log_prob": log_p.detach().mean()}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, tau=self.polyak)
