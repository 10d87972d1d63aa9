"""The writer of a run's files while it goes on. A disk that refuses for a while costs nothing: what it refused waits in
memory."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from parl_like.data.storage.safe_files import open_file, open_folder, replace_file
from parl_like.lab.yaml_text import UsageError

MAX_WAITING = 32 << 20  # bytes, of all files together; what comes when they are full is lost, and counted
RETRY_S = 0.2
PIECE = 1 << 18  # bytes of a file that are read at once

_LOG = logging.getLogger(__name__)


class RunError(UsageError):
    """The directory is not a run, is one already, holds what no run has written, or is gone."""


class Outbox:
    """Appends to the files of a directory and replaces them; several threads may do so. Links in it are never followed.

    Args:
        folder: The directory. One that is deleted or replaced meanwhile ends in a RunError, never in a new directory.
        warn: Gets one line for each cause that the disk names, once.
        base: A folder above it that the user has named, below which no link is followed; None: the directory itself.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None] | None = None, base: Path | None = None) -> None:
        self._base = base or folder
        self.folder, self.warn = folder, warn or _LOG.warning
        self._lock = threading.RLock()  # a warning is an event, too, and comes back here
        self._replaced: dict[str, bytes] = {}
        self._appended: dict[str, bytearray] = {}
        self._held = -1  # a descriptor of the directory: as long as it is open, no other one gets its number
        self._causes: set[str] = set()
        self._lost = 0
        self._retry_at = 0.0

    def append(self, name: str, data: bytes) -> None:
        """Adds `data` to the file `name`, which may be `folder/file`; both are made where they are missing."""
        with self._lock:
            if sum(map(len, self._appended.values())) + len(data) > MAX_WAITING:
                self._lost += 1
            else:
                self._appended.setdefault(name, bytearray()).extend(data)
            self.tend()

    def replace(self, name: str, data: bytes) -> None:
        """Makes `data` the content of the file `name`, in one step."""
        with self._lock:
            self._appended.pop(name, None)
            self._replaced[name] = data
            self.tend()

    def offer(self, name: str, data: bytes) -> None:
        """Makes `data` the content of a file that nobody waits for: where the disk does not take it now, it is lost."""
        with self._lock, suppress(OSError):
            self.check()
            replace_file(self.folder / name, data, base=self.folder)

    def read(self, name: str, limit: int) -> bytes:
        """The content of a plain file of at most `limit` bytes, what waits included. Raises OSError."""
        with self._lock:
            return b"".join(self.pieces(name, limit))

    def pieces(self, name: str, limit: int) -> Iterator[bytes]:
        """`read`, piece by piece: the content as it is when the first one is asked for. Raises OSError then."""
        with self._lock:
            file, waiting = -1, bytes(self._appended.get(name, b""))
            if name in self._replaced:
                waiting = self._replaced[name] + waiting
            else:
                try:
                    file = open_file(self.folder / name, base=self._base, limit=limit)
                except FileNotFoundError:
                    if name not in self._appended:
                        raise
            left = os.fstat(file).st_size if file >= 0 else 0  # what is appended meanwhile is not read
        if file >= 0:
            with open(file, "rb", buffering=0) as opened:
                while left and (piece := opened.read(min(left, PIECE))):
                    left -= len(piece)
                    yield piece
        yield waiting

    def tail(self, name: str, size: int) -> tuple[bytes, bool]:
        """The last `size` bytes of a file on the disk, and whether they are all of it. Raises OSError."""
        with open(open_file(self.folder / name, base=self._base), "rb", buffering=0) as file:
            whole = os.fstat(file.fileno()).st_size
            file.seek(max(0, whole - size))
            return file.read(size), whole <= size

    def tend(self) -> None:
        """Tries once more to write what waits, if the last attempt is a moment ago. Cheap where nothing waits."""
        with self._lock:
            if (self._replaced or self._appended) and time.monotonic() >= self._retry_at:
                self._write()

    def flush(self, patience: float = 0.0) -> list[str]:
        """Writes what waits, and tries for `patience` seconds. Returns the names of files that could not be written."""
        until = time.monotonic() + patience
        while True:
            with self._lock:
                self._write()
                left = list({**self._replaced, **self._appended})
            if not left or time.monotonic() >= until:
                return left
            time.sleep(RETRY_S)

    def overwrite(self, name: str, data: bytes) -> bool:
        """Puts JSON into the bytes that the file has already, which works where the disk is full; False where it does not fit."""
        with self._lock, suppress(OSError):
            self.check()
            file = open_file(self.folder / name, os.O_RDWR, base=self.folder)
            try:
                size = os.fstat(file).st_size
                if len(data) <= size and os.pwrite(file, data.ljust(size), 0) == size:
                    self._replaced.pop(name, None)
                    os.fsync(file)
                    return True
            finally:
                os.close(file)
        return False

    def check(self) -> None:
        """Raises RunError where the directory is no longer the one that was written to."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._held < 0:
                self._held = open_folder(self.folder, self.folder)
                weakref.finalize(self, os.close, self._held)
            if os.path.samestat(os.stat(self.folder), os.fstat(self._held)):
                return
        raise RunError(f"the run directory {self.folder} was deleted or replaced while it was in use; nothing more can be saved "
                       "in it")

    def _write(self) -> None:
        refused = ""
        for name in {**self._replaced, **self._appended}:
            try:
                self.check()
                self._write_one(name)
            except OSError as error:
                refused = f"{name}: {error.strerror or error}"
        if refused:
            self._retry_at = time.monotonic() + RETRY_S
            cause = refused.rpartition(": ")[2]
            if cause not in self._causes:
                self._causes.add(cause)
                self.warn(f"{self.folder}: {refused}; what is written there waits in memory until it can be written")
        elif self._lost:
            lost, self._lost = self._lost, 0
            self.warn(f"{self.folder}: {lost} lines were lost, since over {MAX_WAITING} bytes waited to be written")

    def _write_one(self, name: str) -> None:
        path = self.folder / name
        if path.parent != self.folder:
            with suppress(FileExistsError):
                os.mkdir(path.parent, 0o700)
        if name in self._replaced:
            replace_file(path, self._replaced[name], base=self.folder)
            del self._replaced[name]
        if name in self._appended:
            file, waiting = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, base=self.folder), self._appended[name]
            try:
                while waiting:  # what was written is not written again, wherever the disk stops
                    del waiting[: os.write(file, waiting)]
            finally:
                os.close(file)
            del self._appended[name]
