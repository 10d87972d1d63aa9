"""WorkerHandle: a worker as the robot knows it, and the states of its process."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from time import monotonic
from typing import Any

from parl_like.agents.agent import Agent
from parl_like.drivers.messages import Kind, Message
from parl_like.interfaces import LearnerProgress
from parl_like.process.child import RestartBudget
from parl_like.tasks.row_slots import Owner
from parl_like.values.plain import State


class WorkerStatus(Enum):
    """The states of a worker's process."""

    ENDED = "ended"
    """There is none: it was not begun yet, or has ended."""
    STARTING = "starting"
    """It was begun, and makes its agents."""
    READY = "ready"
    """It has said hello. Its agents do not run."""
    RUNNING = "running"
    """Its agents were started."""


BECOMES = {
    WorkerStatus.ENDED: {WorkerStatus.STARTING},
    WorkerStatus.STARTING: {WorkerStatus.READY, WorkerStatus.ENDED},
    WorkerStatus.READY: {WorkerStatus.RUNNING, WorkerStatus.ENDED},
    WorkerStatus.RUNNING: {WorkerStatus.READY, WorkerStatus.ENDED},
}
"""Status → those that may follow it."""


class WorkerHandle:
    """A worker's agents, the process that runs them now, and what was sent to it.

    Attributes:
        incarnation: How often its process has been replaced; −1 before the first.
        owner: Of the rows that tasks keep for its process's agents; its requests hold it, too.
        status: Of its process; `become` sets it.
        paused: Its agents could go on without the robot, which has its turn first.
        acting: `Agent.progress` of those of its learning agents that did not wait for updates at its last turn, as of one.
        outbox: Messages to it that were not delivered yet: kind, parts, frames.
        sent, seen: Messages to it, with those, and how many of them it had taken in at its last turn. started: The number of that
            which began its agents; what it says of them from before is of others.
        silent: Seconds since it last said something, or began to owe it, in which the robot listened.
        owes: Since when it has owed a turn. pace: Seconds of a turn, a running mean. slow: It has been called slow.
        divided: Its last request for predictions went into more than one batch.
        turn_s: Seconds of a turn by the worker's own clock, a running mean of the last few.
    """

    def __init__(self, number: int, agents: list[Agent], budget: RestartBudget) -> None:
        self.number, self.agents, self.budget = number, agents, budget
        self.incarnation = -1
        self.owner = Owner()
        self.inbox: deque[Message] = deque()
        self.states: deque[Any] = deque()
        self.outbox: list[tuple[Kind, dict[str, Any], list[object]]] = []
        self.status = WorkerStatus.ENDED
        self.reset()

    def reset(self) -> None:
        """Its process is new, or has ended."""
        self.paused = self.slow = self.divided = False
        self.sent = self.seen = self.started = 0
        self.silent = self.owes = self.pace = self.turn_s = 0.0
        self.acting: list[int] = []
        self.inbox.clear()
        self.states.clear()
        self.outbox.clear()

    def become(self, status: WorkerStatus) -> None:
        """Set its status. Raises RuntimeError: from the present one it does not get there."""
        if status not in BECOMES[self.status]:
            raise RuntimeError(f"{self} is {self.status.value} and cannot become {status.value}")
        self.status = status

    def describe(self) -> State:
        """Return its number, status, restarts and agents as JSON values."""
        return {"worker": self.number, "status": "slow" if self.slow else self.status.value,
                "restarts": max(self.incarnation, 0), "agents": [agent.index for agent in self.agents]}

    def rest(self) -> None:
        """Its agents do not run any more, where they did."""
        if self.running:
            self.become(WorkerStatus.READY)

    @property
    def taken(self) -> bool:
        """A process has been begun and has not ended."""
        return self.status is not WorkerStatus.ENDED

    @property
    def up(self) -> bool:
        """It has said hello."""
        return self.status in (WorkerStatus.READY, WorkerStatus.RUNNING)

    @property
    def running(self) -> bool:
        """Its agents have been started."""
        return self.status is WorkerStatus.RUNNING

    @property
    def name(self) -> str:
        """Return a name that no other process of this robot has or had."""
        return f"{self.number}.{self.incarnation}"

    @property
    def owing(self) -> bool:
        """It has not taken in all that it was sent."""
        return self.up and self.seen != self.sent

    @property
    def quiet(self) -> bool:
        """Its agents all wait, or are not there."""
        return not self.running or self.seen == self.sent

    @property
    def busy(self) -> bool:
        """Its agents run, or will."""
        return self.running and (self.paused or not self.quiet)

    @property
    def learns(self) -> bool:
        """Say whether an agent of it may come to learn before it is answered, for `parl_like.tasks.rounds`."""
        return bool(self.acting) or self.busy

    def progress(self) -> LearnerProgress | None:
        """Return that of its agents that learn and act, as of one; None: there are none."""
        return LearnerProgress(self.acting[0], bool(self.acting[1])) if self.acting else None

    def heard_turn(self, notes: Mapping[str, Any]) -> None:
        """It has taken in so many messages, and its agents wait again."""
        self.seen, self.paused, self.acting = notes["turn"], "paused" in notes, notes.get("pace", [])
        if self.seen:  # the first turn was asked for by nobody
            took = monotonic() - self.owes
            self.pace = 0.98 * self.pace + 0.02 * took if self.pace else took
            own = notes["took"]  # without the time that its message waited here
            self.turn_s = 0.8 * self.turn_s + 0.2 * own if self.turn_s else own

    def __str__(self) -> str:
        return f"worker {self.number} (agents {self.agents[0].index} to {self.agents[-1].index})"
