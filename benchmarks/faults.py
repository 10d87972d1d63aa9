"""The score card of reliability (docs/reliability.md): every line measured here and now, beside its goal and the best of its peers.

A line that cannot be measured says so, with the reason. `--only NAME ...` measures single lines, `--quick` all of them small: it shows
that they work, and no figure of it means anything.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import io
import itertools
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import monotonic, monotonic_ns, sleep
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch

from benchmarks.common import machine, report
from parl_like import Agent, ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithm import Algorithm
from parl_like.algorithms import DQN
from parl_like.drivers.processes import Processes
from parl_like.model import Model
from parl_like.models import MLPQ
from parl_like.stages import StopAfterSteps, StopWhen

ROOT = Path(__file__).resolve().parents[1]
MARK = "PARL_LIKE_CARD"
"""In the environment of the processes that a line starts, so that those which stay behind are found."""


@dataclass
class Line:
    """One line of the card.

    Attributes:
        value: What was measured, for people; `not measured: …` with the reason.
        reached: Whether the goal is; None where that cannot be said, or a part was not measured.
        details: The same as numbers, and what they are made of.
    """

    value: str
    reached: bool | None = None
    details: dict[str, Any] = field(default_factory=dict)
    goal: str = ""
    peer: str = ""
    seconds: float = 0.0


class Overdue(Exception):
    """A line took longer than it may: something hangs, which is a result."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises `Overdue` here, in the main thread, after so many seconds. (The alarm clock belongs to pytest-timeout.)"""

    def overdue(*_: Any) -> None:
        raise Overdue(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGUSR1, overdue)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)


def until(condition: Callable[[], Any], seconds: float = 60.0, every: float = 0.0005) -> Any:
    """What `condition` returned when it was true for the first time.

    Raises:
        Overdue: it was not within `seconds`.
    """
    end = monotonic() + seconds
    while not (out := condition()):
        if monotonic() > end:
            raise Overdue(f"waited {seconds:g} s in vain")
        sleep(every)
    return out


# ---------------------------------------------------------------------------------------------------- environments with faults

PID, FAULT, TAKEN, BACK, END = range(5)
"""Places on a board: whom the next fault hits, which one; when it was taken; when a new process made its second step; that all are to end."""

SLOW_STEP, SLOW_TIME = 0.03, 1.0
"""Seconds of a step of a slow worker, some 100 times the usual, and for how long it is slow."""


def new_board(path: Path) -> Any:
    np.zeros(8, np.int64).tofile(path / "board")
    return board_of(path)


def board_of(path: Path) -> Any:
    """A few numbers in a file that all processes see."""
    return np.memmap(path / "board", np.int64, "r+")


def sign_in(path: Path) -> None:
    """What a worker does when it works: from now on it may be killed."""
    (path / f"{os.getpid()}.pid").touch()


def workers_of(path: Path) -> list[int]:
    """Process ids of the two workers, as soon as both work."""

    def both() -> list[int]:
        pids = []
        for file in path.glob("*.pid"):
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(int(file.stem)).status() != psutil.STATUS_ZOMBIE:
                    pids.append(int(file.stem))
        return sorted(pids) if len(pids) == 2 else []

    return list(until(both, every=0.005))


def kill(path: Path, pid: int) -> int:
    """Kills a worker and returns when."""
    (path / f"{pid}.pid").unlink()
    begin = monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    return begin


_begun = [0, 0]  # of this process: its id, and steps of all its environments


class FaultyCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole, until the board names this process: then it fails as told there, once."""

    def __init__(self, path: Path) -> None:
        self.path, self.board, self.pid = path, board_of(path), os.getpid()
        if self.board[PID] == self.pid and self.board[FAULT] == FAULTS.index("constructor"):
            self.board[PID] = 0
            raise OSError("the constructor fails")
        self.slow_until = 0.0
        if _begun[0] != self.pid:
            _begun[:] = self.pid, 0
        super().__init__(gym.make("CartPole-v1"))

    def reset(self, **options: Any) -> Any:
        if self.board[PID] == self.pid and self.board[FAULT] == FAULTS.index("reset"):
            self.board[[FAULT, TAKEN]] = FAULTS.index("constructor"), monotonic_ns()
            raise OSError("reset fails")
        return super().reset(**options)

    def step(self, act: Any) -> Any:
        _begun[1] += 1
        if _begun[1] == 2:
            self.board[BACK] = monotonic_ns()
            sign_in(self.path)
        if self.board[PID] == self.pid and self.board[FAULT] < FAULTS.index("reset"):
            self.fail(FAULTS[self.board[FAULT]])
        if self.slow_until:
            sleep(SLOW_STEP)
            self.slow_until = 0.0 if monotonic() > self.slow_until else self.slow_until
        return super().step(act)

    def fail(self, fault: str) -> None:
        self.board[[PID, TAKEN]] = 0, monotonic_ns()
        if fault == "raise":
            raise OSError("the step fails")
        if fault == "exit":
            os._exit(3)
        if fault == "segfault":
            import ctypes

            ctypes.string_at(0)
        if fault == "hang":
            while True:
                sleep(3600)
        self.slow_until = monotonic() + SLOW_TIME


FAULTS = ("raise", "exit", "segfault", "hang", "slow", "reset", "constructor", "kill")
LOADED = {"raise": "F01", "reset": "F02", "kill": "F03", "exit": "F04", "segfault": "F04", "hang": "F05", "slow": "F06"}
"""Faults of the line `load held`: name → id. After a failed `reset` the new environment's `constructor` fails once."""


