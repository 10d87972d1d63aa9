"""Ranges of the numbers that constructors take: one table by the names of settings, which mean the same wherever they stand."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, NamedTuple

import numpy as np


class Range(NamedTuple):
    """Numbers from `low` to `high`; `above`, `below`: without that end. NaN is in none."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = True

    def holds(self, value: Any) -> bool:
        value = float(value) if isinstance(value, np.floating) else value  # else the bounds are cast to its few bits
        above = value > self.low if self.above else value >= self.low
        return bool(above and (value < self.high if self.below else value <= self.high))

    def expected(self, value: Any) -> str:
        """Return what is expected instead of a value that it does not hold: a large bound only where the value is beyond it."""
        if self.high <= 1:
            return f"a number in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"
        endless = value != value or value in (math.inf, -math.inf)
        number = "a finite number" if endless else "a number"
        if self.low in (-math.inf, -LARGEST):
            return f"{number} of 32 bits"
        low = f"{number} above {self.low:g}" if self.above else f"{f'{number}, ' * endless}at least {self.low:g}"
        return f"{low} and below {self.high:.10g}" if self.is_below(value) else low

    def is_below(self, value: Any) -> bool:
        """Return whether a value is as large as no machine has room for, so it is to be lowered."""
        return bool(1 < self.high < LARGEST and value >= self.high)


MOST = float(2**31)
"""Counts are below it: it is more than any machine holds or does of them, and native code keeps them in 32 bits."""
LARGEST = 2.0**128
"""Numbers are below it, for networks compute with 32 bits."""

COUNT, COUNT_OR_0 = Range(1, MOST), Range(0, MOST)
POSITIVE, NOT_NEGATIVE, FINITE = Range(0, LARGEST, above=True), Range(0, LARGEST), Range(-LARGEST, LARGEST, above=True)
ANY, WEIGHT = Range(-math.inf, below=False), Range(0, below=False)
SHARE, PART, PORTION = Range(0, 1, below=False), Range(0, 1), Range(0, 1, above=True, below=False)
LAYER = Range(1, 2**24)

RANGES: Mapping[str, Range] = {
    **dict.fromkeys(("backtracks", "blocks", "burn_in", "decoder_depth", "drop", "generation", "max_queued", "max_skips",
                     "planning_steps", "random_steps", "renorm_after", "target_period", "warmup",
                     "behavior_updates", "latent", "offline_updates"), COUNT_OR_0),
    **dict.fromkeys(("gamma", "lam", "tau", "epsilon", "share", "real", "beta", "least", "polyak",
                     "rate", "Counts.alpha", "DiscreteBCQ.threshold", "RND.alpha"), SHARE),
    **dict.fromkeys(("dropout", "beta1", "correlation"), PART),
    **dict.fromkeys(("elite", "top", "RND.share"), PORTION),
    "Counts.planes": Range(0, 64, below=False),
    **dict.fromkeys(("adam_eps", "temperature", "adaptive_kl", "clip", "dt", "max_grad_norm", "value_clip",
                     "norm_floor", "return_scale", "reward_clip", "value_bound"), POSITIVE),
    **dict.fromkeys(("floor", "keep", "log_std_init", "reward_scale", "scale", "shift", "start", "target_entropy",
                     "target_return", "v_max", "v_min"), FINITE),
    **dict.fromkeys(("high", "low"), ANY),  # of what is clipped
    **dict.fromkeys(("c_bar", "rho_bar"), WEIGHT),  # with ∞ nothing is cut
    **dict.fromkeys(("channels", "critic_hidden", "features", "halved_widths", "hidden", "nodes", "vp_channels",
                     "widths"), LAYER),
    **dict.fromkeys(("CRR.beta", "TD3BC.alpha"), POSITIVE), **dict.fromkeys(("IQL.beta", "MARWIL.beta"), NOT_NEGATIVE),
    "expectile": Range(0, 1, above=True),
    "dual_clip": Range(1, LARGEST, above=True),
    "max_wait": WEIGHT,
    "seed": Range(0),
    "shrink": Range(0, 1, above=True),
    "size": Range(1, 2**40),  # of rows
    "total_steps": Range(1, 2**53),
    "threshold": FINITE,
    "PrioritizedSweeping.threshold": NOT_NEGATIVE,
    **dict.fromkeys(("PSRL.dirichlet", "ThompsonBandit.noise", "ThompsonBandit.spread"), POSITIVE),
    "PSRL.gamma": PART,
    "PSRL.reward_mean": FINITE,
    "seconds": WEIGHT,
    **dict.fromkeys(("Recurrent.size", "RecurrentActorCritic.size", "RecurrentQ.size"), LAYER),
}
"""Name of a setting, or its class and name, → its range, where it is not that of its type: whole numbers from 1 on, others from 0
on."""

