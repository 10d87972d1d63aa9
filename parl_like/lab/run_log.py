"""The log of a run: `log.txt`, and warnings as events."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from parl_like.lab.outbox import RunError
from parl_like.lab.rundir import RunDir


class _RunLog(logging.Handler):
    """What parl_like logs goes to the run's log; and warnings, such as that a worker was replaced, to its events, too."""

    def __init__(self, run: RunDir) -> None:
        super().__init__()
        self.run = run
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(RunError):  # the directory is gone: others will say so
            self.run.outbox.append("log.txt", self.format(record).encode("utf-8", "replace") + b"\n")
            if record.levelno >= logging.WARNING:
                self.run.event("warning", source=record.name, text=record.getMessage().partition("\n")[0])


@contextlib.contextmanager
def logged(run: RunDir) -> Iterator[None]:
    logger, handler = logging.getLogger("parl_like"), _RunLog(run)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
