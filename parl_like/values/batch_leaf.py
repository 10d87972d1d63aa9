"""One leaf of a Batch, whichever it is: an array, a tensor, a torch distribution, or an object without rows; and arithmetic."""

from __future__ import annotations

import inspect
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Union, cast

import numpy as np
import numpy.typing as npt

from parl_like.values.spec import Array

if TYPE_CHECKING:
    import torch

Leaf: TypeAlias = object
"""The value of a field that is not a nested Batch: a numpy array [N, ...], a torch tensor [N, ...], a torch Distribution with
batch shape [N, ...], or an object without a row axis (text, None, anything else), which then belongs to all rows alike."""

Axis: TypeAlias = Union[int, "np.integer[Any]", slice, None, EllipsisType, Sequence[int], Array, "torch.Tensor"]
Index: TypeAlias = Axis | tuple[Axis, ...]
"""A selection of rows: int, slice, int array, bool mask, list, or a tuple of these for the leading axes."""

MAPPINGS = (dict, Mapping)  # dict first: the abstract class alone costs a Python call
NUMBERS = (int, float, complex, np.number, np.bool_)


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether this is a torch tensor, of any shape. Nobody can hold one before torch is imported, so that is not done
    here."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_distribution(value: object) -> TypeGuard[torch.distributions.Distribution]:
    """Return whether this is a torch distribution; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.distributions.Distribution)


def is_array(value: object) -> TypeGuard[npt.ArrayLike]:
    """Return whether this is a number, an array or a tensor: a leaf with rows, or one number for all of them."""
    return isinstance(value, (np.ndarray, np.generic, *NUMBERS)) or is_tensor(value)


def object_array(values: Sequence[object]) -> Array:
    """Return the values as they are in an array [len(values)] of dtype object."""
    out = np.empty(len(values), object)
    for i, value in enumerate(values):  # one by one: numpy would look into them
        out[i] = value
    return out


def stacked(values: Sequence[Any]) -> Leaf:
    """Return the values of N rows as one leaf [N, …]: a tensor of tensors, an array of what numpy takes, else one of objects.

    Raises:
        TypeError: tensors of several shapes.
    """
    tensors = [is_tensor(value) for value in values]
    if all(tensors) and tensors:
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) > 1:
            raise TypeError(f"Batch: a list of tensors has shapes {sorted(shapes)}; expected equal shapes: pad them first")
        import torch

        return torch.stack(tuple(values))
    try:
        array = object_array(values) if any(tensors) else np.asarray(values)
    except ValueError:
        return object_array(values)  # ragged
    return array.astype(object) if array.dtype.kind in "US" else array


def shape_of(value: Leaf) -> tuple[int, ...] | None:
    """Row axis first; None for a leaf that has no rows by nature."""
    if is_array(value):
        return np.shape(value)
    return tuple(map(int, value.batch_shape)) if is_distribution(value) else None


def rows_of(value: Leaf, index: Index) -> Leaf:
    """The rows at `index`; a leaf without rows is the same for all."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        plain = type(index) is int or type(index) is torch.Tensor or (type(index) is slice and index.step is None)
        return value[index if plain else tensor_index(value, index)]
    if is_array(value):
        return np.asarray(value)[index]
    return distribution_rows(value, index) if is_distribution(value) else value


def write(leaf: Leaf, index: Index, rows: Leaf) -> None:
    """Writes rows into an array or tensor; any other leaf stays as it is."""
    if isinstance(leaf, np.ndarray):
        leaf[index] = to_numpy(rows)
    elif is_tensor(leaf):
        leaf[tensor_index(leaf, index)] = cast("torch.Tensor", to_tensor(rows, leaf.dtype, leaf.device))


def tensor_index(tensor: torch.Tensor, index: Index) -> Index:
    """Return `index`, for the leading axes of a tensor of any shape, in the part of numpy's language that torch understands."""
    parts, plain = index if isinstance(index, tuple) else (index,), True
    for part in parts:
        if type(part) is slice:
            if part.step is not None and part.step < 0:  # torch has no such steps
                return elements(tuple(tensor.shape if parts is index else tensor.shape[:1]), index)
        elif type(part) is np.ndarray or type(part) is list:
            plain = False
    if plain:
        return index
    return tuple(map(_index_part, parts)) if parts is index else _index_part(index)


def _index_part(part: object) -> Any:
    if isinstance(part, list) and part:  # torch would take a list of lists for a tuple
        part = np.asarray(part)
    if isinstance(part, np.ndarray):  # torch takes uint8 for a mask and refuses negative strides
        return part.astype(np.int64 if part.dtype.kind == "u" else part.dtype)
    return part


