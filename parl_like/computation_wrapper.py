"""ComputationWrapper: the two queues of one task, and who may ask through them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from parl_like.communicator import Communicator, Link
from parl_like.computation_task import BatchRule, ComputationTask, Mode
from parl_like.queues import PredictionQueue, TrainingQueue
from parl_like.spec import Spec


class ComputationWrapper:
    """Prediction queue and training queue of one task.

    Args:
        task: The task to serve.
        mode: 'collect' for the robot's own agents, 'test' for an evaluation; travels with every prediction.
        training_rule: The helpers' default, where the task gives none.
        lock: Of both queues; None: one of their own.
    """

    def __init__(self, task: ComputationTask, mode: Mode = "collect", training_rule: BatchRule | None = None,
                 lock: Any = None) -> None:
        self.task = task
        owner = f"task {task.name!r}"
        lock = threading.Lock() if lock is None else lock
        specs = [spec.owned_by(owner) for spec in task.algorithm.model.inputs().values()]
        self.predictions = PredictionQueue(task, task.predict_rule or BatchRule(), lock, mode, specs)
        self.trainings = TrainingQueue(task, task.training_rule or training_rule or BatchRule(), lock)
        self.communicators: dict[str, Communicator] = {}

    @property
    def request_specs(self) -> list[Spec]:
        """The fields of one prediction request, in order."""
        return self.predictions.specs

    def create_communicator(self, agent: Any, link: Link) -> Communicator:
        """The agent's end of the queues; agents may join while others run.

        Raises:
            ValueError: an agent of that name has one already.
        """
        name = str(agent)
        communicator = Communicator(self, agent, link)
        # setdefault is one step of the interpreter, so threads that register at the same time need no lock.
        if self.communicators.setdefault(name, communicator) is not communicator:
            raise ValueError(f"{name} already has a communicator of task {self.task.name!r}; close() it first, or give agents "
                             "different ids")
        return communicator

    def remove_communicator(self, communicator: Communicator) -> None:
        """Frees the agent's name. A communicator that was removed before is left alone, and so is its successor."""
        name = str(communicator.agent)
        if self.communicators.get(name) is communicator:
            del self.communicators[name]

    def state_dict(self) -> dict[str, Any]:
        """What was counted, and the last training return."""
        return {"predict": self.predictions.counters.state_dict(), "learn": self.trainings.counters.state_dict(),
                "last_result": {name: float(value) for name, value in self.trainings.last_result.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.predictions.counters.load_state_dict(state["predict"])
        self.trainings.counters.load_state_dict(state["learn"])
        self.trainings.last_result = state["last_result"]

    def summary(self) -> dict[str, float]:
        """Counters of both queues: 'predict/requests', 'predict/mean_batch', 'learn/compute_p50_s', …; 'learn/skipped': the
        task's `skipped`."""
        out: dict[str, float] = {}
        for queue in (self.predictions, self.trainings):
            out |= {f"{queue.kind}/{name}": value for name, value in queue.counters.summary(queue.rows).items()}
        return {**out, "learn/skipped": self.task.skipped}
