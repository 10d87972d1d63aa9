"""Measuring: alternate the contestants, several rounds, median and spread; say on what machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any


def compare(contestants: Mapping[str, Callable[[], float]], rounds: int = 3) -> dict[str, dict[str, Any]]:
    """Runs every contestant `rounds` times, in turn, so that a slow moment of the machine hits all.

    Args:
        contestants: Name → function that does the work once and returns its rate (per second).

    Returns:
        Name → {"median", "best", "spread", "rounds"}; spread = (best − worst) / median. Above 0.1 the machine was busy.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            rates[name].append(work())
    return {name: of_rounds(r) for name, r in rates.items()}


def of_rounds(rates: list[float]) -> dict[str, Any]:
    """{"median", "best", "spread", "rounds"} of some rates, see `compare`."""
    return {"median": median(rates), "best": max(rates), "spread": (max(rates) - min(rates)) / median(rates), "rounds": rates}


def ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Median of the rounds' own ratios: the two ran one after the other, so a slow moment of the machine divides out."""
    return median(a / b for a, b in zip(ours["rounds"], theirs["rounds"], strict=True))


def machine() -> dict[str, Any]:
    import numpy
    import torch

    return {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version(),
            "torch": torch.__version__, "numpy": numpy.__version__, "torch_threads": torch.get_num_threads()}


def report(result: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    """Prints one JSON object, or the lines for people."""
    print(json.dumps(result) if as_json else "\n".join(lines))
