"""Noise: what an explorer draws for one agent, a block of rows at a time, and how it is saved without being written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_like.data.generators import rng_state, set_rng_state
from parl_like.explorer import Explorer
from parl_like.spec import Array

NOISE_BLOCK = 64
"""Rows of noise drawn at a time."""


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
        explorer: Any = self.explorer
        if not self.drawn:
            return np.array([explorer.greedy()] * n, explorer.noise.dtype)
        self._acted += n
        return explorer.draw(self.rng, self._acted - n, n)  # type: ignore[no-any-return]

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
