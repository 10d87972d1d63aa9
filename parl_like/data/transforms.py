"""Transforms: what is done to raw rows on their way to a model, the same on rollout and on replay. The buffer keeps raw rows.

A chain (`Transforms`) is ordered: transforms that copy raw rows come first, then those that read the buffer, whose rows are raw,
then those that treat each row alone. So whatever is read from the buffer passes through the rest of the chain like the row itself.
"""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations
from typing import Any, Literal, NamedTuple, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from parl_like.data.replay_buffer import Positions, ReplayBuffer
from parl_like.spec import Array, specs_of

Flat = dict[str, Array]
Fields = str | Sequence[str]
Phase = Literal["replay", "rollout", "never"]

MIN_VAR = 1e-8  # a constant field is divided by 1e-4, not by 0


class Tier(IntEnum):
    RAW_COPY = 1
    BUFFER = 2
    ROW = 3


WHY = {
    Tier.RAW_COPY: "it keeps raw rows, so nothing may change them before it",
    Tier.BUFFER: "what it reads from the buffer is raw, and must pass through the same row-wise transforms as the row itself",
}


@dataclass
class Source:
    """Where replayed rows come from. Hold `buffer.lock` from the choice of positions to the end of `Transforms.replay`.

    Attributes:
        buffer: The raw rows.
        indices: [N] positions of the rows.
        rng: For transforms that choose at random.
        last_index: [N] positions of the rows that obs_next is taken from; equal to `indices` unless the rows look n steps ahead.
        real: [N] bool, where the rows are those of sequences: False at what fills up a sequence, and shall not count. Else None.
        relabelled: Field name -> [N] bool, rows in which a transform replaced the field for their whole episode.
    """

    buffer: ReplayBuffer
    indices: Positions
    rng: np.random.Generator
    last_index: Positions
    real: Array | None = None
    relabelled: dict[str, Array] = field(default_factory=dict)


class Transform:
    """One step of a chain; this class changes nothing. No method writes into its arguments, arrays included.

    Attributes:
        tier: Where in a chain it may stand.
        update: Whether its statistics may change now.
        lesson: Number of the lesson that rows are made ready for. What is counted comes into use when this number grows, so that all rows
            of a lesson are treated alike. None: at once.
    """

    tier: Tier = Tier.ROW
    update: bool = True
    lesson: int | None = None

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """The observation space behind this transform, given the one before it.

        Raises:
            ValueError: the space lacks a field, or has one that does not fit.
        """
        return space

    def for_helper(self, n_envs: int) -> Self:
        """A copy with a rollout memory of its own, for `n_envs` environments; statistics stay shared."""
        return copy.copy(self)

    def begin(self, env_index: int) -> None:
        """Rollout: an episode of this environment begins with the next observation."""

    def observe(self, obs: Flat) -> Flat:
        """Rollout, once per time step: observations of all environments, dotted name -> [n_envs, …], as the model gets them."""
        return obs

    def reward(self, rew: Array) -> Array:
        """Rollout: rewards of any shape, as the algorithm gets them."""
        return rew

    def replay(self, rows: Flat, source: Source) -> Flat:
        """Replay: flat rows as the algorithm gets them. Fields that `rows` lacks are left out.

        Args:
            rows: obs, obs_next, act, … [N, …], rew [N, …]. Rows that look n steps ahead have rew [N, n, …] and valid [N] int:
                how many of the n count; the others are 0 and stay 0.
        """
        return rows

    def state_dict(self) -> dict[str, Any]:
        """The statistics, as arrays and plain values; {} where there are none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            ValueError: other fields, or another kind of moments.
        """

    def __repr__(self) -> str:
        args = {k: v for k, v in vars(self).items() if not k.startswith("_") and k not in ("update", "lesson", "moments")}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in args.items())})"

    def _error(self, name: str, expected: object, got: object) -> ValueError:
        return ValueError(f"{self!r}, field {name!r}: expected {expected}, got {got}")


class Identity(Transform):
    """Changes nothing."""


