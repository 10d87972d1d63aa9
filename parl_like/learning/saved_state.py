"""The state of a task in a checkpoint: networks, optimiser, counters, generators, and what else of its algorithm learning has
changed, as trees of arrays, tensors and plain values, which an archive can hold without code."""

from __future__ import annotations

import copy
import functools
import logging
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from parl_like.data.rng import rng_state, set_rng_state, set_torch_rng_state, torch_rng_state
from parl_like.data.storage.state_check import check_alike
from parl_like.interfaces import TrainedAlgorithm, TrainedTask
from parl_like.values.batch_leaf import same
from parl_like.values.plain import Plain, State

COUNTERS = {"updates": "updates", "version": "version", "learns": "learns", "rows": "rows_learned", "skipped": "skipped",
            "skips": "skips"}
"""Name in a checkpoint → attribute of the task; `updates` is the algorithm's."""


def task_state(task: TrainedTask) -> State:
    """Copies of everything that learning depends on. The caller holds the task's lock."""
    algorithm = task.algorithm
    return {
        "kind": type(algorithm).__name__,
        "networks": {name: {key: _copied(value) for key, value in network.state_dict().items()}
                     for name, network in algorithm.networks().items()},
        "optimizer": _optimizer_state(task.optimizer),
        "optimizers": {name: _optimizer_state(optimizer) for name, optimizer in task.optimizers.items() if name != "loss"},
        "rates": task.rates,
        "counters": {name: getattr(algorithm if name == "updates" else task, attribute) for name, attribute in COUNTERS.items()},
        "rng": rng_state(algorithm.rng), "torch_rng": torch_rng_state(algorithm.torch_rng),
        "algorithm": algorithm.state_dict(),
    }


def load_task_state(task: TrainedTask, state: object) -> None:
    """Restores `task_state`. The caller holds the task's lock.

    Raises:
        ValueError: it is of another model, has wrong types, or weights that are no numbers; parts may have been taken over.
    """
    owner, algorithm = task.owner(), task.algorithm
    parts = ("networks", "optimizer", "counters", "rng", "torch_rng")
    if not isinstance(state, Mapping) or not all(part in state for part in parts) or not isinstance(state["networks"], Mapping):
        raise ValueError(f"{owner}: expected the state of a task with {', '.join(parts)}, got {state!s:.80}")
    check_kind(task, state)
    for name, network in algorithm.networks().items():
        _load_network(f"{owner}, network {name!r}", network, state["networks"].get(name))
    saved = {**several, "loss": state["optimizer"]} if isinstance(several := state.get("optimizers", {}), Mapping) else {}
    for name, optimizer in task.optimizers.items():
        if saved.get(name) != {}:
            try:
                _load_optimizer(optimizer, saved.get(name))
            except (ValueError, TypeError, RuntimeError) as error:
                raise ValueError(f"{owner}, {'' if name == 'loss' else f'loss {name!r}, '}{error}") from None
    if "rates" in state:  # checkpoints of before have none
        task.rates = state["rates"]
    counters = state["counters"] if isinstance(state["counters"], Mapping) else {}
    for name, attribute in COUNTERS.items():
        value = counters.get(name, 0 if attribute in ("skipped", "skips") else None)  # checkpoints of before have none of these
        if type(value) is not int or value < 0:
            raise ValueError(f"{owner}, counters, {name!r}: expected a whole number of at least 0, got {value!r:.80}")
        setattr(algorithm if name == "updates" else task, attribute, value)
    set_rng_state(algorithm.rng, state["rng"])
    set_torch_rng_state(algorithm.torch_rng, state["torch_rng"])
    algorithm.load_state_dict(state.get("algorithm", {}))


