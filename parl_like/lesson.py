"""What the optimiser steps of one lesson return, put together: means of numbers, and what is said of rows, in the rows' order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parl_like.spec import Array

ROW = "lesson_row"
"""Field of minibatches: the place of each row in the lesson."""


class Returns:
    """Collects what `Algorithm.learn` returned, step by step.

    Args:
        owner: For messages, such as "task 'RL'".
        n: Rows of the lesson.
    """

    def __init__(self, owner: str, n: int) -> None:
        self.owner, self.n = owner, n
        self.numbers: dict[str, list[Any]] = {}
        self.rows: dict[str, list[tuple[Any, Any]]] = {}  # name → (places, values) of each step; None: the whole lesson
        self.steps = 0

    def add(self, out: Mapping[str, Any], minibatch: Any, loss: float) -> None:
        """Of a step that was taken."""
        self.steps += 1
        for name, value in out.items():
            if name == "loss":
                value = loss
            elif isinstance(value, torch.Tensor):
                value = value.detach()
            if np.ndim(value):
                self.rows.setdefault(name, []).append((minibatch.get(ROW), value))
            else:
                self.numbers.setdefault(name, []).append(value)

    def add_left_out(self, out: Mapping[str, Any], minibatch: Any) -> None:
        """Of a step that was left out: for rows of which no other step says anything, with 0 for what is no number."""
        for name, value in out.items():
            array = to_numpy(value)
            if array.ndim:
                self.rows.setdefault(name, []).insert(0, (minibatch.get(ROW), np.nan_to_num(array, posinf=0.0, neginf=0.0)))
            elif not self.steps:
                self.numbers[name] = [array]

    def result(self) -> dict[str, Any]:
        """Numbers as floats, each the mean over the steps, and arrays [n, ...].

        Raises:
            ValueError: an array leaves rows of the lesson out.
        """
        return {name: _mean(values) for name, values in self.numbers.items()} | {name: self._joined(name) for name in self.rows}

    def _joined(self, name: str) -> Array:
        out: Any = None
        where: Any
        told = np.zeros(self.n, bool)
        for places, value in self.rows[name]:
            array, where = to_numpy(value), slice(None) if places is None else to_numpy(places)
            if len(array) != len(told[where]):
                raise ValueError(f"{self.owner}: learn returned {name!r} with {len(array)} rows; expected one for each of "
                                 f"{len(told[where])}. Of "
                                 f"minibatches they are put together by the field {ROW!r}: let minibatches(batch) keep it, as "
                                 "indexing it does")
            out = np.zeros((self.n, *array.shape[1:]), array.dtype) if out is None else out
            out[where], told[where] = array, True
        if not told.all():
            raise ValueError(f"{self.owner}: learn returned {name!r} for {told.sum()} of {self.n} rows; expected one for each, "
                             "so let minibatches(batch) give every row once at least")
        return out  # type: ignore[no-any-return]


def _mean(values: list[Any]) -> float:
    if len(values) == 1:
        return float(values[0])
    return float(torch.stack(values).mean() if isinstance(values[0], torch.Tensor) else np.mean(values))


def to_numpy(value: Any) -> Array:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)
