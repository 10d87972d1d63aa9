"""A nested tree of arrays and plain values as JSON and labelled arrays, and back. Nothing but plain data goes either way."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from parl_like.values.plain import Plain
from parl_like.values.spec import Array

MAX_VALUES = 16 << 20  # bytes of one component's plain values
MAX_PARTS = 2_000_000  # plain values of all components together, for each takes some 100 bytes of memory
MAX_DEPTH = 64  # levels of a tree
PIECE = 1 << 20  # bytes hashed and written, or read and hashed, at once

# safetensors' dtype code -> how NumPy reads the bytes. BF16 exists in torch only; NumPy sees its bits.
DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip
CODES = {np.dtype(name): code for code, name in DTYPES.items() if code != "BF16"}
_TORCH = {f"torch.{dtype.name}": code for dtype, code in CODES.items()} | {"torch.bfloat16": "BF16"}

NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*\Z"
Name = Annotated[str, msgspec.Meta(pattern=NAME, max_length=200)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class ArchiveError(ValueError):
    """An archive cannot be written or read. The message names the file, what was expected, what came, and the way out."""


def refusal(file: object, expected: object, got: object, mend: str) -> ArchiveError:
    """The error of a file, in the words that all of them have; `mend` says what to do."""
    return ArchiveError(f"{file}: expected {expected}, got {got}; {mend}")


def damaged(file: object, expected: object, got: object) -> ArchiveError:
    """The error of a file that is not what was written."""
    return refusal(file, expected, got, "the archive is damaged or was changed: use an earlier one")


class StoredArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of a file. `dtype` is safetensors' code."""

    name: Name
    dtype: Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(DTYPES)})\Z")]
    shape: Annotated[list[Count], msgspec.Meta(max_length=32)]

    @property
    def itemsize(self) -> int:
        return np.dtype(DTYPES[self.dtype]).itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


class PartsCount:
    """Counts the plain values of the components of one archive, before memory is taken for them."""

    def __init__(self) -> None:
        self.n = 0

    def add(self, file: object, text: bytes) -> None:
        """Adds those of a component's JSON; commas and brackets in texts count, too. Raises ArchiveError above MAX_PARTS."""
        self.n += sum(map(text.count, (b",", b"[", b"{")))
        if self.n > MAX_PARTS:
            raise refusal(file, f"at most {MAX_PARTS} plain values", self.n, "put long lists into arrays")


def encode(path: Path, name: str, value: object) -> tuple[bytes, dict[str, Array]]:
    """One component: its plain values as ASCII JSON, and its arrays by the labels that stand for them there, in
    their shapes, little-endian.

    Raises ArchiveError as `write_archive`; it names `path`.
    """
    plan = EncodedComponent(path, name, value)
    return plan.text, {label: as_numpy(leaf, stored.dtype) for label, (stored, leaf) in plan.leaves.items()}


class EncodedComponent:
    """One component before it is written: its plain values as JSON, and its arrays still where they are."""

    def __init__(self, path: Path, name: str, value: object, arrays: bool = True) -> None:
        self.path, self.name, self.arrays = path, name, arrays
        if not isinstance(name, str) or not re.match(NAME, name) or len(name) > 180:
            expected = "component names of at most 180 letters, digits, '.', '_' and '-', not starting with '.'"
            raise refusal(path, expected, repr(name), "rename it")
        self.leaves: dict[str, tuple[StoredArray, object]] = {}
        self.values = self._encode(value, "", 0)
        self.text = json.dumps(self.values, allow_nan=False).encode("ascii")
        if len(self.text) > MAX_VALUES:
            raise self._refuse("", f"at most {MAX_VALUES} bytes of plain values", len(self.text), "put long lists into arrays")

    def _encode(self, value: Any, where: str, depth: int) -> object:
        """`value` as JSON. What JSON lacks is an object with one key ($array, $tensor, $float, $int); a user's `$` is doubled."""
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
        dot = f"{where}." if where else ""
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise self._refuse(where, "str keys", f"{key!r} ({type(key).__name__})", "write str(key), read it back")
            return {"$" * (key[:1] == "$") + key: self._encode(part, dot + key, depth + 1) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._encode(part, f"{dot}{i}", depth + 1) for i, part in enumerate(value)]
        torch = sys.modules.get("torch")
        if type(value) in (np.ndarray, np.memmap):
            kind, code = "$array", CODES.get(value.dtype.newbyteorder("<"))
        elif torch is not None and isinstance(value, torch.Tensor):
            stored = value.layout is torch.strided and value.device.type != "meta"
            kind, code = "$tensor", _TORCH.get(str(value.dtype)) if stored else None
        else:
            raise self._refuse(where, "an array, tensor, None, bool, int, float, str, list or dict", type(value).__name__)
        if code is None or not self.arrays:
            expected = "a strided array of a bool, int or float dtype" if self.arrays else "plain values"
            raise self._refuse(where, expected, f"{type(value).__name__} of {value.dtype}")
        # A name that is unique in the component; the JSON maps it to the true keys, which may hold any text.
        label = base = re.sub(r"[^A-Za-z0-9._-]", "_", where or self.name)[-180:].lstrip(".") or "array"
        number = 1
        while label in self.leaves or label == "__metadata__":  # which means something else in a safetensors header
            number += 1
            label = f"{base}-{number}"
        self.leaves[label] = StoredArray(label, code, [int(n) for n in value.shape]), value
        return {kind: label}

    def _refuse(self, where: str, expected: object, got: object, mend: str = "convert it, or leave it out") -> ArchiveError:
        return refusal(f"{self.path}, {'.'.join(filter(None, (self.name, where)))!r}", expected, got, mend)


