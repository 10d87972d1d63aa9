"""Rows that were read from a directory which stays: a checkpoint names it, and the hash of the rows, in place of them."""

from __future__ import annotations

from dataclasses import dataclass

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.values import plain
from parl_like.values.plain import State

RECORDED = "recorded"
EMPTY = "empty"


@dataclass(frozen=True)
class DirectoryRows:
    """The origin of a buffer's rows.

    Attributes:
        path: The directory. sha256: Of its rows, as `parl_like.data.datasets.rows_hash` gives it.
        written: Rows that were ever stored in the buffer when it had been read.
    """

    path: str
    sha256: str
    written: int

    def state_dict(self) -> State:
        """Return path and hash."""
        return {"path": self.path, "sha256": self.sha256}

    def check(self, saved: State, owner: str) -> None:
        """Raise ValueError where a saved state names other rows; `owner` learns from them."""
        if saved["sha256"] != self.sha256:
            raise ValueError(f"{owner}: the checkpoint learned from the rows of {saved['path']} with the sha256 "
                             f"{str(saved['sha256'])[:12]}…, and {self.path} has others ({self.sha256[:12]}…) now; put those "
                             "rows back, or give data= the directory that has them")


def source_of(buffer: ReplayBuffer) -> DirectoryRows | None:
    """Return where all rows of the buffer are from; None: they were not read from a directory, or rows were stored since."""
    source = buffer.source
    return source if isinstance(source, DirectoryRows) and source.written == buffer.written else None


def state_of(buffer: ReplayBuffer, rows: bool = True) -> State:
    """Return the state of a buffer; where its rows are those of a directory, or `rows` is False, without them."""
    source = source_of(buffer)
    if source is not None:
        return {RECORDED: source.state_dict(), "rng": rng_state(buffer.rng)}
    return buffer.state_dict() if rows else {EMPTY: True, "rng": rng_state(buffer.rng)}


def load_state_of(buffer: ReplayBuffer, state: State, owner: str) -> None:
    """Restore what `state_of` gave; `owner` is the task that learns from the rows.

    Raises:
        ValueError: it does not fit, or the rows were read from a directory and are no longer, or not there, the same.
    """
    if EMPTY in state:
        buffer.reset()
        buffer.source = None
        set_rng_state(buffer.rng, state["rng"])
        return
    if RECORDED not in state:
        buffer.load_state_dict(state)
        buffer.source = None
        return
    saved, source = plain.entries(state[RECORDED]), source_of(buffer)
    if source is None:
        raise ValueError(f"{owner}: the checkpoint learned from the rows of {saved['path']}, which it does not hold; build the "
                         "robot with data= that directory")
    source.check(saved, owner)
    set_rng_state(buffer.rng, state["rng"])
