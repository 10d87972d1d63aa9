"""Supervisor: begins the workers of a robot, watches them while it listens, and replaces those that end, hang or grow too
large."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from parl_like.drivers.links import Link
from parl_like.drivers.worker_handle import WorkerHandle
from parl_like.process.child import shielded

SLOW_TIMES, SLOW_SECONDS = 10.0, 0.05
"""A worker is called slow when its turns take so many times as long as those of the others, and so many seconds."""

LISTEN_S = 0.5
"""Seconds that the robot waits for messages at most before it looks after its workers."""

log = logging.getLogger("parl_like.processes")


class Supervisor:
    """See above.

    Args:
        options: `parl_like.drivers.processes.Processes` or what has its limits.
        recipe: What a worker's next process is to be told.
        lost: Called with a worker that has ended or was killed, and why; calls `replace`.
        waits: What the others do while a worker is slow, for the warning.

    Attributes:
        restarts: Processes that took the place of another.
    """

    def __init__(
        self, link: Link, options: Any, recipe: Callable[[WorkerHandle], Any], lost: Callable[[WorkerHandle, str], None],
        waits: str,
    ) -> None:
        self._link, self._options, self._recipe, self._lost, self._waits = link, options, recipe, lost, waits
        self.workers: list[WorkerHandle] = []
        self.restarts = 0
        self.looked = 0.0
        self._causes: Counter[str] = Counter()

    def begin(self, worker: WorkerHandle) -> None:
        worker.incarnation += 1
        worker.reset()
        recipe = self._recipe(worker)
        with shielded():  # a worker that nobody knew of would never be ended
            self._link.begin(worker, recipe)
            worker.taken = True

    def look(self, drain: Callable[[], object]) -> None:
        """Finds workers that have ended, hang, have grown too large or never come up, and those that are slow.

        Args:
            drain: Takes in what has come, also from one that has ended.
        """
        options, now = self._options, monotonic()
        # Of the time in which this process did something else, or stood still, no worker's silence is known.
        listened, self.looked = min(now - self.looked, LISTEN_S), now
        for worker, how in self._link.ended():
            drain()
            if worker.taken:
                self._lost(worker, how)
        for worker in self.workers:
            if not worker.taken:
                continue
            worker.silent += listened
            limit = options.memory_limit
            if worker.owing and worker.silent > options.step_limit:
                self.kill(worker, f"said nothing for {options.step_limit:g} s; an environment hangs, or takes longer than "
                                  "step_limit")
            elif not worker.up and worker.silent > options.start_limit:
                self.kill(worker, f"was not ready after {options.start_limit:g} s (start_limit)")
            elif limit is not None and (used := self._link.memory(worker)) > limit:
                self.kill(worker, f"uses {used >> 20} MiB of memory; memory_limit is {limit >> 20} MiB")
        self._call_slow([worker for worker in self.workers if worker.up])

    def _call_slow(self, workers: Sequence[WorkerHandle]) -> None:
        """Names, once, a worker whose turns take far longer than those of the others."""
        for worker in workers:
            others = [other.pace for other in workers if other is not worker and other.pace]
            known = others and not worker.slow and worker.seen >= 10
            if not known or worker.pace < max(SLOW_TIMES * float(np.median(others)), SLOW_SECONDS):
                continue
            worker.slow = True
            log.warning("%s is slow: a turn of its agents takes %.2g s, of the other workers %.2g s; %s", worker, worker.pace,
                        np.median(others), self._waits)

    def kill(self, worker: WorkerHandle, why: str) -> None:
        """Ends a worker, which another replaces."""
        self._link.kill(worker)
        self._lost(worker, why)

    def replace(self, worker: WorkerHandle, why: str) -> bool:
        """Begins a lost worker's next process; False where it was replaced too often."""
        if worker.budget.spend() is None:
            return False
        self.restarts += 1
        self.warn_once(why, f"{worker} {why}; it is replaced, its agents begin anew")
        self.begin(worker)
        return True

    def end(self, worker: WorkerHandle) -> None:
        """Ends a worker that nobody needs any more."""
        self._link.kill(worker)
        self.forget(worker)

    def forget(self, worker: WorkerHandle) -> None:
        """The worker is over."""
        with shielded():
            self._link.forget(worker)
            worker.taken = False
            worker.reset()

    def warn_once(self, cause: str, text: str) -> None:
        """A warning the first time that something happens for this cause; after that only the log's details say so."""
        cause = cause.rpartition("; ")[2]  # without the numbers of this time
        self._causes[cause] += 1
        log.log(logging.WARNING if self._causes[cause] == 1 else logging.INFO, "%s", text)

    def sum_up(self) -> None:
        """At the end: how often it happened again."""
        for cause, n in self._causes.items():
            if n > 1:
                log.warning("%d more workers or agents began anew for the same reason: %s", n - 1, cause)
        self._causes.clear()
