"""Spaces of settings: `lr=1e-4,1e-3`, `seed=0..4`, `lr=1e-5..1e-2`; all combinations of them, or some that are drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np

from parl_like.lab import config as configs
from parl_like.lab.yaml_text import ConfigError, show

MOST_RUNS = 10_000
"""The most that one sweep makes."""
_OPEN, _CLOSED, _QUOTES = "[{(", "]})", "'\""


class Interval(NamedTuple):
    """All numbers from `low` to `high`; whole ones where both ends are."""

    low: float
    high: float

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def logarithmic(self) -> bool:
        """Numbers are drawn evenly by their logarithms: both ends are above 0, and one is at least ten times the other."""
        return not self.whole and 0 < 10 * self.low <= self.high

    def draw(self, rng: np.random.Generator) -> float:
        """Return a number of it, at random."""
        if self.whole:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        if self.logarithmic:
            return self.rounded(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return self.rounded(float(rng.uniform(self.low, self.high)))

    def rounded(self, number: float) -> float:
        """Return a number of it with four digits, which people can read."""
        return number if self.whole else min(max(float(f"{number:.4g}"), self.low), self.high)


Values: TypeAlias = list[object] | Interval
Space: TypeAlias = dict[str, Values]
Settings: TypeAlias = dict[str, object]


def space_of(words: Sequence[str]) -> Space:
    """Return for each key the values that `key=a,b,c` lists, or the interval of `key=low..high`; one value is a list of one.

    A comma in brackets or quotes is part of a value: `hidden=[64,64],[256]` are two.

    Raises:
        ConfigError: a word that is no `key=value`, a key that is given twice, a value that is none or missing, or an interval
            without numbers or from high to low.
    """
    space: Space = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            configs.parse_assignments([word])  # says what is wrong
        if key in space:
            raise ConfigError(f"{key} is given twice; list its values in one word: {key}=a,b,c")
        low, dots, high = text.partition("..")
        if dots and _is_number(_value(key, low)):
            space[key] = _interval(key, low, high)
        else:
            parts = _parts(text)
            if len(parts) > 1 and not all(part.strip() for part in parts):
                raise ConfigError(f"{word}: a value between two commas is missing; an empty text is written {key}=a,''")
            space[key] = [_value(key, part) for part in parts]
            if any(a == b and type(a) is type(b) for a, b in itertools.combinations(space[key], 2)):
                raise ConfigError(f"{word}: a value is given twice; leave one out")
    return space


def _interval(key: str, low: str, high: str) -> Interval:
    ends = [_value(key, end) for end in (low, high)]
    numbers = [end for end in ends if _is_number(end)]
    if len(numbers) < 2 or numbers[0] > numbers[1]:
        raise ConfigError(f"{key}={low}..{high}: expected two numbers, the lower one first, as in seed=0..4 or lr=1e-5..1e-2")
    return Interval(*numbers)


def _value(key: str, text: str) -> object:
    return configs.parse_assignments([f"{key}={text}"])[key]


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _parts(text: str) -> list[str]:
    """Return what commas separate that are in no bracket and no quotes."""
    parts, depth, quote, begin = [], 0, "", 0
    for i, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES:
            quote = sign
        else:
            depth += (sign in _OPEN) - (sign in _CLOSED)
            if sign == "," and not depth:
                parts.append(text[begin:i])
                begin = i + 1
    return [*parts, text[begin:]]


def grid(space: Mapping[str, Values]) -> list[Settings]:
    """Return all combinations, the last key changing first.

    Raises:
        ConfigError: an interval of other than whole numbers, or over `MOST_RUNS` of them.
    """
    listed: dict[str, Sequence[object]] = {}
    for key, values in space.items():
        if isinstance(values, Interval) and not values.whole:
            low, high = show(values.low), show(values.high)
            raise ConfigError(f"{key}={low}..{high} has no end of values; list some ({key}={low},{high}), or draw: --random N")
        listed[key] = range(int(values.low), int(values.high) + 1) if isinstance(values, Interval) else values
    if (n := math.prod(map(len, listed.values()))) > MOST_RUNS:
        raise ConfigError(f"expected at most {MOST_RUNS:,} runs, got {n:,}; list fewer values, or draw with --random N")
    return [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]


def drawn(space: Mapping[str, Values], n: int) -> Iterator[Settings]:
    """Yield n settings at random. The first ones do not depend on n, so a sweep may be made longer."""
    for i in range(n):
        rng = np.random.default_rng([0, i])
        yield {key: values.draw(rng) if isinstance(values, Interval) else values[int(rng.integers(len(values)))]
               for key, values in space.items()}


def each_value(space: Mapping[str, Values]) -> list[Settings]:
    """Return as few settings as have every value that is listed, and both ends of each interval."""
    listed = {key: [values.low, values.high] if isinstance(values, Interval) else values for key, values in space.items()}
    return [{key: values[min(i, len(values) - 1)] for key, values in listed.items()}
            for i in range(max(map(len, listed.values()), default=1))]


def in_words(settings: Mapping[str, object]) -> list[str]:
    """Return the words that give these settings to `parl-like train`."""
    return [f"{key}={show(value)}" for key, value in settings.items()]


def seeds_of(values: Values) -> list[int]:
    """Return the seeds that a sweep runs each setting with.

    Raises:
        ConfigError: one is no whole number from 0.
    """
    listed = [settings["seed"] for settings in grid({"seed": values})]
    seeds = [one for one in listed if isinstance(one, int) and not isinstance(one, bool) and one >= 0]
    if len(seeds) < len(listed):
        raise ConfigError(f"seed={show(next(one for one in listed if one not in seeds))}: expected whole numbers from 0, as in "
                          "seed=0..4 or seed=3,7")
    return seeds
