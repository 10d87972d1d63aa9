"""What the code of an environment does to the process around it: it is looked at, told once, and put back where that can be
done."""

from __future__ import annotations

import os
import random
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

DIRECTORY, CTRL_C = "the working directory", "the handler of Ctrl-C"
_PUT_BACK, _SHARED = "put back", "not put back: other threads share it"
_LEFT = "left so: nothing of the framework draws from it, but then reset(seed=...) does not decide what the environment does"


@contextmanager
def watched(agent: Any, doing: str, generators: bool = True) -> Iterator[None]:
    """Around code of an environment: tells, once per robot and thing, what it changed that belongs to the whole process.

    The working directory and the handler of Ctrl-C are put back, except in a thread beside others that may rely on them. The
    global random generators are left as they are: an environment that draws from them would else repeat itself in every episode.
    Ours never do, so whatever happens to them, what we draw stays the same.

    Args:
        doing: What the environment is doing, for the warning.
        generators: Whether to look at the generators too, which costs 0.1 ms instead of 10 µs.
    """
    alone = threading.current_thread() is threading.main_thread()
    before = _belongings(alone, generators)
    try:
        yield
    finally:
        after = _belongings(alone, generators)
        changed = {name for name, value in before.items() if value is not None and value != after[name]}
        if changed and alone:
            if DIRECTORY in changed:
                os.chdir(before[DIRECTORY])
            if CTRL_C in changed:
                signal.signal(signal.SIGINT, before[CTRL_C])
        agent.told |= changed
        new = sorted(changed - agent.robot.told)
        if new:
            agent.robot.told.update(new)
            hints = [f"{name} ({_PUT_BACK if alone else _SHARED})" if name in (DIRECTORY,
                                                                               CTRL_C) else f"{name} ({_LEFT})" for name in new]
            warnings.warn(f"{agent}: while its environment was {doing}, something changed {' and '.join(hints)}", RuntimeWarning,
                          stacklevel=4)


def _belongings(alone: bool, generators: bool) -> dict[str, Any]:
    """What environments shall not change, by name; None where it cannot be told.

    Args:
        alone: This is the main thread. In another one, handlers and torch's generator tell nothing: the main thread holds Ctrl-C
            off at times, and lessons with dropout borrow the generator.
        generators: As for `watched`.
    """
    try:
        out: dict[str, Any] = {DIRECTORY: os.getcwd()}
    except OSError:  # it was deleted
        out = {DIRECTORY: None}
    if alone:
        out[CTRL_C] = signal.getsignal(signal.SIGINT)
    if generators:
        numbers = np.random.get_state(legacy=False)["state"]
        out["the global generator of random"] = random.getstate()
        out["the global generator of numpy"] = numbers["pos"], numbers["key"].tobytes()
        if alone:
            out["the global generator of torch"] = torch.get_rng_state().numpy().tobytes()
    return out
