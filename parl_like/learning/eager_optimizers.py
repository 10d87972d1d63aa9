"""torch's optimisers without `torch._dynamo`, which they load when they are made, to tell a compiler what it may not trace.

Loading it takes longer than torch itself, some 1.5 s and 70 MB, and nothing is compiled here. While something is being compiled,
torch's own methods are called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch

Method = Callable[..., object]

MARKED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""Methods of `torch.optim.Optimizer` that a compiler is told to leave alone."""
STEP_MARK = "_use_grad"
"""The function around each `step` that is not to be traced with gradients."""


def spare_compiler() -> None:
    """Replaces these methods in torch's classes, once, by ones that do the same; where torch has loaded its compiler already, or
    where its methods look otherwise, they stay."""
    if "torch._dynamo" in sys.modules:
        return
    for name in MARKED:
        _replace(torch.optim.Optimizer, name, _unmarked)
    for kind in vars(torch.optim).values():
        own = vars(kind).get("step") if isinstance(kind, type) else None
        if getattr(getattr(own, "__code__", None), "co_name", "") == STEP_MARK:
            _replace(kind, "step", _without_gradients)


def _replace(kind: type, name: str, replacement: Callable[[Method], Method]) -> None:
    original = vars(kind)[name]
    if hasattr(original, "__wrapped__"):
        setattr(kind, name, replacement(original))


def _unmarked(original: Method) -> Method:
    inside: Method = original.__wrapped__  # type: ignore[attr-defined]

    @functools.wraps(original)
    def method(*args: object, **kwargs: object) -> object:
        return (original if torch.compiler.is_compiling() else inside)(*args, **kwargs)

    return method


def _without_gradients(original: Method) -> Method:
    inside: Method = original.__wrapped__  # type: ignore[attr-defined]

    @functools.wraps(original)
    def step(self: torch.optim.Optimizer, *args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return inside(self, *args, **kwargs)

    return step
