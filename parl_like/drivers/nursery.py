"""The nursery: one process per robot's process, that has imported everything once and forks workers from there.

A worker so is forked in some 10 ms instead of the 1.5 s that importing torch takes, and shares that memory with its siblings. The nursery
runs none of the user's code and has one thread, so a fork of it is clean. It ends, and takes its children and the folders of their
sockets along, when its control pipe closes; whatever its parent dies of, the pipe closes. Where another process has inherited the pipe,
Linux's death signal does the same. A worker gets that signal when the nursery ends, also while it hangs in an environment's step.

Messages to the nursery: a length, then a worker's payload; or minus a length, then the path of a folder, before it is made. Messages from
it: a worker's process id when it is made; when it has ended, minus its id, then its exit code. Every number has 8 bytes.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from parl_like.drivers.threads import shielded

_NUMBERS = struct.Struct("<q")

START_LIMIT = 60.0
"""Seconds that a nursery may take to begin, which imports torch, and to fork."""

IDLE = 30.0
"""Seconds that a nursery without children waits for the next one before it ends; another is started where one is wanted after that."""


def readable(descriptors: Sequence[int], seconds: float) -> list[int]:
    """Those of the descriptors that can be read, or whose other end is closed; waits for the first of them. (`select` knows no number above 1023.)"""
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(seconds, 0.0) * 1000)]


def _die_with_parent(parent: int) -> None:
    """Asks Linux to kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has ended in between
        os._exit(1)


# ------------------------------------------------------------------------------------------------------------ in the nursery


def _read(fd: int, size: int) -> bytes:
    """`size` bytes; fewer at the end of the pipe."""
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _end_group(pid: int) -> None:
    """Kills a worker, and the processes that it has started."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        os.killpg(pid, signal.SIGKILL)


def main(control: int, reports: int, parent: int, tied: bool) -> None:
    """The life of the nursery.

    Args:
        control, reports: The pipes' ends.
        parent: The robot's process.
        tied: Whether it was started by the robot's main thread, whose end is then the end of the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the robot's to answer; it tells the workers
    # A signal to end is obeyed after the messages that are there: one of them may name a folder that nobody else would remove.
    told_to_end, tell = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGTERM, lambda *_: None)
    if tied:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    import parl_like.drivers.worker as worker  # what takes long

    if os.getppid() != parent:
        os.write(tell, b"!")
    children: dict[int, int] = {}  # pidfd → process id
    folders: set[str] = set()

    def end() -> None:
        for pidfd in children:
            _end_group(children[pidfd])
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    def report(*numbers: int) -> None:
        try:
            os.write(reports, b"".join(map(_NUMBERS.pack, numbers)))
        except BrokenPipeError:  # the robot has ended
            end()

    while True:
        ready = readable([control, told_to_end, *children], IDLE)
        if not ready and not children and not any(map(os.path.exists, folders)):
            end()
        for pidfd in ready:
            if pidfd in children:
                pid = children.pop(pidfd)
                os.close(pidfd)
                _end_group(pid)  # before it is waited for, so that its number is nobody else's
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                report(-pid, code)
        if control not in ready:
            if told_to_end in ready:
                end()
            continue
        head = _read(control, 8)
        size = _NUMBERS.unpack(head)[0] if len(head) == 8 else 0
        payload = _read(control, abs(size))
        if not payload or len(payload) < abs(size):
            end()
        if size < 0:
            folders.add(payload.decode())
            continue
        me = os.getpid()
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)  # what the environments start ends with the worker
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _die_with_parent(me)
            for fd in (control, reports, told_to_end, tell, *children):
                os.close(fd)
            code = 1
            try:
                worker.work(payload)
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:  # noqa: BLE001  printed, as at the end of any program
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)  # not back into the nursery's loop
        children[os.pidfd_open(pid)] = pid
        report(pid)


# ------------------------------------------------------------------------------------------------------- in the robot's process


