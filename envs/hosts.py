"""Hosts: where a group of environments lives. In the calling thread, in a thread of its own, or in a worker process."""

from __future__ import annotations

import faulthandler
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import cloudpickle
from gymnasium.vector import AutoresetMode

import parl_like.envs.make  # noqa: F401 - what most factories need is imported before workers are forked
from parl_like.envs.columns import Columns
from parl_like.envs.group import Abandoned, EnvFailed, Group, Reply
from parl_like.process.child import Child
from parl_like.process.fork_server import ForkServer
from parl_like.process.shared_memory import nameless_file

CLOSE_TIMEOUT = 2.0
"""Seconds that all workers together may take to close their environments before they are ended."""

FORK_SERVER = ForkServer("parl_like.envs.hosts:serve")
"""Makes the worker processes of all vector environments of this process."""


class Host:
    """Where a group of environments lives: layer 5 of six. `send` starts an operation of `Group`, `receive` waits for what it
    returns.

    Args:
        lo, hi: The group's environments. number: The group's.
        mode: See `make_vector_env`.
        step_timeout: Seconds that a call into an environment may take; None: any. start_timeout: that making one may take.
        memory: File descriptor of the columns' file; −1: they lie in this process.

    Attributes:
        pickles: Environments' factories are pickled for it.
        limits_time: It can be left while an environment runs.
        columns: Where its group says since when it does what; None until it was told to write there.
        core: Processor that it is to stay on; None: any.
    """

    pickles = False
    limits_time = True
    core: int | None = None

    def __init__(
        self, lo: int, hi: int, number: int, mode: AutoresetMode, step_timeout: float | None, start_timeout: float | None,
        memory: int,
    ) -> None:
        self.lo, self.hi, self.number, self.mode = lo, hi, number, mode
        self.step_timeout, self.start_timeout, self.memory = step_timeout, start_timeout, memory
        self.columns: Columns | None = None
        self._began = self._closing_ends = 0.0

    def start(self) -> None:
        """Begins it, with an empty group."""
        raise NotImplementedError

    def send(self, op: str, *args: Any) -> None:
        """Starts an operation of its group; where the host is gone, `receive` says so."""
        raise NotImplementedError

    def receive(self) -> Any:
        """What the operation returned, or raised.

        Raises:
            EnvFailed: The host is `lost`, or to be given up.
        """
        raise NotImplementedError

    def kill(self) -> None:
        """Ends it at once."""

    def leave(self) -> None:
        """Asks it to close its environments; `close` waits for that. So all hosts do it at the same time."""

    def close(self) -> None:
        """Closes the environments in good order, and ends it. Comes after `leave`, and mostly finds it done."""

    def _running(self) -> tuple[float, float | None]:
        """When what runs has begun; the seconds that it may take. What makes environments goes by a limit of its own."""
        if self.columns is None:
            return self._began, None if self.start_timeout is None else self.start_timeout * (self.hi - self.lo)
        since = float(self.columns.busy[self.number])
        return (since, self.step_timeout) if since >= 0 else (-since, self.start_timeout)

    def _left(self) -> float | None:
        """Seconds until what runs is overdue; None: it may take any time."""
        since, limit = self._running()
        return None if limit is None else since + limit - time.monotonic()

    def _lost(self, fault: str, what: str, trace: str = "") -> EnvFailed:
        at = self.lo if self.columns is None else min(max(int(self.columns.at[self.number]), self.lo), self.hi - 1)
        failed = EnvFailed(what, at, fault, trace)
        failed.lost = True
        return failed

    def _hung(self, trace: str) -> EnvFailed:
        _, limit = self._running()
        if self.columns is None or self.columns.busy[self.number] < 0:
            which = f"environments {self.lo} to {self.hi - 1} of its worker" if self.columns is None else "it"
            what = f"hung: making {which} took more than {limit} s; if that is no fault, raise start_timeout, or give None"
            return self._lost("hung", what, trace)
        return self._lost("hung", f"hung: its call took more than {limit} s", trace)


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
    with suppress(Abandoned):
        group.close_quietly()


class InlineHost(Host):
    """In the thread that calls: no child, no second copy, so a breakpoint works, and an error has the whole stack."""

    limits_time = False
    group: Group | None = None
    _error: Exception | None = None

    def start(self) -> None:
        self.group = Group(self.lo, self.hi, self.number, self.mode)

    def send(self, op: str, *args: Any) -> None:
        try:
            self._answer = getattr(self.group, op)(*args)
        except Exception as error:  # noqa: BLE001 - raised by `receive`, as every host does
            self._error = error

    def receive(self) -> Any:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._answer

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.close()


