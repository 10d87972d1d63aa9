"""HelperMaker: helpers of a pool's agents, and what those of one task share: a wrapper, a buffer, transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents.agent import Agent
from parl_like.agents.helper import AgentHelper
from parl_like.agents.helper_checks import check_kind
from parl_like.agents.helper_context import HelperContext
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.run.driver import Driver
from parl_like.run.pool_options import PoolOptions
from parl_like.run.statistics import Statistics
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.spec import SpecError


class HelperMaker:
    """Makes the helpers of a pool's agents.

    Args:
        agents: The pool's list of agents, which may change.

    Attributes:
        wrappers: Task → its wrapper, made before the task's first helper.
        buffers: Task → the buffer of its helpers, where they store rows.
        transforms: Task → the transforms of its helpers.
        learners: Task whose helpers learn → the first of them.
    """

    def __init__(self, options: PoolOptions, agents: list[Agent], driver: Driver, statistics: Statistics) -> None:
        self.options, self.tasks = options, dict(options.tasks)
        self.wrappers: dict[str, ComputationWrapper] = {}
        self.buffers: dict[str, ReplayBuffer] = {}
        self.transforms = dict(options.transforms or {})
        self.learners: dict[str, AgentHelper] = {}
        self._agents, self._driver, self._statistics = agents, driver, statistics
        self._free_lanes: dict[str, list[range]] = {}  # of agents that have left, by task
        self._n_lanes: dict[str, int] = {}  # made so far, by task

    def make(self, name: str, agents: Sequence[Agent], seeds: Sequence[np.random.SeedSequence], stores: bool = True) -> None:
        """Give every new agent a helper of one task, or one for each of its roles; before the first of all, make the task's
        wrapper and, where rows are stored (`stores`), its buffer.

        Raises:
            ValueError: the helpers of a task, or its helper and its algorithm, do not fit each other.
        """
        task, sync, mode = self.tasks[name], self.options.sync, self.options.mode
        make = task.helper or AgentHelper
        players = [(agent, role, own) for agent, seed in zip(agents, seeds, strict=True)
                   for role, own in _roles(agent, name, seed)]
        helpers = [make() for _ in players]
        first = helpers[0]
        if len({id(helper) for helper in helpers}) < len(helpers) or hasattr(first, "comm"):
            raise ValueError(f"Robot: task {name!r}: helper() gave one {type(first).__name__} to several agents; expected a new "
                             "one at every call")
        training = mode != "test" and task.train
        is_new = name not in self.wrappers
        if is_new:
            self._open(name, task, first, sum(agent.n_envs for agent, _, _ in players), stores and training)
        wrapper, buffer = self.wrappers[name], self.buffers.get(name) if training else None
        if training and first.learns:
            self.learners.setdefault(name, first)
        if training and isinstance(first, OnPolicyHelper):
            self._statistics.rows.add_task(name)
        chain = self.transforms.setdefault(name, first.transforms)
        for (agent, role, seed), helper in zip(players, helpers, strict=True):
            communicator = wrapper.create_communicator(agent, self._driver, role)
            lanes, rng = self._new_lanes(name, agent.n_envs, is_new), np.random.default_rng(seed)
            roles = agent.roles_of(name)
            first_lane = agent.first_env * max(len(roles), 1) + (roles.index(role) * agent.n_envs if role is not None else 0)
            helper.bind(HelperContext(name, agent, communicator, lanes, buffer, rng, mode, sync, chain, role, first_lane))
            agent.helpers[name if role is None else (name, role)] = helper
            agent.learns = agent.learns or (training and helper.learns)

    def close(self, agent: Agent) -> None:
        """Close the communicators of an agent that leaves; its lanes are free for the next one."""
        for helper in agent.helpers.values():
            helper.comm.close()
            self._free_lanes.setdefault(helper.name, []).append(helper.lanes)

    def _open(self, name: str, task: ComputationTask, helper: AgentHelper, n_lanes: int, stores: bool) -> None:
        """Make a task's wrapper and, where its helpers store rows, the buffer that they share."""
        lock = self._driver.lock
        if stores:
            number, root = list(self.tasks).index(name), self.options.seed
            seed = np.random.SeedSequence(entropy=root.entropy, spawn_key=(*root.spawn_key, 1_000_000 + number))
            buffer = helper.make_buffer(n_lanes, np.random.default_rng(seed))
            if buffer is not None:
                check_kind(f"task {name!r}: make_buffer of {type(helper).__name__}", buffer)
                self.buffers[name] = buffer = _for_policy(name, buffer, task.algorithm.model.act_space)
                if lock is not None:
                    buffer.make_threadsafe()
        wrapper = ComputationWrapper(task, self.options.mode, helper.training_rule(), lock)
        if self.options.sync and wrapper.trainings.rule.when_full == "drop_oldest":
            raise ValueError(f"Robot: task {name!r} drops the oldest requests of a full queue, but in sync mode every agent "
                             "waits for its own; use when_full='block', or mode='async'")
        statistics = self._statistics
        wrapper.trainings.env_steps = lambda: statistics.env_steps
        self.wrappers[name] = wrapper

    def _new_lanes(self, name: str, n: int, made: bool) -> range:
        """Return `n` lanes for a new helper: those of one that has left, whose rows end with a cut, or new ones; `made`: they are
        in the buffer already."""
        free = self._free_lanes.get(name, [])
        if found := next((lanes for lanes in free if len(lanes) == n), None):
            free.remove(found)
            return found
        buffer, first = self.buffers.get(name), self._n_lanes.get(name, 0)
        if buffer is not None and not made:
            buffer.add_lanes(n)
        self._n_lanes[name] = first + n
        return range(first, first + n)


def _roles(agent: Agent, task: str, seed: np.random.SeedSequence) -> list[tuple[str | None, np.random.SeedSequence]]:
    """Return the roles of an agent at a task, each with a seed; (None, seed) where it has none."""
    roles = agent.roles_of(task)
    return list(zip(roles, seed.spawn(len(roles)), strict=True)) if roles else [(None, seed)]


def _for_policy(task: str, buffer: Any, space: gym.Space[object] | None) -> Any:
    """Return the buffer of a task's helpers, for the policy's actions of its model's action space."""
    if space is None or buffer.act_space == space:
        return buffer
    if not len(buffer):
        buffer.act_space = space
        return buffer
    if not isinstance(buffer, ReplayBuffer):
        raise ValueError(f"Robot: task {task!r}: {buffer!r} has rows, and whose units their actions are in is not known; give a "
                         "ReplayBuffer, or say buffer.act_space = env.action_space where they are the policy's")
    try:
        return buffer.in_policy_units(space)
    except SpecError as error:
        raise SpecError(f"Robot: task {task!r}: {error}") from None
