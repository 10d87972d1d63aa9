from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from parl_like.values.spec import Array

COLUMNS: int

class Kind(IntEnum):
    CARTPOLE = 0
    PENDULUM = 1
    MOUNTAIN_CAR = 2
    MOUNTAIN_CAR_CONTINUOUS = 3
    ACROBOT = 4
    TABLE = 5

class Mode(IntEnum):
    DISABLED = 0
    NEXT_STEP = 1
    SAME_STEP = 2

class End(IntEnum):
    RUNS = 0
    CUT = 1
    ENDED = 2

class Table:
    states: int
    actions: int
    first: Array
    start: Array
    sums: Array
    chance: Array
    reward: Array
    to: Array
    ends: Array
    masks: Array | None
    whole: bool
    def __init__(
        self, first: Array, start: Array, sums: Array, chance: Array, reward: Array, to: Array, ends: Array, masks: Array | None,
        whole: bool = False,
    ) -> None: ...

class Watch:
    versions: tuple[tuple[type, ...], tuple[int, ...]]
    def watch(self, classes: tuple[type, ...]) -> bool: ...
    def changed(self) -> bool: ...

class Steps(Watch):
    n: int
    state: Array
    constants: Array
    steps: Array
    limits: Array
    over: Array
    def __init__(
        self, kind: int, mode: int, copy: bool, obs: Array, final: Array, act: Array, rew: Array, terminated: Array,
        truncated: Array, table: Table | None,
    ) -> None: ...
    def draw_from(self, i: int, generator: np.random.Generator) -> None: ...
    def take(self, actions: object) -> bool: ...
    def begin_some(self, mask: Array) -> dict[str, Any] | None: ...
    def step(self) -> tuple[Any, Array, Array, Array, dict[str, Any]] | None: ...

class CartPoleStep(Watch):
    plain: Callable[[Any], Any]
    def __init__(self, plain: Callable[[Any], Any], layers: tuple[Any, ...], look: Callable[[], Array | None], limit: int,
                 most: int) -> None: ...
    def __call__(self, act: Any) -> Any: ...
