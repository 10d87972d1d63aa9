"""AgentPool: agents with their environments and helpers, the wrappers they talk to, and the driver that runs them.

A robot has a pool that trains; an evaluation and a worker process have pools of their own.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self

from parl_like.agents.agent import Agent
from parl_like.environment.hooks import TraceHash
from parl_like.interfaces import RunPort
from parl_like.run.agent_maker import AgentMaker
from parl_like.run.driver import Driver
from parl_like.run.helper_maker import HelperMaker
from parl_like.run.lifecycle import Lifecycle
from parl_like.run.pool_options import PoolOptions
from parl_like.run.run_hooks import RunHooks
from parl_like.run.statistics import Counted, Statistics
from parl_like.run.unread import Reads
from parl_like.tasks.task import Mode
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.parts import view

log = logging.getLogger(__name__)


class AgentPool(Counted):
    """See above. `tasks`, `wrappers`, `buffers` and `transforms` are by task, see `HelperMaker`.

    Args:
        robot: Returns whom agents, hooks and stop conditions know the pool by; None: the pool itself.

    Attributes:
        statistics: What the agents have done.
        hooks: Who hears of what they do.
        maker: Makes them.
        lifecycle: When they begin, wait and end.
        warned: What environments changed, and a warning has said so.
        idlers: Agents that ask and never step, and a warning has said so.
        should_stop: The stop condition of the run, asked after every act.
        free_steps: Returns how many steps may be taken before it has to be asked; None: any number.
        stop_requested: True while the run is about to end.
        reads: Which of the robot's settings were read.
        borrowed: Whether the environment belongs to somebody who will use it after this pool is closed.
    """

    remote = False
    """True where the tasks are in another process."""
    driver_name: str = view("options.driver_name", "The name under which `DRIVERS` has its driver.")
    sync: bool = view("options.sync", "Whether all agents unroll, then the tasks train.")
    mode: Mode = view("options.mode", "'collect', or 'test' of an evaluation.")
    trace: TraceHash | None = view("options.trace", "A digest of what happens to every agent; None: nobody asked for one.")
    common_seed: Any = view("options.seed.entropy", "The seed from which all pools of a robot, those of its workers too, have "
                            "their seeds.")

    def __init__(self, options: PoolOptions, robot: Callable[[], RunPort | None] | None = None,
                 statistics: Statistics | None = None) -> None:
        self.options = options
        self.agents: list[Agent] = []
        self.statistics = Statistics() if statistics is None else statistics
        self.warned: set[str] = set() if options.warned is None else options.warned
        self.idlers: list[Agent] = []
        self.reads = Reads()
        self.end_when(None)
        self.stop_requested = self.borrowed = False
        self._robot: Callable[[], RunPort | None] = weakref.ref(self) if robot is None else robot
        self.driver = self._make_driver()
        self.hooks = RunHooks(self.agents, options.trace, self.driver.lock is not None, options.hooks)
        self.helpers = HelperMaker(options, self.agents, self.driver, self.statistics)
        self.tasks, self.wrappers = self.helpers.tasks, self.helpers.wrappers
        self.buffers, self.transforms = self.helpers.buffers, self.helpers.transforms
        self.maker = self._make_maker()
        self.lifecycle = Lifecycle(self)

    def _make_driver(self) -> Driver:
        failed = weakref.WeakMethod(self.agent_failed)

        def agent_failed(agent: Agent, error: BaseException) -> None:
            if (call := failed()) is not None:  # else the robot is gone, and its agents end
                call(agent, error)

        return self.options.make_driver(agent_failed)

    def _make_maker(self) -> AgentMaker:
        return AgentMaker(self, self.helpers, self.agents)

    # -------------------------------------------------------------------------------------------------------- who is in it

    def fill(self, n: int) -> None:
        """Make the first `n` agents."""
        self.agents += self.driver.make_agents(self, n)
        self.hooks.tell_agents()

    def add(self, n: int) -> list[Agent]:
        """Let `n` more agents join, whose episodes begin with the next iteration; return them."""
        new = self.maker.make(n)
        self.agents += new
        self.hooks.tell_agents()
        return new

    def remove(self, agent: Agent) -> None:
        """Let an agent leave, between two iterations, and close its environment."""
        self.agents.remove(agent)
        self.statistics.ended_once -= set(range(agent.first_env, agent.first_env + agent.n_envs))
        self.helpers.close(agent)
        if agent.env is not None:
            self.statistics.departed_time_steps += agent.env.time_steps
            agent.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self, drain: bool = False) -> None:
        """Stop the agents and close their environments. May be called twice.

        Args:
            drain: Whether requests that are waiting are served first. Else they are answered with `Stopped`.

        Raises:
            RuntimeError: with `drain`, an environment that does not come back within 10 s. All is closed then all the same.
            TaskFailed: with `drain`, what a task raised.
        """
        self.lifecycle.close(drain)

    # -------------------------------------------------------------------------------------------------------- what it is

    @property
    def robot(self) -> RunPort:
        """Return the robot of this pool, or the pool itself: what agents, hooks and stop conditions are given."""
        robot = self._robot()
        assert robot is not None  # it holds its pool
        return robot

    @property
    def n_agents(self) -> int:
        """Return how many agents there are in all; in a worker those of all workers."""
        return len(self.agents)

    # ---------------------------------------------------------------------------------- called by agents, drivers and hooks

    def in_turn(self, call: Callable[..., object]) -> Callable[..., object]:
        """See `RunHooks.in_turn`."""
        return self.hooks.in_turn(call)

    def tell(self, text: str) -> None:
        """Tell the user something while the run goes on."""
        log.warning("%s", text)

    def end_when(self, should_stop: Callable[[Any], bool] | None, free_steps: Callable[[], float] | None = None) -> None:
        """Set what ends this run; None: nothing does."""
        self.should_stop, self.free_steps = should_stop, free_steps

    def take_over(self, notes: Mapping[str, Any]) -> None:
        """Take over what the pool of a worker has counted beside its steps, said, and read of settings."""
        self.statistics.bad_values += notes.get("bad", 0)
        self.statistics.episodes_cut += notes.get("cuts", 0)
        for text in notes.get("said", "").splitlines():
            self.tell(text)
        self.reads.note(notes.get("read", "").splitlines())

    def request_stop(self) -> None:
        """End the run: no agent takes another step, each waits where it is."""
        self.stop_requested = True
        for agent in self.agents:
            agent.tell(AgentSignal.PARK)
        self.driver.request_stop()

    def agent_failed(self, agent: Agent, error: BaseException) -> None:
        """See `Lifecycle.fail`."""
        self.lifecycle.fail(agent, error)
