"""ComputationWrapper: the two queues of one task; Communicator: an agent's end of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from parl_like.interfaces import ActingAgent, DriverPort
from parl_like.learning.fixed_settings import Alias
from parl_like.tasks.batch_rule import BatchRule
from parl_like.tasks.prediction_queue import PredictionQueue
from parl_like.tasks.queues import RequestQueue
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.tasks.tickets import Ticket
from parl_like.tasks.training_queue import TrainingQueue
from parl_like.values import plain
from parl_like.values.action_codec import ActionCodec
from parl_like.values.plain import State
from parl_like.values.spec import Array

Transport = DriverPort[Any, RequestQueue, Ticket]


class ComputationWrapper:
    """Prediction queue and training queue of one task.

    Args:
        task: The task to serve.
        mode: 'collect' for the robot's own agents, 'test' for an evaluation; travels with every prediction.
        training_rule: The helpers' default, where the task gives none.
        lock: Of both queues; None: one of their own.

    Attributes:
        codec: Maps the task's actions to those of the environment and back, by its model's action space.
    """

    ct, comms, prediction_q, training_q = Alias("task"), Alias("communicators"), Alias("predictions"), Alias("trainings")
    model_input_specs = Alias("predictions.specs")

    def __init__(self, task: ComputationTask, mode: Mode = "collect", training_rule: BatchRule | None = None,
                 lock: object = None) -> None:
        self.task, self.codec = task, ActionCodec(getattr(task.algorithm.model, "act_space", None))
        owner = f"task {task.name!r}"
        lock = threading.Lock() if lock is None else lock
        specs = [spec.owned_by(owner) for spec in task.algorithm.model.inputs().values()]
        self.predictions = PredictionQueue(task, task.predict_rule or BatchRule(), lock, mode, specs, self.codec)
        self.trainings = TrainingQueue(task, task.training_rule or training_rule or BatchRule(), lock)
        self.communicators: dict[str, Communicator] = {}
        self._joining = threading.Lock()

    def create_communicator(self, agent: ActingAgent, driver: Transport, role: str | None = None) -> Communicator:
        """The agent's end of the queues, or that of one of its roles; agents may join while others run.

        Raises:
            ValueError: an agent of that name has one already.
        """
        communicator = Communicator(self, agent, driver, role)
        with self._joining:
            known = self.communicators.setdefault(communicator.name, communicator)
        if known is not communicator:
            raise ValueError(f"{communicator.name} already has a communicator of task {self.task.name!r}; close() it first, or "
                             "give agents different ids")
        return communicator

    def state_dict(self) -> State:
        """Return what was counted, and the last training return."""
        return {"predict": self.predictions.counters.state_dict(), "learn": self.trainings.counters.state_dict(),
                "last_result": {name: float(value) for name, value in self.trainings.last_result.items()}}

    def load_state_dict(self, state: State) -> None:
        """Take over a `state_dict`; the rows that wait stay."""
        for queue in (self.predictions, self.trainings):
            queue.counters.load_state_dict({key: plain.whole(n) for key, n in plain.entries(state[queue.kind]).items()})
        self.trainings.last_result = plain.entries(state["last_result"])

    def summary(self) -> dict[str, float]:
        """Counters of both queues: 'predict/requests', 'predict/mean_batch', 'learn/compute_p50_s', …; 'learn/skipped': the
        task's `skipped`; 'learn/lr' and 'learn/grad_norm' of its last optimiser steps."""
        out: dict[str, float] = {}
        for queue in (self.predictions, self.trainings):
            out |= {f"{queue.kind}/{name}": value for name, value in queue.counters.summary(queue.rows).items()}
        rates = {f"learn/{name}": value for name, value in self.task.learned.step_rates().items()}
        return {**out, "learn/skipped": self.task.skipped, **rates}


