"""WorkerHandle: what the robot knows of one worker, whatever carries its messages."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any

from parl_like.process.budget import RestartBudget
from parl_like.wire import Message


class WorkerHandle:
    """A worker's agents, the process that runs them now, and what was sent to it.

    Attributes:
        incarnation: How often its process has been replaced; −1 before the first.
        taken: A process has been begun and has not ended.
        up: It has said hello.
        running: Its agents have been started.
        paused: Its agents could go on without the robot, which has its turn first.
        sent, seen: Messages to it, and how many of them it had taken in at its last turn.
        silent: Seconds since it last said something, or began to owe it, in which the robot listened.
        owes: Since when it has owed a turn. pace: Seconds of a turn, a running mean. slow: It has been called slow.
    """

    def __init__(self, number: int, agents: list[Any], budget: RestartBudget) -> None:
        self.number, self.agents, self.budget = number, agents, budget
        self.incarnation = -1
        self.inbox: deque[Message] = deque()
        self.states: deque[Any] = deque()
        self.taken = False
        self.reset()

    def reset(self) -> None:
        """Its process is new, or has ended."""
        self.up = self.running = self.paused = self.slow = False
        self.sent = self.seen = 0
        self.silent = self.owes = self.pace = 0.0
        self.inbox.clear()
        self.states.clear()

    @property
    def identity(self) -> bytes:
        return f"{self.number}.{self.incarnation}".encode()

    @property
    def owing(self) -> bool:
        """It has not taken in all that it was sent."""
        return self.up and self.seen != self.sent

    @property
    def quiet(self) -> bool:
        """Its agents all wait, or are not there."""
        return not self.running or self.seen == self.sent

    def heard_turn(self, seen: int, paused: bool) -> None:
        """It has taken in `seen` messages, and its agents wait again."""
        self.seen, self.paused = seen, paused
        if seen:  # the first turn was asked for by nobody
            took = monotonic() - self.owes
            self.pace = 0.98 * self.pace + 0.02 * took if self.pace else took

    def __str__(self) -> str:
        return f"worker {self.number} (agents {self.agents[0].index} to {self.agents[-1].index})"
