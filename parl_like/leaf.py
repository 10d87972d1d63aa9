"""One leaf of a Batch: an array, a tensor, a torch distribution, or an object without rows. What is done to it, whichever it
is."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parl_like.spec import Array

if TYPE_CHECKING:
    import torch

Leaf = Any
"""What a field holds when it is not a nested Batch: a numpy array [N, ...], a torch tensor [N, ...], a torch Distribution with
batch shape [N, ...], or an object without a row axis (text, None, anything else), which then belongs to all rows alike."""

Index = Any
"""What picks rows: int, slice, int array, bool mask, list, or a tuple of these for the leading axes."""

MAPPINGS = (dict, Mapping)  # dict first: the abstract class alone costs a Python call
NUMBERS = (int, float, complex, np.number, np.bool_)


def is_tensor(value: Any) -> bool:
    # Nobody can hold a tensor before torch is imported, so this file need not import it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_distribution(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.distributions.Distribution)


def is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic, *NUMBERS)) or is_tensor(value)


def object_array(values: Sequence[Any]) -> Array:
    out = np.empty(len(values), object)
    for i, value in enumerate(values):  # one by one: numpy would look into them
        out[i] = value
    return out


def stacked(values: Sequence[Any]) -> Leaf:
    """The values of several rows as one leaf: a tensor of tensors, an array of what numpy takes, else an array of objects.

    Raises:
        TypeError: tensors of different shapes.
    """
    tensors = [is_tensor(value) for value in values]
    if any(tensors):
        if not all(tensors):
            return object_array(values)
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) > 1:
            raise TypeError(f"Batch: a list of tensors has shapes {sorted(shapes)}; expected equal shapes: pad them first")
        import torch

        return torch.stack(tuple(values))
    try:
        array = np.asarray(values)
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
        kind = type(index)
        plain = kind is int or kind is torch.Tensor or (kind is slice and index.step is None)
        return value[index if plain else tensor_index(value, index)]
    if is_array(value):
        return np.asarray(value)[index]
    return distribution_rows(value, index) if is_distribution(value) else value


def write(leaf: Leaf, index: Index, rows: Leaf) -> None:
    """Writes rows into an array or tensor; any other leaf stays as it is."""
    if isinstance(leaf, np.ndarray):
        leaf[index] = to_numpy(rows)
    elif is_tensor(leaf):
        leaf[tensor_index(leaf, index)] = to_tensor(rows, leaf.dtype, leaf.device)


def tensor_index(tensor: torch.Tensor, index: Index) -> Index:
    """`index` in the part of numpy's language that torch understands."""
    if isinstance(index, slice):
        return elements(tuple(tensor.shape[:1]), index) if (index.step or 1) < 0 else index
    if isinstance(index, np.ndarray):  # torch takes uint8 for a mask and refuses negative strides
        return index.astype(np.int64 if index.dtype.kind == "u" else index.dtype)
    if isinstance(index, list):  # torch would take a list of lists for a tuple
        return np.asarray(index) if index else index
    if isinstance(index, tuple):
        arrays = False
        for part in index:
            if type(part) is slice:
                if part.step is not None and part.step < 0:  # torch has no such steps
                    return elements(tuple(tensor.shape), index)
            elif type(part) is np.ndarray:
                arrays = True
        return tuple([tensor_index(tensor, part) for part in index]) if arrays else index
    return index


def elements(shape: tuple[int, ...], index: Index) -> tuple[Array, ...]:
    """Which elements numpy means by `index` in an array of `shape`: their positions along each axis."""
    at = tuple(map(to_numpy, index)) if isinstance(index, tuple) else to_numpy(index)
    return np.unravel_index(np.arange(math.prod(shape)).reshape(shape)[at], shape)


