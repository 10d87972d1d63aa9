"""Board: what a page is told of runs, read from their directories as they are now. Each answer is JSON values whose texts are
for people."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from parl_like.data.storage.safe_files import open_file, read_file
from parl_like.lab import config as configs
from parl_like.lab.dashboard import robot_state
from parl_like.lab.dashboard.catalogue import Catalogue, Entry, Picture, pictures
from parl_like.lab.dashboard.columns import SECONDS, STEP, Column, bucketed, header_of
from parl_like.lab.reports.difference import facts
from parl_like.lab.reports.plots import BOOKKEEPING
from parl_like.lab.runs.metrics import MAX_LINE, METRICS, last_row
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import plain
from parl_like.lab.text import for_page
from parl_like.lab.yaml_text import Tree, UsageError
from parl_like.values.errors import shortened, without_trace

TURN_S = 0.06  # of reading in one answer; what is left comes with the next one
TEXT = 500  # characters of a text of a run
HEAD = 1 << 13  # bytes of a table that are read first for its header; then twice as many, and so on
MAX_COLUMNS = 2_000  # metrics that a page can choose from
MAX_EVENTS, EVENT_BYTES = 300, 1 << 18
MAX_CURVES = 2_000  # that are kept in memory: each has some 16,000 points at most
MAX_POINTS = 120_000  # of curves in one answer
MAX_PICTURE = 32 << 20  # bytes
COMPARED = 8  # runs that are compared at a time
MAX_ROWS = 1_000  # of settings and differences
FILES = ("run.json", "result.json", METRICS, "config.yaml")
DAMAGED = (UsageError, ValueError, AttributeError, TypeError, OverflowError, RecursionError)
"""Errors that a file raises which no run has written; it shows, and harms no other run."""


class NotThere(LookupError):
    """An address names nothing that is on the list."""


def for_people(value: object) -> Any:
    """JSON values whose texts are shown as text; long ones lose their middle."""
    if isinstance(value, str):
        return shortened(for_page(value), TEXT)
    if isinstance(value, Mapping):
        return {for_people(str(key)): for_people(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [for_people(part) for part in value]
    return plain(value)


class Board:
    """Runs as a page shows them.

    Several threads may ask; one at a time is answered. What was read is kept as long as its file is the same, and the rest is
    forgotten, so memory does not grow.

    Args:
        paths: Run directories, or folders with such.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.catalogue = Catalogue(paths)
        self._lock = threading.Lock()
        self._now = 1  # counts changes; an answer says which was the last one, and the next question from which on
        self._rows: dict[str, _Known] = {}
        self._curves: OrderedDict[tuple[str, str], _Followed] = OrderedDict()

    # ------------------------------------------------------------------------------------------------------------- answers

    def runs(self, since: int = 0) -> Tree:
        """Return the table of runs, of which those that have changed after `since`; `ids`: all of them, newest first."""
        with self._lock:
            self.catalogue.look()
            entries, until = self.catalogue.entries, time.perf_counter() + TURN_S
            for name in self._rows.keys() - entries.keys():
                del self._rows[name]
            more, n_read = False, 0
            for name, entry in entries.items():
                known = self._rows.setdefault(name, _Known())
                before, late = known.read, n_read > 0 and time.perf_counter() > until  # each answer brings it further
                more = known.look(entry, self._tick, late) or more
                n_read += known.read - before
            rows = [known.row for known in self._rows.values() if known.changed > since]
            names = sorted({name for known in self._rows.values() for name in known.columns})
            return {"now": self._now, "ids": [*entries], "runs": rows, "more": more, "notes": self.catalogue.notes,
                    "metrics": names[:MAX_COLUMNS]}

    def curves(self, metrics: Sequence[str], ids: Sequence[str], since: int = 0) -> Tree:
        """Return the curves of these metrics and runs that have changed after `since`, thinned out. `more`: ask again at once,
        since `now`, for what this answer had no time or no room for."""
        with self._lock:
            until, more, n_read, changed = time.perf_counter() + TURN_S, False, 0, list[tuple[_Followed, Tree]]()
            there = [(name, entry) for name in dict.fromkeys(ids)
                     if (entry := self.catalogue.entries.get(name)) is not None and entry.is_there()]
            for metric in dict.fromkeys(metrics):
                for name, entry in there:
                    column = self._rows[name].columns.get(metric) if name in self._rows else None
                    if column is None:
                        continue
                    curve = self._curves.get((name, column))
                    behind = curve is None or curve.behind
                    if n_read and behind and time.perf_counter() > until:  # each answer brings it further
                        more = True
                    else:
                        n_read += behind
                        curve = self._curve(entry, column)
                        more = curve.look(self._tick, until) or more
                    if curve is not None and curve.changed > since:
                        changed.append((curve, {"run": name, "metric": metric}))
            # What changed first is told first, so `now` says what has been told where the rest has no room.
            now, left, out = self._now, MAX_POINTS, list[Tree]()
            for curve, named in sorted(changed, key=lambda one: one[0].changed):
                if left <= 0:
                    return {"now": now, "curves": out, "more": True}
                out.append(named | curve.shown)
                now, left = curve.changed, left - curve.size
            return {"now": self._now, "curves": out, "more": more}

    def whole(self, metrics: Sequence[str], ids: Sequence[str]) -> list[Tree]:
        """Return all curves of these metrics and runs, however long that takes."""
        found, now, more = dict[tuple[str, str], Tree](), 0, True
        while more:
            answer = self.curves(metrics, ids, now)
            found |= {(one["metric"], one["run"]): one for one in answer["curves"]}
            now, more = answer["now"], answer["more"]
        return [*found.values()]

    def run(self, name: str) -> Tree:
        """Return all that a page shows of one run but its curves: settings, robot, events, files."""
        with self._lock:
            entry = self._entry(name)
            known = self._rows.setdefault(name, _Known())
            known.look(entry, self._tick)
            out: Tree = {"row": known.row, "settings": known.settings, "versions": {}, "robot": {}, "events": [], "notes": []}
            with _said(out):
                info = entry.run.info()
                git = {} if info.git is None else {"commit": info.git.commit, "changed since": info.git.dirty}
                out["versions"] = for_people({**info.versions, **git, "command": " ".join(info.command)})
            with _said(out):
                out["robot"] = for_people(robot_state.read(entry.run))
            with _said(out):
                out["events"] = for_people(_events(entry))
            with _said(out):
                result = entry.run.result() or {}
                out["notes"] += for_people([*_texts(result.get("remarks")), *_texts(result.get("notes"))])
            out["files"] = [{"id": one.id, "name": for_people(one.name), "kind": one.kind, "size": one.size}
                            for one in pictures(entry)]
            return out

    def differences(self, names: Sequence[str]) -> Tree:
        """Return in what some runs differ: rows of `what` and `values`, one for each run."""
        with self._lock:
            found: list[dict[str, object]] = []
            for name in names[:COMPARED]:
                try:
                    found.append(facts(self._entry(name).run))
                except DAMAGED as error:
                    found.append({"readable": without_trace(error)})
                except NotThere:
                    found.append({"readable": "it was deleted"})
            rows = []
            for what in dict.fromkeys(key for one in found for key in one):
                values = [one.get(what) for one in found]
                if any(value != values[0] for value in values):
                    rows.append({"what": what, "values": [value if value is None else _said_as(value) for value in values]})
            return {"runs": [*names[:COMPARED]], "rows": for_people(rows[:MAX_ROWS])}

    def picture(self, name: str, file: str) -> tuple[bytes, str]:
        """Return the bytes and the type of a picture of a run. Raises NotThere: it is not on the list, too large or no file."""
        with self._lock:
            one = next((one for one in pictures(self._entry(name)) if one.id == file), None)
        if one is None:
            raise NotThere(file)
        return read_picture(one), one.kind

    # ------------------------------------------------------------------------------------------------------------- within

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _entry(self, name: str) -> Entry:
        self.catalogue.look()
        entry = self.catalogue.entries.get(name)
        if entry is None or not entry.is_there():
            raise NotThere(name)
        return entry

    def _curve(self, entry: Entry, column: str) -> _Followed:
        key = (entry.id, column)
        if key not in self._curves:
            self._curves[key] = _Followed(Column(entry.run.path, entry.base, column))
            if len(self._curves) > MAX_CURVES:
                self._curves.popitem(last=False)
        self._curves.move_to_end(key)
        return self._curves[key]


