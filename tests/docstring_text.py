"""Joins the wrapped lines of docstrings, for pages that are narrower than the code and wrap them themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def divided(text: str, name: str) -> tuple[str, list[str]]:
    """Return a docstring without its section of this name, and the items of that, a line each. It ends with an empty line; an
    item begins with "- " where there are several. Empty: there is no such section."""
    found = re.search(rf"^{name}:\n(?: +\S.*(\n|$))+\n*", text, re.MULTILINE)
    if not found:
        return text, []
    items = [re.sub("^- ", "", line.strip()) for line in flowing(found[0]).splitlines()[1:] if line.strip()]
    return (text[: found.start()] + text[found.end() :]).rstrip(), items


def rst(text: str) -> str:
    """Return a docstring as reStructuredText that shows it as it is meant: prose wraps, an argument is a line with its name in
    bold, formulas, tables and code are blocks of their own."""
    out, section, kind = [".. container:: docstring"], -1, ""
    for line in flowing(text).splitlines():
        deep = _indent(line)
        if not line.strip():
            kind = ""
            continue
        if deep <= section:
            section = -1
        block = "code" if deep and section < 0 else "text"
        if block != kind:
            out += [""] if block == "text" else ["", "   .. code-block:: text", ""]
        kind = block
        out.append(f"      {line}" if block == "code" else f"   | {' ' * deep}{_inline(line.strip(), section >= 0)}")
        if SECTION.fullmatch(line):
            section = deep
    return "\n".join(out) + "\n"


def rst_list(items: Sequence[str]) -> str:
    """Return items of a docstring as a list in reStructuredText."""
    return "\n".join([".. container:: docstring", "", *(f"   - {_inline(item, True)}" for item in items)]) + "\n"


def _inline(line: str, listed: bool) -> str:
    """Return a line with code as code, in bold the names that it begins with, and all else as plain text."""
    name = ITEM.match(line) if listed and not LISTED.match(line) else None
    start = f"**{_plain(name[0][:-2])}**: " if name else ""
    parts = re.split("`+", line[name.end():] if name else line)
    if len(parts) % 2 == 0:
        return start + _plain("`".join(parts))
    return start + "".join(f"\\ ``{part}``\\ " if n % 2 else _plain(part) for n, part in enumerate(parts))


def _plain(text: str) -> str:
    return re.sub(r"([\\*`_|])", r"\\\1", text)
