"""Stacks of frames, oldest first. Here, and nowhere else, it is said which frames they are: those of the episode, the newest
ones; for those that are missing the oldest one stands."""

from __future__ import annotations

import numpy as np

from parl_like.spec import Array


def first_stack(frame: Array, stack: int) -> Array:
    """[N, stack, …] of the first frames [N, …] of episodes."""
    return np.repeat(frame[:, None], stack, axis=1)


def next_stack(frames: Array, newest: Array) -> Array:
    """The stacks [N, stack, …] that follow `frames` when `newest` [N, …] come; a new array."""
    return np.concatenate([frames[:, 1:], newest[:, None]], axis=1)
