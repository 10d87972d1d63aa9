"""One world model for several `thinker.make`s, in Ray actors or in processes that are connected to one cluster.

    ray_obj = thinker.ray_init()
    @ray.remote
    def actor(ray_obj):
        with thinker.make("Sokoban-v0", env_n=16, ray_obj=ray_obj) as env: ...

The model is a computation task in an actor of its own (`parl_like.drivers.ray_tasks`). Every maker has its environments, its
trees and its replay; it learns in its own rhythm, but what it learns from changes the one model, and every prediction comes from
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any, cast

import numpy as np
from gymnasium.vector import VectorEnv

from parl_like.computation_task import ComputationTask
from parl_like.drivers.cards import AlgorithmCard
from parl_like.drivers.ray_connection import CONNECTION, the_ray
from parl_like.drivers.ray_tasks import LESSONS, RayTask, TaskActor, start
from parl_like.lab.config import ConfigError
from parl_like.robots.thinker.agent import Places
from parl_like.robots.thinker.config import ThinkerOptions

OWN = {"ckp", "savedir", "xpid", "preload", "parallel", "name", "env_n"}
"""Options in which makers of one shared model may differ."""


class ModelActor(TaskActor):
    """The shared task, and who its makers are: each has a rank, the lowest that is free when it comes."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}  # rank → real steps of that maker
        self.left = 0  # real steps of makers that have left
        self.places: dict[int, Places] = {}
        self.options: dict[str, Any] = {}

    def enter(self, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """A new maker's rank, and the options of the first one."""
        if not self.steps and not hasattr(self, "task"):
            self.options = options
        rank = next(number for number in count() if number not in self.steps)
        self.steps[rank], self.places[rank] = 0, Places()
        return rank, self.options

    def leave(self, rank: int) -> None:
        self.left += self.steps.pop(rank)
        del self.places[rank]

    def claim_nodes(self, rank: int, n: int) -> int:
        """See `WorldModel.claim_nodes`; they are the maker's until it leaves."""
        return int(cast(Any, self.task.algorithm).claim_nodes(self.places[rank], n))

    def serve(self, rank: int, steps: int, method: str, arguments: tuple[Any, ...],
              options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A call of a maker that has made so many real steps: the learning rate follows those of all."""
        self.steps[rank] = steps
        cast(Any, self.task.algorithm).real_steps = self.real_steps
        if method == "load_state_dict":
            self.left = arguments[0].get("others", 0)
        out, facts = self.call(method, arguments, options)
        if method == "state_dict":  # for the checkpoint of rank 0, which has its own steps
            out = {**out, "others": self.real_steps - self.steps.get(0, 0)}
        return out, facts

    @property
    def real_steps(self) -> int:
        return self.left + sum(self.steps.values())

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "real_steps": self.real_steps, "makers": len(self.steps)}


class SharedTask(RayTask):
    """One maker's face of the shared model."""

    def __init__(self, task: ComputationTask, actor: Any, rank: int) -> None:
        super().__init__(task, actor)
        self.rank, self.others, self.makers = rank, 0, 1

    def _face(self, card: AlgorithmCard) -> Any:
        """What agents use of a world model: places for hidden states, and `real_steps`, where a maker sets its own."""
        face = super()._face(card)
        face.claim_nodes = lambda _, n: int(self._get(self._actor.claim_nodes.remote(self.rank, n)))
        face.real_steps = 0
        return face

    def _send(self, method: str, *arguments: Any, **options: Any) -> Any:
        call = self._actor.serve.options(concurrency_group=LESSONS) if method == "learn" else self._actor.serve
        return call.remote(self.rank, self._card.real_steps, method, arguments, options)

    def _note(self, facts: Mapping[str, Any]) -> None:
        super()._note(facts)
        self.others, self.makers = max(facts["real_steps"] - self._card.real_steps, 0), facts["makers"]


class SharedModel:
    """What `ray_init` gives and `make(ray_obj=…)` takes; it may be sent to other actors and processes of the cluster.

    Attributes:
        device: Where the model computes.
    """

    def __init__(self, actor: Any, device: str, open_here: bool = False) -> None:
        self.actor, self.device, self._open = actor, device, open_here  # open: here is the connection that it ends with

    def __reduce__(self) -> Any:
        return SharedModel, (self.actor, self.device)

    def close(self) -> None:
        """Ends the model, after its makers; a local instance of Ray that `ray_init` started ends, too, unless others use it."""
        if self._open:
            self._open = False
            with suppress(the_ray().exceptions.RayError):
                the_ray().kill(self.actor)
            CONNECTION.close()

    def __enter__(self) -> SharedModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Maker:
    """One maker's place at a shared model.

    Raises:
        ConfigError: the first maker had other options.
    """

    def __init__(self, model: SharedModel, o: ThinkerOptions) -> None:
        self.model = model
        mine = {key: value for key, value in o.given().items() if key not in OWN}
        self.rank, first = the_ray().get(model.actor.enter.remote(mine))
        for key, value in mine.items():
            if value != first[key]:
                self.leave()
                raise ConfigError(f"thinker.make: the shared model's first maker has {key} {first[key]!r}, not {value!r}; makers "
                                  f"of one model have the same options")

    def share(self, task: ComputationTask, o: ThinkerOptions, envs: VectorEnv[Any, Any, Any]) -> SharedTask:
        """The task as it is shared; built now, if this maker is the first to."""
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
        ray = the_ray()
        with suppress(ray.exceptions.RayError):
            if ray.is_initialized():
                ray.get(self.model.actor.leave.remote(self.rank))


def ray_init(
    address: str | None = None, *, ray_mem: float = -1, ray_cpu: int = -1, ray_gpu: int = -1, gpu_learn: float | None = None,
) -> SharedModel:
    """Connects to Ray, and starts the actor of a world model that several `make(ray_obj=…)` share.

    Who comes first decides on the options, which the others must have, too (but for `ckp`, `savedir`, `xpid`, `preload`,
    `parallel` and `env_n`), and builds the model; the others wait for it. `total_steps` and the learning rate follow the real
    steps of all makers; `model_warm_up_n` and `model_buffer_n` are those of each. The maker of rank 0 alone writes checkpoints,
    and goes on with them: of its own replay and the model. A maker that dies disturbs nobody; when this process ends, so does the
    model.

    Args:
        address: Of a running cluster; None: as this process is connected already, or a new local instance.
        ray_mem: Gigabytes of a new instance's object store; below 0: 0.27. ray_cpu, ray_gpu: What it may use; below 0: what there
            is.
        gpu_learn: Share of a GPU for the model; None: 0.5 if the cluster has any, else 0, which is the CPU.

    Raises:
        ImportError: Ray is not installed.
    """
    ray = the_ray()
    size = {"num_cpus": ray_cpu, "num_gpus": ray_gpu, "object_store_memory": int(ray_mem * 1e9)}
    CONNECTION.open(address, **{name: n for name, n in size.items() if n >= 0})
    share = (0.5 if ray.cluster_resources().get("GPU", 0) >= 0.5 else 0.0) if gpu_learn is None else gpu_learn
    return SharedModel(start(ModelActor, num_gpus=share), "cuda" if share else "cpu", open_here=True)


def seeds(base_seed: int, rank: int) -> tuple[int, np.random.SeedSequence]:
    """Of a maker's robot; and of the model, whoever builds it: that which the robot of rank 0 has for it."""
    own = int(np.random.SeedSequence(base_seed, spawn_key=(rank,)).generate_state(1)[0]) if rank else base_seed
    return own, np.random.SeedSequence(base_seed).spawn(3)[0].spawn(1)[0]
