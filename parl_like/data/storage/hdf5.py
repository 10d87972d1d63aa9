"""Trees of arrays and plain values in one HDF5 file (extra `hdf5`)."""

from __future__ import annotations

import errno
import hashlib
import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from parl_like.data.storage.safe_files import open_file, replacing
from parl_like.data.storage.tree_encoding import CODES, ArchiveError, PartsCount, damaged, decode, encode, pieces, refusal
from parl_like.values.plain import Plain, State
from parl_like.values.spec import Array

FORMAT = 1

_MARK = "parl_like replay format"  # root attribute of a file
_PLAIN = "$values"  # its dataset of plain values; labels of arrays never hold a '$'


def _h5py() -> ModuleType:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ImportError("files that end in .h5 or .hdf5 need h5py: pip install 'parl_like[hdf5]'; or save to a directory, by "
                          "a path without such an ending") from error  # fmt: skip


def _digest(component: str, name: str, array: Array) -> str:
    """sha256 of where an array stands, what it is, and its bytes."""
    digest = hashlib.sha256(f"{component}/{name} {array.dtype.str} {array.shape}\n".encode())
    for piece in pieces(array):
        digest.update(piece)
    return digest.hexdigest()


def write_hdf5(path: Path, tree: State) -> None:
    h5py = _h5py()
    if os.path.lexists(path) and not _is_ours(h5py, path):
        raise refusal(path, "a new name or a saved buffer to replace", "something else", "choose another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with h5py.File(partial, "w", libver="v110") as file:  # from this version on HDF5 checks its own bytes too
            file.attrs[_MARK], count = FORMAT, PartsCount()
            for name, value in tree.items():
                (text, arrays), group = encode(path, name, value), file.create_group(name)
                count.add(path, text)
                for label, array in {_PLAIN: np.frombuffer(text, np.uint8), **arrays}.items():
                    group.create_dataset(label, data=array).attrs["sha256"] = _digest(name, label, array)
        with open(partial, "rb") as written:
            os.fsync(written.fileno())


def _is_ours(h5py: ModuleType, path: Path) -> bool:
    try:
        opened = open_file(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO):  # a link, or no plain file
            return False
        raise
    try:
        with open(opened, "rb") as stream, h5py.File(stream, "r") as file:
            return _MARK in file.attrs
    except Exception:
        return False


def read_hdf5(path: Path, spare: Callable[[str], bool]) -> tuple[dict[str, Plain], dict[str, str]]:
    """The tree of an HDF5 file, and what is wrong with those chunks that are damaged.

    A file may point to other files, be compressed without bounds, or hold objects: all that is refused before it is followed.
    """
    h5py = _h5py()
    tree: dict[str, Plain] = {}
    bad: dict[str, str] = {}
    try:
        try:
            opened = open_file(path)
        except OSError as error:
            raise damaged(path, "a plain file, not a link", error.strerror) from None
        with open(opened, "rb") as stream, h5py.File(stream, "r") as file:  # what was looked at is what is read
            size, count = os.fstat(opened).st_size, PartsCount()
            number = file.attrs.get(_MARK)
            check_format(path, int(number) if isinstance(number, np.integer) else number)
            for name in list(file):
                try:
                    tree[name] = _read_group(h5py, path, name, _member(h5py, path, file, name, h5py.Group), size, count)
                except _DAMAGE as error:
                    if not spare(name):
                        raise
                    bad[name] = str(error)
    except ArchiveError:
        raise
    except _DAMAGE as error:
        got = f"{type(error).__name__}: {str(error)[:200]}"
        raise refusal(path, "a readable HDF5 file of save_buffer", got, "use an earlier file") from error
    return tree, bad


# What h5py raises where the bytes of a file make no sense; an ArchiveError is a ValueError.
_DAMAGE = (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, OverflowError, MemoryError)


def _member(h5py: ModuleType, path: Path, group: Any, name: str, kind: type) -> Any:
    """Return what is under a name, if that is of this kind and in this file."""
    link = group.get(name, getlink=True)
    found = group.get(name, getclass=True) if type(link) is h5py.HardLink else type(link)
    if found is not kind:
        raise damaged(path, f"a {kind.__name__} at {group.name}/{name}", getattr(found, "__name__", found))
    return group[name]


def _read_group(h5py: ModuleType, path: Path, component: str, group: Any, limit: int, count: PartsCount) -> Any:
    """One component; `limit` is the size of the file, which its arrays cannot exceed."""
    arrays: dict[str, tuple[str, Array]] = {}
    text = b""
    for name in list(group):
        data = _member(h5py, path, group, name, h5py.Dataset)
        where = f"{path}, {data.name}"
        code = CODES.get(data.dtype)
        if code is None:
            raise damaged(where, f"a dtype among {', '.join(dtype.str for dtype in CODES)}", data.dtype)
        packed = data.chunks is not None or data.id.get_create_plist().get_nfilters()
        if data.shape is None or packed or data.external or data.is_virtual:
            raise damaged(where, "an array in one piece, inside this file and not compressed", "another layout")
        limit -= math.prod(data.shape) * data.dtype.itemsize
        if limit < 0:
            raise damaged(where, "arrays within the size of the file", f"the shape {data.shape}")
        array = np.empty(data.shape, data.dtype)
        if array.size:
            data.read_direct(array)
        if data.attrs.get("sha256") != _digest(component, name, array):
            raise damaged(where, "the bytes that its sha256 names", "others")
        if code == "BOOL" and array.size and array.view(np.uint8).max() > 1:
            raise damaged(where, "0 and 1", "other bytes")
        if name == _PLAIN:
            text = array.tobytes()
        else:
            arrays[name] = code, array
    count.add(f"{path}, {component}", text)
    return decode(path, text, arrays)


def check_format(path: Path, number: object) -> None:
    """Comes before anything else is looked at, which another format may have elsewhere."""
    if type(number) is int and number > FORMAT:
        raise refusal(path, f"format {FORMAT}", f"format {number}, written by a newer parl_like", "upgrade parl_like")
    if type(number) is not int or number != FORMAT:
        mend = "give what save_buffer wrote; data of others comes in through from_arrays"
        raise refusal(path, f"a saved buffer, format {FORMAT}", f"format {number!r:.20}, as of another file", mend)
