"""Questions to workers while no agent runs: the digests of their traces, and their state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from parl_like.drivers.cooperative import CooperativeDriver
from parl_like.drivers.messages import pack_state
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.supervisor import Supervisor
from parl_like.run.agent_pool import AgentPool
from parl_like.run.driver import same_agents
from parl_like.run.robot_state import WORKERS


class WorkerStates(CooperativeDriver):
    """The part of a driver with workers that asks them."""

    pool: AgentPool
    supervisor: Supervisor

    @abstractmethod
    def _open(self) -> None:
        """Opens the link to the workers, where that has not been done."""

    @abstractmethod
    def _await_hello(self) -> None:
        """Returns when every worker has said hello."""

    @abstractmethod
    def _pump(self, seconds: float = 0.5) -> None:
        """Takes in everything that is there, or waits for something."""

    @property
    def workers(self) -> list[WorkerHandle]:
        return self.supervisor.workers

    def _ask(self, order: str, states: Sequence[object] | None = None) -> list[Any]:
        """Every worker's answer to an order, while no agent runs. Workers are started where there are none."""
        self._open()
        for worker in self.workers:
            if not worker.taken:
                self.supervisor.begin(worker)
        self._await_hello()
        for worker in self.workers:
            worker.states.clear()
        asked: dict[WorkerHandle, int] = {}
        while not all(worker.states for worker in self.workers):
            for worker in self.workers:
                if worker.up and asked.get(worker) != worker.incarnation:  # again, where another has taken its place meanwhile
                    asked[worker] = worker.incarnation
                    self.supervisor.order(order, [worker], None if states is None else pack_state(states[worker.number]))
            self._pump()
            self.pool.lifecycle.raise_error()
        return [worker.states.popleft() for worker in self.workers]

    def digests(self, here: dict[int, bytes]) -> dict[int, bytes]:
        return {int(i): bytes.fromhex(d) for part in self._ask("trace") for i, d in part.items()}

    def state_dict(self) -> dict[str, object]:
        """The state of every worker: 'agents', 'buffers', 'trace'."""
        return {WORKERS: {str(number): state for number, state in enumerate(self._ask("state"))}}

    def state_keys(self) -> set[str]:
        return {WORKERS}

    def check_state(self, state: Mapping[str, Any]) -> None:
        saved = state[WORKERS]
        same_agents([index for part in saved.values() for index in part["agents"]], self.pool.agents)
        if len(saved) != len(self.workers):
            raise ValueError(f"Robot: the saved state has {len(saved)} workers, this robot {len(self.workers)}; set "
                             f"Processes(workers={len(saved)})")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        learns = {name: task.learns for name, task in self.pool.tasks.items()}
        states = [{**state[WORKERS][str(worker.number)], "learns": learns} for worker in self.workers]
        self._ask("load", states)
        for worker, part in zip(self.workers, states, strict=True):
            if worker.agents[0].env is not None:
                worker.agents[0].env.time_steps = sum(agent.get("time_steps", 0) for agent in part["agents"].values())
