"""What a checkpoint holds of a task: networks, optimiser, counters, generators, and what else of its algorithm learning has
changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from parl_like.data.generators import rng_state, set_rng_state, set_torch_rng_state, torch_rng_state
from parl_like.leaf import same
from parl_like.plain_state import CONSTANT, STATEFUL, check_numbers, copied, load_optimizer, optimizer_state, pack, unpack

COUNTERS = {"updates": "updates", "version": "version", "learns": "learns", "rows": "rows_learned", "skipped": "skipped",
            "skips": "skips"}
"""Name in a checkpoint → attribute of the task; `updates` is the algorithm's."""


class Attributes:
    """The attributes of an algorithm beside its networks, as they were when its task was built.

    Args:
        owner: Gives the name for messages, such as "task 'RL'".
        strict: Refuse what cannot be saved; else leave it out.

    Attributes:
        start: Name → packed value.

    Raises:
        TypeError: an attribute that cannot be saved.
    """

    def __init__(self, algorithm: Any, owner: Callable[[], str], strict: bool = True) -> None:
        self.owner, self.start = owner, {}
        for name, packed in self._packed(algorithm):
            if not isinstance(packed, TypeError):
                self.start[name] = packed
            elif strict:
                mend = "add it to networks()"
                if "networks()" not in str(packed):
                    mend = (f"if it may be lost, name it in the class's `transient`: transient = ({name!r},); else write "
                            "state_dict and load_state_dict")
                raise TypeError(f"{owner()}: {packed}, so it would be lost at every checkpoint; {mend}")

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
            new = name not in self.start or _kind(packed) != _kind(self.start[name])
            if new and _kind(packed) in (*STATEFUL, CONSTANT["kind"]):  # a new robot has none that it could be loaded into
                kind = type(getattr(algorithm, name)).__name__
                packed = TypeError(f"{type(algorithm).__name__}.{name} is a {kind} that was not there when the task was built")
            if isinstance(packed, TypeError):
                warnings.warn(f"{self.owner()}: {packed}; it is left out of the checkpoint", RuntimeWarning, stacklevel=4)
            elif name not in self.start or not same(packed, self.start[name]):
                out[name] = packed
        return out

    def load(self, algorithm: Any, state: Any) -> None:
        """Sets the attributes that `changed` gave, and all others to what they were at the start.

        Raises:
            ValueError: something does not fit; what came before it has been set.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"{self.owner()}, algorithm: expected attributes by name, got {type(state).__name__}")
        now, kind = vars(algorithm), type(algorithm)
        for name in state:
            if not name.isidentifier() or callable(getattr(kind, name, None)) or isinstance(getattr(kind, name, None), property):
                raise ValueError(f"{self.owner()}, algorithm, {name!r}: no attribute of {kind.__name__} that learning changes")
        back = {name: self.start[name] for name,
                packed in self._packed(algorithm) if name in self.start and not same(packed, self.start[name])}
        for name in [name for name in now if name not in self.start and name not in state and hasattr(kind, name)]:
            delattr(algorithm, name)  # what the class says, again
        for name, saved in {**back, **state}.items():
            now[name] = unpack(saved, now.get(name), f"{self.owner()}, algorithm, {name!r}")


def _kind(packed: Any) -> Any:
    return packed["kind"] if isinstance(packed, Mapping) else None


def task_state(task: Any) -> dict[str, Any]:
    """Everything that learning depends on; copies, so that later learning leaves it as it is. The caller holds the task's
    lock."""
    algorithm = task.algorithm
    return {
        "networks": {name: {key: copied(value) for key, value in network.state_dict().items()}
                     for name, network in algorithm.networks().items()},
        "optimizer": {} if task.optimizer is None else optimizer_state(task.optimizer),
        "counters": {name: getattr(algorithm if name == "updates" else task, attribute) for name, attribute in COUNTERS.items()},
        "rng": rng_state(algorithm.rng), "torch_rng": torch_rng_state(algorithm.torch_rng),
        "algorithm": algorithm.state_dict(),
    }


def load_task_state(task: Any, state: Any) -> None:
    """Restores `task_state`. The caller holds the task's lock.

    Raises:
        ValueError: it is of another model, has wrong types, or weights that are no numbers; parts may have been taken over.
    """
    owner, algorithm = f"task {task.name!r}", task.algorithm
    parts = ("networks", "optimizer", "counters", "rng", "torch_rng")
    if not isinstance(state, Mapping) or not all(part in state for part in parts) or not isinstance(state["networks"], Mapping):
        raise ValueError(f"{owner}: expected the state of a task with {', '.join(parts)}, got {state!s:.80}")
    for name, network in algorithm.networks().items():
        _load_network(f"{owner}, network {name!r}", network, state["networks"].get(name))
    if task.optimizer is not None and state["optimizer"] != {}:
        try:
            load_optimizer(task.optimizer, state["optimizer"])
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(f"{owner}, {error}") from None
    counters = state["counters"] if isinstance(state["counters"], Mapping) else {}
    for name, attribute in COUNTERS.items():
        value = counters.get(name, 0 if attribute in ("skipped", "skips") else None)  # checkpoints of before have none of these
        if type(value) is not int or value < 0:
            raise ValueError(f"{owner}, counters, {name!r}: expected a whole number of at least 0, got {value!r:.80}")
        setattr(algorithm if name == "updates" else task, attribute, value)
    set_rng_state(algorithm.rng, state["rng"])
    set_torch_rng_state(algorithm.torch_rng, state["torch_rng"])
    algorithm.load_state_dict(state.get("algorithm", {}))


def _load_network(owner: str, network: torch.nn.Module, saved: Any) -> None:
    if not isinstance(saved, Mapping):
        raise ValueError(f"{owner}: expected tensors by name, got {type(saved).__name__}")
    own = network.state_dict()
    for key, value in saved.items():
        if isinstance(own.get(key), torch.Tensor) and (not isinstance(value, torch.Tensor) or value.dtype != own[key].dtype):
            raise ValueError(f"{owner}, {key!r}: expected a tensor of {own[key].dtype}, got "
                             f"{getattr(value, 'dtype', type(value).__name__)}")
        check_numbers(f"{owner}, {key!r}", value)
    if wrong := differing(network, saved):
        listed = ", ".join(f"{key!r} is {theirs} there and {mine} here" for key, (theirs, mine) in wrong.items())
        raise ValueError(f"{owner}: the checkpoint is of another model: {listed}; build the same model to load it, or load what "
                         "fits with robot.load(path, partial=True)")
    network.load_state_dict(dict(saved))


def load_what_fits(network: torch.nn.Module, saved: Mapping[str, Any]) -> list[str]:
    """Takes over the tensors that have the same name and shape; returns the names of the others."""
    left_out = list(differing(network, saved))
    network.load_state_dict({key: value for key, value in saved.items() if key not in left_out}, strict=False)
    return left_out


def differing(network: torch.nn.Module, saved: Mapping[str, Any]) -> dict[str,
                                                                          tuple[tuple[int, ...] | None, tuple[int, ...] | None]]:
    """Tensor name → (saved shape, own shape) where they differ; None: not there."""
    own = network.state_dict()
    shapes = {key: (tuple(saved[key].shape) if key in saved else None, tuple(own[key].shape) if key in own else None)
              for key in sorted(own.keys() | saved.keys())}
    return {key: (theirs, mine) for key, (theirs, mine) in shapes.items() if theirs != mine}
