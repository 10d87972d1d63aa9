"""Parts: what a robot is built of, each with its constructor's arguments as settings that have a name.

A setting is called `robot.tasks.<task>.<Class>.<argument>`, and may be given by every end of that name which no other setting has
(`DQN.tau`, `tau`). A robot asks for the arguments of a class when it builds one; so when it is built, all that can be set is
known, and whatever was given and not asked for is an error.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal

import msgspec
import numpy as np

from parl_like.data.replay_buffer import ReplayBuffer
from parl_like.data.transforms import Transform
from parl_like.errors import unknown
from parl_like.explorer import Explorer
from parl_like.lab.config import ConfigError, dump_yaml, ends_with, fit, nested
from parl_like.lab.own import candidates
from parl_like.optim import Linear, Schedule

SHELVES: dict[str, Sequence[str]] = {
    "Algorithm": ("parl_like.algorithms", "parl_like.algorithms.dynamics"),
    "Model": ("parl_like.models", "parl_like.models.dynamics"),
    "AgentHelper": ("parl_like.schedules", "parl_like.online"),
    "Explorer": ("parl_like.explorer",), "Transform": ("parl_like.data.transforms",),
    "ReplayBuffer": ("parl_like.data.replay_buffer", "parl_like.data.prioritized", "parl_like.data.reservoir"),
    "Wrapper": ("parl_like.envs.wrappers", "gymnasium.wrappers"),
}
"""Kind of part → modules in which its classes are found by name."""

BY_NAME = (Explorer, Transform, ReplayBuffer)  # arguments of these kinds are given by the name of a class
COUNTS_ACTS = ("epsilon", "noise")  # schedules over the acting steps of one helper; all others count optimiser steps

Span = float | Callable[[Mapping[str, Any]], float]


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule as plain data: from `start` to `end`, linearly over that `share` of the run, or over `steps` counts."""

    start: float
    end: float
    share: float = 1.0
    steps: int = 0
    warmup: int = 0

    def schedule(self, span: float) -> Linear:
        """`span`: what the whole run counts."""
        return Linear(self.start, self.end, self.steps or max(int(span * self.share), 1), self.warmup)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One argument: what it may be, what it is where nobody says anything, and what it is now, both as plain data; `keys`: by
    which names it was given, of which the last one counts."""

    owner: type
    kind: Any
    default: Any
    value: Any
    keys: tuple[str, ...]


def named(kind: str, name: str) -> Any:
    """The class of this name among the parts of a kind; `module:Name` is one of the user's own.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    inside, found = candidates(name, SHELVES[kind])
    found = {key: one for key, one in found.items() if isinstance(one, type) and is_a(one, kind)}
    if inside not in found:
        raise ConfigError(f"Config: {unknown(kind, name, found)}; one of your own is written module:Name")
    return found[inside]


def is_a(owner: type, kind: str) -> bool:
    """Whether a class is a part of this kind: one that is made from the class of this name, or a plain buffer."""
    return kind in [base.__name__ for base in owner.__mro__[owner is not ReplayBuffer :]]


