"""What every kind of vector environment shares: a group of environments stepped one after another, the columns it writes into, and the
process that may hold it."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from parl_like.process.budget import MAX_RESTARTS, PERIOD, RestartBudget
from parl_like.process.shared_memory import Column, map_file, size_of, views
from parl_like.spec import Array

ANSWER_TIME = 60.0
"""Seconds beyond `step_timeout` that a worker may take to send an answer: large infos are no fault of the environment's."""


class EnvFailed(RuntimeError):
    """An environment did what it must not do.

    Attributes:
        index: Of the environment.
        seed: It was last seeded with; None: never.
        fault: "raised" (an exception), "output" (a wrong shape, NaN, a flag that is no bool, ...), "hung" or "died" (with its process).
        trace: The environment's own traceback as text; '' where it left none.
    """

    def __init__(self, what: str, index: int, seed: int | None, fault: str, trace: str = "") -> None:
        own = f"\n\nThe environment's own traceback:\n{trace.rstrip()}" if trace else ""
        super().__init__(f"environment {index} (seed {seed}) {what}{own}")
        self.what, self.index, self.seed, self.fault, self.trace = what, index, seed, fault, trace

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvFailed, (self.what, self.index, self.seed, self.fault, self.trace)


class BadOutput(Exception):
    """What an environment returned is not what its spaces and gymnasium promise."""


def given_up(failed: EnvFailed) -> EnvFailed:
    what = f"was rebuilt {MAX_RESTARTS} times within {PERIOD:.0f} s and failed again: it {failed.what}"
    return EnvFailed(what, failed.index, failed.seed, failed.fault, failed.trace)


def fresh_seed(seed: int | None, *key: int) -> int:
    """A seed for a rebuilt environment: a function of its old seed and of `key`, so that a run can be repeated; in [0, 2³¹)."""
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0] >> 1)


# ------------------------------------------------------------------------------------------------------------------- columns


class Leaf(NamedTuple):
    """One array of a nested space. `path` is its name in messages, '' where the space itself is the leaf."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _leaves(space: gym.Space[Any], path: str = "") -> Iterator[Leaf]:
    dot = f"{path}." if path else ""
    if isinstance(space, spaces.Dict):
        for name, sub in space.spaces.items():
            yield from _leaves(sub, f"{dot}{name}")
    elif isinstance(space, spaces.Tuple):
        for i, sub in enumerate(space.spaces):
            yield from _leaves(sub, f"{dot}{i}")
    elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        shape = tuple(space.shape or ())
        if 0 in shape:
            raise ValueError(f"make_vector_env: the space {path or 'itself'} is {space}, which holds no number; leave it out, or give it a size")
        yield Leaf(path, shape, np.dtype(space.dtype))
    else:
        raise TypeError(f"make_vector_env: the space {path or 'itself'} is {space}; expected Box, Discrete, MultiDiscrete, MultiBinary, or a "
                        "Dict or Tuple of them, which have a fixed size; wrap the environment, or give a gymnasium SyncVectorEnv instead")


def _nest(space: gym.Space[Any], values: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _nest(sub, values) for name, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nest(sub, values) for sub in space.spaces)
    return next(values)


def _split(space: gym.Space[Any], value: Any, path: str = "") -> Iterator[Any]:
    dot = f"{path}." if path else ""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise BadOutput(f"{path or 'the value'}: expected a mapping with {sorted(space.spaces)}, got {got}")
        for name, sub in space.spaces.items():
            yield from _split(sub, value[name], f"{dot}{name}")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            got = f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
            raise BadOutput(f"{path or 'the value'}: expected a tuple of {len(space.spaces)}, got {got}")
        for i, sub in enumerate(space.spaces):
            yield from _split(sub, value[i], f"{dot}{i}")
    else:
        yield value


class Layout:
    """A space as flat columns: leaf j of n values is an array [n, *leaves[j].shape]."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.space = space
        self.leaves = list(_leaves(space))
        self.flat = not isinstance(space, (spaces.Dict, spaces.Tuple))

    def split(self, value: Any) -> list[Any]:
        return [value] if self.flat else list(_split(self.space, value))

    def nest(self, values: list[Any]) -> Any:
        return values[0] if self.flat else _nest(self.space, iter(values))

    def row(self, columns: list[Array], i: int) -> Any:
        """Value i as a copy: the environment may keep it, and the column is soon overwritten."""
        if self.flat:
            return columns[0][i].copy()
        return _nest(self.space, (column[i].copy() for column in columns))

    def checked(self, value: Any) -> list[Array]:
        """The leaves of one value, with the right shapes and dtypes.

        Raises:
            BadOutput: A structure, shape or dtype that is not the space's.
        """
        out = []
        for leaf, part in zip(self.leaves, self.split(value), strict=True):
            try:
                array = part if part.__class__ is np.ndarray else np.asarray(part)
            except ValueError as error:
                raise BadOutput(f"{leaf.path or 'the observation'} is ragged ({error}); expected {leaf.shape} {leaf.dtype}") from None
            if array.shape != leaf.shape:
                raise BadOutput(f"{leaf.path or 'the observation'} has shape {array.shape}; expected {leaf.shape} {leaf.dtype}")
            if array.dtype != leaf.dtype and not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                own = isinstance(part, (np.ndarray, np.generic))  # else a Python number, which has no dtype, only a value
                if own or array.dtype.kind not in "bui" or leaf.dtype.kind not in "ui" or (array.astype(leaf.dtype) != array).any():
                    raise BadOutput(f"{leaf.path or 'the observation'} is {array.dtype}; expected {leaf.shape} {leaf.dtype}")
            out.append(array)
        return out

    def nan(self, arrays: list[Array]) -> str | None:
        """Where there is a NaN, in words; None: nowhere."""
        for leaf, array in zip(self.leaves, arrays, strict=True):
            if leaf.dtype.kind == "f" and np.isnan(array).any():
                where = tuple(int(x) for x in np.argwhere(np.isnan(array))[0])
                return f"NaN in {leaf.path or 'the observation'} at {where}"
        return None


