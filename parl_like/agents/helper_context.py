"""HelperContext: what a helper is given when it joins its task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.transforms import Transforms
from parl_like.interfaces import ActingAgent
from parl_like.learning.algorithm import Window
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.tasks.wrapper import Communicator
from parl_like.values.action_codec import ActionCodec


@dataclass(frozen=True)
class HelperContext:
    """A helper's agent and task, and what the robot gives for the two.

    Args:
        name: The task's name.
        agent: Whose helper it is.
        comm: The agent's end of the task's queues.
        lanes: The agent's lanes in the buffer, one per environment.
        buffer: Rows of all helpers of the task in this process; None if nothing is kept.
        rng: The helper's own generator.
        mode: 'collect', or 'test': actions are greedy, nothing is stored and nothing is learned.
        wait: Whether learning blocks the agent (sync) or not (async).
        chain: The task's transforms, whose statistics all helpers share.
        role: The agent's player whose helper it is; None: the agent has one helper of this task.
        first_lane: The number of its first lane among those of all agents of the task, also where these are in other processes.
    """

    name: str
    agent: ActingAgent
    comm: Communicator
    lanes: range
    buffer: ReplayBuffer | None
    rng: np.random.Generator
    mode: Mode
    wait: bool
    chain: Transforms
    role: str | None = None
    first_lane: int = 0

    @cached_property
    def where(self) -> str:
        """Return agent, task and role, for messages."""
        return f"{self.agent}, task {self.name!r}" + ("" if self.role is None else f", role {self.role!r}")

    @property
    def title(self) -> str:
        """Return task and role as one text, under which a checkpoint keeps the helper."""
        return self.name if self.role is None else f"{self.name}/{self.role}"

    @cached_property
    def env_space(self) -> gym.Space[object] | None:
        """Return the space of what the environment shows; of several players, of what it shows to this role; None: it has
        none, or the role is no player of it."""
        space: Any = getattr(self.agent.env, "observation_space", None)
        if not callable(space):
            return space  # type: ignore[no-any-return]
        return space(self.role) if self.role in self.agent.env.players else None

    @cached_property
    def task(self) -> ComputationTask:
        """Return the task that is asked."""
        return self.comm.wrapper.task

    @cached_property
    def model(self) -> Any:
        """Return the model of the task's algorithm."""
        return self.task.algorithm.model

    @cached_property
    def codec(self) -> ActionCodec:
        """Return the map between the task's actions and the environment's."""
        return self.comm.wrapper.codec

    @cached_property
    def window(self) -> Window:
        """Return which rows the task's updates look at together."""
        return self.task.window
