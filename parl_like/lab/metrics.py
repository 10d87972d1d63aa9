"""The numbers of a run: `metrics.csv`, and TensorBoard files beside it."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parl_like.lab.rundir import RunDir, write_atomically

EXTRA_HEADER = ["step", "key", "value"]
HELD_ROWS = 100  # a robot that has not learned by then writes its losses to the extra file
TAIL_BYTES = 65_536  # of a file that is read for its last row only


class MetricsLog:
    """Writes rows of metrics, each in its file when `write` returns.

    The header of `metrics.csv` never changes: parsers and appenders rely on it. But a robot knows the names of its losses only
    when it has learned. So the first rows are held back until one is `complete`, at most HELD_ROWS of them; their keys together
    make the header. A key that comes later still is announced once in `events.jsonl` and goes to `metrics_extra.csv`, one line
    `step, key, value` each, where `read_metrics` finds it; a missing or NaN value leaves its cell empty.

    Columns whose name ends in `_s` are readings of the clock. All others are the same in two runs that do the same.

    Args:
        run: Where to write. The files are continued where they exist; call `truncate` first when a run is resumed.
        tensorboard: Also write TensorBoard files. Needs the extra `tb`; see `tensorboard_missing`.
        start_step: Where this process begins; TensorBoard then hides what an earlier process wrote after it.
    """

    def __init__(self, run: RunDir, *, tensorboard: bool = False, start_step: int = 0) -> None:
        self.run = run
        self.header = _header_of(run.metrics_file)
        self._held: list[Mapping[str, float]] = []
        self._late: set[str] = set()
        self._writer: Any = None
        if tensorboard and not tensorboard_missing():
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(run.tensorboard), purge_step=start_step + 1 if start_step else None)

    def write(self, row: Mapping[str, float], *, complete: bool = True) -> None:
        """Writes one row.

        Args:
            row: Begins with `step`, in environment steps.
            complete: Whether no more keys are to be expected.
        """
        if self._writer is not None:
            for key, value in row.items():
                if key != "step" and not math.isnan(value):
                    self._writer.add_scalar(key, value, int(row["step"]))
        self._held.append(dict(row))
        if self.header or complete or len(self._held) >= HELD_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes what is held back; this decides the header."""
        rows, self._held = self._held, []
        if rows and not self.header:
            self.header = list(dict.fromkeys(key for row in reversed(rows) for key in row))
            _append(self.run.metrics_file, [self.header])
        for row in rows:
            _append(self.run.metrics_file, [[_cell(row.get(key, math.nan)) for key in self.header]])
            late = {key: value for key, value in row.items() if key not in self.header and not math.isnan(value)}
            if late:
                self._write_late(row["step"], late)

    def _write_late(self, step: float, late: Mapping[str, float]) -> None:
        for key in [key for key in late if key not in self._late]:
            self.run.event("late metric", key=key, step=step, file=self.run.extra_file.name)
        self._late |= late.keys()
        header = [] if _header_of(self.run.extra_file) else [EXTRA_HEADER]
        _append(self.run.extra_file, [*header, *([_cell(step), key, _cell(value)] for key, value in late.items())])

    def close(self) -> None:
        self.flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def tensorboard_missing() -> bool:
    return importlib.util.find_spec("tensorboard") is None


def truncate(run: RunDir, step: int) -> None:
    """Drops the rows after `step` from both metrics files, and a last line that a crash left unfinished."""
    for path in (run.metrics_file, run.extra_file):
        header, rows = _rows_of(path)
        if not header:
            path.unlink(missing_ok=True)
            continue
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *(row for row in rows if _number(row[0]) <= step)])
        write_atomically(path, out.getvalue())


def read_metrics(run: RunDir) -> dict[str, list[float]]:
    """The columns of `metrics.csv`, and those of `metrics_extra.csv` behind them; an empty or damaged cell is NaN, an unfinished
    last line is left out."""
    header, rows = _rows_of(run.metrics_file)
    columns = {key: [_number(row[at]) for row in rows] for at, key in enumerate(header)}
    row_of = {step: row for row, step in enumerate(columns.get("step", []))}
    for step, key, value in _rows_of(run.extra_file)[1]:
        column = columns.setdefault(key, [math.nan] * len(rows))
        if _number(step) in row_of:
            column[row_of[_number(step)]] = _number(value)
    return columns


def last_row(path: Path) -> dict[str, float]:
    """The last whole row of a `metrics.csv`, found from its end; {} where there is none."""
    header = _header_of(path)
    if not header:
        return {}
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").split("\n")[:-1]
    for line in reversed(lines):
        cells = next(csv.reader([line]), [])
        if cells != header and len(cells) == len(header):
            return {key: _number(cell) for key, cell in zip(header, cells, strict=True)}
    return {}


def _header_of(path: Path) -> list[str]:
    """The first line's fields; [] where there is no file or no whole line."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            line = file.readline()
    except FileNotFoundError:
        return []
    return next(csv.reader([line])) if line.endswith("\n") else []


def _rows_of(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows; without rows of another length than the header, and without a last line that has no end."""
    header = _header_of(path)
    if not header:
        return [], []
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))[1:]
    return header, [row for row in rows if len(row) == len(header)]


def _append(path: Path, rows: Iterable[Sequence[str]]) -> None:
    # Opened for each row, which costs microseconds at a row per second: nothing is buffered when the process dies.
    with open(path, "a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _cell(value: float) -> str:
    value = float(value)
    return "" if math.isnan(value) else str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
