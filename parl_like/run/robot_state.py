"""The state of a robot in a checkpoint: tasks, statistics of transforms, what its driver keeps of the agents, and counters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeGuard

import msgspec

from parl_like.data.storage.state_check import check_alike
from parl_like.data.storage.tree_encoding import Count
from parl_like.learning.saved_state import check_kind
from parl_like.run.lifecycle import Phase
from parl_like.run.port import RobotPort
from parl_like.values import plain
from parl_like.values.errors import AgentFailed
from parl_like.values.plain import State

log = logging.getLogger(__name__)

WORKERS = "workers"
"""The key under which drivers with worker processes keep agents and buffers."""


class _Queue(msgspec.Struct):
    requests: Count = 0
    rows: Count = 0
    batches: Count = 0
    errors: Count = 0
    late: Count = 0
    dropped: Count = 0


class _Wrapper(msgspec.Struct):
    predict: _Queue
    learn: _Queue
    last_result: dict[str, float]


class _Counters(msgspec.Struct):
    """The counts that are saved under `counters`; the defaults are for checkpoints of before."""

    env_steps: Count
    episodes: Count
    iterations: Count
    returns: list[float | list[float]]
    lengths: list[Count]
    trace: dict[str, str]
    parts: list[list[float]] = []
    rows: dict[str, tuple[Count, Count]] = {}
    episodes_cut: Count = 0
    ended_once: list[Count] = []
    departed_time_steps: Count = 0
    wrappers: dict[str, _Wrapper] = {}
    hooks: dict[str, list[dict[str, Any]]] = {}


_NO_STATE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, SystemError)
"""The errors of a robot's parts that are given what was never their state; SystemError: ale_py, of bytes that are no state of
the emulator."""


def _is_told(error: Exception) -> TypeGuard[ValueError]:
    return isinstance(error, ValueError) and not isinstance(error, (msgspec.ValidationError, UnicodeError))


def _other(error: Exception) -> BaseException | None:
    """Return the cause of `_no_state`, for no error is its own."""
    return error.__cause__ if _is_told(error) else error


def _no_state(error: Exception) -> ValueError:
    if _is_told(error):
        return error
    kind = "" if isinstance(error, msgspec.ValidationError) else f"{type(error).__name__}: "
    return ValueError(f"Robot: the saved state does not fit, and nothing was changed: {kind}{error}")


class RobotState:
    """Takes the state of a robot for a checkpoint, and restores it."""

    def __init__(self, robot: RobotPort) -> None:
        self._robot = robot

    def whole(self, buffers: bool = True) -> State:
        """See `Robot.state_dict`."""
        if self._robot.pool.lifecycle.phase is Phase.WAITING:
            log.warning("Robot.state_dict: episodes are open, of which a state knows nothing, so a robot that loads it does "
                        "not go on as this one. Call checkpoint_boundary() first, or save()")
        with self._robot.pool.reads.paused():
            return {**self._robot.pool.driver.states.state_dict(buffers), **self.acting()}

    def acting(self) -> State:
        """See `Robot.acting_state`."""
        robot = self._robot
        out: dict[str, Any] = {key: part.state_dict() for key, part in self._parts().items()}
        out["counters"] = {
            **robot.statistics.state_dict(), "seed": robot.seed,
            "trace": {} if robot.trace is None else {str(i): d.hex() for i, d in robot.trace.digests.items()},
            **({} if robot.span is None else {"span": robot.span.state_dict()}),
            "wrappers": {name: wrapper.state_dict() for name, wrapper in robot.wrappers.items()},
            "hooks": robot.pool.hooks.state_dict(),
        }
        return out

    def load(self, state: State) -> None:
        """Restore a state, see `Robot.load_state_dict`.

        Raises:
            ValueError: it does not fit this robot; nothing was changed.
        """
        robot = self._robot
        if isinstance(state, Mapping):
            self._check_kinds(state)
        acting = {*self._parts(), "counters"}
        expected = acting | robot.pool.driver.states.keys()
        if not isinstance(state, Mapping) or state.keys() not in (acting, expected):
            there = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"Robot: the saved state has {there}; expected {sorted(expected)}: build the robot as it was saved")
        state_of = self.whole if state.keys() == expected else self.acting
        try:
            if state.keys() == expected:
                robot.pool.driver.states.check(state)
            check_alike({**state, "counters": None}, {**state_of(), "counters": None}, "")
            msgspec.convert(state["counters"], _Counters)
        except _NO_STATE as error:
            raise _no_state(error) from _other(error)
        robot.pool.lifecycle.halt()
        before = state_of()
        try:
            self._take_over(state)
        except Exception as error:
            with suppress(Exception):
                self._take_over(before)
            if isinstance(error, _NO_STATE) and not isinstance(error, AgentFailed):
                raise _no_state(error) from _other(error)
            raise

    def _check_kinds(self, state: State) -> None:
        """Refuse other algorithms; first, since of another one all else differs, too."""
        tasks = {f"task.{name}": task for name, task in self._robot.tasks.items()}
        if tasks.keys() == {key for key in state if key.startswith("task.")}:
            for key, task in tasks.items():
                if isinstance(saved := state[key], Mapping):
                    check_kind(task, saved)

    def _take_over(self, state: State) -> None:
        robot = self._robot
        counted = plain.entries(state["counters"])
        if robot.span is not None and "span" in counted:
            robot.span.load_state_dict(robot, counted["span"])
        for key, part in self._parts().items():
            part.load_state_dict(state[key])
        if robot.pool.driver.states.keys() <= state.keys():
            robot.pool.driver.states.load_state_dict(state)
        counters = msgspec.convert(counted, _Counters)
        robot.statistics.load_state_dict(msgspec.structs.asdict(counters))
        for name, wrapper in counters.wrappers.items():
            robot.wrappers[name].load_state_dict(msgspec.to_builtins(wrapper))
        robot.pool.hooks.load_state_dict(counters.hooks)
        if robot.trace is not None:
            robot.trace.digests = {int(i): bytes.fromhex(d) for i, d in counters.trace.items()}

    def _parts(self) -> dict[str, Any]:
        """Return the parts with a state of their own, a task's or statistics of transforms."""
        robot = self._robot
        chains = {f"transforms.{name}": chain for name, chain in robot.transforms.items() if len(chain)}
        return {f"task.{name}": task for name, task in robot.tasks.items()} | chains
