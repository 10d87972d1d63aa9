"""RestartBudget: how often what fails may be started again, and how long each new start waits."""

from __future__ import annotations

import time
from collections import deque

MAX_RESTARTS, PERIOD = 10, 60.0
"""By default more than `MAX_RESTARTS` restarts within `PERIOD` seconds are too many."""


class RestartBudget:
    """Counts the restarts of one thing: an environment, a worker, an agent.

    Args:
        limit: Restarts within `period` seconds that are allowed; 0: none.
        period: Seconds after which a restart is forgotten.
        pause: Seconds that the second restart within `period` waits; each further one waits twice as long. The first never waits.
            0: none does.
        max_pause: Seconds that no restart waits longer than.
    """

    def __init__(self, limit: int = MAX_RESTARTS, period: float = PERIOD, pause: float = 0.05, max_pause: float = 1.0) -> None:
        self.limit, self.period, self.pause, self.max_pause = limit, period, pause, max_pause
        self._times: deque[float] = deque()

    def spend(self) -> float | None:
        """Counts one restart; returns the seconds to wait before it. None: `limit` are spent, and this one is not counted."""
        now = time.monotonic()
        while self._times and now - self._times[0] >= self.period:
            self._times.popleft()
        n = len(self._times)
        if n >= self.limit:
            return None
        self._times.append(now)
        return min(self.pause * 2 ** (n - 1), self.max_pause) if n else 0.0

    def clear(self) -> None:
        """Forgets all restarts."""
        self._times.clear()
