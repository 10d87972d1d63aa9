"""Compiled steps of gymnasium's classic control and toy text: which environments they are for, and how state comes and goes."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode

from parl_like.environment.state import layers_of
from parl_like.envs.make import ActionBounds, TimeLimit
from parl_like.envs.vector._steps import COLUMNS, CartPoleStep, End, Kind, Mode, Steps, Table
from parl_like.envs.vector.columns import Columns
from parl_like.envs.vector.group import EnvProgress, Group
from parl_like.values.spec import Array

MODES = {AutoresetMode.DISABLED: Mode.DISABLED, AutoresetMode.NEXT_STEP: Mode.NEXT_STEP, AutoresetMode.SAME_STEP: Mode.SAME_STEP}
TRIED = 64
"""Steps in which an environment must agree with the compiled ones, before these take its place."""
EPISODE = 24
"""Steps of an episode among them."""
WORTH, SHORT = 8, 4
"""Steps that are worth a load, and loads in a row that may be followed by fewer."""


class Class(NamedTuple):
    """One class of gymnasium's.

    Attributes:
        kind: Of the compiled steps.
        constants: Attributes that are numbers, in the order of the kernel's columns.
        fixed: Attributes, and what the compiled steps stand on.
        size: Numbers of its state; 0: it has a table.
        whole: Its resets show `prob` as an integer.
    """

    kind: Kind
    constants: tuple[str, ...] = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    size: int = 0
    whole: bool = True


_CAR = ("min_position", "max_position", "max_speed", "goal_position", "goal_velocity")
_CONTROL, _TEXT = "gymnasium.envs.classic_control.", "gymnasium.envs.toy_text."
CLASSES = {
    _CONTROL + "cartpole.CartPoleEnv": Class(Kind.CARTPOLE, (
        "gravity", "masspole", "total_mass", "length", "polemass_length", "force_mag", "tau", "theta_threshold_radians",
        "x_threshold", "_sutton_barto_reward"), (), 4),
    _CONTROL + "pendulum.PendulumEnv": Class(Kind.PENDULUM, ("max_speed", "max_torque", "dt", "g", "m", "l"), (), 2),
    _CONTROL + "mountain_car.MountainCarEnv": Class(Kind.MOUNTAIN_CAR, ("force", *_CAR, "gravity"), (), 2),
    _CONTROL + "continuous_mountain_car.Continuous_MountainCarEnv": Class(Kind.MOUNTAIN_CAR_CONTINUOUS, ("power", *_CAR), (
        ("min_action", -1.0), ("max_action", 1.0)), 2),
    _CONTROL + "acrobot.AcrobotEnv": Class(Kind.ACROBOT, (
        "dt", "LINK_LENGTH_1", "LINK_COM_POS_1", "LINK_COM_POS_2", "LINK_MASS_1", "LINK_MASS_2", "LINK_MOI", "MAX_VEL_1",
        "MAX_VEL_2"), (("book_or_nips", "book"), ("torque_noise_max", 0.0), ("AVAIL_TORQUE", [-1.0, 0.0, 1.0])), 4),
    _TEXT + "frozen_lake.FrozenLakeEnv": Class(Kind.TABLE),
    _TEXT + "cliffwalking.CliffWalkingEnv": Class(Kind.TABLE),
    _TEXT + "taxi.TaxiEnv": Class(Kind.TABLE, (), (("fickle_passenger", False), ("fickle_step", False)), whole=False),
}
BOUNDS = 6
"""Columns of constants for what `ActionBounds` does, in kinds that have actions which are numbers; they come first."""
BOUNDED = (Kind.PENDULUM, Kind.MOUNTAIN_CAR, Kind.MOUNTAIN_CAR_CONTINUOUS)
"""Kinds with these columns; that of MountainCar has its other constants where the continuous one has them."""
LIMITS: dict[type, tuple[str, str]] = {
    TimeLimit: ("elapsed", "max_steps"), gym.wrappers.TimeLimit: ("_elapsed_steps", "_max_episode_steps")}
"""Time limits: their attributes with the steps of the episode, and the most there may be."""
MUTABLE = (dict, list, np.ndarray)
"""Types of the values of an environment that it reads again, and others may change."""
RENEWED = ("state", "np_random")
"""Attributes that may be in other hands: each step makes a new state, and the kernel draws from the same generator."""
PULL = 0.0025
"""The gravity of MountainCarContinuous, which is no attribute."""


class EnvParts(NamedTuple):
    """An environment of `CLASSES` and what is around it.

    Attributes:
        bare: The environment. entry: Of `CLASSES`.
        bounds: Around it; None: none.
        limit: Ours or gymnasium's; None: none. steps: Name of its attribute with the steps of the episode. most: Its limit.
    """

    bare: Any
    entry: Class
    bounds: ActionBounds | None
    limit: Any
    steps: str
    most: int


def parts_of(env: Any) -> EnvParts | None:
    """Return the parts of an environment that is one of `CLASSES`, exactly, in nothing but `ActionBounds`, one time limit and
    gymnasium's order of calls; None: it is another one, draws itself, or has a method of its own."""
    one: Any = env
    limit: Any = None
    bounds, steps, most = None, "", 0
    while isinstance(one, gym.Wrapper):
        if type(one) is ActionBounds and bounds is None and limit is None and one.clip:
            bounds = one
        elif type(one) in LIMITS and limit is None:
            steps, of_limit = LIMITS[type(one)]
            limit, most = one, getattr(one, of_limit)
        elif type(one) is not gym.wrappers.OrderEnforcing:
            return None
        if _has_own_methods(one):
            return None
        one = one.env
    entry = CLASSES.get(f"{type(one).__module__}.{type(one).__qualname__}")
    if entry is None or one.render_mode is not None or _has_own_methods(one):
        return None
    return EnvParts(one, entry, bounds, limit, steps, most)


