"""Checkpoints of a run: save so that a kill at any moment leaves a good one, and load the newest good one."""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from parl_like.data.storage.archive import ArchiveError, Manifest, check_archive, read_archive, read_manifest, write_archive
from parl_like.data.storage.safe_files import clean_partial, open_folder, place_of, read_file, remove_folder, replace_file
from parl_like.data.storage.tree_encoding import refusal
from parl_like.lab.yaml_text import Tree
from parl_like.values.plain import State

MAX_FAILURES = 3
RETRY_S = 0.5  # between two attempts of one save

_LOG = logging.getLogger(__name__)
_STEP = re.compile(r"\d{9,18}")
# A checkpoint of the same step is replaced by moving it aside first; a kill in between leaves it under this name.
_ENTRY = re.compile(r"(?:\.replaced\.)?(\d{9,18})(?:\.[0-9a-f]{8})?")


class Meta(msgspec.Struct, frozen=True):
    """The description of a checkpoint, inside it: step, score and parent of `Checkpoints.save`, and what the run added: seconds
    of training so far, its complete configuration, whether it was saved at a step that no schedule knows, whether a failure was
    why, and whether it has the rows of replay buffers."""

    step: Annotated[int, msgspec.Meta(ge=0)]
    score: float | None = None
    parent: str | None = None
    seconds: float = 0.0
    config: Tree = {}
    interrupted: bool = False
    failed: bool = False
    buffers: bool = True


class Loaded(NamedTuple):
    """The result of `Checkpoints.load`. `skipped`: what was tried before it, and why it was not used."""

    tree: State
    manifest: Manifest
    path: Path
    skipped: list[tuple[str, str]]
    meta: Meta