class ThreadHost(Host):
    """In a thread of its own: for environments that wait, or release the GIL. One that hangs is left behind, for threads cannot
    be ended."""

    thread: threading.Thread | None = None

    def start(self) -> None:
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        group = Group(self.lo, self.hi, self.number, self.mode)
        self._abandoned, self._is_hung = group.abandoned, False
        out = self._out  # not self: a thread that hangs must not keep the environment's owner alive
        target = partial(_serve, group, self._in.get, lambda value, error: out.put((value, error)))
        self.thread = threading.Thread(target=target, name=f"environments {self.lo} to {self.hi - 1}", daemon=True)
        self.thread.start()

    def send(self, op: str, *args: Any) -> None:
        self._in.put((op, args))

    def receive(self) -> Any:
        self._began = time.monotonic()
        while True:
            left = self._left()
            try:
                answer, error = self._out.get(timeout=None if left is None else min(max(left, 0.0), 3600.0))
                break
            except queue.Empty:
                left = self._left()
                if left is not None and left <= 0:
                    self._is_hung = True
                    raise self._hung(self._stack()) from None
        if error is not None:
            raise error
        return answer

    def _stack(self) -> str:
        frame = sys._current_frames().get(self.thread.ident or 0) if self.thread is not None else None
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def kill(self) -> None:
        if self.thread is not None:
            self._abandoned.set()
            self._in.put(None)

    def leave(self) -> None:
        if self.thread is not None:
            self._closing_ends = time.monotonic() + CLOSE_TIMEOUT
            self._in.put(("close", ()))

    def close(self) -> None:
        thread, self.thread = self.thread, None
        if thread is None or thread.ident is None or self._is_hung:  # there is none, or an interruption came before it had begun
            return
        thread.join(max(0.0, self._closing_ends - time.monotonic()))
        error = None
        while not self._out.empty():
            _, error = self._out.get()
        if error is not None and not self._abandoned.is_set():
            raise error


# ------------------------------------------------------------------------------------------------------------------ processes


_SIZE = struct.Struct("<I")


