"""Named values, nested: what a Batch is before it has rows. Asking for fields, comparing, printing, and one function for every
leaf."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Any, Self

from parl_like.leaf import Leaf, is_null, same, text_of, to_numpy, to_tensor
from parl_like.spec import leaves

if TYPE_CHECKING:
    import torch


class Fields:
    """Values by name, kept as attributes; a nested one is a `Fields` itself. See `parl_like.batch.Batch`, its only kind."""

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Self:
        """A Batch of ready leaves and Batches: nothing is checked or converted. The cheap way; row access uses it."""
        batch = cls.__new__(cls)
        batch.__dict__.update(fields)
        return batch

    def __getattr__(self, key: str) -> Any:  # only reached when the field does not exist
        raise AttributeError(self._unknown(key))

    def __contains__(self, key: object) -> bool:
        return key in self.__dict__

    def keys(self) -> KeysView[str]:
        return self.__dict__.keys()

    def values(self) -> ValuesView[Any]:
        return self.__dict__.values()

    def items(self) -> ItemsView[str, Any]:
        return self.__dict__.items()

    def get(self, key: str, default: Any = None) -> Any:
        return self.__dict__.get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Removes a field and returns its value, or `default`.

        Raises:
            KeyError: no such field and no default.
        """
        if key not in self.__dict__ and not default:
            raise KeyError(self._unknown(key))
        return self.__dict__.pop(key, *default)

    def is_empty(self, recurse: bool = False) -> bool:
        """No fields; with `recurse`, no leaf anywhere: nothing but reserved fields."""
        if not recurse:
            return not self.__dict__
        return all(is_reserved(value) for value in self.__dict__.values())

    def _unknown(self, key: str) -> str:
        return f"Batch has no field {key!r}; it has {', '.join(self.__dict__) or 'none'}"

    def __eq__(self, other: object) -> bool:
        """Same fields and nesting, same shapes, same values (NaN equals NaN). Order, dtype and numpy or torch do not matter.

        Distributions are equal when they are of one class and were given equal parameters.
        """
        if not isinstance(other, Fields):
            return NotImplemented
        mine, theirs = self.__dict__, other.__dict__
        return mine.keys() == theirs.keys() and all(same(value, theirs[key]) for key, value in mine.items())

    def apply_values_transform(self, values_transform: Callable[[Leaf], Leaf]) -> Self:
        """A new Batch of the same structure: the function applied to every leaf, at all levels."""
        return self._of(
            {key: value.apply_values_transform(values_transform) if isinstance(value, Fields) else values_transform(value)
             for key, value in self.__dict__.items()}
        )

    def _apply_(self, values_transform: Callable[[Leaf], Leaf]) -> Self:
        for key, value in self.__dict__.items():
            self.__dict__[key] = value._apply_(values_transform) if isinstance(value, Fields) else values_transform(value)
        return self

    def to_torch(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """A copy whose numeric leaves are torch tensors; text, None and object arrays stay as they are.

        Args:
            dtype: For every numeric leaf, indices and flags included; None keeps each one's own.
            device: None leaves tensors where they are and puts arrays on the CPU.
        """
        return self.apply_values_transform(lambda value: to_tensor(value, dtype, device, copy=True))

    def to_torch_(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """`to_torch` in place. Memory is shared with the arrays where dtype and device allow it."""
        return self._apply_(lambda value: to_tensor(value, dtype, device, copy=False))

    def to_numpy(self) -> Self:
        """A copy whose tensors are numpy arrays (bfloat16 becomes float32, which numpy has)."""
        return self.apply_values_transform(lambda value: to_numpy(value, copy=True))

    def to_numpy_(self) -> Self:
        """`to_numpy` in place. Memory is shared with tensors on the CPU."""
        return self._apply_(to_numpy)

    def isnull(self) -> Self:
        """The same structure with bool arrays: where a value is None or NaN."""
        return self.apply_values_transform(is_null)

    def hasnull(self) -> bool:
        """Whether a value anywhere is None or NaN."""
        return any(value.hasnull() if isinstance(value,
                                                 Fields) else bool(is_null(value).any()) for value in self.__dict__.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dicts with the same leaves."""
        return {key: value.to_dict() if isinstance(value, Fields) else value for key, value in self.__dict__.items()}

    def leaves(self) -> dict[str, Leaf]:
        """The leaves under flat, dotted names: the form in which a batch crosses a link. Reserved fields have no leaf and are
        left out.

        Raises:
            ValueError: a field name is empty or has a dot in it.
        """
        return dict(leaves(self.to_dict(), ""))

    def __repr__(self) -> str:
        return "\n".join(self._lines(type(self).__name__))

    def _lines(self, opening: str) -> Iterator[str]:
        """One line per field. Class name first, nested batches indented."""
        if not self.__dict__:
            yield f"{opening}()"
            return
        yield f"{opening}("
        for key, value in self.__dict__.items():
            if isinstance(value, Fields):
                *lines, last = value._lines(f"{key}: {type(value).__name__}")
                yield from (f"    {line}" for line in lines)
                yield f"    {last},"
            else:
                yield f"    {key}: {text_of(value)},"
        yield ")"


def is_reserved(value: Any) -> bool:
    """A field whose name is known, and whose data is still to come."""
    return isinstance(value, Fields) and value.is_empty(recurse=True)
