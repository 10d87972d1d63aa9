"""Which task owns which parameter: a shared one has one owner, whose optimiser all of its sharers step."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping

import torch

from parl_like.learning.algorithm import Algorithm, Loss
from parl_like.learning.model import ArrayModel
from parl_like.learning.optimizer_steps import Optimization, Stepper
from parl_like.values.errors import unknown

_OWNER = "_parl_like_owner"
"""Attribute of a parameter: a weak reference to its owner."""


class LearnedParameters:
    """The parameters that the learning of one task changes, and what goes with them.

    Two optimisers on one tensor would each keep moments for half of its gradients, so a shared parameter has one owner: the task
    that claimed it first. Its sharers step the owner's optimiser for it, and all of them have one lock.

    Args:
        owner: Gives the task's name for messages.

    Attributes:
        lock: Held while they are read or changed. Tasks that share some, or ask each other, have one.
        version: How many optimiser steps have changed them, the task's own and those of `sharers`; see `ComputationTask`.
        sharers: Those of the tasks that share some with this one.
        optimization: The optimiser steps; None before `claim`.
    """

    def __init__(self, owner: Callable[[], str]) -> None:
        self.owner = owner
        self.lock = threading.RLock()
        self.version = 0
        self.sharers: weakref.WeakSet[LearnedParameters] = weakref.WeakSet()
        self.optimization: Optimization | None = None

    def new_version(self) -> None:
        """Count a change of the parameters, here and for those who share some."""
        self.version += 1
        if self.sharers.data:  # type: ignore[attr-defined]  # the length of a WeakSet costs 1 µs
            for sharer in self.sharers:
                sharer.version += 1

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Loss → the optimiser of those of its parameters which this task owns."""
        return {} if self.optimization is None else self.optimization.optimizers

    def step_rates(self) -> dict[str, float]:
        """See `Optimization.rates`."""
        return {} if self.optimization is None else self.optimization.rates()

    def optimized(self) -> list[torch.Tensor]:
        """Return all parameters, of any shape, also those that another task owns."""
        return [] if self.optimization is None else self.optimization.parameters

    def _steppers(self) -> dict[str, Stepper]:
        return {} if self.optimization is None else self.optimization.steppers

    @property
    def rates(self) -> dict[str, float]:
        """Loss → the learning rate that its optimiser's groups were set by, where it is a number.

        Raises:
            ValueError: what is assigned are no numbers by name.
        """
        return {name: float(stepper.rate) for name, stepper in self._steppers().items() if stepper.rate is not None}

    @rates.setter
    def rates(self, value: object) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(rate, float) for rate in value.values()):
            raise ValueError(f"{self.owner()}, rates: expected numbers by the names of losses, got {value!s:.80}")
        for name, stepper in self._steppers().items():
            stepper.rate = value.get(name)  # a rate of this robot that differs is written at its next step

    def claim(self, algorithm: Algorithm, native: bool = False) -> Optimization:
        """Make the optimisers over the algorithm's parameters that no other living task owns, and find the owners of the rest.

        Args:
            native: Whether compiled loops of our own take the steps, and learn what the algorithm has written out for them.

        Raises:
            TypeError: `losses` is no dict of `Loss`. ValueError: two losses of the algorithm name the same parameter.
        """
        steppers: dict[str, Stepper] = {}
        owners: list[LearnedParameters] = []
        seen = set()
        for name, loss in self._losses(algorithm).items():
            mine, of_loss = [], []
            for parameter in loss.parameters:
                if id(parameter) in seen:
                    raise ValueError(f"{self.owner()}: two losses of {type(algorithm).__name__} name one parameter, of shape "
                                     f"{tuple(parameter.shape)}, the second is {name!r}; name it in one of them, which then "
                                     "moves it")
                seen.add(id(parameter))
                owner = self._owner_of(parameter)
                if owner is not self and owner not in of_loss:
                    of_loss.append(owner)
                if owner is not self and not any(one.holds({id(parameter)}) for one in owner._steppers().values()):
                    owner = self._owner_of(parameter, take=True)  # its `learn` changes it: nobody's optimiser holds it yet
                if owner is self:
                    mine.append(parameter)
            shared = {id(p) for p in loss.parameters} - {id(p) for p in mine}
            others = [stepper for owner in of_loss for stepper in owner._steppers().values() if stepper.holds(shared)]
            steppers[name] = Stepper(self.owner(), loss, mine, others, algorithm.adam_eps, algorithm)
            if native:
                steppers[name].step_natively()
            owners += [owner for owner in of_loss if owner not in owners]
        optimization = self.optimization = Optimization(self.owner, algorithm, steppers)
        optimization.native = native
        # Whoever else changes them shall know of each new version, and wait for it.
        owners += [owner for tensor in optimization.moved if (owner := self._owner_of(tensor)) is not self
                   and owner not in owners]
        if owners:
            self._share_with(owners)
        return optimization

    def _losses(self, algorithm: Algorithm) -> Mapping[str, Loss]:
        """Return the algorithm's losses by name: of several those that it names, else the one loss."""
        losses: object = {} if isinstance(algorithm.model, ArrayModel) else algorithm.losses
        if losses is None:
            losses = {"loss": Loss(algorithm.parameters(), "lr", "max_grad_norm",
                                   optimizer=lambda mine, lr: algorithm.optimizer(mine))}
        if not isinstance(losses, Mapping) or not all(isinstance(loss, Loss) for loss in losses.values()):
            raise TypeError(f"{self.owner()}: losses of {type(algorithm).__name__} is {losses!r:.80}; expected a dict from names "
                            "to Loss(…)")
        for name, loss in losses.items():
            for named in (loss.lr, loss.max_grad_norm, loss.every):
                if type(named) is str and named not in vars(algorithm):
                    raise ValueError(f"{self.owner()}, loss {name!r}: {unknown('attribute', named, vars(algorithm))} of "
                                     f"{type(algorithm).__name__}; set it in the constructor")
        return losses

    def _share_with(self, owners: list[LearnedParameters]) -> None:
        """Become a sharer of those who own or share some of the parameters, and take their lock."""
        tensors = {id(p) for p in self.optimized()}
        for other in {*owners, *(sharer for owner in owners for sharer in owner.sharers)} - {self}:
            if any(id(p) in tensors for p in other.optimized()):
                other.sharers.add(self)
                self.sharers.add(other)
        related = [self]  # those that share parameters with it, those that share with these, and so on
        for one in related:
            related += [sharer for sharer in one.sharers if sharer not in related]
            one.lock = owners[0].lock

    def is_others(self, tensor: object) -> bool:
        """Return whether another living task owns it."""
        reference = getattr(tensor, _OWNER, None)
        return reference is not None and reference() not in (None, self)

    def _owner_of(self, tensor: object, take: bool = False) -> LearnedParameters:
        """Return whose it is: this task's from now on, where it was nobody's, or to `take` it."""
        reference = getattr(tensor, _OWNER, None)
        owner: LearnedParameters | None = None if reference is None or take else reference()
        if owner is None:
            setattr(tensor, _OWNER, weakref.ref(self))
        return self if owner is None else owner