class Channel:
    """One end of a socket that carries messages of any length, mostly of none."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, payload: bytes = b"") -> None:
        if payload:
            self.sock.settimeout(None)  # what the last wait has left may be too short for a long message
        self.sock.sendall(_SIZE.pack(len(payload)) + payload)

    def receive(self, wait: Callable[[], float | None] | None = None) -> bytes:
        """The next message.

        Args:
            wait: Called before each wait; returns for how many seconds to wait until it is called again, and raises to give up.

        Raises:
            EOFError: The other end is gone.
        """
        size = _SIZE.unpack(self._read(_SIZE.size, wait))[0]
        return self._read(size, wait)

    def _read(self, size: int, wait: Callable[[], float | None] | None) -> bytes:
        parts: list[bytes] = []
        while size:
            if wait is not None:
                self.sock.settimeout(wait())
            try:
                part = self.sock.recv(min(size, 1 << 20))
            except TimeoutError:
                continue
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def has_message(self) -> bool:
        """Whether something can be read without waiting."""
        self.sock.settimeout(0.0)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
            return True
        except OSError:
            return False


_STEP = ("step", ())
"""What an empty message asks for."""


def serve(payload: bytes, sock: int, memory: int, trace: int) -> None:
    """The life of a worker process.

    Args:
        payload: Arguments of its group, pickled.
        sock: File descriptor of a connected socket. memory: of the file that columns lie in. trace: of the file for last words.
    """
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

    lo, hi, number, mode = pickle.loads(payload)
    _serve(Group(lo, hi, number, mode, memory), receive, answer)


def _dumped(out: Any, error: BaseException | None) -> bytes:
    """An answer in bytes, with text for what cannot travel."""
    if isinstance(out, Reply):
        for fault in out.faults:
            fault.cause = _sendable(fault.cause)
    try:
        return bytes(cloudpickle.dumps((out, _sendable(error))))
    except Exception as unsendable:  # noqa: BLE001 - whatever an info, or what a call returns, may hold
        if isinstance(out, Reply) and out.infos:
            return _dumped(out._replace(infos=[_in_words(entry) for entry in out.infos]), None)
        return _dumped(None, unsendable)


def _sendable(error: BaseException | None) -> BaseException | None:
    """`error` where it can be pickled, and back, which not all can; else its text."""
    try:
        pickle.loads(cloudpickle.dumps(error))
        return error
    except Exception:  # noqa: BLE001 - a pickle method may raise what it likes
        return RuntimeError("".join(traceback.format_exception(error)))


def _in_words(entry: tuple[int, dict[str, Any], dict[str, Any]]) -> tuple[Any, ...]:
    """An entry of `Reply.infos` with the text of those values that cannot be pickled."""

    def portable(value: Any) -> Any:
        try:
            cloudpickle.dumps(value)
            return value
        except Exception:  # noqa: BLE001 - a pickle method may raise what it likes
            return repr(value)

    return entry[0], *({portable(name): portable(value) for name, value in info.items()} for info in entry[1:])


class ProcessHost(Host):
    """In a worker process, a fork of a process that has run no code of the user's: threads and locks of this process do no harm.

    Scripts need no `if __name__ == "__main__"`. Workers end with this process, whatever it dies of. Columns lie in memory without
    a name, so nothing can be left over.
    """

    pickles = True
    process: Child | None = None
    _waits = 0

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        self.trace = nameless_file("trace")
        self.channel = Channel(ours)
        try:
            with theirs:
                payload = pickle.dumps((self.lo, self.hi, self.number, self.mode))
                self.process = FORK_SERVER.start(payload, [theirs.fileno(), self.memory, self.trace])
        except BaseException:
            self._tidy()
            raise
        if self.core is not None:
            os.sched_setaffinity(self.process.pid, {self.core})

    def send(self, op: str, *args: Any) -> None:
        with suppress(OSError):  # it is gone; `receive` says so
            self.channel.send(b"" if op == "step" else bytes(cloudpickle.dumps((op, args))))

    def receive(self) -> Any:
        self._waits, self._began = 0, time.monotonic()
        try:
            message = self.channel.receive(self._wait)
        except EOFError:
            raise self._died() from None
        return self._loaded(message) if message else None

    def _loaded(self, message: bytes) -> Any:
        try:
            out, error = pickle.loads(message)
        except Exception as unreadable:
            what = (f"or another one of its worker, up to {self.hi - 1}, gave what cannot be read in this process "
                    f"({type(unreadable).__name__}: {unreadable}); put plain values into infos")
            raise EnvFailed(what, self.lo, "output", traceback.format_exc()) from unreadable
        if error is not None:
            raise error
        return out

    def _wait(self) -> float | None:
        left = self._left()
        if left is not None and left <= 0:
            # While others were waited for, the time may have run out for an answer that had come long before.
            if self.channel.has_message():
                return 1.0
            raise self._hung(self._stack())
        # Not at once: it is a system call, and a process that dies mostly closes its socket, which wakes this one. Only where
        # what the environment has started still holds the socket open does it come to this.
        self._waits += 1
        if self._waits > 1 and self.process is not None and self.process.wait(0.0) and not self.channel.has_message():
            raise self._died()
        return 1.0 if left is None else min(left, 1.0)

    def _died(self) -> EnvFailed:
        assert self.process is not None
        if not self.process.wait(CLOSE_TIMEOUT) or self.process.code is None:
            return self._lost("died", f"was lost: its worker process {self.process.pid} closed the connection")
        code = self.process.code
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        how += " while it was made" if self.columns is None else ""
        return self._lost("died", f"was lost: its worker process {self.process.pid} {how}", self._last_words())

    def _last_words(self) -> str:
        return os.pread(self.trace, 1 << 16, 0).decode(errors="replace")

    def _stack(self) -> str:
        """Where the environment is, as the worker's faulthandler tells it, in C, without the help of a Python that hangs."""
        assert self.process is not None
        self.process.send_signal(signal.SIGUSR1)
        for _ in range(100):
            if words := self._last_words():
                time.sleep(0.005)  # the rest of it
                return self._last_words() or words
            time.sleep(0.005)
        return ""

    def kill(self) -> None:
        process = self.process
        if process is not None:
            process.kill()
            process.wait(CLOSE_TIMEOUT)  # then what the environments have started is gone, too
            self.process = None  # last: who is interrupted before can kill again
            process.forget()
            self._tidy()

    def leave(self) -> None:
        if self.process is not None:
            self._closing_ends = time.monotonic() + CLOSE_TIMEOUT
            self.send("close")

    def close(self) -> None:
        if self.process is None:
            return
        error: BaseException | None = None
        with suppress(EOFError):  # it is ended below
            message = self.channel.receive(self._until_closed)
            _, error = pickle.loads(message) if message else (None, None)
            self.process.wait(self._until_closed())
        self.kill()
        if error is not None:
            raise error

    def _until_closed(self) -> float:
        left = self._closing_ends - time.monotonic()
        if left <= 0:
            raise EOFError
        return left

    def _tidy(self) -> None:
        self.channel.sock.close()
        os.close(self.trace)


HOSTS: dict[str, type[Host]] = {"sync": InlineHost, "thread": ThreadHost, "process": ProcessHost}
