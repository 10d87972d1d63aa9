"""The threads driver: a thread per agent, two per wrapper (prediction, training), for environments that wait or release the GIL.

One lock guards all queues and counts. Every wait says above it what ends it; a stop answers every open request, so no wait
outlives the run. `parl_like.tasks.rounds` says what is served next, from who acts and who waits; whoever changes that calls
`_look`, which asks, and gives each batch to the thread of its queue. `RoundState` knows where a run stands between unroll and
round, `ActingAgents` who acts and who wakes whom, and `Serving` has the wrappers' threads.

The agent whose request completes a prediction batch serves it in its own thread: it would wait anyway, and two switches of
threads per batch are saved. A wrapper's prediction thread serves what the clock closes, and what waits behind `max_rows`.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from parl_like.drivers.acting_agents import OPEN, READ, SERVED, WAITED, ActingAgents
from parl_like.drivers.agent_threads import Beside
from parl_like.drivers.round_state import RoundPhase, RoundState
from parl_like.drivers.serving import Server, Serving
from parl_like.drivers.waiting import has_ended, locked, release
from parl_like.process.child import shielded
from parl_like.run.driver import CALLED_BY_AGENT, Driver, foreign
from parl_like.tasks.rounds import Rounds
from parl_like.tasks.tickets import INFINITE
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.errors import WrongCaller

if TYPE_CHECKING:
    from parl_like.agents.agent import Agent
    from parl_like.tasks.queues import RequestQueue
    from parl_like.tasks.tickets import Ticket
    from parl_like.tasks.wrapper import ComputationWrapper

_started: weakref.WeakSet[ThreadsDriver] = weakref.WeakSet()
"""Drivers that may have threads."""


@atexit.register
def _end_all() -> None:
    """Ends the threads of robots that nobody closed: one that comes back from torch into an interpreter that is gone aborts the
    process ("terminate called without an active exception")."""
    for driver in list(_started):
        driver.halt(list(driver.agents), AgentSignal.STOP)
    for driver in list(_started):
        driver.join(5.0)


class ThreadsDriver(Driver):
    """Agents as threads. See `CooperativeDriver` for the arguments."""

    def __init__(self, sync: bool, failed: Callable[[object, BaseException], None]) -> None:
        self.sync = sync
        self._failed = failed
        self.lock = threading.Lock()
        self._run: object | None = None  # this run; agents of an earlier one that come late see another
        self._owner = 0  # the thread that started it, the robot's
        self._callers: dict[int, Agent] = {}  # threads of agents, but for one that serves a batch at the moment
        self.agents: list[Agent] = []
        self.parked: list[Agent] = []
        self._gates: dict[int, threading.Lock] = {}  # what parked agents sleep on
        self._threads: list[tuple[Agent, threading.Thread]] = []
        self.rounds = Rounds()
        self._round = RoundState(self.rounds)
        self._acting = ActingAgents(self.rounds, self.lock)
        self._serving = Serving(self.lock, self._round, self._acting, self._callers, self._look, self._failed)
        self._beside = Beside()

    @property
    def stopping(self) -> bool:
        return self._round.stopping

    @stopping.setter
    def stopping(self, value: bool) -> None:
        self._round.stopping = value

    # --------------------------------------------------------------------------------------------------- the agents' side

    def waiter(self) -> object:
        return locked()

    def put(self, queue: RequestQueue, ticket: Ticket, values: Any, wait: bool) -> None:
        ticket.error = None
        mine = False
        outside = self._callers.get(threading.get_ident()) is not ticket.agent
        if outside or self.pool.hooks.observing is not None:
            self.check_caller(ticket.agent)  # in a hook an agent may not ask, beside another's it may
            if outside and self.is_beside():
                self._put_beside(queue, ticket, values, wait)
                return
        state = self._round
        with self.lock:
            dropped = queue.put(ticket, values)
            first = self._acting.count_in(dropped) if dropped else ()
            ticket.state = OPEN
            server = None if outside and state.stopping else queue.server  # then the caller serves it, in `wait`
            if wait and server is not None:
                ticket.state = WAITED
                self.rounds.acting = acting = self.rounds.acting - 1
                if server.training:
                    state.ask()
                    self.rounds.waits(ticket.agent)
                    self._look()
                else:
                    self._acting.note(ticket.agent)
                    # Where an update waits, it may have waited for this agent's steps.
                    if acting <= 0 or queue.rows >= queue.closing.enough or state.asked:
                        mine = self._look(None if outside else server)  # Ctrl-C strikes in the robot's thread
                    elif server.asleep:
                        release(server.bell)
            elif server is not None:
                if server.training:
                    state.ask()
                self._look()
        if first:
            self._acting.wake(first)
        if mine and server is not None:
            self._serving.serve(server, ticket)  # `queue.server` may be gone by now
        if wait:
            self.wait(ticket)

    def _put_beside(self, queue: RequestQueue, ticket: Ticket, values: object, wait: bool) -> None:
        """`put` in a thread that an agent has registered."""
        self._beside.wait()
        with self.lock:
            first = self._acting.count_in(queue.put(ticket, values) or [])
            ticket.state = OPEN
            if queue.kind == "learn":
                self._round.ask()
            self._look()
        self._acting.wake(first)
        if wait:
            self.wait(ticket)

    def wait(self, ticket: Ticket) -> None:
        if ticket.state != READ and self._beside.threads and self.is_beside():
            ticket.waiter.acquire()  # ended by `count_in`, whoever sleeps on it
            ticket.state = READ
        if ticket.state == OPEN:
            if ticket.queue.server is None or threading.get_ident() == self._owner:
                # No run is on; or no round would begin while the robot's thread waits: the queue is served, whatever its rule.
                while ticket.state < SERVED and ticket.queue.batches:
                    ticket.queue.serve_outside(self._answer)
            with self.lock:
                if ticket.state == OPEN:
                    ticket.state = WAITED
                    if self._acting.leave(ticket.agent, ticket.queue.kind == "learn"):
                        self._look()
        if ticket.state != READ:
            try:
                # Ended by `count_in`: the batch was served, the run stopped, or the server broke.
                ticket.waiter.acquire()
            except BaseException:
                self._acting.give_up(ticket)  # Ctrl-C, in a call from the main thread
                raise
            ticket.state = READ
            after = ticket.after
            if after is not None:
                ticket.after = None
                after.waiter.release()
        if ticket.error is not None:
            raise ticket.error

    def _answer(self, tickets: list[Ticket]) -> None:
        with self.lock:
            first = self._acting.count_in(tickets)
        self._acting.wake(first)

    def check_caller(self, agent: object) -> None:
        super().check_caller(agent)
        me = threading.get_ident()
        if self.pool.hooks.observing == me:
            raise WrongCaller(f"{agent}: a helper was asked from a hook or a stop condition, which agents in threads wait for; "
                              "ask from the agent, or use driver='cooperative'")
        if self._beside.belongs_to(agent, self._run):
            return
        if self._run is not None and me != self._owner and self._callers.get(me) is not agent:
            raise foreign(agent)

    def is_served(self, ticket: Ticket) -> bool:
        return ticket.state >= SERVED

    def is_beside(self) -> bool:
        return self._beside.is_here()

    def start_thread(self, agent: Agent, function: Callable[[], object]) -> None:
        self.check_caller(agent)
        if self._run is not None:
            self._beside.start(agent, function, self._run, lambda: self._run, self._failed)

    def park(self, agent: Agent) -> None:
        with self.lock:
            if agent.signal is not None:
                return  # `halt` came between the agent's last look and this
            self.parked.append(agent)
            if self._acting.leave(agent):
                self._look()
            release(self._round.news)
        self._gates[id(agent)].acquire()  # ended by `resume` or `halt`

    def _look(self, mine: Server | None = None) -> bool:
        """Wakes whoever has something to do, after what may have closed or opened a batch. The caller holds the lock, and serves
        the queue of `mine` where this returns True."""
        is_mine = self._serving.give_out(mine)
        if self._idle() or (self._round.stopping and self.rounds.acting <= 0):
            release(self._round.news)
        return is_mine

    def _idle(self) -> bool:
        """Nothing can happen any more without the robot: every agent is parked or has ended, and no request is open."""
        return len(self.parked) == len(self.agents) and self._serving.is_idle()

    # ------------------------------------------------------------------------------------------------------- the robot's side

    def start(self, agents: Sequence[Agent], wrappers: Sequence[ComputationWrapper]) -> None:
        """Starts all threads. Where it raises, `halt` and `join` end those that have started.

        Raises:
            RuntimeError: one is still busy since the last stop, or the system gives no more threads.
        """
        late = self._late()
        if late:
            raise RuntimeError(f"still busy since the last stop: {', '.join(map(str, late))}; nobody can start twice, so wait "
                               "for them, or give the environment's step() a time limit")
        _started.add(self)
        run = self._run = object()
        self._owner = threading.get_ident()
        self.agents, self.parked = list(agents), []
        queues = [queue for wrapper in wrappers for queue in (wrapper.predictions, wrapper.trainings)]
        learners = [agent for agent in agents if agent.learns]
        self.rounds.begin(self.sync, queues, learners, bool(learners))
        self.rounds.acting = len(agents)
        with self.lock:
            self._round.next_unroll()
        self._serving.begin(queues, self.sync)
        self._gates = {id(agent): locked() for agent in agents}
        for agent in agents:
            agent.go_on()
            self._acting.note(agent)
        self._threads = [(a, threading.Thread(target=self._main, args=(a, run), name=str(a), daemon=True)) for a in agents]
        with shielded():
            for thread in [*self._serving.threads(), *(thread for _, thread in self._threads)]:
                thread.start()

    def _main(self, agent: Agent, run: object) -> None:
        # Asking makes torch give this thread the number of OpenMP threads that the process has set; without it a small forward
        # pass takes all cores, 2 to 30 times as long when they are busy.
        torch.get_num_threads()
        self._callers[threading.get_ident()] = agent
        try:
            agent.run()
        except BaseException as error:  # noqa: BLE001  whatever ends an agent is reported, unless the run was given up before
            if self._run is run:
                self._failed(agent, error)
        finally:
            self._callers.pop(threading.get_ident(), None)
            with self.lock:
                self.agents.remove(agent)
                if self._acting.leave(agent):
                    self._look()
                release(self._round.news)

    def request_stop(self) -> None:
        self.stopping = True
        # Called by agents and by hooks in agents' threads, never with the lock held.
        with self.lock:
            release(self._round.news)

    def resume(self, agents: Sequence[Agent]) -> None:
        with shielded(), self.lock:
            self._open_gates(agents)

    def _open_gates(self, agents: Sequence[Agent]) -> None:
        for agent in agents:
            if agent in self.parked:
                self.parked.remove(agent)
                self._acting.come(agent)
                self._gates[id(agent)].release()

    def _next_unroll(self) -> None:
        """Ends a finished round: the next unroll begins."""
        with shielded():
            with self.lock:
                first = self._acting.count_in(self._round.next_unroll())
                self._look()
            self._acting.wake(first)

    def iterate(self) -> bool:
        """Run an iteration. Where no round of training ends it, it takes 50 ms. A training batch that its own rule closed before
        everybody came ends it, too."""
        self._beside.go()
        if self._round.unroll_may_begin:
            self._next_unroll()
        end = monotonic() + 0.05
        while True:
            with self.lock:
                if self._round.untold or self.stopping or self._idle():
                    break
                left = 0.05 if self.rounds.end_iterations(self.agents, self.parked) else end - monotonic()
                if self._round.asked:
                    self._look()  # at the steps of agents that ask nobody
            if left <= 0:
                break
            # Ended by the round's end, by a stop, by an agent that parks or ends; or by the clock.
            self._round.news.acquire(timeout=left)
        with self.lock:
            trained = self._round.hear()
            return not self.stopping and (trained or not self._idle())

    def pause(self, patience: float) -> list[object]:
        """See `Driver.pause`. Nothing is served until `go_on`."""
        end = monotonic() + patience
        self._beside.hold()
        state = self._round
        while True:
            while self._serving.is_busy() and monotonic() < end:
                state.news.acquire(timeout=0.05)  # ended by the last agent that parks or waits, or by the clock
            with self.lock:
                state.closing = not (self.sync and any(agent.learns for agent in self.parked))  # who would have gone on
                self._look()
            while self._serving.is_busy(trainings=True) and monotonic() < end:
                state.news.acquire(timeout=0.05)
            state.closing = False
            if state.phase is RoundPhase.DONE and monotonic() < end:
                self._next_unroll()
            elif monotonic() >= end or not self._serving.is_busy():
                break  # else who waited for its updates goes on until it would act
        with self.lock:
            still = {*self.parked, *self._serving.waiting_agents(), *(reply.agent for reply in state.held if reply.state != OPEN)}
            return [*(agent for agent in self.agents if agent not in still), *self._serving.busy_names()]

    def go_on(self) -> None:
        self._owner = threading.get_ident()
        with shielded(), self.lock:
            for agent in self.agents:
                agent.go_on()
            self.stopping = False
            self._open_gates(list(self.parked))
            self._look()

    def forsake(self) -> None:
        for agent in self.agents:
            agent.tell(AgentSignal.STOP)
        failed = self._serving.fail_all("the robot is gone")
        with self.lock:
            self._run, self.stopping = None, True
            first = self._acting.count_in(self._round.next_unroll()) + self._acting.count_in(failed)
            self._look()
            self._open_gates(list(self.parked))
            self._serving.end()
        self._acting.wake(first)
        self._beside.go()

    def halt(self, agents: Sequence[Agent], signal: AgentSignal, patience: float | None = None) -> list[Agent]:
        self.refuse_agents()
        self._beside.hold()
        end = INFINITE if patience is None else monotonic() + patience
        with shielded():
            self.stopping = signal == AgentSignal.STOP
            for agent in agents:
                agent.tell(signal)
            failed = self._serving.fail_all("the robot stopped") if signal == AgentSignal.STOP else []
            with self.lock:
                first: list[Ticket] = []
                if signal == AgentSignal.STOP:
                    first = self._acting.count_in(self._round.next_unroll()) + self._acting.count_in(failed)
                self._open_gates(list(self.parked))
                self._look()  # also at what waited while `stopping` was set
            self._acting.wake(first)
            if signal == AgentSignal.STOP:
                self._beside.go()  # and hear of it
        while signal == AgentSignal.INTERRUPT:
            self._round.untold = False
            if self._round.unroll_may_begin:
                self._next_unroll()
            with self.lock:
                if self._round.phase is not RoundPhase.DONE and self._idle():
                    return []
                if monotonic() >= end:
                    return [agent for agent in self.agents if agent not in self.parked]
            self._round.news.acquire(timeout=0.05)  # ended by the end of a round, by an agent that parks or ends, or by the clock
        return []

    def refuse_agents(self) -> None:
        if any(thread is threading.current_thread() for _, thread in self._threads):
            raise RuntimeError(CALLED_BY_AGENT)

    def reopen(self) -> None:
        self._serving.reopen()

    def _late(self) -> list[object]:
        """Agents, and names of the wrappers' threads, that are alive."""
        late: list[Agent | str] = [agent for agent, thread in self._threads if not has_ended(thread)]
        return [*late, *self._beside.late(), *self._serving.late()]

    def join(self, timeout: float | None = None) -> list[object]:
        """Ends the wrappers' threads once the agents have ended.

        Returns:
            The agents, and the names of the wrappers' threads, that have not ended within `timeout` seconds.
        """
        end = monotonic() + (timeout if timeout is not None else threading.TIMEOUT_MAX / 2)
        for thread in [*(thread for _, thread in self._threads), *self._beside.threads.values()]:
            has_ended(thread, end)
        with self.lock:
            self._run = None
            self._serving.end()
        self._serving.join(end)
        return self._late()
