"""Checkpoints of a run: save so that a kill at any moment leaves a good one, load the newest good one, and one process per run."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
    refusal,
    remove_archive,
    set_aside,
    write_archive,
)
from parl_like.data.disk import open_file, open_folder, read_file, replace_file
from parl_like.lab.config import UsageError

RETRY_S = 0.5  # between two attempts of one save

_LOG = logging.getLogger(__name__)
_STEP = re.compile(r"\d{9,18}")
# A checkpoint of the same step is replaced by moving it aside first; a kill in between leaves it under this name.
_ENTRY = re.compile(r"(?:\.replaced\.)?(\d{9,18})(?:\.[0-9a-f]{8})?")


class Meta(msgspec.Struct, frozen=True):
    """What a checkpoint says about itself: step, score and parent of `Checkpoints.save`, and what the run added.

    Attributes:
        seconds: Of training so far.
        config: The run's complete configuration.
        interrupted: Whether it was saved at a step that no schedule knows.
    """

    step: Annotated[int, msgspec.Meta(ge=0)]
    score: float | None = None
    parent: str | None = None
    seconds: float = 0.0
    config: dict[str, Any] = {}
    interrupted: bool = False


class Loaded(NamedTuple):
    """What `Checkpoints.load` found: `skipped` names each pointer or checkpoint that was tried before it, and why it was not used."""

    tree: dict[str, Any]
    manifest: Manifest
    path: Path
    skipped: list[tuple[str, str]]
    meta: Meta


class Checkpoints:
    """The directory `root` of a run: one archive per saved step, named `%09d`, and the small files LATEST and BEST that name one.

    Only the process that holds the `RunLock` may save; any number may load.

    Args:
        root: Made at the first `save`, with mode 0700.
        keep: How many of the newest stay; those that LATEST and BEST name stay in any case.
        best_keep: Whether BEST follows the highest score.
        max_failures: `save` raises at this many failures in a row; None: it never does.
        give_up_s: Seconds that these failures must at least span.
        warn: Gets one line for everything that went wrong but was survived; default: the log.
    """

    def __init__(
        self,
        root: Path,
        keep: int = 5,
        best_keep: bool = True,
        *,
        max_failures: int | None = 3,
        give_up_s: float = 0.0,
        warn: Callable[[str], None] = _LOG.warning,
    ) -> None:
        if keep < 1 or (max_failures is not None and max_failures < 1):
            raise ValueError(f"Checkpoints: `keep` is {keep} and `max_failures` {max_failures}; expected at least 1 of each")
        self.root = Path(root)
        self.keep, self.best_keep, self.max_failures, self.warn = keep, best_keep, max_failures, warn
        self.give_up_s = give_up_s
        self.failures = 0  # saves in a row that failed, the first of them at this time
        self._failing_since = 0.0
        self._ready = False

    def start(self) -> None:
        """Makes the directory, private to its owner, and removes what a killed process left. The first `save` does it too.

        Raises:
            OSError: it cannot be made or written, or is a link.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = open_folder(self.root)
        try:
            os.fchmod(folder, 0o700)
        finally:
            os.close(folder)
        clean_partial(self.root)
        self._ready = True

    def save(
        self, step: int, tree: Mapping[str, Any], meta: Mapping[str, Any] | None = None, score: float | None = None, *,
        patience: float = 0.0,
    ) -> Path | None:
        """Writes one checkpoint (`write_archive`), then BEST, then LATEST, then removes what is beyond `keep`.

        Args:
            step: Environment steps so far; one that was saved before is replaced.
            tree, meta: As `write_archive`; `step`, `score` and `parent` (what LATEST named before) are added to the meta.
            score: Higher is better; NaN and None never become BEST, and the first of equal ones stays it.
            patience: Seconds for which a disk that refuses is tried again.

        Returns:
            Its directory, or None where the disk refused (full, read-only …): a warning went out, the older ones are intact, and
            training may go on.

        Raises:
            OSError: `max_failures` saves in a row failed, over `give_up_s` seconds.
            ArchiveError: the tree holds what cannot be stored.
        """
        if not 0 <= step < 10**18:
            raise ValueError(f"Checkpoints.save: `step` is {step}; expected 0 or more, under 10**18")
        name, score = f"{step:09d}", None if score is None else float(score)
        path, until = self.root / name, time.monotonic() + patience
        while True:
            try:
                damaged = self._write(path, tree, meta or {}, step, score)
                break
            except OSError as error:
                if time.monotonic() < until:
                    time.sleep(RETRY_S)
                    continue
                self._failing_since = self._failing_since if self.failures else time.monotonic()
                self.failures += 1
                text = f"checkpoint {path} could not be saved ({error.strerror or error}); the older ones are intact"
                long = time.monotonic() - self._failing_since >= self.give_up_s
                if self.max_failures is not None and self.failures >= self.max_failures and long:
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

    def _write(self, path: Path, tree: Mapping[str, Any], meta: Mapping[str, Any], step: int, score: float | None) -> bool:
        """Writes a checkpoint and the pointers to it. Returns whether a damaged one was there, which an earlier run passed over."""
        if not self._ready:
            self.start()
        best = self.best_keep and score is not None and score > self._best_score()
        parent = self._pointer("LATEST")[0]
        damaged = os.path.lexists(path) and bool(_fault(path))
        if damaged:
            set_aside(path)
        write_archive(path, tree, {**meta, "step": int(step), "score": score, "parent": parent})
        for pointer in ["BEST"] * best + ["LATEST"]:
            replace_file(self.root / pointer, f"{path.name}\n".encode(), base=self.root.parent)
        return damaged

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
        for step in reversed(self.steps()):
            if latest is not None and step <= int(latest.name):
                try:
                    path = self.root / f"{step:09d}"
                    found.append((step, meta_of(path, read_manifest(path)).interrupted))
                except ArchiveError as error:
                    bad.append((f"{step:09d}", str(error)))
        return found

    def load(self, which: str | Path = "latest", check: Callable[[Manifest], None] | None = None) -> Loaded:
        """Loads a checkpoint completely, or says which one it loaded instead.

        Args:
            which: 'latest', 'best', or 'exact' (the newest that no interruption made): where that one is damaged, the newest good one
                before it, and each one passed over gets a warning and a place in `skipped`. One that memory does not suffice for
                counts as damaged. Or the path of an archive: that one only.
            check: Looks at the manifest before anything else is read; raises ArchiveError where it is not what is expected.

        Raises:
            ArchiveError: none is good. Starting from scratch is a decision for the user.
        """
        if which not in ("latest", "best", "exact"):
            return _read(Path(which), check, [])
        skipped: list[tuple[str, str]] = []
        for path in self._by_schedule(skipped) if which == "exact" else self._candidates(str(which).upper(), skipped):
            try:
                loaded = _read(path, check, skipped)
            except (ArchiveError, MemoryError) as error:
                skipped.append((path.name, str(error) or "not enough memory"))
            else:
                for name, reason in skipped:
                    self.warn(f"{self.root / name} is not usable ({reason}); loaded {path.name} instead")
                return loaded
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
        steps = self.steps()
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

    def steps(self) -> list[int]:
        """The steps that have a directory, in order; links and foreign names do not count."""
        try:
            folder = open_folder(self.root)
        except OSError:
            return []
        try:
            with os.scandir(folder) as entries:
                found = {_ENTRY.fullmatch(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)}
        finally:
            os.close(folder)
        return sorted({int(match[1]) for match in found if match})

    def _pointer(self, which: str) -> tuple[str | None, str]:
        """The name in LATEST or BEST, or None and the reason."""
        try:
            text = read_file(self.root / which, base=self.root.parent, limit=100).decode("ascii", "replace").removesuffix("\n")
        except OSError as error:
            return None, f"{error.strerror}"
        return (text, "") if _STEP.fullmatch(text) else (None, f"expected the name of a checkpoint, got {text!r}")

    def _best_score(self) -> float:
        path = self.best()
        try:
            score = meta_of(path, read_manifest(path)).score if path else None
        except ArchiveError as error:
            self.warn(f"BEST is not usable ({error}); the next score replaces it")
            score = None
        return score if score is not None and not math.isnan(score) else -math.inf

    def _prune(self, saved: int) -> None:
        """Removes all but the newest `keep`; first those of later steps, which this run left behind when it resumed earlier.

        The newest one that no interruption made stays, too: an interrupted run goes on from there.
        """
        protected = {saved, *(int(name) for which in ("LATEST", "BEST") if (name := self._pointer(which)[0]))}
        protected.update(self.exact() or ())
        order = sorted(self.steps(), key=lambda step: (step <= saved, step))
        for step in order[: -self.keep]:
            if step not in protected:
                remove_archive(self.root / f"{step:09d}")


