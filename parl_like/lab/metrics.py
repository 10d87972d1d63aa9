"""The numbers of a run: `metrics.csv`, and TensorBoard files beside it."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parl_like.data.disk import open_file, remove
from parl_like.lab.outbox import RunError
from parl_like.lab.rundir import MAX_TABLE_BYTES, RunDir

METRICS, EXTRA = "metrics.csv", "metrics_extra.csv"
EXTRA_HEADER = ["step", "key", "value"]
HELD_ROWS = 100  # a robot that has not learned by then writes its losses to the extra file
TAIL_BYTES = 65_536  # of a file that is read for its last row only


class MetricsLog:
    """Writes rows of metrics, each in its file when `write` returns, if the disk takes it; else as soon as it does.

    The header of `metrics.csv` never changes: parsers and appenders rely on it. But a robot knows the names of its losses only
    when it has learned. So the first rows are held back until one is `complete`, at most HELD_ROWS of them; their keys together
    make the header. A key that comes later still is announced once in `events.jsonl` and goes to `metrics_extra.csv`, one line
    `step, key, value` each, where `read_metrics` finds it; a missing or NaN value leaves its cell empty.

    Columns whose name ends in `_s` are readings of the clock. All others are the same in two runs that do the same.

    Args:
        run: Where to write. The files are continued where they exist; call `truncate` first when a run is resumed.
        tensorboard: Also write TensorBoard files, if the extra `tb` is there.
        start_step: Where this process begins; TensorBoard then hides what an earlier process wrote after it.
    """

    def __init__(self, run: RunDir, *, tensorboard: bool = False, start_step: int = 0) -> None:
        self.run = run
        self.header = _table(run, METRICS)[0]
        self._held: list[Mapping[str, float]] = []
        self._late: set[str] = set()
        self._has_extra = bool(_table(run, EXTRA)[0])
        self._board = _Board(run, start_step) if tensorboard and not tensorboard_missing() else None

    def write(self, row: Mapping[str, float], *, complete: bool = True) -> None:
        """Writes one row, which begins with `step`, in environment steps; `complete`: no more keys are to be expected."""
        if self._board is not None:
            self._board.add_row(row)
        self._held.append(dict(row))
        if self.header or complete or len(self._held) >= HELD_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes what is held back; this decides the header."""
        rows, self._held = self._held, []
        if rows and not self.header:
            self.header = list(dict.fromkeys(key for row in reversed(rows) for key in row))
            self._append(METRICS, [self.header])
        for row in rows:
            self._append(METRICS, [[_cell(row.get(key, math.nan)) for key in self.header]])
            late = {key: value for key, value in row.items() if key not in self.header and not math.isnan(value)}
            for key in late:
                if key not in self._late:
                    self.run.event("late metric", key=key, step=row["step"], file=EXTRA)
            self._late |= late.keys()
            if late:
                header, self._has_extra = [EXTRA_HEADER] * (not self._has_extra), True
                self._append(EXTRA, header + [[_cell(row["step"]), key, _cell(value)] for key, value in late.items()])

    def _append(self, name: str, rows: Iterable[Sequence[str]]) -> None:
        self.run.outbox.append(name, _csv(rows))


class _Board:
    """A file for TensorBoard, written like all others of the run: its own writer ends when a disk is full for a moment."""

    def __init__(self, run: RunDir, start_step: int) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = event_pb2.Event
        self._name = f"tb/events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._run = run
        self._records = RecordWriter(self)
        self._add(file_version="brain.Event:2")
        if start_step:  # what an earlier process wrote from this step on does not count
            self._add(step=start_step + 1, session_log={"status": "START"})

    def write(self, record: bytes) -> None:
        """What the record writer calls."""
        self._run.outbox.append(self._name, record)

    def add_row(self, row: Mapping[str, float]) -> None:
        values = [{"tag": key, "simple_value": value} for key, value in row.items() if key != "step" and not math.isnan(value)]
        self._add(step=int(row["step"]), summary={"value": values})

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())


def tensorboard_missing() -> bool:
    return importlib.util.find_spec("tensorboard") is None


def truncate(run: RunDir, step: int) -> None:
    """Drops the rows after `step` from both metrics files, and a last line that a crash left unfinished."""
    for name in (METRICS, EXTRA):
        header, rows = _table(run, name)
        if header:
            kept = [row for row in rows if _number(row[0]) <= step]
            run.outbox.replace(name, _csv([header, *kept]))
        elif (run.path / name).exists():
            remove(run.path / name)


def read_metrics(run: RunDir) -> dict[str, list[float]]:
    """The columns of `metrics.csv`, and those of `metrics_extra.csv` behind them; an empty or damaged cell is NaN, an unfinished
    last line is left out. Raises RunError where a file is none of these."""
    header, rows = _table(run, METRICS)
    columns = {key: [_number(row[at]) for row in rows] for at, key in enumerate(header)}
    row_of = {step: row for row, step in enumerate(columns.get("step", []))}
    for row in _table(run, EXTRA)[1]:
        if len(row) == len(EXTRA_HEADER) and _number(row[0]) in row_of:
            columns.setdefault(row[1], [math.nan] * len(rows))[row_of[_number(row[0])]] = _number(row[2])
    return columns


def last_row(run: RunDir) -> dict[str, float]:
    """The last whole row of `metrics.csv`, found from its end; {} where there is none. Raises RunError as `read_metrics`."""
    try:
        with open(open_file(run.metrics_file, base=run.path, limit=MAX_TABLE_BYTES), "rb") as file:
            first = file.readline(TAIL_BYTES)
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            tail = file.read(TAIL_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"{run.metrics_file} is not readable: {error.strerror or error}") from None
    lines = tail[: tail.rfind(b"\n") + 1].splitlines(keepends=True)
    for line in reversed(lines if first.endswith(b"\n") else []):
        header, *rows = _parsed(run, METRICS, first + line)
        if rows and rows[0] != header and len(rows[0]) == len(header):
            return dict(zip(header, map(_number, rows[0]), strict=True))
    return {}


def _table(run: RunDir, name: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file, [] and [] where there is none; without torn rows and a torn last line. Raises RunError."""
    header, *rows = _parsed(run, name, run.read(name, MAX_TABLE_BYTES, missing=b"")) or [[]]
    return header, [row for row in rows if len(row) == len(header)]


def _parsed(run: RunDir, name: str, data: bytes) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(data[: data.rfind(b"\n") + 1].decode(), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{run.path / name} is no table that a run wrote: {error}") from None


def _csv(rows: Iterable[Sequence[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _cell(value: float) -> str:
    value = float(value)
    return "" if math.isnan(value) else str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
