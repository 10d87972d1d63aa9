"""RowCounts: how many rows each on-policy task learned from, how many were too old by then, and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

MANY, ENOUGH = 0.05, 200
"""Share of dropped rows above which there is a warning, and rows after which that share says something."""


class RowCounts:
    """Rows of on-policy tasks, by task: learned from, and dropped as too old.

    Args:
        warns: Whether the log has a warning, once for each task, when many are dropped. (Of a worker process the robot warns.)
    """

    def __init__(self, warns: bool = True) -> None:
        self.warns = warns
        self._counts: dict[str, list[int]] = {}
        self._warned: set[str] = set()

    def add_task(self, task: str) -> None:
        self._counts.setdefault(task, [0, 0])

    def count(self, task: str, learned: int, dropped: int) -> None:
        counts = self._counts[task]
        counts[0] += learned
        counts[1] += dropped
        if dropped and self.warns and task not in self._warned and (text := self._remark(task)):
            self._warned.add(task)
            log.warning(text)

    def take(self) -> dict[str, tuple[int, int]]:
        """(learned, dropped) since the last call, of tasks with any."""
        out = {task: (learned, dropped) for task, (learned, dropped) in self._counts.items() if learned or dropped}
        for task in out:
            self._counts[task] = [0, 0]
        return out

    def dropped(self) -> dict[str, int]:
        return {task: dropped for task, (_, dropped) in self._counts.items()}

    def remarks(self) -> list[str]:
        """A sentence for each task that drops many of its rows: how many, why, and what to do."""
        return [text for task in self._counts if (text := self._remark(task))]

    def _remark(self, task: str) -> str:
        learned, dropped = self._counts[task]
        total = learned + dropped
        if total < ENOUGH or dropped <= MANY * total:
            return ""
        return (f"task {task!r}: {100 * dropped / total:.0f} % of its rows ({dropped:,} of {total:,}) were dropped unlearned, "
                "because the task had learned more than once since their actions were taken: its agents learn at different "
                "times, such as when they wait for another task. Give its helper store_policy=True, so that old rows can be "
                "learned from (where its explorer has log-probabilities), or give all its agents the same unroll, a multiple of "
                "the other tasks'")

    def state_dict(self) -> dict[str, list[int]]:
        return {task: list(counts) for task, counts in self._counts.items()}

    def load_state_dict(self, state: Mapping[str, list[int]]) -> None:
        """Takes over what `state_dict` gave, for the tasks that are there."""
        for task in self._counts:
            self._counts[task] = list(state.get(task, (0, 0)))
