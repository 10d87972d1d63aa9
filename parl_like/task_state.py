"""What a checkpoint holds of a task: networks, optimisers, and what else of its algorithm learning has changed.

Everything here is data: arrays, tensors and plain values, which an archive can hold without code. What is loaded is checked as a whole
before anything is taken over, so a state that is refused changes nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import io
import logging
import math
import random
import re
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from parl_like.data.archive import rng_state, set_rng_state, set_torch_rng_state, torch_rng_state
from parl_like.leaf import same

Apply = Callable[[], Any]
"""Takes over one part of a state that has been checked."""

# ------------------------------------------------------------------------------------------------------------- plain values

CONSTANT = {"kind": "constant"}
"""What stands for a function, a space and the like: loading leaves it as it was built."""
_CONSTANTS: tuple[type, ...] = (
    type, types.FunctionType, types.BuiltinFunctionType, type(np.sum), types.MethodType, types.ModuleType, functools.partial, range, slice, enum.Enum,
    torch.device, torch.dtype, np.dtype, np.ufunc, gym.Space, logging.Logger, logging.LoggerAdapter, re.Pattern, weakref.ReferenceType,
    type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition, threading.Semaphore, threading.Barrier,
)  # fmt: skip
_COLLECTIONS = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_STATEFUL = ("rng", "torch_rng", "random", "optimizer", "state", "object")
"""Kinds that are loaded into the object that is there, since data alone does not say how to make one."""


def pack(value: Any, at: str, known: frozenset[int] = frozenset(), inside: tuple[int, ...] = ()) -> Any:
    """`value` as a tree of arrays, tensors and plain values; copies. What JSON lacks becomes a dict with its `kind`.

    Args:
        at: Name of the value, for messages.
        known: Ids of the tensors that are saved elsewhere (those of the networks), which are left alone.

    Raises:
        TypeError: it, or something in it, cannot be saved.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, _CONSTANTS):
        return CONSTANT
    if isinstance(value, torch.nn.Module):
        if all(id(tensor) in known for tensor in (*value.parameters(), *value.buffers())):
            return CONSTANT
        raise TypeError(f"{at} is a network ({type(value).__name__}) that networks() does not name")
    if isinstance(value, torch.Tensor):
        return CONSTANT if id(value) in known else value.detach().clone()
    if id(value) in inside:
        raise TypeError(f"{at} ({type(value).__name__}) contains itself")

    def part(item: Any, name: object) -> Any:
        return pack(item, f"{at}.{name}", known, (*inside, id(value)))

    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.copy()
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"kind": "number", "value": np.asarray(value)}
    if isinstance(value, list):
        return [part(item, i) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {"kind": "dict", "items": [[part(key, "keys"), part(item, key)] for key, item in value.items()]}
    for kind, of in _COLLECTIONS.items():
        if isinstance(value, of):
            items = sorted(value, key=repr) if "set" in kind else value  # in one order, so that equal sets are equal here
            return {"kind": kind, "items": [part(item, i) for i, item in enumerate(items)]}
    if isinstance(value, np.random.Generator):
        return {"kind": "rng", "value": rng_state(value)}
    if isinstance(value, torch.Generator):
        return {"kind": "torch_rng", "value": torch_rng_state(value)}
    if isinstance(value, random.Random):
        return {"kind": "random", "value": part(value.getstate(), "state")}
    if isinstance(value, torch.optim.Optimizer):
        return {"kind": "optimizer", "value": optimizer_state(value)}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {"kind": "state", "value": part(value.state_dict(), "state")}
    fields = _fields(value)
    if fields is None:
        raise TypeError(f"{at} ({type(value).__name__}) is nothing that a checkpoint can hold")
    return {"kind": "object", "type": type(value).__name__, "fields": {name: part(item, name) for name, item in fields.items()}}


def _fields(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of plain Python; None: it is something else."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    own_reduce = any("__reduce__" in vars(base) for base in type(value).__mro__[:-1])
    plain = hasattr(value, "__dict__") and not own_reduce and not isinstance(value, (BaseException, io.IOBase))
    return dict(vars(value)) if plain else None


def unpack(saved: Any, now: Any, at: str, apply: list[Apply]) -> Any:
    """The inverse of `pack`: the value, where `now` is the one that is there.

    What holds a state (a generator, an optimiser, a tensor of the same shape) stays the same object; it changes when `apply` is called.

    Raises:
        ValueError: what is saved does not fit.
    """
    def refuse(expected: str) -> ValueError:
        return ValueError(f"{at}: expected {expected}, got {str(saved):.80}")

    if saved is None or type(saved) in (bool, int, float, str):
        if saved is not None and isinstance(now, (torch.Tensor, np.random.Generator, torch.Generator, torch.optim.Optimizer)):
            raise refuse(f"a {type(now).__name__}, as is there")
        return saved
    if isinstance(saved, np.ndarray):
        return saved.copy()
    if isinstance(saved, torch.Tensor):
        if isinstance(now, torch.nn.Parameter):
            _check_tensor(at, saved, now)
        if isinstance(now, torch.Tensor) and (now.shape, now.dtype) == (saved.shape, saved.dtype):
            apply.append(lambda: now.data.copy_(saved))
            return now
        if isinstance(now, torch.nn.Parameter):
            raise refuse(f"{tuple(now.shape)} {now.dtype}")
        return saved.clone().to(now.device) if isinstance(now, torch.Tensor) else saved.clone()
    if isinstance(saved, list):
        before = now if isinstance(now, list) else []
        return [unpack(item, before[i] if i < len(before) else None, f"{at}.{i}", apply) for i, item in enumerate(saved)]
    kind = saved.get("kind") if isinstance(saved, Mapping) else None
    if kind == "constant":
        return now
    if kind == "number" and isinstance(saved.get("value"), np.ndarray) and saved["value"].ndim == 0:
        return saved["value"][()]
    if (kind == "dict" or kind in _COLLECTIONS) and isinstance(saved.get("items"), list):
        return _unpack_items(kind, saved["items"], now, at, apply, refuse)
    if kind in _STATEFUL and "value" in saved or kind == "object" and isinstance(saved.get("fields"), Mapping):
        return _unpack_into(now, kind, saved, at, apply, refuse)
    raise refuse("what a task saved")


def _unpack_items(kind: Any, items: list[Any], now: Any, at: str, apply: list[Apply], refuse: Callable[[str], ValueError]) -> Any:
    if kind == "dict":
        before = now if isinstance(now, Mapping) else {}
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in items):
            raise refuse("pairs of key and value")
        keys = [unpack(key, None, f"{at}.keys", apply) for key, _ in items]
        out = {key: unpack(item, before.get(key), f"{at}.{key}", apply) for key, (_, item) in zip(keys, items, strict=True)}
        if type(now) is dict or not isinstance(now, dict):
            return out
        new = copy.copy(now)  # a defaultdict, an OrderedDict, a Counter
        new.clear()
        new.update(out)
        return new
    places: list[Any] = list(now) if isinstance(now, (tuple, deque)) else []
    values = [unpack(item, places[i] if i < len(places) else None, f"{at}.{i}", apply) for i, item in enumerate(items)]
    if kind == "tuple" and isinstance(now, tuple) and hasattr(now, "_fields"):
        return type(now)(*values)
    return deque(values, now.maxlen if isinstance(now, deque) else None) if kind == "deque" else _COLLECTIONS[kind](values)


def _unpack_into(
    now: Any, kind: Any, saved: Mapping[str, Any], at: str, apply: list[Apply], refuse: Callable[[str], ValueError],
) -> Any:
    """What has a state of its own: checked here, changed by `apply`."""
    if kind == "object":
        fields = _fields(now)
        if fields is None or type(now).__name__ != saved.get("type"):
            raise refuse(f"a {type(now).__name__}, as is there")
        values = {name: unpack(item, fields.get(name), f"{at}.{name}", apply) for name, item in saved["fields"].items()}
        target = copy.copy(now) if getattr(getattr(now, "__dataclass_params__", None), "frozen", False) else now

        def set_fields() -> None:
            for name, value in values.items():
                object.__setattr__(target, name, value)  # also of frozen ones

        apply.append(set_fields)
        return target
    value = saved["value"]
    if kind == "rng" and isinstance(now, np.random.Generator):
        set_rng_state(np.random.default_rng(0), value)
        apply.append(lambda: set_rng_state(now, value))
    elif kind == "torch_rng" and isinstance(now, torch.Generator):
        set_torch_rng_state(torch.Generator(now.device), value)
        apply.append(lambda: set_torch_rng_state(now, value))
    elif kind == "random" and isinstance(now, random.Random):
        state = unpack(value, None, at, apply)
        try:
            random.Random(0).setstate(state)
        except (TypeError, ValueError):
            raise refuse("a state of random.Random") from None
        apply.append(lambda: now.setstate(state))
    elif kind == "optimizer" and isinstance(now, torch.optim.Optimizer):
        apply.append(checked_optimizer(at, now, value))
    elif kind == "state" and hasattr(now, "load_state_dict"):
        state = unpack(value, None, at, apply)
        apply.append(lambda: now.load_state_dict(state))
    else:
        raise refuse(f"a {type(now).__name__}, as is there")
    return now


def _fits(saved: Any, start: Any) -> bool:
    """Whether everything that has a state stood at its place from the start, where a new robot has it, too."""
    if isinstance(saved, list):
        before = start if isinstance(start, list) else []
        return all(_fits(item, before[i] if i < len(before) else None) for i, item in enumerate(saved))
    if not isinstance(saved, Mapping):
        return True
    kind = saved["kind"]
    first: Mapping[str, Any] = start if isinstance(start, Mapping) and start["kind"] == kind else {}
    if kind in (*_STATEFUL, "constant") and (not first or first.get("type") != saved.get("type")):
        return False
    if kind == "object":
        return all(_fits(item, first["fields"].get(name)) for name, item in saved["fields"].items())
    return _fits(saved["items"], first.get("items")) if "items" in saved else True


# ------------------------------------------------------------------------------------------------- attributes of an algorithm


class Attributes:
    """The attributes of an algorithm beside its networks, as they were when its task was built.

    Args:
        owner: For messages, such as "task 'RL'".
        strict: Refuse what cannot be saved; else leave it out.

    Attributes:
        start: Name → packed value.

    Raises:
        TypeError: an attribute that cannot be saved.
    """

    def __init__(self, algorithm: Any, owner: str, strict: bool = True) -> None:
        self.owner, self.start = owner, {}
        for name, packed in self._packed(algorithm):
            if not isinstance(packed, TypeError):
                self.start[name] = packed
            elif strict:
                mend = ("add it to networks()" if "networks()" in str(packed) else f"if it may be lost, name it in the class's `transient`: "
                        f"transient = ({name!r},); else write state_dict and load_state_dict")
                raise TypeError(f"{owner}: {packed}, so it would be lost at every checkpoint; {mend}")

    def _packed(self, algorithm: Any) -> Iterator[tuple[str, Any]]:
        """Every attribute with its packed value, or the error that says why it has none."""
        known = frozenset(id(t) for network in algorithm.networks().values() for t in (*network.parameters(), *network.buffers()))
        left_out = {"model", "mode", "updates", "rng", "torch_rng", "_attributes", *algorithm.transient}
        for name, value in vars(algorithm).items():
            if name not in left_out:
                try:
                    yield name, pack(value, f"{type(algorithm).__name__}.{name}", known)
                except TypeError as error:
                    yield name, error

    def changed(self, algorithm: Any) -> dict[str, Any]:
        """Those that are not as they were at the start, packed; so what learning does not change stays the new robot's own."""
        out = {}
        for name, packed in self._packed(algorithm):
            if not isinstance(packed, TypeError) and not _fits(packed, self.start.get(name)):
                kind = type(getattr(algorithm, name)).__name__
                packed = TypeError(f"{type(algorithm).__name__}.{name} holds a {kind} that was not there when the task was built")
            if isinstance(packed, TypeError):
                warnings.warn(f"{self.owner}: {packed}; it is left out of the checkpoint", RuntimeWarning, stacklevel=4)
            elif name not in self.start or not same(packed, self.start[name]):
                out[name] = packed
        return out

    def load(self, algorithm: Any, state: Any) -> None:
        """Sets the attributes that `changed` gave, and all others to what they were at the start.

        Raises:
            ValueError: something does not fit; nothing has been changed.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"{self.owner}, algorithm: expected attributes by name, got {type(state).__name__}")
        now = vars(algorithm)
        back = {name: self.start[name] for name, packed in self._packed(algorithm) if name in self.start and not same(packed, self.start[name])}
        apply: list[Apply] = []
        values = {}
        for name, saved in {**back, **state}.items():
            at, of_class = f"{self.owner}, algorithm, {name!r}", getattr(type(algorithm), name, None)
            if not name.isidentifier() or callable(of_class) or isinstance(of_class, property):
                raise ValueError(f"{at}: no attribute of {type(algorithm).__name__} that learning changes")
            try:
                values[name] = unpack(saved, now.get(name), at, apply)
            except (TypeError, ValueError) as error:
                raise ValueError(str(error) if str(error).startswith(at) else f"{at}: {error}") from None
        for act in apply:
            act()
        for name in [name for name in now if name not in self.start and name not in state and hasattr(type(algorithm), name)]:
            delattr(algorithm, name)  # what the class says, again
        now.update(values)


def attribute_parameters(algorithm: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that are attributes of an algorithm themselves, such as a temperature, by name."""
    return {name: value for name, value in vars(algorithm).items() if isinstance(value, torch.nn.Parameter)}


# ------------------------------------------------------------------------------------------------------ networks, optimisers


def clones(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.detach().clone() if isinstance(value, torch.Tensor) else value for key, value in values.items()}


def differing(network: torch.nn.Module, saved: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]]:
    """Tensor name → (saved shape, own shape) where they differ; None: not there."""
    own = network.state_dict()
    shapes = {key: (tuple(saved[key].shape) if key in saved else None, tuple(own[key].shape) if key in own else None)
              for key in sorted(own.keys() | saved.keys())}
    return {key: (theirs, mine) for key, (theirs, mine) in shapes.items() if theirs != mine}


