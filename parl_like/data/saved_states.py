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
_Fields = dict[str, tuple[tuple[int, ...], str]]


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


class _RingState(msgspec.Struct):
    """`ReplayBuffer.state_dict()`; and below, those of the other classes."""

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


class _PrioritizedState(_RingState):
    weights: Array
    max_priority: float
    batches_drawn: _Count


class _ReservoirState(msgspec.Struct):
    size: Size
    seen: _Count
    specs: list[_Field]
    columns: dict[str, Array]
    rng: dict[str, Any]


class _EpisodeState(msgspec.Struct):
    max_rows: Size | None
    max_episodes: Size | None
    n_lanes: Size
    dropped: _Count
    lengths: list[Size]
    rows: _RingState
    open: _RingState
    rng: dict[str, Any]


class _Cache(msgspec.Struct, forbid_unknown_fields=True):
    """That of a CachedReplayBuffer, but its main's."""

    n_lanes: Size
    max_episode_length: Size
    open: _RingState


@dataclass(frozen=True)
class Kind:
    """What files need to know about a class of buffers."""

    module: str
    name: str
    given: tuple[str, ...]  # keys of the state that its constructor takes, in order
    options: Mapping[str, type]  # what else it takes: name -> type; with that attribute, or that key of the state's options
    state: type[msgspec.Struct]  # what `state_dict` must look like
    check: Callable[[Any], None]  # what else must hold; raises ValueError
    chunked: frozenset[str] = frozenset({"columns"})  # keys of the state whose arrays have one row for each row of the buffer
    inside: str = ""  # the key of the state under which those are; "" for the state itself
    # (state, lost [rows] bool) -> the state without these rows, and how many went; None: none may be lost
    drop: Callable[[dict[str, Any], Array], tuple[dict[str, Any], int]] | None = None

    def get(self) -> Any:
        return getattr(importlib.import_module(f"parl_like.data.{self.module}"), self.name)

    def rows(self, state: dict[str, Any]) -> Any:
        """The part of a state that has the `chunked` keys."""
        return state.get(self.inside) if self.inside else state


def cached_class() -> Any:
    return importlib.import_module("parl_like.data.episodes").CachedReplayBuffer


def _fields(size: int, specs: list[_Field]) -> _Fields:
    """Shape and dtype by name. Refuses what this machine could never hold: `size` in a file costs nothing to write."""
    fields = {field.name: (tuple(field.shape), field.dtype) for field in specs}
    if len(fields) < len(specs):
        raise ValueError("expected field names that occur once, got one twice")
    for name, (_, dtype) in fields.items():
        if dtype not in DTYPES:
            raise ValueError(f"expected a dtype among {', '.join(DTYPES)} for field {name!r}, got {dtype[:20]!r}")
    row = 64 + sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in fields.values())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size * row > memory:
        raise ValueError(f"expected a buffer that fits into {memory} bytes of memory, got {size} rows of {row} bytes")
    return fields


def _check_ring(state: _RingState) -> None:
    fields, lanes, opened = _fields(state.size + state.n_lanes, state.specs), state.n_lanes, state.open
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
    apart: _Fields = {}  # fields of final observations, which no row has
    stored: _Fields = {}
    for name, (shape, dtype) in fields.items():
        top = name.partition(".")[0]
        shape = shape[1:] if only_last and top in ("obs", "obs_next") else shape
        (apart if ignored and top == "obs_next" else stored)[name] = shape, dtype
    if not stored and any(state.count):
        raise ValueError(f"expected fields, since there are {sum(state.count)} rows; got none")
    _check_arrays(state.columns, stored, sum(state.count))
    if state.finals or (ignored and fields):
        finals = msgspec.convert(state.finals, _Finals)
        positions, slots = finals.positions, lanes * lane_size
        _check_arrays({"finals.positions": positions}, {"finals.positions": ((), "<i8")}, len(positions))
        _check_arrays({"finals.fresh": finals.fresh}, {"finals.fresh": ((), "|b1")}, lanes)
        if len(positions) and not 0 <= positions.min() <= positions.max() < slots:
            raise ValueError("expected final observations of positions inside the buffer, got others")
        _check_arrays(finals.rows, apart, len(positions))
        _check_arrays(finals.pending, apart, lanes)


