"""A line of a notebook that is written over again and again; no widget, so that it is plain text in what is saved."""

from __future__ import annotations

import sys
import threading
from typing import TextIO, cast

from parl_like.lab.screen import Above
from parl_like.lab.text import printer, unescaped


def in_notebook(stream: TextIO) -> bool:
    """Return whether the stream is one of an IPython kernel, such as that of Jupyter. IPython is never imported for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    ours = unescaped(stream) in (unescaped(sys.stdout), unescaped(sys.stderr))
    return ours and getattr(shell, "kernel", None) is not None


class UpdatingLine:
    """The last line of a cell's output, which changes, and lines that are printed above it. While it is there, what any thread
    prints is above, too."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = unescaped(stream)
        self._line, self._width = "", 0  # what is there now, and its columns
        self._lock = threading.RLock()
        self._before, self._above = sys.stdout, Above(self._stream, self.above)
        sys.stdout = printer(cast("TextIO", self._above))

    def draw(self, line: str) -> None:
        """Write the line over the one before."""
        with self._lock:
            self._write(f"\r{line.ljust(self._width)}")
            self._line, self._width = line, len(line)

    def above(self, text: str) -> None:
        """Print whole lines in the place of the line, which is drawn anew below them."""
        with self._lock:
            first, *rest = text.split("\n")
            self._write("\n".join([f"\r{first.ljust(self._width)}", *rest, self._line]))
            self._width = len(self._line)

    def close(self) -> None:
        """Let the line stay as it is."""
        sys.stdout = self._before
        self._above.end()
        if self._width:
            self._write("\n")
            self._width = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
