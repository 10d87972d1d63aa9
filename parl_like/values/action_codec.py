"""ActionCodec: from a policy's actions to the environment's and back, by the action space. Nothing else maps between the two."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from parl_like.values.copying import fixed, read_only
from parl_like.values.spec import Array, Spec, as_space, leaf_spaces, leaves, parts_of, specs_of


class ActionMap(NamedTuple):
    """The numbers by which an array of actions is mapped to the environment's, for whoever computes that elsewhere: a · `half` +
    `middle`, rounded where `dtype` is of whole numbers, cut to [`low`, `high`]; or, of choices, + `shift`.

    Attributes:
        dtype, shape: Of one action of the environment. raw: The dtype in which real numbers are computed.
        shift, middle, half, low, high: None: nothing is done.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    raw: np.dtype[Any]
    shift: Array | None = None
    middle: Array | None = None
    half: Array | None = None
    low: Array | None = None
    high: Array | None = None


class ActionCodec:
    """The map between the actions of a policy and those of an environment with this action space.

    A policy's actions are arrays [N, …] by flat name: `act`, or one for each array of a Dict or Tuple, such as `act.arm.grip`.
    Each array is mapped by its own space:

        Box with finite bounds          clipped to [−1, 1] and scaled to the bounds; rounded where the space is of whole numbers
        Box with some infinite bounds   clipped to the bounds that there are
        Discrete, MultiDiscrete         choices from 0, side by side → shifted to `start`, in the shape and dtype of the space
        MultiBinary                     the same without a shift

    Args:
        space: The action space; None: the task has none, and what it may call `act` passes as it is.

    Attributes:
        space: See above.
        names: Of the arrays of an action, in the order of the space.
        structured: Whether an action is a dict or a tuple; else it is one array.
        identity: Whether the environment takes the policy's actions as they are.
    """

    def __init__(self, space: gym.Space[object] | None) -> None:
        self.space = space
        self.structured = space is not None and parts_of(space) is not None
        spaces = [("act", None)] if space is None else leaf_spaces(space, "act")
        self._parts = {name: _part_of(part) for name, part in spaces}
        self.names, self._first = list(self._parts), next(iter(self._parts.values()))
        self.identity = not self.structured and self._first.same
        floats = {spec.name: spec.dtype for spec in self.specs if spec.dtype.kind == "f"}
        self._floats = {**floats, "log_prob": np.dtype(np.float32)}

    @cached_property
    def specs(self) -> list[Spec]:
        """The specs of a policy's action, as it is stored, in the order of `names`; none without an action space.

        Numbers are floats also where the environment rounds them, and several choices stand side by side, whatever their shape
        in the space. There are no bounds: those are the environment's.
        """
        return [] if self.space is None else [_stored(part.space, part.spec(name)) for name, part in self._parts.items()]

    @cached_property
    def choices(self) -> dict[str, Spec]:
        """The arrays of a policy's action that choose one of several things, by name, with their bounds: 0 and the last one."""
        bounds = {name: _bounds(part.space) for name, part in self._parts.items()}
        return {name: Spec(name, np.shape(two[1]), np.dtype(np.int64), *two) for name, two in bounds.items() if two is not None}

    # ------------------------------------------------------------------------------------------------------- to the environment

    def to_env(self, out: dict[str, Array]) -> Any:
        """Return N actions of the environment, stacked as the space nests them, read-only, with memory of their own.

        Args:
            out: Outputs of a prediction by flat name, [N, …] each; those of `names` are read. Floats that are more precise than
                they may be stored are replaced by rounded ones.
        """
        self.round(out)
        made = {name: _apart(part.to_env(out[name]), out[name]) for name, part in self._parts.items()}
        return self._nested(made) if self.structured else made["act"]

    def listed(self, out: dict[str, Array]) -> list[Any] | None:
        """Return the same as a list of N actions, each a number or read-only; None where `out` has no action."""
        self.round(out)
        if not self.acts_in(out):
            return None
        if not self.structured:
            return self._first.listed(out["act"])
        columns = [part.listed(out[name]) for name, part in self._parts.items()]
        return [self._nested(dict(zip(self.names, row, strict=True))) for row in zip(*columns, strict=True)]

    def _nested(self, flat: Mapping[str, object]) -> object:
        assert self.space is not None
        return fixed(as_space(self.space, flat, "act"))

    def acts_in(self, out: Mapping[str, Array]) -> bool:
        """Return whether these outputs of a prediction, [N, …] each, have an action."""
        return self.names[0] in out

    def round(self, out: dict[str, Array]) -> None:
        """Replace floats of `out`, [N, …] each, that are more precise than they may be stored by rounded ones."""
        for name, dtype in self._floats.items():
            if name in out and out[name].dtype.kind == "f" and out[name].dtype.itemsize > dtype.itemsize:
                out[name] = out[name].astype(dtype)

    @property
    def maps(self) -> dict[str, ActionMap]:
        """Return the numbers of the map of each array, by flat name."""
        return {name: part.numbers(part.spec(name)) for name, part in self._parts.items()}

    def env_columns(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Return those of `columns` [N, …] that are arrays of a policy's actions, by flat name, as the environment takes them."""
        return {name: part.to_env(columns[name]) for name, part in self._parts.items() if name in columns}

    # ------------------------------------------------------------------------------------------------------------ to the policy

    def to_policy(self, act: object) -> tuple[Array, ...]:
        """Return a policy's arrays, in the order of `names`, of one action of the environment, or [N, …] of N stacked ones.
        What the map to the environment has clipped or rounded stays so.

        Raises:
            ValueError: the action has other parts than the space.
        """
        if not self.structured:
            return (self._first.to_policy(np.asarray(act)),)
        given = dict(leaves(act, "act"))
        if given.keys() != self._parts.keys():
            raise ValueError(f"action: expected {', '.join(self.names)}, got {', '.join(given) or 'nothing'}; give what the "
                             f"action space {self.space} says")
        return tuple(part.to_policy(np.asarray(given[name])) for name, part in self._parts.items())

    def policy_columns(self, columns: Mapping[str, Array], owner: str = "") -> dict[str, Array]:
        """Return those of `columns` [N, …] that are arrays of the environment's actions, by flat name, in the policy's units.
        Real numbers outside the bounds stay there; the way back clips them, as the environment does.

        Raises:
            SpecError: one has another shape or kind of number than its space, or a choice that the space lacks. `owner` is named.
        """
        given = {name: part for name, part in self._parts.items() if name in columns}
        for name, part in given.items():
            _check_actions(part.space, part.spec(name).owned_by(owner), columns[name])
        return {name: part.to_policy(columns[name]) for name, part in given.items()}


def _part_of(space: object) -> _Same:
    """Return the map of one array's space."""
    if isinstance(space, gym.spaces.Discrete):
        return _Choices(space) if space.start else _Same(space)
    if isinstance(space, gym.spaces.MultiDiscrete):
        plain = len(space.shape) == 1 and not space.start.any() and space.dtype == np.int64
        return _Same(space) if plain else _Choices(space)
    if isinstance(space, gym.spaces.MultiBinary):
        return _Choices(space)
    if isinstance(space, gym.spaces.Box):
        bounded = np.isfinite(space.low), np.isfinite(space.high)
        if np.any(bounded) or space.dtype.kind != "f":
            return _Bounded(space, bool(np.all(bounded)))
    return _Same(space)


class _Same:
    """An array that the environment takes as it is."""

    same = True

    def __init__(self, space: Any) -> None:
        self.space, self._is_box = space, isinstance(space, gym.spaces.Box)
        self._counts = isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete))

    def to_env(self, act: Array) -> Array:
        """From a policy's actions [N, …] to the environment's: whole choices are of int64."""
        return act.astype(np.int64) if self._counts and act.dtype.kind in "iu" and act.dtype != np.int64 else act

    def to_policy(self, act: Array) -> Array:
        """From the environment's actions, or one of them, to the policy's."""
        return act

    def listed(self, act: Array) -> list[object]:
        """Return the environment's N actions for these, one by one: read-only arrays, or Python numbers; of a Box of shape ()
        arrays, as its environment expects."""
        made = self.to_env(act)
        if made.ndim > 1:
            return list(read_only(made))
        return [read_only(made[i, ...]) for i in range(len(made))] if self._is_box else made.tolist()

    def numbers(self, spec: Spec) -> ActionMap:
        """Return what `to_env` computes with."""
        return ActionMap(spec.dtype, spec.shape, spec.dtype)

    def spec(self, name: str) -> Spec:
        """Return the spec of the environment's array."""
        return specs_of(self.space, name)[name]


