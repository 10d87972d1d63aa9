"""Which spaces an algorithm takes: each says so itself, a table is made from that, and a refusal says who takes what came."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.values.spec import leaf_spaces

CHOICES = ("Discrete", "MultiDiscrete", "MultiBinary")
BOX, UNBOUNDED = "Box", "unbounded Box"
NESTED, NESTED_CHOICES = "Dict, Tuple", "Dict, Tuple of choices"
ALL = (*CHOICES, BOX, UNBOUNDED, NESTED_CHOICES, NESTED)
"""Kinds of spaces. Of a Box with an infinite bound it is `UNBOUNDED`, of a Dict or Tuple without any Box `NESTED_CHOICES`."""

CHOICE_SPACES = (gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)


def nvec_of(space: gym.Space[object]) -> list[int]:
    """The number of alternatives of each choice in an action that is one array; none where it is no choice."""
    if isinstance(space, gym.spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.nvec.ravel().tolist()
    return [2] * math.prod(space.shape) if isinstance(space, gym.spaces.MultiBinary) else []


@dataclass(frozen=True)
class Takes:
    """The spaces that an algorithm learns with, by our networks that fit it.

    Attributes:
        actions, observations: Kinds of spaces. Observations of the kind `NESTED` hold any other.
        images: Whether a convolutional network reads observations that have an image; else images are read as numbers.
        masks: Whether an observation's `mask` says which choices are legal.
        memory: 'no', 'yes' (where the model has one) or 'always'.
    """

    actions: tuple[str, ...] = ALL
    observations: tuple[str, ...] = ALL
    images: bool = True
    masks: bool = True
    memory: str = "no"


def kind_of(space: gym.Space[object] | None) -> str:
    """Return the kind of a space, one of `ALL`; the name of its class for any other space."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        leaves = (part for _, part in leaf_spaces(space, ""))
        return NESTED_CHOICES if all(isinstance(part, CHOICE_SPACES) for part in leaves) else NESTED
    if isinstance(space, gym.spaces.Box):
        return BOX if np.isfinite([space.low, space.high]).all() else UNBOUNDED
    return next((name for name in CHOICES if isinstance(space, getattr(gym.spaces, name))), type(space).__name__)


def table() -> list[dict[str, Any]]:
    """Each algorithm that learns by one task alone, with what it takes, by name; loads torch."""
    algorithms, base = import_module("parl_like.algorithms"), import_module("parl_like.learning.algorithm").Algorithm
    found = {name: getattr(algorithms, name) for name in sorted(algorithms.__all__, key=str.lower)}
    return [{"algorithm": name, **asdict(one.takes)} for name, one in found.items()
            if issubclass(one, base) and one.takes is not None and one.learn is not base.learn]


def taken_by(act: gym.Space[object] | None) -> str:
    """The end of a refusal of these actions: which algorithms take such."""
    kind = kind_of(act)
    fitting = [row["algorithm"] for row in table() if kind in row["actions"]]
    return f"; {kind} actions are taken by {', '.join(fitting)} (parl-like list --spaces)" if fitting else ""


def in_words() -> list[dict[str, str]]:
    """`table` for people."""
    return [{"algorithm": row["algorithm"], "actions": _kinds_in_words(row["actions"]),
             "observations": _kinds_in_words(row["observations"]), "images": _images_in_words(row),
             "masks": "yes" if row["masks"] else "no", "memory": row["memory"]} for row in table()]


def _kinds_in_words(kinds: tuple[str, ...]) -> str:
    if kinds == ALL:
        return "any"
    covered = {NESTED_CHOICES} if NESTED in kinds else set()
    return ", ".join(kind for kind in kinds if kind not in covered)


def _images_in_words(row: Mapping[str, Any]) -> str:
    if row["images"]:
        return "convolutions"
    return "as numbers" if row["observations"] == ALL else "no"
