"""Lines of the score card about whole programs: shutdown, orphans, resume, leaks."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil

from benchmarks.faults_common import ROOT, Line, Overdue, folder, until
from benchmarks.faults_running import Ledger
from parl_like import Agent, ComputationTask, Robot
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.values.batch_leaf import same

MARK = "PARL_LIKE_CARD"
"""In the environment of the processes that a line starts, so that those which stay behind are found."""


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
    words = [sys.executable, "-m", "parl_like", "train", "dqn-cartpole", "driver=processes", "total_steps=100000000",
             "tensorboard=false", f"run_dir={run}"]
    env = {**os.environ, MARK: mark, "TMPDIR": str(path), "PARL_LIKE_SHM": str(path),
           "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
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
    """Make temporary files in a folder where nobody else makes any."""
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
    from parl_like.lab.runs.checkpoint import verify

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
    how = f", but {bad}" if bad else ", exit code 3, checkpoint good"
    return Line(f"worst of {len(took)}: {max(took):.2f} s, {max(left)} left{how}",
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
    return Line(f"{max(left)} of {there} processes and {max(sockets)} socket folders after 1 s; none after {max(gone):.2f} s "
                f"(worst of {len(gone)})",
                not any(left) and not any(sockets), {"left": left, "sockets": sockets, "gone_s": gone})


def resume(options: Any) -> Line:
    """Twice N steps with a checkpoint between them, against N steps, a new robot, and N more: trace, weights, the whole state."""
    from parl_like.lab.config import resolve
    from parl_like.robots import single

    n = 600 if options.quick else 5_000
    equal: dict[str, bool] = {}
    for name, driver in itertools.product(("DQN", "PPO"), ("cooperative", "processes")):
        small = {"warmup": 200} if name == "DQN" else {"unroll": 32}
        config = resolve(single.Config, {"algorithm": name, "n_agents": 4, "total_steps": 10 * n, "driver": driver, "trace": True,
                                         **small})

        def after(robot: Robot) -> tuple[Any, ...]:
            robot.run(StopAfterSteps(n))
            robot.checkpoint_boundary()
            return robot.trace_hash(), robot.counters(), robot.state_dict()

        with folder() as path:
            with single.build(config) as robot:
                robot.run(StopAfterSteps(n))
                robot.save(path / "state")
                straight = after(robot)
            with single.build(config) as robot:
                robot.load(path / "state")
                equal[f"{name}, {driver}"] = same(after(robot), straight)
    return Line(", ".join(f"{name} {'equal' if alike else 'DIFFERS'}" for name, alike in equal.items()), all(equal.values()),
                {"equal": equal, "steps": n})


class PredictingOnce(Agent):
    """Predicts once."""

    def run(self) -> None:
        self.helpers["ledger"].comm.predict((np.zeros(4),))


def held(process: psutil.Process) -> dict[str, int]:
    """Count what a process holds: open files, threads, bytes."""
    return {"fds": process.num_fds(), "threads": process.num_threads(), "bytes": process.memory_info().rss}


def leak(options: Any) -> Line:
    """Start and stop of the smallest robot with worker processes; what it and the fork server, which stays, hold: growth a
    cycle."""
    cycles = 10 if options.quick else 200
    task = ComputationTask(Ledger(), train=False)
    me = psutil.Process()

    def cycle() -> None:
        with Robot(tasks={"ledger": task}, agent=PredictingOnce, n_agents=2, driver=Processes(workers=2)) as robot:
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
    return Line(f"{', '.join(f'{n:+d} {name}' for name, n in whole.items()) or '0 fds, 0 threads, 0 files'} in {cycles} cycles; "
                f"{mb['robot']:.3f} MB per cycle "
                f"(fork server {mb['fork server']:.3f})", not any(n > 0 for n in whole.values()) and max(mb.values()) < 0.1,
                {"per_cycle": growth, "cycles": cycles})
