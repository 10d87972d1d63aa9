"""What the tests of compiled code share: whether a call lets other threads run."""

import sys
import threading


def let_others_run(call, calls, name):
    """Asserts that while one thread repeats `call`, this one gets on, within so many calls.

    The switch interval keeps the interpreter from taking turns by itself.
    """
    met, calls_until_met = threading.Event(), []

    def work():
        for i in range(calls):
            call()
            if met.is_set():
                calls_until_met.append(i)
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=work, name=name)
        thread.start()  # waits for the thread to begin; from then on only a kernel gives the interpreter back
        met.set()
        thread.join(timeout=60)
    finally:
        sys.setswitchinterval(interval)
    assert not thread.is_alive(), f"{thread.name} does not end"
    assert calls_until_met, f"{calls:,} calls went by before another thread could run"