_BOOLS = (bool, np.bool_)


class Setting(NamedTuple):
    """Name, types and place of one argument; `kinds`: as its annotation has them."""

    name: str
    kinds: tuple[str, ...]
    position: int
    allowed: Range

    def check(self, owner: str, value: object) -> None:
        """Raises TypeError for what is no number of the annotated type, ValueError for one out of its range, both with the
        owner's name, the setting's, what was expected and what came."""
        kinds, several = self.kinds, [one for one in self.kinds if one.startswith("Sequence[")]
        if value is None and "None" in kinds or callable(value) and "Schedule" in kinds:
            return
        if several and isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)):
            number = several[0].removeprefix("Sequence[").removesuffix("]")
            for one in value:
                for part in one if number.startswith("tuple") and isinstance(one, (tuple, list)) else (one,):
                    self._check(owner, part, {"int"} if "int" in number else {"float"}, value)
            return
        if not {"int", "float", "bool"} & {*kinds}:
            if several:
                raise self._wrong(owner, value)
            return
        if not all(one in ("int", "float", "bool", "None", "Schedule") or one in several for one in kinds) \
                and not isinstance(value, (Real, *_BOOLS)):
            return  # of another type, which is none of ours to judge
        self._check(owner, value, {*kinds}, value)

    def _check(self, owner: str, value: object, kinds: set[str], whole: object) -> None:
        if isinstance(value, _BOOLS):
            fits = "bool" in kinds
        else:
            fits = "float" in kinds and isinstance(value, Real) or "int" in kinds and isinstance(value, Integral)
        if not fits:
            raise self._wrong(owner, whole)
        if isinstance(value, _BOOLS):
            return
        if not self.allowed.holds(value):
            also = " or None" * ("None" in self.kinds) + " or a schedule" * ("Schedule" in self.kinds)
            range_ = self.allowed.expected(value)
            expected = range_ if whole is value else f"numbers, each {range_.removeprefix('a number ')}"
            lower = f"; lower {'it' if whole is value else 'them'}" * self.allowed.is_below(value)
            raise ValueError(f"{owner}: {self.name} is {whole!r:.60}; expected {expected}{also}{lower}")

    def _wrong(self, owner: str, value: object) -> TypeError:
        return TypeError(f"{owner}: {self.name} is {value!r:.60} ({type(value).__name__}); expected {' or '.join(self.kinds)}")


@cache
def settings_of(made: type) -> dict[str, Setting]:
    """Return the arguments of a constructor that are numbers, flags, or several numbers."""
    found = {}
    for position, one in enumerate(list(inspect.signature(made).parameters.values())[1:]):
        text = one.annotation.replace("Callable[[int], float]", "Schedule") if isinstance(one.annotation, str) else ""
        alias = getattr(made, "__globals__", {}).get(text)
        text = str(alias).replace("collections.abc.", "") if isinstance(alias, UnionType) else text
        kinds = tuple(part.strip() for part in text.split("|"))
        numbers = [part for part in kinds if part in ("int", "float", "bool") or part.startswith("Sequence[")
                   and ("int" in part or "float" in part)]
        if numbers and one.name != "rng":
            default = NOT_NEGATIVE if any("float" in part for part in numbers) else COUNT
            owner = made.__qualname__.split(".")[-2] if "." in made.__qualname__ else ""
            found[one.name] = Setting(one.name, kinds, position, RANGES.get(f"{owner}.{one.name}", RANGES.get(one.name, default)))
    return found


def check_arguments(owner: str, made: object, args: Sequence[object], options: Mapping[str, object]) -> None:
    """Check what a constructor is given; what it is not given is as its class has it."""
    for name, setting in settings_of(made).items():
        if name in options:
            setting.check(owner, options[name])
        elif setting.position < len(args):
            setting.check(owner, args[setting.position])


def setting_of(kind: type, name: str) -> Setting | None:
    """Return what constructors of our classes among its bases take under this name; None: no number."""
    makers = [vars(one)["__init__"] for one in kind.__mro__ if one.__module__.startswith("parl_like") and "__init__" in vars(one)]
    found = (settings_of(inspect.unwrap(made)).get(name) for made in makers)
    return next((one for one in found if one is not None), None)
