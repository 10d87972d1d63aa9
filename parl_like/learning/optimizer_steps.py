"""The optimiser steps of one task: which losses move which parameters, at which rate, clipped to which norm."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Executor
from contextvars import ContextVar
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
import torch

from parl_like.interfaces import Learned, TrainedAlgorithm
from parl_like.learning import _native
from parl_like.learning.adam import FusedAdam, step
from parl_like.learning.algorithm import Algorithm, Loss
from parl_like.learning.fixed_settings import rate, setting
from parl_like.learning.native import WrittenLoss, has_native_learn
from parl_like.learning.schedule import value_of
from parl_like.values.batch import Batch
from parl_like.values.batch_leaf import to_numpy
from parl_like.values.errors import Diverged
from parl_like.values.spec import Array

ROW = "update_row"
"""Field of minibatches: the place of each row in the update."""

BESIDE: ContextVar[Executor | None] = ContextVar("BESIDE", default=None)
"""Threads for some of this thread's backward passes; None: it makes all of them itself."""

Step = tuple[Learned, object]
"""The result of `learn` for a minibatch, without gradients, and the places of its rows in the update (None: it was all of it)."""


class Stepper:
    """The optimiser steps of one loss of an algorithm.

    Args:
        mine: Those of the loss's parameters that its task owns.
        others: Those of the tasks that own the rest, whose optimisers step what has a gradient here.
        adam_eps: ε of Adam, where the loss brings no other optimiser.
        algorithm: Has the attributes that the loss names.

    Attributes:
        native: Whether norms, clipping and Adam's steps are compiled loops of our own, where gradients are dense float32 on the
            CPU.
        optimizer: Of `mine`; None where there are none.
        rate: The learning rate by which the optimiser's groups were set last; None: a schedule sets them at each step.
        norm: That of the gradient of the last step that was taken, before it was clipped; None: there was none.
    """

    def __init__(self, owner: str, loss: Loss, mine: list[torch.nn.Parameter], others: list[Stepper], adam_eps: float,
                 algorithm: TrainedAlgorithm | None = None) -> None:
        self.native = False
        self.owner, self.loss, self.algorithm, self.parameters = owner, loss, algorithm, loss.parameters
        make = loss.optimizer or partial(FusedAdam, eps=adam_eps)
        lr = rate(algorithm, loss.lr)
        self.norm: float | None = None
        self._first = value_of(lr, 0)
        self.rate: float | None = None if callable(lr) else lr
        self.optimizer = make(mine, lr=self._first) if mine else None
        self._others = others
        self.optimizers: list[torch.optim.Optimizer] = [one for one in (self.optimizer, *(other.optimizer for other in others))
                                                        if one is not None]
        # Rate of each group of parameters as a share of the algorithm's: so groups keep rates of their own.
        self._shares: list[float] = []
        if self.optimizer is not None:
            rates = [group["lr"] for group in self.optimizer.param_groups]
            self._shares = [one / self._first if self._first else 1.0 for one in rates]
            self._largest = max(rates, default=0.0)
            if callable(lr):
                self._check_shares()

    def step_natively(self) -> None:
        """From now on take steps by compiled loops of our own, where they may."""
        self.native = True
        if type(self.optimizer) is FusedAdam:
            self.optimizer.native = True

    @property
    def max_grad_norm(self) -> float | None:
        return setting(self.algorithm, self.loss.max_grad_norm)  # type: ignore[no-any-return]

    def holds(self, parameters: set[int]) -> bool:
        """Return whether its own optimiser has one of the parameters with these ids."""
        return self.optimizer is not None and any(id(p) in parameters for group in self.optimizer.param_groups
                                                  for p in group["params"])

    def _check_shares(self) -> None:
        if not self._first and self._largest:
            raise ValueError(f"{self.owner}: the schedule of the learning rate begins at 0, and a group of parameters at "
                             f"{self._largest}, which is no share of it; begin above 0, or give all groups the schedule's rate")

    def step(self, steps: int) -> None:
        """Take an optimiser step, with the rate that goes with so many steps."""
        lr = rate(self.algorithm, self.loss.lr)
        if callable(lr):
            self._check_shares()
            self._set(lr(steps))
            self.rate = None
        else:
            self.follow(lr)
        # An owner's optimiser steps only what has a gradient here: the shared parameters.
        for other in self._others:
            if not callable(theirs := rate(other.algorithm, other.loss.lr)):
                other.follow(theirs)
        for optimizer in self.optimizers:
            step(optimizer)

    def follow(self, lr: float) -> None:
        """Takes over a number as learning rate. One that has not changed is not written again: whoever assigns `lr` of a group of
        the optimiser means that."""
        if lr != self.rate:
            self._check_shares()
            self._set(lr)
            self.rate = lr

    def _set(self, lr: float) -> None:
        for group, share in zip(self.optimizer.param_groups if self._shares else (), self._shares,  # type: ignore[union-attr]
                                strict=True):
            group["lr"] = lr * share


