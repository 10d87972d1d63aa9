"""One world model for several `thinker.make`s, in Ray actors or in processes that are connected to one cluster.

    ray_obj = thinker.ray_init(rec_t=10)
    @ray.remote
    def actor(ray_obj):
        with thinker.make("Sokoban-v0", env_n=16, ray_obj=ray_obj) as env: ...

The model is a computation task in an actor of its own (`parl_like.drivers.ray.tasks`). Every client has its environments, its
trees and its replay; it learns in its own rhythm, but what it learns from changes the one model, and every prediction comes from
that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from parl_like.drivers.ray.connection import CONNECTION, STORE, the_ray
from parl_like.drivers.ray.resources import ActorResources
from parl_like.drivers.ray.tasks import UPDATES, Here, RayTask, TaskActor, result_of, start
from parl_like.lab.config import resolve
from parl_like.lab.yaml_text import ConfigError
from parl_like.robots.thinker.config import CLUSTER, ThinkerOptions, layer, published
from parl_like.tasks.row_slots import Owner, RowSlots
from parl_like.tasks.task import ComputationTask

OWN = {"ckp", "savedir", "xpid", "preload", "parallel", "name", "env_n", "profile", "buffer_traj_len", *CLUSTER}
"""Options in which clients of one shared model may differ; and later ones may leave learning to the others (train_model)."""


NOBODY = -1
"""The rank of who only looks after a shared model, and has no environments."""


class ModelActor(TaskActor):
    """The shared task, and who its clients are: each has a rank, the lowest that is free when it comes."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}  # rank → real steps of that client
        self.left = 0  # real steps of clients that have left
        self.owners: dict[int, Owner] = {}
        self.options: dict[str, Any] = {}

    def enter(self, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """A new client's rank, and the options of the first one."""
        if not self.steps and not hasattr(self, "task"):
            self.options = options
        rank = next(number for number in count() if number not in self.steps)
        self.steps[rank], self.owners[rank] = 0, Owner()
        return rank, self.options

    def leave(self, rank: int) -> None:
        self.left += self.steps.pop(rank)
        del self.owners[rank]

    def claim(self, rank: int, n: int) -> int:
        """See `RowSlots.claim`; the rows are the client's until it leaves."""
        return self.task.row_slots.claim(self.owners[rank], n)

    def serve(self, rank: int, steps: int, method: str, arguments: tuple[Any, ...],
              options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A call of a client that has made so many real steps: the learning rate follows those of all."""
        if rank != NOBODY:  # an update may be heard after calls that were made after it
            self.steps[rank] = steps if method == "load_state_dict" else max(steps, self.steps[rank])
        if method == "load_state_dict":
            self.left = arguments[0].get("others", 0)
        out, facts = self.call(method, arguments, options, self.real_steps)
        if method == "state_dict":  # for a checkpoint of somebody who has steps of their own
            out = {**out, "others": self.real_steps - self.steps.get(rank, 0)}
        return out, facts

    @property
    def real_steps(self) -> int:
        return self.left + sum(self.steps.values())

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "real_steps": self.real_steps, "clients": len(self.steps)}


class _SharedRowSlots(RowSlots):
    """Rows of the shared model, which its actor gives out."""

    def __init__(self, ask: Callable[[int], int]) -> None:
        super().__init__()
        self._ask = ask

    def claim(self, owner: Any, n: int) -> int:
        return self._ask(n)


class SharedTask(RayTask):
    """One client's face of the shared model."""

    def __init__(self, task: ComputationTask, actor: Any, rank: int) -> None:
        super().__init__(task, actor)
        self.rank, self.others, self.clients = rank, 0, 1
        self.row_slots = _SharedRowSlots(self._claim_rows)

    def _claim_rows(self, n: int) -> int:
        return int(self._get(self._actor.claim.remote(self.rank, n)))

    def _send(self, method: str, *arguments: Any, **options: Any) -> Any:
        call = self._actor.serve.options(concurrency_group=UPDATES) if method == "learn" else self._actor.serve
        return call.remote(self.rank, self._env_steps, method, arguments, options)

    def _note(self, facts: Mapping[str, Any]) -> None:
        super()._note(facts)
        self.others, self.clients = max(facts["real_steps"] - self._env_steps, 0), facts["clients"]


class SharedModel:
    """The model that `ray_init` gives and `make(ray_obj=…)` takes; it may be sent to other actors and processes of the cluster.

    Attributes:
        device: Where the model computes.
        options: Options of its clients.
    """

    def __init__(self, actor: Any, device: str, options: Mapping[str, Any], open_here: bool = False) -> None:
        self.actor, self.device, self.options = actor, device, options
        self._open = open_here  # here is the connection that it ends with

    def __reduce__(self) -> Any:
        return SharedModel, (self.actor, self.device, self.options)

    def close(self) -> None:
        """Ends the model, after its clients; a local instance of Ray that `ray_init` started ends, too, unless others use it."""
        if self._open:
            self._open = False
            with suppress(the_ray().exceptions.RayError):
                the_ray().kill(self.actor)
            CONNECTION.close()

    def __enter__(self) -> SharedModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Client:
    """One client's place at a shared model; `own`: the same model, if it ends with this client.

    Raises:
        ConfigError: the first client had other options.
    """

    def __init__(self, model: SharedModel, o: ThinkerOptions, own: SharedModel | None = None) -> None:
        self.model, self._own = model, own
        mine = {key: value for key, value in o.given().items() if key not in OWN}
        self.rank, first = result_of(model.actor.enter.remote(mine))
        for key, value in mine.items():
            if value != first[key] and (key, value) != ("train_model", False):
                self.leave()
                raise ConfigError(f"thinker.make: the shared model's first maker has {key} {first[key]!r}, not {value!r}; makers "
                                  f"of one model have the same options")

    def share(self, task: ComputationTask, o: ThinkerOptions, envs: VectorEnv[Any, Any, Any]) -> SharedTask:
        """The task as it is shared; built now, if this client is the first to.

        Raises:
            ConfigError: the shared model was made for other spaces.
        """
        task.name = "model"
        shared = SharedTask(task, self.model.actor, self.rank)
        shared.build(seeds(o.base_seed, self.rank)[1])
        model = shared.algorithm.model
        for kind, there, here in (("observations", model.obs_space, envs.single_observation_space),
                                  ("actions", model.act_space, envs.single_action_space)):
            if there != here:
                raise ConfigError(f"thinker.make: the shared model has {kind} {there}, these environments {here}; makers of one "
                                  f"model have the same")
        return shared

    def leave(self) -> None:
        """Gives the place back; where the model is gone, nothing happens."""
        if isinstance(self.model.actor, Here):
            self.model.actor.leave.remote(self.rank)
            return
        ray = the_ray()
        with suppress(ray.exceptions.RayError):
            if ray.is_initialized():
                ray.get(self.model.actor.leave.remote(self.rank))
        if self._own is not None:
            self._own.close()


def model_here(device: str, **options: Any) -> SharedModel:
    """As `ray_init`, but the model is in this process, as its clients are, and there is no Ray."""
    given = published(options)
    resolve(ThinkerOptions, given)
    return SharedModel(Here(ModelActor), device, given)


def ray_init(
    address: str | None = None, *, config: str | os.PathLike[str] | Mapping[str, Any] | None = None, **options: Any,
) -> SharedModel:
    """Connects to Ray, and starts the actor of a world model that several `make(ray_obj=…)` share.

    Options are those of all clients, which need say nothing but what they are to have for themselves: environments, and perhaps
    `ckp`, `savedir`, `xpid`, `preload`, `parallel`. Who comes first builds the model; the others wait for it, and in other
    options must agree. `total_steps` and the learning rate follow the real steps of all clients; `model_warm_up_n` and
    `model_buffer_n` are those of each. The client of rank 0 alone writes files, and goes on with them: with its own replay and
    the model. A client that dies disturbs nobody; when this process ends, so does the model.

    Of the options, these are about Ray: `gpu_learn`, the share of a GPU for the model, if the cluster has any; and of a new
    instance `ray_mem`, gigabytes of its object store (below 0: 0.27), `ray_cpu` and `ray_gpu`, what it may use (below 0: what
    there is).

    Args:
        address: Of a running cluster; None: as this process is connected already, or a new local instance.
        config, options: As for `make`.

    Raises:
        ImportError: Ray is not installed. ConfigError: as `make`; the cluster has fewer GPUs than `gpu_learn`, and not none.
    """
    given = {**published(layer(config)), **published(options)}
    o, ray = resolve(ThinkerOptions, given), the_ray()
    store = STORE if o.ray_mem < 0 else int(o.ray_mem * 1e9)
    CONNECTION.open(address, num_cpus=None if o.ray_cpu < 0 else o.ray_cpu, num_gpus=None if o.ray_gpu < 0 else o.ray_gpu,
                    object_store_memory=store)
    gpus = ray.cluster_resources().get("GPU", 0.0)
    share = o.gpu_learn if gpus else 0.0
    if share > gpus:
        CONNECTION.close()
        raise ConfigError(f"thinker.ray_init: gpu_learn is {share}, and the cluster has {gpus:g} GPUs; its actor would wait for "
                          "ever")
    return SharedModel(start(ModelActor, ActorResources(num_gpus=share)), "cuda" if share else "cpu", given, open_here=True)


def seeds(base_seed: int, rank: int) -> tuple[int, np.random.SeedSequence]:
    """Return the seeds of a client's robot and of the model; whoever builds the model, its seed is the one that the robot of
    rank 0 has for it."""
    own = int(np.random.SeedSequence(base_seed, spawn_key=(rank,)).generate_state(1)[0]) if rank else base_seed
    return own, np.random.SeedSequence(base_seed).spawn(3)[0].spawn(1)[0]
