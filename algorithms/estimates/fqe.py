"""FQE, fitted Q evaluation (Le, Voloshin and Yue 2019): the values of a given policy, from data that another one has made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from parl_like.algorithms.targets import powers, rewards_and_discount, row_mean
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class FQE(Algorithm):
    """y = Σ_{k<m} γᵏ r_{t+k} + γᵐ (1 − terminated) · E_{a'~π(s')} Q⁻(s', a'),   loss = mean (Q(s, a) − y)²,

    for a policy π that stays. Predictions are the values V(s) = E_{a~π(s)} Q(s, a), the least of several critics'; their mean
    over states in which episodes begin is what π is worth. Ends, weights and priorities are as in `DQN`, with m = 1 of rows that
    another policy chose, since more rewards of theirs would be its own.

    Differences:
        - An update is one Adam step towards a copy that follows slowly; the paper solves a whole regression against a fixed copy,
          again and again.
        - Of several critics the least counts; the paper has one function.

    Args:
        model: For Discrete offers `q(obs) -> [N, A]`; for a Box `q(obs, act) -> [critics, N]`.
        policy: Observations as the model gets them → for Discrete probabilities [N, A], for a Box actions [N, …] in [−1, 1].
            `policy_of` makes one of an algorithm that has learned.
        tau: How fast the target copy Q⁻ follows.
        lr: Adam's learning rate.
    """

    one_reward = True
    calls = {"q": "q(obs) -> [N, A], or q(obs, act) -> [critics, N],"}
    fitting_models = "MLPQ, and for a Box MLPActorQ"

    def __init__(
        self, model: Model | Callable[[], Model], policy: Callable[[Any], Tensor], *, gamma: float = 0.99, tau: float = 0.005,
        lr: float | Schedule = 1e-3, max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.discrete = isinstance(self.model.act_space, gym.spaces.Discrete)
        self.policy, self.tau = policy, tau
        self.window, self.discounts = Window(in_order=False), powers(gamma, 1)
        self.target = self.model.clone()

    def networks(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model, "target": self.target}

    def value(self, network: Any, obs: Any) -> Tensor:
        """E_{a~π(s)} Q(s, a), [N]."""
        given = self.policy(obs)
        q: Tensor = (given * network.q(obs)).sum(-1) if self.discrete else network.q(obs, given).amin(0)
        return q

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"value": self.value(self.model, inputs.obs)}

    def process(self, batch: Batch) -> Batch:
        """Adds the targets y [N]."""
        rew, discount = rewards_and_discount(batch, self.discounts)
        batch.target = rew + discount * self.value(self.target, batch.obs_next)
        return batch

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        q = (self.model.q(batch.obs).gather(1, batch.act.unsqueeze(1)).T if self.discrete else
             self.model.q(batch.obs, batch.act))
        error = q - batch.target
        return {"loss": row_mean(error.square(), batch).sum(), "q": q.detach().mean(), "priority": error.detach().abs().amax(0)}

    def post_process(self, batch: Batch) -> None:
        self.update_target(self.target, tau=self.tau)


def policy_of(algorithm: Algorithm) -> Callable[[Any], Tensor]:
    """Return the policy of an algorithm that has learned, for `FQE`: for Discrete the probabilities of its `logits`, or of the
    best of its values `q`; for a Box its action in [−1, 1], the middle of a distribution.

    Raises:
        TypeError: it predicts none of these.
    """
    act = algorithm.model.act_space

    @torch.no_grad()
    def policy(obs: Any) -> Tensor:
        out = algorithm.predict(Batch(obs=obs))
        if "logits" in out:
            return torch.softmax(out["logits"], -1)  # type: ignore[arg-type]
        if "q" in out:
            q: Any = out["q"]
            return torch.nn.functional.one_hot(q.argmax(-1), q.shape[-1]).float()
        if "mean" not in out:
            raise TypeError(f"policy_of: {type(algorithm).__name__} predicts {', '.join(out)} for {act}; expected logits, q or "
                            "mean")
        mean: Any = out["mean"]
        squashed = "log_std" in out and getattr(algorithm.model.head, "explorer", "") == "squashed_gaussian"
        return (torch.tanh(mean) if squashed else mean.clamp(-1.0, 1.0)).reshape(len(mean), *act.shape)

    return policy
