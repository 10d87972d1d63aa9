"""The rule by which tasks with `serve='auto'` are served: by replicas in the workers, or by the robot's process for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import cloudpickle

from parl_like.learning.algorithm import Algorithm
from parl_like.tasks.acting_copies import acting_state, tensors_of
from parl_like.tasks.task import ComputationTask

SMALL = 1 << 20
"""Bytes of parameters that act, up to which a task has replicas: each update sends them to every worker."""


def settle_serving(tasks: Mapping[str, ComputationTask]) -> dict[str, str]:
    """Settle how tasks are served that were told nothing about it; return a sentence on each of these, by its name."""
    said = {}
    for name, task in tasks.items():
        if task.options.serve == "auto":
            task.serve, why = choose_serving(task)
            who = "workers predict by replicas" if task.serve == "replica" else "the robot's process predicts for all workers"
            said[name] = f"task {name!r}: {who}, for {why}"
    return said


def choose_serving(task: ComputationTask) -> tuple[Literal["central", "replica"], str]:
    """Return how a task that was told nothing about it is served, and why, in words.

    It has replicas where these predict the same numbers as the task itself, bit for bit, and cost little: where predictions are
    one small compiled network, of parameters alone, and each row's are its own.
    """
    algorithm = task.algorithm
    if not isinstance(algorithm, Algorithm):
        return "central", "its algorithm is in an actor of its own"
    if isinstance(task.source, Algorithm):
        return "central", "it was given an algorithm, and no function that builds one"
    if task.predict_rule is not None:
        return "central", "its predict_rule says when predictions are made"
    if not task.runner.on_rows.is_native:
        return "central", "its predictions are no single compiled network"
    size = sum(tensor.nbytes for tensor in tensors_of(acting_state(algorithm)).values())
    if size > SMALL:
        return "central", f"its parameters have {size >> 10:,} KiB, above {SMALL >> 10:,}"
    try:
        cloudpickle.dumps(task.source)
    except Exception as error:  # noqa: BLE001  the user's function may hold anything
        return "central", f"what builds its algorithm cannot be sent to workers ({type(error).__name__})"
    return "replica", "its predictions are one small compiled network"
