"""UpdateMode: what an update holds, and what Ctrl-C leaves behind."""

import signal
import threading

import pytest
from agent_fakes import Recorder

from parl_like import ComputationTask
from parl_like.tasks.algorithm_runner import UpdateMode


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_ctrl_c_at_any_moment_of_an_update_leaves_its_lock_free():
    """The lock is looked at in another thread: the one that held it might take it twice."""
    task = ComputationTask(Recorder())
    lock, free, before = task.learned.lock, [], signal.getsignal(signal.SIGALRM)

    def strike(*_):
        raise KeyboardInterrupt

    def look():
        free.append(lock.acquire(blocking=False))
        if free[-1]:
            lock.release()

    signal.signal(signal.SIGALRM, strike)
    try:
        for i in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-4 + 1e-6 * i)
                while True:
                    with task.learned.lock, UpdateMode(task.runner):
                        pass
            except KeyboardInterrupt:
                pass
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(free) and len(free) == 300
