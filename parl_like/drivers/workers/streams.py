"""Streams: the robot's ends of the sockets to workers of its own machine."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from time import monotonic

from parl_like.drivers.frame_stream import FrameStream
from parl_like.drivers.messages import Frames
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.process.child import shielded


class Streams:
    """Sends to many workers and hears them, and never waits for one.

    Attributes:
        descriptor: Becomes readable when something has come, can go on, or has ended.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self.descriptor = self._poll.fileno()
        self._workers: dict[int, WorkerHandle] = {}
        self._streams: dict[WorkerHandle, FrameStream] = {}

    def add(self, worker: WorkerHandle, connection: socket.socket) -> None:
        """Talk with a worker over this socket from now on."""
        stream = self._streams[worker] = FrameStream(connection, waits=False)
        self._workers[stream.fileno()] = worker
        self._poll.register(stream.fileno(), select.EPOLLIN)

    def watch(self, descriptor: int) -> None:
        """Let `descriptor` be readable when this one is."""
        self._poll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Take back `watch`."""
        self._poll.unregister(descriptor)

    def __contains__(self, worker: WorkerHandle) -> bool:
        return worker in self._streams

    def send(self, worker: WorkerHandle, frames: Frames) -> None:
        """Send a message; where the worker has just ended, nothing happens."""
        stream = self._streams[worker]
        if not stream.send(frames) and self._workers.get(stream.fileno()) is worker:
            self._poll.modify(stream.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def receive(self) -> Sequence[tuple[WorkerHandle, Frames]]:
        """Return what has come since the last call, in the order of each worker; of one that has ended, all that it had sent."""
        out: list[tuple[WorkerHandle, Frames]] = []
        for descriptor, events in self._poll.poll(0):
            worker = self._workers.get(descriptor)
            if worker is None:
                continue
            stream = self._streams[worker]
            if events & select.EPOLLOUT:
                with shielded():  # what has gone, and is not known to have gone, would go again
                    if stream.flush():
                        self._poll.modify(descriptor, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                try:
                    out += [(worker, frames) for frames in stream.receive()]
                    while events & select.EPOLLHUP:  # nobody tells of the rest again
                        out += [(worker, frames) for frames in stream.receive()]
                except EOFError:  # how it has ended, others tell
                    self._poll.unregister(descriptor)
                    del self._workers[descriptor]
        return out

    def flush(self, worker: WorkerHandle, seconds: float) -> None:
        """Send what a worker has not taken yet, for so many seconds at most."""
        stream, poll, end = self._streams[worker], select.poll(), monotonic() + seconds
        poll.register(stream.fileno(), select.POLLOUT)
        while True:
            with shielded():
                gone = stream.flush()
            if gone or (left := end - monotonic()) <= 0:
                return
            poll.poll(left * 1000)

    def forget(self, worker: WorkerHandle) -> None:
        """Close the socket to a worker."""
        if (stream := self._streams.pop(worker, None)) is not None:
            if self._workers.pop(stream.fileno(), None) is not None:
                self._poll.unregister(stream.fileno())
            stream.close()

    def close(self) -> None:
        """Close what is still open."""
        for worker in list(self._streams):
            self.forget(worker)
        self._poll.close()
