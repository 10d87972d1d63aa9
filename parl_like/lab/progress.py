"""The display of a run while it goes on: a live table on a terminal, else one `key=value` line every few seconds."""

from __future__ import annotations

import io
import logging
import math
import textwrap
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from parl_like.lab.notebook import UpdatingLine, in_notebook
from parl_like.lab.screen import Screen, can_draw, size_of
from parl_like.lab.text import cut, escaped, printer

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger("parl_like.lab")

REFRESH_S = 0.5, 2.0  # of the live table: at first; and from 200 s on, for a recorded terminal keeps every one
RATE_WINDOW_S = 10.0  # steps/s is that of now, not of the whole run
MAX_LINES = 12
WIDTH = 120  # of a plain line
COUNTS = 4  # see `rows_of`
_WRONG = ("errors", "late", "dropped", "skipped", "bad_values")  # counters that are shown only where they are not 0
# What a plain line shows of a robot's metrics, in this order and as far as there is room; the live table has more.
_FIRST = ("return/mean", "evaluation/last", "evaluation/best", "episode/length")
_BEGINNINGS, _ENDS = ("return/", "episode/"), ("/loss",)


def show(stream: TextIO | None, text: str) -> None:
    """Prints a line for whoever reads along. Where nobody can (a closed pipe, a full disk behind `>`), nothing happens."""
    if stream is not None:
        with suppress(OSError):
            print(cut(text), file=printer(stream), flush=True)