def _has_own_methods(env: Any) -> bool:
    return any(callable(value) and callable(getattr(type(env), name, None)) for name, value in vars(env).items())


def constants_of(parts: EnvParts) -> Array | None:
    """[COLUMNS] float64, the numbers of an environment in the kernel's order; None: one is not what the kernel stands on."""
    bare, entry, bounds = parts.bare, parts.entry, parts.bounds
    missing = object()
    for name, expected in entry.fixed:
        if getattr(bare, name, missing) != expected:
            return None
    values = [getattr(bare, name, None) for name in entry.constants]
    if not all(type(value) in (int, float, bool) for value in values):
        return None
    row, first = np.zeros(COLUMNS), BOUNDS * (entry.kind in BOUNDED)
    row[first:first + len(values)] = values
    space = bare.action_space
    if entry.kind is Kind.CARTPOLE:
        row[len(values)] = bare.kinematics_integrator == "euler"
    elif entry.kind is Kind.MOUNTAIN_CAR_CONTINUOUS:
        row[first + len(values)] = PULL
    if entry.kind in (Kind.PENDULUM, Kind.MOUNTAIN_CAR_CONTINUOUS):
        if type(space) is not spaces.Box or space.shape != (1,) or space.dtype != np.float32:
            return None
        low, high = float(space.low[0]), float(space.high[0])
        rescales = bounds is not None and bounds.rescale and (low, high) != (-1.0, 1.0)
        row[:first] = bounds is not None, rescales, (low + high) / 2, (high - low) / 2, low, high
    elif bounds is not None or type(space) is not spaces.Discrete or space.start != 0:
        return None
    return row if np.isfinite(row).all() else None


def table_of(bare: Any, whole: bool = False) -> Table:
    """The table of an environment of toy text; `whole` as in `Class`. Raises ValueError: it leads out of its states."""
    pairs = [bare.P[s][a] for s in range(len(bare.P)) for a in range(len(bare.P[s]))]
    first = np.cumsum([0, *map(len, pairs)])
    outcomes = [outcome for pair in pairs for outcome in pair]
    sums = np.concatenate([np.cumsum([outcome[0] for outcome in pair]) for pair in pairs]).astype(np.float64)
    chance, to, reward, ends = ([outcome[j] for outcome in outcomes] for j in range(4))
    masks = np.array([bare.action_mask(s) for s in range(len(bare.P))]) if hasattr(bare, "action_mask") else None
    table = Table(first, np.cumsum(bare.initial_state_distrib), sums, np.array(chance, np.float64), np.array(reward, np.float64),
                  np.array(to, np.int64), np.array(ends, np.uint8), masks, whole)
    n = len(bare.P)
    if not ((0 <= table.to) & (table.to < n)).all() or not np.isfinite(table.reward).all() or len(pairs) % n or min(
            map(len, pairs)) < 1 or len(table.start) != n:
        raise ValueError(f"{bare}: its table leads out of its {n} states")
    return table


def same_table(a: Table, b: Table) -> bool:
    """Return whether two tables are equal in all numbers."""
    return all(np.array_equal(getattr(a, name), getattr(b, name))
               for name in ("first", "start", "sums", "chance", "reward", "to", "ends"))


