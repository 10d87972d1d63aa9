"""Modules that do something else while they learn, such as dropout: which have such modes, and how they are set."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import cache

import torch

WITH_MODES = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase, torch.nn.RNNBase, torch.nn.RReLU,
              torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer)
"""Modules of torch that do something else while they learn. Other classes say so: `has_modes = True`."""


def has_modes(networks: Mapping[str, torch.nn.Module]) -> bool:
    """Return whether a module among them does something else while it learns: it is one of `WITH_MODES`, or its class has
    `has_modes = True`.

    A class that says nothing of modes and reads `training`, or has a `train` of its own, is warned of, and taken to have some.
    """
    kinds = {type(module) for network in networks.values() for module in network.modules()}
    silent = [kind for kind in kinds if not issubclass(kind, WITH_MODES) and not hasattr(kind, "has_modes")]
    undeclared = sorted(kind.__name__ for kind in silent if _reads_training(kind))
    if undeclared:
        warnings.warn(f"{', '.join(undeclared)}: the code reads `training`, and does not say whether it does something "
                      "else while it learns; write has_modes = True in the class, or False", RuntimeWarning, stacklevel=2)
    return bool(undeclared) or any(issubclass(kind, WITH_MODES) or getattr(kind, "has_modes", False) for kind in kinds)


def _reads_training(kind: type[torch.nn.Module]) -> bool:
    """Return whether a method of the class names `training`, or is `train`; that of `torch.nn.Module` itself does not count."""
    bases = [base for base in kind.__mro__ if issubclass(base, torch.nn.Module) and base is not torch.nn.Module]
    return any(name == "train" or "training" in getattr(getattr(value, "__code__", None), "co_names", ())
               for base in bases for name, value in vars(base).items())


def set_mode(networks: Iterable[torch.nn.Module], training: bool) -> None:
    """`train(training)` of each, without the checks of `Module.__setattr__` (2 µs a module, and every prediction comes here).

    All modules are walked each time: a list or a mode that is kept misses layers replaced or modes set by others since.
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
    """Return whether `train` of this class is torch's, and attributes are where torch keeps them (torch.jit's are not)."""
    return kind.train is torch.nn.Module.train and kind.__setattr__ is torch.nn.Module.__setattr__