class _Known:
    """A run's row in the table, kept as long as its files are the same.

    Attributes:
        row: JSON values. settings: key → text. columns: Its metrics: as they are shown → as they are. changed: When it did, as
            the board counts.
        read: How often its settings were.
    """

    def __init__(self) -> None:
        self.row: Tree = {}
        self.settings: dict[str, str] = {}
        self.columns: dict[str, str] = {}
        self.changed = self.read = 0
        self._seen: tuple[object, ...] = ()
        self._config: object = ()
        self._alive = ""

    def look(self, entry: Entry, tick: Callable[[], int], late: bool = False) -> bool:
        """Reads what has changed. `late`: the answer has taken its time, so settings wait; returns whether they do."""
        seen = tuple(_stamp(entry.run.path / name) for name in FILES)
        waits = late and seen[-1] != self._config
        alive = self._state(entry) if self._alive in ("", "running") or seen != self._seen else self._alive
        if (seen, alive) == (self._seen, self._alive) and seen[-1] == self._config:
            return False
        if (seen, alive) != (self._seen, self._alive) or not waits:
            if not waits and seen[-1] != self._config:
                self._config, self.read = seen[-1], self.read + 1
                self._read_settings(entry)
            self._seen, self._alive = seen, alive
            row = self._read(entry)
            if row != self.row:
                self.row, self.changed = row, tick()
        return waits

    @staticmethod
    def _state(entry: Entry) -> str:
        if not entry.is_there():
            return "deleted"
        try:
            return entry.run.state()
        except UsageError:
            return "damaged"

    def _read_settings(self, entry: Entry) -> None:
        self.settings = {}
        with suppress(UsageError):
            flat = configs.flat(entry.run.config())
            self.settings = for_people({key: _said_as(value) for key, value in [*flat.items()][:MAX_ROWS]})

    def _read(self, entry: Entry) -> Tree:
        row: Tree = {"id": entry.id, "name": for_people(entry.name), "state": self._alive, "experiment": "", "setting": "",
                     "seed": self.settings.get("seed", ""), "steps": None, "total": _number(self.settings.get("total_steps")),
                     "score": None, "best": None, "return": None, "started": "", "seconds": None, "speed": None, "note": ""}
        try:
            info, last = entry.run.info(), last_row(entry.run)
            self.columns = {for_people(name): name for name in _header(entry)}
            result = entry.run.result() or {}
            differs = {key: value for key, value in info.differs.items() if key.split(".")[0] not in BOOKKEEPING}
            score = _score(result.get("evaluation"), info.evaluated.get("score"))
            setting = " ".join(f"{key}={_said_as(value)}" for key, value in sorted(differs.items()))
            row |= {"experiment": info.experiment, "setting": setting,
                    "steps": last.get(STEP), "score": score, "best": info.evaluated.get("best"),
                    "return": last.get("return/mean"), "started": info.started, "seconds": last.get(SECONDS),
                    "speed": last.get("steps_per_s"), "note": info.exit_reason}
        except DAMAGED as error:
            row |= {"state": row["state"] if row["state"] == "deleted" else "damaged", "note": without_trace(error)}
        return dict(for_people(row))