def elements(shape: tuple[int, ...], index: Index) -> tuple[Array, ...]:
    """Which elements numpy means by `index` in an array of `shape`: their positions along each axis."""
    at: Any = tuple(map(to_numpy, index)) if isinstance(index, tuple) else to_numpy(index)
    found: tuple[Array, ...] = np.unravel_index(np.arange(math.prod(shape)).reshape(shape)[at], shape)
    return found


def distribution_rows(value: torch.distributions.Distribution, index: Index) -> torch.distributions.Distribution:
    """The distribution at `index` of its batch shape; its parameters may have more axes (the choices of a Categorical).

    Raises:
        TypeError: a distribution of another kind than Normal, Categorical, Bernoulli and Independent of these.
    """
    from torch import distributions

    index = elements(tuple(value.batch_shape), index)
    if isinstance(value, distributions.Independent):
        base = distribution_rows(value.base_dist, index)
        return distributions.Independent(base, value.reinterpreted_batch_ndims, validate_args=False)
    kinds = {distributions.Normal: ("loc", "scale"), distributions.Categorical: ("logits",), distributions.Bernoulli: ("logits",)}
    names = kinds.get(type(value))
    if names is None:
        raise TypeError(f"Batch: rows of a {type(value).__name__} distribution cannot be taken; expected Normal, Categorical, "
                        "Bernoulli or Independent of these: store its parameters instead")
    return type(value)(**{name: getattr(value, name)[index] for name in names}, validate_args=False)


def spare(value: Leaf) -> Leaf:
    """Memory of the same shape and dtype, for a trial."""
    if is_tensor(value):
        return value.clone()
    return np.array(value) if isinstance(value, (np.ndarray, np.generic)) else value


def clear(value: Leaf, index: Index) -> Leaf:
    """0 or None at the rows `index` (`...` for all), in place where that can be; a leaf without rows changes with all only."""
    if isinstance(value, np.ndarray):
        value[index] = _zero_of(value.dtype)
    elif is_tensor(value):
        value[tensor_index(value, index)] = 0
    elif index is ...:
        return blank(value)
    return value


def _zero_of(dtype: np.dtype[np.generic]) -> Array | None:
    return None if dtype.kind == "O" else np.zeros((), dtype)


def blank(value: Leaf, rows: int | None = None) -> Leaf:
    """Zeros, or None, in the shape of `value`; with `rows`, in its shape with that leading size."""
    if not is_array(value):
        return None
    shape = np.shape(value) if rows is None else (rows, *np.shape(value)[1:])
    if is_tensor(value):
        return value.new_zeros(shape)
    dtype = np.asarray(value).dtype
    return np.full(shape, _zero_of(dtype), dtype)


def join_leaves(name: str, values: Sequence[Any], axis: int, new_axis: bool) -> Leaf:
    """Return the `stack` (with `new_axis`) or `concatenate` of arrays or tensors; `name` is the field's, for messages.

    Raises:
        TypeError: some are tensors and some are not. ValueError: their shapes or dtypes do not fit.
    """
    tensors = [is_tensor(value) for value in values]
    if any(tensors) and not all(tensors):
        raise TypeError(f"Batch: field {name!r} is a tensor in some parts and not in others; call to_torch() or to_numpy() first")
    try:
        if tensors[0]:
            import torch

            return torch.stack(tuple(values), axis) if new_axis else torch.cat(tuple(values), axis)
        return np.stack(values, axis) if new_axis else np.concatenate(values, axis)
    except (ValueError, RuntimeError, IndexError) as error:
        shapes = ", ".join(str(np.shape(value)) for value in values[:8])
        raise ValueError(f"Batch: field {name!r} cannot be joined on axis {axis} from shapes {shapes}: {error}") from None


def to_numpy(value: Leaf, copy: bool = False) -> Any:
    """Return a tensor as an array on the CPU, bfloat16 as float32, anything else as it is; with `copy`,
    arrays in memory of their own."""
    if is_tensor(value):
        import torch

        value = (value.float() if value.dtype is torch.bfloat16 else value).numpy(force=True)
    return value.copy() if copy and isinstance(value, np.ndarray) else value


