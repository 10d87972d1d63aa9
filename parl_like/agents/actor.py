"""Actor: what the helpers of an agent know of it."""

from __future__ import annotations

from typing import Any, Protocol


class Actor(Protocol):
    """A helper's view of its agent. `robot` is what it belongs to: the robot, or the part of it in this process."""

    vector: bool
    index: int
    first_env: int
    env: Any
    signal: str | None
    steps: int
    learned_at: int

    @property
    def robot(self) -> Any: ...

    def obey(self) -> None:
        """Ends the episode that is running, as the signal says."""
