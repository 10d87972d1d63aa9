"""The ray driver: workers as Ray actors, on as many machines as the cluster has; the tasks stay here, or have actors of their own.

Everything but the link is the processes driver's (`parl_like.drivers.processes`): the same messages, as arguments and results of actor calls,
and the same supervisor. Placement and delivery are Ray's, and so are the news that an actor has died, with its node or alone.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from parl_like.computation_task import ComputationTask
from parl_like.drivers.links import Link
from parl_like.drivers.processes import Processes, ProcessesDriver, Seat, refuses_gone
from parl_like.drivers.ray_tasks import CONNECTION, RayTask, packed, said_by_ray, the_ray, unpacked
from parl_like.drivers.worker import Recipe, Worker
from parl_like.errors import unknown
from parl_like.process.child import shielded
from parl_like.spec import Array, Spec
from parl_like.wire import WireError


@refuses_gone
@dataclass(frozen=True, kw_only=True)
class Ray(Processes):
    """Options of the driver: `Robot(driver=Ray(workers=8, address="auto"))`; `driver="ray"` takes them as they are here.

    Attributes:
        address: Of a running cluster; None: as this process is connected already, or a local instance, which ends with the robot.
        num_cpus: What each worker asks for in a cluster; Ray places it where there are as many, and it waits for them up to `start_limit`. In a
            local instance that the robot starts nobody waits.
        tasks: Name of a task → what an actor of its own asks for, such as `{"RL": {"num_gpus": 1}}`; tasks without an entry stay here.

    `workers`, the limits and `agent_restarts` are those of `Processes`; memory is Ray's affair, and `memory_limit` refused.
    """

    address: str | None = None
    num_cpus: float = 1.0
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    name: str = field(default="ray", init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory_limit is not None:
            raise ValueError("Ray: memory_limit is an option of Processes; Ray itself watches the memory of its actors")
        if self.num_cpus < 0:
            raise ValueError(f"Ray: num_cpus is {self.num_cpus}; expected at least 0")

    def place(self, tasks: Mapping[str, ComputationTask]) -> dict[str, ComputationTask]:
        """The tasks as a robot with these options has them: those with an entry in `self.tasks` go to actors of their own.

        Raises:
            KeyError: an entry names no task. TypeError: a task was not given a function that builds its algorithm.
        """
        for name in self.tasks:
            if name not in tasks:
                raise KeyError(unknown("task", name, tasks))
        return {name: RayTask(task, address=self.address, **self.tasks[name]) if name in self.tasks else task for name, task in tasks.items()}


class WorkerActor:
    """A worker, whose every call is one message of the robot; the result is what the worker says to it, and whether it goes on."""

    def begin(self, payload: bytes) -> tuple[list[list[bytes]], bool]:
        import torch

        torch.set_num_threads(1)
        self._said: list[list[bytes]] = []
        self._worker = Worker(unpacked(payload), lambda frames: self._said.append([bytes(frame) for frame in frames]))
        return self._turn(self._worker.begin())

    def tell(self, frames: list[bytes]) -> tuple[list[list[bytes]], bool]:
        return self._turn(self._worker.take(frames))

    def _turn(self, going: bool) -> tuple[list[list[bytes]], bool]:
        while going and self._worker.turn():
            pass
        said, self._said = self._said, []
        return said, going


class RayLink:
    """Actor calls: each message to a worker is one, and its result holds what the worker says. See `parl_like.drivers.links.Link`."""

    folder = ""

    def __init__(self, options: Ray) -> None:
        self._options = options
        self._actors: dict[Seat, Any] = {}
        self._calls: dict[Seat, deque[Future[Any]]] = {}  # whose results have not been taken, in their order
        self._ended: dict[Seat, str] = {}

    def open(self) -> None:
        CONNECTION.open(self._options.address)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._errors = the_ray().exceptions.RayError

    def begin(self, seat: Seat, recipe: Recipe) -> None:
        payload = packed("Robot: the environment, agent or helpers", recipe)
        with shielded():  # a worker that nobody knew of would never be ended
            actor = the_ray().remote(WorkerActor).options(num_cpus=CONNECTION.cpus(self._options.num_cpus), max_restarts=0).remote()
            self._actors[seat], self._calls[seat] = actor, deque()
            self._note(seat, actor.begin.remote(payload))

    def send(self, seat: Seat, frames: list[Any]) -> None:
        with shielded():
            self._note(seat, self._actors[seat].tell.remote([bytes(frame) for frame in frames]))

    def _note(self, seat: Seat, reference: Any) -> None:
        call = reference.future()
        self._calls[seat].append(call)
        call.add_done_callback(self._ring)

    def _ring(self, call: Future[Any]) -> None:
        """In a thread of Ray's."""
        with suppress(OSError):  # closed meanwhile
            os.eventfd_write(self._bell, 1)

    def receive(self) -> Sequence[tuple[Seat, list[Any]]]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)  # before looking, so that what comes meanwhile rings again
        out = []
        for seat, calls in self._calls.items():
            while calls and calls[0].done() and seat not in self._ended:
                try:
                    said, going = calls.popleft().result()
                except self._errors as error:
                    self._ended[seat] = f"was lost: {_reason(error)}"
                else:
                    out += [(seat, frames) for frames in said]
                    if not going:
                        self._ended[seat] = "ended"
        return out

    def descriptors(self) -> Sequence[int]:
        return [self._bell]

    def ended(self) -> Sequence[tuple[Seat, str]]:
        return list(self._ended.items())

    def kill(self, seat: Seat) -> None:
        with suppress(self._errors):
            the_ray().kill(self._actors[seat])

    def wait(self, seat: Seat, seconds: float) -> bool:
        return not wait(self._calls[seat], max(seconds, 0.0)).not_done

    def forget(self, seat: Seat) -> None:
        self.kill(seat)
        del self._actors[seat], self._calls[seat]
        self._ended.pop(seat, None)

    def memory(self, seat: Seat) -> int:
        return 0

    def rows(self, seat: Seat, specs: Sequence[Spec], block: tuple[int, int], n: int) -> dict[str, Array]:
        raise WireError("rows in shared memory, from a worker that shares none")

    def close(self) -> None:
        bell, self._bell = self._bell, -1  # first: a late ring must not go to whoever gets the number next
        os.close(bell)
        CONNECTION.close()


