"""Buffers in files: as an archive, a directory that needs no other package, or as one HDF5 file (extra `hdf5`).

Both hold the same tree: "buffer" with the kind, the constructor's options and the state but its rows; and "rows.0000",
"rows.0001" … with the rows, in parts, so that a damaged part costs its rows only. Nothing is pickled, and a file names no code: its
kind is looked up in a table. A CachedReplayBuffer is saved as its `main`, with the cache, that is its open episodes, beside it.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np

from parl_like.data import archive
from parl_like.data.archive import ArchiveError
from parl_like.data.disk import check_plain, sync_folder
from parl_like.spec import Array

__all__ = ["Savable", "load_buffer", "load_into", "save_buffer"]

FORMAT = 1
HDF5 = (".h5", ".hdf5")
CHUNKS = 64  # parts of a large buffer: one is well below MAX_LOST
MIN_CHUNK = 256  # rows; smaller parts are mostly names and checksums
MAX_LOST = 0.05  # share of the rows that a load may do without

_HEAD = "buffer"  # component of everything but rows
_MARK = "parl_like replay format"  # root attribute of an HDF5 file
_PLAIN = "$values"  # its dataset of plain values; labels of arrays never hold a '$'


def save_buffer(buffer: Any, path: str | os.PathLike[str], *, rows_per_chunk: int | None = None) -> None:
    """Writes a buffer to `path`, completely or not at all; a saved buffer that is there already is replaced.

    Rows, positions, priorities, statistics of open episodes and the generator are saved. A schedule of β is code and is not.
    `threadsafe` belongs to a process, and is given again when loading.

    Args:
        buffer: A ReplayBuffer, PrioritizedReplayBuffer, ReservoirBuffer, EpisodeBuffer, or CachedReplayBuffer over one of the first
            two. Its rows are copied first.
        path: Becomes an HDF5 file if it ends in .h5 or .hdf5, else a directory.
        rows_per_chunk: Rows that share a checksum and are lost together; None: a 64th of them, at least 256.

    Raises:
        ArchiveError: something that is no saved buffer is at `path`, or the buffer holds what a file cannot.
        TypeError: another kind of buffer, a subclass, or a generator other than PCG64.
        ImportError: h5py is missing.
        OSError: the disk is full, read-only …; what was at `path` is still there.
    """
    path = Path(os.path.abspath(path))
    tree = _tree(path, buffer, rows_per_chunk)
    if path.suffix in HDF5:
        _write_hdf5(path, tree)
    else:
        archive.write_archive(path, tree, {"replay": FORMAT, "kind": type(buffer).__name__, "rows": tree[_HEAD]["rows"]})


def load_buffer(path: str | os.PathLike[str], **options: Any) -> Any:
    """The buffer that `save_buffer` wrote: the same rows at the same positions, and it goes on drawing as the saved one would have.

    Where a part of the rows is damaged, they are left out, with a warning that counts them; the row before them ends its episode,
    as truncated. With stacked frames, or `ignore_obs_next`, where rows need their neighbours, the whole episode is left out. The
    main rows of a CachedReplayBuffer are no exception; rows of open episodes are in no part, and damage there refuses the load.

    Args:
        path: A directory, or a file that ends in .h5 or .hdf5.
        options: For the constructor, of a CachedReplayBuffer that of main, instead of the saved ones: `beta=schedule`,
            `threadsafe=True` …

    Raises:
        ArchiveError: anything that is not what was written, a newer format, or over 5 % of the rows would be lost; a reservoir and
            an EpisodeBuffer, whose rows are numbered for ever, can lose none.
        ValueError: β was a schedule and `beta` is not given; an option that contradicts the saved rows.
        ImportError: h5py is missing.
    """
    path = Path(os.path.abspath(path))
    kind, cls, head, state = _load(path)
    for name in head.code:
        if name not in options:
            raise ValueError(f"{path}: option {name!r} was a function, which no file holds; call load_buffer(path, {name}=…)")
    own = state if head.cache is None else state["main"]
    buffer = kind.make(kind.get(), own, {**head.options, **options})
    if head.cache is not None:
        buffer = cls(buffer, state["n_lanes"], state["max_episode_length"])
    buffer.load_state_dict(state)
    return buffer


def load_into(buffer: Any, path: str | os.PathLike[str]) -> None:
    """Makes `buffer`, which is of the saved kind and size, what was saved at `path`; its options stay as they are.

    Raises:
        ArchiveError: as `load_buffer`. ValueError: another kind, size, or other fields. The buffer is as before.
    """
    path = Path(os.path.abspath(path))
    kind, cls, head, state = _load(path)
    if type(buffer) is not cls or (head.cache is not None and type(buffer.main) is not kind.get()):
        saved = cls.__name__ if head.cache is None else f"{cls.__name__} over a {head.kind}"
        raise ValueError(f"{path}: a {saved} was saved, {buffer!r} is to take it; use load_buffer(path)")
    buffer.load_state_dict(state)


class Savable:
    """`save` and `load` for a class of buffers that `save_buffer` takes."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes rows, positions and generator to `path`, completely or not at all: an HDF5 file if it ends in .h5 (extra `hdf5`), else a
        directory. See `parl_like.data.files.save_buffer`."""
        save_buffer(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """The buffer that was saved at `path`; `options` instead of the saved ones, see `parl_like.data.files.load_buffer`.

        Raises:
            ArchiveError: the file is damaged, newer or something else. TypeError: another kind of buffer was saved.
        """
        buffer = load_buffer(path, **options)
        if not isinstance(buffer, cls):
            raise TypeError(f"{cls.__name__}.load: {path} holds a {type(buffer).__name__}; load it with that class")
        return buffer


# ------------------------------------------------------------------------------------------------ kinds

_Size = Annotated[int, msgspec.Meta(ge=1, le=2**48)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    """The component "buffer". `code`: options that were functions; `chunk`: rows of a part; `state`: but the rows; `cache`: the state
    of a CachedReplayBuffer but that of its main, to which all the rest belongs."""

    kind: str
    versions: dict[str, str]
    options: dict[str, Any]
    code: list[str]
    rows: Annotated[int, msgspec.Meta(ge=0, le=2**48)]
    chunk: _Size
    state: dict[str, Any]
    cache: dict[str, Any] | None = None


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
    """`ReplayBuffer.state_dict()`."""

    size: _Size
    n_lanes: _Size
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
    """`ReservoirBuffer.state_dict()`."""

    size: _Size
    seen: _Count
    specs: list[_Field]
    columns: dict[str, Array]
    rng: dict[str, Any]


class _EpisodeState(msgspec.Struct):
    """`EpisodeBuffer.state_dict()`."""

    max_rows: _Size | None
    max_episodes: _Size | None
    n_lanes: _Size
    dropped: _Count
    lengths: list[_Size]
    rows: _RingState
    open: _RingState
    rng: dict[str, Any]


class _Cache(msgspec.Struct, forbid_unknown_fields=True):
    """`CachedReplayBuffer.state_dict()`, but that of its main."""

    n_lanes: _Size
    max_episode_length: _Size
    open: _RingState


@dataclass(frozen=True)
class _Kind:
    """What files need to know about a class of buffers.

    Attributes:
        module, name: Of the class.
        options: Of its constructor, beside those that are keys of its state: name -> type; with that attribute, or that key of the
            state's options.
        make: (class, state, options) -> an empty buffer.
        state: What `state_dict` must look like. check: What else must hold; raises ValueError.
        chunked: Keys of the state whose arrays have one row for each row of the buffer; () keeps all of it in one part.
        inside: The key of the state under which those are; "" for the state itself.
        drop: (state, lost [rows] bool) -> the state without these rows, and how many went; None: none may be lost.
    """

    module: str
    name: str
    options: Mapping[str, type]
    make: Callable[[Any, Mapping[str, Any], dict[str, Any]], Any]
    state: type[msgspec.Struct]
    check: Callable[[Any], None]
    chunked: tuple[str, ...] = ("columns",)
    inside: str = ""
    drop: Callable[[dict[str, Any], Array], tuple[dict[str, Any], int]] | None = None

    def get(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)

    def rows(self, state: dict[str, Any]) -> Any:
        """The part of a state that has the `chunked` keys."""
        return state.get(self.inside) if self.inside else state


def _make_ring(cls: Any, state: Mapping[str, Any], options: dict[str, Any]) -> Any:
    return cls(state["size"], state["n_lanes"], **options)


def _make_reservoir(cls: Any, state: Mapping[str, Any], options: dict[str, Any]) -> Any:
    return cls(state["size"], **options)


def _make_episodes(cls: Any, state: Mapping[str, Any], options: dict[str, Any]) -> Any:
    return cls(state["max_rows"], state["max_episodes"], state["n_lanes"], **options)


def _cached() -> Any:
    return importlib.import_module("parl_like.data.episodes").CachedReplayBuffer


def _check_memory(size: int, specs: list[_Field]) -> None:
    """Refuses what this machine could never hold: `size` in a file costs nothing to write."""
    names = {field.name for field in specs}
    if len(names) < len(specs):
        raise ValueError("expected field names that occur once, got one twice")
    for field in specs:
        if field.dtype not in _DTYPES:
            raise ValueError(f"expected a dtype among {', '.join(_DTYPES)} for field {field.name!r}, got {field.dtype[:20]!r}")
    row = 64 + sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in specs)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size * row > memory:
        raise ValueError(f"expected a buffer that fits into {memory} bytes of memory, got {size} rows of {row} bytes")


def _check_ring(state: _RingState) -> None:
    _check_memory(state.size + state.n_lanes, state.specs)
    lanes, opened = state.n_lanes, state.open
    lane_size = -(-state.size // lanes)
    for name, numbers in (("count", state.count), ("cursor", state.cursor), ("written", state.written), ("open.length", opened.length),
                          ("open.start", opened.start), ("open.return", opened.returns)):  # fmt: skip
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


def _check_cache(cache: _Cache, main: _RingState) -> None:
    lane_size = -(-main.size // main.n_lanes)
    if main.n_lanes not in (1, cache.n_lanes) or cache.max_episode_length > lane_size:
        raise ValueError(f"expected a cache whose lanes and episodes go into {main.n_lanes} lanes of {lane_size} rows, "
                         f"got {cache.n_lanes} lanes, and episodes of {cache.max_episode_length} rows")  # fmt: skip
    _check_open(cache.open, cache.n_lanes, main.specs)
    if -(-cache.open.size // cache.n_lanes) > cache.max_episode_length:
        raise ValueError(f"expected room for open episodes of {cache.max_episode_length} rows, got {cache.open.size} slots")


def _check_open(state: _RingState, lanes: int, kept: list[_Field]) -> None:
    """The open episodes of a buffer that keeps whole ones, with fields `kept`."""
    _check_whole(state, lanes)
    if _ends(state).any():
        raise ValueError("expected open episodes, got one that is over")
    if state.specs != kept[: len(state.specs)]:
        raise ValueError("expected open episodes of the fields of finished ones, got others")


def _check_whole(state: _RingState, lanes: int) -> None:
    """A ring whose lanes never went round. Options, of which it has none, `load_state_dict` looks at."""
    if state.n_lanes != lanes:
        raise ValueError(f"expected {lanes} lanes of whole episodes, got {state.n_lanes}")
    _check_ring(state)
    lane_size = -(-state.size // lanes)
    if any(cursor != lane * lane_size + state.count[lane] % lane_size for lane, cursor in enumerate(state.cursor)):
        raise ValueError(f"expected rows from the start of their lanes on, got cursors {state.cursor[:4]}")


def _ends(state: _RingState) -> Array:
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


_DTYPES = tuple(dtype.str for dtype in archive.CODES)
_RING = {"stack_num": int, "ignore_obs_next": bool, "save_only_last_obs": bool, "sample_avail": bool, "rew_dtype": str}
_PRIORITIES = {"alpha": float, "beta": float, "weight_norm": bool}
_KINDS = {
    kind.name: kind
    for kind in (
        _Kind("parl_like.data.replay_buffer", "ReplayBuffer", _RING, _make_ring, _RingState, _check_ring, drop=_drop_rows),
        _Kind("parl_like.data.prioritized", "PrioritizedReplayBuffer", _RING | _PRIORITIES, _make_ring, _PrioritizedState,
              _check_prioritized, ("columns", "weights"), drop=_drop_rows),
        _Kind("parl_like.data.reservoir", "ReservoirBuffer", {}, _make_reservoir, _ReservoirState, _check_reservoir),
        _Kind("parl_like.data.episodes", "EpisodeBuffer", {"rew_dtype": str}, _make_episodes, _EpisodeState, _check_episodes, inside="rows"),
    )
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ buffer to tree and back


def _tree(path: Path, buffer: Any, rows_per_chunk: int | None) -> dict[str, Any]:
    main = buffer.main if type(buffer) is _cached() else buffer
    kind = _KINDS.get(type(main).__name__)
    if kind is None or type(main) is not kind.get():
        raise TypeError(f"{path}: expected a {', '.join(_KINDS)}, CachedReplayBuffer, got {type(main).__name__}; save the state_dict() of "
                        "other classes with write_archive")  # fmt: skip
    state, cache = _with_rng(buffer.state_dict(), _named), None
    if main is not buffer:
        cache, state = {key: value for key, value in state.items() if key != "main"}, state["main"]
    given = {**state.get("options", {}), **({"rew_dtype": main.rew_dtype.str} if "rew_dtype" in kind.options else {})}
    options = {name: as_type(given[name]) for name, as_type in kind.options.items() if name in given}
    _check(path, kind, state, cache)  # what could not be read is not written
    chunked = {key: kind.rows(state).pop(key) for key in kind.chunked}
    rows = max((len(array) for key in kind.chunked for _, array in _arrays(chunked[key], (key,))), default=0)
    size = max(MIN_CHUNK, -(-rows // CHUNKS)) if rows_per_chunk is None else rows_per_chunk
    if size < 1:
        raise ValueError(f"save_buffer: rows_per_chunk is {rows_per_chunk}; expected at least 1")
    head = {"kind": kind.name, "versions": archive.versions(), "options": options, "code": sorted(kind.options.keys() - options.keys()),
            "rows": rows, "chunk": size, "state": state, **({} if cache is None else {"cache": cache})}  # fmt: skip
    return {_HEAD: head} | {
        name: {"first": i * size} | {key: _part(value, slice(i * size, (i + 1) * size)) for key, value in chunked.items()}
        for i, name in enumerate(_chunk_names(rows, size))
    }


def _with_rng(state: Any, convert: Callable[[Any], Any]) -> Any:
    """A state whose generators, under the keys "rng", are converted. An array there is a field of that name."""
    if not isinstance(state, dict):
        return state
    return {key: convert(value) if key == "rng" and isinstance(value, dict) else _with_rng(value, convert) for key, value in state.items()}


def _named(state: Mapping[str, Any]) -> dict[str, Any]:
    """NumPy's state of a generator as `rng_state` has it."""
    kind = str(state["bit_generator"])
    if kind != "PCG64":
        raise TypeError(f"save_buffer: expected a generator over PCG64, got {kind}; use numpy.random.default_rng(seed)")
    generator = np.random.default_rng(0)
    generator.bit_generator.state = state
    return archive.rng_state(generator)


