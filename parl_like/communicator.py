"""Communicator: the agent's end of a task's two queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from parl_like.computation_task import ComputationTask
from parl_like.queues import PredictionQueue, Ticket, TrainingQueue
from parl_like.spec import Array, Spec


class Link(Protocol):
    """What a driver provides: how an agent waits for a ticket, and how it hears that the ticket is served."""

    def waiter(self) -> Any:
        """A fresh object for one ticket's waiting."""

    def put(self, queue: PredictionQueue | TrainingQueue, ticket: Ticket, values: Any, wait: bool) -> None:
        """Queues the request and, with `wait`, returns when it is served; raises `ticket.error`."""

    def wait(self, ticket: Ticket) -> None:
        """Returns when a request that was put without waiting is served, at once where it was waited for before; raises
        `ticket.error`."""

    def is_served(self, ticket: Ticket) -> bool: ...


class Queues(Protocol):
    """What a communicator knows of a `ComputationWrapper`."""

    task: ComputationTask
    predictions: PredictionQueue
    trainings: TrainingQueue

    @property
    def request_specs(self) -> list[Spec]: ...

    def remove_communicator(self, communicator: Communicator) -> None: ...


class Communicator:
    """Transport between one helper and one wrapper. Made by `ComputationWrapper.create_communicator`.

    `predict` and `learn` block until the reply is there. `put_prediction` and `put_training` return a `Ticket` at once, and
    `get` waits for it; several tickets of one agent may be open, each gets its own reply.
    """

    def __init__(self, wrapper: Queues, agent: Any, link: Link) -> None:
        self.wrapper = wrapper
        self.agent = agent
        self.task = wrapper.task.name
        self._link = link
        self._put = link.put
        self._predictions = wrapper.predictions
        self._trainings = wrapper.trainings
        self._ticket = Ticket(agent, link.waiter())  # reused: a blocking prediction is never open twice

    def predict(self, values: tuple[Any, ...]) -> Ticket:
        """Asks for one row, `values` in the order of `wrapper.request_specs`, and waits.

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
            self._ticket = Ticket(self.agent, self._link.waiter())
            self.abandon(ticket)
            raise
        return ticket

    def predict_rows(self, values: tuple[Array, ...], rows: int) -> list[Ticket]:
        """The same for arrays [rows, ...]. A request above `max_rows` is split; the replies come in order."""
        if rows < 1:
            raise ValueError(f"{self.agent}, task {self.task!r}: a prediction of {rows} rows; expected at least 1")
        limit = self._predictions.max_rows or rows
        tickets = []
        try:
            for start in range(0, rows, limit):
                ticket = Ticket(self.agent, self._link.waiter())
                ticket.rows = min(limit, rows - start)
                tickets.append(ticket)
                part = tuple(value[start : start + limit] for value in values) if limit < rows else values
                self._put(self._predictions, ticket, part,
                          start + limit >= rows)  # the last part waits, and so for those before it
            for ticket in tickets[:-1]:
                self._link.wait(ticket)
        except BaseException:
            for ticket in tickets:
                self.abandon(ticket)
            raise
        return tickets

    def put_prediction(self, values: tuple[Any, ...]) -> Ticket:
        """`predict` without waiting."""
        ticket = Ticket(self.agent, self._link.waiter())
        self._put(self._predictions, ticket, values, False)
        return ticket

    def learn(self, rows: Mapping[str, Array]) -> dict[str, Any]:
        """Sends a learning batch, flat field name → [N, ...], and waits for the training return: metrics, and arrays of N
        rows."""
        return self.get(self.put_training(rows))

    def put_training(self, rows: Mapping[str, Array]) -> Ticket:
        """`learn` without waiting, unless the queue is full (`BatchRule.max_queued`): then until it is served.

        Raises:
            ValueError: no field, no row, or fields of different lengths, which would shift the rows of everybody behind them.
        """
        lengths = {name: len(value) for name, value in rows.items()}
        if not lengths or len(set(lengths.values())) > 1 or not next(iter(lengths.values())):
            raise ValueError(f"{self.agent}, task {self.task!r}: training fields with rows {lengths}; expected the same number "
                             "≥ 1 of each")
        ticket = Ticket(self.agent, self._link.waiter())
        ticket.rows = next(iter(lengths.values()))
        self._put(self._trainings, ticket, rows, self._trainings.is_full())
        return ticket

    def get(self, ticket: Ticket) -> dict[str, Any]:
        """Waits for a ticket. A prediction: flat output name → its rows. Training: metrics, and its own rows of every array."""
        self._link.wait(ticket)
        rows = slice(ticket.start, ticket.start + (ticket.rows or 1))
        return {name: value[rows] if getattr(value, "ndim", 0) else value for name, value in ticket.out.items()}

    def is_served(self, ticket: Ticket) -> bool:
        return self._link.is_served(ticket)

    def abandon(self, ticket: Ticket) -> None:
        """Gives up waiting for a request: it is still served, its reply is dropped, and counted as late."""
        if ticket.queue is not None and not ticket.abandoned and not self._link.is_served(ticket):
            ticket.abandoned = True
            ticket.queue.abandoned += 1

    def close(self) -> None:
        """Unregisters the agent; its name may then be used again."""
        self.wrapper.remove_communicator(self)
