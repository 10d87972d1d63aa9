"""Python values as trees of arrays, tensors and plain values, which an archive can hold without code; and back."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import io
import logging
import random
import re
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from parl_like.data.archive import rng_state, set_rng_state, set_torch_rng_state, torch_rng_state

CONSTANT = {"kind": "constant"}
"""What stands for a function, a space and the like: loading leaves it as it was built."""
_CONSTANTS: tuple[type, ...] = (
    type, types.FunctionType, types.BuiltinFunctionType, type(np.sum), types.MethodType, types.ModuleType, functools.partial, range, slice,
    enum.Enum, torch.device, torch.dtype, np.dtype, np.ufunc, gym.Space, logging.Logger, logging.LoggerAdapter, re.Pattern,
    weakref.ReferenceType, type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition, threading.Semaphore,
    threading.Barrier,
)  # fmt: skip
_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """State of each parameter by its number, and the numbers among the options of each group; copies."""
    state = optimizer.state_dict()
    return {
        "state": {str(k): {name: _copied(v) for name, v in values.items()} for k, values in state["state"].items()},
        "groups": [{k: v for k, v in g.items() if isinstance(v, (int, float, bool))} for g in state["param_groups"]],
    }


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Any) -> None:
    """Restores `optimizer_state`.

    Raises:
        ValueError: it is no such state, that of other parameters, or not of finite numbers; the optimiser is as before.
    """
    own, parameters = optimizer.state_dict(), [p for group in optimizer.param_groups for p in group["params"]]
    states, groups = (saved.get("state"), saved.get("groups")) if isinstance(saved, Mapping) else (None, None)
    if not isinstance(states, Mapping) or not isinstance(groups, list) or len(groups) != len(own["param_groups"]):
        raise ValueError(f"optimizer: expected a `state` and {len(own['param_groups'])} `groups` of parameters, got {saved!s:.80}")
    for key, state in states.items():
        if not (key.isdecimal() and int(key) < len(parameters) and isinstance(state, Mapping)):
            raise ValueError(f"optimizer, state: expected the states of {len(parameters)} parameters by number, got {key!r}: {state!s:.80}")
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape != (shape := parameters[int(key)].shape):
                raise ValueError(f"optimizer, state {key}, {name}: expected {tuple(shape)}, got {tuple(value.shape)}")
            check_numbers(f"optimizer, state {key}, {name}", value)
    for group in groups:
        for name, value in group.items() if isinstance(group, Mapping) else [("groups", group)]:
            if not isinstance(value, (int, float)):
                raise ValueError(f"optimizer, {name}: expected a number, got {value!s:.80}")
            check_numbers(f"optimizer, {name}", torch.tensor(value))
    own["state"] = {int(k): {name: _copied(v) for name, v in values.items()} for k, values in states.items()}
    own["param_groups"] = [{**mine, **theirs} for mine, theirs in zip(own["param_groups"], groups, strict=True)]
    optimizer.load_state_dict(own)


def check_numbers(at: str, value: Any) -> None:
    """Raises ValueError where a tensor has a number that is not finite."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
        found = "NaN" if bool(value.isnan().any()) else "inf"
        raise ValueError(f"{at}: there is {found} in it ({value.flatten()[:4].tolist()} …); take a checkpoint from before the run diverged")


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


_STATEFUL: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "rng": (np.random.Generator, rng_state, set_rng_state),
    "torch_rng": (torch.Generator, torch_rng_state, set_torch_rng_state),
    "random": (random.Random, random.Random.getstate, random.Random.setstate),
    "optimizer": (torch.optim.Optimizer, optimizer_state, load_optimizer),
}
"""Kind → class, how its state is read and set: loaded into the object that is there."""


