"""Text for people, as it reaches a terminal, a log, a page, a table, a picture.

Names and values may come from somebody else: a run directory, an environment, a path. Whatever they hold, a terminal gets no
control codes, a page no markup, a spreadsheet no formula. Texts for machines are JSON, which has escapes of its own.
"""

from __future__ import annotations

import contextlib
import html
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from parl_like.values.errors import shortened

LONGEST = 2_000
"""Characters of a line of a warning or an error."""

_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_MARKUP = re.compile(r"[\\`*\[\]~#|!]|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.")
_FORMULA = "=+-@＝＋－＠"


def escaped(text: str, keep: str = "") -> str:
    """A text on one line that shows what is in it: control codes, marks that turn the direction of writing, line ends, and bytes
    of a name that is no UTF-8 are escapes as in Python (`\\x1b`). Those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep or unicodedata.category(one) == "Zs" else
                   one.encode("unicode_escape").decode() for one in text)


def colourless(text: str) -> str:
    """A text without colours of a terminal."""
    return _COLOURS.sub("", text)


def lines(text: str) -> str:
    """Text of several lines, which may have tabs; else as `escaped`."""
    return escaped(text, "\n\t")


def cut(text: str) -> str:
    """The same lines, of which those above LONGEST characters have lost their middle."""
    return "\n".join(shortened(line, LONGEST - 100) for line in text.split("\n")) if len(text) > LONGEST else text


def fitted(line: str, columns: int) -> str:
    """One line as `escaped` that takes at most so many columns of a terminal, where some characters take two; `…` stands for the
    end that it has lost."""
    from rich.cells import cell_len, set_cell_size

    line = escaped(line)
    return line if cell_len(line) <= columns else f"{set_cell_size(line, columns - 1)}…"


def for_markdown(text: str) -> str:
    """One line that Markdown shows as it is: no markup, HTML or link begins in it."""
    return _MARKUP.sub(r"\\\g<0>", html.escape(escaped(text), quote=False))


def for_html(text: str) -> str:
    return html.escape(escaped(text))


def for_page(text: str) -> str:
    """Text that a page's own script writes as text: without colours of a terminal, else as `lines`, and not too long."""
    return cut(lines(colourless(text)))


def for_csv(value: object) -> str:
    """A cell: numbers stay numbers; a text is none, and no formula either, for a spreadsheet."""
    if value is None or isinstance(value, (bool, int, float)):
        return "" if value is None else str(value)
    if isinstance(value, (list, tuple)):
        return " ".join(map(for_csv, value))
    text = escaped(str(value))
    return f"'{text}" if text.lstrip().startswith(tuple(_FORMULA)) and not _is_number(text) else text


def for_picture(text: str) -> str:
    """A label that matplotlib shows as it is: it takes $ for mathematics, and hides what begins with _."""
    text = escaped(text).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Printer:
    """The stream that people read: what is written to it is `lines` of text, without colours, in characters that it has.
    `short`: long lines lose their middle."""

    def __init__(self, stream: TextIO, short: bool = False) -> None:
        self.stream, self.short = stream, short

    def write(self, text: str) -> int:
        shown, code = lines(colourless(text)), getattr(self.stream, "encoding", None) or "utf-8"
        shown = cut(shown) if self.short else shown
        self.stream.write(shown if shown.isascii() else shown.encode(code, "backslashreplace").decode(code))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def printer(stream: TextIO) -> TextIO:
    """The stream for people."""
    return stream if isinstance(stream, Printer) else cast("TextIO", Printer(stream))


def unescaped(stream: TextIO) -> TextIO:
    """The stream behind a `printer`, for what draws on a terminal and escapes by itself."""
    return stream.stream if isinstance(stream, Printer) else stream


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Standard output and standard error are for people meanwhile, whoever writes to them: commands, warnings, tracebacks."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = printer(sys.stdout), cast("TextIO", Printer(unescaped(sys.stderr), short=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
