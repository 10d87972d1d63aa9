"""AlphaZero (Silver et al. 2017, 2018): a network of policy and value learns from what search with that network finds.

Search (PUCT) visits the actions of a position N(s, a) times; the network learns to say at once what search found, and who won:

    π(a|s) = N(s, a) / Σ_b N(s, b)        z: what who moves in s got at the end of the game
    loss = mean [−Σ_a π(a|s) log p(a|s) + value_weight · (z − v(s))²]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch.nn.functional as F

from parl_like.algorithms.actor_critic import ActorCritic
from parl_like.learning.algorithm import Algorithm, Schedule, Window
from parl_like.learning.model import Model
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec


class AlphaZero(Algorithm):
    """The network's side of AlphaZero. Search is the agent's, see `parl_like.robots.alphazero`.

    A row is a position with `search_policy`, π, and the reward z; what comes after it is not read. Rows come in any order.

    Differences:
        - Adam without a penalty on the size of weights; the papers have gradient descent with momentum, and an L2 penalty.
        - The robot draws the first 6 moves by their visits, after 25 simulations each; AlphaGo Zero draws 30, after 1,600 each.
        - Each move is searched anew; AlphaGo Zero keeps the part of the tree below the move.
        - No position is turned or mirrored; AlphaGo Zero does so.

    Args:
        model: Offers `evaluate`, see `parl_like.learning.model`; for one choice among actions, without memory.
        value_weight: See above.
        lr, max_grad_norm: Of Adam, and the norm above which gradients are scaled down; None: never.

    Raises:
        ValueError: value_weight is below 0.
    """

    fitting_models = "MLPActorCritic and ConvActorCritic"
    window, one_reward, takes_priorities = Window(), True, False
    calls = {"evaluate": ActorCritic.calls["evaluate"]}

    def __init__(self, model: Model | Callable[[], Model], *, value_weight: float = 1.0, lr: float | Schedule = 1e-3,
                 max_grad_norm: float | None = None) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        if not value_weight >= 0:
            raise ValueError(f"AlphaZero: value_weight is {value_weight}; expected at least 0")
        self.value_weight = value_weight

    def extras(self) -> tuple[Spec, ...]:
        """Return the column for `AgentHelper(extras=…)`, π."""
        return (Spec("search_policy", (int(self.model.act_space.n),), np.dtype(np.float32)),)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        """Return `logits` [N, A] and `value` [N] of positions."""
        out, value = self.model.evaluate(inputs.obs)
        return {**out, "value": value}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        out, value = self.model.evaluate(batch.obs)
        policy_loss = -(batch.search_policy * F.log_softmax(out["logits"], -1)).sum(-1).mean()
        value_loss = (batch.rew.float() - value).square().mean()
        return {"loss": policy_loss + self.value_weight * value_loss, "policy_loss": policy_loss.detach(),
                "value_loss": value_loss.detach()}
