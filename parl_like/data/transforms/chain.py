"""Transform and the chain of them: order, statistics, memory of the rollout."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations
from typing import Any, Self, TypeVar

import gymnasium as gym
import numpy as np

from parl_like.data.buffers.fields import Positions
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array, specs_of
from parl_like.values.user_calls import Guarded

Flat = dict[str, Array]
Fields = str | Sequence[str]
Leaf = TypeVar("Leaf")


class Tier(IntEnum):
    RAW_COPY = 1
    BUFFER = 2
    ROW = 3


WHY = {
    Tier.RAW_COPY: "it keeps raw rows, so nothing may change them before it",
    Tier.BUFFER: "what it reads from the buffer is raw, and must pass through the same row-wise transforms as the row itself",
}

UNSHOWN = ("update", "update_number", "moments", "mask")
"""Attributes of transforms that are no arguments."""


@dataclass
class Source:
    """The source of replayed rows. Hold `buffer.lock` from the choice of positions to the end of `Transforms.replay`.

    Attributes:
        buffer: The raw rows.
        indices: [N] positions of the rows.
        rng: For transforms that choose at random.
        last_index: [N] positions of the rows that obs_next is taken from; equal to `indices` unless the rows look n steps ahead.
        real: [N] bool, where the rows are those of sequences: False at what fills up a sequence, and shall not count. Else None.
        relabelled: Field name -> [N] bool, rows in which a transform replaced the field for their whole episode.
    """

    buffer: ReplayBuffer
    indices: Positions
    rng: np.random.Generator
    last_index: Positions
    real: Array | None = None
    relabelled: dict[str, Array] = field(default_factory=dict)


class Transform(Guarded):
    """One step of a chain; this class changes nothing. No method writes into its arguments, arrays included.

    `replay` is called with rows that were drawn, their positions and their buffer, before they are sent to the task, in the
    process of the helper. It may add fields, which `Algorithm.process` and `learn` get.

    Attributes:
        tier: Where in a chain it may stand.
        only_one: Name of the kind of which a chain has at most one; '': any number.
        behind: Rows before a sampled one that replay reads from the buffer.
        update: Whether its statistics may change now.
        mask: Of a vector environment, [n_envs] bool, those whose rewards `reward` gets now; None: all.
        memory: Arrays of the rollout that an open episode needs where it goes on, of shapes that stay. Default: none.
        update_number: Number of the update that rows are made ready for. What is counted comes into use when this number grows,
            so that all rows of an update are treated alike. None: at once.
    """

    tier: Tier = Tier.ROW
    only_one: str = ""
    behind: int = 0
    update: bool = True
    update_number: int | None = None
    mask: Array | None = None

    @property
    def memory(self) -> tuple[Array, ...]:
        return ()

    @memory.setter
    def memory(self, value: tuple[Array, ...]) -> None: ...

    def space(self, space: gym.Space[object]) -> gym.Space[object]:
        """The observation space behind this transform, given the one before it. Raises ValueError where a field is missing or
        does not fit."""
        return space

    def check_window(self, window: object) -> None:
        """Raises ValueError where an algorithm looks at rows, by its `Window`, in a way that replay cannot serve."""

    @property
    def only_replays(self) -> bool:
        """Return whether it does nothing but on replay."""
        kind = type(self)
        return kind.replay is not Transform.replay and kind.observe is Transform.observe and kind.reward is Transform.reward

    def for_helper(self, n_envs: int) -> Self:
        """A copy with a rollout memory of its own, for `n_envs` environments; statistics stay shared."""
        return copy.copy(self)

    def begin(self, env_index: int) -> None:
        """Rollout: an episode of this environment begins with the next observation."""

    def observe(self, obs: Flat) -> Flat:
        """Rollout, once per time step: observations of all environments, dotted name -> [n_envs, …], as the model gets them."""
        return obs

    def reward(self, rew: Array) -> Array:
        """Rollout: rewards of any shape, as the algorithm gets them."""
        return rew

    def replay(self, rows: Flat, source: Source) -> Flat:
        """Replay: flat rows as the algorithm gets them. Fields that `rows` lacks are left out.

        Args:
            rows: obs, obs_next, act, … [N, …], rew [N, …]. Rows that look n steps ahead have rew [N, n, …] and valid [N] int:
                how many of the n count; the others are 0 and stay 0. Rows of sequences stand one after the other.
            source: Their buffer and positions. Fields of other rows that are read there are raw.
        """
        return rows

    def state_dict(self) -> State:
        """The statistics, as arrays and plain values; {} where there are none."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Takes over what `state_dict` gave. Raises ValueError where it has other fields, or another kind of moments."""

    def __repr__(self) -> str:
        args = {k: v for k, v in vars(self).items() if not k.startswith("_") and k not in UNSHOWN}
        shown = {k: getattr(v, "__name__", None) or repr(v) for k, v in args.items()}  # of a function not its address
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in shown.items())})"

    def error(self, name: str, expected: object, got: object) -> ValueError:
        """Return the error for a field, or an argument, of this name."""
        return ValueError(f"{self!r}, field {name!r}: expected {expected}, got {got}")


