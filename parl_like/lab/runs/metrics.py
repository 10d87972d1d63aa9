"""The numbers of a run: `metrics.csv`, and TensorBoard files beside it."""

from __future__ import annotations

import csv
import importlib.util
import io
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter

from parl_like.data.storage.safe_files import open_file, remove
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import MAX_TABLE_BYTES, RunDir

METRICS = "metrics.csv"
EVALUATION = "eval/"  # columns of evaluations while training; they have rows of their own
MARK = f"{EVALUATION}episodes"  # a column that every evaluation has
SHORT_TAIL = 1 << 12  # bytes in which the last row mostly is
TAIL_BYTES = 1 << 18  # of a file that is read for its last row only
MAX_LINE = 1 << 20  # bytes of a line that is not finished: 20,000 columns with long names
MAX_LINES = 64  # of the header: names may hold line ends
MAX_COLUMNS = 20_000
MAX_ROWS = 2_000_000  # lines of a table that is read
OWN_ROWS, OWN_BYTES = MAX_ROWS // 2, MAX_TABLE_BYTES // 2  # of a table that is written: its readers take more

_LOG = logging.getLogger(__name__)


class MetricsLog:
    """Writes rows of metrics, each in its file when `write` returns, if the disk takes it; else as soon as it does.

    A robot knows the names of its losses only when it has learned. So where a row has a key without a column, the file is
    replaced by one that has it, empty in the rows before; it is empty, too, where a value is missing or NaN.

    A table that is full (`OWN_ROWS`, `OWN_BYTES`) keeps every second row. Evaluations stay, unless most rows are such. So a run
    of any length has a table that its readers take. A column that they would refuse is left out. The log says either once.

    Columns whose name ends in `_s` are readings of the clock. All others are the same in two runs that do the same.

    Args:
        run: Where to write. The file is continued where it exists; call `truncate` first when a run is resumed.
        tensorboard: Also write TensorBoard files, if the extra `tb` is there.
        start_step: Where this process begins; TensorBoard then hides what an earlier process wrote after it.
    """

    def __init__(self, run: RunDir, *, tensorboard: bool = False, start_step: int = 0) -> None:
        self.run = run
        self.header = Table(run).header
        self._lines = self._bytes = 0  # of the file
        for piece in run.pieces(METRICS, MAX_TABLE_BYTES):
            self._count(piece)
        self._said: set[str] = set()
        self._board = _Board(run, start_step) if tensorboard and not tensorboard_missing() else None

    def write(self, row: Mapping[str, float]) -> None:
        """Writes one row, which begins with `step`, in environment steps."""
        if self._board is not None:
            self._board.add_row(row)
        header = self._wider(row)
        text = self._row(header, row)
        if header != self.header or self._lines >= OWN_ROWS or self._bytes + len(text) > OWN_BYTES:
            try:
                self._replace(header, OWN_ROWS - 2, OWN_BYTES - len(text))  # room for a header and this row
            except RunError as error:  # somebody else has changed the file
                self._say("columns", f"{METRICS} gets no new column, and goes on without it: {error}")
                text = self._row(self.header, row)
        self._count(text)
        self.run.outbox.append(METRICS, text)

    def _wider(self, row: Mapping[str, float]) -> list[str]:
        """The header with the row's new keys, as many as readers take."""
        known = {*self.header}
        wanted = [key for key in row if key not in known]
        new = [key for key in wanted if self._is_readable([key])]
        while new and not self._is_readable(self.header + new):
            new = new[: len(new) // 2]
        if len(new) < len(wanted):
            left = next(key for key in wanted if key not in new)
            self._say("columns", f"{METRICS} has no room for column {left!r:.100}: it is left out, as are others of its kind")
        return self.header + new

    def _is_readable(self, header: Sequence[str]) -> bool:
        """Tells whether a table with this header is one for its readers."""
        row = ["0"] * len(header)
        try:
            table = Table(self.run, [as_csv([header]), as_csv([row])])
            return len(as_csv([header])) <= MAX_LINE and table.header == header and list(table.rows()) == [row]
        except ValueError:  # such as letters that are no text, or one name of 200,000 letters
            return False

    def _row(self, header: Sequence[str], row: Mapping[str, float]) -> bytes:
        return as_csv([[_cell(row.get(key, math.nan)) for key in header]])

    def _replace(self, header: list[str], lines: int, size: int) -> None:
        """Writes the table with this header, and as many rows as go into `lines` lines and `size` bytes."""
        commas = "," * (len(header) - len(self.header))
        head, rows = as_csv([header]), list(Table(self.run).texts()) if self.header else []
        whole, at = len(rows), header.index(MARK) if MARK in self.header else -1
        while len(rows) > 2 and (
            len(rows) > lines or len(head) + sum(map(len, rows)) + len(rows) * (len(commas) + 1) > size
        ):
            rows = _every_second(rows, at)
        data = head + "".join(f"{row}{commas}\n" for row in rows).encode()
        self.run.outbox.replace(METRICS, data)
        self.header, self._lines, self._bytes = header, 0, 0
        self._count(data)
        if len(rows) < whole:
            self._say("rows", f"{METRICS} is full: of {whole} rows every second one stays, and all evaluations if these are few")

    def _count(self, text: bytes) -> None:
        self._lines += text.count(b"\n")
        self._bytes += len(text)

    def _say(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            _LOG.warning("%s", text)


def _every_second(rows: Sequence[str], at: int) -> list[str]:
    """Every second row up to the last. Rows with a value in column `at` are evaluations: all stay, unless they are the most."""
    evaluated = [at >= 0 and row.split(",", at + 1)[at] != "" for row in rows]
    counts = {kind: evaluated.count(kind) for kind in (False, True)}
    kept, few = [], counts[True] <= counts[False]
    for row, kind in zip(rows, evaluated, strict=True):
        counts[kind] -= 1  # so the last of each kind stays
        if counts[kind] % 2 == 0 or (kind and few):
            kept.append(row)
    return kept


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


def check_table(run: RunDir) -> None:
    """Read `metrics.csv` to its end, before a run goes on with it. Raises RunError as `Table`; nothing is changed."""
    deque(Table(run).rows(), maxlen=0)


def truncate(run: RunDir, step: int) -> None:
    """Drops the rows after `step`, and a last line that a crash left unfinished, and puts the others in the order of their steps,
    also those of evaluations that took longer."""
    table = Table(run)
    if table.header:
        steps = ((number(row.partition(",")[0]), row) for row in table.texts())
        rows = [row for _, row in sorted(((at, row) for at, row in steps if at <= step), key=itemgetter(0))]
        run.outbox.replace(METRICS, as_csv([table.header]) + "".join(f"{row}\n" for row in rows).encode())
    elif run.metrics_file.exists():
        remove(run.metrics_file)


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
    table, names = Table(run), ("step", f"{EVALUATION}score", MARK)
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
    names = [name for name in table.header if name.startswith(EVALUATION)]
    last: tuple[str, ...] = ()
    for row in table.cells([MARK, *names]) if MARK in names else ():
        if not math.isnan(number(row[0])):
            last = row
    return {name.removeprefix(EVALUATION): number(cell) for name, cell in zip(names, last[1:], strict=False)}, False


def last_row(run: RunDir) -> dict[str, float]:
    """The last whole row of `metrics.csv`, found from its end, whatever its size; {} where there is none.

    Raises RunError as `read_metrics`.
    """
    try:
        with open(open_file(run.metrics_file, base=run.path), "rb") as file:
            first, size = file.readline(TAIL_BYTES), os.fstat(file.fileno()).st_size
            for length in (SHORT_TAIL, TAIL_BYTES):  # a live page asks every second, and the last row is short
                file.seek(max(0, size - length))
                if (row := _last_in(run, first, file.read(length), cut=length < size)) or length >= size:
                    return row
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"{run.metrics_file} is not readable: {error.strerror or error}") from None
    return {}


def _last_in(run: RunDir, first: bytes, tail: bytes, cut: bool) -> dict[str, float]:
    """Return the last whole row of the end of a table that begins with `first`; {}: none. `cut`: the end begins within a line."""
    lines = tail[: tail.rfind(b"\n") + 1].splitlines(keepends=True)[cut:]
    for line in reversed(lines[-MAX_LINES:] if first.endswith(b"\n") else []):  # a crash leaves one torn
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
        """Yield of each of `rows` the cells in these columns, one or more."""
        places = {name: at for at, name in enumerate(self.header)}
        wanted = [places[name] for name in names]
        rows = self._rows(max(wanted) + 1)  # what stands behind the last is not taken apart
        return ((row[wanted[0]],) for row in rows) if len(wanted) == 1 else map(itemgetter(*wanted), rows)

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