class Columns:
    """All arrays that environments and their caller share, n rows each, in one block of memory.

    Attributes:
        obs, final: Leaves of observations; `final` has those that ended an episode, where a step also reset.
        act: Leaves of actions.
        rew: [n] float64. terminated, truncated: [n] bool.
        busy: [groups] float64, `time.monotonic` when the running call into an environment began; negative: when the making of one did.
            One number for both, so that who reads it meanwhile never sees the time of the one with the limit of the other.
        at: [groups] int64, the environment that it went into.
    """

    def __init__(self, obs: Layout, act: Layout, n: int, groups: int, memory: int | None = None) -> None:
        shapes: list[Column] = [((n, *leaf.shape), leaf.dtype) for leaf in (*obs.leaves, *obs.leaves, *act.leaves)]
        shapes += [((n,), np.float64), ((n,), np.bool_), ((n,), np.bool_), ((groups,), np.float64), ((groups,), np.int64)]
        self.size = size_of(shapes)
        arrays = views(np.zeros(self.size, np.uint8) if memory is None else map_file(memory, self.size), shapes)
        k = len(obs.leaves)
        self.obs, self.final, self.act = arrays[:k], arrays[k:2 * k], arrays[2 * k:-5]
        self.rew, self.terminated, self.truncated, self.busy, self.at = arrays[-5:]


# --------------------------------------------------------------------------------------------------------------------- group


