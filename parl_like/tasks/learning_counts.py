"""LearningCounts: what a task counts while it learns."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from parl_like.values.errors import Diverged

log = logging.getLogger(__name__)


@dataclass
class LearningCounts:
    """Updates of one task, and the optimiser steps that were left out because a number in them was not finite.

    Attributes:
        learns: Updates given. rows_learned: Their rows.
        skipped: Optimiser steps that were left out so far. skips: Updates in a row, up to now, in which all were.
        fault: What was wrong with the last step that was left out; empty: none was.
    """

    learns: int = 0
    rows_learned: int = 0
    skipped: int = 0
    skips: int = 0
    fault: str = ""

    def count_skip(self, fault: Diverged, most: int) -> None:
        """Count a step that was left out.

        Args:
            fault: What was wrong with it.
            most: Updates in a row in which all steps may be left out; where it is 0, `fault` is raised.
        """
        if not most:
            raise fault
        self.skipped += 1
        self.fault = str(fault)
        if not self.skipped & (self.skipped - 1):  # 1, 2, 4, 8 …: a task that goes on like that shall not fill the disk
            log.warning("%s (left out; steps left out so far: %d)", fault, self.skipped)

    def note_steps(self, taken: bool, fault: Diverged | None, most: int) -> None:
        """Note whether an update took a step, and what was wrong with the last one that it left out.

        Raises:
            Diverged: all were left out in more than `most` updates in a row.
        """
        if taken:
            self.skips = 0
        elif fault is not None:
            self.skips += 1
            if self.skips > most:
                raise Diverged(f"{fault} ({self.skips} updates in a row without a step)")

    def count_update(self, rows: int) -> None:
        """Count an update of so many rows."""
        self.learns += 1
        self.rows_learned += rows
