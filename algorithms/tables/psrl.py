"""PSRL, posterior sampling: each episode follows the best policy of a world drawn from what is believed (Strens 2000; Osband,
Russo and Van Roy 2013)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from parl_like.algorithms.tables.temporal_difference import QLearning, check_no_prior, check_rewards
from parl_like.learning.algorithm import Algorithm, Window
from parl_like.learning.explorers import EpsilonGreedy, Explorer
from parl_like.learning.model import Model
from parl_like.learning.model_check import check_methods
from parl_like.values.batch import Batch
from parl_like.values.spec import Array


class PSRL(Algorithm):
    """PSRL: exploration is deep, for an episode follows one consistent belief to its end, and needs no ε.

        P(·|s, a) ~ Dirichlet(counts + prior),   R(s, a) ~ N(mean of the rewards and the prior, σ² / (n + 1)),   Q* of that world

    A world is drawn when it is built, after an episode has ended, and every `every` rows where none does. Its Q*, `model.table`,
    comes from value iteration, which begins at the one before. Tests follow the policy of the mean world, `model.expected`. An
    end is a state of its own, in which nothing more is earned.

    One agent acts, in one environment: with several all would share the table, and the end of any episode would draw a new world
    in the middle of the others'. More are refused.

    Differences:
        - Worlds are discounted; the paper's have episodes of a fixed length, and policies that depend on the time in them.
        - A long episode gets a new world every `every` rows; the paper draws one for each episode.
        - The deviation σ of rewards is given; the paper's prior learns it, too.
        - Tests follow the policy of the mean world; the paper has no tests.

    Args:
        model: With `table` [S, A] and `keep`, such as `QTable` without a prior.
        gamma: γ of the worlds, 0 to below 1.
        every: Rows of a policy at most.
        reward_mean: What every pair is believed to earn before it is tried, with the weight of one row.
        reward_std: σ, the standard deviation of rewards.
        dirichlet: Weight of all next states together, of a pair before it is tried.

    Raises:
        ValueError: the table has a prior. In `learn`: a reward is not finite; nothing is counted.
    """

    calls = {"table": "the array [S, A] that it reads,", "keep": "keep(name, shape), which gives it arrays,"}
    fitting_models, takes = QLearning.fitting_models, QLearning.takes
    one_reward, takes_priorities = True, False
    window = Window(one_lane=True)

    def __init__(self, model: Model | Callable[[], Model], *, gamma: float = 0.99, every: int = 1000, reward_mean: float = 0.0,
                 reward_std: float = 1.0, dirichlet: float = 1.0) -> None:
        super().__init__(model, lr=0.0)
        check_methods(self)
        check_no_prior(self)
        self.gamma, self.every, self.dirichlet = gamma, every, dirichlet
        self.reward_mean, self.reward_std = reward_mean, reward_std
        shape, n = self.model.table.shape, self.model.n_states
        self.model.keep("expected", shape)
        self.model.keep("transitions", (*shape, n + 1))  # the last one: the episode ended
        self.model.keep("reward_sum", shape)
        self.since = 0
        self.rng = np.random.default_rng(int(torch.randint(2**31, ())))  # as the task seeds what is drawn for the model
        self.draw()

    def fixed_settings(self) -> dict[str, str]:
        return {**super().fixed_settings(), "lr": "it counts what it sees; there is no rate"}

    def explorer(self) -> Explorer:
        return EpsilonGreedy(0.0, random_ties=True)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        return {"q": (self.model.expected if self.mode == "test" else self.model.table)[inputs.obs]}

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        model, (s, a) = self.model, (np.atleast_1d(batch.obs), np.atleast_1d(batch.act))
        check_rewards(self, batch.rew)
        after = np.where(batch.terminated, model.n_states, batch.obs_next)
        np.add.at(model.transitions, (s, a, np.atleast_1d(after)), 1.0)
        np.add.at(model.reward_sum, (s, a), np.atleast_1d(batch.rew))
        self.since += len(s)
        if self.since >= self.every or np.any(batch.terminated) or np.any(batch.truncated):
            self.since = 0
            self.draw()
        return {"known": float((model.transitions.sum(2) > 0).mean())}

    def believed(self) -> tuple[Array, Array, Array]:
        """Return the Dirichlet's weights [S, A, S + 1], and means and standard deviations [S, A] of the rewards."""
        model, n = self.model, self.model.transitions.sum(2)
        mean = (model.reward_sum + self.reward_mean) / (n + 1.0)
        return model.transitions + self.dirichlet / (model.n_states + 1), mean, self.reward_std / np.sqrt(n + 1.0)

    def world(self) -> tuple[Array, Array]:
        """Draw a world: weights [S, A, S + 1] of next states, which are probabilities once each pair's sum is 1, and rewards."""
        weights, mean, std = self.believed()
        return self.rng.standard_gamma(weights), mean + std * self.rng.normal(size=mean.shape)

    def draw(self) -> None:
        """Draw a world, and solve it and the mean one."""
        model, (weights, mean, _) = self.model, self.believed()
        model.table[:] = best_values(*self.world(), self.gamma, model.table)
        model.expected[:] = best_values(weights, mean, self.gamma, model.expected)


def best_values(weights: Array, rewards: Array, gamma: float, begin: Array, tolerance: float = 1e-4) -> Array:
    """Return Q* [S, A] of a world: next states by `weights` [S, A, S + 1], the last for the end; value iteration from `begin`.

    Raises:
        ValueError: rewards are not finite, or gamma is outside [0, 1): it would not end.
    """
    if not (np.isfinite(rewards).all() and 0.0 <= gamma < 1.0):
        raise ValueError(f"best_values: gamma is {gamma}, rewards are between {rewards.min()} and {rewards.max()}; expected a "
                         "gamma in [0, 1) and finite numbers")
    moves = weights[:, :, :-1] / np.maximum(weights.sum(2, keepdims=True), 1e-300)
    q, size = begin, max(float(np.abs(rewards).max()), 1e-9)
    while True:
        new = rewards + gamma * (moves @ q.max(1))
        if np.abs(new - q).max() <= tolerance * size:
            return new  # type: ignore[no-any-return]
        q = new
