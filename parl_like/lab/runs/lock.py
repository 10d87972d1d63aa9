"""One process per run directory, and which process that is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Self

import msgspec
import psutil

from parl_like.data.storage.safe_files import open_file
from parl_like.lab.yaml_text import UsageError


class RunLocked(UsageError):
    """Another process works in this run directory. The message names it and the lock file."""


class _Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that a lock file names. `started`: as `process_started`."""

    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    started: float
    host: str


class RunLock:
    """The right to write in a run directory, as the file `run.lock` with pid, process start and host; use it in a `with`.

    The start is counted from the machine's boot, so a jump of the clock does not make a living process look like another, and a
    pid that the system gave to somebody else does not keep the lock.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = Path(run_dir)
        self.path = self.run_dir / "run.lock"
        self.held = False

    def acquire(self) -> bool:
        """Makes the directory (mode 0700) and takes the lock. True: taken over from a process that ended without releasing it.

        Raises:
            RunLocked: a living process has it, this one included; or one of another machine, which cannot be asked; or the lock
                file is a link or cannot be written.
        """
        try:
            self.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.run_dir.chmod(0o700)
            with self._file(os.O_CREAT) as (file, holder):
                own = _Holder(os.getpid(), process_started(os.getpid()) or 0.0, os.uname().nodename)
                if holder is not None and holder.host != own.host:
                    raise RunLocked(f"{self.run_dir} is locked by process {holder.pid} on machine {holder.host!r}; "
                                    f"if that run has ended, delete {self.path}")
                if holder is not None and process_started(holder.pid) == holder.started:
                    raise RunLocked(f"{self.run_dir} is in use by process {holder.pid}; stop it, or give another run directory")
                os.ftruncate(file, 0)
                os.pwrite(file, msgspec.json.encode(own), 0)
                os.fsync(file)
        except OSError as error:
            raise RunLocked(f"{self.path} cannot be used: {error.strerror or error}") from None
        self.held = True
        return holder is not None

    def release(self) -> None:
        """Gives the lock back; does nothing where it is not held, as in a child process that inherited this object."""
        if self.held:
            self.held = False
            with suppress(FileNotFoundError), self._file() as (file, holder):  # the directory may have been deleted
                if holder is not None and (holder.pid, holder.host) == (os.getpid(), os.uname().nodename):
                    os.ftruncate(file, 0)

    @contextmanager
    def _file(self, make: int = 0) -> Iterator[tuple[int, _Holder | None]]:
        """The lock file and who it names (nobody where it is empty or half written), while no other process looks at it.

        It is never deleted, only emptied: no race."""
        file = open_file(self.path, os.O_RDWR | make)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            holder = None
            with suppress(msgspec.DecodeError, RecursionError):
                holder = msgspec.json.decode(os.pread(file, 4096, 0), type=_Holder)
            yield file, holder
        finally:
            os.close(file)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def process_started(pid: int) -> float | None:
    """Seconds from the machine's boot to the start of a process, which tells a pid from its reuse; None: it has ended."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        # Both are read from the same clock at the same time, so what the clock says cancels out.
        return round(process.create_time() - psutil.boot_time(), 2)
    except (psutil.Error, ValueError, OverflowError):
        return None