def check_kind(task: TrainedTask, state: State) -> None:
    """Raises ValueError where a saved state is another algorithm's, and its networks do not fit. (Checkpoints of before say
    nothing of whose they are.)"""
    kind, own = state.get("kind"), type(task.algorithm).__name__
    saved = state.get("networks")
    if not isinstance(kind, str) or kind == own or not isinstance(saved, Mapping):
        return
    for name, network in task.algorithm.networks().items():
        if not isinstance(theirs := saved.get(name), Mapping) or _differing(network, theirs):
            raise ValueError(f"{task.owner()}: the checkpoint is {kind}'s, and this task has {own}, whose networks are others; "
                             f"build the robot with {kind} to load it, or load what fits with robot.load(path, partial=True)")


def _load_network(owner: str, network: torch.nn.Module, saved: object) -> None:
    if not isinstance(saved, Mapping):
        raise ValueError(f"{owner}: expected tensors by name, got {type(saved).__name__}")
    own = network.state_dict()
    for key, value in saved.items():
        if isinstance(own.get(key), torch.Tensor) and (not isinstance(value, torch.Tensor) or value.dtype != own[key].dtype):
            raise ValueError(f"{owner}, {key!r}: expected a tensor of {own[key].dtype}, got "
                             f"{getattr(value, 'dtype', type(value).__name__)}")
        _check_numbers(f"{owner}, {key!r}", value)
    if wrong := _differing(network, saved):
        listed = ", ".join(f"{key!r} is {theirs} there and {mine} here" for key, (theirs, mine) in wrong.items())
        raise ValueError(f"{owner}: the checkpoint is of another model: {listed}; build the same model to load it, or load what "
                         "fits with robot.load(path, partial=True)")
    network.load_state_dict(dict(saved))


def load_what_fits(network: torch.nn.Module, saved: Mapping[str, object]) -> list[str]:
    """Takes over the tensors that have the same name and shape; returns the names of the others."""
    left_out = list(_differing(network, saved))
    network.load_state_dict({key: value for key, value in saved.items() if key not in left_out}, strict=False)
    return left_out


def _differing(network: torch.nn.Module, saved: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    """Tensor name → (saved shape, own shape) where they differ; None: not there."""
    own = network.state_dict()
    shapes = {key: tuple(tuple(there[key].shape) if key in there else None for there in (saved, own))
              for key in sorted(own.keys() | saved.keys())}
    return {key: (theirs, mine) for key, (theirs, mine) in shapes.items() if theirs != mine}


def _check_numbers(at: str, value: object) -> None:
    """Raises ValueError where a tensor has a number that is not finite."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
        found = "NaN" if bool(value.isnan().any()) else "inf"
        raise ValueError(f"{at}: there is {found} in it ({value.flatten()[:4].tolist()} …); take a checkpoint from before the "
                         "run diverged")


def _copied(value: object) -> Any:
    """A tensor's numbers in storage of their own; anything else as it is."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _optimizer_state(optimizer: torch.optim.Optimizer | None) -> State:
    """State of each parameter by its number, and the numbers among the options of each group; copies. None has none."""
    if optimizer is None:
        return {}
    state = optimizer.state_dict()
    return {
        "state": {str(k): {name: _copied(v) for name, v in values.items()} for k, values in state["state"].items()},
        "groups": [{k: v for k, v in g.items() if isinstance(v, (int, float, bool))} for g in state["param_groups"]],
    }


_FUSED = (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)
"""Whose states have the shapes of their parameters, `step` none; torch's fused steps write past the end of others."""


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: object) -> None:
    """Restores `_optimizer_state`; raises ValueError, and changes nothing, for what is none of these parameters."""
    own, parameters = optimizer.state_dict(), [p for group in optimizer.param_groups for p in group["params"]]
    states, groups = (saved.get("state"), saved.get("groups")) if isinstance(saved, Mapping) else (None, None)
    if not isinstance(states, Mapping) or not isinstance(groups, list) or len(groups) != len(own["param_groups"]):
        raise ValueError(f"optimizer: expected a `state` and {len(own['param_groups'])} `groups` of parameters, got "
                         f"{saved!s:.80}")
    like = isinstance(optimizer, _FUSED)
    for key, state in states.items():
        if not (key.isdecimal() and int(key) < len(parameters) and isinstance(state, Mapping)):
            raise ValueError(f"optimizer, state: expected the states of {len(parameters)} parameters by number, got {key!r}: "
                             f"{state!s:.80}")
        for name, value in state.items():
            shape = () if name == "step" else parameters[int(key)].shape
            if like and isinstance(value, torch.Tensor) and value.shape != shape:
                raise ValueError(f"optimizer, state {key}, {name}: expected {tuple(shape)}, got {tuple(value.shape)}")
            _check_numbers(f"optimizer, state {key}, {name}", value)
    numbers = []
    for group, mine in zip(groups, own["param_groups"], strict=True):
        if not isinstance(group, Mapping):
            raise ValueError(f"optimizer, groups: expected numbers by name, got {group!s:.80}")
        check_alike(group, {name: value for name, value in mine.items() if isinstance(value, (bool, int, float))}, "optimizer")
        for name, value in group.items():
            if not isinstance(value, (int, float)):
                raise ValueError(f"optimizer, {name}: expected a number, got {value!s:.80}")
            _check_numbers(f"optimizer, {name}", torch.tensor(float(value)))
        numbers.append({name: value for name, value in group.items() if not isinstance(value, bool)})  # switches stay as built

    def filled() -> dict[str, object]:
        return {"state": {int(k): {name: _copied(v) for name, v in values.items()} for k, values in states.items()},
                "param_groups": [{**mine, **theirs} for mine, theirs in zip(own["param_groups"], numbers, strict=True)]}

    _try_step(optimizer, filled())
    optimizer.load_state_dict(filled())