class Optimization:
    """The optimiser steps of one task, from the losses of its algorithm: backward passes, clipping, steps.

    Args:
        owner: Gives the name for messages, such as "task 'RL'".
        steppers: Name of each loss → its steps; {} for an algorithm that changes its parameters itself.

    Attributes:
        native: Whether losses whose gradient the algorithm has written out (`Algorithm.native_learn`) are learned by it.
        parameters, buffers: All that learning changes: by steps or itself, and by forward passes.
        moved: What `learn` itself changes: `moves` of the algorithm; without steppers all parameters and buffers.
    """

    def __init__(self, owner: Callable[[], str], algorithm: Algorithm, steppers: dict[str, Stepper]) -> None:
        self.native = False
        self.owner, self.algorithm, self.steppers = owner, algorithm, steppers
        self.stepped: list[str] = []  # losses of this `learn` whose steps were taken
        networks = algorithm.networks().values()
        self.moved: list[torch.Tensor] = list(algorithm.moves)
        stepped = [p for stepper in steppers.values() for p in stepper.parameters]
        self.parameters: list[torch.Tensor] = list({id(p): p for p in (*stepped, *self.moved)}.values())
        buffers = [buffer for network in networks for buffer in network.buffers()]
        self.buffers = [buffer for buffer in buffers if not torch.nn.parameter.is_lazy(buffer)]
        if not steppers:
            own = [p for network in networks for p in network.parameters()]
            self.moved = self.parameters = list({id(t): t for t in (*own, *self.buffers)}.values())
            self.buffers = []
        self.several = len(steppers) > 1 or bool(steppers and self.moved)
        self.optimizers = {name: stepper.optimizer for name, stepper in steppers.items() if stepper.optimizer is not None}

    def rates(self) -> dict[str, float]:
        """`lr`, and `grad_norm` before clipping, of the last step of each loss that has taken one; of several losses
        `lr.critic`, …."""
        found: dict[str, float] = {}
        for name, stepper in self.steppers.items():
            end = f".{name}" if len(self.steppers) > 1 else ""
            if stepper.norm is not None:
                found[f"grad_norm{end}"] = float(stepper.norm)
                if stepper.optimizer is not None and stepper.optimizer.param_groups:
                    found[f"lr{end}"] = float(stepper.optimizer.param_groups[0]["lr"])
        return found

    def report_unheld(self, is_others: Callable[[torch.Tensor], bool]) -> None:
        """Warns of parameters that should learn and that no optimiser holds; `is_others`: whether another task learns one."""
        algorithm = self.algorithm
        kept = [value for value in vars(algorithm).values() if isinstance(value, torch.optim.Optimizer)]
        own = [optimizer for stepper in self.steppers.values() for optimizer in stepper.optimizers]
        held = {id(p) for optimizer in (*own, *kept) for group in optimizer.param_groups for p in group["params"]}
        held |= set(map(id, self.moved))
        parameters = own_parameters(algorithm)
        for name, network in algorithm.networks().items():
            if not name.startswith("target"):  # a copy that follows
                parameters |= {f"{name}.{key}": parameter for key, parameter in network.named_parameters()}
        unheld = [name for name, parameter in parameters.items()
                  if parameter.requires_grad and id(parameter) not in held and not is_others(parameter)]
        if unheld and self.steppers:
            where = "from parameters()" if algorithm.losses is None else "in losses"
            warnings.warn(f"{self.owner()}: no optimiser holds {', '.join(unheld[:8])}{' …' * (len(unheld) > 8)}; yield them "
                          f"{where} of {type(algorithm).__name__}, or freeze them (requires_grad_(False)) if they are not "
                          "to learn", RuntimeWarning, stacklevel=2)

    def update(self, minibatch: Batch) -> tuple[dict[str, object], bool, dict[str, object], Diverged | None]:
        """One `learn` of the algorithm, with the optimiser steps that it asks for.

        A step whose loss or gradient is no finite number is left out, with all that `learn` would have done after it: the
        parameters, and what the forward pass had put into buffers, are as before it, bit for bit.

        Returns:
            What `learn` returned and yielded, without gradients; whether parameters have changed; and of a step that was left out
            what belongs to it, and what was wrong.

        Raises:
            ValueError: there is no loss with a gradient, or it depends on none of its parameters.
        """
        algorithm, taken = self.algorithm, not self.steppers
        values: dict[str, object] = {}
        out: Mapping[str, object] = {}
        saved = self._saved()
        self.stepped.clear()
        try:
            learned = algorithm.native_learn(minibatch) if self.native and has_native_learn(algorithm) else None
            for out in _parts(algorithm.learn(minibatch) if learned is None else learned):
                if not isinstance(out, (Mapping, Batch)):
                    raise ValueError(f"{self.owner()}: learn of {type(algorithm).__name__} gives {type(out).__name__}; expected "
                                     f"a mapping, such as {{{next(iter(self.steppers), 'return')!r}: …}}")
                self._check_moved()
                named = [name for name in self.steppers if name in out]
                if not named:
                    self._check_names(out)
                losses = {name: out[name] for name in named if self.steppers[name].loss.every == 1 or algorithm.due(name)}
                told: Mapping[str, object] = {}
                if losses:
                    told = self._step(losses)
                    self.stepped += losses
                    saved = self._saved() if self.several else saved
                values |= out
                values |= told
                taken = taken or bool(named)
            if not taken:
                self._refuse(out)
            self._check_moved()
        except Diverged as error:
            fault: Diverged | None = error
            taken = taken and bool(self.steppers)
            with torch.no_grad():
                for tensor, value in saved:
                    tensor.copy_(value)
        else:
            fault, out = None, {}
        algorithm.updates += taken
        done, lost = (values, out) if taken else ({}, {**values, **out})
        return _plain_values(done), taken, _plain_values(lost), fault

    def _check_names(self, out: Mapping[str, object]) -> None:
        """Refuse a mapping without a loss that was meant to have one."""
        for name, value in out.items() if self.steppers else ():
            if isinstance(value, torch.Tensor) and value.requires_grad and value.numel() == 1:
                raise ValueError(f"{self.owner()}: learn gives {name!r}, a number with a gradient that is none of the losses of "
                                 f"{type(self.algorithm).__name__} ({', '.join(map(repr, self.steppers))}); name it as one of "
                                 "them, or detach() what is only to be told")

    def _check_moved(self) -> None:
        if self.moved and not all(torch.isfinite(p).all() for p in self.moved):
            raise self._diverged("a weight, or a number in an array,", float("nan"))

    def _saved(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return copies of what a step that is left out must not have changed."""
        return [(tensor, tensor.detach().clone()) for tensor in (*self.moved, *self.buffers)]

    def _step(self, losses: Mapping[str, object]) -> dict[str, float]:
        """Backward passes and one optimiser step for each of the losses, which belong to one graph; their values."""
        values: dict[str, float] = {}
        parts = {}
        for name, loss in losses.items():
            parts[name] = loss if isinstance(loss, tuple) else (loss,)
            value = 0.0
            for part in parts[name] or ((),):
                if not isinstance(part, (torch.Tensor, WrittenLoss)) or not part.requires_grad:
                    self._refuse(losses, f"{'a loss' if name == 'loss' else repr(name)} without a gradient")
                if part.numel() != 1:
                    self._refuse(losses, f"{name!r} of shape {tuple(part.shape)}")
                value += part.item()
            values[name] = value
            if not isfinite(value):
                raise self._diverged(name, value)
        steppers = [self.steppers[name] for name in losses]
        for stepper in steppers:
            for optimizer in stepper.optimizers:
                optimizer.zero_grad()
        several = self.several
        whose = "its" if several else "the task's"
        for i, (name, stepper) in enumerate(zip(losses, steppers, strict=True)):
            # With several losses each touches its own parameters only; for one that is the same, and dearer.
            mine = [p for p in stepper.parameters if p.requires_grad] if several else None
            if mine != []:
                _backward(parts[name], inputs=mine, retain_graph=i + 1 < len(losses))
        norms = []
        for name, stepper in zip(losses, steppers, strict=True):
            # Also where nothing is clipped, for a finite loss may have an infinite slope: 13 µs of 590 for a 2×64 network.
            norm = clip_gradients(stepper.parameters, stepper.max_grad_norm, stepper.native)
            norms.append(norm)
            if not isfinite(norm):
                raise self._diverged("norm of the gradient", norm)
            if not norm and all(parameter.grad is None for parameter in stepper.parameters):
                raise ValueError(f"{self.owner()}: the {name} of {type(self.algorithm).__name__} reaches none of "
                                 f"{whose} parameters, so nothing would be learned; "
                                 "compute it with the algorithm's own model, without detach() or no_grad()")
        for stepper, norm in zip(steppers, norms, strict=True):
            stepper.step(self.algorithm.updates)
            stepper.norm = norm
        return values

    def _refuse(self, out: Mapping[str, object], what: str = "") -> None:
        wanted = " or ".join(map(repr, self.steppers))
        raise ValueError(f"{self.owner()}: learn returned {what or f'keys {sorted(out)}'}; expected {wanted}, a scalar tensor "
                         "with a gradient (not detached)")

    def _diverged(self, what: str, value: float) -> Diverged:
        before = " and ".join(map(repr, self.stepped))
        kept = f"the step of {before} was taken, and nothing after it" if before else "the weights are unchanged"
        return Diverged(f"{self.owner()}: {what} is {value} at optimiser step {self.algorithm.updates}; {kept}. "
                        "Lower the learning rate, set max_grad_norm, or look for extreme rewards")


def _backward(parts: tuple[torch.Tensor, ...], **options: object) -> None:
    """Backward passes of the parts of one loss, at the same time where this thread has others `BESIDE` it. The parts share no
    parameter, so the gradients are the same, bit for bit."""
    threads = BESIDE.get() if len(parts) > 1 else None
    others = [] if threads is None else [threads.submit(part.backward, **options) for part in parts[1:]]
    try:
        for part in parts[: 1 if others else None]:
            part.backward(**options)  # type: ignore[no-untyped-call]
    finally:
        for other in others:
            other.result()


def _parts(out: Any) -> Iterator[Mapping[str, object]]:
    """Yield what `learn` yields, one after the other, and what it returns."""
    if isinstance(out, Generator):
        out = yield from out
    if out is not None:
        yield out


def _plain_values(out: Mapping[str, object]) -> dict[str, object]:
    return {name: _plain(value) for name, value in out.items()}


def _plain(value: object) -> Any:
    if isinstance(value, tuple):  # the parts of a loss whose step was left out
        return sum(map(_plain, value))
    if isinstance(value, WrittenLoss):
        return value.item()
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def own_parameters(algorithm: object) -> dict[str, torch.nn.Parameter]:
    """The parameters that are attributes of an algorithm themselves, such as a temperature, by name."""
    return {name: value for name, value in vars(algorithm).items() if isinstance(value, torch.nn.Parameter)}


def clip_gradients(parameters: list[torch.nn.Parameter], max_norm: float | None, native: bool = False) -> float:
    """Scales all gradients by min(1, max_norm / norm), norm over all of them; None: not at all. Returns the norm before.

    `native`: by compiled loops of our own, where all are dense float32 on the CPU.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    if native and _native.dense(gradients, gradients):
        norm = _native.norm(gradients)
        if max_norm is not None and not norm <= max_norm:
            _native.scale(gradients, max_norm / (norm + 1e-6))
        return norm
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if max_norm is not None and not norm <= max_norm:  # also where it is no number
        torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
    return norm


def update_return(owner: str, n: int, taken: list[Step], left_out: list[Step]) -> dict[str, object]:
    """Return what an update of `n` rows returns: of each number the mean over the steps, as a float, and arrays [n, ...].

    Steps that were left out count where no other says anything, with 0 for what is no number in their arrays, and for rows of
    which they would have said something later. `left_out` is how many there were.
    """
    result: dict[str, object] = {}
    for name in dict.fromkeys(name for out, _ in (*taken, *left_out) for name in out):
        steps = [(out[name], places) for out, places in taken if name in out]
        lost = [(out[name], places) for out, places in left_out if name in out] if left_out else []
        first = (steps or lost)[0][0]
        if not isinstance(first, float) and np.ndim(first):
            lost = [(np.nan_to_num(to_numpy(value), posinf=0.0, neginf=0.0), places) for value, places in lost]
            silent = [places for out, places in left_out if name not in out]
            result[name] = _in_order(owner, name, n, lost + steps, silent)
        elif steps or not taken:
            result[name] = _mean([value for value, _ in steps or lost[-1:]])
    if left_out:
        result["left_out"] = float(len(left_out))
    return result


def _in_order(owner: str, name: str, n: int, parts: list[tuple[object, object]], silent: list[object]) -> Array:
    """The values of all rows, in the order of the update; of several for one row the last. Each must have one, but for those at
    `silent` places, which have 0."""
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
    for places in silent:
        said[slice(None) if places is None else to_numpy(places)] = True
    if not said.all():
        raise ValueError(f"{owner}: learn returned {name!r} for {said.sum()} of {n} rows; expected one for each, so let "
                         "minibatches(batch) give every row once at least")
    return out  # type: ignore[no-any-return]


def _mean(values: list[Any]) -> float:
    if len(values) == 1:
        return float(values[0])
    return float(torch.stack(values).mean() if isinstance(values[0], torch.Tensor) else np.mean(values))