def as_numpy(value: Any, code: str) -> Array:
    """Return the leaf as a little-endian array of its shape, of the dtype that `code` names; a CPU tensor shares its memory."""
    if not isinstance(value, np.ndarray):
        import torch

        value = value.detach().cpu().resolve_neg()
        value = (value.view(torch.int16) if code == "BF16" else value).numpy()
    array: Array = value.view("<u2") if code == "BF16" else value.astype(DTYPES[code], copy=False)
    return array


def pieces(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of an array of any shape in C order, at most 1 MB at a time; only what is not contiguous is copied."""
    rows = array.reshape(1) if array.ndim == 0 else array
    step = max(1, PIECE * len(rows) // max(1, rows.nbytes))
    for start in range(0, len(rows) if rows.size else 0, step):
        yield np.ascontiguousarray(rows[start : start + step]).reshape(-1).view(np.uint8).data


def decode(file: Path, text: bytes, arrays: dict[str, tuple[str, Array]]) -> Plain:
    """The inverse of `encode`.

    Args:
        file: Which is named where something is wrong.
        arrays: Label -> safetensors' code of its dtype, array of its shape.
            They become part of the result, and none is left here.

    Raises:
        ArchiveError: `text` is not what `encode` made, or the arrays are not those that it names, each once.
    """
    value = decode_value(file, parse(file, text), arrays, 0)
    if arrays:
        raise damaged(file, f"a place for array {min(arrays)!r}", "none")
    return value


def decode_value(file: Path, value: Plain, arrays: dict[str, tuple[str, Array]], depth: int) -> Plain:
    """Return the inverse of `EncodedComponent._encode`; takes every array that it uses, in its shape, out of `arrays`.

    Raises:
        ArchiveError: it is nothing that `_encode` writes, or is nested over 64 levels.
    """
    if depth > MAX_DEPTH:
        raise damaged(file, f"at most {MAX_DEPTH} levels", "more")
    if isinstance(value, list):
        return [decode_value(file, part, arrays, depth + 1) for part in value]
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
                import torch

                tensor = torch.from_numpy(array)
                return tensor.view(torch.bfloat16) if code == "BF16" else tensor
            if code != "BF16":
                return array
        raise damaged(file, "$float, $int, or an array used once", f"{kind} {str(content)[:60]!r}")
    out = {}
    for key, part in value.items():
        if key[:1] == "$" and key[:2] != "$$":
            raise damaged(file, "keys whose '$' is doubled", repr(key[:60]))
        out[key[1:] if key[:1] == "$" else key] = decode_value(file, part, arrays, depth + 1)
    return out


def parse(file: Path, text: bytes) -> Plain:
    """JSON as this module writes it: ASCII, no key twice, finite numbers."""

    def once(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
        if len(out := dict(pairs)) < len(pairs):
            raise ValueError("a key is given twice")
        return out

    def finite(number: str) -> float:
        if not math.isfinite(value := float(number)):
            raise ValueError("a number is not finite")
        return value

    try:
        value: Plain = json.loads(text.decode("ascii"), object_pairs_hook=once, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise damaged(file, "the JSON that was written", str(error)[:100]) from None
    return value


def versions(*packages: str) -> dict[str, str]:
    """Python and packages (parl_like, numpy and torch by default) -> version, or 'unknown'."""
    out = {"python": platform.python_version()}
    for package in packages or ("parl_like", "numpy", "torch"):
        try:
            out[package] = _version(package)
        except importlib.metadata.PackageNotFoundError:
            out[package] = "unknown"
    return out


@cache
def _version(package: str) -> str:
    """Return what is installed, whose whole description is read for it: too long for each checkpoint."""
    return importlib.metadata.version(package)
