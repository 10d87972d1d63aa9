"""Buffers in files: as an archive, a directory that needs no other package, or as one HDF5 file (extra `hdf5`).

Both hold the same tree: "buffer" with the kind, the constructor's options and the state but its rows; and "rows.0000",
"rows.0001" … with the rows, in parts, so that a damaged part costs its rows only. Nothing is pickled, and a file names no code:
its kind is looked up in a table. A CachedReplayBuffer is saved as its `main`, with its open episodes beside it.
"""

from __future__ import annotations

import importlib
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import gymnasium as gym
import msgspec
import numpy as np

from parl_like.data.buffers.fields import in_words, is_part, loaded_space, saved_space
from parl_like.data.storage import archive
from parl_like.data.storage.hdf5 import FORMAT, check_format, read_hdf5, write_hdf5
from parl_like.data.storage.tree_encoding import CODES, ArchiveError, damaged, refusal, versions
from parl_like.values.action_codec import ActionCodec
from parl_like.values.spec import Array, Spec

__all__ = ["Savable", "load_buffer", "save_buffer"]

HDF5 = (".h5", ".hdf5")
DTYPES = tuple(dtype.str for dtype in CODES)
CHUNKS = 64  # parts of a large buffer: one is well below MAX_LOST
MIN_CHUNK = 256  # rows; smaller parts are mostly names and checksums
MAX_LOST = 0.05  # share of the rows that a load may do without

Decoded: TypeAlias = dict[str, Any]
"""A part of a file: plain values and arrays by name; its kind says which."""

_HEAD = "buffer"  # component of everything but rows


@dataclass(frozen=True)
class SavedKind:
    """The facts about a class of buffers that files need."""

    module: str
    name: str
    given: tuple[str, ...]  # keys of the state that its constructor takes, in order
    options: Mapping[str, type]  # what else it takes: name -> type; with that attribute, or that key of the state's options
    chunked: frozenset[str] = frozenset({"columns"})  # keys of the state whose arrays have one row for each row of the buffer
    inside: str = ""  # the key of the state under which those are; "" for the state itself
    # (state, lost [rows] bool) -> the state without these rows, and how many went; None: none may be lost
    drop: Callable[[dict[str, object], Array], tuple[dict[str, object], int]] | None = None

    def get(self) -> Any:
        return getattr(importlib.import_module(f"parl_like.data.buffers.{self.module}"), self.name)

    def rows(self, state: dict[str, object]) -> Any:
        """The part of a state that has the `chunked` keys."""
        return state.get(self.inside) if self.inside else state


class _Cache(msgspec.Struct, forbid_unknown_fields=True):
    """The state of a CachedReplayBuffer but that of its main."""

    n_lanes: int
    max_episode_length: int
    open: Decoded


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    """The component "buffer". `code`: options that were functions; `chunk`: rows of a part; `state`: but the rows, of a
    CachedReplayBuffer that of its main; `act_space`: as `saved_space` says it; older files lack it."""

    kind: str
    versions: dict[str, str]
    options: Decoded
    code: list[str]
    rows: Annotated[int, msgspec.Meta(ge=0, le=2**48)]
    chunk: Annotated[int, msgspec.Meta(ge=1, le=2**48)]
    state: Decoded
    cache: _Cache | None = None
    act_space: Decoded | None | msgspec.UnsetType = msgspec.UNSET


