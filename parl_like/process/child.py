"""One child process: what its parent asks of it, and how it begins and ends.

A child leads a process group, so that what it starts ends with it, and gets a death signal when the fork server ends that made it
(`parl_like.process.fork_server`), also while it hangs in C and holds the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Those of the descriptors that can be read, or whose other end is closed; waits for the first of them.

    (`select.select` knows no number above 1023.)
    """
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(seconds, 0.0) * 1000)]


@contextmanager
def shielded() -> Iterator[None]:
    """Ctrl-C in the main thread is heard at the end of the block: in its middle it would leave something that nobody knows of."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    heard: list[Any] = []
    try:
        signal.signal(signal.SIGINT, lambda *struck: heard.append(struck))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if heard:
            handler(*heard[-1])


class Child:
    """A child process, as seen by the process that asked for it.

    Args:
        pid: Process id.
        pidfd: Its pidfd, which this object closes in `forget`.
        wait_for_code: Called when it has ended; sets `code`, within a second or so.

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
        """Whether it ends within so many seconds; its process group has ended then, and `code` is known."""
        ended = bool(readable([self.pidfd], seconds))
        if ended and self.code is None:
            self._wait_for_code(self)
        return ended

    def forget(self) -> None:
        """Lets go of it: its end is nobody's business any more."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def end_group(pid: int) -> None:
    """Kills a child that leads a process group, and the processes that it has started. It must not have been waited for."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        os.killpg(pid, signal.SIGKILL)


def run_forked(parent: int, closing: Sequence[int], output: Sequence[int], path: list[str], environment: dict[str, str],
               directory: str, work: Callable[[], None]) -> None:
    """What a fork does from its first moment to its last; never returns.

    Args:
        parent: Process id of the fork server, with which it ends.
        closing: File descriptors of the fork server that are none of its business.
        output: What is to be its standard output and its standard error.
        path, environment, directory: `sys.path`, `os.environ` and the working directory of who asked for it.
        work: Its work; an exception is printed and makes the exit code 1.
    """
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Ctrl-C is for the process at the top. Not SIG_IGN: what an environment starts would inherit that.
        signal.signal(signal.SIGINT, lambda *_: None)
        # PR_SET_PDEATHSIG, which fires when the thread ends that forked: the fork server's only one.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended in between
            os._exit(1)
        for fd in closing:
            os.close(fd)
        for fd, number in zip(output, (1, 2), strict=True):
            os.dup2(fd, number)
            os.close(fd)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(environment)
        with suppress(OSError):  # it was deleted
            os.chdir(directory)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()  # an environment may draw from the global generator, which all forks share else
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  printed, as at the end of any program
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # not back into the fork server's loop