class _Followed:
    """A curve as it is shown. `changed`: When it did, as the board counts; `behind`: it was not read to its end."""

    def __init__(self, column: Column) -> None:
        self.shown: Tree = {"points": {}, "seconds": []}
        self.changed, self.size, self.behind = 0, 0, True
        self._column, self._broken, self._new = column, False, False

    def look(self, tick: Callable[[], int], until: float) -> bool:
        """Reads on until that time; returns whether more may be there."""
        try:
            new, self.behind = self._column.advance(until)
        except RunError:
            new, self.behind = not self._broken, False  # it is no table, which its row says; what was read of it stays
            self._broken = True
        self._new = self._new or new
        if self._new and not self.behind:  # a curve comes whole
            self._new = False
            steps, values, seconds = self._column.points()
            points = bucketed(steps, values)
            self.shown = {"points": points, "seconds": bucketed(seconds, values)["x"]}
            self.size, self.changed = 4 * len(points["x"]), tick()
        return self.behind


def read_picture(one: Picture) -> bytes:
    """Its bytes. Raises NotThere: it is too large, a link, or gone."""
    try:
        return read_file(one.path, base=one.base, limit=MAX_PICTURE)
    except OSError:
        raise NotThere(one.name) from None


@contextmanager
def _said(out: Tree) -> Iterator[None]:
    """Make a note of what cannot be read, which harms nothing else."""
    try:
        yield
    except DAMAGED as error:
        out["notes"] = [*out["notes"], for_people(without_trace(error))]


def _stamp(path: Path) -> object:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino


def _header(entry: Entry) -> list[str]:
    """The metrics of a run."""
    names, head = list[str](), b""
    with suppress(OSError), open(open_file(entry.run.metrics_file, base=entry.base), "rb", buffering=0) as file:
        while not names and len(head) <= MAX_LINE and (piece := file.read(max(HEAD, len(head)))):
            head += piece
            names, _ = header_of(head)
    return [name for name in names if name not in (STEP, SECONDS)][:MAX_COLUMNS]


def _events(entry: Entry) -> list[Tree]:
    """The newest events of a run, the newest first."""
    text, whole = entry.run.tail("events.jsonl", EVENT_BYTES)
    found: list[Tree] = []
    for line in text.split(b"\n")[0 if whole else 1 :][-MAX_EVENTS - 1 :]:
        with suppress(msgspec.DecodeError, RecursionError):
            one = msgspec.json.decode(line)
            if isinstance(one, dict):
                more = {key: value for key, value in one.items() if key not in ("time", "event")}
                found.append({"time": str(one.get("time", "")), "event": str(one.get("event", "")),
                              "text": "  ".join(f"{key} {_said_as(value)}" for key, value in [*more.items()][:12])})
    return found[::-1]


def _texts(value: object) -> list[str]:
    return [str(one) for one in value[:50]] if isinstance(value, list) else []


def _said_as(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _score(evaluation: object, before: float | None) -> float | None:
    found = evaluation.get("score", evaluation.get("mean_return")) if isinstance(evaluation, Mapping) else None
    return found if isinstance(found, (int, float)) else before
