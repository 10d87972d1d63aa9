"""AgentPool: agents with their environments and helpers, the wrappers they talk to, and the driver that runs them.

A robot has a pool that trains; an evaluation and a worker process have pools of their own.
"""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Self, TypeVar

import gymnasium as gym
import numpy as np

from parl_like.agents.agent import Agent
from parl_like.agents.helper import AgentHelper
from parl_like.agents.helper_checks import check_kind
from parl_like.agents.helper_context import HelperContext
from parl_like.agents.on_policy import OnPolicyHelper
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.environment.factory import is_made, make_one, note_of
from parl_like.environment.hooks import Hook, TraceHash
from parl_like.interfaces import RunPort
from parl_like.run.driver import Driver
from parl_like.run.pool_options import DRIVERS, PoolOptions
from parl_like.run.statistics import Counted, Statistics
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.errors import AgentFailed, Interrupted, NotEnoughRows, Stopped, TaskFailed, unknown
from parl_like.values.spec import SpecError

log = logging.getLogger(__name__)
T = TypeVar("T")

STOP_PATIENCE = 5.0
"""Seconds that the end of a run waits for agents that are busy in their environments."""

DRAIN_PATIENCE = 10.0
"""Seconds that `close(drain=True)` waits for agents that are busy in their environments."""

SOUND = (AgentFailed, TaskFailed, NotEnoughRows, SpecError, KeyboardInterrupt)
"""Errors that name what failed already."""


class OneThread:
    """Around whatever runs or ends the agents of a pool; a thread may enter again. (A generator would cost each update 2 µs.)"""

    def __init__(self, pool: AgentPool) -> None:
        self._pool = pool
        self._runs, self._runner = threading.RLock(), threading.current_thread()

    def __enter__(self) -> None:
        """Raises RuntimeError where another thread runs them, or began with agents that can only go on there."""
        pool = self._pool
        if not self._runs.acquire(blocking=False):
            pool.driver.refuse_agents()
            raise RuntimeError(f"thread {self._runner.name!r} runs this robot; only one thread at a time may run, save or close "
                               "it. To end the run from another one call request_stop()")
        here = threading.current_thread()
        if pool.started and pool.driver_name == "cooperative" and self._runner is not here:
            if not pool._waits:
                self._runs.release()
                raise RuntimeError(f"thread {self._runner.name!r} has begun with the agents of this robot, and greenlets cannot "
                                   "change threads; go on, or close() it, there. A run that came to its end, by run(stop), may "
                                   "be followed by one in another thread")
            pool._leave_waiting()
        self._runner = here

    def __exit__(self, *exception: object) -> None:
        self._runs.release()