class Transforms:
    """An ordered chain of transforms.

    Args:
        transforms: Raw copies (`UntransformedTimeStep`), then what reads the buffer (`Hindsight`, then `FrameStacker`), then the rest.

    Raises:
        ValueError: an element is no transform, or the order is wrong.
    """

    def __init__(self, transforms: Iterable[Transform] = ()) -> None:
        self._chain = tuple(transforms)
        for transform in self._chain:
            if not isinstance(transform, Transform) or not isinstance(transform.tier, Tier):
                raise ValueError(f"Transforms: got {transform!r}; expected a Transform object whose tier is a Tier")
        for first, second in combinations(self._chain, 2):
            if second.tier < first.tier:
                raise ValueError(f"Transforms: {second!r} stands after {first!r}; put it before: {WHY[second.tier]}")
            if isinstance(first, FrameStacker) and isinstance(second, Hindsight):
                raise ValueError(f"Transforms: {second!r} stands after {first!r}; put it before, so that new goals are stacked")
            for kind in (UntransformedTimeStep, Hindsight, FrameStacker):
                if isinstance(first, kind) and isinstance(second, kind):
                    raise ValueError(f"Transforms: both {first!r} and {second!r}; expected at most one {kind.__name__}")

    @property
    def update(self) -> bool:
        """Whether statistics may change now; False in evaluation."""
        return all(transform.update for transform in self._chain)

    @update.setter
    def update(self, value: bool) -> None:
        for transform in self._chain:
            transform.update = value

    def prepare(self, lesson: int) -> None:
        """From now on rows are made ready for this lesson (`Transform.lesson`)."""
        for transform in self._chain:
            transform.lesson = lesson

    @property
    def behind(self) -> int:
        """Rows before a sampled one that replay reads from the buffer."""
        return max((transform.stack - 1 for transform in self._chain if isinstance(transform, FrameStacker)), default=0)

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """The observation space that the model sees, given the environment's."""
        for transform in self._chain:
            space = transform.space(space)
        return space

    def for_helper(self, n_envs: int, mode: str = "collect") -> Transforms:
        """The chain of one helper: its own rollout memory, shared statistics. These do not change through it in mode 'test'.

        Raises:
            ValueError: `mode` is none of 'collect', 'update' and 'test'.
        """
        if mode not in ("collect", "update", "test"):
            raise ValueError(f"Transforms: mode is {mode!r}; expected 'collect', 'update' or 'test'")
        own = Transforms(transform.for_helper(n_envs) for transform in self._chain)
        own.update = mode != "test"
        return own

    def begin(self, env_index: int) -> None:
        for transform in self._chain:
            transform.begin(env_index)

    def observe(self, obs: Flat) -> Flat:
        for transform in self._chain:
            obs = transform.observe(obs)
        return obs

    def reward(self, rew: Array) -> Array:
        for transform in self._chain:
            rew = transform.reward(rew)
        return rew

    def replay(self, rows: Flat, source: Source) -> Flat:
        for transform in self._chain:
            rows = transform.replay(rows, source)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """The statistics of those that have any, under '<place> <class>'."""
        states = {f"{i} {type(transform).__name__}": transform.state_dict() for i, transform in enumerate(self._chain)}
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            ValueError: saved by another chain.
        """
        own = self.state_dict().keys()
        if state.keys() != own:
            raise ValueError(f"{self!r}: the saved statistics are of {list(state)}; expected {list(own)}: build the saved chain")
        for key, part in state.items():
            self._chain[int(key.split()[0])].load_state_dict(part)

    def __len__(self) -> int:
        return len(self._chain)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self._chain)

    def __repr__(self) -> str:
        return f"Transforms([{', '.join(map(repr, self._chain))}])"


# ---- tier 1


class UntransformedTimeStep(Transform):
    """Replay: keeps every raw field `x` as `untransformed.x` too, for algorithms that look at raw experience.

    On rollout it does nothing: a model is asked about observations only, and reads no other field.
    """

    tier = Tier.RAW_COPY

    def replay(self, rows: Flat, source: Source) -> Flat:
        return rows | {f"untransformed.{name}": column for name, column in rows.items()}


# ---- tier 2


def goal_reached(achieved: Array, goal: Array) -> Array:
    """0 where the goals [N, …] are at most 0.05 apart (Euclidean), else −1: float64 [N]."""
    distance = np.linalg.norm((achieved - goal).reshape(len(goal), -1), axis=1)
    return np.where(distance <= 0.05, 0.0, -1.0)


class Hindsight(Transform):
    """Replay: rows learn from a goal that was achieved later in their episode. Andrychowicz et al. 2017, strategy "future".

    The new goal of a row is what was achieved by one of the rows from this one to the newest of its episode that is stored, each
    equally likely. It stands in obs and obs_next, and the reward is computed again. Everything is in the environment's units.

    Args:
        compute_reward: (achieved [N, …], goal [N, …]) -> [N]; `achieved` is what the row's action led to.
        share: Part of the rows that are relabelled, in [0, 1].
        achieved, desired: The fields, equal in shape.

    Raises:
        ValueError: `share` is outside [0, 1]. On replay: the rows look several steps ahead, lack a field, or `compute_reward` gives
            a wrong shape or NaN.

    Warns:
        RuntimeWarning: once, when stored and recomputed rewards disagree although the goal is the row's own.
    """

    tier = Tier.BUFFER

    def __init__(
        self, compute_reward: Callable[[Array, Array], npt.ArrayLike] = goal_reached, share: float = 0.8,
        achieved: str = "obs.achieved_goal", desired: str = "obs.desired_goal",
    ) -> None:  # fmt: skip
        self.compute_reward, self.share = compute_reward, share
        (self.achieved,), (self.desired,) = _names(self, achieved), _names(self, desired)
        if not 0 <= share <= 1:
            raise self._error("share", "a number in [0, 1]", share)
        self._warned = False

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        specs = specs_of(space, "obs")
        for name in (self.achieved, self.desired):
            if name not in specs:
                raise self._error(name, f"one of {', '.join(specs)}", "an unknown name")
        shapes = specs[self.achieved].shape, specs[self.desired].shape
        if shapes[0] != shapes[1]:
            raise self._error(self.desired, f"the shape of {self.achieved!r}, {shapes[0]}", shapes[1])
        return space

    def replay(self, rows: Flat, source: Source) -> Flat:
        reached, desired, desired_next = _next(self.achieved), self.desired, _next(self.desired)
        for name in ("rew", reached, desired, desired_next):
            if name not in rows:
                raise self._error(name, "this field in the rows", ", ".join(rows) or "nothing")
        rew, n = rows["rew"], len(source.indices)
        if rew.shape != (n,) or not np.array_equal(source.last_index, source.indices):
            raise self._error("rew", f"({n},), rows of one step: set n_step=1", rew.shape)
        if source.real is not None:
            raise self._error("rew", "rows that stand alone: Window(sequence=1), no burn_in", "sequences, whose rows would get different goals")
        if source.buffer.stack_num > 1:
            raise self._error(self.achieved, "a buffer of single frames; put FrameStacker behind", f"stack_num={source.buffer.stack_num}")
        new = source.rng.random(n) < self.share
        later = _later(source)
        goal, goal_next = rows[desired].copy(), rows[desired_next].copy()
        goal[new] = goal_next[new] = source.buffer.get(later[new], reached)
        recomputed = np.asarray(self.compute_reward(rows[reached], goal_next))
        _check_reward(self, recomputed, rew.shape)
        wrong = np.flatnonzero(~new & ~np.isclose(rew, recomputed))
        if len(wrong) and not self._warned:
            self._warned = True
            i = wrong[0]
            warnings.warn(
                f"{self!r}: {len(wrong)} of {n - new.sum()} rows with their own goal have another reward than compute_reward gives, "
                f"e.g. {rew[i]} stored, {recomputed[i]} recomputed; relabelled rows teach another task",
                RuntimeWarning, stacklevel=3,
            )  # fmt: skip
        source.relabelled[desired] = new
        return rows | {desired: goal, desired_next: goal_next, "rew": np.where(new, recomputed, rew).astype(rew.dtype)}


def _later(source: Source) -> Positions:
    """For each row a position drawn from the row itself to the newest stored one of its episode."""
    buffer, indices, size = source.buffer, source.indices, source.buffer.lane_size
    count = (buffer.episode_end(indices) - indices) % size + 1
    start = indices - indices % size
    ahead = (source.rng.random(len(indices)) * count).astype(np.int64)
    later: Positions = start + (indices - start + ahead) % size
    return later


class FrameStacker(Transform):
    """The newest `stack` frames of an observation as one [stack, …], oldest first. Mnih et al. 2015.

    Frames of two episodes never meet: an episode's first frame stands for those before it, on replay also the oldest stored frame
    where earlier ones have been overwritten. Replay reads earlier frames from the buffer; rollout remembers them.

    Args:
        stack: Frames, at least 1.
        fields: The observation's leaves to stack.
    """

    tier = Tier.BUFFER

    def __init__(self, stack: int, fields: Fields = ("obs",)) -> None:
        self.stack, self.fields = stack, _names(self, fields)
        if stack < 1:
            raise self._error("stack", "at least 1", stack)
        self._forget(1)

    def _forget(self, n_envs: int) -> None:
        self._frames: Flat = {}
        self._first = np.ones(n_envs, bool)  # environments whose next observation opens an episode

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        return _map_space(self, space, self._stacked)

    def _stacked(self, name: str, space: gym.Space[Any]) -> gym.Space[Any]:
        spec = specs_of(space, name)[name]
        low, high = (0, 1) if spec.low is None else (spec.low, spec.high)
        return gym.spaces.Box(*(self._repeat(np.full((1, *spec.shape), x, spec.dtype))[0] for x in (low, high)), dtype=spec.dtype.type)

    def _repeat(self, frame: Array) -> Array:
        return np.repeat(frame[:, None], self.stack, axis=1)

    def for_helper(self, n_envs: int) -> Self:
        other = super().for_helper(n_envs)
        other._forget(n_envs)
        return other

    def begin(self, env_index: int) -> None:
        self._first[env_index] = True

    def observe(self, obs: Flat) -> Flat:
        for name in self.fields:
            newest = _leaf(self, obs, name)
            if len(newest) != len(self._first):
                raise self._error(name, f"{len(self._first)} rows, one per environment of this helper", len(newest))
            frames = self._repeat(newest)
            if name in self._frames:
                frames[~self._first, :-1] = self._frames[name][~self._first, 1:]
            self._frames[name] = frames
        self._first[:] = False
        return obs | self._frames

    def replay(self, rows: Flat, source: Source) -> Flat:
        out = dict(rows)
        positions = stacked_positions(source.buffer, source.indices, self.stack)
        ahead = source.last_index is not source.indices and not np.array_equal(source.last_index, source.indices)
        positions_next = stacked_positions(source.buffer, source.last_index, self.stack) if ahead else positions
        for name in self.fields:
            for key, at in ((name, positions[:, :-1]), (_next(name), positions_next[:, 1:])):
                if key in rows:
                    newest = rows[key]
                    out[key] = frames = np.empty((len(newest), self.stack, *newest.shape[1:]), newest.dtype)
                    frames[:, :-1] = source.buffer.take(at, [name])[name]
                    frames[:, -1] = newest
                    if name in source.relabelled:  # for the whole episode: earlier frames show the new value too
                        new = source.relabelled[name]
                        frames[new, :-1] = frames[new, -1:]
        return out


def stacked_positions(buffer: ReplayBuffer, positions: Positions, stack: int) -> Positions:
    """[N, stack]: each position [N] last, before it the rows before it; an episode's first, or the oldest, row repeats."""
    out = np.empty((len(positions), stack), np.int64)
    out[:, -1] = positions
    for k in reversed(range(stack - 1)):
        out[:, k] = buffer.prev(out[:, k + 1])
    return out


