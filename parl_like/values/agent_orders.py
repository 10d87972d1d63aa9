"""Orders of whoever runs an agent: AgentSignal, what it shall do before its next step; Quota, how much it may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class AgentSignal(StrEnum):
    """Order for an agent before its next step. An agent without one, whose `signal` is None, goes on.

    A string, whose hash and equality are written in C: no other thread has its turn while one is looked up (`NEXT`).
    """

    PARK = "park"
    """Wait where it is, in the middle of its episode."""
    INTERRUPT = "interrupt"
    """Leave its episode, then wait."""
    STOP = "stop"
    """Leave its episode, and end."""


NEXT: Mapping[AgentSignal | None, tuple[AgentSignal, ...]] = {
    None: (AgentSignal.PARK, AgentSignal.INTERRUPT, AgentSignal.STOP),
    AgentSignal.PARK: (AgentSignal.INTERRUPT, AgentSignal.STOP),
    AgentSignal.INTERRUPT: (AgentSignal.STOP,),
    AgentSignal.STOP: (),
}
"""Signal → those that may take its place. A weaker one is not heard; each may be taken back, when it was obeyed or is void."""


@dataclass
class Quota:
    """Bounds of what an agent still does before it parks; None: no bound.

    Attributes:
        steps: Actions, those of all its environments together; below 0 where the last step was one of several environments.
        episodes: Whole episodes.
    """

    steps: int | None = None
    episodes: int | None = None

    def lift(self) -> None:
        """Set no bound any more."""
        self.steps = self.episodes = None
