"""Which task owns which parameter: a shared one has one owner, whose optimiser all of its sharers step."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from parl_like.interfaces import TrainedTask
from parl_like.learning.algorithm import Loss
from parl_like.learning.model import ArrayModel
from parl_like.learning.optimizer_steps import Optimization, Stepper
from parl_like.values.errors import unknown


def claim(task: TrainedTask) -> Optimization:
    """Makes the optimisers over the parameters that no other living task owns, and finds the owners of the rest.

    Two optimisers on one tensor would each keep moments for half of its gradients, so a shared parameter has one owner: the task
    that claimed it first. Its sharers step the owner's optimiser for it, and all of them have one lock.

    Raises:
        ValueError: two losses of the algorithm name the same parameter.
    """
    algorithm, steppers, owners, seen = task.algorithm, {}, [], set()
    losses = {} if isinstance(algorithm.model, ArrayModel) else algorithm.losses
    if losses is None:
        losses = {"loss": Loss(algorithm.parameters(), "lr", "max_grad_norm",
                               optimizer=lambda mine, lr: algorithm.optimizer(mine))}
    if not isinstance(losses, Mapping) or not all(isinstance(loss, Loss) for loss in losses.values()):
        raise TypeError(f"{task.owner()}: losses of {type(algorithm).__name__} is {losses!r:.80}; expected a dict from names to "
                        "Loss(…)")
    for name, loss in losses.items():
        for named in (loss.lr, loss.max_grad_norm, loss.every):
            if type(named) is str and named not in vars(algorithm):
                raise ValueError(f"{task.owner()}, loss {name!r}: {unknown('attribute', named, vars(algorithm))} of "
                                 f"{type(algorithm).__name__}; set it in the constructor")
        mine, of_loss = [], []
        for parameter in loss.parameters:
            if id(parameter) in seen:
                raise ValueError(f"{task.owner()}: two losses of {type(algorithm).__name__} name one parameter, of shape "
                                 f"{tuple(parameter.shape)}, the second is {name!r}; name it in one of them, which then moves it")
            seen.add(id(parameter))
            owner = owner_of(parameter, task)
            if owner is not task and owner not in of_loss:
                of_loss.append(owner)
            if owner is not task and not any(parameter is p for optimizer in owner.optimizers.values()
                                             for group in optimizer.param_groups for p in group["params"]):
                owner = owner_of(parameter, task, take=True)  # its `learn` changes it: nobody's optimiser holds it yet
            if owner is task:
                mine.append(parameter)
        shared = {id(p) for p in loss.parameters} - {id(p) for p in mine}
        others = [stepper for owner in of_loss for stepper in owner.steppers()
                  if any(id(p) in shared for group in stepper.optimizer.param_groups for p in group["params"])]
        steppers[name] = Stepper(task.owner(), loss, mine, others, algorithm.adam_eps, algorithm)
        owners += [owner for owner in of_loss if owner not in owners]
    optimization = Optimization(task.owner, algorithm, steppers)
    # Whoever else changes them shall know of each new version, and wait for it.
    owners += [owner for tensor in optimization.moved if (owner := owner_of(tensor, task)) is not task and owner not in owners]
    if owners:
        tensors = {id(p) for p in optimization.parameters}
        for other in {*owners, *(sharer for owner in owners for sharer in owner.sharers)} - {task}:
            if any(id(p) in tensors for p in other.optimized()):
                other.sharers.add(task)
                task.sharers.add(other)
        related = [task]  # those that share parameters with it, those that share with these, and so on
        for one in related:
            related += [sharer for sharer in one.sharers if sharer not in related]
            one.lock = owners[0].lock
    return optimization


def owner_of(tensor: Any, task: TrainedTask, take: bool = False) -> TrainedTask:
    """Whose it is: `task`'s from now on, where it was nobody's, or to `take` it."""
    reference = getattr(tensor, "_parl_like_owner", None)
    owner = None if reference is None or take else reference()
    if owner is None:
        tensor._parl_like_owner = weakref.ref(task)
    return task if owner is None else owner
