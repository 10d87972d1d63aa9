"""The fields of stored rows: found out from the first row, checked, compared, and written into a saved state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parl_like.data.encoding import CODES
from parl_like.data.generators import set_rng_state
from parl_like.spec import Array, Spec, SpecError

FLAGS = ("terminated", "truncated")
"""The fields that say where an episode ends: one bool each."""


def is_part(name: str, key: str) -> bool:
    """Whether a field is `key`, or a leaf of it."""
    return name == key or name.startswith(key + ".")


def as_array(value: Any) -> Array:
    """Numbers, an array or a tensor as an array."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def infer(owner: str, name: str, value: Any, rows: bool = False) -> Spec:
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


def check_numbers(kind: str, specs: Sequence[Spec]) -> None:
    """Refuses fields that hold no numbers, or are both a leaf and a group, in the name of this kind of buffer."""
    names = {spec.name for spec in specs}
    for spec in specs:
        if spec.dtype.kind not in "biuf":
            raise ValueError(f"{kind}: field {spec.name!r} has dtype {spec.dtype}; rows hold numbers")
        parts = spec.name.split(".")
        for group in (".".join(parts[:i]) for i in range(1, len(parts))):
            if group in names:
                raise ValueError(f"{kind}: {group!r} cannot be both an array and the group of {spec.name!r}")


def convert_rows(spec: Spec, value: Any, n: int) -> Array:
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


def saved_specs(specs: Sequence[Spec]) -> list[dict[str, Any]]:
    """As JSON values."""
    return [{"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype.str} for spec in specs]


def loaded_specs(owner: str, saved: Sequence[Mapping[str, Any]]) -> list[Spec]:
    for field in saved:
        if np.dtype(field["dtype"]) not in CODES:
            raise ValueError(f"{owner}: a saved field has dtype {field['dtype']!r:.20}; expected numbers")
    return [Spec(s["name"], tuple(s["shape"]), np.dtype(s["dtype"]), owner=owner) for s in saved]


def loaded_columns(owner: object, specs: Sequence[Spec], columns: Mapping[str, Any], n: int) -> list[Array]:
    """The saved columns [n, …] of these fields; refuses others."""
    names = [spec.name for spec in specs]
    if columns.keys() != set(names) or (n and not names):
        raise ValueError(f"{owner}: {n} rows were saved with the columns {', '.join(columns) or 'none'}; expected "
                         f"{', '.join(names) or 'some'}")
    return [convert_rows(spec, columns[spec.name], n) for spec in specs]


def check_saved(buffer: Any, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuses a saved state of a buffer that was built with other options than `own`, or with another kind of generator."""
    for key, value in own.items():
        if state[key] != value:
            raise ValueError(f"{buffer!r}: the saved {key} is {state[key]}, this buffer's {value}; build it with the saved one")
    if "rng" in state:
        set_rng_state(np.random.default_rng(0), state["rng"])
