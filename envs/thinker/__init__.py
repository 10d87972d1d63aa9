"""Thinker: the augmented MDP, in which an agent imagines K − 1 steps in a tree before each real one (arXiv 2307.14993).

`thinker.make` is the whole of it behind the interface of the original, with a world model that learns while you step, and
`thinker.ray_init` begins a model that several of these share. They stand in `parl_like.robots.thinker.make`, above the
environments, which is loaded with torch when it is first used. `thinker.util.decode_tree_reps` names what trees show.
"""

from importlib import import_module
from typing import Any

from parl_like.envs.thinker import util
from parl_like.envs.thinker.augmented import AugmentedEnv
from parl_like.envs.thinker.layout import Layout
from parl_like.envs.thinker.tree import Tree

__all__ = ["AugmentedEnv", "Layout", "Tree", "make", "ray_init", "util"]  # noqa: F822  made below


def __getattr__(name: str) -> Any:
    if name not in ("make", "ray_init"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("parl_like.robots.thinker.make"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), "make", "ray_init"])
