"""Temporal differences of one step, in a table: Q-learning, double Q-learning, SARSA, expected SARSA.

Each moves Q(s, a) by α times its error, the target r + γ · value(s') minus Q(s, a); they differ in the value of what follows.
Methods of several steps are in `traces`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from parl_like.algorithms.tables._row import TableRow
from parl_like.learning.action_spaces import Takes
from parl_like.learning.algorithm import Algorithm, Schedule, Window, value_of
from parl_like.learning.explorers import EpsilonGreedy, Explorer
from parl_like.learning.fixed_settings import explorers_have
from parl_like.learning.model import Model
from parl_like.learning.model_check import check_methods
from parl_like.values.batch import Batch


class QLearning(Algorithm):
    """Q-learning (Watkins 1989; Sutton & Barto 2018, 6.5):

        Q(s, a) ← Q(s, a) + α · (r + γ · max_b Q(s', b) − Q(s, a))      the max is 0 where the episode terminated

    From each step at once with `OnlineHelper`, or from rows of a buffer: then all targets are those before the update.

    Differences:
        - None: from each step at once it is the book's algorithm (6.5). Rows of a buffer, and targets of many rows at a time, are
          additions.

    Args:
        model: With `q(obs)` and the array `table` [S, A], such as `QTable`.
        lr: α, a number or a schedule over the updates.
        gamma: γ, discount per step, 0 to 1.
        epsilon: Share of random actions, a number or a schedule over the acts of one agent: also where a target reads it
            (`epsilon_of`). The others are drawn from the best.
    """

    calls = {"q": "q(obs) -> [N, A], the value of every action,", "table": "the array [S, A] that it reads,",
             "add": "add(where, error, rate), which moves entries of it,", "keep": "keep(name, shape), which gives it arrays,"}
    fitting_models = "QTable"
    takes = Takes(("Discrete",), ("Discrete",), images=False, masks=False)
    one_reward, takes_priorities = True, False

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1) -> None:
        super().__init__(model, lr=lr)
        check_methods(self)
        self.gamma, self.epsilon = gamma, epsilon

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "epsilon": explorers_have("epsilon")}

    def explorer(self) -> Explorer:
        return EpsilonGreedy(self.epsilon, random_ties=True)

    def read_epsilon(self) -> None:
        """Ask for what `epsilon_of` needs of each row, where ε is a schedule; for constructors."""
        if callable(self.epsilon):
            self.window = replace(self.window, fields=(*self.window.fields, "step"))

    def epsilon_of(self, step: Any) -> Any:
        """Return the ε by which acts of these numbers were chosen, [N] or one, as explorers count them.

        Raises:
            ValueError: there is a schedule, and `step` is None.
        """
        if not callable(self.epsilon):
            return self.epsilon
        if step is None:
            raise ValueError(f"{type(self).__name__}: rows have no `step`, the number of the agent's act, by which the schedule "
                             "of epsilon is read; let a helper make the rows, give them one, or give epsilon as a number")
        return np.array([self.epsilon(one) for one in step.tolist()]) if np.ndim(step) else self.epsilon(int(step))

    def row_learner(self) -> TableRow | None:
        plain = vars(type(self.model)).get("q_is_row") and self.model.prior is None
        return TableRow(self) if plain and type(self) in (QLearning, SARSA) else None

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"q": self.model.q(inputs.obs)}

    def error(self, batch: Batch) -> Any:
        """Target − Q(s, a), [N] or one number."""
        value = self.model.q(batch.obs_next).max(-1)
        return batch.rew + self.gamma * (1.0 - batch.terminated) * value - self.model.table[batch.obs, batch.act]

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        td = self.error(batch)
        self.model.add((batch.obs, batch.act), td, value_of(self.lr, self.updates))
        return {"td": abs(td)}


def check_no_prior(algorithm: Algorithm) -> None:
    """Raises ValueError for a table whose entries count their updates, where the algorithm moves them without."""
    if (prior := getattr(algorithm.model, "prior", None)) is not None:
        raise ValueError(f"{type(algorithm).__name__}: the table has the prior {prior}, by which updates of entries count, "
                         "and this algorithm does not use it; leave the prior out")


def check_rewards(algorithm: Algorithm, rewards: Any) -> None:
    """Raises ValueError for rewards that are not finite, before anything is counted by them."""
    if not np.isfinite(rewards).all():
        raise ValueError(f"{type(algorithm).__name__}: rewards are {rewards!r:.60}; expected finite numbers")


class SARSA(QLearning):
    """SARSA (Rummery & Niranjan 1994; Sutton & Barto 2018, 6.4): the value of the policy that explores.

        Q(s, a) ← Q(s, a) + α · (r + γ · Q(s', a') − Q(s, a))      a': the action after it; its value is 0 where the episode ended

    With `OnlineHelper` a' is the agent's own next action, chosen before Q(s, a) changes. A row of a buffer of which it is not
    known (a time limit, the newest) teaches nothing. The arguments are those of `QLearning`.

    Differences:
        - None: from each step at once it is the book's algorithm (6.4). Rows of a buffer are an addition.
    """

    window = Window(fields=("next_act",))

    def error(self, batch: Batch) -> Any:
        value = np.take_along_axis(self.model.q(batch.obs_next), np.asarray(batch.next_act)[..., None], -1)[..., 0]
        error = batch.rew + self.gamma * (1.0 - batch.terminated) * value - self.model.table[batch.obs, batch.act]
        return error * (batch.has_next | batch.terminated)


class ExpectedSARSA(QLearning):
    """Expected SARSA (van Seijen et al. 2009; Sutton & Barto 2018, 6.6): the mean over the next actions of the policy that
    explores.

        Q(s, a) ← Q(s, a) + α · (r + γ · Σ_b π(b|s') Q(s', b) − Q(s, a)),   π ε-greedy: ε · mean + (1 − ε) · max

    With ε = 0 it is Q-learning. The arguments are those of `QLearning`.

    Differences:
        - None: it is the book's equation 6.9 with an ε-greedy policy.
    """

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1) -> None:
        super().__init__(model, lr=lr, gamma=gamma, epsilon=epsilon)
        self.read_epsilon()

    def error(self, batch: Batch) -> Any:
        q, epsilon = self.model.q(batch.obs_next), self.epsilon_of(batch.get("step"))
        value = epsilon * q.mean(-1) + (1.0 - epsilon) * q.max(-1)
        return batch.rew + self.gamma * (1.0 - batch.terminated) * value - self.model.table[batch.obs, batch.act]


class DoubleQLearning(QLearning):
    """Double Q-learning (van Hasselt 2010; Sutton & Barto 2018, 6.7): two tables, one of which values what the other chooses.

        with probability ½:   Q1(s, a) ← Q1(s, a) + α · (r + γ · Q2(s', argmax_b Q1(s', b)) − Q1(s, a)),   else the same of Q2, Q1

    So a value is not too large because it was chosen for being large. Agents act by the mean of both. `model.table` is Q1,
    `model.second` Q2. With equal tables the error is that of Q-learning. The arguments are those of `QLearning`; the table has no
    prior.

    Differences:
        - None: it is the book's algorithm (6.7). The mean of both tables chooses as their sum does there.
    """

    def __init__(self, model: Model | Callable[[], Model], *, lr: float | Schedule = 0.1, gamma: float = 0.99,
                 epsilon: float | Schedule = 0.1) -> None:
        super().__init__(model, lr=lr, gamma=gamma, epsilon=epsilon)
        check_no_prior(self)
        self.model.keep("second", self.model.table.shape, self.model.start)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"q": 0.5 * (self.model.table[inputs.obs] + self.model.second[inputs.obs])}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        s, a, after = (np.atleast_1d(one) for one in (batch.obs, batch.act, batch.obs_next))
        rew, goes_on = np.atleast_1d(batch.rew), 1.0 - np.atleast_1d(batch.terminated)
        coin, error, rate = self.rng.random(len(s)) < 0.5, np.zeros(len(s)), value_of(self.lr, self.updates)
        one, two = self.model.table, self.model.second
        for mine, table, other in ((coin, one, two), (~coin, two, one)):
            best = table[after].argmax(1)
            error[mine] = (rew + self.gamma * goes_on * other[after, best] - table[s, a])[mine]
        np.add.at(one, (s[coin], a[coin]), rate * error[coin])
        np.add.at(two, (s[~coin], a[~coin]), rate * error[~coin])
        return {"td": abs(error) if np.ndim(batch.rew) else float(abs(error[0]))}
