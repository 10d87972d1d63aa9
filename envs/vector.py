"""n copies of an environment as one gymnasium vector environment: in this thread, in threads, or in worker processes."""

from __future__ import annotations

import json
import operator
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parl_like.envs._worker import (
    CODES,
    AlreadyBatched,
    BadOutput,
    Columns,
    EnvFailed,
    Greeting,
    Group,
    Layout,
    Link,
    Reply,
    _dumps,
    fresh_seed,
    given_up,
    own,
)
from parl_like.envs.make import Layers, make_env
from parl_like.process.budget import RestartBudget
from parl_like.process.shared_memory import nameless_file
from parl_like.spec import Array

__all__ = ["EnvFailed", "GroupVectorEnv", "InlineHost", "ProcessHost", "ThreadHost", "create_env", "make_vector_env"]

CLOSE_TIMEOUT = 2.0
"""Seconds that all workers together may take to close their environments before they are ended."""


class Lost(Exception):
    """A host and its environments are gone: `fault` is "hung" or "died", `what` says more, `trace` is what the environment left."""

    def __init__(self, fault: str, what: str, trace: str = "") -> None:
        super().__init__(what)
        self.fault, self.what, self.trace = fault, what, trace


# --------------------------------------------------------------------------------------------------------------------- hosts


class Host:
    """Where a group of environments lives: layer 5 of six. `send` starts an operation of `Group`, `receive` waits for what it returns.

    Args:
        env_fn: Makes one environment.
        lo, hi: The group's environments. number: The group's.
        mode, restart: See `make_vector_env`.
        step_timeout: Seconds that a call into an environment may take; None: any. start_timeout: that making one may take.
        memory: File descriptor of the columns' file; −1: they lie in this process.
        pickled: `env_fn`; b'' unless `pickles`.
    """

    pickles = False
    limits_time = True
    core: int | None = None  # where it is to stay

    def __init__(
        self, env_fn: Callable[[], Any], lo: int, hi: int, number: int, mode: AutoresetMode, restart: bool, step_timeout: float | None,
        start_timeout: float | None, memory: int, pickled: bytes,
    ) -> None:
        self.env_fn, self.lo, self.hi, self.number, self.mode, self.restart = env_fn, lo, hi, number, mode, restart
        self.step_timeout, self.start_timeout, self.memory, self.pickled = step_timeout, start_timeout, memory, pickled
        self.columns: Columns | None = None
        self._began = self._closing_ends = 0.0

    def start(self, generation: int, pending: list[int | None]) -> None:
        """Begins to build the environments; the first `receive` gives their `Greeting`."""
        raise NotImplementedError

    def bind(self, columns: Columns, obs: Layout, act: Layout, n: int, groups: int) -> None:
        """Tells the group where to write; answered by `receive`."""
        raise NotImplementedError

    def send(self, op: str, *args: Any) -> None:
        raise NotImplementedError

    def receive(self) -> Any:
        """What the operation returned.

        Raises:
            EnvFailed, or what the operation raised.
            Lost: The host is gone, or to be given up.
        """
        raise NotImplementedError

    def kill(self) -> None:
        """Ends it at once."""

    def leave(self) -> None:
        """Asks it to close its environments; `close` waits for that. So all hosts do it at the same time."""

    def close(self) -> None:
        """Closes the environments in good order, and ends it. Comes after `leave`, and mostly finds it done."""

    def _args(self, generation: int, pending: list[int | None]) -> tuple[Any, ...]:
        return self.lo, self.hi, self.number, self.mode, self.restart, generation, pending

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

    def _hung(self, trace: str) -> Lost:
        _, limit = self._running()
        if self.columns is None or self.columns.busy[self.number] < 0:
            which = f"environments {self.lo} to {self.hi - 1} of its worker" if self.columns is None else "it"
            return Lost("hung", f"hung: making {which} took more than {limit} s; if that is no fault, raise start_timeout, or give None", trace)
        return Lost("hung", f"hung: its call took more than {limit} s", trace)


