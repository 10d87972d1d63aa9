"""Explorers: how a prediction becomes an action; Noise: what an explorer draws for one agent, and how that is saved.

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
from parl_like.data.generators import rng_state, set_rng_state
from parl_like.optim import Schedule, value_of
from parl_like.spec import Array, Spec

GREEDY = -1.0
"""Noise of a row that takes the best action, for explorers whose noise is a number in [0, 1)."""

NOISE_BLOCK = 64
"""Rows of noise drawn at a time."""


class Explorer:
    """Base class; also the explorer of a task whose `predict` returns `act` itself.

    Attributes:
        noise: Spec of the noise of one row, or None.
        reads: Output of `predict` that has one number per action of a Discrete space; None: there is none.
        settings: Names of the attributes that `act` depends on.
    """

    noise: Spec | None = None
    reads: str | None = None
    settings: tuple[str, ...] = ()

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        """Noise [n, *shape] of the next `n` rows of one helper, whose acting steps are `step` … `step` + n − 1."""
        raise TypeError(f"{type(self).__name__} has a noise spec but no draw()")

    def greedy(self) -> Any:
        """The noise of one row that takes the best action."""
        return np.full(self.noise.shape, GREEDY) if self.noise and self.noise.shape else GREEDY

    def act(self, out: Mapping[str, Array], noise: Any) -> dict[str, Array]:
        """Predictions and noise with N rows each → {'act': [N, ...], maybe 'log_prob': [N]}."""
        return {}

    def kind(self) -> tuple[Any, ...]:
        """Two explorers with equal kinds may serve one batch."""
        return (type(self), *(getattr(self, name) for name in self.settings))


def best_actions(values: Array, mask: Array | None) -> Array:
    """Index of the largest value of each row [N, A]; illegal actions (mask False) never win; ties go to the first."""
    return (values if mask is None else np.where(mask, values, -np.inf)).argmax(axis=1)  # type: ignore[no-any-return]


def all_best(values: Array, mask: Array | None = None) -> Array:
    """[N, A] bool: the legal actions whose value is the largest legal one of their row."""
    legal = np.ones(values.shape, bool) if mask is None else mask
    best = np.where(legal, values, -np.inf).max(axis=1, keepdims=True)
    return (values == best) & legal  # type: ignore[no-any-return]


def one_of(choices: Array, noise: Array) -> Array:
    """For each row [N, A] bool the k-th True one, k uniform over their number as `noise` [N] in [0, 1) is."""
    k = (noise * choices.sum(axis=1)).astype(np.int64)
    return (choices.cumsum(axis=1) > k[:, None]).argmax(axis=1)  # type: ignore[no-any-return]


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
    """Which actions count as legal, a new bool array or tensor of the mask's shape: the one rule wherever masks are used.

    A row that allows nothing allows everything: a time limit may fall on a state without an action, which is still to be valued.

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


def _masked_logits(out: Mapping[str, Array], explorer: Explorer, nvec: Sequence[int] | None = None) -> Array:
    """The prediction's `logits`, −∞ for what its mask forbids."""
    logits = _read(out, "logits", explorer)
    return np.where(legal(out["mask"], nvec), logits, np.float32(-np.inf)) if "mask" in out else logits


class EpsilonGreedy(Explorer):
    """With probability ε a uniformly random legal action, else the best one by `q`.

    Args:
        epsilon: A number in [0, 1] or a schedule over the acts of one helper, counted from 1.
        random_ties: Choose among equally good actions at random instead of the first; for tables, whose values begin equal.
    """

    reads, settings = "q", ("random_ties",)
    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, epsilon: float | Schedule = 0.1, random_ties: bool = False) -> None:
        start = value_of(epsilon, 1)
        if not 0.0 <= start <= 1.0:
            raise ValueError(f"EpsilonGreedy: epsilon is {start}; expected a number in [0, 1]")
        self.epsilon, self.random_ties = epsilon, random_ties

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        """In [0, 1): take the action at that share of the legal ones. In [−1, 0): take the best, or that share of the best."""
        explore, choice = rng.random((2, n))
        counts = range(step + 1, step + n + 1)
        epsilon = np.array([*map(self.epsilon, counts)]) if callable(self.epsilon) else self.epsilon
        return np.where(explore < epsilon, choice, choice + GREEDY if self.random_ties else GREEDY)

    def act(self, out: Mapping[str, Array], noise: Any) -> dict[str, Array]:
        q, mask = _read(out, "q", self), legal(out["mask"]) if "mask" in out else None
        act = one_of(all_best(q, mask), noise - GREEDY) if self.random_ties else best_actions(q, mask)
        random = np.flatnonzero(noise >= 0)
        if len(random):
            if mask is None:
                act[random] = (noise[random] * q.shape[1]).astype(np.int64)
            else:
                act[random] = one_of(mask[random], noise[random])
        return {"act": act}


