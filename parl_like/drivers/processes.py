"""The processes driver: worker processes of this machine with many agents each, over ZeroMQ in a folder that only this user may
enter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from parl_like.drivers.hosted import HostedDriver
from parl_like.drivers.links import Link, LocalLink

if TYPE_CHECKING:
    from parl_like.computation_task import ComputationTask

_Options = TypeVar("_Options")

GONE = ("remote", "listen", "key", "allow")
"""Options of earlier versions, whose workers could come from other machines."""


def refuses_gone(cls: type[_Options]) -> type[_Options]:
    """Makes the constructor refuse the options in `GONE`, with a word about what has taken their place."""
    made = cls.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **options: Any) -> None:
        for name in options:
            if name in GONE:
                raise TypeError(f"{cls.__name__}: {name} is no option any more; workers on other machines are actors of a Ray "
                                "cluster: driver=Ray(address=ADDRESS) of parl_like.drivers.ray_cluster")
        made(self, *args, **options)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@refuses_gone
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

    def make_link(self) -> Link:
        """How the robot's process and its workers reach each other."""
        return LocalLink()

    def place(self, tasks: Mapping[str, ComputationTask]) -> Mapping[str, ComputationTask]:
        """Tasks stay with the robot."""
        return tasks


class ProcessesDriver(HostedDriver):
    """Agents in worker processes. See `CooperativeDriver` for the other arguments."""

    defaults: type[Processes] = Processes

    def __init__(
        self, sync: bool, failed: Callable[[Any, BaseException], None], on_error: Callable[[Any, BaseException], None],
        options: Processes | None = None,
    ) -> None:
        options = options or self.defaults()
        super().__init__(sync, failed, on_error, options, options.make_link())
