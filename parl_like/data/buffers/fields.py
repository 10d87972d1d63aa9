"""The fields of stored rows: found out from the first row, checked, compared, and written into a saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from parl_like.data.rng import set_rng_state
from parl_like.data.storage.tree_encoding import CODES
from parl_like.values import plain
from parl_like.values.action_codec import ActionCodec
from parl_like.values.plain import Plain, State
from parl_like.values.spec import Array, Spec, SpecError, parts_of

Positions = npt.NDArray[np.int64]
"""Slots of rows in a memory, of any shape."""
FLAGS = ("terminated", "truncated")
"""The fields that say where an episode ends: one bool each."""


def is_part(name: str, key: str) -> bool:
    """Return whether a field is `key`, or a leaf of it."""
    return name == key or name.startswith(key + ".")


def as_array(value: object) -> Array:
    """Return numbers, an array or a tensor of any shape as an array of the same shape and dtype."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def infer(owner: str, name: str, value: object, rows: bool = False) -> Spec:
    """The spec of a field first seen as `value`, one row, or with `rows` [k, …].

    Raises:
        SpecError: it does not hold numbers of one shape.
    """
    mend = "rows hold numbers of one shape: encode it, or leave it out"
    try:
        array = as_array(value)
    except ValueError as error:
        raise SpecError(f"{owner}, field {name!r}: got a ragged {type(value).__name__} ({error}); {mend}") from None
    if array.dtype.kind not in "biuf":
        raise SpecError(f"{owner}, field {name!r}: got {value!r} ({type(value).__name__}); {mend}")
    dtype = array.dtype.newbyteorder("=")
    return Spec(name, array.shape[1:] if rows else array.shape, dtype, owner=owner)


def like(spec: Spec, columns: Mapping[str, Array]) -> Spec:
    """The spec of the field's column [N, …] among these; the field's own, where it is not."""
    column = columns.get(spec.name)
    return spec if column is None else Spec(spec.name, column.shape[1:], column.dtype, owner=spec.owner)


def in_units(columns: dict[str, Array], have: gym.Space[object] | None, want: gym.Space[object] | None, owner: str
             ) -> dict[str, Array]:
    """Columns [N, …] by flat names, with actions converted from the policy's units of one action space, or an environment's
    where it is None, to those of another.

    Raises:
        SpecError: they are no actions of that space, or of another space. `owner` is named.
    """
    if have == want:
        return columns
    if have is None:
        assert want is not None
        return {**columns, **ActionCodec(want).policy_columns(columns, owner)}
    if want is None:
        return {**columns, **ActionCodec(have).env_columns(columns)}
    raise SpecError(f"{owner}: expected actions of {want}, got those of {have}; give rows of an environment with that action "
                    "space")


def check_numbers(kind: str, specs: Sequence[Spec]) -> None:
    """Refuse fields that a buffer of this kind cannot store.

    Raises:
        ValueError: a field holds no numbers, or is both a leaf and a group.
    """
    names = {spec.name for spec in specs}
    for spec in specs:
        if spec.dtype.kind not in "biuf":
            raise ValueError(f"{kind}: field {spec.name!r} has dtype {spec.dtype}; rows hold numbers")
        parts = spec.name.split(".")
        for group in (".".join(parts[:i]) for i in range(1, len(parts))):
            if group in names:
                raise ValueError(f"{kind}: {group!r} cannot be both an array and the group of {spec.name!r}")


def check_fields(specs: Sequence[Spec]) -> None:
    """Refuse fields that a replay buffer cannot store.

    Raises:
        ValueError: a name is double, a flag is missing or is not one bool, `done` is among them, or as `check_numbers`.
    """
    by_name = {spec.name: spec for spec in specs}
    if len(by_name) != len(specs):
        raise ValueError(f"ReplayBuffer: a field name is double in {' '.join(spec.name for spec in specs)}; names are unique")
    for name in FLAGS:
        if name not in by_name or by_name[name].shape or by_name[name].dtype != np.bool_:
            raise ValueError(f"ReplayBuffer: field {name!r} is {by_name.get(name, 'missing')}; expected one bool per row")
    for spec in specs:
        if spec.name.partition(".")[0] == "done":
            raise ValueError("ReplayBuffer: field 'done' is computed from terminated and truncated; leave it out")
    check_numbers("ReplayBuffer", specs)


def convert_rows(spec: Spec, value: object, n: int) -> Array:
    """`value` as [n, *shape] of this field.

    Raises:
        SpecError: it does not fit, or has another number of rows.
    """
    array = spec.convert(value, rows=True)
    if len(array) != n:
        raise spec.error(f"{array.shape} {array.dtype}", f"give {n} rows", True)
    return array


