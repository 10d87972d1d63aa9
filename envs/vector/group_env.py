"""GroupVectorEnv: groups of environments in their hosts as one gymnasium vector environment, with what fails rebuilt."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parl_like.environment.factory import for_elsewhere
from parl_like.environment.value_check import BadOutput
from parl_like.envs.vector.columns import ColumnLayout, Columns, Status
from parl_like.envs.vector.group import EnvFailed, GroupOptions, Reply, faults, seed_after
from parl_like.envs.vector.hosts import CLOSE_TIMEOUT, Host
from parl_like.process.child import RestartBudget
from parl_like.process.shared_memory import nameless_file
from parl_like.values.copying import copied
from parl_like.values.spec import Array


class GroupVectorEnv(VectorEnv[Any, Any, Array]):
    """n environments in one or more hosts; see `make_vector_env`. Layer 6 of six.

    Attributes:
        autoreset_mode: When finished episodes are reset; also in `metadata`.
        copy: Whether observations are copies; else views that the next call overwrites.
        hosts: Where the environments are.
    """

    def __init__(
        self, env_fn: Callable[[], Any], n: int, host: type[Host], workers: int, *, seed: int | None, mode: AutoresetMode,
        step_timeout: float, start_timeout: float, restart: bool, copy: bool,
    ) -> None:
        self.num_envs, self.autoreset_mode, self.copy, self.restart = n, mode, copy, restart
        self._first_seeds = [None] * n if seed is None else self._checked_seeds(seed)
        self._seeds: list[int | None] = [None] * n
        self._env_fn = _pickled(env_fn) if host.pickles else env_fn
        memory = nameless_file("columns") if host.pickles else -1
        self._status = Status(workers, memory)
        self._step_timeout, self._start_timeout = step_timeout, start_timeout
        self._rows = [slice(round(g * n / workers), round((g + 1) * n / workers)) for g in range(workers)]
        self.hosts = [host(GroupOptions(rows.start, rows.stop, g, n, workers, mode, restart, step_timeout, start_timeout),
                           self._status, memory) for g, rows in enumerate(self._rows)]
        self._everywhere: dict[int, tuple[Any, ...]] = dict.fromkeys(range(workers), ())
        # Hosts that a call found lost, which cannot tell of dropped episodes: the next step or reset rebuilds them.
        self._lost: dict[int, EnvFailed] = {}
        self._shut = weakref.finalize(self, _shut, self.hosts, os.getpid(), memory)
        try:
            for each in self.hosts:
                each.start(0)
            self._face(self._asked("build", dict.fromkeys(self._everywhere, (self._env_fn, None))))
            self._columns = Columns(self._obs, self._act, n, workers, memory)
            self._bound = (None if host.pickles else self._columns,)
            self._asked("bind", dict.fromkeys(self._everywhere, self._bound))
        except BaseException:
            self._abort()
            raise
        self._over = np.zeros(n, np.bool_)
        self._begun = np.zeros(n, np.bool_)
        # Of hosts: how often they were made anew, as keys of fresh seeds.
        self._budgets, self._generation = [RestartBudget() for _ in self.hosts], [0] * workers
        # What the caller has seen last: where an episode that is dropped ends.
        self._shown = [column.copy() for column in self._columns.obs] if restart else []

    def _face(self, greetings: list[tuple[Any, ...]]) -> None:
        first = greetings[0]
        for rows, (obs, act, *_) in zip(self._rows, greetings, strict=True):
            if (obs, act) != first[:2]:
                raise ValueError(f"make_vector_env: environment {rows.start} has the spaces {obs} and {act}, environment 0 "
                                 f"{first[0]} and {first[1]}; expected equal ones")
        self.single_observation_space, self.single_action_space, metadata, self.render_mode = first
        self._obs, self._act = ColumnLayout(self.single_observation_space), ColumnLayout(self.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**metadata, "autoreset_mode": self.autoreset_mode}

    # ------------------------------------------------------------------------------------------------------------------ resets

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins episodes.

        Args:
            seed: s: environment i gets s + i. A sequence: one each. None: generators go on; the first reset uses the seed of
                construction.
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
        given = {"options": chosen}
        args = {g: (seeds[rows], mask[rows].tolist(), given) for g, rows in enumerate(self._rows) if mask[rows].any()}
        told = self._run("reset", args, given, mask)
        self._over &= ~mask
        self._begun |= mask
        return self._observations(), self._infos({}, told)

    def _checked_seeds(self, seed: Any) -> list[int | None]:
        n = self.num_envs
        one = isinstance(seed, (int, np.integer))
        given = [int(seed) + i for i in range(n)] if one else np.atleast_1d(np.array(seed, object)).tolist()
        if np.iterable(seed) and len(given) != n:
            raise ValueError(f"{self}: {len(given)} seeds; expected {n}, one for each environment, or a single number")
        for each in given:
            if each is not None and not (isinstance(each, (int, np.integer)) and each >= 0):
                raise ValueError(f"{self}: a seed is {each!r}; expected an integer of at least 0, or None")
        return [None if each is None else int(each) for each in given]

    def _infos(self, infos: dict[str, Any], told: Reply) -> dict[str, Any]:
        """`infos` with what environments told, and what happened to them."""
        # First, so that an environment's own info of that name makes no array of numbers, which takes no text.
        for i, (text, _, dropped) in told.rebuilt.items():
            infos = self._add_info(infos, {"restarted": True, "dropped": dropped, "fault": text}, i)
        for i, (info, _) in told.infos.items():
            if i in told.rebuilt:
                info = {name: value for name, value in info.items() if name not in ("restarted", "dropped", "fault")}
            if info:
                infos = self._add_info(infos, info, i)
        return infos

    # ----------------------------------------------------------------------------------------------- operations, and what fails

    def _ask(self, op: str, args: dict[int, tuple[Any, ...]]) -> list[Any]:
        """Runs an operation in these hosts (number → arguments) at once; what those return that are not lost.

        Raises:
            EnvFailed: An environment failed, and is not to be rebuilt or was too often.
        """
        lost = self._lost
        limit = self._start_timeout if op == "build" else self._step_timeout
        for g, given in args.items():
            if g not in lost:
                self._status.deadline[g] = time.monotonic() + limit
                self.hosts[g].send(op, *given)
        replies: list[Any] = []
        errors: list[Exception] = []
        for g in args:
            if g in lost:
                continue
            try:
                replies.append(self.hosts[g].receive())
            except EnvFailed as failed:
                if failed.lost:
                    failed.seed = self._seeds[failed.index]
                    lost[g] = failed
                else:
                    errors.append(failed)
            except Exception as error:  # noqa: BLE001 - the other answers are to be taken first, or they would be the next call's
                errors.append(error)
            if errors and op == "build":  # all ends with that, so nobody waits for those that are still being made
                break
        if errors:
            _raise(errors[0])
        return replies

    def _asked(self, op: str, args: dict[int, tuple[Any, ...]]) -> list[Any]:
        """The same where no host may be lost."""
        replies = self._ask(op, args)
        for failed in self._lost.values():
            _raise(failed)
        return replies

    def _run(self, op: str, args: dict[int, tuple[Any, ...]], options: dict[str, Any], mask: Array | None = None) -> Reply:
        """A step or reset, with lost hosts made anew.

        Args:
            options: Arguments of resets that belong to it.
            mask: [n] bool, which environments are reset; None: it is a step.
        """
        told = Reply({}, {})
        try:
            for reply in self._ask(op, args):
                self._take(reply, told)
            for g in sorted(self._lost.keys() & args.keys()) if self._lost else ():
                self._revive(g, told, options, mask)
        except BaseException:
            self._abort()
            raise
        return told

    def _take(self, reply: Reply | None, told: Reply) -> None:
        if reply is not None:
            told.infos.update(reply.infos)
            for i, (text, seed, dropped) in reply.rebuilt.items():
                told.add_rebuilt(i, text, seed, dropped)
                self._seeds[i] = seed

    def _revive(self, g: int, told: Reply, options: dict[str, Any], mask: Array | None) -> None:
        """Makes a lost host and its environments anew, until it is not lost again.

        Raises:
            EnvFailed: That is not wanted, or was too often, or would drop episodes that the caller believes to be open.
        """
        slots, columns, host = self._rows[g], self._columns, self.hosts[g]
        rows = range(slots.start, slots.stop)
        # Which had an episode open; and which are to begin one now, in a step those that would have by themselves.
        unbegun = self._over[slots] & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        dropped = np.zeros(len(rows), np.bool_) if mask is not None else ~unbegun
        begins = (~dropped | (self.autoreset_mode is AutoresetMode.SAME_STEP)).tolist()
        while (failed := self._lost.pop(g, None)) is not None:
            if not self.restart or (mask is not None and not mask[slots].all()):
                _raise(failed)
            if delay := failed.spend(self._budgets[g]):
                time.sleep(delay)
            self._generation[g] += 1
            for i, was_open in zip(rows, dropped.tolist(), strict=True):
                with_it = f"environment {i} was lost with environment {failed.index}, whose worker it shared: "
                self._seeds[i] = seed = seed_after(self._seeds[i], i, self._generation[g], 0)
                told.add_rebuilt(i, f"{'' if i == failed.index else with_it}{failed}", seed, was_open)
            host.start(self._generation[g])
            self._ask("build", {g: (self._env_fn, self._seeds[slots])})
            for reply in self._ask("bind", {g: self._bound}):
                self._take(reply, told)
            if any(begins):
                for reply in self._ask("reset", {g: ([None] * len(rows), begins, options)}):
                    self._take(reply, told)
        columns.rew[slots], columns.terminated[slots], columns.truncated[slots] = 0.0, False, dropped

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
            raise gym.error.ResetNeeded(f"{self}: step() after the end of episodes {np.flatnonzero(self._over).tolist()}; with "
                                        "autoreset disabled, call reset(options={'reset_mask': terminated | truncated}) first")
        self._write(actions)
        told = self._run("step", self._everywhere, {})
        columns, dropped = self._columns, [i for i, (_, _, dropped) in told.rebuilt.items() if dropped]
        self._over = over = columns.terminated | columns.truncated
        infos: dict[str, Any] = {}
        if over.any() and self.autoreset_mode is AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(over).tolist():
                last = self._obs.row(self._shown if i in dropped else columns.final, i)
                infos = self._add_info(infos, {"final_obs": last, "final_info": told.infos[i][1] if i in told.infos else {}}, i)
        elif dropped:
            for column, shown in zip(columns.obs, self._shown, strict=True):
                column[dropped] = shown[dropped]
        infos = self._infos(infos, told)
        return self._observations(), columns.rew.copy(), columns.terminated.copy(), columns.truncated.copy(), infos

    def _write(self, actions: Any) -> None:
        try:
            parts = self._act.split(actions)
        except BadOutput as error:
            raise ValueError(f"{self}: actions: {error}") from None
        for leaf, part, column in zip(self._act.leaves, parts, self._columns.act, strict=True):
            array = np.asarray(part)
            if array.shape != column.shape or not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                raise ValueError(f"{self}: actions{f' {leaf.path}' if leaf.path else ''} are {array.shape} {array.dtype}; "
                                 f"expected {column.shape} {leaf.dtype}, one row for each environment")
            column[...] = array

    def _observations(self) -> Any:
        for shown, column in zip(self._shown, self._columns.obs, strict=False):
            shown[...] = column
        return self._obs.nest([column.copy() if self.copy else column for column in self._columns.obs])

    # ------------------------------------------------------------------------------------------------------------- other calls

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Attribute `name` of every environment, called where it can be; one value each."""
        return tuple(self._plain("call", dict.fromkeys(self._everywhere, (name, args, kwargs))))

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
        self._plain("set_attr", {g: (name, each[rows]) for g, rows in enumerate(self._rows)})

    def render(self) -> tuple[Any, ...] | None:
        """One frame of each environment, which stays as it is."""
        return tuple(copied(frame) for frame in self.call("render"))

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on (`parl_like.environment.state`).

        Raises:
            TypeError: an environment cannot clone its state. gymnasium.error.ResetNeeded: one was never reset.
        """
        if not self._begun.all():
            raise gym.error.ResetNeeded(f"{self}: clone_state() before reset()")
        return {"envs": self._cloned("clone", dict.fromkeys(self._everywhere, ())), "over": self._over.copy(),
                "obs": [column.copy() for column in self._columns.obs], "generation": list(self._generation)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Goes back to a state, also one of another vector environment with the same environments.

        Raises:
            ValueError: it is of other environments.
        """
        shapes, expected = ([(column.shape, column.dtype) for column in obs] for obs in (state["obs"], self._columns.obs))
        if shapes != expected or len(state["generation"]) != len(self.hosts):
            raise ValueError(f"restore_state: the state is of {len(state['envs'])} environments in {len(state['generation'])} "
                             f"groups with observations {shapes}; expected {self.num_envs} in {len(self.hosts)}, {expected}")
        self._cloned("restore", {g: (state["envs"][rows],) for g, rows in enumerate(self._rows)})
        self._begun[:], self._over, self._generation = True, state["over"].copy(), list(state["generation"])
        self._first_seeds = [None] * self.num_envs
        self._seeds = [one["seeds"] for one in state["envs"]]
        for column, saved in zip(self._columns.obs, state["obs"], strict=True):
            column[...] = saved
        for shown, saved in zip(self._shown, state["obs"], strict=False):
            shown[...] = saved

    def _cloned(self, op: str, args: dict[int, tuple[Any, ...]]) -> list[Any]:
        """`_plain`; what says that a state cannot be cloned or restored comes as it is."""
        try:
            return self._plain(op, args)
        except EnvFailed as failed:
            if isinstance(failed.cause, (TypeError, ValueError, gym.error.ResetNeeded)):
                raise failed.cause from failed
            raise

    def _plain(self, op: str, args: dict[int, tuple[Any, ...]]) -> list[Any]:
        """Return what an operation of all hosts returns, one value for each environment. It drops no episode, so nothing is
        rebuilt here."""
        self._check_open()
        try:
            values = self._asked(op, args)
        except BaseException as error:
            if not isinstance(error, Exception) or (self._lost and not self.restart):
                self._abort()
            raise
        return [value for each in values for value in each]

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
                with suppress(Exception):  # the error that is being raised says why; a second one would hide it
                    host.kill()
        finally:
            self.close_extras()

    def close_extras(self, **kwargs: Any) -> None:
        """Ends all hosts; called once, by `close`. Environments that raise there are named in a warning."""
        try:
            self._shut()
        finally:
            self.closed = True
            # Their memory counts as an open file; views that somebody still holds keep it by themselves.
            self.hosts = []
            for name in ("_columns", "_bound", "_status"):
                self.__dict__.pop(name, None)