class Communicator:
    """Transport between one helper and one wrapper, which makes it (`create_communicator`).

    `predict` and `learn` block until the reply is there. `put_prediction` and `put_training` return a `Ticket` at once, and
    `get` waits for it; several tickets of one agent may be open, each gets its own reply.
    """

    agent_id, prediction_q, training_q = Alias("name"), Alias("wrapper.predictions"), Alias("wrapper.trainings")
    put_prediction_data, put_training_data = Alias("put_prediction"), Alias("put_training")
    get_prediction_return, get_training_return = Alias("get"), Alias("get")

    def __init__(self, wrapper: ComputationWrapper, agent: ActingAgent, driver: Transport, role: str | None = None) -> None:
        self.wrapper, self.agent, self.task = wrapper, agent, wrapper.task.name
        self.name = str(agent) if role is None else f"{agent}, {role}"
        self._driver, self._put = driver, driver.put
        self._predictions, self._trainings = wrapper.predictions, wrapper.trainings
        self._ticket = self._new_ticket()  # reused: a blocking prediction is never open twice

    def _new_ticket(self, rows: int = 0) -> Ticket:
        ticket = Ticket(self.agent, self._driver.waiter())
        ticket.rows = rows
        return ticket

    def predict(self, values: tuple[object, ...]) -> Ticket:
        """Ask for one row, and wait.

        Args:
            values: An array, or what numpy makes one of, for each of `wrapper.predictions.specs`, in their order; of the shape
                and dtype that the spec says, without an axis of rows.

        Returns:
            The ticket, which the next call uses again: row `start` of its `out` and `acts` is the reply.

        Raises:
            SpecError: a value does not fit its field; nothing was sent.
            TaskFailed: the task raised while it served the batch.
            Stopped: the robot stopped first.
        """
        ticket = self._ticket
        try:
            self._put(self._predictions, ticket, values, True)
        except Exception:
            raise  # refused, or answered with an error
        except BaseException:
            # An interrupted request may still lie in the queue, and two requests on one ticket would get one reply.
            self._ticket = self._new_ticket()
            self.abandon(ticket)
            raise
        return ticket

    def share(self) -> None:
        """Several threads ask from now on: each prediction has a ticket of its own."""
        def predict(values: tuple[object, ...]) -> Ticket:
            ticket = self.put_prediction(values)
            self._driver.wait(ticket)
            return ticket

        self.predict = predict  # type: ignore[method-assign]

    def predict_rows(self, values: tuple[Array, ...], rows: int) -> list[Ticket]:
        """Ask for several rows, and wait. A request above `max_rows` is split.

        Args:
            values: As for `predict`, with an axis of `rows` in front.

        Returns:
            The tickets of the parts, in the order of the rows; `parl_like.tasks.tickets.joined` makes arrays [rows, ...] of them.

        Raises:
            ValueError: fewer rows than one.
            SpecError, TaskFailed, Stopped: as for `predict`.
        """
        if rows < 1:
            raise ValueError(f"{self.agent}, task {self.task!r}: a prediction of {rows} rows; expected at least 1")
        limit = self._predictions.max_rows or rows
        tickets = [self._new_ticket(min(limit, rows - start)) for start in range(0, rows, limit)]
        try:
            for i, ticket in enumerate(tickets):
                part = tuple(value[i * limit : (i + 1) * limit] for value in values) if limit < rows else values
                self._put(self._predictions, ticket, part, ticket is tickets[-1])  # the last waits, and so for those before it
            for ticket in tickets[:-1]:
                self._driver.wait(ticket)
        except BaseException:
            for ticket in tickets:
                self.abandon(ticket)
            raise
        return tickets

    def put_prediction(self, values: tuple[object, ...]) -> Ticket:
        """Ask for one row, as `predict` does, and return its own ticket at once; `get` waits for the reply.

        Raises:
            SpecError, Stopped: as for `predict`; nothing was sent.
        """
        ticket = self._new_ticket()
        self._put(self._predictions, ticket, values, False)
        return ticket

    def learn(self, rows: Mapping[str, Array]) -> dict[str, object]:
        """Send rows to learn from, and wait.

        Args:
            rows: Flat field name → [N, ...], N at least 1 and the same for all. The first request of a batch must fit the model's
                inputs in shape and dtype, the others the first.

        Returns:
            The training return: name → metric, or the N rows of an array that has one for each.

        Raises:
            ValueError, SpecError: the fields do not fit; nothing was sent.
            TaskFailed: the task raised while it learned. Dropped: a full queue gave the rows up. Stopped: the robot stopped
                first.
        """
        return self.get(self.put_training(rows))

    def put_training(self, rows: Mapping[str, Array], steps: int = 1, scheduled: bool = True) -> Ticket:
        """`learn` without waiting, unless the queue is full (`BatchRule.max_queued`): then until it is served.

        Args:
            steps, scheduled: Whom the update waits for, see `Ticket`.

        Raises:
            ValueError: no field, no row, or fields of different lengths, which would shift the rows of everybody behind them.
        """
        lengths = {name: len(value) for name, value in rows.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(f"{self.agent}, task {self.task!r}: training fields with rows {lengths}; expected the same number "
                             "≥ 1 of each")
        ticket = self._new_ticket(next(iter(lengths.values())))
        ticket.steps, ticket.scheduled = steps, scheduled
        self._put(self._trainings, ticket, rows, self._trainings.is_full())
        return ticket

    def get(self, ticket: Ticket) -> dict[str, object]:
        """Wait for a ticket.

        Returns:
            Of a prediction: flat output name → its rows [N, ...]. Of an update: metrics, and its own N rows of every array.

        Raises:
            TaskFailed, Dropped, Stopped: see `learn`.
        """
        self._driver.wait(ticket)
        rows = slice(ticket.start, ticket.start + (ticket.rows or 1))
        return {name: value[rows] if getattr(value, "ndim", 0) else value for name, value in ticket.out.items()}

    def is_served(self, ticket: Ticket) -> bool:
        """Return whether a request has its reply, or its error; `get` then returns at once."""
        return self._driver.is_served(ticket)

    def check_caller(self) -> None:
        """Raises WrongCaller where a request would (`Driver.check_caller`)."""
        self._driver.check_caller(self.agent)

    def abandon(self, ticket: Ticket) -> None:
        """Gives up waiting for a request: it is still served, its reply is dropped, and counted as late."""
        if ticket.queue is not None and not ticket.abandoned and not self._driver.is_served(ticket):
            ticket.abandoned = True
            ticket.queue.abandoned += 1

    def close(self) -> None:
        """Frees the agent's name; where another has taken it since, nothing happens."""
        if self.wrapper.communicators.get(self.name) is self:
            del self.wrapper.communicators[self.name]
