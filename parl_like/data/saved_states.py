"""What the state of each kind of buffer must look like in a file, and how rows are taken out of one."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from parl_like.data.encoding import CODES, refusal
from parl_like.spec import Array

DTYPES = tuple(dtype.str for dtype in CODES)
Size = Annotated[int, msgspec.Meta(ge=1, le=2**48)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Field(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    shape: Annotated[list[_Count], msgspec.Meta(max_length=31)]
    dtype: str


class _Open(msgspec.Struct):
    length: list[_Count]
    start: list[_Count]
    returns: list[Any] = msgspec.field(name="return")


class _Finals(msgspec.Struct):
    positions: Array
    rows: dict[str, Array]
    fresh: Array
    pending: dict[str, Array]


class RingState(msgspec.Struct):
    """`ReplayBuffer.state_dict()`."""

    size: Size
    n_lanes: Size
    options: dict[str, Any]
    count: list[_Count]
    cursor: list[_Count]
    written: list[_Count]
    specs: list[_Field]
    empty_keys: list[str]
    columns: dict[str, Array]
    open: _Open
    finals: dict[str, Any]
    rng: dict[str, Any]


class _PrioritizedState(RingState):
    weights: Array
    max_priority: float
    batches_drawn: _Count


class _ReservoirState(msgspec.Struct):
    """`ReservoirBuffer.state_dict()`."""

    size: Size
    seen: _Count
    specs: list[_Field]
    columns: dict[str, Array]
    rng: dict[str, Any]


class _EpisodeState(msgspec.Struct):
    """`EpisodeBuffer.state_dict()`."""

    max_rows: Size | None
    max_episodes: Size | None
    n_lanes: Size
    dropped: _Count
    lengths: list[Size]
    rows: RingState
    open: RingState
    rng: dict[str, Any]


class _Cache(msgspec.Struct, forbid_unknown_fields=True):
    """`CachedReplayBuffer.state_dict()`, but that of its main."""

    n_lanes: Size
    max_episode_length: Size
    open: RingState


@dataclass(frozen=True)
class Kind:
    """What files need to know about a class of buffers.

    Attributes:
        module, name: Of the class.
        given: Keys of the state that its constructor takes, in order.
        options: What else it takes, by name: name -> type; with that attribute, or that key of the state's options.
        state: What `state_dict` must look like. check: What else must hold; raises ValueError.
        chunked: Keys of the state whose arrays have one row for each row of the buffer.
        inside: The key of the state under which those are; "" for the state itself.
        drop: (state, lost [rows] bool) -> the state without these rows, and how many went; None: none may be lost.
    """

    module: str
    name: str
    given: tuple[str, ...]
    options: Mapping[str, type]
    state: type[msgspec.Struct]
    check: Callable[[Any], None]
    chunked: tuple[str, ...] = ("columns",)
    inside: str = ""
    drop: Callable[[dict[str, Any], Array], tuple[dict[str, Any], int]] | None = None

    def get(self) -> Any:
        return getattr(importlib.import_module(f"parl_like.data.{self.module}"), self.name)

    def rows(self, state: dict[str, Any]) -> Any:
        """The part of a state that has the `chunked` keys."""
        return state.get(self.inside) if self.inside else state


def cached_class() -> Any:
    return importlib.import_module("parl_like.data.episodes").CachedReplayBuffer


def _check_memory(size: int, specs: list[_Field]) -> None:
    """Refuses what this machine could never hold: `size` in a file costs nothing to write."""
    names = {field.name for field in specs}
    if len(names) < len(specs):
        raise ValueError("expected field names that occur once, got one twice")
    for field in specs:
        if field.dtype not in DTYPES:
            raise ValueError(f"expected a dtype among {', '.join(DTYPES)} for field {field.name!r}, got {field.dtype[:20]!r}")
    row = 64 + sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in specs)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size * row > memory:
        raise ValueError(f"expected a buffer that fits into {memory} bytes of memory, got {size} rows of {row} bytes")


def _check_ring(state: RingState) -> None:
    _check_memory(state.size + state.n_lanes, state.specs)
    lanes, opened = state.n_lanes, state.open
    lane_size = -(-state.size // lanes)
    per_lane = {"count": state.count, "cursor": state.cursor, "written": state.written, "open.length": opened.length,
                "open.start": opened.start, "open.return": opened.returns}  # fmt: skip
    for name, numbers in per_lane.items():
        if len(numbers) != lanes:
            raise ValueError(f"expected {lanes} numbers in {name!r}, one per lane, got {len(numbers)}")
    for lane in range(lanes):
        first, count, cursor = lane * lane_size, state.count[lane], state.cursor[lane]
        fits = first <= cursor < first + lane_size and (count == lane_size or cursor == first + count)
        if not fits or not count <= state.written[lane] or not first <= opened.start[lane] < first + lane_size:
            raise ValueError(f"expected counters that fit lane {lane} of {lane_size} slots, got count {count}, cursor {cursor}, "
                             f"written {state.written[lane]}, start {opened.start[lane]}")  # fmt: skip
    np.asarray(opened.returns, np.float64)
    ignored, only_last = bool(state.options.get("ignore_obs_next")), bool(state.options.get("save_only_last_obs"))
    fields: dict[str, tuple[tuple[int, ...], str]] = {}
    stored: dict[str, tuple[tuple[int, ...], str]] = {}
    for field in state.specs:
        top = field.name.partition(".")[0]
        shape = field.shape[1:] if only_last and top in ("obs", "obs_next") else field.shape
        (fields if ignored and top == "obs_next" else stored)[field.name] = tuple(shape), field.dtype
    if not stored and any(state.count):
        raise ValueError(f"expected fields, since there are {sum(state.count)} rows; got none")
    _check_columns(state.columns, stored, sum(state.count))
    if state.finals or (ignored and state.specs):
        finals = msgspec.convert(state.finals, _Finals)
        _check_array("finals.positions", finals.positions, (len(finals.positions),), "<i8")
        _check_array("finals.fresh", finals.fresh, (lanes,), "|b1")
        if len(finals.positions) and not 0 <= finals.positions.min() <= finals.positions.max() < lanes * lane_size:
            raise ValueError("expected final observations of positions inside the buffer, got others")
        _check_columns(finals.rows, fields, len(finals.positions))
        _check_columns(finals.pending, fields, lanes)


def _check_prioritized(state: _PrioritizedState) -> None:
    _check_ring(state)
    _check_array("weights", state.weights, (sum(state.count),), "<f8")
    if not (np.isfinite(state.weights).all() and (state.weights >= 0).all() and 0 < state.max_priority < math.inf):
        raise ValueError("expected finite weights and priorities ≥ 0, got others")


def _check_reservoir(state: _ReservoirState) -> None:
    _check_memory(state.size, state.specs)
    fields = {field.name: (tuple(field.shape), field.dtype) for field in state.specs}
    _check_columns(state.columns, fields, min(state.seen, state.size))


def _check_episodes(state: _EpisodeState) -> None:
    kept, lengths = state.rows, state.lengths
    n = sum(lengths)
    _check_whole(kept, 1)
    if kept.count != [n]:
        raise ValueError(f"expected the {n} rows of {len(lengths)} episodes, got {kept.count}")
    if not np.array_equal(np.flatnonzero(_ends(kept)) + 1, np.cumsum(lengths, dtype=np.int64)):
        raise ValueError("expected flags where episodes end, and nowhere else, got others")
    if len(lengths) > (state.max_episodes or len(lengths)) or (n > (state.max_rows or n) and len(lengths) > 1):
        raise ValueError(f"expected at most {state.max_episodes} episodes and {state.max_rows} rows, got {len(lengths)} and {n}")
    _check_open(state.open, state.n_lanes, kept.specs)


def _check_cache(cache: _Cache, main: RingState) -> None:
    lane_size = -(-main.size // main.n_lanes)
    if main.n_lanes not in (1, cache.n_lanes) or cache.max_episode_length > lane_size:
        raise ValueError(f"expected a cache whose lanes and episodes go into {main.n_lanes} lanes of {lane_size} rows, "
                         f"got {cache.n_lanes} lanes, and episodes of {cache.max_episode_length} rows")  # fmt: skip
    _check_open(cache.open, cache.n_lanes, main.specs)
    if -(-cache.open.size // cache.n_lanes) > cache.max_episode_length:
        raise ValueError(f"expected room for open episodes of {cache.max_episode_length} rows, got {cache.open.size} slots")


def _check_open(state: RingState, lanes: int, kept: list[_Field]) -> None:
    """The open episodes of a buffer that keeps whole ones, with fields `kept`."""
    _check_whole(state, lanes)
    if _ends(state).any():
        raise ValueError("expected open episodes, got one that is over")
    if state.specs != kept[: len(state.specs)]:
        raise ValueError("expected open episodes of the fields of finished ones, got others")


def _check_whole(state: RingState, lanes: int) -> None:
    """A ring whose lanes never went round. Options, of which it has none, `load_state_dict` looks at."""
    if state.n_lanes != lanes:
        raise ValueError(f"expected {lanes} lanes of whole episodes, got {state.n_lanes}")
    _check_ring(state)
    lane_size = -(-state.size // lanes)
    if any(cursor != lane * lane_size + state.count[lane] % lane_size for lane, cursor in enumerate(state.cursor)):
        raise ValueError(f"expected rows from the start of their lanes on, got cursors {state.cursor[:4]}")


def _ends(state: RingState) -> Array:
    """[rows] bool: which ones end an episode. Raises ValueError or TypeError where flags are missing, or are none."""
    ends = np.zeros(sum(state.count), bool)
    for name in ("terminated", "truncated") if state.specs else ():
        if name not in state.columns:
            raise ValueError(f"expected a column {name!r}, got none")
        ends |= state.columns[name]
    return ends


def _check_columns(columns: Mapping[str, Array], fields: Mapping[str, tuple[tuple[int, ...], str]], rows: int) -> None:
    if columns.keys() != fields.keys():
        raise ValueError(f"expected columns {', '.join(fields) or 'none'}, got {', '.join(columns) or 'none'}")
    for name, (shape, dtype) in fields.items():
        _check_array(name, columns[name], (rows, *shape), dtype)


def _check_array(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> None:
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise ValueError(f"expected {name} {shape} {dtype}, got {array.shape} {array.dtype.str}")


def _drop_rows(state: dict[str, Any], lost: Array) -> tuple[dict[str, Any], int]:
    """Takes rows out of a ring. What is left of their lanes moves together, so positions change there."""
    terminated, truncated = state["columns"]["terminated"], state["columns"]["truncated"].copy()
    ends = terminated | truncated  # lost rows are zero: they end nothing
    lane_size, before = -(-state["size"] // state["n_lanes"]), 0
    options, finals = state["options"], dict(state["finals"])
    whole = options["stack_num"] > 1 or options["ignore_obs_next"]
    state = {**state, "count": list(state["count"]), "cursor": list(state["cursor"]), "open": {**state["open"]}}
    state["open"]["start"] = list(state["open"]["start"])
    rows: list[Array] = []
    moved: dict[int, int] = {}
    for lane, count in enumerate(state["count"]):
        first, shift = lane * lane_size, state["cursor"][lane] - lane * lane_size if count == lane_size else 0
        order = before + (np.arange(count) + shift) % max(count, 1)  # of the lane's rows in the columns, oldest first
        gone = lost[order]
        if not gone.any():
            order, kept = before + np.arange(count), np.arange(count)
        else:
            if whole:  # a row here needs the one before or after it
                episode = np.cumsum(ends[order]) - ends[order]
                gone = np.isin(episode, episode[gone])
                if options["stack_num"] > 1 and count == lane_size:
                    gone |= episode == 0  # frames of its first rows are overwritten, which is not seen in a lane with empty slots
            else:
                truncated[order[:-1][gone[1:] & ~gone[:-1] & ~ends[order[:-1]]]] = True
            kept, order = order[~gone] - before, order[~gone]
            over = np.flatnonzero((terminated | truncated)[order])
            state["count"][lane] = len(order)
            state["cursor"][lane] = first + len(order)
            state["open"]["start"][lane] = first + (int(over[-1]) + 1 if len(over) else 0)
        moved.update(zip((first + kept).tolist(), range(first, first + len(kept)), strict=True))
        rows.append(order)
        before += count
    index = np.concatenate(rows)
    columns = {**state["columns"], "truncated": truncated}
    state["columns"] = {name: column[index] for name, column in columns.items()}
    if "weights" in state:
        state["weights"] = state["weights"][index]
    if finals:
        keep = np.array([position in moved for position in finals["positions"].tolist()], bool)
        positions = np.array([moved[position] for position in finals["positions"][keep].tolist()], np.int64)
        finals |= {"positions": positions, "rows": {name: column[keep] for name, column in finals["rows"].items()}}
    return {**state, "finals": finals}, len(lost) - len(index)


_RING = {"stack_num": int, "ignore_obs_next": bool, "save_only_last_obs": bool, "sample_avail": bool, "rew_dtype": str}
_PRIORITIES = {"alpha": float, "beta": float, "weight_norm": bool}
KINDS = {kind.name: kind for kind in (
    Kind("replay_buffer", "ReplayBuffer", ("size", "n_lanes"), _RING, RingState, _check_ring, drop=_drop_rows),
    Kind("prioritized", "PrioritizedReplayBuffer", ("size", "n_lanes"), _RING | _PRIORITIES, _PrioritizedState,
         _check_prioritized, ("columns", "weights"), drop=_drop_rows),
    Kind("reservoir", "ReservoirBuffer", ("size",), {}, _ReservoirState, _check_reservoir),
    Kind("episodes", "EpisodeBuffer", ("max_rows", "max_episodes", "n_lanes"), {"rew_dtype": str}, _EpisodeState, _check_episodes,
         inside="rows"),
)}  # fmt: skip


def check(path: Path, kind: Kind, state: dict[str, Any], cache: dict[str, Any] | None = None) -> None:
    try:
        own = msgspec.convert(state, kind.state)
        kind.check(own)
        if cache is not None:
            if not isinstance(own, RingState):
                raise ValueError("expected no cache, got one")
            _check_cache(msgspec.convert(cache, _Cache), own)
    except (ValueError, TypeError, OverflowError) as error:
        raise refusal(path, f"the state of a {kind.name}", str(error), "use an earlier file") from None
