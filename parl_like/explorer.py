"""Explorers: how a prediction becomes an action.

An explorer has two halves. `draw` makes the noise of one agent's rows from that agent's own generator; it travels with the request.
`act` maps the predictions and the noise of a whole batch to actions, with no memory and no generator. So what an agent does
depends on its own seed and prediction alone, never on which requests happened to share a batch, and the arithmetic is vectorised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_like.algorithm import Schedule, value_of
from parl_like.spec import Array, Spec

GREEDY = -1.0
"""Noise of a row that takes the best action, for explorers whose noise is a number in [0, 1)."""


class Explorer:
    """Base class; also the explorer of a task whose `predict` returns `act` itself.

    Attributes:
        noise: Spec of the noise of one row, or None.
    """

    noise: Spec | None = None

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        """Noise [n, *shape] of the next `n` rows of one helper, whose acting steps are `step` … `step` + n − 1."""
        raise TypeError(f"{type(self).__name__} has a noise spec but no draw()")

    def greedy(self) -> Any:
        """The noise of one row that takes the best action."""
        return GREEDY

    def act(self, out: Mapping[str, Array], noise: Array | None) -> dict[str, Array]:
        """Predictions and noise with N rows each → {'act': [N, ...], maybe 'log_prob': [N]}."""
        return {}

    def kind(self) -> tuple[Any, ...]:
        """Two explorers with equal kinds may serve one batch."""
        return (type(self),)


def best_actions(values: Array, mask: Array | None) -> Array:
    """Index of the largest value of each row [N, A]; illegal actions (mask False) never win; ties go to the first."""
    chosen: Array = (values if mask is None else np.where(mask, values, -np.inf)).argmax(axis=1)
    return chosen


def _legal(out: Mapping[str, Array]) -> Array | None:
    return out.get("mask")


class EpsilonGreedy(Explorer):
    """With probability ε a uniformly random legal action, else the best one by `q`.

    Args:
        epsilon: A number in [0, 1] or a schedule over the acting steps of one helper.
    """

    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, epsilon: float | Schedule = 0.1) -> None:
        start = value_of(epsilon, 0)
        if not 0.0 <= start <= 1.0:
            raise ValueError(f"EpsilonGreedy: epsilon is {start}; expected a number in [0, 1]")
        self.epsilon = epsilon

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        explore, choice = rng.random((2, n))
        if callable(self.epsilon):
            epsilon = np.array([self.epsilon(step + i) for i in range(n)])
        else:
            epsilon = np.full(n, self.epsilon)
        return np.where(explore < epsilon, choice, GREEDY)

    def act(self, out: Mapping[str, Array], noise: Array | None) -> dict[str, Array]:
        assert noise is not None
        q, mask = out["q"], _legal(out)
        act = best_actions(q, mask)
        random = np.flatnonzero(noise >= 0)
        if len(random):
            if mask is None:
                act[random] = (noise[random] * q.shape[1]).astype(np.int64)
            else:
                # The k-th legal action, k uniform over their number.
                legal = mask[random]
                k = (noise[random] * legal.sum(axis=1)).astype(np.int64)
                act[random] = (legal.cumsum(axis=1) > k[:, None]).argmax(axis=1)
        return {"act": act}


class Categorical(Explorer):
    """Samples an action from softmax(`logits`) by inverting the cumulative distribution at one uniform number."""

    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, log_prob: bool = False) -> None:
        self.log_prob = log_prob

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.random(n)

    def act(self, out: Mapping[str, Array], noise: Array | None) -> dict[str, Array]:
        assert noise is not None
        logits, mask = out["logits"], _legal(out)
        if mask is not None:
            logits = np.where(mask, logits, -np.inf)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        sums = weights.cumsum(axis=1)
        act = (sums <= (noise * sums[:, -1])[:, None]).sum(axis=1)
        greedy = noise < 0
        if greedy.any():
            act[greedy] = logits[greedy].argmax(axis=1)
        if not self.log_prob:
            return {"act": act}
        chosen = weights[np.arange(len(act)), act]
        return {"act": act, "log_prob": np.log(chosen / sums[:, -1])}

    def kind(self) -> tuple[Any, ...]:
        return (type(self), self.log_prob)


class Gaussian(Explorer):
    """act = `mean` + exp(`log_std`) · ε, ε standard normal. The mean itself is the best action.

    Args:
        size: Numbers in one action.
    """

    def __init__(self, size: int, log_prob: bool = False) -> None:
        self.size, self.log_prob = size, log_prob
        self.noise = Spec("noise", (size,), np.dtype(np.float32))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.standard_normal((n, self.size), dtype=np.float32)

    def greedy(self) -> Any:
        return np.zeros(self.size, np.float32)

    def act(self, out: Mapping[str, Array], noise: Array | None) -> dict[str, Array]:
        assert noise is not None
        mean, log_std = out["mean"], out["log_std"]
        act = mean + np.exp(log_std) * noise
        if not self.log_prob:
            return {"act": act}
        log_prob = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        return {"act": act, "log_prob": log_prob.sum(axis=1)}

    def kind(self) -> tuple[Any, ...]:
        return (type(self), self.size, self.log_prob)


