"""OfflineHelper: learns from recorded rows; nothing is stored."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.row_format import ORIGIN_FIELDS
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.buffers.source import DirectoryRows, source_of
from parl_like.data.datasets import rows_hash
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array, Spec


class OfflineHelper(OffPolicyHelper):
    """Learns from a buffer that was filled elsewhere; stores nothing. Where its agent has an environment it acts there, and
    learns from the data every `learn_every` steps.

    Args:
        data: The buffer, or the directory that `buffer.save(path)` wrote. Its columns must have the names, shapes and dtypes of
            the model's spaces; what it lacks beside observations and actions, the algorithm must not need; what it has more does
            no harm. Actions that it does not know to be the policy's (`buffer.act_space`) are the environment's, of the model's
            action space; the task learns from a copy of them in the policy's units.
        batch_size: Rows of one training request.
        in_order: Requests go through the data in the order in which it is stored, again and again; the last of a pass is as short
            as it must be. `last` marks the rows after which there is a cut, the last of the request included. None: where the
            algorithm's window asks for it.

    Raises:
        ValueError: the data has fewer rows than `batch_size`, or `store_info` is given. ArchiveError: the directory is damaged.
    """

    given_on = ("size", "batch_size")
    refills = False

    def __init__(self, data: ReplayBuffer | str, *, batch_size: int = 64, in_order: bool | None = None, **options: Any) -> None:
        data = recorded_rows(data, batch_size, "OfflineHelper")
        if "warmup" in options:  # of whatever it learned online; here all rows are there
            options["warmup"] = min(options["warmup"], len(data))
        super().__init__(size=len(data), batch_size=batch_size, **options)
        if self.store_info:
            raise ValueError("OfflineHelper: store_info says what to store, and it stores nothing; leave it out (columns "
                             "`info.x` of the data are read as they are)")
        self.warmup = 0  # the rows are there
        self.data, self.in_order = data, in_order
        self._at = 0  # in that order

    def _check_window(self) -> None:
        if self.in_order is None:
            self.in_order = bool(self.window.in_order)
        if not self.in_order:
            super()._check_window()
        elif self.draw_once:
            raise ValueError(f"{self.where}: draw_once shuffles rows, and this helper sends them in order (in_order); leave one "
                             "out")

    def draw(self, n: int) -> tuple[dict[str, Array], Callable[[Mapping[str, object]], None] | None]:
        """Return `n` random rows, or the next ones, flat field name → [n, ...], and what is to be called with the training
        return."""
        if not self.in_order:
            return super().draw(n)
        assert self.buffer is not None
        with self.buffer.lock:
            order = self.buffer.sample_indices(0)
            begin, end = self._at, self._at + n
            self._at = end if end < len(order) else 0
            return self.rows_at(order[begin:end]), None

    def rows_at(self, indices: Array) -> dict[str, Array]:
        """Return the rows at positions int64 [n], as `OffPolicyHelper` does; in order with `last` bool [n], the rows before a
        cut."""
        rows = super().rows_at(indices)
        if self.in_order:
            assert self.buffer is not None
            rows["last"] = np.append(self.buffer.next(indices[:-1]) != indices[1:], True)
        return rows

    def state_dict(self) -> State:
        """Return the state of an `OffPolicyHelper`, and where the next rows begin that are learned from in order."""
        return {**super().state_dict(), "at": self._at}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; raises as `AgentHelper.load_state_dict`."""
        super().load_state_dict(state)
        self._at = plain.whole(state.get("at", 0))

    def make_buffer(self, n_lanes: int, rng: np.random.Generator) -> ReplayBuffer | None:
        """Return the data."""
        return self.data

    def allocate(self, buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
        """Check the columns that are there. Raises SpecError where one lacks, or has another shape or dtype than the model's."""
        check_recorded(buffer, specs)

    def store(
        self, obs: object, act: object, rew: object, obs_next: object, terminated: Any, truncated: Any,
        info: Mapping[str, object] | None = None, mask: Array | None = None, extra: Mapping[str, object] | None = None,
    ) -> None:
        """Offline data does not grow; the step counts for `learn_every`."""
        if self.mode != "test" and self.buffer is not None:
            n = 1 if not self.agent.vector else len(self.lanes) if mask is None else int(mask.sum())
            self.acting.steps += n
            self._after_store(n, int(np.sum(np.logical_or(terminated, truncated))))

    def interrupt(self, rows: Array | None = None) -> None:
        """Offline data does not change."""


def recorded_rows(data: ReplayBuffer | str, batch_size: int, owner: str) -> ReplayBuffer:
    """Return the buffer, or the one that was saved at a path.

    Raises:
        ValueError: it has fewer rows than `batch_size`; `owner` is the class that asks. ArchiveError: the directory is damaged.
    """
    buffer = _recorded(data) if isinstance(data, str) else data
    if len(buffer) < batch_size:
        raise ValueError(f"{owner}: batch_size is {batch_size}, the data has {len(buffer)} rows; lower batch_size or give more "
                         "data")
    return buffer


def check_recorded(buffer: ReplayBuffer, specs: Sequence[Spec]) -> None:
    """Check the columns of recorded rows. Raises SpecError where one lacks, or has another shape or dtype than the model's."""
    for spec in specs:
        column = buffer.columns.get(spec.name)
        if column is None and spec.name.split(".")[0] in ("obs", "act", "state", *ORIGIN_FIELDS):
            raise spec.error("no such column", f"the data has {', '.join(buffer.columns) or 'no rows'}; record the field", True)
        if column is not None and (buffer.read_shape(spec.name) != spec.shape or column.dtype != spec.dtype):
            raise spec.error(f"{('N', *buffer.read_shape(spec.name))} {column.dtype}",
                             "convert the data, or build the model for its spaces", True)


def sha256_of(path: str) -> str:
    """Return the sha256 of the recorded rows that helpers of this process have read from a directory; empty: none has."""
    data = RECORDED.get(_key(path)) if os.path.isdir(path) else None
    source = None if data is None else source_of(data)
    return "" if source is None else source.sha256


def _key(path: str) -> tuple[str, int]:
    return os.path.realpath(path), os.stat(path).st_mtime_ns


def _recorded(path: str) -> ReplayBuffer:
    """The buffer that was saved there; that of other helpers of this process, where one has it."""
    if not os.path.isdir(path):
        raise ValueError(f"OfflineHelper: data is {path!r}; expected a directory that `buffer.save(path)` wrote, or a buffer")
    key = _key(path)
    if (data := RECORDED.get(key)) is None or source_of(data) is None:  # rows were added to it
        data = RECORDED[key] = ReplayBuffer.load(path)
        data.source = DirectoryRows(path, rows_hash(data), data.written)
    return data


RECORDED: weakref.WeakValueDictionary[tuple[str, int], ReplayBuffer] = weakref.WeakValueDictionary()
