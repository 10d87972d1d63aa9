"""RowSlots: which rows of what a task remembers belong to which of its agents."""

from __future__ import annotations

import weakref


class RowSlots:
    """The books of rows that a task's algorithm keeps for its agents between their requests, such as the hidden states of a
    world model. Agents claim rows (`Agent.claim`), and their requests name them by number; the algorithm makes room for them.

    Args:
        first, n: The rows that there are; None: as many as are claimed.
    """

    def __init__(self, first: int = 0, n: int | None = None) -> None:
        self.first, self.n = first, n
        self._claims: list[tuple[int, int, weakref.ref[object]]] = []

    def claim(self, owner: object, n: int) -> int:
        """The first of `n` rows that are `owner`'s as long as it lives.

        Raises:
            ValueError: there are not so many left.
        """
        self._claims = sorted((claim for claim in self._claims if claim[2]() is not None), key=lambda claim: claim[0])
        start = self.first
        for at, size, _ in self._claims:
            if start + n <= at:
                break
            start = at + size
        if self.n is not None and start + n > self.first + self.n:
            raise ValueError(f"{n} rows are wanted where {self.n} were set aside for the agents of this worker, "
                             f"{sum(size for _, size, _ in self._claims)} of which are taken; under drivers with workers every "
                             "agent of a robot needs as many as the first")
        self._claims.append((start, n, weakref.ref(owner)))
        return start


class Owner:
    """Owns rows as long as it lives."""
