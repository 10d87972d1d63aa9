"""Explorers: how a prediction becomes an action.

An explorer has two halves. `draw` makes the noise of one agent's rows from that agent's own generator; it travels with the
request. `act` maps the predictions and the noise of a whole batch to actions, with no memory and no generator. So what an agent
does depends on its own seed and prediction alone, never on which requests happened to share a batch, and the arithmetic is
vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data import _sample
from parl_like.rates import Schedule, value_of
from parl_like.spec import Array, Spec

GREEDY = -1.0
"""Noise of a row that takes the best action, for explorers whose noise is a number in [0, 1)."""


class Explorer:
    """Base class; also the explorer of a task whose `predict` returns `act` itself.

    Attributes:
        noise: Spec of the noise of one row, or None.
        reads: Output of `predict` that has one number per action of a Discrete space; None: there is none.
    """

    noise: Spec | None = None
    reads: str | None = None

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


def all_best(values: Array, mask: Array | None = None) -> Array:
    """[N, A] bool: the legal actions whose value is the largest legal one of their row."""
    legal = np.ones(values.shape, bool) if mask is None else mask
    best = np.where(legal, values, -np.inf).max(axis=1, keepdims=True)
    tied: Array = (values == best) & legal
    return tied


def one_of(choices: Array, noise: Array) -> Array:
    """For each row [N, A] bool the k-th True one, k uniform over their number as `noise` [N] in [0, 1) is."""
    k = (noise * choices.sum(axis=1)).astype(np.int64)
    chosen: Array = (choices.cumsum(axis=1) > k[:, None]).argmax(axis=1)
    return chosen


def _read(out: Mapping[str, Array], name: str, explorer: Explorer) -> Array:
    if name not in out:
        raise ValueError(f"{type(explorer).__name__} reads {name!r} of the prediction, which has {', '.join(out) or 'nothing'}; "
                         "return it from the algorithm's predict, or give the helper another explorer")
    return out[name]


def n_logits(act: gym.Space[Any]) -> int:
    """Logits of a discrete action space: A, or the sum over the parts of a joint action. 0 for a continuous one."""
    if isinstance(act, gym.spaces.Discrete):
        return int(act.n)
    if isinstance(act, gym.spaces.MultiDiscrete):
        return int(act.nvec.sum())
    return 2 * math.prod(act.shape) if isinstance(act, gym.spaces.MultiBinary) else 0


def legal(mask: Any, nvec: Sequence[int] | None = None) -> Any:
    """Which actions count as legal, a new bool array or tensor of the mask's shape: the one rule for predictions, targets and
    explorers.

    A row that allows nothing allows everything: a time limit may fall on a state for which the environment names no action, and
    what comes after it is still to be valued.

    Args:
        mask: [..., A], an array or a tensor, of any numbers; 0 is illegal.
        nvec: Alternatives of each of several choices, which stand side by side in the mask; the rule is each choice's own.
    """
    allowed = mask != 0
    begin = 0
    for n in nvec or (allowed.shape[-1],):
        choice = allowed[..., begin : begin + n]
        choice |= ~choice.any(-1, keepdims=True)
        begin += n
    return allowed


def _legal(out: Mapping[str, Array], nvec: Sequence[int] | None = None) -> Array | None:
    """The legal actions [N, A] bool, where the prediction carries a mask."""
    return legal(out["mask"], nvec) if "mask" in out else None


class EpsilonGreedy(Explorer):
    """With probability ε a uniformly random legal action, else the best one by `q`.

    Args:
        epsilon: A number in [0, 1] or a schedule over the acts of one helper, counted from 1.
        random_ties: Choose among equally good actions at random instead of the first; for tables, whose values begin equal.
    """

    reads = "q"
    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, epsilon: float | Schedule = 0.1, random_ties: bool = False) -> None:
        start = value_of(epsilon, 1)
        if not 0.0 <= start <= 1.0:
            raise ValueError(f"EpsilonGreedy: epsilon is {start}; expected a number in [0, 1]")
        self.epsilon, self.random_ties = epsilon, random_ties

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        """In [0, 1): take the action at that share of the legal ones. In [−1, 0): take the best, or that share of the best."""
        explore, choice = rng.random((2, n))
        epsilon = np.array([value_of(self.epsilon, step + i) for i in range(1,
                                                                            n + 1)]) if callable(self.epsilon) else self.epsilon
        return np.where(explore < epsilon, choice, choice + GREEDY if self.random_ties else GREEDY)

    def act(self, out: Mapping[str, Array], noise: Array | None) -> dict[str, Array]:
        assert noise is not None
        q, mask = _read(out, "q", self), _legal(out)
        act = one_of(all_best(q, mask), noise - GREEDY) if self.random_ties else best_actions(q, mask)
        random = np.flatnonzero(noise >= 0)
        if len(random):
            if mask is None:
                act[random] = (noise[random] * q.shape[1]).astype(np.int64)
            else:
                act[random] = one_of(mask[random], noise[random])
        return {"act": act}

    def kind(self) -> tuple[Any, ...]:
        return (type(self), self.random_ties)


class Categorical(Explorer):
    """Samples an action from softmax(`logits`) by inverting the cumulative distribution at one uniform number."""

    reads = "logits"
    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, log_prob: bool = False) -> None:
        self.log_prob = log_prob

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.random(n)

    def act(self, out: Mapping[str, Array], noise: Array | None) -> dict[str, Array]:
        assert noise is not None
        logits, mask = _read(out, "logits", self), _legal(out)
        if mask is not None:
            logits = np.where(mask, logits, np.float32(-np.inf))
        return sample_categorical(logits, noise, self.log_prob)

    def kind(self) -> tuple[Any, ...]:
        return (type(self), self.log_prob)


class MultiCategorical(Explorer):
    """Several independent choices: `logits` [N, Σ nvec] hold one block for each, and each has a uniform number of its own.

    Args:
        nvec: Alternatives of each choice.
    """

    def __init__(self, nvec: Sequence[int], log_prob: bool = False) -> None:
        self.nvec, self.log_prob = tuple(int(n) for n in nvec), log_prob
        self.noise = Spec("noise", (len(self.nvec),), np.dtype(np.float64))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.random((n, len(self.nvec)))

    def greedy(self) -> Any:
        return np.full(len(self.nvec), GREEDY)

    def act(self, out: Mapping[str, Array], noise: Array | None) -> dict[str, Array]:
        assert noise is not None
        logits, mask = _read(out, "logits", self), _legal(out, self.nvec)
        if mask is not None:
            logits = np.where(mask, logits, np.float32(-np.inf))
        blocks = np.split(logits, np.cumsum(self.nvec)[:-1], axis=1)
        parts = [sample_categorical(block, np.ascontiguousarray(noise[:, i]), self.log_prob) for i, block in enumerate(blocks)]
        result = {"act": np.stack([part["act"] for part in parts], axis=1)}
        if self.log_prob:
            result["log_prob"] = np.sum([part["log_prob"] for part in parts], axis=0)
        return result

    def kind(self) -> tuple[Any, ...]:
        return (type(self), self.nvec, self.log_prob)


def sample_categorical(logits: Array, noise: Array, log_prob: bool) -> dict[str, Array]:
    """{'act': [N] int64, maybe 'log_prob': [N] float32} from logits [N, A] and noise [N]; the kernel is data/_sample.pyx."""
    n = len(logits)
    act, logs = np.empty(n, np.int64), np.empty(n if log_prob else 0, np.float32)
    _sample.categorical(np.ascontiguousarray(logits, np.float32), noise, act, logs)
    return {"act": act, "log_prob": logs} if log_prob else {"act": act}


def sample_categorical_reference(logits: Array, noise: Array, log_prob: bool) -> dict[str, Array]:
    """`sample_categorical` in plain NumPy."""
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    sums = weights.cumsum(axis=1)
    act = (sums <= (noise * sums[:, -1])[:, None]).sum(axis=1)
    act = np.where(noise < 0, logits.argmax(axis=1), act)
    if not log_prob:
        return {"act": act}
    return {"act": act, "log_prob": np.log(weights[np.arange(len(act)), act] / sums[:, -1]).astype(np.float32)}


class Gaussian(Explorer):
    """act = `mean` + exp(`log_std`) · ε, ε standard normal. The mean itself is the best action.

    Args:
        shape: Of one action, or how many numbers it has. `mean` and `log_std` are [N, numbers], the actions [N, *shape].
    """

    def __init__(self, shape: int | Sequence[int], log_prob: bool = False) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.log_prob = log_prob
        self.noise = Spec("noise", self.shape, np.dtype(np.float32))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.standard_normal((n, *self.shape), dtype=np.float32)

    def greedy(self) -> Any:
        return np.zeros(self.shape, np.float32)

    def act(self, out: Mapping[str, Array], noise: Array | None) -> dict[str, Array]:
        assert noise is not None
        mean, log_std = _read(out, "mean", self), _read(out, "log_std", self)
        flat = noise.reshape(mean.shape)
        act = (mean + np.exp(log_std) * flat).reshape(noise.shape)
        if not self.log_prob:
            return {"act": act}
        log_prob = -0.5 * flat**2 - log_std - 0.5 * np.log(2 * np.pi)
        return {"act": act, "log_prob": log_prob.sum(axis=1)}

    def kind(self) -> tuple[Any, ...]:
        return (type(self), self.shape, self.log_prob)
