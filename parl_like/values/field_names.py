"""Names of a Batch's fields that are names of its methods, too."""

from __future__ import annotations

from collections.abc import Callable


class Unhidden:
    """A public method of Batch that a field of the same name does not hide: Python asks what has a `__set__` before the fields.

    It is put in the place of the method after the class was made, so that readers and type checkers see plain methods.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __get__(self, batch: object, owner: type) -> object:
        return self.function.__get__(batch, owner)

    def __set__(self, batch: object, value: object) -> None:  # `Batch.__setattr__` comes first
        raise AttributeError


def hides(key: str) -> str:
    """Return the message for a field that would hide a private or special method."""
    return f"Batch: field {key!r} would hide the method of that name; rename it, e.g. {key.strip('_') + '_'!r}"


def ambiguous(key: str, way: str) -> str:
    """Return the message for an attribute that is a method; `way` gets at the field of that name."""
    return f"Batch: {key!r} is the name of a method; for the field of that name use item access: {way}"
