"""Curiosity: tasks that reward a policy task for what is new to them. Random network distillation (Burda et al. 2019), counts
(Bellemare et al. 2016; Tang et al. 2017), and the error of a model of one's own actions (ICM, Pathak et al. 2017).

Each is one more task of a robot, from which the policy task takes `rewards` (`ComputationTask`). The intrinsic reward is added to
the environment's, by weight, and one value is learned of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parl_like.algorithms.unrolls import in_chunks, minibatches_of
from parl_like.data.transforms.moments import Moments
from parl_like.learning.algorithm import Algorithm, Loss, Schedule, Window
from parl_like.learning.model import Model
from parl_like.values import plain
from parl_like.values.batch import Batch
from parl_like.values.plain import State
from parl_like.values.spec import Array, leaves

LARGE = 1e30
"""Bounds of this size bound nothing."""


class Novelty(Algorithm):
    """The reward of a step from s to s', of how new an observation is, n:

        r = max(n(s') − α n(s), 0), and with `first_visits` only where s' is new in its episode

    α 0 is plain novelty; α 0.5 with `first_visits` is NovelD (Zhang et al. 2021); with counts it is near to BeBold, which takes
    1 / N and α = 1. First visits are those of episodes that ran since the update before, so a policy that learns from other rows
    than those of unrolls is refused. The helpers of both tasks store every row. Observations that are equal to the last bit, or
    have one key, are one.

    A subclass writes `novelty`, and `learn` or `process`.

    Args:
        model: See the subclass.
        alpha: α, in [0, 1]. first_visits: See above.
    """

    window = Window(in_order=True, fields=("first", "lane", "episode", "step"))
    takes_priorities = takes_rewards = False

    def __init__(self, model: Model | Callable[[], Model], *, alpha: float = 0.0, first_visits: bool = False,
                 lr: float | Schedule = 1e-3, max_grad_norm: float | None = None) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.alpha, self.first_visits, self.pays_in_order = alpha, first_visits, first_visits
        self.episodes = OpenEpisodes()
        if first_visits:
            self.model.reads = ("lane", "episode", "step")

    def novelty(self, obs: Any) -> Tensor:
        """Return the novelty of observations, [N] float32 of at least 0. Raises TypeError where a subclass does not write it."""
        raise TypeError(f"{type(self).__name__} has no novelty(obs)")

    def keys(self, obs: Any) -> Array:
        """One uint64 for each observation, [N]."""
        return exact_keys(obs)

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        reward = self.novelty(inputs.obs_next)
        if self.alpha:
            reward = (reward - self.alpha * self.novelty(inputs.obs)).clamp(min=0.0)
        if self.first_visits:
            new = self.episodes.first_visits(*_origin(inputs), self.keys(inputs.obs), self.keys(inputs.obs_next))
            reward = reward * torch.from_numpy(new).to(reward.device)
        return {"reward": reward}

    def post_process(self, batch: Batch) -> None:
        if self.first_visits:
            self.episodes.add(*_origin(batch), self.keys(batch.obs))


def _origin(rows: Batch) -> tuple[Array, Array, Array]:
    """Lane, episode and step of each row."""
    return rows.lane.cpu().numpy(), rows.episode.cpu().numpy(), rows.step.cpu().numpy()


class Counts(Novelty):
    """n(s) = 1 / √N(s), N how often s was visited up to the last update, and once more for this visit.

    Observations are told apart by all their bytes, or by the signs of random affine functions of their numbers (SimHash,
    Charikar 2002), so that near ones count as one. Of at most 8 bytes the key is the observation itself; of more a hash of 64
    bits, which two of a million observations share with a probability of 3 · 10⁻⁸.

    Differences:
        - Observations are counted, or their hashes; Bellemare et al. get pseudo-counts from a density model.
        - The functions have random offsets, and bounded numbers are put to [−1, 1]; those of Tang et al. have none, and may read
          an autoencoder's code.
        - A row is paid by the visits before its update, and its own; Tang et al. count all rows of a batch first.

    Args:
        model: `Novel`. alpha, first_visits: See `Novelty`.
        planes: How many such functions, at most 64; 0: by all bytes. None: 0 where all numbers of an observation are integers,
            else 32.
    """

    fitting_models = "Novel"
    transient = ("simhash",)

    def __init__(self, model: Model | Callable[[], Model], *, planes: int | None = None, alpha: float = 0.0,
                 first_visits: bool = False) -> None:
        super().__init__(model, alpha=alpha, first_visits=first_visits)
        self.losses = {}
        floats = any(spec.dtype.kind == "f" for spec in self.model.obs_specs.values())
        self.planes = (32 if floats else 0) if planes is None else planes
        self.simhash = SimHash(self.model, self.planes)
        self.visits = Visits()

    def keys(self, obs: Any) -> Array:
        return self.simhash(obs) if self.planes else exact_keys(obs)

    def novelty(self, obs: Any) -> Tensor:
        return torch.from_numpy(1.0 / np.sqrt(self.visits.of(self.keys(obs)) + 1.0)).float()

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        begun = batch.first.cpu().numpy()
        self.visits.add(np.concatenate([self.keys(batch.obs)[begun], self.keys(batch.obs_next)]))
        return {"different": float(len(self.visits.keys))}


class RND(Novelty):
    """n(s) = ‖f̂(s) − f(s)‖² / F / σ, of a random network f with F outputs and its predictor f̂, which learns from each row once.

    σ is the running standard deviation of the discounted sums of these errors along each environment, over the ends of episodes.
    Observations are put to mean 0 and standard deviation 1 by all that was seen, and cut to ± 5. Until something was seen the
    reward is 0.

    Differences:
        - One value is learned of the sum of both rewards; the paper has a second value head with a discount of its own.
        - Returns of this reward end with the episode; the paper's go on over its end.
        - The reward is 0 until something was seen; the paper lets a random agent act before.
        - The predictor learns from all rows once (`share`, `epochs`); the paper's from a share of 32 / environments, at most 1,
          in 4 passes.

    Args:
        model: `RNDNet`. alpha, first_visits: See `Novelty`.
        gamma: Discount of those sums.
        share: Of the rows of an update that the predictor learns from, drawn anew.
        epochs, minibatches: Passes over an update, and their parts.
        lr: Learning rate of the predictor, a number or a schedule over optimiser steps.
        The others: As for `Algorithm`.
    """

    calls = {"error": "error(numbers) -> [N]", "flat": "flat(obs) -> numbers,", "predictor": "predictor, the module that learns,"}
    fitting_models = "RNDNet"

    def __init__(
        self, model: Model | Callable[[], Model], *, gamma: float = 0.99, share: float = 1.0, epochs: int = 1,
        minibatches: int = 4, alpha: float = 0.0, first_visits: bool = False, lr: float | Schedule = 1e-4,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(model, alpha=alpha, first_visits=first_visits, lr=lr, max_grad_norm=max_grad_norm)
        self.gamma, self.share, self.epochs, self.n_minibatches = gamma, share, epochs, minibatches
        self.losses = {"predictor": Loss(self.model.predictor, "lr", "max_grad_norm")}
        self.seen, self.sums = Moments(), Moments()
        self.running = np.zeros(0)  # the discounted sum of each environment, by its number

    def numbers(self, obs: Any) -> Tensor:
        """Observations as the networks see them, [N, size] float32."""
        flat: Tensor = self.model.flat(obs)
        return torch.from_numpy(self.seen.normalize(flat.cpu().numpy(), 5.0).astype(np.float32)).to(flat.device)

    def error(self, obs: Any) -> Tensor:
        """The error of the predictor for each row, [N]."""
        return in_chunks(lambda some: self.model.error(self.numbers(some)), obs)  # type: ignore[no-any-return]

    def novelty(self, obs: Any) -> Tensor:
        error = self.error(obs)
        return error / float(self.sums.std) if len(self.running) else torch.zeros_like(error)

    def process(self, batch: Batch) -> Batch:
        """Counts the observations, and the errors that they have now, into the statistics."""
        flat = in_chunks(self.model.flat, batch.obs_next)
        self.seen.update(flat.cpu().numpy())
        lanes, errors = batch.lane.tolist(), self.error(batch.obs_next).tolist()
        running = np.concatenate([self.running, np.zeros(max(0, max(lanes) + 1 - len(self.running)))]).tolist()
        sums = []
        for lane, error in zip(lanes, errors, strict=True):
            running[lane] = self.gamma * running[lane] + error
            sums.append(running[lane])
        self.running = np.array(running)
        self.sums.update(np.array(sums))
        return batch

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        rows, parts = Batch(obs=batch.obs_next), min(self.n_minibatches, len(batch.last))
        for _ in range(self.epochs):
            yield from minibatches_of(rows, batch.last, parts, self.rng, whole=False)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        error = self.model.error(self.numbers(batch.obs))
        if self.share < 1.0:
            drawn = torch.from_numpy(self.rng.random(len(error)) < self.share).to(error.device)
            error = error[drawn] if bool(drawn.any()) else error
        return {"predictor": error.mean()}


class ICM(Algorithm):
    """The error of a model of what one's own actions do, in features that hold what these are told by:

        r = ½ ‖f(φ(s), a) − φ(s')‖²,   loss = (1 − β) · mean −log p(a | φ(s), φ(s')) + β · mean r

    so what no action changes, such as noise, is left out of φ. For a Box −log p is that of a normal distribution of width 1.

    Differences:
        - It is a task with Adam steps of its own; the paper learns it in one loss with A3C.
        - The scale of r is the weight that the policy task gives it; the paper's is η = 0.01.
        - Actions of a Box are an addition.

    Args:
        model: `ICMNet`.
        beta: β, in [0, 1]. epochs, minibatches: Passes over an update, and their parts.
        The others: As for `Algorithm`.
    """

    takes_priorities = takes_rewards = False
    window = Window(in_order=True)
    calls = {"trunk": "trunk(obs) -> [N, F]", "forward_error": "forward_error(features, act, features_next) -> [N]",
             "surprise": "surprise(features, features_next, act) -> the mean of −log p(act)"}
    fitting_models = "ICMNet"

    def __init__(self, model: Model | Callable[[], Model], *, beta: float = 0.2, epochs: int = 1, minibatches: int = 4,
                 lr: float | Schedule = 1e-3, max_grad_norm: float | None = None) -> None:
        super().__init__(model, lr=lr, max_grad_norm=max_grad_norm)
        self.beta, self.epochs, self.n_minibatches = beta, epochs, minibatches

    def predict(self, inputs: Batch) -> Mapping[str, Any]:
        model = self.model
        return {"reward": model.forward_error(model.trunk(inputs.obs), inputs.act, model.trunk(inputs.obs_next))}

    def minibatches(self, batch: Batch) -> Iterable[Batch]:
        rows = Batch(obs=batch.obs, act=batch.act, obs_next=batch.obs_next)
        for _ in range(self.epochs):
            yield from minibatches_of(rows, batch.last, min(self.n_minibatches, len(batch.last)), self.rng, whole=False)

    def learn(self, batch: Batch) -> Mapping[str, Any]:
        model = self.model
        features, features_next = model.trunk(batch.obs), model.trunk(batch.obs_next)
        error = model.forward_error(features, batch.act, features_next).mean()
        surprise = model.surprise(features, features_next, batch.act)
        return {"loss": (1.0 - self.beta) * surprise + self.beta * error, "forward": error.detach(), "inverse": surprise.detach()}


class Visits:
    """Counts of keys.

    Attributes:
        keys: [K] uint64, rising. counts: [K] int64.
    """

    def __init__(self) -> None:
        self.keys: Array = np.zeros(0, np.uint64)
        self.counts: Array = np.zeros(0, np.int64)

    def _places(self, keys: Array) -> tuple[Array, Array]:
        """Return the place of each key, and whether it stands there."""
        places = np.searchsorted(self.keys, keys)
        found = places < len(self.keys)
        found[found] = self.keys[places[found]] == keys[found]
        return places, found

    def of(self, keys: Array) -> Array:
        """Return the counts of keys [N], int64."""
        places, found = self._places(keys)
        counts = np.zeros(len(keys), np.int64)
        counts[found] = self.counts[places[found]]
        return counts

    def add(self, keys: Array) -> None:
        """Count keys [N], each as often as it is there."""
        unique, times = np.unique(keys, return_counts=True)
        places, found = self._places(unique)
        counts = self.counts.copy()
        counts[places[found]] += times[found]
        places, new = places[~found], ~found
        self.keys, self.counts = np.insert(self.keys, places, unique[new]), np.insert(counts, places, times[new])

    def state_dict(self) -> State:
        """Return keys and counts."""
        return {"keys": self.keys.copy(), "counts": self.counts.copy()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave. Raises ValueError for what cannot be."""
        keys, counts = plain.array(state["keys"]), plain.array(state["counts"])
        if keys.dtype != np.uint64 or keys.ndim != 1 or counts.dtype != np.int64 or counts.shape != keys.shape or bool(
                (keys[1:] <= keys[:-1]).any() or (counts < 1).any()):
            raise ValueError(f"Visits: keys {keys.shape} {keys.dtype} and counts {counts.shape} {counts.dtype}; expected rising "
                             "keys [K] uint64, and how often each was seen, [K] int64")
        self.keys, self.counts = keys.copy(), counts.copy()


class OpenEpisodes:
    """Keys that episodes have seen, and when: so it may be asked before it was told of a row, or after.

    Attributes:
        rows: [K, 4] uint64: environment, episode, key of what was seen, and the step that began with it first.
    """

    def __init__(self) -> None:
        self.rows: Array = np.zeros((0, 4), np.uint64)

    def first_visits(self, lane: Array, episode: Array, step: Array, keys: Array, keys_next: Array) -> Array:
        """Return whether the observation after each row is new in its episode, [N] bool: no row up to this one begins with it."""
        seen = np.concatenate([self.rows, _rows(lane, episode, keys, step)])
        asked = np.concatenate([seen[:, :3], _rows(lane, episode, keys_next)])
        every, ids = np.unique(asked, axis=0, return_inverse=True)
        ids = ids.ravel()
        earliest = np.full(len(every), np.iinfo(np.uint64).max)
        np.minimum.at(earliest, ids[: len(seen)], seen[:, 3])
        return earliest[ids[len(seen) :]] > step.astype(np.uint64)

    def add(self, lane: Array, episode: Array, step: Array, keys: Array) -> None:
        """Note what rows have begun with. Of each environment the episodes before the one that was its newest are forgotten."""
        rows = np.unique(np.concatenate([self.rows, _rows(lane, episode, keys, step)]), axis=0)
        again = np.zeros(len(rows), bool)
        again[1:] = (rows[1:, :3] == rows[:-1, :3]).all(1)  # with a later step
        lanes, places = np.unique(rows[:, 0], return_inverse=True)
        newest = np.zeros(len(lanes), np.uint64)
        np.maximum.at(newest, np.searchsorted(lanes, self.rows[:, 0]), self.rows[:, 1])
        self.rows = rows[~again & (rows[:, 1] >= newest[places])]

    def state_dict(self) -> State:
        """Return the rows."""
        return {"rows": self.rows.copy()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave. Raises ValueError for what cannot be."""
        rows = plain.array(state["rows"])
        if rows.dtype != np.uint64 or rows.ndim != 2 or rows.shape[1] != 4:
            raise ValueError(f"OpenEpisodes: rows {rows.shape} {rows.dtype}; expected [K, 4] uint64")
        self.rows = rows.copy()


def _rows(*columns: Array) -> Array:
    return np.stack([column.astype(np.uint64) for column in columns], 1)


def exact_keys(obs: Any) -> Array:
    """Return one uint64 for each observation [N, …]: its bytes where they are at most 8, else a hash of them."""
    parts = []
    for _, leaf in leaves(obs, "obs"):
        x: Any = leaf.cpu().numpy()
        x = np.ascontiguousarray(x + 0.0 if x.dtype.kind == "f" else x)  # −0 is 0
        parts.append(x.reshape(len(x), -1).view(np.uint8).reshape(len(x), -1))
    rows = np.concatenate(parts, 1)
    n, size = rows.shape
    if size <= 8:
        padded = np.zeros((n, 8), np.uint8)
        padded[:, :size] = rows
        return padded.view("<u8")[:, 0].astype(np.uint64)
    digests = b"".join([blake2b(row, digest_size=8).digest() for row in rows])
    return np.frombuffer(digests, "<u8").astype(np.uint64)


class SimHash:
    """The signs of random affine functions of an observation's numbers, as the bits of a key. Numbers with finite bounds are put
    to [−1, 1] before.

    Args:
        model: `Novel`, whose observations. bits: How many functions; 0: it is not called.
    """

    def __init__(self, model: Any, bits: int) -> None:
        self.bits = bits
        if not bits:
            return
        self.flat = model.flat
        rng = np.random.default_rng(0)
        self.planes = rng.standard_normal((self.flat.out_size, bits)).astype(np.float32)
        self.offsets = rng.uniform(-1.0, 1.0, bits).astype(np.float32) * np.sqrt(self.flat.out_size, dtype=np.float32)
        low, high = (np.concatenate([bound(part) for part in self.flat.parts]) for bound in (_low, _high))
        bounded = (np.abs(low) < LARGE) & (np.abs(high) < LARGE) & (high > low)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        self.middle, self.half = ((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)

    def __call__(self, obs: Any) -> Array:
        """Return the keys of observations [N, …], uint64."""
        x = (self.flat(obs).cpu().numpy() - self.middle) / self.half
        signs: Array = (x @ self.planes + self.offsets) > 0
        keys: Array = (signs.astype(np.uint64) << np.arange(self.bits, dtype=np.uint64)).sum(1, dtype=np.uint64)
        return keys


def _low(part: Any) -> Array:
    return _bound(part, "low", 0.0)


def _high(part: Any) -> Array:
    return _bound(part, "high", 1.0)


def _bound(part: Any, name: str, otherwise: float) -> Array:
    """Return a bound of the numbers that `FlatObs` makes of one leaf, [size] float64."""
    bounds = getattr(part.space, name, None) if not part.choices and part.scale == 1.0 else None
    return np.full(part.size, otherwise) if bounds is None else np.asarray(bounds, np.float64).reshape(part.size)
