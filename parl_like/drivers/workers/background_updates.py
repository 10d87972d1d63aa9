"""Updates: learning in threads of its own while predictions go on, for drivers that serve in one thread (async mode)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from parl_like.learning.optimizer_steps import BESIDE
from parl_like.process.child import shielded
from parl_like.tasks.queues import RequestBatch, RequestQueue
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.tickets import Ticket

log = logging.getLogger("parl_like.processes")


class BackgroundUpdates:
    """The updates that are being given.

    Attributes:
        tasks: Of the robot.
        running: By the queue that they came from; one of each queue at a time.
        descriptors: File descriptors of which one becomes readable when an update has ended.
    """

    def __init__(self) -> None:
        self.tasks: Sequence[ComputationTask] = ()
        self.running: dict[RequestQueue, Future[tuple[list[Ticket], object]]] = {}
        self.descriptors: list[int] = []
        self._threads: ThreadPoolExecutor | None = None
        self._beside: ThreadPoolExecutor | None = None  # for backward passes that go on at the same time
        self._uncopied: set[str] = set()

    def make_copies(self) -> None:
        """Gives tasks that learn copies of their networks, for predictions meanwhile, while none learns."""
        for task in self.tasks:
            if task.train and task.serve == "central" and task.acting is None and task.name not in self._uncopied:
                try:
                    task.publish()
                except Exception as error:  # noqa: BLE001  the user's algorithm may hold anything
                    self._uncopied.add(task.name)
                    log.warning("task %r: its algorithm cannot be copied (%s: %s), so predictions wait for optimiser steps",
                                task.name, type(error).__name__, error)

    def drop_copies(self) -> None:
        """Predictions use the networks themselves again, for nothing learns beside them now."""
        for task in self.tasks:
            task.acting = None

    def give(self, queue: RequestQueue, batch: RequestBatch, afterwards: Callable[[], object]) -> None:
        """Begins an update. `afterwards` is called in its thread at the end, and `ended` gives what it returned."""
        tasks = self.tasks
        if self._threads is None:
            # Asking torch for its threads limits a thread's own.
            self._beside = ThreadPoolExecutor(len(tasks), "learn", torch.get_num_threads)
            self._threads = ThreadPoolExecutor(len(tasks), "learn", lambda: (BESIDE.set(self._beside), torch.get_num_threads()))
            self.descriptors = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)]
        (told,) = self.descriptors

        def work() -> tuple[list[Ticket], object]:
            tickets, found = queue.work(batch), afterwards()
            for task in tasks:
                if task.acting is not None and task.acting.version != task.version:
                    task.publish()
            return tickets, found

        with shielded():  # one that nobody knew of would not be waited for
            self.running[queue] = update = self._threads.submit(work)
        update.add_done_callback(lambda _: os.eventfd_write(told, 1))

    def ended(self) -> list[tuple[RequestQueue, list[Ticket], Any]]:
        """Queue, answered requests and what `afterwards` returned, of the updates that have ended since the last call."""
        out = []
        for queue, update in list(self.running.items()):
            if update.done():
                with suppress(BlockingIOError):
                    os.eventfd_read(self.descriptors[0])
                del self.running[queue]
                out.append((queue, *update.result()))
        return out

    def close(self) -> None:
        if self._threads is not None and self._beside is not None:
            self._threads.shutdown()
            self._beside.shutdown()
            self._threads = self._beside = None
            os.close(self.descriptors.pop())
