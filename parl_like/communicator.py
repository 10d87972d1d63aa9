"""Communicator: the agent's end of a task's two queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from parl_like.spec import Array

if TYPE_CHECKING:
    from parl_like.computation_wrapper import ComputationWrapper, PredictionQueue, TrainingQueue


class Ticket:
    """One request and, once it is served, its reply.

    Attributes:
        agent: Whose request it is.
        rows: Rows asked for.
        start: First row of this request in its batch.
        out: Flat output name → array of the whole batch; rows `start` … `start` + `rows` − 1 are the reply.
        acts: The batch's actions as the environment takes them, one entry per row; None if the task gives no actions.
        error: Raised instead of a reply.
        version: `ComputationTask.version` of the parameters that made the reply.
    """

    __slots__ = ("agent", "rows", "start", "out", "acts", "error", "version", "waiter", "counted", "kind")

    def __init__(self, agent: Any, waiter: Any) -> None:
        self.agent = agent
        self.waiter = waiter
        self.rows = 0
        self.start = 0
        self.out: Any = None
        self.acts: Any = None
        self.error: BaseException | None = None
        self.version = 0
        self.counted = False  # threads: the agent waits for this ticket and is not counted as acting
        self.kind = ""


class Link(Protocol):
    """What a driver provides: how an agent waits for a ticket, and how it hears that the ticket is served."""

    def waiter(self) -> Any:
        """A fresh object for one ticket's waiting."""

    def put(self, queue: PredictionQueue | TrainingQueue, ticket: Ticket, values: Any, wait: bool) -> None:
        """Queues the request and, with `wait`, returns when it is served; raises `ticket.error`."""

    def wait(self, ticket: Ticket) -> None:
        """Returns when a request that was put without waiting is served; raises `ticket.error`."""

    def is_served(self, ticket: Ticket) -> bool: ...


class Communicator:
    """Transport between one helper and one wrapper. Made by `ComputationWrapper.create_communicator`.

    `predict` and `learn` block until the reply is there. `put_prediction` and `put_training` return a `Ticket` at once, and
    `get` waits for it; several tickets of one agent may be open, each gets its own reply.
    """

    def __init__(self, wrapper: ComputationWrapper, agent: Any, link: Link) -> None:
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
        self._put(self._predictions, ticket, values, True)
        return ticket

    def predict_rows(self, values: tuple[Array, ...], rows: int) -> list[Ticket]:
        """The same for arrays [rows, ...]. A request above `max_rows` is split; the replies come in order."""
        limit = self._predictions.max_rows or rows
        tickets = []
        for start in range(0, rows, limit):
            part = tuple(value[start : start + limit] for value in values) if limit < rows else values
            ticket = Ticket(self.agent, self._link.waiter())
            ticket.rows = min(limit, rows - start)
            self._put(self._predictions, ticket, part, False)
            tickets.append(ticket)
        for ticket in tickets:
            self._link.wait(ticket)
        return tickets

    def put_prediction(self, values: tuple[Any, ...]) -> Ticket:
        ticket = Ticket(self.agent, self._link.waiter())
        self._put(self._predictions, ticket, values, False)
        return ticket

    def learn(self, rows: Mapping[str, Array]) -> dict[str, Any]:
        """Sends a learning batch, flat field name → [N, ...], and waits for the training return: metrics, and arrays of N rows."""
        return self.get(self.put_training(rows))

    def put_training(self, rows: Mapping[str, Array]) -> Ticket:
        ticket = Ticket(self.agent, self._link.waiter())
        ticket.rows = len(next(iter(rows.values())))
        self._put(self._trainings, ticket, rows, False)
        return ticket

    def get(self, ticket: Ticket) -> Any:
        """Waits for a ticket. A prediction: flat output name → its rows. Training: metrics, and its own rows of every array."""
        self._link.wait(ticket)
        rows = slice(ticket.start, ticket.start + (ticket.rows or 1))
        return {name: value[rows] if getattr(value, "ndim", 0) else value for name, value in ticket.out.items()}

    def is_served(self, ticket: Ticket) -> bool:
        return self._link.is_served(ticket)

    def close(self) -> None:
        """Unregisters the agent; its name may then be used again."""
        self.wrapper.remove_communicator(self)
