"""Tasks that do not learn: why, and when a run ends for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parl_like.run.port import RobotPort
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import AgentFailed, Diverged

UNASKED = 100_000
"""Steps of each agent after which an iteration gives up waiting for the first call of `learn()`."""


_LONGER = "(warmup, batch_size); train for longer, or lower them"


class Diagnosis:
    """Tells why tasks of a robot do not learn."""

    def __init__(self, robot: RobotPort) -> None:
        self._robot = robot

    def unless_nobody_asks(self) -> Callable[[Any], bool] | None:
        """Return a stop condition for an iteration that ends with an update. Where updates come only by `learn()`, it raises
        AgentFailed once each agent has taken `UNASKED` steps and nobody has called it; None where a schedule brings them."""
        robot = self._robot
        by_hand = [getattr(helper, "learn_every", 0) is None for helper in robot.pool.helpers.learners.values()]
        if not (robot.sync and by_hand and all(by_hand)):
            return None
        limit = robot.env_steps + UNASKED * len(robot.agents)

        def nobody_asks(robot: RobotPort) -> bool:
            if robot.env_steps >= limit and not any(wrapper.trainings.rows for wrapper in robot.wrappers.values()):
                raise AgentFailed(f"the agents have taken {UNASKED:,} steps each in this iteration, and none asks for an update: "
                                  f"helpers of task {', '.join(map(repr, robot.pool.helpers.learners))} have learn_every=None, "
                                  "so they learn only when an agent calls learn(). Call it, give learn_every a number, or use "
                                  "run(stop)")
            return False

        return nobody_asks

    def too_short(self, total: int, lanes: int) -> list[str]:
        """Return, for each task whose first update comes after so many steps of all environments, a sentence that says so."""
        first = [(name, what, rows) for name, helper in self._robot.pool.helpers.learners.items()
                 for what, rows in (("warmup, batch_size", getattr(helper, "warmup", 0)),
                                    ("unroll × environments", getattr(helper, "unroll", 0) * lanes))]
        return [f"total_steps is {total:,}, and task {name!r} has its first update after {rows:,} rows ({what}): this run learns "
                "next to nothing; give more total_steps, or lower these" for name, what, rows in first if rows > total]

    def never_learned(self) -> dict[str, str]:
        """See `Robot.never_learned`."""
        return {name: self._why(name) for name, task in self._robot.tasks.items()
                if task.train and not task.algorithm.updates and any(n.state_dict() for n in task.algorithm.networks().values())}

    def _why(self, name: str) -> str:
        """Return why the task of this name has had no update."""
        robot = self._robot
        if (helper := robot.pool.helpers.learners.get(name)) is None:
            return ("its agents have no helper that learns; give the ComputationTask helper=OnPolicyHelper or OffPolicyHelper, "
                    "or train=False where that is meant")
        if not robot.agents[0].helpers:  # they are in other processes
            if (warmup := getattr(helper, "warmup", 0)) > robot.env_steps:
                return f"{robot.env_steps} env steps were taken, and it begins with {warmup} rows {_LONGER}"
            return f"no update was due yet, or no agent calls helpers[{name!r}].store(...)"
        rows = sum(own.steps for agent in robot.agents for own in agent.helpers.values() if own.name == name)
        warmup = getattr(helper, "warmup", 0)
        if not rows and not robot.env_steps:
            return "no environment step was taken"
        if not rows:
            return f"no row was stored for it: no agent calls helpers[{name!r}].store(...)"
        if warmup > rows:
            return f"{rows} rows were stored, and it begins with {warmup} {_LONGER}"
        if getattr(helper, "learn_every", 0) is None:
            return f"{rows} rows were stored, but no agent calls helpers[{name!r}].learn(), and learn_every is None"
        return f"{rows} rows were stored, but no update was due yet; train for longer, or learn more often"


def refuse_divergence(tasks: Mapping[str, ComputationTask]) -> None:
    """Raises Diverged for a task all of whose optimiser steps, since it was built or loaded, were left out, for their losses were
    no finite numbers: it has learned nothing, and would go on like that."""
    for name, task in tasks.items():
        if task.skipped and not task.algorithm.updates:
            last = f"; the last one: {task.counts.fault}" if task.counts.fault else ""
            raise Diverged(f"task {name!r}: all {task.skipped} optimiser steps were left out, so nothing was learned{last}")
