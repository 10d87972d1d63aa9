"""The cooperative driver: every agent is a greenlet of the calling thread, so nothing needs a lock and the order is the seed's.

A blocking call of an agent switches to the hub, which is the thread's own greenlet. The hub runs every runnable agent until all
wait; then it serves the fullest queue, and its members run on. Two runs with one seed make the same switches and the same batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet


if TYPE_CHECKING:
    from parl_like.agent import Agent
    from parl_like.communicator import Ticket
    from parl_like.computation_wrapper import ComputationWrapper, RequestQueue

SERVED = object()


class CooperativeDriver:
    """Agents as greenlets. One instance runs one set of agents on one set of wrappers.

    Args:
        sync: Training is served only when every learning agent waits for it (unroll, then train). Else as soon as it may close.
        failed: Called with an agent and what its code raised.
        on_error: Called with the tickets' error when a training batch failed.
    """

    def __init__(self, sync: bool, failed: Callable[[Agent, BaseException], None], on_error: Callable[[Any, BaseException], None]) -> None:
        self.sync = sync
        self._failed, self._on_error = failed, on_error
        self.ready: deque[greenlet] = deque()
        self.wrappers: Sequence[ComputationWrapper] = ()
        self.agents: list[Agent] = []
        self.parked: list[Agent] = []
        self._fibers: dict[int, greenlet] = {}
        self._hub = getcurrent()
        self._switch: Any = None
        self.stopping = False

    # ------------------------------------------------------------------------------------------- the agents' side (Link)

    def waiter(self) -> Any:
        return None

    def put(self, queue: Any, ticket: Ticket, values: Any, wait: bool) -> None:
        ticket.error = None
        queue.put(ticket, values)
        if wait:
            current = getcurrent()
            if current is self._hub:
                return self._serve_inline(queue, ticket)
            ticket.waiter = current
            self._hub.switch()
            if ticket.error is not None:
                raise ticket.error
        else:
            ticket.waiter = None

    def wait(self, ticket: Ticket) -> None:
        if ticket.waiter is not SERVED:
            current = getcurrent()
            if current is self._hub:
                for wrapper in self.wrappers:
                    for queue in (wrapper.predictions, wrapper.trainings):
                        while ticket.waiter is not SERVED and queue.batches:
                            self._serve(queue, wrapper)
            else:
                ticket.waiter = current
                self._hub.switch()
        if ticket.error is not None:
            raise ticket.error

    def is_served(self, ticket: Ticket) -> bool:
        return ticket.waiter is SERVED

    def _serve_inline(self, queue: RequestQueue, ticket: Ticket) -> None:
        """A call from the hub itself (no agent is running): serve until the reply is there."""
        ticket.waiter = None
        self.wait(ticket)

    def park(self, agent: Agent) -> None:
        """Called by an agent: waits until `resume`."""
        self.parked.append(agent)
        self._hub.switch()

    # ------------------------------------------------------------------------------------------------------- the robot's side

    def start(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        self._hub = getcurrent()
        self.wrappers = list(wrappers)
        self.agents = list(agents)
        for agent in agents:
            fiber = self._fibers[id(agent)] = greenlet(partial(self._main, agent), self._hub)
            self.ready.append(fiber)

    def _main(self, agent: Agent) -> None:
        try:
            agent.run()
        except BaseException as error:
            self._failed(agent, error)
        finally:
            self.agents.remove(agent)

    def request_stop(self) -> None:
        self.stopping = True

    def resume(self, agents: Sequence[Agent]) -> None:
        for agent in agents:
            if agent in self.parked:
                self.parked.remove(agent)
                self.ready.append(self._fibers[id(agent)])

    def _run_ready(self) -> None:
        self._hub = getcurrent()
        ready = self.ready
        while ready:
            ready.popleft().switch()
            if self.stopping:
                return

    def _serve(self, queue: RequestQueue, wrapper: ComputationWrapper) -> None:
        tickets = queue.serve(wrapper.mode)
        self._wake(tickets)
        if queue is wrapper.trainings and tickets and tickets[0].error is not None and wrapper.task.on_error == "stop":
            self._on_error(tickets[0].agent, tickets[0].error)

    def _wake(self, tickets: list[Ticket]) -> None:
        ready = self.ready
        for ticket in tickets:
            waiter = ticket.waiter
            ticket.waiter = SERVED
            if waiter is not None:
                ready.append(waiter)

    def iterate(self, slices: int = 64) -> bool:
        """Runs until one round of training has been served (sync), or `slices` batches (async, or when nobody learns).

        Returns:
            False when nothing can run any more: every agent is parked or has ended.
        """
        left = slices
        learners = self.sync and any(agent.learns for agent in self.agents)
        while True:
            self._run_ready()
            if self.stopping:
                return False
            choice = self._choose(learners)
            if choice is None:
                return self._train_round()
            self._serve(*choice)
            if not learners:
                left -= 1
                if not left:
                    return True

    def _choose(self, learners: bool) -> tuple[RequestQueue, ComputationWrapper] | None:
        """The closable queue with most rows, ties in task order; None when only training in a round is left."""
        best, rows = None, 0
        waiting = False
        for wrapper in self.wrappers:
            queue: RequestQueue
            queue = wrapper.predictions
            if queue.rows > rows:
                best, rows = (queue, wrapper), queue.rows
            queue = wrapper.trainings
            if queue.rows:
                waiting = True
                if (queue.rows > rows) if not self.sync else (queue.rows >= (queue.rule.min_rows or float("inf"))):
                    best, rows = (queue, wrapper), queue.rows
        if best is not None and waiting and learners and best[0].kind == "predict" and not self._learner_acts():
            return None
        return best

    def _learner_acts(self) -> bool:
        """Whether any waiting prediction is a learning agent's; else nobody is left who could still come to train."""
        return any(t.agent.learns for w in self.wrappers for b in w.predictions.batches for t in b.tickets)

    def _train_round(self) -> bool:
        served = False
        for wrapper in self.wrappers:
            while wrapper.trainings.batches:
                self._serve(wrapper.trainings, wrapper)
                served = True
                if self.stopping:
                    return False
        return served

    def halt(self, agents: Sequence[Agent], signal: str) -> None:
        """Gives every agent the signal and runs them until each has ended or parked; requests in the queues are answered `Stopped`
        only where the signal is 'stop'. With 'interrupt' they are served first, so that no reply is lost."""
        self._hub = getcurrent()
        self.stopping = False
        for agent in agents:
            agent.signal = signal
        if signal == "stop":
            for wrapper in self.wrappers:
                for queue in (wrapper.predictions, wrapper.trainings):
                    self._wake(queue.fail_all("the robot stopped"))
            self.resume(list(self.parked))
            while self.ready:
                self.ready.popleft().switch()
            return
        while True:
            self._run_ready()
            choice = self._choose(False)
            if choice is not None:
                self._serve(*choice)
            elif not self._train_round():
                return

    def reopen(self) -> None:
        """Takes requests again after a stop."""
        for wrapper in self.wrappers:
            wrapper.predictions.stopped = wrapper.trainings.stopped = None

    def join(self, timeout: float | None = None) -> list[Agent]:
        """Agents that have not ended. Greenlets cannot outlive their hub's patience, so after a stop there are none."""
        return list(self.agents)


