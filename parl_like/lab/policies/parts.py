"""The parts of a policy as plain values and registered names, and back: spaces, schedules, models, algorithms, explorers and
transforms.

A policy's files may come from somebody else. A name is looked up in the catalogue of its kind, or, written `module:Name`, in a
module that this process has imported already, and must be a class of that kind. Nothing is imported for it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, get_args

import gymnasium as gym
import numpy as np

from parl_like.data.storage.tree_encoding import ArchiveError
from parl_like.data.transforms import Moments, Transform
from parl_like.lab.policies.description import Dtype
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.explorers import Explorer
from parl_like.learning.factory import Shared
from parl_like.learning.model import Model
from parl_like.learning.schedule import Exponential, Linear
from parl_like.values.action_codec import Unclipped
from parl_like.values.errors import shortened, unknown
from parl_like.values.limits import check_array
from parl_like.values.spec import parts_of

CATALOGUES: Mapping[type, str] = {
    Model: "parl_like.models", Algorithm: "parl_like.algorithms", Explorer: "parl_like.learning.explorers",
    Transform: "parl_like.data.transforms",
}
"""Base class → the module that lists the classes of that kind."""

PLAIN: Mapping[str, type] = {"Linear": Linear, "Exponential": Exponential, "Moments": Moments}
"""Further classes whose objects may be among the arguments of a part, and say nothing that could be run."""

SPACES: Mapping[str, type] = {
    "Unclipped": Unclipped, "Box": gym.spaces.Box, "Discrete": gym.spaces.Discrete, "MultiDiscrete": gym.spaces.MultiDiscrete,
    "MultiBinary": gym.spaces.MultiBinary, "Dict": gym.spaces.Dict, "Tuple": gym.spaces.Tuple,
}
"""The spaces that a policy's observations and actions may have; each before those that it is made from."""

MOST_DEEP = 16
"""Levels of a space, and of parts in parts."""

Tree = dict[str, Any]


class NotExported(ValueError):
    """Something of a policy cannot be written, or a graph cannot compute it; the message names it and the way out."""


# ------------------------------------------------------------------------------------------------ to plain values


def named(part: object, kind: type, args: Mapping[str, Any], what: str, count: int = 0) -> Tree:
    """Return `{"class", "args"}` of a class of a kind with these arguments.

    Args:
        what: What it is, for messages. count: As for `described`, of explorers among the arguments.

    Raises:
        NotExported: the class has no name by which it could be found again, or an argument is no plain value.
    """
    if not isinstance(part, type) or not issubclass(part, kind):
        raise NotExported(f"{what} is made by {getattr(part, '__name__', type(part).__name__)!r:.60}, which is no "
                          f"{kind.__name__} class that has a name; export it with --to onnx, which needs none")
    return {"class": _name_of(part, kind, what), "args": {key: _plain(value, f"{what}, argument {key!r}", count)
                                                          for key, value in args.items()}}


def described(part: object, kind: type, what: str, count: int = 0) -> Tree:
    """Return `named` of an object whose constructor's arguments are its attributes: an explorer or a transform. Where a method
    has the name of one, it is kept as `NAME_space`.

    Args:
        count: At which its schedules stand still: acts of one helper.

    Raises:
        NotExported: as `named`; or it does not keep an argument.
    """
    args = {}
    for name, one in inspect.signature(type(part)).parameters.items():
        value = getattr(part, name, inspect.Parameter.empty)
        value = getattr(part, f"{name}_space", value) if inspect.ismethod(value) else value
        value = value(count) if isinstance(value, (Linear, Exponential)) else value
        if value is inspect.Parameter.empty:
            if one.default is inspect.Parameter.empty:
                raise NotExported(f"{what}: {type(part).__name__} does not keep its argument {name!r}; keep it as an attribute, "
                                  "or export with --to onnx")
            continue
        if name == "moments" and isinstance(value, Mapping):  # of a normaliser: one for each field, all of one kind
            value = next(iter(value.values()), None)
        args[name] = value
    return named(type(part), kind, args, what, count)


def space_tree(space: gym.Space[Any], depth: int = 0) -> Tree:
    """Return a space as plain values and arrays. Raises NotExported for one that is not in `SPACES`."""
    name = next((key for key, one in SPACES.items() if isinstance(space, one)), "")
    inner = parts_of(space)
    if inner is not None:
        return {"space": name, "parts": {key: space_tree(part, depth + 1) for key, part in inner.items()}}
    one: Any = space
    if name in ("Box", "Unclipped"):
        low, high = _bound(one.low), _bound(one.high)
        return {"space": name, "low": low, "high": high, "shape": list(one.shape), "dtype": str(one.dtype)}
    if name == "Discrete":
        return {"space": name, "n": int(one.n), "start": int(one.start)}
    if name == "MultiDiscrete":
        return {"space": name, "nvec": one.nvec, "start": one.start, "dtype": str(one.dtype)}
    if name == "MultiBinary":
        return {"space": name, "shape": list(one.shape)}
    raise NotExported(f"a policy for the space {shortened(str(space), 200)} cannot be exported; expected {', '.join(SPACES)}")