class Parts:
    """The settings of one robot.

    Args:
        given: Name or end of a name → plain value, later ones before earlier ones. Parts of a mapping may be given one by one
            (`lr.end`).
        usual: The same, for whoever gives nothing; what nobody asks for in it is no error.
        fields: Keys of the robot's own configuration, for messages.
    """

    def __init__(self, given: Mapping[str, Any], usual: Mapping[str, Any] | None = None, fields: Iterable[str] = ()) -> None:
        self.given, self.usual, self.fields = given, usual or {}, tuple(fields)
        self.settings: dict[str, Setting] = {}

    def args(self, where: str, owner: Any, *, skip: Iterable[str] = (), acts: float = 1, updates: Span = 1,
             **usual: Any) -> dict[str, Any]:
        """The arguments of a class, as far as they are given, or `usual`.

        Args:
            where: In which part of the robot: `tasks.RL`.
            skip: Arguments that the robot itself gives.
            acts, updates: What schedules count in the whole run: acting steps of one helper, and optimiser steps, the latter
                perhaps by the values of the arguments, plain data.

        Raises:
            ConfigError: a value is none of its argument's type, or a part has no such name.
        """
        head = ".".join(filter(None, ("robot", where, owner.__name__))) + "."
        found: dict[str, Any] = {}
        later: dict[str, Kind] = {}
        for name, (kind, standard) in arguments(owner).items():
            if name in skip:
                continue
            full = head + name
            default = lookup(self.usual, full, usual.get(name, standard))[0]
            value, keys = lookup(self.given, full, default)
            if value is inspect.Parameter.empty:
                raise ConfigError(f"Config: {'.'.join(full.split('.')[-2:])} is needed: {kind.text}")
            self.settings[full] = Setting(owner, kind, None if default is inspect.Parameter.empty else plain(default),
                                          plain(value), keys)
            if is_plain(value) and plain(value) != plain(standard):
                found[name] = value = msgspec.convert(fit(value, kind.data, "Config", keys[-1] if keys else full), kind.data)
            elif not is_plain(value) and value is not standard or kind.part:
                found[name] = value
            if isinstance(value, Line) or (kind.part and name in found):
                later[name] = kind
        values = self.of(where, owner)
        count = updates(values) if callable(updates) else updates
        for name, kind in later.items():
            value = found[name]
            if isinstance(value, Line):
                found[name] = value.schedule(acts if name in COUNTS_ACTS or issubclass(owner, Explorer) else count)
                continue
            several = isinstance(value, (list, tuple))
            made = [self._made(where, kind, one, acts=acts, updates=count) for one in (value if several else [value])]
            found[name] = made if several else made[0]
        return found

    def of(self, where: str, owner: type) -> dict[str, Any]:
        """Argument → its value as plain data, of a class whose arguments were asked for."""
        head = ".".join(filter(None, ("robot", where, owner.__name__))) + "."
        return {name.removeprefix(head): one.value for name, one in self.settings.items() if name.startswith(head)}

    def _made(self, where: str, kind: Kind, name: Any, **spans: Any) -> Any:
        """The part that an argument names; where the argument is to make parts, a function that does. An object is one itself."""
        owner = named(kind.part, name) if isinstance(name, str) else name
        if not isinstance(owner, type):
            return owner
        call = partial(owner, **self.args(where, owner, skip=list(arguments_of(owner))[: kind.given], **spans))
        return call if kind.given else call()

    def check(self) -> None:
        """To be called when the robot is built.

        Raises:
            ConfigError: something was given that no part has, or that several have.
        """
        for key in self.given:
            meant = [full for full in self.settings if ends_with(full, key) is not None]
            if not meant:
                known = {end: full for full in self.settings for end in ends(full)} | {field: field for field in self.fields}
                near = difflib.get_close_matches(key, known, 1) or difflib.get_close_matches(key.rpartition(".")[2], known, 1)
                way = f"; did you mean {near[0]!r}?" if near else "; --show-config prints what can be set"
                raise ConfigError(f"Config has no key {key!r}, and nothing that this robot is built of has{way}")
            if len(meant) > 1 and key not in meant:
                raise ConfigError(f"Config: key {key!r} may be {' or '.join(map(repr, meant))}; write more of the name")

    def notes(self) -> list[str]:
        """Which of several names counts, of settings that were given by more than one."""
        out = []
        for name, one in self.settings.items():
            if len(whole := [key for key in one.keys if ends_with(name, key) == ""]) > 1:
                lost = ", ".join(map(repr, whole[:-1]))
                out.append(f"{self.short(name)} is {show(one.value)}, as {whole[-1]!r} says; {lost}, which came before, does not "
                           "count")
        return out

    def complete(self) -> dict[str, Any]:
        """Full name → value, of every setting there is: plain data, from which the same robot is built."""
        return {name: setting.value for name, setting in self.settings.items()}

    def differs(self, layer: Mapping[str, Any]) -> dict[str, Any]:
        """Shortest name → value, where the value is not what this layer, or else the default, says."""
        every = {name: lookup(layer, name, one.default)[0] for name, one in self.settings.items()}
        return {self.short(name): one.value for name, one in self.settings.items() if plain(every[name]) != one.value}

    def short(self, name: str) -> str:
        """The shortest end of a name that is a class and its argument, and no other setting's."""
        return next((end for end in ends(name)[1:] if sum(ends_with(full, end) is not None for full in self.settings) == 1), name)

    def describe(self) -> str:
        """YAML text of all settings; says of each where it belongs, its type, its default, and by which key it was given."""
        lines: list[str] = []
        before: list[str] = []
        for name, one in self.settings.items():
            *path, last = name.split(".")
            same = next((i for i, (a, b) in enumerate(zip(path, before, strict=False)) if a != b), min(len(path), len(before)))
            for depth in range(same, len(path)):
                home = f"  # {one.owner.__module__}" if depth == len(path) - 1 else ""
                lines.append(f"{'  ' * depth}{path[depth]}:{home}")
            before = path
            given = f"; given as {one.keys[-1]}" if one.keys else ""
            note = f"{one.kind.text}; default {show(one.default)}{given}"
            lines.append(f"{'  ' * len(path)}{last}: {show(one.value)}  # {note}")
        return "\n".join(lines) + "\n" if lines else ""


# ------------------------------------------------------------------------------------------------ arguments and their types


@dataclasses.dataclass(frozen=True)
class Kind:
    """What an argument takes: `data`, a type of plain values; `part`: of which shelf its names are; `given`: how many arguments
    whoever calls the named class passes in order, where the argument is a function."""

    data: Any
    text: str
    part: str = ""
    given: int = 0


