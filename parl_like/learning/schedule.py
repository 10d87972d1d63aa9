"""Schedules: numbers that change with a count, such as learning rates and the share of random actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]
"""Counter (optimiser steps, or acting steps of one helper) -> value."""


@dataclass(frozen=True)
class Linear:
    """`start` → `end` over `steps` counts after `warmup` counts at `start`, then `end` for ever."""

    start: float
    end: float
    steps: int
    warmup: int = 0

    def __call__(self, count: int) -> float:
        done = min(max((count - self.warmup) / self.steps, 0.0), 1.0)
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True)
class Exponential:
    """`end` + (`start` − `end`) · exp(−(count − warmup) / `decay`)."""

    start: float
    end: float
    decay: float
    warmup: int = 0

    def __call__(self, count: int) -> float:
        return self.end + (self.start - self.end) * math.exp(-max(count - self.warmup, 0) / self.decay)


def value_of(number_or_schedule: float | Schedule, count: int) -> float:
    """A number as it is; a schedule's value at `count`."""
    return number_or_schedule(count) if callable(number_or_schedule) else number_or_schedule
