"""Counts of rows: RowCounts, how many each on-policy task learned from, how many were too old by then, and what to do
about it; OnePlayer, that those which are looked at together (as n steps, unrolls, sequences or stacks) are not one player's."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

log = logging.getLogger(__name__)

MANY, ENOUGH = 0.05, 200
"""Share of dropped rows above which there is a warning, and rows after which that share says something."""

ENOUGH_EPISODES = 20
"""Episodes, with those that were cut off, after which the share of the latter says something."""


def cut_remark(cut: int, ended: int) -> str:
    """Return what a user should know of `cut` episodes that were cut off, beside as many that have `ended`; usually nothing."""
    total = cut + ended
    if total < ENOUGH_EPISODES or cut <= MANY * total:
        return ""
    return (f"{100 * cut / total:.0f} % of the episodes ({cut:,} of {total:,}) were cut off by checkpoints, or where agents "
            "could not wait for the next run, long ones more often than short ones; return/mean is that of the others, so it "
            "says too much of short episodes. Save less often, train for longer (a run ends with a save), or "
            "give the environment clone_state and restore_state (parl_like.environment.state), so that its episodes are "
            "carried over")


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
        """Count the rows of this task from now on; where it has counts already they stay."""
        self._counts.setdefault(task, [0, 0])

    def count(self, task: str, learned: int, dropped: int) -> None:
        """Count rows of a task that were `learned` from, and such that were `dropped`; warn, once, where these are many."""
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
        """Return how many rows of each task were dropped."""
        return {task: dropped for task, (_, dropped) in self._counts.items()}

    def remarks(self) -> list[str]:
        """Return a sentence for each task that drops many of its rows: how many, why, and what to do."""
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
        """Return task → rows learned from, and rows dropped."""
        return {task: list(counts) for task, counts in self._counts.items()}

    def load_state_dict(self, state: Mapping[str, list[int]]) -> None:
        """Take over what `state_dict` gave, for the tasks that are there."""
        for task in self._counts:
            self._counts[task] = list(state.get(task, (0, 0)))


PLAYERS, SHOWING, HOPELESS = 8, 2, 100
"""Players by turns that are noticed; rows that show it; rows that go on from nothing at all, after which an agent is known to
store such."""


class OnePlayer:
    """Watches the rows that come into one lane.

    A player's row begins with the observation that its row before ended with. Where it begins with the end of a row *before* that
    one instead, and again a little later, the rows of several players come by turns, some were left out in between, or a part of
    the observation that is not the environment's, such as a goal, has changed and changed back.

    Args:
        where: Agent and task, for the message.

    Attributes:
        end: The leaves of the observation that the last row led to; (None,) where an episode begins. Whoever stores rows sets it.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        # Of the episode's rows from which the next did not go on.
        self._ends: deque[tuple[object, ...]] = deque(maxlen=PLAYERS - 1)
        self._crossed = self._unlinked = 0
        self.begin()

    def begin(self) -> None:
        """Begin an episode, or go on after a cut."""
        self.end: tuple[Any, ...] = (None,)
        self._ends.clear()
        self._crossed = 0

    def other_row(self, begin: tuple[object, ...]) -> None:
        """Look at a row that begins with `begin`, and not with the object that the row before ended with.

        Raises:
            ValueError: rows that do not follow each other.
        """
        if self.end[0] is not None and self._unlinked < HOPELESS and not _same(begin, self.end):
            self._unlinked += 1
            known = any(_same(begin, other) for other in self._ends)
            self._ends.append(self.end)
            if known:
                self._crossed += 1
                if self._crossed == SHOWING:
                    raise ValueError(
                        f"{self.where}: rows do not go on where the one before ended, as if rows of two players came by turns, "
                        "some were left out, or a goal in the observation changed, but this task looks along the rows (n steps, "
                        "unrolls, sequences, stacks) and would mix them; store every row, give each player a role of its own "
                        "(`Agent.roles`: a helper and rows for each), and store truncated=True where a goal is left "
                        "(`GoalAgent` of parl_like.robots.goal_agent)")


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return all(x is y or np.array_equal(x, y) for x, y in zip(a, b, strict=True))
