"""The waiting of the threads driver: locks that one thread takes and another releases, and threads that end."""

from __future__ import annotations

import threading
from time import monotonic

from parl_like.process.child import shielded


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
