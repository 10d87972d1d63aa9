"""ForkServer: a process that has imported once what its children need, and forks them from there.

A child so begins in some 10 ms instead of the seconds that imports take, and shares their memory with its siblings. The server
runs none of the user's code and has one thread, so a fork of it is clean. It ends, kills its children and removes the folders
that it was told of, when its parent ends, whatever that dies of: then the socket between them closes, or, where another process
has inherited that, the parent's pidfd tells. A child leads a process group, so that what it starts ends with it, and gets a death
signal when the server ends, also while it hangs in C and holds the interpreter's lock.

To the server goes `_TWO` with the child's file descriptors, then a JSON text and the child's payload, of so many bytes each; or a
text alone, which names a folder that is about to be made. From it comes `_TWO`: the process id of a child that was made and 0,
with its pidfd; or, when it has ended, minus its id and its exit code.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from parl_like.process.child import Child, readable, shielded

_TWO = struct.Struct("<qq")
_MAX_FDS = 16

START_LIMIT = 60.0
"""Seconds that a fork server may take to begin, which imports, and to fork."""

IDLE = 30.0
"""Seconds that a fork server without children waits for the next one before it ends, where `ForkServer.idle` says nothing else;
another is started where one is wanted after that."""


# ---------------------------------------------------------------------------------------------------------------- the server


def serve(control_fd: int, parent: int, target: str, idle: float, *preload: str) -> None:
    """The life of a fork server; never returns.

    Args:
        control_fd: Its end of the socket.
        parent: Process id of who started it.
        target: "module:function". The module is imported at once, the function called in each child with the payload and its file
            descriptors.
        idle: Seconds without children after which it ends.
        preload: Names of further modules that are imported at once.
    """
    control = socket.socket(fileno=control_fd)
    for number in (signal.SIGINT, signal.SIGTERM):  # they are the parent's to answer, with whom this ends
        signal.signal(number, signal.SIG_IGN)
    try:
        parent_fd = os.pidfd_open(parent)
    except ProcessLookupError:  # it has ended already: always readable, as a pidfd would be
        parent_fd = os.open(os.devnull, os.O_RDONLY)
    module, _, function = target.partition(":")
    work = getattr(importlib.import_module(module), function)  # what takes long
    for name in preload:
        importlib.import_module(name)
    me = os.getpid()
    children: dict[int, int] = {}  # pidfd → process id
    folders: set[str] = set()

    def end_group(pid: int) -> None:
        """Kills a child that has not been waited for, and what it has started."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            os.killpg(pid, signal.SIGKILL)

    def end() -> None:
        for pid in children.values():
            end_group(pid)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    def report(*numbers: int, fds: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(control, [_TWO.pack(*numbers)], fds)
        except OSError:  # the parent has ended
            end()

    while True:
        ready = readable([control_fd, parent_fd, *children], idle)
        if not ready and not children and not any(map(os.path.exists, folders)):
            end()
        for pidfd in ready:
            if pidfd in children:
                pid = children.pop(pidfd)
                os.close(pidfd)
                end_group(pid)  # before it is waited for, so that its number is nobody else's
                report(-pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if control_fd not in ready:
            if parent_fd in ready:
                end()
            continue
        try:
            head, fds, *_ = socket.recv_fds(control, _TWO.size, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            sizes = _TWO.unpack(head)
            text, payload = (control.recv(size, socket.MSG_WAITALL) if size else b"" for size in sizes)
        except (OSError, struct.error):  # the other end was closed, in the middle of a message or before
            end()
        if (len(text), len(payload)) != sizes:
            end()
        order = json.loads(text)
        if "folder" in order:
            folders.add(order["folder"])
            continue
        pid = os.fork()
        if not pid:
            _run_child(me, [control_fd, parent_fd, *children], fds, order, work, payload)
        pidfd = os.pidfd_open(pid)
        children[pidfd] = pid
        for fd in fds:
            os.close(fd)
        report(pid, 0, fds=[pidfd])


def _run_child(server: int, closing: Sequence[int], fds: Sequence[int], order: Mapping[str, Any], work: Callable[..., None],
               payload: bytes) -> None:
    """Do all that a fork does from its first moment to its last; never return.

    Args:
        server: Process id of the fork server, with which it ends.
        closing: File descriptors of the fork server that are none of its business.
        fds: Its standard output and error, and those for its work.
        order: `sys.path`, `os.environ` and the working directory of who asked for it.
        work: Called with payload and file descriptors; an exception is printed and makes the exit code 1.
    """
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Ctrl-C is for the process at the top. Not SIG_IGN: what an environment starts would inherit that.
        signal.signal(signal.SIGINT, lambda *_: None)
        # PR_SET_PDEATHSIG, which fires when the thread ends that forked: the fork server's only one.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != server:  # it has ended in between
            os._exit(1)
        for fd in closing:
            os.close(fd)
        for number in (1, 2):
            os.dup2(fds[number - 1], number)
            os.close(fds[number - 1])
        sys.path[:] = order["path"]
        os.environ.clear()
        os.environ.update(order["environment"])
        with suppress(OSError):  # it was deleted
            os.chdir(order["directory"])
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()  # an environment may draw from the global generator, which all forks share else
        work(payload, *fds[2:])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  printed, as at the end of any program
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # not back into the fork server's loop


_BOOT = ("import sys; from parl_like.process.fork_server import serve; "
         "serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), *sys.argv[5:])")


# ---------------------------------------------------------------------------------------------------------------- the parent


class ForkServer:
    """The parent's end: `start` makes children, and a server where there is none.

    Args:
        target: "module:function", what a child does: function(payload, *fds). Importing the module must start no thread.

    Attributes:
        idle: Seconds without children after which a server ends.
        preload: Names of installed modules that the next server imports too, so that each child need not. They start no thread.
    """

    def __init__(self, target: str) -> None:
        self.target, self.idle = target, IDLE
        self.preload: tuple[str, ...] = ()
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._children: weakref.WeakValueDictionary[int, Child] = weakref.WeakValueDictionary()
        self._folders: set[str] = set()
        self._owner = 0  # the process that started it: a forked copy of that has none
        atexit.register(self.close)

    @property
    def pid(self) -> int | None:
        """Process id of the server; None where none runs."""
        process = self._process if self._owner == os.getpid() else None
        return process.pid if process is not None and process.poll() is None else None

    def make_folder(self, where: str) -> str:
        """A new folder in the folder `where`, that only this user may enter; the server removes it when it ends, should nobody
        have done so before.

        Raises:
            OSError: it cannot be made; this is no Linux; the system has no process left.
        """
        path = os.path.join(where, f"parl_like-{secrets.token_hex(6)}")
        with shielded(), self.lock:
            self._ensure()
            self._folders.add(path)
            with suppress(BrokenPipeError):  # it has just ended; the next one is told
                self._send({"folder": path})
            try:
                os.mkdir(path, 0o700)
            except OSError:
                self._folders.discard(path)
                raise
        return path

    def remove_folder(self, path: str) -> None:
        """Remove what `make_folder` made, and all that is in it."""
        shutil.rmtree(path, ignore_errors=True)
        self._folders.discard(path)

    def _send(self, order: Mapping[str, object], payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        text = json.dumps(order).encode()
        socket.send_fds(self._control, [_TWO.pack(len(text), len(payload))], fds)
        self._control.sendall(text + payload)

    def start(self, payload: bytes, fds: Sequence[int] = ()) -> Child:
        """Makes a child. It has this process's `sys.path`, environment, working directory and output as they are now.

        Args:
            payload: For the target.
            fds: File descriptors that the child gets copies of; their numbers there follow the payload.

        Raises:
            OSError: this is no Linux, or the system has no process left.
        """
        try:
            directory = os.getcwd()
        except OSError:  # it was deleted
            directory = "/"
        order = {"path": [p for p in sys.path if isinstance(p, str)], "environment": dict(os.environ), "directory": directory}
        with shielded(), self.lock:  # Ctrl-C between question and answer would leave the answer to the next who asks
            for _ in range(2):  # once more, should the server have been killed
                process = self._ensure()
                try:
                    self._send(order, payload, [1, 2, *fds])
                    end = monotonic() + START_LIMIT
                    while monotonic() < end:
                        if child := self._next(end - monotonic()):
                            return child
                    process.kill()  # it is stopped, or the machine stands still
                except (BrokenPipeError, ConnectionResetError, EOFError):
                    pass
                self._end()
            raise OSError("the process that starts the workers ends at once; look at what it has printed above")

    def _ensure(self) -> subprocess.Popen[bytes]:
        """The server, which is made where none runs."""
        if self._process is not None and self.pid is not None:
            return self._process
        if sys.platform != "linux":
            raise OSError(f"worker processes need Linux (pidfd, death signals); this is {sys.platform}. Use "
                          "driver='cooperative' or 'threads', and vector environments of kind 'sync' or 'thread'")
        self._end()
        if self._owner != os.getpid():  # a forked copy, which has no folders
            self._folders.clear()
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        where = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([where, *filter(None, [os.environ.get("PYTHONPATH")])])}
        arguments = [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(self._owner), self.target, str(self.idle),
                     *self.preload]
        with theirs:
            self._process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                             start_new_session=True, env=environment)
        for folder in self._folders:
            self._send({"folder": folder})
        return self._process

    def _next(self, seconds: float) -> Child | None:
        """The child that the server tells of next; None when it tells of an end, which is noted, or the time is over.

        Raises:
            EOFError: the server has ended.
        """
        if not readable([self._control.fileno()], seconds):
            return None
        data, fds, *_ = socket.recv_fds(self._control, _TWO.size, 1, socket.MSG_CMSG_CLOEXEC)
        if len(data) < _TWO.size:
            raise EOFError
        pid, code = _TWO.unpack(data)
        if pid > 0:
            child = self._children[pid] = Child(pid, fds[0], self._wait_for_code)
            return child
        ended = self._children.pop(-pid, None)
        if ended is not None:
            ended.code = code
        return None

    def _wait_for_code(self, child: Child) -> None:
        """Notes what the server tells, until it has told of the end of `child`; for 10 s, as on a machine that stands still."""
        with self.lock:
            end = monotonic() + 10.0
            try:
                while child.code is None and monotonic() < end:
                    self._next(0.05)
            except (EOFError, OSError):
                child.code = -int(signal.SIGKILL)  # by the server's own end

    def _end(self) -> None:
        if self._process is None:
            return
        self._control.close()
        if self._owner == os.getpid():
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        else:
            self._process.returncode = 0  # another process's child; else Popen warns that it still runs
        for child in self._children.values():  # they end with it, and nobody tells how
            child.code = -int(signal.SIGKILL)
        self._children.clear()
        self._process = None

    def close(self) -> None:
        """Ends the server and every child; the next `start` makes another."""
        with self.lock:
            self._end()