# ---- tier 3: observations


class ObservationTransform(Transform):
    """Treats each row of the named fields alone, in obs and obs_next. Subclasses give `apply` and `box`.

    Args:
        fields: Leaves of the observation, by dotted name.
    """

    def __init__(self, fields: Fields = ("obs",)) -> None:
        self.fields = _names(self, fields)

    def apply(self, name: str, x: Array) -> Array:
        """The field `name` of N rows, [N, …], transformed."""
        raise NotImplementedError

    def box(self, name: str, space: gym.spaces.Box) -> gym.spaces.Box:
        """The space of the field `name` behind the transform."""
        raise NotImplementedError

    def space(self, space: gym.Space[Any]) -> gym.Space[Any]:
        return _map_space(self, space, self._boxed)

    def _boxed(self, name: str, space: gym.Space[Any]) -> gym.Space[Any]:
        if not isinstance(space, gym.spaces.Box):
            raise self._error(name, "a Box", space)
        return self.box(name, space)

    def observe(self, obs: Flat) -> Flat:
        return obs | {name: self.apply(name, _leaf(self, obs, name)) for name in self.fields}

    def replay(self, rows: Flat, source: Source) -> Flat:
        keys = {key: name for name in self.fields for key in (name, _next(name)) if key in rows}
        return rows | {key: self.apply(name, rows[key]) for key, name in keys.items()}


