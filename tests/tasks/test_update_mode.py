"""UpdateMode: what an update holds, and what Ctrl-C leaves behind."""

import sys
import threading

from value_rows import ACT, OBS, rows

from parl_like import ComputationTask
from parl_like.algorithms import DQN
from parl_like.models import MLPQ
from parl_like.tasks import algorithm_runner


def test_ctrl_c_at_any_call_of_an_update_s_mode_leaves_the_lock_free():
    """It strikes where a function begins. Another thread asks for the lock, for this one might take it twice."""
    task, file = ComputationTask(DQN(MLPQ(OBS, ACT))), algorithm_runner.__file__
    given, free = rows(), []

    def look():
        free.append(task.lock.acquire(blocking=False))
        if free[-1]:
            task.lock.release()

    def interrupted(call):
        """Learn, and return whether there was so late a call."""
        left = [call]

        def strike(frame, event, _):
            if event == "call" and frame.f_code.co_filename == file:
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt

        sys.setprofile(strike)
        try:
            task.learn(given)
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    call = 1
    while interrupted(call):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        call += 1
    assert all(free) and len(free) >= 9  # three parts of an update, each with at least three calls
