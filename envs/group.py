"""Environments that are stepped one after another, and what each of them may do wrong: the same for every kind of vector
environment."""

from __future__ import annotations

import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parl_like.envs.columns import BadOutput, Columns, Layout
from parl_like.owned import copied

ANSWER_TIME = 60.0
"""Seconds beyond `step_timeout` that a worker may take to send an answer: large infos are no fault of the environment's."""


class EnvFailed(RuntimeError):
    """An environment did what it must not do.

    Attributes:
        what: It did, in words.
        index: Of the environment.
        fault: "raised" (an exception), "output" (a wrong shape, NaN, a flag that is no bool, ...), "hung" or "died" (with its
            process).
        trace: The environment's own traceback as text; '' where it left none.
        cause: What it raised, where that could be brought here.
        seed: It was last seeded with; None: never.
        dropped: Its open episode ended with it.
        lost: It is gone with its host, and so are all that shared this.
    """

    seed: int | None = None
    lost = False

    def __init__(
        self, what: str, index: int, fault: str, trace: str = "", cause: BaseException | None = None, dropped: bool = False,
    ) -> None:
        super().__init__(what, index, fault)  # how it is made from a pickle, which then sets the attributes
        self.what, self.index, self.fault, self.trace, self.cause, self.dropped = what, index, fault, trace, cause, dropped

    def __str__(self) -> str:
        own = f"\n\nThe environment's own traceback:\n{self.trace.rstrip()}" if self.trace else ""
        return f"environment {self.index} (seed {self.seed}) {self.what}{own}"


class Reply(NamedTuple):
    """What an operation of a group says.

    Attributes:
        value: What `build` and `call` return.
        infos: (environment, info, info of the end) where one of both is not empty.
        faults: What environments did wrong; they are to be rebuilt, or given up.
    """

    value: Any
    infos: list[tuple[int, dict[str, Any], dict[str, Any]]]
    faults: list[EnvFailed]


class AlreadyBatched(Exception):
    """The factory makes a vector environment: there is nothing to put together."""


class Abandoned(BaseException):
    """Ends a thread whose environment answered after it had been given up."""


def faults() -> tuple[type[BaseException], ...]:
    """What an environment may raise: SystemExit must not end the run, nor must a cancelled task of its own. Not what others throw
    into it."""
    asyncio = sys.modules.get("asyncio")  # who raises its exception has imported it
    return (Exception, SystemExit) if asyncio is None else (Exception, SystemExit, asyncio.CancelledError)