def _bound(bound: Any) -> Any:
    """A number where all are one, else the array."""
    first = bound.ravel()[:1]
    return first[0].item() if (bound == first).all() else bound


def _name_of(part: type, kind: type, what: str) -> str:
    name: str = part.__name__
    if vars(import_module(CATALOGUES[kind])).get(name) is part:
        return name
    if vars(sys.modules.get(part.__module__, sys)).get(part.__qualname__) is not part:
        raise NotExported(f"{what} is made by {part.__qualname__}, a class inside of a function or a class, which has no name; "
                          "put it at the top of its module, or export with --to onnx")
    return f"{part.__module__}:{name}"


def trunk_tree(part: Shared, what: str) -> Tree:
    """Return a network that several tasks had, as the only one's own. Raises NotExported where it is not in the catalogue."""
    listed = import_module(CATALOGUES[Model])
    name = getattr(part.factory, "__name__", "")
    if getattr(listed, name, None) is not part.factory or name not in listed.__all__:
        raise NotExported(f"{what} is made by {name or part.factory!r}, which {listed.__name__} does not list; export with --to "
                          "onnx, which needs no names")
    return {"class": name, "args": {key: _plain(one, what) for key, one in part.kwargs.items()},
            "more": [_plain(one, what) for one in part.args]}


def _plain(value: Any, what: str, count: int = 0) -> Any:
    """A value of an argument as a tree of plain values and arrays."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray) or isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value
    if isinstance(value, gym.Space):
        return {"$kind": "space", "value": space_tree(value)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotExported(f"{what} has keys that are no text; export with --to onnx")
        return {"$kind": "dict", "value": {key: _plain(one, what, count) for key, one in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"$kind": "tuple" if isinstance(value, tuple) else "list", "value": [_plain(one, what) for one in value]}
    if isinstance(value, Shared):  # here it belongs to one task alone
        return {"$kind": "part", "value": trunk_tree(value, what)}
    if isinstance(value, Explorer):  # of parts of an action, or of a population
        return {"$kind": "explorer", "value": described(value, Explorer, what, count)}
    for name, kind in PLAIN.items():
        if isinstance(value, kind):  # a schedule over a run's span is one with an end from here on
            return {"$kind": name, "value": {key: getattr(value, key) for key in inspect.signature(kind).parameters}}
    raise NotExported(f"{what} is {value!r:.60}, which is no plain value; export with --to onnx, which needs none")


# ------------------------------------------------------------------------------------------------ from plain values


def found(tree: Any, kind: type, file: object, depth: int = 0) -> tuple[type, dict[str, Any]]:
    """Return a class of a kind and its arguments, of what `named` gave.

    Raises:
        ArchiveError: no class of this kind has that name; the file is named.
    """
    name, args = _fields(tree, {"class": str, "args": dict}, file)
    return _class(name, kind, file), {str(key): _value(one, file, depth + 1) for key, one in args.items()}


def built(tree: Any, kind: type, file: object, depth: int = 0) -> Any:
    """Return the object that `described` gave. Raises ArchiveError."""
    part, args = found(tree, kind, file, depth)
    return made(lambda: part(**args), f"{part.__name__}(…)", file)


def made(make: Callable[[], Any], what: str, file: object) -> Any:
    """Return what a function makes of a file's arguments. Raises ArchiveError where it refuses them."""
    try:
        return make()
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, AssertionError) as error:
        if isinstance(error, ArchiveError):
            raise
        text = " ".join(str(error).split())
        raise refused(file, f"arguments that {what} takes", f"{type(error).__name__}: {shortened(text, 300)}") from error


def space_of(tree: Any, file: object, depth: int = 0) -> gym.Space[Any]:
    """Return the space that `space_tree` gave. Raises ArchiveError, before memory is taken for a large one."""
    if depth > MOST_DEEP:
        raise refused(file, f"a space of at most {MOST_DEEP} levels", "more")
    name = tree.get("space") if isinstance(tree, Mapping) else None
    if name in ("Dict", "Tuple"):
        _, parts = _fields(tree, {"space": str, "parts": dict}, file)
        inner = {key: space_of(one, file, depth + 1) for key, one in parts.items()}
        # Of pairs, for the keys of a plain mapping would be sorted.
        nested: gym.Space[Any] = made(lambda: gym.spaces.Dict(list(inner.items())) if name == "Dict" else
                                      gym.spaces.Tuple(tuple(inner.values())), str(name), file)
        return nested

    def make() -> gym.Space[Any]:
        if name in ("Box", "Unclipped"):
            _, low, high, shape, dtype = _fields(
                tree, {"space": str, "low": object, "high": object, "shape": list, "dtype": str}, file)
            check_array("its space", *shape, dtype=dtype_of(dtype))
            kind: Any = dtype_of(dtype)
            least, most = (np.broadcast_to(np.asarray(bound, kind), shape) for bound in (low, high))
            box: Any = gym.spaces.Box(least, most, tuple(shape), kind.type)
            return box if name == "Box" else Unclipped(box)
        if name == "Discrete":
            _, n, start = _fields(tree, {"space": str, "n": int, "start": int}, file)
            return gym.spaces.Discrete(n, start=start)
        if name == "MultiDiscrete":
            _, nvec, start, dtype = _fields(tree, {"space": str, "nvec": np.ndarray, "start": np.ndarray, "dtype": str}, file)
            return gym.spaces.MultiDiscrete(nvec, dtype_of(dtype).type, start=start)
        if name == "MultiBinary":
            _, shape = _fields(tree, {"space": str, "shape": list}, file)
            check_array("its space", *shape, dtype=np.int8)
            return gym.spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        raise refused(file, f"a space of {', '.join(SPACES)}", f"{name!r:.60}")

    space: gym.Space[Any] = made(make, str(name), file)
    return space