def _shut(hosts: list[Host], pid: int, memory: int) -> None:
    """Ends hosts; also when the vector environment is forgotten, or Python ends. Not in a forked process, whose they are not."""
    if os.getpid() != pid:
        return
    errors = []
    try:
        for host in hosts:  # all close at the same time
            host.status.deadline[host.options.number] = time.monotonic() + CLOSE_TIMEOUT
            host.send("close")
        for host in hosts:
            try:
                host.close()
            except faults() as error:  # the others are to be closed, too
                errors.append(f"environments {host.options.lo} to {host.options.hi - 1} raised in close: "
                              f"{type(error).__name__}: {error}")
    finally:
        for host in hosts:
            host.kill()  # where an interruption left one; else there is nothing to do
        if memory >= 0:
            os.close(memory)
    if errors:
        warnings.warn("; ".join(errors), stacklevel=2)


def _raise(error: Exception) -> NoReturn:
    if isinstance(error, EnvFailed):
        raise error from error.cause
    raise error


def _pickled(env_fn: Callable[[], Any]) -> bytes:
    try:
        return bytes(cloudpickle.dumps(for_elsewhere(env_fn)))
    except Exception as error:
        raise ValueError(f"make_vector_env: the factory {env_fn!r} cannot be sent to a worker process ({type(error).__name__}: "
                         f"{error}); build what it needs inside of it, or use kind='thread'") from error
