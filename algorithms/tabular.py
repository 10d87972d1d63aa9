"""Learning values in tables, without networks and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parl_like.algorithms._tabular import TableRow
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule, Window, value_of
from parl_like.learning.explorers import EpsilonGreedy, Explorer
from parl_like.learning.fixed_settings import explorers_have
from parl_like.learning.model import Model
from parl_like.values.batch import Batch


class QLearning(Algorithm):
    """Q-learning (Watkins 1989; Sutton & Barto 2018, 6.5):

        Q(s, a) ← Q(s, a) + α · (r + γ · max_b Q(s', b) − Q(s, a))      the max is 0 where the episode terminated

    From each step at once with `OnlineHelper`, or from rows of a buffer: then all targets are those before the update.

    Args:
        model: With `q(obs)` and the array `table` [S, A], such as `QTable`.
        lr: α, a number or a schedule over the updates.
        gamma: γ, discount per step, 0 to 1.
        epsilon: Share of random actions, a number or a schedule over the acts of one agent. The others are drawn from the best.
    """

    calls = {"q": "q(obs) -> [N, A], the value of every action,", "table": "the array [S, A] that it reads,"}
    fitting_models = "QTable"
    takes = Takes(("Discrete",), ("Discrete",), images=False, masks=False)
    one_reward, takes_priorities = True, False

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1) -> None:
        super().__init__(model, lr=lr)
        self.gamma, self.epsilon = gamma, epsilon

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "epsilon": explorers_have("epsilon")}

    def explorer(self) -> Explorer:
        return EpsilonGreedy(self.epsilon, random_ties=True)

    def row_learner(self) -> TableRow | None:
        return TableRow(self) if type(self) in (QLearning, SARSA) and vars(type(self.model)).get("q_is_row") else None

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"q": self.model.q(inputs.obs)}

    def error(self, batch: Batch) -> Any:
        """Target − Q(s, a), [N] or one number."""
        value = self.model.q(batch.obs_next).max(-1)
        return batch.rew + self.gamma * (1.0 - batch.terminated) * value - self.model.table[batch.obs, batch.act]

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        s, a, table = batch.obs, batch.act, self.model.table
        td = self.error(batch)
        step = value_of(self.lr, self.updates) * td
        if td.ndim:
            np.add.at(table, (s, a), step)  # twice where a row comes twice
        else:
            table[s, a] += step
        return {"td": abs(td)}


class SARSA(QLearning):
    """SARSA (Rummery & Niranjan 1994; Sutton & Barto 2018, 6.4): the value of the policy that explores.

        Q(s, a) ← Q(s, a) + α · (r + γ · Q(s', a') − Q(s, a))      a': the action after it; its value is 0 where the episode ended

    With `OnlineHelper` a' is the agent's own next action, chosen before Q(s, a) changes. A row of a buffer of which it is not
    known (a time limit, the newest) teaches nothing. The arguments are those of `QLearning`.
    """

    window = Window(fields=("next_act",))

    def error(self, batch: Batch) -> Any:
        value = np.take_along_axis(self.model.q(batch.obs_next), np.asarray(batch.next_act)[..., None], -1)[..., 0]
        error = batch.rew + self.gamma * (1.0 - batch.terminated) * value - self.model.table[batch.obs, batch.act]
        return error * (batch.has_next | batch.terminated)