class Greeting(NamedTuple):
    """What a group says of its environments."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None


class Reply(NamedTuple):
    """What does not fit into columns.

    Attributes:
        infos: (environment, info, info of the end) where one of both is not empty.
        faults: (environment, what happened, its new seed, whether an open episode was dropped), of environments that were rebuilt.
    """

    infos: list[tuple[int, dict[str, Any], dict[str, Any]]]
    faults: list[tuple[int, str, int, bool]]


class AlreadyBatched(Exception):
    """The factory makes a vector environment: there is nothing to put together."""


class Abandoned(BaseException):
    """Ends a thread whose environment answered after it had been given up."""


def faults() -> tuple[type[BaseException], ...]:
    """What an environment may raise: SystemExit must not end the run, nor must a cancelled task of its own. Not what others throw into it."""
    asyncio = sys.modules.get("asyncio")  # who raises its exception has imported it
    return (Exception, SystemExit) if asyncio is None else (Exception, SystemExit, asyncio.CancelledError)


class Group:
    """Environments `lo` to `hi` − 1, stepped one after another by whoever calls.

    Args:
        env_fn: Makes one environment.
        lo, hi: Which of the vector environment's this group is.
        number: Of this group.
        mode: When finished episodes are reset.
        restart: Environments that fail are rebuilt; else `EnvFailed` is raised.
        generation: How often the group itself has been rebuilt; for fresh seeds.
        pending: Seeds for the next reset of each environment, where that one is not seeded otherwise.

    Raises:
        EnvFailed: The factory raised; what it had made before is closed.
        AlreadyBatched: The factory made a vector environment.
    """

    def __init__(
        self, env_fn: Callable[[], Any], lo: int, hi: int, number: int, mode: AutoresetMode, restart: bool, generation: int,
        pending: list[int | None],
    ) -> None:
        self.env_fn, self.lo, self.n, self.number, self.mode, self.restart = env_fn, lo, hi - lo, number, mode, restart
        self.generation, self.pending = generation, list(pending)
        self.seeds: list[int | None] = list(pending)
        self.steps = [0] * self.n
        self.limits = [RestartBudget() for _ in range(self.n)]
        self.restarts = [0] * self.n
        # A group that replaces another one owes every environment a reset.
        self.over = [generation > 0] * self.n
        self.abandoned = threading.Event()
        self.envs: list[Any] = []
        try:
            for k in range(self.n):
                self.envs.append(self._build(k))
        except BaseException:
            self.close_quietly()
            raise

    def _build(self, k: int) -> Any:
        try:
            env = self.env_fn()
        except faults() as error:
            raise self._failed(k, "raised in its factory", error) from error
        if isinstance(env, VectorEnv):
            env.close()
            raise AlreadyBatched
        return env

    def _failed(self, k: int, doing: str, error: BaseException) -> EnvFailed:
        if isinstance(error, BadOutput):
            return EnvFailed(f"gave what it must not, {doing}: {error}", self.lo + k, self.seeds[k], "output")
        trace = "".join(traceback.format_exception(error))
        failed = EnvFailed(f"{doing}: {type(error).__name__}: {error}", self.lo + k, self.seeds[k], "raised", trace)
        failed.__cause__ = error
        return failed

    def greet(self) -> Greeting:
        """What the environments are like.

        Raises:
            EnvFailed: One has no spaces.
            ValueError: They are not alike.
        """
        first: dict[str, gym.Space[Any]] = {}
        for name in ("observation_space", "action_space"):
            for k, env in enumerate(self.envs):
                try:
                    space = getattr(env, name)
                except faults() as error:
                    raise self._failed(k, f"raised when asked for its {name}", error) from error
                if space != first.setdefault(name, space):
                    raise ValueError(f"make_vector_env: environment {self.lo + k} has the {name} {space}, environment {self.lo} {first[name]}; "
                                     "expected equal ones")
        env = self.envs[0]
        return Greeting(first["observation_space"], first["action_space"], dict(getattr(env, "metadata", None) or {}), getattr(env, "render_mode", None))

    def bind(self, columns: Columns, obs: Layout, act: Layout) -> None:
        self.columns, self.obs, self.act = columns, obs, act
        self._floats = [column[self.lo:self.lo + self.n] for column in columns.obs if column.dtype.kind == "f"]
        self._one = (columns.obs[0], obs.leaves[0].shape, obs.leaves[0].dtype) if obs.flat else None

    # ------------------------------------------------------------------------------------------------------------------ faults

    def _rebuild(self, k: int, failed: EnvFailed, told: list[tuple[int, str, int, bool]], dropped: bool) -> None:
        """Replaces an environment that failed, or raises `failed` where that is not wanted, or was done too often."""
        self._still_wanted()
        if not self.restart:
            raise failed
        busy, number = self.columns.busy, self.number
        while True:
            delay = self.limits[k].spend()
            if delay is None:
                raise given_up(failed) from failed
            self.restarts[k] += 1
            seed = fresh_seed(self.seeds[k], self.lo + k, self.generation, self.restarts[k])
            told.append((self.lo + k, str(failed), seed, dropped))
            busy[number] = -(time.monotonic() + delay)
            try:
                self.envs[k].close()
            except faults():
                pass  # it has failed already, and that is being reported
            if delay:
                time.sleep(delay)
            self.pending[k] = self.seeds[k] = seed
            try:
                self.envs[k] = self._build(k)
            except EnvFailed as again:
                failed = again
                continue
            finally:
                self._still_wanted()
            busy[number] = time.monotonic()
            return

    def _still_wanted(self) -> None:
        if self.abandoned.is_set():
            raise Abandoned

    # ----------------------------------------------------------------------------------------------------------------- resets

    def reset(self, seeds: list[int | None], mask: list[bool], options: dict[str, Any] | None) -> Reply:
        """Begins an episode in each environment that `mask` names."""
        reply = Reply([], [])
        for k in range(self.n):
            if mask[k]:
                info = self._reset(k, seeds[k], {"options": options}, reply.faults)
                self.columns.terminated[self.lo + k] = self.columns.truncated[self.lo + k] = False
                if info:
                    reply.infos.append((self.lo + k, info, {}))
        self._done()
        return reply

    def _reset(self, k: int, seed: int | None, options: dict[str, Any], told: list[tuple[int, str, int, bool]]) -> dict[str, Any]:
        i = self.lo + k
        while True:
            seed = self.pending[k] if seed is None else seed
            self.pending[k] = None
            if seed is not None:
                self.seeds[k] = seed
            self._enter(i)
            try:
                out = self.envs[k].reset(**({} if seed is None and not options else {"seed": seed}), **options)
                self._still_wanted()
                if not isinstance(out, tuple) or len(out) != 2 or not isinstance(out[1], dict):
                    raise BadOutput("reset must return (observation, info dict)" + OLD)
                arrays = self.obs.checked(out[0])
                if nan := self.obs.nan(arrays):
                    raise BadOutput(nan)
            except faults() as error:
                self._rebuild(k, self._failed(k, f"in reset(seed={seed})" if isinstance(error, BadOutput) else f"raised in reset(seed={seed})", error),
                              told, False)
                seed = None
                continue
            for column, array in zip(self.columns.obs, arrays, strict=True):
                column[i] = array
            self.over[k], self.steps[k] = False, 0
            info: dict[str, Any] = own(out[1])
            return info

    def _enter(self, i: int) -> None:
        columns = self.columns
        columns.at[self.number] = i
        columns.busy[self.number] = time.monotonic()

    def _done(self) -> None:
        self.columns.busy[self.number] = time.monotonic() + ANSWER_TIME

    # ------------------------------------------------------------------------------------------------------------------ steps

    def step(self) -> Reply:
        """One step of every environment, with the actions in the columns."""
        reply = Reply([], [])
        columns, mode = self.columns, self.mode
        rew, terminated, truncated, act = columns.rew, columns.terminated, columns.truncated, columns.act
        single, clock, busy, at, number = self._one, time.monotonic, columns.busy, columns.at, self.number
        next_step, same_step = mode is AutoresetMode.NEXT_STEP, mode is AutoresetMode.SAME_STEP
        for k, env in enumerate(self.envs):
            i = self.lo + k
            if self.over[k] and next_step:
                rew[i], terminated[i], truncated[i] = 0.0, False, False
                if info := self._reset(k, None, {}, reply.faults):
                    reply.infos.append((i, info, {}))
                continue
            action = self.act.row(act, i)
            at[number], busy[number] = i, clock()
            try:
                out = env.step(action)
                self._still_wanted()
                try:
                    obs, reward, end, cut, info = out
                except (TypeError, ValueError):
                    got = f"{len(out)} values" if isinstance(out, (tuple, list)) else type(out).__name__
                    raise BadOutput(f"step must return (observation, reward, terminated, truncated, info), not {got}{OLD}") from None
                if not ((end is True or end is False or end.__class__ is np.bool_) and (cut is True or cut is False or cut.__class__ is np.bool_)):
                    name, flag = ("truncated", cut) if isinstance(end, (bool, np.bool_)) else ("terminated", end)
                    raise BadOutput(f"{name} is {flag!r}, a {type(flag).__name__}; expected a bool")
                if reward.__class__ is not float:
                    reward = _number(reward)
                if not isinstance(info, dict):
                    raise BadOutput(f"info is a {type(info).__name__}; expected a dict")
                if single is not None and obs.__class__ is np.ndarray and obs.shape == single[1] and obs.dtype == single[2]:
                    arrays = [obs]
                else:
                    arrays = self.obs.checked(obs)
                over = bool(end or cut)
                # The row of an end is checked by itself, for a reset may overwrite it; the others all at once, below.
                if over and (nan := self.obs.nan(arrays)):
                    raise BadOutput(nan)
                if not -_HUGE <= reward <= _HUGE:
                    raise BadOutput(f"the reward is {reward}; expected a finite number")
            except faults() as error:
                doing = f"in step({action!r}), step {self.steps[k]} of its episode"
                self._drop(k, self._failed(k, doing if isinstance(error, BadOutput) else f"raised {doing}", error), reply)
                continue
            self.steps[k] += 1
            rew[i], terminated[i], truncated[i] = reward, end, cut
            if info:
                info = own(info)
            final: dict[str, Any] = {}
            if over and same_step:
                for column, array in zip(columns.final, arrays, strict=True):
                    column[i] = array
                final, info = info, self._reset(k, None, {}, reply.faults)
            else:
                self.over[k] = over
                if single is not None:
                    single[0][i] = arrays[0]
                else:
                    for column, array in zip(columns.obs, arrays, strict=True):
                        column[i] = array
            if info or final:
                reply.infos.append((i, info, final))
        for column in self._floats:
            if np.isnan(column).any():
                self._find_nan(reply)
                break
        self._done()
        return reply

    def _find_nan(self, reply: Reply) -> None:
        for k in range(self.n):
            row = [column[self.lo + k] for column in self.columns.obs]
            if not self.over[k] and (nan := self.obs.nan(row)):
                self._drop(k, self._failed(k, f"in step {self.steps[k] - 1} of its episode", BadOutput(nan)), reply)

    def _drop(self, k: int, failed: EnvFailed, reply: Reply) -> None:
        """Ends an episode by truncation where it failed, and begins another where steps do so. What it led to, the caller knows."""
        i = self.lo + k
        self._rebuild(k, failed, reply.faults, True)
        self.columns.rew[i], self.columns.terminated[i], self.columns.truncated[i] = 0.0, False, True
        reply.infos[:] = [entry for entry in reply.infos if entry[0] != i]
        self.over[k] = True
        if self.mode is AutoresetMode.SAME_STEP:
            if info := self._reset(k, None, {}, reply.faults):
                reply.infos.append((i, info, {}))

    # ----------------------------------------------------------------------------------------------------------------- the rest

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Attribute `name` of every environment, called where it can be."""
        out = []
        for k, env in enumerate(self.envs):
            self._enter(self.lo + k)
            try:
                value = env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)
                out.append(value(*args, **kwargs) if callable(value) else value)
            except faults() as error:
                raise self._failed(k, f"raised in {name}", error) from error
        self._done()
        return out

    def set_attr(self, name: str, values: list[Any]) -> None:
        for k, (env, value) in enumerate(zip(self.envs, values, strict=True)):
            self._enter(self.lo + k)
            try:
                if hasattr(env, "set_wrapper_attr"):
                    env.set_wrapper_attr(name, value)
                else:
                    setattr(env, name, value)
            except faults() as error:
                raise self._failed(k, f"raised in set_attr({name!r})", error) from error
        self._done()

    def close(self) -> None:
        """Closes every environment, also after one that raises; then raises what the first did."""
        first: BaseException | None = None
        for env in self.envs:
            try:
                env.close()
            except faults() as error:
                first = first or error
        self.envs = []
        if first is not None:
            raise first

    def close_quietly(self) -> None:
        try:
            self.close()
        except faults():
            pass  # nobody is there to hear of it, or of another error already