class CompiledSteps:
    """The environments of a group in this process, stepped by one compiled call.

    While it `leads`, the state of the environments is the kernel's; `settle` gives it back to them, and `load` takes it again. So
    whatever else is done with an environment is done with the environment itself.

    Args:
        group: Of environments that `compiled_steps` has looked at.
        columns: Of these environments.
        kernel: With the same columns.
        tables: Objects that make up the table of each environment, which the kernel has read once; () each: they have none.

    Attributes:
        leads: The environments do not know of the last steps.
    """

    def __init__(self, group: Group, columns: Columns, kernel: Steps, tables: list[tuple[Any, ...]]) -> None:
        self.group, self.columns, self.kernel, self._tables = group, columns, kernel, tables
        self._moved = self.leads = False
        self._steps, self._short = WORTH, 0  # since the last load; loads in a row after too few of them
        self._parts: list[EnvParts] = []

    def load(self) -> bool:
        """Take state and constants of the environments, which have all been reset; False: they are no longer what the kernel
        knows, or somebody looks at them so often that their own steps cost less."""
        self._short = self._short + 1 if self._steps < WORTH else 0
        if self._short > SHORT:
            return False
        found = [parts_of(env) for env in self.group.envs]
        self._parts = [parts for parts in found if parts is not None]
        if len(self._parts) < self.kernel.n or self.kernel.changed():
            return False
        if any(now is not then for parts, table in zip(self._parts, self._tables, strict=True)
               for now, then in zip(table_parts(parts), table, strict=True)):
            return False
        if not all(load_row(self.kernel, k, parts, self.group.progress) for k, parts in enumerate(self._parts)):
            return False
        self.leads, self._moved, self._steps = True, False, 0
        return True

    def step(self, actions: Any, write: Callable[[Any], None]) -> tuple[Any, Array, Array, Array, dict[str, Any]] | None:
        """One step of all, while it leads. None: nothing has been done, for the environments themselves have to answer.

        Args:
            write: Puts actions that are no array of the right type into their column.
        """
        if not self.kernel.take(actions):
            write(actions)
        out: tuple[Any, Array, Array, Array, dict[str, Any]] | None = self.kernel.step()
        if out is not None:
            self._moved = True
            self._steps += 1
        return out

    def begin(self, mask: Array) -> dict[str, Any] | None:
        """Begin an episode in each environment of a mask, [n] bool, while it leads; observations are in their column.

        Returns:
            Infos, as gymnasium joins them. None: nothing has been done, as in `step`.
        """
        infos = self.kernel.begin_some(mask)
        self._moved |= infos is not None
        return infos

    def settle(self) -> bool:
        """Give the environments their state, and return whether there were steps that they did not know of."""
        moved, self.leads = self.leads and self._moved, False
        if moved:
            for k, parts in enumerate(self._parts):
                settle_row(self.kernel, k, parts, self.group.progress, self.columns.act[0])
        return moved


def load_row(kernel: Steps, k: int, parts: EnvParts, progress: EnvProgress) -> bool:
    """Take state and constants of environment k into the kernel; False: it knows none like it."""
    bare, entry = parts.bare, parts.entry
    constants = constants_of(parts)
    steps = progress.steps[k] if parts.limit is None else getattr(parts.limit, parts.steps)
    if constants is None or steps is None:
        return False
    over = End.RUNS if not progress.over[k] else End.CUT
    if entry.kind is Kind.TABLE:
        state: Any = [bare.s]
    else:
        state = np.asarray(bare.state)
        if state.shape != (entry.size,) or not np.isfinite(state).all() or not _has_its_type(bare.state, entry.kind, bool(steps)):
            return False
        if entry.kind is Kind.CARTPOLE and bare.steps_beyond_terminated is not None:
            if not progress.over[k] or bare.steps_beyond_terminated:
                return False
            over = End.ENDED
    kernel.constants[k] = constants
    kernel.state[k, :len(state)] = state
    kernel.steps[k], kernel.limits[k], kernel.over[k] = steps, parts.most, over
    kernel.draw_from(k, bare.np_random)
    return True


def _has_its_type(state: Any, kind: Kind, moved: bool) -> bool:
    """Return whether a state has the type of the environment's own: with others NumPy computes otherwise. MountainCar takes any
    Python numbers, for each step makes NumPy's of them; a state of Acrobot is changed to float64 at once."""
    if type(state) is np.ndarray:
        if kind is Kind.ACROBOT:
            return state.dtype in (np.float32, np.float64)
        return bool(state.dtype == (np.float32 if kind is Kind.MOUNTAIN_CAR_CONTINUOUS and moved else np.float64))
    types = (np.float64, float, int) if kind is Kind.MOUNTAIN_CAR else (np.float64,)
    return not (kind is Kind.MOUNTAIN_CAR_CONTINUOUS and moved) and all(type(number) in types for number in state)


