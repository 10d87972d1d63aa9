"""A terminal of so many columns and rows behind a pty, which remembers what it has shown."""

import contextlib
import fcntl
import os
import re
import struct
import termios
import threading
import unicodedata

CODE = re.compile(r"\x1b\[(\??\d*(?:;\d*)*)([A-Za-z])|.", re.DOTALL)


class Terminal:
    """Use it in a `with`: `stream` is what a program gets as its standard output. Only what `Screen` writes is understood.

    Attributes:
        lines: All that it shows, from the first line on, those that have scrolled away included.
        broken: Lines that were too long for it.
    """

    def __init__(self, columns=80, rows=24):
        self.columns, self.rows = columns, rows
        self.lines, self.broken, self.row, self.column = [""], [], 0, 0
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self._thread = threading.Thread(target=self._read, name="terminal", daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stream.close()
        self._thread.join(10)
        os.close(self._ours)

    def _read(self):
        with contextlib.suppress(OSError), os.fdopen(os.dup(self._ours), encoding="utf-8", newline="") as ours:
            text = ""
            while more := ours.read(1):  # a code is written whole, so its end is on its way
                text += more
                if not text.startswith("\x1b") or (len(text) > 2 and more.isalpha()):
                    self._write(text)
                    text = ""

    def _write(self, text):
        code, letter = CODE.fullmatch(text).groups()
        if letter == "A":
            self.row -= int(code)
            assert self.row >= max(0, len(self.lines) - self.rows), "the cursor cannot leave the screen"
        elif letter == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif letter == "J" and not code:
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif letter:
            assert (code, letter) in (("?25", "l"), ("?25", "h")), text
        elif text == "\r":
            self.column = 0
        elif text == "\n":
            self.row += 1
            self.lines += [""] * (self.row == len(self.lines))
        else:
            self._put(text)

    def _put(self, text):
        wide = 1 + (unicodedata.east_asian_width(text) in "WF")
        if self.column + wide > self.columns:
            self.broken.append(self.lines[self.row] + text)
            self._write("\r"), self._write("\n")
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + text + "\0" * (wide - 1) + line[self.column + wide :]
        self.column += wide
