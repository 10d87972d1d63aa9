"""Moments: mean and variance of what was seen."""

from __future__ import annotations

import threading
from functools import reduce
from typing import NamedTuple

import numpy as np

from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array

MIN_VAR = 1e-8  # a constant field is divided by 1e-4, not by 0


class _MomentsPart(NamedTuple):
    n: float
    mean: float | Array  # [*shape] float64
    var: float | Array


_LOCK = threading.Lock()  # one for all moments: a merge is short, and a lock inside could be neither copied nor pickled


class Moments:
    """Mean and variance of batches, float64: of all rows, or of recent ones. Several threads may update and read.

    Two parts merge as in Chan, Golub and LeVeque 1979, with weights 1 − w and w.

    Args:
        rate: Exponential moments: every batch weighs `rate`, in (0, 1], against all before it.
        window: Windowed moments: of the rows of the last `window` batches, at least 1. Neither given: of all rows.

    Attributes:
        mean, std: [*shape] float64, of what is in use; 0 and 1 before the first batch. std is at least 1e-4.

    Raises:
        ValueError: both are given, rate is outside (0, 1], or window is below 1.
    """

    def __init__(self, rate: float | None = None, window: int | None = None) -> None:
        if rate is not None and window is not None:
            raise ValueError(f"Moments: rate is {rate} and window {window}; expected at most one of them")
        if not 0 < (1 if rate is None else rate) <= 1 or (1 if window is None else window) < 1:
            raise ValueError(f"Moments: rate is {rate}, window {window}; expected rate in (0, 1], window at least 1")
        self.rate, self.window = rate, window
        self._parts: tuple[_MomentsPart, ...] = ()
        self._update_number = -1  # for which the moments in use were taken
        self._use()

    def _use(self) -> None:
        """Takes everything that was counted into use."""
        total = reduce(_merge, self._parts) if self._parts else _MomentsPart(0, 0.0, 1.0)
        self._total = total.mean, np.sqrt(np.maximum(total.var, MIN_VAR))  # one assignment: readers see both or neither
        self._behind = False  # whether something was counted since

    def renew(self, update_number: int | None) -> None:
        """Takes what was counted into use, at the first call for an update later than before; None: at every call."""
        if update_number is None or update_number > self._update_number:
            with _LOCK:
                self._use()
                self._update_number = self._update_number if update_number is None else update_number

    @property
    def mean(self) -> float | Array:
        """Return the mean in use, [*shape] float64; 0 before the first batch."""
        return self._total[0]

    @property
    def std(self) -> float | Array:
        """Return the standard deviation in use, [*shape] float64, at least 1e-4; 1 before the first batch."""
        return self._total[1]

    def normalize(self, x: Array, clip: float | None = None, center: bool = True) -> Array:
        """x [N, *shape] in standard deviations, from the mean or (center False) from 0, cut to ± `clip`; float64."""
        mean, std = self._total
        out: Array = (x - mean if center else x) / std
        return out if clip is None else np.clip(out, -clip, clip)

    def update(self, x: Array) -> None:
        """Counts a batch [N, *shape], see `count`, and takes it into use."""
        self.count(x)
        self.renew(None)

    def count(self, x: Array) -> None:
        """Counts a batch [N, *shape], N = 0 too; `mean` and `std` are what they were until `renew`.

        Raises:
            ValueError: another shape than before, or values that are not finite.
        """
        if not len(x):
            return
        with np.errstate(invalid="ignore", over="ignore"):  # the next lines say it better
            part = _MomentsPart(len(x), np.mean(x, 0, np.float64), np.var(x, 0, np.float64))
        if not np.isfinite(part.var).all():
            raise ValueError(f"Moments: a batch {x.shape} has values that are not finite, or too large to square")
        with _LOCK:
            parts = self._parts
            if parts and np.shape(parts[0].mean) != np.shape(part.mean):
                raise ValueError(f"Moments: expected a batch of rows {np.shape(parts[0].mean)}, got {x.shape[1:]}")
            if self.window is not None:
                self._parts = (*parts, part)[-self.window :]
            else:
                self._parts = (_merge(parts[0], part, self.rate) if parts else part,)
            self._behind = True

    def state_dict(self) -> State:
        """rate, window; n [k], mean and var [k, *shape] of k parts: 0 or 1, windowed up to `window`; where rows are made ready
        for updates, the number of the newest, and the moments that are in use for it."""
        arrays = {key: np.array([getattr(part, key) for part in self._parts], np.float64) for key in _MomentsPart._fields}
        used: State = {"update_number": self._update_number, "used_mean": np.array(self.mean), "used_std": np.array(self.std)}
        return {"rate": self.rate, "window": self.window, **arrays, **(used if self._update_number >= 0 or self._behind else {})}

    def load_state_dict(self, state: State) -> None:
        """Takes over what `state_dict` gave. Raises ValueError where they are moments of another kind."""
        for key in ("rate", "window"):
            if state[key] != getattr(self, key):
                raise ValueError(f"Moments: the saved {key} is {state[key]}, expected {getattr(self, key)}: build them as saved")
        with _LOCK:
            columns = (np.array(state[key]) for key in _MomentsPart._fields)
            self._parts = tuple(_MomentsPart(float(n), m, v) for n, m, v in zip(*columns, strict=True))
            self._use()
            self._update_number = plain.whole(state.get("update_number", -1))
            if "used_mean" in state:
                self._total, self._behind = (np.array(state["used_mean"]), np.array(state["used_std"])), True


def _merge(a: _MomentsPart, b: _MomentsPart, weight: float | None = None) -> _MomentsPart:
    """Moments of both, b with this weight; without, every row weighs the same."""
    w = b.n / (a.n + b.n) if weight is None else weight
    apart = b.mean - a.mean
    return _MomentsPart(a.n + b.n, a.mean + w * apart, (1 - w) * a.var + w * b.var + w * (1 - w) * apart**2)
