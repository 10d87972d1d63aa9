"""Settings that nothing reads: those that a constructor only keeps, in an attribute that no code asks for afterwards."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any


@cache
def only_kept(owner: Any) -> Mapping[str, str]:
    """Argument → attribute, of those with which the constructor of a class does nothing else than `self.attribute = argument`."""
    found: dict[str, str] = {}
    known: set[str] = set()
    for kind in owner.__mro__ if isinstance(owner, type) else ():
        maker = vars(kind).get("__init__")
        if not inspect.isfunction(maker):
            continue
        parameters = inspect.signature(maker).parameters
        names = [name for name in parameters if name not in known]
        known.update(names)
        with suppress(OSError, SyntaxError, TypeError):  # without its source nothing is known of it
            body = ast.parse(textwrap.dedent(inspect.getsource(maker))).body[0]
            found |= {name: kept[0] for name, kept in _kept(body).items() if name in names and len(kept) == 1}
        if not any(one.kind == one.VAR_KEYWORD for one in parameters.values()):
            break
    return found


def _kept(body: ast.stmt) -> dict[str, list[str]]:
    """Name → attributes of `self` that are set to it, of names that are used for nothing else."""
    used = Counter(node.id for node in ast.walk(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    kept: dict[str, list[str]] = {}
    for node in ast.walk(body):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=False) if both else [(target, node.value)]  # type: ignore[attr-defined]
                for to, value in pairs:
                    if isinstance(value, ast.Name) and isinstance(to, ast.Attribute) and ast.unparse(to.value) == "self":
                        kept.setdefault(value.id, []).append(to.attr)
    return {name: attributes for name, attributes in kept.items() if used[name] == 1}


class Noted:
    """Stands in a class in the place of an attribute until that is read for the first time, in whichever object; so it costs
    nothing afterwards.

    Attributes:
        read: It was. paused: Reads do not count at this moment.
    """

    def __init__(self, owner: type, attribute: str) -> None:
        self.read = self.paused = False
        self._owner, self._attribute = owner, attribute
        self._mine = attribute in vars(owner)
        self._before = inspect.getattr_static(owner, attribute, None)
        setattr(owner, attribute, self)

    def undo(self) -> None:
        """Put back what was there. May be called twice."""
        if vars(self._owner).get(self._attribute) is self:
            with suppress(AttributeError):  # another thread was faster
                setattr(self._owner, self._attribute, self._before) if self._mine else delattr(self._owner, self._attribute)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if self.paused and instance is not None:
            getter = getattr(type(self._before), "__get__", None)
            return vars(instance)[self._attribute] if getter is None else getter(self._before, instance, owner)
        self.read = True
        self.undo()
        return getattr(self._owner if instance is None else instance, self._attribute)

    def __set__(self, instance: Any, value: object) -> None:
        setter: Callable[[Any, object], None] | None = getattr(type(self._before), "__set__", None)
        if setter is not None:
            setter(self._before, instance, value)  # type: ignore[call-arg]
        else:
            vars(instance)[self._attribute] = value


class Reads:
    """The settings of one robot that somebody has given, and whether anything has read them."""

    def __init__(self) -> None:
        self._noted: dict[str, Noted] = {}

    def watch(self, full: str, owner: Any, argument: str) -> None:
        """Look out for reads of this setting, where its constructor only keeps it."""
        if (attribute := only_kept(owner).get(argument)) is not None and full not in self._noted:
            if not isinstance(vars(owner).get(attribute), Noted):  # else another robot's, which sees reads of this one, too
                with suppress(TypeError):  # a compiled class
                    self._noted[full] = Noted(owner, attribute)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let reads inside of a `with` not count: who saves a setting does nothing with it."""
        for noted in self._noted.values():
            noted.paused = True
        try:
            yield
        finally:
            for noted in self._noted.values():
                noted.paused = False

    def forget(self) -> None:
        """Look out no longer, and know of none that is unread."""
        for noted in self._noted.values():
            noted.undo()
        self._noted.clear()

    def unread(self) -> list[str]:
        """Return the settings that nothing has read so far."""
        return [full for full, noted in self._noted.items() if not noted.read]
