"""`part`: an attribute of an object that one of its parts holds."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def part(path: str) -> Any:
    """Return an attribute that stands for `path`, such as 'acting.steps': it is read and assigned there."""
    return _Part(path)


class _Part:
    def __init__(self, path: str) -> None:
        holder, _, self._name = path.rpartition(".")
        self._read, self._holder = attrgetter(path), attrgetter(holder)

    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else self._read(instance)

    def __set__(self, instance: object, value: object) -> None:
        setattr(self._holder(instance), self._name, value)
