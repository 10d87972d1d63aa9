"""Arguments of constructors, and the plain data that each takes: what a configuration may say of a part.

`arguments(DQN)` gives for each argument its type as plain data, with the text that a message shows, and its default.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.transforms import Transform
from parl_like.lab.config import flat
from parl_like.lab.yaml_text import ConfigError, UnknownKey, show
from parl_like.learning.explorers import Explorer
from parl_like.learning.schedule import Exponential, Linear, Schedule
from parl_like.learning.span import Span
from parl_like.values.errors import nearest

BY_NAME = (Explorer, Transform, ReplayBuffer)  # arguments of these kinds are given by the name of a class


class ScheduleSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule as plain data: from `start` to `end`, linearly over that `share` of the run, or over `steps` counts; with
    `decay` exponentially, where so many counts divide what is left by e."""

    start: float
    end: float
    share: float = 1.0
    steps: int = 0
    warmup: int = 0
    decay: float = 0.0

    def schedule(self, span: Span, count: Callable[[], float | None], name: str) -> Linear | Exponential:
        """`count`: what the whole run counts, by the steps of `span` as they are then. `name`: what is set, for messages.

        Raises:
            ConfigError: decay is negative, or comes with steps.
        """
        if self.decay < 0 or self.decay and self.steps:
            raise ConfigError(f"Config: {name} has decay {self.decay:g} and steps {self.steps}; expected {{start, end, decay}} "
                              "with a decay above 0, or {start, end, steps}")
        if self.decay:
            return Exponential(self.start, self.end, self.decay, self.warmup)
        if self.steps:
            return Linear(self.start, self.end, self.steps, self.warmup)
        return span.linear(self.start, self.end, lambda _: (count() or 1) * self.share, self.warmup, name)


@dataclasses.dataclass(frozen=True)
class ArgumentKind:
    """The kind of values that an argument takes: `data`, a type of plain values, and its `text`; `part`: its key in
    CATALOGUE, where it takes names; `given`: how many arguments whoever calls the named class passes in order, where the
    argument is a function; `numpy`: types of NumPy that plain numbers, and lists of them, are made."""

    data: Any
    text: str
    part: str = ""
    given: int = 0
    numpy: tuple[Any, ...] = ()

    def checked(self, value: Any, key: str) -> Any:
        """The value; raises UnknownKey for a mapping with a key that the dataclass which is made of it does not have."""
        made = next(filter(dataclasses.is_dataclass, typing.get_args(self.data) or (self.data,)), None)
        if made is not None and isinstance(value, Mapping):
            names = [field.name for field in dataclasses.fields(made)]
            for name in value:
                if name not in names:
                    near = nearest(name, names)
                    hint = f"did you mean {near!r}?" if near else f"its keys are {', '.join(names)}"
                    raise UnknownKey("Config", repr(f"{key}.{name}"), f"; {hint}")
        return value

    def as_numpy(self, value: Any, key: str) -> Any:
        """A plain value as the argument is annotated; raises ConfigError for lists that are no array of numbers."""
        if isinstance(value, list) and (array := next(filter(_is_array, self.numpy), None)) is not None:
            with suppress(ValueError):  # rows of several lengths
                made = np.asarray(value, _dtype_of(array))
                if made.dtype.kind in "biuf":
                    return made
            raise ConfigError(f"Config: key {key!r} expects numbers in lists of one length, got {show(value)}")
        fits = [one for one in self.numpy if not _is_array(one) and type(value) in _plain_numbers(one)]
        if not fits:
            return value
        return fits[0](value) if fits[0] in np.sctypeDict.values() else np.asarray(value)[()]  # an abstract one: float64, int64


