"""The threads driver: a thread per agent, two per wrapper (prediction, training), for environments that wait or release the GIL.

One lock guards all queues and counts. Every wait says above it what ends it; a stop answers every open request, so no wait
outlives the run. The counts `_acting` and `_learners` tell when nobody is left who could still come, which closes a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parl_like.agent import Agent
    from parl_like.communicator import Ticket
    from parl_like.computation_wrapper import ComputationWrapper, RequestQueue

PATIENCE_S = 0.001
"""How long a prediction batch stays open for agents that are busy in their environments, unless the task's rule says otherwise."""


class ThreadsDriver:
    """Agents as threads. See `CooperativeDriver` for the arguments."""

    def __init__(self, sync: bool, failed: Callable[[Agent, BaseException], None], on_error: Callable[[Any, BaseException], None]) -> None:
        self.sync = sync
        self._failed, self._on_error = failed, on_error
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)  # what the main thread waits on
        self._bells: dict[int, Any] = {}  # queue → lock that its server thread sleeps on
        self.wrappers: list[ComputationWrapper] = []
        self.agents: list[Agent] = []
        self.parked: list[Agent] = []
        self._gates: dict[int, threading.Semaphore] = {}
        self._threads: list[tuple[Agent, threading.Thread]] = []
        self._servers: list[threading.Thread] = []
        self._acting = 0  # agents that are neither waiting for a reply, nor parked, nor ended
        self._learners = 0  # learning agents that are neither waiting for training, nor parked, nor ended
        self._training = 0  # training batches being computed
        self._phase = "unroll"  # sync: unroll → train → done → unroll …
        self._held: list[Ticket] = []  # replies of a finished round, given when the next iteration begins
        self.stopping = False
        self._closed = False

    # ------------------------------------------------------------------------------------------- the agents' side (Link)

    def waiter(self) -> Any:
        lock = threading.Lock()
        lock.acquire()
        return lock

    def put(self, queue: Any, ticket: Ticket, values: Any, wait: bool) -> None:
        ticket.error = None
        with self.lock:
            queue.put(ticket, values)
            ticket.kind = queue.kind
            ticket.counted = wait
            if wait:
                self._leave(ticket.agent, queue.kind == "learn")
            elif queue.kind == "learn" or self._acting <= 0:
                self._ring(queue)
        if wait:
            # Ended by `_wake`: the batch was served, or the run stopped.
            ticket.waiter.acquire()
            if ticket.error is not None:
                raise ticket.error

    def wait(self, ticket: Ticket) -> None:
        with self.lock:
            if ticket.waiter.locked() and not ticket.counted:
                ticket.counted = True
                self._leave(ticket.agent, ticket.kind == "learn")
        # Ended by `_wake`, as above; at once where the ticket was served before.
        ticket.waiter.acquire()
        if ticket.error is not None:
            raise ticket.error

    def is_served(self, ticket: Ticket) -> bool:
        return not ticket.waiter.locked()

    def park(self, agent: Agent) -> None:
        with self.lock:
            self.parked.append(agent)
            self._leave(agent, True)
            self._changed.notify_all()
        self._gates[id(agent)].acquire()  # ended by `resume`

    def _leave(self, agent: Agent, training: bool) -> None:
        """The agent stops acting; wakes whoever waited for nobody to be left. The caller holds the lock."""
        self._acting -= 1
        if training and agent.learns:
            self._learners -= 1
        if self._acting <= 0:
            waiting = [q for w in self.wrappers for q in (w.predictions, w.trainings) if q.rows]
            for queue in waiting:
                self._ring(queue)
            if not waiting:
                self._changed.notify_all()
        if self.sync and self._learners <= 0 and self._phase == "unroll":
            self._begin_round()

    def _ring(self, queue: Any) -> None:
        """Wakes the queue's server thread; the caller holds the lock."""
        bell = self._bells[id(queue)]
        if bell.locked():
            bell.release()

    def _enter(self, agent: Agent, training: bool) -> None:
        self._acting += 1
        if training and agent.learns:
            self._learners += 1

    # ----------------------------------------------------------------------------------------------------- the wrappers' side

    def _begin_round(self) -> None:
        if any(w.trainings.rows for w in self.wrappers):
            self._phase = "train"
            for wrapper in self.wrappers:
                self._ring(wrapper.trainings)

    def _may_close(self, queue: RequestQueue) -> float:
        """Seconds until the oldest batch may close: 0 for now, infinity where only an event can close it."""
        if not queue.rows:
            return float("inf")
        rule = queue.rule
        training = queue.kind == "learn"
        if (rule.min_rows is not None and queue.rows >= rule.min_rows) or (rule.max_rows is not None and queue.rows >= rule.max_rows and not training):
            return 0.0
        if training and self.sync:
            if self._phase == "train":
                return 0.0
        elif self._acting <= 0 or (training and rule.min_rows is None):
            return 0.0
        wait = rule.max_wait
        if wait is None:
            if training or rule.min_rows is not None:
                return float("inf")
            wait = PATIENCE_S
        return max(queue.batches[0].born + wait - perf_counter(), 0.0)

    def _serve_forever(self, queue: RequestQueue, wrapper: ComputationWrapper) -> None:
        bell = self._bells[id(queue)]
        training = queue.kind == "learn"
        while True:
            with self.lock:
                left = self._may_close(queue)
                if self._closed:
                    return
                if left <= 0:
                    self._training += training
            if left > 0:
                # Ended by an agent that stops acting, by a training request, by close(), or by the clock. The first request of a
                # prediction batch does not ring: a wake-up for it alone would cost every batch a switch of threads.
                bell.acquire(timeout=-1 if training and left == float("inf") else min(left, PATIENCE_S))
                continue
            tickets = queue.serve(wrapper.mode)
            if training and tickets and tickets[0].error is not None and wrapper.task.on_error == "stop":
                self._on_error(tickets[0].agent, tickets[0].error)
            with self.lock:
                self._training -= training
                if training and self.sync and self._phase == "train" and not self.stopping:
                    self._held += tickets
                    tickets = []
                    if not self._training and not any(w.trainings.rows for w in self.wrappers):
                        self._phase = "done"
                        self._changed.notify_all()
                self._count_in(tickets)
            self._wake(tickets)

    def _count_in(self, tickets: list[Ticket]) -> None:
        """Counts the tickets' agents as acting again; the caller holds the lock, and calls `_wake` when it no longer does."""
        for ticket in tickets:
            if ticket.counted:
                ticket.counted = False
                self._enter(ticket.agent, ticket.kind == "learn")

    @staticmethod
    def _wake(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ticket.waiter.release()

    # ------------------------------------------------------------------------------------------------------- the robot's side

    def start(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        self.wrappers, self.agents = list(wrappers), list(agents)
        self._closed = False
        self._phase, self._held = "unroll", []
        self._acting = len(agents)
        self._learners = sum(agent.learns for agent in agents)
        self._servers = []
        for wrapper in wrappers:
            for queue in (wrapper.predictions, wrapper.trainings):
                bell = self._bells[id(queue)] = threading.Lock()
                bell.acquire()
                self._servers.append(threading.Thread(
                    target=self._serve_forever, args=(queue, wrapper), name=f"{wrapper.task.name} {queue.kind}", daemon=True))
        self._gates = {id(agent): threading.Semaphore(0) for agent in agents}
        self._threads = [(a, threading.Thread(target=self._main, args=(a,), name=str(a), daemon=True)) for a in agents]
        for server in self._servers:
            server.start()
        for _, thread in self._threads:
            thread.start()

    def _main(self, agent: Agent) -> None:
        try:
            agent.run()
        except BaseException as error:
            self._failed(agent, error)
        finally:
            with self.lock:
                self.agents.remove(agent)
                self._leave(agent, True)
                self._changed.notify_all()

    def request_stop(self) -> None:
        self.stopping = True
        # Called by agents and by hooks in agents' threads, never with the lock held.
        with self.lock:
            self._changed.notify_all()

    def resume(self, agents: Sequence[Agent]) -> None:
        with self.lock:
            for agent in agents:
                if agent in self.parked:
                    self.parked.remove(agent)
                    self._enter(agent, True)
                    self._gates[id(agent)].release()

    def _release(self) -> list[Ticket]:
        """Ends a finished round: the next unroll begins. The caller holds the lock, and wakes the tickets when it no longer does."""
        held, self._held = self._held, []
        self._phase = "unroll"
        self._count_in(held)
        return held

    def _idle(self) -> bool:
        """Nothing can happen any more without the robot: every agent is parked or has ended, and no request is open."""
        return len(self.parked) == len(self.agents) and not self._training and not any(
            q.rows for w in self.wrappers for q in (w.predictions, w.trainings))

    def iterate(self, slices: int = 64) -> bool:
        """Runs until one round of training is done (sync), or 50 ms (async, or when nobody learns); False when all are idle."""
        with self.lock:
            held = self._release() if self._phase == "done" else []
        self._wake(held)
        with self.lock:
            learners = self.sync and any(agent.learns for agent in self.agents)
            # Ended by the round's end, by a stop, by the last agent that parks or ends; or by the clock where there are no rounds.
            self._changed.wait_for(lambda: self._phase == "done" or self.stopping or self._idle(), None if learners else 0.05)
            return not self.stopping and not (self._idle() and self._phase != "done")

    def halt(self, agents: Sequence[Agent], signal: str) -> None:
        """See `CooperativeDriver.halt`."""
        self.stopping = signal == "stop"
        for agent in agents:
            agent.signal = signal
        if signal == "stop":
            failed = [t for w in self.wrappers for q in (w.predictions, w.trainings) for t in q.fail_all("the robot stopped")]
            with self.lock:
                failed += self._release()
                self._count_in(failed)
            self._wake(failed)
            self.resume(list(self.parked))
            return
        while True:
            with self.lock:
                if self._idle() and self._phase != "done":
                    break
                held = self._release() if self._phase == "done" else []
                if not held:
                    self._changed.wait(0.05)  # ended by the end of a round, by an agent that parks or ends, or by the clock
            self._wake(held)
        self.stopping = False

    def reopen(self) -> None:
        for wrapper in self.wrappers:
            wrapper.predictions.stopped = wrapper.trainings.stopped = None

    def join(self, timeout: float | None = None) -> list[Agent]:
        """Ends the wrappers' threads once the agents have ended; returns the agents that have not within `timeout` seconds."""
        end = monotonic() + (timeout if timeout is not None else 1e9)
        for _, thread in self._threads:
            thread.join(max(end - monotonic(), 0.0))
        late = [agent for agent, thread in self._threads if thread.is_alive()]
        with self.lock:
            self._closed = True
            for bell in self._bells.values():
                if bell.locked():
                    bell.release()
        for server in self._servers:
            server.join(max(end - monotonic(), 0.1))
        return late