def table_parts(parts: EnvParts) -> tuple[Any, ...]:
    """Return the objects that the kernel's table has been read from."""
    return (parts.bare.P, parts.bare.initial_state_distrib) if parts.entry.kind is Kind.TABLE else ()


def settle_row(kernel: Steps, k: int, parts: EnvParts, progress: EnvProgress, act: Array) -> None:
    """Give environment k the state that the kernel has of it; the last actions of all are `act`."""
    bare, kind = parts.bare, parts.entry.kind
    steps, over, state = int(kernel.steps[k]), int(kernel.over[k]), kernel.state[k]
    progress.steps[k], progress.over[k] = steps, bool(over)
    if parts.limit is not None:
        setattr(parts.limit, parts.steps, steps)
    if kind is Kind.TABLE:
        bare.s, bare.lastaction = int(state[0]), act[k] if steps else None
        return
    single = {Kind.ACROBOT: not steps, Kind.MOUNTAIN_CAR_CONTINUOUS: bool(steps)}.get(kind, False)
    bare.state = np.array(state[:parts.entry.size], np.float32 if single else np.float64)
    if kind is Kind.CARTPOLE:
        bare.steps_beyond_terminated = 0 if over == End.ENDED else None
    elif kind is Kind.PENDULUM:
        bare.last_u = np.float32(state[2]) if steps else None
    elif kind is Kind.MOUNTAIN_CAR and steps:
        bare.state = tuple(bare.state)


def may_change(name: str, values: Iterable[Any]) -> bool:
    """Return whether values of an attribute of this name could be changed by who holds them, and environments do otherwise
    then."""
    return name not in RENEWED and not all(map(_is_plain, values))


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, np.generic) or (
        type(value) is tuple and all(map(_is_plain, value)))


class _Alone:
    """Is referred to by nobody else."""


def held_elsewhere(envs: list[Any]) -> bool:
    """Return whether anything but this list and its own wrapper refers to one of these environments, or to a part of one that may
    be changed."""
    alone, alone_part = _references([_Alone()], 0)[0], next(_part_references({0: []}))
    for i in range(len(envs)):
        if any(count > least for counts in _references(envs, i) for count, least in zip(counts, alone, strict=True)):
            return True
        *_, bare = layers_of(envs[i])
        if any(count > alone_part for count in _part_references(vars(bare))):
            return True
    return False


def _references(envs: list[Any], i: int) -> list[tuple[int, int, int]]:
    """Count the references to each layer of an environment of a list, to its attributes, and the weak ones."""
    return [(sys.getrefcount(layer), sys.getrefcount(vars(layer)), weakref.getweakrefcount(layer))
            for layer in layers_of(envs[i])]


def _part_references(value: dict[Any, Any] | list[Any]) -> Iterator[int]:
    """Count the references to all mutable values in a dict or a list, and in these."""
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, MUTABLE):
            yield sys.getrefcount(part)
            if not isinstance(part, np.ndarray):
                yield from _part_references(part)
            elif (base := part.base) is not None:  # of other views, too
                yield sys.getrefcount(base)


def compiled_steps(group: Group, columns: Columns, mode: AutoresetMode, copied: bool) -> CompiledSteps | None:
    """Compiled steps for a group in this process; None: its environments are others than the kernel's, differ, are held by
    somebody else, who may look at them at any time, or do not agree with the kernel here, to the last bit: versions of gymnasium,
    NumPy and the C library may.

    Args:
        columns: Into which they write. mode: Of their automatic resets. copied: Whether observations are copies.
    """
    table = None
    try:
        if any(parts_of(env) is None for env in group.envs) or held_elsewhere(group.envs):
            return None
        found = [parts for env in group.envs if (parts := parts_of(env)) is not None]
        first = found[0]
        if any(parts.entry.kind is not first.entry.kind or constants_of(parts) is None for parts in found):
            return None
        if first.entry.kind is Kind.TABLE:
            table, *others = [table_of(parts.bare, parts.entry.whole) for parts in found]
            if not all(same_table(table, other) for other in others):
                return None
        stacks = {tuple(map(type, layers_of(env))): env for env in group.envs}
        if not all(agrees(env, table) for env in stacks.values()):
            return None
    except Exception:  # noqa: BLE001 - whatever another version of gymnasium does is told by the environments themselves
        return None
    kernel = Steps(first.entry.kind, MODES[mode], copied, columns.obs[0], columns.final[0], columns.act[0], columns.rew,
                   columns.terminated, columns.truncated, table)
    if not kernel.watch(tuple({each for stack in stacks for each in stack})):
        return None
    return CompiledSteps(group, columns, kernel, [table_parts(parts) for parts in found])


