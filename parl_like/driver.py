"""Driver: how the agents of a crew run, and how their requests travel. This page is the contract; `parl_like.drivers` keeps it.

A driver has two sides. To the agents it is the `Link` of their communicators, and `park`. To the robot it is all the rest.
`tests/test_transport.py` holds every driver to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from parl_like.communicator import Link


class Driver(Link, Protocol):
    """What a `Robot` asks of its driver. It is made with whether the mode is sync, and two functions to call with an agent and an
    error: for what an agent's code raised, and for a lesson that failed.

    Attributes:
        agents: Those that were started and have not ended.
        parked: Those of them that wait for `resume`.
        stopping: No further batch is served, and `iterate` returns; set by `request_stop`, cleared by the robot after `halt`.
        collecting: Helpers shall store without learning; for agents that are not in this process.
        lock: Guards the queues, and is held where buffers are changed; None where one thread runs everything.
    """

    agents: list[Any]
    parked: list[Any]
    stopping: bool
    collecting: bool
    lock: Any

    def make_agents(self, crew: Any, n: int) -> list[Any]:
        """The `n` agents of a new crew, here or in other processes; not started yet.

        Raises:
            ValueError, TypeError: an agent, an environment or a helper cannot be where this driver would run it.
        """

    def need_local(self, what: str, why: str) -> None:
        """Raises a ValueError where agents, and what they store, are in other processes: `what` cannot be done there, and
        `why`."""

    # ------------------------------------------------------------------------------------------------------------ running

    def start(self, agents: Sequence[Any], wrappers: Sequence[Any]) -> None:
        """The agents begin to run, at the latest in the next `iterate`; those that had ended begin anew.

        Raises:
            RuntimeError: one of them is still busy since before the last stop, or the system gives no more threads.
        """

    def iterate(self, slices: int = 64) -> bool:
        """Runs until one round of training has been served (sync), or for a little while (async, or where nobody learns).

        Returns:
            False when nothing can run any more: every agent is parked or has ended, or a stop was requested.
        """

    def park(self, agent: Any) -> None:
        """Called by an agent: waits until `resume`, unless it has a signal to obey first."""

    def resume(self, agents: Sequence[Any]) -> None:
        """Those of the agents that are parked go on."""

    def request_stop(self) -> None:
        """Sets `stopping`. May be called from anywhere, also by agents and hooks."""

    def halt(self, agents: Sequence[Any], signal: str, patience: float | None = None) -> list[Any]:
        """Gives every agent a signal and returns when each has ended or parked.

        Args:
            signal: 'stop': all end, and open requests are answered `Stopped`. 'interrupt': requests are served first, so that no
                reply is lost; then the agents leave their episodes.
            patience: Seconds to wait for agents that are busy in their environments; None: as long as it takes.

        Returns:
            Agents that are still busy.

        Raises:
            RuntimeError: called from inside an agent or a hook, which would wait for itself.
        """

    def join(self, timeout: float | None = None) -> list[Any]:
        """After a stop: whoever has not ended within so many seconds."""

    def reopen(self) -> None:
        """Takes requests again after a stop."""

    def refuse_agents(self) -> None:
        """Raises a RuntimeError in a call from an agent or a hook, for what runs or ends all agents would wait for its caller."""

    # -------------------------------------------------------------------------------------------------------------- state

    def digests(self, here: dict[int, bytes]) -> dict[int, bytes]:
        """The agents' traces, by index, where `here` is what this process has seen of them."""

    def state_dict(self) -> dict[str, Any]:
        """Agents and buffers, while no agent runs."""

    def state_keys(self) -> set[str]:
        """The keys of `state_dict`."""

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises a ValueError where agents or workers of a saved state are not those of this crew."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`, which may stand among other keys."""

    def close(self) -> None:
        """Ends processes, if there are any. May be called twice."""
