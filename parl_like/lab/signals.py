"""Signals to a run: one for a clean stop, a second one to leave at once, another for a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

from parl_like.lab.runs.rundir import RunDir


@contextlib.contextmanager
def like_ctrl_c() -> Iterator[None]:
    """While this lasts SIGTERM raises KeyboardInterrupt, as Ctrl-C does; in the main thread, as Python allows handlers nowhere
    else."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Signals:
    """SIGINT and SIGTERM ask for a clean stop; the second one ends the process at once. SIGUSR1 asks for a checkpoint, after
    which the run goes on.

    Args:
        show: Gets a line for people, in the middle of whatever goes on.

    Attributes:
        received: Name of the first signal that stops, or empty.
        saves: Whether a checkpoint is asked for.
    """

    def __init__(self, run: RunDir, show: Callable[[str], None]) -> None:
        self.run, self.show = run, show
        self.received, self.saves = "", False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
            self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._ask_for_save)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask_for_save(self, *_: object) -> None:
        self.saves = True
        self.show("SIGUSR1: a checkpoint after this iteration; training goes on")

    def _handle(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not self.received:
            self.received = name
            self.show(f"{name}: stopping after this iteration and a save; once more to leave at once")
            return
        with contextlib.suppress(Exception):
            self.run.ended("stopped", f"{name}, second signal; nothing was saved after the last checkpoint")
        if sys.stderr.isatty():
            os.write(2, b"\x1b[?25h")  # the live table hides the cursor
        os._exit(128 + number)
