"""Columns of a table of metrics, followed as it grows: only what is new is read, and many rows at a time."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parl_like.data.storage.safe_files import open_file
from parl_like.lab.reports.plots import DRAWN, FIRST_OPEN, Curve, Floats
from parl_like.lab.runs.metrics import MAX_COLUMNS, MAX_LINE, MAX_LINES, METRICS, number
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import MAX_TABLE_BYTES

PIECE = 1 << 20  # bytes that are read at a time
CELL = 32  # bytes of a number; a longer cell is none
BUCKETS = 400  # of a curve that a page gets, about as many as it has pixels for
STEP, SECONDS = "step", "elapsed_s"


def cells(text: bytes, width: int, wanted: Sequence[int]) -> Floats:
    """The numbers in these columns of whole lines of CSV, [columns, rows]; NaN where a cell is empty or damaged. Lines of another
    `width` are left out.

    `cells_reference` is the same, cell by cell.
    """
    if b'"' in text or b"\r" in text:
        return cells_reference(text, width, wanted)
    data = np.frombuffer(text + b"\0" * CELL, np.uint8)
    marks = np.flatnonzero((data == ord(",")) | (data == ord("\n")))
    ends = np.flatnonzero(data[marks] == ord("\n"))
    first = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends  # the mark behind each line's first cell
    first = first[ends - first + 1 == width]
    before = np.concatenate([[-1], marks])
    return np.stack([_numbers(data, before[first + at] + 1, marks[first + at]) for at in wanted])


def _numbers(data: np.ndarray, begin: np.ndarray, end: np.ndarray) -> Floats:
    """The numbers that stand at these places of a text, which goes on for CELL bytes."""
    size = end - begin
    out = np.full(len(size), np.nan)
    whole = (size > 0) & (size <= CELL)
    if whole.any():
        begin, size = begin[whole], size[whole]
        places = np.arange(size.max())
        letters = data[begin[:, None] + places]
        letters[places >= size[:, None]] = 0
        texts = np.ascontiguousarray(letters).view(f"S{letters.shape[1]}").ravel()
        try:
            out[whole] = texts.astype(np.float64)
        except ValueError:
            out[whole] = [number(one.decode("latin-1")) for one in texts.tolist()]
    return out


def cells_reference(text: bytes, width: int, wanted: Sequence[int]) -> Floats:
    """`cells`, as Python's own reader of CSV has it."""
    lines = text.decode("latin-1").split("\n")
    try:
        rows = [row for row in csv.reader(lines) if len(row) == width]
    except csv.Error:
        rows = []
    found = [[number(row[at]) if len(row[at]) <= CELL else np.nan for row in rows] for at in wanted]
    return np.array(found, np.float64).reshape(len(wanted), len(rows))


class GrowingFile:
    """A file that grows: `read` gives what came since the last time, as whole lines.

    Args:
        path, base: The file, and the folder below which no link is followed.
        name: What it is called in errors.

    Attributes:
        restarted: How often it was another file, so that all that was read of it before is void.
    """

    def __init__(self, path: Path, base: Path) -> None:
        self.path, self.base = path, base
        self.restarted, self._file, self._at, self._rest = 0, (-1, -1), 0, b""

    def read(self, size: int = PIECE) -> bytes:
        """Some whole lines that have not been read yet; nothing where there are none. Raises RunError."""
        try:
            with open(open_file(self.path, base=self.base, limit=MAX_TABLE_BYTES), "rb", buffering=0) as file:
                info = os.fstat(file.fileno())
                if (info.st_dev, info.st_ino) != self._file or info.st_size < self._at:
                    self._file, self._at, self._rest = (info.st_dev, info.st_ino), 0, b""
                    self.restarted += 1
                file.seek(self._at)
                piece = file.read(size)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RunError(f"{self.path} is not readable: {error.strerror or error}") from None
        self._at += len(piece)
        head, end, tail = piece.rpartition(b"\n")
        if not end:
            self._rest += tail
            if len(self._rest) > MAX_LINE:
                raise RunError(f"{self.path} is no table that a run wrote: it has a line of over {MAX_LINE} bytes")
            return self.read(size) if piece else b""
        whole, self._rest = self._rest + head + end, tail
        return whole


