"""Reads docs/evidence.yaml: which tests and peers show that an algorithm is right; docs/algorithms.md has them as lights."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parl_like.lab.reports.marks import Mark
from parl_like.lab.yaml_text import load_yaml_file

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "evidence.yaml"
KINDS = ("exact", "identity", "peer")
GREEN, YELLOW, NONE = "yes", "missed", "–"
"""The lights in words, for pictures of them are boxes where a font lacks them; the site draws a dot before each (`dots`)."""
COLUMNS = "| algorithm | exact number | identity | mark | peer |\n|---|---|---|---|---|"
HEAD = """## What shows that they are right

*yes*: there is such evidence; *missed*: a mark is there, and the median of its seeds misses it; *–*: there is none.

- *exact number*: a test of numbers worked out by hand, or known from elsewhere;
- *identity*: a test that it is a simpler one where its novelty is off, or does what a plain loop does;
- *mark*: its experiments reach what they expect, see [marks](marks.md);
- *peer*: another library has trained the same, see [benchmarks](benchmarks.md) and
  [offline](recipes/offline.md#beside-other-libraries), or gives the same numbers in a test.

[evidence.yaml](evidence.yaml) names the tests and the rows, and figures that others have published for the same environments.
These were not run here, and are measured otherwise: RL Zoo evaluates one trained agent, CleanRL and SLM-Lab have means of
three and four runs.
"""


@functools.cache
def load() -> dict[str, dict[str, Any]]:
    """Return name → kind → a test, `file::name`, or a row of a page, `file: text`; and `published`, a list of figures."""
    return load_yaml_file(FILE)


@functools.cache
def tests_of(file: str) -> frozenset[str]:
    """Return the names of the tests of a file."""
    return frozenset(node.name for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
                     if isinstance(node, ast.FunctionDef))


def exists(where: str) -> bool:
    """Return whether there is such a test, or such a text on the page."""
    file, test, text = (*where.partition("::")[::2], "") if "::" in where else ("", "", where)
    if test:
        return (ROOT / file).is_file() and test in tests_of(file)
    page, _, row = text.partition(": ")
    return (ROOT / page).is_file() and bool(row) and row in (ROOT / page).read_text(encoding="utf-8")


def of_marks(groups: Sequence[Sequence[Mark]]) -> str:
    """Return the light of some experiments, by the marks of each: whether most seeds of all of them that have a goal
    are solved."""
    asked = [[mark.solved for mark in group if mark.solved is not None] for group in groups]
    solved = [2 * sum(group) > len(group) for group in asked if group]
    return NONE if not solved else GREEN if all(solved) else YELLOW


def row(name: str, groups: Sequence[Sequence[Mark]]) -> str:
    """Return the line of one member, whose experiments have these marks."""
    known = load()[name]
    lights = [GREEN if kind in known else NONE for kind in KINDS]
    return f"| {name} | {lights[0]} | {lights[1]} | {of_marks(groups)} | {lights[2]} |"


def beside(name: str) -> str:
    """Return the peer of a member and what others have published, or that there is neither, in Markdown of a page of docs/."""
    known = load()[name]
    where, figures = known.get("peer", ""), known.get("published", [])
    page, _, row = where.partition(": ")
    peer = f"[{row}]({page.removeprefix('docs/')})" if row else f"`{where}`" if where else ""
    said = [f"Beside it: {peer}."] * bool(peer)
    said += ["\n".join(["Published by others, not run here:", "", *(f"- {one}" for one in figures)])] * bool(figures)
    nothing = "Beside it: nothing. No other library was run on its task here, and we know of no published figure for that."
    return "\n\n".join(said) or nothing


def dots(text: str) -> str:
    """Return a page of the site with a dot before each light in a table: its colour is that of `site.css`."""
    classes = {GREEN: "yes", YELLOW: "missed", NONE: "none"}

    def marked(line: str) -> str:
        cells = line.split(" | ")
        return " | ".join([cells[0], *(f'<span class="light {classes[one]}">{one}</span>' if one in classes else one
                                       for one in (cell.removesuffix(" |") for cell in cells[1:]))]) + " |"

    head, begin, rest = text.partition(COLUMNS)
    lines = rest.split("\n")
    last = next((i for i, line in enumerate(lines[1:], 1) if not line.startswith("| ")), len(lines))
    return head + begin + "\n".join([*lines[:1], *map(marked, lines[1:last]), *lines[last:]])


def table(members: dict[str, list[list[Mark]]]) -> str:
    """Return the section of the page: members → the marks of each of their experiments."""
    lines = [row(name, members[name]) for name in sorted(members, key=str.lower)]
    return "\n".join([HEAD, COLUMNS, *lines])
