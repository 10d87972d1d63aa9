"""Archives: a nested tree of arrays and plain values as a directory of files that loads back exactly, or not at all.

A directory holds, for every top-level key of the tree (a component), `NAME.json` with its structure and plain values,
`NAME.safetensors` with its arrays, and `NAME.0.npy`, `NAME.1.npy` … with the arrays over 64 MB; and `manifest.json`, which lists
every file with its size and sha256, and every array with its shape and dtype. Nothing is pickled and nothing is parsed that the
manifest does not already say: the reader rebuilds the header of each array file from the manifest and compares bytes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from parl_like.data.disk import check_plain, open_at, open_folder, remove, sync_folder, write_new
from parl_like.spec import Array

if TYPE_CHECKING:
    import torch

FORMAT = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 4 << 20  # bytes
MAX_VALUES = 16 << 20  # bytes of one component's plain values
MAX_DEPTH = 64  # levels of a tree
BIG = 64 << 20  # bytes from which an array gets a file of its own
PIECE = 1 << 20  # bytes hashed and written, or read and hashed, at once

# safetensors' dtype code -> how NumPy reads the bytes. BF16 exists in torch only; NumPy sees its bits.
_DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip
CODES = {np.dtype(name): code for code, name in _DTYPES.items() if code != "BF16"}

_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\Z"
_Name = Annotated[str, msgspec.Meta(pattern=_NAME, max_length=200)]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_PARTIAL = re.compile(r"\.partial\..+\.[0-9a-f]{8}")
_REPLACED = re.compile(r"\.replaced\.(.+)\.[0-9a-f]{8}")


class ArchiveError(ValueError):
    """An archive cannot be written or read. The message names the file, what was expected, what came, and the way out."""


class StoredArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of a file. `dtype` is safetensors' code: BOOL, U8 … U64, I8 … I64, F16, BF16, F32, F64."""

    name: _Name
    dtype: str
    shape: Annotated[list[_Count], msgspec.Meta(max_length=32)]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def itemsize(self) -> int:
        return np.dtype(_DTYPES[self.dtype]).itemsize


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: its size in bytes, the sha256 of its bytes, and the arrays in it, in the order of their bytes."""

    name: _Name
    size: _Count
    sha256: _Sha256
    tensors: list[StoredArray]


class Component(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One top-level key of the tree: the file of its plain values, then those of its arrays."""

    name: _Name
    files: list[StoredFile]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an archive says about itself. `meta` is what its writer added: the step, the score …"""

    format: int
    versions: dict[str, str]
    meta: dict[str, Any]
    components: list[Component]

    def sizes(self) -> dict[str, int]:
        """Bytes of the files of each component."""
        return {component.name: sum(file.size for file in component.files) for component in self.components}


# ------------------------------------------------------------------------------------------------ writing


def write_archive(path: Path, tree: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> None:
    """Writes `tree` as the archive `path`, completely or not at all; an archive that is there already is replaced.

    The files go into a hidden sibling directory and are fsynced, the manifest last; then that directory is renamed. Between the
    two renames of a replacement the old archive lies beside its place, where `read_archive` finds it. The arrays must not change
    meanwhile, for they are not copied first; tensors of a GPU are fetched one at a time.

    Args:
        path: The directory to make. Missing parents are made too.
        tree: Nested dicts with str keys. Leaves: arrays and torch tensors of bool, int and float dtypes; None, bool, int of any
            size, float, str; lists and tuples of all these, both loaded as lists. NumPy scalars load as Python numbers.
        meta: Plain values for the manifest.

    Raises:
        ArchiveError: a leaf or name that cannot be stored, or a `path` that is something else than an archive. Nothing was written.
        OSError: the disk is full, read-only …; what was at `path` is still there.
    """
    path = Path(os.path.abspath(path))
    plans = [_Plan(path, name, value) for name, value in tree.items()]
    twins = {name.casefold() for name in tree}
    if len(twins) < len(tree) or "manifest" in twins:
        raise refusal(path, "component names that differ in more than case, none of them 'manifest'", list(tree), "rename one")
    body = {"format": FORMAT, "versions": versions(), "meta": _Plan(path, "meta", dict(meta or {}), arrays=False).values}
    _check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial.{path.name}.{os.urandom(4).hex()}")
    os.mkdir(partial, 0o700)
    try:
        body["components"] = [msgspec.to_builtins(plan.write(partial)) for plan in plans]
        text = _sealed(json.dumps(body, indent=1, allow_nan=False).removesuffix("\n}").encode("ascii"))
        if len(text) > MAX_MANIFEST:
            raise refusal(path / MANIFEST, f"at most {MAX_MANIFEST} bytes", len(text), "store fewer arrays and less meta")
        write_new(partial / MANIFEST, [text])
        sync_folder(partial)
        _put_in_place(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove_archive(path: Path) -> None:
    """Deletes an archive so that at every moment it is either whole or gone; links are deleted, never followed."""
    doomed = path.with_name(f".partial.{path.name}.{os.urandom(4).hex()}")
    os.rename(path, doomed)
    remove(doomed)


def set_aside(path: Path) -> Path:
    """Frees the name `path` under which an archive is to be written; until then `read_archive(path)` still finds what was there.

    Returns its new, hidden name. `clean_partial` deletes it if there is something at `path` again, and puts it back if not.
    """
    aside = path.with_name(f".replaced.{path.name}.{os.urandom(4).hex()}")
    os.rename(path, aside)
    return aside


def clean_partial(parent: Path) -> list[str]:
    """Removes what an interrupted writer left in `parent`, puts an archive back whose replacement was interrupted; returns names.

    For the one process that writes there: it cannot tell what another one is writing at this moment.
    """
    found = []
    for entry in sorted(os.listdir(parent)):
        replaced = _REPLACED.fullmatch(entry)
        if replaced and not os.path.lexists(parent / replaced[1]):
            os.rename(parent / entry, parent / replaced[1])
        elif replaced or _PARTIAL.fullmatch(entry):
            remove(parent / entry)
        else:
            continue
        found.append(entry)
    if found:
        sync_folder(parent)
    return found


def encode(path: Path, name: str, value: Any) -> tuple[bytes, dict[str, Array]]:
    """One component: its plain values as ASCII JSON, and its arrays by the labels that stand for them there, little-endian.

    Raises:
        ArchiveError: as `write_archive`; it names `path`.
    """
    plan = _Plan(path, name, value)
    return plan.text, {label: _as_numpy(leaf, stored.dtype) for label, (stored, leaf) in plan.leaves.items()}


def array_bytes(tree: Any) -> int:
    """Bytes of all arrays and tensors in nested dicts and lists."""
    if isinstance(tree, Mapping):
        return sum(map(array_bytes, tree.values()))
    if isinstance(tree, (list, tuple)):
        return sum(map(array_bytes, tree))
    return int(getattr(tree, "nbytes", 0))


class _Plan:
    """One component before it is written: its plain values as JSON, and its arrays still where they are."""

    def __init__(self, path: Path, name: str, value: Any, arrays: bool = True) -> None:
        self.path, self.name, self.arrays = path, name, arrays
        if not isinstance(name, str) or not re.match(_NAME, name) or len(name) > 180:
            expected = "component names of at most 180 letters, digits, '.', '_' and '-', not starting with '.'"
            raise refusal(path, expected, repr(name), "rename it")
        self.leaves: dict[str, tuple[StoredArray, Any]] = {}
        # `__metadata__` means something else in a safetensors header.
        self.labels = {"__metadata__"}
        self.values = self._encode(value, "", 0)
        self.text = json.dumps(self.values, allow_nan=False).encode("ascii")
        if len(self.text) > MAX_VALUES:
            raise self._refuse("", f"at most {MAX_VALUES} bytes of plain values", len(self.text), "put long lists into arrays")

    def write(self, folder: Path) -> Component:
        small = [leaf for leaf in self.leaves.values() if leaf[0].nbytes < BIG]
        small.sort(key=lambda leaf: -leaf[0].itemsize)  # wide numbers first keeps all of them aligned
        big = [leaf for leaf in self.leaves.values() if leaf[0].nbytes >= BIG]
        groups = [(f"{self.name}.safetensors", small)] if small else []
        groups += [(f"{self.name}.{i}.npy", [leaf]) for i, leaf in enumerate(big)]
        name = f"{self.name}.json"
        files = [StoredFile(name, *write_new(folder / name, [self.text]), [])]
        for name, group in groups:
            tensors = [tensor for tensor, _ in group]
            files.append(StoredFile(name, *write_new(folder / name, self._bytes(name, group)), tensors))
        return Component(self.name, files)

    def _bytes(self, name: str, group: list[tuple[StoredArray, Any]]) -> Iterator[Any]:
        yield _header(name, [tensor for tensor, _ in group])
        for tensor, value in group:
            yield from pieces(_as_numpy(value, tensor.dtype))

    def _encode(self, value: Any, where: str, depth: int) -> Any:
        """`value` as JSON. What JSON lacks is an object with one key: $array, $tensor, $float or $int; a user's `$` is doubled."""
        if depth > MAX_DEPTH:
            raise self._refuse(where, f"at most {MAX_DEPTH} levels", "more", "flatten it; does it contain itself?")
        if isinstance(value, np.generic) and value.dtype in CODES:
            value = value.item()
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return int(value) if abs(value) < 2**63 else {"$int": hex(value)}
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": str(float(value))}
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise self._refuse(where, "str keys", f"{key!r} ({type(key).__name__})", "write str(key), read it back")
            dot = f"{where}." if where else ""
            return {"$" * (key[:1] == "$") + key: self._encode(part, dot + key, depth + 1) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            dot = f"{where}." if where else ""
            return [self._encode(part, f"{dot}{i}", depth + 1) for i, part in enumerate(value)]
        torch = sys.modules.get("torch")
        if type(value) in (np.ndarray, np.memmap):
            kind, code = "$array", CODES.get(value.dtype.newbyteorder("<"))
        elif torch is not None and isinstance(value, torch.Tensor):
            kind, code = "$tensor", _torch_code(value)
        else:
            raise self._refuse(where, "an array, tensor, None, bool, int, float, str, list or dict", type(value).__name__)
        if code is None or not self.arrays:
            expected = "a strided array of a bool, int or float dtype" if self.arrays else "plain values"
            raise self._refuse(where, expected, f"{type(value).__name__} of {value.dtype}")
        label = self._label(where or self.name)
        self.leaves[label] = StoredArray(label, code, [int(n) for n in value.shape]), value
        return {kind: label}

    def _label(self, where: str) -> str:
        """A name for one array, unique in the component; the JSON file maps it to the true keys, which may hold any text."""
        base = label = re.sub(r"[^A-Za-z0-9._-]", "_", where)[-180:].lstrip(".") or "array"
        number = 1
        while label in self.labels:
            number += 1
            label = f"{base}-{number}"
        self.labels.add(label)
        return label

    def _refuse(self, where: str, expected: object, got: object, mend: str = "convert it, or leave it out") -> ArchiveError:
        return refusal(f"{self.path}, {'.'.join(filter(None, (self.name, where)))!r}", expected, got, mend)


def _torch_code(tensor: torch.Tensor) -> str | None:
    import torch

    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    if tensor.dtype is torch.bfloat16:
        return "BF16"
    try:
        return CODES.get(np.dtype(str(tensor.dtype).removeprefix("torch.")))
    except TypeError:  # a dtype that NumPy does not know: float8, quantised …
        return None


def _as_numpy(value: Any, code: str) -> Array:
    """The leaf as a little-endian array of the dtype that `code` names; a CPU tensor shares its memory."""
    if not isinstance(value, np.ndarray):
        import torch

        value = value.detach().cpu().resolve_neg()
        value = (value.view(torch.int16) if code == "BF16" else value).numpy()
    array: Array = value.view("<u2") if code == "BF16" else value.astype(_DTYPES[code], copy=False)
    return array


def pieces(array: Array) -> Iterator[memoryview]:
    """An array's bytes in C order; only what is not contiguous is copied, a piece at a time."""
    rows = array.reshape(1) if array.ndim == 0 else array
    step = max(1, PIECE * len(rows) // max(1, rows.nbytes))
    for start in range(0, len(rows) if rows.size else 0, step):
        yield np.ascontiguousarray(rows[start : start + step]).reshape(-1).view(np.uint8).data


def _header(name: str, tensors: list[StoredArray]) -> bytes:
    """The bytes before the numbers: of a safetensors file, or of a version 1.0 .npy file where `name` ends so.

    Formats: https://github.com/huggingface/safetensors#format and `numpy.lib.format`. These bytes are part of FORMAT.
    """
    if name.endswith(".npy"):
        shape = "(" + "".join(f"{n}, " for n in tensors[0].shape) + ")"
        text = f"{{'descr': '{_DTYPES[tensors[0].dtype]}', 'fortran_order': False, 'shape': {shape}, }}"
        text += " " * (-(len(text) + 11) % 64) + "\n"  # magic, version and length take 10 bytes; all of it a multiple of 64
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")
    end, table = 0, {}
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        table[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text.encode("ascii")


def _check_replaceable(path: Path) -> None:
    """An archive or an empty directory may be replaced; anything else is somebody's work."""
    if not os.path.lexists(path):
        return
    names = os.listdir(path) if path.is_dir() and not path.is_symlink() else ["no directory"]
    if names and (MANIFEST not in names or not all(name.endswith((".json", ".safetensors", ".npy")) for name in names)):
        raise refusal(path, "a new name or an archive to replace", "something else", "choose another path")


def _put_in_place(partial: Path, path: Path) -> None:
    aside = set_aside(path) if os.path.lexists(path) else None  # a directory cannot be renamed onto a full one
    try:
        os.rename(partial, path)
    except BaseException:
        if aside is not None:
            with suppress(OSError):
                os.rename(aside, path)
        raise
    sync_folder(path.parent)
    if aside is not None:
        with suppress(OSError):  # the new archive is in place; `clean_partial` will try again
            remove(aside)


def versions() -> dict[str, str]:
    """What writes here: Python, parl_like, numpy and torch -> version, or 'unknown'."""
    out = {"python": platform.python_version()}
    for package in ("parl_like", "numpy", "torch"):
        try:
            out[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            out[package] = "unknown"
    return out


# ------------------------------------------------------------------------------------------------ reading


def read_archive(path: Path, check: Callable[[Manifest], None] | None = None) -> tuple[dict[str, Any], Manifest]:
    """The tree and the manifest of an archive; arrays are newly allocated and writable, tensors lie on the CPU.

    Args:
        check: Looks at the manifest before anything else is read; raises ArchiveError where it is not what is expected.

    Raises:
        ArchiveError: anything that is not exactly what was written: a changed, missing, additional or linked file, an edited
            manifest, a name or dtype outside the allow-list, a newer format; or a file that cannot be read. No array is allocated
            before its shape agrees with the size of its file on disk, and none at all where they exceed this machine's memory.
        MemoryError: there is too little left.
    """
    tree, manifest, _ = read_components(path, lambda name: False, check)
    return tree, manifest


def read_components(
    path: Path, spare: Callable[[str], bool], check: Callable[[Manifest], None] | None = None,
) -> tuple[dict[str, Any], Manifest, dict[str, str]]:
    """As `read_archive`, but where a component is damaged or missing that may be spared, the others are read without it.

    Args:
        path, check: As for `read_archive`.
        spare: Says of a component's name whether the archive is of use without it.

    Returns:
        The tree of the good components, the manifest, and name -> what is wrong of the bad ones.

    Raises:
        ArchiveError: as `read_archive`, for the manifest, a file that it does not list, and any other component.
    """
    tree: dict[str, Any] = {}
    bad: dict[str, str] = {}
    with _opened(path) as (found, folder):
        manifest = _manifest(found, folder)
        known = {MANIFEST} | {stored.name for component in manifest.components for stored in component.files}
        for name in sorted(set(os.listdir(folder)) - known):
            raise damaged(found / name, "no such file", "one")
        if check is not None:
            check(manifest)
        needed, memory = sum(manifest.sizes().values()), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > memory:
            raise refusal(found, f"arrays that fit into {memory} bytes of memory", f"{needed} bytes", "use another machine, or an earlier one")
        for step in (_check_files, _read_component):  # all sizes, before anything is allocated
            for component in manifest.components:
                if component.name in bad:
                    continue
                try:
                    tree[component.name] = step(found, folder, component)
                except (ArchiveError, OSError) as error:
                    if not spare(component.name):
                        raise
                    bad[component.name] = str(error)
                    tree.pop(component.name, None)
    return tree, manifest, bad


def read_manifest(path: Path) -> Manifest:
    """The checked manifest of an archive alone; its other files are not looked at. Raises ArchiveError."""
    with _opened(path) as (found, folder):
        return _manifest(found, folder)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Path, int]]:
    """The archive's directory as a descriptor: files are opened relative to it, so nobody can swap it for another meanwhile."""
    path = Path(os.path.abspath(path))
    try:
        if not os.path.lexists(path):  # an interrupted replacement leaves the old archive beside its place
            for entry in sorted(os.listdir(path.parent)):
                found = _REPLACED.fullmatch(entry)
                if found and found[1] == path.name:
                    path = path.with_name(entry)
                    break
        folder = open_folder(path)
        try:
            yield path, folder
        finally:
            os.close(folder)
    except OSError as error:
        got = f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
        raise refusal(
            path, "a readable archive, not a link", got, "give an archive's directory, or use an earlier one"
        ) from error


def _manifest(path: Path, folder: int) -> Manifest:
    file = path / MANIFEST
    with open(open_at(folder, MANIFEST), "rb") as stream:
        text = stream.read(MAX_MANIFEST + 1)
    if len(text) > MAX_MANIFEST:
        raise damaged(file, f"at most {MAX_MANIFEST} bytes", "more")
    body = _parse(file, text)
    number = body.get("format") if isinstance(body, dict) else None
    if type(number) is int and number > FORMAT:
        raise refusal(file, f"format {FORMAT}", f"format {number}, written by a newer parl_like", "upgrade parl_like")
    if number != FORMAT:
        raise damaged(file, f"format {FORMAT}", f"format {number!r:.20}")
    if text != _sealed(text[:-_SEAL]) or not body.pop("sha256", ""):
        raise damaged(file, "the bytes that its own sha256 names", "others")
    try:
        manifest = msgspec.convert(body, Manifest)
    except msgspec.ValidationError as error:
        raise damaged(file, "a manifest", str(error)) from None
    meta, left = _decode(file, manifest.meta, {}, 0), manifest.components
    if not isinstance(meta, dict):
        raise damaged(file, "meta as an object", type(meta).__name__)
    names = [component.name for component in left]
    if len({name.casefold() for name in names}) < len(names):
        raise damaged(file, "component names that occur once", "one twice")
    for component in left:
        _check_component(file, component)
    return msgspec.structs.replace(manifest, meta=meta)


def _check_component(file: Path, component: Component) -> None:
    """File and array names are those that the writer gives, and every size follows from shapes and dtypes."""
    names = [stored.name for stored in component.files]
    expected = [f"{component.name}.json"] + [f"{component.name}.safetensors"] * (f"{component.name}.safetensors" in names)
    expected += [f"{component.name}.{i}.npy" for i in range(len(names) - len(expected))]
    if names != expected:
        raise damaged(file, f"files {expected[:4]}", names[:4])
    labels = [tensor.name for stored in component.files for tensor in stored.tensors]
    if len(set(labels)) < len(labels):
        raise damaged(file, f"array names that occur once in component {component.name!r}", "one twice")
    for stored in component.files:
        for tensor in stored.tensors:
            if tensor.dtype not in _DTYPES:
                raise damaged(file, f"a dtype among {', '.join(_DTYPES)} for {tensor.name!r}", repr(tensor.dtype[:20]))
        if stored.name == names[0]:
            fits = not stored.tensors and stored.size <= MAX_VALUES
        elif stored.name.endswith(".npy"):
            fits = len(stored.tensors) == 1
        else:
            fits = len(stored.tensors) > 0
        if fits and stored.tensors:
            fits = len(_header(stored.name, stored.tensors)) + sum(t.nbytes for t in stored.tensors) == stored.size
        if not fits:
            raise damaged(file, f"{stored.name} of the size that its arrays need", f"{stored.size} bytes")


def _check_files(path: Path, folder: int, component: Component) -> None:
    """The component's files are there, all regular and of the size that the manifest says; looked at, not opened."""
    for stored in component.files:
        try:
            info = os.stat(stored.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise damaged(path / stored.name, "this file", "none") from None
        try:
            check_plain(info, stored.name)
        except OSError as error:
            raise damaged(path / stored.name, f"{stored.size} bytes in a plain file", error.strerror) from None
        if info.st_size != stored.size:
            raise damaged(path / stored.name, f"{stored.size} bytes", f"{info.st_size} bytes")


def _read_component(path: Path, folder: int, component: Component) -> Any:
    first, *rest = component.files
    with open(open_at(folder, first.name), "rb") as stream:
        text = stream.read(first.size + 1)
    if len(text) != first.size or hashlib.sha256(text).hexdigest() != first.sha256:
        raise damaged(path / first.name, f"sha256 {first.sha256}", hashlib.sha256(text).hexdigest())
    arrays: dict[str, tuple[str, Array]] = {}
    for stored in rest:
        arrays.update(_read_arrays(path, folder, stored))
    return decode(path / first.name, text, arrays)


def _read_arrays(path: Path, folder: int, stored: StoredFile) -> dict[str, tuple[str, Array]]:
    file, out, header = path / stored.name, {}, _header(stored.name, stored.tensors)
    with open(open_at(folder, stored.name), "rb") as stream:
        digest = hashlib.sha256(got := stream.read(len(header)))
        if got != header:
            raise damaged(file, "the header that the manifest describes", "another")
        for tensor in stored.tensors:
            try:
                array = np.empty(tensor.shape, _DTYPES[tensor.dtype])
            except (ValueError, OverflowError):  # an empty array may still have impossible dimensions
                raise damaged(file, f"a possible shape of {tensor.name!r}", tensor.shape) from None
            rest = array.reshape(-1).view(np.uint8).data
            while rest:
                count = stream.readinto(rest[:PIECE])
                if not count:
                    raise damaged(file, f"{stored.size} bytes", "fewer")
                digest.update(rest[:count])
                rest = rest[count:]
            out[tensor.name] = tensor.dtype, array
        if stream.read(1) or digest.hexdigest() != stored.sha256:
            raise damaged(file, f"sha256 {stored.sha256}", digest.hexdigest())
    for name, (code, array) in out.items():
        if code == "BOOL" and array.size and array.view(np.uint8).max() > 1:
            raise damaged(file, f"0 and 1 in {name!r}", "other bytes")
    return out


def decode(file: Path, text: bytes, arrays: dict[str, tuple[str, Array]]) -> Any:
    """The inverse of `encode`.

    Args:
        file: Which is named where something is wrong.
        text: The plain values.
        arrays: Label -> safetensors' code of its dtype, array. They become part of the result, and none is left here.

    Raises:
        ArchiveError: `text` is not what `encode` made, or the arrays are not those that it names, each once.
    """
    value = _decode(file, _parse(file, text), arrays, 0)
    if arrays:
        raise damaged(file, f"a place for array {min(arrays)!r}", "none")
    return value


def _decode(file: Path, value: Any, arrays: dict[str, tuple[str, Array]], depth: int) -> Any:
    """The inverse of `_Plan._encode`; takes every array that it uses out of `arrays`."""
    if depth > MAX_DEPTH:
        raise damaged(file, f"at most {MAX_DEPTH} levels", "more")
    if isinstance(value, list):
        return [_decode(file, part, arrays, depth + 1) for part in value]
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()), ("", None))
    if len(value) == 1 and re.match(r"\$(?!\$)", kind):
        if kind == "$float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if kind == "$int" and isinstance(content, str) and re.match(r"^-?0x[0-9a-f]+\Z", content):
            return int(content, 16)
        if kind in ("$array", "$tensor") and isinstance(content, str) and content in arrays:
            code, array = arrays.pop(content)
            if kind == "$tensor":
                return _as_tensor(array, code)
            if code != "BF16":
                return array
        raise damaged(file, "$float, $int, or an array used once", f"{kind} {str(content)[:60]!r}")
    out = {}
    for key, part in value.items():
        if key[:1] == "$" and key[:2] != "$$":
            raise damaged(file, "keys whose '$' is doubled", repr(key[:60]))
        out[key[1:] if key[:1] == "$" else key] = _decode(file, part, arrays, depth + 1)
    return out


def _as_tensor(array: Array, code: str) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if code == "BF16" else tensor


def _sealed(head: bytes) -> bytes:
    """A manifest's bytes from all but its last key, which is the sha256 of what stands before it: no edit goes unseen."""
    return head + b',\n "sha256": "' + hashlib.sha256(head).hexdigest().encode("ascii") + b'"\n}\n'


_SEAL = len(_sealed(b""))


def _parse(file: Path, text: bytes) -> Any:
    """JSON as this module writes it: ASCII, no key twice, finite numbers."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) < len(pairs):
            raise ValueError("a key is given twice")
        return out

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError("a number is not finite")
        return value

    try:
        return json.loads(text.decode("ascii"), object_pairs_hook=once, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise damaged(file, "the JSON that was written", str(error)[:100]) from None


def refusal(file: object, expected: object, got: object, mend: str) -> ArchiveError:
    """The error of a file, in the words that all of them have; `mend` says what to do."""
    return ArchiveError(f"{file}: expected {expected}, got {got}; {mend}")


def damaged(file: object, expected: object, got: object) -> ArchiveError:
    """The error of a file that is not what was written."""
    return refusal(file, expected, got, "the archive is damaged or was changed: use an earlier one")


# ------------------------------------------------------------------------------------------------ random generators


def rng_state(generator: np.random.Generator) -> dict[str, Any]:
    """The state of a PCG64 generator as named integers: kind, state and inc (128 bits), has_uint32, uinteger (32 bits).

    Raises:
        TypeError: another kind of bit generator.
    """
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(f"expected a generator over PCG64, got {state['bit_generator']}; use numpy.random.default_rng(seed)")
    numbers = {**state["state"], "has_uint32": state["has_uint32"], "uinteger": state["uinteger"]}
    return {"kind": "PCG64"} | {name: int(number) for name, number in numbers.items()}


def set_rng_state(generator: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Puts a generator into a state of `rng_state`. Raises ArchiveError where it is none, and TypeError like `rng_state`."""
    rng_state(generator)
    bits = {"state": 128, "inc": 128, "has_uint32": 1, "uinteger": 32}
    fits = isinstance(state, Mapping) and state.keys() == {"kind", *bits} and state["kind"] == "PCG64"
    fits = fits and all(type(state[name]) is int and 0 <= state[name] < 2**width for name, width in bits.items())
    if not fits or state["inc"] % 2 == 0:
        expected = f"kind 'PCG64' and integers of {bits} bits, inc odd"
        raise refusal("random state", expected, str(state)[:200], "use a state of rng_state")
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state["state"], "inc": state["inc"]},
        "has_uint32": state["has_uint32"],
        "uinteger": state["uinteger"],
    }


def torch_rng_state(generator: torch.Generator) -> Array:
    """The state of a torch generator as a uint8 array: [5056] on the CPU, [16] on CUDA."""
    return np.array(generator.get_state().numpy())


def set_torch_rng_state(generator: torch.Generator, state: Array) -> None:
    """Puts a torch generator into a state of `torch_rng_state`. Raises ArchiveError where its dtype, length or content differ."""
    import torch

    length = len(generator.get_state())
    got = f"{getattr(state, 'dtype', type(state).__name__)} {getattr(state, 'shape', '')}"
    try:
        if not isinstance(state, np.ndarray) or state.dtype != np.uint8 or state.shape != (length,):
            raise RuntimeError(got)
        generator.set_state(torch.from_numpy(state.copy()))
    except RuntimeError as error:
        mend = f"use a state of torch_rng_state from a generator on {generator.device}"
        raise refusal("random state", f"uint8 ({length},)", str(error)[:200], mend) from None