def distribution_rows(value: torch.distributions.Distribution, index: Index) -> torch.distributions.Distribution:
    """The distribution at `index` of its batch shape; its parameters may have more axes (the choices of a Categorical)."""
    from torch import distributions

    index = elements(tuple(value.batch_shape), index)
    if isinstance(value, distributions.Independent):
        base = distribution_rows(value.base_dist, index)
        return distributions.Independent(base, value.reinterpreted_batch_ndims, validate_args=False)
    for kind, names in (
        (distributions.Normal, ("loc", "scale")),
        (distributions.Categorical, ("logits",)),
        (distributions.Bernoulli, ("logits",)),
    ):
        if type(value) is kind:
            params = {name: getattr(value, name) for name in names}
            return kind(**{name: p[index] for name, p in params.items()}, validate_args=False)
    raise TypeError(
        f"Batch: rows of a {type(value).__name__} distribution cannot be taken; expected Normal, Categorical, Bernoulli or "
        "Independent of these: store its parameters instead"
    )


def spare(value: Leaf) -> Leaf:
    """Memory of the same shape and dtype, for a trial."""
    if is_tensor(value):
        return value.clone()
    return np.array(value) if isinstance(value, (np.ndarray, np.generic)) else value


def clear(value: Leaf, index: Index) -> Leaf:
    """0 or None at the rows `index` (`...` for all), in place where there is a place; a leaf without rows changes with all
    only."""
    if isinstance(value, np.ndarray):
        value[index] = zero_of(value.dtype)
    elif is_tensor(value):
        value[tensor_index(value, index)] = 0
    elif index is ...:
        return blank(value)
    return value


def zero_of(dtype: np.dtype[Any]) -> Any:
    return None if dtype.kind == "O" else np.zeros((), dtype)


def blank(value: Leaf, rows: int | None = None) -> Leaf:
    """Zeros, or None, in the shape of `value`; with `rows`, in its shape with that leading size."""
    if not is_array(value):
        return None
    shape = np.shape(value) if rows is None else (rows, *np.shape(value)[1:])
    if is_tensor(value):
        return value.new_zeros(shape)
    dtype = np.asarray(value).dtype
    return np.full(shape, zero_of(dtype), dtype)


def join_leaves(name: str, values: Sequence[Leaf], axis: int, new_axis: bool) -> Leaf:
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


def to_numpy(value: Leaf, copy: bool = False) -> Leaf:
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
        if "O" in (x.dtype.kind, y.dtype.kind):
            return all(same(i, j) for i,
                       j in zip(x.flat, y.flat, strict=True)) if x.ndim else bool(a == b)  # one integer beyond 64 bits
        return np.array_equal(x, y, equal_nan=x.dtype.kind in "fc" and y.dtype.kind in "fc")
    if isinstance(a, MAPPINGS) and isinstance(b, MAPPINGS):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if is_distribution(a):
        return same(parameters(a), parameters(b))
    equal = a == b
    return equal if isinstance(equal, bool) else bool(np.all(equal))


def parameters(value: torch.distributions.Distribution) -> dict[str, Any]:
    """What makes a distribution what it is: its attributes, without what torch computed from them and keeps beside them.

    Those that torch knows as parameters are taken even when computed: 0.3 as a probability is not 0.3 as a logit.
    """
    from torch.distributions.utils import lazy_property

    computed = {name for name in vars(value) if isinstance(inspect.getattr_static(type(value), name, None), lazy_property)}
    given = {name: part for name, part in vars(value).items() if name not in computed and name != "_validate_args"}
    return given | {name: getattr(value, name) for name in value.arg_constraints}


def is_null(value: Leaf) -> Array:
    array = np.asarray(to_numpy(value)) if value is None or is_array(value) else np.zeros(())
    if array.dtype.kind == "O":
        return np.array(
            [x is None or (isinstance(x, (float, np.floating)) and bool(np.isnan(x))) for x in array.flat], bool
        ).reshape(array.shape)
    return np.isnan(array) if array.dtype.kind in "fc" else np.zeros(array.shape, bool)


def text_of(value: Leaf) -> str:
    """One line; large arrays by shape and dtype."""
    if is_array(value) and math.prod(np.shape(value)) > 16:
        kind = "tensor" if is_tensor(value) else "array"
        return f"{kind}(shape={np.shape(value)}, dtype={value.dtype})"
    return " ".join(repr(value).split()) if is_array(value) else repr(value)
