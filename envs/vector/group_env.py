"""GroupVectorEnv: groups of environments in their hosts as one gymnasium vector environment, with what fails rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parl_like.environment.value_check import BadOutput
from parl_like.envs.vector.columns import ColumnLayout
from parl_like.envs.vector.compiled import CompiledSteps, compiled_steps, may_change
from parl_like.envs.vector.group import EnvFailed, GroupOptions, Reply
from parl_like.envs.vector.host_pool import HostPool
from parl_like.envs.vector.hosts import Host, InlineHost
from parl_like.values.copying import copied
from parl_like.values.spec import Array


class GroupVectorEnv(VectorEnv[Any, Any, Array]):
    """n environments in one or more hosts; see `make_vector_env`. Layer 6 of six.

    Args:
        step_timeout, start_timeout: Seconds, see `make_vector_env`.

    Attributes:
        autoreset_mode: When finished episodes are reset; also in `metadata`.
        compiled: Steps all environments by one call; None: each steps by itself.
        copy: Whether observations are copies; else views that the next call overwrites.
        restart: Whether environments that fail are made anew.
        new_arrays: What `step` returns is nobody else's, but for observations without `copy`, and of the types and sizes that
            gymnasium promises.
    """

    new_arrays = True

    def __init__(
        self, env_fn: Callable[[], Any], n: int, host: type[Host], workers: int, *, seed: int | None, mode: AutoresetMode,
        step_timeout: float, start_timeout: float, restart: bool, copy: bool, compiled: bool = True,
    ) -> None:
        self.num_envs, self.autoreset_mode, self.copy, self.restart = n, mode, copy, restart
        self._first_seeds = [None] * n if seed is None else self._checked_seeds(seed)
        bounds = [round(g * n / workers) for g in range(workers + 1)]
        self._pool = HostPool(env_fn, host, [GroupOptions(bounds[g], bounds[g + 1], g, n, workers, mode, restart, step_timeout,
                                                          start_timeout) for g in range(workers)])
        try:
            self._declare(self._pool.start())
            self._columns = self._pool.bind(self._obs, self._act)
        except BaseException:
            self._abort()
            raise
        self._over = np.zeros(n, np.bool_)
        self._begun = np.zeros(n, np.bool_)
        # What the caller has seen last: where an episode that is dropped ends.
        self._shown = [column.copy() for column in self._columns.obs] if restart else []
        here = self._pool.hosts[0] if compiled and workers == 1 else None
        self.compiled: CompiledSteps | None = None
        if isinstance(here, InlineHost) and here.group is not None:
            self.compiled = compiled_steps(here.group, self._columns, mode, copy)

    @property
    def hosts(self) -> list[Host]:
        """The places of the environments, one for each group; none after `close`. Who asks may keep an environment, so these step
        by themselves from now on."""
        self._end_compiled()
        return self._pool.hosts

    def _end_compiled(self) -> None:
        self._settle()
        self.compiled = None

    def _settle(self) -> None:
        """Give the environments what compiled steps have made of them."""
        if self.compiled is not None and self.compiled.settle():
            self._over = self._columns.terminated | self._columns.truncated
            for shown, column in zip(self._shown, self._columns.obs, strict=False):
                shown[...] = column

    def _declare(self, made: list[tuple[Any, ...]]) -> None:
        """Set spaces and metadata: those of the environments of each group, as `Group.build` returns them."""
        first = made[0]
        for rows, (obs, act, *_) in zip(self._pool.rows, made, strict=True):
            if (obs, act) != first[:2]:
                raise ValueError(f"make_vector_env: environment {rows.start} has the spaces {obs} and {act}, environment 0 "
                                 f"{first[0]} and {first[1]}; expected equal ones")
        self.single_observation_space, self.single_action_space, metadata, self.render_mode = first
        self._obs, self._act = ColumnLayout(self.single_observation_space), ColumnLayout(self.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**metadata, "autoreset_mode": self.autoreset_mode}

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which may share environments with this one: all of them step by themselves from now on."""
        self._end_compiled()
        return dict(vars(self))

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
            ValueError: reset_mask is no array [n] of bool with at least one True.
        """
        self._check_open()
        n = self.num_envs
        chosen = dict(options) if options is not None else None
        mask = chosen.pop("reset_mask", None) if chosen is not None else None
        if mask is None:
            mask = np.ones(n, np.bool_)
        elif not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (n,) or not mask.any():
            raise ValueError(f"{self}: reset_mask is {mask!r}; expected an array ({n},) of bool with at least one True")
        if seed is None and not chosen and self.compiled is not None and self.compiled.leads:
            infos = self.compiled.begin(mask)
            if infos is not None:
                return self._observations(), infos
        if seed is None:
            seeds = [first if wanted else None for first, wanted in zip(self._first_seeds, mask.tolist(), strict=True)]
        else:
            seeds = self._checked_seeds(seed)
        for i in np.flatnonzero(mask).tolist():
            self._first_seeds[i] = None
            self._pool.seeds[i] = seeds[i] if seeds[i] is not None else self._pool.seeds[i]
        given = {"options": chosen}
        args = {g: (seeds[rows], mask[rows].tolist(), given) for g, rows in enumerate(self._pool.rows) if mask[rows].any()}
        notes = self._run("reset", args, given, mask)
        self._over &= ~mask
        self._begun |= mask
        return self._observations(), self._infos({}, notes)

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

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        """As gymnasium's, which joins numbers in the type of the first one: 0.5 after an integer would be 0."""
        for name, value in env_info.items():
            column = vector_infos.get(name)
            if isinstance(value, (float, np.floating)) and isinstance(column, np.ndarray) and column.dtype.kind in "iu":
                vector_infos[name] = column.astype(np.float64)
        return super()._add_info(vector_infos, env_info, env_num)

    def _infos(self, infos: dict[str, Any], notes: Reply) -> dict[str, Any]:
        """Return `infos` with those of the environments, and with what happened to them."""
        # First, so that an environment's own info of that name makes no array of numbers, which takes no text.
        for i, (text, _, dropped) in notes.rebuilt.items():
            infos = self._add_info(infos, {"restarted": True, "dropped": dropped, "fault": text}, i)
        for i, (info, _) in notes.infos.items():
            if i in notes.rebuilt:
                info = {name: value for name, value in info.items() if name not in ("restarted", "dropped", "fault")}
            if info:
                infos = self._add_info(infos, info, i)
        return infos

    # ----------------------------------------------------------------------------------------------- operations, and what fails

    def _run(self, op: str, args: dict[int, tuple[Any, ...]], options: dict[str, Any], mask: Array | None = None) -> Reply:
        """Make a step or reset, with lost hosts made anew.

        Args:
            options: Arguments of resets that belong to it.
            mask: [n] bool, which environments are reset; None: it is a step.
        """
        pool = self._pool
        self._settle()
        try:
            notes = pool.run(op, args)
            for g in sorted(pool.lost.keys() & args.keys()) if pool.lost else ():
                self._revive(g, notes, options, mask)
        except BaseException:
            self._abort()
            raise
        return notes

    def _revive(self, g: int, notes: Reply, options: dict[str, Any], mask: Array | None) -> None:
        """Make a lost host and its environments anew.

        Raises:
            EnvFailed: That is not wanted, or was too often, or would drop episodes that the caller believes to be open.
        """
        slots, columns = self._pool.rows[g], self._columns
        if mask is not None and not mask[slots].all():
            self._pool.give_up(g)
        # Which had an episode open; and which are to begin one now, in a step those that would have by themselves.
        unbegun = self._over[slots] & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        dropped = np.zeros(len(unbegun), np.bool_) if mask is not None else ~unbegun
        begins = ~dropped | (self.autoreset_mode is AutoresetMode.SAME_STEP)
        self._pool.revive(g, notes, dropped.tolist(), begins.tolist(), options)
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
            ResetNeeded: an environment was never reset; or, with autoreset disabled, its episode has ended.
        """
        compiled = self.compiled
        if compiled is not None and (compiled.leads or self._begun.all() and self._loads(compiled)):
            out = compiled.step(actions, self._write)
            if out is not None:
                return out
            self._settle()
        self._check_open()
        if not self._begun.all():
            raise gym.error.ResetNeeded(f"{self}: step() before reset()")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise gym.error.ResetNeeded(f"{self}: step() after the end of episodes {np.flatnonzero(self._over).tolist()}; with "
                                        "autoreset disabled, call reset(options={'reset_mask': terminated | truncated}) first")
        self._write(actions)
        notes = self._run("step", self._pool.everywhere, {})
        columns, dropped = self._columns, [i for i, (_, _, dropped) in notes.rebuilt.items() if dropped]
        self._over = over = columns.terminated | columns.truncated
        infos: dict[str, Any] = {}
        if over.any() and self.autoreset_mode is AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(over).tolist():
                last = self._obs.row(self._shown if i in dropped else columns.final, i)
                infos = self._add_info(infos, {"final_obs": last, "final_info": notes.infos[i][1] if i in notes.infos else {}}, i)
        elif dropped:
            for column, shown in zip(columns.obs, self._shown, strict=True):
                column[dropped] = shown[dropped]
        infos = self._infos(infos, notes)
        return self._observations(), columns.rew.copy(), columns.terminated.copy(), columns.truncated.copy(), infos

    def _loads(self, compiled: CompiledSteps) -> bool:
        """Hand the environments over to compiled steps; where these no longer know them, they step by themselves from now on."""
        if compiled.load():
            return True
        self.compiled = None
        return False

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
        if self.compiled is not None and may_change(name, (*args, *kwargs.values())):
            self._end_compiled()
        values = self._plain("call", dict.fromkeys(self._pool.everywhere, (name, args, kwargs)))
        if self.compiled is not None and may_change(name, values):
            self._end_compiled()
        return tuple(values)

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
        if self.compiled is not None and may_change(name, each):
            self._end_compiled()
        self._plain("set_attr", {g: (name, each[rows]) for g, rows in enumerate(self._pool.rows)})

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
        return {"envs": self._cloned("clone", dict.fromkeys(self._pool.everywhere, ())), "over": self._over.copy(),
                "obs": [column.copy() for column in self._columns.obs], "generation": list(self._pool.generation)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Goes back to a state, also one of another vector environment with the same environments.

        Raises:
            ValueError: it is of other environments.
        """
        shapes, expected = ([(column.shape, column.dtype) for column in obs] for obs in (state["obs"], self._columns.obs))
        if shapes != expected or len(state["generation"]) != len(self._pool.hosts):
            raise ValueError(f"restore_state: the state is of {len(state['envs'])} environments in {len(state['generation'])} "
                             f"groups with observations {shapes}; expected {self.num_envs} in {len(self._pool.hosts)}, "
                             f"{expected}")
        self._cloned("restore", {g: (state["envs"][rows],) for g, rows in enumerate(self._pool.rows)})
        self._begun[:], self._over = True, state["over"].copy()
        self._first_seeds = [None] * self.num_envs
        self._pool.generation, self._pool.seeds = list(state["generation"]), [one["seeds"] for one in state["envs"]]
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
        self._settle()
        try:
            values = self._pool.asked(op, args)
        except BaseException as error:
            if not isinstance(error, Exception) or (self._pool.lost and not self.restart):
                self._abort()
            raise
        return [value for each in values for value in each]

    @property
    def np_random_seed(self) -> Any:
        """The seed that each environment was last given, n values; None: none."""
        return tuple(self._pool.seeds)

    # ------------------------------------------------------------------------------------------------------------------- close

    def _check_open(self) -> None:
        if self.closed:
            raise gym.error.ClosedEnvironmentError(f"{self}: it is closed, by close() or by the error before; make a new one")

    def _abort(self) -> None:
        """Ends everything at once: after an error, or an interruption in the middle of a step, nothing fits together any more."""
        self.closed, self.compiled = True, None
        try:
            self._pool.kill()
        finally:
            self.close_extras()

    def close_extras(self, **kwargs: Any) -> None:
        """End all hosts; called once, by `close`. Environments that raise there are named in a warning."""
        self._settle()
        try:
            self._pool.close()
        finally:
            self.closed, self.compiled = True, None
            self.__dict__.pop("_columns", None)
