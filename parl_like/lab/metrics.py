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

METRICS = "metrics.csv"
EVALUATION = "eval/"  # columns of evaluations while training; they have rows of their own
TAIL_BYTES = 65_536  # of a file that is read for its last row only


class MetricsLog:
    """Writes rows of metrics, each in its file when `write` returns, if the disk takes it; else as soon as it does.

    A robot knows the names of its losses only when it has learned. So where a row has a key without a column, the file is
    replaced by one that has it, empty in the rows before; it is empty, too, where a value is missing or NaN.

    Columns whose name ends in `_s` are readings of the clock. All others are the same in two runs that do the same.

    Args:
        run: Where to write. The file is continued where it exists; call `truncate` first when a run is resumed.
        tensorboard: Also write TensorBoard files, if the extra `tb` is there.
        start_step: Where this process begins; TensorBoard then hides what an earlier process wrote after it.
    """

    def __init__(self, run: RunDir, *, tensorboard: bool = False, start_step: int = 0) -> None:
        self.run = run
        self.header = _table(run)[0]
        self._board = _Board(run, start_step) if tensorboard and not tensorboard_missing() else None

    def write(self, row: Mapping[str, float]) -> None:
        """Writes one row, which begins with `step`, in environment steps."""
        if self._board is not None:
            self._board.add_row(row)
        if new := [key for key in row if key not in self.header]:
            self.header += new
            self.run.outbox.replace(METRICS, as_csv([self.header, *(old + [""] * len(new) for old in _table(self.run)[1])]))
        self.run.outbox.append(METRICS, as_csv([[_cell(row.get(key, math.nan)) for key in self.header]]))


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
    """Drops the rows after `step`, and a last line that a crash left unfinished."""
    header, rows = _table(run)
    if header:
        run.outbox.replace(METRICS, as_csv([header, *(row for row in rows if _number(row[0]) <= step)]))
    elif run.metrics_file.exists():
        remove(run.metrics_file)


def read_metrics(run: RunDir) -> dict[str, list[float]]:
    """The columns of `metrics.csv`; an empty or damaged cell is NaN, an unfinished last line is left out. Raises RunError where
    the file is none."""
    header, rows = _table(run)
    return {key: [_number(row[at]) for row in rows] for at, key in enumerate(header)}


def evaluations(run: RunDir) -> list[tuple[int, float]]:
    """Env step and score of every evaluation while training, in their order."""
    columns = read_metrics(run)
    names = "step", f"{EVALUATION}score", f"{EVALUATION}episodes"
    rows = zip(*(columns.get(name, []) for name in names), strict=False)
    return [(int(step), score) for step, score, episodes in rows if not math.isnan(episodes)]


def last_evaluation(run: RunDir) -> tuple[dict[str, float], bool]:
    """The numbers of the evaluation after training, and True; where there is none, or a signal cut it, those of the last one
    while training, and False; {} where there is none of either."""
    result = run.result() or {}
    if (numbers := result.get("evaluation")) and not result.get("stopped_by"):
        return {key: value if isinstance(value, (int, float)) else math.nan for key, value in numbers.items()}, True
    columns = read_metrics(run)
    episodes = columns.get(f"{EVALUATION}episodes", [])
    last = next((row for row in reversed(range(len(episodes))) if not math.isnan(episodes[row])), None)
    return {key.removeprefix(EVALUATION): column[last] for key, column in columns.items()
            if last is not None and key.startswith(EVALUATION)}, False


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
        header, *rows = _parsed(run, first + line)
        if rows and rows[0] != header and len(rows[0]) == len(header):
            return dict(zip(header, map(_number, rows[0]), strict=True))
    return {}


def _table(run: RunDir) -> tuple[list[str], list[list[str]]]:
    """Header and rows of `metrics.csv`, [] and [] where there is none; without torn rows, a torn last line. Raises RunError."""
    header, *rows = _parsed(run, run.read(METRICS, MAX_TABLE_BYTES, missing=b"")) or [[]]
    return header, [row for row in rows if len(row) == len(header)]


def _parsed(run: RunDir, data: bytes) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(data[: data.rfind(b"\n") + 1].decode(), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{run.metrics_file} is no table that a run wrote: {error}") from None


def as_csv(rows: Iterable[Sequence[str]]) -> bytes:
    """The text of a table."""
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
