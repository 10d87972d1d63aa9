"""The waiting of the threads driver: locks that one thread takes and another releases, and how a queue's thread waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from parl_like.process.child import shielded

if TYPE_CHECKING:
    from parl_like.tasks.queues import RequestQueue


def has_ended(thread: threading.Thread, end: float = 0.0) -> bool:
    """Return whether a thread has ended or was never started; wait for that until the time `end`.

    Ctrl-C waits meanwhile, 50 ms at most: struck by it, `Thread.join` and `is_alive` take a running thread for an ended one.
    """
    while thread.ident is not None:
        with shielded():
            thread.join(min(max(end - monotonic(), 0.0), 0.05))
            if not thread.is_alive():
                break
        if monotonic() >= end:
            return False
    return True


def locked() -> threading.Lock:
    """Return a lock that a thread sleeps on until another releases it. (A Condition that Ctrl-C strikes while it takes its lock
    back leaves with a lock that is not its own.)"""
    lock = threading.Lock()
    lock.acquire()
    return lock


def release(lock: threading.Lock) -> None:
    """Wakes who sleeps on it, or the next who would; the caller holds the driver's lock."""
    if lock.locked():
        lock.release()


class Server:
    """The service of one queue in one run.

    Attributes:
        bell: What its thread sleeps on.
        asleep: The thread sleeps until the bell, so the first request of a batch must ring; else it wakes by the clock.
        busy: A batch is being computed, by the thread or by an agent.
    """

    __slots__ = ("asleep", "bell", "busy", "queue", "thread", "training")

    def __init__(self, queue: RequestQueue, serve_forever: Callable[[Server], None]) -> None:
        self.queue, self.training = queue, queue.kind == "learn"
        self.bell = locked()
        self.asleep = self.busy = False
        self.thread = threading.Thread(target=serve_forever, args=(self,), name=f"{queue.task.name} {queue.kind}", daemon=True)


class InService:
    """The queues of which a batch is being computed, for `parl_like.tasks.rounds`."""

    def __contains__(self, queue: object) -> bool:
        server: Server | None = getattr(queue, "server", None)
        return server is not None and server.busy
