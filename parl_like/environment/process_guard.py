"""Notices what an environment changes in its process: signal handlers, threads, random generators, working directory."""

from __future__ import annotations

import os
import random
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from parl_like.data.rng import Borrowed
from parl_like.interfaces import ActingAgent

DIRECTORY, CTRL_C = "the working directory", "the handler of Ctrl-C"
TORCH = "the global generator of torch"
_LEFT = "left so: nothing of the framework draws from it, but then reset(seed=...) does not decide what the environment does"


@contextmanager
def watched(agent: ActingAgent, doing: str, generators: bool = True) -> Iterator[None]:
    """Around code of an environment: tells, once per robot and thing, what it changed that belongs to the whole process.

    The working directory and the handler of Ctrl-C are put back, except in a thread beside others that may rely on them. The
    global random `generators`, at which to look costs 0.1 ms instead of 10 µs, are left as they are: an environment that draws
    from them would else repeat itself in every episode. What we draw comes from others.
    """
    alone = threading.current_thread() is threading.main_thread()
    borrowed = Borrowed.begun
    before = _belongings(alone, generators)
    try:
        yield
    finally:
        after = _belongings(alone, generators)
        if Borrowed.begun != borrowed:
            after.pop(TORCH, None)
        changed = {name for name, value in before.items() if value is not None and value != after.get(name, value)}
        if DIRECTORY in changed and alone:
            os.chdir(before[DIRECTORY])
        if CTRL_C in changed:
            signal.signal(signal.SIGINT, before[CTRL_C])
        agent.process_changes |= changed
        new = sorted(changed - agent.agent_pool.warned)
        if new:
            agent.agent_pool.warned.update(new)
            done = "put back" if alone else "not put back: other threads share it"
            hints = [f"{name} ({done if name in (DIRECTORY, CTRL_C) else _LEFT})" for name in new]
            warnings.warn(f"{agent}: while its environment was {doing}, something changed {' and '.join(hints)}", RuntimeWarning,
                          stacklevel=4)


def _belongings(alone: bool, generators: bool) -> dict[str, Any]:
    """Return what environments shall not change, by name; None where it cannot be told. Beside other threads, handlers and
    torch's generator tell nothing: the main thread holds Ctrl-C off at times, and updates with dropout borrow the generator,
    which may be beside the main thread, too."""
    out: dict[str, object] = {DIRECTORY: None}
    with suppress(OSError):  # it was deleted
        out[DIRECTORY] = os.getcwd()
    if alone:
        out[CTRL_C] = signal.getsignal(signal.SIGINT)
    if generators:
        numbers = np.random.get_state(legacy=False)["state"]
        out["the global generator of random"] = random.getstate()
        out["the global generator of numpy"] = numbers["pos"], numbers["key"].tobytes()
        if alone and Borrowed.begun == Borrowed.ended:
            out[TORCH] = torch.get_rng_state().numpy().tobytes()
    return out
