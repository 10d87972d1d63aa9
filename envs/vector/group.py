"""Environments that are stepped one after another, what each of them may do wrong, and how one that failed is made anew: the same
for every kind of vector environment."""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parl_like.environment.player_view import has_players
from parl_like.environment.state import clone_state, restore_state
from parl_like.environment.value_check import BadOutput, ExactCheck
from parl_like.envs.vector.columns import ColumnLayout, Columns, Status
from parl_like.process.child import RestartBudget
from parl_like.values.copying import copied
from parl_like.values.errors import TEXT_LIMIT, shortened

SPACES = ("observation_space", "action_space")
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
        lost: It is gone with its host, and so are all that shared this.
    """

    seed: int | None = None
    lost = False

    def __init__(self, what: str, index: int, fault: str, trace: str = "", cause: BaseException | None = None) -> None:
        super().__init__(what, index, fault)  # how it is made from a pickle, which then sets the attributes
        self.what, self.index, self.fault, self.trace, self.cause = what, index, fault, trace, cause

    def __str__(self) -> str:
        own = f"\n\nThe environment's own traceback:\n{self.trace.rstrip()}" if self.trace else ""
        return f"environment {self.index} (seed {self.seed}) {self.what}{own}"

    def spend(self, budget: RestartBudget) -> float:
        """Seconds to wait before what failed is made anew; raises this error where that was too often."""
        delay = budget.spend()
        if delay is None:
            self.what = f"was rebuilt {budget.limit} times within {budget.period:.0f} s and failed again: it {self.what}"
            raise self
        return delay


class AlreadyBatched(Exception):
    """The factory makes a vector environment: there is nothing to put together."""


class Abandoned(BaseException):
    """Ends a thread whose environment answered after it had been given up."""


def faults() -> tuple[type[BaseException], ...]:
    """Return the exceptions of environments: SystemExit must not end the run, nor must a cancelled task of its own. What others
    throw into it is none of them."""
    asyncio = sys.modules.get("asyncio")  # who raises its exception has imported it
    return (Exception, SystemExit) if asyncio is None else (Exception, SystemExit, asyncio.CancelledError)


def seed_after(seed: int | None, *key: int) -> int:
    """A seed for a rebuilt environment: a function of its old seed and of `key`, so that a run can be repeated; in [0, 2³¹)."""
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0] >> 1)


class Reply(NamedTuple):
    """The notes of an operation, by environment.

    Attributes:
        infos: Info, and the info of the end where the step also reset.
        rebuilt: Of one that was made anew: why, in words; its fresh seed; whether its open episode ended with that.
    """

    infos: dict[int, tuple[dict[str, Any], dict[str, Any]]]
    rebuilt: dict[int, tuple[str, int, bool]]

    def add_rebuilt(self, i: int, text: str, seed: int, dropped: bool) -> None:
        """Add what happened to environment i to what is noted of it: a second fault may follow from the first."""
        if i in self.rebuilt:
            before, _, was_dropped = self.rebuilt[i]
            text, dropped = f"{before}\n\nThen {text}", was_dropped or dropped
        self.rebuilt[i] = text, seed, dropped


class GroupOptions(NamedTuple):
    """The options of group `number` of `groups`: environments `lo` to `hi` − 1 of n; the rest as in `make_vector_env`, inf for
    any time."""

    lo: int
    hi: int
    number: int
    n: int
    groups: int
    mode: AutoresetMode
    restart: bool
    step_timeout: float
    start_timeout: float


class EnvProgress:
    """The state of n environments of a group beside their own: seeds, episodes, restarts.

    Attributes:
        over: Whether its episode has ended, so that a reset is due. steps: Actions of the running episode.
        seeds: The last one that it was given. pending: The seed of its next reset, where that is given none. None: no seed.
        restarts: How often it was made anew.
    """

    FIELDS = ("over", "steps", "seeds", "pending", "restarts")

    def __init__(self, n: int) -> None:
        self.over, self.steps, self.restarts = [False] * n, [0] * n, [0] * n
        self.seeds: list[int | None] = [None] * n
        self.pending: list[int | None] = [None] * n

    def owe_resets(self, seeds: list[int]) -> None:
        """All environments take the place of others, and are due a reset with these seeds."""
        self.seeds, self.pending, self.over = [*seeds], [*seeds], [True] * len(seeds)

    def state_of(self, k: int) -> dict[str, Any]:
        """Return the fields of environment k."""
        return {name: getattr(self, name)[k] for name in self.FIELDS}

    def put_back(self, k: int, state: dict[str, Any]) -> None:
        """Go back to what `state_of` returned."""
        for name in self.FIELDS:
            getattr(self, name)[k] = state[name]


class Group:
    """Its operations are `build`, then `bind`, then all others. `bind`, `reset` and `step` return a `Reply`, or None where there
    is nothing to say; they raise the EnvFailed of an environment that is not to be rebuilt.

    Args:
        options: See `GroupOptions`.
        generation: How often it was lost with its host and made anew.
        status: Where it says what it is doing.
        memory: File descriptor of the columns' file, where `bind` is not given the columns.
    """

    def __init__(self, options: GroupOptions, generation: int, status: Status, memory: int = -1) -> None:
        self.options, self.generation, self.status, self.memory = options, generation, status, memory
        self.lo, self.n = options.lo, options.hi - options.lo
        self.abandoned = False
        self.envs: list[Any] = []
        self.progress = EnvProgress(self.n)
        self.budgets = [RestartBudget() for _ in range(self.n)]
        self._reply = Reply({}, {})

    # ----------------------------------------------------------------------------------------------------------------- making

    def build(self, env_fn: Callable[[], Any] | bytes, seeds: list[int] | None) -> tuple[Any, ...]:
        """Makes the environments by a factory, maybe pickled: observation space, action space, metadata, render mode.

        `seeds` are for the first resets of a group that replaces a lost one, and so owes every environment a reset.
        """
        self.env_fn = pickle.loads(env_fn) if isinstance(env_fn, bytes) else env_fn
        if seeds is not None:
            self.progress.owe_resets(seeds)
        first: list[gym.Space[Any]] = []
        try:
            for k in range(self.n):
                self.envs.append(None)
                try:
                    made = self._make(k)
                except EnvFailed as failed:
                    if seeds is None:
                        raise
                    made = self._rebuild(k, failed)
                first = first or made
                for name, space, expected in zip(SPACES, made, first, strict=True):
                    if space != expected:
                        raise ValueError(f"make_vector_env: environment {self.lo + k} has the {name} {space}, environment "
                                         f"{self.lo} {expected}; expected equal ones")
            self.obs, self.act = map(ColumnLayout, first)
        except BaseException:
            self.close_quietly()
            raise
        env = self.envs[0]
        return *first, dict(getattr(env, "metadata", None) or {}), getattr(env, "render_mode", None)

    def bind(self, columns: Columns | None) -> Reply | None:
        """Tells where to write; None: into its file."""
        self.columns = columns or Columns(self.obs, self.act, self.options.n, self.options.groups, self.memory)
        rows = slice(self.lo, self.lo + self.n)
        self._floats = [column[rows] for column in self.columns.obs if column.dtype.kind == "f"]
        self._one = (self.columns.obs[0], self.obs.leaves[0].shape, self.obs.leaves[0].dtype) if self.obs.flat else None
        return self._done()

    def _make(self, k: int) -> list[gym.Space[Any]]:
        """The spaces of environment k, newly made."""
        self._enter(k, self.options.start_timeout, making=True)
        found: list[gym.Space[Any]] = []
        try:
            self.envs[k] = env = self.env_fn()
            for name in SPACES:
                found.append(getattr(env, name))
        except faults() as error:
            doing = f"raised when asked for its {SPACES[len(found)]}" if self.envs[k] is not None else "raised in its factory"
            raise self._fault(k, doing, error) from error
        self._check_wanted()
        if isinstance(env, VectorEnv):
            raise AlreadyBatched
        if has_players(env):
            raise TypeError(f"make_vector_env: {env} has several players, and copies of it are not stepped as one; give the "
                            "robot n_agents, each of which has one: their requests are batched all the same; or make one player "
                            "of all, parl_like.envs.joint.Joint")
        return found

    def _rebuild(self, k: int, failed: EnvFailed, dropped: bool = False) -> list[gym.Space[Any]]:
        """Makes an environment that failed anew, which is due a reset then; raises where that is not wanted or was too often."""
        while True:
            if not self.options.restart:
                raise failed
            delay = failed.spend(self.budgets[k])
            self._enter(k, delay + self.options.start_timeout, making=True)
            with suppress(*faults()):  # it has failed already, and that is being reported
                self.envs[k].close()
            self.envs[k] = None
            if delay:
                time.sleep(delay)
            progress = self.progress
            progress.restarts[k] += 1
            seed = seed_after(progress.seeds[k], self.lo + k, self.generation, progress.restarts[k])
            progress.seeds[k] = progress.pending[k] = seed
            progress.over[k] = True
            self._reply.add_rebuilt(self.lo + k, str(failed), seed, dropped)
            try:
                return self._make(k)
            except EnvFailed as again:
                failed = again

    def _fault(self, k: int, doing: str, error: BaseException) -> EnvFailed:
        self._check_wanted()
        if isinstance(error, BadOutput):
            failed = EnvFailed(f"gave what it must not, {doing.removeprefix('raised ')}: {error}", self.lo + k, "output")
        else:
            said, trace = str(error), shortened("".join(traceback.format_exception(error)))
            cause = error if len(said) <= TEXT_LIMIT else RuntimeError(shortened(said))  # it travels, too
            failed = EnvFailed(f"{doing}: {type(error).__name__}: {shortened(said)}", self.lo + k, "raised", trace, cause)
        failed.seed = self.progress.seeds[k]
        return failed

    def _check_wanted(self) -> None:
        if self.abandoned:
            raise Abandoned

    def _enter(self, k: int, seconds: float, making: bool = False) -> None:
        number = self.options.number
        self.status.at[number] = ~(self.lo + k) if making else self.lo + k
        self.status.deadline[number] = time.monotonic() + seconds

    def _done(self) -> Reply | None:
        self.status.deadline[self.options.number] = time.monotonic() + self.options.step_timeout + ANSWER_TIME
        reply, self._reply = self._reply, Reply({}, {})
        return reply if reply.infos or reply.rebuilt else None

    # ---------------------------------------------------------------------------------------------------------------- episodes

    def reset(self, seeds: list[int | None], mask: list[bool], options: dict[str, Any]) -> Reply | None:
        """Begins an episode in each environment that `mask` names, with the arguments `options`."""
        for k in range(self.n):
            if mask[k]:
                self._reset(k, seeds[k], options)
        return self._done()

    def _reset(self, k: int, seed: int | None = None, options: dict[str, Any] | None = None,
               final: dict[str, Any] | None = None) -> None:
        """Begins an episode, if need be in a new environment. `final`: info of the episode that ended with the same step."""
        progress = self.progress
        while True:
            if seed is None:
                seed = progress.pending[k]
            else:
                progress.seeds[k] = seed
            progress.pending[k] = None
            self._enter(k, self.options.step_timeout)
            try:
                out = self.envs[k].reset(**({} if seed is None and not options else {"seed": seed}), **(options or {}))
                self._check_wanted()
                obs, info = ExactCheck.pair(out)
                arrays = self.obs.checked(obs)
                if nan := self.obs.nan(arrays):
                    raise BadOutput(nan)
                break
            except faults() as error:
                self._rebuild(k, self._fault(k, f"raised in reset(seed={seed})", error))
                seed = None
        for column, array in zip(self.columns.obs, arrays, strict=True):
            column[self.lo + k] = array
        progress.over[k], progress.steps[k] = False, 0
        if info or final:
            self._reply.infos[self.lo + k] = copied(info), final or {}

    def step(self) -> Reply | None:
        """One step of every environment, with the actions in the columns.

        Raises:
            Abandoned: the group is to end.
            BadOutput: an environment gave NaN.
        """
        columns, options, progress, infos = self.columns, self.options, self.progress, self._reply.infos
        rew, terminated, truncated, act = columns.rew, columns.terminated, columns.truncated, columns.act
        single, clock, limit, number = self._one, time.monotonic, options.step_timeout, options.number
        deadline, at = self.status.deadline, self.status.at
        next_step, same_step = options.mode is AutoresetMode.NEXT_STEP, options.mode is AutoresetMode.SAME_STEP
        for k, env in enumerate(self.envs):
            i = self.lo + k
            if progress.over[k] and next_step:
                rew[i], terminated[i], truncated[i] = 0.0, False, False
                self._reset(k)
                continue
            action = self.act.row(act, i)
            at[number], deadline[number] = i, clock() + limit
            try:
                out = env.step(action)
                if self.abandoned:
                    raise Abandoned
                try:
                    obs, reward, end, cut, info = out
                except (TypeError, ValueError):
                    ExactCheck.five(out)
                if not ((end is True or end is False or end.__class__ is np.bool_)
                        and (cut is True or cut is False or cut.__class__ is np.bool_)):
                    ExactCheck.flags(end, cut)
                if reward.__class__ is not float:
                    reward = ExactCheck.number(reward)
                if info.__class__ is not dict:
                    ExactCheck.info(info)
                if single is not None and obs.__class__ is np.ndarray and obs.shape == single[1] and obs.dtype == single[2]:
                    arrays = [obs]
                else:
                    arrays = self.obs.checked(obs)
                over = bool(end or cut)
                # The row of an end is checked by itself, for a reset may overwrite it; the others all at once, below.
                if over and (nan := self.obs.nan(arrays)):
                    raise BadOutput(nan)
                if not isfinite(reward):
                    ExactCheck.finite(reward)
            except faults() as error:
                self._drop(k, f"raised in step({action!r}), step {progress.steps[k]} of its episode", error)
                continue
            progress.steps[k] += 1
            rew[i], terminated[i], truncated[i] = reward, end, cut
            if info:
                info = copied(info)  # the environment may go on with the same dict, in the very reset that this step ends with
            if over and same_step:
                for column, array in zip(columns.final, arrays, strict=True):
                    column[i] = array
                self._reset(k, final=info)
                continue
            progress.over[k] = over
            if single is not None:
                single[0][i] = arrays[0]
            else:
                for column, array in zip(columns.obs, arrays, strict=True):
                    column[i] = array
            if info:
                infos[i] = info, {}
        for column in self._floats:
            if np.isnan(column).any():
                self._find_nan()
                break
        return self._done()

    def _find_nan(self) -> None:
        for k in range(self.n):
            row = [column[self.lo + k] for column in self.columns.obs]
            if not self.progress.over[k] and (nan := self.obs.nan(row)):
                self._drop(k, f"in step {self.progress.steps[k] - 1} of its episode", BadOutput(nan))

    def _drop(self, k: int, doing: str, error: BaseException) -> None:
        """Ends an episode by truncation where the environment failed. What it led to, the caller knows."""
        i, columns = self.lo + k, self.columns
        self._reply.infos.pop(i, None)
        self._rebuild(k, self._fault(k, doing, error), dropped=True)
        columns.rew[i], columns.terminated[i], columns.truncated[i] = 0.0, False, True
        if self.options.mode is AutoresetMode.SAME_STEP:
            self._reset(k)

    # ----------------------------------------------------------------------------------------------------------------- the rest

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Attribute `name` of every environment, called where it can be."""

        def get(k: int) -> Any:
            value = getattr(self.envs[k], "get_wrapper_attr", partial(getattr, self.envs[k]))(name)
            return value(*args, **kwargs) if callable(value) else value

        return self._each(get, f"raised in {name}")

    def set_attr(self, name: str, values: list[Any]) -> list[Any]:
        """Sets an attribute of every environment, to a value each."""

        def put(k: int) -> None:
            getattr(self.envs[k], "set_wrapper_attr", partial(setattr, self.envs[k]))(name, values[k])

        return self._each(put, f"raised in set_attr({name!r})")

    def clone(self) -> list[Any]:
        """The state of every environment, and where it stands in its episode."""
        return self._each(lambda k: {"env": clone_state(self.envs[k]), **self.progress.state_of(k)},
                          "raised in clone_state")

    def restore(self, states: list[dict[str, Any]]) -> list[Any]:
        """Goes back to what `clone` returned."""

        def put(k: int) -> None:
            restore_state(self.envs[k], states[k]["env"])
            self.progress.put_back(k, states[k])

        return self._each(put, "raised in restore_state")

    def _each(self, do: Callable[[int], Any], doing: str) -> list[Any]:
        out = []
        for k in range(self.n):
            self._enter(k, self.options.step_timeout)
            try:
                out.append(do(k))
            except faults() as error:
                raise self._fault(k, doing, error) from error
        self._done()
        return out

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
        with suppress(*faults()):
            self.close()

