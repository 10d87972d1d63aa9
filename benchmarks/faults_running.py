"""Lines of the score card about running robots: load held, detection, recovery, records; and the environments that fail."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import monotonic, monotonic_ns, sleep
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch

from benchmarks.faults_common import Line, folder, listening, until
from parl_like import Agent, ComputationTask, OffPolicyHelper, Robot, create_algorithm_func
from parl_like.algorithms import DQN
from parl_like.drivers.workers.processes import Processes
from parl_like.environment.stop_conditions import StopWhen
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.model import Model
from parl_like.models import MLPQ

PID, FAULT, TAKEN, BACK, END = range(5)
"""Places on a board: whom the next fault hits, which one; when it was taken; when a new process made its second step; the end."""

SLOW_STEP, SLOW_TIME = 0.03, 1.0
"""Seconds of a step of a slow worker, some 100 times the usual, and for how long it is slow."""


def new_board(path: Path) -> Any:
    np.zeros(8, np.int64).tofile(path / "board")
    return board_of(path)


def board_of(path: Path) -> Any:
    """A few numbers in a file that all processes see."""
    return np.memmap(path / "board", np.int64, "r+")


def sign_in(path: Path) -> None:
    """Say that the worker works: from now on it may be killed."""
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
    func = create_algorithm_func(MLPQ, dict(obs=env.observation_space, act=env.action_space, hidden=[128, 128]), DQN,
                                 dict(target_period=200))
    helper = partial(OffPolicyHelper, size=50_000, batch_size=64, learn_every=4, warmup=500)
    many: dict[str, Any] = {"max_restarts": 10_000, "agent_restarts": 10_000} | options
    return Robot(partial(FaultyCartPole, path), tasks={"RL": ComputationTask(func, helper)}, n_agents=8,
                 driver=Processes(workers=2, **many), mode="async")


def against(robot: Robot, work: Callable[[], None]) -> None:
    """Runs a robot until `work`, in a thread, is done; raises what that raised."""
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(work)
        robot.run(StopWhen(lambda robot: job.done()))
        job.result(60.0)


def load_held(options: Any) -> Line:
    """Stretches without faults alternate with ones in which a fault comes every 2 s, the last of which is over at their end."""
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
            noticed = robot.pool.driver.restarts + robot.pool.driver.agent_restarts
            expected = sum(n * (fault != "slow") + n * (fault == "reset") for fault,
                           n in made.items())  # a reset fails, and then a constructor
    without, share = fmean(rates[False]), fmean(rates[True]) / fmean(rates[False])
    spread = (max(rates[False]) - min(rates[False])) / without
    busy = f"; but the rate without faults varied by {spread:.0%}: the machine was busy" if spread > 0.3 else ""
    return Line(
        f"{share:.2f} of {without:,.0f} steps/s (DQN, async) with {made.total()} faults in {stretch * len(rates[True]):.0f} "
        f"s{busy}",
        None if busy else share >= 0.8 and noticed == expected,
        {"share": share, "with": rates[True], "without": rates[False], "spread": spread, "faults": dict(made),
         "replaced": noticed,
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
        f"dead {worst['dead']:.3f} s, hung limit + {worst['hung']:.3f} s, frozen worker limit + {worst['frozen']:.3f} s (worst "
        f"of {rounds}, limit {limit:g} s)",
        worst["dead"] < 0.1 and worst["hung"] < 0.1,
        {"worst_s": worst, "median_s": {what: median(values) for what, values in late.items()}, "rounds": rounds,
         "step_limit": limit})


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


RECORDS = 10
"""Records of one update."""


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
    """Sends numbered records, and writes down each update that was answered, so that a kill does not take the note along."""

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
    return {"learned": len(learned), "acknowledged": sum(acknowledged.values()), "lost": lost,
            "duplicated": sum(n - 1 for n in times.values()),
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
            restarts = robot.pool.driver.restarts
        acknowledged = {}
        for file in path.glob("*.notes"):
            agent, pid = map(int, file.stem.split("."))
            acknowledged[agent, pid] = len(file.read_text().split()) * RECORDS
        counted = tally(np.concatenate(ledger.learned), acknowledged)
    wrong = sum(counted[what] for what in ("lost", "duplicated", "corrupted"))
    return Line(f"{counted['lost']} / {counted['duplicated']} / {counted['corrupted']} of {counted['acknowledged']:,}; "
                f"{restarts} kills",
                not wrong, counted | {"kills": restarts})
