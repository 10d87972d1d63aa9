"""Messages between the processes of one robot: one small typed header, then the bytes of the arrays as they lie in memory.

A message is a list of frames. The first holds `PREFIX` (three letters and the version), the header's length, and the header, a
MessagePack array [kind, task, request, rows, fields, notes] with one field [name, dtype, shape] per array. The arrays follow: a
frame each, or, where they are small, in the first frame, each beginning at a multiple of 8.

No byte that arrives is taken for code: there is no object dtype, no class name, no path. A message is bad as a whole, or good:
whatever its bytes are, `unpack` and `unpack_state` raise a `WireError` and nothing else, and allocate nothing on the word of a
header.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from parl_like.data.storage import tree_encoding
from parl_like.values.errors import AgentFailed, Dropped, NotEnoughRows, Stopped, TaskFailed, shortened
from parl_like.values.spec import Array, SpecError

Frames: TypeAlias = list[Any]
"""The parts of a message: bytes, or what lends its bytes without a copy."""

MAGIC = b"PLK"
VERSION = 3  # of all that follows it; a peer with another one is refused at its first message
PREFIX = MAGIC + bytes((VERSION,))
INLINE_LIMIT = 1 << 16  # bytes of arrays up to which a message is one frame: each frame costs a call, a small copy nothing

# Little-endian. bool is one byte, 0 or 1.
_Dtype = Literal["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "b1"]
DTYPES: tuple[str, ...] = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "b1")
_BY_CODE = {code: (np.dtype(f"<{code}"), int(code[1])) for code in DTYPES}  # and the bytes of one number
_CODES = {dtype: code for code, (dtype, _) in _BY_CODE.items()}
_LENGTH = struct.Struct("<I")
_PADDING = [bytes(-n % 8) for n in range(8)]  # by the bytes before it


class WireError(ValueError):
    """A message that cannot be what its sender was asked for; nothing of it was used."""


class Kind(IntEnum):
    """The purpose of a message. The numbers are part of VERSION."""

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
    """A message, as `unpack` returns it.

    Attributes:
        kind: What it is for.
        task: Name of the computation task.
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
    notes: dict[str, Any]


_Header = tuple[Kind, str, int, int, list[tuple[str, _Dtype, tuple[int, ...]]], dict[str, Note]]
_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], _Header] = msgspec.msgpack.Decoder(_Header).decode


def pack(
    kind: Kind,
    *,
    task: str = "", request: int = 0, rows: int = 0, arrays: Mapping[str, Array] | None = None,
    notes: Mapping[str, Note] | None = None,
) -> list[object]:
    """The frames of a message: bytes, and where its arrays are large one flat buffer for each, in their order.

    Args:
        kind, task, request, rows: See `Message`.
        arrays: Field name -> array of a dtype in DTYPES. A large one that is C-contiguous is not copied: its frame is its own
            memory, which must not change before it is sent.

    Raises:
        WireError: a dtype or a note that no message can have.
    """
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    buffers: Frames = []
    total = 0
    for name, array in arrays.items() if arrays else ():
        code = _CODES.get(array.dtype)
        if code is None:
            raise WireError(f"dtype: expected one of {', '.join(DTYPES)} for {name!r}, got {array.dtype}; convert it with astype")
        fields.append((name, code, array.shape))
        buffers.append((array if array.flags.c_contiguous else array.copy()).data.cast("B") if array.size else b"")
        total += array.nbytes
    try:
        header = _encode((kind, task, request, rows, fields, notes or {}))
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"header: expected plain values, got {error}; send numbers and text, no objects") from None
    head = [PREFIX, _LENGTH.pack(len(header)), header]
    if total > INLINE_LIMIT:
        return [b"".join(head), *buffers]
    head.append(_PADDING[len(header) % 8])
    for buffer in buffers:
        head += (buffer, _PADDING[len(buffer) % 8])
    return [b"".join(head)]


def unpack(frames: Sequence[bytes]) -> Message:
    """The message in these frames, once all of them are found to agree. Its arrays keep the frames alive.

    Raises:
        WireError: anything that `pack` would not have made.
    """
    try:
        return _unpack(frames)
    except WireError:
        raise
    except (ValueError, TypeError, IndexError, OverflowError, RecursionError, struct.error) as error:
        raise WireError(f"message: expected what parl_like.drivers.messages.pack makes, got something else ({error})") from None


