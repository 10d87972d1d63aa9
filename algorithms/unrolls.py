"""Functions of the rows of an unroll: segments of all agents one after the other, time order inside, `last` marking each cut."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from parl_like.learning.algorithm import Algorithm
from parl_like.values.batch import Batch
from parl_like.values.spec import Array

log = logging.getLogger(__name__)


def parts_of(algorithm: Algorithm, rows: int, parts: int, name: str, at_once: int = 0) -> int:
    """Return the number of minibatches of an update of so many rows: `parts`, or as many as have `at_once` rows; none is empty.

    In an algorithm's first update the log has a warning where what was asked for cannot be: more minibatches than rows make
    every row an optimiser step of its own, which is slow, and one of more rows than there are is all of them.

    Args:
        name: Of the option, for the warning.
    """
    kind = type(algorithm).__name__
    if not algorithm.updates and parts > rows and not at_once:
        log.warning("%s: %s is %d, and an update has %d rows: each row is an optimiser step of its own, which is slow; choose "
                    "fewer, or learn from more rows at once (a larger unroll, more agents)", kind, name, parts, rows)
    if not algorithm.updates and at_once > rows:
        log.warning("%s: %s is %d, and an update has %d rows: all of them are one minibatch; choose fewer, or learn from more "
                    "rows at once (a larger unroll, more agents)", kind, name, at_once, rows)
    return min(max(rows // at_once, 1) if at_once else parts, rows)


def discounts(batch: Batch, gamma: float, goes_on: torch.Tensor) -> Array:
    """γ [N], γᵈ of a row with a `duration` d, 0 where nothing goes on; float32."""
    each: Any = np.float32(gamma)
    if "duration" in batch:  # rows of actions that take several steps, such as goals
        each = each ** batch.duration.cpu().numpy().astype(np.float32)
    return np.where(goes_on.cpu().numpy(), each, np.float32(0))


def normalized(x: torch.Tensor) -> torch.Tensor:
    """Mean 0, standard deviation 1; a single row stays as it is."""
    if len(x) < 2:
        return x
    std, mean = torch.std_mean(x)
    return (x - mean) / (std + 1e-8)


def minibatches_of(fields: Batch, last: torch.Tensor, parts: int, rng: np.random.Generator, whole: bool) -> Iterable[Batch]:
    """One pass over the rows of an update, in random minibatches.

    Args:
        last: [N] bool, where the segments end.
        parts: How many minibatches, at most as many as rows; rows are divided evenly, so none is dropped.
        whole: Segments stay whole, and there are no more parts than these: a memory is replayed from their first rows.
    """
    n = len(last)
    if not whole:
        shuffled = fields[torch.from_numpy(rng.permutation(n))]
        for k in range(parts):
            yield shuffled[n * k // parts : n * (k + 1) // parts]
        return
    ends = np.flatnonzero(last.cpu().numpy()) + 1
    starts = np.concatenate([[0], ends[:-1]])
    for group in np.array_split(rng.permutation(len(ends)), min(parts, len(ends))):
        yield fields[torch.from_numpy(np.concatenate([np.arange(starts[i], ends[i]) for i in group]))]


def sequences(last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat segments → padded sequences.

    Args:
        last: [N] bool, True at the last row of each segment, the final row included.

    Returns:
        index: [T, B] row numbers, T the longest segment; a shorter one is padded with its own last row.
        rows: [N] positions of the rows in the flattened [T · B], so that flat[rows] is in row order again.
    """
    ends = torch.nonzero(last).squeeze(1)
    starts = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
    lengths = ends - starts + 1
    steps = torch.arange(int(lengths.max()), device=last.device).unsqueeze(1)
    index = torch.minimum(starts + steps, ends)
    segment = torch.repeat_interleave(torch.arange(len(ends), device=last.device), lengths)
    within = torch.arange(len(last), device=last.device) - starts[segment]
    return index, within * len(ends) + segment


def joined(first: Any, second: Any) -> Any:
    """The rows of two observations, nested or not, one after the other."""
    if isinstance(first, torch.Tensor):
        return torch.cat([first, second])
    return Batch({key: joined(first[key], second[key]) for key in first.keys()})
