"""Archives: a nested tree of arrays and plain values as a directory of files that loads back exactly, or not at all.

A directory holds, for every top-level key of the tree (a component), `NAME.json` with its structure and plain values,
`NAME.safetensors` with its arrays, and `NAME.0.npy`, `NAME.1.npy` … with the arrays over 64 MB; and `manifest.json`, which lists
every file with its size and sha256, and every array with its shape and dtype. Nothing is pickled and nothing is parsed that the
manifest does not already say: the reader rebuilds the header of each array file from the manifest and compares bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from parl_like.data.storage.safe_files import check_plain, open_at, open_folder, place_of, replacing, sync_folder, write_new
from parl_like.data.storage.tree_encoding import (
    DTYPES,
    MAX_VALUES,
    PIECE,
    Count,
    EncodedComponent,
    Name,
    PartsCount,
    StoredArray,
    as_numpy,
    damaged,
    decode,
    decode_value,
    parse,
    pieces,
    refusal,
    versions,
)
from parl_like.data.storage.tree_encoding import ArchiveError as ArchiveError
from parl_like.values.plain import Plain
from parl_like.values.spec import Array

FORMAT = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 4 << 20  # bytes
BIG = 64 << 20  # bytes from which an array gets a file of its own


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: its size in bytes, the sha256 of its bytes, and the arrays in it, in the order of their bytes."""

    name: Name
    size: Count
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    tensors: list[StoredArray]


