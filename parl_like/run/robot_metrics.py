"""RobotMetrics: the numbers of a robot for a log, and what a user should know at the end of a run."""

from __future__ import annotations

import hashlib

from parl_like.learning.model import Model
from parl_like.run.diagnosis import Diagnosis
from parl_like.run.port import RobotPort


class RobotMetrics:
    """Reads the counts of a robot, its tasks and its queues."""

    def __init__(self, robot: RobotPort, diagnosis: Diagnosis) -> None:
        self._robot, self._diagnosis = robot, diagnosis

    def counters(self) -> dict[str, int]:
        """See `Robot.counters`."""
        robot, done = self._robot, self._robot.statistics
        time_steps = done.departed_time_steps + sum(agent.env.time_steps for agent in robot.agents if agent.env is not None)
        out = {"env_steps": done.env_steps, "time_steps": time_steps, "episodes": done.episodes, "iterations": done.iterations}
        for name, task in robot.tasks.items():
            out |= {f"updates/{name}": task.algorithm.updates, f"rows/{name}": task.rows_learned}
        return out

    def metrics(self) -> dict[str, float]:
        """See `Robot.metrics`."""
        robot, done = self._robot, self._robot.statistics
        out = done.metrics(sum(agent.n_envs for agent in robot.agents if agent.env is not None))
        for name, wrapper in robot.wrappers.items():
            counted = {**wrapper.trainings.last_result, **wrapper.summary()}
            out |= {f"{name}/{key}": float(value) for key, value in counted.items()}
        for agent in robot.agents[:1]:
            out |= {f"{key[0] if isinstance(key, tuple) else key}/act/{name}": value for key, helper in agent.helpers.items()
                    if helper.explorer is not None for name, value in helper.explorer.rates_now().items()}
        out |= {f"{name}/dropped": float(dropped) for name, dropped in done.rows.dropped().items()}
        out |= {key: float(value) for key, value in self.counters().items()}
        return {**out, **{key: value for key, value in robot.pool.hooks.metrics().items() if key not in out}}

    def remarks(self) -> list[str]:
        """See `Robot.remarks`."""
        idle = (f"task {name!r} never learned: {why}" for name, why in self._diagnosis.never_learned().items())
        parts = self._robot.parts
        learned = any(task.algorithm.updates for task in self._robot.tasks.values())  # else much is not read yet
        unread = parts.unread() if parts is not None and learned else []
        return [*self._robot.statistics.remarks(), *idle, *unread]

    def trace_hash(self) -> str | None:
        """See `Robot.trace_hash`."""
        robot, trace = self._robot, self._robot.trace
        if trace is None:
            return None
        trace.digests = robot.pool.driver.states.digests(trace.digests)
        weights = "".join(Model.weights_hash(n) for t in robot.tasks.values() for n in t.algorithm.networks().values())  # type: ignore[arg-type]
        return hashlib.blake2b((trace.hexdigest() + weights).encode(), digest_size=16).hexdigest()