class Identity(Transform):
    """Changes nothing."""


class Transforms:
    """An ordered chain of transforms: raw copies (`UntransformedTimeStep`), then what reads the buffer (`Hindsight`, then
    `FrameStacker`), then the rest.

    Attributes:
        behind: Rows before a sampled one that replay reads from the buffer.

    Raises:
        ValueError: an element is no transform, or the order is wrong.
    """

    def __init__(self, transforms: Iterable[Transform] = ()) -> None:
        self._chain = tuple(transforms)
        self.behind = max((t.behind for t in self._chain if isinstance(t, Transform)), default=0)
        for transform in self._chain:
            if not isinstance(transform, Transform) or not isinstance(transform.tier, Tier):
                raise ValueError(f"Transforms: got {transform!r}; expected a Transform object whose tier is a Tier")
        for first, second in combinations(self._chain, 2):
            if second.tier < first.tier:
                raise ValueError(f"Transforms: {second!r} stands after {first!r}; put it before: {WHY[second.tier]}")
            if (first.only_one, second.only_one) == ("FrameStacker", "Hindsight"):
                raise ValueError(f"Transforms: {second!r} stands after {first!r}; put it before, so that new goals are stacked")
            if first.only_one and first.only_one == second.only_one:
                raise ValueError(f"Transforms: both {first!r} and {second!r}; expected at most one {first.only_one}")

    def prepare(self, update_number: int) -> None:
        """From now on rows are made ready for this update (`Transform.update_number`)."""
        for transform in self._chain:
            transform.update_number = update_number

    def space(self, space: gym.Space[object]) -> gym.Space[object]:
        """The observation space that the model sees, given the environment's."""
        for transform in self._chain:
            space = transform.space(space)
        return space

    def for_helper(self, n_envs: int, mode: str = "collect") -> Transforms:
        """The chain of one helper: its own rollout memory, shared statistics. These do not change through it in mode 'test'.

        Raises:
            ValueError: `mode` is none of 'collect', 'update' and 'test'.
        """
        if mode not in ("collect", "update", "test"):
            raise ValueError(f"Transforms: mode is {mode!r}; expected 'collect', 'update' or 'test'")
        own = [transform.for_helper(n_envs) for transform in self._chain]
        for transform in own:
            transform.update = mode != "test"
        return Transforms(own)

    def begin(self, env_index: int) -> None:
        for transform in self._chain:
            transform.begin(env_index)

    def observe(self, obs: Flat) -> Flat:
        for transform in self._chain:
            obs = transform.observe(obs)
        return obs

    def reward(self, rew: Array, mask: Array | None = None) -> Array:
        """Return the reward [N, …] as all transforms, one after the other, make it; `mask`: as `Transform.mask`."""
        for transform in self._chain:
            transform.mask = mask
            rew = transform.reward(rew)
        return rew

    @property
    def memory(self) -> tuple[Array, ...]:
        """Return the `Transform.memory` of all, such as [n_envs] each."""
        return tuple(part for transform in self._chain for part in transform.memory)

    @memory.setter
    def memory(self, value: tuple[Array, ...]) -> None:
        for transform in self._chain:
            n = len(transform.memory)
            transform.memory, value = value[:n], value[n:]

    def replay(self, rows: Flat, source: Source) -> Flat:
        for transform in self._chain:
            rows = transform.replay(rows, source)
        return rows

    def state_dict(self) -> State:
        """The statistics of those that have any, under '<place> <class>'."""
        states = {f"{i} {type(transform).__name__}": transform.state_dict() for i, transform in enumerate(self._chain)}
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: State) -> None:
        """Takes over what `state_dict` gave. Raises ValueError where another chain saved it."""
        own = self.state_dict().keys()
        if state.keys() != own:
            raise ValueError(f"{self!r}: the saved statistics are of {list(state)}; expected {list(own)}: build the saved chain")
        for key, part in state.items():
            self._chain[int(key.split()[0])].load_state_dict(plain.entries(part))

    def load_fitting(self, state: State) -> bool:
        """Take over statistics, where this chain is the one that saved them; return whether it is."""
        before = self.state_dict()
        try:
            self.load_state_dict(state)
        except ValueError:
            for key, part in before.items():
                self._chain[int(key.split()[0])].load_state_dict(plain.entries(part))
            return False
        return True

    def __len__(self) -> int:
        return len(self._chain)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self._chain)

    def __repr__(self) -> str:
        return f"Transforms([{', '.join(map(repr, self._chain))}])"


