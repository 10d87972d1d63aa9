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
TAIL_BYTES = 65_536  # of a file that is read for its last row only


class MetricsLog:
    """Writes rows of metrics, each in its file when `write` returns.

    The first row of a run decides the header of `metrics.csv`, and it never changes: parsers and appenders rely on it. So a robot
    gives all its metrics from the start, NaN (an empty cell) where it knows nothing yet. A key that nevertheless comes later is
    announced once in `events.jsonl` and goes to `metrics_extra.csv`, one line `step, key, value` each; a missing one leaves its
    cell empty.

    Args:
        run: Where to write. The files are continued where they exist; call `truncate` first when a run is resumed.
        tensorboard: Also write TensorBoard files. Needs the extra `tb`; see `tensorboard_missing`.
        start_step: Where this process begins; TensorBoard then hides what an earlier process wrote after it.
    """

    def __init__(self, run: RunDir, *, tensorboard: bool = False, start_step: int = 0) -> None:
        self.run = run
        self.header = _header_of(run.metrics_file)
        self._late: set[str] = set()
        self._writer: Any = None
        if tensorboard and not tensorboard_missing():
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(run.tensorboard), purge_step=start_step + 1 if start_step else None)

    def write(self, row: Mapping[str, float]) -> None:
        """Writes one row. `row` begins with `step`, in environment steps."""
        if not self.header:
            self.header = list(row)
            _append(self.run.metrics_file, [self.header])
        _append(self.run.metrics_file, [[_cell(row.get(key, math.nan)) for key in self.header]])
        late = {key: value for key, value in row.items() if key not in self.header and not math.isnan(value)}
        if late:
            self._write_late(row["step"], late)
        if self._writer is not None:
            for key, value in row.items():
                if key != "step" and not math.isnan(value):
                    self._writer.add_scalar(key, value, int(row["step"]))

    def _write_late(self, step: float, late: Mapping[str, float]) -> None:
        for key in [key for key in late if key not in self._late]:
            self.run.event("late metric", key=key, step=step, file=self.run.extra_file.name)
        self._late |= late.keys()
        header = [] if _header_of(self.run.extra_file) else [EXTRA_HEADER]
        _append(self.run.extra_file, [*header, *([_cell(step), key, _cell(value)] for key, value in late.items())])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def tensorboard_missing() -> bool:
    return importlib.util.find_spec("tensorboard") is None


def truncate(run: RunDir, step: int) -> None:
    """Drops the rows after `step` from both metrics files, and a last line that a crash left unfinished."""
    for path in (run.metrics_file, run.extra_file):
        header = _header_of(path)
        if not header:
            path.unlink(missing_ok=True)
            continue
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))[1:]
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *(row for row in rows if len(row) == len(header) and _number(row[0]) <= step)])
        write_atomically(path, out.getvalue())


def read_metrics(path: Path) -> dict[str, list[float]]:
    """The columns of a `metrics.csv`; an empty or damaged cell is NaN, an unfinished last line is left out."""
    header = _header_of(path)
    columns: dict[str, list[float]] = {key: [] for key in header}
    if header:
        with open(path, encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            next(rows)
            for row in rows:
                if len(row) == len(header):
                    for key, cell in zip(header, row, strict=True):
                        columns[key].append(_number(cell))
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
