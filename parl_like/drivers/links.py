"""Links: how the driver of worker processes begins its workers, hears them, and ends them.

A link carries messages (lists of frames, see `parl_like.wire`) both ways, in order and once; what a worker says, and what is
answered, is the driver's (`parl_like.drivers.processes`). `LocalLink` is for processes of this machine. Workers are known here by
the driver's handles of them, of which only the `identity` is asked: bytes that no other worker of this link has or had.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import cloudpickle
import psutil
import zmq

from parl_like.drivers import shared
from parl_like.process.child import readable, shielded
from parl_like.process.fork_server import ForkServer
from parl_like.spec import Array, Spec
from parl_like.wire import WireError

if TYPE_CHECKING:
    from parl_like.process.child import Child

FORK_SERVER = ForkServer("parl_like.drivers.worker:work")
"""Makes the workers of all robots of this process."""


class Link(Protocol):
    """What the driver asks of a link. No call waits, unless it says so.

    Attributes:
        folder: Where memory lies that its workers share with the robot; empty: they share none.
    """

    folder: str = ""

    def open(self) -> None:
        """Makes sockets and the like, once, before the first worker begins.

        Raises:
            OSError, ValueError: it cannot, in one line.
        """

    def begin(self, worker: Any, recipe: Any) -> None:
        """Begins a worker, with its `Recipe`; its first message is HELLO.

        Raises:
            TypeError: the recipe cannot be sent. OSError: no process can be made.
        """

    def send(self, worker: Any, frames: list[Any]) -> None:
        """To a worker that has said HELLO; where it has just ended, nothing happens."""

    def receive(self) -> Sequence[tuple[Any, list[Any]]]:
        """What has come since the last call from workers that have begun and not been forgotten, in the order of each."""

    def descriptors(self) -> Sequence[int]:
        """File descriptors of which one becomes readable when `receive` or `ended` may have something new."""

    def ended(self) -> Sequence[tuple[Any, str]]:
        """Workers that have ended by themselves, and how; the driver forgets them."""

    def kill(self, worker: Any) -> None:
        """Ends a worker at once."""

    def wait(self, worker: Any, seconds: float) -> bool:
        """Whether it ends by itself within so many seconds. Waits."""

    def forget(self, worker: Any) -> None:
        """The worker is over; nothing more is taken from it."""

    def close(self) -> None:
        """After the last worker was forgotten: closes what `open` made, which may be called again."""

    def memory(self, worker: Any) -> int:
        """Bytes of resident memory; 0 where that is unknown."""
        return 0

    def rows(self, worker: Any, specs: Sequence[Spec], block: tuple[int, int], n: int) -> Mapping[str, Array]:
        """`n` rows of a request that says where they are (`parl_like.drivers.shared`), where workers share memory."""
        raise WireError("rows in shared memory, from a worker that shares none")


class LocalLink(Link):
    """Forks of the fork server, and a ZeroMQ socket in a folder that only this user may enter."""

    def __init__(self) -> None:
        self._children: dict[Any, Child] = {}
        self._workers: dict[bytes, Any] = {}
        self._descriptors: list[int] = []

    def open(self) -> None:
        place = shared.folder()
        self._place = FORK_SERVER.make_folder(place or tempfile.gettempdir())
        self.folder = "" if place is None else self._place
        self._reader = shared.Reader(self.folder)
        self._address = f"ipc://{self._place}/robot"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in ((zmq.LINGER, 0), (zmq.ROUTER_MANDATORY, 1), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0)):
            self._socket.setsockopt(option, value)
        self._socket.bind(self._address)
        self._descriptors = [int(self._socket.getsockopt(zmq.FD))]

    def begin(self, worker: Any, recipe: Any) -> None:
        recipe.shared = self.folder
        try:
            packed = cloudpickle.dumps(recipe)
        except Exception as error:
            raise TypeError("Robot: the environment, agent or helpers cannot be sent to a worker process: "
                            f"{type(error).__name__}: "
                            f"{error}; make them in functions or classes that hold no open files, locks or sockets") from error
        payload = cloudpickle.dumps((sys.path, self._address, packed))
        with shielded():  # a worker that nobody knew of would never be ended
            child = self._children[worker] = FORK_SERVER.start(payload)
            self._workers[recipe.identity] = worker
            self._descriptors.append(child.pidfd)

    def send(self, worker: Any, frames: list[Any]) -> None:
        try:
            self._socket.send_multipart([worker.identity, *frames], copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:  # it has just ended; `ended` will tell
                raise

    def receive(self) -> Sequence[tuple[Any, list[Any]]]:
        receive, workers, out = self._socket.recv_multipart, self._workers, []
        try:
            while True:
                identity, *frames = receive(zmq.NOBLOCK)
                worker = workers.get(identity)
                if worker is not None:  # else an earlier incarnation
                    out.append((worker, frames))
        except zmq.Again:
            return out

    def descriptors(self) -> Sequence[int]:
        return self._descriptors

    def ended(self) -> Sequence[tuple[Any, str]]:
        if not self._children:
            return ()
        over = readable(self._descriptors[1:], 0.0)
        out = []
        for worker, child in self._children.items():
            if child.pidfd in over:
                child.wait(5.0)
                code = child.code or 0
                out.append((worker, f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"))
        return out

    def kill(self, worker: Any) -> None:
        self._children[worker].kill()
        self._children[worker].wait(5.0)

    def wait(self, worker: Any, seconds: float) -> bool:
        return self._children[worker].wait(seconds)

    def forget(self, worker: Any) -> None:
        child = self._children.pop(worker)
        self._reader.forget(worker.identity.decode())
        self._workers = {identity: other for identity, other in self._workers.items() if other is not worker}
        self._descriptors.remove(child.pidfd)
        child.forget()

    def memory(self, worker: Any) -> int:
        try:
            return int(psutil.Process(self._children[worker].pid).memory_info().rss)
        except psutil.NoSuchProcess:  # it has just ended
            return 0

    def rows(self, worker: Any, specs: Sequence[Spec], block: tuple[int, int], n: int) -> dict[str, Array]:
        number, capacity = block
        return self._reader.rows(worker.identity.decode(), number, specs, capacity, n)

    def pid(self, worker: Any) -> int:
        return self._children[worker].pid

    def close(self) -> None:
        self._socket.close()
        self._context.term()
        FORK_SERVER.remove_folder(self._place)
