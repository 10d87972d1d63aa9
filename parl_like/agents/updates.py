"""UpdateSender: the part of a helper that sends training requests, and waits for their replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from parl_like.agents.helper_context import HelperContext
from parl_like.interfaces import Learned
from parl_like.tasks.tickets import Ticket
from parl_like.values.errors import Dropped
from parl_like.values.spec import Array

Done = Callable[[Learned], None]
"""A function that is called with a training return."""


class UpdateSender:
    """Training requests of one helper.

    Args:
        context: The helper's agent and task.

    Attributes:
        pending: Requests that nobody waits for yet, oldest first, each with what gets its training return.
        most_open: How many of them may be open when a new one is sent.
        by_hand: Whether the agent itself asks, and no schedule.
    """

    def __init__(self, context: HelperContext) -> None:
        self.context = context
        self.pending: list[tuple[Ticket, Done | None]] = []
        self.most_open, self.by_hand = 1, False

    def send(self, rows: Mapping[str, Array], done: Done | None = None) -> dict[str, object] | None:
        """Send rows to learn from; `done` gets the training return once it is there.

        Returns:
            The training return; None where learning does not wait.
        """
        self.settle(self.most_open - 1)
        agent, comm = self.context.agent, self.context.comm
        steps, agent.learned_at = agent.steps - agent.learned_at, agent.steps
        ticket = comm.put_training(rows, max(steps, 1), not self.by_hand)
        if not self.context.wait:
            self.pending.append((ticket, done))
            return None
        return self._answer(ticket, done)

    def _answer(self, ticket: Ticket, done: Done | None) -> dict[str, object]:
        result = self.context.comm.get(ticket)
        if done is not None:
            done(result)
        return result

    def settle(self, leave: int = 0) -> None:
        """Wait for the requests that are open, but for the newest `leave`, and take over what they returned."""
        while len(self.pending) > leave:
            with suppress(Dropped):  # counted by the queue
                self._answer(*self.pending.pop(0))

    def forget(self) -> None:
        """Forget the requests that are open: nobody will answer."""
        self.pending.clear()
