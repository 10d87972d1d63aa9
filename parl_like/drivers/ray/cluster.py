"""The ray driver: workers as Ray actors, on as many machines as the cluster has; tasks stay here, or have actors of their own.

Everything but the link is the processes driver's (`parl_like.drivers.workers.processes`): the same messages, and the same
supervisor. Placement is Ray's, and so is the news that an actor or its node has died. Messages to a worker on the robot's own
node go through a socket, as those of the processes driver do. To others Ray delivers them, as arguments and results of actor
calls.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from parl_like.drivers.frame_stream import FrameStream
from parl_like.drivers.messages import Frames
from parl_like.drivers.ray.connection import CONNECTION, packed, said_by_ray, the_ray, unpacked
from parl_like.drivers.ray.resources import ActorResources, resources_of
from parl_like.drivers.ray.tasks import RayTask
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.hosted import HostedDriver
from parl_like.drivers.workers.processes import Processes
from parl_like.drivers.workers.streams import Streams
from parl_like.drivers.workers.supervisor import Link
from parl_like.drivers.workers.worker import Worker, live
from parl_like.process.child import shielded
from parl_like.tasks.task import ComputationTask
from parl_like.values.errors import unknown


@dataclass(frozen=True, kw_only=True)
class Ray(Processes):
    """Options of the driver: `Robot(driver=Ray(workers=8, address="auto"))`; `driver="ray"` takes them as they are here.

    Attributes:
        address: Of a running cluster; None: as this process is connected already, or a local instance, which ends with the robot.
        num_cpus: What each worker asks for in a cluster; Ray places it where there are as many, and it waits for them up to
            `start_limit`. In a local instance that the robot starts nobody waits.
        tasks: Name of a task → what an actor of its own asks for, such as `{"RL": {"num_gpus": 1}}`, see `ActorResources`; the
            others stay here.

    `workers`, the limits and `agent_restarts` are those of `Processes`; memory is Ray's affair, and `memory_limit` refused.
    """

    address: str | None = None
    num_cpus: float = 1.0
    tasks: Mapping[str, ActorResources | Mapping[str, Any]] = field(default_factory=dict)
    name: str = field(default="ray", init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory_limit is not None:
            raise ValueError("Ray: memory_limit is an option of Processes; Ray itself watches the memory of its actors")
        if self.num_cpus < 0:
            raise ValueError(f"Ray: num_cpus is {self.num_cpus}; expected at least 0")
        try:
            object.__setattr__(self, "tasks", {name: resources_of(asked) for name, asked in self.tasks.items()})
        except ValueError as error:
            raise ValueError(f"Ray: tasks: {error}") from None

    def make_link(self) -> Link:
        return RayLink(self.address, self.num_cpus)

    def place(self, tasks: Mapping[str, ComputationTask]) -> dict[str, ComputationTask]:
        """The tasks as a robot with these options has them: those with an entry in `self.tasks` go to actors of their own.

        Raises:
            KeyError: an entry names no task. TypeError: a task was not given a function that builds its algorithm.
        """
        for name in self.tasks:
            if name not in tasks:
                raise KeyError(unknown("task", name, tasks))
        return {name: RayTask(task, address=self.address, resources=self.tasks[name]) if name in self.tasks else task
                for name, task in tasks.items()}


class WorkerActor:
    """A worker. On the robot's node its one call is its whole life. Elsewhere each call is one message of the robot, whose result
    is what the worker says to it, and whether it goes on."""

    def begin(self, payload: bytes, node: str = "", address: str = "") -> tuple[list[list[bytes]], bool]:
        """Make the agents of a packed `Recipe`; return what the worker says, and whether it goes on by itself.

        Args:
            node: Ray's name of the robot's node.
            address: Of a socket of the robot there; empty: there is none.
        """
        torch.set_num_threads(1)
        if address and node == this_node() and (connection := _connected(address)) is not None:
            live(unpacked(payload), FrameStream(connection, waits=True))
            return [], False
        self._said: list[list[bytes]] = []
        self._worker = Worker(unpacked(payload), lambda frames: self._said.append([bytes(frame) for frame in frames]))
        return self._turn(self._worker.begin())

    def tell(self, frames: list[bytes]) -> tuple[list[list[bytes]], bool]:
        """Take in a message of the robot; return the same as `begin`."""
        return self._turn(self._worker.take(frames))

    def _turn(self, going: bool) -> tuple[list[list[bytes]], bool]:
        while going and self._worker.turn():
            pass
        said, self._said = self._said, []
        return said, going


def this_node() -> str:
    """Return Ray's name of the node that this process is on."""
    return str(the_ray().get_runtime_context().get_node_id())


def _is_ours(connection: socket.socket) -> bool:
    """Return whether the process at the other end is one of this user."""
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    return bool(user == os.geteuid())


