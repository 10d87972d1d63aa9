"""The two halves of a custom loop: agents that act and store without learning, and an update by hand. See `Robot.collect` and
`Robot.update`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.run.agent_pool import AgentPool


@contextmanager
def collecting(pool: AgentPool, how: bool | str) -> Iterator[None]:
    """Inside it the helpers of a pool store without learning; with 'random' they act evenly at random, too."""
    acting: list[Any] = [pool.driver, *(helper for agent in pool.agents for helper in agent.helpers.values())]
    for one in acting:
        one.collecting = how
    try:
        yield
    finally:
        for one in acting:
            one.collecting = False


def update_by_hand(pool: AgentPool, task: str, batch_size: int) -> dict[str, Any]:
    """Let a task learn from what its helpers have stored; return the training return, {} where nothing is stored.

    Raises:
        ValueError: the task learns on-policy and `batch_size` is given, or its helper does not learn from stored rows.
        NotEnoughRows: as `Robot.update`.
    """
    buffer = pool.buffers.get(task)
    if buffer is None or not len(buffer):
        return {}
    helpers = [helper for agent in pool.agents for helper in agent.helpers.values() if helper.name == task]
    done = None
    first = helpers[0]
    if isinstance(first, OffPolicyHelper):
        rows, done = first.draw(batch_size) if batch_size else (first.rows_at(buffer.sample_indices(0)), None)
    elif isinstance(first, OnPolicyHelper):
        if batch_size:
            raise ValueError(f"update: task {task!r} learns on-policy, from all rows since the last time; leave batch_size "
                             "out")
        parts = [h.take() for h in helpers if isinstance(h, OnPolicyHelper) and h.ready()] or [first.take()]
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    else:
        raise ValueError(f"update: task {task!r} has a {type(first).__name__}; expected OffPolicyHelper or OnPolicyHelper, "
                         "or call helper.learn()")
    result = pool.tasks[task].learn(rows)
    pool.wrappers[task].trainings.last_result = {name: value for name, value in result.items() if not np.ndim(value)}
    if done is not None:
        done(result)
    return result
