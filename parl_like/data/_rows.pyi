from collections.abc import Mapping, Sequence
from typing import Any

from parl_like.spec import Array, Spec

class RowBlock:
    specs: tuple[Spec, ...]
    names: tuple[str, ...]
    arrays: dict[str, Array]
    capacity: int
    def __init__(self, specs: Sequence[Spec], capacity: int, arrays: Mapping[str, Array] | None = None) -> None: ...
    def write(self, row: int, values: tuple[Any, ...]) -> None: ...
    def put_field(self, row: int, i: int, value: Any) -> None: ...
    def write_rows(self, start: int, n: int, values: tuple[Any, ...]) -> None: ...