def _connected(address: str) -> socket.socket | None:
    """Return a socket that is connected to the robot; None: it is not in reach, as from within a container, or another user's."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect("\0" + address)
        if _is_ours(connection):
            return connection
    except OSError:
        pass
    connection.close()
    return None


class RayLink(Link):
    """A socket to each worker on the robot's node. To another each message is a call of its actor, and the result holds what it
    says.

    Attributes:
        prompt: Whether all workers that were heard have a socket.
    """

    def __init__(self, address: str | None, num_cpus: float) -> None:
        self._address, self._num_cpus = address, num_cpus
        self.prompt = True
        self._actors: dict[WorkerHandle, Any] = {}
        self._listeners: dict[WorkerHandle, socket.socket] = {}  # of workers that were not heard yet
        self._calls: dict[WorkerHandle, deque[Future[Any]]] = {}  # whose results have not been taken, in their order
        self._ended: dict[WorkerHandle, str] = {}

    def open(self) -> None:
        CONNECTION.open(self._address)
        self._streams = Streams()
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._streams.watch(self._news)
        self._writing = threading.Lock()  # a call that ends late must not write to whoever has got the number of a closed file
        self._errors = the_ray().exceptions.RayError

    def begin(self, worker: WorkerHandle, recipe: object) -> None:
        payload = packed("Robot: the environment, agent or helpers", recipe)
        with shielded():  # a worker that nobody knew of would never be ended
            actor = the_ray().remote(WorkerActor).options(num_cpus=CONNECTION.cpus(self._num_cpus), max_restarts=0).remote()
            self._actors[worker], self._calls[worker] = actor, deque()
            self._await(worker, actor.begin.remote(payload, this_node(), self._listen(worker)))

    def _listen(self, worker: WorkerHandle) -> str:
        """Return the address of a socket where a worker on this node may connect. It is in no folder, and goes with the first
        message that comes, whatever the way. Others here can read its name; both ends ask whose process the other is."""
        address, listener = f"parl_like-{secrets.token_hex(16)}", socket.socket(socket.AF_UNIX)
        listener.bind("\0" + address)
        listener.setblocking(False)
        listener.listen(1)
        self._listeners[worker] = listener
        self._streams.watch(listener.fileno())
        return address

    def _accept(self) -> None:
        """Take the connections that have come."""
        for worker, listener in list(self._listeners.items()):
            with suppress(BlockingIOError):
                connection, _ = listener.accept()
                if not _is_ours(connection):
                    connection.close()
                    continue
                self._streams.add(worker, connection)
                self._close_listener(worker)

    def _close_listener(self, worker: WorkerHandle) -> None:
        if (listener := self._listeners.pop(worker, None)) is not None:
            self._streams.unwatch(listener.fileno())
            listener.close()

    def send(self, worker: WorkerHandle, frames: Frames) -> None:
        if worker in self._streams:
            self._streams.send(worker, frames)
            return
        with shielded():
            self._await(worker, self._actors[worker].tell.remote([bytes(frame) for frame in frames]))

    def _await(self, worker: WorkerHandle, reference: Any) -> None:
        def notify(call: Future[object]) -> None:
            """In a thread of Ray's."""
            with self._writing:
                if self._news >= 0:
                    os.eventfd_write(self._news, 1)

        call = reference.future()
        self._calls[worker].append(call)
        call.add_done_callback(notify)

    def receive(self) -> Sequence[tuple[WorkerHandle, list[object]]]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._news)  # before looking, so that what comes meanwhile is told again
        if self._listeners:
            self._accept()
        out = [*self._streams.receive()]
        for worker, calls in self._calls.items():
            while calls and calls[0].done() and worker not in self._ended:
                try:
                    said, going = calls.popleft().result()
                except self._errors as error:
                    self._ended[worker] = f"was lost: {_reason(error)}"
                else:
                    self._accept()  # it may have come since, with what it had to say
                    if worker not in self._streams:
                        self._close_listener(worker)
                        self.prompt = False
                    out += [(worker, frames) for frames in said]
                    if not going:
                        self._ended[worker] = "ended"
        return out

    def descriptors(self) -> Sequence[int]:
        return [self._streams.descriptor]

    def ended(self) -> Sequence[tuple[WorkerHandle, str]]:
        return list(self._ended.items())

    def kill(self, worker: WorkerHandle) -> None:
        with suppress(self._errors):
            the_ray().kill(self._actors[worker])

    def wait(self, worker: WorkerHandle, seconds: float) -> bool:
        if worker in self._streams:
            self._streams.flush(worker, seconds)
        return not wait(self._calls[worker], max(seconds, 0.0)).not_done

    def forget(self, worker: WorkerHandle) -> None:
        self.kill(worker)
        self._close_listener(worker)
        self._streams.forget(worker)
        del self._actors[worker], self._calls[worker]
        self._ended.pop(worker, None)

    def close(self) -> None:
        self._streams.close()
        with self._writing:
            os.close(self._news)
            self._news = -1
        CONNECTION.close()


def _reason(error: BaseException) -> str:
    """Return what Ray says of an actor that has died, in plain words: the same for every actor that dies of it."""
    text = " ".join(said_by_ray(error).split())
    if isinstance(error, the_ray().exceptions.ActorUnavailableError) or "its node has died" in text:
        return "its node has died or cannot be reached"
    if "killed by `ray.kill`" in text:
        return "it was ended through Ray"
    if "its worker process has died" in text:
        code = re.search(r"exit code (\d+)", text)
        return f"its process ended with exit code {code[1]}" if code else (
            "its process was killed or has crashed; memory may have run out there")
    return text[:400]


class RayDriver(HostedDriver):
    """Agents in Ray actors."""

    defaults = Ray

    def close(self) -> None:
        """Ends the workers, and the actors of tasks."""
        super().close()
        for task in self.pool.tasks.values() if self.pool is not None else ():
            task.close()