def cartpole(path: Path, **options: Any) -> Robot:
    """DQN on CartPole with 8 agents in 2 workers, which may be told to fail. `options`: of `Processes`."""
    env = gym.make("CartPole-v1")
    func = create_algorithm_func(MLPQ, dict(obs=env.observation_space, act=env.action_space, hidden=[128, 128]), DQN, dict(target_period=200))
    helper = partial(OffPolicyHelper, size=50_000, batch_size=64, learn_every=4, warmup=500)
    many: dict[str, Any] = {"max_restarts": 10_000, "agent_restarts": 10_000} | options
    return Robot(partial(FaultyCartPole, path), tasks={"RL": ComputationTask(func, helper)}, n_agents=8, driver=Processes(workers=2, **many), mode="async")


class Saboteur(threading.Thread):
    """Runs a function beside a robot's run, which lasts as long; what it raises is raised where the run is awaited."""

    def __init__(self, robot: Robot, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.robot, self.work = robot, work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  raised again by `against`
            self.error = error


def against(robot: Robot, work: Callable[[], None]) -> None:
    """Runs a robot until `work`, in a thread, is done."""
    thread = Saboteur(robot, work)
    thread.start()
    robot.run(StopWhen(lambda robot: not thread.is_alive()))
    thread.join(10.0)
    if thread.error is not None:
        raise thread.error


class Heard(logging.Handler):
    """When, and of what, the driver warned."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((monotonic_ns(), record.getMessage()))


@contextmanager
def listening() -> Iterator[Heard]:
    """Hears the driver's warnings, which are not printed meanwhile: faults are what is wanted here."""
    logger, handler = logging.getLogger("parl_like"), Heard()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="card-") as path:
        yield Path(path)


# --------------------------------------------------------------------------------------------------------------- under load


def load_held(options: Any) -> Line:
    """Stretches of the run without faults alternate with ones in which a fault comes every 2 s, and the last of those is over at their end."""
    seconds = 4.0 if options.quick else options.seconds
    stretch = min(4.0, seconds)  # short: the speed of a shared machine drifts
    rng = random.Random(0)
    made: Counter[str] = Counter()
    rates: dict[bool, list[float]] = {False: [], True: []}
    with folder() as path, listening() as heard:
        board = new_board(path)
        with cartpole(path, step_limit=0.5) as robot:

            def work() -> None:
                until(lambda: robot.env_steps > 3000)  # it learns by then
                kinds = sorted(LOADED)
                for _ in range(max(round(seconds / stretch), 1)):
                    for faulty in (False, True):
                        before, begin = robot.env_steps, monotonic()
                        while (left := stretch - (monotonic() - begin)) > 0.05:
                            if faulty:
                                fault = rng.choice(kinds)
                                pid = rng.choice(workers_of(path))
                                made[fault] += 1
                                if fault == "kill":
                                    kill(path, pid)
                                else:
                                    board[FAULT], board[PID] = FAULTS.index(fault), pid
                            sleep(min(2.0, left))
                        rates[faulty].append((robot.env_steps - before) / (monotonic() - begin))

            against(robot, work)
            noticed = robot._driver.restarts + robot._driver.agent_restarts
            expected = sum(n * (fault != "slow") + n * (fault == "reset") for fault, n in made.items())  # a reset fails, and then a constructor
    without, share = fmean(rates[False]), fmean(rates[True]) / fmean(rates[False])
    spread = (max(rates[False]) - min(rates[False])) / without
    busy = f"; but the rate without faults varied by {spread:.0%}: the machine was busy" if spread > 0.3 else ""
    return Line(
        f"{share:.2f} of {without:,.0f} steps/s (DQN, async) with {made.total()} faults in {stretch * len(rates[True]):.0f} s{busy}",
        None if busy else share >= 0.8 and noticed == expected,
        {"share": share, "with": rates[True], "without": rates[False], "spread": spread, "faults": dict(made), "replaced": noticed,
         "to_be_replaced": expected, "warnings": len(heard.records)})


def detection(options: Any) -> Line:
    """The driver's warning is the moment of detection. Every clock here is the machine's."""
    rounds = 2 if options.quick else 10
    limit = 0.5
    late: dict[str, list[float]] = {"dead": [], "hung": [], "frozen": []}
    with folder() as path, listening() as heard:
        board = new_board(path)
        with cartpole(path, step_limit=limit) as robot:

            def work() -> None:
                until(lambda: robot.env_steps > 3000)
                for _, what in itertools.product(range(rounds), late):
                    pid, n = workers_of(path)[0], len(heard.records)
                    board[BACK] = 0
                    begin = monotonic_ns()
                    if what == "hung":
                        board[FAULT], board[PID] = FAULTS.index("hang"), pid
                    elif what == "frozen":
                        os.kill(pid, signal.SIGSTOP)
                    else:
                        begin = kill(path, pid)
                    until(lambda n=n: len(heard.records) > n)
                    begin = int(board[TAKEN]) if what == "hung" else begin
                    late[what].append((heard.records[n][0] - begin) / 1e9 - (0.0 if what == "dead" else limit))
                    until(lambda: board[BACK])

            against(robot, work)
    worst = {what: max(values) for what, values in late.items()}
    return Line(
        f"dead {worst['dead']:.3f} s, hung limit + {worst['hung']:.3f} s, frozen worker limit + {worst['frozen']:.3f} s (worst of {rounds}, limit {limit:g} s)",
        worst["dead"] < 0.1 and worst["hung"] < 0.1,
        {"worst_s": worst, "median_s": {what: median(values) for what, values in late.items()}, "rounds": rounds, "step_limit": limit})