def to_tensor(value: Leaf, dtype: torch.dtype | None, device: torch.device | str | None, copy: bool = False) -> Leaf:
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device=value.device if device is None else device, dtype=dtype or value.dtype, copy=copy)
    if not is_array(value) or np.asarray(value).dtype.kind not in "biufc":
        return value
    array = np.asarray(value)
    # torch cannot share memory that is read-only or runs backwards.
    if copy or not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.as_tensor(array, dtype=dtype, device=device)


def same(a: Any, b: Any) -> bool:
    """Equal values, whatever holds them: arrays and tensors by shape and value, containers item by item. Always one bool."""
    if a is b:
        return True
    if is_array(a) and is_array(b):
        x, y = np.asarray(to_numpy(a)), np.asarray(to_numpy(b))
        if x.shape != y.shape:
            return False
        if "O" not in (x.dtype.kind, y.dtype.kind):
            return np.array_equal(x, y, equal_nan=x.dtype.kind in "fc" and y.dtype.kind in "fc")
        return all(map(same, x.flat, y.flat)) if x.ndim else bool(a == b)  # one integer beyond 64 bits
    if isinstance(a, MAPPINGS) and isinstance(b, MAPPINGS):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if is_distribution(a):
        return same(_parameters(a), _parameters(b))
    return bool(np.all(a == b))


def _parameters(value: torch.distributions.Distribution) -> dict[str, object]:
    """Return what makes a distribution what it is: its attributes, without what torch computed from them and keeps beside them.

    Those that torch knows as parameters are taken even when computed: 0.3 as a probability is not 0.3 as a logit.
    """
    from torch.distributions.utils import lazy_property

    given = {name: part for name, part in vars(value).items() if name != "_validate_args"
             and not isinstance(inspect.getattr_static(type(value), name, None), lazy_property)}
    return given | {name: getattr(value, name) for name in value.arg_constraints}


def is_null(value: Leaf) -> Array:
    """Return where a value is None or NaN: bool, in its shape."""
    array = np.asarray(to_numpy(value)) if value is None or is_array(value) else np.zeros(())
    if array.dtype.kind == "O":
        nulls = [x is None or (isinstance(x, (float, np.floating)) and bool(np.isnan(x))) for x in array.flat]
        return np.array(nulls, bool).reshape(array.shape)
    return np.isnan(array) if array.dtype.kind in "fc" else np.zeros(array.shape, bool)


def text_of(value: Leaf) -> str:
    """One line; large arrays by shape and dtype."""
    if is_array(value) and math.prod(np.shape(value)) > 16:
        return f"{'tensor' if is_tensor(value) else 'array'}(shape={np.shape(value)}, dtype={getattr(value, 'dtype', None)})"
    return " ".join(repr(value).split()) if is_array(value) else repr(value)


def arithmetic(operation: Callable[[object, object], object], takes_batch: bool, in_place: bool) -> Callable[[Any, Any], Any]:
    """A method of Batch: leaf by leaf with a number, or with a Batch of the same structure where the operation takes one."""

    def method(self: Any, other: object) -> Any:
        if not isinstance(other, (*NUMBERS, type(self)) if takes_batch else NUMBERS):
            return NotImplemented
        # Out of place, the leaves of a copy of the structure are replaced: no array of the operand is touched or shared.
        out = self if in_place else self.apply_values_transform(lambda value: value)
        operands = list(_operands(out, other))
        for owner, key, operand in operands:  # on copies first: an integer leaf may refuse what a float one takes
            operation(spare(owner[key]), operand)
        for owner, key, operand in operands:
            owner[key] = operation(owner[key], operand)
        return out

    return method


def _operands(batch: object, other: object, path: str = "") -> Iterator[tuple[dict[str, object], str, object]]:
    """Yield where each leaf lives, and what it is combined with: the number, or the leaf of the other batch."""
    kind = type(batch)
    both = isinstance(other, kind)
    if both and other.__dict__.keys() != batch.__dict__.keys():
        raise TypeError(f"Batch: arithmetic needs the same fields, got {list(batch.__dict__)} and {list(other.__dict__)} at "
                        f"{path or 'the top'!r}")
    for key, value in batch.__dict__.items():
        operand = other.__dict__[key] if both else other
        if isinstance(value, kind):
            if both and not isinstance(operand, kind):
                raise TypeError(f"Batch: arithmetic needs the same structure; field {path + key!r} is a Batch on one side only")
            yield from _operands(value, operand, f"{path}{key}.")
        elif not (is_array(value) and is_array(operand)):
            raise TypeError(f"Batch: arithmetic needs numbers; field {path + key!r} is {type(value).__name__} and "
                            f"{type(operand).__name__}")
        else:
            yield batch.__dict__, key, operand
