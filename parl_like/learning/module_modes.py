"""Modules that do something else while they learn, such as dropout: which have such modes, and how they are set."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Self

import torch
from torch.nn.utils.parametrizations import _SpectralNorm

WITH_MODES = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase, torch.nn.RNNBase, torch.nn.RReLU,
              torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer,
              _SpectralNorm, torch.jit.ScriptModule)
"""Modules of torch that do something else while they learn. Other classes say so: `has_modes = True`."""


def has_modes(networks: Mapping[str, torch.nn.Module], readers: Collection[type] = ()) -> bool:
    """Return whether a module among them does something else while it learns: it is one of `WITH_MODES`, or its class has
    `has_modes = True`.

    Where there is none, a class that says nothing of modes, and is one of the `readers` of `training` (`WatchedModes`) or has a
    `train` of its own, is warned of, and taken to have some.
    """
    kinds = _kinds(networks)
    if any(map(_has_modes, kinds)):
        return True
    undeclared = sorted(kind.__name__ for kind in kinds if _is_silent(kind) and (
        kind in readers or kind.train is not torch.nn.Module.train))
    if undeclared:
        warnings.warn(f"{', '.join(undeclared)}: the class reads `training`, or has a `train` of its own, and does not say "
                      "whether it does something else while it learns; write has_modes = True in the class, or False",
                      RuntimeWarning, stacklevel=2)
    return bool(undeclared)


def declares_modes(network: torch.nn.Module) -> bool:
    """Return whether a module in it is known to do something else while it learns."""
    return any(map(_has_modes, _kinds({"": network})))


def _has_modes(kind: type[torch.nn.Module]) -> bool:
    return issubclass(kind, WITH_MODES) or getattr(kind, "has_modes", False)


class WatchedModes:
    """Around the trial of a prediction: which classes, among those that say nothing of modes, read `training`.

    What they read while they learn need not be watched: where no prediction reads it, networks stay in training mode, but for
    those that are always in test mode (`AlgorithmRunner`).

    Attributes:
        readers: Their classes.
    """

    def __init__(self, networks: Mapping[str, torch.nn.Module]) -> None:
        self.readers: set[type] = set()
        self._watched = [kind for kind in _kinds(networks) if _is_silent(kind) and not hasattr(kind, "training")]

    def __enter__(self) -> Self:
        for kind in self._watched:
            kind.training = _Watched(self.readers)  # type: ignore[assignment]
        return self

    def __exit__(self, *exception: object) -> None:
        for kind in self._watched:
            del kind.training


class _Watched:
    """An attribute that stays in the object's dict, where torch looks for it, and notes who reads it."""

    def __init__(self, readers: set[type]) -> None:
        self._readers = readers

    def __get__(self, module: object, kind: type) -> Any:
        if module is None:
            return self
        self._readers.add(kind)
        return module.__dict__["training"]

    def __set__(self, module: object, value: bool) -> None:
        module.__dict__["training"] = value


def _kinds(networks: Mapping[str, torch.nn.Module]) -> set[type[torch.nn.Module]]:
    return {type(module) for network in networks.values() for module in network.modules()}


def _is_silent(kind: type[torch.nn.Module]) -> bool:
    """Return whether a class says nothing of modes, and is none of torch's, of which it is known."""
    return not (issubclass(kind, WITH_MODES) or hasattr(kind, "has_modes") or kind.__module__.startswith("torch."))


def set_mode(networks: Iterable[torch.nn.Module], training: bool) -> None:
    """`train(training)` of each, without the checks of `Module.__setattr__` (2 µs a module, and every prediction comes here).

    All modules are walked each time: a list or a mode that is kept misses layers replaced or modes set by others since.
    """
    waiting: list[torch.nn.Module | None] = [*networks]
    for module in waiting:  # grows meanwhile
        if module is None:
            continue
        own = module.__dict__
        walked, checked = _way(type(module))  # type: ignore[arg-type]
        if not walked or "train" in own:
            module.train(training)
            continue
        if checked:
            module.training = training
        else:
            own["training"] = training
        waiting += own["_modules"].values()


@cache
def _way(kind: type[torch.nn.Module]) -> tuple[bool, bool]:
    """Return whether `train` of this class is torch's, with layers where torch keeps them (torch.jit's are not); and whether its
    attributes are set through a `__setattr__` of its own."""
    walked = kind.train is torch.nn.Module.train and not issubclass(kind, torch.jit.ScriptModule)
    return walked, kind.__setattr__ is not torch.nn.Module.__setattr__
