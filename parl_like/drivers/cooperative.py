"""The cooperative driver: every agent is a greenlet of the calling thread, so nothing needs a lock and the order is the seed's.

A blocking call of an agent switches to the hub, which is the thread's own greenlet. The hub runs every runnable agent until all
wait; then it serves the fullest queue, and its members run on. Two runs with one seed make the same switches and the same
batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

from parl_like.run.driver import CALLED_BY_AGENT, Driver, foreign
from parl_like.tasks.rounds import ROUND_DONE, Learner, RoundDone, Rounds, Serve, Wait
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.errors import Interrupted

if TYPE_CHECKING:
    from parl_like.agents.agent import Agent
    from parl_like.tasks.queues import RequestQueue
    from parl_like.tasks.tickets import Ticket
    from parl_like.tasks.wrapper import ComputationWrapper

SERVED = object()
BATCHES = 64
"""Batches that are served in an iteration in which no round of training ends."""


class CooperativeDriver(Driver):
    """Agents as greenlets. One instance runs one set of agents on one set of wrappers.

    Args:
        sync: Training is served only when every learning agent waits for it (unroll, then train). Else as soon as it may close.
        failed: Called with an agent and what its code raised, or an update that ends the run.

    Attributes:
        queues: Of all tasks, in their order: `predictions` and `trainings` by turns.
        rounds: What is served next, and whom an update waits for.
        patience: Seconds that predictions wait for more where their rule says nothing, and somebody could still come; None: as
            long as that is so.
    """

    patience: float | None = None

    def __init__(self, sync: bool, failed: Callable[[Any, BaseException], None]) -> None:
        self.sync = sync
        self._failed = failed
        self.ready: deque[greenlet] = deque()
        self.agents: list[Agent] = []
        self.parked: list[Agent] = []
        self._resting: list[tuple[Agent, greenlet]] = []
        self._fibers: dict[int, greenlet] = {}
        self._hub = getcurrent()
        self.stopping = False
        self.rounds = Rounds()
        self._begin([], [])

    def _begin(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        """A run begins."""
        self.agents = list(agents)
        self.predictions = [wrapper.predictions for wrapper in wrappers]
        self.trainings = [wrapper.trainings for wrapper in wrappers]
        self.queues: list[RequestQueue] = [queue for pair in zip(self.predictions, self.trainings, strict=True) for queue in pair]
        for queue in self.queues:
            queue.begin(self.sync, self.patience if queue.kind == "predict" else None)
        self.rounds.begin(self.sync, self.queues, *self._learners(self.agents))

    def _learners(self, agents: Sequence[Agent]) -> tuple[Sequence[Learner], bool]:
        """Return those that updates may wait for, and whether any agent learns."""
        learners = [agent for agent in agents if agent.learns]
        return learners, bool(learners)

    # --------------------------------------------------------------------------------------------------- the agents' side

    def waiter(self) -> object:
        return None

    def put(self, queue: RequestQueue, ticket: Ticket, values: Any, wait: bool) -> None:
        ticket.error = ticket.waiter = None
        current, hub = getcurrent(), self._hub
        of_an_agent = current.parent is hub and self.agents  # else of one of another robot, in this thread
        if not of_an_agent:
            self.check_caller(ticket.agent)
        dropped = queue.put(ticket, values)
        if dropped is not None:  # an update
            self.wake(dropped)
            if wait:
                self.wait(ticket)
            return
        if not wait:
            return
        if of_an_agent:  # as in `wait`, which would cost 2 % of a request
            ticket.waiter = current
            hub.switch()
            if ticket.error is not None:
                raise ticket.error
        else:
            self.wait(ticket)

    def wait(self, ticket: Ticket) -> None:
        if ticket.waiter is not SERVED:
            self.check_caller(ticket.agent)
            current = getcurrent()
            if current is not self._hub and self.agents:
                ticket.waiter = current
                if ticket.queue.kind == "learn":
                    self.rounds.waits(ticket.agent)
                    self._hub.switch()
                    self.rounds.running(ticket.agent)
                else:
                    self._hub.switch()
            else:  # a call from outside of the agents: its queue is served, whatever its rule
                while ticket.waiter is not SERVED and ticket.queue.batches:
                    ticket.queue.serve_outside(self.wake)
        if ticket.error is not None:
            raise ticket.error

    def is_served(self, ticket: Ticket) -> bool:
        return ticket.waiter is SERVED

    def check_caller(self, agent: object) -> None:
        super().check_caller(agent)
        current = getcurrent()
        if self.agents and current.parent is None and current is not self._hub:
            raise foreign(agent)

    def park(self, agent: Agent) -> None:
        self.parked.append(agent)
        self.rounds.parked(agent)
        self._hub.switch()

    def rest(self, agent: Agent) -> None:
        current = getcurrent()
        if current is not self._hub and self.agents:
            self._resting.append((agent, current))
            self.rounds.resting = True
            self._hub.switch()

    # ---------------------------------------------------------------------------------------------------- the robot's side

    def start(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        self._hub = getcurrent()
        self._fibers = {}
        self.ready.clear()
        self._resting.clear()
        self._begin(agents, wrappers)
        for agent in agents:
            agent.go_on()
            fiber = self._fibers[id(agent)] = greenlet(partial(self._main, agent), self._hub)
            self.ready.append(fiber)

    def _main(self, agent: Agent) -> None:
        try:
            agent.run()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001  whatever ends an agent is reported, also Ctrl-C
            self._failed(agent, error)
        finally:
            if self._fibers.get(id(agent)) is getcurrent():  # else it was forsaken
                self._leave(agent)

    def _leave(self, agent: Agent) -> None:
        """Note that an agent has ended."""
        self.agents.remove(agent)
        self.rounds.ended(agent)

    def request_stop(self) -> None:
        self.stopping = True

    def resume(self, agents: Sequence[Agent]) -> None:
        for agent in agents:
            if agent in self.parked:
                self.parked.remove(agent)
                self.rounds.running(agent)
                self.ready.append(self._fibers[id(agent)])

    def run_ready(self) -> None:
        self._hub = getcurrent()
        ready = self.ready
        while ready and not self.stopping:
            ready.popleft().switch()

    def rouse(self) -> None:
        """Let those who rest go on."""
        self.ready.extend(fiber for _, fiber in self._resting)
        self._resting.clear()
        self.rounds.resting = False

    def _next(self) -> Serve | RoundDone | Wait:
        """Return what to do now that nobody can run."""
        return self.rounds.next(perf_counter())

    def _serve(self, queue: RequestQueue) -> None:
        if (batch := queue.take()) is not None:
            self._answer(queue, queue.work(batch))

    def _answer(self, queue: RequestQueue, tickets: list[Ticket]) -> None:
        self.wake(tickets)
        if queue.kind == "learn" and tickets and tickets[0].error is not None and queue.task.on_error == "stop":
            self._failed(tickets[0].agent, tickets[0].error)

    def wake(self, tickets: list[Ticket]) -> None:
        ready = self.ready
        for ticket in tickets:
            waiter = ticket.waiter
            ticket.waiter = SERVED
            if waiter is not None:
                ready.append(waiter)

    def iterate(self) -> bool:
        left, rounds = BATCHES, self.rounds
        while True:
            if not rounds.in_round:
                self.run_ready()
                if self.stopping:
                    return self._end_round()
            step = self._next()
            if not isinstance(step, Serve):
                if step is ROUND_DONE:
                    return True
                rested = bool(self._resting)
                self.rouse()
                return rested
            if self._resting and not rounds.in_round:
                self.rouse()
            queue = step.queue
            self._serve(queue)
            rounds.served(queue)
            if rounds.in_round:
                if self.stopping:
                    return False
            elif self.sync and queue.kind == "learn":
                return True  # a batch that its own rule closed before everybody came ends the iteration, too
            # Asked anew each time: the last learner may have ended, and the others would go on for ever.
            elif not rounds.end_iterations(self.agents, self.parked):
                left -= 1
                if not left:
                    return True

    def _end_round(self) -> bool:
        """At a stop: serves a round of training requests that wait for nobody, as if the run went on, and those who wait for them
        go on until they would act; whether there was one."""
        while not self.sync:  # where no order is promised
            while self.ready:
                self.ready.popleft().switch()
            waiting = [queue for queue in self.trainings if queue.batches]
            for queue in waiting:  # whomever their updates wait for
                while queue.batches:
                    self._serve(queue)
            if not waiting:
                return False
        served = not (self.ready or self.parked) and self._serve_at_end()
        while served and self.ready:
            self.ready.popleft().switch()
        return served

    def _serve_at_end(self) -> bool:
        """Serve one round of `_end_round`; return whether there was one."""
        served = False
        while step := self.rounds.at_stop(perf_counter()):
            self._serve(step.queue)
            self.rounds.served(step.queue)
            served = True
            if not self.rounds.in_round:
                break
        return served

    def pause(self, patience: float) -> list[object]:
        """See `Driver.pause`. Greenlets wait wherever they are; who has parked was running, and comes first."""
        self.stopping = False
        self.ready.extendleft(self._fibers[id(agent)] for agent in reversed(self.parked))
        for agent in self.parked:
            self.rounds.running(agent)
        self.parked.clear()
        for agent in self.agents:
            agent.go_on()
        return []

    def forsake(self) -> None:
        """Greenlets to which nothing refers end by themselves, in their own thread."""
        for queue in self.queues:
            for ticket in queue.fail_all("the robot is gone"):
                ticket.waiter = SERVED
        self.reopen()
        self._resting.clear()
        for held in (self.agents, self.parked, self.ready, self._fibers):
            held.clear()

    def refuse_agents(self) -> None:
        current = getcurrent()
        if any(fiber is current for fiber in self._fibers.values()):
            raise RuntimeError(CALLED_BY_AGENT)

    def halt(self, agents: Sequence[Agent], signal: AgentSignal, patience: float | None = None) -> list[Agent]:
        """See `Driver.halt`. Greenlets cannot be waited for, they run."""
        self.refuse_agents()
        self._hub = getcurrent()
        self.stopping = False
        for agent in agents:
            agent.tell(signal)
        if signal == AgentSignal.STOP:
            for queue in self.queues:
                self.wake(queue.fail_all("the robot stopped"))
        self.resume(list(self.parked))
        self.rouse()
        if signal != AgentSignal.STOP:
            self._finish()
        for queue in self.queues:
            queue.passed = 1  # as in a robot that is made anew and loads this moment
        if signal != AgentSignal.STOP:
            return []
        while self.ready:
            self.ready.popleft().switch()
        for agent in list(self.agents):
            # Ctrl-C struck between taking this fiber, or its batch, from a queue and going on with it; or before it was made.
            fiber = self._fibers.get(id(agent))
            if fiber is None:
                self._leave(agent)
            else:
                fiber.throw(Interrupted) if fiber else fiber.switch()
        return []

    def _finish(self) -> None:
        """Serves until nobody can act any more and nothing waits."""
        while True:
            if not self.rounds.in_round:
                self.run_ready()
            step = self._next()
            if isinstance(step, Serve):
                self._serve(step.queue)
                self.rounds.served(step.queue)
                if self.rounds.in_round and self.stopping:
                    break
            elif isinstance(step, Wait):
                if not self._resting:
                    break
                self.rouse()

    def reopen(self) -> None:
        for queue in self.queues:
            queue.stopped = None