def _unnamed(state: Any) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    archive.set_rng_state(generator, state)
    return dict(generator.bit_generator.state)


def _part(value: Any, rows: slice) -> Any:
    return {name: _part(part, rows) for name, part in value.items()} if isinstance(value, Mapping) else value[rows]


def _is_chunk(name: str) -> bool:
    return name.startswith("rows.")


def _chunk_names(rows: int, size: int) -> list[str]:
    return [f"rows.{i:04}" for i in range(max(1, -(-rows // size)))]  # one of 0 rows, for the fields of an empty buffer


def _load(path: Path) -> tuple[_Kind, Any, _Head, dict[str, Any]]:
    """The kind, with a cache that of its main, the saved class, the head, and the whole state of that class, checked."""
    tree, bad = _read_hdf5(path) if path.suffix in HDF5 else _read_directory(path)
    try:
        head = msgspec.convert(tree.pop(_HEAD, None), _Head)
    except msgspec.ValidationError as error:
        raise archive.damaged(path, "the head of a saved buffer", str(error)) from None
    kind = _KINDS.get(head.kind)
    if kind is None:
        raise archive.refusal(path, f"a {', '.join(_KINDS)}", f"{head.kind!r:.60}", "use the parl_like that wrote it")
    for name, value in head.options.items():
        if name not in kind.options or type(value) is not kind.options[name] or (name == "rew_dtype" and value not in _DTYPES):
            raise archive.damaged(path, f"options among {', '.join(kind.options)} and their types", f"{name}={value!r:.60}")
    state, rows, size = head.state, head.rows, head.chunk
    inside = kind.rows(state)
    if not isinstance(inside, dict) or inside.keys() & {*kind.chunked}:
        raise archive.damaged(path, "rows in components of their own", "others")
    inside |= _join(path, kind, rows, size, tree, bad)
    _check(path, kind, state, head.cache)
    state = _with_rng(state, _unnamed)
    if bad:
        state = _without(path, kind, rows, size, state, bad)
    if head.cache is None:
        return kind, kind.get(), head, state
    return kind, _cached(), head, {**_with_rng(head.cache, _unnamed), "main": state}


def _join(path: Path, kind: _Kind, rows: int, size: int, tree: dict[str, Any], bad: dict[str, str]) -> dict[str, Any]:
    """The chunked part of the state; rows of bad chunks are zero."""
    if rows // size > 2 * len(tree) or not tree:
        raise _lost(path, rows, rows, bad)
    names = _chunk_names(rows, size)
    bad.update((name, f"{name} is missing") for name in names if name not in tree and name not in bad)
    for name in sorted({*tree, *bad} - {*names}):
        raise archive.damaged(path, "no other component", repr(name))
    lost = sum(min(size, rows - i * size) for i, name in enumerate(names) if name in bad)
    if bad and (kind.drop is None or lost > MAX_LOST * rows):  # before memory is taken for all rows that the head claims
        raise _lost(path, lost, rows, bad, kind)
    out: dict[str, Any] = {}
    layout: dict[str, Any] = {}
    for i, name in enumerate(names):
        if name in bad:
            continue
        flat = {key: array for key in kind.chunked for key, array in _arrays(tree[name].pop(key, None), (key,))}
        first, n = tree[name].pop("first", None), min(size, rows - i * size)
        found = {key: (array.shape[1:], array.dtype) for key, array in flat.items()}
        if first != i * size or tree[name] or any(len(array) != n for array in flat.values()) or found != (layout or found):
            raise archive.damaged(path, f"{n} rows from row {i * size} in {name!r}, of the fields of the other chunks", "others")
        if not layout:
            layout = found
            out = {key: np.zeros((rows, *shape), dtype) for key, (shape, dtype) in layout.items()}
        for key, array in flat.items():
            out[key][i * size : i * size + n] = array
        del tree[name]  # its memory is needed
    if rows and not out:
        raise archive.damaged(path, f"{rows} rows", "no fields")
    state: dict[str, Any] = {"columns": {}} if "columns" in kind.chunked else {}
    for key, array in out.items():
        if len(key) == 1:
            state[key[0]] = array
        else:
            state[key[0]][key[1]] = array
    return state


def _arrays(value: Any, key: tuple[str, ...]) -> list[tuple[Any, Array]]:
    """Arrays of a chunk by (key,) or (key, name)."""
    if isinstance(value, dict):
        return [pair for name, part in value.items() for pair in _arrays(part, (*key, name))]
    if not isinstance(value, np.ndarray) or not value.ndim or len(key) > 2:
        raise ArchiveError(f"{'.'.join(key)}: expected arrays of rows, got {type(value).__name__}; use an earlier file")
    return [(key, value)]


def _without(path: Path, kind: _Kind, rows: int, size: int, state: dict[str, Any], bad: dict[str, str]) -> dict[str, Any]:
    """The state without the rows of bad chunks, or a refusal. Not for kinds that may lose none."""
    lost = np.zeros(rows, bool)
    for name in bad:
        start = int(name.rpartition(".")[2]) * size
        lost[start : start + size] = True
    assert kind.drop is not None
    try:
        state, count = kind.drop(state, lost)
    except (KeyError, TypeError) as error:
        raise archive.damaged(path, "rows with flags", f"no {error}") from None
    if count > MAX_LOST * rows:
        raise _lost(path, count, rows, bad)
    _check(path, kind, state)
    warnings.warn(f"{path}: {count} of {rows} rows were dropped, since {len(bad)} part(s) are damaged: {next(iter(bad.values()))}",
                  stacklevel=4)  # fmt: skip
    return state


def _lost(path: Path, lost: int, rows: int, bad: dict[str, str], kind: _Kind | None = None) -> ArchiveError:
    limit = f"at most {MAX_LOST:.0%} of them to be lost"
    if kind and kind.drop is None:
        limit = f"all rows, since a {kind.name} must not lose some"
    return archive.refusal(path, f"{rows} rows, and {limit}", f"{lost} in damaged parts ({next(iter(bad.values()), '')})", "use an earlier file")


def _check(path: Path, kind: _Kind, state: dict[str, Any], cache: dict[str, Any] | None = None) -> None:
    try:
        own = msgspec.convert(state, kind.state)
        kind.check(own)
        if cache is not None:
            if not isinstance(own, _RingState):
                raise ValueError("expected no cache, got one")
            _check_cache(msgspec.convert(cache, _Cache), own)
    except (ValueError, TypeError, OverflowError) as error:
        raise archive.refusal(path, f"the state of a {kind.name}", str(error), "use an earlier file") from None


def _check_format(path: Path, number: Any) -> None:
    """Comes before anything else is looked at, which another format may have elsewhere."""
    if type(number) is int and number > FORMAT:
        raise archive.refusal(path, f"format {FORMAT}", f"format {number}, written by a newer parl_like", "upgrade parl_like")
    if type(number) is not int or number != FORMAT:
        raise archive.refusal(path, f"a saved buffer, format {FORMAT}", f"format {number!r:.20}, as of another file",
                               "give what save_buffer wrote; data of others comes in through from_arrays")  # fmt: skip


# ------------------------------------------------------------------------------------------------ directories


def _read_directory(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree of a directory, and what is wrong with those chunks that are damaged or missing."""
    _check_format(path, archive.read_manifest(path).meta.get("replay"))
    tree, _, bad = archive.read_components(path, _is_chunk)
    return tree, bad


# ------------------------------------------------------------------------------------------------ HDF5


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ImportError("files that end in .h5 or .hdf5 need h5py: pip install 'parl_like[hdf5]'; or save to a directory, by a path "
                          "without such an ending") from error  # fmt: skip


def _digest(component: str, name: str, array: Array) -> str:
    """sha256 of where an array stands, what it is, and its bytes."""
    digest = hashlib.sha256(f"{component}/{name} {array.dtype.str} {array.shape}\n".encode())
    for piece in archive.pieces(array):
        digest.update(piece)
    return digest.hexdigest()


def _write_hdf5(path: Path, tree: dict[str, Any]) -> None:
    h5py = _h5py()
    if os.path.lexists(path) and not _is_ours(h5py, path):
        raise archive.refusal(path, "a new name or a saved buffer to replace", "something else", "choose another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial.{path.name}.{os.urandom(4).hex()}")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with h5py.File(partial, "w", libver="v110") as file:  # from this version on HDF5 checks its own bytes too
            file.attrs[_MARK] = FORMAT
            for name, value in tree.items():
                (text, arrays), group = archive.encode(path, name, value), file.create_group(name)
                for label, array in {_PLAIN: np.frombuffer(text, np.uint8), **arrays}.items():
                    group.create_dataset(label, data=array).attrs["sha256"] = _digest(name, label, array)
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        os.rename(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise
    sync_folder(path.parent)


def _is_ours(h5py: Any, path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with h5py.File(path, "r") as file:
            return _MARK in file.attrs
    except Exception:
        return False


def _read_hdf5(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree of an HDF5 file, and what is wrong with those chunks that are damaged.

    A file may point to other files, be compressed without bounds, or hold objects: all that is refused before it is followed.
    """
    h5py = _h5py()
    tree: dict[str, Any] = {}
    bad: dict[str, str] = {}
    try:
        info = os.stat(path, follow_symlinks=False)
        check_plain(info, str(path))
        with h5py.File(path, "r") as file:
            number = file.attrs.get(_MARK)
            _check_format(path, int(number) if isinstance(number, np.integer) else number)
            for name in list(file):
                try:
                    _member(h5py, path, file, name, h5py.Group)
                    tree[name] = _read_group(h5py, path, name, file[name], info.st_size)
                except _DAMAGE as error:
                    if not _is_chunk(name):
                        raise
                    bad[name] = str(error)
    except ArchiveError:
        raise
    except _DAMAGE as error:
        got = f"{type(error).__name__}: {str(error)[:200]}"
        raise archive.refusal(path, "a readable HDF5 file of save_buffer", got, "use an earlier file") from error
    return tree, bad


# What h5py raises where the bytes of a file make no sense; an ArchiveError is a ValueError.
_DAMAGE = (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, OverflowError, MemoryError)


def _member(h5py: Any, path: Path, group: Any, name: str, kind: type) -> None:
    link = group.get(name, getlink=True)
    found = group.get(name, getclass=True) if type(link) is h5py.HardLink else type(link)
    if found is not kind:
        raise archive.damaged(path, f"a {kind.__name__} at {group.name}/{name}", getattr(found, "__name__", found))


def _read_group(h5py: Any, path: Path, component: str, group: Any, limit: int) -> Any:
    """One component; `limit` is the size of the file, which its arrays cannot exceed."""
    arrays: dict[str, tuple[str, Array]] = {}
    text = b""
    for name in list(group):
        _member(h5py, path, group, name, h5py.Dataset)
        data = group[name]
        where = f"{path}, {data.name}"
        code = archive.CODES.get(data.dtype)
        if code is None:
            raise archive.damaged(where, f"a dtype among {', '.join(_DTYPES)}", data.dtype)
        if data.shape is None or data.chunks is not None or data.external or data.is_virtual or data.id.get_create_plist().get_nfilters():
            raise archive.damaged(where, "an array in one piece, inside this file and not compressed", "another layout")
        limit -= math.prod(data.shape) * data.dtype.itemsize
        if limit < 0:
            raise archive.damaged(where, "arrays within the size of the file", f"the shape {data.shape}")
        array = np.empty(data.shape, data.dtype)
        if array.size:
            data.read_direct(array)
        if data.attrs.get("sha256") != _digest(component, name, array):
            raise archive.damaged(where, "the bytes that its sha256 names", "others")
        if code == "BOOL" and array.size and array.view(np.uint8).max() > 1:
            raise archive.damaged(where, "0 and 1", "other bytes")
        if name == _PLAIN:
            text = array.tobytes()
        else:
            arrays[name] = code, array
    return archive.decode(path, text, arrays)


