"""PrioritizedReplayBuffer: rows are drawn in proportion to how much there seems to be learned from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parl_like.data.buffers._segment_tree import SegmentTree
from parl_like.data.buffers.base import Random
from parl_like.data.buffers.fields import Positions
from parl_like.data.buffers.replay_buffer import LOCKED, ReplayBuffer
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec

EPS = float(np.finfo(np.float32).eps)
"""Added to |TD error|, so that every row can be drawn."""


class PrioritizedReplayBuffer(ReplayBuffer):
    """Proportional prioritised replay (Schaul et al. 2016), in O(log n) per row written, drawn or updated.

        p = |td| + eps,    P(row) = pᵅ / Σ pᵅ,    weight = (P / min P)^(−β), with `weight_norm` divided by the largest of a batch

    A new row gets the largest priority that any row has had so far, 1 in the beginning. Rows that are read have a field `weight`
    [N] float32, with which a loss is to be multiplied. Lanes, frames and windows are those of `ReplayBuffer`; rows that cannot be
    had whole count as if they had no weight.

    Args:
        alpha: α > 0. beta: β ≥ 0, or a function of the number of batches drawn so far, such as `Linear(0.4, 1.0, 10_000)`.
        weight_norm: Whether weights are at most 1.
        The others: As for `ReplayBuffer`.

    Attributes:
        batches_drawn: What a schedule of β counts.
        max_priority: The largest priority so far.

    Raises:
        ValueError: alpha is not above 0, or beta is below 0; and as `ReplayBuffer`.
    """

    locked = (*LOCKED, "update_weight", "weights")

    def __init__(
        self, size: int, n_lanes: int = 1, rng: Random = None, *, alpha: float = 0.6, beta: float | Callable[[int], float] = 0.4,
        weight_norm: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        if not alpha > 0:
            raise ValueError(f"PrioritizedReplayBuffer: alpha is {alpha}; expected a number above 0; for equal chances take "
                             "ReplayBuffer")
        if not callable(beta) and not beta >= 0:
            raise ValueError(f"PrioritizedReplayBuffer: beta is {beta}; expected a number ≥ 0, or a function of the batches "
                             "drawn so far")
        self.alpha, self._beta, self.weight_norm = float(alpha), beta, weight_norm
        self.batches_drawn = 0
        self.max_priority = 1.0
        super().__init__(size, n_lanes, rng, **options)
        self._trees()

    def _trees(self) -> None:
        self._sum = SegmentTree(self.capacity)
        self._min: SegmentTree | None = None  # of normalised weights the smallest cancels
        self._look()

    def _look(self) -> None:
        self._leaves: Array = self._sum.nodes[len(self._sum.nodes) // 2 :][: self.capacity]  # the weights, a view of the tree

    @property
    def beta(self) -> float:
        return float(self._beta(self.batches_drawn)) if callable(self._beta) else float(self._beta)

    # ---- writing

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in super().__getstate__().items() if key != "_leaves"}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._look()

    def push(self, lane: int, values: tuple[object, ...]) -> int:
        position = super().push(lane, values)
        self._set(position, self.max_priority**self.alpha)
        return position

    def _store(self, lanes: Positions, values: tuple[object, ...], framed: bool = True) -> Positions:
        positions = super()._store(lanes, values, framed)
        self._set(positions, self.max_priority**self.alpha)
        return positions

    def clear_lane(self, lane: int) -> None:
        super().clear_lane(lane)
        self._set(np.arange(lane * self.lane_size, (lane + 1) * self.lane_size), 0.0)

    def add_lanes(self, n: int) -> None:
        weights, before = self._sum.values, self.capacity
        super().add_lanes(n)
        self._trees()
        self._set(np.arange(before), weights)

    def update_weight(self, index: object, td: npt.ArrayLike, serials: Positions | None = None) -> int:
        """Sets the priorities of rows to |td| + eps; of several for one row the last one stays.

        Args:
            index: Rows, as for `buffer[index]`.
            td: TD errors, or what stands for them; one for each, or one for all.
            serials: `serials(index)` from when the rows were drawn: those that were overwritten since are left alone.

        Returns:
            Rows left alone.

        Raises:
            ValueError: an infinite number, or NaN. IndexError: a position that holds no row. The buffer is as before.
        """
        values, stale = np.abs(np.asarray(td, np.float64)) + EPS, 0
        if serials is not None:
            index = np.asarray(index)
            current = (self.serials(index) == serials) & (serials >= 0)
            stale = len(current) - int(np.count_nonzero(current))
            if stale:
                index, values = index[current], np.broadcast_to(values, current.shape)[current]
        positions = self.positions(index)
        if positions.size:
            highest = float(values.max())
            if not highest < np.inf:  # also NaN, which a maximum passes on
                where = int(np.flatnonzero(~np.isfinite(values))[0])
                raise ValueError(f"{self!r}: priority {values.ravel()[where]} at place {where}; expected finite numbers, look "
                                 "for NaN in the loss")
            self._set(positions, values**self.alpha)
            self.max_priority = max(self.max_priority, highest)
        return stale

    def use_fields(self, specs: Sequence[Spec], empty_keys: Sequence[str] = ()) -> None:
        """As `ReplayBuffer.use_fields`; raises ValueError where a field is named `weight`, too."""
        if any(spec.name.partition(".")[0] == "weight" for spec in specs):
            raise ValueError(f"{self!r}: field 'weight' is made here when rows are read; store it by another name")
        super().use_fields(specs, empty_keys)

    def _set(self, positions: Positions | int, weights: Array | float) -> None:
        """Sets weights; all of them, or none where one is refused."""
        self._sum[positions] = weights
        if self._min is not None:
            # An empty slot must not set the scale of the others.
            self._min[positions] = np.where(np.asarray(weights) > 0, weights, np.inf)

    def _least(self) -> float:
        """The smallest weight of a row. Its tree is made when it is first asked for."""
        if self._min is None:
            self._min = SegmentTree(self.capacity, "min")
            self._min.fill(np.where(self._leaves > 0, self._leaves, np.inf))
        return self._min.total

    # ---- drawing and reading

    def sample_indices(self, n: int | None, rng: np.random.Generator | None = None, ahead: int = 0, behind: int = 0) -> Positions:
        """As `ReplayBuffer.sample_indices`, [n] int64, but rows are drawn in proportion to their weights."""
        drawn = super().sample_indices(n, rng, ahead, behind)
        self.batches_drawn += n is None or n > 0
        return drawn

    def _draw(self, n: int, rng: np.random.Generator) -> Positions:
        return self._sum.sample(n, rng)

    def _shares(self, rows: Positions) -> Array | None:
        weights = self._leaves[rows]
        return np.asarray(weights / weights.sum())

    def weights(self, positions: Positions) -> Array:
        """Importance weights of rows, [N] float32."""
        weights = self._leaves.take(positions)
        # A batch's largest importance is that of its smallest weight.
        least = weights.min(initial=np.inf) if self.weight_norm else self._least()
        importance: Array = ((weights / least) ** -self.beta).astype(np.float32)
        return importance

    def gather(self, positions: Positions, last: Positions | None = None, names: Sequence[str] | None = None) -> dict[str, Array]:
        """As `ReplayBuffer.gather`, with `weight` [N] float32."""
        wanted = None if names is None else [name for name in names if name != "weight"]
        out = super().gather(positions, last, wanted)
        if names is None or "weight" in names:
            out["weight"] = self.weights(positions)
        return out

    def get(self, index: object, key: str) -> Any:
        return self._shaped(self.positions(index), ["weight"])["weight"] if key == "weight" else super().get(index, key)

    # ---- saving

    def _options(self) -> dict[str, bool | float]:
        beta = {} if callable(self._beta) else {"beta": float(self._beta)}
        return {**super()._options(), "alpha": self.alpha, "weight_norm": self.weight_norm, **beta}

    def state_dict(self) -> State:
        return {**super().state_dict(), "weights": self._leaves[self._memory.filled()], "max_priority": self.max_priority,
                "batches_drawn": self.batches_drawn}

    def load_state_dict(self, state: State) -> None:
        """As `ReplayBuffer.load_state_dict`; raises ValueError where α is another, or weights are no numbers above 0, too."""
        if "weights" not in state:
            raise ValueError(f"{self!r}: the saved buffer has no priorities; load it into a ReplayBuffer, and take its rows "
                             "over with update()")
        alpha = plain.entries(state.get("options", {})).get("alpha", self.alpha)
        if alpha != self.alpha:
            raise ValueError(f"{self!r}: the saved weights are of alpha={alpha}, this buffer has {self.alpha}; build it with "
                             "the saved one")
        weights = np.asarray(state["weights"], np.float64)
        if weights.shape != (sum(plain.wholes(state["count"])),) or not (np.isfinite(weights) & (weights > 0)).all():
            raise ValueError(f"{self!r}: the saved weights are {weights.shape}; expected finite numbers above 0, one per row")
        highest, drawn = plain.number(state["max_priority"]), plain.whole(state["batches_drawn"])
        if not (0 < highest < np.inf and drawn >= 0):
            raise ValueError(f"{self!r}: the saved max_priority is {highest}, batches_drawn {drawn}; expected a finite "
                             "number above 0, and a count")
        super().load_state_dict(state)
        self._trees()
        self._set(self._memory.filled(), weights)
        self.max_priority, self.batches_drawn = highest, drawn