class ImageScale(ObservationTransform):
    """uint8 0 … 255 to float32 `low` … 1.

    Args:
        low: 0 or −1.
    """

    def __init__(self, low: float = 0.0, fields: Fields = ("obs",)) -> None:
        super().__init__(fields)
        self.low = low
        if low not in (0, -1):
            raise self._error("low", "0 or -1", low)

    def apply(self, name: str, x: Array) -> Array:
        if x.dtype != np.uint8:
            raise self._error(name, "uint8", x.dtype)
        return np.divide(x, np.float32(255 / (1 - self.low)), dtype=np.float32) + np.float32(self.low)

    def box(self, name: str, space: gym.spaces.Box) -> gym.spaces.Box:
        if space.dtype != np.uint8:
            raise self._error(name, "uint8", space)
        return gym.spaces.Box(self.low, 1.0, space.shape, np.float32)


class ObservationClip(ObservationTransform):
    """Values cut to [low, high]; the dtype stays."""

    def __init__(self, low: float, high: float, fields: Fields = ("obs",)) -> None:
        super().__init__(fields)
        self.low, self.high = low, high
        _check_bounds(self, low, high)

    def apply(self, name: str, x: Array) -> Array:
        return np.clip(x, self.low, self.high).astype(x.dtype, copy=False)

    def box(self, name: str, space: gym.spaces.Box) -> gym.spaces.Box:
        return gym.spaces.Box(self.apply(name, space.low), self.apply(name, space.high), dtype=space.low.dtype.type)


