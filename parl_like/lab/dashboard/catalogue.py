"""The list of runs that a page may show, and of their files. What a request names is looked up here; no path is made of it."""

from __future__ import annotations

import hashlib
import heapq
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parl_like.lab.runs.rundir import RunDir

MAX_RUNS = 500  # of a page: the newest
MAX_ENTRIES = 20_000  # of folders that are looked through for runs, all together
MAX_DEPTH = 4  # folders below one that the user has named
MAX_FILES = 60  # pictures and films of a run
SCAN_S = 5.0  # between two looks for new runs
KINDS = {".gif": "image/gif", ".png": "image/png", ".webp": "image/webp", ".jpg": "image/jpeg", ".jpeg": "image/jpeg",
         ".mp4": "video/mp4"}
"""Endings of files that a page shows. None may hold a script."""


def id_of(*parts: str) -> str:
    """A name for an address: the same whenever it is asked for, so that a link stays good."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Entry:
    """A run on the list.

    Attributes:
        real: Where it really was when it was listed; it is read only as long as it is there.
        base: The folder that the user has named, below which no link is followed.
    """

    id: str
    name: str
    run: RunDir
    real: str
    base: Path

    def is_there(self) -> bool:
        return os.path.realpath(self.run.path) == self.real and os.path.isdir(self.real)


@dataclass(frozen=True)
class Picture:
    """A picture or film of a run, in the folder `videos` or `plots`."""

    id: str
    name: str
    path: Path
    base: Path
    kind: str
    size: int


class Catalogue:
    """The runs below some folders.

    Args:
        paths: Run directories, or folders to look for them in.

    Attributes:
        entries: By id, the newest first.
        notes: What was left out.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.entries: dict[str, Entry] = {}
        self.notes: list[str] = []
        self._next = 0.0

    def look(self) -> None:
        """Looks for runs, if that is some seconds ago."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SCAN_S
        self.notes, left = [], MAX_ENTRIES
        found: dict[str, tuple[float, Entry]] = {}
        for path in self.paths:
            if os.path.lexists(path / "run.json"):
                self._add(found, path, path, path.name)
                continue
            folders = [(path, 0)]
            while folders:
                folder, depth = folders.pop()
                inner, left = _folders_in(folder, left)
                for one in inner:
                    if os.path.lexists(one / "run.json"):
                        self._add(found, one, path, str(one.relative_to(path)))
                    elif depth < MAX_DEPTH:
                        folders.append((one, depth + 1))
            if left <= 0:
                self.notes.append(f"{path}: only the first {MAX_ENTRIES:,} files and folders were looked through")
                break
        if len(found) > MAX_RUNS:
            self.notes.append(f"{len(found):,} runs: the newest {MAX_RUNS} are shown; name the folders of others")
        newest = heapq.nlargest(MAX_RUNS, found.items(), key=lambda item: item[1][0])
        self.entries = {name: self.entries.get(name, entry) for name, (_, entry) in newest}

    def _add(self, found: dict[str, tuple[float, Entry]], path: Path, base: Path, name: str) -> None:
        try:
            changed = os.lstat(path / "run.json").st_mtime
        except OSError:  # deleted meanwhile
            return
        real = os.path.realpath(path)
        found[id_of(real)] = changed, Entry(id_of(real), name, RunDir(path, base), real, base)


def _folders_in(folder: Path, left: int) -> tuple[list[Path], int]:
    """The folders in one, by name, without links and hidden ones, and how many more entries may be looked at."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    break
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    found.append(folder / entry.name)
    except OSError:  # deleted, or not for us
        pass
    return sorted(found), left


def pictures(entry: Entry) -> list[Picture]:
    """The newest pictures and films of a run."""
    found: list[tuple[float, Picture]] = []
    for folder in (entry.run.videos, entry.run.plots):
        left = MAX_ENTRIES // 10
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                continue
            with os.scandir(folder) as inside:
                for one in inside:
                    left -= 1
                    if left < 0:
                        break
                    kind = KINDS.get(os.path.splitext(one.name)[1].lower(), "")
                    if kind and one.is_file(follow_symlinks=False):
                        info = one.stat(follow_symlinks=False)
                        name = f"{folder.name}/{one.name}"
                        found.append((info.st_mtime, Picture(id_of(entry.id, name, str(info.st_mtime_ns)), name,
                                                             folder / one.name, entry.base, kind, info.st_size)))
        except OSError:
            continue
    return [picture for _, picture in heapq.nlargest(MAX_FILES, found, key=lambda one: one[0])]
