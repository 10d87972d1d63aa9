"""The lines that a person sees of a run, and its progress while it trains."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from parl_like.lab.progress import Progress, show, width_of, wrapped
from parl_like.lab.text import escaped, printer

log = logging.getLogger("parl_like.lab")


class Display:
    """Shows lines, above the progress of the run once there is one.

    Args:
        stream: Where to show it; None: the log only.
        silent: Warnings that are not shown.

    Attributes:
        progress: Set by `begin`; stays after `close`, which ends its live table.
    """

    def __init__(self, stream: TextIO | None, silent: Iterable[str] = ()) -> None:
        self.stream = stream and printer(stream)
        self.progress: Progress | None = None
        self._warned = set(silent)

    def begin(self, title: str, total_steps: int, start_step: int, log_every_s: float) -> None:
        """Shows progress from `start_step` on, as `Progress`, and a plain line every `log_every_s` seconds. An earlier one has to
        be closed before."""
        self.progress = Progress(title, total_steps, start_step, log_every_s, self.stream)

    def tick(self, step: int, metrics: Callable[[], Mapping[str, float]]) -> None:
        """As `Progress.tick`."""
        if self.progress is not None:
            self.progress.tick(step, metrics)

    def steps_per_s(self) -> float:
        """As `Progress.steps_per_s`; NaN before there is one."""
        return self.progress.steps_per_s() if self.progress is not None else math.nan

    def close(self) -> None:
        """Ends the live table; lines are shown as before."""
        if self.progress is not None:
            self.progress.close()

    def say(self, text: str) -> None:
        """One line, for those who read along and for the log."""
        log.info(line := escaped(text))
        self._show(line)

    def warn(self, text: str) -> None:
        """A warning or an error of the log, for those who read along: each once."""
        if text not in self._warned:
            self._warned.add(text)
            self._show(f"warning: {escaped(text)}")

    def say_amid(self, line: str) -> None:
        """A line from the handler of a signal: above the table, which knows when; else past the streams, for print is not allowed
        to be interrupted by itself."""
        if self.progress is not None and self.progress.draws:
            self.progress.say(line)
        else:
            os.write(2, f"\n{line}\n".encode())

    def _show(self, line: str) -> None:
        if self.progress is not None:
            self.progress.say(line)
        else:
            show(self.stream, wrapped(line, width_of(self.stream)))
