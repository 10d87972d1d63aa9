"""RobotPort: a robot, as those files of this folder know it that `parl_like.run.robot` imports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.data.transforms import Transforms
from parl_like.environment.hooks import TraceHash
from parl_like.interfaces import SpannedRun
from parl_like.run.agent_pool import AgentPool
from parl_like.run.statistics import Statistics
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.plain import State


class RobotPort(SpannedRun, Protocol):
    """See above; the attributes are those of `Robot`."""

    pool: AgentPool
    statistics: Statistics
    tasks: dict[str, ComputationTask]
    wrappers: dict[str, ComputationWrapper]
    agents: list[Agent]
    transforms: dict[str, Transforms]
    seed: int
    evaluation_seed: np.random.SeedSequence
    eval_env: Any
    eval_explore: bool
    score: Any
    reference: tuple[float, float] | None
    notes: list[str]
    parts: Any

    @property
    def sync(self) -> bool: ...

    @property
    def trace(self) -> TraceHash | None: ...

    def iterate(self, stop_steps: int) -> Iterator[int]: ...

    def evaluate(self, episodes: int = 10, *, seed: int | None = None) -> Any: ...

    def checkpoint_boundary(self) -> None: ...

    def save(self, path: str | Path, *, buffers: bool = True) -> None: ...

    def acting_state(self) -> State: ...

    def metrics(self) -> dict[str, float]: ...

    def tell_idle(self) -> None: ...
