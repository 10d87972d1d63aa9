"""RunDir: the directory that a run leaves, and the only place that knows its layout.

    runs/2026-11-21_cartpole_s0/
      run.json           RunInfo: experiment, state, process, times, versions, git, command
      config.yaml        the complete configuration; loads back unchanged
      log.txt            for people; tracebacks go here
      robot.json         who takes part in the robot: agents, tasks, queues, workers
      metrics.csv        one row per report; a metric that appears later adds a column
      events.jsonl       what happened when: started, checkpoint, resumed, stopped …
      sources/           the Python sources that the run was made by, see parl_like.lab.snapshot
      checkpoints/       of parl_like.lab.runs.checkpoint
      tb/ plots/ videos/ made when they are needed
      result.json        evaluation, verdict, trace hash, seconds
      timeline.json      of parl_like.drivers.timeline, where it was asked for
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import logging
import math
import os
import shlex
import stat
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypedDict

import msgspec

from parl_like.data.storage.safe_files import check_plain, open_file, open_folder, remove
from parl_like.data.storage.tree_encoding import versions
from parl_like.lab.config import flat
from parl_like.lab.experiment import ExperimentSource, Name
from parl_like.lab.runs.lock import process_started
from parl_like.lab.runs.outbox import Outbox, RunError
from parl_like.lab.text import colourless, lines
from parl_like.lab.yaml_text import Tree, dump_yaml, load_yaml
from parl_like.values.user_calls import is_users

_LOG = logging.getLogger("parl_like.warnings")

PACKAGES = "parl_like", "torch", "numpy", "gymnasium"  # whose versions decide a run's numbers
APPENDED = "events.jsonl", "log.txt", "metrics.csv"
State = Literal["running", "finished", "stopped", "failed"]
MAX_JSON_BYTES = 1_000_000
MAX_TABLE_BYTES = 1 << 28  # of metrics.csv: half a million rows of 50 columns


class Git(msgspec.Struct, frozen=True):
    """Commit of the source, and whether tracked files differed from it."""

    commit: str
    dirty: bool


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `run.json`. Times are ISO 8601 in UTC; `process_started` (of `lab.lock`) tells a pid from its reuse;
    `differs`: dotted key → value, where the configuration is not that of the experiment; `evaluated`: `step` and `score` of the
    last evaluation while training, `best_step` and `best` of the best one, if there was one; `source`: what had registered an
    experiment of the user's; `sources`: the hash of those that it was made by, see `parl_like.lab.snapshot`; `data`: the sha256
    of the recorded rows that it learns from, by name or path."""

    name: str
    experiment: Name
    state: State
    pid: int
    process_started: float
    started: str
    ended: str | None = None
    exit_reason: str = ""
    resumed: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    versions: dict[str, str] = {}
    differs: Tree = {}
    evaluated: dict[str, float | None] = {}
    git: Git | None = None
    command: list[str] = []
    source: ExperimentSource | None = None
    sources: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    data: dict[str, str] = {}


class Result(TypedDict, total=False):
    """The part of `result.json` that is read."""

    evaluation: Tree | None
    expect: dict[str, tuple[float | None, float | None]]
    solved: bool | None
    env_steps: int
    seconds: float


