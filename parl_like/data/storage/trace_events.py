"""TraceEvents: a file in the trace-event format of Chrome and Perfetto, an array of JSON objects, one a line; Recorder: what
happened, on its way there.

Whole events are written, and the end of the array with them: so the file is complete after each `write`. Where a process is
killed in the middle of one, only its last line may be torn; Perfetto and `read_events` take what is before.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from time import perf_counter_ns, time
from typing import Any, NamedTuple, TypeAlias

from parl_like.data.storage.safe_files import open_file, read_named

GROUPS = ("robot", "tasks", "queues", "agents", "workers")
"""The groups of lanes, in their order; in the format they are processes, and the lanes threads."""
WAITING = 2_000
"""Spans that wait in memory, before they are written."""
MOMENT = '"i","s":"t"'
QUEUES = GROUPS.index("queues") + 1

Span: TypeAlias = tuple[str, int, int, str]
"""The beginning of its text; begin and end, in nanoseconds of `perf_counter_ns`; what `args_of` makes of numbers to be shown, or
nothing."""

_END = b"\n]\n"
MOST_BYTES = 1 << 30  # of a file that is read

_LOG = logging.getLogger(__name__)


class TraceEvents:
    """A new file of trace events.

    Args:
        path: Where; a file that is there is kept, and the new one gets a number: `timeline_2.json`.
        max_bytes: It never grows beyond that.

    Attributes:
        path: Where it is.
        size: Bytes of it.

    Raises:
        OSError: it cannot be made.
    """

    _file = -1

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._file, self.path = _new_file(path)
        self.max_bytes, self.size = max_bytes, 2
        os.write(self._file, b"[" + _END)

    def write(self, events: Sequence[str]) -> bool:
        """Add events, each the text of a JSON object; return whether all were taken. A disk that refuses ends the file as it was
        before, with a warning, for no run may end because of it."""
        data = (",\n" if self.size > 2 else "\n") + ",\n".join(events)
        text = data.encode() + _END
        if self._file < 0 or not events or self.size - 1 + len(text) > self.max_bytes:
            return not events
        at = self.size - 1  # what ends the array is written over
        try:
            if os.pwrite(self._file, text, at) < len(text):
                raise OSError("the disk is full")
        except OSError as error:
            _LOG.warning("%s gets no more events: %s", self.path, error.strerror or error)
            with suppress(OSError):  # a disk that is gone takes no end either; readers do without
                os.ftruncate(self._file, at)
                os.pwrite(self._file, _END, at)
            self.close()
            return False
        self.size = at + len(text) - len(_END) + 1
        return True

    def close(self) -> None:
        """Let go of the file, which stays as it is. May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()


def args_of(**numbers: object) -> str:
    """Return the text of the numbers of a span."""
    return f',"args":{json.dumps(numbers)}'


def _new_file(path: Path) -> tuple[int, Path]:
    for number in count(1):
        one = path if number == 1 else path.with_stem(f"{path.stem}_{number}")
        try:
            return open_file(one, os.O_RDWR | os.O_CREAT | os.O_EXCL), one
        except FileExistsError:
            pass
    raise AssertionError("there is always another number")


