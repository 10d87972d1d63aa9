"""DQN: Q-learning with a neural network, a target copy and random replay (Mnih et al. 2015), n-step and double by option.

Dueling networks and noisy layers are options of the model. With noisy layers, of network and target, each update draws new noise
from the task's generator; actions have that of the last update, those of tests none. `epsilon=0.0` leaves exploring to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor

from parl_like.algorithms.targets import powers, rewards_and_discount
from parl_like.learning._written import huber
from parl_like.learning.action_spaces import Takes, taken_by
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.array_prediction import gives
from parl_like.learning.explorers import EpsilonGreedy, Explorer
from parl_like.learning.fixed_settings import explorers_have
from parl_like.learning.model import Model
from parl_like.learning.model_check import ContractError, answer, check_shape
from parl_like.learning.native import WrittenLoss, float32_of, twin_of
from parl_like.learning.noisy import draw_noise, noisy_layers, without_noise
from parl_like.values.batch import Batch


class DQN(Algorithm):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · Q⁻(s', a*),   loss = huber(y − Q(s, a)),

    m ≤ n rewards until the end of the episode, s' the state after them, Q⁻ the target copy;
    a* = argmax Q⁻(s', ·), or argmax Q(s', ·) with `double` (van Hasselt et al. 2016). A truncated episode bootstraps. A row with
    a `duration` d is discounted by γᵈ. Rows of a prioritised buffer count by their `weight`, and get |y − Q(s, a)| as priority.
    The Huber loss is linear where |y − Q| > 1: of rewards that chance spreads further, Q is no mean. `RewardScaling` helps.

    Differences:
        - Double Q-learning is on by default; the paper has `double=False`.
        - Adam has a learning rate of 10⁻³, and gradients are cut to a norm of 10; the paper has RMSProp with 2.5·10⁻⁴.
        - The target is copied every 500 updates; in the paper every 10,000.

    Args:
        model: Offers `q(obs) -> [N, A]`.
        gamma: Discount γ per step.
        n_step: n.
        target_period: Optimiser steps (not, as elsewhere, steps of the environment) between two copies to the target; 0: no
            target copy, the network bootstraps from itself.
        tau: With it, after every optimiser step target ← (1 − tau) · target + tau · network, instead of the periodic copy.
        double: Choose a* with the network, value it with the target.
        epsilon: Default exploration, a number or a schedule over a helper's acting steps.
        lr: Adam's learning rate, or a schedule over optimiser steps.
        adam_eps: Adam's ε. Published are 1.5e-4 (Rainbow) and 3e-4 (C51, QR-DQN), for images. Where observations that matter
            are small, such as speeds of 0.01, so are gradients: then 1e-8.
    """

    one_reward = True
    calls = {"q": "q(obs) -> [N, A], the value of every action,"}
    fitting_models = "MLPQ and ConvQ"
    takes = Takes(("Discrete",))

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, target_period: int = 500,
        tau: float | None = None, double: bool = True, epsilon: float | Schedule = 0.1, lr: float | Schedule = 1e-3,
        max_grad_norm: float | None = 10.0, adam_eps: float = 1e-5,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.gamma, self.double, self.epsilon, self.adam_eps = gamma, double, epsilon, adam_eps
        self.target_period, self.tau = target_period, tau
        self.window = Window(n_step=n_step, in_order=False)
        self.target = self.model.clone() if target_period or tau is not None else self.model
        self.discounts = powers(gamma, n_step)
        self.noisy = noisy_layers(self.model, self.target)

    def fixed_settings(self) -> dict[str, str]:
        fixed = {**super().fixed_settings(), "epsilon": explorers_have("epsilon"),
                 "gamma": "the discounts of n steps were made of it; build a new algorithm with another"}
        alone = dict.fromkeys(("target_period", "tau", "double"), "there is no target copy; build it with target_period or tau")
        return {**fixed, **alone} if self.target is self.model else fixed

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model} if self.target is self.model else {"model": self.model, "target": self.target}

    def check_model(self, inputs: Batch) -> None:
        act = self.model.act_space
        if not isinstance(act, gym.spaces.Discrete):
            raise ContractError(f"DQN needs Discrete actions, one value each; {type(self.model).__name__} has {act}"
                                f"{taken_by(act)}")
        check_shape(self, "q", answer(self, "q", inputs.obs), (2, int(act.n)))

    def explorer(self) -> Explorer:
        return EpsilonGreedy(self.epsilon)

    @gives("q", through=("acts_by",))
    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        if self.noisy and self.mode != "collect":
            with without_noise(self.noisy):
                out = self.acts_by(inputs)
        else:
            out = self.acts_by(inputs)
        if not isinstance(inputs.obs, torch.Tensor) and "mask" in inputs.obs:
            out["mask"] = inputs.obs["mask"]  # random actions must be legal too
        return out

    @gives("q")
    def acts_by(self, inputs: Batch) -> dict[str, Any]:
        """The values `q` [N, A] by which actions are chosen; of a model with a memory also its `state` after this step."""
        return {"q": self.model.q(inputs.obs)}

    def begin(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Draw noise for an update. Return Σ γᵏ r [N], and the factor [N] of what comes after these rewards."""
        draw_noise(self.noisy, self.torch_rng)
        return rewards_and_discount(batch, self.discounts)

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = self.begin(batch)
        q_next = self.target.q(batch.obs_next)
        if self.double and self.target is not self.model:
            q_next = q_next.gather(1, self.best(batch.obs_next).unsqueeze(1)).squeeze(1)
        else:
            q_next = q_next.amax(1)
        batch.target = rew + discount * q_next
        return batch

    def best(self, obs: Any) -> Tensor:
        """a* [N]."""
        return (self.model if self.double else self.target).q(obs).argmax(1)  # type: ignore[no-any-return]

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        q = self.model.q(batch.obs).gather(1, batch.act.unsqueeze(1)).squeeze(1)
        if "weight" not in batch:
            return {"loss": F.smooth_l1_loss(q, batch.target), "q": q.detach().mean()}
        losses = F.smooth_l1_loss(q, batch.target, reduction="none")
        return {"loss": (batch.weight * losses).mean(), "q": q.detach().mean(), "priority": (q - batch.target).detach().abs()}

    @twin_of(learn)
    def native_learn(self, batch: Batch) -> Mapping[str, Any] | None:
        written = getattr(self.model, "written", None)
        if written is None or (found := written(batch.obs)) is None:
            return None
        q, write = found
        weight = float32_of(batch.weight) if "weight" in batch else None
        d_q, loss, mean, error = huber(q, batch.act.long().numpy(), float32_of(batch.target), weight)
        out = {"loss": WrittenLoss(loss, lambda: write(d_q)), "q": mean}
        return out if weight is None else {**out, "priority": torch.from_numpy(error)}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, tau=self.tau, period=self.target_period if self.tau is None else 1)


class BasicDQN(DQN):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · max Q(s', ·),   loss = huber(y − Q(s, a)), and y moves as well.

    Q-learning with a network and a buffer, and nothing else: without a target copy. The gradient goes through both values, a
    residual gradient (Baird 1995), as in the BasicDQN of ReinforcementLearning.jl: there, and with its small buffer, one that
    leaves y where it is grows without bounds. In random environments its values are biased (Sutton & Barto 2018, 11.5); so
    prefer `DQN` to it.

    Differences:
        No paper has it by this name. Residual gradients (Baird 1995) square the error, and take a second s' where chance decides;
        here it is Huber's loss of one s'.

    Args:
        model: Offers `q(obs) -> [N, A]`.
        adam_eps: Adam's ε, 10⁻⁸ as there.
        The others: As for `DQN`.
    """

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, n_step: int = 1, epsilon: float | Schedule = 0.1,
        lr: float | Schedule = 1e-3, max_grad_norm: float | None = 10.0, adam_eps: float = 1e-8,
    ) -> None:
        super().__init__(model, gamma=gamma, n_step=n_step, target_period=0, double=False, epsilon=epsilon, lr=lr,
                         max_grad_norm=max_grad_norm, adam_eps=adam_eps)

    def process(self, batch: Batch) -> Batch:
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        rew, discount = self.begin(batch)
        batch.target = rew + discount * self.model.q(batch.obs_next).amax(1)
        return super().learn(batch)
