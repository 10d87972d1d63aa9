"""Prints the outcome of a verb: JSON for machines, lines and tables for people."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from parl_like.lab import text
from parl_like.values.errors import shortened

if TYPE_CHECKING:
    from parl_like.lab.yaml_text import Tree

MAX_CELL = 400  # characters that one cell of a table shows


def show(args: argparse.Namespace, value: object, lines: Iterable[str]) -> None:
    """The outcome of a command: `value` for machines, `lines` for people."""
    print_json(value) if args.json else print("\n".join(map(text.escaped, lines)))


def print_json(value: object) -> None:
    from parl_like.lab.runs.rundir import plain

    print(json.dumps(plain(value), allow_nan=False))


def table(rows: Sequence[Tree]) -> list[str]:
    """Aligned columns under the rows' keys."""
    cells = [[key.upper() for key in rows[0]], *([cell(value, ".4g") for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def cell(value: object, digits: str) -> str:
    if isinstance(value, float):
        return format(value, digits)
    return "-" if value is None else text.escaped(shortened(str(value), MAX_CELL))