def read_events(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the events of a file, without a last one that is torn. Raises OSError: it cannot be read; ValueError: it is none."""
    text = read_named(path, limit=MOST_BYTES).decode(errors="replace")
    lines = text.rstrip().removesuffix("]").rstrip().split("\n")
    if lines[0] != "[":
        raise ValueError(f"{path} is no array of trace events with one a line; expected '[' in its first line")
    events = []
    for line in lines[1:]:
        try:
            events.append(json.loads(line.removesuffix(",")))
        except ValueError:
            if line is not lines[-1]:
                raise
    return events


class Lane(NamedTuple):
    """A line of spans that lie one in the other or one after the other."""

    name: str
    pid: int
    tid: int

    def head(self, name: str, kind: str = '"X"') -> str:
        """Return how the text of an event of this name begins."""
        return f'{{"ph":{kind},"pid":{self.pid},"tid":{self.tid},"name":{json.dumps(name)}'


class Recorder:
    """Events on their way to a file; several threads may add and write.

    Attributes:
        spans: Those that are not written yet. add: Adds one: a method of the list, for hot code.
        full: The present share of the file is; spans are dropped.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._file = TraceEvents(path, max_bytes)
        self.spans: list[Span] = []
        self._texts: list[str] = []
        self.add, self.full = self.spans.append, False
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._explained: set[str] = set()
        self._writing = threading.Lock()
        self._until, self._waited, self._origin = max_bytes, 0, perf_counter_ns()
        for pid, group in enumerate(GROUPS, 1):
            self._describe("process_name", pid, 0, name=group)
            self._describe("process_sort_index", pid, 0, sort_index=pid)
        self.mark(self.lane("robot", "run"), "the clock begins", {"unix_time_s": time()})

    @property
    def path(self) -> Path:
        """Return where the file is."""
        return self._file.path

    def _describe(self, what: str, pid: int, tid: int, **said: object) -> None:
        self._texts.append(json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": said}))

    def explain(self, group: str, text: str) -> None:
        """Write a remark beside the name of a group, once."""
        if group not in self._explained:
            self._explained.add(group)
            self._describe("process_labels", GROUPS.index(group) + 1, 0, labels=text)

    def lane(self, group: str, name: str) -> Lane:
        """Return the lane of this name, which is made where there is none."""
        if (lane := self._lanes.get((group, name))) is None:
            lane = self._lanes[group, name] = Lane(name, GROUPS.index(group) + 1, len(self._lanes) + 1)
            self._describe("thread_name", lane.pid, lane.tid, name=name)
            self._describe("thread_sort_index", lane.pid, lane.tid, sort_index=lane.tid)
        return lane

    def mark(self, lane: Lane, name: str, more: dict[str, Any]) -> None:
        """Note that something happens now."""
        self._texts.append(f'{lane.head(name, MOMENT)},"ts":{self._us(perf_counter_ns())},"args":{json.dumps(more)}}}')

    def waited(self, name: str, begin: int, end: int, more: str, rows: int) -> None:
        """Note that a batch waited in a queue, whose name is JSON, and how many rows wait behind it. Others may have waited
        meanwhile, so these spans have numbers and no lane."""
        self._waited += 1
        at, head = self._us(end), f'"pid":{QUEUES},"tid":0,"name":{name},"cat":"queue","id":{self._waited}'
        self._texts.append(f'{{"ph":"b",{head},"ts":{self._us(begin)},"args":{more}}},\n{{"ph":"e",{head},"ts":{at}}},\n'
                           f'{{"ph":"C","pid":{QUEUES},"tid":0,"name":{name},"ts":{at},"args":{{"rows":{rows}}}}}')

    def _us(self, ns: int) -> str:
        return f"{max(ns - self._origin, 0) * 0.001:.3f}"  # all nanoseconds, so that spans stay one in the other

    def begin_share(self, share: int) -> None:
        """From now on the file takes so many bytes."""
        self.write()
        self._until, self.full = self._file.size + share, False

    def end_share(self) -> None:
        """End what `begin_share` has begun."""
        self.write()
        self._until, self.full = self._file.max_bytes, False

    def write(self) -> None:
        """Write what waits. Of what finds no room nothing stays."""
        with self._writing:
            texts, spans, origin = self._texts[:], self.spans[:], self._origin
            del self._texts[: len(texts)], self.spans[: len(spans)]
            if self.full:
                return
            texts += [f'{head},"ts":{(begin - origin) * 0.001:.3f},"dur":{(end - begin) * 0.001:.3f}{more}}}'
                      for head, begin, end, more in spans]
            self.full = not self._file.write(texts) or self._file.size >= self._until