def own(value: Any) -> Any:
    """An info as it is now: the environment may write into its dicts, lists and arrays again, in the very reset that this step ends with."""
    kind = value.__class__
    if kind is dict:
        return {name: own(part) for name, part in value.items()}
    if kind is np.ndarray:
        return value.copy()
    return kind(own(part) for part in value) if kind is list or kind is tuple else value


OLD = "; make environments of the old gym API with parl_like.envs.make.make_env, or wrap them in its OldStyle"
_HUGE = float(np.finfo(np.float64).max)


def _number(value: Any) -> float:
    if isinstance(value, (int, float, np.number, np.bool_)) or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "buif"):
        return float(value)
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
    raise BadOutput(f"the reward is a {type(value).__name__}{shape}; expected one number")


# ------------------------------------------------------------------------------------------------------------------- process

_HEAD = struct.Struct("<cI")
CODES = {"step": b"s", "reset": b"r", "call": b"a", "set_attr": b"w"}
OPS = {code: op for op, code in CODES.items()}
"""Methods of `Group` and the letters that ask for them. Beside them: h(ello), b(ind), c(lose); answered by k (nothing to tell), v(alue), e(rror)."""


class Link:
    """One end of a socket that carries messages: a letter and, mostly, nothing else."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, code: bytes, payload: bytes = b"") -> None:
        if payload:
            self.sock.settimeout(None)  # what the last wait has left may be too short for a long message
        self.sock.sendall(_HEAD.pack(code, len(payload)) + payload)

    def receive(self, waited: Callable[[], float | None] | None = None) -> tuple[bytes, bytes]:
        """The next message.

        Args:
            waited: Called before each wait; returns for how many seconds to wait until it is called again, and raises to give up.

        Raises:
            EOFError: The other end is gone.
        """
        code, size = _HEAD.unpack(self._read(_HEAD.size, waited))
        return code, self._read(size, waited) if size else b""

    def _read(self, size: int, waited: Callable[[], float | None] | None) -> bytes:
        parts: list[bytes] = []
        while size:
            if waited is not None:
                self.sock.settimeout(waited())
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
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self.sock.close()


def _watch(parent: int) -> None:
    """Ends this process, and those it has started, when `parent` ends, however that happens and whatever an environment is doing.

    Not by PR_SET_PDEATHSIG: that fires when the *thread* ends which made this process, and spares what an environment has started.
    """
    try:
        fd = os.pidfd_open(parent)
        waiter = select.poll()
        waiter.register(fd, select.POLLIN)
        while os.getppid() == parent and not waiter.poll():
            pass
    except (AttributeError, OSError):  # not Linux, or an old one; or the parent has just gone
        while os.getppid() == parent:
            time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


def _end_with(life: int) -> None:
    """Has the kernel end this process, and those it has started, when the last writer of the pipe `life` is gone.

    For the environment that hangs in C and holds the GIL, so that `_watch` cannot run. Not instead of it: a forked copy of the parent
    holds the pipe, too, and only Linux does it.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


