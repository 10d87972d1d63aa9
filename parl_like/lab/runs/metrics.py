"""The numbers of a run: `metrics.csv`, and TensorBoard files beside it."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter

from parl_like.data.storage.safe_files import open_file, remove
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import MAX_TABLE_BYTES, RunDir

METRICS = "metrics.csv"
EVALUATION = "eval/"  # columns of evaluations while training; they have rows of their own
TAIL_BYTES = 1 << 18  # of a file that is read for its last row only
MAX_LINE = 1 << 20  # bytes of a line that is not finished: 20,000 columns with long names
MAX_LINES = 64  # of the header: names may hold line ends
MAX_COLUMNS = 20_000
MAX_ROWS = 2_000_000  # lines of a table: with a row each 1,000 steps those of 2·10⁹ steps


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
        self.header = Table(run).header
        self._board = _Board(run, start_step) if tensorboard and not tensorboard_missing() else None

    def write(self, row: Mapping[str, float]) -> None:
        """Writes one row, which begins with `step`, in environment steps."""
        if self._board is not None:
            self._board.add_row(row)
        if new := [key for key in row if key not in self.header]:
            rows, self.header = Table(self.run).texts(), self.header + new
            _replace(self.run, self.header, (f"{old}{',' * len(new)}" for old in rows))
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
        """Write a record, as the record writer calls it."""
        self._run.outbox.append(self._name, record)

    def add_row(self, row: Mapping[str, float]) -> None:
        values = [{"tag": key, "simple_value": value} for key, value in row.items() if key != "step" and not math.isnan(value)]
        self._add(step=int(row["step"]), summary={"value": values})

    def _add(self, **fields: object) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())


def tensorboard_missing() -> bool:
    return importlib.util.find_spec("tensorboard") is None


def truncate(run: RunDir, step: int) -> None:
    """Drops the rows after `step`, and a last line that a crash left unfinished."""
    table = Table(run)
    if table.header:
        _replace(run, table.header, (row for row in table.texts() if number(row.partition(",")[0]) <= step))
    elif run.metrics_file.exists():
        remove(run.metrics_file)


def _replace(run: RunDir, header: Sequence[str], rows: Iterable[str]) -> None:
    """Writes the table anew: a header, and rows as `Table.texts` gives them."""
    run.outbox.replace(METRICS, as_csv([header]) + "".join(f"{row}\n" for row in rows).encode())


def read_metrics(run: RunDir) -> dict[str, list[float]]:
    """The columns of `metrics.csv`; an empty or damaged cell is NaN. Raises RunError as `Table`, whose rows need less memory."""
    table = Table(run)
    rows = [list(map(number, row)) for row in table.rows()]
    return {key: [row[at] for row in rows] for at, key in enumerate(table.header)}


def evaluations(run: RunDir) -> list[tuple[int, float]]:
    """Env step and score of every evaluation while training, in their order."""
    return list(each_evaluation(run))


def each_evaluation(run: RunDir) -> Iterator[tuple[int, float]]:
    """`evaluations`, one by one as the file is read."""
    table, names = Table(run), ("step", f"{EVALUATION}score", f"{EVALUATION}episodes")
    for step, score, episodes in table.cells(names) if {*names} <= {*table.header} else ():
        if not math.isnan(number(episodes)) and math.isfinite(at := number(step)):
            yield int(at), number(score)


def last_evaluation(run: RunDir) -> tuple[dict[str, float], bool]:
    """The numbers of the evaluation after training, and True; where there is none, or a signal cut it, those of the last one
    while training, and False; {} where there is none of either."""
    result = run.result() or {}
    if (numbers := result.get("evaluation")) and not result.get("stopped_by"):
        return {key: value if isinstance(value, (int, float)) else math.nan for key, value in numbers.items()}, True
    table = Table(run)
    names, episodes = [name for name in table.header if name.startswith(EVALUATION)], f"{EVALUATION}episodes"
    last: tuple[str, ...] = ()
    for row in table.cells([episodes, *names]) if episodes in names else ():
        if not math.isnan(number(row[0])):
            last = row
    return {name.removeprefix(EVALUATION): number(cell) for name, cell in zip(names, last[1:], strict=False)}, False


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
        table = Table(run, [first, line])
        for row in table.rows():
            if row != table.header:
                return dict(zip(table.header, map(number, row), strict=True))
    return {}


class Table:
    """`metrics.csv`, read row by row, for it may be long; an unfinished last line is left out.

    Args:
        pieces: The text to read; None: the run's file.

    Raises:
        RunError: While it is read: the file cannot be read, or is no table that a run wrote.
    """

    def __init__(self, run: RunDir, pieces: Iterable[bytes] | None = None) -> None:
        self._run, self._n = run, 0
        self._lines = self._decoded(run.pieces(METRICS, MAX_TABLE_BYTES) if pieces is None else pieces)
        self.header = next((self._quoted(line) for line in self._lines), [])  # [] where there is no file
        if len(self.header) > MAX_COLUMNS:
            raise self._no_table(f"it has {len(self.header)} columns, over {MAX_COLUMNS}")

    def rows(self) -> Iterator[list[str]]:
        """The rows that have not been read yet, without torn ones."""
        return self._rows(len(self.header))

    def texts(self) -> Iterator[str]:
        """`rows` as text, without line ends; cells are not taken apart."""
        return (row if isinstance(row, str) else as_csv([row]).decode().removesuffix("\n") for row in self._whole())

    def cells(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield of each of `rows` the cells in these columns, two or more."""
        places = {name: at for at, name in enumerate(self.header)}
        wanted = [places[name] for name in names]
        return map(itemgetter(*wanted), self._rows(max(wanted) + 1))  # what stands behind the last is not taken apart

    def _rows(self, until: int) -> Iterator[list[str]]:
        return (row.split(",", until) if isinstance(row, str) else row for row in self._whole())

    def _whole(self) -> Iterator[str | list[str]]:
        """The rows that are not torn, as text; those with a quotation mark as cells."""
        width = len(self.header)
        for line in self._lines:
            if '"' in line:
                if len(row := self._quoted(line)) == width:
                    yield row
            elif line.count(",") + 1 == width and (line := line.rstrip("\r\n")):
                yield line

    def _quoted(self, line: str) -> list[str]:
        """The row that begins with this line."""
        try:
            return next(csv.reader(chain([line], islice(self._lines, MAX_LINES))))
        except csv.Error as error:
            raise self._no_table(error) from None

    def _decoded(self, pieces: Iterable[bytes]) -> Iterator[str]:
        """Whole lines, with their ends."""
        rest = b""
        for piece in pieces:
            head, end, tail = piece.rpartition(b"\n")
            if end:
                try:
                    text = (rest + head + end).decode()
                except UnicodeDecodeError as error:
                    raise self._no_table(error) from None
                rest = b""
                self._n += text.count("\n") + text.count("\r")
                if self._n > MAX_ROWS:
                    raise self._no_table(f"it has over {MAX_ROWS} lines")
                yield from io.StringIO(text, newline="")
            rest += tail
            if len(rest) > MAX_LINE:
                raise self._no_table(f"it has a line of over {MAX_LINE} bytes")

    def _no_table(self, why: object) -> RunError:
        return RunError(f"{self._run.metrics_file} is no table that a run wrote: {why}; move it away, and a resumed run begins "
                        "another")


def as_csv(rows: Iterable[Sequence[str]]) -> bytes:
    """The text of a table."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _cell(value: float) -> str:
    value = float(value)
    return "" if math.isnan(value) else str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def number(cell: str) -> float:
    """A cell's value; NaN where it is empty or damaged."""
    if not cell:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return math.nan