class UntransformedTimeStep(Transform):
    """Replay: keeps every raw field `x` as `untransformed.x` too, for algorithms that look at raw experience.

    On rollout it does nothing: a model is asked about observations only, and reads no other field.
    """

    tier = Tier.RAW_COPY
    only_one = "UntransformedTimeStep"

    def replay(self, rows: Flat, source: Source) -> Flat:
        return rows | {f"untransformed.{name}": column for name, column in rows.items()}


# ---- for those who write transforms of fields


def obs_names(transform: Transform, fields: Fields) -> tuple[str, ...]:
    """Return the names of observation leaves as a tuple. Raises ValueError for one that is not `obs` or `obs.<name>`."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    for name in names:
        if name != "obs" and not name.startswith("obs."):
            raise ValueError(f"{type(transform).__name__}, field {name!r}: expected 'obs' or 'obs.<name>', a leaf of the "
                             "observation")
    return names


def next_name(name: str) -> str:
    """Return the name of the same leaf after the action: obs.image → obs_next.image."""
    return "obs_next" + name[len("obs") :]


def leaf_of(transform: Transform, obs: Mapping[str, Leaf], name: str) -> Leaf:
    """Return the leaf `name` of a flat observation, of whatever shape. Raises ValueError where there is none."""
    if name not in obs:
        raise transform.error(name, f"one of {', '.join(obs)}", "an unknown name")
    return obs[name]


def map_space(
    transform: Any, space: gym.Space[object], change: Callable[[str, gym.Space[object]], gym.Space[object]]
) -> gym.Space[object]:
    """The space with `change(name, part)` in place of the transform's fields."""
    for name in transform.fields:
        leaf_of(transform, specs_of(space, "obs"), name)

    def mapped(part: gym.Space[object], name: str) -> gym.Space[object]:
        if isinstance(part, gym.spaces.Dict):  # an ordered dict, for the keys of a plain one would be sorted
            return gym.spaces.Dict(OrderedDict((key, mapped(inner, f"{name}.{key}")) for key, inner in part.spaces.items()))
        if isinstance(part, gym.spaces.Tuple):
            return gym.spaces.Tuple(tuple(mapped(inner, f"{name}.{i}") for i, inner in enumerate(part.spaces)))
        return change(name, part) if name in transform.fields else part

    return mapped(space, "obs")
