"""Hosts: where a group of environments lives. In the calling thread, in a thread of its own, or in a worker process."""

from __future__ import annotations

import faulthandler
import os
import pickle
import queue
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import cloudpickle

import parl_like.envs.make  # noqa: F401 - what most factories need is imported before workers are forked
from parl_like.envs.vector.columns import Status
from parl_like.envs.vector.group import EnvFailed, Group, GroupOptions, Reply, faults
from parl_like.process.child import Child
from parl_like.process.fork_server import ForkServer
from parl_like.process.shared_memory import nameless_file
from parl_like.values.errors import shortened

CLOSE_TIMEOUT = 2.0
"""Seconds that all workers together may take to close their environments before they are ended."""

LOOK_TIME = 0.5
"""Seconds after which who waits reads the deadline again: it may have come nearer, with another call of the group's."""

FORK_SERVER = ForkServer("parl_like.envs.vector.hosts:serve")
"""Makes the worker processes of all vector environments of this process."""


class Host(ABC):
    """The home of a group of environments: layer 5 of six. `send` starts an operation of `Group`, `receive` waits for what it
    returns, until the deadline in `status` that the sender set and the group moves on, environment by environment.

    Args:
        options: The group's.
        status: What the groups say of themselves.
        memory: File descriptor of the columns' file; −1: they lie in this process.

    Attributes:
        pickles: Environments' factories are pickled for it.
        limits_time: It can be left while an environment runs.
    """

    pickles = False
    limits_time = True

    def __init__(self, options: GroupOptions, status: Status, memory: int) -> None:
        self.options, self.status, self.memory = options, status, memory

    @abstractmethod
    def start(self, generation: int) -> None:
        """Begins it, with an empty group; again where it was lost."""

    @abstractmethod
    def send(self, op: str, *args: Any) -> None:
        """Starts an operation of its group; where the host is gone, `receive` says so."""

    @abstractmethod
    def receive(self) -> Any:
        """Return what the operation returned, or raise what it raised; an EnvFailed that says `lost` where the host is lost and
        has ended."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once."""

    @abstractmethod
    def close(self) -> None:
        """Waits until a started "close" is done, or it is overdue; ends it; raises what an environment raised in that."""

    def left(self) -> float:
        """Seconds until what runs is overdue."""
        return float(self.status.deadline[self.options.number]) - time.monotonic()

    def lost(self, fault: str, what: str, trace: str = "") -> EnvFailed:
        """The error of a host that died or hangs."""
        at = int(self.status.at[self.options.number])
        failed = EnvFailed(what, min(max(~at if at < 0 else at, self.options.lo), self.options.hi - 1), fault, trace)
        failed.lost = True
        return failed

    def hung(self, trace: str) -> EnvFailed:
        """The error of what is overdue."""
        if self.status.at[self.options.number] < 0:
            return self.lost("hung", f"hung: making it took more than {self.options.start_timeout} s; if that is no fault, raise "
                                     "start_timeout, or give None", trace)
        return self.lost("hung", f"hung: its call took more than {self.options.step_timeout} s", trace)


def _serve(group: Group, receive: Callable[[], Any], answer: Callable[[Any, BaseException | None], None]) -> None:
    """Runs a group's operations, (name, arguments) each, until there are no more or it was closed."""
    while (job := receive()) is not None:
        op, args = job
        try:
            out, error = getattr(group, op)(*args), None
        except BaseException as raised:  # noqa: BLE001 - raised in who waits for it
            out, error = None, raised
        answer(out, error)
        if op == "close":
            return
    group.close_quietly()


