"""Helpers of the lines of the score card: what they say, clocks, the driver's warnings, modules of the tests."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Line:
    """One line of the card.

    Attributes:
        value: What was measured, for people; `not measured: …` with the reason.
        reached: Whether the goal is; None where that cannot be said, or a part was not measured.
        details: The same as numbers, and what they are made of.
    """

    value: str
    reached: bool | None = None
    details: dict[str, Any] = field(default_factory=dict)
    goal: str = ""
    peer: str = ""
    seconds: float = 0.0


class Overdue(Exception):
    """A line took longer than it may: something hangs, which is a result."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises `Overdue` here, in the main thread, after so many seconds. (The alarm clock belongs to pytest-timeout.)"""

    def overdue(*_: Any) -> None:
        raise Overdue(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGUSR1, overdue)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)


def until(condition: Callable[[], Any], seconds: float = 60.0, every: float = 0.0005) -> Any:
    """Wait, and return what `condition` returned when it was true for the first time.

    Raises:
        Overdue: it was not within `seconds`.
    """
    end = monotonic() + seconds
    while not (out := condition()):
        if monotonic() > end:
            raise Overdue(f"waited {seconds:g} s in vain")
        sleep(every)
    return out


class Heard(logging.Handler):
    """When, and of what, the driver warned."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)  # each: only the first of a cause is a warning
        self.records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((monotonic_ns(), record.getMessage()))


@contextmanager
def listening() -> Iterator[Heard]:
    """Hears the driver's warnings, which are not printed meanwhile: faults are what is wanted here."""
    logger, handler = logging.getLogger("parl_like"), Heard()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = propagate


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="card-") as path:
        yield Path(path)


def module_of(file: str) -> Any:
    """A module of the tests, whose mutators and crafted files are used here, too."""
    path = ROOT / "tests" / file
    spec = importlib.util.spec_from_file_location(f"card_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    with ExitStack() as stack:
        for where in (str(ROOT / "tests" / "fakes"), str(path.parent)):
            sys.path.insert(0, where)
            stack.callback(sys.path.remove, where)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module
