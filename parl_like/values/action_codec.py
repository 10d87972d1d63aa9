"""From a policy's actions to the environment's and back, by the action space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.values.copying import fixed, read_only
from parl_like.values.spec import Array, Spec, as_space, leaf_spaces, leaves, parts_of, specs_of


def action_map(space: Any) -> Choices | Bounded | Structured | None:
    """Return the map from a policy's actions to those of an environment's action space; None: they are the same.

    A Box with finite bounds: clip to [−1, 1], then scale to the bounds. With some infinite bounds: clip to those there are.
    Discrete and MultiDiscrete that do not start at 0: shift. Several choices: into the shape and dtype of the space. Dict and
    Tuple: each array by its own space.
    """
    return _array_map(space) if space is None or parts_of(space) is None else Structured(space)


def _array_map(space: Any) -> Choices | Bounded | None:
    if isinstance(space, gym.spaces.Discrete):
        return Choices(space) if space.start else None
    if isinstance(space, gym.spaces.MultiDiscrete):
        plain = len(space.shape) == 1 and not space.start.any() and space.dtype == np.int64
        return None if plain else Choices(space)
    if isinstance(space, gym.spaces.MultiBinary):
        return Choices(space)
    if isinstance(space, gym.spaces.Box):
        bounded = np.isfinite(space.low), np.isfinite(space.high)
        if np.any(bounded) or space.dtype.kind != "f":
            return Bounded(space, bool(np.all(bounded)))
    return None


def policy_columns(space: gym.Space[Any], columns: Mapping[str, Array], owner: str = "") -> dict[str, Array]:
    """Return those of `columns` that are arrays of an environment's actions of this space, [N, ...] by flat names, in the
    policy's units. Real numbers outside the bounds stay there; the way back clips them, as the environment does.

    Raises:
        SpecError: one has another shape or kind of number than its space, or a choice that the space lacks. `owner` is named.
    """
    out: dict[str, Array] = {}
    for name, part in leaf_spaces(space, "act"):
        if name in columns:
            spec = specs_of(part, name)[name].owned_by(owner)
            _check_actions(part, spec, columns[name])
            to_env = _array_map(part)
            out[name] = columns[name] if to_env is None else to_env.inverse(columns[name])
    return out


def environment_columns(space: gym.Space[Any], columns: Mapping[str, Array]) -> dict[str, Array]:
    """The inverse of `policy_columns`, with real numbers inside their bounds."""
    out = {}
    for name, part in leaf_spaces(space, "act"):
        if name in columns:
            to_env = _array_map(part)
            out[name] = columns[name] if to_env is None else to_env(columns[name])
    return out


def _check_actions(space: gym.Space[Any], spec: Spec, column: Array) -> None:
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


def stored_specs(space: Any, specs: Mapping[str, Spec]) -> list[Spec]:
    """Return the specs of what is stored of an action of this space, whose arrays have these specs: see `_stored`."""
    return [_stored(part, specs[name]) for name, part in leaf_spaces(space, "act")]


def _stored(space: Any, spec: Spec) -> Spec:
    """Return the spec of what is stored of an action: the policy's. Continuous ones are real numbers also where the environment
    rounds them, and several choices stand side by side, whatever their shape in the space. Without bounds, which are the
    environment's."""
    if isinstance(space, gym.spaces.Box):
        return Spec(spec.name, spec.shape, spec.dtype if spec.dtype.kind == "f" else np.dtype(np.float32))
    if isinstance(space, (gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        return Spec(spec.name, (int(np.prod(spec.shape)),), np.dtype(np.int64))
    return Spec(spec.name, spec.shape, spec.dtype)


class Choices:
    """Choices from 0, side by side ↔ the space's own numbers and shape."""

    def __init__(self, space: Any) -> None:
        self.shape, self.dtype, self.start = space.shape, space.dtype, np.asarray(getattr(space, "start", 0))

    def __call__(self, act: Array) -> Array:
        """From a policy's actions [N, ...] to the environment's."""
        return np.asarray(act.reshape(len(act), *self.shape) + self.start, self.dtype)

    def inverse(self, act: Array) -> Array:
        """From the environment's actions to the policy's; up to clipping."""
        leading = act.shape[: act.ndim - len(self.shape)]
        size = (int(np.prod(self.shape)),) if self.shape else ()
        return np.asarray(act - self.start, np.int64).reshape((*leading, *size))


class Unclipped(gym.spaces.Box):
    """A Box whose bounds say how actions are scaled, and are not kept: what lies outside reaches the environment
    (`make_env(clip_actions=False)`)."""

    def __init__(self, like: gym.spaces.Box) -> None:
        super().__init__(like.low, like.high, like.shape, like.dtype)

    def __reduce__(self) -> Any:
        return Unclipped, (gym.spaces.Box(self.low, self.high, self.shape, self.dtype),)

    def contains(self, x: Any) -> bool:
        return isinstance(x, np.ndarray) and x.shape == self.shape and np.can_cast(x.dtype, self.dtype)


class Bounded:
    """Real numbers, in [−1, 1] where they are `scaled` ↔ the space's dtype, inside its bounds unless it is `Unclipped`; methods
    as those of `Choices`."""

    def __init__(self, space: Any, scaled: bool) -> None:
        self.low, self.high, self.dtype, self.scaled = space.low, space.high, space.dtype, scaled
        self.clips = not isinstance(space, Unclipped)
        self.raw = np.dtype(self.dtype if self.dtype.kind == "f" else np.float32)
        if scaled:
            # In the raw dtype: the width of an integer space may not fit its own (255 − 0 in int8 terms), nor that of a float32
            # one.
            low, high = (np.asarray(bound, np.float64) / 2 for bound in (space.low, space.high))
            self.middle, self.half = (low + high).astype(self.raw), (high - low).astype(self.raw)

    def __call__(self, act: Array) -> Array:
        if self.scaled:
            act = self.middle + act * self.half
        if not self.clips:
            return np.asarray(act, self.dtype)
        # Rounding may have passed the bounds.
        return np.clip(np.rint(act) if self.dtype.kind != "f" else act, self.low, self.high).astype(self.dtype)

    def inverse(self, act: Array) -> Array:
        return np.asarray((act - self.middle) / np.where(self.half == 0, 1, self.half) if self.scaled else act, self.raw)


class Structured:
    """The arrays of a policy's actions by dotted name, `act.arm.grip` ↔ the dicts and tuples of the space.

    Attributes:
        names: Of the arrays, in the order of the space.
    """

    def __init__(self, space: Any) -> None:
        self.space, self.parts = space, {name: (part, _array_map(part)) for name, part in leaf_spaces(space, "act")}
        self.names = list(self.parts)

    def __call__(self, out: Mapping[str, Array]) -> Any:
        """From outputs `act.*` of a policy, [N, ...] each, to N of the environment's actions, stacked as the space nests them."""
        made = {name: read_only(np.array(out[name]) if to_env is None else to_env(out[name]))
                for name, (_, to_env) in self.parts.items()}
        return fixed(as_space(self.space, made, "act"))

    def listed(self, out: Mapping[str, Array]) -> list[Any]:
        """The same as a list of N actions."""
        columns = [action_list(part, column) for (part, _), (_, column) in
                   zip(self.parts.values(), leaves(self(out), "act"), strict=True)]
        return [fixed(as_space(self.space, dict(zip(self.names, row, strict=True)), "act")) for row in zip(*columns, strict=True)]

    def inverse(self, act: Any) -> tuple[Array, ...]:
        """The policy's arrays of one action of the environment, or of stacked ones; up to clipping.

        Raises:
            ValueError: it has other parts than the space.
        """
        given = dict(leaves(act, "act"))
        if given.keys() != self.parts.keys():
            raise ValueError(f"action: expected {', '.join(self.names)}, got {', '.join(given) or 'nothing'}; give what the "
                             f"action space {self.space} says")
        return tuple(np.asarray(given[name]) if to_env is None else to_env.inverse(np.asarray(given[name]))
                     for name, (_, to_env) in self.parts.items())


def action_list(space: Any, act: Array) -> list[Any]:
    """Actions [N, ...] of an array's space, one by one: read-only arrays, or Python numbers; of a Box of shape () arrays, as its
    environment expects."""
    if act.ndim > 1:
        return list(read_only(act))
    return [read_only(act[i, ...]) for i in range(len(act))] if isinstance(space, gym.spaces.Box) else act.tolist()
