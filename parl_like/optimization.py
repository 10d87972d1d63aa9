"""The optimiser steps of one task: which parameters, at which rate, clipped to which norm, in which mode; and what a lesson of
them returns."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import torch

from parl_like.algorithm import Algorithm
from parl_like.errors import Diverged
from parl_like.leaf import to_numpy
from parl_like.spec import Array

ROW = "lesson_row"
"""Field of minibatches: the place of each row in the lesson."""

Step = tuple[Mapping[str, Any], Any]
"""What `learn` returned for a minibatch, without gradients, and the places of its rows in the lesson (None: it was all of it)."""


class Optimization:
    """Backward pass, clipping and step for the losses of an algorithm.

    Args:
        owner: Gives the name for messages, such as "task 'RL'".
        mine: The parameters that this task's optimiser holds.
        others: Optimisers of the tasks that hold the algorithm's other parameters; they step what has a gradient here.

    Attributes:
        optimizer: Of `mine`; None where there are none.
        parameters, buffers: All that learning changes: by steps, and by forward passes.
    """

    def __init__(self, owner: Callable[[], str], algorithm: Algorithm, mine: list[torch.nn.Parameter],
                 others: list[torch.optim.Optimizer]) -> None:
        self.owner, self.algorithm = owner, algorithm
        self.parameters = list(algorithm.parameters())
        buffers = [buffer for network in algorithm.networks().values() for buffer in network.buffers()]
        self.buffers = [buffer for buffer in buffers if not torch.nn.parameter.is_lazy(buffer)]
        self.optimizer = algorithm.optimizer(mine) if mine else None
        self.optimizers = others if self.optimizer is None else [self.optimizer, *others]
        # Rate of each group of parameters as a share of the schedule's: so groups keep rates of their own.
        self._shares: list[float] = []
        if self.optimizer is not None and callable(algorithm.lr):
            first, rates = algorithm.lr(0), [group["lr"] for group in self.optimizer.param_groups]
            if not first and any(rates):
                raise ValueError(f"{owner()}: the schedule of the learning rate begins at 0, and a group of parameters at "
                                 f"{max(rates)}, which is no share of it; begin above 0, or give all groups the schedule's rate")
            self._shares = [rate / first if first else 1.0 for rate in rates]

    def report_unheld(self) -> None:
        """Warns of parameters that should learn and that no optimiser holds."""
        algorithm = self.algorithm
        kept = [value for value in vars(algorithm).values() if isinstance(value, torch.optim.Optimizer)]
        held = {id(p) for optimizer in (*self.optimizers, *kept) for group in optimizer.param_groups for p in group["params"]}
        parameters = own_parameters(algorithm)
        for name, network in algorithm.networks().items():
            if not name.startswith("target"):  # a copy that follows
                parameters |= {f"{name}.{key}": parameter for key, parameter in network.named_parameters()}
        unheld = [name for name, parameter in parameters.items() if parameter.requires_grad and id(parameter) not in held]
        if unheld:
            warnings.warn(f"{self.owner()}: no optimiser holds {', '.join(unheld[:8])}{' …' * (len(unheld) > 8)}; yield them "
                          f"from parameters() of {type(algorithm).__name__}, or freeze them (requires_grad_(False)) if they are "
                          "not to learn", RuntimeWarning, stacklevel=2)

    def step(self, out: Mapping[str, Any]) -> float:
        """Backward pass and one optimiser step for the `loss` of what `learn` returned. Returns its value.

        Raises:
            Diverged: the loss or the norm of the gradient is not a finite number. The parameters are untouched.
            ValueError: there is no loss with a gradient, or it depends on no parameter of the task.
        """
        loss = out.get("loss")
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            what = f"keys {sorted(out)}" if loss is None else "a loss without a gradient"
            raise ValueError(f"{self.owner()}: learn returned {what}; expected 'loss', a scalar tensor with a gradient (not "
                             "detached)")
        value = float(loss.detach())
        if not isfinite(value):
            raise self._diverged("loss", value)
        algorithm, optimizers = self.algorithm, self.optimizers
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        # Also where nothing is clipped, for a finite loss may have an infinite slope: 13 µs of 590 for a 2×64 network.
        norm = clip_gradients(self.parameters, algorithm.max_grad_norm)
        if not isfinite(norm):
            raise self._diverged("norm of the gradient", norm)
        if not norm and all(parameter.grad is None for parameter in self.parameters):
            raise ValueError(f"{self.owner()}: the loss of {type(algorithm).__name__} reaches none of the task's parameters, so "
                             "nothing would be learned; compute it with the algorithm's own model, without detach() or no_grad()")
        if self._shares:
            rate = algorithm.lr(algorithm.updates)  # type: ignore[operator]
            for group, share in zip(self.optimizer.param_groups, self._shares, strict=True):  # type: ignore[union-attr]
                group["lr"] = rate * share
        # An owner's optimiser steps only what has a gradient here: the shared parameters.
        for optimizer in optimizers:
            optimizer.step()
        algorithm.updates += 1
        return value

    def _diverged(self, what: str, value: float) -> Diverged:
        return Diverged(f"{self.owner()}: {what} is {value} at optimiser step {self.algorithm.updates}; the weights are "
                        "unchanged. Lower the learning rate, set max_grad_norm, or look for extreme rewards")


def claim(task: Any) -> Optimization:
    """Makes the optimiser over the parameters that no other living task owns, and finds the owners of the rest.

    Two optimisers on one tensor would each keep moments for half of its gradients, so a shared parameter has one owner: the task
    that claimed it first. Its sharers step the owner's optimiser for it, and all of them have one lock.
    """
    mine, owners = [], []
    for parameter in task.algorithm.parameters():
        reference = getattr(parameter, "_parl_like_owner", None)
        owner = reference() if reference is not None else None
        if owner is None or owner is task:
            parameter._parl_like_owner = weakref.ref(task)
            mine.append(parameter)
        elif owner not in owners:
            owners.append(owner)
    others = [owner.optimizer for owner in owners if owner.optimizer is not None]
    optimization = Optimization(task.owner, task.algorithm, mine, others)
    if owners:
        tensors = {id(p) for p in optimization.parameters}
        for other in {*owners, *(sharer for owner in owners for sharer in owner.sharers)} - {task}:
            if any(id(p) in tensors for p in other.algorithm.parameters()):
                other.sharers.add(task)
                task.sharers.add(other)
        related = [task]  # those that share parameters with it, those that share with these, and so on
        for one in related:
            related += [sharer for sharer in one.sharers if sharer not in related]
            one.lock = owners[0].lock
    return optimization


def own_parameters(algorithm: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that are attributes of an algorithm themselves, such as a temperature, by name."""
    return {name: value for name, value in vars(algorithm).items() if isinstance(value, torch.nn.Parameter)}


