"""Messages between processes: one small typed header, then the bytes of the arrays as they lie in memory.

A message is a list of frames. The first holds `MAGIC`, one byte `VERSION`, and a MessagePack array [kind, task, request, rows,
fields, notes] with one field [name, dtype, shape] for each frame after it. `pack` makes the frames and `unpack` checks them:
no byte that arrives is ever taken for code: there is no object dtype, no class name, no path and no second format. `pack_state`
makes arrays of a nested state.

A message is bad as a whole, or good: whatever its bytes are, `unpack` and `unpack_state` raise a `WireError` and nothing else,
and allocate nothing on the word of a header.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from parl_like.data import encoding
from parl_like.spec import Array

MAGIC = b"PLK"
SMALL = b"PLJ"  # the same of a message whose frames lie in one
VERSION = 2  # of all that follows it; a peer with another one is refused at its first message
HEADER_LIMIT = 4096  # bytes of the header frame
MAX_FIELDS = 64
MAX_NAME = 128  # characters of a task, a field or the key of a note
MAX_NDIM = 8
MAX_DIM = 2**40
MAX_NOTES = 32
MAX_NOTE = 2048  # characters
MAX_TEXT = encoding.MAX_VALUES + (16 << 20)  # bytes of a state's JSON: its plain values and the table of its arrays
MAX_PARTS = 2**16  # arrays of a state
INLINE_LIMIT = 1 << 16  # bytes of a message up to which `join` makes one frame of it

# Little-endian. bool is one byte, 0 or 1.
_Dtype = Literal["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "b1"]
DTYPES: tuple[str, ...] = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "b1")
_BY_CODE = {code: (np.dtype(f"<{code}"), int(code[1])) for code in DTYPES}  # and the bytes of one number
_CODES = {dtype: code for code, (dtype, _) in _BY_CODE.items()}
_U1, _BOOL = _BY_CODE["u1"][0], _BY_CODE["b1"][0]

_PREFIX = MAGIC + bytes((VERSION,))
_FIELD_NAME = r"^[A-Za-z0-9_.\-]+\Z"


class WireError(ValueError):
    """A message that cannot be what its sender was asked for; nothing of it was used.

    Attributes:
        cause: Which check refused it, one of a dozen words: what a peer writes has no part in it.
    """

    cause = "message"


class VersionError(WireError):
    """The peer speaks another version of this protocol. The message names both."""

    cause = "version"


class Kind(IntEnum):
    """What a message is for. The numbers are part of VERSION."""

    HELLO = 1
    PREDICT = 2
    LEARN = 3
    REPLY = 4
    FAILED = 5
    EVENT = 6
    ORDER = 7
    STATE = 8


Note = int | float | str | bool | None | list[int]


class Message(msgspec.Struct, eq=False, gc=False):
    """What `unpack` returns.

    Attributes:
        kind: What it is for.
        task: Name of the computation task; at most 128 characters of any sort, so never part of a path.
        request: Number of the request, of the sender's choice.
        rows: How many rows the sender says there are.
        arrays: Field name -> array. After `unpack` read-only views of the frames, which may be unaligned.
        notes: Small plain values beside the arrays.
    """

    kind: Kind
    task: str
    request: int
    rows: int
    arrays: dict[str, Array]
    notes: dict[str, Note]


_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME, pattern=_FIELD_NAME)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Dim = Annotated[int, msgspec.Meta(ge=0, le=MAX_DIM)]
_Key = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
_Note = int | float | Annotated[str, msgspec.Meta(max_length=MAX_NOTE)] | bool | None | list[int]


class _Field(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    name: _Name
    dtype: _Dtype
    shape: Annotated[tuple[_Dim, ...], msgspec.Meta(max_length=MAX_NDIM)]


class _Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    kind: Kind
    task: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
    request: _Count
    rows: _Count
    fields: Annotated[list[_Field], msgspec.Meta(max_length=MAX_FIELDS)]
    notes: Annotated[dict[_Key, _Note], msgspec.Meta(max_length=MAX_NOTES)]


_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], _Header] = msgspec.msgpack.Decoder(_Header).decode
_BAD = (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError)  # ValidationError is a DecodeError


# ------------------------------------------------------------------------------------------------ sending


def pack(
    kind: Kind,
    *,
    task: str = "", request: int = 0, rows: int = 0, arrays: Mapping[str, Array] | None = None,
    notes: Mapping[str, Note] | None = None,
) -> list[Any]:
    """The frames of a message: bytes, then one flat buffer per array, in the order of `arrays`.

    Args:
        kind, task, request, rows: See `Message`.
        arrays: Field name -> array of any shape with at most 8 axes, of a dtype in DTYPES. One that is C-contiguous is not
            copied: its frame is its own memory, which must not change before it is sent.
        notes: At most 32; a text has at most 2048 characters.

    Raises:
        WireError: what `unpack` would refuse at the other end, or a header over 4096 bytes.
    """
    # What is not plainly in order is read back, as the other end will read it; that costs as much as all the rest.
    plain = not notes and type(task) is str and len(task) <= MAX_NAME and type(request) is int and type(rows) is int
    plain = plain and 0 <= request < 2**63 and 0 <= rows < 2**63 and isinstance(kind, Kind)
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    frames: list[Any] = [b""]
    for name, array in arrays.items() if arrays else ():
        if type(array) is not np.ndarray and type(array) is not np.memmap:
            raise _refusal("fields", f"a NumPy array for {name!r:.140}", type(array).__name__, "send np.asarray(value)")
        code = _CODES.get(array.dtype)
        if code is None:
            raise _refusal("dtype", f"one of {', '.join(DTYPES)} for {name!r:.140}", f"{array.dtype!s:.60}",
                           "convert it with astype")
        if not _is_name(name):
            expected = f"field names of 1 … {MAX_NAME} letters, digits, '_', '.' and '-'"
            raise _refusal("fields", expected, f"{name!r:.140}", "rename the field in the space or model that declares it")
        shape = array.shape
        fields.append((name, code, shape))
        if array.size:
            plain = plain and len(shape) <= MAX_NDIM
            frames.append((array if array.flags.c_contiguous else array.copy()).data.cast("B"))
        else:
            plain = False
            frames.append(b"")
    try:
        head = _PREFIX + _encode((kind, task, request, rows, fields, notes or {}))
    except (TypeError, *_BAD) as error:
        raise _refusal("header", "plain values that MessagePack can hold", str(error),
                       "send numbers and text, no objects") from None
    if len(head) > HEADER_LIMIT:
        raise _refusal("header", f"at most {HEADER_LIMIT} bytes", f"{len(head)} bytes",
                       "shorten the names and notes, or put them into an array")
    if not plain or len(fields) > MAX_FIELDS:
        _read_header(head, "stay within them")
    frames[0] = head
    return frames


@functools.lru_cache(1024)
def _is_name(name: object) -> bool:
    """Whether a sender's field name will be taken. Not for names that arrive, which would fill the cache."""
    return isinstance(name, str) and len(name) <= MAX_NAME and re.match(_FIELD_NAME, name) is not None


