"""The parent's side of a child process: to wait for it, to end it, and to know how often it may be started again."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

_set_handler: Callable[[int, Any], Any] = getattr(signal.signal, "__wrapped__", signal.signal)
_SIGINT = int(signal.SIGINT)
"""Past the wrapper of the `signal` module, which looks numbers up in enums: it takes 5 us, and this is in every message."""

Given = TypeVar("Given")
Made = TypeVar("Made")


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Wait for the first of the descriptors that can be read, or whose other end is closed, at most so many seconds;
    return all of these, [] after that time.

    (`select.select` knows no number above 1023.)
    """
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(seconds, 0.0) * 1000)]


class Unshielded(Protocol):
    """Calls a function in the middle of `shielded`; Ctrl-C is heard there as outside of the block."""

    def __call__(self, function: Callable[[Given], Made], given: Given, /) -> Made: ...


@contextmanager
def shielded() -> Iterator[Unshielded]:
    """Ctrl-C in the main thread is heard at the end of the block: in its middle it would leave something that nobody knows of.
    What takes long, and may be struck, is called by what `with` gives."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield _call
        return
    heard: list[Any] = []

    def hold(*struck: object) -> None:
        heard.append(struck)

    def unshielded(function: Callable[[Given], Made], given: Given) -> Made:
        try:
            _set_handler(_SIGINT, handler)
            return function(given)
        finally:
            _set_handler(_SIGINT, hold)

    try:
        _set_handler(_SIGINT, hold)
        yield unshielded
    finally:
        _set_handler(_SIGINT, handler)
        if heard:
            handler(*heard[-1])


def _call(function: Callable[[Given], Made], given: Given) -> Made:
    return function(given)


class Child:
    """A child process, as seen by the process that asked for it.

    Args:
        pid: Process id.
        pidfd: Its pidfd, which this object closes in `forget`.
        wait_for_code: Called when it has ended; sets `code`, within seconds at most.

    Attributes:
        pidfd: File descriptor that becomes readable when it ends; −1 after `forget`.
        code: Its exit code once it is known, minus the signal that ended it; None before.
    """

    def __init__(self, pid: int, pidfd: int, wait_for_code: Callable[[Child], None]) -> None:
        self.pid, self.pidfd = pid, pidfd
        self.code: int | None = None
        self._wait_for_code = wait_for_code

    def send_signal(self, number: int) -> None:
        """Sends it a signal; nothing happens where it has ended."""
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """Ends it at once; the fork server then ends what it has started. Does not wait."""
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether it ends within so many seconds; its process group has ended then, and `code` is known."""
        ended = bool(readable([self.pidfd], seconds))
        if ended and self.code is None:
            self._wait_for_code(self)
        return ended

    def forget(self) -> None:
        """Lets go of it: its end is nobody's business any more."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


MAX_RESTARTS, PERIOD = 10, 60.0
"""By default more than `MAX_RESTARTS` restarts within `PERIOD` seconds are too many."""


class RestartBudget:
    """Counts the restarts of one thing: an environment, a worker, an agent.

    Args:
        limit: Restarts within `period` seconds that are allowed; 0: none.
        period: Seconds after which a restart is forgotten.
        pause: Seconds that the second restart within `period` waits; each further one waits twice as long. The first never waits.
            0: none does.
        max_pause: Seconds that no restart waits longer than.
    """

    def __init__(self, limit: int = MAX_RESTARTS, period: float = PERIOD, pause: float = 0.05, max_pause: float = 1.0) -> None:
        self.limit, self.period, self.pause, self.max_pause = limit, period, pause, max_pause
        self._times: deque[float] = deque()

    def spend(self) -> float | None:
        """Counts one restart; returns the seconds to wait before it. None: `limit` are spent, and this one is not counted."""
        now = time.monotonic()
        while self._times and now - self._times[0] >= self.period:
            self._times.popleft()
        n = len(self._times)
        if n >= self.limit:
            return None
        self._times.append(now)
        return min(self.pause * 2 ** (n - 1), self.max_pause) if n else 0.0

    def clear(self) -> None:
        """Forgets all restarts."""
        self._times.clear()