_agreed: dict[object, bool] = {}  # versions of the classes of an environment → whether it and the kernel agree


def one_step(env: Any) -> Callable[[Any], Any]:
    """Return what steps an environment as its own `step` does: for a CartPole in nothing but gymnasium's wrappers in a compiled
    loop, which falls back on `step` as soon as anything is not gymnasium's. State and counts stay in the environment."""
    try:
        parts = parts_of(env)
        if parts is None or parts.entry.kind is not Kind.CARTPOLE or not (parts.limit is None or isinstance(
                parts.limit, gym.wrappers.TimeLimit)):
            return env.step  # type: ignore[no-any-return]
        layers = tuple(layers_of(env))
        limit = -1 if parts.limit is None else next(i for i, layer in enumerate(layers) if layer is parts.limit)
        step = CartPoleStep(env.step, layers, partial(_constants_now, env, layers, parts.most), limit, parts.most)
        classes = (*dict.fromkeys(map(type, layers)), spaces.Discrete)
        if not step.watch(classes):
            return env.step  # type: ignore[no-any-return]
        if step.versions not in _agreed:
            agree = agrees(env, None)
            step.watch(classes)  # anew: the first copy of an object notes something on its class
            _agreed[step.versions] = agree
        return step if _agreed[step.versions] else env.step
    except Exception:  # noqa: BLE001 - as in `compiled_steps`
        return env.step  # type: ignore[no-any-return]


def _constants_now(env: Any, layers: tuple[Any, ...], most: int) -> Array | None:
    """Return the constants of an environment that still has these layers and this limit; None: it has others."""
    parts = parts_of(env)
    if parts is None or parts.most != most or any(a is not b for a, b in zip(layers_of(env), layers, strict=True)):
        return None
    return constants_of(parts)


def agrees(env: Any, table: Table | None) -> bool:
    """Return whether an environment that `parts_of` knows and the kernel give the same for one seed and the same actions. The
    environment stays as it is."""
    env, rng = _copy_of(env), np.random.default_rng(0)
    parts = parts_of(env)
    if parts is None:
        return False
    if parts.limit is not None:
        setattr(parts.limit, LIMITS[type(parts.limit)][1], EPISODE)
    discrete = isinstance(env.action_space, spaces.Discrete)
    act = np.zeros(1, np.int64) if discrete else np.zeros((1, 1), np.float32)
    obs = np.zeros((1, *env.observation_space.shape), np.int64 if table is not None else np.float32)
    flags = np.zeros(1, bool), np.zeros(1, bool)
    kernel = Steps(parts.entry.kind, Mode.NEXT_STEP, True, obs, obs.copy(), act, np.zeros(1), *flags, table)
    constants = constants_of(parts)
    if constants is None or obs.dtype != env.observation_space.dtype:
        return False
    kernel.constants[0], kernel.limits[0], kernel.over[0] = constants, EPISODE, End.CUT
    kernel.draw_from(0, seeding.np_random(7)[0])
    over, seed = True, 7
    for _ in range(TRIED):
        act[...] = rng.integers(env.action_space.n) if discrete else rng.uniform(-3, 3)
        expected: Any = env.reset(seed=seed if seed else None) if over else env.step(act[0])
        seed, out = 0, kernel.step()
        if out is None:
            return False
        ours, rew, terminated, truncated, info = out
        cut = bool(expected[3]) if not over and parts.limit is not None else truncated[0]
        shown = {name: value[0] for name, value in info.items() if not name.startswith("_")}
        if not np.array_equal(ours[0], expected[0]) or not _same(shown, expected[-1]):
            return False
        if not over and (rew[0], terminated[0], truncated[0]) != (float(expected[1]), bool(expected[2]), cut):
            return False
        over = bool(terminated[0] or truncated[0])
    return True


def _copy_of(env: Any) -> Any:
    """An environment like it, with layers of its own."""
    other = copy.copy(env)
    if isinstance(env, gym.Wrapper):
        other.env = _copy_of(env.env)
    return other


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name]) and np.asarray(a[name]).dtype == np.asarray(b[name]).dtype for name in a)
