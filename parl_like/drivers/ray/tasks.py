"""A computation task in a Ray actor of its own, such as one that has a GPU, and its face where the robot is, `RayTask`.

A call is an actor call, arrays travel through Ray's object store. An actor that dies takes its task with it; checkpoints have it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from parl_like.drivers.messages import RemoteError
from parl_like.drivers.ray.connection import CONNECTION, packed, said_by_ray, the_ray, unpacked
from parl_like.drivers.ray.resources import ActorResources, resources_of
from parl_like.drivers.workers.proxies import AlgorithmProxy, plain_of
from parl_like.tasks.asked_tasks import OWN, reward_fields
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.values.errors import TaskFailed
from parl_like.values.spec import Array

UPDATES = "updates"
IN_ACTOR = ("the algorithm is in a Ray actor; here it has spaces, window, explorer, plain attributes and networks(). Ask the "
            "task "
            "(helper.predict, helper.ask), or leave it in the robot's process")


class TaskActor:
    """A computation task. Updates have a thread, and everything else has another: predictions come between an update's steps."""

    task: ComputationTask
    told = 0

    def build(self, payload: bytes, name: str, options: Mapping[str, Any], seed: np.random.SeedSequence) -> dict[str, object]:
        """Builds the task, unless it is there; what a face of it needs to know."""
        if not hasattr(self, "task"):
            task = ComputationTask(unpacked(payload), **options)
            task.name = name
            task.build(seed)
            self.task = task
        return {"proxy": AlgorithmProxy(self.task.algorithm, IN_ACTOR), "output_shapes": self.task.output_shapes,
                "policy_specs": self.task.policy_specs, **self.facts()}

    def connect(self, asked: Mapping[str, tuple[bytes, Any]]) -> None:
        """Take the tasks that this one asks: what builds each, and its actor."""
        faces = {name: RayTask(ComputationTask(unpacked(payload)), actor) for name, (payload, actor) in asked.items()}
        for name, face in faces.items():
            face.name = name
            face.build()
        self.task.connect(faces)

    def facts(self) -> dict[str, object]:
        """Return what changes as the task works. It travels with every reply, and is numbered, for one thread's may overtake
        another's."""
        self.told += 1
        return {"number": self.told, "algorithm": plain_of(self.task.algorithm), "version": self.task.version,
                "counts": replace(self.task.counts)}

    def call(self, method: str, arguments: tuple[Any, ...], options: Mapping[str, object],
             env_steps: int) -> tuple[Any, dict[str, object]]:
        """A method of the task: what it returns, and the facts after it."""
        self.task.follow(env_steps)
        if method in ("act", "learn"):  # copies: Ray's arrays are read-only, and tensors are made of these
            arguments = ({name: np.array(value) for name, value in arguments[0].items()}, *arguments[1:])
        return _on_cpu(getattr(self.task, method)(*arguments, **options)), self.facts()


def start(kind: type[TaskActor], resources: ActorResources) -> Any:
    """A new actor of this kind. It is not restarted: it would have new weights."""
    asked = {**resources.asked(), "num_cpus": CONNECTION.cpus(1.0 if resources.num_cpus is None else resources.num_cpus)}
    return the_ray().remote(max_restarts=0, concurrency_groups={UPDATES: 1}, **asked)(kind).remote()


class Here:
    """A stand-in for an actor, in this process and without Ray: a call is made at once. For runs that are only looked at."""

    def __init__(self, kind: type[TaskActor]) -> None:
        self._inside = kind()

    def __getattr__(self, method: str) -> _Call:
        return _Call(getattr(self._inside, method))


class _Call(NamedTuple):
    method: Callable[..., object]

    def options(self, **_: object) -> _Call:
        return self

    def remote(self, *arguments: object, **options: object) -> _Done:
        return _Done(self.method(*arguments, **options))


class _Done(NamedTuple):
    value: Any


def result_of(reference: object) -> Any:
    """Return what a call of an actor, or of `Here`, returns."""
    return reference.value if isinstance(reference, _Done) else the_ray().get(reference)


