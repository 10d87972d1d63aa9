"""RunLoop: a robot's iterations, in a run and outside of one, and the saves that are asked for meanwhile."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from parl_like.environment.hooks import Hook, overridden
from parl_like.environment.stop_conditions import StopCondition, question
from parl_like.learning.span import follow_run
from parl_like.run.diagnosis import Diagnosis, refuse_divergence
from parl_like.run.port import RobotPort


class RunLoop:
    """Runs a robot."""

    def __init__(self, robot: RobotPort, diagnosis: Diagnosis) -> None:
        self._robot, self._diagnosis = robot, diagnosis
        self._saves: list[Path] = []

    def run(self, stop: StopCondition | None, hooks: list[Hook]) -> None:
        """See `Robot.run`."""
        robot, pool, lifecycle = self._robot, self._robot.pool, self._robot.pool.lifecycle
        lifecycle.refuse_closed("run")
        pool.driver.refuse_agents()
        with lifecycle.one_thread:
            follow_run(robot, None if stop is None else stop.most_steps())
            lifecycle.recover()
            self._saves.clear()
            watchers = [] if stop is None else stop.watchers()
            pool.driver.states.watch(watchers)
            try:
                pool.hooks.begin([*hooks, *watchers])
                if stop is not None:
                    stop.begin(robot)
                if stop is not None:
                    pool.end_when(pool.hooks.in_turn(question(stop)), partial(stop.free_steps, robot))
                for call in overridden([*pool.hooks.own, *hooks], "pre_experiment"):
                    call(robot)
                pool.hooks.connect()
                while not pool.stop_requested and self._iterate():
                    if stop is not None and stop.after_iteration(robot):
                        break
                pool.end_when(None)
                while pool.driver.stopping and self._iterate():
                    pass
                self._save()
                if pool.driver_name == "cooperative" and threading.current_thread() is not threading.main_thread():
                    self.leave_episodes()
                elif pool.driver.agents:
                    lifecycle.rest()
                else:  # whose code has ended begin anew
                    lifecycle.halt()
                lifecycle.raise_error()
                refuse_divergence(robot.tasks)
            except BaseException:
                pool.end_when(None)
                lifecycle.abandon()
                raise
            finally:
                pool.hooks.end()
                robot.statistics.warn_of_cuts()
                for call in overridden([*pool.hooks.own, *hooks], "post_experiment"):
                    call(robot)
        robot.tell_idle()

    def iterate(self, stop_steps: int) -> Iterator[int]:
        """See `Robot.iterate`."""
        robot = self._robot
        own = robot.pool.hooks.own
        follow_run(robot, stop_steps - robot.env_steps, whole=False)
        try:
            for call in overridden(own, "pre_experiment"):
                call(robot)
            while robot.env_steps < stop_steps and self.iterate_once():
                yield robot.statistics.iterations
            self._save()
        finally:
            for call in overridden(own, "post_experiment"):
                call(robot)

    def iterate_once(self) -> bool:
        """Do one iteration outside of a run; return False when nothing could run any more."""
        pool = self._robot.pool
        pool.lifecycle.refuse_closed("run")
        pool.driver.refuse_agents()  # before a run's own stop condition is touched
        with pool.lifecycle.one_thread:
            pool.end_when(self._diagnosis.unless_nobody_asks())
            try:
                return self._iterate()
            finally:
                pool.end_when(None)

    def _iterate(self) -> bool:
        """Do one iteration, and the saves that were asked for in it; return False when nothing could run any more."""
        went_on = self._robot.pool.lifecycle.advance()
        self._robot.statistics.iterations += went_on
        self._save()
        return went_on

    def leave_episodes(self) -> None:
        """End all agents, as at a checkpoint; when they begin anew they go on with the episodes that are carried over."""
        self._robot.checkpoint_boundary()
        self._robot.pool.lifecycle.halt(carry=True)

    def request_save(self, path: Path) -> None:
        """See `Robot.request_save`."""
        self._saves.append(path)

    def _save(self) -> None:
        """Do the saves that were asked for."""
        while self._saves:
            path = self._saves.pop(0)
            try:
                self._robot.save(path)
            except OSError as error:
                warnings.warn(f"request_save: could not save to {path}: {error}", RuntimeWarning, stacklevel=3)
