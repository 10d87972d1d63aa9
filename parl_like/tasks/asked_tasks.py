"""AskedTasks: the tasks that one asks while it learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from parl_like.interfaces import AskedTask
from parl_like.learning.device_copy import fetch
from parl_like.tasks.algorithm_runner import AlgorithmRunner
from parl_like.values.batch import Batch
from parl_like.values.spec import SpecError, leaves


class AskedTasks:
    """The questions of one task's learning to others, see `Algorithm.ask`.

    Args:
        owner: Gives the asking task's name for messages.
        runner: Of the asking task's algorithm.
        tasks: Whom it may ask, by name.

    Attributes:
        versions: Task → version of the parameters with which it answered last, in the update that is running.
    """

    def __init__(self, owner: Callable[[], str], runner: AlgorithmRunner, tasks: Mapping[str, AskedTask]) -> None:
        self.owner, self.runner, self.tasks = owner, runner, dict(tasks)
        self.versions: dict[str, int] = {}

    def ask(self, name: str, inputs: Mapping[str, object]) -> Batch:
        """Return what the task of this name predicts for the inputs, where this task's rows are.

        Raises:
            ValueError: this task does not declare that it asks it. SpecError: the inputs are not those of its model.
        """
        if name not in self.tasks:
            raise ValueError(f"{self.owner()} asks {name!r}, which it does not declare (asks={list(self.tasks)})")
        rows = fetch(dict(leaf for field, value in inputs.items() for leaf in leaves(value, field)))
        specs = self.tasks[name].algorithm.model.inputs()
        got = {field: value.shape[1:] for field, value in rows.items()}
        if got != (expected := {field: spec.shape for field, spec in specs.items()}):
            raise SpecError(f"{self.owner()} asks {name!r}: expected rows of {expected}, got {got}")
        out, self.versions[name] = self.tasks[name].act(rows, "update")
        if self.runner.has_modes:
            self.runner.set_update_modes()  # again, where a network is of both
        # Those from a Ray actor are read-only, and tensors are made of these.
        return self.runner.sent({field: np.require(value, requirements="W") for field, value in out.items()})

    def take_versions(self) -> dict[str, int]:
        """Return `versions`, and begin them anew."""
        taken, self.versions = self.versions, {}
        return taken
