"""GroupVectorEnv: groups of environments in their hosts as one gymnasium vector environment, with what fails rebuilt."""

from __future__ import annotations

import operator
import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parl_like.envs.columns import BadOutput, Columns, Layout
from parl_like.envs.group import EnvFailed, Reply
from parl_like.envs.hosts import Host
from parl_like.owned import copied
from parl_like.process.budget import RestartBudget
from parl_like.process.shared_memory import nameless_file
from parl_like.spec import Array


def _fresh_seed(seed: int | None, *key: int) -> int:
    """A seed for a rebuilt environment: a function of its old seed and of `key`, so that a run can be repeated; in [0, 2³¹)."""
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0] >> 1)


class _Round:
    """What one operation of all hosts has told so far.

    Attributes:
        options: Arguments of resets that belong to the operation.
        in_reset: The operation is a reset; of each host, which of its environments are reset.
        infos: As in `Reply`.
        texts: What happened to the environments that were rebuilt.
        dropped: Those of them that had an episode open.
        begins: Whether their reset belongs to this operation, too.
        broken: What is still to be rebuilt, with its host.
    """

    def __init__(self, options: dict[str, Any], in_reset: dict[int, list[bool]] | None) -> None:
        self.options, self.in_reset = options, in_reset
        self.infos: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
        self.texts: dict[int, str] = {}
        self.dropped: set[int] = set()
        self.begins: dict[int, bool] = {}
        self.broken: list[tuple[Host, EnvFailed]] = []

    def tell(self, i: int, text: str) -> None:
        self.texts[i] = f"{self.texts[i]}\n\nThen {text}" if i in self.texts else text


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
        self._seeds: list[int | None] = [None] * n
        self._env_fn = _pickled(env_fn) if host.pickles else env_fn
        bounds = [round(g * n / workers) for g in range(workers + 1)]
        memory = nameless_file("columns") if host.pickles else -1
        self.hosts = [host(bounds[g], bounds[g + 1], g, mode, step_timeout, start_timeout, memory) for g in range(workers)]
        if pin:
            cores = sorted(os.sched_getaffinity(0))
            for each in self.hosts:
                each.core = cores[each.number % len(cores)]
        self._shut = weakref.finalize(self, _shut, self.hosts, os.getpid(), memory)
        try:
            for each in self.hosts:
                each.start()
                each.send("build", self._env_fn, None)
            self._face([self._first(each).value for each in self.hosts])
            self._columns = Columns(self._obs, self._act, n, workers, memory if memory >= 0 else None)
            for each in self.hosts:
                self._bind(each)
            for each in self.hosts:
                self._first(each)
        except BaseException:
            self._abort()
            raise
        self._over = np.zeros(n, np.bool_)
        self._begun = np.zeros(n, np.bool_)
        # Rebuilds, of environments alone and of hosts; how often they were, as keys of fresh seeds.
        self._budgets, self._restarts = [RestartBudget() for _ in range(n)], [0] * n
        self._host_budgets, self._generation = [RestartBudget() for _ in self.hosts], [0] * workers
        # Hosts that a call found lost, which cannot tell of dropped episodes: the next step or reset rebuilds them.
        self._lost: dict[int, EnvFailed] = {}
        # What the caller has seen last: where an episode that is dropped ends.
        self._shown = [column.copy() for column in self._columns.obs] if restart else []

    def _first(self, host: Host) -> Any:
        """What a host answers before there is anything that could be rebuilt."""
        reply = host.receive()
        if reply is not None and reply.faults:
            raise reply.faults[0] from reply.faults[0].cause
        return reply

    def _bind(self, host: Host) -> None:
        self._columns.busy[host.number] = time.monotonic()
        host.columns = self._columns
        host.send("bind", self.num_envs, len(self.hosts), None if host.pickles else self._columns.memory)

    def _face(self, greetings: list[tuple[Any, ...]]) -> None:
        first = greetings[0]
        for host, greeting in zip(self.hosts, greetings, strict=True):
            if greeting[:2] != first[:2]:
                raise ValueError(f"make_vector_env: environment {host.lo} has the spaces {greeting[0]} and {greeting[1]}, "
                                 f"environment 0 {first[0]} and {first[1]}; expected equal ones")
        self.single_observation_space, self.single_action_space, metadata, self.render_mode = first
        self._obs, self._act = Layout(self.single_observation_space), Layout(self.single_action_space)
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
        begins = {host.number: mask[host.lo:host.hi].tolist() for host in self.hosts if mask[host.lo:host.hi].any()}
        args = {g: (seeds[self.hosts[g].lo:self.hosts[g].hi], begins[g], {"options": chosen}) for g in begins}
        told = self._all("reset", args, _Round({"options": chosen}, begins))
        self._over &= ~mask
        self._begun |= mask
        return self._observations(), self._infos({}, told)

    def _checked_seeds(self, seed: Any) -> list[int | None]:
        n = self.num_envs
        one = isinstance(seed, (int, np.integer))
        given = [int(seed) + i for i in range(n)] if one else np.atleast_1d(np.array(seed, object)).tolist()
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

    def _infos(self, infos: dict[str, Any], told: _Round) -> dict[str, Any]:
        """`infos` with what environments told, and what happened to them: all of it, for the second fault of a step may follow
        from the first."""
        # First, so that an environment's own info of that name makes no array of numbers, which takes no text.
        for i, text in told.texts.items():
            infos = self._add_info(infos, {"restarted": True, "dropped": i in told.dropped, "fault": text}, i)
        for i, info, _ in told.infos:
            if i in told.texts:
                info = {name: value for name, value in info.items() if name not in ("restarted", "dropped", "fault")}
            if info:
                infos = self._add_info(infos, info, i)
        return infos

    # ----------------------------------------------------------------------------------------------- operations, and what fails

    def _all(self, op: str, args: dict[int, tuple[Any, ...]], told: _Round) -> _Round:
        """Runs an operation in these hosts (number → arguments) at once, and rebuilds what fails on the way.

        Raises:
            EnvFailed: Something failed, and that is not wanted, was too often, or would drop episodes that the caller believes to
                be open.
        """
        try:
            self._ask(op, args, told)
            for g in args:
                self._lost.pop(g, None)
            while told.broken:
                self._rebuild(told)
        except BaseException:
            self._abort()
            raise
        return told

    def _ask(self, op: str, args: dict[int, tuple[Any, ...]], told: _Round) -> list[Any]:
        """Runs an operation in these hosts at once; the values that they return, one for each environment."""
        for g, given in args.items():
            if g not in self._lost:
                self._columns.busy[g] = time.monotonic()
                self.hosts[g].send(op, *given)
        values: list[Any] = []
        errors: list[Exception] = []
        for g in args:
            try:
                reply = self._take(self.hosts[g], told, self._lost.get(g))
                if reply is not None and reply.value is not None:
                    values += reply.value
            except Exception as error:  # noqa: BLE001 - the other answers are to be taken first, or they would be the next call's
                errors.append(error)
        if errors:
            raise errors[0]
        return values

    def _take(self, host: Host, told: _Round, lost: EnvFailed | None = None) -> Reply | None:
        """What a host answers, whose faults are noted; None where it is lost, or has nothing to tell."""
        try:
            if lost is not None:
                raise lost
            reply: Reply | None = host.receive()
        except EnvFailed as failed:
            if not failed.lost:
                raise
            self._note(host, failed, told)
            return None
        if reply is not None:
            told.infos += reply.infos
            for fault in reply.faults:
                if fault.dropped:
                    told.dropped.add(fault.index)
                told.begins.setdefault(fault.index, not fault.dropped or self.autoreset_mode is AutoresetMode.SAME_STEP)
                self._note(host, fault, told)
        return reply

    def _note(self, host: Host, failed: EnvFailed, told: _Round) -> None:
        failed.seed = self._seeds[failed.index]
        told.broken.append((host, failed))

    def _rebuild(self, told: _Round) -> None:
        """Builds everything anew that is broken, with fresh seeds."""
        broken, told.broken = told.broken, []
        jobs: dict[int, list[tuple[int, int, float, bool]]] = {}
        for host, failed in broken:
            i = failed.index
            if not self.restart or (failed.lost and told.in_reset is not None and not all(told.in_reset[host.number])):
                raise failed from failed.cause
            budget = self._host_budgets[host.number] if failed.lost else self._budgets[i]
            delay = budget.spend()
            if delay is None:
                failed.what = f"was rebuilt {budget.limit} times within {budget.period:.0f} s and failed again: it {failed.what}"
                raise failed from failed.cause
            if failed.lost:
                self._revive(host, failed, delay, told)
                continue
            self._restarts[i] += 1
            told.tell(i, str(failed))
            self._seeds[i] = seed = _fresh_seed(self._seeds[i], i, self._generation[host.number], self._restarts[i])
            jobs.setdefault(host.number, []).append((i, seed, delay, told.begins[i]))
        for g, each in jobs.items():
            self._columns.busy[g] = time.monotonic()
            self.hosts[g].send("rebuild", each, told.options)
        for g in jobs:
            self._take(self.hosts[g], told)

    def _revive(self, host: Host, failed: EnvFailed, delay: float, told: _Round) -> None:
        """Makes a lost host and its environments anew. What the lost operation did is not what the caller is to be told."""
        g, columns, rows = host.number, self._columns, range(host.lo, host.hi)
        host.kill()
        if delay:
            time.sleep(delay)
        self._generation[g] += 1
        fresh = [_fresh_seed(self._seeds[i], i, self._generation[g], 0) for i in rows]
        # Which had an episode open; and which are to begin one now, in a step those that would have by themselves.
        for i, seed in zip(rows, fresh, strict=True):
            if i not in told.begins:
                is_open = told.in_reset is None and not (self.autoreset_mode is AutoresetMode.NEXT_STEP and self._over[i])
                told.begins[i] = not is_open or self.autoreset_mode is AutoresetMode.SAME_STEP
                if is_open:
                    told.dropped.add(i)
            self._seeds[i], self._restarts[i] = seed, 0
            columns.rew[i], columns.terminated[i], columns.truncated[i] = 0.0, False, i in told.dropped
            at = failed.index
            told.tell(i, str(failed) if i == at else f"environment {i} was lost with environment {at}, whose worker it shared: "
                                                     f"{failed}")
        host.columns = None  # another time limit holds while environments are made
        host.start()
        host.send("build", self._env_fn, fresh)
        built = self._take(host, told)
        if built is None or built.faults:  # an environment that cannot be made is as bad as a host that is lost
            told.broken[-1][1].lost = True
            return
        self._bind(host)
        n = len(told.broken)
        self._take(host, told)
        if len(told.broken) > n:
            return
        begins = [told.begins[i] for i in rows]
        if any(begins):
            columns.busy[g] = time.monotonic()
            host.send("reset", [None] * len(begins), begins, told.options)
            self._take(host, told)
            columns.truncated[host.lo:host.hi] = [i in told.dropped for i in rows]  # which the reset has cleared

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
        told = self._all("step", {host.number: () for host in self.hosts}, _Round({}, None))
        columns, dropped = self._columns, told.dropped
        self._over = over = columns.terminated | columns.truncated
        infos: dict[str, Any] = {}
        if over.any() and self.autoreset_mode is AutoresetMode.SAME_STEP:
            finals = {i: final for i, _, final in told.infos if final}
            for i in np.flatnonzero(over).tolist():
                last = self._obs.row(self._shown if i in dropped else columns.final, i)
                infos = self._add_info(infos, {"final_obs": last, "final_info": finals.get(i, {})}, i)
        elif dropped:
            rows = sorted(dropped)
            for column, shown in zip(columns.obs, self._shown, strict=True):
                column[rows] = shown[rows]
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
        return tuple(self._plain("call", lambda host: (name, args, kwargs)))

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
        return tuple(copied(frame) for frame in self.call("render"))

    def _plain(self, op: str, args: Callable[[Host], tuple[Any, ...]]) -> list[Any]:
        """What an operation of all hosts returns, one value for each environment. It drops no episode, so nothing is rebuilt
        here."""
        self._check_open()
        told = _Round({}, None)
        try:
            values = self._ask(op, {host.number: args(host) for host in self.hosts}, told)
        except Exception:
            raise
        except BaseException:
            self._abort()
            raise
        self._lost |= {host.number: failed for host, failed in told.broken if failed.lost}
        if self._lost and not self.restart:
            self._abort()
        if told.broken:
            failed = told.broken[0][1]
            raise failed from failed.cause
        return values

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
    """Ends hosts; also when the vector environment is forgotten, or Python ends. Not in a forked process, whose they are not."""
    if os.getpid() != pid:
        return
    errors = []
    try:
        for host in hosts:
            host.leave()
        for host in hosts:
            try:
                host.close()
            except Exception as error:  # noqa: BLE001 - the others are to be closed, too
                errors.append(f"environments {host.lo} to {host.hi - 1} raised in close: {type(error).__name__}: {error}")
    finally:
        for host in hosts:
            host.kill()  # where an interruption left one; else there is nothing to do
        if memory >= 0:
            os.close(memory)
    if errors:
        warnings.warn("; ".join(errors), stacklevel=2)


def _pickled(env_fn: Callable[[], Any]) -> bytes:
    try:
        return bytes(cloudpickle.dumps(env_fn))
    except Exception as error:
        raise ValueError(f"make_vector_env: the factory {env_fn!r} cannot be sent to a worker process ({type(error).__name__}: "
                         f"{error}); build what it needs inside of it, or use kind='thread'") from error
