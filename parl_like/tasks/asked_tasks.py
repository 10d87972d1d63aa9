"""AskedTasks: the tasks that one asks while it learns, and those whose rewards it learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from parl_like.interfaces import AskedTask
from parl_like.learning.algorithm import FIELDS
from parl_like.learning.device_copy import fetch
from parl_like.tasks.algorithm_runner import AlgorithmRunner
from parl_like.values.batch import Batch
from parl_like.values.spec import SpecError, leaves

OWN = "env"
"""The name under which `rewards` have the weight of the environment's own."""


class AskedTasks:
    """The questions of one task's learning to others, see `Algorithm.ask`.

    Args:
        owner: Gives the asking task's name for messages.
        runner: Of the asking task's algorithm.
        tasks: Whom it may ask, by name.
        rewards: Whose `reward` it learns from → weight, see `ComputationTask`.

    Attributes:
        fields: Of `Window.fields`, those that the tasks of `rewards` read.
        versions: Task → version of the parameters with which it answered last, in the update that is running.
        means: Task → mean of the rewards that it gave in that update.

    Raises:
        ValueError: a task of `rewards` predicts no `reward`, one number for each row, or such for rows in order alone, which are
            not what this one learns from. Or this one learns from no rewards of rows, or from several a row.
    """

    def __init__(self, owner: Callable[[], str], runner: AlgorithmRunner, tasks: Mapping[str, AskedTask],
                 rewards: Mapping[str, float] | None = None) -> None:
        self.owner, self.runner, self.tasks = owner, runner, dict(tasks)
        self.weights = {name: weight for name, weight in (rewards or {}).items() if name != OWN}
        self.own_weight = (rewards or {}).get(OWN, 1.0)
        learner = runner.algorithm
        if rewards and (not learner.takes_rewards or "to_go" in learner.window.fields):
            raise ValueError(f"{owner()}, rewards: {type(learner).__name__} learns from other numbers than the rewards of its "
                             "rows, so they would change nothing, or half of it; leave out rewards=")
        if self.weights and learner.window.n_step > 1:
            raise ValueError(f"{owner()}, rewards: {type(learner).__name__} learns from {learner.window.n_step} rewards a row, "
                             f"and those of {', '.join(self.weights)} are for single steps; give it n_step=1")
        for name in self.weights:
            if self.tasks[name].output_shapes.get("reward") != ():
                raise ValueError(f"{owner()}, rewards: task {name!r} predicts {self.tasks[name].output_shapes or 'nothing'}; "
                                 "expected `reward`, one number for each row")
            if self.tasks[name].algorithm.pays_in_order and not learner.window.in_order:
                raise ValueError(f"{owner()}, rewards: those of task {name!r} are for rows in order, each once, and "
                                 f"{type(learner).__name__} learns from random ones; give that task first_visits=False, or take "
                                 "an algorithm that learns from unrolls, such as PPO")
        self.fields = reward_fields(self.tasks, self.weights)
        self.versions: dict[str, int] = {}
        self.means: dict[str, float] = {}

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

    def pay(self, batch: Batch) -> Batch:
        """Put the weighted sum of all rewards in the place of the environment's. `rew` is [N], or [N, T] of sequences.

        Raises:
            ValueError: a row has several rewards, or lacks a field that a task of `rewards` reads.
        """
        if not self.weights and self.own_weight == 1.0:
            return batch
        window, rew = self.runner.algorithm.window, batch.rew
        if self.weights and rew.ndim != 1 + (window.rows > 1):
            raise ValueError(f"{self.owner()}: its rows have rewards {tuple(rew.shape)}, and those of {', '.join(self.weights)} "
                             "are for single steps; let the algorithm learn from one reward a row")
        total = rew if self.own_weight == 1.0 else self.own_weight * rew
        for name, weight in self.weights.items():
            reward = self.ask(name, {field: self._rows(batch, field, name) for field in self._read(name)}).reward
            self.means[name] = float(reward.mean())
            total = total + weight * reward.reshape(tuple(rew.shape))
        batch.rew = total
        return batch

    def _read(self, name: str) -> dict[str, None]:
        """Return the fields of a row that a task reads, without their leaves."""
        return dict.fromkeys(flat.split(".")[0] for flat in self.tasks[name].algorithm.model.inputs())

    def _rows(self, batch: Batch, field: str, name: str) -> Any:
        """Return a field of the rows, [N, …]; of sequences as [N · T, …]."""
        if field not in batch:
            raise ValueError(f"{self.owner()}: its rows have {', '.join(batch.keys())}, and task {name!r} reads {field!r} of "
                             "them to give a reward; such rows cannot be paid by it")
        return joined_axes(batch[field]) if batch.rew.ndim > 1 else batch[field]

    def take_report(self) -> dict[str, float]:
        """Return `version/x` and `reward/x` of each task x that has answered, and begin them anew."""
        report: dict[str, float] = {f"version/{name}": version for name, version in self.versions.items()}
        report |= {f"reward/{name}": mean for name, mean in self.means.items()}
        self.versions, self.means = {}, {}
        return report


def reward_fields(tasks: Mapping[str, AskedTask], names: Iterable[str]) -> tuple[str, ...]:
    """Return those of `Window.fields` that the tasks of these names read."""
    read = dict.fromkeys(field for name in names for field in tasks[name].algorithm.model.inputs())
    return tuple([field for field in read if field in FIELDS])


def joined_axes(value: Any) -> Any:
    """Return [N, T, …] as [N · T, …], of each leaf."""
    return value.reshape(-1, *value.shape[2:]) if isinstance(value, (torch.Tensor, np.ndarray)) else Batch(
        {key: joined_axes(part) for key, part in value.items()})
