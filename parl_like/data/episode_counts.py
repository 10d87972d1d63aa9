"""EpisodeCounts: return, length and first row of the episode that is open in each lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_like.data.rows import Ring
from parl_like.spec import Array

Positions = npt.NDArray[np.int64]


class EpisodeCounts:
    """Counts rows into the open episodes of `n_lanes` lanes.

    Attributes:
        returns: [n_lanes, *shape] float64, undiscounted, of rewards of that shape. lengths, starts: [n_lanes] int64.
    """

    def __init__(self, starts: Positions) -> None:
        self.returns: Array = np.zeros(len(starts))
        self.lengths: Positions = np.zeros(len(starts), np.int64)
        self.starts: Positions = starts.copy()

    def add_lanes(self, starts: Positions) -> None:
        self.returns = np.concatenate([self.returns, np.zeros((len(starts), *self.returns.shape[1:]))])
        self.lengths, self.starts = np.append(self.lengths, np.zeros_like(starts)), np.append(self.starts, starts)

    def forget(self, lane: int | slice = slice(None)) -> None:
        self.returns[lane], self.lengths[lane] = 0.0, 0

    def count(self, ring: Ring, lanes: Positions, positions: Positions, rew: Array, done: Array) -> tuple[Array, Positions,
                                                                                                          Positions]:
        """Adds row i, of lane `lanes[i]`, with reward `rew` [k, *shape] float64, in C order.

        Returns:
            [k, *shape] return and [k] length of the episode that ended with each row, 0 where it goes on; [k] where it began.
        """
        shape = rew.shape[1:]
        if self.returns.shape[1:] != shape:
            self.returns = np.zeros((len(self.lengths), *shape))
        flat, totals = rew.reshape(len(rew), -1), self.returns.reshape(len(self.returns), -1)
        returns, lengths, starts = ring.count_episodes(lanes, positions, flat, done, totals, self.lengths, self.starts)
        return returns.reshape(-1, *shape), lengths, starts

    def state_dict(self) -> dict[str, Any]:
        return {"return": self.returns.tolist(), "length": self.lengths.tolist(), "start": self.starts.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.returns = np.array(state["return"], np.float64)
        self.lengths, self.starts = np.array(state["length"], np.int64), np.array(state["start"], np.int64)