def _try_step(optimizer: torch.optim.Optimizer, state: dict[str, object]) -> None:
    """Makes a step without gradients on a copy in this state; raises ValueError where that fails, or gives no numbers."""
    if any(one.default is one.empty for one in signature(optimizer.step).parameters.values()):
        return  # it makes its steps from losses
    trial = copy.deepcopy(optimizer)
    try:
        trial.load_state_dict(state)
        for parameter in (parameters := [p for group in trial.param_groups for p in group["params"]]):
            parameter.grad = torch.zeros_like(parameter)
        trial.step()
    except Exception as error:  # noqa: BLE001  whatever it is, it is better raised now than in the next update
        raise ValueError(f"optimizer, state: none that {type(optimizer).__name__} can go on from: {type(error).__name__}: "
                         f"{error!s:.200}") from None
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise ValueError(f"optimizer, state: a step of {type(optimizer).__name__} from it makes weights that are no numbers")


class Attributes:
    """The attributes of an algorithm beside its networks, packed as they were when its task was built (`start`).

    With `strict` an attribute that cannot be saved is a TypeError; else it is left out. `owner` gives the task's name.
    """

    def __init__(self, algorithm: TrainedAlgorithm, owner: Callable[[], str], strict: bool = True) -> None:
        self.owner, self.start = owner, {}
        for name, packed in self._packed(algorithm):
            if not isinstance(packed, TypeError):
                self.start[name] = packed
            elif strict:
                mend = "add it to networks()" if "networks()" in str(packed) else (
                    f"if it may be lost, name it in the class's `transient`: transient = ({name!r},); else write state_dict and "
                    "load_state_dict")
                raise TypeError(f"{owner()}: {packed}, so it would be lost at every checkpoint; {mend}")

    def _packed(self, algorithm: TrainedAlgorithm) -> Iterator[tuple[str, Plain | TypeError]]:
        """Every attribute with its packed value, or the error that says why it has none."""
        known = frozenset(id(t) for network in algorithm.networks().values() for t in (*network.parameters(), *network.buffers()))
        left_out = self._left_out(algorithm)
        for name, value in vars(algorithm).items():
            if name not in left_out:
                try:
                    yield name, pack(value, f"{type(algorithm).__name__}.{name}", known)
                except TypeError as error:
                    yield name, error

    def _left_out(self, algorithm: TrainedAlgorithm) -> set[str]:
        """Attributes that are no part of this state."""
        return {"model", "mode", "updates", "updates_before", "rng", "torch_rng", "_attributes", "_asks", "_guarded",
                *algorithm.transient, *algorithm.remembers}

    def changed(self, algorithm: TrainedAlgorithm) -> State:
        """Return the attributes that are not as they were at the start, packed; so what learning does not change stays the new
        robot's own."""
        out: dict[str, Plain] = {}
        for name, packed in self._packed(algorithm):
            new = name not in self.start or _kind(packed) != _kind(self.start[name])
            if new and _kind(packed) in (*_STATEFUL, "constant"):  # a new robot has none that it could be loaded into
                kind = type(getattr(algorithm, name)).__name__
                packed = TypeError(f"{type(algorithm).__name__}.{name} is a {kind} that was not there when the task was built")
            if isinstance(packed, TypeError):
                warnings.warn(f"{self.owner()}: {packed}; it is left out of the checkpoint", RuntimeWarning, stacklevel=4)
            elif new or not same(packed, self.start[name]):
                out[name] = packed
        return out

    def load(self, algorithm: TrainedAlgorithm, state: object) -> None:
        """Sets the attributes that `changed` gave, and all others to what they were at the start; raises ValueError at the first
        that does not fit."""
        if not isinstance(state, Mapping):
            raise ValueError(f"{self.owner()}, algorithm: expected attributes by name, got {type(state).__name__}")
        now, kind = vars(algorithm), type(algorithm)
        for name in state:
            of_class, other = getattr(kind, name, None), name in self._left_out(algorithm)
            if other or not name.isidentifier() or callable(of_class) or isinstance(of_class, property):
                raise ValueError(f"{self.owner()}, algorithm, {name!r}: no attribute of {kind.__name__} that learning changes")
        back = {name: self.start[name] for name, packed in self._packed(algorithm)
                if name in self.start and not same(packed, self.start[name])}
        for name in [name for name in now if name not in self.start and name not in state and hasattr(kind, name)]:
            delattr(algorithm, name)  # what the class says, again
        for name, saved in state.items():
            check_attribute(saved, self.start.get(name), f"{self.owner()}, algorithm, {name!r}")
        for name, saved in {**back, **state}.items():
            now[name] = unpack(saved, now.get(name), f"{self.owner()}, algorithm, {name!r}")


