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

    def make(self, name: str, agents: Sequence[Agent], seeds: Sequence[np.random.SeedSequence], stores: bool = True) -> None:
        """Give every new agent a helper of one task; before the first of all, make the task's wrapper and, where rows are stored
        (`stores`), its buffer."""
        task, sync, mode = self.tasks[name], self.options.sync, self.options.mode
        make = task.helper or AgentHelper
        helpers = [make() for _ in agents]
        first = helpers[0]
        if len({id(helper) for helper in helpers}) < len(helpers) or hasattr(first, "comm"):
            raise ValueError(f"Robot: task {name!r}: helper() gave one {type(first).__name__} to several agents; expected a new "
                             "one at every call")
        training = mode != "test" and task.train
        n_lanes = sum(agent.n_envs for agent in agents)
        lane = self._new_lanes(name, n_lanes) if name in self.wrappers else 0
        if name not in self.wrappers:
            self._open(name, task, first, n_lanes, stores and training)
        wrapper, buffer = self.wrappers[name], self.buffers.get(name) if training else None
        if training and first.learns:
            self.learners.setdefault(name, first)
        if training and isinstance(first, OnPolicyHelper):
            self._statistics.rows.add_task(name)
        chain = self.transforms.setdefault(name, first.transforms)
        for agent, helper, seed in zip(agents, helpers, seeds, strict=True):
            communicator = wrapper.create_communicator(agent, self._driver)
            lanes, lane = range(lane, lane + agent.n_envs), lane + agent.n_envs
            rng = np.random.default_rng(seed)
            helper.bind(HelperContext(name, agent, communicator, lanes, buffer, rng, mode, sync, chain))
            agent.helpers[name] = helper
            agent.learns = agent.learns or (training and helper.learns)

    def close(self, agent: Agent) -> None:
        """Close the communicators of an agent that leaves; its lanes are free for the next one."""
        for name, helper in agent.helpers.items():
            helper.comm.close()
            if helper.buffer is not None:
                self._free_lanes.setdefault(name, []).append(helper.lanes)

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

    def _new_lanes(self, name: str, n: int) -> int:
        """Return the first of `n` lanes for an agent that joins: those of one that has left, whose rows end with a cut, or new
        ones."""
        buffer = self.buffers.get(name)
        if buffer is None:
            return sum(agent.n_envs for agent in self._agents)
        for lanes in self._free_lanes.get(name, []):
            if len(lanes) == n:
                self._free_lanes[name].remove(lanes)
                return lanes.start
        buffer.add_lanes(n)
        return buffer.n_lanes - n


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
