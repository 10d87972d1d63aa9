"""An auxiliary task: learn what the environment does, for the sake of the trunk that a policy shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parl_like.learning.algorithm import Algorithm, Schedule
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class DynamicsLearner(Algorithm):
    """loss = forward · mean ‖ŝ'(z(s), a) − s'‖² + inverse · mean −log p(a | z(s), z(s')),   z the shared trunk.

    Predicting the next observation keeps in z whatever moves by a rule; predicting the action keeps what the agent controls
    (Pathak et al. 2017). Neither finds anything in pure noise.

    Differences:
        - It serves the trunk alone, and pays nothing; in the paper a policy is paid by the error, see `ICM`.
        - The next observation is predicted; in the paper its features are.

    Args:
        model: Offers `trunk`, `next_obs` and `surprise`, see `parl_like.models.dynamics`.
        forward, inverse: Weights of the two terms.

    Raises:
        ValueError: a weight is negative, or both are 0.
    """

    takes_priorities = takes_rewards = False
    calls = {"trunk": "trunk, with trunk(obs) -> [N, F] and flat(obs),",
             "next_obs": "next_obs(features, act) -> the flat next observation",
             "surprise": "surprise(features, features_next, act) -> the mean of −log p(act)"}
    fitting_models = "Dynamics"

    def __init__(
        self, model: Model | Callable[[], Model], *, forward: float = 1.0, inverse: float = 1.0, lr: float | Schedule = 1e-3,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        if forward < 0 or inverse < 0 or forward + inverse == 0:
            raise ValueError(f"DynamicsLearner: weights forward {forward} and inverse {inverse}; expected both ≥ 0, and not "
                             "both 0")
        self.forward, self.inverse = forward, inverse

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        model = self.model
        features, features_next = model.trunk(batch.obs), model.trunk(batch.obs_next)
        error = (model.next_obs(features, batch.act) - model.trunk.flat(batch.obs_next)).square().sum(1).mean()
        surprise = model.surprise(features, features_next, batch.act)
        return {"loss": self.forward * error + self.inverse * surprise, "forward": error.detach(), "inverse": surprise.detach()}
