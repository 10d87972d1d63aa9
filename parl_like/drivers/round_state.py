"""The state of a round under the threads driver, and what the robot's thread has yet to hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from parl_like.drivers.waiting import locked, release
from parl_like.tasks.rounds import NOTHING, ROUND_DONE, Serve, Wait

if TYPE_CHECKING:
    from parl_like.tasks.rounds import Rounds
    from parl_like.tasks.tickets import Ticket


class RoundPhase(Enum):
    """The phases of sync mode. Async mode stays in `UNROLL`."""

    UNROLL = "agents act, and no update waits"
    ASKED = "agents act, and an update waits, as far as anybody has seen"
    ROUND = "updates are served"
    DONE = "every update is served, and who was answered has not gone on"


UNROLL, ASKED, ROUND, DONE = RoundPhase

NEXT = {
    UNROLL: (ASKED,),
    ASKED: (UNROLL, ROUND),
    ROUND: (DONE, UNROLL),  # the latter at a stop
    DONE: (UNROLL,),
}
"""RoundPhase → those that may follow."""


class RoundState:
    """The state of a round. Who changes the phase, or what is held, holds the driver's lock.

    Attributes:
        phase: See `RoundPhase`; `Rounds.in_round` goes with it.
        asked: The phase is `ASKED`; a flag, for every request reads it.
        news: What the robot's thread sleeps on.
        untold: A round is done, or a batch was closed by its own rule, and `iterate` has not said so.
        held: Replies of the round, given when the next unroll begins.
        stopping: No further batch is served; see `Driver`.
        closing: At a stop: updates that wait for nobody are still served.
    """

    def __init__(self, rounds: Rounds) -> None:
        self.rounds, self.phase, self.news = rounds, UNROLL, locked()
        self.held: list[Ticket] = []
        self.asked = self.untold = self.stopping = self.closing = False

    def _enter(self, phase: RoundPhase) -> None:
        """The only place where the phase changes. Raises a RuntimeError for a change that cannot be."""
        if phase is self.phase:
            return
        if phase not in NEXT[self.phase]:
            raise RuntimeError(f"a round goes from {self.phase.name} to {' or '.join(after.name for after in NEXT[self.phase])}, "
                               f"not to {phase.name}; this is a bug of the threads driver")
        self.phase, self.asked, self.rounds.holding = phase, phase is ASKED, phase is DONE

    def ask(self) -> None:
        """An update waits, or may: `next` shall look. One that comes in a round is served in it, or in the next."""
        if self.rounds.sync and self.phase is UNROLL:
            self._enter(ASKED)

    def next(self, now: float) -> Serve | Wait:
        """Return what is to be served at the time `now`, as `Rounds` says, and follow it from phase to phase.

        At a stop nothing is served, or updates alone, where `closing` is set.
        """
        if self.stopping and not self.closing:
            return NOTHING
        rounds = self.rounds
        step = rounds.at_stop(now) or NOTHING if self.closing else rounds.next(now)
        if rounds.sync:
            if rounds.in_round:
                self.ask()  # nobody did where it came between two runs
                self._enter(ROUND)
            elif self.phase is ROUND:
                self._enter(DONE)
                self.tell()
            elif self.asked and not any(queue.rows for queue in rounds.updates):
                self._enter(UNROLL)
        return NOTHING if step is ROUND_DONE else step  # type: ignore[return-value]  # identity tells as much

    def hold(self, replies: Sequence[Ticket]) -> bool:
        """Keep replies to updates until the next unroll; return False where they are to be given at once."""
        if self.phase is ROUND:
            self.held += replies
            return True
        if self.rounds.sync:
            self.tell()
        return False

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
        return self.phase is DONE and not self.untold

    def next_unroll(self) -> list[Ticket]:
        """Begin an unroll, whatever the phase; return the replies that were held."""
        held, self.held = self.held, []
        self.untold = self.rounds.in_round = False
        self._enter(UNROLL)
        self.ask()
        return held