def _unpack(frames: Sequence[bytes]) -> Message:
    head = frames[0]
    if head[:4] != PREFIX:
        raise WireError(_wrong_prefix(head))
    end = 8 + _LENGTH.unpack_from(head, 4)[0]
    kind, task, request, rows, fields, notes = _decode(head[8:end])
    inline = len(frames) == 1
    if not inline and len(frames) != len(fields) + 1:
        raise WireError(f"frames: expected {len(fields) + 1}, the header's fields and itself, got {len(frames)}")
    arrays: dict[str, Array] = {}
    at = end + -end % 8
    for i, (name, code, shape) in enumerate(fields, 1):
        dtype, size = _BY_CODE[code]
        for count in shape:  # Python ints: no product wraps around
            size *= count
        if inline:  # NumPy allocates nothing here, and refuses what reaches beyond the frame
            arrays[name] = np.ndarray(shape, dtype, head, at)
            at += size + -size % 8
        elif size != len(frames[i]):
            raise WireError(f"size: expected {size} bytes for {name!r}, {shape} {code}, got {len(frames[i])} bytes")
        else:
            arrays[name] = np.ndarray(shape, dtype, frames[i])
    if len(arrays) < len(fields):
        raise WireError("fields: expected names that occur once, got one twice")
    if inline and at != len(head):
        raise WireError(f"size: expected {at} bytes, as the fields say, got {len(head)}")
    return Message(kind, task, request, rows, arrays, notes)


def _wrong_prefix(head: bytes) -> str:
    if head[:3] != MAGIC or len(head) < 4:
        return f"magic: expected a message that begins with {MAGIC!r}, got {bytes(head[:3])!r}; connect only parl_like processes"
    who = "here" if head[3] > VERSION else "at the peer"
    return (f"version: expected protocol {VERSION}, got protocol {head[3]}; upgrade parl_like {who}, which has the older one")


# ------------------------------------------------------------------------------------------------ states


def pack_state(value: object) -> dict[str, Array]:
    """A nested state as arrays that a message can carry.

    Args:
        value: What a checkpoint can hold: nested dicts with str keys, lists and tuples (loaded as lists); leaves are arrays and
            torch tensors of bool, int and float dtypes (and bfloat16), None, bool, int of any size, float, str. NumPy scalars
            load as Python numbers.

    Returns:
        `json`, uint8 [n]: the plain values. And a copy of each array, by the code of its dtype, a space, and its name in `json`.

    Raises:
        WireError: a leaf or key that cannot be sent.
    """
    try:
        plan = tree_encoding.EncodedComponent(Path("state"), "state", value)
    except tree_encoding.ArchiveError as error:
        raise WireError(str(error)) from None
    arrays = {f"{stored.dtype} {name}": np.array(tree_encoding.as_numpy(leaf, stored.dtype), order="C")
              for name, (stored, leaf) in plan.leaves.items()}
    return {"json": np.frombuffer(plan.text, np.uint8), **arrays}


def unpack_state(arrays: Mapping[str, Array]) -> Any:
    """The inverse of `pack_state`. Arrays and tensors are newly allocated, no larger than what came, and writable.

    Raises:
        WireError: anything that `pack_state` would not have made.
    """
    try:
        leaves = {name.partition(" ")[2]: (name.partition(" ")[0], array.copy()) for name, array in arrays.items() if " " in name}
        return tree_encoding.decode(Path("state"), arrays["json"].tobytes(), leaves)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        said = str(error).partition("; the archive is damaged")[0]  # advice for files
        raise WireError(f"{said}; send the arrays that pack_state made, all of them and unchanged") from None


# ------------------------------------------------------------------------------------------------ errors

ERRORS: dict[str, type[Exception]] = {
    e.__name__: e for e in (AgentFailed, Dropped, NotEnoughRows, SpecError, Stopped, TaskFailed, ValueError)
}
"""Errors that keep their type between processes; others arrive as `AgentFailed` or `TaskFailed`, with a traceback in the text."""


class RemoteError(Exception):
    """The traceback of an error in another process; the `__cause__` of what is raised here."""


def pack_error(error: BaseException) -> dict[str, Array]:
    """Return what an error says ('text') and its traceback ('trace'), as arrays of a message; of long ones beginning and end."""
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    texts = {"text": shortened(str(said)), "trace": shortened("".join(traceback.format_exception(error)))}
    return {name: np.frombuffer(text.encode(errors="replace"), np.uint8) for name, text in texts.items()}


def text_of(message: Message, name: str = "text") -> str:
    """A text of `pack_error`."""
    return message.arrays[name].tobytes().decode(errors="replace")