class InlineHost(Host):
    """In the thread that calls: no child, no second copy, so a breakpoint works, and an error has the whole stack."""

    limits_time = False
    group: Group | None = None
    _error: BaseException | None = None

    def start(self, generation: int) -> None:
        self.group = Group(self.options, generation, self.status)

    def send(self, op: str, *args: Any) -> None:
        try:
            self._answer = getattr(self.group, op)(*args)
        except faults() as error:  # raised by `receive`, as every host does
            self._error = error

    def receive(self) -> Any:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._answer

    def kill(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.close_quietly()

    def close(self) -> None:
        if self.group is not None:
            self.group = None
            self.receive()


class ThreadHost(Host):
    """In a thread of its own: for environments that wait, or release the GIL. One that hangs is left behind, for threads cannot
    be ended."""

    thread: threading.Thread | None = None

    def start(self, generation: int) -> None:
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._group = Group(self.options, generation, self.status)
        out = self._out  # not self: a thread that hangs must not keep the environment's owner alive
        target = partial(_serve, self._group, self._in.get, lambda value, error: out.put((value, error)))
        name = f"environments {self.options.lo} to {self.options.hi - 1}"
        self.thread = threading.Thread(target=target, name=name, daemon=True)
        self.thread.start()

    def send(self, op: str, *args: Any) -> None:
        if self.thread is not None:
            self._in.put((op, args))

    def receive(self) -> Any:
        while True:
            left = self.left()
            try:
                answer, error = self._out.get(timeout=min(max(left, 0.0), LOOK_TIME))
                break
            except queue.Empty:
                if left <= 0:
                    frame = sys._current_frames().get(self.thread.ident or 0) if self.thread is not None else None
                    failed = self.hung("".join(traceback.format_stack(frame)) if frame is not None else "")
                    self.kill()
                    self.thread = None
                    raise failed from None
        if error is not None:
            raise error
        return answer

    def kill(self) -> None:
        if self.thread is not None:
            self._group.abandoned = True
            self._in.put(("close", ()))

    def close(self) -> None:
        thread, self.thread = self.thread, None
        if thread is None or thread.ident is None:  # it was left behind, or an interruption came before it had begun
            return
        thread.join(max(0.0, self.left()))
        if not self._group.abandoned and not self._out.empty():
            self.receive()


# ------------------------------------------------------------------------------------------------------------------ processes


_SIZE = struct.Struct("<I")
_STEP = ("step", ())
"""The operation that an empty message asks for."""


class Channel:
    """One end of a socket that carries messages of any length, mostly of none."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, payload: bytes = b"") -> None:
        """Send one message. Raises OSError: the other end is gone."""
        self.sock.sendall(_SIZE.pack(len(payload)) + payload)

    def receive(self, wait: Callable[[], None] = lambda: None) -> bytes:
        """The next message; `wait` returns when there is something to read, or raises. Raises EOFError: the other end is gone."""
        return self._read(_SIZE.unpack(self._read(_SIZE.size, wait))[0], wait)

    def _read(self, size: int, wait: Callable[[], None]) -> bytes:
        parts: list[bytes] = []
        while size:
            wait()
            try:
                part = self.sock.recv(min(size, 1 << 20))
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def serve(payload: bytes, sock: int, memory: int, trace: int) -> None:
    """The life of a worker process: options and generation of its group, pickled; file descriptors of a connected socket, of the
    file that columns lie in, and of the file for last words."""
    faulthandler.enable(trace)
    faulthandler.register(signal.SIGUSR1, trace)
    channel = Channel(socket.socket(fileno=sock))

    def receive() -> Any:
        try:
            message = channel.receive()
        except EOFError:
            return None
        return pickle.loads(message) if message else _STEP

    def answer(out: Any, error: BaseException | None) -> None:
        channel.send(b"" if out is None and error is None else _dumped(out, error))

    options, generation = pickle.loads(payload)
    _serve(Group(options, generation, Status(options.groups, memory), memory), receive, answer)


def _dumped(out: Any, error: BaseException | None) -> bytes:
    """An answer in bytes, with text for what cannot travel."""
    if isinstance(error, EnvFailed):
        error.cause = _portable(error.cause, _as_text)
    try:
        return bytes(cloudpickle.dumps((out, _portable(error, _as_text))))
    except Exception as unsendable:  # noqa: BLE001 - whatever an info, or what a call returns, may hold
        if isinstance(out, Reply) and out.infos:
            infos: Any = {i: tuple({_portable(name): _portable(value) for name, value in info.items()} for info in both)
                          for i, both in out.infos.items()}
            return _dumped(out._replace(infos=infos), None)
        return _dumped(None, unsendable)


def _portable(value: Any, text: Callable[[Any], Any] = repr) -> Any:
    """`value` where it can be pickled, and back, which not all can; else its text."""
    try:
        pickle.loads(cloudpickle.dumps(value))
        return value
    except Exception:  # noqa: BLE001 - a pickle method may raise what it likes
        return text(value)


def _as_text(error: BaseException) -> RuntimeError:
    return RuntimeError(shortened("".join(traceback.format_exception(error))))


class ProcessHost(Host):
    """In a worker process, a fork of a process that has run no code of the user's: threads and locks of this process do no harm.

    Scripts need no `if __name__ == "__main__"`. Workers end with this process, whatever it dies of. Columns lie in memory without
    a name, so nothing can be left over.
    """

    pickles = True
    process: Child | None = None

    def start(self, generation: int) -> None:
        ours, theirs = socket.socketpair()
        self.trace = nameless_file("trace")
        self.channel = Channel(ours)
        try:
            with theirs:
                payload = pickle.dumps((self.options, generation))
                self.process = FORK_SERVER.start(payload, [theirs.fileno(), self.memory, self.trace])
        except BaseException:
            self._tidy()
            raise
        self._poll, self._sock = select.poll(), ours.fileno()
        self._poll.register(ours, select.POLLIN)
        self._poll.register(self.process.pidfd, select.POLLIN)

    def send(self, op: str, *args: Any) -> None:
        if self.process is not None:
            with suppress(OSError):  # it is gone; `receive` says so
                self.channel.send(b"" if op == "step" else bytes(cloudpickle.dumps((op, args))))

    def receive(self) -> Any:
        try:
            message = self.channel.receive(self._wait)
        except (EOFError, TimeoutError) as error:
            failed = self.hung(self._stack()) if isinstance(error, TimeoutError) else self._died()
            self.kill()
            raise failed from None
        return self._loaded(message) if message else None

    def _loaded(self, message: bytes) -> Any:
        try:
            out, error = pickle.loads(message)
        except Exception as unreadable:
            what = (f"or another one of its worker, up to {self.options.hi - 1}, gave what cannot be read in this process "
                    f"({type(unreadable).__name__}: {unreadable}); put plain values into infos")
            raise EnvFailed(what, self.options.lo, "output", traceback.format_exc(), unreadable) from unreadable
        if error is not None:
            raise error
        return out

    def _wait(self) -> None:
        """Waits for something to read. Raises TimeoutError where it is overdue, EOFError where the process has ended while what
        the environment has started still holds the connection."""
        while True:
            left = self.left()
            ready = self._poll.poll(min(max(left, 0.0), LOOK_TIME) * 1000)
            if ready:
                if len(ready) == 2 or ready[0][0] == self._sock:
                    return
                raise EOFError
            if left <= 0:
                raise TimeoutError

    def _died(self) -> EnvFailed:
        assert self.process is not None
        what = f"was lost: its worker process {self.process.pid} "
        if not self.process.wait(CLOSE_TIMEOUT) or (code := self.process.code) is None:
            return self.lost("died", what + "closed the connection")
        what += f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        what += " while it was made" if self.status.at[self.options.number] < 0 else ""
        return self.lost("died", what, self._last_words())

    def _last_words(self) -> str:
        return os.pread(self.trace, 1 << 16, 0).decode(errors="replace")

    def _stack(self) -> str:
        """Return where the environment is, as the worker's faulthandler tells it, in C, without the help of a Python that
        hangs."""
        assert self.process is not None
        self.process.send_signal(signal.SIGUSR1)
        for _ in range(100):
            if words := self._last_words():
                time.sleep(0.005)  # the rest of it
                return self._last_words() or words
            time.sleep(0.005)
        return ""

    def kill(self) -> None:
        if (process := self.process) is not None:
            process.kill()
            process.wait(CLOSE_TIMEOUT)  # then what the environments have started is gone, too
            self.process = None  # last: who is interrupted before can kill again
            process.forget()
            self._tidy()

    def close(self) -> None:
        if self.process is None:
            return
        try:
            self.receive()
            self.process.wait(max(self.left(), 0.0))
        except EnvFailed as failed:
            if not failed.lost:
                raise
        finally:
            self.kill()

    def _tidy(self) -> None:
        self.channel.sock.close()
        os.close(self.trace)


HOSTS: dict[str, type[Host]] = {"sync": InlineHost, "thread": ThreadHost, "process": ProcessHost}
