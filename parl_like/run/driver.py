"""Driver: how the agents of a pool run, and how their requests travel. This page is the contract, `parl_like.drivers` keeps it,
and `tests/test_transport.py` holds every driver to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import current_thread, get_ident
from typing import Any, Protocol

from parl_like.agents.agent import Agent
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.interfaces import PoolPort
from parl_like.run.agent_states import AgentStates, States
from parl_like.run.run_hooks import RunHooks
from parl_like.tasks.queues import RequestQueue
from parl_like.tasks.tickets import Ticket
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.errors import WrongCaller
from parl_like.values.plain import State

CALLED_BY_AGENT = (
    "an agent cannot run or halt all agents, for it would wait for itself (run, train_iter, collect, save, close and the like, "
    "called from an agent or a hook); call it between iterations, or use request_stop()"
)


def foreign(agent: object) -> WrongCaller:
    """For a call from a thread that is not the agent's."""
    return WrongCaller(f"{agent}: a helper was asked from thread {current_thread().name!r}, which is not the agent's; an agent "
                       "acts while it learns with mode='async', or with driver='threads' in a thread that it registers, "
                       "self.thread(function)")


class Maker(Protocol):
    """Makes agents: `parl_like.run.agent_maker.AgentMaker`."""

    def make(self, n: int) -> list[Agent]: ...


class Pool(PoolPort, Protocol):
    """A pool, as its driver and its lifecycle know it: `parl_like.run.agent_pool.AgentPool`."""

    agents: list[Agent]
    wrappers: dict[str, ComputationWrapper]
    buffers: dict[str, ReplayBuffer]
    hooks: RunHooks
    driver: Driver
    stop_requested: bool
    borrowed: bool

    @property
    def maker(self) -> Maker: ...

    def agent_failed(self, agent: Agent, error: BaseException) -> None:
        """Hear what an agent, or a task while it served this agent's update, has raised."""


class AgentProcess(Protocol):
    """A process that runs agents: `parl_like.drivers.workers.handle.WorkerHandle`."""

    def describe(self) -> State:
        """Return its number, status, restarts and agents, as JSON values."""


