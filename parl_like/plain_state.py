"""Python values as trees of arrays, tensors and plain values, which an archive can hold without code; and back."""

from __future__ import annotations

import copy
import functools
import logging
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from parl_like.data.generators import rng_state, set_rng_state, set_torch_rng_state, torch_rng_state

CONSTANT = {"kind": "constant"}
"""What stands for a function, a space, a frozen dataclass and the like: loading leaves it as it was built."""
_CONSTANTS: tuple[type, ...] = (
    type, types.FunctionType, types.BuiltinFunctionType, type(np.sum), types.MethodType, types.ModuleType, functools.partial,
    range,
    torch.device, torch.dtype, np.dtype, np.ufunc, gym.Space, logging.Logger, weakref.ReferenceType, type(threading.Lock()),
    type(threading.RLock()), threading.Event, threading.Condition, threading.Semaphore, threading.Barrier,
)  # fmt: skip
_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """State of each parameter by its number, and the numbers among the options of each group; copies."""
    state = optimizer.state_dict()
    return {
        "state": {str(k): {name: copied(v) for name, v in values.items()} for k, values in state["state"].items()},
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
        raise ValueError(f"optimizer: expected a `state` and {len(own['param_groups'])} `groups` of parameters, got "
                         f"{saved!s:.80}")
    for key, state in states.items():
        if not (key.isdecimal() and int(key) < len(parameters) and isinstance(state, Mapping)):
            raise ValueError(f"optimizer, state: expected the states of {len(parameters)} parameters by number, got {key!r}: "
                             f"{state!s:.80}")
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape != (shape := parameters[int(key)].shape):
                raise ValueError(f"optimizer, state {key}, {name}: expected {tuple(shape)}, got {tuple(value.shape)}")
            check_numbers(f"optimizer, state {key}, {name}", value)
    for group in groups:
        for name, value in group.items() if isinstance(group, Mapping) else [("groups", group)]:
            if not isinstance(value, (int, float)):
                raise ValueError(f"optimizer, {name}: expected a number, got {value!s:.80}")
            check_numbers(f"optimizer, {name}", torch.tensor(value))
    own["state"] = {int(k): {name: copied(v) for name, v in values.items()} for k, values in states.items()}
    own["param_groups"] = [{**mine, **theirs} for mine, theirs in zip(own["param_groups"], groups, strict=True)]
    optimizer.load_state_dict(own)


def check_numbers(at: str, value: Any) -> None:
    """Raises ValueError where a tensor has a number that is not finite."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
        found = "NaN" if bool(value.isnan().any()) else "inf"
        raise ValueError(f"{at}: there is {found} in it ({value.flatten()[:4].tolist()} …); take a checkpoint from before the "
                         "run diverged")


def copied(value: Any) -> Any:
    """A tensor's numbers in storage of their own; anything else as it is."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


STATEFUL: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "rng": (np.random.Generator, rng_state, set_rng_state),
    "torch_rng": (torch.Generator, torch_rng_state, set_torch_rng_state),
    "optimizer": (torch.optim.Optimizer, optimizer_state, load_optimizer),
    "state": (object, lambda value: value.state_dict(), lambda value, state: value.load_state_dict(state)),
}
"""Kind → class, how its state is read and set: loaded into the object that is there."""


def pack(value: Any, at: str, known: frozenset[int] = frozenset()) -> Any:
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
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    if frozen or isinstance(value, (torch.nn.Module, *_CONSTANTS)) or id(value) in known:
        return CONSTANT
    if isinstance(value, torch.Tensor):
        return copied(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return value.copy() if isinstance(value, np.ndarray) else value.item()
    if isinstance(value, list):
        return [pack(item, f"{at}.{i}", known) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {"kind": "dict",
                "items": [[pack(key, f"{at}.keys"), pack(item, f"{at}.{key}", known)] for key, item in value.items()]}
    for kind, of in _COLLECTIONS.items():
        if isinstance(value, of):  # sets in one order, so that equal ones are equal here
            items = sorted(value, key=repr) if "set" in kind else value
            return {"kind": kind, "items": [pack(item, f"{at}.{i}", known) for i, item in enumerate(items)]}
    for kind, (of, state_of, _) in STATEFUL.items():
        if isinstance(value, of) and (kind != "state" or hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
            return {"kind": kind, "value": state_of(value)}
    raise TypeError(f"{at} ({type(value).__name__}) is nothing that a checkpoint can hold")


def unpack(saved: Any, now: Any, at: str) -> Any:
    """The inverse of `pack`: the value, where `now` is the one that is there.

    What holds a state (a generator, an optimiser, a tensor of the same shape) stays the same object and is changed.

    Raises:
        ValueError: what is saved does not fit; parts of `now` may have been changed.
    """
    kind, items = (saved.get("kind"), saved.get("items")) if isinstance(saved, Mapping) else (None, None)
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
        if not isinstance(now, (torch.Tensor, np.random.Generator, torch.Generator, torch.optim.Optimizer)):
            return saved
    elif isinstance(saved, list):
        return _unpack_all(saved, now, at)
    elif kind == "constant":
        return now
    elif kind == "dict" and isinstance(items, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in items):
        before: Any = now if isinstance(now, dict) else {}
        keys = [unpack(key, None, f"{at}.keys") for key, _ in items]
        new = copy.copy(before)  # a defaultdict, an OrderedDict, a Counter
        new.clear()
        new.update({key: unpack(item, before.get(key), f"{at}.{key}") for key, (_, item) in zip(keys, items, strict=True)})
        return new
    elif kind in _COLLECTIONS and isinstance(items, list):
        values = _unpack_all(items, now, at)
        if kind == "tuple" and hasattr(now, "_fields"):
            return type(now)(*values)
        return deque(values, now.maxlen) if isinstance(now, deque) else _COLLECTIONS[kind](values)
    elif kind in STATEFUL and isinstance(now,
                                         STATEFUL[kind][0]) and "value" in saved and (kind != "state" or hasattr(now,
                                                                                                                 "load_state_dict")):
        try:
            STATEFUL[kind][2](now, saved["value"])
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{at}: {error}") from None
        return now
    raise ValueError(f"{at}: expected what fits the {type(now).__name__} that is there, got {saved!s:.80}")


def _unpack_all(items: list[Any], now: Any, at: str) -> list[Any]:
    before = list(now) if isinstance(now, (list, tuple, deque)) else []
    return [unpack(item, before[i] if i < len(before) else None, f"{at}.{i}") for i, item in enumerate(items)]
