"""AgentStates: the states of agents and of what they have stored, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from parl_like.agents.agent import Agent
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.buffers.source import load_state_of, state_of
from parl_like.environment.stop_conditions import StopWhenAgent
from parl_like.interfaces import AgentPort
from parl_like.values import plain
from parl_like.values.plain import State


class States(Protocol):
    """The states of all agents and buffers of a driver, wherever they are; asked while no agent runs."""

    def watch(self, watchers: Sequence[StopWhenAgent]) -> None:
        """Bring what the next run's stop condition asks beside the agents to where these are.

        Raises:
            TypeError: a function cannot be sent there.
        """

    def digests(self, here: dict[int, bytes]) -> dict[int, bytes]:
        """Return the digest of every agent's trace, by the agent's index; `here` is what this process has seen of them."""

    def state_dict(self, buffers: bool = True) -> State:
        """Return the state of every agent and buffer; `buffers` False: without the rows of those that may be empty where a run
        goes on (`AgentHelper.refills`)."""

    def keys(self) -> set[str]:
        """Return the keys of `state_dict`."""

    def check(self, state: State) -> None:
        """Check whose a saved state is. Raises ValueError where it is that of other agents or workers."""

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; other keys may stand beside its own."""


class AgentStates:
    """`States` of agents of this process.

    Args:
        agents: All agents.
        buffers: Task → what its helpers store.
    """

    def __init__(self, agents: Sequence[Agent], buffers: Mapping[str, ReplayBuffer]) -> None:
        self.agents, self.buffers = agents, buffers

    def watch(self, watchers: Sequence[StopWhenAgent]) -> None:
        """Do nothing, for they are hooks of the run."""

    def digests(self, here: dict[int, bytes]) -> dict[int, bytes]:
        return here

    def state_dict(self, buffers: bool = True) -> State:
        kept = {f"buffer.{name}": state for name, state in buffer_states(self.agents, self.buffers, buffers).items()}
        return {**kept, "agents": {str(agent.index): agent.state_dict() for agent in self.agents}}

    def keys(self) -> set[str]:
        return {"agents", *(f"buffer.{name}" for name in self.buffers)}

    def check(self, state: State) -> None:
        same_agents(list(plain.entries(state["agents"])), self.agents)

    def load_state_dict(self, state: State) -> None:
        formats = {helper.name: helper.format for agent in self.agents for helper in agent.helpers.values()}
        for name, buffer in self.buffers.items():
            if name in formats:
                formats[name].check_choices(plain.entries(state[f"buffer.{name}"]))
            load_state_of(buffer, plain.entries(state[f"buffer.{name}"]), f"task {name!r}")
        agents = plain.entries(state["agents"])
        for agent in self.agents:
            agent.load_state_dict(plain.entries(agents[str(agent.index)]))
            agent.needs_seed = True


def buffer_states(agents: Sequence[Agent], buffers: Mapping[str, ReplayBuffer], rows: bool = True) -> dict[str, State]:
    """Return task → the state of its buffer; `rows` False: without rows, where its helpers fill it again."""
    refilled = {helper.name for agent in agents for helper in agent.helpers.values() if helper.refills}
    return {name: state_of(buffer, rows or name not in refilled) for name, buffer in buffers.items()}


def same_agents(there: list[str], here: Sequence[AgentPort]) -> None:
    """Raise ValueError unless a saved state has the agents of this robot, by their indices."""
    if set(there) != {str(agent.index) for agent in here}:
        raise ValueError(f"Robot: the saved state has {len(there)} agents, this robot {len(here)}; set n_agents "
                         f"(there: {', '.join(there)}; here: {', '.join(str(agent.index) for agent in here)})")
