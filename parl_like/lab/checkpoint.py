"""Checkpoints of a run: save so that a kill at any moment leaves a good one, load the newest good one, and one process per run."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import psutil

from parl_like.data.archive import (
    ArchiveError,
    Manifest,
    clean_partial,
    read_archive,
    read_manifest,
    remove_archive,
    replace_file,
    set_aside,
    write_archive,
)
from parl_like.lab.config import UsageError

_LOG = logging.getLogger(__name__)
_STEP = re.compile(r"\d{9,18}")
# A checkpoint of the same step is replaced by moving it aside first; a kill in between leaves it under this name.
_ENTRY = re.compile(r"(?:\.replaced\.)?(\d{9,18})(?:\.[0-9a-f]{8})?")


class Loaded(NamedTuple):
    """What `Checkpoints.load` found: `skipped` names each pointer or checkpoint that was tried before it, and why it was not used."""

    tree: dict[str, Any]
    manifest: Manifest
    path: Path
    skipped: list[tuple[str, str]]


class Checkpoints:
    """The directory `root` of a run: one archive per saved step, named `%09d`, and the small files LATEST and BEST that name one.

    Only the process that holds the `RunLock` may save; any number may load.

    Args:
        root: Made at the first `save`, with mode 0700.
        keep: How many of the newest stay; those that LATEST and BEST name stay in any case.
        best_keep: Whether BEST follows the highest score.
        max_failures: `save` raises at this many failures in a row; None: it never does.
        warn: Gets one line for everything that went wrong but was survived; default: the log.
    """

    def __init__(
        self,
        root: Path,
        keep: int = 5,
        best_keep: bool = True,
        *,
        max_failures: int | None = 3,
        warn: Callable[[str], None] = _LOG.warning,
    ) -> None:
        if keep < 1 or (max_failures is not None and max_failures < 1):
            raise ValueError(f"Checkpoints: `keep` is {keep} and `max_failures` {max_failures}; expected at least 1 of each")
        self.root = Path(root)
        self.keep, self.best_keep, self.max_failures, self.warn = keep, best_keep, max_failures, warn
        self.failures = 0  # saves in a row that failed
        self._ready = False

    def start(self) -> None:
        """Makes the directory, private to its owner, and removes what a killed process left. The first `save` does it too.

        Raises:
            OSError: it cannot be made or written.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root.chmod(0o700)
        clean_partial(self.root)
        self._ready = True

    def save(
        self, step: int, tree: Mapping[str, Any], meta: Mapping[str, Any] | None = None, score: float | None = None
    ) -> Path | None:
        """Writes one checkpoint (`write_archive`), then BEST, then LATEST, then removes what is beyond `keep`.

        Args:
            step: Environment steps so far; one that was saved before is replaced.
            tree, meta: As `write_archive`; `step`, `score` and `parent` (what LATEST named before) are added to the meta.
            score: Higher is better; NaN and None never become BEST, and the first of equal ones stays it.

        Returns:
            Its directory, or None where the disk refused (full, read-only …): a warning went out, the older ones are intact, and
            training may go on.

        Raises:
            OSError: `max_failures` saves in a row failed.
            ArchiveError: the tree holds what cannot be stored.
        """
        if not 0 <= step < 10**18:
            raise ValueError(f"Checkpoints.save: `step` is {step}; expected 0 or more, under 10**18")
        name, score = f"{step:09d}", None if score is None else float(score)
        path = self.root / name
        try:
            if not self._ready:
                self.start()
            best = self.best_keep and score is not None and score > self._best_score()
            parent = self._pointer("LATEST")[0]
            full_meta = {**(meta or {}), "step": int(step), "score": score, "parent": parent}
            damaged = os.path.lexists(path) and _fault(path)  # an earlier run passed over it
            if damaged:
                set_aside(path)
            write_archive(path, tree, full_meta)
            if best:
                replace_file(self.root / "BEST", f"{name}\n".encode())
            replace_file(self.root / "LATEST", f"{name}\n".encode())
        except OSError as error:
            self.failures += 1
            text = f"checkpoint {path} could not be saved ({error.strerror or error}); the older ones are intact"
            if self.max_failures is not None and self.failures >= self.max_failures:
                mend = "free space or mend the directory, then resume"
                raise OSError(error.errno, f"{text}; {self.failures} failures in a row: {mend}") from error
            self.warn(f"{text}; training goes on")
            return None
        self.failures = 0
        try:
            if damaged:
                clean_partial(self.root)
            self._prune(step)
        except OSError as error:
            self.warn(f"an old checkpoint in {self.root} could not be removed ({error.strerror or error})")
        return path

    def latest(self) -> Path | None:
        """The checkpoint that `load` tries first: what LATEST names, else the newest; None where nothing was ever saved."""
        return next(self._candidates("LATEST", []), None)

    def best(self) -> Path | None:
        """The checkpoint that BEST names; None where no score was saved."""
        name = self._pointer("BEST")[0]
        return self.root / name if name else None

    def exact(self) -> tuple[int, int] | None:
        """Steps of the newest checkpoint that no interruption made (where there is none: of the newest), and of the newest.

        Those later than LATEST do not count: the run has left them behind. Nor do those without a good manifest; None: all of them.
        """
        found = self._made([])  # `load` reports what is bad, where it matters
        return (next((step for step, interrupted in found if not interrupted), found[0][0]), found[0][0]) if found else None

    def _made(self, bad: list[tuple[str, str]]) -> list[tuple[int, bool]]:
        """Steps up to LATEST with a good manifest, newest first, and whether an interruption made them; the others go to `bad`."""
        latest = self.latest()
        found = []
        for step in reversed(self._steps()):
            if latest is not None and step <= int(latest.name):
                try:
                    found.append((step, bool(read_manifest(self.root / f"{step:09d}").meta.get("interrupted"))))
                except ArchiveError as error:
                    bad.append((f"{step:09d}", str(error)))
        return found

    def load(self, which: str | Path = "latest") -> Loaded:
        """Loads a checkpoint completely, or says which one it loaded instead.

        Args:
            which: 'latest', 'best', or 'exact' (the newest that no interruption made): where that one is damaged, the newest good one
                before it, and each one passed over gets a warning and a place in `skipped`. Or the path of an archive: that one only.

        Raises:
            ArchiveError: none is good. Starting from scratch is a decision for the user.
        """
        if which not in ("latest", "best", "exact"):
            return Loaded(*read_archive(Path(which)), Path(which), [])
        skipped: list[tuple[str, str]] = []
        for path in self._by_schedule(skipped) if which == "exact" else self._candidates(str(which).upper(), skipped):
            try:
                tree, manifest = read_archive(path)
            except ArchiveError as error:
                skipped.append((path.name, str(error)))
            else:
                for name, reason in skipped:
                    self.warn(f"{self.root / name} is not usable ({reason}); loaded {path.name} instead")
                return Loaded(tree, manifest, path, skipped)
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped) or "there is none"
        raise ArchiveError(
            f"{self.root}: expected a good checkpoint, got none ({reasons}); give the path of an archive, or start a new run"
        )

    def _by_schedule(self, skipped: list[tuple[str, str]]) -> list[Path]:
        """The checkpoints of the schedule, newest first, and then those that interruptions made."""
        return [self.root / f"{step:09d}" for step, _ in sorted(self._made(skipped), key=lambda made: (made[1], -made[0]))]

    def _candidates(self, pointer: str, skipped: list[tuple[str, str]]) -> Iterator[Path]:
        """What to try, in order: what the pointer names (for BEST then LATEST's), older ones, at last those of a later step.

        A later step than LATEST is one whose save did not end, or that an earlier resume passed over as damaged.
        """
        steps = self._steps()
        tried = set()
        name = None
        for which in dict.fromkeys((pointer, "LATEST")):
            name, reason = self._pointer(which)
            if reason:
                skipped.append((which, reason))
            if name and name not in tried:
                tried.add(name)
                yield self.root / name
        middle = int(name) if name else max(steps, default=0)
        for step in sorted(steps, key=lambda step: (step > middle, -step)):
            if f"{step:09d}" not in tried:
                yield self.root / f"{step:09d}"

    def _steps(self) -> list[int]:
        """The steps that have a directory, in order; links and foreign names do not count."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            found = {_ENTRY.fullmatch(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)}
        return sorted({int(match[1]) for match in found if match})

    def _pointer(self, which: str) -> tuple[str | None, str]:
        """The name in LATEST or BEST, or None and the reason."""
        try:
            file = os.open(self.root / which, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                text = os.read(file, 100).decode("ascii", "replace").removesuffix("\n")
            finally:
                os.close(file)
        except OSError as error:
            return None, f"{error.strerror}"
        return (text, "") if _STEP.fullmatch(text) else (None, f"expected the name of a checkpoint, got {text!r}")

    def _best_score(self) -> float:
        path = self.best()
        try:
            score = read_manifest(path).meta.get("score") if path else None
        except ArchiveError as error:
            self.warn(f"BEST is not usable ({error}); the next score replaces it")
            score = None
        return score if isinstance(score, (int, float)) and not math.isnan(score) else -math.inf

    def _prune(self, saved: int) -> None:
        """Removes all but the newest `keep`; first those of later steps, which this run left behind when it resumed earlier.

        The newest one that no interruption made stays, too: an interrupted run goes on from there.
        """
        protected = {saved, *(int(name) for which in ("LATEST", "BEST") if (name := self._pointer(which)[0]))}
        protected.update(self.exact() or ())
        order = sorted(self._steps(), key=lambda step: (step <= saved, step))
        for step in order[: -self.keep]:
            if step not in protected:
                remove_archive(self.root / f"{step:09d}")


def verify(root: Path) -> list[tuple[str, bool, str]]:
    """Reads every checkpoint of a run completely: (name, whether it is good, what is wrong with it).

    A pointer file that names no checkpoint has a row too.
    """
    checkpoints = Checkpoints(root)
    faults = {f"{step:09d}": _fault(checkpoints.root / f"{step:09d}") for step in checkpoints._steps()}
    rows = [(name, not fault, fault) for name, fault in faults.items()]
    for which in ("LATEST", "BEST"):
        name, reason = checkpoints._pointer(which)
        if os.path.lexists(checkpoints.root / which) and name not in faults:
            rows.append((which, False, reason or f"names {name}, which is not there"))
    return rows


def _fault(path: Path) -> str:
    """What is wrong with an archive; nothing: the empty text."""
    try:
        read_archive(path)
    except ArchiveError as error:
        return str(error)
    return ""


# ------------------------------------------------------------------------------------------------ one process per run


class RunLocked(UsageError):
    """Another process works in this run directory. The message names it and the lock file."""


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that a lock file names. `started`: seconds from the machine's boot to its start, rounded to 1/100."""

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
        """Makes the directory (mode 0700) and takes the lock.

        Returns:
            True where it was taken over from a process that ended without releasing it.

        Raises:
            RunLocked: a living process has it, this one included; or one of another machine, which cannot be asked.
        """
        self.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.run_dir.chmod(0o700)
        with _Guarded(self.path) as file:
            holder = file.holder()
            if holder is not None and holder.host != _here():
                mend = f"if that run has ended, delete {self.path}"
                raise RunLocked(f"{self.run_dir} is locked by process {holder.pid} on machine {holder.host!r}; {mend}")
            if holder is not None and _started(holder.pid) == holder.started:
                mend = "stop it, or give another run directory"
                raise RunLocked(f"{self.run_dir} is in use by process {holder.pid}; {mend}")
            file.write(msgspec.json.encode(Holder(os.getpid(), _started(os.getpid()) or 0.0, _here())))
        self.held = True
        return holder is not None

    def release(self) -> None:
        """Gives the lock back; does nothing where it is not held, as in a child process that inherited this object."""
        if self.held:
            self.held = False
            with _Guarded(self.path) as file:
                holder = file.holder()
                if holder is not None and (holder.pid, holder.host) == (os.getpid(), _here()):
                    file.write(b"")

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class _Guarded:
    """The lock file, opened so that no other process looks at it meanwhile. It is never deleted, only emptied: no race."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)

    def holder(self) -> Holder | None:
        """What the file says; None where it is empty or half written."""
        try:
            return msgspec.json.decode(os.pread(self.file, 4096, 0), type=Holder)
        except msgspec.DecodeError:
            return None

    def write(self, text: bytes) -> None:
        os.ftruncate(self.file, 0)
        os.pwrite(self.file, text, 0)
        os.fsync(self.file)


def _here() -> str:
    return os.uname().nodename


def _started(pid: int) -> float | None:
    """Seconds from boot to the start of a process, or None where it has ended."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        # Both are read from the same clock at the same time, so what the clock says cancels out.
        return round(process.create_time() - psutil.boot_time(), 2)
    except psutil.NoSuchProcess:
        return None
