"""Behind `Robot.update` and `Robot.never_learned`: rows that helpers stored, and why a task has not learned from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from parl_like.agent import Agent
from parl_like.agent_helper import AgentHelper
from parl_like.computation_task import ComputationTask
from parl_like.data.replay_buffer import ReplayBuffer
from parl_like.schedules import OffPolicyHelper, OnPolicyHelper
from parl_like.spec import Array


def stored_rows(
    task: str, helpers: Sequence[AgentHelper], buffer: ReplayBuffer, batch_size: int,
) -> tuple[dict[str, Array], Callable[[Mapping[str, Any]], None] | None]:
    """Rows to learn from, flat field name → array, and what is to be called with the training return; see `Robot.update`."""
    first, done = helpers[0], None
    if isinstance(first, OffPolicyHelper):
        rows, done = first.lesson(batch_size) if batch_size else (first.rows_at(buffer.sample_indices(0)), None)
    elif isinstance(first, OnPolicyHelper):
        if batch_size:
            raise ValueError(f"update: task {task!r} learns on-policy, from all rows since the last time; leave batch_size "
                             "out")
        parts = [h.take() for h in helpers if isinstance(h, OnPolicyHelper) and h.ready()] or [first.take()]
        rows = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    else:
        raise ValueError(f"update: task {task!r} has a {type(first).__name__}; expected OffPolicyHelper or OnPolicyHelper, "
                         "or call helper.learn()")
    return rows, done


def could_learn(task: ComputationTask) -> bool:
    """Whether a task has parameters that it is to learn, and has not done a single optimiser step."""
    networks = task.algorithm.networks().values()
    return task.train and not task.algorithm.updates and any(next(n.parameters(), None) is not None for n in networks)


def why_not(name: str, task: ComputationTask, agents: Sequence[Agent]) -> str:
    """Why a task has not learned."""
    helper = (task.helper or AgentHelper)()
    if not helper.learns:
        return ("its agents have no helper that learns; give the ComputationTask helper=OnPolicyHelper or OffPolicyHelper, "
                "or train=False where that is meant")
    if not agents[0].helpers:  # they are in other processes
        return f"no lesson was due yet, or no agent calls helpers[{name!r}].store(...)"
    rows, warmup = sum(agent.helpers[name].steps for agent in agents), getattr(helper, "warmup", 0)
    if not rows:
        return f"no row was stored for it: no agent calls helpers[{name!r}].store(...)"
    if warmup > rows:
        return f"{rows} rows were stored, and it begins with {warmup} (warmup, batch_size); train for longer, or lower them"
    return f"{rows} rows were stored, but no lesson was due yet; train for longer, or learn more often"