class InlineHost(Host):
    """In the thread that calls: no child, no second copy, so a breakpoint works, and an error has the whole stack."""

    limits_time = False
    group: Group | None = None
    _error: Exception | None = None

    def start(self, generation: int, pending: list[int | None]) -> None:
        self.group = Group(self.env_fn, *self._args(generation, pending))
        self._answer: Any = self.group.greet()

    def bind(self, columns: Columns, obs: Layout, act: Layout, n: int, groups: int) -> None:
        self.columns = columns
        self.send("bind", columns, obs, act)

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
    """In a thread of its own: for environments that wait, or release the GIL. One that hangs is left behind, for threads cannot be ended."""

    thread: threading.Thread | None = None

    def start(self, generation: int, pending: list[int | None]) -> None:
        self._in: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._abandoned = threading.Event()
        self._is_hung = False
        # Not self as argument: a thread that hangs must not keep the environment's owner alive.
        target = partial(_thread, self._in, self._out, self._abandoned, self.env_fn, self._args(generation, pending))
        self.thread = threading.Thread(target=target, name=f"environments {self.lo} to {self.hi - 1}", daemon=True)
        self.thread.start()

    def bind(self, columns: Columns, obs: Layout, act: Layout, n: int, groups: int) -> None:
        self.columns = columns
        self.send("bind", columns, obs, act)

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
            self._in.put(None)

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


def _thread(inbox: Any, outbox: Any, abandoned: threading.Event, env_fn: Callable[[], Any], args: tuple[Any, ...]) -> None:
    group: Group | None = None
    try:
        group = Group(env_fn, *args)
        group.abandoned = abandoned
        outbox.put((group.greet(), None))
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
        outbox.put((None, error))
    while (job := inbox.get()) is not None:
        op, op_args = job
        try:
            outbox.put((getattr(group, op)(*op_args), None))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            outbox.put((None, error))
    if group is not None:
        group.close_quietly()


# Ctrl-C is the caller's. A handler that does nothing, and not SIG_IGN, which what an environment starts would inherit.
_BOOT = (
    "import signal; signal.signal(signal.SIGINT, lambda *_: None)\n"
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']\n"
    "from parl_like.envs._worker import serve; serve(*a['args'])"
)


class ProcessHost(Host):
    """In a process of its own, started afresh: nothing is inherited from this one but four file descriptors.

    So scripts need no `if __name__ == "__main__"`, threads and locks of this process do no harm, and no worker holds another one's
    socket open. The worker watches this process, and ends with it. Columns lie in memory without a name, so nothing can be left over.
    """

    pickles = True
    process: subprocess.Popen[bytes] | None = None
    _waits = 0

    def start(self, generation: int, pending: list[int | None]) -> None:
        ours, theirs = socket.socketpair()
        life, self._life = os.pipe()
        self.trace = nameless_file("trace")
        self.link = Link(ours)
        fds = (theirs.fileno(), self.memory, self.trace, life)
        boot = json.dumps({"path": [p for p in sys.path if isinstance(p, str)], "args": [*fds, os.getpid()]})
        try:
            self.process = subprocess.Popen([sys.executable, "-c", _BOOT, boot], pass_fds=fds, start_new_session=True, stdin=subprocess.DEVNULL)
        except BaseException:
            self._tidy()
            raise
        finally:
            theirs.close()
            os.close(life)
        if self.core is not None:
            os.sched_setaffinity(self.process.pid, {self.core})
        self._post(b"h", pickle.dumps((self.pickled, self._args(generation, pending))))

    def bind(self, columns: Columns, obs: Layout, act: Layout, n: int, groups: int) -> None:
        self._post(b"b", _dumps((obs.space, act.space, n, groups)))
        self.columns = columns

    def _post(self, code: bytes, payload: bytes = b"") -> None:
        try:
            self.link.send(code, payload)
        except OSError:
            pass  # it is gone; `receive` says so

    def send(self, op: str, *args: Any) -> None:
        self._post(CODES[op], _dumps(args) if args else b"")

    def receive(self) -> Any:
        self._waits, self._began = 0, time.monotonic()
        try:
            code, payload = self.link.receive(self._wait)
        except EOFError:
            raise self._died() from None
        if code == b"k":
            return None
        if code == b"e":
            error, cause = pickle.loads(payload)
            raise error from cause
        try:
            return pickle.loads(payload)
        except Exception as error:
            raise EnvFailed(f"or another one of its worker, up to {self.hi - 1}, gave what cannot be read in this process ({type(error).__name__}: "
                            f"{error}); put plain values into infos", self.lo, None, "output", traceback.format_exc()) from error

    def _wait(self) -> float | None:
        left = self._left()
        if left is not None and left <= 0:
            # While others were waited for, the time may have run out for an answer that had come long before.
            if self._readable():
                return 1.0
            raise self._hung(self._stack())
        # Not at once: it is a system call, and a process that dies mostly closes its socket, which wakes this one. Only where what the
        # environment has started still holds the socket open does it come to this.
        self._waits += 1
        if self._waits > 1 and self.process is not None and self.process.poll() is not None and not self._readable():
            raise self._died()
        return 1.0 if left is None else min(left, 1.0)

    def _readable(self) -> bool:
        self.link.sock.settimeout(0.0)
        try:
            self.link.sock.recv(1, socket.MSG_PEEK)
            return True
        except OSError:
            return False

    def _died(self) -> Lost:
        assert self.process is not None
        try:
            code = self.process.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            return Lost("died", f"was lost: its worker process {self.process.pid} closed the connection")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        how += " while it was made" if self.columns is None else ""
        return Lost("died", f"was lost: its worker process {self.process.pid} {how}", self._last_words())

    def _last_words(self) -> str:
        return os.pread(self.trace, 1 << 16, 0).decode(errors="replace")

    def _stack(self) -> str:
        """Where the environment is, as the worker's faulthandler tells it, in C, without the help of a Python that hangs."""
        assert self.process is not None
        try:
            os.kill(self.process.pid, signal.SIGUSR1)
        except OSError:
            return ""
        for _ in range(100):
            if words := self._last_words():
                time.sleep(0.005)  # the rest of it
                return self._last_words() or words
            time.sleep(0.005)
        return ""

    def kill(self) -> None:
        process = self.process
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # with all that the environments have started, also where itself is gone already
            except OSError:
                process.kill()
            process.wait()
            self.process = None  # last: who is interrupted before can kill again
            self._tidy()

    def leave(self) -> None:
        if self.process is not None:
            self._closing_ends = time.monotonic() + CLOSE_TIMEOUT
            self._post(b"c")

    def close(self) -> None:
        if self.process is None:
            return
        error: Exception | None = None
        try:
            code, payload = self.link.receive(partial(_until, self._closing_ends))
            if code == b"e":
                error = pickle.loads(payload)[0]
            self.process.wait(max(0.0, self._closing_ends - time.monotonic()))
        except (EOFError, subprocess.TimeoutExpired):
            pass  # it is ended below
        self.kill()
        if error is not None:
            raise error

    def forget(self) -> None:
        """Lets go of it in a forked copy of this process, to which it does not belong."""
        process, self.process = self.process, None
        if process is not None:
            process.returncode = 0  # else Popen warns that it still runs
            self._tidy()

    def _tidy(self) -> None:
        self.link.close()
        os.close(self.trace)
        os.close(self._life)