class RunDir:
    """One run directory. `create` makes a new one, `open` finds an existing one.

    It may come from somebody else: only plain files in it are read and written, up to a size, and no link in it is followed. What
    the disk refuses waits in memory (`outbox`).

    Args:
        base: A folder above it that the user has named; below that one no link is followed. None: the directory itself.
    """

    def __init__(self, path: Path, base: Path | None = None) -> None:
        self.path = path
        self.config_file, self.log_file = path / "config.yaml", path / "log.txt"
        self.metrics_file = path / "metrics.csv"
        self.checkpoints, self.tensorboard, self.plots, self.videos = (
            path / name for name in ("checkpoints", "tb", "plots", "videos"))
        self.outbox = Outbox(path, base=base)

    @property
    def typed(self) -> str:
        """Return its path as one types it in a shell."""
        return shlex.quote(str(self.path))

    def _way_out(self) -> str:
        """Return what may be done where another run is to be made in this directory."""
        if os.path.lexists(self.path / "run.json"):
            with contextlib.suppress(RunError):
                if self.state() == "running":
                    return "a run is under way there: wait for it"
        return f"continue it with `parl-like resume {self.typed}`" if (self.path / "checkpoints").is_dir() else "empty it"

    @classmethod
    def create(cls, experiment: str, config: Mapping[str, Any], command: Sequence[str] = (),
               differs: Mapping[str, object] | None = None, source: ExperimentSource | None = None,
               data: Mapping[str, str] | None = None) -> RunDir:
        """A new directory (mode 0700) with `run.json` (state running) and `config.yaml`.

        Args:
            config: The complete configuration as plain values. `run_dir` empty: `runs/<date>_<experiment>_s<seed>`, with
                `_2`, `_3` … behind it where that exists.
            differs: What of it is not as the experiment has it.
            source: What has registered the experiment.
            data: The sha256 of the recorded rows that it learns from, by name or path.

        Raises:
            RunError: `run_dir` is there and not empty (it is left as it is), or the directory cannot be made or written to.
        """
        # These take a moment. Looked up first, an interrupt meanwhile leaves no directory.
        made_with, git = versions(*PACKAGES), git_state()
        # Not every shell knows the ~ in `run_dir=~/run`.
        path = Path(os.path.expanduser(config["run_dir"]) or f"runs/{datetime.date.today()}_{experiment}_s{config['seed']}")
        if what := _root(path):
            raise RunError(f"run_dir {path} is the root of a {what}; give a directory in it: run_dir={path / 'run'}")
        try:
            if config["run_dir"]:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                if any(path.iterdir()):
                    raise RunError(f"run_dir {path} exists and is not empty; {cls(path)._way_out()}, or give another run_dir=")
                path.chmod(0o700)
            else:
                path.parent.mkdir(exist_ok=True)
                first = path
                for count in itertools.count(1):
                    path = first if count == 1 else first.with_name(f"{first.name}_{count}")
                    with suppress(FileExistsError):  # so two processes never take the same name
                        path.mkdir(mode=0o700)
                        break
        except OSError as error:
            raise RunError(f"cannot make the run directory {path}: {error.strerror}; give another run_dir=") from None
        run = cls(path)
        run._write_info(RunInfo(name=path.name, experiment=experiment, state="running", started=now(), **_this_process(),
                                versions=made_with, differs=dict(differs or {}), git=git, command=list(command), source=source,
                                data=dict(data or {})))
        run.save_config(config)
        run._must_be_written()
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """The run at `path`; a name alone is also looked for below `runs/`. Raises RunError where there is none."""
        for folder in (Path(path), Path("runs") / path):
            if os.path.lexists(folder / "run.json"):
                return cls(folder)
        raise RunError(f"{path} is no run directory (it has no run.json); `parl-like list` shows the runs")

    def info(self) -> RunInfo:
        """`run.json`, checked field by field. Raises RunError where it is missing or malformed."""
        try:
            tree = _decoded(self.read("run.json"))
            return msgspec.convert(tree, RunInfo)
        except RunError:
            raise
        except (ValueError, RecursionError) as error:
            raise RunError(f"{self.path / 'run.json'} is not readable: {error}; put the file back as the run wrote it") from None

    def state(self) -> str:
        """The state in `run.json`, or `died` where it says running and that process is gone."""
        info = self.info()
        alive = process_started(info.pid) == info.process_started
        return "died" if info.state == "running" and not alive else info.state

    def update(self, **fields: object) -> None:
        """Replaces fields of `run.json`."""
        self._write_info(msgspec.structs.replace(self.info(), **fields))

    def restarted(self, command: Sequence[str], differs: Mapping[str, object] | None = None,
                  source: ExperimentSource | None = None, data: Mapping[str, str] | None = None) -> None:
        """This process continues the run; a result that it had is no longer its own.

        Raises:
            RunError: a file that the run appends to is something else (a pipe, a link), or the disk refuses; nothing is changed.
        """
        for name in APPENDED:
            try:
                os.close(open_file(self.path / name, os.O_WRONLY | os.O_APPEND, base=self.path))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise RunError(f"cannot write to {self.path / name}: {error.strerror or error}; remove it") from None
        self.update(state="running", ended=None, exit_reason="", resumed=self.info().resumed + 1, **_this_process(),
                    versions=versions(*PACKAGES), differs=dict(differs or {}), git=git_state(), command=list(command),
                    source=source, data=dict(data or {}))
        self._must_be_written()
        with suppress(FileNotFoundError):
            remove(self.path / "result.json")

    def ended(self, state: State, reason: str) -> None:
        """The run is over: what it is now stands in `run.json`, even where the disk is full, if its file has room for it."""
        self.update(state=state, exit_reason=reason, ended=now())
        if "run.json" in self.outbox.flush():
            info, cuts = self.info(), (len(reason), 100, 40, 0)  # of its reason as much as there is room for
            shorter = (msgspec.json.encode(msgspec.structs.replace(info, exit_reason=reason[:cut])) for cut in cuts)
            any(self.outbox.overwrite("run.json", text) for text in shorter)

    def save_config(self, config: Mapping[str, object]) -> None:
        self.outbox.replace("config.yaml", dump_yaml(config).encode())

    def config(self) -> dict[str, object]:
        """`config.yaml` as plain values, to be fitted to its class. Raises RunError or ConfigError."""
        try:
            return load_yaml(self.read("config.yaml").decode(), str(self.config_file))
        except UnicodeDecodeError:
            raise RunError(f"{self.config_file} is not UTF-8 text") from None

    def event(self, kind: str, **fields: object) -> None:
        """Appends one line to `events.jsonl`."""
        line = json.dumps(plain({"time": now(), "event": kind, **fields}), allow_nan=False)
        self.outbox.append("events.jsonl", line.encode() + b"\n")

    def save_description(self, robot: Mapping[str, object]) -> None:
        """Keeps who takes part in the robot, for whoever draws it; where that fails, no more than the picture is old."""
        self.outbox.offer("robot.json", json.dumps(plain(robot), allow_nan=False).encode() + b"\n")

    def save_result(self, result: Mapping[str, object]) -> None:
        self.outbox.replace("result.json", json.dumps(plain(result), indent=2, allow_nan=False).encode() + b"\n")

    def result(self) -> Tree | None:
        """`result.json`, or None where the run has not finished or the file is damaged."""
        try:
            result: dict[str, object] = _decoded(self.read("result.json"))
            msgspec.convert(result, Result)
            return result
        except (ValueError, RecursionError):  # a RunError is a ValueError
            return None

    def read(self, name: str, limit: int = MAX_JSON_BYTES, missing: bytes | None = None) -> bytes:
        """A file's content, with what waits to be written; `missing` where there is none. Raises RunError: it is missing, has
        over `limit` bytes, or is no plain file."""
        try:
            return self.outbox.read(name, limit)
        except OSError as error:
            if missing is not None and isinstance(error, FileNotFoundError):
                return missing
            raise RunError(f"{self.path / name} is not readable: {error.strerror or error}") from None

    def pieces(self, name: str, limit: int) -> Iterator[bytes]:
        """`read`, piece by piece; none where there is no such file. Raises RunError."""
        try:
            yield from self.outbox.pieces(name, limit)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunError(f"{self.path / name} is not readable: {error.strerror or error}") from None

    def tail(self, name: str, size: int) -> tuple[bytes, bool]:
        """The last `size` bytes of a file, whatever its size, and whether they are all of it; nothing where there is none.

        Raises RunError: it is no plain file.
        """
        try:
            return self.outbox.tail(name, size)
        except FileNotFoundError:
            return b"", True
        except OSError as error:
            raise RunError(f"{self.path / name} is not readable: {error.strerror or error}") from None

    def folder(self, path: Path) -> Path:
        """Makes the directory `path` of this run. Raises RunError where it is a link, or has links in it."""
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            os.close(open_folder(path, self.path))
            for inside, folders, files in os.walk(path):
                for name in folders + files:
                    info = os.lstat(os.path.join(inside, name))
                    if not stat.S_ISDIR(info.st_mode):
                        check_plain(info, name, writing=True)
        except OSError as error:
            raise RunError(f"cannot write to {path}: {error.filename}: {error.strerror or error}; remove it") from None
        return path

    def _write_info(self, info: RunInfo) -> None:
        self.outbox.replace("run.json", json.dumps(plain(msgspec.to_builtins(info)), indent=2).encode() + b"\n")

    def _must_be_written(self) -> None:
        if left := self.outbox.flush():
            raise RunError(f"cannot write {', '.join(left)} in {self.path}; free space, or give another run_dir=")


