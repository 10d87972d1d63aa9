"""The part of a terminal that a run draws anew again and again, with what others print above it."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from parl_like.lab.text import fitted, printer, unescaped
from parl_like.lab.text import lines as of_lines

HIDE, SHOW, CLEAR_BELOW, CLEAR_LINE, CLEAR_ALL = "\x1b[?25l", "\x1b[?25h", "\x1b[J", "\x1b[K", "\x1b[2J\x1b[H"


def can_draw(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that can move its cursor."""
    return bool(stream.isatty()) and os.environ.get("TERM", "xterm") not in ("", "dumb", "unknown")


def size_of(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of a terminal; (80, 24) where it does not say."""
    with suppress(OSError, ValueError, AttributeError):
        found = os.get_terminal_size(stream.fileno())
        if found.columns and found.lines:
            return found.columns, found.lines
    return 80, 24


class Screen:
    """Draws lines at the end of what a terminal shows. Only those that have changed are written again, so a recording stays
    small. After a change of the terminal's size, where nobody knows how it has broken old lines, it is cleared.

    While it is there standard output and standard error are printed above the lines. Any thread may print, and what comes in the
    middle of a drawing, as from the handler of a signal, waits for its end.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream: Any = unescaped(stream)
        self._shown: list[str] = []
        self._lock = threading.RLock()
        self._busy, self._waiting = False, list[str]()  # the handler of a signal comes in the middle, and holds the lock, too
        self._size = self.size()
        self._before = sys.stdout, sys.stderr
        self._above = [Above(self.stream, self.above) for _ in self._before]
        sys.stdout, sys.stderr = map(printer, cast("list[TextIO]", self._above))
        self._write(HIDE)

    def size(self) -> tuple[int, int]:
        return size_of(self.stream)

    def draw(self, lines: Sequence[str]) -> None:
        """Shows these lines in place of the ones before, as far as the terminal has room for them."""
        with self._turn() as free:
            if free:
                self._draw(lines)

    def above(self, text: str) -> None:
        """Prints whole lines above."""
        with self._turn():
            self._waiting.append(text)

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """One at a time writes; False for who comes in the middle. At the end what waits is printed."""
        with self._lock:
            free, self._busy = not self._busy, True
            try:
                yield free
                while free and self._waiting:
                    self._print_above(self._waiting.pop(0))
            finally:
                self._busy = not free

    def _draw(self, lines: Sequence[str]) -> None:
        columns, rows = size = self.size()
        lines = [fitted(line, columns - 1) for line in lines[: rows - 1]]
        if size != self._size:
            self._size, self._shown = size, []
            self._write(CLEAR_ALL)
        text = f"\x1b[{len(self._shown)}A\r" if self._shown else ""
        for i, line in enumerate(lines):
            same = i < len(self._shown) and self._shown[i] == line
            text += "\n" if same else f"{line}{CLEAR_LINE}\n"
        self._shown = lines
        self._write(f"{text}{CLEAR_BELOW}")

    def _print_above(self, text: str) -> None:
        shown, self._shown = self._shown, []
        begin = f"\x1b[{len(shown)}A\r{CLEAR_BELOW}" if shown else ""
        self._write(f"{begin}{of_lines(text)}\n" + "".join(f"{line}\n" for line in shown))
        self._shown = shown

    def close(self) -> None:
        """The lines stay; what is printed from now on comes below."""
        sys.stdout, sys.stderr = self._before
        for above in self._above:
            above.end()
        self._write(SHOW)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone; the run is not
            code = getattr(self.stream, "encoding", None) or "utf-8"
            self.stream.write(text.encode(code, "replace").decode(code))
            self.stream.flush()


class Above(io.TextIOBase):
    """A stream whose lines are printed above what is drawn.

    Args:
        stream: The one in whose place it is.
        above: Prints whole lines.
    """

    encoding = "utf-8"

    def __init__(self, stream: TextIO, above: Callable[[str], None]) -> None:
        self._stream, self._above, self._open = stream, above, ""

    def write(self, text: str) -> int:
        whole, newline, self._open = (self._open + text).rpartition("\n")
        if newline:
            self._above(whole)
        return len(text)

    def end(self) -> None:
        """Print what is left of a line without its end."""
        if self._open:
            self.write("\n")

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return int(self._stream.fileno())
