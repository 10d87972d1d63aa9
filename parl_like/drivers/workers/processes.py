"""The processes driver: worker processes of this machine with many agents each, and a socket to each that nobody else reaches."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle
import psutil

from parl_like.drivers.messages import Frames
from parl_like.drivers.workers import shared_rows
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.hosted import HostedDriver
from parl_like.drivers.workers.streams import Streams
from parl_like.drivers.workers.supervisor import Link
from parl_like.process.child import Child, readable, shielded
from parl_like.process.fork_server import ForkServer
from parl_like.values.spec import Array, Spec

if TYPE_CHECKING:
    from parl_like.tasks.task import ComputationTask

FORK_SERVER = ForkServer("parl_like.drivers.workers.worker:work")
"""Makes the workers of all robots of this process."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Options of the driver: `Robot(driver=Processes(workers=4))`; `driver="processes"` takes them as they are here.

    Attributes:
        workers: Processes of this machine; None: as many as there are cores, at most one per agent.
        start_limit: Seconds that a worker may take to build its agents and environments.
        step_limit: Seconds without a sign of life after which a worker that owes one is replaced.
        memory_limit: Bytes of resident memory above which a worker is replaced; None: no bound.
        max_restarts, period: So many replacements of one worker within `period` seconds end the run.
        agent_restarts: So many times within 60 s an agent whose code or environment raises begins anew, with a new environment;
            after that, and with 0 at once, its error ends the run.
    """

    workers: int | None = None
    start_limit: float = 60.0
    step_limit: float = 60.0
    memory_limit: int | None = None
    max_restarts: int = 10
    period: float = 60.0
    agent_restarts: int = 0
    name: str = field(default="processes", init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("workers", "start_limit", "step_limit", "memory_limit", "max_restarts", "period"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected more than 0")
        if self.agent_restarts < 0:
            raise ValueError(f"{type(self).__name__}: agent_restarts is {self.agent_restarts}; expected at least 0")

    def count(self, n_agents: int) -> int:
        """Workers for so many agents."""
        return min(self.workers or os.cpu_count() or 1, n_agents)

    def make_link(self) -> Link:
        """Return the link by which the robot's process and its workers reach each other."""
        return LocalLink()

    def place(self, tasks: Mapping[str, ComputationTask]) -> Mapping[str, ComputationTask]:
        """Tasks stay with the robot."""
        return tasks


class LocalLink(Link):
    """Forks of the fork server, each with its end of a pair of sockets."""

    prompt = True

    def __init__(self) -> None:
        self._children: dict[WorkerHandle, Child] = {}

    def open(self) -> None:
        place = shared_rows.folder()
        self.folder = "" if place is None else FORK_SERVER.make_folder(place)
        self._reader = shared_rows.Reader(self.folder)
        self._streams = Streams()

    def begin(self, worker: WorkerHandle, recipe: Any) -> None:
        recipe.shared = self.folder
        try:
            packed = cloudpickle.dumps(recipe)
        except Exception as error:
            raise TypeError("Robot: the environment, agent or helpers cannot be sent to a worker process: "
                            f"{type(error).__name__}: "
                            f"{error}; make them in functions or classes that hold no open files, locks or sockets") from error
        payload = cloudpickle.dumps((sys.path, packed))
        with shielded():  # a worker that nobody knew of would never be ended
            ours, theirs = socket.socketpair()
            with theirs:
                child = self._children[worker] = FORK_SERVER.start(payload, [theirs.fileno()])
            self._streams.add(worker, ours)
            self._streams.watch(child.pidfd)

    def send(self, worker: WorkerHandle, frames: Frames) -> None:
        self._streams.send(worker, frames)

    def receive(self) -> Sequence[tuple[WorkerHandle, Frames]]:
        return self._streams.receive()

    def descriptors(self) -> Sequence[int]:
        return [self._streams.descriptor]

    def ended(self) -> Sequence[tuple[WorkerHandle, str]]:
        over = readable([child.pidfd for child in self._children.values()], 0.0)
        out = []
        for worker, child in self._children.items():
            if child.pidfd in over:
                child.wait(5.0)
                code = child.code or 0
                out.append((worker, f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"))
        return out

    def kill(self, worker: WorkerHandle) -> None:
        self._children[worker].kill()
        self._children[worker].wait(5.0)

    def wait(self, worker: WorkerHandle, seconds: float) -> bool:
        self._streams.flush(worker, seconds)
        return self._children[worker].wait(seconds)

    def forget(self, worker: WorkerHandle) -> None:
        child = self._children.pop(worker)
        self._streams.unwatch(child.pidfd)
        self._streams.forget(worker)
        self._reader.forget(worker.name)
        child.forget()

    def memory(self, worker: WorkerHandle) -> int:
        try:
            return int(psutil.Process(self._children[worker].pid).memory_info().rss)
        except psutil.NoSuchProcess:  # it has just ended
            return 0

    def rows(self, worker: WorkerHandle, specs: Sequence[Spec], block: Sequence[int], n: int) -> dict[str, Array]:
        number, capacity = block
        return self._reader.rows(worker.name, number, specs, capacity, n)

    def pid(self, worker: WorkerHandle) -> int:
        return self._children[worker].pid

    def close(self) -> None:
        self._streams.close()
        if self.folder:
            FORK_SERVER.remove_folder(self.folder)


class ProcessesDriver(HostedDriver):
    """Agents in worker processes."""

    defaults = Processes