def _on_cpu(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {key: _on_cpu(part) for key, part in value.items()}
    return [_on_cpu(part) for part in value] if isinstance(value, list) else value


def _forwarded(method: str) -> Any:
    """A method of `ComputationTask` that the actor's task answers."""

    @wraps(getattr(ComputationTask, method))
    def call(self: RayTask, *arguments: object, **options: object) -> Any:
        return self._call(method, *arguments, **options)

    return call


class RayTask(ComputationTask):
    """A task whose algorithm is in a Ray actor; calls wait for its answer, and raise what was raised there.

    Args:
        task: As it would be here, not built yet; its device is that of the actor.
        actor: An actor that several such tasks share, in whatever processes: the first one builds the algorithm. None: its own.
        address: Of the cluster, see `_Connection.open`.
        resources: What its own actor asks Ray for, such as `{"num_gpus": 1}`.

    Raises:
        TypeError: the task was given an algorithm, not a function that builds one. ValueError: it asks for what is no resource.
    """

    def __init__(self, task: ComputationTask, actor: Any = None, address: str | None = None,
                 resources: ActorResources | Mapping[str, object] = ActorResources()) -> None:  # noqa: B008  it is frozen
        if task.is_built:
            raise TypeError(f"RayTask: the task has a {type(task.algorithm).__name__} already; give it a function that builds "
                            "one: ComputationTask(create_algorithm_func(...), ...)")
        super().__init__(task.source, **vars(task.options))
        self.name = task.name
        self.resources = resources_of(resources)
        self._actor, self._owner, self._address = actor, os.getpid() if actor is None else 0, address
        self._proxy: object = None
        self._noted = self._env_steps = 0

    @property
    def algorithm(self) -> Any:
        if self._proxy is None:
            self.build()
        return self._proxy

    def build(self, seed: np.random.SeedSequence | None = None) -> None:
        """Starts the actor and builds the task there, unless that has been done.

        Raises:
            TypeError: the function that builds the algorithm cannot be sent.
        """
        if self._proxy is not None:
            return
        payload = packed(f"task {self.name!r}: what builds the algorithm", self.source)
        if self._actor is None:
            CONNECTION.open(self._address)
            try:
                self._actor = start(TaskActor, self.resources)
            except BaseException:
                CONNECTION.close()
                raise
        seed = np.random.SeedSequence(0) if seed is None else seed
        options = {"device": str(self.device), "train": self.train, "max_skips": self.max_skips, "rewards": self.rewards}
        known = self._get(self._actor.build.remote(payload, self.name, options, seed))
        self._proxy, self.output_shapes = self._face(known["proxy"]), known["output_shapes"]
        self.policy_specs = known["policy_specs"]
        self._note(known)

    def connect(self, asked: Mapping[str, ComputationTask]) -> None:
        """Take the tasks that this one asks, which it asks from actor to actor.

        Raises:
            ValueError: one of them is in no actor, and cannot be asked from there.
        """
        others: dict[str, RayTask] = {name: task for name, task in asked.items() if isinstance(task, RayTask)}
        if here := asked.keys() - others.keys():
            raise ValueError(f"task {self.name!r} is in a Ray actor and asks {', '.join(map(repr, sorted(here)))}, not in one; "
                             "name all of them in Ray(tasks=…), or leave this one out")
        self.reward_fields = reward_fields(others, [name for name in self.rewards if name != OWN])
        self._get(self._actor.connect.remote({name: (packed(f"task {name!r}: what builds the algorithm", other.source),
                                                  other._actor) for name, other in others.items()}))

    def _face(self, proxy: AlgorithmProxy) -> Any:
        """Return what is known here of the algorithm: its plain attributes as of the last reply, and on demand its weights."""
        vars(proxy)["networks"] = lambda: {
            name: SimpleNamespace(state_dict=lambda state=state: state) for name, state in self.networks_state().items()}
        return proxy

    def _note(self, facts: Mapping[str, Any]) -> None:
        if facts["number"] >= self._noted:
            self._noted = facts["number"]
            self.version, self.counts = facts["version"], facts["counts"]
            vars(self._proxy).update(facts["algorithm"])

    def _get(self, reference: object) -> Any:
        if isinstance(reference, _Done):
            return reference.value
        exceptions = the_ray().exceptions
        try:
            return the_ray().get(reference)
        except exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from RemoteError(f"in the actor of task {self.name!r}:\n{said_by_ray(error)}")
        except exceptions.RayActorError as error:
            said = " ".join(said_by_ray(error).split())
            raise TaskFailed(f"task {self.name!r}: its actor has died, and its weights with it; go on from a checkpoint. "
                             f"Ray says: {said}") from error

    def _call(self, method: str, *arguments: object, **options: object) -> Any:
        if self._actor is None:
            raise TaskFailed(f"task {self.name!r}: its actor was ended when the robot was closed")
        out, facts = self._get(self._send(method, *arguments, **options))
        self._note(facts)
        return out

    def _send(self, method: str, *arguments: object, **options: object) -> Any:
        call = self._actor.call
        return (call.options(concurrency_group=UPDATES) if method == "learn" else call).remote(method, arguments, options,
                                                                                                self._env_steps)

    act, learn = _forwarded("act"), _forwarded("learn")
    state_dict, load_state_dict, load_fitting = map(_forwarded, ("state_dict", "load_state_dict", "load_fitting"))
    move_ends = _forwarded("move_ends")

    def predict(self, inputs: Mapping[str, Array], mode: Mode = "collect") -> dict[str, Array]:
        return self.act(inputs, mode)[0]  # type: ignore[no-any-return]

    def networks_state(self, acting: bool = False, copied: bool = True) -> dict[str, dict[str, object]]:
        return self._call("networks_state", acting, copied=True)  # type: ignore[no-any-return]

    def follow(self, env_steps: int) -> None:
        """Travels with the next call."""
        self._env_steps = env_steps

    def publish(self) -> None:
        """There are no acting copies: the actor predicts between its optimiser steps."""

    def sync_from(self, other: ComputationTask, decay: float = 0.0) -> None:
        raise ValueError(f"task {self.name!r}: its weights are in a Ray actor and cannot follow those of a task here; use "
                         "load_state_dict")

    def close(self) -> None:
        """Ends the actor, if it was started here (and not by the process that this is a forked copy of)."""
        if self._actor is not None and self._owner == os.getpid():
            if the_ray().is_initialized():
                the_ray().kill(self._actor)
            CONNECTION.close()
        self._actor = None