class ObservationCast(ObservationTransform):
    """Another dtype."""

    def __init__(self, dtype: npt.DTypeLike = np.float32, fields: Fields = ("obs",)) -> None:
        super().__init__(fields)
        self.dtype = np.dtype(dtype)

    def apply(self, name: str, x: Array) -> Array:
        return x.astype(self.dtype, copy=False)

    def box(self, name: str, space: gym.spaces.Box) -> gym.spaces.Box:
        return gym.spaces.Box(self.apply(name, space.low), self.apply(name, space.high), dtype=self.dtype.type)


# ---- tier 3: rewards


class RewardTransform(Transform):
    """Treats each reward alone. Subclasses give `apply`."""

    def apply(self, rew: Array) -> Array:
        """Rewards of any shape, transformed."""
        raise NotImplementedError

    def reward(self, rew: Array) -> Array:
        return self.apply(rew)

    def replay(self, rows: Flat, source: Source) -> Flat:
        if "rew" not in rows:
            return rows
        rew = self.apply(rows["rew"])
        return rows | {"rew": np.where(_counted(rows), rew, np.zeros((), rew.dtype))}


class RewardClipping(RewardTransform):
    """Rewards cut to [low, high]."""

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = low, high
        _check_bounds(self, low, high)

    def apply(self, rew: Array) -> Array:
        return np.clip(rew, self.low, self.high)


class RewardScaling(RewardTransform):
    """Rewards times `scale`."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def apply(self, rew: Array) -> Array:
        return rew * self.scale


class RewardShifting(RewardTransform):
    """Rewards plus `shift`."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def apply(self, rew: Array) -> Array:
        return rew + self.shift


class FunctionalReward(RewardTransform):
    """Rewards through a function of arrays of any shape.

    Raises:
        ValueError: on use: the function changes the shape or gives NaN.
    """

    def __init__(self, function: Callable[[Array], npt.ArrayLike]) -> None:
        self.function = function

    def apply(self, rew: Array) -> Array:
        out = np.asarray(self.function(rew))
        _check_reward(self, out, rew.shape)
        return out