class _Choices(_Same):
    """Choices from 0, side by side ↔ the space's own numbers and shape."""

    same = False

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self._shape, self._dtype, self._start = space.shape, space.dtype, np.asarray(getattr(space, "start", 0))

    def to_env(self, act: Array) -> Array:
        return np.asarray(act.reshape(len(act), *self._shape) + self._start, self._dtype)

    def numbers(self, spec: Spec) -> ActionMap:
        return ActionMap(np.dtype(self._dtype), self._shape, np.dtype(np.int64), self._start)

    def to_policy(self, act: Array) -> Array:
        leading = act.shape[: act.ndim - len(self._shape)]
        size = (int(np.prod(self._shape)),) if self._shape else ()
        return np.asarray(act - self._start, np.int64).reshape((*leading, *size))


class Unclipped(gym.spaces.Box):
    """A Box whose bounds say how actions are scaled, and are not kept: what lies outside reaches the environment
    (`make_env(clip_actions=False)`)."""

    def __init__(self, like: gym.spaces.Box) -> None:
        super().__init__(like.low, like.high, like.shape, like.dtype)

    def __reduce__(self) -> Any:
        return Unclipped, (gym.spaces.Box(self.low, self.high, self.shape, self.dtype),)

    def contains(self, x: object) -> bool:
        return isinstance(x, np.ndarray) and x.shape == self.shape and np.can_cast(x.dtype, self.dtype)


