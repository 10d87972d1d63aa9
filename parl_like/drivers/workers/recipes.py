"""Recipes: what the processes of workers are told when they begin."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.proxies import TaskProxy
from parl_like.drivers.workers.worker_agents import Recipe
from parl_like.environment.factory import for_elsewhere
from parl_like.run.agent_pool import AgentPool
from parl_like.tasks.row_slots import Owner, RowSlots
from parl_like.tasks.task import ComputationTask


class Recipes:
    """Makes the recipe of each process.

    Args:
        tasks: Of the robot, by name.
        seeds: Agent's index → its seed.
        sync: Whether agents wait for updates.
        agent_restarts: See `parl_like.drivers.workers.processes.Processes`.

    Attributes:
        watching: What a run's stop condition asks beside the agents.
    """

    def __init__(self, tasks: Mapping[str, ComputationTask], seeds: Mapping[int, np.random.SeedSequence], sync: bool,
                 agent_restarts: int) -> None:
        self._proxies = {name: TaskProxy(task) for name, task in tasks.items()}
        self._seeds, self._sync, self._agent_restarts = dict(seeds), sync, agent_restarts
        self.watching: list[Callable[[Agent], bool]] = []

    def make(self, pool: AgentPool, worker: WorkerHandle) -> Recipe:
        """Return what a worker's next process is told; rows that tasks keep for its agents are set aside."""
        made_of, proxies = pool.options, {}
        root = made_of.seed
        worker.owner = Owner()  # the rows of the process before are free when nothing that it sent waits any more
        for name, proxy in self._proxies.items():
            task = pool.tasks[name]
            proxies[name] = proxy = copy.copy(proxy)
            proxy.version, proxy.learns = task.version, task.learns
            if proxy.source is None and (n := sum(agent.needs.get(name, 0) for agent in worker.agents)):
                proxy.row_slots = RowSlots(task.row_slots.claim(worker.owner, n), n)
        again = (worker.incarnation,) if worker.incarnation else ()  # the agents of a new worker do not repeat the old one's luck
        seeds = [(a.index, self._seeds[a.index].entropy, (*self._seeds[a.index].spawn_key, *again)) for a in worker.agents]
        return Recipe(
            worker.name, proxies, for_elsewhere(made_of.env), made_of.agent, made_of.label, pool.mode, self._sync, seeds,
            (root.entropy, (*root.spawn_key, 2_000_000 + worker.number, *again)), pool.trace is not None,
            self._agent_restarts, len(pool.agents), worker.agents[0].n_envs, self.watching, pool.reads)