def meta_of(path: Path, manifest: Manifest) -> Meta:
    """The meta of a checkpoint of a run. Raises ArchiveError where it is none, or that of another step than the directory's name says."""
    try:
        meta = msgspec.convert(manifest.meta, Meta)
    except msgspec.ValidationError as error:
        raise refusal(path, "the meta of a checkpoint", str(error), "use an earlier one") from None
    entry = _ENTRY.fullmatch(path.name)
    if entry and int(entry[1]) != meta.step:
        raise refusal(path, f"the checkpoint of step {int(entry[1])}", f"that of step {meta.step}", "use another one")
    return meta


def verify(root: Path) -> list[tuple[str, bool, str]]:
    """Reads every checkpoint of a run completely: (name, whether it is good, what is wrong with it).

    A pointer file that names no checkpoint has a row too.
    """
    checkpoints = Checkpoints(root)
    faults = {f"{step:09d}": _fault(checkpoints.root / f"{step:09d}") for step in checkpoints.steps()}
    rows = [(name, not fault, fault) for name, fault in faults.items()]
    for which in ("LATEST", "BEST"):
        name, reason = checkpoints._pointer(which)
        if os.path.lexists(checkpoints.root / which) and name not in faults:
            rows.append((which, False, reason or f"names {name}, which is not there"))
    return rows