class Component(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One top-level key of the tree: the file of its plain values, then those of its arrays."""

    name: Name
    files: list[StoredFile]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of an archive, inside it. `meta` is what its writer added: the step, the score …"""

    format: int
    versions: dict[str, str]
    meta: dict[str, Any]
    components: list[Component]

    def sizes(self) -> dict[str, int]:
        """Bytes of the files of each component."""
        return {component.name: sum(file.size for file in component.files) for component in self.components}


# ------------------------------------------------------------------------------------------------ writing


def write_archive(path: Path, tree: Mapping[str, object], meta: Mapping[str, object] | None = None, *, over: bool = False
                  ) -> None:
    """Writes `tree` as the archive `path`, completely or not at all; an archive that is there already is replaced.

    The files go into a hidden sibling directory and are fsynced, the manifest last; then that directory is renamed. The arrays
    must not change meanwhile, for they are not copied first; tensors of a GPU are fetched one at a time.

    Args:
        path: The directory to make. Missing parents are made too.
        tree: Nested dicts with str keys. Leaves: arrays and torch tensors of bool, int and float dtypes; None, bool, int of any
            size, float, str; lists and tuples of all these, both loaded as lists. NumPy scalars load as Python numbers.
        meta: Plain values for the manifest.
        over: Whatever is at `path` may be replaced, not only an archive.

    Raises:
        ArchiveError: a leaf or name that cannot be stored, or a `path` that is no archive. Nothing was written.
        OSError: the disk is full, read-only …; what was at `path` is still there.
    """
    path = Path(os.path.abspath(path))
    plans = [EncodedComponent(path, name, value) for name, value in tree.items()]
    twins = {name.casefold() for name in tree}
    if len(twins) < len(tree) or "manifest" in twins:
        raise refusal(path, "component names that differ in more than case, none of them 'manifest'", list(tree), "rename one")
    count = PartsCount()
    for plan in plans:
        count.add(path, plan.text)
    described = EncodedComponent(path, "meta", dict(meta or {}), arrays=False)
    body = {"format": FORMAT, "versions": versions(), "meta": described.values}
    if not over:
        check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        os.mkdir(unfinished, 0o700)
        body["components"] = [msgspec.to_builtins(_write_component(plan, unfinished)) for plan in plans]
        text = _sealed(json.dumps(body, indent=1, allow_nan=False).removesuffix("\n}").encode("ascii"))
        if len(text) > MAX_MANIFEST:
            raise refusal(path / MANIFEST, f"at most {MAX_MANIFEST} bytes", len(text), "store fewer arrays and less meta")
        write_new(unfinished / MANIFEST, [text])
        sync_folder(unfinished)


def check_place(path: Path) -> None:
    """Raises ArchiveError where something else than an archive or an empty directory is: that is somebody's work."""
    if os.path.lexists(path):
        names = os.listdir(path) if path.is_dir() and not path.is_symlink() else ["no directory"]
        if names and (MANIFEST not in names or not all(name.endswith((".json", ".safetensors", ".npy")) for name in names)):
            raise refusal(path, "a new name or an archive to replace", "something else", "choose another path")


def _write_component(plan: EncodedComponent, folder: Path) -> Component:
    def write(name: str, group: list[tuple[StoredArray, object]]) -> StoredFile:
        tensors = [tensor for tensor, _ in group]
        numbers = (piece for tensor, value in group for piece in pieces(as_numpy(value, tensor.dtype)))
        return StoredFile(name, *write_new(folder / name, chain([_header(name, tensors)], numbers)), tensors)

    name = f"{plan.name}.json"
    files = [StoredFile(name, *write_new(folder / name, [plan.text]), [])]
    small = [leaf for leaf in plan.leaves.values() if leaf[0].nbytes < BIG]
    if small:  # wide numbers first keeps all of them aligned
        files.append(write(f"{plan.name}.safetensors", sorted(small, key=lambda leaf: -leaf[0].itemsize)))
    big = (leaf for leaf in plan.leaves.values() if leaf[0].nbytes >= BIG)
    return Component(plan.name, files + [write(f"{plan.name}.{i}.npy", [leaf]) for i, leaf in enumerate(big)])


def _header(name: str, tensors: list[StoredArray]) -> bytes:
    """The bytes before the numbers: of a safetensors file, or of a version 1.0 .npy file where `name` ends so.

    Formats: https://github.com/huggingface/safetensors#format and `numpy.lib.format`. These bytes are part of FORMAT.
    """
    if name.endswith(".npy"):
        shape = "(" + "".join(f"{n}, " for n in tensors[0].shape) + ")"
        text = f"{{'descr': '{DTYPES[tensors[0].dtype]}', 'fortran_order': False, 'shape': {shape}, }}"
        text += " " * (-(len(text) + 11) % 64) + "\n"  # magic, version and length take 10 bytes; all of it a multiple of 64
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")
    end, table = 0, {}
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        table[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text.encode("ascii")


# ------------------------------------------------------------------------------------------------ reading


def read_archive(path: Path, check: Callable[[Manifest], None] | None = None) -> tuple[dict[str, Plain], Manifest]:
    """The tree and the manifest of an archive; arrays are newly allocated and writable, tensors lie on the CPU.

    Args:
        check: Looks at the manifest before anything else is read; raises ArchiveError where it is not what is expected.

    Raises:
        ArchiveError: anything that is not exactly what was written: a changed, missing, additional or linked file, an edited
            manifest, a name or dtype outside the allow-list, a newer format; or a file that cannot be read. No memory is taken
            before sizes agree with the files on disk, and none at all where they exceed this machine's memory.
        MemoryError: there is too little left.
    """
    tree, manifest, _ = read_components(path, lambda name: False, check)
    return tree, manifest


def read_components(
    path: Path, spare: Callable[[str], bool], check: Callable[[Manifest], None] | None = None,
) -> tuple[dict[str, Plain], Manifest, dict[str, str]]:
    """As `read_archive`, but goes on where a component is damaged or missing of whose name `spare` says that it may be.

    Returns the tree of the good components, the manifest, and name -> what is wrong of the bad ones.
    """
    return _read(path, spare, check, keep=True)


def check_archive(path: Path, check: Callable[[Manifest], None] | None = None) -> Manifest:
    """Return the manifest of an archive after a look at every byte; arrays are read in pieces, and take no memory.

    Args:
        check: As for `read_archive`.

    Raises:
        ArchiveError: as `read_archive`, but however large the arrays are.
    """
    return _read(path, lambda name: False, check, keep=False)[1]


def _read(path: Path, spare: Callable[[str], bool], check: Callable[[Manifest], None] | None, keep: bool
          ) -> tuple[dict[str, Plain], Manifest, dict[str, str]]:
    tree: dict[str, Plain] = {}
    bad: dict[str, str] = {}
    with _opened(path) as (found, folder):
        manifest = _manifest(found, folder)
        known = {MANIFEST} | {stored.name for component in manifest.components for stored in component.files}
        for name in sorted(set(os.listdir(folder)) - known):
            raise damaged(found / name, "no such file", "one")
        if check is not None:
            check(manifest)
        needed, memory = sum(manifest.sizes().values()), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if keep and needed > memory:
            raise refusal(found, f"arrays that fit into {memory} bytes of memory", f"{needed} bytes", "use an earlier one")
        read = partial(_read_component, count=PartsCount(), keep=keep)
        for step in (_check_files, read):  # all sizes, before anything is allocated
            for component in manifest.components:
                if component.name in bad:
                    continue
                try:
                    value = step(found, folder, component)
                    tree.update({component.name: value} if keep else {})
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
        path = place_of(path)
        folder = open_folder(path)
        try:
            yield path, folder
        finally:
            os.close(folder)
    except OSError as error:
        got = f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
        mend = "give an archive's directory, or use an earlier one"
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
            raise refusal(path, "the directory of an archive, as `save` writes it", "nothing: there is no such path",
                          "look for a typing error") from None
        raise refusal(path, "a readable archive, not a link", got, mend) from error


def _manifest(path: Path, folder: int) -> Manifest:
    file = path / MANIFEST
    with open(open_at(folder, MANIFEST), "rb") as stream:
        text = stream.read(MAX_MANIFEST + 1)
    if len(text) > MAX_MANIFEST:
        raise damaged(file, f"at most {MAX_MANIFEST} bytes", "more")
    parsed = parse(file, text)
    body = parsed if isinstance(parsed, dict) else {}
    number = body.get("format")
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
    meta, names = decode_value(file, manifest.meta, {}, 0), [component.name for component in manifest.components]
    if not isinstance(meta, dict):
        raise damaged(file, "meta as an object", type(meta).__name__)
    if len({name.casefold() for name in names}) < len(names):
        raise damaged(file, "component names that occur once", "one twice")
    for component in manifest.components:
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
        tensors = stored.tensors
        if stored.name == names[0]:
            fits = not tensors and stored.size <= MAX_VALUES
        else:
            fits = len(tensors) == 1 or (len(tensors) > 1 and not stored.name.endswith(".npy"))
            fits = fits and len(_header(stored.name, tensors)) + sum(tensor.nbytes for tensor in tensors) == stored.size
        if not fits:
            raise damaged(file, f"{stored.name} of the size that its arrays need", f"{stored.size} bytes")


def _check_files(path: Path, folder: int, component: Component) -> None:
    """The component's files are there, all regular and of the size that the manifest says; looked at, not opened."""
    for stored in component.files:
        try:
            info = os.stat(stored.name, dir_fd=folder, follow_symlinks=False)
            check_plain(info, stored.name)
        except OSError as error:
            raise damaged(path / stored.name, f"{stored.size} bytes in a plain file", error.strerror) from None
        if info.st_size != stored.size:
            raise damaged(path / stored.name, f"{stored.size} bytes", f"{info.st_size} bytes")


def _read_component(path: Path, folder: int, component: Component, count: PartsCount, keep: bool) -> Plain:
    """Read and check one component. Return its value; without `keep` its arrays have no row and take no memory."""
    head, *rest = component.files
    text = _read_file(path / head.name, folder, head, True)[0].tobytes()
    count.add(path / head.name, text)
    arrays: dict[str, tuple[str, Array]] = {}
    for stored in rest:
        for tensor, data in zip(stored.tensors, _read_file(path / stored.name, folder, stored, keep), strict=True):
            try:
                array = data.view(DTYPES[tensor.dtype]).reshape(tensor.shape if keep else [0, *tensor.shape])
            except (ValueError, OverflowError):  # an empty array may still have impossible dimensions
                raise damaged(path / stored.name, f"a possible shape of {tensor.name!r}", tensor.shape) from None
            arrays[tensor.name] = tensor.dtype, array
    return decode(path / head.name, text, arrays)


def _read_file(file: Path, folder: int, stored: StoredFile, keep: bool) -> list[Array]:
    """Read one file from its beginning to its end, and check it; without `keep` it goes through one piece of memory.

    Returns:
        The bytes of each of its arrays, or of its text where it has none, uint8 [nbytes]; [0] without `keep`.
    """
    header = _header(stored.name, stored.tensors) if stored.tensors else b""
    parts: list[tuple[StoredArray | None, int]] = [(None, len(header))]
    parts += ([(tensor, tensor.nbytes) for tensor in stored.tensors] or [(None, stored.size)])
    found, digest, odd = [], hashlib.sha256(), ""
    with open(open_at(folder, stored.name), "rb") as stream:
        for i, (tensor, size) in enumerate(parts):
            stays = keep or i == 0
            memory = np.empty(size if stays else min(size, PIECE), np.uint8)
            for start in range(0, size, PIECE):
                piece = memory[start : start + PIECE] if stays else memory[: size - start]
                if stream.readinto(piece.data) != len(piece):
                    raise damaged(file, f"{stored.size} bytes", "another number")
                digest.update(piece.data)
                if tensor is not None and tensor.dtype == "BOOL" and piece.max() > 1:
                    odd = odd or tensor.name
            found.append(memory if stays else memory[:0])
        if stream.read(1):
            raise damaged(file, f"{stored.size} bytes", "another number")
    if (got := digest.hexdigest()) != stored.sha256:
        raise damaged(file, f"sha256 {stored.sha256}", got)
    if found[0].tobytes() != header:
        raise damaged(file, "the header that the manifest describes", "another")
    if odd:
        raise damaged(file, f"0 and 1 in {odd!r}", "other bytes")
    return found[1:]


def _sealed(head: bytes) -> bytes:
    """A manifest's bytes from all but its last key, which is the sha256 of what stands before it: no edit goes unseen."""
    return head + b',\n "sha256": "' + hashlib.sha256(head).hexdigest().encode("ascii") + b'"\n}\n'


_SEAL = len(_sealed(b""))
