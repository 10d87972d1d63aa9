"""describe: who takes part in a robot at this moment, for whoever draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parl_like.run.port import RobotPort
from parl_like.values.plain import State

MOST = 256  # agents and workers that are named one by one


def describe(robot: RobotPort) -> State:
    """Return driver, agents, tasks with their queues and buffers, and workers, as JSON values; at most `MOST` agents and
    workers."""
    agents, driver = robot.agents, robot.pool.driver
    return {
        "driver": robot.pool.driver_name, "mode": "sync" if robot.sync else "async",
        "n_agents": len(agents), "n_envs": sum(agent.n_envs for agent in agents),
        "agents": [{"name": str(agent), "steps": int(agent.steps)} for agent in agents[:MOST]],
        "tasks": [_task(robot, name) for name in robot.tasks],
        "workers": [worker.describe() for worker in driver.workers[:MOST]],
    }


def kind_of(part: object) -> str:
    """Return the class of an algorithm or a model; of a proxy that of what it stands for."""
    kind: str = getattr(part, "__dict__", {}).get("_kind", type(part).__name__)
    return kind


def _task(robot: RobotPort, name: str) -> State:
    task, wrapper, buffer = robot.tasks[name], robot.wrappers[name], robot.pool.buffers.get(name)
    stored = {"buffer": {"rows": len(buffer), "capacity": int(buffer.capacity)}} if buffer is not None and len(buffer) else {}
    return {
        "name": name, "algorithm": kind_of(task.algorithm), "model": kind_of(task.algorithm.model),
        "version": int(task.version), "learns": bool(task.train), "device": str(task.device), "serve": task.serve,
        "helper": _helper(robot, name, task.helper),
        "predict": {"max_rows": wrapper.predictions.max_rows}, "learn": {"max_rows": wrapper.trainings.max_rows},
        **stored,  # agents of workers fill theirs there
    }


def _helper(robot: RobotPort, name: str, made_by: Callable[[], object] | None) -> str:
    """The class of the first agent's helper of this task; agents of workers have theirs there."""
    helpers = robot.agents[0].helpers if robot.agents else {}
    if isinstance(helpers, Mapping):
        return next((type(one).__name__ for key, one in helpers.items() if (key if isinstance(key, str) else key[0]) == name), "")
    return getattr(getattr(made_by, "func", made_by), "__name__", "")
