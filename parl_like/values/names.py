"""Names that are given as text, of classes, functions and environments, and whether a module may be imported for one.

Who types a name may have its module imported. The texts of a run directory may not, for somebody else may have written them:
while one is in use a rule is in force (`under`), and whoever looks up a name asks `check` before anything is imported for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Rule(Protocol):
    """Which names may have something imported for them."""

    def typed(self, name: str) -> bool:
        """Return whether the user has given this very text."""

    def refusal(self, name: str) -> Exception:
        """Return the error for a text that the user has not given."""


_IN_FORCE: list[Rule] = []  # of the whole process: agents and environments may be in greenlets and threads


def rule() -> Rule | None:
    """The rule that is in force; None: every name was typed."""
    return _IN_FORCE[-1] if _IN_FORCE else None


@contextmanager
def under(one: Rule) -> Iterator[None]:
    """Puts a rule in force for a while."""
    _IN_FORCE.append(one)
    try:
        yield
    finally:
        _IN_FORCE.remove(one)


def check(name: str) -> None:
    """To be called before something is imported for a name. Raises the refusal of the rule that is in force."""
    if (one := rule()) is not None and not one.typed(name):
        raise one.refusal(name)