class Group:
    """Environments `lo` to `hi` − 1, stepped one after another by whoever calls. Its operations return a `Reply`, or None:
    nothing to tell.

    Args:
        lo, hi: Which of the vector environment's this group is.
        number: Of this group.
        mode: When finished episodes are reset.
        memory: File descriptor of the columns' file, where that is not given to `bind`.
    """

    def __init__(self, lo: int, hi: int, number: int, mode: AutoresetMode, memory: int | None = None) -> None:
        self.lo, self.n, self.number, self.mode, self.memory = lo, hi - lo, number, mode, memory
        self.abandoned = threading.Event()
        self.envs: list[Any] = []
        self.pending: list[int | None] = [None] * self.n  # seeds of the next resets, where those are given none
        self.over = [False] * self.n
        self.steps = [0] * self.n

    # ----------------------------------------------------------------------------------------------------------------- making

    def build(self, env_fn: Callable[[], Any] | bytes, pending: list[int] | None) -> Reply:
        """Makes the environments.

        Args:
            env_fn: Makes one; or such a function, pickled.
            pending: Seeds for the first resets, of a group that replaces another and so owes every environment a reset.

        Returns:
            Observation space, action space, metadata, render mode; or a fault: the factory raised, or an environment has no
            spaces. What was made before is closed then.

        Raises:
            AlreadyBatched: The factory makes a vector environment.
            ValueError: The environments are not alike.
        """
        self.env_fn = pickle.loads(env_fn) if isinstance(env_fn, bytes) else env_fn
        if pending is not None:
            self.pending, self.over = [*pending], [True] * self.n
        reply = None
        try:
            for k in range(self.n):
                self.envs.append(None)
                if fault := self._make(k):
                    return Reply(None, [], [fault])
            reply = self._greet()
            return reply
        finally:
            if reply is None or reply.faults:
                self.close_quietly()

    def _make(self, k: int) -> EnvFailed | None:
        try:
            self.envs[k] = env = self.env_fn()
        except faults() as error:
            return self._fault(k, "raised in its factory", error)
        if isinstance(env, VectorEnv):
            raise AlreadyBatched
        self._still_wanted()
        return None

    def _greet(self) -> Reply:
        first: dict[str, gym.Space[Any]] = {}
        for name in ("observation_space", "action_space"):
            for k, env in enumerate(self.envs):
                try:
                    space = getattr(env, name)
                except faults() as error:
                    return Reply(None, [], [self._fault(k, f"raised when asked for its {name}", error)])
                if space != first.setdefault(name, space):
                    raise ValueError(f"make_vector_env: environment {self.lo + k} has the {name} {space}, environment {self.lo} "
                                     f"{first[name]}; expected equal ones")
        self.obs, self.act = Layout(first["observation_space"]), Layout(first["action_space"])
        env = self.envs[0]
        said = (self.obs.space, self.act.space, dict(getattr(env, "metadata", None) or {}), getattr(env, "render_mode", None))
        return Reply(said, [], [])

    def bind(self, n: int, groups: int, memory: Any = None) -> None:
        """Tells where to write: see `Columns`."""
        self.columns = columns = Columns(self.obs, self.act, n, groups, self.memory if memory is None else memory)
        self._floats = [column[self.lo:self.lo + self.n] for column in columns.obs if column.dtype.kind == "f"]
        self._one = (columns.obs[0], self.obs.leaves[0].shape, self.obs.leaves[0].dtype) if self.obs.flat else None

    def rebuild(self, jobs: list[tuple[int, int, float, bool]], options: dict[str, Any]) -> Reply:
        """Replaces environments that failed.

        Args:
            jobs: (environment, seed of its next reset, seconds to wait, whether that reset is now).
            options: Arguments of those resets.
        """
        reply = Reply(None, [], [])
        for i, seed, delay, begins in jobs:
            k = i - self.lo
            self.columns.at[self.number], self.columns.busy[self.number] = i, -(time.monotonic() + delay)
            try:
                self.envs[k].close()
            except faults():
                pass  # it has failed already, and that is being reported
            if delay:
                time.sleep(delay)
            self.pending[k], self.over[k] = seed, True
            fault = self._make(k)
            if fault is not None:
                reply.faults.append(fault)
            elif begins:
                self._reset(k, None, options, reply)
        self._done()
        return reply

    # ----------------------------------------------------------------------------------------------------------------- faults

    def _fault(self, k: int, doing: str, error: BaseException, dropped: bool = False) -> EnvFailed:
        self._still_wanted()
        if isinstance(error, BadOutput):
            what = f"gave what it must not, {doing.removeprefix('raised ')}: {error}"
            return EnvFailed(what, self.lo + k, "output", dropped=dropped)
        trace = "".join(traceback.format_exception(error))
        return EnvFailed(f"{doing}: {type(error).__name__}: {error}", self.lo + k, "raised", trace, error, dropped)

    def _drop(self, k: int, doing: str, error: BaseException, reply: Reply) -> None:
        """Ends an episode by truncation where the environment failed. What it led to, the caller knows."""
        i, columns = self.lo + k, self.columns
        reply.faults.append(self._fault(k, doing, error, dropped=True))
        reply.infos[:] = [entry for entry in reply.infos if entry[0] != i]
        columns.rew[i], columns.terminated[i], columns.truncated[i] = 0.0, False, True
        self.over[k] = True

    def _still_wanted(self) -> None:
        if self.abandoned.is_set():
            raise Abandoned

    def _enter(self, i: int) -> None:
        self.columns.at[self.number] = i
        self.columns.busy[self.number] = time.monotonic()

    def _done(self) -> None:
        self.columns.busy[self.number] = time.monotonic() + ANSWER_TIME

    # ----------------------------------------------------------------------------------------------------------------- resets

    def reset(self, seeds: list[int | None], mask: list[bool], options: dict[str, Any]) -> Reply:
        """Begins an episode in each environment that `mask` names, with the arguments `options`."""
        reply = Reply(None, [], [])
        for k in range(self.n):
            if mask[k]:
                self._reset(k, seeds[k], options, reply)
                self.columns.terminated[self.lo + k] = self.columns.truncated[self.lo + k] = False
        self._done()
        return reply

    def _reset(self, k: int, seed: int | None, options: dict[str, Any], reply: Reply,
               final: dict[str, Any] | None = None) -> None:
        """Begins an episode.

        Args:
            final: Info of the episode that ended with the same step.
        """
        i = self.lo + k
        seed = self.pending[k] if seed is None else seed
        self.pending[k] = None
        self._enter(i)
        info: dict[str, Any] = {}
        try:
            out = self.envs[k].reset(**({} if seed is None and not options else {"seed": seed}), **options)
            self._still_wanted()
            if not isinstance(out, tuple) or len(out) != 2 or not isinstance(out[1], dict):
                raise BadOutput("reset must return (observation, info dict)" + OLD)
            arrays = self.obs.checked(out[0])
            if nan := self.obs.nan(arrays):
                raise BadOutput(nan)
        except faults() as error:
            reply.faults.append(self._fault(k, f"raised in reset(seed={seed})", error))
        else:
            for column, array in zip(self.columns.obs, arrays, strict=True):
                column[i] = array
            self.over[k], self.steps[k] = False, 0
            info = copied(out[1])
        if info or final:
            reply.infos.append((i, info, final or {}))

    # ------------------------------------------------------------------------------------------------------------------ steps

    def step(self) -> Reply | None:
        """One step of every environment, with the actions in the columns."""
        reply = Reply(None, [], [])
        columns, mode = self.columns, self.mode
        rew, terminated, truncated, act = columns.rew, columns.terminated, columns.truncated, columns.act
        single, clock, busy, at, number = self._one, time.monotonic, columns.busy, columns.at, self.number
        next_step, same_step = mode is AutoresetMode.NEXT_STEP, mode is AutoresetMode.SAME_STEP
        for k, env in enumerate(self.envs):
            i = self.lo + k
            if self.over[k] and next_step:
                rew[i], terminated[i], truncated[i] = 0.0, False, False
                self._reset(k, None, {}, reply)
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
                    five = "(observation, reward, terminated, truncated, info)"
                    raise BadOutput(f"step must return {five}, not {got}{OLD}") from None
                if not ((end is True or end is False or end.__class__ is np.bool_)
                        and (cut is True or cut is False or cut.__class__ is np.bool_)):
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
                self._drop(k, f"raised in step({action!r}), step {self.steps[k]} of its episode", error, reply)
                continue
            self.steps[k] += 1
            rew[i], terminated[i], truncated[i] = reward, end, cut
            if info:
                info = copied(info)  # the environment may go on with the same dict, in the very reset that this step ends with
            if over and same_step:
                for column, array in zip(columns.final, arrays, strict=True):
                    column[i] = array
                self._reset(k, None, {}, reply, info)
                continue
            self.over[k] = over
            if single is not None:
                single[0][i] = arrays[0]
            else:
                for column, array in zip(columns.obs, arrays, strict=True):
                    column[i] = array
            if info:
                reply.infos.append((i, info, {}))
        for column in self._floats:
            if np.isnan(column).any():
                self._find_nan(reply)
                break
        self._done()
        return reply if reply.infos or reply.faults else None

    def _find_nan(self, reply: Reply) -> None:
        failed = {fault.index for fault in reply.faults}
        for k in range(self.n):
            row = [column[self.lo + k] for column in self.columns.obs]
            if not self.over[k] and self.lo + k not in failed and (nan := self.obs.nan(row)):
                self._drop(k, f"in step {self.steps[k] - 1} of its episode", BadOutput(nan), reply)

    # ----------------------------------------------------------------------------------------------------------------- the rest

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reply:
        """Attribute `name` of every environment, called where it can be."""

        def get(env: Any, k: int) -> Any:
            value = env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)
            return value(*args, **kwargs) if callable(value) else value

        return self._each(get, f"raised in {name}")

    def set_attr(self, name: str, values: list[Any]) -> Reply:
        """Sets an attribute of every environment, to a value each."""

        def put(env: Any, k: int) -> None:
            if hasattr(env, "set_wrapper_attr"):
                env.set_wrapper_attr(name, values[k])
            else:
                setattr(env, name, values[k])

        return self._each(put, f"raised in set_attr({name!r})")

    def _each(self, do: Callable[[Any, int], Any], doing: str) -> Reply:
        out = []
        for k, env in enumerate(self.envs):
            self._enter(self.lo + k)
            try:
                out.append(do(env, k))
            except faults() as error:
                return Reply(None, [], [self._fault(k, doing, error)])
        self._done()
        return Reply(out, [], [])

    def close(self) -> None:
        """Closes every environment, also after one that raises; then raises what the first did."""
        first: BaseException | None = None
        for env in self.envs:
            try:
                if env is not None:
                    env.close()
            except faults() as error:
                first = first or error
        self.envs = []
        if first is not None:
            raise first

    def close_quietly(self) -> None:
        """The same, where nobody is there to hear of an error, or of another one already."""
        try:
            self.close()
        except faults():
            pass


OLD = "; make environments of the old gym API with parl_like.envs.make.make_env, or wrap them in its OldStyle"
_HUGE = float(np.finfo(np.float64).max)


def _number(value: Any) -> float:
    is_number = isinstance(value, (int, float, np.number, np.bool_))
    if is_number or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "buif"):
        return float(value)
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
    raise BadOutput(f"the reward is a {type(value).__name__}{shape}; expected one number")