def _check_prioritized(state: _PrioritizedState) -> None:
    _check_ring(state)
    _check_arrays({"weights": state.weights}, {"weights": ((), "<f8")}, sum(state.count))
    if not (np.isfinite(state.weights).all() and (state.weights >= 0).all() and 0 < state.max_priority < math.inf):
        raise ValueError("expected finite weights and priorities ≥ 0, got others")


def _check_reservoir(state: _ReservoirState) -> None:
    _check_arrays(state.columns, _fields(state.size, state.specs), min(state.seen, state.size))


def _check_episodes(state: _EpisodeState) -> None:
    kept, lengths, n = state.rows, state.lengths, sum(state.lengths)
    ends = _check_whole(kept, 1)
    if kept.count != [n]:
        raise ValueError(f"expected the {n} rows of {len(lengths)} episodes, got {kept.count}")
    if not np.array_equal(np.flatnonzero(ends) + 1, np.cumsum(lengths, dtype=np.int64)):
        raise ValueError("expected flags where episodes end, and nowhere else, got others")
    if len(lengths) > (state.max_episodes or len(lengths)) or (n > (state.max_rows or n) and len(lengths) > 1):
        raise ValueError(f"expected at most {state.max_episodes} episodes and {state.max_rows} rows, got {len(lengths)} and {n}")
    _check_open(state.open, state.n_lanes, kept.specs)


