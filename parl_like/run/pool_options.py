"""PoolOptions: what an agent pool is made of, its driver among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.data.transforms import Transforms
from parl_like.environment.factory import EnvSource
from parl_like.environment.hooks import Hook, TraceHash
from parl_like.run.driver import Driver
from parl_like.tasks.task import ComputationTask, Mode
from parl_like.values.errors import unknown

DRIVERS = {
    "cooperative": "parl_like.drivers.cooperative:CooperativeDriver", "threads": "parl_like.drivers.threads:ThreadsDriver",
    "processes": "parl_like.drivers.workers.processes:ProcessesDriver", "ray": "parl_like.drivers.ray.cluster:RayDriver",
}
"""Driver name → where its class is; loaded when a robot asks for it, so a driver's own dependencies are paid by its users
only."""


class DriverOptions(Protocol):
    """A driver with options, such as `parl_like.drivers.workers.processes.Processes`, in place of its name."""

    name: str

    def place(self, tasks: Mapping[str, ComputationTask]) -> Mapping[str, ComputationTask]:
        """The tasks where this driver has them; not built yet."""


@dataclass(frozen=True)
class PoolOptions:
    """Options of a pool.

    Attributes:
        tasks: Name → task, built.
        env: What every agent's environment is made of; None: the agents only learn.
        agent: Zero-argument function that makes an agent.
        seed: Of agents, helpers and buffers.
        driver: Its name, or its options.
        sync: Whether all agents unroll, then the tasks train.
        mode: 'collect', or 'test' of an evaluation.
        label: What agents are called, with their numbers.
        transforms: Task → those of another pool; None: the helpers' own.
        warned: Names of what environments changed that a warning has told of already, shared with another pool.
        trace: A digest of what happens to every agent; None: nobody asked for one.
        hooks: Those that hear of everything the agents do, in a run and outside of one.
    """

    tasks: Mapping[str, ComputationTask]
    env: EnvSource
    agent: Callable[[], Agent]
    seed: np.random.SeedSequence
    driver: str | DriverOptions = "cooperative"
    sync: bool = True
    mode: Mode = "collect"
    label: str = "agent"
    transforms: Mapping[str, Transforms] | None = None
    warned: set[str] | None = None
    trace: TraceHash | None = None
    hooks: Sequence[Hook] = ()

    @property
    def driver_name(self) -> str:
        """Return the name under which `DRIVERS` has the driver."""
        return self.driver if isinstance(self.driver, str) else self.driver.name

    def make_driver(self, failed: Callable[[Agent, BaseException], None]) -> Driver:
        """Make the driver, which calls `failed` with an agent and what it raised.

        Raises:
            ValueError: there is none of this name.
        """
        if self.driver_name not in DRIVERS:
            raise ValueError(unknown("driver", self.driver_name, DRIVERS))
        module, name = DRIVERS[self.driver_name].split(":")
        make: Callable[..., Driver] = getattr(import_module(module), name)
        return make(self.sync, failed, *([] if isinstance(self.driver, str) else [self.driver]))
