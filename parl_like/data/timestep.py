"""TimeStep: what the environment layer says at time t. Here, and nowhere else, the flags of an environment become a discount."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parl_like.values.copying import copied
from parl_like.values.spec import Array


class StepType(IntEnum):
    """The place of a step in its episode. FIRST comes from reset; LAST is an end of either kind."""

    FIRST = 0
    MID = 1
    LAST = 2


class TimeStep(NamedTuple):
    """One moment of an episode; `first_step` and `next_step` are the two ways to make one.

    The reward belongs to the *previous* action (`Experience.rew` belongs to the action of its own row).

    | step_type | discount | bootstraps | is_learned | meaning           |
    |-----------|----------|------------|------------|-------------------|
    | FIRST     | 1        | no         | yes        | start             |
    | MID       | 1        | yes        | yes        | inner             |
    | LAST      | 0        | no         | no         | ended by the task |
    | LAST      | 1        | yes        | no         | time limit        |

    Attributes:
        step_type: FIRST, MID or LAST.
        reward: For `prev_action`, in environment units: a number, or a vector of named components. 0 at FIRST.
        discount: 0.0 if the task ended here, else 1.0.
        observation: What the environment shows now, a copy, since it may draw its next one into the same array; nested dicts are
            fine.
        prev_action: The action that led here; None at FIRST.
        env_id: Index of the environment.
        untransformed: The step before any Transform, set by the transform that keeps it; None while nothing was transformed.
        env_info: The environment's info dict.
    """

    step_type: StepType
    reward: float | Array
    discount: float
    observation: Any
    prev_action: Any
    env_id: int
    untransformed: TimeStep | None
    env_info: Any

    @property
    def is_first(self) -> bool:
        return self.step_type == StepType.FIRST

    @property
    def is_last(self) -> bool:
        return self.step_type == StepType.LAST

    @property
    def bootstraps(self) -> bool:
        """Return whether the value of this step counts in the target of the step before it."""
        return not self.is_first and self.discount > 0

    @property
    def is_learned(self) -> bool:
        """Return whether the value of this step is itself a learning target."""
        return not self.is_last


def first_step(obs: object, env_id: int = 0, info: object = None) -> TimeStep:
    """The step that `env.reset()` gives."""
    return TimeStep(StepType.FIRST, 0.0, 1.0, copied(obs), None, env_id, None, {} if info is None else info)


def next_step(obs: object, rew: float | Array, terminated: bool, truncated: bool, act: object, env_id: int = 0,
              info: object = None) -> TimeStep:
    """The step that `env.step(act)` gives, from gymnasium's five values; rew is a number, or [n] where it is a vector.

    A true end that falls on the time limit (both flags) is a true end: discount 0.

    Raises:
        TypeError: a flag is not a Python or NumPy bool.
    """
    terminated = _flag("terminated", terminated)
    step_type = StepType.LAST if _flag("truncated", truncated) or terminated else StepType.MID
    return TimeStep(step_type, rew, discount_of(terminated), copied(obs), act, env_id, None, {} if info is None else info)


def discount_of(terminated: bool | npt.NDArray[np.bool_]) -> Any:
    """0 where terminated, else 1: a float for a flag, a float64 array for a bool array of any shape.

    Raises:
        TypeError: not bool.
    """
    if isinstance(terminated, np.ndarray) and terminated.ndim:
        if terminated.dtype != np.bool_:
            raise TypeError(f"discount_of: `terminated` is an array of {terminated.dtype}; expected bool: write terminated != 0")
        return 1.0 - terminated
    return 0.0 if _flag("terminated", terminated) else 1.0


def _flag(name: str, value: object) -> bool:
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_) or (isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.ndim == 0):
        return bool(value)
    raise TypeError(f"`{name}` is {value!r} ({type(value).__name__}); expected a bool as in gymnasium's env.step; write "
                    "bool(...), or index one environment's flag out of a vector's")
