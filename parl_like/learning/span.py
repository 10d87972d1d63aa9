"""Span: how many environment steps the whole run of a robot takes, and the schedules that end with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from parl_like.data.storage.state_check import MOST
from parl_like.interfaces import SpannedRun
from parl_like.learning.schedule import Linear
from parl_like.values.plain import Plain, State

log = logging.getLogger(__name__)


class Span:
    """The environment steps of a robot's whole run, and where its schedules end.

    In each process there is one of a robot, wherever a schedule was copied or sent: who changes it changes all schedules.

    Args:
        steps: Environment steps of the whole run, as far as is known.
        given: Whether the user has said so. Else the first run with a known end sets it.
        key: Of the one that this one is in another process.

    Attributes:
        settled: Whether the user or a run has set it.
        ends: Of each schedule the count at which it ends.
        names: What each schedule sets, for messages.
    """

    def __init__(self, steps: int, given: bool = True, *, key: str = "") -> None:
        self.steps, self.given, self.settled = steps, given, given
        self.ends: list[int] = []
        self.names: list[str] = []
        self._counts: list[Callable[[int], float]] = []  # these stay in the robot's process
        self._warned = False
        self._key = key or uuid4().hex
        _SPANS[self._key] = self

    def linear(self, start: float, end: float, counts: Callable[[int], float], warmup: int = 0, name: str = "schedule") -> Linear:
        """A schedule from `start` to `end`.

        Args:
            counts: From the environment steps of the whole run to those counts (optimiser steps, acts of one helper) over which
                it goes.
        """
        self._counts.append(counts)
        self.names.append(name)
        self.ends.append(_end(counts, self.steps))
        return OverSpan(start, end, self, len(self.ends) - 1, warmup)

    def stretch(self, robot: SpannedRun, steps: int) -> None:
        """Lets the whole run have so many environment steps; also for tasks and agents of `robot` that are elsewhere."""
        self.steps, self.settled, self._warned = steps, True, False
        self.ends[:] = [_end(counts, steps) for counts in self._counts]
        if self.ends:
            for task in robot.tasks.values():
                task.move_ends(self._key, self.ends)
            robot.pool.driver.move_ends(self._key, self.ends)

    def follow(self, robot: SpannedRun, steps: int | None, whole: bool) -> None:
        """See `follow_run`; `steps` are those of the robot's environments at the end of the run."""
        if not self.settled and steps is not None:
            self.stretch(robot, steps)
        elif self.ends and not self._warned and (text := self._doubt(steps, whole)):
            self._warned = True
            log.warning(text)

    def _doubt(self, steps: int | None, whole: bool) -> str:
        why = "" if self.given else ", as the first run had" if self.settled else ", for nobody said how many there will be"
        spans = f"the schedules of this robot ({', '.join(dict.fromkeys(self.names))}) span {self.steps:,} env steps{why}"
        if steps is None:
            return "" if self.settled else f"{spans}, and this run does not say it, either; make the robot with total_steps=…"
        if steps > 2 * self.steps:
            what = "more than twice as many, and they stay at their end values"
        elif whole and 2 * steps < self.steps:
            what = "less than half of them, so they do not come far"
        else:
            return ""
        return f"{spans}; this run ends at {steps:,}, {what}; make the robot with total_steps={steps}"

    def state_dict(self) -> State:
        return {"steps": self.steps, "settled": self.settled}

    def load_state_dict(self, robot: SpannedRun, state: Plain) -> None:
        """Goes on with what was saved, unless the user has given this robot another number.

        Raises:
            ValueError: the saved number is none.
        """
        steps, settled = (state.get("steps"), state.get("settled")) if isinstance(state, Mapping) else (None, None)
        if type(steps) is not int or not 1 <= steps < MOST or type(settled) is not bool:
            raise ValueError(f"Robot: the saved span is {state!s:.80}; expected steps, a whole number of at least 1, and "
                             "settled, a truth value")
        if settled and not self.given:
            self.stretch(robot, steps)

    def __deepcopy__(self, memo: object) -> Span:
        return self

    def __reduce__(self) -> Any:
        return _here, (self._key, self.steps, self.ends)


class OverSpan(Linear):
    """A `Linear` whose `steps` are those of a `Span`. Equal to what is linear over as many steps."""

    def __init__(self, start: float, end: float, span: Span, number: int, warmup: int = 0) -> None:
        vars(self).update(start=start, end=end, span=span, number=number, warmup=warmup)

    @property
    def steps(self) -> int:
        return self.span.ends[self.number]  # type: ignore[attr-defined,no-any-return]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Linear):
            return NotImplemented
        return (self.start, self.end, self.steps, self.warmup) == (other.start, other.end, other.steps, other.warmup)

    __hash__ = None  # type: ignore[assignment]  # it changes


def follow_run(robot: SpannedRun, more: float | None, whole: bool = True) -> None:
    """Note a run that begins. The first one with a known end sets the robot's span, unless the user did; a warning,
    once, says when one ends at more than twice, or less than half of it.

    Args:
        more: Environment steps that the run will take; None: nobody knows.
        whole: False: others may follow, so that few of them mean nothing.
    """
    if robot.span is not None and (more is None or more > 0):
        robot.span.follow(robot, None if more in (None, inf) else robot.env_steps + int(more), whole)


def _end(counts: Callable[[int], float], steps: int) -> int:
    return max(int(counts(steps)), 1)


def move_ends(key: str, ends: Sequence[int]) -> None:
    """In another process: lets the schedules of a robot's span end there; nothing where none has come here."""
    if (span := _SPANS.get(key)) is not None:
        span.ends[:] = ends


def _here(key: str, steps: int, ends: Sequence[int]) -> Span:
    """The span of this key in this process."""
    if (span := _SPANS.get(key)) is None:
        span = Span(steps, key=key)
        span.ends = list(ends)
    return span


_SPANS: WeakValueDictionary[str, Span] = WeakValueDictionary()
