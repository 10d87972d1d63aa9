"""What a checkpoint holds of a robot: tasks, statistics of transforms, what its driver keeps of the agents, and counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from parl_like.task_state import check_kind

WORKERS = "workers"
"""The key under which drivers with worker processes keep agents and buffers."""


def _parts(robot: Any) -> dict[str, Any]:
    """What has a state of its own, a task's or statistics of transforms."""
    chains = {f"transforms.{name}": chain for name, chain in robot.transforms.items() if len(chain)}
    return {f"task.{name}": task for name, task in robot.tasks.items()} | chains


def robot_state(robot: Any) -> dict[str, Any]:
    """See `Robot.state_dict`."""
    return {**robot._driver.state_dict(), **acting_state(robot)}


def acting_state(robot: Any) -> dict[str, Any]:
    """See `Robot.acting_state`."""
    out: dict[str, Any] = {key: part.state_dict() for key, part in _parts(robot).items()}
    out["counters"] = {
        "env_steps": robot.env_steps, "episodes": robot.episodes, "iterations": robot.iterations, "seed": robot.seed,
        "returns": [np.asarray(r, np.float64).tolist() for r in robot.recent_returns], "lengths": list(robot.recent_lengths),
        "trace": {} if robot.trace is None else {str(i): d.hex() for i, d in robot.trace.digests.items()},
        **({} if robot.span is None else {"span": robot.span.state_dict()}),
        "parts": [parts.tolist() for parts in robot.recent_parts],
        "rows": robot.rows.state_dict(), "episodes_cut": robot.episodes_cut, "departed_time_steps": robot._departed_time_steps,
        "wrappers": {name: wrapper.state_dict() for name, wrapper in robot.wrappers.items()},
    }
    return out


def load_robot_state(robot: Any, state: Mapping[str, Any]) -> None:
    """See `Robot.load_state_dict`."""
    tasks = {f"task.{name}": task for name, task in robot.tasks.items()}
    if tasks.keys() == {key for key in state if key.startswith("task.")}:
        for key, task in tasks.items():
            if isinstance(saved := state[key], Mapping):
                check_kind(task, saved)  # first: of another algorithm all else differs, too
    parts = _parts(robot)
    acting = {*parts, "counters"}
    expected = acting | robot._driver.state_keys()
    if state.keys() not in (acting, expected):
        raise ValueError(f"Robot: the saved state has {sorted(state)}; expected {sorted(expected)}: build the robot as it was "
                         "saved")
    whole = state.keys() == expected
    if whole:
        robot._driver.check_state(state)
    robot._halt()
    if robot.span is not None and "span" in state["counters"]:
        robot.span.load_state_dict(robot, state["counters"]["span"])
    for key, part in parts.items():
        part.load_state_dict(state[key])
    if whole:
        robot._driver.load_state_dict(state)
    counters = state["counters"]
    robot.env_steps, robot.episodes, robot.iterations = counters["env_steps"], counters["episodes"], counters["iterations"]
    robot.recent_returns = deque((np.asarray(r) if isinstance(r, list) else r for r in counters["returns"]), maxlen=100)
    robot.recent_lengths = deque(counters["lengths"], maxlen=100)
    robot.recent_parts = deque(map(np.asarray, counters.get("parts", ())), maxlen=100)
    robot.rows.load_state_dict(counters.get("rows", {}))
    robot.episodes_cut = counters.get("episodes_cut", 0)
    robot._departed_time_steps = counters.get("departed_time_steps", 0)
    for name, counted in counters.get("wrappers", {}).items():
        robot.wrappers[name].load_state_dict(counted)
    if robot.trace is not None:
        robot.trace.digests = {int(i): bytes.fromhex(d) for i, d in counters["trace"].items()}
