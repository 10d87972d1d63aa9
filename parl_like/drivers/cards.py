"""What stands for a task and its algorithm where the networks are not: in a worker; where the robot is, if a Ray actor has
them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from parl_like.acting import ActingCopies
from parl_like.computation_task import ComputationTask

PLAIN = (bool, int, float, str, type(None))


def plain_of(algorithm: Any) -> dict[str, Any]:
    """Its plain attributes, such as `gamma`."""
    return {name: value for name, value in vars(algorithm).items() if isinstance(value, PLAIN)}


class AlgorithmCard:
    """What helpers ask of an algorithm that is elsewhere: window, explorer, plain attributes, the spaces and specs of its model.

    Args:
        elsewhere: For the error of whoever asks for more: where it is, what is known here, and whom to ask.
    """

    def __init__(
        self, algorithm: Any,
        elsewhere: str = "the task is in the robot's process; a worker knows the spaces, the window, the explorer and plain "
                         "attributes of its algorithm. Ask the task (helper.predict, helper.ask), or use another driver",
    ) -> None:
        model = algorithm.model
        self.__dict__.update(plain_of(algorithm))
        self.window = algorithm.window
        self.model = SimpleNamespace(obs_space=model.obs_space, act_space=model.act_space, act_specs=dict(model.act_specs),
                                     inputs=dict(model.inputs()).copy)
        self._explorer, self._kind, self._elsewhere = algorithm.explorer(), type(algorithm).__name__, elsewhere

    def explorer(self) -> Any:
        return self._explorer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"{self.__dict__.get('_kind')}.{name}: {self.__dict__.get('_elsewhere')}")


class Replica(ComputationTask):
    """A task in a worker: it predicts, and learns nowhere but in the robot's process."""

    def claim(self) -> None:
        self._optimization = None


class TaskCard:
    """A task without its networks, for a worker's helpers and queues."""

    def __init__(self, task: ComputationTask) -> None:
        self.name, self.helper, self.train, self.on_error = task.name, task.helper, task.train, task.on_error
        self.predict_rule, self.training_rule = task.predict_rule, task.training_rule
        self.output_shapes = dict(task.output_shapes)
        self.version, self.learns = task.version, task.learns
        self.algorithm = AlgorithmCard(task.algorithm)
        self.serve, self.sync_every, self.bisect = task.serve, task.sync_every, task.bisect
        self.source = task._source if task.serve == "replica" else None

    def make(self, seed: np.random.SeedSequence) -> Any:
        """What the worker's wrappers serve or send for: this card; of a replica a task with networks of its own, which get their
        parameters later."""
        if self.source is None:
            return self
        task = Replica(self.source, self.helper, predict_rule=self.predict_rule, training_rule=self.training_rule,
                       on_error=self.on_error, train=self.train, serve="replica", sync_every=self.sync_every, bisect=self.bisect)
        task.name, task.learns = self.name, self.learns
        task.build(seed)
        task.acting = ActingCopies(task.algorithm, self.version)
        return task