def _until(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise EOFError
    return left


HOSTS: dict[str, type[Host]] = {"sync": InlineHost, "thread": ThreadHost, "process": ProcessHost}


# -------------------------------------------------------------------------------------------------------------------- stack


class GroupVectorEnv(VectorEnv[Any, Any, Array]):
    """n environments in one or more hosts; see `make_vector_env`. Layer 6 of six.

    Attributes:
        autoreset_mode: When finished episodes are reset; also in `metadata`.
        copy: Whether observations are copies; else views that the next call overwrites.
        hosts: Where the environments are.
    """

    def __init__(
        self, env_fn: Callable[[], Any], n: int, host: type[Host], workers: int, seed: int | None, mode: AutoresetMode,
        step_timeout: float | None, start_timeout: float | None, restart: bool, copy: bool, pin: bool,
    ) -> None:
        self.num_envs, self.autoreset_mode, self.copy, self.restart = n, mode, copy, restart
        self._first_seeds = [None] * n if seed is None else self._checked_seeds(seed)
        bounds = [round(g * n / workers) for g in range(workers + 1)]
        pickled = _pickled(env_fn) if host.pickles else b""
        memory = nameless_file("columns") if host.pickles else -1
        self.hosts = [host(env_fn, bounds[g], bounds[g + 1], g, mode, restart, step_timeout, start_timeout, memory, pickled) for g in range(workers)]
        if pin:
            cores = sorted(os.sched_getaffinity(0))
            for each in self.hosts:
                each.core = cores[each.number % len(cores)]
        self._shut = weakref.finalize(self, _shut, self.hosts, os.getpid(), memory)
        try:
            for each in self.hosts:
                each.start(0, [None] * (each.hi - each.lo))
            greetings: list[Greeting] = [self._first(each) for each in self.hosts]
            self._face(greetings)
            self._columns = Columns(self._obs, self._act, n, workers, memory if memory >= 0 else None)
            self._columns.busy[:] = time.monotonic()
            for each in self.hosts:
                each.bind(self._columns, self._obs, self._act, n, workers)
            for each in self.hosts:
                self._first(each)
        except BaseException:
            self._abort()
            raise
        self._seeds: list[int | None] = [None] * n
        self._over = np.zeros(n, np.bool_)
        self._begun = np.zeros(n, np.bool_)
        self._limits = [RestartBudget() for _ in self.hosts]
        self._generation = [0] * workers
        # Hosts that a call found lost, which cannot tell of dropped episodes: the next step or reset rebuilds them.
        self._lost: dict[int, Lost] = {}
        # What the caller has seen last: where an episode that is dropped ends.
        self._shown = [column.copy() for column in self._columns.obs] if restart else []

    def _first(self, host: Host) -> Any:
        try:
            return host.receive()
        except Lost as lost:
            raise EnvFailed(lost.what, host.lo, None, lost.fault, lost.trace) from None

    def _face(self, greetings: list[Greeting]) -> None:
        first = greetings[0]
        for host, greeting in zip(self.hosts, greetings, strict=True):
            if greeting[:2] != first[:2]:
                raise ValueError(f"make_vector_env: environment {host.lo} has the spaces {greeting[0]} and {greeting[1]}, environment 0 "
                                 f"{first[0]} and {first[1]}; expected equal ones")
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self._obs, self._act = Layout(first.observation_space), Layout(first.action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode

    # ------------------------------------------------------------------------------------------------------------------ resets

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins episodes.

        Args:
            seed: s: environment i gets s + i. A sequence: one each. None: generators go on; the first reset uses the seed of construction.
            options: For the environments; `reset_mask` [n] bool: only these are reset, the others' observations stay.

        Returns:
            Observations, leaves [n, ...]; infos as gymnasium joins them.

        Raises:
            EnvFailed: An environment failed; everything is closed then.
        """
        self._check_open()
        n = self.num_envs
        chosen = dict(options) if options is not None else None
        mask = chosen.pop("reset_mask", None) if chosen is not None else None
        if mask is None:
            mask = np.ones(n, np.bool_)
        elif not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (n,) or not mask.any():
            raise ValueError(f"{self}: reset_mask is {mask!r}; expected an array ({n},) of bool with at least one True")
        if seed is None:
            seeds = [first if wanted else None for first, wanted in zip(self._first_seeds, mask.tolist(), strict=True)]
        else:
            seeds = self._checked_seeds(seed)
        for i in np.flatnonzero(mask).tolist():
            self._first_seeds[i] = None
            self._seeds[i] = seeds[i] if seeds[i] is not None else self._seeds[i]
        hosts = [host for host in self.hosts if mask[host.lo:host.hi].any()]
        parts = {host.number: (seeds[host.lo:host.hi], mask[host.lo:host.hi].tolist(), chosen) for host in hosts}
        try:
            replies = self._all(hosts, "reset", parts)
        except BaseException:
            self._abort()
            raise
        self._over &= ~mask
        self._begun |= mask
        return self._observations(), self._told({}, replies)

    def _checked_seeds(self, seed: Any) -> list[int | None]:
        n = self.num_envs
        given = [int(seed) + i for i in range(n)] if isinstance(seed, (int, np.integer)) else list(seed) if np.iterable(seed) else [seed]
        if np.iterable(seed) and len(given) != n:
            raise ValueError(f"{self}: {len(given)} seeds; expected {n}, one for each environment, or a single number")
        seeds: list[int | None] = []
        for each in given:
            try:
                seeds.append(None if each is None else operator.index(each))
            except TypeError:
                raise ValueError(f"{self}: a seed is {each!r}; expected an integer of at least 0, or None") from None
            if (seeds[-1] or 0) < 0:
                raise ValueError(f"{self}: a seed is {each}; expected an integer of at least 0, or None")
        return seeds

    def _told(self, infos: dict[str, Any], replies: list[Reply]) -> dict[str, Any]:
        """`infos` with what environments told, and what happened to them: all of it, for the second fault of a step may follow from the first."""
        texts: dict[int, str] = {}
        dropped = set()
        for reply in replies:
            for i, text, new, was_open in reply.faults:
                self._seeds[i] = new
                dropped |= {i} if was_open else set()
                texts[i] = f"{texts[i]}\n\nThen {text}" if i in texts else text
        # First, so that an environment's own info of that name makes no array of numbers, which takes no text.
        for i, text in texts.items():
            infos = self._add_info(infos, {"restarted": True, "dropped": i in dropped, "fault": text}, i)
        for reply in replies:
            for i, info, _ in reply.infos:
                if i in texts:
                    info = {name: value for name, value in info.items() if name not in ("restarted", "dropped", "fault")}
                if info:
                    infos = self._add_info(infos, info, i)
        return infos

    def _all(self, hosts: list[Host], op: str, parts: dict[int, tuple[Any, ...]]) -> list[Reply]:
        """Runs an operation in all hosts at once, and rebuilds those that get lost on the way."""
        busy = self._columns.busy
        lost: list[tuple[Host, Lost]] = []
        replies: list[Reply] = []
        for host in hosts:
            if host.number not in self._lost:
                busy[host.number] = time.monotonic()
                host.send(op, *parts.get(host.number, ()))
        for host in hosts:
            try:
                if host.number in self._lost:
                    raise self._lost.pop(host.number)
                reply = host.receive()
                if reply is not None and (reply.infos or reply.faults):
                    replies.append(reply)
            except Lost as error:
                lost.append((host, error))
        for host, loss in lost:
            replies.append(self._revive(host, loss, parts.get(host.number)))
        return replies

    def _failure(self, host: Host, lost: Lost) -> EnvFailed:
        at = min(max(int(self._columns.at[host.number]), host.lo), host.hi - 1)
        return EnvFailed(lost.what, at, self._seeds[at], lost.fault, lost.trace)

    def _revive(self, host: Host, lost: Lost, resetting: tuple[Any, ...] | None) -> Reply:
        """Builds a host and its environments anew; each gets a fresh seed, and its open episode is dropped.

        Args:
            resetting: The arguments of the reset that it was lost in, if it was.

        Raises:
            EnvFailed: That is not wanted, has been done too often, or would drop episodes that the caller believes to be open.
        """
        g, mode, rows = host.number, self.autoreset_mode, slice(host.lo, host.hi)
        columns, busy = self._columns, self._columns.busy
        # Which had an episode open; and which are to begin one now, in a step those that would have by themselves.
        begins = np.full(host.hi - host.lo, resetting is not None or mode is AutoresetMode.SAME_STEP)
        is_open = np.full(host.hi - host.lo, resetting is None)
        if resetting is None and mode is AutoresetMode.NEXT_STEP:
            begins = self._over[rows].copy()
            is_open = ~begins
        told: list[tuple[int, str, int, bool]] = []
        failed = self._failure(host, lost)
        while True:
            if not self.restart or (resetting is not None and not all(resetting[1])):
                raise failed
            delay = self._limits[g].spend()
            if delay is None:
                raise given_up(failed)
            host.kill()
            if delay:
                time.sleep(delay)
            self._generation[g] += 1
            fresh = [fresh_seed(self._seeds[i], i, self._generation[g], 0) for i in range(host.lo, host.hi)]
            for i, new, dropped in zip(range(host.lo, host.hi), fresh, is_open.tolist(), strict=True):
                self._seeds[i] = new
                at = failed.index
                text = str(failed) if i == at else f"environment {i} was lost with environment {at}, whose worker it shared: {failed}"
                told.append((i, text, new, dropped))
            made = False
            try:
                host.columns = None  # another time limit holds while environments are made
                host.start(self._generation[g], list(fresh))
                host.receive()
                made = True
                host.bind(columns, self._obs, self._act, self.num_envs, len(self.hosts))
                busy[g] = time.monotonic()
                host.receive()
                reply = None
                if begins.any():
                    busy[g] = time.monotonic()
                    host.send("reset", [None] * len(begins), begins.tolist(), None if resetting is None else resetting[2])
                    reply = host.receive()
                # What the lost step did, or a reset has written, is not what the caller is to be told.
                columns.rew[rows], columns.terminated[rows], columns.truncated[rows] = 0.0, False, is_open
                return Reply(reply.infos, told + reply.faults) if reply is not None else Reply([], told)
            except Lost as again:
                failed = self._failure(host, again)
            except EnvFailed as again:
                if made:
                    raise  # the group has tried often enough
                failed = again

    # ------------------------------------------------------------------------------------------------------------------- steps

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """One step of every environment.

        Args:
            actions: A member of `action_space`: leaves [n, ...].

        Returns:
            Observations, leaves [n, ...]; rewards [n] float64; terminated, truncated [n] bool; infos as gymnasium joins them, in
            SAME_STEP mode with `final_obs` and `final_info`. An environment that was rebuilt shows `restarted` and `fault` there.

        Raises:
            EnvFailed: An environment failed; everything is closed then.
        """
        self._check_open()
        if not self._begun.all():
            raise gym.error.ResetNeeded(f"{self}: step() before reset()")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise gym.error.ResetNeeded(f"{self}: step() after the end of episodes {np.flatnonzero(self._over).tolist()}; with autoreset disabled, "
                                        "call reset(options={'reset_mask': terminated | truncated}) first")
        self._write(actions)
        try:
            replies = self._all(self.hosts, "step", {})
        except BaseException:
            self._abort()
            raise
        columns = self._columns
        self._over = over = columns.terminated | columns.truncated
        infos: dict[str, Any] = {}
        dropped = {i for reply in replies for i, _, _, was_open in reply.faults if was_open}
        if over.any() and self.autoreset_mode is AutoresetMode.SAME_STEP:
            finals = {i: final for reply in replies for i, _, final in reply.infos}
            for i in np.flatnonzero(over).tolist():
                final = self._obs.row(self._shown if i in dropped else columns.final, i)
                infos = self._add_info(infos, {"final_obs": final, "final_info": finals.get(i, {})}, i)
        elif dropped:
            rows = sorted(dropped)
            for column, shown in zip(columns.obs, self._shown, strict=True):
                column[rows] = shown[rows]
        infos = self._told(infos, replies)
        return self._observations(), columns.rew.copy(), columns.terminated.copy(), columns.truncated.copy(), infos

    def _write(self, actions: Any) -> None:
        try:
            parts = self._act.split(actions)
        except BadOutput as error:
            raise ValueError(f"{self}: actions: {error}") from None
        for leaf, part, column in zip(self._act.leaves, parts, self._columns.act, strict=True):
            array = np.asarray(part)
            if array.shape != column.shape or not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                raise ValueError(f"{self}: actions{f' {leaf.path}' if leaf.path else ''} are {array.shape} {array.dtype}; expected {column.shape} "
                                 f"{leaf.dtype}, one row for each environment")
            column[...] = array

    def _observations(self) -> Any:
        for shown, column in zip(self._shown, self._columns.obs, strict=False):
            shown[...] = column
        return self._obs.nest([column.copy() if self.copy else column for column in self._columns.obs])

    # ------------------------------------------------------------------------------------------------------------- other calls

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Attribute `name` of every environment, called where it can be; one value each."""
        return tuple(value for part in self._plain("call", lambda host: (name, args, kwargs)) for value in part)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Attribute `name` of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment: to its element of a list or tuple of n, else to the same value.

        Raises:
            ValueError: A list or tuple of another length.
        """
        each = list(values) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"{self}: set_attr({name!r}) with {len(each)} values; expected {self.num_envs}")
        self._plain("set_attr", lambda host: (name, each[host.lo:host.hi]))

    def render(self) -> tuple[Any, ...] | None:
        """One frame of each environment, which stays as it is."""
        return tuple(own(frame) for frame in self.call("render"))

    def _plain(self, op: str, args: Callable[[Host], tuple[Any, ...]]) -> list[Any]:
        self._check_open()
        answers: list[Any] = []
        errors: list[Exception] = []
        try:
            for host in self.hosts:
                if host.number not in self._lost:
                    self._columns.busy[host.number] = time.monotonic()
                    host.send(op, *args(host))
            for host in self.hosts:
                try:
                    if host.number in self._lost:
                        raise self._lost[host.number]
                    answers.append(host.receive())
                except Lost as lost:
                    failed = self._failure(host, lost)
                    if not self.restart:
                        raise failed from None
                    self._lost[host.number] = lost
                    errors.append(failed)
                except Exception as error:  # noqa: BLE001 - the other answers must be taken, too, or they would be those of the next call
                    errors.append(error)
        except BaseException:
            self._abort()
            raise
        if errors:
            raise errors[0]
        return answers

    @property
    def np_random_seed(self) -> Any:
        """The seed that each environment was last given, n values; None: none."""
        return tuple(self._seeds)

    # ------------------------------------------------------------------------------------------------------------------- close

    def _check_open(self) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError(f"{self}: it is closed, by close() or by the error before; make a new one")

    def _abort(self) -> None:
        """Ends everything at once: after an error, or an interruption in the middle of a step, nothing fits together any more."""
        self.closed = True
        try:
            for host in self.hosts:
                try:
                    host.kill()
                except Exception:  # noqa: BLE001 - the error that is being raised says why; a second one would hide it
                    pass
        finally:
            self.close_extras()

    def close_extras(self, **kwargs: Any) -> None:
        """Ends all hosts; called once, by `close`. Environments that raise there are named in a warning."""
        try:
            self._shut()
        finally:
            self.closed = True
            # Their memory counts as an open file; views that somebody still holds keep it by themselves.
            for host in self.hosts:
                host.columns = None
            self.__dict__.pop("_columns", None)


def _shut(hosts: list[Host], pid: int, memory: int) -> None:
    """Ends hosts; also when the vector environment is forgotten, or Python ends. In a forked process only lets go of them."""
    errors = []
    try:
        if os.getpid() != pid:
            for host in hosts:
                if isinstance(host, ProcessHost):
                    host.forget()
            return
        for host in hosts:
            host.leave()
        for host in hosts:
            try:
                host.close()
            except Exception as error:  # noqa: BLE001 - the others are to be closed, too
                errors.append(f"environments {host.lo} to {host.hi - 1} raised in close: {type(error).__name__}: {error}")
    finally:
        if os.getpid() == pid:
            for host in hosts:
                host.kill()  # where an interruption left one; else there is nothing to do
        if memory >= 0:
            os.close(memory)
    if errors:
        warnings.warn("; ".join(errors), stacklevel=2)


def _pickled(env_fn: Callable[[], Any]) -> bytes:
    try:
        return _dumps(env_fn)
    except Exception as error:
        raise ValueError(f"make_vector_env: the factory {env_fn!r} cannot be sent to a worker process ({type(error).__name__}: {error}); build what it "
                         "needs inside of it, or use kind='thread'") from error


def make_vector_env(
    env_fn: str | Callable[[], Any] | VectorEnv[Any, Any, Any], n: int | None = None, kind: str | type[Host] = "sync", *,
    seed: int | None = None, autoreset: AutoresetMode | str | None = None, step_timeout: float | None = None,
    start_timeout: float | None = 120.0, restart: bool = False, workers: int | None = None, copy: bool = True, pin: bool = False,
    inline: bool = False,
) -> VectorEnv[Any, Any, Any]:
    """n environments as one. The same seeds give the same trajectories with every kind, and as n single environments.

    Args:
        env_fn: Makes one environment; or an id for `make_env`; or a vector environment, or a factory of one, which is passed through:
            gymnasium's, `SokobanVectorEnv`, `ale_py.vector_env.AtariVectorEnv`, EnvPool's (`envpool.make_gymnasium`, which is seeded
            there). No option of this function is for those.
        n: Environments. None: those of the vector environment that is passed through.
        kind: "sync": here. "thread": for environments that wait or release the GIL. "process": in worker processes, which make them;
            observations, actions, rewards and flags lie in shared memory. Or a `Host` of your own.
        seed: For the first reset, where that is not given one: environment i gets seed + i.
        autoreset: When finished episodes are reset: a gymnasium `AutoresetMode`. None: SAME_STEP.
        step_timeout: Seconds that one `step` or `reset` of an environment may take. None: any time. Not for "sync".
        start_timeout: Seconds that a thread or process may take to start and to make its environments, for each of them. None: any time. It
            says which factory hangs; a slow import is no hang, so it is long. Not for "sync", where it is ignored.
        restart: An environment that raises, returns what it must not, hangs, or loses its process is rebuilt with a fresh seed: its
            open episode ends there, truncated, with reward 0 at the last observation seen, and `restarted`, `dropped` and `fault` in
            the infos of that step; a VectorAgent does not store it. An environment that fails again within a minute waits up to a
            second before it is rebuilt, and is given up after ten times. False: `EnvFailed` is raised, and everything closed.
        workers: Threads or processes. None: a thread each; as many processes as there are cores, but with `restart` one each, for
            environments that share a process are lost together when it dies or hangs.
        copy: False: observations are views of one array each, overwritten by the next call.
        pin: Each process stays on a core of its own, on Linux, as does what its environments start. The kernel now and then wakes two on
            one core; where nothing else runs, this saves about 5 %.
        inline: For debugging: kind "sync" whatever `kind` says, no time limit, and no environment but the n.

    Raises:
        ValueError: Options that do not go together; spaces that differ.
        TypeError: A space without a fixed size.
        EnvFailed: An environment could not be made.
    """
    options: dict[str, Any] = {"seed": seed, "autoreset": autoreset, "step_timeout": step_timeout, "restart": restart or None, "workers": workers,
                               "copy": None if copy else False, "pin": pin or None}
    given = [name for name, value in options.items() if value is not None]
    if isinstance(env_fn, VectorEnv):
        return _passed(env_fn, n, given)
    if isinstance(env_fn, str):
        env_fn = partial(make_env, env_fn)
    if not callable(env_fn):
        raise ValueError(f"make_vector_env: {env_fn!r} makes no environment; expected an id, a factory or a vector environment")
    if n is None or (isinstance(env_fn, type) and issubclass(env_fn, VectorEnv)):
        made = env_fn()
        if isinstance(made, VectorEnv):
            return _passed(made, n, given, ours=True)
        made.close()
    if n is None or n < 1:
        raise ValueError(f"make_vector_env: n is {n}; expected at least 1 environment of {env_fn!r}, which makes a single one")
    if inline:
        kind, step_timeout = "sync", None
    if isinstance(kind, str) and kind not in HOSTS:
        raise ValueError(f"make_vector_env: kind is {kind!r}; expected one of {sorted(HOSTS)}, or a Host")
    host = HOSTS[kind] if isinstance(kind, str) else kind
    if step_timeout is not None and (not step_timeout > 0 or not host.limits_time):
        raise ValueError(f"make_vector_env: step_timeout is {step_timeout} for kind {kind!r}; expected more than 0 s, and kind 'process' or "
                         "'thread': what runs in the calling thread cannot be left")
    if start_timeout is not None and not start_timeout > 0:
        raise ValueError(f"make_vector_env: start_timeout is {start_timeout}; expected more than 0 s, or None for no limit")
    if pin and not (host.pickles and hasattr(os, "sched_setaffinity")):
        raise ValueError(f"make_vector_env: pin is for kind 'process', on Linux; the kind is {kind!r}, the platform {sys.platform!r}")
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = 1 if host is InlineHost else n if host is ThreadHost or restart else min(cores, n)
    if not 1 <= workers <= n:
        raise ValueError(f"make_vector_env: workers is {workers}; expected 1 to {n}, the number of environments")
    try:
        return GroupVectorEnv(env_fn, n, host, workers, seed, AutoresetMode(autoreset or AutoresetMode.SAME_STEP), step_timeout, start_timeout,
                              restart, copy, pin)
    except AlreadyBatched:
        batched: Any = env_fn()
        return _passed(batched, n, given, ours=True)


def _passed(env: VectorEnv[Any, Any, Any], n: int | None, given: Sequence[str], ours: bool = False) -> VectorEnv[Any, Any, Any]:
    """A vector environment as it came, with the same calls."""
    wrong = ""
    if n is not None and n != env.num_envs:
        wrong = f"n is {n}, but {env} already is {env.num_envs} environments; leave n out, or ask its factory for {n}"
    elif given:
        wrong = f"{', '.join(given)} came too late for {env}, which is made already; give such things to its constructor, and a seed to its reset"
    if wrong:
        if ours:
            env.close()
        raise ValueError(f"make_vector_env: {wrong}")
    if "metadata" not in vars(env) and (mode := getattr(env, "autoreset_mode", None)) is not None:
        # ale_py writes the mode into its class, and so into that of every other one.
        env.metadata = {**env.metadata, "autoreset_mode": AutoresetMode(mode)}
    return env


def create_env(env_id: Any, n: int, *, layers: Layers | None = None, inline: bool = False, seed: int | None = None,
               vector_options: dict[str, Any] | None = None, **options: Any) -> VectorEnv[Any, Any, Any]:
    """All six layers: n environments made by `make_env(env_id, layers=layers, **options)`, in `layers.host`, put together by `layers.stack`.

    Args:
        env_id: Id or factory.
        n: Environments.
        layers: Each may be replaced; see `Layers`.
        inline, seed, vector_options: For `make_vector_env`.
        options: For `make_env`.
    """
    layers = layers or Layers()
    stack = layers.stack or make_vector_env
    return stack(partial(make_env, env_id, layers=layers, **options), n, layers.host, inline=inline, seed=seed, **(vector_options or {}))
