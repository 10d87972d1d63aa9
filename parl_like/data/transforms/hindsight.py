"""Hindsight: rows that learn from goals which were reached later in their episode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from parl_like.data.buffers.fields import Positions
from parl_like.data.transforms.chain import Flat, Source, Tier, Transform, leaf_of, next_name, obs_names
from parl_like.data.transforms.scale import check_reward
from parl_like.values.spec import Array, specs_of


def goal_reached(achieved: Array, goal: Array) -> Array:
    """0 where the goals [N, …] are at most 0.05 apart (Euclidean), else −1: float64 [N]."""
    distance = np.linalg.norm((achieved - goal).reshape(len(goal), -1), axis=1)
    return np.where(distance <= 0.05, 0.0, -1.0)


class Hindsight(Transform):
    """Replay: rows learn from a goal that was achieved later in their episode. Andrychowicz et al. 2017, strategy "future".

    The new goal of a row is what was achieved by one of the rows from this one to the newest of its episode that is stored, each
    equally likely. It stands in obs and obs_next, and the reward is computed again. Everything is in the environment's units.

    In the paper, and in most tasks with goals, no episode ends because its goal is reached: then `terminated` stays as it was
    stored. Where one does (`compute_terminated` of a `GoalEnv` of gymnasium-robotics), give the function: a row with a new goal
    ends where it reaches that, and no longer where it reached its own.

    Args:
        compute_reward: (achieved [N, …], goal [N, …]) -> [N]; `achieved` is what the row's action led to.
        compute_terminated: The same for `terminated`, [N] bool; None: it does not depend on the goal.
        share: Part of the rows that are relabelled, in [0, 1].
        achieved, desired: The fields, equal in shape.

    Raises:
        ValueError: `share` is outside [0, 1]. On replay: the rows look several steps ahead, lack a field, or a function gives a
            wrong shape or NaN.

    Warns:
        RuntimeWarning: once, when what is stored and what is recomputed disagree although the goal is the row's own.
    """

    tier = Tier.BUFFER
    only_one = "Hindsight"

    def __init__(
        self, compute_reward: Callable[[Array, Array], npt.ArrayLike] = goal_reached, share: float = 0.8,
        achieved: str = "obs.achieved_goal", desired: str = "obs.desired_goal",
        compute_terminated: Callable[[Array, Array], npt.ArrayLike] | None = None,
    ) -> None:  # fmt: skip
        self.compute_reward, self.compute_terminated, self.share = compute_reward, compute_terminated, share
        (self.achieved,), (self.desired,) = obs_names(self, achieved), obs_names(self, desired)
        self._warned = False

    def space(self, space: gym.Space[object]) -> gym.Space[object]:
        specs = specs_of(space, "obs")
        achieved, desired = (leaf_of(self, specs, name).shape for name in (self.achieved, self.desired))
        if achieved != desired:
            raise self.error(self.desired, f"the shape of {self.achieved!r}, {achieved}", desired)
        return space

    def check_window(self, window: Any) -> None:
        if window.n_step > 1:
            raise self.error("rew", "rows of one step: set n_step=1", f"n_step={window.n_step}")
        if window.sequence > 1 or window.burn_in:
            raise self.error("rew", "rows that stand alone: Window(sequence=1), no burn_in", window)

    def replay(self, rows: Flat, source: Source) -> Flat:
        reached, desired, desired_next = next_name(self.achieved), self.desired, next_name(self.desired)
        ends = ("terminated",) * (self.compute_terminated is not None)
        for name in ("rew", reached, desired, desired_next, *ends):
            if name not in rows:
                raise self.error(name, "this field in the rows", ", ".join(rows) or "nothing")
        rew, n = rows["rew"], len(source.indices)
        if rew.shape != (n,) or not np.array_equal(source.last_index, source.indices):
            raise self.error("rew", f"({n},), rows of one step: set n_step=1", rew.shape)
        if source.real is not None:
            raise self.error("rew", "rows that stand alone: Window(sequence=1), no burn_in",
                              "sequences, whose rows would get different goals")
        if source.buffer.stack_num > 1:
            raise self.error(self.achieved, "a buffer of single frames; put FrameStacker behind",
                              f"stack_num={source.buffer.stack_num}")
        new = source.rng.random(n) < self.share
        later = _later(source)
        goal, goal_next = rows[desired].copy(), rows[desired_next].copy()
        goal[new] = goal_next[new] = source.buffer.get(later[new], reached)
        recomputed = np.asarray(self.compute_reward(rows[reached], goal_next))
        check_reward(self, recomputed, rew.shape)
        again = {"rew": recomputed.astype(rew.dtype)}
        if self.compute_terminated is not None:
            again["terminated"] = ended = np.asarray(self.compute_terminated(rows[reached], goal_next))
            if ended.shape != (n,) or ended.dtype != bool:
                raise self.error("terminated", f"({n},) bool", f"{ended.shape} {ended.dtype}")
        for name, values in again.items():
            self._compare(name, rows[name], values, ~new)
        source.relabelled[desired] = new
        made = {name: np.where(new, values, rows[name]) for name, values in again.items()}
        return rows | {desired: goal, desired_next: goal_next, **made}

    def _compare(self, name: str, stored: Array, again: Array, own: Array) -> None:
        """Warns where rows with their `own` goal say otherwise."""
        wrong = np.flatnonzero(own & ~np.isclose(stored, again))
        if len(wrong) and not self._warned:
            self._warned = True
            warnings.warn(f"{self!r}: {len(wrong)} of {own.sum()} rows with their own goal have another {name} than its function "
                          f"gives, e.g. {name} {stored[wrong[0]]} stored, {again[wrong[0]]} recomputed; relabelled rows teach "
                          "another task", RuntimeWarning, stacklevel=4)


def _later(source: Source) -> Positions:
    """For each row a position drawn from the row itself to the newest stored one of its episode."""
    indices, size = source.indices, source.buffer.lane_size
    count = (source.buffer.episode_end(indices) - indices) % size + 1
    ahead = (source.rng.random(len(indices)) * count).astype(np.int64)
    later: Positions = indices - indices % size + (indices + ahead) % size
    return later