def join(frames: list[Any]) -> list[Any]:
    """The same message as one frame where it is small: each frame costs a call and perhaps a change of threads, a small copy
    nothing.

    The frame: `SMALL`, how many there were, their lengths as little-endian u4; then each, beginning at a multiple of 8.
    """
    n = len(frames)
    if n < 2:
        return frames
    sizes = [len(frame) for frame in frames]  # flat buffers of bytes, all of them
    if sum(sizes) > INLINE_LIMIT:
        return frames
    parts = [SMALL, bytes((n,)), _lengths(n).pack(*sizes)]
    if not n % 2:
        parts.append(b"\0\0\0\0")
    for size, frame in zip(sizes, frames, strict=True):
        parts.append(frame)
        if size % 8:
            parts.append(_ZEROS[size % 8 :])
    return [b"".join(parts)]


_ZEROS = bytes(8)


@functools.lru_cache(MAX_FIELDS + 1)
def _lengths(n: int) -> struct.Struct:
    return struct.Struct(f"<{n}I")


# ------------------------------------------------------------------------------------------------ receiving


def split(frames: Sequence[Any]) -> Sequence[Any]:
    """The inverse of `join`; frames that it left alone are returned as they are.

    Raises:
        WireError: lengths that do not fill the frame.
    """
    if len(frames) != 1 or bytes(frames[0][:3]) != SMALL:
        return frames
    frame = frames[0]
    n = frame[3] if len(frame) > 3 else 0
    at = -(-(4 + 4 * n) // 8) * 8
    if not 2 <= n <= MAX_FIELDS + 1 or len(frame) < at:
        raise _refusal("frames", f"2 … {MAX_FIELDS + 1} lengths in a joined frame", f"{n} in {len(frame)} bytes",
                       "send what parl_like.wire.join makes")
    view = memoryview(frame)
    out: list[Any] = []
    for size in _lengths(n).unpack_from(frame, 4):
        out.append(view[at : at + size])
        at += -(-size // 8) * 8
    if at != len(frame):
        raise _refusal("frames", f"a joined frame of {at} bytes, as its lengths say", f"{len(frame)} bytes",
                       "send what parl_like.wire.join makes")
    out[0] = bytes(out[0])
    return out


def unpack(frames: Sequence[Any]) -> Message:
    """The message in these frames, once all of them are found to agree.

    Args:
        frames: bytes, memoryviews or other C-contiguous buffers, e.g. zmq.Frame: the header, then one per array.

    Returns:
        Its arrays are read-only views that keep the frames alive. Their contents are any bytes, save that a bool is 0 or 1.

    Raises:
        VersionError: a peer of another version.
        WireError: anything else that `pack` would not have made.
    """
    if not frames:
        raise _refusal("frames", "a header frame", "no frame", "send what parl_like.wire.pack makes")
    head = frames[0]
    if type(head) is not bytes:
        head = memoryview(head)
        head = head.tobytes() if head.nbytes <= HEADER_LIMIT else head
    size = len(head) if type(head) is bytes else head.nbytes
    if not len(_PREFIX) < size <= HEADER_LIMIT:
        raise _refusal("header", f"{len(_PREFIX) + 1} … {HEADER_LIMIT} bytes", f"{size} bytes",
                       "send what parl_like.wire.pack makes")
    if head[:4] != _PREFIX:
        raise _wrong_prefix(head)
    header = _read_header(head)
    fields = header.fields
    if len(frames) != len(fields) + 1:
        raise _refusal("frames", f"{len(fields) + 1}, the header's fields and itself", len(frames),
                       "send every frame of one message, and no other")
    arrays: dict[str, Array] = {}
    bools = []
    for field, frame in zip(fields, frames[1:]):  # noqa: B905 - counted above
        name, shape = field.name, field.shape
        dtype, nbytes = _BY_CODE[field.dtype]
        for count in shape:  # Python ints: no product wraps around
            nbytes *= count
        immutable = type(frame) is bytes
        got = len(frame) if immutable else memoryview(frame).nbytes
        if got != nbytes:
            raise _refusal("size", f"{nbytes} bytes for {name!r}, {shape} {field.dtype}", f"{got} bytes",
                           "declare the array that is sent")
        try:
            array: Array = np.ndarray(shape, dtype, frame)
        except (ValueError, BufferError) as error:  # dimensions that NumPy cannot have, though one of them is 0
            raise _refusal("size", f"a possible shape of {name!r}", shape,
                           f"send an array that NumPy can hold ({error})") from None
        if not immutable:
            array.setflags(write=False)
        if dtype is _BOOL:
            bools.append(name)
        arrays[name] = array
    if len(arrays) < len(fields):
        raise _refusal("fields", "names that occur once", ", ".join(repr(field.name) for field in fields), "send each field once")
    for name in bools:
        if _no_bool(arrays[name]):
            raise _refusal("bool", f"the bytes 0 and 1 in {name!r}", "others", "send a bool array")
    return Message(header.kind, header.task, header.request, header.rows, arrays, header.notes)


def _no_bool(array: Array) -> bool:
    """Whether a bool array has bytes that no bool has: NumPy takes them for True, but counts and compares them otherwise."""
    return bool(array.size) and bool(array.view(_U1).max() > 1)


def _read_header(head: bytes, mend: str = "send what parl_like.wire.pack makes") -> _Header:
    """The header behind its first four bytes, by type and limits; else WireError."""
    try:
        return _decode(head[4:])
    except _BAD as error:
        expected = "[kind, task, request, rows, fields, notes] within the limits of parl_like.wire"
        raise _refusal("header", expected, f"something else ({error})", mend) from None


def _wrong_prefix(head: bytes) -> WireError:
    if head[:3] != MAGIC:
        return _refusal("magic", f"a message that begins with {MAGIC!r}", f"{head[:3]!r}",
                        "connect only parl_like processes to this address")
    theirs, mine = head[3], VERSION
    who = "here" if theirs > mine else "at the peer"
    return VersionError(f"version: expected protocol {mine}, got protocol {theirs}; upgrade parl_like {who}, which has the "
                        "older one")


# ------------------------------------------------------------------------------------------------ states


class _Part(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """One array of a state. `dtype` is one of DTYPES, `bf2` for torch's bfloat16, or `raw` for a bytes object."""

    name: Annotated[str, msgspec.Meta(max_length=200, pattern=_FIELD_NAME)]
    dtype: str
    shape: Annotated[tuple[_Dim, ...], msgspec.Meta(max_length=32)]
    offset: _Count


_TABLE = msgspec.json.Decoder(Annotated[list[_Part], msgspec.Meta(max_length=MAX_PARTS)])
_PART_DTYPES = {code: dtype for code, (dtype, _) in _BY_CODE.items()} | {"bf2": np.dtype("<u2"), "raw": _U1}
_STATE_MEND = "send the arrays that pack_state made, both of them and unchanged"


def pack_state(value: Any) -> dict[str, Array]:
    """A nested state as two arrays that a message can carry.

    Args:
        value: Nested dicts with str keys, lists and tuples (loaded as lists); leaves are arrays and torch tensors of bool, int
            and float dtypes (and bfloat16), bytes, None, bool, int of any size, float, str. NumPy scalars load as Python numbers.

    Returns:
        `json`, uint8 [n]: the table of the arrays, a newline, the plain values. `data`, uint8 [m]: their bytes, copied, one after
            another.

    Raises:
        WireError: a leaf or key that cannot be sent.
    """
    dtypes: list[str] = []
    try:
        text, arrays = encoding.encode(Path("state"), "state", _without_bytes(value, dtypes, 0))
    except encoding.ArchiveError as error:
        raise _state_error(error) from None
    parts, offset = [], 0
    # Both walks meet the arrays in the same order; `strict` would tell if they did not.
    for (label, array), dtype in zip(arrays.items(), dtypes, strict=True):
        parts.append(_Part(label, dtype or _CODES[array.dtype], array.shape, offset))
        offset += array.nbytes
    data = np.empty(offset, _U1)
    for part, array in zip(parts, arrays.values(), strict=True):
        data[part.offset : part.offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(_U1)
    table = msgspec.json.encode(parts)
    _read_table(table, offset)  # what is too large is the sender's to hear of
    found = np.frombuffer(table + b"\n" + text, _U1)
    if found.size > MAX_TEXT:
        raise _refusal("state", f"at most {MAX_TEXT} bytes of JSON", found.size, "send fewer arrays, with shorter names")
    return {"json": found, "data": data}


def unpack_state(arrays: Mapping[str, Array]) -> Any:
    """The inverse of `pack_state`.

    Args:
        arrays: Of a message: `json` and `data`, uint8 [n] and [m].

    Returns:
        The state. Its arrays are newly allocated, together no larger than `data`, and writable; tensors lie on the CPU.

    Raises:
        WireError: anything that `pack_state` would not have made.
    """
    for name in ("json", "data"):
        array = arrays.get(name)
        if len(arrays) != 2 or array is None or array.dtype != _U1 or array.ndim != 1:
            got = ", ".join(f"{name!r} {array.shape} {array.dtype}" for name, array in arrays.items()) or "none"
            raise _refusal("state", "the arrays 'json' and 'data', each (n,) uint8", got, _STATE_MEND)
    if len(arrays["json"]) > MAX_TEXT:
        raise _refusal("state", f"at most {MAX_TEXT} bytes of JSON", len(arrays["json"]), _STATE_MEND)
    data = np.ascontiguousarray(arrays["data"])
    table, _, text = arrays["json"].tobytes().partition(b"\n")
    leaves: dict[str, tuple[str, Any]] = {}
    try:
        for part in _read_table(table, data.size):
            dtype = _PART_DTYPES[part.dtype]
            # The table has been held against the data, so this allocates what came and no more.
            piece = data[part.offset : part.offset + math.prod(part.shape) * dtype.itemsize]
            if part.dtype == "raw":
                leaves[part.name] = "", piece.tobytes()
                continue
            leaf: Array = np.ndarray(part.shape, dtype, piece.data).copy()
            if dtype is _BOOL and _no_bool(leaf):
                raise _refusal("state", f"the bytes 0 and 1 in {part.name!r}", "others", _STATE_MEND)
            leaves[part.name] = "BF16" if part.dtype == "bf2" else "", leaf
        return encoding.decode(Path("state"), text, leaves)
    except WireError:
        raise
    except encoding.ArchiveError as error:
        raise _state_error(error) from None
    except (ValueError, TypeError, RecursionError,
            OverflowError) as error:  # a shape that NumPy cannot have; bytes named as a tensor
        raise _refusal("state", "arrays as the table names them", f"something else ({error})", _STATE_MEND) from None


def _without_bytes(value: Any, dtypes: list[str], depth: int) -> Any:
    """`value` with a uint8 array for every bytes object; adds to `dtypes`, for each array in turn, what its dtype does not
    tell."""
    if isinstance(value, bytes):
        dtypes.append("raw")
        return np.frombuffer(value, _U1)
    if isinstance(value, np.ndarray):
        dtypes.append("")
    elif hasattr(value, "detach"):
        dtypes.append("bf2" if str(getattr(value, "dtype", "")) == "torch.bfloat16" else "")
    elif depth > encoding.MAX_DEPTH:  # which `encoding.encode` refuses; it may contain itself
        return value
    elif isinstance(value, Mapping):
        return {key: _without_bytes(part, dtypes, depth + 1) for key, part in value.items()}
    elif isinstance(value, (list, tuple)):
        return [_without_bytes(part, dtypes, depth + 1) for part in value]
    return value


def _read_table(text: bytes, size: int) -> list[_Part]:
    """The table of a state's arrays, which lie one after another and fill `size` bytes; else WireError."""
    try:
        parts: list[_Part] = _TABLE.decode(text)
    except _BAD as error:
        raise _refusal("state", "a table of arrays as JSON, and a newline", f"something else ({error})", _STATE_MEND) from None
    end = 0
    for part in parts:
        dtype = _PART_DTYPES.get(part.dtype)
        if dtype is None:
            raise _refusal("state", f"one of {', '.join(_PART_DTYPES)} for {part.name!r}", f"{part.dtype[:20]!r}", _STATE_MEND)
        if part.offset != end or (part.dtype == "raw" and len(part.shape) != 1):
            raise _refusal("state", f"{part.name!r} at byte {end}", f"{part.shape} at {part.offset}", _STATE_MEND)
        end += math.prod(part.shape) * dtype.itemsize
        if end > size:  # before the sums get long
            break
    if end != size:
        raise _refusal("state", f"{end} bytes of data" + " or more" * (end > size), size, _STATE_MEND)
    if len({part.name for part in parts}) < len(parts):
        raise _refusal("state", "array names that occur once", "one twice", _STATE_MEND)
    return parts


def _state_error(error: encoding.ArchiveError) -> WireError:
    """`error` without its advice, which is for files, where it is about damage."""
    text, cut, _ = str(error).rpartition("; the archive is damaged")
    bad = WireError(f"{_printable(text, 500)}; {_STATE_MEND}" if cut else _printable(str(error), 600))
    bad.cause = "state"
    return bad


def _refusal(cause: str, expected: object, got: object, mend: str) -> WireError:
    """The error of a message, in the words that all of them have; `got` may hold text of the peer's."""
    error = WireError(f"{cause}: expected {expected}, got {_printable(str(got), 300)}; {mend}")
    error.cause = cause
    return error


def _printable(text: str, length: int) -> str:
    """At most `length` characters; what would break a line of a log, steer a terminal or not encode is spelt out."""
    text = text if len(text) <= length else text[:length] + " …"
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
