"""Lifecycle: when the agents of a pool begin, wait and end."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch

from parl_like.agents.agent import Agent
from parl_like.interfaces import RunPort
from parl_like.run.driver import Pool
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.errors import AgentFailed, Interrupted, NotEnoughRows, Stopped, TaskFailed
from parl_like.values.spec import SpecError

STOP_PATIENCE = 5.0
"""Seconds that the end of a run waits for agents that are busy in their environments."""

DRAIN_PATIENCE = 10.0
"""Seconds that `close(drain=True)` waits for agents that are busy in their environments."""

SOUND = (AgentFailed, TaskFailed, NotEnoughRows, SpecError, KeyboardInterrupt)
"""Errors that name what failed already."""


class Phase(Enum):
    """A phase of a pool's agents."""

    IDLE = auto()
    """None has begun, or all have ended."""
    BUSY = auto()
    """They begin, act, come to wait or end. A call that finds them so comes after Ctrl-C, which may have struck anywhere."""
    BETWEEN = auto()
    """They are in the middle of their episodes, between two iterations."""
    WAITING = auto()
    """A run is over, and they wait for the next one. Nothing that they hold holds the robot."""
    PAUSED = auto()
    """They wait for the next run, but are no more where it left them: their episodes were ended, as at a checkpoint."""
    CLOSED = auto()
    """They have ended for good, and their environments are closed."""


NEXT: dict[Phase, tuple[Phase, ...]] = {
    Phase.IDLE: (Phase.BUSY, Phase.CLOSED),
    Phase.BUSY: (Phase.BETWEEN, Phase.WAITING, Phase.PAUSED, Phase.IDLE),
    Phase.BETWEEN: (Phase.BUSY,),
    Phase.WAITING: (Phase.BUSY, Phase.IDLE),  # idle: agents in greenlets of another thread are given up where they wait
    Phase.PAUSED: (Phase.BUSY,),
    Phase.CLOSED: (),
}
"""Phase → those that may follow."""

ENDED = (Phase.IDLE, Phase.CLOSED)


@dataclass
class Phases:
    """The phases before and after something that is done with the agents."""

    before: Phase
    after: Phase = Phase.BETWEEN


class OneThread:
    """Around whatever runs or ends the agents of a pool; a thread may enter again. (A generator would cost each update 2 µs.)

    Whether torch keeps gradients is afterwards as before: Ctrl-C may strike as a `no_grad` ends, and an agent may wait in one.
    """

    def __init__(self, lifecycle: Lifecycle, pool: Pool) -> None:
        self._lifecycle, self._pool = lifecycle, pool
        self._runs, self._runner = threading.RLock(), threading.current_thread()
        self._gradients: list[bool] = []  # of each entry

    def __enter__(self) -> None:
        """Raises RuntimeError where another thread runs them, or began with agents that can only go on there."""
        pool, lifecycle = self._pool, self._lifecycle
        if not self._runs.acquire(blocking=False):
            pool.driver.refuse_agents()
            raise RuntimeError(f"thread {self._runner.name!r} runs this robot; only one thread at a time may run, save or close "
                               "it. To end the run from another one call request_stop()")
        here = threading.current_thread()
        if lifecycle.begun and pool.driver_name == "cooperative" and self._runner is not here:
            if lifecycle.phase is not Phase.WAITING:
                self._runs.release()
                raise RuntimeError(f"thread {self._runner.name!r} has begun with the agents of this robot, and greenlets cannot "
                                   "change threads; go on, or close() it, there. A run that came to its end, by run(stop), may "
                                   "be followed by one in another thread")
            lifecycle.give_up_waiting()
        self._runner = here
        self._gradients.append(torch.is_grad_enabled())

    def __exit__(self, *exception: object) -> None:
        torch.set_grad_enabled(self._gradients.pop())
        self._runs.release()


