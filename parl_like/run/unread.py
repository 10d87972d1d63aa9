"""Settings that nothing reads: those that a constructor only keeps, in an attribute that no code asks for afterwards."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        owner, attribute: Where it stands.
        read: It was. paused: Reads do not count at this moment.
        robots: How many look out for it.
    """

    def __init__(self, owner: type, attribute: str) -> None:
        self.read, self.paused, self.robots = False, False, 0
        self.owner, self.attribute = owner, attribute
        self._mine = attribute in vars(owner)
        self._before = inspect.getattr_static(owner, attribute, None)
        setattr(owner, attribute, self)

    def undo(self) -> None:
        """Put back what was there. May be called twice."""
        if vars(self.owner).get(self.attribute) is self:
            with suppress(AttributeError):  # another thread was faster
                setattr(self.owner, self.attribute, self._before) if self._mine else delattr(self.owner, self.attribute)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if self.paused and instance is not None:
            getter = getattr(type(self._before), "__get__", None)
            return vars(instance)[self.attribute] if getter is None else getter(self._before, instance, owner)
        self.read = True
        self.undo()
        return getattr(self.owner if instance is None else instance, self.attribute)

    def __set__(self, instance: Any, value: object) -> None:
        setter: Callable[[Any, object], None] | None = getattr(type(self._before), "__set__", None)
        if setter is not None:
            setter(self._before, instance, value)  # type: ignore[call-arg]
        else:
            vars(instance)[self.attribute] = value


class Reads:
    """The settings of one robot that somebody has given, and whether anything has read them, here or in a worker.

    It travels to workers: what arrives looks out there for those that were unread when it was sent.
    """

    def __init__(self) -> None:
        self._noted: dict[str, list[Noted]] = {}
        self._taken: set[str] = set()

    def __getstate__(self) -> dict[str, list[tuple[type, str]]]:
        return {full: [(one.owner, one.attribute) for one in self._noted[full]] for full in self.unread()}

    def __setstate__(self, watched: Mapping[str, Sequence[tuple[type, str]]]) -> None:
        self._noted, self._taken = {}, set()
        for full, places in watched.items():
            for place in places:
                self._look_out(full, *place)

    def watch(self, full: str, owner: Any, argument: str) -> None:
        """Look out for reads of this setting, where its constructor only keeps it."""
        if (attribute := only_kept(owner).get(argument)) is not None and full not in self._noted:
            self._look_out(full, owner, attribute)

    def watch_proxy(self, of: type, proxy: type) -> None:
        """Look out, too, for reads of the settings of a kind of parts from an object that stands for one here."""
        for full, (first, *_) in list(self._noted.items()):
            if issubclass(first.owner, of):
                self._look_out(full, proxy, first.attribute)

    def _look_out(self, full: str, owner: type, attribute: str) -> None:
        there = vars(owner).get(attribute)
        with suppress(TypeError):  # a compiled class
            noted = there if isinstance(there, Noted) else Noted(owner, attribute)  # another robot's sees reads of this one, too
            noted.robots += 1
            self._noted.setdefault(full, []).append(noted)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let reads inside of a `with` not count: who saves a setting does nothing with it."""
        every = [one for noted in self._noted.values() for one in noted]
        for noted in every:
            noted.paused = True
        try:
            yield
        finally:
            for noted in every:
                noted.paused = False

    def forget(self, begins: str = "") -> None:
        """Look out no longer for settings whose names begin so, and know of none of them that it is unread."""
        for full in [full for full in self._noted if full.startswith(begins)]:
            for noted in self._noted.pop(full):
                noted.robots -= 1
                if not noted.robots:
                    noted.undo()

    def note(self, names: Iterable[str]) -> None:
        """Take note of settings that were read elsewhere."""
        for noted in (one for full in names for one in self._noted.get(full, ())):
            noted.read = True
            noted.undo()

    def unread(self) -> list[str]:
        """Return the settings that nothing has read so far."""
        return [full for full, noted in self._noted.items() if not any(one.read for one in noted)]

    def take(self) -> list[str]:
        """Return the settings that were read since this was asked last."""
        new = [full for full, noted in self._noted.items() if full not in self._taken and any(one.read for one in noted)]
        self._taken.update(new)
        return new
