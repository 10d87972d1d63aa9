"""A computation task in a Ray actor of its own, such as one that has a GPU; and the connection to Ray that its users share.

`RayTask` is the task's face where the robot is. Placement and delivery are Ray's: a call is an actor call, arrays travel through Ray's
object store, and whoever may connect to the cluster may run code in it. An actor that dies takes its task with it; checkpoints have it.
"""

from __future__ import annotations

import io
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import torch

from parl_like.algorithm import Shared
from parl_like.computation_task import ComputationTask, Mode
from parl_like.drivers.cards import AlgorithmCard, plain_of
from parl_like.drivers.processes import RemoteError
from parl_like.errors import TaskFailed
from parl_like.spec import Array

LESSONS = "lessons"
IN_ACTOR = ("the algorithm is in a Ray actor; here it has spaces, window, explorer, plain attributes and networks(). Ask the task "
            "(helper.predict, helper.ask), or leave it in the robot's process")
STORE = 256 << 20
"""Bytes of the object store of a local instance; what does not fit is written to disk by Ray."""
KNOCK_SECONDS = 5.0
"""Seconds in which a cluster has to answer."""


def the_ray() -> Any:
    """The module `ray`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ImportError("Ray is not installed; pip install 'parl_like[ray]'") from None


# ------------------------------------------------------------------------------------------------------------------ the connection


@contextmanager
def _loopback() -> Iterator[None]:
    """An instance of Ray that is started meanwhile listens on 127.0.0.1 only.

    Ray has one switch for this, meant for systems whose firewall asks the user about every port. The instance's own processes read it from
    the environment, this one has read it when Ray was imported; clusters need it as it was.
    """
    constants: Any = import_module("ray._private.ray_constants")
    switch = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, enabled = os.environ.get(switch), constants.ENABLE_RAY_CLUSTER
    os.environ[switch], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled
        del os.environ[switch]
        if before is not None:
            os.environ[switch] = before


def _knock(address: str) -> None:
    """Raises an OSError or ValueError if nobody answers at HOST:PORT: Ray itself would take two minutes, and end the process."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()


class _Connection:
    """This process's one connection to Ray: opened by its first user, closed by its last, unless it was there before.

    Attributes:
        local: It is a local instance, which was started here.
    """

    def __init__(self) -> None:
        self.users, self.ours, self.local = 0, False, False

    def open(self, address: str | None = None, **size: Any) -> None:
        """Connects, once: to a cluster, or without an address as this process is connected already, or to a local instance of this size.

        Args:
            size: Arguments of `ray.init` for a local instance.

        Raises:
            ImportError: Ray is not installed. ConnectionError: there is no cluster at the address. ValueError: this process is connected to another one.
        """
        ray = the_ray()
        if not self.users:
            self.ours = not ray.is_initialized()
            self.local = self.ours and address is None
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            if self.local:
                with _loopback():  # 'local': a new instance also where the environment variable RAY_ADDRESS names a cluster
                    ray.init(address="local", include_dashboard=False, logging_level="WARNING", **{"object_store_memory": STORE, **size})
            else:
                try:
                    if address != "auto":
                        _knock(str(address))
                    ray.init(address=address, logging_level="WARNING")
                except (OSError, ValueError) as error:
                    raise ConnectionError(
                        f"Ray: there is no cluster at {address} ({error}); start one with `ray start --head --port=6379`, and give the address that "
                        "it prints. If it asks for a token: RAY_AUTH_MODE=token, and its ~/.ray/auth_token, on every machine") from error
        elif address is not None and address not in ("auto", ray.get_runtime_context().gcs_address):
            raise ValueError(f"Ray: address is {address!r}, but this process is connected to {ray.get_runtime_context().gcs_address}; close what uses that, "
                             "or leave address out")
        self.users += 1

    def cpus(self, asked: float) -> float:
        """What an actor asks for: in a local instance of ours nothing, for nobody shall wait there."""
        return 0 if self.local else asked

    def close(self) -> None:
        self.users -= 1
        if not self.users and self.ours:
            the_ray().shutdown()


CONNECTION = _Connection()


# ------------------------------------------------------------------------------------------------------------------------ the actor


