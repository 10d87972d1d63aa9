"""Loss: one of several losses of an algorithm, what it moves and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from parl_like.learning.fixed_settings import check_every, check_rates
from parl_like.learning.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Loss:
    """One of several losses of an algorithm: what it moves, and how. Gradients of this loss reach nothing else.

    `lr`, `max_grad_norm` and `every` may be the name of an attribute of the algorithm: that is read before every step, so whoever
    assigns it (`task.algorithm.actor_lr = 1e-4`) changes the next one. A number that stands here stays.

    Attributes:
        moves: A network, a parameter, or several of these in a list. No parameter is named by two losses of one algorithm.
        lr: Learning rate, a number or a schedule over `Algorithm.updates`. Where the attribute that it names is None, it is
            `Algorithm.lr`.
        max_grad_norm: Norm of this loss's gradient above which it is scaled down; None: never.
        every: The loss is due in every so many updates, and not stepped in the others; `Algorithm.due` says so beforehand.
        optimizer: Called with the list of parameters and `lr=`; None: Adam.
    """

    moves: object
    lr: float | Schedule | str = 1e-3
    max_grad_norm: float | str | None = None
    every: int | str = 1
    optimizer: Callable[..., torch.optim.Optimizer] | None = None

    def __post_init__(self) -> None:
        for name in ("lr", "max_grad_norm", "every"):
            if isinstance(value := getattr(self, name), str) and not value.isidentifier():
                raise TypeError(f"Loss: {name} is {value!r}; expected a number, or the name of an attribute of the algorithm")
        if not isinstance(self.every, str):
            check_every("Loss", self.every)
        check_rates("Loss", 0.0 if isinstance(self.lr, str) else self.lr,
                    None if isinstance(self.max_grad_norm, str) else self.max_grad_norm)
        if self.optimizer is not None and not callable(self.optimizer):
            raise TypeError(f"Loss: optimizer is {type(self.optimizer).__name__}; expected what makes one of parameters and lr=, "
                            "such as torch.optim.AdamW, or partial(torch.optim.SGD, momentum=0.9)")
        object.__setattr__(self, "moves", _listed(self.moves))

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters that it moves, one by one, each once."""
        return list(dict.fromkeys(_parameters(self.moves)))


def _listed(moves: object) -> object:
    """Networks and parameters in lists, for what `parameters()` gives can be read but once."""
    if isinstance(moves, (torch.nn.Parameter, torch.nn.Module)):
        return moves
    if isinstance(moves, (torch.Tensor, str, Mapping)) or not isinstance(moves, Iterable):
        raise TypeError(f"Loss: moves has {type(moves).__name__}; expected networks and parameters")
    return [_listed(one) for one in moves]


def _parameters(moves: Any) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters of what `_listed` gave; networks may get theirs later."""
    if isinstance(moves, torch.nn.Parameter):
        yield moves
    elif isinstance(moves, torch.nn.Module):
        yield from moves.parameters()
    else:
        for one in moves:
            yield from _parameters(one)
