"""Explorer of episodes that each follow one candidate of a population."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_like.learning.explorers.base import Explorer
from parl_like.values.spec import Array, Spec


class Candidates(Explorer):
    """The best action, by the parameters of the candidate that the episode evaluates.

    The algorithm's `predict` gets its number as `inputs.candidate`, [N] int64; −1 or no `candidate` at all is the centre of the
    search: in tests, and where a single action is asked for. Whose turn it is says the helper (`PopulationHelper`).

    Args:
        best: The explorer of the policy's distribution, whose best action is taken.
    """

    given = "candidate"
    noise = kept = Spec("noise", (), np.dtype(np.int64))

    def __init__(self, best: Explorer) -> None:
        self.best = best

    def refuses(self, name: str, value: object) -> str:
        return "whose candidates are of one policy" if name == "best" else super().refuses(name, value)

    def begin(self, rng: np.random.Generator, n: int) -> Array:
        return np.full(n, -1)

    def draw(self, rng: np.random.Generator, step: int, n: int) -> Array:
        return self.memory.copy()

    def greedy(self) -> float | Array:
        return -1

    def act(self, out: Mapping[str, Array], noise: Array) -> dict[str, Array]:
        spec: Any = self.best.noise
        return self.best.act(out, np.array([self.best.greedy()] * len(noise), spec.dtype))

    def kind(self) -> tuple[object, ...]:
        return type(self), self.best.kind()