def recovery(options: Any) -> Line:
    """From the kill to the second step of the slot's next process: then the server has answered the first and taken it in."""
    rounds = 3 if options.quick else 20
    took: list[float] = []
    rng = random.Random(0)
    with folder() as path, listening():
        board = new_board(path)
        with cartpole(path) as robot:

            def work() -> None:
                until(lambda: robot.env_steps > 3000)
                for i in range(rounds):
                    sleep(0.1 * rng.random())
                    pid = workers_of(path)[i % 2]
                    board[BACK] = 0
                    begin = kill(path, pid)
                    took.append((until(lambda: int(board[BACK])) - begin) / 1e9)

            against(robot, work)
    return Line(f"median {median(took):.2f} s, worst {max(took):.2f} s of {rounds} kills", max(took) < 1.0, {"seconds": took})


# ------------------------------------------------------------------------------------------------------------------ records

RECORDS = 10
"""Records of one lesson."""


def check_of(agent: Any, pid: Any, number: Any) -> Any:
    return (agent * 7919 + pid * 104_729 + number * 31) % 65_521


class Ledger(Algorithm):
    """Notes which records it learns from: agent, process id of its incarnation, number, and a check of the three."""

    def __init__(self) -> None:
        box = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        model = Model(box, gym.spaces.Discrete(2))
        model.w = torch.nn.Parameter(torch.zeros(1))
        super().__init__(model)
        self.learned: list[Any] = []

    def predict(self, inputs: Any) -> dict[str, Any]:
        return {"act": torch.zeros(len(inputs.obs), dtype=torch.int64)}

    def learn(self, batch: Any) -> dict[str, Any]:
        self.learned.append(batch.obs.numpy().astype(np.int64))
        return {"loss": self.model.w.sum() * 0.0}