def save_buffer(buffer: Any, path: str | os.PathLike[str], *, rows_per_chunk: int | None = None,
                meta: Mapping[str, object] | None = None) -> None:
    """Writes a buffer to `path`, completely or not at all; a saved buffer that is there already is replaced.

    Rows, positions, priorities, statistics of open episodes and the generator are saved. A schedule of β is code and is not.
    `threadsafe` belongs to a process, and is given again when loading.

    Args:
        buffer: A ReplayBuffer, PrioritizedReplayBuffer, ReservoirBuffer, EpisodeBuffer, or CachedReplayBuffer over one of the
            first two. Its rows are copied first.
        path: Becomes an HDF5 file if it ends in .h5 or .hdf5, else a directory.
        rows_per_chunk: Rows that share a checksum and are lost together; None: a 64th of them, at least 256.
        meta: Plain values for the manifest of a directory, such as where the rows are from; an HDF5 file has none.

    Raises:
        ArchiveError: something that is no saved buffer is at `path`, or the buffer holds what a file cannot.
        TypeError: another kind of buffer, a subclass, or a generator other than PCG64. ValueError: `rows_per_chunk` is below 1.
        ImportError: h5py is missing.
        OSError: the disk is full, read-only …; what was at `path` is still there.
    """
    path = Path(os.path.abspath(path))
    main = buffer.main if type(buffer) is _cached_class() else buffer
    kind = KINDS.get(type(main).__name__)
    if kind is None or type(main) is not kind.get():
        raise TypeError(f"{path}: expected a {', '.join(KINDS)}, CachedReplayBuffer, got {type(main).__name__}; save the "
                        "state_dict() of other classes with write_archive")  # fmt: skip
    state, cache = buffer.state_dict(), None
    if main is not buffer:
        cache, state = {key: value for key, value in state.items() if key != "main"}, state["main"]
    given = {**state.get("options", {}), **({"rew_dtype": main.rew_dtype.str} if "rew_dtype" in kind.options else {})}
    options = {name: as_type(given[name]) for name, as_type in kind.options.items() if name in given}
    arrays = _arrays(kind, kind.rows(state))
    rows = max(map(len, arrays.values()), default=0)
    size = max(MIN_CHUNK, -(-rows // CHUNKS)) if rows_per_chunk is None else rows_per_chunk
    if size < 1:
        raise ValueError(f"save_buffer: rows_per_chunk is {rows_per_chunk}; expected at least 1")
    head = {"kind": kind.name, "versions": versions(), "options": options, "code": sorted(kind.options.keys() - options.keys()),
            "rows": rows, "chunk": size, "state": state, "act_space": saved_space(buffer.act_space),
            **({} if cache is None else {"cache": cache})}  # fmt: skip
    tree = {_HEAD: head}
    for i, name in enumerate(_chunk_names(rows, size)):
        tree[name] = {"first": i * size} | _state(kind, {key: array[i * size : (i + 1) * size] for key, array in arrays.items()})
    if path.suffix in HDF5:
        write_hdf5(path, tree)
    else:
        archive.write_archive(path, tree, {**(meta or {}), "replay": FORMAT, "kind": type(buffer).__name__, "rows": rows})


def load_buffer(path: str | os.PathLike[str], **options: object) -> Any:
    """The buffer that `save_buffer` wrote: the same rows at the same positions; it goes on drawing as the saved one.

    Where a part of the rows is damaged, they are left out, with a warning that counts them; the row before them ends its episode,
    as truncated. With stacked frames, or `ignore_obs_next`, where rows need their neighbours, the whole episode is left out. The
    main rows of a CachedReplayBuffer are no exception; rows of open episodes are in no part, and damage there refuses the load.

    Args:
        path: A directory, or a file that ends in .h5 or .hdf5.
        options: For the constructor, of a CachedReplayBuffer that of main, instead of the saved ones: `beta=schedule`,
            `threadsafe=True` …

    Raises:
        ArchiveError: anything that is not what was written, a newer format, or over 5 % of the rows would be lost; a reservoir
            and an EpisodeBuffer, whose rows are numbered for ever, can lose none.
        ValueError: β was a schedule and `beta` is not given; an option that contradicts the saved rows.
        ImportError: h5py is missing.
    """
    path = Path(os.path.abspath(path))
    if path.suffix in HDF5:
        tree, bad = read_hdf5(path, _is_chunk)
    else:
        check_format(path, archive.read_manifest(path).meta.get("replay"))
        tree, _, bad = archive.read_components(path, _is_chunk)
    try:
        head = msgspec.convert(tree.pop(_HEAD, None), _Head)
    except msgspec.ValidationError as error:
        raise damaged(path, "the head of a saved buffer", str(error)) from None
    kind = KINDS.get(head.kind)
    if kind is None:
        raise refusal(path, f"a {', '.join(KINDS)}", f"{head.kind!r:.60}", "use the parl_like that wrote it")
    for name, value in head.options.items():
        if name not in kind.options or type(value) is not kind.options[name] or (name == "rew_dtype" and value not in DTYPES):
            raise damaged(path, f"options among {', '.join(kind.options)} and their types", f"{name}={value!r:.60}")
    state, inside = head.state, kind.rows(head.state)
    if not isinstance(inside, dict) or inside.keys() & kind.chunked:
        raise damaged(path, "rows in components of their own", "others")
    inside |= _join(path, kind, head.rows, head.chunk, tree, bad)
    for name in head.code:
        if name not in options:
            raise ValueError(f"{path}: option {name!r} was a function, which no file holds; call load_buffer(path, {name}=…)")
    try:
        cache = {} if head.cache is None else msgspec.structs.asdict(head.cache)
        _check_sizes({**cache, "main": state})
        if bad:
            state = _without(path, kind, head.rows, head.chunk, state, bad)
        buffer = kind.get()(*(state[key] for key in kind.given), **{**head.options, **options})
        if cache:
            buffer, state = _cached_class()(buffer, cache["n_lanes"], cache["max_episode_length"]), {**cache, "main": state}
        buffer.load_state_dict(state)
        buffer.act_space = _act_space(path, head, buffer.specs)
    except ArchiveError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise refusal(path, f"the state of a {kind.name}", text, "use an earlier file") from error
    return buffer


class Savable:
    """`save` and `load` for a class of buffers that `save_buffer` takes."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes rows, positions and generator to `path`, completely or not at all: an HDF5 file if it ends in .h5 (extra
        `hdf5`), else a directory. See `parl_like.data.buffers.saving.save_buffer`."""
        save_buffer(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: object) -> Self:
        """The buffer that was saved at `path`; `options` instead of the saved ones, see
        `parl_like.data.buffers.saving.load_buffer`.

        Raises:
            ArchiveError: the file is damaged, newer or something else. TypeError: another kind of buffer was saved.
        """
        buffer = load_buffer(path, **options)
        if not isinstance(buffer, cls):
            raise TypeError(f"{cls.__name__}.load: {path} holds a {type(buffer).__name__}; load it with that class")
        return buffer


# ------------------------------------------------------------------------------------------------ parts of the state


def _act_space(path: Path, head: _Head, specs: Sequence[Spec]) -> gym.Space[object] | None:
    """Return the space of the saved actions. Raises ValueError where it is not theirs."""
    own = {spec.name: spec for spec in specs if is_part(spec.name, "act")}
    if isinstance(head.act_space, msgspec.UnsetType):
        if any(spec.dtype.kind == "f" for spec in own.values()):
            warnings.warn(f"{path}: this file was written before files said whose units actions are in; they count as the "
                          "environment's. If a robot recorded them, set buffer.act_space = env.action_space", stacklevel=3)
        return None
    space = loaded_space(head.act_space)
    for spec in ActionCodec(space).specs:
        if own.get(spec.name, spec) != spec:
            raise ValueError(f"the action space {space}, but the field {in_words([own[spec.name]])}")
    return space


def _is_chunk(name: str) -> bool:
    return name.startswith("rows.")


def _chunk_names(rows: int, size: int) -> list[str]:
    return [f"rows.{i:04}" for i in range(max(1, -(-rows // size)))]  # one of 0 rows, for the fields of an empty buffer


def _arrays(kind: SavedKind, state: Decoded) -> dict[str, Array]:
    """Takes the arrays that have one row for each row of the buffer out of a state: columns by their names, weights by ""."""
    return {**state.pop("columns"), **({"": state.pop("weights")} if "weights" in kind.chunked else {})}


def _state(kind: SavedKind, arrays: dict[str, Array]) -> dict[str, object]:
    """The inverse of `_arrays`."""
    weights = {"weights": arrays.pop("", None)} if "weights" in kind.chunked else {}
    return {"columns": arrays, **weights}


def _join(path: Path, kind: SavedKind, rows: int, size: int, tree: Decoded, bad: dict[str, str]) -> dict[str, object]:
    """The chunked part of the state; rows of bad chunks are zero."""
    if rows // size > 2 * len(tree) or not tree:
        raise _lost(path, rows, rows, bad)
    names = _chunk_names(rows, size)
    bad.update((name, f"{name} is missing") for name in names if name not in tree and name not in bad)
    for name in sorted({*tree, *bad} - {*names}):
        raise damaged(path, "no other component", repr(name))
    lost = sum(min(size, rows - i * size) for i, name in enumerate(names) if name in bad)
    if bad and (kind.drop is None or lost > MAX_LOST * rows):  # before memory is taken for all rows that the head claims
        raise _lost(path, lost, rows, bad, kind)
    out: dict[str, Array] = {}
    for i, name in enumerate(names):
        if name in bad:
            continue
        part, first, n = tree.pop(name), i * size, min(size, rows - i * size)
        fits = isinstance(part, dict) and part.keys() == {"first"} | kind.chunked and isinstance(part["columns"], dict)
        arrays: Decoded = _arrays(kind, part) if fits and part["first"] == first else {"": None}
        fits = all(isinstance(array, np.ndarray) and array.ndim and len(array) == n for array in arrays.values())
        fields = {key: (array.shape[1:], array.dtype) for key, array in arrays.items()} if fits else {}
        if not fits or (out and fields != {key: (array.shape[1:], array.dtype) for key, array in out.items()}):
            raise damaged(path, f"{n} rows from row {first} in {name!r}, of the fields of the other chunks", "others")
        out = out or {key: np.zeros((rows, *shape), dtype) for key, (shape, dtype) in fields.items()}
        for key, array in arrays.items():
            out[key][first : first + n] = array
    if rows and not out:
        raise damaged(path, f"{rows} rows", "no fields")
    return _state(kind, out)


def _without(path: Path, kind: SavedKind, rows: int, size: int, state: dict[str, object], bad: dict[str, str]
             ) -> dict[str, object]:
    """The state without the rows of bad chunks, or a refusal. Not for kinds that may lose none."""
    lost = np.zeros(rows, bool)
    for name in bad:
        start = int(name.rpartition(".")[2]) * size
        lost[start : start + size] = True
    assert kind.drop is not None
    state, count = kind.drop(state, lost)
    if count > MAX_LOST * rows:
        raise _lost(path, count, rows, bad)
    warnings.warn(f"{path}: {count} of {rows} rows were dropped, since {len(bad)} part(s) are damaged: "
                  f"{next(iter(bad.values()))}",
                  stacklevel=3)  # fmt: skip
    return state


def _lost(path: Path, lost: int, rows: int, bad: dict[str, str], kind: SavedKind | None = None) -> ArchiveError:
    limit = f"at most {MAX_LOST:.0%} of them to be lost"
    if kind and kind.drop is None:
        limit = f"all rows, since a {kind.name} must not lose some"
    return refusal(path, f"{rows} rows, and {limit}", f"{lost} in damaged parts ({next(iter(bad.values()), '')})",
                   "use an earlier file")


# ------------------------------------------------------------------------------------------------ kinds of buffers


def _cached_class() -> Any:
    return importlib.import_module("parl_like.data.buffers.cached").CachedReplayBuffer


def _check_sizes(state: object) -> None:
    """Refuses, with a ValueError, what this machine could never hold: a size in a file costs nothing to write."""
    if not isinstance(state, dict):
        return
    slots = state.get("size", 0) + state.get("n_lanes", 0)
    row = 64 + sum(math.prod(spec["shape"]) * np.dtype(spec["dtype"]).itemsize for spec in state.get("specs", ()))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if slots * row > memory:
        raise ValueError(f"expected a buffer that fits into {memory} bytes of memory, got {slots} rows of {row} bytes")
    for part in state.values():
        _check_sizes(part)


def _drop_rows(state: Decoded, lost: Array) -> tuple[dict[str, object], int]:
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
    SavedKind("replay_buffer", "ReplayBuffer", ("size", "n_lanes"), _RING, drop=_drop_rows),
    SavedKind("prioritized", "PrioritizedReplayBuffer", ("size", "n_lanes"), _RING | _PRIORITIES,
              frozenset({"columns", "weights"}), drop=_drop_rows),
    SavedKind("reservoir", "ReservoirBuffer", ("size",), {}),
    SavedKind("episodes", "EpisodeBuffer", ("max_rows", "max_episodes", "n_lanes"), {"rew_dtype": str}, inside="rows"),
)}  # fmt: skip
