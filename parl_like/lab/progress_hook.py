"""ProgressHook: the display of a run that a script has begun, `Robot.run(progress=True)`."""

from __future__ import annotations

import math
import sys

from parl_like.environment.hooks import Hook
from parl_like.environment.stop_conditions import StopCondition
from parl_like.interfaces import AgentPort, UsersRobot
from parl_like.lab.progress import Progress

LINE_S = 10.0
"""Seconds between two lines where nothing can be drawn."""


class ProgressHook(Hook):
    """Shows how far a run of a script is: a live table on a terminal, a line that changes in a notebook, else a line every ten
    seconds.

    Args:
        stop: Of the run.
    """

    counts_only, calls = True, 0  # it calls nothing of the user's

    def __init__(self, stop: StopCondition | None) -> None:
        self._stop = stop
        self._progress: Progress | None = None

    def pre_experiment(self, robot: UsersRobot) -> None:
        steps = None if self._stop is None else self._stop.most_steps()
        total = math.inf if steps is None else robot.env_steps + steps
        title = f"run of {robot.n_agents} agents, {robot.driver_name}"
        self._progress = Progress(title, total, robot.env_steps, LINE_S, sys.stdout)

    def post_act(self, agent: AgentPort) -> None:
        if self._progress is not None:
            self._progress.tick(agent.robot.env_steps, lambda: numbers_of(agent.robot))

    def post_experiment(self, robot: UsersRobot) -> None:
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.end(robot.env_steps, numbers_of(robot))


def numbers_of(robot: UsersRobot) -> dict[str, float]:
    """Return a robot's metrics and counters, but for its steps, which are shown anyway."""
    numbers = {**robot.metrics(), **robot.counters()}
    numbers.pop("env_steps", None)
    return numbers
