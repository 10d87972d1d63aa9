"""Normalisers: observations and rewards in standard deviations, by statistics that all helpers of a task share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

import gymnasium as gym
import numpy as np

from parl_like.data.transforms.chain import Fields, Flat, Source, Transform, leaf_of
from parl_like.data.transforms.moments import Moments
from parl_like.data.transforms.scale import ObservationTransform, RewardTransform, counted
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array

Phase = Literal["replay", "rollout", "never"]


class _Normalizer(Transform):
    """Moments by field, when they change, and how they are saved."""

    def _set_up(self, names: Sequence[str], clip: float | None, update_on: Phase, kind: Moments | None) -> None:
        self.clip, self.update_on = clip, update_on
        kind = Moments() if kind is None else kind
        self.moments = {name: Moments(kind.rate, kind.window) for name in names}
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the fields whose spaces are known
        if update_on not in ("replay", "rollout", "never"):
            raise self.error("update_on", "'replay', 'rollout' or 'never'", repr(update_on))

    def _learn(self, phase: Phase, name: str, x: Array) -> None:
        if not self.update:
            return
        moments, at_once = self.moments[name], self.update_number is None
        if phase == "rollout" and not at_once:
            moments.renew(self.update_number)  # before this row: alone it would be a poor measure of the unroll
        if phase == self.update_on:
            moments.count(x)
        if phase == "replay" or at_once:
            moments.renew(self.update_number)

    def state_dict(self) -> State:
        return {name: moments.state_dict() for name, moments in self.moments.items()}

    def load_state_dict(self, state: State) -> None:
        if state.keys() != self.moments.keys():
            raise ValueError(f"{self!r}: the saved fields are {list(state)}; expected {list(self.moments)}")
        saved = {name: plain.entries(state[name]) for name in self.moments}
        for name, shape in self._shapes.items():
            if len(means := np.asarray(saved[name]["mean"])) and means.shape[1:] != shape:
                raise ValueError(f"{self!r}: the saved statistics of {name!r} are of rows {means.shape[1:]}; expected {shape}")
        for name, moments in self.moments.items():
            moments.load_state_dict(saved[name])


class ObservationNormalizer(_Normalizer, ObservationTransform):
    """Fields in standard deviations from their mean, number by number, float32. A batch counts before it is transformed, unless
    the statistics are in use for rows of its update already (`Transform.update_number`): such as by an on-policy helper, from its
    first action on.

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
        self._shapes[name] = space.shape
        bound = math.inf if self.clip is None else self.clip
        return gym.spaces.Box(-bound, bound, space.shape, np.float32)

    def observe(self, obs: Flat) -> Flat:
        for name in self.fields:
            self._learn("rollout", name, leaf_of(self, obs, name))
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
        return _like(rew, out)

    def reward(self, rew: Array) -> Array:
        self._learn("rollout", "rew", rew.ravel())
        return super().reward(rew)

    def replay(self, rows: Flat, source: Source) -> Flat:
        if "rew" in rows:
            real = np.broadcast_to(counted(rows), rows["rew"].shape)
            if source.real is not None:
                real = (real.T & source.real).T
            self._learn("replay", "rew", rows["rew"][real])
        return super().replay(rows, source)


class ReturnScaling(_Normalizer, RewardTransform):
    """Rewards divided by the standard deviation of the discounted return so far, as implementations of PPO scale them.

        R ← γ R + r at each step of an environment, from R = 0 where an episode begins;    r / std(R), cut to ± clip

    Rewards keep their signs, and what they are worth beside each other. Where nobody acts, as with an `OfflineHelper`, nothing is
    counted, and they stay as they are.

    Args:
        gamma: γ in [0, 1], best that of the algorithm.
        clip: None: not at all.
        moments: Which kind; its own numbers are not used.

    Raises:
        ValueError: γ is outside [0, 1]. On use: a step has several rewards.
    """

    def __init__(self, gamma: float = 0.99, clip: float | None = 10.0, moments: Moments | None = None) -> None:
        self.gamma = gamma
        self._set_up(("return",), clip, "rollout", moments)
        if not 0 <= gamma <= 1:
            raise self.error("gamma", "a number in [0, 1]", gamma)
        self._returns = np.zeros(1)

    def for_helper(self, n_envs: int) -> Self:
        other = super().for_helper(n_envs)
        other._returns = np.zeros(n_envs)
        return other

    @property
    def memory(self) -> tuple[Array, ...]:
        return (self._returns.copy(),)

    @memory.setter
    def memory(self, value: tuple[Array, ...]) -> None:
        self._returns = np.array(value[0])

    def begin(self, env_index: int) -> None:
        self._returns[env_index] = 0.0

    def apply(self, rew: Array) -> Array:
        return _like(rew, self.moments["return"].normalize(rew, self.clip, center=False))

    def reward(self, rew: Array) -> Array:
        rows = np.ones(len(self._returns), bool) if self.mask is None else self.mask
        if rew.size != rows.sum():
            raise self.error("rew", f"{rows.sum()} numbers, one for each environment", rew.shape)
        self._returns[rows] = self.gamma * self._returns[rows] + rew.ravel()
        if self.update:
            self.moments["return"].count(self._returns[rows])
            if self.update_number is None:
                self.moments["return"].renew(None)
        return super().reward(rew)

    def replay(self, rows: Flat, source: Source) -> Flat:
        if self.update:  # what was counted until now, since no action depends on it
            self.moments["return"].renew(self.update_number)
        return super().replay(rows, source)


def _like(rew: Array, out: Array) -> Array:
    """Return float64 numbers made of rewards with the dtype of these, where that is a float."""
    return out.astype(rew.dtype if rew.dtype.kind == "f" else np.float64, copy=False)