class Categorical(Explorer):
    """Samples an action from softmax(`logits`) by inverting the cumulative distribution at one uniform number."""

    reads, settings = "logits", ("log_prob",)
    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, log_prob: bool = False) -> None:
        self.log_prob = log_prob

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.random(n)

    def act(self, out: Mapping[str, Array], noise: Any) -> dict[str, Array]:
        return sample_categorical(_masked_logits(out, self), noise, self.log_prob)


class MultiCategorical(Explorer):
    """Several independent choices: `logits` [N, Σ nvec] hold one block for each, and each has a uniform number of its own.

    Args:
        nvec: Alternatives of each choice.
    """

    settings = ("nvec", "log_prob")

    def __init__(self, nvec: Sequence[int], log_prob: bool = False) -> None:
        self.nvec, self.log_prob = tuple(int(n) for n in nvec), log_prob
        self.noise = Spec("noise", (len(self.nvec),), np.dtype(np.float64))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.random((n, len(self.nvec)))

    def act(self, out: Mapping[str, Array], noise: Any) -> dict[str, Array]:
        blocks = np.split(_masked_logits(out, self, self.nvec), np.cumsum(self.nvec)[:-1], axis=1)
        parts = [sample_categorical(block, np.ascontiguousarray(noise[:, i]), self.log_prob) for i, block in enumerate(blocks)]
        result = {"act": np.stack([part["act"] for part in parts], axis=1)}
        if self.log_prob:
            result["log_prob"] = np.sum([part["log_prob"] for part in parts], axis=0)
        return result


def sample_categorical(logits: Array, noise: Array, log_prob: bool) -> dict[str, Array]:
    """{'act': [N] int64, maybe 'log_prob': [N] float32} from logits [N, A] and noise [N]; the kernel is data/_sample.pyx."""
    n = len(logits)
    act, logs = np.empty(n, np.int64), np.empty(n if log_prob else 0, np.float32)
    _sample.categorical(np.ascontiguousarray(logits, np.float32), noise, act, logs)
    return {"act": act, "log_prob": logs} if log_prob else {"act": act}


class Gaussian(Explorer):
    """act = `mean` + exp(`log_std`) · ε, ε standard normal. The mean itself is the best action.

    Args:
        shape: Of one action, or how many numbers it has. `mean` and `log_std` are [N, numbers], the actions [N, *shape].
    """

    settings = ("shape", "log_prob")

    def __init__(self, shape: int | Sequence[int], log_prob: bool = False) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.log_prob = log_prob
        self.noise = Spec("noise", self.shape, np.dtype(np.float32))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.standard_normal((n, *self.shape), dtype=np.float32)

    def greedy(self) -> Any:
        return np.zeros(self.shape, np.float32)

    def act(self, out: Mapping[str, Array], noise: Any) -> dict[str, Array]:
        mean, log_std = _read(out, "mean", self), _read(out, "log_std", self)
        flat = noise.reshape(mean.shape)
        act = (mean + np.exp(log_std) * flat).reshape(noise.shape)
        if not self.log_prob:
            return {"act": act}
        log_prob = -0.5 * flat**2 - log_std - 0.5 * np.log(2 * np.pi)
        return {"act": act, "log_prob": log_prob.sum(axis=1)}


class Noise:
    """The noise of one helper's rows, in order.

    Args:
        explorer: Draws it; its `noise` is not None.
        rng: The helper's generator, of which nobody else takes numbers while a block is open.

    Attributes:
        block, at: Noise of the next rows, and which of them is next; at its end `draw` makes another.
        drawn: Whether it is drawn; else every row has what stands for the best action.
    """

    def __init__(self, explorer: Explorer, rng: np.random.Generator, drawn: bool) -> None:
        self.explorer, self.rng, self.drawn = explorer, rng, drawn
        self.block: list[Any] = []
        self.at = self._acted = 0
        self._before: dict[str, Any] = rng_state(rng)  # the generator's state when the block was drawn

    def rows(self, n: int) -> Array:
        """[n, …], not from a block."""
        if not self.drawn:
            return np.array([self.explorer.greedy()] * n, self.explorer.noise.dtype)  # type: ignore[union-attr]
        self._acted += n
        return self.explorer.draw(self.rng, self._acted - n, n)

    def draw(self) -> None:
        """A new block; its first row is next."""
        if self.drawn:
            self._before = rng_state(self.rng)
            block = self.explorer.draw(self.rng, self._acted, NOISE_BLOCK)
            self.block = block.tolist() if block.ndim == 1 else list(block)
            self._acted += NOISE_BLOCK
        else:
            self.block = [self.explorer.greedy()] * NOISE_BLOCK

    def state_dict(self) -> dict[str, Any]:
        """The unused part of the block, as the generator's state before it and a position; and how many rows there were."""
        return {"acted": self._acted, "noise_at": self.at, "noise_size": len(self.block), "noise_rng": self._before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Draws the block again; the caller sets the generator afterwards."""
        self.block, self.at = [], 0
        if state["noise_size"] and self.drawn:
            set_rng_state(self.rng, state["noise_rng"])
            self._acted = state["acted"] - NOISE_BLOCK
            self.draw()
            self.at = state["noise_at"]
        self._acted = state["acted"]