class _Bounded(_Same):
    """Real numbers, in [−1, 1] where they are `scaled` ↔ the space's dtype, inside its bounds unless it is `Unclipped`."""

    same = False

    def __init__(self, space: Any, scaled: bool) -> None:
        super().__init__(space)
        self._low, self._high, self._dtype, self._scaled = space.low, space.high, space.dtype, scaled
        self._clips = not isinstance(space, Unclipped)
        self._raw = np.dtype(self._dtype if self._dtype.kind == "f" else np.float32)
        if scaled:
            # In the raw dtype: the width of an integer space may not fit its own (255 − 0 in int8 terms), nor that of a float32
            # one.
            low, high = (np.asarray(bound, np.float64) / 2 for bound in (space.low, space.high))
            self._middle, self._half = (low + high).astype(self._raw), (high - low).astype(self._raw)

    def to_env(self, act: Array) -> Array:
        if self._scaled:
            act = self._middle + act * self._half
        if not self._clips:
            return np.asarray(act, self._dtype)
        # Rounding may have passed the bounds.
        return np.clip(np.rint(act) if self._dtype.kind != "f" else act, self._low, self._high).astype(self._dtype)

    def numbers(self, spec: Spec) -> ActionMap:
        scale = (self._middle, self._half) if self._scaled else (None, None)
        bounds = (self._low, self._high) if self._clips else (None, None)
        return ActionMap(np.dtype(self._dtype), spec.shape, self._raw, None, *scale, *bounds)

    def to_policy(self, act: Array) -> Array:
        if self._scaled:
            act = (act - self._middle) / np.where(self._half == 0, 1, self._half)
        return np.asarray(act, self._raw)


def _apart(made: Array, given: Array) -> Array:
    """`made`, read-only, in memory that `given` does not share."""
    return read_only(made.copy() if made is given else made)


def _stored(space: object, spec: Spec) -> Spec:
    """Return the spec of what is stored of an array of actions that has this spec in the environment."""
    if isinstance(space, gym.spaces.Box):
        return Spec(spec.name, spec.shape, spec.dtype if spec.dtype.kind == "f" else np.dtype(np.float32))
    if isinstance(space, (gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        return Spec(spec.name, (int(np.prod(spec.shape)),), np.dtype(np.int64))
    return Spec(spec.name, spec.shape, spec.dtype)


def _bounds(space: object) -> tuple[Any, Any] | None:
    """Return the lowest and the highest number of choices from 0; None where the space has none."""
    if isinstance(space, gym.spaces.Discrete):
        return 0, int(space.n) - 1
    if isinstance(space, (gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        high = space.nvec.ravel() - 1 if isinstance(space, gym.spaces.MultiDiscrete) else np.ones(space.shape, int).ravel()
        return np.zeros_like(high), high
    return None


def _check_actions(space: gym.Space[object], spec: Spec, column: Array) -> None:
    """Refuses what is no array of actions of an array's space."""
    got, real = f"{column.shape} {column.dtype}", isinstance(space, gym.spaces.Box)
    if column.shape[1:] != spec.shape or column.dtype.kind not in ("biuf" if spec.dtype.kind == "f" else "biu"):
        raise spec.error(got, f"give the environment's actions, of {space}", True)
    if real or not column.size:
        return
    low, high = (0, 1) if spec.low is None else (spec.low, spec.high)
    if not (legal := (low <= column) & (column <= high)).all():
        at = tuple(int(i) for i in np.argwhere(~legal)[0])
        raise spec.error(f"{got} with {column[at]} in row {at[0]}", f"give the environment's actions, of {space}", True)