def arguments_of(owner: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor; where it hands `**options` on, also those of the next class that has one, but for those
    that its class gives itself, and names: `given_on = ("unroll",)`."""
    found: dict[str, inspect.Parameter] = {}
    fixed: set[str] = set()
    kinds = [vars(one) for one in owner.__mro__ if "__init__" in vars(one)] if isinstance(owner, type) else [{"__init__": owner}]
    for kind in kinds:
        parameters = _parameters(kind["__init__"])
        for one in parameters:
            if one.name not in ("self", *fixed) and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                found.setdefault(one.name, one)
        if not any(one.kind == one.VAR_KEYWORD for one in parameters):
            break
        fixed.update(kind.get("given_on", ()))
    return found


def arguments(owner: Any, untyped: bool = False) -> dict[str, tuple[ArgumentKind, Any]]:
    """Argument → what it takes and its default, of those that plain data can give; `untyped`: also of those that have neither."""
    found = {name: (ArgumentKind(Any, "any plain value")
                    if one.annotation is Any and (_all_plain(one.default) or untyped and one.default is one.empty)
                    else kind_of(one.annotation), one.default) for name, one in arguments_of(owner).items()}
    return {name: (kind, default) for name, (kind, default) in found.items()
            if kind is not None and not (kind.part and default is inspect.Parameter.empty)}


def _all_plain(value: Any) -> bool:
    """Return whether a default is plain data: then an argument that does not say its type takes such, and not functions or
    objects."""
    return is_plain(value) and all(map(is_plain, flat(value).values()))


_KNOWN_PARAMETERS: WeakKeyDictionary[types.FunctionType, list[inspect.Parameter]] = WeakKeyDictionary()
"""Parameters of constructors: texts of annotations are compiled, and evaluated, each time that they are asked for."""


def _parameters(maker: Any) -> list[inspect.Parameter]:
    """The parameters of a constructor, with what their annotations mean."""
    if maker is object.__init__:
        return []
    ours = isinstance(maker, types.FunctionType)
    if ours and maker in _KNOWN_PARAMETERS:
        return _KNOWN_PARAMETERS[maker]
    hints, found = _hints(maker), inspect.signature(maker).parameters.values()
    known = [one.replace(annotation=(hints or {}).get(one.name, Any if one.annotation is one.empty else one.annotation))
             for one in found]
    if ours and hints is not None:
        _KNOWN_PARAMETERS[maker] = known
    return known


def _hints(annotated: Any) -> dict[str, Any] | None:
    """The meaning of the annotations of a function or class; None: one has a name that only the type checker knows."""
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError):
        return None


def kind_of(hint: Any) -> ArgumentKind | None:
    """Return what an annotation takes of plain data; None: nothing."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    found: dict[str, Any] = {}  # text → type
    part, given = "", 0
    numpy = tuple(one for one in parts if _is_array(one) or _plain_numbers(one))
    for one in parts:
        origin, inner = typing.get_origin(one), typing.get_args(one)
        made = one if isinstance(one, type) else inner[-1] if inner and isinstance(inner[-1], type) else object
        kind = next((base.__name__ for base in BY_NAME if issubclass(made, base)), "")
        if one == Schedule:
            found["{start, end, share}"] = ScheduleSetting
        elif plain_type(one):
            found["null" if one is type(None) else " | ".join(map(repr, inner)) if origin is Literal
                  else getattr(one, "__name__", str(one)) if not inner else str(one).rpartition("abc.")[2]] = one
        elif kind and str not in parts:  # beside a type a text is one of its own, such as a path
            part, given = kind, len(inner[0]) if inner and isinstance(inner[0], list) else 0
            one_name = made is one or given
            found[kind if one_name else f"list of {kind}"] = str if one_name else list[str]
        found |= {number.__name__: number for number in _plain_numbers(one)}
    lists = (list, tuple, Sequence, Iterable)
    if any(map(_is_array, numpy)) and not any(typing.get_origin(one) in lists for one in found.values()):
        found["list of numbers"] = list[Any]
    if not set(found) - {"null"}:
        return None
    return ArgumentKind(typing.Union[tuple(found.values())], " | ".join(found), part, given, numpy)  # noqa: UP007


def _is_array(hint: Any) -> bool:
    return np.ndarray in (hint, typing.get_origin(hint))


def _dtype_of(hint: Any) -> Any:
    """Return the dtype of `NDArray[np.float32]`; None: it does not say."""
    inner = typing.get_args(typing.get_args(hint)[1]) if typing.get_args(hint) else ()
    return inner[0] if inner and inner[0] in np.sctypeDict.values() else None


def _plain_numbers(hint: Any) -> tuple[type, ...]:
    """The plain types of which a scalar type of NumPy is made; none: it is no such type."""
    if not (isinstance(hint, type) and issubclass(hint, np.generic)):
        return ()
    return tuple(plain for plain, kind in ((bool, np.bool_), (int, np.integer), (float, np.floating))
                 if issubclass(hint, kind) or issubclass(kind, hint))


def plain_type(hint: Any) -> bool:
    """Return whether values of this type are plain data, or made of plain data by msgspec."""
    if hint in (int, float, bool, str, type(None)) or typing.get_origin(hint) is Literal:
        return True
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return all(map(plain_type, (_hints(hint) or {}).values()))
    if typing.get_origin(hint) in (list, tuple, dict, Sequence, Iterable, Mapping, typing.Union, types.UnionType):
        anything = (..., object) if typing.get_origin(hint) in (dict, Mapping) else (...,)
        return all(one in anything or plain_type(one) for one in typing.get_args(hint))
    return False


def is_plain(value: Any) -> bool:
    """Return whether this is data, and no object that somebody gives from Python."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return isinstance(value, (bool, int, float, str, type(None), Mapping))
