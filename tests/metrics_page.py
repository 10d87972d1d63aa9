"""Reads which metrics docs/running/debugging.md explains, and which names algorithms give what they learn."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "running" / "debugging.md"
PLACES = {"TASK": "[^/]+", "KIND": "(predict|learn)", "PLAYER": ".+", "NAME": ".+", "LOSS": ".+", "PART": ".+", "KEY": ".+"}
"""Words that stand for a name that a robot gives → what may stand there."""
OF_ROWS = {"priority"}
"""What updates give for each row, which is no metric."""
LEARNS = re.compile(r"learn|native_learn|results|metrics|written_loss|critic_terms|critic_update|actor_updates|_written_steps")
"""Functions of algorithms whose mappings are what an update gives."""


@functools.cache
def names() -> tuple[str, ...]:
    """Return the metrics that the page explains, as they stand in the first columns of its tables."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition("\n## Every metric\n")
    rows = (line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    return tuple(name for cell in rows for name in re.findall(r"`([^`]+)`", cell))


@functools.cache
def _pattern() -> re.Pattern[str]:
    places = "|".join(PLACES)
    return re.compile("|".join(re.sub(places, lambda place: PLACES[place[0]], re.escape(name)) for name in names()))


def unexplained(metrics: Iterable[str]) -> list[str]:
    """Return those of some metrics that the page does not explain."""
    return [name for name in metrics if not _pattern().fullmatch(name)]


def given() -> Iterator[tuple[str, str]]:
    """Yield (file, name) of each number that an algorithm's update gives by a name that stands in its code."""
    for path in sorted((ROOT / "algorithms").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and LEARNS.fullmatch(node.name):
                outs = [one.value for one in ast.walk(node) if isinstance(one, (ast.Return, ast.Yield))]
                keys = (key for out in outs if out is not None for one in ast.walk(out) if isinstance(one, ast.Dict)
                        for key in one.keys)
                yield from ((str(path.relative_to(ROOT)), key.value) for key in keys
                            if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in OF_ROWS)
