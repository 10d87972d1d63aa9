"""Functions of the rows of an unroll: segments of all agents one after the other, time order inside, `last` marking each cut."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch

from parl_like.learning.algorithm import Algorithm
from parl_like.values.batch import Batch
from parl_like.values.spec import Array, leaves

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


def cut_into(last: torch.Tensor, length: int) -> torch.Tensor:
    """Return where pieces of `length` rows end, [N] bool. Segments are cut from their first rows on; their last pieces may be
    shorter.

    Args:
        last: [N] bool, where the segments end.
    """
    ends = np.flatnonzero(last.cpu().numpy()) + 1
    rows = np.diff(ends, prepend=0)
    within = np.arange(int(ends[-1])) - np.repeat(ends - rows, rows)
    return last | torch.from_numpy((within + 1) % length == 0).to(last.device)


def minibatches_of(fields: Batch, last: torch.Tensor, parts: int, rng: np.random.Generator, whole: bool) -> Iterable[Batch]:
    """One pass over the rows of an update, in random minibatches.

    Args:
        last: [N] bool, where the segments end.
        parts: How many minibatches, at most as many as rows; rows are divided evenly, so none is dropped.
        whole: Segments stay whole, and there are no more parts than these: a memory is replayed from their first rows.
    """
    n = len(last)
    if not whole:
        order = torch.from_numpy(rng.permutation(n))
        cuts = [slice(n * k // parts, n * (k + 1) // parts) for k in range(parts)]
        if n > rows_at_once(fields.obs):  # large rows, as of images: a copy of all takes memory, and saves no time
            yield from (fields[order[cut]] for cut in cuts)
            return
        shuffled = fields[order]
        yield from (shuffled[cut] for cut in cuts)
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


CHUNK = 2**25
"""Bytes of observations, as float32, that one forward pass without gradients may take: its memory is bounded."""


def in_chunks(compute: Callable[[Any], Any], *obs: Any) -> Any:
    """Return what `compute` does for the rows of all `obs`, one after the other: tensors, or mappings or tuples of these.

    It is called once, unless the rows are many and large, such as images: then for as many at a time as `CHUNK` allows, and for
    each of `obs` by itself.
    """
    rows = rows_at_once(obs[0])
    if sum(map(len, obs)) <= rows:
        return compute(reduce(joined, obs))
    chunks = [part[k : k + rows] for part in obs for k in range(0, len(part), rows)]
    lengths = list(map(len, chunks))
    return reassembled([compute(chunk) for chunk in chunks],
                       # What has no row for each is the first part's.
                       lambda parts: torch.cat(parts) if list(map(len, parts)) == lengths else parts[0])


def rows_at_once(obs: Any) -> int:
    """Return how many rows of these observations `CHUNK` allows, at least 1."""
    numbers = sum(int(math.prod(part.shape[1:])) for _, part in leaves(obs, "obs"))
    return max(CHUNK // max(4 * numbers, 1), 1)


def reassembled(parts: Sequence[Any], join: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
    """Return one thing of parts that are alike: tensors, which `join` puts together, or mappings or tuples of these."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return join(list(parts))
    if isinstance(first, tuple):
        return tuple(reassembled(part, join) for part in zip(*parts, strict=True))
    return {name: reassembled([part[name] for part in parts], join) for name in first}


def sequences_in_chunks(compute: Callable[[torch.Tensor], Any], index: torch.Tensor, rows: int) -> Any:
    """Return what `compute` does for [T, B] row numbers, flat and time-major: for as many sequences at a time as have `rows` rows
    together, at least one."""
    groups = torch.split(index, max(rows // len(index), 1), 1)
    if len(groups) == 1:
        return compute(index)
    return reassembled([compute(group) for group in groups], lambda parts: torch.cat(
        [part.reshape(len(index), -1, *part.shape[1:]) for part in parts], 1).flatten(0, 1))


def joined(first: Any, second: Any) -> Any:
    """The rows of two observations, nested or not, one after the other."""
    if isinstance(first, torch.Tensor):
        return torch.cat([first, second])
    return Batch({key: joined(first[key], second[key]) for key in first.keys()})
