"""Notices agents that ask a task or reset their environment again and again, and take no step: a run of these never ends."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any

from parl_like.interfaces import ActingAgent

LOOK_S = 1.0
"""Seconds between two looks."""
PATIENCE_S = {"predict": 5.0, "learn": 60.0, "reset": 5.0}
"""Seconds after which it is said; updates may take long, and several may belong to one step."""
LOOKS = 4
"""The least number of times that an agent is found asking in that time: one that waits long for a single answer is not meant."""


class Asking:
    """Looks now and then at who asks one queue, for a comparison per batch.

    Args:
        kind: 'predict' or 'learn'.

    Attributes:
        next_look: Of `perf_counter()`.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.next_look = kind, 0.0
        self._seen: dict[int, list[Any]] = {}  # agent's id → steps, since when they are so many, how often it was found

    def look(self, now: float, task: str, agents: Iterable[ActingAgent]) -> None:
        """Notes who asks; tells the agent's robot, once, of one that has not stepped for too long."""
        self.next_look = now + LOOK_S
        for agent in agents:
            if getattr(agent, "env", None) is None or not hasattr(agent, "learned_at"):
                continue  # it only learns, or stands for a worker, which looks itself
            seen = self._seen.get(id(agent))
            if seen is None or seen[0] != agent.steps:
                self._seen[id(agent)] = [agent.steps, now, 1]
                continue
            seen[2] += 1
            if now - seen[1] >= PATIENCE_S[self.kind] and seen[2] >= LOOKS:
                tell(agent, f"asked task {task!r} ({self.kind})", now - seen[1])


class Resets:
    """Looks at the resets of one environment, for a comparison each."""

    def __init__(self) -> None:
        self._steps, self._since, self._found, self._rested = -1, 0.0, 0, 0.0

    def look(self, agent: ActingAgent) -> None:
        """Tells the agent's robot, once, of one that resets for too long without a step. From then on the agent rests now and
        then: else the other agents of its thread, and a robot in another process, would have no turn."""
        if agent.steps != self._steps:
            self._steps, self._since, self._found = agent.steps, 0.0, 0
            return
        now = perf_counter()
        self._since, self._found = self._since or now, self._found + 1
        if now - self._since >= PATIENCE_S["reset"] and self._found >= LOOKS:
            tell(agent, "reset its environment again and again", now - self._since)
            if now - self._rested >= LOOK_S:
                agent.agent_pool.driver.rest(agent)
                self._rested = perf_counter()


def tell(agent: ActingAgent, what: str, seconds: float) -> None:
    """Tells the agent's robot, once, what the agent has done for so many seconds without a step."""
    pool = agent.agent_pool
    if agent not in pool.idlers:
        pool.idlers.append(agent)
        pool.tell(f"{agent} has {what} for {seconds:.0f} s without a step of its environment, and goes on; a run ends after "
                  "steps, so let run_one_episode call self.env.step(action) and end with the episode")
