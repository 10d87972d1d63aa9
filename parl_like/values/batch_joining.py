"""Joining and RowWriting: how several batches become one, and how rows of one go into another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from parl_like.values.batch_leaf import (
    MAPPINGS,
    Index,
    Leaf,
    blank,
    clear,
    is_tensor,
    join_leaves,
    same,
    shape_of,
    spare,
    stacked,
    write,
)


class FieldGroup(Protocol):
    """A Batch, as this module knows it: fields by name, some of which are groups."""

    __dict__: dict[str, object]

    def __init__(self, data: object = None, /) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Self]: ...

    def is_empty(self, recurse: bool = False) -> bool: ...


Nested = TypeVar("Nested", bound=FieldGroup)
Part: TypeAlias = FieldGroup | Mapping[str, object]
Parts: TypeAlias = Iterable[Part]
"""Batches or mappings that are joined. A single one stands for itself alone."""


class Joining(Generic[Nested]):
    """The batches that are joined, field by field, in the order in which their fields first appear.

    Args:
        reserved: An empty Batch, which stands for a field that a part lacks. Its class is not imported here.
        batches: What is joined.
        verb: Name of the method, for messages.

    Raises:
        ValueError: a part is no Batch or mapping.
    """

    def __init__(self, reserved: Nested, batches: Part | Parts, verb: str) -> None:
        kind = type(reserved)
        self._kind, self._reserved = kind, reserved
        parts: list[Part] = [batches] if isinstance(batches, (kind, *MAPPINGS)) else list(batches)
        for part in parts:
            if not isinstance(part, (kind, *MAPPINGS)):
                raise ValueError(f"Batch.{verb}: got a {type(part).__name__} among the parts; expected Batches or mappings")  # noqa: TRY004
        self.parts: list[Nested] = [part if isinstance(part, kind) else kind(part) for part in parts]

    def stack(self, axis: int) -> dict[str, Leaf]:
        """Return the fields of `Batch.stack`: shapes [n, …] for n parts, where `axis` is 0."""
        kind = self._kind

        def join(name: str, values: list[Leaf], template: Leaf) -> Leaf:
            if axis == 0:
                return stacked([blank(template) if isinstance(value, kind) else value for value in values])
            if any(isinstance(value, kind) for value in values):
                raise ValueError(f"Batch.stack: field {name!r} is missing in some parts, which only axis 0 can fill; got axis "
                                 f"{axis}")
            return join_leaves(name, values, axis, new_axis=True)

        return self._merge(self.parts, join, False, "")

    def cat(self, pad: bool) -> dict[str, Leaf]:
        """Return the fields of `Batch.cat`: shapes [N, …], N the rows of all parts."""
        kind, parts = self._kind, self.parts

        def join(name: str, values: list[Leaf], template: Leaf) -> Leaf:
            if shape_of(template) is None:
                if all(isinstance(value, kind) or same(value, template) for value in values):
                    return template
                raise ValueError(f"Batch.cat: field {name!r} has no row axis and differs between the parts; stack it into an "
                                 "array first")
            filled = [blank(template, len(part)) if isinstance(v, kind) else v for v, part in zip(values, parts, strict=True)]
            return join_leaves(name, filled, axis=0, new_axis=False)

        return self._merge(self.parts, join, not pad, "")

    def _merge(self, parts: Sequence[Nested], join: Callable[[str, list[Leaf], Leaf], Leaf], strict: bool, path: str
               ) -> dict[str, Leaf]:
        """`join` of every leaf's name, values in the parts (an empty Batch where one has none) and first real value. `strict`
        refuses parts that have some data, but not what others have."""
        kind, reserved = self._kind, self._reserved
        out: dict[str, Leaf] = {}
        for key in dict.fromkeys(key for part in parts for key in part.__dict__):
            name = path + key
            values = [part.__dict__.get(key, reserved) for part in parts]
            if strict and not all(map(self._is_reserved, values)):
                for i, part in enumerate(parts):
                    if key not in part.__dict__ and not part.is_empty(recurse=True):
                        raise ValueError(f"Batch.cat: field {name!r} is missing in part {i} (it has {', '.join(part.__dict__)}); "
                                         "give the same fields, or fill with zeros: pad=True")
            present = [value for value in values if not isinstance(value, kind)]
            if not present:
                group = out[key] = kind()
                groups = [value for value in values if isinstance(value, kind)]
                group.__dict__.update(self._merge(groups, join, strict, f"{name}."))
            elif any(isinstance(value, kind) and not self._is_reserved(value) for value in values):
                raise ValueError(f"Batch: field {name!r} is a Batch in some parts and an array in others; give the same "
                                 "structure")
            else:
                out[key] = join(name, values, present[0])
        return out

    def _is_reserved(self, value: Leaf) -> bool:
        return isinstance(value, self._kind) and value.is_empty(recurse=True)


class RowWriting(Generic[Nested]):
    """Rows that go into a batch, leaf by leaf: 0 or None where they lack a field.

    Args:
        reserved: As for `Joining`.
        batch: Gets them.
        rows: Of the same structure, but for fields that it lacks.

    Raises:
        ValueError: the rows have fields that the batch lacks, or differ in a leaf without rows.
    """

    def __init__(self, reserved: Nested, batch: Nested, rows: Nested) -> None:
        self._reserved = reserved
        self._new = list(self._rows_for(batch, rows, ""))

    def write(self, leaves: Iterable[Leaf], index: Index) -> None:
        """Write them to the rows at `index` of these leaves, which are those of the batch, in its order."""
        reserved = self._reserved
        for leaf, rows in zip(leaves, self._new, strict=True):
            if rows is reserved:
                clear(leaf, index)
            else:
                write(leaf, index, rows)

    def try_out(self, leaves: Iterable[Leaf]) -> None:
        """Write them over copies of these leaves. Raises what numpy or torch raise where a value does not fit."""
        self.write(map(spare, leaves), ...)

    def _rows_for(self, batch: Nested, rows: Nested, path: str) -> Iterator[Leaf]:
        """Yield what `rows` has for each leaf of `batch`."""
        reserved, kind = self._reserved, type(self._reserved)
        for key in rows.__dict__.keys() - batch.__dict__.keys():
            raise ValueError(f"Batch: field {path + key!r} is unknown here; known: {', '.join(batch.__dict__) or 'none'}; add it "
                             "as a column first")
        for key, mine in batch.__dict__.items():
            value, name = rows.__dict__.get(key, reserved), path + key
            if isinstance(mine, kind) and isinstance(value, kind):
                yield from self._rows_for(mine, value, f"{name}.")
            elif isinstance(value, kind) and value.is_empty(recurse=True):
                yield reserved
            elif isinstance(mine, kind) or isinstance(value, kind):
                kinds = ("a Batch", "an array") if isinstance(mine, kind) else ("an array", "a Batch")
                raise ValueError(f"Batch: field {name!r} is {kinds[0]}, and the rows for it are {kinds[1]}; give the same "
                                 "structure")
            elif not (isinstance(mine, np.ndarray) or is_tensor(mine) or same(mine, value)):
                raise ValueError(f"Batch: field {name!r} has no row axis, so one row cannot differ; make it an array [N, ...] "
                                 "first")
            else:
                yield value