FunctionalRewardTransformer = FunctionalReward


# ---- tier 3: normalisers


class _Part(NamedTuple):
    n: float
    mean: Any  # [*shape] float64
    var: Any


_LOCK = threading.Lock()  # one for all moments: a merge is short, and a lock inside could be neither copied nor pickled


class Moments:
    """Mean and variance of batches, float64: of all rows, or of recent ones. Several threads may update and read.

    Two parts merge as in Chan, Golub and LeVeque 1979, with weights 1 − w and w.

    Args:
        rate: Exponential moments: every batch weighs `rate`, in (0, 1], against all before it.
        window: Windowed moments: of the rows of the last `window` batches, at least 1. Neither given: of all rows.

    Attributes:
        mean, std: [*shape] float64, of what is in use; 0 and 1 before the first batch. std is at least 1e-4.
    """

    def __init__(self, rate: float | None = None, window: int | None = None) -> None:
        if rate is not None and window is not None:
            raise ValueError(f"Moments: rate is {rate} and window {window}; expected at most one of them")
        if not 0 < (1 if rate is None else rate) <= 1 or (1 if window is None else window) < 1:
            raise ValueError(f"Moments: rate is {rate}, window {window}; expected rate in (0, 1], window at least 1")
        self.rate, self.window = rate, window
        self._parts: tuple[_Part, ...] = ()
        self._lesson = -1  # for which the moments in use were taken
        self._behind = False  # whether something was counted since
        self._use()

    def _use(self) -> None:
        """Takes everything that was counted into use."""
        total = self._parts[0] if self._parts else _Part(0, 0.0, 1.0)
        for part in self._parts[1:]:
            total = _merge(total, part)
        self._total = total.mean, np.sqrt(np.maximum(total.var, MIN_VAR))  # one assignment: readers see both or neither
        self._behind = False

    def renew(self, lesson: int | None) -> None:
        """Takes what was counted into use, at the first call for a lesson later than before; None: at every call."""
        if lesson is None or lesson > self._lesson:
            with _LOCK:
                self._use()
                self._lesson = self._lesson if lesson is None else lesson

    @property
    def mean(self) -> Any:
        return self._total[0]

    @property
    def std(self) -> Any:
        return self._total[1]

    def normalize(self, x: Array, clip: float | None = None, center: bool = True) -> Array:
        """x [N, *shape] in standard deviations, from the mean or (center False) from 0, cut to ± `clip`; float64."""
        mean, std = self._total
        out: Array = (x - mean if center else x) / std
        return out if clip is None else np.clip(out, -clip, clip)

    def update(self, x: Array) -> None:
        """Counts a batch [N, *shape], and takes it into use; N = 0 changes nothing.

        Raises:
            ValueError: as `count`.
        """
        self.count(x)
        self.renew(None)

    def count(self, x: Array) -> None:
        """Counts a batch [N, *shape]; `mean` and `std` are what they were until `renew`.

        Raises:
            ValueError: another shape than before, or values that are not finite.
        """
        if not len(x):
            return
        with np.errstate(invalid="ignore", over="ignore"):  # the next lines say it better
            part = _Part(len(x), np.mean(x, 0, np.float64), np.var(x, 0, np.float64))
        if not np.isfinite(part.var).all():
            raise ValueError(f"Moments: a batch {x.shape} has values that are not finite, or too large to square")
        with _LOCK:
            parts = self._parts
            if parts and np.shape(parts[0].mean) != np.shape(part.mean):
                raise ValueError(f"Moments: expected a batch of rows {np.shape(parts[0].mean)}, got {x.shape[1:]}")
            if self.window is not None:
                self._parts = (*parts, part)[-self.window :]
            else:
                self._parts = (_merge(parts[0], part, self.rate) if parts else part,)
            self._behind = True

    def state_dict(self) -> dict[str, Any]:
        """rate, window; n [k], mean and var [k, *shape] of k parts: 0 or 1, windowed up to `window`; where rows are made ready for
        lessons, the number of the newest, and the moments that are in use for it."""
        parts = self._parts
        arrays = {key: np.array([getattr(part, key) for part in parts], np.float64) for key in _Part._fields}
        used = {} if self._lesson < 0 and not self._behind else {"lesson": self._lesson, "used_mean": np.array(self.mean), "used_std": np.array(self.std)}
        return {"rate": self.rate, "window": self.window, **arrays, **used}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            ValueError: moments of another kind.
        """
        for key in ("rate", "window"):
            if state[key] != getattr(self, key):
                raise ValueError(f"Moments: the saved {key} is {state[key]}, expected {getattr(self, key)}: build them as saved")
        with _LOCK:
            self._parts = tuple(_Part(float(n), m, v) for n, m, v in zip(*(np.array(state[k]) for k in _Part._fields), strict=True))
            self._use()
            self._lesson = state.get("lesson", -1)
            if "used_mean" in state:
                self._total, self._behind = (np.array(state["used_mean"]), np.array(state["used_std"])), True


def _merge(a: _Part, b: _Part, weight: float | None = None) -> _Part:
    """Moments of both, b with this weight; without, every row weighs the same."""
    w = b.n / (a.n + b.n) if weight is None else weight
    apart = b.mean - a.mean
    return _Part(a.n + b.n, a.mean + w * apart, (1 - w) * a.var + w * b.var + w * (1 - w) * apart**2)


class _Normalizer(Transform):
    """Moments by field, when they change, and how they are saved."""

    def _set_up(self, names: Sequence[str], clip: float | None, update_on: Phase, moments: Moments | None) -> None:
        self.clip, self.update_on = clip, update_on
        moments = Moments() if moments is None else moments
        self.moments = {name: Moments(moments.rate, moments.window) for name in names}
        if clip is not None and not clip > 0:
            raise self._error("clip", "above 0", clip)
        if update_on not in ("replay", "rollout", "never"):
            raise self._error("update_on", "'replay', 'rollout' or 'never'", repr(update_on))

    def _learn(self, phase: Phase, name: str, x: Array) -> None:
        if not self.update:
            return
        moments, at_once = self.moments[name], self.lesson is None
        if phase == "rollout" and not at_once:
            moments.renew(self.lesson)  # before this row, which alone would be a poor measure of the whole unroll that follows
        if phase == self.update_on:
            moments.count(x)
        if phase == "replay" or at_once:
            moments.renew(self.lesson)

    def state_dict(self) -> dict[str, Any]:
        return {name: moments.state_dict() for name, moments in self.moments.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.keys() != self.moments.keys():
            raise ValueError(f"{self!r}: the saved fields are {list(state)}; expected {list(self.moments)}")
        for name, moments in self.moments.items():
            moments.load_state_dict(state[name])


class ObservationNormalizer(_Normalizer, ObservationTransform):
    """Fields in standard deviations from their mean, number by number, float32. A batch counts before it is transformed, unless the
    statistics are in use for rows of its lesson already (`Transform.lesson`): such as by an on-policy helper, from its first action on.

    Args:
        clip: Results are cut to ± clip; None: not at all.
        fields: Leaves of the observation, by dotted name.
        update_on: When the statistics change: 'replay' (by obs, relabelled or not, not by obs_next), 'rollout', 'never'.
        moments: Which kind; its own numbers are not used.
    """

    def __init__(
        self, clip: float | None = None, fields: Fields = ("obs",), update_on: Phase = "replay", moments: Moments | None = None
    ) -> None:
        super().__init__(fields)
        self._set_up(self.fields, clip, update_on, moments)

    def apply(self, name: str, x: Array) -> Array:
        return self.moments[name].normalize(x, self.clip).astype(np.float32)

    def box(self, name: str, space: gym.spaces.Box) -> gym.spaces.Box:
        bound = math.inf if self.clip is None else self.clip
        return gym.spaces.Box(-bound, bound, space.shape, np.float32)

    def observe(self, obs: Flat) -> Flat:
        for name in self.fields:
            self._learn("rollout", name, _leaf(self, obs, name))
        return super().observe(obs)

    def replay(self, rows: Flat, source: Source) -> Flat:
        for name in self.fields:
            if name in rows:
                self._learn("replay", name, rows[name] if source.real is None else rows[name][source.real])
        return super().replay(rows, source)


class RewardNormalizer(_Normalizer, RewardTransform):
    """Rewards in standard deviations; one mean and one deviation for all numbers, also those of a vector reward.

    Args:
        clip: Results are cut to ± clip; None: not at all.
        subtract_mean: Whether they count from the mean. False keeps the sign, and what a longer episode is worth.
        update_on: When the statistics change: 'replay', 'rollout' (by calls of `reward`), 'never'.
        moments: Which kind; its own numbers are not used.
    """

    def __init__(
        self, clip: float | None = None, subtract_mean: bool = True, update_on: Phase = "replay", moments: Moments | None = None
    ) -> None:
        self.subtract_mean = subtract_mean
        self._set_up(("rew",), clip, update_on, moments)

    def apply(self, rew: Array) -> Array:
        out = self.moments["rew"].normalize(rew, self.clip, self.subtract_mean)
        return out.astype(rew.dtype if rew.dtype.kind == "f" else np.float64, copy=False)

    def reward(self, rew: Array) -> Array:
        self._learn("rollout", "rew", rew.ravel())
        return super().reward(rew)

    def replay(self, rows: Flat, source: Source) -> Flat:
        if "rew" in rows:
            counted = np.broadcast_to(_counted(rows), rows["rew"].shape)
            if source.real is not None:
                counted = counted & source.real.reshape(-1, *[1] * (rows["rew"].ndim - 1))
            self._learn("replay", "rew", rows["rew"][counted])
        return super().replay(rows, source)


# ---- inside


def _names(transform: Transform, fields: Fields) -> tuple[str, ...]:
    """Checked names of observation leaves."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    for name in names:
        if name != "obs" and not name.startswith("obs."):
            raise ValueError(f"{type(transform).__name__}, field {name!r}: expected 'obs' or 'obs.<name>', a leaf of the observation")
    return names


