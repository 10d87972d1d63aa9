"""Explorers of actions that are choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.learning.action_spaces import nvec_of
from parl_like.learning.explorers import _sample
from parl_like.learning.explorers.base import GREEDY, Explorer, legal, read
from parl_like.learning.schedule import Schedule, value_of
from parl_like.values.spec import Array, Spec, leaf_spaces


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


def _masked_logits(out: Mapping[str, Array], explorer: Explorer, nvec: Sequence[int] | None = None) -> Array:
    """The prediction's `logits`, −∞ for what its mask forbids."""
    logits = read(out, "logits", explorer)
    return np.where(legal(out["mask"], nvec), logits, np.float32(-np.inf)) if "mask" in out else logits


class EpsilonGreedy(Explorer):
    """With probability ε a uniformly random legal action, else the best one by `q`.

    Args:
        epsilon: A number in [0, 1]; a schedule over the acts of one helper, counted from 1; or several numbers, of which each
            episode draws one for itself (a ladder like that of Horgan et al. 2018, over episodes).
        random_ties: Choose among equally good actions at random instead of the first; for tables, whose values begin equal.

    Raises:
        ValueError: a number of `epsilon`, or the first of a schedule, is outside [0, 1], or there is none.
    """

    reads, settings = "q", ("random_ties",)
    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, epsilon: float | Schedule | Sequence[float] = 0.1, random_ties: bool = False) -> None:
        several = isinstance(epsilon, (Sequence, np.ndarray))
        if several and not len(epsilon):  # type: ignore[arg-type]
            raise ValueError("EpsilonGreedy: epsilon is empty; expected a number in [0, 1], or at least one to draw from")
        for start in epsilon if several else [value_of(epsilon, 1)]:  # type: ignore[union-attr,arg-type]
            if not 0.0 <= start <= 1.0:
                raise ValueError(f"EpsilonGreedy: epsilon is {start}; expected a number in [0, 1]")
        self.epsilon = epsilon
        self.random_ties = random_ties
        if several:
            self.kept = Spec("epsilon", (), np.dtype(np.float64))

    def refuses(self, name: str, value: object) -> str:
        several = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)
        if name == "epsilon" and (self.kept is not None or several):
            return "for only an explorer that was built so draws one of several numbers in each episode"
        return super().refuses(name, value)

    def begin(self, rng: np.random.Generator, n: int) -> Array:
        return rng.choice(np.array(self.epsilon, np.float64), n)

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        """[n] float64. In [0, 1): take the action at that share of the legal ones. In [−1, 0): take the best, or that
        share of the best."""
        explore, choice = rng.random((2, n))
        return np.where(explore < self.rates(step, n), choice, choice + GREEDY if self.random_ties else GREEDY)

    def rates(self, step: int, n: int) -> Any:
        """ε of the next n rows, as for `draw`: a number, or [n]."""
        if self.kept is not None:
            return self.memory
        return np.array([*map(self.epsilon, range(step + 1, step + n + 1))]) if callable(self.epsilon) else self.epsilon

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        q, mask = read(out, "q", self), legal(out["mask"]) if "mask" in out else None
        act = one_of(all_best(q, mask), noise - GREEDY) if self.random_ties else best_actions(q, mask)
        random = (noise >= 0).nonzero()[0]
        if len(random):
            if mask is None:
                act[random] = (noise[random] * q.shape[1]).astype(np.int64)
            else:
                act[random] = one_of(mask[random], noise[random])
        return {"act": act}

    def act_one(self, out: Mapping[str, Any], noise: float) -> int:
        """Choose one of a few actions, faster than NumPy does."""
        if "mask" in out or "q" not in out:
            return int(super().act_one(out, noise))
        q = out["q"].tolist()
        if noise >= 0:
            return int(noise * len(q))
        best = max(q)
        if self.random_ties and (ties := q.count(best)) > 1:
            return [i for i, value in enumerate(q) if value == best][int((noise - GREEDY) * ties)]
        return q.index(best)  # type: ignore[no-any-return]