class AgentPool(Counted):
    """See above. What agents may ask of it while they run: `statistics`, `buffers`, `wrappers`, and `request_stop`.

    Args:
        robot: Returns whom agents, hooks and stop conditions know the pool by; None: the pool itself.

    Attributes:
        told: What environments changed, and a warning has said so.
        idlers: Agents that ask and never step, as was told.
        notes: What environments say of themselves, see `note_of`.
        learners: Task whose helpers learn → the first of them.
        should_stop: The stop condition of the run, asked after every act.
        borrowed: Whether the environment belongs to somebody who will use it after this pool is closed.
        observing: The thread in which a hook or a stop condition is called, where agents have threads.
    """

    remote = False
    """True where the tasks are in another process."""

    def __init__(self, options: PoolOptions, robot: Callable[[], RunPort | None] | None = None,
                 statistics: Statistics | None = None) -> None:
        self.options, self.tasks, self.mode = options, dict(options.tasks), options.mode
        self.statistics = Statistics() if statistics is None else statistics
        self._robot: Callable[[], RunPort | None] = weakref.ref(self) if robot is None else robot
        self.told: set[str] = set() if options.told is None else options.told
        self.idlers: list[Agent] = []
        self.notes: list[str] = []
        self.should_stop: Callable[[Any], bool] | None = None
        self.learners: dict[str, AgentHelper] = {}
        self._run_hooks: list[Hook] = []
        self._last_hooks: list[Hook] = []  # of the run before
        self._new_hooks: list[Hook] = []
        self._error: BaseException | None = None
        self.stop_requested = self.closed = self.borrowed = False
        self.buffers: dict[str, ReplayBuffer] = {}
        self.transforms = dict(options.transforms or {})
        self.driver = self._make_driver()
        self.observing: int | None = None
        self._observers = None if self.driver.lock is None else threading.RLock()
        self.started = False
        self.one_thread = OneThread(self)
        self.unsound = False  # something has begun that Ctrl-C may have struck in the middle: a start, an iteration, a halt
        self._waits = False  # whether the agents wait since the end of a run
        self._paused = False  # whether the driver was paused and has not gone on
        self._forsaken: weakref.finalize[Any, Any] | None = None
        self._freed: dict[str, list[range]] = {}  # lanes of agents that have left, by task
        self._n_envs = 0  # of all agents so far
        self.agents: list[Agent] = []
        self.wrappers: dict[str, ComputationWrapper] = {}

    def fill(self, n: int) -> None:
        """Make the first `n` agents."""
        self.agents += self.driver.make_agents(self, n)
        self.observe()

    def add(self, n: int) -> list[Agent]:
        """Lets `n` more agents join, whose episodes begin with the next iteration; returns them."""
        new = self.make_agents(n)
        self.agents += new
        self.observe()
        return new

    def remove(self, agent: Agent) -> None:
        """Lets an agent leave, between two iterations, and closes its environment."""
        self.agents.remove(agent)
        self.statistics.ended_once -= set(range(agent.first_env, agent.first_env + agent.n_envs))
        for name, helper in agent.helpers.items():
            helper.comm.close()
            if helper.buffer is not None:
                self._freed.setdefault(name, []).append(helper.lanes)
        if agent.env is not None:
            self.statistics.departed_time_steps += agent.env.time_steps
            agent.env.close()

    @property
    def robot(self) -> RunPort:
        """Return the robot of this pool, or the pool itself: what agents, hooks and stop conditions are given."""
        robot = self._robot()
        assert robot is not None  # it holds its pool
        return robot

    @property
    def driver_name(self) -> str:
        """The name under which `DRIVERS` has its driver."""
        driver = self.options.driver
        return driver if isinstance(driver, str) else driver.name

    @property
    def sync(self) -> bool:
        """True: all agents unroll, then the tasks train."""
        return self.options.sync

    @property
    def trace(self) -> TraceHash | None:
        """A digest of what happens to every agent; None: nobody asked for one."""
        return self.options.trace

    def observe(self, *more: Hook) -> None:
        """Hooks hear of the agents' stages: those of the run, the trace, and `more` for now."""
        hooks = [] if self._waits else [*self._run_hooks, *([] if self.trace is None else [self.trace]), *more]
        for agent in self.agents:
            if agent.env is not None:
                agent.env.observe(hooks)

    def hear(self, hooks: Sequence[Hook]) -> None:
        """Sets the hooks of a run."""
        known, self._last_hooks = self._last_hooks, list(hooks)
        self._new_hooks = [hook for hook in hooks if all(hook is not other for other in known)]
        self._run_hooks = list(hooks)
        self.observe()

    def connect_hooks(self) -> None:
        """Hooks that the run before did not have hear PRE_EPISODE of the episodes that go on."""
        new, self._new_hooks = self._new_hooks, []
        for agent in self.agents:
            if new and agent.env is not None:
                agent.env.connect_hooks(new)

    def forget_hooks(self) -> None:
        """Ends what `hear` has begun."""
        self._run_hooks = []
        self.observe()

    @contextmanager
    def hooked(self, hooks: Sequence[Hook]) -> Iterator[None]:
        """Inside it these are the hooks of the run."""
        self.hear(hooks)
        self.connect_hooks()
        try:
            yield
        finally:
            self.forget_hooks()

    def in_turn(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, a hook's method or a stop condition, as agents call it: one at a time, whatever their threads do, for those who
        write it count in it without locks."""
        lock = self._observers
        if lock is None:
            return call

        def locked(*args: Any) -> Any:
            with lock:
                before, self.observing = self.observing, threading.get_ident()
                try:
                    return call(*args)
                finally:
                    self.observing = before

        return locked

    # ------------------------------------------------------------------------------------------------------ making agents

    def _make_driver(self) -> Driver:
        options = [] if isinstance(self.options.driver, str) else [self.options.driver]
        if self.driver_name not in DRIVERS:
            raise ValueError(unknown("driver", self.driver_name, DRIVERS))
        module, name = DRIVERS[self.driver_name].split(":")
        make: Callable[..., Driver] = getattr(import_module(module), name)
        failed = weakref.WeakMethod(self._agent_failed)

        def agent_failed(agent: Agent, error: BaseException) -> None:
            if (call := failed()) is not None:  # else the robot is gone, and its agents end
                call(agent, error)

        return make(self.sync, agent_failed, *options)

    @property
    def n_agents(self) -> int:
        """Return how many agents there are in all; in a worker those of all workers."""
        return len(self.agents)

    @property
    def common_seed(self) -> Any:
        """Return the seed from which all pools of a robot, those of its workers too, have their seeds."""
        return self.options.seed.entropy

    def new_seeds(self, n: int) -> list[tuple[int, np.random.SeedSequence]]:
        """Index and seed of each of `n` new agents."""
        return list(enumerate(self.options.seed.spawn(n), self.agents[-1].index + 1 if self.agents else 0))

    def make_agents(self, n: int) -> list[Agent]:
        """`n` new agents with environments and, for every task, helpers. They are not among `agents` yet."""
        seeds = self.new_seeds(n)
        new = [self._make_member(index, seed) for index, seed in seeds]
        for name in self.tasks:
            self._give_helpers(name, new, [seed.spawn(1)[0] for _, seed in seeds])
        return new

    def make_example(self) -> Agent:
        """An agent that is closed already, for drivers whose agents are made elsewhere: making it tells the wrappers what the
        agents will ask, and finds a mistake before a process is started."""
        if is_made(self.options.env):
            raise ValueError(f"Robot: an environment itself cannot go to a worker process; driver={self.driver_name!r} needs a "
                             "factory (`lambda: gym.make(...)`) or an id")
        like = self._make_member(-1, np.random.SeedSequence(0))
        for name in self.tasks:
            self._give_helpers(name, [like], [np.random.SeedSequence(0)], stores=False)
            if self.transforms[name].state_dict():
                raise ValueError(f"Robot: the transforms of task {name!r} keep statistics, and each worker process would count "
                                 "its own; put the environments alone into processes, env=lambda: make_vector_env(ID, 8, "
                                 "'process') with agent=VectorAgent and driver='cooperative', or use driver='threads'")
            like.helpers[name].comm.close()
        if like.env is not None:
            like.env.close()
        return like

    def _make_member(self, index: int, seed: np.random.SeedSequence) -> Agent:
        member = self.options.agent()
        if not isinstance(member, Agent):
            raise TypeError(f"Robot: agent() gave {type(member).__name__}; expected an Agent")
        if hasattr(member, "robot"):
            raise ValueError(f"Robot: agent() gave one {type(member).__name__} several times; expected a new one at every call, "
                             "such as its class")
        member.bind(self, index, np.random.default_rng(seed), self.options.label)
        if self.options.env is not None:
            member.join(partial(make_one, self.options.env))
            if (note := note_of(member.env)) and note not in self.notes:
                self.notes.append(note)
        member.first_env = self._first_env(member)
        return member

    def _first_env(self, member: Agent) -> int:
        """The number of a new agent's first environment: agents may have different numbers of them."""
        first, self._n_envs = self._n_envs, self._n_envs + member.n_envs
        return first

    def _give_helpers(self, name: str, agents: Sequence[Agent], seeds: Sequence[np.random.SeedSequence],
                      stores: bool = True) -> None:
        """A helper of one task for every new agent; before the first one the task's wrapper and, where rows are stored, its
        buffer."""
        task = self.tasks[name]
        make = task.helper or AgentHelper
        helpers = [make() for _ in agents]
        first = helpers[0]
        if len({id(helper) for helper in helpers}) < len(helpers) or hasattr(first, "comm"):
            raise ValueError(f"Robot: task {name!r}: helper() gave one {type(first).__name__} to several agents; expected a new "
                             "one at every call")
        training = self.mode != "test" and task.train
        n_lanes = sum(agent.n_envs for agent in agents)
        lane = self._new_lanes(name, n_lanes) if name in self.wrappers else 0
        if name not in self.wrappers:
            self._open(name, task, first, n_lanes, stores and training)
        wrapper, buffer = self.wrappers[name], self.buffers.get(name) if training else None
        if training and first.learns:
            self.learners.setdefault(name, first)
        if training and isinstance(first, OnPolicyHelper):
            self.statistics.rows.add_task(name)
        chain = self.transforms.setdefault(name, first.transforms)
        for agent, helper, seed in zip(agents, helpers, seeds, strict=True):
            communicator = wrapper.create_communicator(agent, self.driver)
            lanes, lane = range(lane, lane + agent.n_envs), lane + agent.n_envs
            rng = np.random.default_rng(seed)
            helper.bind(HelperContext(name, agent, communicator, lanes, buffer, rng, self.mode, self.sync, chain))
            agent.helpers[name] = helper
            agent.learns = agent.learns or (training and helper.learns)

    def _open(self, name: str, task: ComputationTask, helper: AgentHelper, n_lanes: int, stores: bool) -> None:
        """A task's wrapper and, where its helpers store rows, the buffer that they share."""
        lock = self.driver.lock
        if stores:
            number, root = list(self.tasks).index(name), self.options.seed
            seed = np.random.SeedSequence(entropy=root.entropy, spawn_key=(*root.spawn_key, 1_000_000 + number))
            buffer = helper.make_buffer(n_lanes, np.random.default_rng(seed))
            if buffer is not None:
                check_kind(f"task {name!r}: make_buffer of {type(helper).__name__}", buffer)
                self.buffers[name] = buffer = _for_policy(name, buffer, task.algorithm.model.act_space)
                if lock is not None:
                    buffer.make_threadsafe()
        wrapper = ComputationWrapper(task, self.mode, helper.training_rule(), lock)
        if self.sync and wrapper.trainings.rule.when_full == "drop_oldest":
            raise ValueError(f"Robot: task {name!r} drops the oldest requests of a full queue, but in sync mode every agent "
                             "waits for its own; use when_full='block', or mode='async'")
        statistics = self.statistics
        wrapper.trainings.env_steps = lambda: statistics.env_steps
        self.wrappers[name] = wrapper

    def _new_lanes(self, name: str, n: int) -> int:
        """The first of `n` lanes for an agent that joins: those of one that has left, whose rows end with a cut, or new ones."""
        buffer = self.buffers.get(name)
        if buffer is None:
            return sum(agent.n_envs for agent in self.agents)
        for lanes in self._freed.get(name, []):
            if len(lanes) == n:
                self._freed[name].remove(lanes)
                return lanes.start
        buffer.add_lanes(n)
        return buffer.n_lanes - n

    # -------------------------------------------------------------------------------------------------- called by the agents

    def tell(self, text: str) -> None:
        """Something that the user should know while it goes on."""
        log.warning("%s", text)

    def take_over(self, notes: Mapping[str, Any]) -> None:
        """Take over what the pool of a worker has counted beside its steps, and said."""
        self.statistics.bad_values += notes.get("bad", 0)
        self.statistics.episodes_cut += notes.get("cuts", 0)
        for text in notes.get("said", "").splitlines():
            self.tell(text)

    def request_stop(self) -> None:
        """Ends the run: no agent takes another step, each waits where it is."""
        self.stop_requested = True
        for agent in self.agents:
            agent.signal = agent.signal or "park"
        self.driver.request_stop()

    def _agent_failed(self, agent: Agent, error: BaseException) -> None:
        """An agent, or a task while it served this agent's update, has raised: the first error ends the run."""
        if isinstance(error, (Stopped, Interrupted)):
            return
        if self._error is None:
            self._error = error
            if not isinstance(error, SOUND):
                said = error.args[0] if isinstance(error, KeyError) and error.args else error  # a KeyError quotes its own text
                self._error = AgentFailed(f"{agent}: run_one_episode raised {type(error).__name__}: "
                                          f"{str(said).removeprefix(f'{agent}: ')}")
                self._error.__cause__ = error
        self.request_stop()

    # ------------------------------------------------------------------------------------------------------------- running

    def _uninterrupted(self, call: Callable[[], T]) -> T:
        """`call()`, which leaves agents in a state that nothing else understands where Ctrl-C strikes inside: then they all end
        before the next thing is done."""
        self.driver.refuse_agents()
        with self.one_thread:
            if self.unsound:
                self.halt()
            self.unsound = True
            if self._waits:
                self._end_wait()
            try:
                result = call()
            except Exception:
                self.unsound = False
                raise
            self.unsound = False
        return result

    def refuse_closed(self, what: str) -> None:
        if self.closed:
            raise RuntimeError(f"{what}: this robot was closed, and its environments with it; make a new one (`load` takes what "
                               "`save` wrote), and close() or leave `with` when you are done with it")

    def ensure_started(self) -> None:
        if not self.started:
            self.started = True  # first: what has started when Ctrl-C strikes must be halted
            self.driver.start(self.agents, list(self.wrappers.values()))

    def rest(self) -> None:
        """A run is over: its agents wait where they are for the next one. Meanwhile nothing that they hold holds the robot, for
        no garbage collector sees what a greenlet or a thread holds that waits."""
        if self._uninterrupted(self._pause):
            self.halt(patience=1.0)  # who is late does not wait, so nobody does
            return
        self._waits = self._paused = True
        self._known_as(weakref.proxy(self), weakref.proxy(self.robot))
        self.observe()
        if self._forsaken is None:
            self._forsaken = weakref.finalize(self.robot, self.driver.forsake)

    def _pause(self) -> list[Any]:
        self.request_stop()  # also where a rule between two iterations has ended the run
        late = self.driver.pause(STOP_PATIENCE)
        self.stop_requested = False
        return late

    def _end_wait(self) -> None:
        self._waits = False
        self._known_as(self, self.robot)
        self.observe()

    def _known_as(self, pool: AgentPool, robot: RunPort) -> None:
        """Sets what the agents and the driver know this pool and its robot by: themselves, or weak proxies."""
        self.driver.pool = pool
        for agent in self.agents:
            agent.pool, agent.robot = pool, robot

    def _leave_waiting(self) -> None:
        """Agents that wait in greenlets of another thread cannot go on in this one: their episodes end here, as at a
        checkpoint, and begin anew."""
        self._end_wait()
        self.started = self._paused = False
        self.driver.forsake()
        for agent in self.agents:
            agent.interrupt(carry=True)
        self.settle()

    def advance(self) -> bool:
        """One iteration of the driver; raises what an agent or a task raised."""
        went_on = self._uninterrupted(self._go_on)
        self.raise_error()
        return went_on

    def _go_on(self) -> bool:
        self.ensure_started()
        driver = self.driver
        if self._paused:
            self._paused = False
            driver.go_on()
        able = [a for a in driver.parked if a.quota_episodes != 0 and (a.quota_steps is None or a.quota_steps > 0)]
        # In the order of the agents, not of their parking: a robot that was just loaded starts them in that order, too.
        if not driver.stopping:
            driver.resume(sorted(able, key=lambda agent: agent.index))
        return driver.iterate()

    def raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self.abandon()
            raise error

    def cut(self, patience: float | None = None) -> None:
        """Ends all open episodes. Requests that are waiting are served first, so no reply and no update is lost.

        Raises:
            RuntimeError: an agent is still busy in its environment after `patience` seconds.
        """
        self._uninterrupted(partial(self._interrupt, patience))
        self.raise_error()

    def _interrupt(self, patience: float | None) -> None:
        if self.started and (late := self.driver.halt(self.agents, "interrupt", patience)):
            raise RuntimeError(f"still busy {patience:g} s after they were told to end their episodes: "
                               f"{', '.join(map(str, late))}")
        self.settle()

    def settle(self) -> None:
        """After an interruption: takes over the updates that nobody has waited for. The next resets are seeded."""
        for agent in self.agents:
            try:
                for helper in agent.helpers.values():
                    helper.settle()
            except Exception as error:  # noqa: BLE001  an update that failed, of which the agent would have heard at its next one
                self._agent_failed(agent, error)
            agent.needs_seed = True

    def halt(self, carry: bool = False, patience: float = STOP_PATIENCE) -> None:
        """All agents end; open requests are answered with `Stopped`. The pool may start again, and with `carry` go on with the
        episodes that are held."""
        with self.one_thread:
            late: list[Any] = []
            self.unsound = True
            if self._waits:
                self._end_wait()
            if self.started:
                self.driver.halt(self.agents, "stop")
                late = self.driver.join(patience)
            for agent in self.agents:
                agent.signal = "stop" if agent in late else None
                agent.quota_steps = agent.quota_episodes = None
                if agent.env is not None and not carry:
                    agent.env.carried = None
                for helper in agent.helpers.values():
                    helper.forget_pending()
            self.driver.stopping = False
            self.driver.parked.clear()
            self.driver.reopen()
            self.stop_requested = False
            self.started = self.unsound = self._paused = False  # last: until here the next call begins once more
        if late:  # last, for the user may have made an error of warnings
            warnings.warn(f"still busy {STOP_PATIENCE:g} s after the stop: {', '.join(map(str, late))}", RuntimeWarning,
                          stacklevel=3)

    def abandon(self) -> None:
        """All agents end after an error, which is the one to report: others, of hooks meanwhile, are not."""
        self.halt()
        self._error = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self, drain: bool = False) -> None:
        """Stops the agents and closes their environments. May be called twice.

        Args:
            drain: Whether requests that are waiting are served first. Else they are answered with `Stopped`.

        Raises:
            RuntimeError: with `drain`, an environment that does not come back within 10 s. All is closed then all the same.
            TaskFailed: with `drain`, what a task raised.
        """
        cut = self.statistics.episodes_cut
        try:
            if drain:
                self.cut(DRAIN_PATIENCE)
        finally:
            self.halt()
            self.statistics.episodes_cut = cut  # the end of everything says nothing of the returns
            self.closed = True
            for agent in self.agents:
                if agent.env is not None and not self.borrowed:
                    agent.env.close()
            self.driver.close()


def _for_policy(task: str, buffer: Any, space: gym.Space[Any] | None) -> Any:
    """The buffer of a task's helpers, for the policy's actions of its model's action space."""
    if space is None or buffer.act_space == space:
        return buffer
    if not len(buffer):
        buffer.act_space = space
        return buffer
    if not isinstance(buffer, ReplayBuffer):
        raise ValueError(f"Robot: task {task!r}: {buffer!r} has rows, and whose units their actions are in is not known; give a "
                         "ReplayBuffer, or say buffer.act_space = env.action_space where they are the policy's")
    try:
        return buffer.in_policy_units(space)
    except SpecError as error:
        raise SpecError(f"Robot: task {task!r}: {error}") from None