def _root(path: Path) -> str:
    """Return what this directory is the root of; empty: it is no root."""
    if os.path.ismount(path):
        return "file system"
    checkout = Path(__file__).resolve().parents[3]
    return "repository" if os.path.lexists(path / ".git") or path.resolve() == checkout else ""


def _decoded(text: bytes) -> Any:
    """Return the value of JSON whose whole numbers have 64 bits, as floats hold no more. Raises ValueError, RecursionError."""
    tree = msgspec.json.decode(text)
    if any(isinstance(one, int) and not -(2**63) <= one < 2**63 for one in flat(tree).values()):
        raise ValueError("it has a number of over 64 bits")
    return tree


def runs_in(folder: Path) -> list[RunDir]:
    """The run directories directly in `folder`, by name; none where there is no such folder."""
    return [RunDir(path.parent) for path in sorted(folder.glob("*/run.json"))]


def plain(value: object) -> Any:
    """`value` as what JSON knows: numbers that are not finite become null, NumPy scalars numbers, the unknown its text, and bytes
    of a name that is no UTF-8 escapes."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _this_process() -> Tree:
    return {"pid": os.getpid(), "process_started": process_started(os.getpid()) or 0.0}


def git_state() -> Git | None:
    """Commit of the checkout that parl_like runs from; None without git or without a checkout. No other folder is asked: a
    repository's own configuration can name programs that git starts."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    quiet = ["--no-pager", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]
    # Without GIT_DIR and the like, which would name another repository; without locks, since this only looks.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *quiet, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, env=env)
        return done.stdout.strip()

    try:
        return Git(git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no")))
    except (OSError, subprocess.SubprocessError):
        return None


class _RunLog(logging.Handler):
    """A handler that writes what parl_like logs to the run's log; and warnings, such as that a worker was replaced, to its
    events and to whoever reads along, too."""

    def __init__(self, run: RunDir, warned: Callable[[str], None], logger: logging.Logger) -> None:
        super().__init__()
        self.run, self.warned, self.logger, self.least = run, warned, logger, logger.getEffectiveLevel()
        self.above = logger.parent if logger.propagate else None
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the lock of a handler: an outbox has its own, and warns while it holds that one."""
        self.emit(record)
        # Handlers of others get what they would have got; many a library installs one that prints all.
        if self.above is not None and record.levelno >= self._least(record.name) and self.above.hasHandlers():
            self.above.handle(record)
        return True

    def _least(self, name: str) -> int:
        """The level that the logger of this name would have if no run had set that of parl_like."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None and logger is not self.logger:
            if logger.level:
                return logger.level
            logger = logger.parent
        return self.least

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().partition("\n")[0]
        with suppress(RunError):  # the directory is gone: others will say so
            self.run.outbox.append("log.txt", lines(self.format(record)).encode() + b"\n")
            if record.levelno >= logging.WARNING:
                self.run.event("warning", source=record.name, text=text)
        if record.levelno >= logging.WARNING:
            self.warned(text)


@contextlib.contextmanager
def logged(run: RunDir, warned: Callable[[str], None]) -> Iterator[None]:
    """Keeps the log of a run, `log.txt`, while it goes on; what Python's `warnings` would print is logged.

    Args:
        warned: Gets the first line of each warning and error.
    """
    logger = logging.getLogger("parl_like")
    handler, level, propagate, before = _RunLog(run, warned, logger), logger.level, logger.propagate, warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
             line: str | None = None) -> None:
        if file is not None:
            before(message, category, filename, lineno, file, line)
        else:
            where = f" ({filename}:{lineno})" if is_users(filename) else ""
            _LOG.warning("%s: %s%s", category.__name__, colourless(str(message)), where)  # gymnasium's are yellow

    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