def _check_cache(cache: _Cache, main: _RingState) -> None:
    lane_size, longest = -(-main.size // main.n_lanes), cache.max_episode_length
    if main.n_lanes not in (1, cache.n_lanes) or longest > lane_size:
        raise ValueError(f"expected a cache whose lanes and episodes go into {main.n_lanes} lanes of {lane_size} rows, "
                         f"got {cache.n_lanes} lanes, and episodes of {longest} rows")  # fmt: skip
    _check_open(cache.open, cache.n_lanes, main.specs)
    if -(-cache.open.size // cache.n_lanes) > longest:
        raise ValueError(f"expected room for open episodes of {longest} rows, got {cache.open.size} slots")


def _check_open(state: _RingState, lanes: int, kept: list[_Field]) -> None:
    """The open episodes of a buffer that keeps whole ones, with fields `kept`."""
    if _check_whole(state, lanes).any():
        raise ValueError("expected open episodes, got one that is over")
    if state.specs != kept[: len(state.specs)]:
        raise ValueError("expected open episodes of the fields of finished ones, got others")


def _check_whole(state: _RingState, lanes: int) -> Array:
    """A ring whose lanes never went round. Options, of which it has none, `load_state_dict` looks at.

    Returns [rows] bool: which ones end an episode.
    """
    if state.n_lanes != lanes:
        raise ValueError(f"expected {lanes} lanes of whole episodes, got {state.n_lanes}")
    _check_ring(state)
    lane_size = -(-state.size // lanes)
    if any(cursor != lane * lane_size + state.count[lane] % lane_size for lane, cursor in enumerate(state.cursor)):
        raise ValueError(f"expected rows from the start of their lanes on, got cursors {state.cursor[:4]}")
    ends = np.zeros(sum(state.count), bool)
    for name in ("terminated", "truncated") if state.specs else ():
        if name not in state.columns:
            raise ValueError(f"expected a column {name!r}, got none")
        ends |= state.columns[name]
    return ends


def _check_arrays(arrays: Mapping[str, Array], fields: _Fields, rows: int) -> None:
    if arrays.keys() != fields.keys():
        raise ValueError(f"expected columns {', '.join(fields) or 'none'}, got {', '.join(arrays) or 'none'}")
    for name, (shape, dtype) in fields.items():
        array = arrays[name]
        if array.shape != (rows, *shape) or array.dtype != np.dtype(dtype):
            raise ValueError(f"expected {name} {(rows, *shape)} {dtype}, got {array.shape} {array.dtype.str}")


def _drop_rows(state: dict[str, Any], lost: Array) -> tuple[dict[str, Any], int]:
    """Takes rows out of a ring. What is left of their lanes moves together, so positions change there."""
    terminated, truncated = state["columns"]["terminated"], state["columns"]["truncated"].copy()
    ends = terminated | truncated  # lost rows are zero: they end nothing
    lane_size, before, options = -(-state["size"] // state["n_lanes"]), 0, state["options"]
    whole = options["stack_num"] > 1 or options["ignore_obs_next"]
    counts, cursors, starts = list(state["count"]), list(state["cursor"]), list(state["open"]["start"])
    rows: list[Array] = []
    moved: dict[int, int] = {}
    for lane, count in enumerate(state["count"]):
        first, shift = lane * lane_size, cursors[lane] - lane * lane_size if count == lane_size else 0
        order = before + (np.arange(count) + shift) % max(count, 1)  # of the lane's rows in the columns, oldest first
        gone = lost[order]
        if not gone.any():
            order = before + np.arange(count)
        else:
            if whole:  # a row here needs the one before or after it
                episode = np.cumsum(ends[order]) - ends[order]
                gone = np.isin(episode, episode[gone])
                if options["stack_num"] > 1 and count == lane_size:
                    gone |= episode == 0  # frames of its first rows are overwritten, which is not seen in a lane with empty slots
            else:
                truncated[order[:-1][gone[1:] & ~gone[:-1] & ~ends[order[:-1]]]] = True
            order = order[~gone]
            over = np.flatnonzero((terminated | truncated)[order])
            counts[lane], cursors[lane] = len(order), first + len(order)
            starts[lane] = first + (int(over[-1]) + 1 if len(over) else 0)
        moved.update((first + row - before, first + place) for place, row in enumerate(order.tolist()))
        rows.append(order)
        before += count
    index = np.concatenate(rows)
    columns = {name: column[index] for name, column in {**state["columns"], "truncated": truncated}.items()}
    opened = {**state["open"], "start": starts}
    state = {**state, "count": counts, "cursor": cursors, "open": opened, "columns": columns}
    if "weights" in state:
        state["weights"] = state["weights"][index]
    if finals := state["finals"]:
        keep = np.array([position in moved for position in finals["positions"].tolist()], bool)
        positions = np.array([moved[position] for position in finals["positions"][keep].tolist()], np.int64)
        kept = {name: column[keep] for name, column in finals["rows"].items()}
        state["finals"] = {**finals, "positions": positions, "rows": kept}
    return state, len(lost) - len(index)


_RING = {"stack_num": int, "ignore_obs_next": bool, "save_only_last_obs": bool, "sample_avail": bool, "rew_dtype": str}
_PRIORITIES = {"alpha": float, "beta": float, "weight_norm": bool}
KINDS = {kind.name: kind for kind in (
    Kind("replay_buffer", "ReplayBuffer", ("size", "n_lanes"), _RING, _RingState, _check_ring, drop=_drop_rows),
    Kind("prioritized", "PrioritizedReplayBuffer", ("size", "n_lanes"), _RING | _PRIORITIES, _PrioritizedState,
         _check_prioritized, frozenset({"columns", "weights"}), drop=_drop_rows),
    Kind("reservoir", "ReservoirBuffer", ("size",), {}, _ReservoirState, _check_reservoir),
    Kind("episodes", "EpisodeBuffer", ("max_rows", "max_episodes", "n_lanes"), {"rew_dtype": str}, _EpisodeState, _check_episodes,
         inside="rows"),
)}  # fmt: skip


def check(path: Path, kind: Kind, state: dict[str, Any], cache: dict[str, Any] | None = None) -> None:
    try:
        own = msgspec.convert(state, kind.state)
        kind.check(own)
        if cache is not None:
            if not isinstance(own, _RingState):
                raise ValueError("expected no cache, got one")
            _check_cache(msgspec.convert(cache, _Cache), own)
    except (ValueError, TypeError, OverflowError) as error:
        raise refusal(path, f"the state of a {kind.name}", str(error), "use an earlier file") from None
