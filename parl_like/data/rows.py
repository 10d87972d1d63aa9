"""RowBlock and its plain NumPy twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parl_like.data._rows import RowBlock
from parl_like.spec import Array, Spec

__all__ = ["RowBlock", "RowBlockReference"]


class RowBlockReference:
    """`RowBlock` in plain NumPy: slow, obvious, and what the tests trust."""

    def __init__(self, specs: Sequence[Spec], capacity: int, arrays: Mapping[str, Array] | None = None) -> None:
        self.specs = tuple(specs)
        self.names = tuple(spec.name for spec in self.specs)
        self.capacity = capacity
        self.arrays = dict(arrays) if arrays is not None else {spec.name: spec.zeros(capacity) for spec in self.specs}

    def write(self, row: int, values: tuple[Any, ...]) -> None:
        for spec, value in zip(self.specs, values, strict=True):
            self.arrays[spec.name][row] = spec.convert(value)

    def write_rows(self, start: int, n: int, values: tuple[Any, ...]) -> None:
        arrays = [spec.convert(value, rows=True) for spec, value in zip(self.specs, values, strict=True)]
        for spec, array in zip(self.specs, arrays, strict=True):
            if len(array) != n:
                raise spec.error(f"{array.shape} {array.dtype}", f"give {n} rows", rows=True)
        for spec, array in zip(self.specs, arrays, strict=True):
            self.arrays[spec.name][start : start + n] = array