def packed(what: str, value: Any) -> bytes:
    """Something for another process, with the path of this one's modules, for `unpacked`.

    Raises:
        TypeError: it cannot be pickled, or holds a network that is here.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:
        raise TypeError(f"{what} cannot be sent to a Ray actor: {type(error).__name__}: {error}") from error
    return cloudpickle.dumps((sys.path, buffer.getvalue()))  # type: ignore[no-any-return]


def unpacked(payload: bytes) -> Any:
    path, value = cloudpickle.loads(payload)
    sys.path += [folder for folder in path if folder not in sys.path]
    return cloudpickle.loads(value)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Refuses networks: a copy of one that others share would learn by itself, unnoticed."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.nn.Module | torch.nn.Parameter):
            raise TypeError(f"it holds a {type(obj).__name__} that is here already; build it inside of the function")
        if isinstance(obj, Shared):
            raise TypeError("it holds a Shared, whose copies would learn each by itself; leave the tasks that share it in the robot's process")
        return super().reducer_override(obj)


class TaskActor:
    """A computation task. Lessons have a thread, and everything else has another: predictions come between a lesson's optimiser steps."""

    task: ComputationTask
    told = 0

    def build(self, payload: bytes, name: str, options: Mapping[str, Any], seed: np.random.SeedSequence) -> dict[str, Any]:
        """Builds the task, unless it is there; what a face of it needs to know."""
        if not hasattr(self, "task"):
            task = ComputationTask(unpacked(payload), **options)
            task.name = name
            task.build(seed)
            self.task = task
        return {"card": AlgorithmCard(self.task.algorithm, IN_ACTOR), "output_shapes": self.task.output_shapes, **self.facts()}

    def facts(self) -> dict[str, Any]:
        """What changes as the task works; travels with every reply, and is numbered, for one thread's reply may overtake another's."""
        task = self.task
        self.told += 1
        counts = {name: getattr(task, name) for name in ("version", "learns", "rows_learned", "skipped", "skips")}
        return {"number": self.told, "algorithm": plain_of(task.algorithm), "counts": counts}

    def act(self, inputs: Mapping[str, Array], mode: Mode) -> tuple[tuple[dict[str, Array], int], dict[str, Any]]:
        return self.task.act(_own(inputs), mode), self.facts()

    def learn(self, rows: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.task.learn(_own(rows)), self.facts()

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return _on_cpu(self.task.state_dict()), self.facts()

    def load_state_dict(self, state: Mapping[str, Any]) -> tuple[None, dict[str, Any]]:
        self.task.load_state_dict(state)
        return None, self.facts()

    def load_fitting(self, state: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
        return self.task.load_fitting(state), self.facts()


def start(kind: type[TaskActor], num_cpus: float = 1, **resources: Any) -> Any:
    """A new actor of this kind. It is not restarted: it would have new weights."""
    asked = {"num_cpus": CONNECTION.cpus(num_cpus), **resources}
    return the_ray().remote(max_restarts=0, concurrency_groups={LESSONS: 1}, **asked)(kind).remote()


def _own(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Copies: Ray's arrays are read-only, and tensors are made of these."""
    return {name: np.array(value) for name, value in arrays.items()}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {key: _on_cpu(part) for key, part in value.items()}
    return [_on_cpu(part) for part in value] if isinstance(value, list) else value


def said_by_ray(error: BaseException) -> str:
    """What Ray says, without its colours."""
    return re.sub(r"\x1b\[\d+m", "", str(error))


# ------------------------------------------------------------------------------------------------------------------------- the face


class RayTask(ComputationTask):
    """A task whose algorithm is in a Ray actor; calls wait for its answer, and raise what was raised there.

    Args:
        task: As it would be here, not built yet; its device is that of the actor.
        actor: An actor that several such tasks share, in whatever processes: the first one builds the algorithm. None: one of its own.
        address: Of the cluster, see `_Connection.open`.
        resources: What its own actor asks Ray for, such as `num_gpus=1`; `num_cpus` is 1, if nothing else is said.

    Raises:
        TypeError: the task was given an algorithm, not a function that builds one.
    """

    def __init__(self, task: ComputationTask, actor: Any = None, address: str | None = None, **resources: Any) -> None:
        if task._algorithm is not None:
            raise TypeError(f"RayTask: the task has a {type(task._algorithm).__name__} already; give it a function that builds one: "
                            "ComputationTask(create_algorithm_func(...), ...)")
        self.__dict__.update(vars(task))  # its options; all else is as it was made
        self.resources = resources
        self._actor, self._own, self._address = actor, actor is None, address
        self._card: Any = None
        self._noted = 0

    @property
    def algorithm(self) -> Any:
        if self._card is None:
            self.build()
        return self._card

    def build(self, seed: np.random.SeedSequence | None = None) -> None:
        """Starts the actor and builds the task there, unless that has been done.

        Raises:
            TypeError: the function that builds the algorithm cannot be sent.
        """
        if self._card is not None:
            return
        payload = packed(f"task {self.name!r}: what builds the algorithm", self._source)
        if self._actor is None:
            CONNECTION.open(self._address)
            self._actor = start(TaskActor, **self.resources)
        seed = np.random.SeedSequence(0) if seed is None else seed
        options = {"device": str(self.device), "train": self.train, "max_skips": self.max_skips}
        known = self._get(self._actor.build.remote(payload, self.name, options, seed))
        self._card, self.output_shapes = self._face(known["card"]), known["output_shapes"]
        self._note(known)

    def _face(self, card: AlgorithmCard) -> Any:
        """What is known here of the algorithm: its plain attributes as of the last reply, and on demand its weights."""
        vars(card)["networks"] = lambda: {
            name: SimpleNamespace(state_dict=lambda state=state: state) for name, state in self.networks_state().items()}
        return card

    def _note(self, facts: Mapping[str, Any]) -> None:
        if facts["number"] < self._noted:
            return
        self._noted = facts["number"]
        self.__dict__.update(facts["counts"])
        self.algorithm.__dict__.update(facts["algorithm"])

    def _get(self, reference: Any) -> Any:
        exceptions = the_ray().exceptions
        try:
            return the_ray().get(reference)
        except exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from RemoteError(f"in the actor of task {self.name!r}:\n{said_by_ray(error)}")
        except exceptions.RayActorError as error:
            raise TaskFailed(f"task {self.name!r}: its actor has died, and its weights with it; go on from a checkpoint. Ray says: "
                             f"{' '.join(said_by_ray(error).split())}") from error

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            raise TaskFailed(f"task {self.name!r}: its actor was ended when the robot was closed")
        out, facts = self._get(self._send(method, *arguments))
        self._note(facts)
        return out

    def _send(self, method: str, *arguments: Any) -> Any:
        call = getattr(self._actor, method)
        return (call.options(concurrency_group=LESSONS) if method == "learn" else call).remote(*arguments)

    def predict(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> dict[str, Array]:
        return self.act(inputs, mode)[0]

    def act(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> tuple[dict[str, Array], int]:
        out: tuple[dict[str, Array], int] = self._call("act", dict(inputs), mode)
        return out

    def publish(self) -> None:
        """There are no acting copies: the actor predicts between its optimiser steps."""

    def networks_state(self) -> dict[str, dict[str, Any]]:
        out: dict[str, dict[str, Any]] = self.state_dict()["networks"]
        return out

    def learn(self, rows: Mapping[str, Array]) -> dict[str, Any]:
        out: dict[str, Any] = self._call("learn", dict(rows))
        return out

    def state_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = self._call("state_dict")
        return out

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._call("load_state_dict", state)

    def load_fitting(self, state: Mapping[str, Any]) -> list[str]:
        out: list[str] = self._call("load_fitting", state)
        return out

    def sync_from(self, other: ComputationTask, decay: float = 0.0) -> None:
        raise ValueError(f"task {self.name!r}: its weights are in a Ray actor and cannot follow those of a task here; use load_state_dict")

    def close(self) -> None:
        """Ends the actor, if it was started here."""
        if self._actor is not None and self._own:
            if the_ray().is_initialized():
                the_ray().kill(self._actor)
            CONNECTION.close()
        self._actor = None