def clip_gradients(parameters: list[torch.nn.Parameter], max_norm: float | None) -> float:
    """Scales all gradients by min(1, max_norm / norm), norm over all of them; None: not at all. Returns the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if max_norm is not None and not norm <= max_norm:  # also where it is no number
        torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
    return norm


def lesson_return(owner: str, n: int, taken: list[Step], left_out: list[Step]) -> dict[str, Any]:
    """What a lesson of `n` rows returns: of each number the mean over the steps, as a float, and arrays [n, ...].

    Steps that were left out count where no other says anything, with 0 for what is no number in their arrays.
    """
    result: dict[str, Any] = {}
    for name in dict.fromkeys(name for out, _ in (*taken, *left_out) for name in out):
        steps = [(out[name], places) for out, places in taken if name in out]
        lost = [(out[name], places) for out, places in left_out if name in out]
        if np.ndim((steps or lost)[0][0]):
            lost = [(np.nan_to_num(to_numpy(value), posinf=0.0, neginf=0.0), places) for value, places in lost]
            result[name] = _in_order(owner, name, n, lost + steps)
        elif steps or not taken:
            result[name] = _mean([value for value, _ in steps or lost[-1:]])
    return result


def _in_order(owner: str, name: str, n: int, parts: list[tuple[Any, Any]]) -> Array:
    """The values of all rows, in the order of the lesson; of several for one row the last. Each must have one."""
    out: Any = None
    said = np.zeros(n, bool)
    for value, places in parts:
        array, where = np.asarray(to_numpy(value)), slice(None) if places is None else to_numpy(places)
        if len(array) != len(said[where]):
            raise ValueError(f"{owner}: learn returned {name!r} with {len(array)} rows; expected one for each of "
                             f"{len(said[where])}. Of minibatches they are put together by the field {ROW!r}: let "
                             "minibatches(batch) keep it, as indexing it does")
        out = np.zeros((n, *array.shape[1:]), array.dtype) if out is None else out
        out[where], said[where] = array, True
    if not said.all():
        raise ValueError(f"{owner}: learn returned {name!r} for {said.sum()} of {n} rows; expected one for each, so let "
                         "minibatches(batch) give every row once at least")
    return out  # type: ignore[no-any-return]


def _mean(values: list[Any]) -> float:
    if len(values) == 1:
        return float(values[0])
    return float(torch.stack(values).mean() if isinstance(values[0], torch.Tensor) else np.mean(values))


def has_modes(networks: Mapping[str, torch.nn.Module]) -> bool:
    """Whether a module among them does something else while it learns: one of its methods reads `training`, or is `train`."""
    kinds = {base for network in networks.values() for module in network.modules() for base in type(module).__mro__}
    return any(name == "train" or "training" in getattr(getattr(value, "__code__", None), "co_names", ())
               for kind in kinds - {torch.nn.Module} if issubclass(kind, torch.nn.Module) for name, value in vars(kind).items())


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
    """Whether `train` of this class is torch's, and attributes are where torch keeps them (torch.jit's are not)."""
    return kind.train is torch.nn.Module.train and kind.__setattr__ is torch.nn.Module.__setattr__
