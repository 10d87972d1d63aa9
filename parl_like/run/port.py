"""RobotPort: a robot, as those files of this folder know it that `parl_like.run.robot` imports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.agents.helper import AgentHelper
from parl_like.agents.row_counts import RowCounts
from parl_like.data.transforms import Transforms
from parl_like.environment.hooks import Hook, TraceHash
from parl_like.interfaces import SpannedRun
from parl_like.run.driver import Driver
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.wrapper import ComputationWrapper


class RobotPort(SpannedRun, Protocol):
    """See above; the attributes are those of `Robot` and `AgentPool`."""

    tasks: dict[str, ComputationTask]
    wrappers: dict[str, ComputationWrapper]
    agents: list[Agent]
    transforms: dict[str, Transforms]
    _learners: dict[str, AgentHelper]
    _make_agent: Callable[[], Agent]
    sync: bool
    seed: int
    _evaluation_seed: np.random.SeedSequence
    eval_explore: bool
    score: Any
    iterations: int
    _departed_time_steps: int
    ended_once: set[int]
    rows: RowCounts
    recent_returns: deque[Any]
    recent_lengths: deque[int]
    recent_parts: deque[Any]
    trace: TraceHash | None
    notes: list[str]

    @property
    def driver(self) -> Driver: ...

    def _halt(self) -> None: ...

    def hooked(self, hooks: Sequence[Hook]) -> AbstractContextManager[None]: ...

    def iterate(self, stop_steps: int) -> Iterator[int]: ...

    def evaluate(self, episodes: int = 10, *, seed: int | None = None) -> Any: ...

    def checkpoint_boundary(self) -> None: ...

    def acting_state(self) -> dict[str, Any]: ...

    def metrics(self) -> dict[str, float]: ...

    def tell_idle(self) -> None: ...
