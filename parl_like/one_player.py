"""Rows that are looked at together, as n steps, unrolls, sequences or stacks, must be one player's; here it is noticed that they
are not."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

PLAYERS, ENOUGH, HOPELESS = 8, 2, 100
"""Players by turns that are noticed; rows that show it; rows that go on from nothing at all, after which an agent is known to
store such."""


class OnePlayer:
    """Watches the rows that come into one lane.

    A player's row begins with the observation that its row before ended with. Where it begins with the end of a row *before* that
    one instead, and again a little later, the rows of several players come by turns, or some were left out in between.

    Args:
        where: Agent and task, for the message.

    Attributes:
        end: The leaves of the observation that the last row led to; (None,) where an episode begins. Whoever stores rows sets it.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._ends: deque[tuple[Any, ...]] = deque(maxlen=PLAYERS - 1)  # of the episode's rows from which the next did not go on
        self._crossed = self._unlinked = 0
        self.begin()

    def begin(self) -> None:
        """An episode begins, or was cut."""
        self.end: tuple[Any, ...] = (None,)
        self._ends.clear()
        self._crossed = 0

    def other_row(self, begin: tuple[Any, ...]) -> None:
        """A row begins with `begin`, and not with the object that the row before ended with.

        Raises:
            ValueError: rows of several players.
        """
        if self.end[0] is not None and self._unlinked < HOPELESS and not _same(begin, self.end):
            self._unlinked += 1
            known = any(_same(begin, other) for other in self._ends)
            self._ends.append(self.end)
            if known:
                self._crossed += 1
                if self._crossed == ENOUGH:
                    raise ValueError(
                        f"{self.where}: rows of two players come by turns, or some are left out in between, but this task looks "
                        "along the rows (n steps, unrolls, sequences, stacks) and would mix them; store every row, and give each "
                        "player a task of its own (`Shared` lets tasks have one network)")


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return all(x is y or np.array_equal(x, y) for x, y in zip(a, b, strict=True))
