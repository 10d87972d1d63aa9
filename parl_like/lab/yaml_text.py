"""YAML text to plain data and back, without tags, anchors and duplicate keys."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from parl_like.data.storage.safe_files import read_named
from parl_like.lab.text import escaped

MAX_BYTES = 1_000_000  # of one YAML text
MAX_DEPTH = 20  # of its lists and mappings
MAX_VALUES = 20_000  # in all of them: a second of work


Tree: TypeAlias = dict[str, Any]
"""Plain values by name, as YAML and JSON have them; those of a file are checked where they are read."""


class UsageError(ValueError):
    """A refusal of what the user asked for. One line: what was expected, what came, the way out (exit code 2)."""


class ConfigError(UsageError):
    """A configuration does not fit its class. The message names the key, what was expected, what came, and the nearest name."""


class UnknownKey(ConfigError):
    """Nobody has a key.

    Args:
        config: What has no such key.
        key: As it is shown, see `short_key`.
        way: What else is to be said, and what may be meant; it begins with its punctuation.

    Attributes:
        as_option: The same about an argument of a function.
    """

    def __init__(self, config: str, key: str, way: str) -> None:
        super().__init__(f"{config} has no key {key}{way}")
        self.as_option = f"no option {key}{way}"


def load_yaml_file(path: Path) -> Tree:
    """Return `load_yaml` of a plain file of at most 1 MB.

    Raises:
        ConfigError: it cannot be read, is no UTF-8, or as `load_yaml`.
    """
    try:
        text = read_named(path, limit=MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    return load_yaml(text, str(path))


def load_yaml(text: str, source: str = "YAML") -> dict[str, object]:
    """Plain nested dicts, lists, text, numbers, booleans and None from YAML; keys are text, the top is a mapping.

    Tags, anchors, aliases, merge keys and duplicate keys are refused, so nothing can be executed, shared, expanded or hidden.
    Scalars follow YAML 1.2, with `_` between digits: `1e-3` is a number, `yes` and `2026-01-01` are text.

    Raises:
        ConfigError: anything of the above, a syntax error, over 1 MB, or over 20 levels.
    """
    tree = parse(text, source, "")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: expected `key: value` lines, got {shown(tree)}")
    return tree


def show(value: object) -> str:
    """One value as YAML on one line."""
    return dump_yaml({"x": value}, flow=True).removeprefix("{x: ").rstrip().removesuffix("}")


def dump_yaml(tree: Mapping[str, object], flow: bool = False) -> str:
    """YAML text that `load_yaml` reads back unchanged; `flow`: on one line."""
    text = yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000, default_flow_style=flow)
    # What is left of these is in quotes (`_represent_text`), where YAML has the escapes of Python.
    return text if text.isascii() else escaped(text, "\n")


def shown(value: object) -> str:
    return "nothing (null)" if value is None else f"{reprlib.repr(value)} ({type(value).__name__})"


def short_key(key: str) -> str:
    return repr(key if len(key) <= 60 else key[:57] + "...")


# ------------------------------------------------------------------------------------------------ YAML text to plain data

_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}


def _plain(text: str) -> object:
    """The value of an unquoted YAML scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text


def _bounded(events: Iterator[object], source: str) -> Iterator[object]:
    for n, event in enumerate(events):
        if n > 2 * MAX_VALUES:  # keys are events, too
            raise ConfigError(f"{source}: over {MAX_VALUES} values; expected a configuration, not data")
        yield event


def parse(text: str, source: str, key: str) -> Any:
    """Return the value of YAML text; `source` and `key` are named in messages.

    Raises:
        ConfigError: it is too long, or no YAML of the kind that `load_yaml` takes.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ConfigError(f"{source}: over {MAX_BYTES} bytes of YAML; expected a configuration, not data")
    # The parser's events, not PyYAML's constructors: what is not handled below cannot happen.
    try:
        events = _bounded(yaml.parse(text, Loader=yaml.SafeLoader), source)
        next(events)  # stream start
        if isinstance(next(events), yaml.StreamEndEvent):
            return None
        tree = _node(events, next(events), source, key, 1)
        next(events)  # document end
        if not isinstance(next(events), yaml.StreamEndEvent):
            raise ConfigError(f"{source}: expected one YAML document, got several")
        return tree
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it does not parse"
        raise ConfigError(f"{source}: not valid YAML{where}: {problem}") from None


def _node(events: Iterator[Any], event: Any, source: str, key: str, depth: int) -> Any:
    where = f"{source}: line {event.start_mark.line + 1}" + (f", key {short_key(key)}" if key else "")
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise ConfigError(f"{where}: anchors and aliases (& and *) are not allowed; write the value out or quote the text")
    if event.tag is not None:
        raise ConfigError(f"{where}: tags (!) are not allowed; write plain values or quote the text")
    if isinstance(event, yaml.ScalarEvent):
        try:
            return event.value if event.style else _plain(event.value)
        except ValueError:  # more digits than int() reads
            raise ConfigError(f"{where}: expected a number of 64 bits, got {len(event.value)} digits") from None
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}: nested over {MAX_DEPTH} levels deep")
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[object] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_node(events, event, source, f"{key}[{len(items)}]", depth + 1))
        return items
    mapping: dict[str, object] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        name = _node(events, event, source, key, depth + 1)
        line = f"{source}: line {event.start_mark.line + 1}"
        if not isinstance(name, str):
            raise ConfigError(f"{line}: a key must be text, got {shown(name)}; quote it")
        if name in mapping:
            raise ConfigError(f"{line}: key {short_key(name)} is given twice; keep one")
        mapping[name] = _node(events, next(events), source, f"{key}.{name}" if key else name, depth + 1)
    return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `_plain` would read as something else, and never writes an alias."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text,
                                   style=None if _plain(text) == text and text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
