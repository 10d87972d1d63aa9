"""Joins the wrapped lines of docstrings, for pages that are narrower than the code and wrap them themselves."""

from __future__ import annotations

import re

WRAPPED = 92
"""Characters of a line of prose from which on the next one is the rest of its sentence."""
SECTION = re.compile(r" *[A-Z]\w+:")
"""The line above a list of arguments, attributes or errors."""
ITEM = re.compile(r" *(- |\d+\. |(The )?[\w*.]+(, [\w*.]+)*: )")
"""The beginning of an argument, an attribute, an error, an item of a list."""
LISTED = re.compile(r" *(- |\d+\. )")
FORMULA = re.compile(r"(?!and |with )[^\s,.]+( [^\s,.]+)? [=←] ")
"""The beginning of a formula; one that follows another one has a line of its own."""


def flowing(text: str) -> str:
    """Return a docstring, or a page with docstrings in blocks, whose wrapped lines are joined. Formulas, tables and code, which
    are indented lines that belong to no item, stay as they are."""
    lines = [""]
    before, section = "", -1
    for line in text.splitlines():
        deep, fence = _indent(line), line.startswith("```")
        if fence or line.strip() and deep <= section:
            section = -1
        hanging = (section >= 0 or bool(LISTED.match(lines[-1]))) and deep > _indent(lines[-1]) > section
        prose = len(before) >= WRAPPED and not (before.endswith(",") and FORMULA.match(line))
        same = prose and deep == _indent(before) and (not deep or section >= 0 and not ITEM.match(line))
        if before.strip() and line.strip() and not fence and not LISTED.match(line) and (hanging or same):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        if SECTION.fullmatch(line):
            section = deep
        before = line
    return "\n".join(lines[1:])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