def _fault(path: Path) -> str:
    """What is wrong with an archive; nothing: the empty text."""
    try:
        _read(path, None, [])
    except (ArchiveError, MemoryError) as error:
        return str(error) or "not enough memory"
    return ""


def _read(path: Path, check: Callable[[Manifest], None] | None, skipped: list[tuple[str, str]]) -> Loaded:
    def checked(manifest: Manifest) -> None:
        meta_of(path, manifest)
        if check is not None:
            check(manifest)

    tree, manifest = read_archive(path, checked)
    return Loaded(tree, manifest, path, skipped, meta_of(path, manifest))


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
            RunLocked: a living process has it, this one included; or one of another machine, which cannot be asked; or the lock file
                is a link or cannot be written.
        """
        try:
            self.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.run_dir.chmod(0o700)
            return self._take()
        except OSError as error:
            raise RunLocked(f"{self.path} cannot be used: {error.strerror or error}") from None

    def _take(self) -> bool:
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
            with suppress(FileNotFoundError), _Guarded(self.path, make=False) as file:  # the directory may have been deleted
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

    def __init__(self, path: Path, make: bool = True) -> None:
        self.path, self.flags = path, os.O_RDWR | os.O_CREAT * make

    def __enter__(self) -> Self:
        self.file = open_file(self.path, self.flags)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)

    def holder(self) -> Holder | None:
        """What the file says; None where it is empty or half written."""
        try:
            return msgspec.json.decode(os.pread(self.file, 4096, 0), type=Holder)
        except (msgspec.DecodeError, RecursionError):
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