class Checkpoints:
    """The directory `root` of a run: one archive per saved step, named `%09d`, and the small files LATEST and BEST that name one;
    of a run that is evaluated while it trains also the archive `best`, see `save_best`.

    Only the process that holds the `RunLock` may save; any number may load.

    Args:
        root: Made at the first `save`, with mode 0700.
        keep: How many of the newest stay, at least 1; those that LATEST and BEST name stay in any case.
        give_up_s: `save` raises after MAX_FAILURES failures in a row that span at least so many seconds.
        warn: Gets one line for everything that went wrong but was survived; default: the log.
    """

    def __init__(self, root: Path, keep: int = 5, *, give_up_s: float = 0.0, warn: Callable[[str], None] = _LOG.warning) -> None:
        self.root, self.keep, self.give_up_s, self.warn = Path(root), keep, give_up_s, warn
        self.failures = 0  # saves in a row that failed, the first of them at this time
        self._failing_since = 0.0

    def save(self, step: int, tree: Mapping[str, object], meta: Mapping[str, object] | None = None, score: float | None = None, *,
             patience: float = 0.0) -> Path | None:
        """Writes one checkpoint (`write_archive`), then BEST, then LATEST, then removes what is beyond `keep`.

        Args:
            step: Environment steps so far; one that was saved before is replaced.
            tree, meta: As `write_archive`; `step`, `score` and `parent` (what LATEST named before) are added to the meta.
            score: Higher is better; NaN and None never become BEST, and the first of equal ones stays it.
            patience: Seconds for which a disk that refuses is tried again.

        Returns:
            Its directory, or None where the disk refused (full, read-only …): a warning went out, and the older ones are intact.

        Raises:
            ValueError: `step` is below 0, or at least 10¹⁸.
            OSError: MAX_FAILURES saves in a row failed, over `give_up_s` seconds.
            ArchiveError: the tree holds what cannot be stored.
        """
        if not 0 <= step < 10**18:
            raise ValueError(f"Checkpoints.save: `step` is {step}; expected 0 or more, under 10**18")
        until = time.monotonic() + patience
        while error := self._write(step, tree, meta or {}, None if score is None else float(score)):
            if (now := time.monotonic()) < until:
                time.sleep(RETRY_S)
                continue
            self._failing_since = self._failing_since if self.failures else now
            self.failures += 1
            text = f"checkpoint {self._path(step)} could not be saved ({error.strerror or error}); the older ones are intact"
            if self.failures >= MAX_FAILURES and now - self._failing_since >= self.give_up_s:
                mend = "free space or mend the directory, then resume"
                raise OSError(error.errno, f"{text}; {self.failures} failures in a row: {mend}") from error
            self.warn(f"{text}; training goes on")
            return None
        self.failures = 0
        try:
            self._prune(step)
        except OSError as error:
            self.warn(f"an old checkpoint in {self.root} could not be removed ({error.strerror or error})")
        return self._path(step)

    def save_best(self, step: int, tree: Mapping[str, object], meta: Mapping[str, object], score: float) -> bool:
        """Writes the archive `best`: what acts (`Robot.acting_state`), at the evaluation with the best score so far. To load
        'best' takes it before what BEST names. False where the disk refused: a warning went out."""
        try:
            self._start()
            write_archive(self.root / "best", tree, {**meta, "step": step, "score": float(score), "parent": None}, over=True)
        except OSError as error:
            self.warn(f"{self.root / 'best'} could not be saved ({error.strerror or error}); training goes on")
            return False
        return True

    def evaluated_best(self) -> Path | None:
        """Return what `save_best` wrote, if it did."""
        path = self.root / "best"
        with suppress(OSError):
            if os.path.lexists(place_of(path)):
                return path
        return None

    def _start(self) -> None:
        """Makes the directory, private to its owner, and removes what a killed process left. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = open_folder(self.root)
        try:
            os.fchmod(folder, 0o700)
        finally:
            os.close(folder)
        clean_partial(self.root)

    def _write(self, step: int, tree: Mapping[str, object], meta: Mapping[str, object], score: float | None) -> OSError | None:
        """Writes a checkpoint and the pointers to it. Returns what the disk says against it."""
        try:
            self._start()
            best, parent = score is not None and score > self._best_score(), self._pointer("LATEST")[0]
            write_archive(self._path(step), tree, {**meta, "step": int(step), "score": score, "parent": parent}, over=True)
            for pointer in ["BEST"] * best + ["LATEST"]:
                replace_file(self.root / pointer, f"{step:09d}\n".encode(), base=self.root.parent)
        except OSError as error:
            return error
        return None

    def _path(self, step: int) -> Path:
        return self.root / f"{step:09d}"

    def latest(self) -> Path | None:
        """The checkpoint that `load` tries first: what LATEST names, else the newest; None where nothing was ever saved."""
        return next(self._candidates("LATEST", []), None)

    def best(self) -> Path | None:
        """Return what `save_best` wrote, else the checkpoint that BEST names; None where no score was saved."""
        return self.evaluated_best() or self._named_best()

    def _named_best(self) -> Path | None:
        name = self._pointer("BEST")[0]
        return self.root / name if name else None

    def exact(self) -> tuple[int, int] | None:
        """Steps of the newest checkpoint that no interruption made (where there is none: of the newest), and of the newest. Those
        later than LATEST, which the run has left behind, do not count, nor do those without a good manifest."""
        found = self._made([])  # `load` reports what is bad, where it matters
        if not found:
            return None
        return next((step for step, meta in found if not meta.interrupted), found[0][0]), found[0][0]

    def has_rows(self) -> bool:
        """Return whether the checkpoint of `exact` has the rows of replay buffers, without which no resume is exact."""
        return next((meta.buffers for _, meta in self._made([]) if not meta.interrupted), True)

    def newest(self) -> int | None:
        """Step from which a run goes on: of the newest checkpoint that no failure made, where there is one."""
        return next((step for step, _ in sorted(self._made([]), key=_failures_last)), None)

    def _made(self, bad: list[tuple[str, str]]) -> list[tuple[int, Meta]]:
        """Steps up to LATEST, newest first, and what they say of themselves; without a good manifest they go to `bad`."""
        latest, found = self.latest(), []
        for step in reversed(self.steps()):
            if latest is not None and step <= int(latest.name):
                try:
                    found.append((step, _meta_of(self._path(step), read_manifest(self._path(step)))))
                except ArchiveError as error:
                    bad.append((f"{step:09d}", str(error)))
        return found

    def size(self) -> int | None:
        """Bytes of the largest of the newest checkpoints, as their manifests say; None where none can be read."""
        found = [0]
        for step in self.steps()[-10:]:
            with suppress(ArchiveError):
                found.append(sum(read_manifest(self._path(step)).sizes().values()))
        return max(found) or None

    def load(self, which: str | Path = "latest", check: Callable[[Manifest], None] | None = None) -> Loaded:
        """Loads a checkpoint completely, or says which one it loaded instead.

        Args:
            which: 'latest', 'best', 'newest' (that no failure made), or 'exact' (the newest that no interruption made): where
                that one is damaged, or too large for the memory, the newest good one before it, and each one passed over gets a
                warning and a place in `skipped`.
                Or the path of an archive: that one only.
            check: Looks at the manifest before anything else is read; raises ArchiveError where it is not what is expected.

        Raises:
            ArchiveError: none is good. Starting from scratch is a decision for the user.
        """
        if which not in ("latest", "best", "newest", "exact"):
            return _read(Path(which), check, [])
        skipped: list[tuple[str, str]] = []
        if which in ("newest", "exact"):  # newest first, and then those that failures, or all interruptions, made
            made = sorted(self._made(skipped), key=_failures_last if which == "newest" else _interruptions_last)
            paths = iter([self._path(step) for step, _ in made])
        else:
            paths = self._candidates(str(which).upper(), skipped)
        for path in paths:
            try:
                loaded = _read(path, check, skipped)
            except (ArchiveError, MemoryError) as error:
                skipped.append((path.name, str(error) or "not enough memory"))
            else:
                for name, reason in skipped:
                    self.warn(f"{self.root / name} is not usable ({reason}); loaded {path.name} instead")
                return loaded
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped) or "there is none"
        mend = "give the path of an archive, or start a new run"
        raise ArchiveError(f"{self.root}: expected a good checkpoint, got none ({reasons}); {mend}")

    def _candidates(self, pointer: str, skipped: list[tuple[str, str]]) -> Iterator[Path]:
        """Yield what to try, in order: what the pointer names (for BEST first what `save_best` wrote, then LATEST's), older
        ones, at last those of a later step than LATEST: their save did not end, or an earlier resume passed them over as
        damaged."""
        steps, tried, name = self.steps(), set(), None
        if pointer == "BEST" and (best := self.evaluated_best()) is not None:
            yield best
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
                yield self._path(step)

    def steps(self) -> list[int]:
        """The steps that have a directory, in order; links and foreign names do not count."""
        try:
            folder = open_folder(self.root)
        except OSError:
            return []
        try:
            with os.scandir(folder) as entries:
                found = (_ENTRY.fullmatch(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False))
                return sorted({int(match[1]) for match in found if match})
        finally:
            os.close(folder)

    def _pointer(self, which: str) -> tuple[str | None, str]:
        """The name in LATEST or BEST, or None and the reason."""
        try:
            text = read_file(self.root / which, base=self.root.parent, limit=100).decode("ascii", "replace").removesuffix("\n")
        except OSError as error:
            return None, f"{error.strerror}"
        return (text, "") if _STEP.fullmatch(text) else (None, f"expected the name of a checkpoint, got {text!r}")

    def _best_score(self) -> float:
        path = self._named_best()
        try:
            score = _meta_of(path, read_manifest(path)).score if path else None
        except ArchiveError as error:
            self.warn(f"BEST is not usable ({error}); the next score replaces it")
            score = None
        return -math.inf if score is None or math.isnan(score) else score

    def _prune(self, saved: int) -> None:
        """Removes all but the newest `keep`, BEST, and the newest that no interruption made, from which an interrupted run goes
        on; first those of later steps, which this run left behind when it resumed earlier."""
        protected = {saved, self.newest(), *(self.exact() or ()),
                     *(int(self._pointer(which)[0] or saved) for which in ("LATEST", "BEST"))}
        for step in sorted(self.steps(), key=lambda step: (step <= saved, step))[: -self.keep]:
            if step not in protected:
                remove_folder(self._path(step))


def _failures_last(made: tuple[int, Meta]) -> tuple[bool, int]:
    return made[1].failed, -made[0]


def _interruptions_last(made: tuple[int, Meta]) -> tuple[bool, int]:
    return made[1].interrupted, -made[0]


def _meta_of(path: Path, manifest: Manifest) -> Meta:
    """The meta of a checkpoint of a run. Raises ArchiveError where it is none, or that of another step than its name says."""
    try:
        meta = msgspec.convert(manifest.meta, Meta)
    except msgspec.ValidationError as error:
        raise refusal(path, "the meta of a checkpoint", str(error), "use an earlier one") from None
    entry = _ENTRY.fullmatch(path.name)
    if entry and int(entry[1]) != meta.step:
        raise refusal(path, f"the checkpoint of step {int(entry[1])}", f"that of step {meta.step}", "use another one")
    return meta


def verify(root: Path) -> list[tuple[str, bool, str]]:
    """Read every checkpoint of a run completely, in pieces, so that one larger than the memory is no matter.

    Returns:
        Name, whether it is good, and what is wrong with it; also of a pointer file that names no checkpoint.
    """
    checkpoints = Checkpoints(root)
    faults = {}
    for path in [*map(checkpoints._path, checkpoints.steps()), *filter(None, [checkpoints.evaluated_best()])]:
        try:
            _meta_of(path, check_archive(path))
            faults[path.name] = ""
        except (ArchiveError, MemoryError) as error:
            faults[path.name] = str(error) or "not enough memory"
    rows = [(name, not fault, fault) for name, fault in faults.items()]
    for which in ("LATEST", "BEST"):
        name, reason = checkpoints._pointer(which)
        if os.path.lexists(checkpoints.root / which) and name not in faults:
            rows.append((which, False, reason or f"names {name}, which is not there"))
    return rows


def _read(path: Path, check: Callable[[Manifest], None] | None, skipped: list[tuple[str, str]]) -> Loaded:
    def checked(manifest: Manifest) -> None:
        _meta_of(path, manifest)
        if check is not None:
            check(manifest)

    tree, manifest = read_archive(path, checked)
    return Loaded(tree, manifest, path, skipped, _meta_of(path, manifest))
