"""Experiment configuration: typed, frozen, and filled only by plain data (YAML layers and `key=value` words)."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from parl_like.drivers.ray.resources import ActorResources
from parl_like.lab.yaml_text import ConfigError, Tree, UnknownKey, parse, short_key, show, shown
from parl_like.values.errors import nearest

_log = logging.getLogger(__name__)


class Workers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the drivers `processes` and `ray`: where the agents are. None: as
    `parl_like.drivers.workers.processes.Processes` and `Ray` of `parl_like.drivers.ray.cluster` have it, whose arguments these
    are.

    Attributes:
        count: Processes of this machine, or actors of the cluster; 0: one per core of this machine.
        address: Of a Ray cluster; empty: an instance of Ray that begins and ends with the run.
        num_cpus, tasks: See `Ray`.
        The others: See `Processes`.
    """

    count: Annotated[int, msgspec.Meta(ge=0)] = 0
    address: str = ""
    step_limit: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    agent_restarts: Annotated[int, msgspec.Meta(ge=0)] = 0
    start_limit: Annotated[float, msgspec.Meta(gt=0)] | None = None
    memory_limit: Annotated[int, msgspec.Meta(gt=0)] | None = None
    max_restarts: Annotated[int, msgspec.Meta(ge=1)] | None = None
    period: Annotated[float, msgspec.Meta(gt=0)] | None = None
    num_cpus: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tasks: dict[str, ActorResources] = {}


class ExperimentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every robot's configuration. A robot adds its own fields: `class Config(ExperimentConfig, frozen=True,
    kw_only=True)`.

    Steps are environment steps (agent decisions), summed over all agents. Bounds are given with `Annotated[type,
    msgspec.Meta(...)]`; a combination of fields that cannot be is refused with a ValueError in `__post_init__`.

    Attributes:
        seed: Root of every random number of the run.
        total_steps: Environment steps at which training ends.
        n_agents: Agents that act at once.
        driver: How agents run: one thread with greenlets, a thread each, or worker processes (of this machine, or of a Ray
            cluster) with many each.
        workers: Of those.
        run_dir: Directory of the run; empty: `runs/<date>_<name>_s<seed>`.
        device: torch device of the tasks.
        checkpoint_every: Environment steps between two checkpoints; 0: only at the end.
        checkpoint_buffers: Whether these have the rows of replay buffers, too; those that a signal asks for, and that of the end,
            always have.
        keep_checkpoints: How many of the newest checkpoints stay on disk.
        metrics_every: Environment steps between two rows of `metrics.csv`. Steps, not seconds: two runs give the same rows.
        log_every_s: Seconds between two progress lines where the output is not a terminal.
        eval_episodes: Episodes of the evaluation after training, and of each while training; 0: as many as the experiment's
            expectation names, or 10.
        eval_every: Environment steps between two evaluations while training, the first before it; 0: only the one at the end.
        eval_process: Evaluations while training happen in a process of their own, one at a time, and training goes on meanwhile.
        stop_score: Training ends when an evaluation's score reaches this.
        eval_score: The score of an evaluation, by which one is the best: one of its numbers (`success_rate`), or a function
            `score(robot, episodes) -> float` of the user's, by name or as `module:name`; empty: as the robot has it, else the
            mean return.
        torch_threads: Threads of one torch operation on the CPU; more than one slows small networks down.
        tensorboard: Also write TensorBoard files, where the extra `tb` is installed.
        trace: Keep a hash of every event, so that two runs can be compared.
    """

    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    total_steps: Annotated[int, msgspec.Meta(gt=0)] = 100_000
    n_agents: Annotated[int, msgspec.Meta(ge=1)] = 1
    driver: Literal["cooperative", "threads", "processes", "ray"] = "cooperative"
    workers: Workers = Workers()
    run_dir: str = ""
    device: Annotated[str, msgspec.Meta(min_length=1)] = "cpu"
    checkpoint_every: Annotated[int, msgspec.Meta(ge=0)] = 0
    checkpoint_buffers: bool = True
    keep_checkpoints: Annotated[int, msgspec.Meta(ge=1)] = 5
    metrics_every: Annotated[int, msgspec.Meta(ge=1)] = 1_000
    log_every_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    eval_episodes: Annotated[int, msgspec.Meta(ge=0)] = 0
    eval_every: Annotated[int, msgspec.Meta(ge=0)] = 0
    eval_process: bool = False
    stop_score: float | None = None
    eval_score: str = ""
    torch_threads: Annotated[int, msgspec.Meta(ge=1)] = 1
    tensorboard: bool = True
    trace: bool = False

    def __post_init__(self) -> None:
        if self.stop_score is not None and not self.eval_every:
            raise ValueError(f"stop_score={self.stop_score:g} is reached by an evaluation while training; give eval_every=, too")
        if self.eval_process and (self.stop_score is not None or not self.eval_every):
            raise ValueError("eval_process=true is for evaluations while training (eval_every=), whose scores come later, so it "
                             "goes with no stop_score=")

    @classmethod
    def defaults(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        """Values in place of the defaults, where they depend on what is given."""
        return {}

    def robot_driver(self) -> Any:
        """Return `driver` and `workers`, as `Robot(driver=)` takes them. A warning says where `workers` go with another driver.

        Raises:
            ConfigError: an option of `workers` belongs to the other driver with workers.
        """
        options = msgspec.structs.asdict(self.workers)
        if self.driver not in ("processes", "ray"):
            defaults = msgspec.structs.asdict(Workers())
            if names := ", ".join(f"workers.{name}" for name in sorted(options) if options[name] != defaults[name]):
                _log.warning("Config: %s: options of driver=processes and driver=ray, without effect; driver is %r", names,
                             self.driver)
            return self.driver
        from parl_like.drivers.ray.cluster import Ray
        from parl_like.drivers.workers.processes import Processes

        given = {name: value for name, value in options.items() if value not in (None, "", {})}
        given["workers"] = given.pop("count") or None
        driver = Ray if self.driver == "ray" else Processes
        if unused := given.keys() - {field.name for field in dataclasses.fields(driver)}:
            names = ", ".join(f"workers.{name}" for name in sorted(unused))
            raise ConfigError(f"Config: {names}: options of driver=ray; driver is {self.driver!r}")
        return driver(**given)


C = TypeVar("C", bound=ExperimentConfig)


def resolve(config_class: type[C], *layers: Mapping[str, object]) -> C:
    """The configuration that the layers give, later ones before earlier ones, all before the defaults.

    A class with the field `parts` takes keys that it does not know as settings of what the robot is built of, which checks them.

    Raises:
        ConfigError: an unknown key, a wrong type or value, or a number that is not finite, in any layer, even in one that a
            later layer covers.
    """
    name = config_class.__qualname__
    merged: dict[str, object] = {}
    fields = [field.name for field in _fields(config_class) if _has_parts(field.type)]
    for layer in layers:
        own, parts = Tree(), Tree()  # parts in order: they may have several names for one thing
        for key, value in layer.items():
            if key.partition(".")[0] in fields:
                _add(own, nested({key: value}, {}))
            else:
                parts[key] = value
        merged = _merge(config_class, merged, {**own, **parts}, name)
    merged = {**config_class.defaults(merged), **merged}
    try:
        return msgspec.convert(merged, config_class)
    except msgspec.ValidationError as error:  # a required field that no layer gives, or `__post_init__`
        raise ConfigError(f"{name}: {str(error).replace(' - at `$`', '')}") from None


def to_dict(config: msgspec.Struct) -> dict[str, object]:
    """The complete configuration as nested dicts and lists of plain values, as YAML and JSON give it back (tuples are lists)."""
    tree: Tree = _lists(msgspec.to_builtins(config))
    return nested(tree.pop("parts", {}), tree)


def _lists(tree: object) -> Any:
    """The same without tuples."""
    if isinstance(tree, dict):
        return {key: _lists(part) for key, part in tree.items()}
    return [_lists(part) for part in tree] if isinstance(tree, (list, tuple)) else tree


def nested(keys: Mapping[str, object], into: Mapping[str, object]) -> dict[str, object]:
    """`{"a.b": 1}` → `{"a": {"b": 1}}`, put into a copy of a tree."""
    out = dict(into)
    for key, value in keys.items():
        head, _, rest = key.partition(".")
        below = out.get(head)
        out[head] = nested({rest: value}, below if isinstance(below, dict) else {}) if rest else value
    return out


def ends_with(name: str, key: str) -> str | None:
    """Return how a key means a setting of this full name: `""` as a whole, `"end"` that part of its mapping; None: not at all."""
    path, given = name.split("."), key.split(".")
    return next((".".join(given[n:]) for n in range(len(given), 0, -1) if path[-n:] == given[:n]), None)


def differences(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted key → (old value, new value) where two configurations differ; a missing key counts as None."""
    out: dict[str, tuple[object, object]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            out.update(differences(a, b, f"{prefix}{key}."))
        elif a != b:
            out[f"{prefix}{key}"] = (a, b)
    return out


def flat(tree: object, key: str = "", lists: bool = True) -> dict[str, object]:
    """Dotted key → plain value of nested mappings and lists: `{"a": {"b": [1, 2]}}` → `{"a.b[0]": 1, "a.b[1]": 2}`; without
    `lists` of mappings alone: `{"a.b": [1, 2]}`."""
    if isinstance(tree, Mapping):
        parts = [(f"{key}.{name}" if key else str(name), part) for name, part in tree.items()]
    elif lists and isinstance(tree, (list, tuple)):
        parts = [(f"{key}[{i}]", part) for i, part in enumerate(tree)]
    else:
        return {key: tree}
    return {where: value for name, part in parts for where, value in flat(part, name, lists).items()}


def parse_assignments(words: Sequence[str], say: Callable[[str], object] | None = None) -> dict[str, object]:
    """`["seed=3", "net.hidden=[64, 64]"]` → `{"seed": 3, "net.hidden": [64, 64]}`, in order; a value is read as YAML.

    Of two words for one key the last one counts, which `say` is told; nothing after `=` is the empty text.

    Raises:
        ConfigError: a word that is no `key=value`, or one value as a whole and in parts (`net=3 net.hidden=[1]`), in any order.
    """
    given: dict[str, tuple[str, object]] = {}
    before: dict[str, list[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not all(key.split(".")):
            near = words[words.index(word) :]
            apart = len(near) == 2 or len(near) == 3 and near[1] == "="
            meant = f"{near[0]}={near[-1]}, without spaces" if apart else "seed=3 or hidden=[64,64]"
            raise ConfigError(f"expected key=value, got {reprlib.repr(word)}; write for example {meant}")
        if key in given:
            before.setdefault(key, []).append(given.pop(key)[0])
        try:
            text.encode()
        except UnicodeEncodeError:  # a path that is no UTF-8; YAML has no such texts
            given[key] = word, text
        else:
            given[key] = word, parse(text, f"key {key!r}", key) if text else ""
    tree: dict[str, object] = {}
    for key, (word, value) in given.items():
        _add(tree, nested({key: value}, {}))
        if key in before and say is not None:
            say(overruled(key, value, word, before[key]))
    return {key: value for key, (_, value) in given.items()}


def overruled(name: str, value: object, by: str, before: Sequence[str]) -> str:
    """The line that says which of several words for one setting counts."""
    does = "do" if len(before) > 1 else "does"
    return f"{name} is {show(value)}, as {by!r} says; {', '.join(map(repr, before))}, which came before, {does} not count"


def _add(tree: dict[str, object], more: Mapping[str, object], prefix: str = "") -> None:
    """Puts values into a tree that has none in their places."""
    for name, value in more.items():
        key, there = prefix + name, tree.get(name)
        if name not in tree:
            tree[name] = deepcopy(value)  # the next one may go into it
        elif isinstance(there, dict) and isinstance(value, dict):
            _add(there, value, f"{key}.")
        elif parts := flat(there) if isinstance(there, dict) else flat(value) if isinstance(value, dict) else {}:
            part = f"{key}.{next(iter(parts))}"
            raise ConfigError(f"key {key!r} is given as a whole and in parts ({part!r}); give either the whole or its parts")
        else:
            raise ConfigError(f"key {key!r} is given twice; keep one")


# ------------------------------------------------------------------------------------------------ fitting keys to a class


@cache
def _fields(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a class, whose annotations are texts: each is compiled for it."""
    return msgspec.structs.fields(struct)


def _merge(struct: type[msgspec.Struct], low: Mapping[str, Any], layer: Mapping[str, object], name: str,
           prefix: str = "") -> dict[str, object]:
    """`low` with `layer` over it, every value of which is checked against its field; converted values stay plain data.

    Of a struct with a `short` field a text alone is the value; with another one, `low` keeps none of the fields `of_short`.
    """
    fields = {field.name: field.type for field in _fields(struct)}
    short: str = getattr(struct, "short", "")
    standard = {field.name: field.default for field in _fields(struct)}.get(short)
    other = short in layer and layer[short] != low.get(short, standard)
    out = {key: value for key, value in low.items() if not (other and key in struct.of_short)}  # type: ignore[attr-defined]
    for key in low.keys() - out.keys() - layer.keys():
        if low[key]:
            _log.warning("Config: %s is %s now, so %s of the one before does not count: %s", prefix + short, show(layer[short]),
                         prefix + key, show(low[key]))
    for key, value in layer.items():
        if "parts" in fields and (key not in fields or isinstance(value, Mapping) and not _has_parts(fields[key])):
            for part, leaf in _leaves(value, key):
                fit(leaf, Any, name, part)
                parts = out["parts"] = {k: v for k, v in out.get("parts", {}).items() if k != part}
                parts[part] = leaf  # the last one in order counts
            continue
        if key not in fields:
            near = nearest(key, fields)
            hint = f"did you mean {prefix + near!r}?" if near else f"its keys are {', '.join(sorted(fields))}"
            raise UnknownKey(name, short_key(f"{prefix}{key}"), f"; {hint}")
        inner, below = _struct_in(fields[key]), low.get(key)
        if isinstance(value, str) and (short := getattr(inner, "short", "")):
            value = {short: value}
        if inner is not None and isinstance(value, Mapping):
            out[key] = _merge(inner, below if isinstance(below, dict) else {}, value, name, f"{prefix}{key}.")
        elif (inner := _struct_of_each(fields[key])) is not None and isinstance(value, Mapping):
            out[key] = {one: _merge(inner, {}, part, name, f"{prefix}{key}.{one}.") if isinstance(part, Mapping)
                        else fit(part, inner, name, f"{prefix}{key}.{one}") for one, part in value.items()}
        else:
            out[key] = fit(value, fields[key], name, f"{prefix}{key}")
    return out


def _leaves(tree: object, key: str) -> Iterator[tuple[str, object]]:
    """Dotted key → value of nested mappings."""
    if isinstance(tree, Mapping) and tree:
        for name, part in tree.items():
            yield from _leaves(part, f"{key}.{name}")
    else:
        yield key, tree


def fit(value: object, expected: object, name: str, key: str, described: str = "") -> Any:
    """A plain value that is of that type. Raises ConfigError, which names the key, what was expected and what came; `described`
    says it where the type is a mapping with keys of its own."""
    for number in flat(value).values():
        if isinstance(number, float) and not math.isfinite(number):
            raise ConfigError(f"{name}: key {key!r} expects a finite number, got {number}")
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise ConfigError(f"{name}: key {key!r} expects a number of 64 bits, got {shown(number)}")
    error = _misfit(value, expected)
    if error and isinstance(value, float) and value.is_integer() and not _misfit(int(value), expected):
        return int(value)  # 1e6 is how people write a million steps
    if not error:
        return value
    text, _, where = error.partition(" - at `$")
    wanted = re.sub(r", got `.*`$", "", text).removeprefix("Expected ")
    if described and "object" in wanted.lower():
        wanted = described
    wanted = {"`array`": "a list, written [a, b]", "`object`": "a mapping, written {key: value}"}.get(wanted, wanted)
    literal = _literals(expected)
    if literal and text.startswith("Invalid enum value"):
        near = nearest(value, literal)
        wanted = f"one of {', '.join(map(repr, literal))}" + (f" (did you mean {near!r}?)" if near else "")
    raise ConfigError(f"{name}: key {key + where.rstrip('`')!r} expects {wanted}, got {shown(value)}")


