"""RunHooks: who hears of the stages of a pool's agents, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from parl_like.agents.agent import Agent
from parl_like.environment.hooks import Hook, TraceHash
from parl_like.values.plain import State


class RunHooks:
    """The hooks of a pool's runs.

    Args:
        agents: The pool's list of agents, which may change.
        trace: Hears of everything, also outside of a run; None: nobody asked for one.
        threads: Whether agents have threads of their own.
        own: Hooks that hear of everything, too, before those of a run.

    Attributes:
        own: See above.
        last: Hear of everything, too, after all others. They may come and go while agents act: the places of the others stay.
        observing: The thread in which a hook or a stop condition is called, where agents have threads; None: none is.
        muted: Nobody hears anything, for what agents hold while they wait for the next run shall not hold the hooks.
    """

    def __init__(self, agents: list[Agent], trace: TraceHash | None, threads: bool, own: Sequence[Hook] = ()) -> None:
        self.observing: int | None = None
        self.muted = False
        self.own, self.last = tuple(own), tuple[Hook, ...]()
        self._agents, self._trace = agents, trace
        self._lock = threading.RLock() if threads else None
        self._hooks: list[Hook] = []
        self._before: list[Hook] = []  # of the run before
        self._new: list[Hook] = []

    def tell_agents(self, *more: Hook) -> None:
        """Let the agents' environments know who hears of their stages: own hooks, those of the run, the trace, and `more` for
        now."""
        trace = [] if self._trace is None else [self._trace]
        hooks = [] if self.muted else [*self.own, *self._hooks, *trace, *more, *self.last]
        for agent in self._agents:
            if agent.env is not None:
                agent.env.observe(hooks)

    def mute(self, muted: bool) -> None:
        """Set `muted`."""
        self.muted = muted
        self.tell_agents()

    def add(self, hook: Hook) -> None:
        """Let one more hook belong to the robot, from the next run or iteration on."""
        self.own = (*self.own, hook)
        self.tell_agents()

    def begin(self, hooks: Sequence[Hook]) -> None:
        """Set the hooks of a run."""
        self._new = [hook for hook in hooks if all(hook is not other for other in self._before)]
        self._hooks, self._before = list(hooks), list(hooks)
        self.tell_agents()

    def metrics(self) -> dict[str, float]:
        """Return the numbers that hooks give for the robot's metrics: its own, and those of the run that is under way, or of the
        last one."""
        hooks = [hook for hook in dict.fromkeys((*self.own, *self._before)) if isinstance(hook, Hook)]
        return {name: float(value) for hook in hooks for name, value in hook.metrics().items()}

    def state_dict(self) -> dict[str, list[State]]:
        """Return the states of the robot's own hooks, by class, in their order."""
        out: dict[str, list[State]] = {}
        for name, hook in self._stateful():
            out.setdefault(name, []).append(hook.state_dict())
        return out

    def load_state_dict(self, state: Mapping[str, Sequence[State]]) -> None:
        """Restore what `state_dict` gave, as far as there are such hooks."""
        left = {name: list(states) for name, states in state.items()}
        for name, hook in self._stateful():
            if left.get(name):
                hook.load_state_dict(left[name].pop(0))

    def _stateful(self) -> list[tuple[str, Hook]]:
        return [(type(hook).__name__, hook) for hook in self.own if type(hook).state_dict is not Hook.state_dict]

    def connect(self) -> None:
        """Let hooks that the run before did not have hear PRE_EPISODE of the episodes that go on."""
        new, self._new = self._new, []
        for agent in self._agents:
            if new and agent.env is not None:
                agent.env.connect_hooks(new)

    def end(self) -> None:
        """End what `begin` has begun."""
        self._hooks = []
        self.tell_agents()

    @contextmanager
    def during(self, hooks: Sequence[Hook]) -> Iterator[None]:
        """Let these be the hooks of the run inside of a `with`."""
        self.begin(hooks)
        self.connect()
        try:
            yield
        finally:
            self.end()

    def in_turn(self, call: Callable[..., object]) -> Callable[..., Any]:
        """Return `call`, a hook's method or a stop condition, as agents call it: one at a time, whatever their threads do, for
        those who write it count in it without locks."""
        lock = self._lock
        if lock is None:
            return call

        def locked(*args: object) -> Any:
            with lock:
                before, self.observing = self.observing, threading.get_ident()
                try:
                    return call(*args)
                finally:
                    self.observing = before

        return locked