def serve(sock: int, memory: int, trace: int, life: int, parent: int) -> None:
    """The life of a worker process.

    Args:
        sock: File descriptor of a connected socket. memory: of the file that columns lie in. trace: of the file for last words.
        life: of the reading end of a pipe whose other end `parent` holds.
        parent: Process id; when it ends, so does this one.
    """
    _end_with(life)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    faulthandler.enable(trace)
    faulthandler.register(signal.SIGUSR1, trace)
    link = Link(socket.socket(fileno=sock))
    group: Group | None = None
    while True:
        try:
            code, payload = link.receive()
        except EOFError:
            if group is not None:
                group.close_quietly()
            return
        answer: Any = None
        try:
            if code in OPS:
                answer = getattr(group, OPS[code])(*pickle.loads(payload) if payload else ())
            elif code == b"b" and group is not None:
                obs, act, n, groups = pickle.loads(payload)
                layouts = Layout(obs), Layout(act)
                group.bind(Columns(*layouts, n, groups, memory), *layouts)
            elif code == b"h":
                env_fn, rest = pickle.loads(payload)
                group = Group(pickle.loads(env_fn), *rest)
                answer = group.greet()
            else:
                if group is not None:
                    group.close()
                link.send(b"k")
                return
        except faults() as error:
            _send_error(link, error)
            if code == b"c":
                return
            continue
        if isinstance(answer, Reply) and not answer.infos and not answer.faults:
            link.send(b"k")
        else:
            try:
                payload = _dumps(answer)
            except Exception as error:  # noqa: BLE001 - whatever an info may hold that cannot travel
                if not isinstance(answer, Reply):
                    _send_error(link, error)
                    continue
                payload = _dumps(Reply([(i, _portable(info), _portable(final)) for i, info, final in answer.infos], answer.faults))
            link.send(b"v", payload)


def _portable(info: dict[str, Any]) -> dict[str, Any]:
    """`info` with the text of those values that cannot be pickled."""
    out = {}
    for name, value in info.items():
        try:
            _dumps(value)
            out[name] = value
        except Exception:  # noqa: BLE001 - a pickle method may raise what it likes
            out[name] = repr(value)
    return out


def _send_error(link: Link, error: BaseException) -> None:
    cause = error.__cause__ if isinstance(error, EnvFailed) else None
    trace = "".join(traceback.format_exception(error))
    for candidate in ((error, cause), (error, None), (RuntimeError(f"{type(error).__name__}: {error}\n{trace}"), None)):
        try:
            payload = _dumps(candidate)
            pickle.loads(payload)  # some exceptions can be pickled, but not back
            break
        except Exception:  # noqa: BLE001 - try the next, simpler one
            continue
    link.send(b"e", payload)


def _dumps(value: Any) -> bytes:
    import cloudpickle  # gymnasium depends on it; takes what plain pickle refuses

    return bytes(cloudpickle.dumps(value))
