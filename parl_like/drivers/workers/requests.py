"""Requests of workers in the robot's queues: the rows of one may be divided over several batches, and go back as one reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from parl_like.drivers.messages import Kind, Message, pack_error
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.supervisor import Link
from parl_like.interfaces import ActingAgent
from parl_like.tasks.row_slots import Owner
from parl_like.tasks.tickets import Ticket, joined
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.spec import Array


@dataclass(slots=True, eq=False)
class WorkerRequest:
    """One message of a worker, and what has been answered of it: the `waiter` of its tickets.

    Attributes:
        worker: Who sent it. owner: Of the rows that tasks keep for the process that sent it.
        number: By which the worker knows it.
        agents: How many agents ask in it, but for those that its tickets count; 0 once they are counted.
        parts: Tickets that it was divided into.
        answered: Those that are answered.
    """

    worker: WorkerHandle
    owner: Owner
    number: int
    agents: int
    parts: int = 0
    answered: list[Ticket] = field(default_factory=list)


def put_request(wrappers: Mapping[str, ComputationWrapper], link: Link, worker: WorkerHandle, message: Message) -> list[Ticket]:
    """Put a worker's request into the queue of its task. Where a batch is full, the rows of a prediction go on in the next one
    with a ticket of their own.

    Returns:
        Tickets that are answered already: refused, or dropped for the newest.
    """
    request = WorkerRequest(worker, worker.owner, message.request, message.notes["n"])
    ticket: Ticket | None = None

    def part(rows: int) -> Ticket:
        request.parts += 1
        request.agents -= 1
        return Ticket(cast(ActingAgent, worker), request, rows=rows)  # it stands for its agents

    try:
        wrapper = wrappers[message.task]
        if message.kind is Kind.LEARN:
            ticket = part(message.rows)
            ticket.steps, ticket.scheduled = message.notes["update"]
            # Copies: a frame is read-only, and tensors are made of these.
            return wrapper.trainings.put(ticket, {name: value.copy() for name, value in message.arrays.items()})
        queue, block, start = wrapper.predictions, message.notes.get("block"), 0
        arrays = message.arrays if block is None else link.rows(worker, queue.specs, block, message.rows)
        for rows in queue.portions(message.rows):
            ticket = part(rows)
            queue.put(ticket, tuple(arrays[spec.name][start : start + rows] for spec in queue.specs))
            start += rows
        worker.divided = request.parts > 1
        return []
    except Exception as error:  # noqa: BLE001  the sender's fault, and to be told to it alone
        ticket = ticket or part(message.rows)
        ticket.error = error
        return [ticket]


def replies(tickets: Sequence[Ticket]) -> Iterator[tuple[WorkerHandle, Kind, dict[str, object]]]:
    """Yield worker, kind and content of the message that answers each request of which no part waits any more."""
    complete = []
    for ticket in tickets:
        request = ticket.waiter
        if not ticket.abandoned and request.owner is request.worker.owner:
            request.answered.append(ticket)
            if len(request.answered) == request.parts:
                complete.append(ticket)
    for ticket in complete:
        request = ticket.waiter
        worker: WorkerHandle = request.worker
        parts, request.answered = request.answered, []
        notes: dict[str, object] = {}
        content = {"request": request.number, "notes": notes}
        if error := next((part.error for part in parts if part.error is not None), None):
            notes["type"] = type(error).__name__
            yield worker, Kind.FAILED, {**content, "arrays": pack_error(error)}
        else:
            notes |= {"version": min(part.version for part in parts), "learns": ticket.queue.task.learns}
            yield worker, Kind.REPLY, {**content, "rows": sum(part.rows for part in parts), "arrays": _rows_of(parts)}


def _rows_of(parts: Sequence[Ticket]) -> dict[str, Array]:
    """Return a request's rows of every output of its batches; metrics as they are."""
    if len(parts) > 1:
        return joined(parts)
    ticket, arrays = parts[0], {}
    for name, value in ticket.out.items():
        array = np.asarray(value)
        arrays[name] = array[ticket.start : ticket.start + ticket.rows] if array.ndim else array
    return arrays
