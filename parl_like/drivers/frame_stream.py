"""FrameStream: messages, which are lists of frames, over a stream socket between two processes of one machine.

A message is the number of its frames and the bytes of each, little-endian, then the frames. It arrives whole or not at all, in
order and once. There is no thread between the two processes: a message costs each of them one system call.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from itertools import islice
from typing import Any

from parl_like.drivers.messages import INLINE_LIMIT, Frames

_ONE = struct.Struct("<IQ")
_SHORT = 1 << 16
"""Bytes that are read at a time while no large message is under way."""
_LONG = 1 << 20
_MAX_FRAMES = 1 << 20
_AT_ONCE = 256
"""Buffers that one system call sends; Linux takes 1,024."""


class FrameStream:
    """One end of the connection. It owns the socket.

    Args:
        waits: Whether `send` waits until the other end has taken everything. Else what does not fit stays here, and `flush` sends
            it: so who serves many others never waits for one of them.
    """

    def __init__(self, connection: socket.socket, waits: bool) -> None:
        self._socket, self._flags = connection, 0 if waits else socket.MSG_DONTWAIT
        self._read = connection.recv
        self._unsent: deque[Any] = deque()
        self._data = bytearray()  # read, and not part of a whole message yet
        self._wanted = 0  # bytes of it from which on there may be a whole message

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def send(self, frames: Frames) -> bool:
        """Send a message; return whether all of it has gone. Nothing happens where the other end is closed.

        A frame that is not copied into the socket at once must not change before it is.
        """
        if len(frames) == 1:
            sizes = _ONE.pack(1, len(frames[0]))
        else:
            sizes = struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))
        self._unsent += (sizes, *frames)
        return self.flush()

    def flush(self) -> bool:
        """Send what has not gone yet, as much as the other end takes; return whether that was all."""
        unsent = self._unsent
        try:
            while unsent:
                sent = self._socket.sendmsg([*islice(unsent, _AT_ONCE)], (), self._flags)
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.popleft())
                if sent:
                    unsent[0] = memoryview(unsent[0])[sent:]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            unsent.clear()
        return True

    def receive(self, wait: bool = False) -> list[Frames]:
        """Return the messages that have come.

        Args:
            wait: Until there is one; else return none where there is none.

        Raises:
            EOFError: the other end is closed, and there is no message left.
        """
        flags = (0 if wait else socket.MSG_DONTWAIT,)
        while True:
            data, before = self._data, len(self._data)
            try:  # read and kept by one call of C: Ctrl-C, which strikes between two, loses nothing
                any(map(data.extend, map(self._read, (_LONG if self._wanted > _SHORT else _SHORT,), flags)))
            except BlockingIOError:
                return []
            except ConnectionResetError:
                raise EOFError from None
            if len(data) == before:
                raise EOFError
            if len(data) >= self._wanted and (messages := self._whole()):
                return messages

    def _whole(self) -> list[Frames]:
        """Take the whole messages out of what was read: small frames are copies, large ones views of it."""
        data = memoryview(self._data).toreadonly()
        begin, end, wanted, large = 0, len(data), 0, False
        messages: list[Frames] = []
        while begin < end:
            wanted = begin + _ONE.size
            if wanted > end:
                break
            n, first = _ONE.unpack_from(data, begin)
            sizes: tuple[int, ...] = (first,)
            if n != 1:
                wanted = begin + 4 + 8 * n
                if not 0 < n <= _MAX_FRAMES:  # nothing that `send` makes: who unpacks it shall say so
                    messages.append([bytes(data[begin:])])
                    begin = end
                    break
                if wanted > end:
                    break
                sizes = struct.unpack_from(f"<{n}Q", data, begin + 4)
            at = wanted
            wanted += sum(sizes)
            if wanted > end:
                break
            frames: Frames = []
            for size in sizes:
                frame = data[at : at + size]
                at += size
                large |= size > INLINE_LIMIT
                frames.append(frame if size > INLINE_LIMIT else frame.tobytes())
            messages.append(frames)
            begin = at
        self._wanted = wanted - begin
        if not large:  # no view of it is left
            frame = data = memoryview(b"")
            del self._data[:begin]
        elif begin:
            self._data = bytearray(data[begin:])
        return messages

    def close(self) -> None:
        """Close the socket; the other end reads what was sent before."""
        self._socket.close()