def _reason(error: BaseException) -> str:
    """What Ray says of an actor that has died, in plain words: the same for every actor that dies of it."""
    text = " ".join(said_by_ray(error).split())
    if isinstance(error, the_ray().exceptions.ActorUnavailableError) or "its node has died" in text:
        return "its node has died or cannot be reached"
    if "killed by `ray.kill`" in text:
        return "it was ended through Ray"
    if "its worker process has died" in text:
        code = re.search(r"exit code (\d+)", text)
        return f"its process ended with exit code {code[1]}" if code else "its process was killed or has crashed; memory may have run out there"
    return text[:400]


class RayDriver(ProcessesDriver):
    """Agents in Ray actors. See `CooperativeDriver` for the arguments."""

    def __init__(
        self, sync: bool, failed: Callable[[Any, BaseException], None], on_error: Callable[[Any, BaseException], None], options: Ray | None = None,
    ) -> None:
        super().__init__(sync, failed, on_error, Ray() if options is None else options)
        self._pid = os.getpid()

    def _make_link(self) -> Link:
        assert isinstance(self.options, Ray)
        return RayLink(self.options)

    def close(self) -> None:
        """Ends the workers, and the actors of tasks."""
        super().close()
        if self.crew is not None and self._pid == os.getpid():
            for task in self.crew.tasks.values():
                if isinstance(task, RayTask):
                    task.close()