class Column:
    """One metric of one run, over steps and seconds.

    Args:
        folder, base: The run's directory, and the folder below which no link is followed.
        metric: The column's name.
    """

    def __init__(self, folder: Path, base: Path, metric: str) -> None:
        self.metric = metric
        self._text, self._seen = GrowingFile(folder / METRICS, base), 0
        self._head = b""
        self._header: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self._head, self._header = b"", []
        self._early, self._found = Curve(3), Curve(3)

    def advance(self, until: float) -> tuple[bool, bool]:
        """Reads on until the time `until`, one piece at least; returns whether anything is new, and whether more may be there.

        Raises:
            RunError: it is no table.
        """
        new = False
        while True:
            text = self._text.read()
            if self._text.restarted != self._seen:
                new, self._seen = True, self._text.restarted
                self._begin()
            if not text:
                return new, False
            new = self._take(text) or new
            if time.perf_counter() >= until:
                return new, True

    def _take(self, text: bytes) -> bool:
        if not self._header:
            self._head += text
            head, text = header_of(self._head)
            if not head:
                if len(self._head) > MAX_LINE * 2:
                    raise RunError(f"it is no table that a run wrote: its header has no end in {len(self._head)} bytes")
                return False
            self._header, self._head = head, b""
        names = [self.metric, STEP, SECONDS, FIRST_OPEN]
        if not {self.metric, STEP} <= {*self._header}:
            return False
        places = [self._header.index(name) if name in self._header else -1 for name in names]
        numbers = cells(text, len(self._header), [max(place, 0) for place in places])
        values, steps, seconds, still_open = (row if place >= 0 else np.full_like(row, np.nan)
                                              for row, place in zip(numbers, places, strict=True))
        points = np.clip(np.stack([steps, values, seconds]), -DRAWN, DRAWN)
        whole = np.isfinite(values) & np.isfinite(steps)
        # The first episodes to end are short ones: a mean of returns begins when each environment has ended one.
        early = (still_open > 0) & self.metric.startswith("return/")
        self._early.extend(points[:, whole & early])
        self._found.extend(points[:, whole & ~early])
        return bool(whole.any())

    def points(self) -> Floats:
        """Steps, values and seconds, [3, n]."""
        found = self._found.points()
        return found if found.size else self._early.points()


def header_of(text: bytes) -> tuple[list[str], bytes]:
    """The names of the columns with which a table begins, and what comes behind them; no names: the header is not whole, or
    has too many."""
    at, lines = -1, 0
    while (at := text.find(b"\n", at + 1)) >= 0 and lines < MAX_LINES:
        lines += 1
        if text.count(b'"', 0, at) % 2 == 0:
            try:
                names = next(csv.reader([text[:at].decode("utf-8", "replace")]), [])
            except csv.Error:
                names = []
            return (names if len(names) <= MAX_COLUMNS else []), text[at + 1 :]
    return [], b""


def bucketed(x: Floats, values: Floats, n: int = BUCKETS) -> dict[str, list[float | None]]:
    """A curve with few points for a page: `x` and `y`; of over 2 n points the means of n groups of neighbours, with the lowest
    and the highest value of each as `low` and `high`, so that no peak is lost.

    Args:
        x, values: [points].
    """
    if len(x) <= 2 * n:
        return {"x": _short(x), "y": _short(values)}
    begin = np.linspace(0, len(x), n, endpoint=False).astype(np.intp)
    size = np.diff(begin, append=len(x))
    return {"x": _short(np.add.reduceat(x, begin) / size), "y": _short(np.add.reduceat(values, begin) / size),
            "low": _short(np.minimum.reduceat(values, begin)), "high": _short(np.maximum.reduceat(values, begin))}


def _short(values: Floats) -> list[float | None]:
    """With seven digits, which is more than a screen shows."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = 10.0 ** (6 - np.floor(np.log10(np.abs(values))))
        rounded = np.where(np.isfinite(scale) & (scale > 0), np.round(values * scale) / scale, values)
    return [None if one != one else one for one in rounded.tolist()]