class Sender(Agent):
    """Sends numbered records, and writes down each lesson that was answered, so that a kill does not take the note along."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def run(self) -> None:
        board, pid, comm = board_of(self.path), os.getpid(), self.helpers["ledger"].comm
        notes = os.open(self.path / f"{self.index}.{pid}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sign_in(self.path)
        for first in itertools.count(0, RECORDS):
            if board[END]:
                break
            number = np.arange(first, first + RECORDS)
            rows = np.stack([np.full(RECORDS, self.index), np.full(RECORDS, pid), number, check_of(self.index, pid, number)], 1)
            comm.learn({"obs": rows.astype(np.float64)})
            os.write(notes, b"%d\n" % first)
        os.close(notes)


def tally(learned: Any, acknowledged: dict[tuple[int, int], int]) -> dict[str, int]:
    """Compares what was learned from with what its senders heard of.

    Args:
        learned: [N, 4] int64, as `Ledger` notes them.
        acknowledged: Agent and process id → how many of its records, from number 0 on, were answered.
    """
    good = learned[:, 3] == check_of(learned[:, 0], learned[:, 1], learned[:, 2])
    times = Counter(map(tuple, learned[good, :3].tolist()))
    lost = sum((agent, pid, number) not in times for (agent, pid), n in acknowledged.items() for number in range(n))
    return {"learned": len(learned), "acknowledged": sum(acknowledged.values()), "lost": lost, "duplicated": sum(n - 1 for n in times.values()),
            "corrupted": int((~good).sum())}


def records(options: Any) -> Line:
    """Records through worker processes that are killed again and again."""
    wanted, kills = (2_000, 2) if options.quick else (20_000, 20)
    rng = random.Random(0)
    with folder() as path, listening():
        board = new_board(path)
        ledger = Ledger()
        task = ComputationTask(ledger)
        ledger.learned.clear()  # of the trial when the task was built
        driver = Processes(workers=2, max_restarts=10_000)
        with Robot(tasks={"ledger": task}, agent=partial(Sender, path), n_agents=8, driver=driver, mode="async") as robot:

            def work() -> None:
                try:
                    until(lambda: ledger.learned)
                    for _ in range(kills):
                        kill(path, rng.choice(workers_of(path)))
                        sleep(0.1 * rng.random())
                    workers_of(path)
                    until(lambda: len(ledger.learned) * RECORDS >= wanted)
                finally:
                    board[END] = 1  # which ends the run

            against(robot, work)
            restarts = robot._driver.restarts
        acknowledged = {}
        for file in path.glob("*.notes"):
            agent, pid = map(int, file.stem.split("."))
            acknowledged[agent, pid] = len(file.read_text().split()) * RECORDS
        counted = tally(np.concatenate(ledger.learned), acknowledged)
    wrong = sum(counted[what] for what in ("lost", "duplicated", "corrupted"))
    return Line(f"{counted['lost']} / {counted['duplicated']} / {counted['corrupted']} of {counted['acknowledged']:,}; {restarts} kills",
                not wrong, counted | {"kills": restarts})


# ---------------------------------------------------------------------------------------------------------------- bad input


def module_of(file: str) -> Any:
    """A module of the tests, whose mutators and crafted files are used here, too."""
    path = ROOT / "tests" / file
    spec = importlib.util.spec_from_file_location(f"card_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    with ExitStack() as stack:
        for where in (str(ROOT / "tests"), str(path.parent)):
            sys.path.insert(0, where)
            stack.callback(sys.path.remove, where)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


def bad_messages(options: Any) -> Line:
    """An escape is anything but a WireError, or what `well_typed` refuses; `fuzz` ends at the first."""
    wire = module_of("test_wire.py")
    wanted = 10_000 if options.quick else 1_000_000
    tried, escapes = 0, []
    for seed in range(10):
        said = io.StringIO()
        try:
            with redirect_stderr(said):
                wire.fuzz(wanted // 10, 100 + seed)
        except Exception as error:  # noqa: BLE001  that is what is looked for
            escapes.append(f"{type(error).__name__}: {error}; {said.getvalue()[:300]}")
        tried += wanted // 10
    return Line(f"{tried:,} messages / {len(escapes)}", not escapes, {"messages": tried, "escapes": escapes})


def bad_files(options: Any) -> Line:
    """Damaged and crafted archives, damaged buffers, bad configurations: how many load, or fail with anything but the one error they should."""
    from parl_like.data.archive import ArchiveError, read_archive, write_archive
    from parl_like.lab.config import ConfigError, load_yaml, resolve

    made, configs = module_of("data/test_archive.py"), module_of("lab/test_config.py")
    tried: Counter[str] = Counter()
    wrong: list[str] = []

    def attempt(kind: str, what: str, load: Callable[[], Any], error: type[Exception]) -> None:
        tried[kind] += 1
        try:
            load()
        except error:
            return
        except Exception as other:  # noqa: BLE001  refused, but not as promised
            wrong.append(f"{kind}, {what}: {type(other).__name__}: {other}")
            return
        wrong.append(f"{kind}, {what}: was loaded")

    with folder() as path:
        write_archive(path / "a", made.tiny(), {"step": 100, "score": 0.5})
        content = {name: (path / "a" / name).read_bytes() for name in os.listdir(path / "a")}
        now = dict(content)
        damaged = [(what, new) for what, new in made.damages(content, random.Random(1)) if new != content]
        for what, new in damaged[:: 20 if options.quick else 1]:
            made.become(path / "a", now, new)
            now = new
            attempt("damaged checkpoints", what, lambda: read_archive(path / "a"), ArchiveError)
        here = os.getcwd()
        for i, (what, craft) in enumerate(made.FORGERIES.items()):
            place = path / f"forged{i}"
            place.mkdir()
            (place / "secret").write_text("1")
            forgery = made.Forgery(place / "a")
            shutil.copy(place / "a" / "task.RL.json", place / "same.json")
            text = craft(forgery)
            if text is not False:
                forgery.seal(text if isinstance(text, str) else None)
            os.chdir(place)  # where code in a forgery would leave its trace
            try:
                attempt("crafted checkpoints", what, lambda place=place: read_archive(place / "a"), ArchiveError)
            finally:
                os.chdir(here)
            if (place / "was_here").exists():
                wrong.append(f"crafted checkpoints, {what}: its code was run")
        damaged_buffers(path, 5 if options.quick else 100, attempt)
    for text, key in configs.bad_configs():
        attempt("configurations", key, lambda text=text: resolve(configs.Config, load_yaml(text)), ConfigError)
    return Line(f"{', '.join(f'{n:,} {kind}' for kind, n in tried.items())} / {len(wrong)}", not wrong, {"tried": dict(tried), "wrong": wrong[:20]})


def damaged_buffers(path: Path, n: int, attempt: Callable[[str, str, Callable[[], Any], type[Exception]], None]) -> None:
    """Replay buffers on disk with one byte changed; they have one part only, so nothing of them may be spared."""
    from parl_like.data.archive import ArchiveError
    from parl_like.data.files import load_buffer, save_buffer

    made, rng = module_of("data/test_files.py"), random.Random(2)
    save_buffer(made.filled(n=20), path / "buffer")
    files = sorted((path / "buffer").iterdir())
    for _ in range(n):
        file = rng.choice(files)
        at = rng.randrange(file.stat().st_size)
        made.flip(file, at)
        attempt("damaged replays", f"{file.name} at {at}", lambda: load_buffer(path / "buffer"), ArchiveError)
        made.flip(file, at)


def checkpoint_bytes(options: Any) -> Line:
    """The program of `lab/test_checkpoint.py` that kills a saving process at its k-th system call and looks what loads then, for every k."""
    script = module_of("lab/test_checkpoint.py").KILL
    points, failed = 0, []
    for variant, when in itertools.product(("new",) if options.quick else ("new", "again", "damaged"), ("before", "half")):
        with folder() as path:
            done = subprocess.run([sys.executable, "-c", script, str(path), variant, when], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            failed.append(f"{variant}, {when}: {done.stderr[-500:]}")
        else:
            points += int(done.stdout)
    value = f"0 after {points} kills at {points} moments of a save" if not failed else f"lost: {failed}"
    return Line(value, not failed, {"kills": points, "failed": failed})


# ------------------------------------------------------------------------------------------------------------ whole programs


def marked(mark: str) -> list[psutil.Process]:
    """Living processes that were started with this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextmanager
def training(path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """`parl-like train` with worker processes, past its first rows of metrics; process, mark and run directory."""
    mark, run = uuid.uuid4().hex, path / "run"
    words = [sys.executable, "-m", "parl_like", "train", "dqn-cartpole", "driver=processes", "total_steps=100000000", "tensorboard=false", f"run_dir={run}"]
    env = {**os.environ, MARK: mark, "TMPDIR": str(path), "PARL_LIKE_SHM": str(path), "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    log = open(path / "log", "wb")  # noqa: SIM115
    process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True)
    try:
        metrics = run / "metrics.csv"
        until(lambda: process.poll() is not None or (metrics.exists() and metrics.read_bytes().count(b"\n") > 3), 120.0, 0.01)
        if process.poll() is not None:
            raise RuntimeError(f"parl-like train ended by itself: {(path / 'log').read_text()[-500:]}")
        yield process, mark, run
    finally:
        log.close()
        for one in marked(mark):
            with suppress(psutil.Error):
                one.kill()
        process.wait()


@contextmanager
def temporary_files_in_one_place() -> Iterator[None]:
    """Where nobody else makes any."""
    before = tempfile.tempdir
    with folder() as path:
        tempfile.tempdir = os.environ["PARL_LIKE_SHM"] = str(path)
        try:
            yield
        finally:
            tempfile.tempdir = before
            del os.environ["PARL_LIKE_SHM"]


def sockets_in(path: Path) -> list[str]:
    return sorted(one.name for one in path.glob("parl_like-*"))


def shutdown(options: Any) -> Line:
    from parl_like.lab.checkpoint import verify

    took, left, bad = [], [], []
    for _ in range(1 if options.quick else 5):
        with folder() as path, training(path) as (process, mark, run):
            begin = monotonic()
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(60.0)
            took.append(monotonic() - begin)
            left.append(len(marked(mark)) + len(sockets_in(path)))
            saved = verify(run / "checkpoints")
            if code != 3 or not saved or not all(good for _, good, _ in saved):
                bad.append(f"exit code {code}, checkpoints {saved}")
    return Line(f"worst of {len(took)}: {max(took):.2f} s, {max(left)} left" + (f", but {bad}" if bad else ", exit code 3, checkpoint good"),
                max(took) < 5.0 and not any(left) and not bad, {"seconds": took, "left": left, "bad": bad})


def orphans(options: Any) -> Line:
    gone, left, sockets = [], [], []
    for _ in range(1 if options.quick else 5):
        with folder() as path, training(path) as (process, mark, _run):
            there = len(marked(mark))
            begin = monotonic()
            process.kill()
            process.wait()
            with suppress(Overdue):
                until(lambda mark=mark: not marked(mark), 1.0, 0.01)
            gone.append(monotonic() - begin)
            sleep(max(begin + 1.0 - monotonic(), 0.0))
            left.append(len(marked(mark)))
            sockets.append(len(sockets_in(path)))
    return Line(f"{max(left)} of {there} processes and {max(sockets)} socket folders after 1 s; none after {max(gone):.2f} s (worst of {len(gone)})",
                not any(left) and not any(sockets), {"left": left, "sockets": sockets, "gone_s": gone})


# ------------------------------------------------------------------------------------------------------------------ resume


def digest_of(value: Any, into: Any) -> None:
    """Feeds a tree of plain values, arrays and tensors into a hash."""
    if isinstance(value, dict):
        for key in sorted(value):
            into.update(f"{key}:".encode())
            digest_of(value[key], into)
    elif isinstance(value, (list, tuple)):
        for part in value:
            digest_of(part, into)
    elif isinstance(value, (np.ndarray, torch.Tensor)):
        array = np.ascontiguousarray(value)
        into.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    else:
        into.update(repr(value).encode())


def resume(options: Any) -> Line:
    """Twice N steps with a checkpoint between them, against N steps, a new robot, and N steps more: trace, weights and the whole state."""
    from parl_like.robots import actor_critic, dqn

    n = 600 if options.quick else 5_000
    equal: dict[str, bool] = {}
    for (name, robots), driver in itertools.product({"DQN": dqn, "PPO": actor_critic}.items(), ("cooperative", "processes")):
        small = {"warmup": 200} if name == "DQN" else {"unroll": 32}
        config = robots.Config(env="CartPole-v1", n_agents=4, total_steps=10 * n, driver=driver, trace=True, **small)

        def after(robot: Robot) -> tuple[Any, ...]:
            robot.run(StopAfterSteps(n))
            robot.checkpoint_boundary()
            whole = hashlib.sha256()
            digest_of(robot.state_dict(), whole)
            return robot.trace_hash(), robot.counters(), whole.hexdigest()

        with folder() as path:
            with robots.build(config) as robot:
                robot.run(StopAfterSteps(n))
                robot.save(path / "state")
                straight = after(robot)
            with robots.build(config) as robot:
                robot.load(path / "state")
                equal[f"{name}, {driver}"] = after(robot) == straight
    return Line(", ".join(f"{name} {'equal' if same else 'DIFFERS'}" for name, same in equal.items()), all(equal.values()), {"equal": equal, "steps": n})


# -------------------------------------------------------------------------------------------------------------------- leaks


class Asking(Agent):
    """Predicts once."""

    def run(self) -> None:
        self.helpers["ledger"].comm.predict((np.zeros(4),))


def held(process: psutil.Process) -> dict[str, int]:
    """What a process holds: open files, threads, bytes."""
    return {"fds": process.num_fds(), "threads": process.num_threads(), "bytes": process.memory_info().rss}


def leak(options: Any) -> Line:
    """Start and stop of the smallest robot with worker processes; also what the fork server, which stays, holds. Growth since a warm-up."""
    cycles = 10 if options.quick else 200
    task = ComputationTask(Ledger())
    me = psutil.Process()

    def cycle() -> None:
        with Robot(tasks={"ledger": task}, agent=Asking, n_agents=2, driver=Processes(workers=2)) as robot:
            robot.run()

    def holding() -> dict[str, int]:
        out = held(me) | {"shm": len(os.listdir("/dev/shm")), "folders": len(sockets_in(Path(tempfile.gettempdir())))}
        children = me.children()
        out |= {"children": len(children)}
        return out | {f"fork server {what}": n for what, n in (held(children[0]) if children else {}).items()}

    with temporary_files_in_one_place():
        for _ in range(max(cycles // 10, 5)):  # caches and pools of threads fill
            cycle()
        before = holding()
        for _ in range(cycles):
            cycle()
        growth = {name: (n - before[name]) / cycles for name, n in holding().items() if name in before}
    mb = {"robot": growth["bytes"] / 1e6, "fork server": growth.get("fork server bytes", 0.0) / 1e6}
    counts = {name: n for name, n in growth.items() if "bytes" not in name}
    whole = {name: round(n * cycles) for name, n in counts.items() if round(n * cycles)}
    return Line(f"{', '.join(f'{n:+d} {name}' for name, n in whole.items()) or '0 fds, 0 threads, 0 files'} in {cycles} cycles; {mb['robot']:.3f} MB per cycle "
                f"(fork server {mb['fork server']:.3f})", not any(n > 0 for n in whole.values()) and max(mb.values()) < 0.1, {"per_cycle": growth, "cycles": cycles})


# ------------------------------------------------------------------------------------------------------------- unsafe calls

SINKS = {
    *(f"{module}.{name}" for module in ("pickle", "_pickle", "marshal", "cloudpickle", "dill", "joblib") for name in ("load", "loads", "Unpickler")),
    "eval", "exec", "builtins.eval", "builtins.exec", "os.system", "os.popen", "shelve.open",
    "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all",
}  # fmt: skip
"""Wherever these are named, called or not."""


def _constant(call: ast.Call, name: str) -> Any:
    """The plain value of a keyword; None where it is not given, or is computed."""
    return next((word.value.value for word in call.keywords if word.arg == name and isinstance(word.value, ast.Constant)), None)


def unsafe_calls_in(source: str) -> list[tuple[int, str]]:
    """Line and name of everything in a module that runs what it reads."""
    tree = ast.parse(source)
    real: dict[str, str] = {}  # name in this module → its dotted name
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            real |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            real |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def dotted(node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{dotted(node.value)}.{node.attr}"
        return real.get(node.id, node.id) if isinstance(node, ast.Name) else "?"

    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and (name := dotted(node)) in SINKS:
            found.append((node.lineno, name))
        elif isinstance(node, ast.Call):
            name, shell = dotted(node.func), next((word.value for word in node.keywords if word.arg == "shell"), None)
            loaders = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "Loader")]
            if name in ("yaml.load", "yaml.load_all") and not any(dotted(loader).endswith("SafeLoader") for loader in loaders):
                found.append((node.lineno, f"{name} without SafeLoader"))
            elif name == "torch.load" and _constant(node, "weights_only") is not True:
                found.append((node.lineno, "torch.load without weights_only=True"))
            elif name == "numpy.load" and _constant(node, "allow_pickle"):
                found.append((node.lineno, "numpy.load(allow_pickle=True)"))
            elif shell is not None and not (isinstance(shell, ast.Constant) and not shell.value):
                found.append((node.lineno, f"{name}(shell=…)"))
    return sorted(found)


OWN_PIPE = {"parl_like/drivers/worker.py": "the robot's recipe, by the parent's own pipe", "envs/group.py": "the parent's own factory",
            "envs/hosts.py": "orders of the parent and answers of its own workers, by their own socket pair",
            "parl_like/drivers/ray_connection.py": "what the robot gives to its actors, among arguments that Ray itself pickles"}
"""Where what is read was written by a process of the same user that this one started, or that started this one."""


def unsafe_calls(options: Any) -> Line:
    where = {}
    for room in ("parl_like", "robots", "algorithms", "models", "envs"):
        for file in sorted((ROOT / room).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            if name.startswith("parl_like/") and file.resolve() != file and name.split("/")[1] in ("robots", "algorithms", "models", "envs"):
                continue  # a link to a room beside
            where |= {f"{name}:{line}": what for line, what in unsafe_calls_in(file.read_text(encoding="utf-8"))}
    own = {place: OWN_PIPE[place.split(":")[0]] for place in where if place.split(":")[0] in OWN_PIPE}
    others = where.keys() - own
    said = "; ".join(f"{place} {what}{f' ({own[place]})' if place in own else ''}" for place, what in where.items())
    return Line(f"{len(where)}, of which {len(others)} read what another may have written" + (f": {said}" if said else ""), not where, {"where": where, "own_pipe": own})


# -------------------------------------------------------------------------------------------------------------- fault tests


@dataclass
class Row:
    """One row of the table in docs/reliability.md: the faults that it is about, its state, and its tests as (file, word) pairs."""

    faults: list[str]
    state: str
    tests: list[tuple[str, str]]

    @property
    def holds(self) -> bool:
        """Without an `in part`, an `open`, or a `for …` that leaves something out."""
        return self.state == "holds"


def fault_ids(text: str) -> list[str]:
    """`F16–F18, F22, F36a` → F16, F17, F18, F22, F36a."""
    out = []
    for part in text.split(","):
        ends = re.findall(r"F(\d+)([a-z]?)", part)
        out += [f"F{number:02}{ends[0][1]}" for number in range(int(ends[0][0]), int(ends[-1][0]) + 1)] if ends else []
    return out


def rows_of(text: str) -> list[Row]:
    """The table of faults: id, fault, what happens, state, tests. For a word without a file in front see `USUAL`."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("| F") or len(cells) != 5 or not fault_ids(cells[0]):
            continue
        tests: list[tuple[str, str]] = []
        for part in re.sub(r"\([^)]*\)", "", cells[4]).split(";"):
            files = re.findall(r"`([\w/]+\.py)`", part)
            words = [word.strip() for word in re.sub(r"`[^`]*`", "", part).strip(" :,").split(",") if re.search(r"\w", word)]
            tests += [(file, word) for file in files[-1:] or [""] for word in words] if words else []
            tests += [(file, "") for file in (files[:-1] if words else files)]
        rows.append(Row(fault_ids(cells[0]), cells[3], tests))
    return rows


def functions_of(folder: Path) -> dict[str, list[str]]:
    """File below `folder` → names of its tests."""
    return {str(file.relative_to(folder)): re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
            for file in sorted(folder.rglob("test_*.py"))}


USUAL = "drivers/test_processes.py"
"""The file that a word without one means; where it has no such test, any file."""


def targets(file: str, word: str, functions: dict[str, list[str]]) -> list[str]:
    """`file::function` of every test that a word of the table means; the file alone where it names one only. [] if there is none."""
    if not word:
        return [file] if file in functions else []
    name = word.partition("[")[0]

    def below(paths: Iterable[str]) -> list[str]:
        return [f"{path}::{function}" for path in paths for function in functions.get(path, ()) if name in function]

    return below([file]) if file else below([USUAL]) or below(functions)


@dataclass
class Outcome:
    """One test as pytest ran it; `node`: file::function[parameters]."""

    node: str
    result: str
    seconds: float


def run_tests(nodes: Sequence[str]) -> list[Outcome]:
    """One pytest of the tests named, relative to the folder of tests; those marked slow are not run."""
    with folder() as path:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={path / 'out.xml'}", *(f"tests/{node}" for node in nodes)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if not (path / "out.xml").exists():
            raise RuntimeError(f"pytest: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        cases = list(ElementTree.parse(path / "out.xml").iter("testcase"))
    out = []
    for case in cases:
        result = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        parts = case.get("classname", "").split(".")
        file = next(("/".join(parts[1:n]) + ".py" for n in range(len(parts), 1, -1) if (ROOT / ("/".join(parts[:n]) + ".py")).exists()), "")
        out.append(Outcome(f"{file}::{case.get('name')}", result, float(case.get("time", 0))))
    return out


def belongs(outcome: Outcome, file: str, word: str, nodes: Sequence[str]) -> bool:
    """Whether a test that ran is one that (file, word) means, of which `nodes` are the functions."""
    function, _, rest = outcome.node.partition("[")
    wanted = word.partition("[")[2].rstrip("]")
    return (function in nodes or outcome.node.partition("::")[0] in nodes) and wanted in rest


def judged(row: Row, functions: dict[str, list[str]], outcomes: Sequence[Outcome]) -> tuple[list[Outcome], str]:
    """The tests of a row that ran, and why its faults do not count as survived, or ''."""
    mine: dict[str, Outcome] = {}
    for file, word in row.tests:
        nodes = targets(file, word, functions)
        ran = [outcome for outcome in outcomes if belongs(outcome, file, word, nodes)]
        if not any(outcome.result != "skipped" for outcome in ran):
            return list(mine.values()), f"`{file} {word}`: {'no such test' if not nodes else 'no test ran'}"
        mine |= {outcome.node: outcome for outcome in ran}
    bad = [outcome.node for outcome in mine.values() if outcome.result in ("failure", "error")]
    reason = "" if row.holds else row.state
    return list(mine.values()), f"failed: {', '.join(bad)}" if bad else reason or ("" if mine else "no tests named")


_suite: list[tuple[list[Row], dict[str, list[str]], list[Outcome]]] = []


def suite(options: Any) -> tuple[list[Row], dict[str, list[str]], list[Outcome]]:
    """The table, and its tests run once for the two lines that need them; in quick runs only a few."""
    if not _suite:
        rows = rows_of((ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))
        functions = functions_of(ROOT / "tests")
        chosen = [row for row in rows if "F15" in row.faults] if options.quick else rows
        nodes = sorted({node for row in chosen for file, word in row.tests for node in targets(file, word, functions)})
        files = {node for node in nodes if "::" not in node}
        _suite.append((rows, functions, run_tests([node for node in nodes if node in files or node.partition("::")[0] not in files])))
    return _suite[0]


def survived(options: Any) -> Line:
    rows, functions, outcomes = suite(options)
    good, why, states = [], {}, Counter()
    for row in rows:
        reason = judged(row, functions, outcomes)[1]
        states["holds" if row.holds else "in part" if row.state.startswith(("in part", "holds for")) else "open"] += len(row.faults)
        if reason:
            why |= dict.fromkeys(row.faults, reason)
        else:
            good += row.faults
    failed = sum(outcome.result in ("failure", "error") for outcome in outcomes)
    small = " (quick: one row's tests were run)" if options.quick else ""
    return Line(f"{len(good)} of {len(good) + len(why)}; by the table {states['holds']} hold, {states['in part']} in part, {states['open']} open; {len(outcomes)} tests, {failed} failed{small}",
                None if options.quick else not why, {"survived": sorted(good), "not": dict(sorted(why.items())), "states": dict(states), "tests": len(outcomes), "failed": failed})


def test_time(options: Any) -> Line:
    rows, functions, outcomes = suite(options)
    total = sum(outcome.seconds for outcome in outcomes)
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    return Line(f"{total:.0f} s for {len(outcomes)} tests, slowest {slowest[0].seconds:.1f} s ({slowest[0].node.partition('[')[0]})", None if options.quick else total < 180.0,
                {"seconds": total, "slowest": {outcome.node: outcome.seconds for outcome in slowest}, "not_measured": "flakes in 20 runs"})


# ----------------------------------------------------------------------------------------------------------------- the card

CARD: dict[str, tuple[Callable[[Any], Line], str, str]] = {
    "load held": (load_held, ">= 0.80", "no peer publishes one (Ray's chaos tests: run time and memory only)"),
    "faults survived": (survived, "all in docs/reliability.md", "no peer publishes a list; RLlib's own tests touch 7"),
    "bad wire inputs tried / escapes": (bad_messages, "1,000,000 / 0", "none fuzz"),
    "bad files tried / wrong loads": (bad_files, "2,000 + 25 + 200 / 0", "no checks for flips"),
    "records lost / duplicated / corrupted": (records, "0 / 0 / 0 of 20,000", "Reverb 0 lost of 10,000 with transient errors"),
    "bytes lost in checkpoints": (checkpoint_bytes, "0", "not measured"),
    "detection time": (detection, "< 0.1 s / limit + 0.1 s", "Ray 0.01 s / by hand; SF 180 s; PARL 20-30 s"),
    "recovery time": (recovery, "< 1 s", "Ray core 0.27 s; RLlib adds its 60 s delay"),
    "shutdown": (shutdown, "< 5 s, 0 left", "SF 3.2 s, 0 left"),
    "orphans": (orphans, "0 after 1 s", "Ray 0 after 5 s"),
    "resume": (resume, "equal", "nobody promises it"),
    "leak": (leak, "0 fds, 0 threads, < 0.1 MB each", "RLlib tests memory only"),
    "unsafe calls": (unsafe_calls, "0", "SB3 3 sinks; SB3-zoo eval + yaml.UnsafeLoader; PARL everywhere"),
    "test time": (test_time, "< 180 s, 0 flakes in 20 runs", "RLlib uses 15 s sleeps; PARL up to 95 s in one test"),
}
"""Line → what measures it, its goal, and the best peer's figure."""


def measured(name: str, options: Any, limit: float) -> Line:
    """One line; whatever goes wrong is what it says."""
    work, goal, peer = CARD[name]
    begin = monotonic()
    try:
        with at_most(limit):
            line = work(options)
    except Overdue as error:
        line = Line(f"not measured: {error}; something hangs", None)
    except Exception as error:  # noqa: BLE001  the other lines are still wanted
        line = Line(f"not measured: {type(error).__name__}: {' '.join(str(error).split())[:500]}", None)
    line.goal, line.peer, line.seconds = goal, peer, monotonic() - begin
    return line


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parl-like bench faults", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0, help="of `load held` with faults, and as many without")
    parser.add_argument("--quick", action="store_true", help="everything small")
    parser.add_argument("--only", nargs="+", choices=sorted({name.split()[0] for name in CARD}), metavar="NAME",
                        help="lines, by their first word: %(choices)s")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    lines: dict[str, Line] = {}
    for name in CARD:
        if options.only is None or name.split()[0] in options.only:
            lines[name] = measured(name, options, 120.0 if options.quick else 900.0 + 4 * options.seconds)
            if not options.json:
                line = lines[name]
                print(f"{name}: {line.value}\n    goal {line.goal}: {'?' if line.reached is None else 'yes' if line.reached else 'NO'}; "
                      f"best peer: {line.peer} ({line.seconds:.0f} s)", flush=True)
    _suite.clear()
    result = {"bench": "faults", "machine": machine(), "quick": options.quick, "card": {name: asdict(line) for name, line in lines.items()}}
    reached = sum(line.reached is True for line in lines.values())
    report(result, options.json, [f"{reached} of {len(lines)} goals reached"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