def in_words(specs: Sequence[Spec]) -> str:
    return ", ".join(f"{spec.name} {spec.shape} {spec.dtype}" for spec in specs) or "none yet"


def difference(own: Sequence[Spec], other: Sequence[Spec]) -> str:
    """The first difference between two lists of fields, in words."""
    for mine, theirs in zip(own, other, strict=False):
        if mine != theirs:
            return f"{mine.name!r} {mine.shape} {mine.dtype} here, {theirs.name!r} {theirs.shape} {theirs.dtype} there"
    longer, where = (own, "here") if len(own) > len(other) else (other, "there")
    return f"{longer[min(len(own), len(other))].name!r} only {where}"


def saved_specs(specs: Sequence[Spec]) -> list[State]:
    """As JSON values."""
    return [{"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype.str} for spec in specs]


def loaded_specs(owner: str, saved: Plain) -> list[Spec]:
    """Return the fields that `saved_specs` was given.

    Raises:
        ValueError: a field holds no numbers; `owner` is named. KeyError, TypeError: these are no saved fields.
    """
    specs = []
    for field in map(plain.entries, plain.listed(saved)):
        name, dtype = str(field["name"]), str(field["dtype"])
        if np.dtype(dtype) not in CODES:
            raise ValueError(f"{owner}: a saved field has dtype {dtype!r:.20}; expected numbers")
        specs.append(Spec(name, tuple(plain.wholes(field["shape"])), np.dtype(dtype), owner=owner))
    return specs


SPACES = ("Dict", "Tuple", "Discrete", "Box", "MultiDiscrete", "MultiBinary")
_ARRAYS = {"Box": ("low", "high"), "MultiDiscrete": ("nvec", "start")}


def saved_space(space: gym.Space[object] | None) -> dict[str, object] | None:
    """A space as JSON values and arrays [n]; None: it is not known."""
    if space is None:
        return None
    kind = next(name for name in SPACES if isinstance(space, getattr(gym.spaces, name)))
    if (parts := parts_of(space)) is not None:
        return {"kind": kind, "keys": list(parts), "parts": [saved_space(part) for part in parts.values()]}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": kind, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": kind, "n": np.array(space.n, np.int64).tolist()}
    arrays = {name: np.array(getattr(space, name), space.dtype).reshape(-1) for name in _ARRAYS[kind]}
    return {"kind": kind, "shape": np.array(space.shape, np.int64).tolist(), **arrays}


def loaded_space(saved: Mapping[str, Any] | None) -> gym.Space[object] | None:
    """Return the space that `saved_space` was given. Raises ValueError, KeyError, TypeError or AttributeError where it is
    none."""
    if saved is None:
        return None
    kind = saved["kind"]
    try:
        if kind in ("Dict", "Tuple"):
            parts: dict[str, Any] = {key: loaded_space(part) for key, part in zip(saved["keys"], saved["parts"], strict=True)}
            return gym.spaces.Dict(parts) if kind == "Dict" else gym.spaces.Tuple(list(parts.values()))
        if kind == "Discrete":
            return gym.spaces.Discrete(saved["n"], start=saved["start"])
        if kind == "MultiBinary":
            return gym.spaces.MultiBinary(saved["n"])
        first, second = (saved[name].reshape(saved["shape"]) for name in _ARRAYS[kind])
        if kind == "Box":
            return gym.spaces.Box(first, second, dtype=first.dtype.type)
        return gym.spaces.MultiDiscrete(first, dtype=first.dtype.type, start=second)
    except AssertionError as error:  # so gymnasium refuses
        raise ValueError(f"an action space of kind {kind}: {str(error):.100}") from None


def loaded_columns(owner: object, specs: Sequence[Spec], columns: Mapping[str, object], n: int) -> list[Array]:
    """Return the saved columns [n, …] of these fields.

    Raises:
        ValueError: they are those of other fields; `owner` is named. SpecError: one has another number of rows, shape or dtype.
    """
    names = [spec.name for spec in specs]
    if columns.keys() != set(names) or (n and not names):
        raise ValueError(f"{owner}: {n} rows were saved with the columns {', '.join(columns) or 'none'}; expected "
                         f"{', '.join(names) or 'some'}")
    return [convert_rows(spec, columns[spec.name], n) for spec in specs]


def check_saved(buffer: object, state: State, own: Mapping[str, object]) -> None:
    """Refuse a saved state that is not for this buffer.

    Raises:
        ValueError: it was built with other options than `own`. ArchiveError: its generator is of another kind.
    """
    for key, value in own.items():
        if state[key] != value:
            raise ValueError(f"{buffer!r}: the saved {key} is {state[key]}, this buffer's {value}; build it with the saved one")
    if "rng" in state:
        set_rng_state(np.random.default_rng(0), state["rng"])