def check_attribute(saved: object, start: Any, at: str) -> None:
    """Raises ValueError where a packed attribute has another type than at the start; None says nothing, numbers are alike."""
    number = isinstance(start, (int, float)) and not isinstance(start, bool)
    if number and isinstance(saved, (torch.Tensor, np.ndarray)):
        return  # what began as a number
    if isinstance(start, torch.Tensor):
        if not isinstance(saved, torch.Tensor) or saved.dtype != start.dtype:
            raise ValueError(f"{at}: expected a tensor of {start.dtype}, got {saved!s:.80}")
    elif start is not None and saved is not None:
        check_alike(saved, float(start) if number else start, at)


_CONSTANTS: tuple[type, ...] = (
    type, types.FunctionType, types.BuiltinFunctionType, type(np.sum), types.MethodType, types.ModuleType, functools.partial,
    range, torch.device, torch.dtype, np.dtype, np.ufunc, gym.Space, logging.Logger, weakref.ReferenceType,
    type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition, threading.Semaphore,
    threading.Barrier,
)  # fmt: skip
"""Kept as {'kind': 'constant'}, as are frozen dataclasses: loading leaves them as they were built."""
_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_STATEFUL: dict[str, tuple[Any, Callable[[Any], object], Callable[[Any, Any], object]]] = {
    "rng": (np.random.Generator, rng_state, set_rng_state),
    "torch_rng": (torch.Generator, torch_rng_state, set_torch_rng_state),
    "optimizer": (torch.optim.Optimizer, _optimizer_state, _load_optimizer),
    "state": (object, lambda value: value.state_dict(), lambda value, state: value.load_state_dict(state)),
}
"""Kind → class, how its state is read and set: loaded into the object that is there."""