def explorer_of(tree: Any, file: object) -> Explorer | None:
    """Return the explorer that `described` gave, or None for None. Raises ArchiveError; also for one whose noise is huge."""
    if tree is None:
        return None
    explorer: Explorer = built(tree, Explorer, file)
    for spec in filter(None, (explorer.noise, explorer.kept)):
        made(lambda spec=spec: check_array(f"{type(explorer).__name__}(…)", *spec.shape, dtype=spec.dtype),  # type: ignore[misc]
             type(explorer).__name__, file)
    return explorer


def dtype_of(name: Any) -> np.dtype[Any]:
    """Return a dtype of numbers by its name. Raises ValueError for others, such as those of several numbers."""
    if name not in get_args(Dtype):
        raise ValueError(unknown("dtype", shortened(str(name), 60), get_args(Dtype)))
    found: np.dtype[Any] = np.dtype(name)
    return found


def refused(file: object, expected: object, got: object) -> ArchiveError:
    """The error of a policy's file that is not what an export writes."""
    return ArchiveError(f"{file}: expected {expected}, got {got}; export the policy again: parl-like export RUN")


def _class(name: str, kind: type, file: object) -> type:
    module, colon, inside = name.rpartition(":")
    if not colon:
        listed = import_module(CATALOGUES[kind])
        known = {key: one for key in listed.__all__ if isinstance(one := getattr(listed, key), type) and issubclass(one, kind)}
        if name in known:
            return known[name]
        raise refused(file, f"a {kind.__name__} that is registered", unknown(kind.__name__, shortened(name, 60), known))
    one = vars(sys.modules[module]).get(inside) if module in sys.modules else None
    if module == "__main__" and one is None:
        raise ArchiveError(f"{file}: its {kind.__name__} is {shortened(inside, 100)!r} of the script that has exported it, which "
                           "no other can import; put the class into a module, use it from there, and export again")
    if not isinstance(one, type) or not issubclass(one, kind):
        raise ArchiveError(f"{file}: its {kind.__name__} is {shortened(name, 100)!r}, a class of somebody's own, and nothing is "
                           f"imported for a file; import {shortened(module, 60)} first, if you trust it, and load it again")
    return one


def _value(tree: Any, file: object, depth: int) -> Any:
    """The inverse of `_plain`."""
    if depth > MOST_DEEP:
        raise refused(file, f"arguments of at most {MOST_DEEP} levels", "more")
    if not isinstance(tree, (dict, list)):
        return tree
    kind, value = _fields(tree, {"$kind": str, "value": object}, file)
    if kind == "space":
        return space_of(value, file)
    if kind in ("list", "tuple") and isinstance(value, list):
        parts = [_value(one, file, depth + 1) for one in value]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "dict" and isinstance(value, dict):
        return {key: _value(one, file, depth + 1) for key, one in value.items()}
    if kind == "part":
        name, args, more = _fields(value, {"class": str, "args": dict, "more": list}, file)
        listed = import_module(CATALOGUES[Model])
        one = getattr(listed, name, None) if name in listed.__all__ else None
        if not isinstance(one, type):
            raise refused(file, f"a network of {listed.__name__}", f"{name!r:.60}")
        return Shared(one, *(_value(part, file, depth + 1) for part in more),
                      **{key: _value(part, file, depth + 1) for key, part in args.items()})
    if kind == "explorer":
        return built(value, Explorer, file, depth + 1)
    if kind in PLAIN and isinstance(value, dict):
        return made(lambda: PLAIN[kind](**value), kind, file)
    raise refused(file, "a plain value, a space or a schedule", f"{kind!r:.60}")


def _fields(tree: Any, fields: Mapping[str, type], file: object) -> list[Any]:
    """The values of a mapping that has exactly these fields of these types."""
    if not isinstance(tree, dict) or tree.keys() != fields.keys():
        got = ", ".join(map(str, list(tree)[:8])) if isinstance(tree, dict) else type(tree).__name__
        raise refused(file, f"the fields {', '.join(fields)}", shortened(got, 200))
    for key, kind in fields.items():
        if not isinstance(tree[key], kind) or isinstance(tree[key], bool) and kind is int:
            raise refused(file, f"{key!r} of type {kind.__name__}", type(tree[key]).__name__)
    return [tree[key] for key in fields]
