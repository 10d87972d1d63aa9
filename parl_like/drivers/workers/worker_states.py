"""Questions to workers while no agent runs: the digests of their traces, and their state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import cloudpickle

from parl_like.drivers.messages import pack_state
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.recipes import Recipes
from parl_like.drivers.workers.supervisor import Supervisor
from parl_like.environment.stop_conditions import StopWhenAgent
from parl_like.run.agent_pool import AgentPool
from parl_like.run.agent_states import same_agents
from parl_like.run.robot_state import WORKERS
from parl_like.values import plain
from parl_like.values.plain import State


class WorkerStates:
    """`States` of agents that are in workers.

    Args:
        supervisor: Sends orders, and knows the workers.
        recipes: What their processes are told when they begin.
        pool: Whose agents they are.
        connect: Starts workers where there are none, and returns when every worker has said hello.
        listen: Takes in what workers have sent, or waits for something.
    """

    def __init__(self, supervisor: Supervisor, recipes: Recipes, pool: AgentPool, connect: Callable[[], None],
                 listen: Callable[[], None]) -> None:
        self.supervisor, self._recipes, self._pool, self._connect, self._listen = supervisor, recipes, pool, connect, listen

    def watch(self, watchers: Sequence[StopWhenAgent]) -> None:
        """See `States.watch`. Code goes to workers when they begin, and never in a message: where they have begun without these
        functions, new ones take their place, and their state.

        Raises:
            TypeError: a function cannot be sent to workers.
        """
        before, functions = self._recipes.watching, [watcher.function for watcher in watchers]
        if not functions or len(before) == len(functions) and all(map(is_, before, functions)):
            return
        try:
            cloudpickle.dumps(functions)
        except Exception as error:
            raise TypeError("Robot.run: a function of StopWhenAgent cannot be sent to worker processes: "
                            f"{type(error).__name__}: {error}; let it hold no open files, locks or sockets") from error
        begun = any(worker.taken for worker in self.supervisor.workers)
        if begun:
            self._pool.lifecycle.cut()
            state = self.state_dict()
            for worker in self.supervisor.workers:
                self.supervisor.end(worker)
            self._pool.lifecycle.halt()
        self._recipes.watching = functions
        if begun:
            self.load_state_dict(state)

    def _ask(self, order: str, states: Sequence[object] | None = None, **notes: object) -> list[Any]:
        """Return every worker's answer to an order with these notes, by the workers' numbers; `states` has one part for each of
        them."""
        self._connect()
        workers = self.supervisor.workers
        for worker in workers:
            worker.states.clear()
        asked: dict[WorkerHandle, int] = {}
        while not all(worker.states for worker in workers):
            for worker in workers:
                if worker.up and asked.get(worker) != worker.incarnation:  # again, where another has taken its place meanwhile
                    asked[worker] = worker.incarnation
                    self.supervisor.order(order, [worker], None if states is None else pack_state(states[worker.number]), **notes)
            self._listen()
            self._pool.lifecycle.raise_error()
        return [worker.states.popleft() for worker in workers]

    def digests(self, here: dict[int, bytes]) -> dict[int, bytes]:
        return {int(i): bytes.fromhex(d) for part in self._ask("trace") for i, d in part.items()}

    def state_dict(self, buffers: bool = True) -> State:
        """Return the state of every worker: 'agents', 'buffers', 'trace'."""
        return {WORKERS: {str(number): state for number, state in enumerate(self._ask("state", buffers=buffers))}}

    def keys(self) -> set[str]:
        return {WORKERS}

    def check(self, state: State) -> None:
        """Check whose a saved state is. Raises ValueError where it is that of other agents, or of other workers."""
        saved = plain.entries(state[WORKERS])
        agents = [plain.entries(plain.entries(part)["agents"]) for part in saved.values()]
        same_agents([index for part in agents for index in part], self._pool.agents)
        if len(saved) != len(self.supervisor.workers):
            raise ValueError(f"Robot: the saved state has {len(saved)} workers, this robot {len(self.supervisor.workers)}; set "
                             f"Processes(workers={len(saved)})")

    def load_state_dict(self, state: State) -> None:
        """Give every worker its part of a saved state that `check` has passed."""
        learns = {name: task.learns for name, task in self._pool.tasks.items()}
        workers = self.supervisor.workers
        saved = plain.entries(state[WORKERS])
        states = [{**plain.entries(saved[str(worker.number)]), "learns": learns} for worker in workers]
        self._ask("load", states)
        for worker, part in zip(workers, states, strict=True):
            if worker.agents[0].env is not None:
                worker.agents[0].env.time_steps = sum(
                    plain.whole(plain.entries(agent).get("time_steps", 0)) for agent in plain.entries(part["agents"]).values())
