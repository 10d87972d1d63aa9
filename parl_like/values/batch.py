"""Batch: the one data carrier on every interface. Nested named fields, numpy or torch leaves, leading axis = rows."""

from __future__ import annotations

import copy as copying
import operator
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from parl_like.values.batch_joining import Joining, Part, Parts, RowWriting
from parl_like.values.batch_leaf import (
    MAPPINGS,
    NUMBERS,
    Index,
    Leaf,
    arithmetic,
    blank,
    clear,
    is_null,
    is_tensor,
    object_array,
    rows_of,
    same,
    shape_of,
    stacked,
    text_of,
    to_numpy,
    to_tensor,
)
from parl_like.values.field_names import Unhidden, ambiguous, hides
from parl_like.values.spec import leaves, nest

if TYPE_CHECKING:
    import torch


class Batch:
    """Named fields, nested, whose arrays share their leading axis: the rows.

    `b.x` and `b["x"]` are the same field. Values are converted once, when they enter: numbers, bools and lists become arrays,
    text arrays become object arrays, dicts become Batches, lists of tensors are stacked, lists of dicts or Batches are stacked;
    ragged lists become object arrays. Arrays, tensors, None, text and other objects are kept as they are, **by reference**:
    `b += 1` changes the array that the batch was made from, unless `copy=True`. A field that holds an empty Batch is *reserved*:
    its name is known and its data is still to come.

    A field may have the name of a method (an observation space may have a key `keys`): `b["keys"]` is the field, `b.keys` the
    method.

    Args:
        data: A mapping, another Batch (its fields are shared), or a list of these (stacked on a new axis 0).
        copy: Deep-copy every value.
        fields: More fields, by name.

    Raises:
        TypeError: `data` is none of these, a field name is not a str, or a list holds tensors of different shapes.
        ValueError: a field has the name of a private or special method of this class, which it would hide.

    >>> data = Batch(obs={"index": np.zeros((2, 3))}, act=np.zeros((2, 2)))
    >>> data[:, 1] += 6
    >>> data[-1]
    Batch(
        obs: Batch(
            index: array([0., 6., 0.]),
        ),
        act: array([0., 6.]),
    )
    """

    # Tells numpy to leave `array + batch` and `array == batch` to this class instead of spreading over the rows.
    __array_ufunc__ = None

    def __init__(self, data: object = None, /, *, copy: bool = False, **fields: object) -> None:
        self._fill(Batch.stack(data) if isinstance(data, (list, tuple, np.ndarray)) else data, fields)
        if copy:
            self.__dict__.update(copying.deepcopy(self.__dict__))

    @classmethod
    def _of(cls, fields: Mapping[str, object]) -> Self:
        """A Batch of ready leaves and Batches: nothing is checked or converted. The cheap way; row access uses it."""
        batch = cls.__new__(cls)
        batch.__dict__.update(fields)
        return batch

    def _fill(self, data: object, fields: Mapping[str, object]) -> None:
        if isinstance(data, Batch):
            self.__dict__.update(data.__dict__)
        elif isinstance(data, MAPPINGS):
            for key, value in data.items():
                self._put(key, value)
        elif data is not None:
            raise TypeError(f"Batch: got a {type(data).__name__}; expected a mapping or Batch, or name the field: x=value")
        for key, value in fields.items():
            self._put(key, value)

    def _put(self, key: str, value: object) -> None:
        if not isinstance(key, str):
            raise TypeError(f"Batch: field name {key!r} is {type(key).__name__}; expected str: str({key!r})")
        if key in _UNTOUCHABLE:
            raise ValueError(hides(key))
        self.__dict__[key] = _leaf(value)

    # ---- fields

    def __getattr__(self, key: str) -> Any:  # only reached when the field does not exist
        raise AttributeError(self._unknown(key))

    def __setattr__(self, key: str, value: object) -> None:
        if key in _METHODS:
            raise AttributeError(hides(key) if key in _UNTOUCHABLE else ambiguous(key, f"batch[{key!r}] = value"))
        self.__dict__[key] = _leaf(value)

    def __delattr__(self, key: str) -> None:
        if key in _METHODS:
            raise AttributeError(ambiguous(key, f"batch.pop({key!r})"))
        if key not in self.__dict__:
            raise AttributeError(self._unknown(key))
        del self.__dict__[key]

    def _unknown(self, key: str) -> str:
        return f"Batch has no field {key!r}; it has {', '.join(self.__dict__) or 'none'}"

    def __contains__(self, key: object) -> bool:
        return key in self.__dict__

    def keys(self) -> KeysView[str]:
        return self.__dict__.keys()

    def values(self) -> ValuesView[Any]:
        return self.__dict__.values()

    def items(self) -> ItemsView[str, Any]:
        return self.__dict__.items()

    def get(self, key: str, default: object = None) -> Any:
        return self.__dict__.get(key, default)

    def pop(self, key: str, *default: object) -> Any:
        """Removes a field and returns its value, or `default`.

        Raises:
            KeyError: no such field and no default.
        """
        if key not in self.__dict__ and not default:
            raise KeyError(self._unknown(key))
        return self.__dict__.pop(key, *default)

    def update(self, data: object = None, /, **fields: object) -> None:
        """Sets the fields of a mapping or Batch, then those given by name."""
        self._fill(data, fields)

    def is_empty(self, recurse: bool = False) -> bool:
        """No fields; with `recurse`, no leaf anywhere: nothing but reserved fields."""
        return all(map(_is_reserved, self.__dict__.values())) if recurse else not self.__dict__

    def __eq__(self, other: object) -> bool:
        """Same fields and nesting, same shapes, same values (NaN equals NaN). Order, dtype and numpy or torch do not matter.

        Distributions are equal when they are of one class and were given equal parameters.
        """
        return same(self.__dict__, other.__dict__) if isinstance(other, Batch) else NotImplemented

    # ---- rows

    def __getitem__(self, index: Index | str) -> Any:
        """A field by its name, or a Batch of the rows at `index` of every leaf, on the leading axes. Slices are views.

        Raises:
            KeyError: no such field.
            IndexError: a leaf has no such row, or the batch is empty.
        """
        if isinstance(index, str):
            try:
                return self.__dict__[index]
            except KeyError:
                raise KeyError(self._unknown(index)) from None
        if not self.__dict__:
            raise IndexError("Batch: an empty Batch has no rows")
        out: dict[str, object] = {}
        key = ""
        try:
            for key, value in self.__dict__.items():
                if type(value) is np.ndarray:
                    out[key] = value[index]
                elif isinstance(value, Batch):
                    out[key] = value[index] if value.__dict__ else Batch()
                else:
                    out[key] = rows_of(value, index)
        except IndexError as error:
            raise IndexError(f"field {key!r}: {error}") from None
        return self._of(out)

    def __setitem__(self, index: Index | str, value: object) -> None:
        """Sets a field by its name, or the rows at `index` of every leaf, to 0 or None where `value` has no such field.

        Raises:
            ValueError: `value` is no Batch or mapping, has fields that this batch lacks, or differs in a leaf without rows.
                Nothing is written then.
        """
        if isinstance(index, str):
            self._put(index, value)
            return
        if not isinstance(value, (Batch, *MAPPINGS)):
            raise ValueError(f"Batch: rows are set from a Batch or mapping, got a {type(value).__name__}; name the field: "  # noqa: TRY004
                             "b.x[index] = value")
        new = RowWriting(_RESERVED, self, value if isinstance(value, Batch) else Batch(value))
        new.try_out(_values(self[index]))  # all fits before the first leaf changes
        new.write(_values(self), index)

    def __len__(self) -> int:
        """Rows: the smallest leading size of the leaves; 0 for an empty Batch.

        Raises:
            TypeError: a leaf is a scalar, or no leaf has rows.
        """
        shapes = list(_shapes(self))
        if not shapes:
            if self.is_empty(recurse=True):
                return 0
            raise TypeError(f"Batch: no field has a row axis ({', '.join(self.__dict__)}); len() needs arrays [N, ...]")
        if () in shapes:
            raise TypeError("Batch: a field is a scalar, which has no row axis; make a batch of one row: Batch.stack([batch])")
        return min(shape[0] for shape in shapes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Per axis, the smallest size of the leaves; as many axes as the leaf with the fewest has."""
        return tuple(map(min, zip(*_shapes(self), strict=False)))

    def __iter__(self) -> Iterator[Self]:
        """The rows."""
        return (self[i] for i in range(len(self)))

    def split(self, size: int, shuffle: bool = True, merge_last: bool = False,
              rng: np.random.Generator | None = None) -> Iterator[Self]:
        """Yields every row exactly once, in parts of `size` rows.

        Args:
            size: Rows of a part; -1 for all.
            shuffle: Draw a random order with `rng`. Without it the parts are views of this batch, in order.
            merge_last: Add a smaller rest to the part before it instead of yielding it alone.
            rng: Where the order comes from; needed for `shuffle`.

        Raises:
            ValueError: `size` is 0 or below -1.
            TypeError: `shuffle` without `rng`.
        """
        n = len(self)
        if size < 1 and size != -1:
            raise ValueError(f"Batch.split: size is {size}; expected at least 1, or -1 for all rows")
        order: Any = None
        if shuffle:
            if rng is None:
                raise TypeError("Batch.split: shuffling needs a generator: pass rng=numpy.random.default_rng(seed), or "
                                "shuffle=False")
            order = rng.permutation(n)
        starts = list(range(0, n, size if size > 0 else max(n, 1)))
        if merge_last and len(starts) > 1 and n % size:
            starts.pop()
        bounds = map(slice, starts, [*starts[1:], n])
        return (self[part if order is None else order[part]] for part in bounds)

    # ---- joining

    @classmethod
    def stack(cls, batches: Part | Parts, axis: int = 0) -> Self:
        """Joins batches of equal shapes on a new axis.

        On axis 0, fields that some parts lack are filled with 0 or None, and arrays of different shapes become an object array.

        Raises:
            ValueError: a part is no Batch or mapping; fields are missing, or shapes differ, and `axis` is not 0.
            TypeError: tensors of different shapes.
        """
        return cls._of(Joining(_RESERVED, batches, "stack").stack(axis))

    @classmethod
    def cat(cls, batches: Part | Parts, pad: bool = False) -> Self:
        """Joins batches along axis 0: the rows of the first, then those of the second, …

        Rows of a part whose field is reserved become 0 or None. Leaves without rows must be the same in all parts.

        Args:
            batches: Parts with the same fields; parts without any field are ignored.
            pad: Also fill fields that a part lacks with 0 or None, instead of refusing.

        Raises:
            ValueError: a part is no Batch or mapping; parts differ in their fields (without `pad`) or in their row shapes.
            TypeError: a field is a tensor in some parts and an array in others.
        """
        return cls._of(Joining(_RESERVED, batches, "cat").cat(pad))

    def stack_(self, batches: Part | Parts, axis: int = 0) -> Self:
        """`stack` of this batch, unless it is empty, and the others; in place."""
        parts = Joining(_RESERVED, batches, "stack").parts
        self.__dict__.update(Batch.stack(parts if self.is_empty() else [self, *parts], axis).__dict__)
        return self

    def cat_(self, batches: Part | Parts, pad: bool = False) -> Self:
        """`cat` of this batch and the others; in place."""
        self.__dict__.update(Batch.cat([self, *Joining(_RESERVED, batches, "cat").parts], pad).__dict__)
        return self

    __iadd__, __add__ = arithmetic(operator.iadd, True, True), arithmetic(operator.add, True, False)
    __isub__, __sub__ = arithmetic(operator.isub, True, True), arithmetic(operator.sub, True, False)
    __imul__, __mul__ = arithmetic(operator.imul, False, True), arithmetic(operator.mul, False, False)
    __itruediv__, __truediv__ = arithmetic(operator.itruediv, False, True), arithmetic(operator.truediv, False, False)

    def apply_values_transform(self, values_transform: Callable[[Any], Leaf]) -> Self:
        """A new Batch of the same structure: the function applied to every leaf, at all levels."""
        return self._of(
            {key: value.apply_values_transform(values_transform) if isinstance(value, Batch) else values_transform(value)
             for key, value in self.__dict__.items()}
        )

    def _apply_(self, values_transform: Callable[[Any], Leaf]) -> Self:
        for key, value in self.__dict__.items():
            self.__dict__[key] = value._apply_(values_transform) if isinstance(value, Batch) else values_transform(value)
        return self

    def empty_(self, index: Index = None) -> Self:
        """Sets the rows at `index`, or everything, to 0 or None, in place; leaves without rows only with everything."""
        return self._apply_(lambda value: clear(value, ... if index is None else index))

    def empty(self, index: Index = None) -> Self:
        """A deep copy with the rows at `index`, or everything, set to 0 or None."""
        return type(self)(self, copy=True).empty_(index)

    def isnull(self) -> Self:
        """The same structure with bool arrays: where a value is None or NaN."""
        return self.apply_values_transform(is_null)

    def hasnull(self) -> bool:
        """Return whether a value anywhere is None or NaN."""
        return any(is_null(value).any() for value in _values(self))

    def dropnull(self) -> Self:
        """The rows without None and NaN, as a copy. Leaves without rows are not looked at."""
        keep = np.ones(len(self), bool)
        for mask in map(np.asarray, _values(self.isnull())):
            if mask.ndim:
                keep &= ~mask[: len(keep)].reshape(len(keep), -1).any(axis=1)
        rows: Self = self[np.flatnonzero(keep)]
        return rows

    def set_array_at_key(self, arr: object, key: str, index: Index = None, default_value: object = None) -> None:
        """Sets field `key`, or its rows at `index`; a new field has `default_value` at the other rows.

        Args:
            arr: The whole column [N, ...], or with `index` the rows that it picks.
            key: Field name.
            index: Rows to set; None for all.
            default_value: For the other rows of a new field; None stands for NaN in float columns and None in object columns.

        Raises:
            ValueError: `arr` has another number of rows than the batch; `key` holds a Batch; no default fits the dtype of `arr`.
        """
        array: Any = _leaf(arr)
        if index is None:
            if self.__dict__ and len(array) != len(self):
                raise ValueError(f"Batch: field {key!r} gets {len(array)} rows; expected {len(self)}; or say which: index=...")
            self[key] = array
            return
        if key not in self:
            kind = np.asarray(to_numpy(array)).dtype.kind
            if default_value is None and kind not in "fcO":
                raise ValueError(f"Batch: field {key!r} is new and its dtype {array.dtype} has no null; give a default_value")
            column: Any = blank(array, len(self))
            column[...] = np.nan if default_value is None and kind != "O" else default_value
            self[key] = column
        Batch._of({key: self[key]})[index] = Batch._of({key: array})

    def to_torch(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """A copy whose numeric leaves are torch tensors; text, None and object arrays stay as they are.

        Args:
            dtype: For every numeric leaf, indices and flags included; None keeps each one's own.
            device: None leaves tensors where they are and puts arrays on the CPU.
        """
        return self.apply_values_transform(lambda value: to_tensor(value, dtype, device, copy=True))

    def to_torch_(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """`to_torch` in place. Memory is shared with the arrays where dtype and device allow it."""
        return self._apply_(lambda value: to_tensor(value, dtype, device))

    def to_numpy(self) -> Self:
        """A copy whose tensors are numpy arrays (bfloat16 becomes float32, which numpy has)."""
        return self.apply_values_transform(lambda value: to_numpy(value, copy=True))

    def to_numpy_(self) -> Self:
        """`to_numpy` in place. Memory is shared with tensors on the CPU."""
        return self._apply_(to_numpy)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dicts with the same leaves."""
        return {key: value.to_dict() if isinstance(value, Batch) else value for key, value in self.__dict__.items()}

    def leaves(self) -> dict[str, Leaf]:
        """The leaves under flat, dotted names: the form in which a batch crosses a link. Reserved fields have none.

        Raises:
            ValueError: a field name is empty or has a dot in it.
        """
        return dict(leaves(self, ""))

    @classmethod
    def nest(cls, flat: Mapping[str, object]) -> Self:
        """The inverse of `leaves`: `{"obs.goal": x}` becomes `Batch(obs=Batch(goal=x))`.

        Raises:
            ValueError: a name is both a leaf and the beginning of another.
        """
        fields = {}
        for name, value in flat.items():
            if "." in name or name in _UNTOUCHABLE:
                return cls(nest(flat))
            fields[name] = _leaf(value)
        return cls._of(fields)

    def __repr__(self) -> str:
        return "\n".join(self._lines("Batch"))

    def _lines(self, opening: str) -> Iterator[str]:
        """One line per field; nested batches are indented."""
        if not self.__dict__:
            yield f"{opening}()"
            return
        yield f"{opening}("
        for key, value in self.__dict__.items():
            if isinstance(value, Batch):
                *lines, last = value._lines(f"{key}: Batch")
                yield from (f"    {line}" for line in lines)
                yield f"    {last},"
            else:
                yield f"    {key}: {text_of(value)},"
        yield ")"


def ready_batch(fields: Mapping[str, Leaf]) -> Batch:
    """A Batch of arrays and Batches by plain names, without a look at them: for those who have just made them."""
    return Batch._of(fields)


_METHODS = frozenset(dir(Batch))
_UNTOUCHABLE = frozenset(name for name in _METHODS if name.startswith("_"))
"""Names that no field may have: Python, or this file on its fast paths, looks them up as they are."""
_RESERVED = Batch()
"""Stands for a field that a part lacks; never handed out."""
for _name, _function in [*vars(Batch).items()]:
    if _name not in _UNTOUCHABLE and not isinstance(_function, property):  # a property is safe already
        setattr(Batch, _name, Unhidden(_function))


def _leaf(value: object) -> Leaf:
    """`value` as a field holds it; ready arrays and tensors pass untouched."""
    if isinstance(value, np.ndarray):
        return value.astype(object) if value.dtype.kind in "US" else value
    if value is None or isinstance(value, (Batch, str, bytes)) or is_tensor(value):
        return value
    if isinstance(value, (*NUMBERS, np.generic)):
        return np.asarray(value)
    if isinstance(value, (list, tuple, range)):
        return _from_list(value)
    return Batch(value) if isinstance(value, MAPPINGS) else value


def _from_list(values: Sequence[object]) -> Leaf:
    """One leaf, or Batch, from the values of several rows."""
    batches = [issubclass(kind, (Batch, Mapping)) for kind in {type(value) for value in values}]
    if any(batches):  # numpy would take a Batch for a sequence of rows
        rows = [value for value in values if isinstance(value, (Batch, Mapping))]
        return Batch.stack(rows) if len(rows) == len(values) else object_array(values)
    return stacked(values)


def _is_reserved(value: object) -> bool:
    """A field whose name is known, and whose data is still to come."""
    return isinstance(value, Batch) and value.is_empty(recurse=True)


def _values(batch: Batch) -> Iterator[Leaf]:
    """The leaves, without names."""
    for value in batch.__dict__.values():
        if isinstance(value, Batch):
            yield from _values(value)
        else:
            yield value


def _shapes(batch: Batch) -> Iterator[tuple[int, ...]]:
    return (shape for shape in map(shape_of, _values(batch)) if shape is not None)