def wrapped(text: str, width: int = WIDTH) -> str:
    """A text in lines of at most `width` columns, where words end: long paths stay whole. Later lines are indented.

    Args:
        width: That of the terminal; at most `WIDTH`.
    """
    return textwrap.fill(text, min(width, WIDTH), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def width_of(stream: TextIO | None) -> int:
    """Return how many columns a line may have: those of a terminal, else `WIDTH`."""
    return size_of(stream)[0] - 1 if stream is not None and stream.isatty() else WIDTH


class Progress:
    """Shows how far a run is.

    Args:
        title: Name of the run and what it is.
        total_steps: Environment steps at which the run ends; infinity: nobody knows.
        start_step: Environment steps that are done already.
        log_every_s: Seconds between two plain lines. On a terminal they go to the log only, and in a notebook there is one that
            changes.
        stream: Where to show it; None: the log only.
        clock: Monotonic seconds.
    """

    def __init__(self, title: str, total_steps: float, start_step: int, log_every_s: float, stream: TextIO | None,
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self.title, self.total_steps, self.log_every_s, self.stream, self.clock = title, total_steps, log_every_s, stream, clock
        self.started = self._next_table = self._next_sample = clock()
        self._recent = deque([(self.started, start_step)])
        self._next_line = self.started + log_every_s
        self._screen = Screen(stream) if stream is not None and can_draw(stream) else None
        self._line = UpdatingLine(stream) if stream is not None and self._screen is None and in_notebook(stream) else None

    def tick(self, step: int, metrics: Callable[[], Mapping[str, float]]) -> None:
        """Called after every iteration; asks for the metrics only when it is time to show something."""
        time_now = self.clock()
        if time_now < self._next_sample:
            return
        self._next_sample = time_now + REFRESH_S[0] / 5
        self._recent.append((time_now, step))
        while len(self._recent) > 2 and self._recent[0][0] < time_now - RATE_WINDOW_S:
            self._recent.popleft()
        if time_now >= self._next_line:
            self._next_line = time_now + self.log_every_s
            line = self.line(step, metrics())
            log.info(line)
            if self._screen is None and self._line is None:
                show(self.stream, line)
        if time_now >= self._next_table:
            self._next_table = time_now + min(max(REFRESH_S[0], (time_now - self.started) / 100), REFRESH_S[1])
            if self._screen is not None:
                self._screen.draw(self.drawn(step, metrics(), self._screen.size()[0] - 1))
            elif self._line is not None:
                self._line.draw(self.line(step, metrics()))

    @property
    def draws(self) -> bool:
        """Return whether there is a table."""
        return self._screen is not None

    def say(self, text: str) -> None:
        """A line for whoever reads along, above the table."""
        if self.stream is not None and self.stream.isatty():  # a file keeps one line of what is one, to be searched
            text = wrapped(text, width_of(self.stream))
        if self._screen is not None:
            self._screen.above(text)
        elif self._line is not None:
            self._line.above(cut(text))
        else:
            show(self.stream, text)

    def steps_per_s(self) -> float:
        """Environment steps per second over the last ten seconds; NaN at the start."""
        (then, before), (time_now, step) = self._recent[0], self._recent[-1]
        return (step - before) / (time_now - then) if time_now > then else math.nan

    def seconds_left(self, step: int) -> float:
        rate = self.steps_per_s()
        return max(0, self.total_steps - step) / rate if rate > 0 else math.nan  # the last iteration may go beyond the end

    def line(self, step: int, metrics: Mapping[str, float]) -> str:
        """One line of at most `WIDTH` columns: how far it is, returns, evaluations and losses; what has no room is left out
        whole."""
        shown = {key: metrics[key] for key in _FIRST if key in metrics}
        shown |= {key: value for key, value in metrics.items() if key.startswith(_BEGINNINGS) or key.endswith(_ENDS)}
        fields = {"step": step, **shown}
        end = [f"steps_per_s={_number(self.steps_per_s())}"] * (not math.isnan(self.steps_per_s()))
        end += [f"left={_time(self.seconds_left(step))}"]
        text, *rest = [escaped(f"{key}={_number(value)}") for key, value in fields.items() if not math.isnan(value)]
        for one in rest:
            if len(text) + len(one) + sum(map(len, end)) + 1 + len(end) <= WIDTH:
                text = f"{text} {one}"
        return " ".join([text, *end])

    def end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Say how it has ended: in the line that changes, else in one more line."""
        last, there = self.line(step, metrics), self._line
        if there is not None:
            there.draw(last)
        self.close()
        if there is None:
            show(self.stream, last)

    def close(self) -> None:
        """End the table, or the line that changes; lines are shown as before."""
        for drawing in (self._screen, self._line):
            if drawing is not None:
                drawing.close()
        self._screen = self._line = None

    def drawn(self, step: int, metrics: Mapping[str, float], width: int) -> list[str]:
        """The table as lines of text."""
        from rich.console import Console

        out = io.StringIO()
        console = Console(file=out, width=width, force_terminal=False, color_system=None, emoji=False)
        console.print(self._table(step, metrics, width))
        return [line.rstrip() for line in out.getvalue().splitlines()]

    def _table(self, step: int, metrics: Mapping[str, float], width: int = 80) -> Table:
        """At most MAX_LINES lines of at most `width` columns: what matters most first, and what has no room left out whole."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        of = f" of {self.total_steps:,}" if math.isfinite(self.total_steps) else ""
        speed = f"{step:,}{of} env steps, {_number(self.steps_per_s())}/s,"
        times = f"{_time(self.clock() - self.started)} gone,", f"{_time(self.seconds_left(step))} left"
        rows = [("run", self.title.replace(", ", ",\0").split("\0")), ("steps", [speed, *times])]
        found = [(kind, label, [f"{name} {_number(value)}" for name, value in items]) for kind, label, items in rows_of(metrics)]
        head, tail = ([(label, words) for kind, label, words in found if (kind < COUNTS) == first] for first in (True, False))
        room = max(20, width - max(len(escaped(label)) for label, _ in [*rows, *head, *tail]) - 2)

        def lines(rows: list[tuple[str, list[str]]], gap: str) -> list[tuple[str, str]]:
            return [(escaped(label) * (i == 0), line) for label, words in rows
                    for i, line in enumerate(_lines([*map(escaped, words)], room, gap))]

        run = lines(rows, " ")
        for cells in [*lines(head, "  ")[: MAX_LINES - len(run) - 1], *run]:
            table.add_row(*map(Text, cells))
        size = min(40, room)
        done = min(int(size * step // max(self.total_steps, 1)), size)
        table.add_row("", "━" * done + "─" * (size - done))
        for row in tail:
            for cells in lines([row], "  ")[: None if row[0] == "counts" else 1]:  # of a queue what fits a line
                if table.row_count < MAX_LINES:
                    table.add_row(*map(Text, cells))
        return table


def rows_of(metrics: Mapping[str, float]) -> list[tuple[int, str, list[tuple[str, float]]]]:
    """Kind, label and (name, value) of every row of the live table, in its order: returns, evaluations, what went wrong (if
    anything did), each task's losses and other numbers; then, from the kind `COUNTS` on, counters and queues."""
    rows: dict[tuple[int, str], list[tuple[str, float]]] = {}
    for key, value in metrics.items():
        group, _, name = key.rpartition("/")
        if math.isnan(value) or (name in _WRONG or group in ("updates", "rows")) and not value:
            continue  # before the first update its counters say nothing
        if group in ("return", "episode"):
            row, name = (0, "return"), name if group == "return" else f"{group} {name}"
        elif group == "evaluation":
            row = (1, group)
        elif name in _WRONG:
            row, name = (2, "wrong"), key
        elif group in ("updates", "rows") or key == "episodes":
            row, name = (COUNTS, "counts"), key
        else:
            row = (COUNTS + 2, "more") if not group else (COUNTS + 1 if "/" in group else 3, group)
        rows.setdefault(row, []).append((name, value))
    for (kind, _), items in rows.items():  # stable: what is alike keeps its order
        if kind == 3:
            items.sort(key=lambda item: (not item[0].endswith("loss"), item[0] != "loss"))
        elif kind == COUNTS + 1:
            items.sort(key=lambda item: item[0] not in ("mean_batch", "queue_depth"))
    return [(*row, items) for row, items in sorted(rows.items(), key=lambda row: row[0][0])]


def _lines(items: Sequence[str], width: int, gap: str) -> list[str]:
    """The items side by side, in as many lines of at most `width` columns as they need."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(gap) + len(item) <= width:
            lines[-1] += gap + item
        else:
            lines.append(item if len(item) <= width else item[: width - 1] + "…")
    return lines


def _number(value: float) -> str:
    if math.isnan(value):
        return "?"
    return f"{value:.0f}" if float(value).is_integer() or 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}h{rest // 60:02d}m" if hours else f"{rest // 60}m{rest % 60:02d}s" if rest >= 60 else f"{rest}s"