class Driver(Protocol):
    """Made with whether the mode is sync, and two functions to call with an agent and an error: for what an agent's code raised,
    and for an update that failed. What is written out here is for agents of this process, with their buffers.

    Attributes:
        agents: Those that were started and have not ended.
        parked: Those of them that wait for `resume`.
        stopping: No further batch is served, and `iterate` returns; set by `request_stop`, cleared by the robot after `halt`.
        collecting: Helpers shall store without learning, perhaps at random; for agents that are not in this process.
        workers: Processes that agents run in; none where they run in this one.
        lock: Guards the queues, and is held where buffers are changed; None where one thread runs everything.
    """

    pool: Pool
    agents: list[Agent]
    parked: list[Agent]
    stopping: bool
    collecting: bool | str = False
    workers: Sequence[AgentProcess] = ()
    lock: Any = None

    # ----------------------------------------------------------------------------------------------- called by communicators

    def waiter(self) -> Any:
        """A fresh object for one ticket's waiting."""

    def put(self, queue: RequestQueue, ticket: Ticket, values: object, wait: bool) -> None:
        """Queues the request and, with `wait`, returns when it is served; raises `ticket.error`, and `WrongCaller` at once."""

    def wait(self, ticket: Ticket) -> None:
        """Returns when a request that was put without waiting is served, at once where it was waited for before; raises
        `ticket.error`."""

    def is_served(self, ticket: Ticket) -> bool: ...

    def check_caller(self, agent: object) -> None:
        """Raises WrongCaller where this code may not wait for a request of the agent: inside of a task, which would wait for
        itself or for another that waits for it; and in a thread that the agent has started, which nobody counts."""
        for wrapper in self.pool.wrappers.values():
            for queue in (wrapper.predictions, wrapper.trainings):
                if queue.served_by == get_ident():
                    raise WrongCaller(f"{agent}: a helper was asked from inside of task {queue.task.name!r} ({queue.kind}), "
                                      "which could wait for itself; ask both tasks from the agent, one after the other")

    def park(self, agent: Agent) -> None:
        """Called by an agent: waits until `resume`, unless it has a signal to obey first."""

    def start_thread(self, agent: Agent, function: Callable[[], object]) -> None:
        """See `Agent.thread`. Raises WrongCaller where agents have no threads."""
        raise WrongCaller(f"{agent}: an agent has threads of its own under driver='threads' alone; an agent acts while it learns "
                          "with mode='async', too, under every driver")

    def is_beside(self) -> bool:
        """Return whether the caller is a thread that an agent has registered."""
        return False

    def rest(self, agent: Agent) -> None:
        """Called now and then by an agent that asks no queue: returns when the others, and the run loop, have had their turn."""
        return

    # -------------------------------------------------------------------------------------------------- called by the robot

    def move_ends(self, key: str, ends: Sequence[int]) -> None:
        """Tells agents that are in other processes where schedules end (`parl_like.learning.span`)."""
        return

    def make_agents(self, pool: Pool, n: int) -> list[Any]:
        """The `n` agents of a new pool, here or in other processes; not started yet.

        Raises:
            ValueError, TypeError: an agent, an environment or a helper cannot be where this driver would run it.
        """
        self.pool = pool
        made: list[Any] = pool.maker.make(n)
        return made

    def need_local(self, what: str, why: str) -> None:
        """Raises a ValueError where agents, and what they store, are in other processes: `what` cannot be done there, and
        `why`."""
        return

    def start(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        """The agents begin to run, at the latest in the next `iterate`; those that had ended begin anew.

        Raises:
            RuntimeError: one of them is still busy since before the last stop, or the system gives no more threads.
        """

    def iterate(self) -> bool:
        """Runs until one round of training has been served (sync), or for a little while (async, or where nobody learns).

        Returns:
            False when nothing can run any more: every agent is parked or has ended, or a stop was requested.
        """

    def resume(self, agents: Sequence[Agent]) -> None:
        """Let those of the agents that are parked go on."""

    def request_stop(self) -> None:
        """Sets `stopping`. May be called from anywhere, also by agents and hooks."""

    def halt(self, agents: Sequence[Agent], signal: AgentSignal, patience: float | None = None) -> list[Any]:
        """Gives every agent a signal and returns when each has ended or parked.

        Args:
            signal: STOP: all end, and open requests are answered `Stopped`. INTERRUPT: requests are served first, so that no
                reply is lost; then the agents leave their episodes.
            patience: Seconds to wait for agents that are busy in their environments; None: as long as it takes.

        Returns:
            Agents that are still busy.

        Raises:
            RuntimeError: called from inside an agent or a hook, which would wait for itself.
        """

    def pause(self, patience: float) -> list[object]:
        """After a stop: returns when no agent runs any more, and leaves them, and the requests that are open, where they are, for
        the next `iterate`.

        Returns:
            Agents, and names of tasks' threads, that are still busy after `patience` seconds.
        """

    def go_on(self) -> None:
        """After `pause`: the next `iterate` goes on with everything."""
        return

    def forsake(self) -> None:
        """The agents that wait will not go on: their robot is gone, or in another thread. Nothing is waited for."""
        return

    def join(self, timeout: float | None = None) -> list[Any]:
        """After a stop: whoever has not ended within so many seconds. (Greenlets run to their end in `halt`.)"""
        return list(self.agents)

    def reopen(self) -> None:
        """Takes requests again after a stop."""

    def refuse_agents(self) -> None:
        """Raises a RuntimeError in a call from an agent or a hook, for what runs or ends all agents would wait for its caller."""

    def close(self) -> None:
        """Ends processes, if there are any. May be called twice."""
        return

    # -------------------------------------------------------------------------------------------------------------- state

    @property
    def states(self) -> States:
        """Return who saves and restores agents and buffers, while no agent runs."""
        return AgentStates(self.pool.agents, self.pool.buffers)