class Child:
    """A worker's process.

    Attributes:
        pidfd: Becomes readable when it ends; -1 after `forget`.
        code: Its exit code once it is known, minus the signal that ended it; None before.
    """

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.nursery, self.pid = nursery, pid
        self.pidfd = os.pidfd_open(pid)
        self.code: int | None = None

    def kill(self) -> None:
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):  # it has ended
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        ended = bool(readable([self.pidfd], seconds))
        if ended and self.code is None:
            self.nursery.read_reports(self, 1.0)
        return ended

    def forget(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Nursery:
    """The robot's end. One serves all robots of a process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._children: weakref.WeakValueDictionary[int, Child] = weakref.WeakValueDictionary()
        self._control = self._reports = -1
        self._owner = 0
        self._folders: set[str] = set()

    def make_folder(self, where: str) -> str:
        """A new folder in the folder `where`, that only this user may enter; the nursery removes it when it ends, should nobody have done so before.

        Raises:
            OSError: it cannot be made; this is no Linux; the system has no process left.
        """
        path = os.path.join(where, f"parl_like-{secrets.token_hex(6)}")
        with shielded(), self.lock:
            self._ensure()
            self._folders.add(path)
            with suppress(BrokenPipeError):  # it has just ended; the next one is told
                self._tell(path)
            try:
                os.mkdir(path, 0o700)
            except OSError:
                self._folders.discard(path)
                raise
        return path

    def remove_folder(self, path: str) -> None:
        """What `make_folder` made, and all that is in it."""
        shutil.rmtree(path, ignore_errors=True)
        self._folders.discard(path)

    def _tell(self, folder: str) -> None:
        path = folder.encode()
        self._write(_NUMBERS.pack(-len(path)) + path)

    def start(self, payload: bytes) -> Child:
        """Makes a worker, from a payload for `parl_like.drivers.worker.work`.

        Raises:
            OSError: this is no Linux, or the system has no process left.
        """
        with shielded(), self.lock:  # Ctrl-C between question and answer would leave the answer to the next who asks
            for _ in range(2):  # once more, should the nursery have been killed
                self._ensure()
                try:
                    self._write(_NUMBERS.pack(len(payload)) + payload)
                    end = monotonic() + START_LIMIT
                    while monotonic() < end:
                        number = self._next(end - monotonic())
                        if number > 0:
                            child = self._children[number] = Child(self, number)
                            return child
                    self._process.kill()  # type: ignore[union-attr]  # it is stopped, or the machine stands still
                    raise EOFError
                except (BrokenPipeError, EOFError, ProcessLookupError):
                    self._end()
            raise OSError("the process that starts the workers ends at once; look at what it has printed above")

    def _ensure(self) -> None:
        if self._owner == os.getpid() and self._process is not None and self._process.poll() is None:
            return
        if sys.platform != "linux":
            raise OSError(f"driver='processes' needs Linux (pidfd, death signals); this is {sys.platform}. Use driver='cooperative' or 'threads'")
        self._end()
        if self._owner != os.getpid():  # a forked copy, which has no folders
            self._folders.clear()
        read_end, self._control = os.pipe()
        self._reports, write_end = os.pipe()
        parent, from_main = os.getpid(), threading.current_thread() is threading.main_thread()
        code = "import sys; from parl_like.drivers.nursery import main; main(*map(int, sys.argv[1:]))"
        where = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([where, *filter(None, [os.environ.get("PYTHONPATH")])])}
        arguments = [sys.executable, "-c", code, *map(str, (read_end, write_end, parent, int(from_main)))]
        self._process = subprocess.Popen(arguments, pass_fds=(read_end, write_end), stdin=subprocess.DEVNULL, start_new_session=True, env=environment)
        self._owner = parent
        os.close(read_end)
        os.close(write_end)
        for folder in self._folders:
            self._tell(folder)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._control, view) :]

    def _next(self, seconds: float) -> int:
        """The next number that the nursery tells of a child made; 0 when it tells of an end, which is noted, or the time is over.

        Raises:
            EOFError: the nursery has ended.
        """
        if not readable([self._reports], seconds):
            return 0
        data = _read(self._reports, 8)
        if len(data) < 8:
            raise EOFError
        number = int(_NUMBERS.unpack(data)[0])
        if number > 0:
            return number
        code = int(_NUMBERS.unpack(_read(self._reports, 8))[0])
        child = self._children.pop(-number, None)
        if child is not None:
            child.code = code
        return 0

    def read_reports(self, child: Child, seconds: float) -> None:
        """Notes what the nursery tells, until it has told of the end of `child`."""
        with self.lock:
            end = monotonic() + seconds
            try:
                while child.code is None and monotonic() < end:
                    self._next(0.05)
            except EOFError:
                child.code = -int(signal.SIGKILL)  # by the nursery's own end

    def _end(self) -> None:
        if self._process is None:
            return
        os.close(self._control)
        os.close(self._reports)
        if self._owner == os.getpid():
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for child in self._children.values():  # they end with it, and nobody tells how
            child.code = -int(signal.SIGKILL)
        self._children.clear()
        self._process = None

    def close(self) -> None:
        """Ends the nursery and every worker; the next `start` makes another."""
        with self.lock:
            self._end()


NURSERY: Any = Nursery()
atexit.register(NURSERY.close)