class Lifecycle:
    """The phases of a pool's agents, and what brings the next one.

    Attributes:
        phase: Set by `_move` alone.
        one_thread: To be entered by whatever does several things that belong together.
    """

    def __init__(self, pool: Pool) -> None:
        self.phase = Phase.IDLE
        self.one_thread = OneThread(self, pool)
        self._pool = pool
        self._error: BaseException | None = None
        self._forsaken: weakref.finalize[Any, object] | None = None

    def _move(self, phase: Phase) -> None:
        if phase not in NEXT[self.phase]:
            raise RuntimeError(f"agents cannot go from {self.phase.name} to {phase.name}; after {self.phase.name} comes "
                               f"{', '.join(following.name for following in NEXT[self.phase]) or 'nothing'}")
        self.phase = phase

    @property
    def begun(self) -> bool:
        """Return whether the agents have begun, and not ended."""
        return self.phase not in ENDED

    def refuse_closed(self, what: str) -> None:
        """Raise RuntimeError for a call after the end."""
        if self.phase is Phase.CLOSED:
            raise RuntimeError(f"{what}: this robot was closed, and its environments with it; make a new one (`load` takes what "
                               "`save` wrote), and close() or leave `with` when you are done with it")

    @contextmanager
    def _uninterrupted(self) -> Iterator[Phases]:
        """Do what Ctrl-C may cut short in the body of `with`, which is told the phase before and says that after it.

        Where Ctrl-C strikes inside, it leaves agents in a state that nothing else understands: then they all end before the next
        thing is done.
        """
        self._pool.driver.refuse_agents()
        with self.one_thread:
            self.recover()
            phases = Phases(self.phase)
            self._move(Phase.BUSY)
            if phases.before is Phase.WAITING:
                self._know(self._pool, self._pool.robot)
            try:
                yield phases
            except Exception:
                if self.phase is Phase.BUSY:
                    self._move(Phase.PAUSED if phases.before in (Phase.WAITING, Phase.PAUSED) else Phase.BETWEEN)
                raise
            self._move(phases.after)

    def recover(self) -> None:
        """End all agents where Ctrl-C has struck in the middle of something."""
        if self.phase is Phase.BUSY:
            self.halt()

    # -------------------------------------------------------------------------------------------------------- they act

    def start(self) -> None:
        """Let the agents begin where they have not."""
        if self.phase is Phase.IDLE:
            self._move(Phase.BUSY)  # first: what has started when Ctrl-C strikes must be halted
            self._pool.driver.start(self._pool.agents, list(self._pool.wrappers.values()))
            self._move(Phase.BETWEEN)

    def advance(self) -> bool:
        """Let the driver do one iteration; return False when nothing could run any more. Raises what an agent or a task
        raised."""
        driver = self._pool.driver
        with self._uninterrupted() as phases:
            if phases.before is Phase.IDLE:
                driver.start(self._pool.agents, list(self._pool.wrappers.values()))
            elif phases.before is not Phase.BETWEEN:
                driver.go_on()
            phases.before = Phase.BETWEEN  # whatever comes now: they are under way
            able = [a for a in driver.parked if a.quota.episodes != 0 and (a.quota.steps is None or a.quota.steps > 0)]
            # In the order of the agents, not of their parking: a robot that was just loaded starts them in that order, too.
            if not driver.stopping:
                driver.resume(sorted(able, key=lambda agent: agent.index))
            went_on = driver.iterate()
        self.raise_error()
        return went_on

    def fail(self, agent: Agent, error: BaseException) -> None:
        """Remember what an agent raised, or a task while it served this agent's update: the first error ends the run."""
        if isinstance(error, (Stopped, Interrupted)):
            return
        if self._error is None:
            self._error = error
            if not isinstance(error, SOUND):
                said = error.args[0] if isinstance(error, KeyError) and error.args else error  # a KeyError quotes its own text
                self._error = AgentFailed(f"{agent}: run_one_episode raised {type(error).__name__}: "
                                          f"{str(said).removeprefix(f'{agent}: ')}")
                self._error.__cause__ = error
        self._pool.request_stop()

    def raise_error(self) -> None:
        """Raise what an agent or a task has raised; all agents end before."""
        if self._error is not None:
            error, self._error = self._error, None
            self.abandon()
            raise error

    # -------------------------------------------------------------------------------------------------------- they wait

    def rest(self) -> None:
        """End a run: its agents wait where they are for the next one. Meanwhile nothing that they hold holds the robot, for no
        garbage collector sees what a greenlet or a thread holds that waits."""
        with self._uninterrupted() as phases:
            self._pool.request_stop()  # also where a rule between two iterations has ended the run
            late = self._pool.driver.pause(STOP_PATIENCE)
            self._pool.stop_requested = False
            if not late:
                self._know(weakref.proxy(self._pool), weakref.proxy(self._pool.robot))
                phases.after = Phase.WAITING
        if late:
            self.halt(patience=1.0)  # who is late does not wait, so nobody does
        else:
            self._forsaken = weakref.finalize(self._pool.robot, self._pool.driver.forsake)

    def _know(self, pool: Pool, robot: RunPort) -> None:
        """Set what the agents and the driver know the pool and its robot by: themselves, or weak proxies while they wait. Only
        then the driver may wait for the robot to be gone, for it is kept until it hears of it."""
        if self._forsaken is not None:
            self._forsaken.detach()
            self._forsaken = None
        self._pool.driver.pool = pool
        for agent in self._pool.agents:
            agent.agent_pool, agent.robot = pool, robot
        self._pool.hooks.mute(pool is not self._pool)

    def give_up_waiting(self) -> None:
        """Leave agents that wait in greenlets of another thread, and cannot go on in this one: their episodes end here, as at a
        checkpoint, and begin anew."""
        self._know(self._pool, self._pool.robot)
        self._move(Phase.IDLE)
        self._pool.driver.forsake()
        for agent in self._pool.agents:
            agent.interrupt(carry=True)
        self.settle()

    # -------------------------------------------------------------------------------------------------------- they end

    def cut(self, patience: float | None = None) -> None:
        """End all open episodes. Requests that are waiting are served first, so no reply and no update is lost.

        Raises:
            RuntimeError: an agent is still busy in its environment after `patience` seconds.
        """
        self._pool.driver.refuse_agents()
        with self.one_thread:
            self.recover()
            if self.begun:
                with self._uninterrupted() as phases:
                    if late := self._pool.driver.halt(self._pool.agents, AgentSignal.INTERRUPT, patience):
                        raise RuntimeError(f"still busy {patience:g} s after they were told to end their episodes: "
                                           f"{', '.join(map(str, late))}")
                    self.settle()
                    phases.after = Phase.BETWEEN if phases.before is Phase.BETWEEN else Phase.PAUSED
            else:
                self.settle()
        self.raise_error()

    def settle(self) -> None:
        """Take over, after an interruption, the updates that nobody has waited for. The next resets are seeded."""
        for agent in self._pool.agents:
            try:
                for helper in agent.helpers.values():
                    helper.settle()
            except Exception as error:  # noqa: BLE001  an update that failed, of which the agent would have heard at its next one
                self._pool.agent_failed(agent, error)
            agent.needs_seed = True

    def halt(self, carry: bool = False, patience: float = STOP_PATIENCE) -> None:
        """End all agents; open requests are answered with `Stopped`. They may start again, and with `carry` go on with the
        episodes that are held. Who is busy in its environment is waited for, `patience` seconds at most."""
        pool, driver, late = self._pool, self._pool.driver, []
        with self.one_thread:
            begun = self.begun
            if begun:
                if self.phase is not Phase.BUSY:
                    self._move(Phase.BUSY)
                if pool.hooks.muted:
                    self._know(pool, pool.robot)
                driver.halt(pool.agents, AgentSignal.STOP)
                late = driver.join(patience)
            for agent in pool.agents:
                if agent not in late:
                    agent.go_on()
                agent.quota.lift()
                if agent.env is not None and not carry:
                    agent.env.put_back(None)
                for helper in agent.helpers.values():
                    helper.sender.forget()
            driver.stopping = False
            driver.parked.clear()
            driver.reopen()
            pool.stop_requested = False
            if begun:
                self._move(Phase.IDLE)  # last: until here the next call begins once more
        if late:  # last, for the user may have made an error of warnings
            warnings.warn(f"still busy {STOP_PATIENCE:g} s after the stop: {', '.join(map(str, late))}", RuntimeWarning,
                          stacklevel=3)

    def abandon(self) -> None:
        """End all agents after an error, which is the one to report: others, of hooks meanwhile, are not."""
        self.halt()
        self._error = None

    def close(self, drain: bool = False) -> None:
        """See `AgentPool.close`."""
        pool, cut = self._pool, self._pool.statistics.episodes_cut
        try:
            if drain:
                self.cut(DRAIN_PATIENCE)
        finally:
            self.halt()
            pool.statistics.episodes_cut = cut  # the end of everything says nothing of the returns
            if self.phase is not Phase.CLOSED:
                self._move(Phase.CLOSED)
            for agent in pool.agents:
                if agent.env is not None and not pool.borrowed:
                    agent.env.close()
            pool.driver.close()
