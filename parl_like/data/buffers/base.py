"""Buffer: the base of all buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import gymnasium as gym
import numpy as np

from parl_like.data.buffers.fields import Positions
from parl_like.data.buffers.saving import Savable
from parl_like.values.batch import Batch
from parl_like.values.errors import CalledElsewhere
from parl_like.values.user_calls import border

Random = np.random.Generator | np.random.SeedSequence | int | None


class Buffer(Savable, ABC):
    """The base of all buffers: they draw rows, read those that were drawn, and go into files.

    Attributes:
        rng: Draws rows, where no other generator is given.
        act_space: The environment's action space whose actions stand here in the policy's units: numbers of a bounded Box in
            [−1, 1], choices from 0 and side by side. Helpers set it. None, as of rows that were written by hand: actions are as
            they came, the environment's.
    """

    rng: np.random.Generator
    act_space: gym.Space[object] | None = None
    save_hdf5, load_hdf5, sample_index, maxsize, buffer_num = (CalledElsewhere() for _ in range(5))
    _nothing = "from an empty buffer; add rows first, or ask len(buffer)"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _draw(self, n: int, rng: np.random.Generator) -> Positions:
        """n > 0 positions, of a buffer with rows."""

    @abstractmethod
    def _batch(self, positions: Positions) -> Batch:
        """The rows at these positions."""

    def sample_indices(self, n: int | None, rng: np.random.Generator | None = None) -> Positions:
        """Positions of rows, int64 [n]: n > 0 uniform over the rows, with replacement; 0 all of them, in order of positions.

        None draws as many as there are rows; n < 0, or a buffer without a row, gives none.

        Args:
            n: How many.
            rng: Instead of the buffer's own generator.
        """
        n = len(self) if n is None else n
        if n < 0 or not len(self):
            return np.empty(0, np.int64)
        return self._draw(n, self.rng if rng is None else rng) if n else np.arange(len(self))

    @border
    def sample(self, n: int | None, rng: np.random.Generator | None = None) -> tuple[Batch, Positions]:
        """Rows as `sample_indices` chooses them, leaves [n, …], and their positions: `batch == buffer[indices]`.

        Raises:
            ValueError: n > 0 and the buffer is empty.
        """
        if n is not None and n > 0 and not len(self):
            raise ValueError(f"{self!r}: cannot sample {n} rows {self._nothing}")
        indices = self.sample_indices(n, rng)
        return self._batch(indices), indices