class MultiEpsilonGreedy(EpsilonGreedy):
    """Several choices: with probability ε all of them uniformly random legal ones, else the best of each by `q` [N, Σ nvec],
    which holds one block for each.

    Args:
        nvec: Alternatives of each choice.
        epsilon: As for `EpsilonGreedy`.
        each: Whether each choice is random by itself, as where each is made by another player.
    """

    settings = ("nvec",)
    act_one = Explorer.act_one

    def __init__(self, nvec: Sequence[int], epsilon: float | Schedule | Sequence[float] = 0.1, *, each: bool = False) -> None:
        super().__init__(epsilon)
        self.nvec = tuple(int(n) for n in nvec)
        self.each = each
        self.noise = Spec("noise", (len(self.nvec),), np.dtype(np.float64))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        explore, choices = rng.random((n, len(self.nvec) if self.each else 1)), rng.random((n, len(self.nvec)))
        rates = np.broadcast_to(self.rates(step, n), n)
        return np.where(explore < rates[:, None], choices, GREEDY)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        cuts = np.cumsum(self.nvec)[:-1]
        blocks = {name: np.split(out[name], cuts, axis=1) for name in ("q", "mask") if name in out}
        parts = [super(MultiEpsilonGreedy, self).act({name: block[i] for name, block in blocks.items()}, noise[:, i])["act"]
                 for i in range(len(self.nvec))]
        return {"act": np.stack(parts, axis=1)}


class NestedEpsilonGreedy(MultiEpsilonGreedy):
    """`MultiEpsilonGreedy` for a Dict or Tuple: `q` [N, Σ nvec] has the choices of all its arrays side by side.

    Args:
        act: The action space; each of its arrays is a choice, or several.
        epsilon: As for `EpsilonGreedy`.
    """

    settings = ("arrays",)

    def __init__(self, act: gym.Space[object], epsilon: float | Schedule | Sequence[float] = 0.1) -> None:
        self.act_space = act
        self.arrays = tuple((name, tuple(nvec_of(space)), isinstance(space, gym.spaces.Discrete))
                            for name, space in leaf_spaces(act, "act"))
        super().__init__([n for _, nvec, _ in self.arrays for n in nvec], epsilon)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        q = read(out, "q", self)
        masks = [out.get(name.replace("act", "mask", 1), np.ones((len(q), sum(nvec)), bool)) for name, nvec, _ in self.arrays]
        act, begin, made = super().act({"q": q, "mask": np.concatenate(masks, 1)}, noise)["act"], 0, {}
        for name, nvec, is_one in self.arrays:
            end = begin + len(nvec)
            made[name], begin = act[:, begin] if is_one else act[:, begin:end], end
        return made


class Categorical(Explorer):
    """Samples an action from softmax(`logits`) by inverting the cumulative distribution at one uniform number."""

    reads = "logits"
    settings: tuple[str, ...] = ("log_prob",)
    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, log_prob: bool = False) -> None:
        self.log_prob = log_prob

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.random(n)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        return sample_categorical(_masked_logits(out, self), noise, self.log_prob)


class MultiCategorical(Explorer):
    """Several independent choices: `logits` [N, Σ nvec] hold one block for each, and each has a uniform number of its own.

    Args:
        nvec: Alternatives of each choice.
    """

    needs, settings = ("logits",), ("nvec", "log_prob")

    def __init__(self, nvec: Sequence[int], log_prob: bool = False) -> None:
        self.nvec, self.log_prob = tuple(int(n) for n in nvec), log_prob
        self.noise = Spec("noise", (len(self.nvec),), np.dtype(np.float64))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.random((n, len(self.nvec)))

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        blocks = np.split(_masked_logits(out, self, self.nvec), np.cumsum(self.nvec)[:-1], axis=1)
        parts = [sample_categorical(block, np.ascontiguousarray(noise[:, i]), self.log_prob) for i, block in enumerate(blocks)]
        result = {"act": np.stack([part["act"] for part in parts], axis=1)}
        if self.log_prob:
            result["log_prob"] = np.sum([part["log_prob"] for part in parts], axis=0)
        return result


class Softmax(Categorical):
    """Samples an action from softmax(`q` / temperature), Boltzmann exploration.

    Args:
        temperature: Above 0, in the units of the values.
        log_prob: As for `Categorical`.

    Raises:
        ValueError: temperature is not above 0.
    """

    reads, settings = "q", ("temperature", "log_prob")

    def __init__(self, temperature: float = 1.0, log_prob: bool = False) -> None:
        if not temperature > 0.0:
            raise ValueError(f"Softmax: temperature is {temperature}; expected a number above 0")
        super().__init__(log_prob)
        self.temperature = temperature

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        return super().act({**out, "logits": read(out, "q", self) / self.temperature}, noise)