def pack(value: Any, at: str, known: frozenset[int] = frozenset(), inside: tuple[int, ...] = ()) -> Any:
    """`value` as a tree; copies. What JSON lacks becomes a dict with its `kind`.

    Args:
        at: Name of the value, for messages.
        known: Ids of the tensors that are saved elsewhere (those of the networks), which are left alone.

    Raises:
        TypeError: it, or something in it, cannot be saved.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.nn.Module) and any(id(t) not in known for t in (*value.parameters(), *value.buffers())):
        raise TypeError(f"{at} is a network ({type(value).__name__}) that networks() does not name")
    if isinstance(value, (torch.nn.Module, *_CONSTANTS)) or id(value) in known:
        return CONSTANT
    if isinstance(value, torch.Tensor):
        return _copied(value)
    if id(value) in inside:
        raise TypeError(f"{at} ({type(value).__name__}) contains itself")

    def part(item: Any, name: object) -> Any:
        return pack(item, f"{at}.{name}", known, (*inside, id(value)))

    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return value.copy() if isinstance(value, np.ndarray) else {"kind": "number", "value": np.asarray(value)}
    if isinstance(value, list):
        return [part(item, i) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {"kind": "dict", "items": [[part(key, "keys"), part(item, key)] for key, item in value.items()]}
    for kind, of in _COLLECTIONS.items():
        if isinstance(value, of):  # sets in one order, so that equal ones are equal here
            return {"kind": kind, "items": [part(item, i) for i, item in enumerate(sorted(value, key=repr) if "set" in kind else value)]}
    for kind, (of, state_of, _) in _STATEFUL.items():
        if isinstance(value, of):
            state = state_of(value)
            return {"kind": kind, "value": part(state, "state") if kind == "random" else state}
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


def unpack(saved: Any, now: Any, at: str) -> Any:
    """The inverse of `pack`: the value, where `now` is the one that is there.

    What holds a state (a generator, an optimiser, a tensor of the same shape, an object) stays the same object and is changed.

    Raises:
        ValueError: what is saved does not fit; parts of `now` may have been changed.
    """
    if isinstance(saved, torch.Tensor):
        if isinstance(now, torch.nn.Parameter):
            check_numbers(at, saved)
        if isinstance(now, torch.Tensor) and (now.shape, now.dtype) == (saved.shape, saved.dtype):
            now.data.copy_(saved)
            return now
        if not isinstance(now, torch.nn.Parameter):
            return saved.clone().to(now.device) if isinstance(now, torch.Tensor) else saved.clone()
    elif saved is None or isinstance(saved, np.ndarray):
        return copy.copy(saved)
    elif type(saved) in (bool, int, float, str):
        if not isinstance(now, (torch.Tensor, *(of for of, _, _ in _STATEFUL.values()))):
            return saved
    elif isinstance(saved, list):
        return _all(saved, now, at)
    elif isinstance(saved, Mapping):
        kind, items, value, fields = (saved.get(key) for key in ("kind", "items", "value", "fields"))
        if kind == "constant":
            return now
        if kind == "number" and isinstance(value, np.ndarray) and value.ndim == 0:
            return value[()]
        if kind == "dict" and isinstance(items, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in items):
            before: Any = now if isinstance(now, Mapping) else {}
            keys = [unpack(key, None, f"{at}.keys") for key, _ in items]
            out = {key: unpack(item, before.get(key), f"{at}.{key}") for key, (_, item) in zip(keys, items, strict=True)}
            if type(now) is dict or not isinstance(now, dict):
                return out
            new = copy.copy(now)  # a defaultdict, an OrderedDict, a Counter
            new.clear()
            new.update(out)
            return new
        if kind in _COLLECTIONS and isinstance(items, list):
            values = _all(items, now, at)
            if kind == "tuple" and hasattr(now, "_fields"):
                return type(now)(*values)
            return deque(values, now.maxlen) if isinstance(now, deque) else _COLLECTIONS[kind](values)
        if kind in _STATEFUL and isinstance(now, _STATEFUL[kind][0]):
            try:
                _STATEFUL[kind][2](now, unpack(value, None, at) if kind == "random" else value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{at}: {error}") from None
            return now
        if kind == "state" and hasattr(now, "load_state_dict"):
            now.load_state_dict(unpack(value, None, at))
            return now
        if kind == "object" and isinstance(fields, Mapping) and saved.get("type") == type(now).__name__:
            own, frozen = _fields(now) or {}, getattr(getattr(now, "__dataclass_params__", None), "frozen", False)
            now = copy.copy(now) if frozen else now
            for name, item in fields.items():
                object.__setattr__(now, name, unpack(item, own.get(name), f"{at}.{name}"))
            return now
    raise ValueError(f"{at}: expected what fits the {type(now).__name__} that is there, got {saved!s:.80}")


def _all(items: list[Any], now: Any, at: str) -> list[Any]:
    before = list(now) if isinstance(now, (list, tuple, deque)) else []
    return [unpack(item, before[i] if i < len(before) else None, f"{at}.{i}") for i, item in enumerate(items)]


def fits(saved: Any, start: Any) -> bool:
    """Whether everything in a packed value that has a state stood at its place in `start`, too, where a newly built object has it."""
    if isinstance(saved, list):
        before = start if isinstance(start, list) else []
        return all(fits(item, before[i] if i < len(before) else None) for i, item in enumerate(saved))
    if not isinstance(saved, Mapping):
        return True
    kind = saved["kind"]
    first: Any = start if isinstance(start, Mapping) and start["kind"] == kind and start.get("type") == saved.get("type") else {}
    if not first and kind in (*_STATEFUL, "state", "object", "constant"):
        return False
    if kind == "object":
        return all(fits(item, first["fields"].get(name)) for name, item in saved["fields"].items())
    return fits(saved.get("items"), first.get("items"))
