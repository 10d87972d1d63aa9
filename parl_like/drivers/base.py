"""What the drivers share whose agents are in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CALLED_BY_AGENT = (
    "an agent cannot run or halt all agents, for it would wait for itself (run, train_iter, collect, save, close and the like, "
    "called from an agent or a hook); call it between iterations, or use request_stop()"
)


class LocalDriver:
    """The part of a `Driver` (parl_like/driver.py) that is the same wherever agents with their buffers are in this process."""

    lock: Any = None
    collecting = False

    def make_agents(self, crew: Any, n: int) -> list[Any]:
        self.crew = crew
        made: list[Any] = crew.make_agents(n)
        return made

    def need_local(self, what: str, why: str) -> None:
        """They are."""

    def digests(self, here: dict[int, bytes]) -> dict[int, bytes]:
        return here

    def state_dict(self) -> dict[str, Any]:
        buffers = {f"buffer.{name}": buffer.state_dict() for name, buffer in self.crew.buffers.items()}
        return {**buffers, "agents": {str(agent.index): agent.state_dict() for agent in self.crew.agents}}

    def state_keys(self) -> set[str]:
        return {"agents", *(f"buffer.{name}" for name in self.crew.buffers)}

    def check_state(self, state: Mapping[str, Any]) -> None:
        same_agents(list(state["agents"]), self.crew.agents)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, buffer in self.crew.buffers.items():
            buffer.load_state_dict(state[f"buffer.{name}"])
        for agent in self.crew.agents:
            agent.load_state_dict(state["agents"][str(agent.index)])
            agent.fresh = True

    def close(self) -> None:
        """Nothing is left when the agents have ended."""


def same_agents(there: list[str], here: list[Any]) -> None:
    """Raises a ValueError unless a saved state has the agents of this robot, by their indices."""
    if set(there) != {str(agent.index) for agent in here}:
        raise ValueError(f"Robot: the saved state has {len(there)} agents, this robot {len(here)}; set n_agents "
                         f"(there: {', '.join(there)}; here: {', '.join(str(agent.index) for agent in here)})")
