"""`part` and `view`: attributes of an object that one of its parts holds."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def part(path: str) -> Any:
    """Return an attribute that stands for `path`, such as 'acting.steps': it is read and assigned there."""
    holder_path, _, name = path.rpartition(".")
    holder = attrgetter(holder_path)

    def assign(instance: object, value: object) -> None:
        setattr(holder(instance), name, value)

    return property(attrgetter(path), assign)  # hot: read for each row, and a getter in Python takes three times as long


def view(path: str, text: str) -> Any:
    """Return an attribute that stands for `path` and is read there alone; `text` is its docstring."""
    return property(attrgetter(path), doc=text)