def _check_tensor(at: str, value: Any, like: torch.Tensor | None) -> None:
    """Refuses what is no tensor, has another dtype than `like`, or holds NaN or inf."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{at}: expected a tensor, got {type(value).__name__}")
    if like is not None and value.dtype != like.dtype:
        raise ValueError(f"{at}: expected {like.dtype}, got {value.dtype}")
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise ValueError(f"{at}: there is NaN or inf in it; load a checkpoint from before the run diverged")


def check_network(owner: str, network: torch.nn.Module, saved: Any) -> None:
    """Raises ValueError unless `saved` is a state dict of such a network, of finite numbers."""
    if not isinstance(saved, Mapping):
        raise ValueError(f"{owner}: expected tensors by name, got {type(saved).__name__}")
    own = network.state_dict()
    for key, value in saved.items():
        _check_tensor(f"{owner}, {key!r}", value, own.get(key))
    if wrong := differing(network, saved):
        listed = ", ".join(f"{key!r} is {theirs} there and {mine} here" for key, (theirs, mine) in wrong.items())
        raise ValueError(f"{owner}: the checkpoint is of another model: {listed}; build the same model to load it, or load what fits with "
                         "robot.load(path, partial=True)")


def optimizer_state(optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """State of each parameter by its number, and the numbers among the options of each group."""
    if optimizer is None:
        return {}
    state = optimizer.state_dict()
    return {
        "state": {str(k): clones(v) for k, v in state["state"].items()},
        "groups": [{k: v for k, v in g.items() if isinstance(v, (int, float, bool))} for g in state["param_groups"]],
    }


def checked_optimizer(at: str, optimizer: torch.optim.Optimizer | None, saved: Any) -> Apply:
    """What loads a state of `optimizer_state`.

    Raises:
        ValueError: it is no such state, or that of other parameters.
    """
    if not isinstance(saved, Mapping):
        raise ValueError(f"{at}: expected `state` and `groups`, got {type(saved).__name__}")
    if optimizer is None or not saved:
        return lambda: None
    own, states, groups = optimizer.state_dict(), saved.get("state"), saved.get("groups")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not isinstance(states, Mapping) or not all(isinstance(state, Mapping) for state in states.values()):
        raise ValueError(f"{at}, state: expected the state of each parameter by its number, got {str(states):.80}")
    if not isinstance(groups, list) or len(groups) != len(own["param_groups"]):
        raise ValueError(f"{at}, groups: expected {len(own['param_groups'])} groups of parameters, got {str(groups):.80}")
    for key, state in states.items():
        if not (key.isdecimal() and int(key) < len(parameters)):
            raise ValueError(f"{at}, state: {key!r} is the number of no parameter; there are {len(parameters)}")
        for name, value in state.items():
            _check_tensor(f"{at}, state {key}, {name}", value, None) if isinstance(value, torch.Tensor) else None
            if isinstance(value, torch.Tensor) and value.ndim and value.shape != parameters[int(key)].shape:
                raise ValueError(f"{at}, state {key}, {name}: expected {tuple(parameters[int(key)].shape)}, got {tuple(value.shape)}")
    for group in groups:
        for name, value in group.items() if isinstance(group, Mapping) else (("group", group),):
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(f"{at}, groups, {name}: expected a finite number, got {str(value):.80}")
    own["state"] = {int(k): clones(v) for k, v in states.items()}  # else the optimiser would go on in the caller's tensors
    own["param_groups"] = [{**mine, **theirs} for mine, theirs in zip(own["param_groups"], groups, strict=True)]
    return lambda: optimizer.load_state_dict(own)


def counters_of(owner: str, saved: Any, names: tuple[str, ...], since: tuple[str, ...] = ()) -> dict[str, int]:
    """The counters by name; those in `since` are 0 in checkpoints of before.

    Raises:
        ValueError: one is missing, or is no whole number of at least 0.
    """
    counters = saved if isinstance(saved, Mapping) else {}
    out = {name: counters.get(name, 0 if name in since else None) for name in names}
    for name, value in out.items():
        if type(value) is not int or value < 0:
            raise ValueError(f"{owner}, counters, {name!r}: expected a whole number of at least 0, got {value!r:.80}")
    return out
