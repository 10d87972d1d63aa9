"""Messages in order, each exactly once, over a link that may lose, double, swap or delay them, or break and be made again.

Each side of a session holds one `Stream`. It numbers what is sent, and keeps it until the other side has said that its application
has it; it hands on what arrives in the order of the numbers. What came early is kept, so only what is missing is sent again. No
sockets and no time of its own: the caller moves the frames, and asks `due` a few times a second what else is to be sent.

    head = magic, kind, session, number, ack, arrived            (36 bytes, little-endian)

ack: all messages up to this one are in the hands of the receiver's application. arrived: bit i says that message ack + 1 + i has
come, too, and need not come again. A beat is a head alone: it says that its sender is there, and what it has.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from parl_like.wire import WireError

MAGIC = b"PLS"
MESSAGE, BEAT = 1, 2

FIRST_WAIT, LONGEST_WAIT = 0.3, 4.0
"""Seconds until a message is sent for the second time; they double with every further time, up to the longest."""
BEAT_EVERY = 1.0
"""Seconds without sending anything, after which a beat is sent."""
WINDOW = 1024
"""Messages ahead of a missing one that are kept; those beyond are dropped, and come again later."""

_HEAD = struct.Struct("<3sBQQQQ")
_ALL = 2**64 - 1


def session_of(frames: Sequence[Any]) -> int | None:
    """The session that frames from a socket belong to; None: they are of no stream.

    Raises:
        WireError: they begin like a stream's, and are not.
    """
    if not frames or bytes(memoryview(frames[0])[:3]) != MAGIC:
        return None
    return _read_head(frames)[1]


@dataclass(slots=True)
class _Sent:
    frames: list[bytes]
    n_bytes: int
    due: float  # when it is sent again; never, once it is known to have arrived
    wait: float


class Stream:
    """One side of a session. For one thread.

    Args:
        session: Number that both sides use, below 2**64; frames of another one are dropped.
        clock: Seconds that only grow.
        early_bytes: Of messages that came before one that is missing; what would be more is dropped, and comes again later.

    Attributes:
        unacknowledged, unacknowledged_bytes: Messages that the other side's application is not yet known to have. Nothing bounds them
            here: a caller that could run ahead of its peer waits while there are many.
        foreign, doubled, resent: Frames of another session; messages that had come before; messages sent again.
    """

    def __init__(self, session: int, clock: Callable[[], float] = monotonic, early_bytes: int = 64 << 20) -> None:
        self.session = session
        self.unacknowledged_bytes = self.foreign = self.doubled = self.resent = 0
        self._clock = clock
        self._early_limit = early_bytes
        self._sent: dict[int, _Sent] = {}  # by number, ascending
        self._last = 0  # number of the last message sent
        self._given = 0  # of the last one that `receive` has returned
        self._acked = 0  # of the last one that the application has
        self._early: dict[int, list[Any]] = {}
        self._early_bytes = 0
        self._owes = False  # something came, of which the other side has not been told
        self._heard = self._spoke = clock()

    @property
    def unacknowledged(self) -> int:
        return len(self._sent)

    @property
    def silent(self) -> float:
        """Seconds since the other side was last heard."""
        return self._clock() - self._heard

    def send(self, frames: Sequence[Any]) -> list[Any]:
        """Takes a message over.

        Args:
            frames: bytes, at least one, or flat buffers, which are copied: they are kept until the other side has them.

        Returns:
            What to put on the socket now. It may fail to leave: it is sent again.
        """
        kept = [frame if type(frame) is bytes else bytes(frame) for frame in frames]
        self._last += 1
        item = self._sent[self._last] = _Sent(kept, sum(map(len, kept)), self._clock() + FIRST_WAIT, FIRST_WAIT)
        self.unacknowledged_bytes += item.n_bytes
        return self._with_head(MESSAGE, self._last, kept)

    def receive(self, frames: Sequence[Any]) -> list[list[Any]]:
        """Takes in what came from the socket.

        Returns:
            The messages that are next in the order: none or more. Call `acknowledge` when they are where they are to go.

        Raises:
            WireError: something that no `Stream` sends.
        """
        kind, session, number, ack, arrived = _read_head(frames)
        if session != self.session:
            self.foreign += 1
            return []
        if ack > self._last:
            raise _refusal(f"an acknowledgement of at most message {self._last}", ack)
        self._heard = self._clock()
        self._forget(ack, arrived)
        if kind == BEAT:
            return []
        self._owes = True
        if number <= self._given or number in self._early:
            self.doubled += 1
            return []
        body = list(frames[1:])
        size = _size(body)
        is_next = number == self._given + 1
        if not is_next and (number > self._given + WINDOW or self._early_bytes + size > self._early_limit):
            return []
        self._early[number] = body
        self._early_bytes += size
        out = []
        while self._given + 1 in self._early:
            self._given += 1
            body = self._early.pop(self._given)
            self._early_bytes -= _size(body)
            out.append(body)
        return out

    def acknowledge(self) -> None:
        """All messages that `receive` has returned are in the application's hands; the other side is told with the next frames."""
        self._owes |= self._acked < self._given
        self._acked = self._given

    def due(self) -> list[list[Any]]:
        """What is to be put on the socket now: messages whose time is up, else a beat where one is owed."""
        now = self._clock()
        out = []
        for number, item in self._sent.items():
            if item.due <= now:
                item.wait = min(2 * item.wait, LONGEST_WAIT)
                item.due = now + item.wait
                self.resent += 1
                out.append(self._with_head(MESSAGE, number, item.frames))
        if self._owes or now - self._spoke >= BEAT_EVERY:
            out.append(self._with_head(BEAT, 0, []))
        return out

    def remade(self) -> None:
        """The link was broken and is there again: `due` will send at once what has not arrived."""
        for item in self._sent.values():
            if item.due < math.inf:
                item.due, item.wait = -math.inf, FIRST_WAIT

    def _with_head(self, kind: int, number: int, frames: list[bytes]) -> list[Any]:
        base = self._acked + 1
        arrived = (1 << (self._given - self._acked)) - 1
        for early in self._early:
            arrived |= 1 << (early - base)
        self._owes, self._spoke = False, self._clock()
        return [_HEAD.pack(MAGIC, kind, self.session, number, self._acked, arrived & _ALL), *frames]

    def _forget(self, ack: int, arrived: int) -> None:
        """Lets go of what the other side's application has, and does not repeat what has arrived there."""
        while self._sent and (number := next(iter(self._sent))) <= ack:
            self.unacknowledged_bytes -= self._sent.pop(number).n_bytes
        while arrived:
            bit = arrived & -arrived
            item = self._sent.get(ack + bit.bit_length())
            if item is not None:
                item.due = math.inf
            arrived ^= bit


def _read_head(frames: Sequence[Any]) -> tuple[int, int, int, int, int]:
    if not frames or memoryview(frames[0]).nbytes != _HEAD.size:
        raise _refusal(f"a head of {_HEAD.size} bytes", f"{memoryview(frames[0]).nbytes} bytes" if frames else "no frame")
    magic, kind, session, number, ack, arrived = _HEAD.unpack(frames[0])
    if magic != MAGIC or kind not in (MESSAGE, BEAT):
        raise _refusal(f"a head that begins with {MAGIC!r} and 1 or 2", f"{magic!r} and {kind}")
    if (kind == MESSAGE) != (number > 0) or (kind == MESSAGE) != (len(frames) > 1):
        raise _refusal("a number and frames behind the head of a message, and neither behind a beat", f"number {number}, {len(frames) - 1} frames")
    return kind, session, number, ack, arrived


def _size(frames: list[Any]) -> int:
    return sum(memoryview(frame).nbytes for frame in frames)


def _refusal(expected: str, got: object) -> WireError:
    error = WireError(f"stream: expected {expected}, got {got}; send what parl_like.drivers.stream.Stream makes")
    error.cause = "stream"
    return error
