"""Networks in training mode for the time of one call, and torch's generator lent to their dropout."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch


def has_modes(networks: dict[str, torch.nn.Module]) -> bool:
    """Whether a module among them does something else while it learns."""
    return any(_has_modes(type(module)) for network in networks.values() for module in network.modules())  # type: ignore[arg-type]


@cache
def _has_modes(kind: type[torch.nn.Module]) -> bool:
    """Whether one of the class's methods reads `training`, or is `train`."""
    bases = [base for base in kind.__mro__ if issubclass(base, torch.nn.Module) and base is not torch.nn.Module]
    methods = [item for base in bases for item in vars(base).items()]
    return any(name == "train" or "training" in getattr(getattr(value, "__code__", None), "co_names", ()) for name,
               value in methods)


def set_mode(networks: Iterable[torch.nn.Module], training: bool) -> None:
    """`train(training)` of each, without `Module.__setattr__`: its checks cost 2 µs a module, and every prediction comes through
    here.

    All modules are walked each time: who keeps a list, or remembers the mode, misses a layer replaced or a mode set by others
    since.
    """
    waiting: list[torch.nn.Module | None] = [*networks]
    for module in waiting:  # grows meanwhile
        if module is None:
            continue
        own = module.__dict__
        if _changes_mode_plainly(type(module)) and "train" not in own:  # type: ignore[arg-type]
            own["training"] = training
            waiting += own["_modules"].values()
        else:
            module.train(training)


@cache
def _changes_mode_plainly(kind: type[torch.nn.Module]) -> bool:
    """Whether `train` of this class does no more than torch's, and attributes are kept where torch keeps them (torch.jit's are
    not)."""
    return kind.train is torch.nn.Module.train and kind.__setattr__ is torch.nn.Module.__setattr__


class Updating:
    """The task's lock, and mode 'update' for one call, restored also after an exception."""

    __slots__ = ("task", "before", "lent")

    def __init__(self, task: Any) -> None:
        self.task = task
        self.lent: torch.Tensor | None = None

    def __enter__(self) -> None:
        task = self.task
        task.lock.acquire()
        self.before, task.algorithm.mode = task.algorithm.mode, "update"
        try:
            if task.has_modes:
                set_mode(task.algorithm.networks().values(), True)
                if task.device.type == "cpu":
                    # Dropout knows only torch's global generator: it is lent the task's state, and gets its own back.
                    self.lent = torch.get_rng_state()
                    torch.set_rng_state(task.algorithm.torch_rng.get_state())
        except BaseException:
            self.__exit__()  # a lock that is never released would stop everybody
            raise

    def __exit__(self, *exception: object) -> None:
        task = self.task
        task.algorithm.mode = self.before
        try:
            if task.has_modes:
                set_mode(task.algorithm.networks().values(), False)
                if self.lent is not None:
                    task.algorithm.torch_rng.set_state(torch.get_rng_state())
                    torch.set_rng_state(self.lent)
                    self.lent = None
        finally:
            task.lock.release()