def _misfit(value: object, expected: object) -> str:
    """Why a value is none of the type; nothing where it is."""
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        return str(error)
    except UnicodeEncodeError:  # half of a surrogate pair, of which msgspec cannot say what else is expected
        return "Expected text in UTF-8"
    return ""


def _has_parts(expected: object) -> bool:
    """Return whether a field's value is a mapping, or may be one."""
    if typing.get_origin(expected) in (Annotated, typing.Union, types.UnionType):
        return any(map(_has_parts, typing.get_args(expected)))
    return _struct_in(expected) is not None or expected is Any or typing.get_origin(expected) is dict


def _struct_in(expected: object) -> type[msgspec.Struct] | None:
    """The Struct class of a field `S`, `Annotated[S, ...]` or `S | None`."""
    parts = typing.get_args(expected)
    if typing.get_origin(expected) in (Annotated, typing.Union, types.UnionType):
        return next(filter(None, map(_struct_in, parts)), None)
    return expected if isinstance(expected, type) and issubclass(expected, msgspec.Struct) else None


def _struct_of_each(expected: object) -> type[msgspec.Struct] | None:
    """The Struct class of a field `dict[str, S]`."""
    return _struct_in(typing.get_args(expected)[1]) if typing.get_origin(expected) is dict else None


def _literals(expected: object) -> list[str]:
    """Every value of the `Literal`s in a type, for a message."""
    if typing.get_origin(expected) is Literal:
        return [str(value) for value in typing.get_args(expected)]
    return [value for part in typing.get_args(expected) for value in _literals(part)]
