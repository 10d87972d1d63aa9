"""TaskOptions: what a computation task was told when it was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch

from parl_like.tasks.asked_tasks import OWN
from parl_like.tasks.batch_rule import BatchRule


@dataclass
class TaskOptions:
    """The options of a `ComputationTask`, which says what each means.

    Raises:
        TypeError, ValueError: one of them cannot be; the message says what may.
    """

    helper: Callable[[], object] | None
    device: torch.device
    predict_rule: BatchRule | None
    training_rule: BatchRule | None
    on_error: Literal["stop", "fail_batch"]
    max_skips: int
    bisect: bool
    train: bool
    serve: Literal["auto", "central", "replica"]
    sync_every: int
    asks: tuple[str, ...]
    native: bool
    rewards: dict[str, float]

    def __post_init__(self) -> None:
        for option, rule in (("predict_rule", self.predict_rule), ("training_rule", self.training_rule)):
            if not isinstance(rule, BatchRule | None):
                raise TypeError(f"ComputationTask: {option} is {rule!r:.60}; expected a BatchRule, such as BatchRule(min_rows=8)")
        for option, value, known in (("serve", self.serve, ("auto", "central", "replica")),
                                     ("on_error", self.on_error, ("stop", "fail_batch"))):
            if value not in known:
                raise ValueError(f"ComputationTask: {option} is {value!r}; expected {' or '.join(map(repr, known))}")
        if not isinstance(self.native, bool):
            raise TypeError(f"ComputationTask: native is {self.native!r}; expected True or False")
        for name, weight in self.rewards.items():
            if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not isfinite(weight):
                raise ValueError(f"ComputationTask: rewards has {name!r}: {weight!r:.60}; expected the weight of that task's "
                                 "rewards, a number")
        if self.rewards:  # whose rewards it takes it asks
            self.asks = tuple(dict.fromkeys((*self.asks, *(name for name in self.rewards if name != OWN))))
        if self.sync_every < 1:
            raise ValueError(f"ComputationTask: sync_every is {self.sync_every}; expected at least 1 optimiser step")
        if self.max_skips < 0:
            raise ValueError(f"ComputationTask: max_skips is {self.max_skips}; expected at least 0 (0: the first loss that is "
                             "no number raises)")
        if self.helper is not None and not callable(self.helper):
            raise TypeError(f"ComputationTask: helper is {self.helper!r}; expected a function that makes one: helper=lambda: "
                            f"{self.helper if isinstance(self.helper, str) else type(self.helper).__name__}(…)")
        if self.device.type not in ("cpu", "cuda", "meta", "mps", "xpu"):
            raise ValueError(f"ComputationTask: device is {str(self.device)!r}; expected 'cpu', 'cuda' or 'cuda:<number>'")
        if self.device.type == "meta":
            raise ValueError("ComputationTask: device is 'meta', which holds no numbers; expected 'cpu', 'cuda' or "
                             "'cuda:<number>'")


def device_of(value: str | torch.device) -> torch.device:
    """Return the device of this name. Raises ValueError where torch knows none."""
    try:
        return torch.device(value)
    except RuntimeError as error:
        raise ValueError(f"ComputationTask: device is {value!r}; expected 'cpu', 'cuda' or 'cuda:<number>'") from error
