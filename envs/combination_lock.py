"""A combination lock: only one sequence of turns opens it, and a wrong turn is the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from parl_like.envs.tabular import TableEnv
from parl_like.values.limits import check_array


class CombinationLock(TableEnv):
    """A lock of n turns, each to the left or to the right. The right turn leads on, the last one pays 1; a wrong one ends the
    episode. So random turns open it in one of 2ⁿ episodes. `reset(options={"state": s})` begins with s turns done.

    Observation: the turns done, 0 … n, and n + 1 after a wrong one. Actions: 0 and 1; which is right was drawn once for each.

    Args:
        n: Turns.
        combination: Seed of which turns are right.
        render_mode: "ansi": the state as text.

    Raises:
        ValueError: n is below 1, or too large.
    """

    def __init__(self, n: int = 20, combination: int = 0, *, render_mode: str | None = None) -> None:
        if n < 1:
            raise ValueError(f"CombinationLock: n is {n}; expected at least 1")
        check_array(f"CombinationLock: n is {n}", n + 2, 2, n + 2, dtype=np.float64)
        self.n, right = n, np.random.default_rng(combination).integers(2, size=n)
        P = np.full((n + 2, 2), n + 1)
        P[np.arange(n), right] = np.arange(1, n + 1)
        R: Any = np.zeros((n + 2, 2))
        R[n - 1, right[-1]] = 1.0
        super().__init__(P, R, terminal=(n, n + 1), render_mode=render_mode)
