"""Threads of agents under the threads driver (`Agent.thread`): who they are, and when they may ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from parl_like.drivers.waiting import has_ended
from parl_like.process.child import shielded
from parl_like.values.errors import AgentFailed, Interrupted, Stopped

if TYPE_CHECKING:
    from parl_like.agents.agent import Agent
    from parl_like.agents.helper import AgentHelper


class Beside:
    """The threads that agents have registered. They are not counted among those who act, so nobody waits for them.

    Attributes:
        threads: Agent and function → thread, of this run.
    """

    def __init__(self) -> None:
        self.threads: dict[tuple[int, object], threading.Thread] = {}
        self._agents: dict[int, tuple[Agent, object]] = {}  # by thread, with the run in which it was registered
        self._shared: set[int] = set()  # agents with such threads, now or before
        self._may_ask = threading.Event()

    def start(self, agent: Agent, function: Callable[[], object], run: object, now: Callable[[], object],
              failed: Callable[[object, BaseException], None]) -> None:
        """Runs `function` in a thread, unless one of this agent runs it already.

        Args:
            run, now: The run that it belongs to, and which one there is when it is asked.
            failed: Called with the agent and an error that names the thread.
        """
        key = id(agent), function
        if (before := self.threads.get(key)) is not None and before.is_alive():
            return

        def work() -> None:
            torch.get_num_threads()  # as in `ThreadsDriver._main`
            self._agents[threading.get_ident()] = agent, run
            try:
                function()
            except (Stopped, Interrupted):
                pass
            except BaseException as error:  # noqa: BLE001  as if the agent had raised it
                if now() is run:
                    told = AgentFailed(f"{agent}: its thread {threading.current_thread().name!r} raised {type(error).__name__}: "
                                       f"{error}")
                    told.__cause__ = error
                    failed(agent, told)
            finally:
                self._agents.pop(threading.get_ident(), None)

        if agent.index not in self._shared:
            self._shared.add(agent.index)
            for helper in agent.helpers.values():
                share(helper)
        name = f"{agent}, {getattr(function, '__name__', 'thread')}"
        thread = self.threads[key] = threading.Thread(target=work, name=name, daemon=True)
        with shielded():
            thread.start()

    def late(self) -> list[str]:
        """Names of those that have not ended; the others are forgotten."""
        self.threads = {key: thread for key, thread in self.threads.items() if not has_ended(thread)}
        return [thread.name for thread in self.threads.values()]

    def is_here(self) -> bool:
        """Return whether the caller is one of these threads."""
        return threading.get_ident() in self._agents

    def belongs_to(self, agent: object, run: object) -> bool:
        """Return whether the caller is a thread of this agent. Raises Stopped in one of a run that is over."""
        mine, its_run = self._agents.get(threading.get_ident(), (None, None))
        if mine is agent and its_run is not run:
            raise Stopped(f"{agent}: its run is over, and so is this thread")
        return mine is agent

    def hold(self) -> None:
        """Hold the agents' requests: what they ask from now on waits."""
        self._may_ask.clear()

    def go(self) -> None:
        """Let them ask again, after `hold`."""
        self._may_ask.set()

    def wait(self) -> None:
        """Returns when they may ask: ended by `go`, at the latest when the run stops."""
        self._may_ask.wait()


def share(helper: AgentHelper) -> None:
    """Several threads use a helper from now on: what it stores and takes, it stores and takes one after the other."""
    lock = threading.RLock()

    def alone(call: Callable[..., object]) -> Callable[..., object]:
        def locked(*args: object, **options: object) -> Any:
            with lock:
                return call(*args, **options)

        return locked

    helper.comm.share()
    for name in ("store", "take", "draw"):
        if hasattr(helper, name):
            setattr(helper, name, alone(getattr(helper, name)))
