"""The agents that act under the threads driver, those that wait for a reply, and in which order replies wake them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parl_like.interfaces import ActingAgent
    from parl_like.tasks.rounds import Rounds
    from parl_like.tasks.tickets import Ticket

OPEN, WAITED, SERVED, READ = range(4)
"""A ticket's `state`: nobody waits for it; its agent waits and is not counted as acting; answered; answered and waited for."""


class ActingAgents:
    """Keeps `Rounds.acting` and `Rounds.learners` as agents wait, and are answered."""

    def __init__(self, rounds: Rounds, lock: threading.Lock) -> None:
        self._rounds, self._lock = rounds, lock

    def leave(self, agent: ActingAgent, learner: bool = True) -> bool:
        """An agent stops acting. The caller holds the lock.

        Args:
            learner: And it will send no training request for now.

        Returns:
            Whether a batch or a round may have waited for just that.
        """
        rounds = self._rounds
        rounds.acting -= 1
        matters = rounds.acting <= 0 or (learner and agent in rounds.learners)
        if matters and learner:
            rounds.waits(agent)
        return matters

    def come(self, agent: ActingAgent) -> None:
        """A parked agent goes on. The caller holds the lock."""
        self._rounds.acting += 1
        self._rounds.running(agent)
        self.note(agent)

    def count_in(self, tickets: list[Ticket], own: Ticket | None = None) -> list[Ticket]:
        """Marks tickets as served, and counts the agents that wait for them as acting again. The caller holds the lock.

        Only the first two agents are woken by the caller, with `wake`, and each that runs wakes the next but one: one runs while
        one is on its way. All at once would fight for the GIL (64 agents on 2 cores: 43,000 against 53,000 requests/s).

        Args:
            own: The ticket of the agent that calls; it is already awake, so it comes first.
        """
        waited = []
        for ticket in tickets:
            if ticket.state == WAITED:
                waited.append(ticket)
                self._answered(ticket)
            else:
                ticket.waiter.release()  # nobody sleeps on it
            ticket.state = SERVED
        self._rounds.acting += len(waited)
        if own in waited:
            waited.remove(own)
            waited.insert(0, own)
        for ticket, after in zip(waited, waited[2:], strict=False):
            ticket.after = after
        return waited[:2]

    @staticmethod
    def wake(tickets: Sequence[Ticket]) -> None:
        """Wake the agents that `count_in` has named."""
        for ticket in tickets:
            ticket.waiter.release()

    def fail(self, tickets: Sequence[Ticket]) -> None:
        """Wakes everybody, one by one: for the case that `count_in` is what failed. The caller holds the lock."""
        for ticket in tickets:
            self._rounds.acting += ticket.state == WAITED
            ticket.state = SERVED
            ticket.waiter.release()

    def give_up(self, ticket: Ticket) -> None:
        """Note that the caller, who waited for a reply, was interrupted: whoever it should wake must not wait for it."""
        with self._lock:
            if ticket.state == WAITED:
                self._rounds.acting += 1
                self._answered(ticket)
                ticket.state = OPEN
            elif ticket.after is not None:
                ticket.after.waiter.release()
                ticket.after = None

    def _answered(self, ticket: Ticket) -> None:
        """An agent no longer waits for an update."""
        if ticket.queue.kind == "learn" and ticket.agent.learns:
            self._rounds.running(ticket.agent)
            self.note(ticket.agent)

    def note(self, agent: ActingAgent) -> None:
        """Note that an agent waits: updates see it as it is now, until it says more itself, between its steps. In the middle of
        one the step may have been counted and the row not, or the row and not the update."""
        agent.last_progress = agent.count_progress() if agent.learns and self._rounds.sync else None