class Weighted(Categorical):
    """Samples an action in proportion to its number ≥ 0 in `weights`; of a row in which all legal ones are 0, any legal one."""

    reads = "weights"

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        weights = read(out, "weights", self)
        allowed = legal(out["mask"]) if "mask" in out else np.ones(weights.shape, bool)
        weights = np.where(allowed, weights, 0)
        nothing = ~weights.any(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            return sample_categorical(np.log(np.where(nothing, allowed, weights)), noise, self.log_prob)


class GumbelSoftmax(Explorer):
    """Samples from softmax(`logits`) as the largest of `logits` + standard Gumbel noise (Jang et al. 2017).

    Args:
        n: Number of actions.
    """

    reads, settings = "logits", ("n",)

    def __init__(self, n: int) -> None:
        self.n = n
        self.noise = Spec("noise", (n,), np.dtype(np.float64))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.gumbel(size=(n, self.n))

    def greedy(self) -> float | Array:
        return np.zeros(self.n)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        return {"act": best_actions(_masked_logits(out, self) + noise, None)}


class UCB(Explorer):
    """The legal action with the largest `q` + c · √(log t / n), UCB1 (Auer et al. 2002). The prediction's `counts` [N, A] say how
    often each action was taken there, n; t is their sum. What was never taken comes first. In tests the best by `q`.

    `UCBBandit` counts. For another algorithm count in `learn` of a subclass, and return the counts from its `predict`.

    Args:
        c: Weight of the bonus; √2 for rewards in [0, 1].
    """

    reads, needs, settings = "q", ("counts",), ("c",)
    noise = Spec("noise", (), np.dtype(np.float64))

    def __init__(self, c: float = math.sqrt(2.0)) -> None:
        self.c = c

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        """[n] float64 in [0, 1), which breaks ties."""
        return rng.random(n)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        q, counts = read(out, "q", self), read(out, "counts", self)
        mask = legal(out["mask"]) if "mask" in out else None
        total = np.log(np.maximum(counts.sum(axis=1, keepdims=True), 1))
        bonus = np.where(counts > 0, self.c * np.sqrt(total / np.maximum(counts, 1)), np.inf)
        act = one_of(all_best(q + bonus, mask), np.maximum(noise, 0.0))
        return {"act": np.where(noise < 0, best_actions(q, mask), act)}


class Thompson(Explorer):
    """The legal action with the largest value drawn from what is believed of it, N(`q`, `std`²) (Thompson 1933). The prediction's
    `std` is [N, A]. In tests the best by `q`.

    Args:
        n: Number of actions.
    """

    reads, needs, settings = "q", ("std",), ("n",)

    def __init__(self, n: int) -> None:
        self.n = n
        self.noise = Spec("noise", (n,), np.dtype(np.float64))

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return rng.normal(size=(n, self.n))

    def greedy(self) -> float | Array:
        return np.zeros(self.n)

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        drawn = read(out, "q", self) + noise * read(out, "std", self)
        return {"act": best_actions(drawn, legal(out["mask"]) if "mask" in out else None)}


class BootstrappedHeads(Explorer):
    """Each episode follows one of several heads, the best action by its `q` (Osband et al. 2016).

    The algorithm's `predict` gets the index as `inputs.head`, [N] int64, and returns the `q` [N, A] of that head. −1, or no
    `head` at all, asks for all heads together: in tests, and where a single action is asked for (`Robot.act`).

    Args:
        n: Number of heads.

    Raises:
        ValueError: n is below 1.
    """

    reads, given = "q", "head"
    noise = Spec("noise", (), np.dtype(np.int64))
    kept = Spec("head", (), np.dtype(np.int64))

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"BootstrappedHeads: n is {n}; expected at least 1 head")
        self.n = n

    def refuses(self, name: str, value: object) -> str:
        return "whose networks have so many heads" if name == "n" else super().refuses(name, value)

    def begin(self, rng: np.random.Generator, n: int) -> Array:
        return rng.integers(self.n, size=n)

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return self.memory.copy()

    def greedy(self) -> float | Array:
        return -1

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        return {"act": best_actions(read(out, "q", self), legal(out["mask"]) if "mask" in out else None)}


def sample_categorical(logits: Array, noise: Array, log_prob: bool) -> dict[str, Array]:
    """{'act': [N] int64, maybe 'log_prob': [N] float32} from logits [N, A] and noise [N]; the kernel is
    learning/explorers/_sample.pyx."""
    n = len(logits)
    act, logs = np.empty(n, np.int64), np.empty(n if log_prob else 0, np.float32)
    _sample.categorical(np.ascontiguousarray(logits, np.float32), noise, act, logs)
    return {"act": act, "log_prob": logs} if log_prob else {"act": act}