def arguments_of(owner: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor; where it hands `**options` on, also those of the next class that has one, as far as it
    does not give them itself."""
    found: dict[str, inspect.Parameter] = {}
    fixed: set[str] = set()
    makers = [vars(one)["__init__"] for one in owner.__mro__ if "__init__" in vars(one)] if isinstance(owner, type) else [owner]
    for maker in makers:
        parameters, hints = inspect.signature(maker).parameters, _hints(maker)
        for name, parameter in parameters.items():
            if name not in ("self", *fixed) and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                found.setdefault(name, parameter.replace(annotation=hints.get(name, Any)))
        if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
        fixed |= _given_on(maker)
    return found


def _given_on(maker: Any) -> set[str]:
    """Names that a constructor gives to another one beside `**options`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(maker)))
    except (OSError, TypeError, SyntaxError):  # it has no source
        return set()
    calls = [{word.arg for word in node.keywords} for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {name for names in calls if None in names for name in names if name}


def arguments(owner: Any) -> dict[str, tuple[Kind, Any]]:
    """Argument → what it takes and its default, of those that plain data can give."""
    out = {}
    for name, parameter in arguments_of(owner).items():
        required = parameter.default is inspect.Parameter.empty
        kind = kind_of(parameter.annotation)
        if kind is not None and not (required and kind.part):
            out[name] = kind, parameter.default
    return out


def _hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):  # a name that only the type checker knows
        return {}


def kind_of(hint: Any) -> Kind | None:
    """What an annotation takes of plain data; None: nothing."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    data: list[Any] = []
    text: list[str] = []
    part, given = "", 0
    for one in parts:
        origin, inner = typing.get_origin(one), typing.get_args(one)
        if one == Schedule:
            data.append(Line)
            text.append("{start, end, share}")
        elif plain_type(one):
            data.append(one)
            text.append("null" if one is type(None) else " | ".join(map(repr, inner)) if origin is Literal
                        else getattr(one, "__name__", str(one)) if not inner else str(one).rpartition("abc.")[2])
        elif str in parts:
            continue  # the text is one of its own, such as a path
        elif base := next((kind for kind in BY_NAME if isinstance(one, type) and issubclass(one, kind)), None):
            data, part, text = [*data, str], base.__name__, [*text, base.__name__]
        elif origin is not None and inner:
            of = inner[-1] if isinstance(inner[-1], type) else object
            if base := next((kind for kind in BY_NAME if issubclass(of, kind)), None):
                part, given = base.__name__, len(inner[0]) if isinstance(inner[0], list) else 0
                data.append(str if given else list[str])
                text.append(base.__name__ if given else f"list of {base.__name__}")
    if not set(data) - {type(None)}:
        return None
    return Kind(typing.Union[tuple(data)], " | ".join(text), part, given)  # noqa: UP007


def plain_type(hint: Any) -> bool:
    """Whether values of this type are plain data, or made of plain data by msgspec."""
    if hint in (int, float, bool, str, type(None)) or typing.get_origin(hint) is Literal:
        return True
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return all(map(plain_type, _hints(hint).values()))
    if typing.get_origin(hint) in (list, tuple, dict, Sequence, Iterable, Mapping, typing.Union, types.UnionType):
        return all(one is ... or plain_type(one) for one in typing.get_args(hint))
    return False


# ------------------------------------------------------------------------------------------------ values


def lookup(layer: Mapping[str, Any], full: str, default: Any) -> tuple[Any, tuple[str, ...]]:
    """What a layer says of a setting, else the default, and by which keys: a whole value replaces those before it, a part of a
    mapping goes into them."""
    value, keys = default, []
    for key, one in layer.items():
        rest = ends_with(full, key)
        if rest is None:
            continue
        keys.append(key)
        if rest:
            base = dict(value) if isinstance(value, Mapping) else {} if value is None else {"start": value}
            value = nested({rest: one}, base)
        else:
            value = one
    return value, tuple(keys)


def ends(full: str) -> list[str]:
    """`a.b.c` → `c`, `b.c`, `a.b.c`."""
    path = full.split(".")
    return [".".join(path[i:]) for i in reversed(range(len(path)))]


def is_plain(value: Any) -> bool:
    """Whether this is data, and no object that somebody gives from Python."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return isinstance(value, (bool, int, float, str, type(None), Mapping))


def plain(value: Any) -> Any:
    """A value as YAML and JSON have it: classes are their names, dataclasses mappings, tuples lists."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, type):
        if issubclass(value, np.generic):
            return value.__name__
        ours = any(getattr(import_module(path), value.__name__, None) is value for shelf in SHELVES.values() for path in shelf)
        return value.__name__ if ours else f"{value.__module__}:{value.__name__}"
    return repr(value)


def show(value: Any) -> str:
    """One value as YAML on one line."""
    return dump_yaml({"x": value}, flow=True).removeprefix("{x: ").rstrip().removesuffix("}")
