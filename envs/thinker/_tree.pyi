from parl_like.envs.thinker.layout import Layout
from parl_like.values.spec import Array

class Kernel:
    arrays: dict[str, Array]
    def __init__(
        self, n: int, layout: Layout, stage: int, max_depth: int, gamma: float, carry: bool, reset_mode: bool, perfect: bool,
        faithful: bool, capacity: int, hidden: Array, phase: Array,
    ) -> None: ...
    def begin(self, v: Array, logits: Array, features: Array, ints: Array, floats: Array, flags: Array) -> None: ...
    def select(self, primary: Array, reset: Array, real: Array, rows: Array) -> tuple[int, int]: ...
    def update(
        self, r: Array, v: Array, done: Array, logits: Array, reward: Array, real_done: Array, real_v: Array, real_logits: Array,
        features: Array, ints: Array, floats: Array, flags: Array,
    ) -> int: ...