def _kind(packed: object) -> object:
    return packed.get("kind") if isinstance(packed, Mapping) else None


def pack(value: object, at: str, known: frozenset[int] = frozenset()) -> Any:
    """A copy of `value`, which messages call `at`, as a tree; what JSON lacks becomes a dict with its `kind`. Tensors of which
    `known` has the ids are saved elsewhere. Raises TypeError for what cannot be saved."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.nn.Module) and any(id(t) not in known for t in (*value.parameters(), *value.buffers())):
        raise TypeError(f"{at} is a network ({type(value).__name__}) that networks() does not name")
    frozen = getattr(getattr(value, "__dataclass_params__", None), "frozen", False)
    if frozen or isinstance(value, (torch.nn.Module, *_CONSTANTS)) or id(value) in known:
        return {"kind": "constant"}
    if isinstance(value, torch.Tensor):
        return _copied(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return value.copy() if isinstance(value, np.ndarray) else value.item()
    if isinstance(value, list):
        return [pack(item, f"{at}.{i}", known) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {"kind": "dict",
                "items": [[pack(key, f"{at}.keys"), pack(item, f"{at}.{key}", known)] for key, item in value.items()]}
    for kind, of in _COLLECTIONS.items():
        if isinstance(value, of):  # sets in one order, so that equal ones are equal here
            return {"kind": kind, "items": pack(sorted(value, key=repr) if "set" in kind else list(value), at, known)}
    for kind, (of, state_of, _) in _STATEFUL.items():
        if isinstance(value, of) and (kind != "state" or hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
            return {"kind": kind, "value": state_of(value)}
    raise TypeError(f"{at} ({type(value).__name__}) is nothing that a checkpoint can hold")


def unpack(saved: Any, now: object, at: str) -> Any:
    """The inverse of `pack`, where `now` is the value that is there: what holds a state (a generator, an optimiser, a tensor of
    the same shape) stays the same object and is changed. Raises ValueError for what does not fit."""
    kind, items = (_kind(saved), saved.get("items")) if isinstance(saved, Mapping) else (None, None)
    if isinstance(saved, torch.Tensor):
        if isinstance(now, torch.nn.Parameter):
            _check_numbers(at, saved)
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
        before = list(now) if isinstance(now, (list, tuple, deque)) else []
        return [unpack(item, before[i] if i < len(before) else None, f"{at}.{i}") for i, item in enumerate(saved)]
    elif kind == "constant":
        return now
    elif kind == "dict" and isinstance(items, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in items):
        there: Any = now if isinstance(now, dict) else {}
        keys = [unpack(key, None, f"{at}.keys") for key, _ in items]
        new = copy.copy(there)  # a defaultdict, an OrderedDict, a Counter
        new.clear()
        new.update({key: unpack(item, there.get(key), f"{at}.{key}") for key, (_, item) in zip(keys, items, strict=True)})
        return new
    elif kind in _COLLECTIONS and isinstance(items, list):
        values = unpack(items, now, at)
        if kind == "tuple" and hasattr(now, "_fields"):
            return type(now)(*values)
        return deque(values, now.maxlen) if isinstance(now, deque) else _COLLECTIONS[kind](values)
    elif kind in _STATEFUL and "value" in saved and isinstance(now, _STATEFUL[kind][0]) and (
            kind != "state" or hasattr(now, "load_state_dict")):
        try:
            _STATEFUL[kind][2](now, saved["value"])
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{at}: {error}") from None
        return now
    raise ValueError(f"{at}: expected what fits the {type(now).__name__} that is there, got {saved!s:.80}")
