"""A line of a notebook that is written over again and again; no widget, so that it is plain text in what is saved."""

from __future__ import annotations

import sys
from typing import TextIO

from parl_like.lab.text import unescaped


def in_notebook(stream: TextIO) -> bool:
    """Return whether the stream is one of an IPython kernel, such as that of Jupyter. IPython is never imported for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    ours = unescaped(stream) in (unescaped(sys.stdout), unescaped(sys.stderr))
    return ours and getattr(shell, "kernel", None) is not None


class UpdatingLine:
    """The last line of a cell's output, which changes, and lines that are printed above it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = unescaped(stream)
        self._width = 0  # of what is there now

    def draw(self, line: str) -> None:
        """Write the line over the one before."""
        self._write(f"\r{line.ljust(self._width)}")
        self._width = len(line)

    def above(self, text: str) -> None:
        """Print whole lines in the place of the line, which is drawn anew below them."""
        self._write(f"\r{text.ljust(self._width)}\n")
        self._width = 0

    def close(self) -> None:
        """Let the line stay as it is."""
        if self._width:
            self._write("\n")
            self._width = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
