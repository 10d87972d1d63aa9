"""Parts: what a robot is built of, each with its constructor's arguments as settings that have a name.

A setting is called `robot.tasks.<task>.<Class>.<argument>`, and may be given by every end of that name which no other setting has
(`DQN.tau`, `tau`). A robot asks for the arguments of a class when it builds one; so when it is built, all that can be set is
known, and whatever was given and not asked for is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from os.path import commonprefix
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.lab import foreign
from parl_like.lab.config import ends_with, fit, nested, overruled
from parl_like.lab.user_experiments import candidates
from parl_like.lab.yaml_text import ConfigError, UnknownKey, show
from parl_like.learning.explorers import Explorer
from parl_like.learning.span import Span
from parl_like.robots.arguments import ArgumentKind, ScheduleSetting, arguments, arguments_of, is_plain
from parl_like.run.unread import Reads
from parl_like.values.errors import nearest, our_name, unknown

CATALOGUE: dict[str, Sequence[str]] = {
    "Algorithm": ("parl_like.algorithms", "parl_like.algorithms.dynamics"),
    "Model": ("parl_like.models", "parl_like.models.dynamics"),
    "AgentHelper": tuple(f"parl_like.agents.{name}"
                         for name in ("off_policy", "on_policy", "episodic", "offline", "online", "population", "reservoir",
                                      "warm_start")),
    "Explorer": ("parl_like.learning.explorers",), "Transform": ("parl_like.data.transforms",),
    "ReplayBuffer": tuple(f"parl_like.data.buffers.{name}" for name in ("replay_buffer", "prioritized", "reservoir")),
    "Wrapper": ("parl_like.envs.wrappers", "gymnasium.wrappers"),
    "Hook": ("parl_like.environment.hooks", "parl_like.drivers.timeline", "parl_like.lab.following"),
}
"""Kind of part → modules in which its classes are found by name."""

COUNTS_ACTS = ("epsilon", "noise")  # schedules over the acting steps of one helper; all others count optimiser steps

Count = float | None | Callable[[Mapping[str, Any]], float | None]
"""The number that a schedule counts in the whole run, perhaps by the values of the arguments; None: that cannot be known
before."""


def optimiser_steps(updates: float, rows: int, learner: Mapping[str, Any]) -> int:
    """Return the optimiser steps of so many updates of so many rows each, by the arguments of the algorithm."""
    minibatches = max(rows // wanted, 1) if (wanted := learner.get("minibatch_rows")) else learner.get("minibatches", 1)
    steps = int(updates * learner.get("epochs", 1) * minibatches)
    if "policy_updates" in learner:  # PPG's auxiliary phases
        steps += int(updates) // learner["policy_updates"] * learner["aux_epochs"] * learner["aux_minibatches"]
    return steps


@dataclasses.dataclass(frozen=True)
class PartArgument:
    """One argument: what it may be, what it is where nobody says anything, and what it is now, both as plain data; `keys`: by
    which names it was given, of which the last one counts."""

    owner: type
    kind: Any
    default: Any
    value: Any
    keys: tuple[str, ...]


def named(kind: str, name: str) -> Any:
    """The class of this name among the parts of a kind; `module:Name` is one of the user's.

    Raises:
        ConfigError: there is none, the nearest is named; or a run directory may not ask for it.
    """
    inside, there = candidates(name, CATALOGUE[kind])
    found = _of_kind(kind, there)
    if ":" in name and inside in there and inside not in found:
        raise ConfigError(f"Config: no {kind} {name!r}; what has this name is no class made from {kind}")
    if inside not in found:
        raise ConfigError(f"Config: {unknown(kind, name, found)}; one of your own is written module:Name")
    if kind in ("Wrapper", "Hook") and (rule := foreign.rule()) is not None:
        rule.check_outward(name, found[inside])
    return found[inside]


def _of_kind(kind: str, found: Mapping[str, Any]) -> dict[str, type]:
    """Return what is made from the class of that name, or is a plain buffer."""
    return {key: one for key, one in found.items() if isinstance(one, type)
            and kind in [base.__name__ for base in one.__mro__[one is not ReplayBuffer :]]}


def _others_with(key: str) -> list[str]:
    """Classes of the catalogue that have an argument of this name."""
    *_, owner, name = "", *key.split(".")
    classes = {one.__name__: one for kind, paths in CATALOGUE.items() if kind != "Wrapper"
               for one in _of_kind(kind, candidates("", paths)[1]).values()}
    return sorted(one for one in classes if owner in ("", one) and name in arguments(classes[one]))


def _no_data(owner: Any, name: str, one: inspect.Parameter) -> str:
    """Why an argument cannot be set, and the way out."""
    kind = "an object" if one.annotation is Any else inspect.formatannotation(one.annotation).replace("collections.abc.", "")
    owner_name = getattr(owner, "__name__", owner)
    return (f"{owner_name}.{name} takes {kind}, which is given in Python only: "
            f"{owner_name}(…, {name}=…); elsewhere name a class of your own that gives it, written module:Name")


class Parts:
    """The settings of one robot.

    Args:
        given: Name or end of a name → plain value, later ones before earlier ones. Parts of a mapping may be given one by one
            (`lr.end`).
        defaults: The same, for whoever gives nothing; what nobody asks for in it is no error.
        fields: Keys of the robot's own configuration, for messages.
        span: Of the robot's run.
    """

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any], fields: Iterable[str], span: Span) -> None:
        self.given, self.defaults, self.fields, self.span = given, defaults, tuple(fields), span
        self.settings: dict[str, PartArgument] = {}
        self.objects: dict[str, inspect.Parameter] = {}  # arguments that plain data cannot give, by full name
        self.reads = Reads()
        self.act: gym.Space[Any] | None = None  # of the environment, once it is known: explorers of a Box need its shape

    def args(self, where: str, owner: Any, *, skip: Iterable[str] = (), acts: Count = 1, updates: Count = 1,
             whole: bool = False, **defaults: Any) -> dict[str, Any]:
        """The arguments of a class, as far as they are given, or `defaults`.

        Args:
            where: In which part of the robot: `tasks.RL`.
            skip: Arguments that the robot itself gives.
            whole: The robot gives no other arguments than those of `skip`.
            acts, updates: What schedules count in the whole run: acting steps of one helper, and optimiser steps. Functions are
                called again where the robot's span changes.

        Raises:
            ConfigError: a value is none of its argument's type, a part has no such name, or a schedule counts what is not known.
        """
        kinds, found = arguments(owner, untyped=whole), {}
        for name, one in arguments_of(owner).items():
            if name not in kinds and name not in skip:
                self.objects[_head(where, owner) + name] = one
                if whole and one.default is one.empty:
                    raise ConfigError(f"Config: {owner.__name__} is not built from a configuration: {_no_data(owner, name, one)}")
        for name, (kind, standard) in kinds.items():
            if name in skip:
                continue
            full = _head(where, owner) + name
            default = lookup(self.defaults, full, defaults.get(name, standard), kind)[0]
            value, keys = lookup(self.given, full, default, kind)
            if value is inspect.Parameter.empty:
                raise ConfigError(f"Config: {owner.__name__}.{name} is needed: {kind.text}")
            self.settings[full] = PartArgument(owner, kind, None if default is inspect.Parameter.empty else plain(default),
                                          plain(value), keys)
            if keys and plain(value) != plain(default):
                self.reads.watch(full, owner, name)
            if (value is standard or is_plain(value) and plain(value) == plain(standard)) and not kind.part:
                continue
            if is_plain(value):
                key = keys[-1] if keys else full
                key = key.removesuffix(f".{ends_with(full, key)}")  # of a part of a mapping, the whole
                value = msgspec.convert(fit(kind.checked(value, key), kind.data, "Config", key, kind.text), kind.data)
                value = kind.as_numpy(value, key)
            found[name] = value
        for name, value in found.items():
            if isinstance(value, ScheduleSetting):
                what = acts if name in COUNTS_ACTS or issubclass(owner, Explorer) else updates
                count = partial(self._count, what, where, owner)
                if not (value.steps or value.decay) and count() is None:
                    raise ConfigError(f"Config: {owner.__name__}.{name} is a schedule over the updates of the run, whose number "
                                      "depends on how long its episodes are; say how many it spans: {start, end, steps: N}")
                found[name] = value.schedule(self.span, count, f"{owner.__name__}.{name}")
            elif kinds[name][0].part:
                several = isinstance(value, (list, tuple))
                if not several and kinds[name][0].text.startswith("list"):
                    raise ConfigError(f"Config: key {name!r} expects {kinds[name][0].text}, got {value!r}")
                made = [self._made(where, kinds[name][0], one, acts, lambda _: self._count(updates, where, owner))
                        for one in (value if several else [value])]
                found[name] = made if several else made[0]
        return found

    def _count(self, what: Count, where: str, owner: Any) -> float | None:
        return what(self.of(where, owner)) if callable(what) else what

    def of(self, where: str, owner: Any) -> dict[str, Any]:
        """Argument → its value as plain data, of a class whose arguments were asked for."""
        head = _head(where, owner)
        return {name.removeprefix(head): one.value for name, one in self.settings.items() if name.startswith(head)}

    def _made(self, where: str, kind: ArgumentKind, name: Any, acts: Count, updates: Count) -> Any:
        """The part that an argument names; where the argument is to make parts, a function that does. An object is one itself."""
        owner = named(kind.part, name) if isinstance(name, str) else name
        if not isinstance(owner, type):
            return owner
        given = list(arguments_of(owner))[: kind.given]
        shape = {"shape": self.act.shape} if isinstance(self.act, gym.spaces.Box) and issubclass(owner, Explorer) else {}
        call = partial(owner, **self.args(where, owner, skip=given, acts=acts, updates=updates, whole=True, **shape))
        return call if kind.given else call()

    def check(self) -> None:
        """To be called when the robot is built.

        Raises:
            UnknownKey: something was given that no part has.
            ConfigError: several parts have it, or plain data cannot give it.
        """
        for key in self.given:
            meant = [full for full in self.settings if ends_with(full, key) is not None]
            if not meant:
                if full := next((full for full in self.objects if ends_with(full, key) is not None), ""):
                    *_, owner, name = full.split(".")
                    raise ConfigError(f"Config: key {key!r}: {_no_data(owner, name, self.objects[full])}")
                known = {end: full for full in self.settings for end in ends(full)} | {field: field for field in self.fields}
                if not our_name(key, known) and (others := _others_with(key)):
                    these = " and ".join(others if len(others) < 5 else [", ".join(others[:3]), f"{len(others) - 3} more"])
                    raise UnknownKey("Config", repr(key), f": it is a setting of {these}, which this robot is not built of; an "
                                     "experiment's own settings count, too, so begin with one whose robot is (parl-like list)")
                near = nearest(key, known) or nearest(key.rpartition(".")[2], known)
                way = f"did you mean {near!r}?" if near else "`parl-like train EXPERIMENT --show-config` prints what can be set"
                raise UnknownKey("Config", repr(key), f": nothing that this robot is built of has it; {way}")
            if len(meant) > 1 and key not in meant:
                raise ConfigError(f"Config: key {key!r} may be {' or '.join(map(repr, meant))}; write more of the name")

    def unread(self) -> list[str]:
        """Say of each setting that was given and that nothing has read since, that it has no effect in this robot."""
        given = ((self.short(name), show(self.settings[name].value)) for name in self.reads.unread())
        return [f"{name}={value} has no effect in this robot: nothing has read it" for name, value in given]

    def notes(self) -> list[str]:
        """Which of several names counts, of settings that were given by more than one."""
        lines = []
        for name, one in self.settings.items():
            whole = [key for key in one.keys if ends_with(name, key) == ""]
            if whole and (before := one.keys[: one.keys.index(whole[-1])]):
                lines.append(overruled(self.short(name), one.value, whole[-1], before))
        return lines

    def complete(self) -> dict[str, Any]:
        """Full name → value, of every setting there is: plain data, from which the same robot is built."""
        return {name: setting.value for name, setting in self.settings.items()}

    def differs(self, layer: Mapping[str, Any]) -> dict[str, Any]:
        """Shortest name → value, where the value is not what this layer, or else the default, says."""
        every = {name: lookup(layer, name, one.default, one.kind)[0] for name, one in self.settings.items()}
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
            for depth in range(len(commonprefix([path, before])), len(path)):
                home = f"  # {one.owner.__module__}" if depth == len(path) - 1 else ""
                lines.append(f"{'  ' * depth}{path[depth]}:{home}")
            before = path
            given = f"; given as {one.keys[-1]}" if one.keys else ""
            lines.append(f"{'  ' * len(path)}{last}: {show(one.value)}  # {one.kind.text}; default {show(one.default)}{given}")
        return "\n".join(lines) + "\n" if lines else ""


def _head(where: str, owner: Any) -> str:
    return ".".join(filter(None, ("robot", where, owner.__name__))) + "."


def lookup(layer: Mapping[str, Any], full: str, default: Any, kind: ArgumentKind) -> tuple[Any, tuple[str, ...]]:
    """Return what a layer says of a setting, else the default, and by which keys: a whole value replaces those before it, a part
    of a mapping goes into them; a number is the start of a schedule, where one may be given."""
    value, keys = default, []
    for key, one in layer.items():
        if (rest := ends_with(full, key)) is not None:
            begins = ScheduleSetting in typing.get_args(kind.data) and isinstance(value, (int, float))
            base = dict(value) if isinstance(value, Mapping) else {"start": value} if begins else {}
            value = nested({rest: one}, base) if rest else one
            keys.append(key)
    return value, tuple(keys)


def ends(full: str) -> list[str]:
    """`a.b.c` → `c`, `b.c`, `a.b.c`."""
    return [full.split(".", i)[-1] for i in reversed(range(full.count(".") + 1))]


def plain(value: Any) -> Any:
    """A value as YAML and JSON have it: classes are their names, dataclasses mappings, tuples lists."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, type):
        if issubclass(value, np.generic):
            return value.__name__
        ours = any(getattr(import_module(path), value.__name__, None) is value for paths in CATALOGUE.values() for path in paths)
        return value.__name__ if ours else f"{value.__module__}:{value.__name__}"
    return repr(value)
