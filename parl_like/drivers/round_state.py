"""The state of a round under the threads driver, and what the robot's thread has yet to hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from parl_like.drivers.waiting import locked, release

if TYPE_CHECKING:
    from parl_like.tasks.rounds import Rounds
    from parl_like.tasks.tickets import Ticket


class RoundPhase(Enum):
    """The phases of sync mode. Async mode stays in `UNROLL`."""

    UNROLL = "agents act, and no update waits"
    ASKED = "agents act, and an update waits, as far as anybody has seen"
    ROUND = "updates are served"
    DONE = "every update is served, and who was answered has not gone on"


NEXT = {
    RoundPhase.UNROLL: (RoundPhase.ASKED,),
    RoundPhase.ASKED: (RoundPhase.UNROLL, RoundPhase.ROUND),
    RoundPhase.ROUND: (RoundPhase.DONE, RoundPhase.UNROLL),  # the latter at a stop
    RoundPhase.DONE: (RoundPhase.UNROLL,),
}
"""RoundPhase → those that may follow."""


class RoundState:
    """The state of a round. Who changes the phase, or what is held, holds the driver's lock.

    Attributes:
        phase: See `RoundPhase`; `Rounds.in_round` goes with it.
        asked: The phase is `ASKED`; a flag, for every request reads it, and to name a member of an enum takes 0.1 µs.
        news: What the robot's thread sleeps on.
        untold: A round is done, or a batch was closed by its own rule, and `iterate` has not said so.
        held: Replies of the round, given when the next unroll begins.
        stopping: No further batch is served; see `Driver`.
        closing: At a stop: updates that wait for nobody are still served.
    """

    def __init__(self, rounds: Rounds) -> None:
        self.rounds, self.phase, self.news = rounds, RoundPhase.UNROLL, locked()
        self.held: list[Ticket] = []
        self.asked = self.untold = self.stopping = self.closing = False

    def _enter(self, phase: RoundPhase) -> None:
        """The only place where the phase changes. Raises a RuntimeError for a change that cannot be."""
        if phase is self.phase:
            return
        if phase not in NEXT[self.phase]:
            raise RuntimeError(f"a round goes from {self.phase.name} to {' or '.join(after.name for after in NEXT[self.phase])}, "
                               f"not to {phase.name}; this is a bug of the threads driver")
        self.phase, self.asked = phase, phase is RoundPhase.ASKED
        self.rounds.in_round = phase is RoundPhase.ROUND

    def ask(self) -> None:
        """An update waits, or may: `begin` shall look. One that comes in a round is served in it, or in the next."""
        if self.rounds.sync and self.phase is RoundPhase.UNROLL:
            self._enter(RoundPhase.ASKED)

    def begin(self) -> None:
        """Begin the round that was asked for, unless its updates wait for somebody, or the run stops."""
        if self.asked and (self.closing or not self.stopping):
            if not any(queue.rows for queue in self.rounds.updates):
                self._enter(RoundPhase.UNROLL)
            elif self.rounds.begin_round():
                self._enter(RoundPhase.ROUND)

    def hold(self, replies: Sequence[Ticket]) -> bool:
        """Keep replies to updates until the next unroll; return False where they are to be given at once."""
        if self.phase is RoundPhase.ROUND and (self.closing or not self.stopping):
            self.held += replies
            return True
        if self.rounds.sync:
            self.tell()
        return False

    def end(self) -> None:
        """Every update of the round is served."""
        self._enter(RoundPhase.DONE)
        self.tell()

    def tell(self) -> None:
        """Wake the robot's thread, to hear that something was learned."""
        self.untold = True
        release(self.news)

    def hear(self) -> bool:
        """Return whether something was learned since this was asked last."""
        untold, self.untold = self.untold, False
        return untold

    @property
    def unroll_may_begin(self) -> bool:
        """Return whether a round is done that the robot has heard of."""
        return self.phase is RoundPhase.DONE and not self.untold

    def next_unroll(self) -> list[Ticket]:
        """Begin an unroll, whatever the phase; return the replies that were held."""
        held, self.held = self.held, []
        self.untold = False
        self._enter(RoundPhase.UNROLL)
        self.ask()
        return held