def _next(name: str) -> str:
    return "obs_next" + name[len("obs") :]


def _leaf(transform: Transform, obs: Flat, name: str) -> Array:
    if name not in obs:
        raise transform._error(name, f"one of {', '.join(obs)}", "an unknown name")
    return obs[name]


def _map_space(
    transform: FrameStacker | ObservationTransform, space: gym.Space[Any], change: Callable[[str, gym.Space[Any]], gym.Space[Any]]
) -> gym.Space[Any]:
    """The space with `change(name, part)` in place of the transform's fields."""
    known = specs_of(space, "obs")
    for name in transform.fields:
        if name not in known:
            raise transform._error(name, f"one of {', '.join(known)}", "an unknown name")

    def mapped(part: gym.Space[Any], name: str) -> gym.Space[Any]:
        if isinstance(part, gym.spaces.Dict):  # an ordered dict, for the keys of a plain one would be sorted
            return gym.spaces.Dict(OrderedDict((key, mapped(inner, f"{name}.{key}")) for key, inner in part.spaces.items()))
        if isinstance(part, gym.spaces.Tuple):
            return gym.spaces.Tuple(tuple(mapped(inner, f"{name}.{i}") for i, inner in enumerate(part.spaces)))
        return change(name, part) if name in transform.fields else part

    return mapped(space, "obs")


def _check_bounds(transform: Transform, low: float, high: float) -> None:
    if not low < high:
        raise transform._error("low", f"below high, {high}", low)


def _check_reward(transform: Transform, rew: Array, shape: tuple[int, ...]) -> None:
    if rew.shape != shape or rew.dtype.kind not in "biuf":
        raise transform._error("rew", f"{shape} numbers", f"{rew.shape} {rew.dtype}")
    if np.isnan(rew).any():
        raise transform._error("rew", "numbers", f"NaN at {tuple(int(i) for i in np.argwhere(np.isnan(rew))[0])}")


def _counted(rows: Flat) -> Array:
    """Which rewards count, as bool that broadcasts against rew: all, but of rows that look n steps ahead the first `valid`."""
    rew = rows["rew"]
    if "valid" not in rows:
        return np.ones((1,) * rew.ndim, bool)
    counted = np.arange(rew.shape[1]) < rows["valid"][:, None]
    return counted.reshape(counted.shape + (1,) * (rew.ndim - 2))
