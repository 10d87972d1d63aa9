"""Robot: tasks + agents + environments + the run loop. Crew: the part of it that an evaluation has too."""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np

from parl_like.agent import Agent
from parl_like.agent_helper import AgentHelper, OffPolicyHelper, OnPolicyHelper
from parl_like.computation_task import ComputationTask, Mode
from parl_like.computation_wrapper import ComputationWrapper
from parl_like.data.archive import read_archive, write_archive
from parl_like.data.replay_buffer import ReplayBuffer
from parl_like.data.transforms import Transforms
from parl_like.errors import AgentFailed, Interrupted, NotEnoughRows, Stopped, TaskFailed, unknown
from parl_like.film import Film, drawable, write_gif
from parl_like.model import Model
from parl_like.row_counts import RowCounts
from parl_like.spec import SpecError
from parl_like.stages import Hook, StopAfterEpisodes, StopAfterSteps, StopCondition, TraceHash, overridden

log = logging.getLogger(__name__)

DRIVERS = {
    "cooperative": "parl_like.drivers.cooperative:CooperativeDriver", "threads": "parl_like.drivers.threads:ThreadsDriver",
    "processes": "parl_like.drivers.processes:ProcessesDriver", "ray": "parl_like.drivers.ray_cluster:RayDriver",
}
"""Driver name → where its class is; loaded when a robot asks for it, so a driver's own dependencies are paid by its users only."""

DRAIN_PATIENCE = 10.0
"""Seconds that `close(drain=True)` waits for agents that are busy in their environments."""


class DriverOptions(Protocol):
    """A driver with options, such as `parl_like.drivers.processes.Processes`, in place of its name."""

    name: str

    def place(self, tasks: Mapping[str, ComputationTask]) -> Mapping[str, ComputationTask]:
        """The tasks where this driver has them; not built yet."""


EnvSource = str | gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any] | Callable[[], Any] | None


@dataclass(repr=False)
class Episodes:
    """What a collection or an evaluation saw. Returns and lengths are of finished episodes, agent by agent.

    Attributes:
        returns: Undiscounted return of each episode, a number or, where rewards are vectors, an array. lengths: Its actions.
        idxs: Where the rows of each episode begin in the buffer of the first task that stores: position, or −1 without a buffer.
        n_steps: Environment steps, unfinished episodes included.
        seconds: Wall time.
    """

    returns: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    idxs: list[int] = field(default_factory=list)
    n_steps: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        mean, std = (np.array2string(np.asarray(x), precision=4) if np.ndim(x) else f"{x:.4g}" for x in (self.mean_return, self.std_return))
        return f"Episodes({self.n_episodes}: return {mean} ± {std}, {self.n_steps} steps, {self.seconds:.1f} s)"

    def _of_returns(self, function: Callable[..., Any]) -> Any:
        """Over the episodes: a number, of vectors one per component; NaN without episodes."""
        if not self.returns:
            return float("nan")
        value = function(np.asarray(self.returns, np.float64), axis=0)
        return value if np.ndim(value) else float(value)

    @property
    def n_episodes(self) -> int:
        return len(self.returns)

    @property
    def mean_return(self) -> Any:
        return self._of_returns(np.mean)

    @property
    def std_return(self) -> Any:
        return self._of_returns(np.std)

    @property
    def min_return(self) -> Any:
        return self._of_returns(np.min)

    @property
    def max_return(self) -> Any:
        return self._of_returns(np.max)

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths)) if self.lengths else float("nan")


def make_one(env: EnvSource) -> Any:
    """An environment from a registered id, a factory, or itself. Ids are made without gymnasium's checker: ours checks each step."""
    if isinstance(env, str):
        return gym.make(env, disable_env_checker=True)
    return env() if callable(env) and not is_made(env) else env


def is_made(env: Any) -> bool:
    """Whether this is an environment itself, of which there is only one."""
    return isinstance(env, (gym.Env, gym.vector.VectorEnv)) or (hasattr(env, "step") and not isinstance(env, type))


class Crew:
    """Agents with their environments and helpers, the wrappers they talk to, and the driver that runs them."""

    remote = False
    """Whether the tasks are in another process."""

    def __init__(
        self, tasks: Mapping[str, ComputationTask], env: EnvSource, agent: Callable[[], Agent], n_agents: int, seed: np.random.SeedSequence,
        driver: str | DriverOptions, sync: bool, mode: Mode, label: str = "agent", transforms: Mapping[str, Transforms] | None = None,
    ) -> None:
        self.tasks = dict(tasks)
        self.driver_name, self.sync, self.mode = driver if isinstance(driver, str) else driver.name, sync, mode
        self._driver_options = None if isinstance(driver, str) else driver
        # Agents' threads add to these without a lock: CPython changes threads only after calls and jumps, never within a `+=`. The
        # value of a call (next() of a counter) could be stored late, over a larger one.
        self.env_steps = self.episodes = self.bad_values = 0
        self._bad_so_far = 0  # a worker's `bad_values` are counted off
        self.told: set[str] = set()  # what of the process the environments changed, and a warning has said so
        self.rows = RowCounts()
        self.recent_returns: deque[Any] = deque(maxlen=100)
        self.recent_lengths: deque[int] = deque(maxlen=100)
        self._stop: StopCondition | None = None
        self._error: BaseException | None = None
        self.stop_requested = False
        self.buffers: dict[str, ReplayBuffer] = {}
        self.transforms = dict(transforms or {})
        self._driver = self._make_driver()
        self._started = False
        self._runs, self._runner = threading.RLock(), ""  # held by the thread that runs the agents, and its name
        self._unsound = False  # something has begun that Ctrl-C may have struck in the middle: a start, an iteration, a halt
        self._freed: dict[str, list[range]] = {}  # lanes of agents that have left, by task
        self._borrowed = False  # whether the environment belongs to somebody who will use it after this crew is closed
        self._make_agent, self._env, self._seeds, self._label = agent, env, seed, label
        self.agents: list[Agent] = []
        self.wrappers: dict[str, ComputationWrapper] = {}
        if self._driver.hosted:
            self._host(n_agents)
        else:
            self._enlist(n_agents)

    def _seats(self, n: int) -> list[tuple[int, np.random.SeedSequence]]:
        """Index and seed of each of `n` new agents."""
        return list(enumerate(self._seeds.spawn(n), self.agents[-1].index + 1 if self.agents else 0))

    def _enlist(self, n: int) -> list[Agent]:
        """Makes agents with environments and, for every task, helpers."""
        seats = self._seats(n)
        new = [self._make_member(index, seed) for index, seed in seats]
        for number, (name, task) in enumerate(self.tasks.items()):
            self._furnish(name, task, new, [seed.spawn(1)[0] for _, seed in seats], number)
        self.agents += new
        for member in new:
            if member.env is not None:
                member.env.observe([])
        return new

    def _make_member(self, index: int, seed: np.random.SeedSequence) -> Agent:
        env = self._env
        member = self._make_agent()
        if not isinstance(member, Agent):
            raise TypeError(f"Robot: agent() gave {type(member).__name__}; expected an Agent")
        if hasattr(member, "robot"):
            raise ValueError(f"Robot: agent() gave one {type(member).__name__} several times; expected a new one at every call, such as its class")
        member.bind(self, index, np.random.default_rng(seed), self._label)  # type: ignore[arg-type]
        if env is None:
            member.env = None
        else:
            member.join(lambda: make_one(env))
        return member

    def _host(self, n: int) -> None:
        """Has the driver make the agents where they will run. One is made here, too, and closed again: it tells the wrappers what the
        agents will ask, and finds a mistake before a process is started."""
        if is_made(self._env):
            raise ValueError(f"Robot: an environment itself cannot go to a worker process; driver={self.driver_name!r} needs a factory "
                             "(`lambda: gym.make(...)`) or an id")
        like = self._make_member(-1, np.random.SeedSequence(0))
        for number, (name, task) in enumerate(self.tasks.items()):
            self._furnish(name, task, [like], [np.random.SeedSequence(0)], number, stores=False)
            if self.transforms[name].state_dict():
                raise ValueError(f"Robot: the transforms of task {name!r} keep statistics, which worker processes do not share yet; use "
                                 "driver='cooperative' or 'threads', or normalise inside the model")
            like.helpers[name].comm.close()
        if like.env is not None:
            like.env.close()
        self.agents = self._driver.enlist(self, like, self._seats(n), self._tracing())

    def _tracing(self) -> bool:
        return False

    def _make_driver(self) -> Any:
        if self.driver_name not in DRIVERS:
            raise ValueError(unknown("driver", self.driver_name, DRIVERS))
        module, name = DRIVERS[self.driver_name].split(":")
        options = () if self._driver_options is None else (self._driver_options,)
        return getattr(import_module(module), name)(self.sync, self._agent_failed, self._task_failed, *options)

    def _furnish(
        self, name: str, task: ComputationTask, agents: Sequence[Agent], seeds: Sequence[np.random.SeedSequence], number: int, stores: bool = True,
    ) -> None:
        """A helper of one task for every new agent; for the first of them the task's wrapper and, where rows are stored, its buffer, too."""
        make = task.helper or AgentHelper
        helpers = [make() for _ in agents]
        if len({id(helper) for helper in helpers}) < len(helpers) or hasattr(helpers[0], "comm"):
            raise ValueError(f"Robot: task {name!r}: helper() gave one {type(helpers[0]).__name__} to several agents; expected a new one at every call")
        training = self.mode != "test" and task.train
        lane = sum(agent.n_envs for agent in self.agents)
        new_lanes = sum(agent.n_envs for agent in agents)
        if name in self.wrappers:
            buffer = self.buffers.get(name)
            if buffer is not None:
                free = self._freed.get(name, [])
                block = next((lanes for lanes in free if len(lanes) == new_lanes), None)
                if block is not None:
                    free.remove(block)
                    lane = block.start  # behind the rows of an agent that has left, with a seam between
                else:
                    lane = buffer.n_lanes
                    buffer.add_lanes(new_lanes)
        else:
            if stores and training and name not in self.buffers:
                root = self._seeds
                buffer_seed = np.random.SeedSequence(entropy=root.entropy, spawn_key=(*root.spawn_key, 1_000_000 + number))
                buffer = helpers[0].make_buffer(new_lanes, np.random.default_rng(buffer_seed))
                if buffer is not None:
                    self.buffers[name] = buffer
                    if getattr(self._driver, "lock", None) is not None:  # agents are threads
                        buffer.make_threadsafe()
            wrapper = ComputationWrapper(task, self.mode, helpers[0].training_rule(), getattr(self._driver, "lock", None))
            if self.sync and wrapper.trainings.rule.when_full == "drop_oldest":
                raise ValueError(f"Robot: task {name!r} drops the oldest requests of a full queue, but in sync mode every agent waits for its own; "
                                 "use when_full='block', or mode='async'")
            self.wrappers[name] = wrapper
        if training and isinstance(helpers[0], OnPolicyHelper):
            self.rows.add_task(name)
        wrapper = self.wrappers[name]
        chain = self.transforms.setdefault(name, helpers[0].transforms)
        for agent, helper, helper_seed in zip(agents, helpers, seeds, strict=True):
            lanes = range(lane, lane + agent.n_envs)
            lane += agent.n_envs
            helper.bind(
                name, agent, wrapper.create_communicator(agent, self._driver), lanes, self.buffers.get(name) if training else None,
                np.random.default_rng(helper_seed), self.mode, self.sync, chain,
            )
            agent.helpers[name] = helper
            agent.learns = agent.learns or (training and helper.learns)

    def driver_of(self, agent: Agent) -> Any:
        return self._driver

    def _ensure_started(self) -> None:
        if not self._started:
            self._started = True  # first: what has started when Ctrl-C strikes must be halted
            self._driver.start(self.agents, list(self.wrappers.values()))

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        """Around whatever runs or ends the agents.

        Raises:
            RuntimeError: another thread does so, or began with agents that can only go on there.
        """
        if not self._runs.acquire(blocking=False):
            self._driver.refuse_agents()
            raise RuntimeError(f"thread {self._runner!r} runs this robot; only one thread at a time may run, save or close it. To end the run from "
                               "another one call request_stop()")
        try:
            here = threading.current_thread()
            if self._started and self.driver_name == "cooperative" and self._runner != here.name:
                raise RuntimeError(f"thread {self._runner!r} has begun with the agents of this robot, and greenlets cannot change threads; go on, "
                                   "or close() it, there. A run that came to its end, by run(stop), may be followed by one in another thread")
            self._runner = here.name
            yield
        finally:
            self._runs.release()

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Around what leaves agents in a state that nothing else understands: where Ctrl-C strikes inside, all of them end before the
        next thing is done."""
        if self._unsound:
            self._halt()
        self._unsound = True
        try:
            yield
        except Exception:
            self._unsound = False
            raise
        self._unsound = False

    # ------------------------------------------------------------------------------------------------- called by the agents

    def count_episode(self, episode_return: Any, length: int) -> None:
        self.recent_returns.append(episode_return)
        self.recent_lengths.append(length)
        self.episodes += 1

    def count_bad(self, text: str) -> None:
        """A value of an environment was dropped or replaced; the log has the robot's 1st, 2nd, 4th, 8th …, so that it stays small."""
        self.bad_values += 1
        self._bad_so_far += 1
        if not self._bad_so_far & (self._bad_so_far - 1):
            log.warning("%s; bad values so far: %d", text, self._bad_so_far)

    def count_offline_step(self) -> None:
        """An agent without an environment begins a round of learning; it counts as a step, so that stop conditions work."""
        self.env_steps += 1
        if self._stop is not None and self._stop(self):  # type: ignore[arg-type]
            self.request_stop()

    def request_stop(self) -> None:
        """Ends the run: no agent takes another step."""
        self.stop_requested = True
        for agent in self.agents:
            agent.signal = "stop"
        self._driver.request_stop()

    def _agent_failed(self, agent: Agent, error: BaseException) -> None:
        if isinstance(error, (Stopped, Interrupted)):
            return
        if self._error is None:
            known = (AgentFailed, TaskFailed, NotEnoughRows, SpecError, KeyboardInterrupt)
            if not isinstance(error, known):
                said = error.args[0] if isinstance(error, KeyError) and error.args else error  # a KeyError quotes its own text
                failed = AgentFailed(f"{agent}: run_one_episode raised {type(error).__name__}: {str(said).removeprefix(f'{agent}: ')}")
                failed.__cause__ = error
                error = failed
            self._error = error
        self.request_stop()

    def _task_failed(self, agent: Agent, error: BaseException) -> None:
        self._agent_failed(agent, error)

    def _advance(self) -> bool:
        """One iteration of the driver; raises what an agent or a task raised."""
        self._driver.refuse_agents()
        with self._one_thread(), self._uninterrupted():
            self._ensure_started()
            able = [a for a in self._driver.parked if a.quota_episodes != 0 and (a.quota_steps is None or a.quota_steps > 0)]
            # In the order of the agents, not of their parking: a robot that was just loaded starts them in that order, too.
            self._driver.resume(sorted(able, key=lambda agent: agent.index))
            went_on: bool = self._driver.iterate()
        self._raise()
        return went_on

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self._halt()
            self._error = None  # what hooks raised while the agents ended; the first error is the one to report
            raise error

    def _cut(self, patience: float | None = None) -> None:
        """Ends all open episodes. Requests that are waiting are served first, so no reply and no lesson is lost.

        Raises:
            RuntimeError: an agent is still busy in its environment after `patience` seconds.
        """
        self._driver.refuse_agents()
        with self._one_thread(), self._uninterrupted():
            late = self._driver.halt(self.agents, "interrupt", patience) if self._started else []
            if late:
                raise RuntimeError(f"still busy {patience:g} s after they were told to end their episodes: {', '.join(map(str, late))}")
            for agent in self.agents:
                try:
                    for helper in agent.helpers.values():
                        helper.settle()
                except Exception as error:  # noqa: BLE001  a lesson that failed, of which the agent would have heard at its next one
                    self._agent_failed(agent, error)
        self._raise()
        for agent in self.agents:
            agent.fresh = True

    def _halt(self) -> None:
        """All agents end; open requests are answered with `Stopped`. The crew may start again."""
        with self._one_thread():
            self._end_all()

    def _end_all(self) -> None:
        late: list[Any] = []
        self._unsound = True
        if self._started:
            self._driver.halt(self.agents, "stop")
            late = self._driver.join(5.0)
        for agent in self.agents:
            agent.signal = "stop" if agent in late else None
            agent.quota_steps = agent.quota_episodes = None
            for helper in agent.helpers.values():
                helper.forget_pending()
        self._driver.stopping = False
        self._driver.parked.clear()
        self._driver.reopen()
        self.stop_requested = False
        self._started = self._unsound = False  # last: until here the next call begins once more
        if late:  # last, for the user may have made an error of warnings
            warnings.warn(f"still busy 5 s after the stop: {', '.join(map(str, late))}", RuntimeWarning, stacklevel=3)

    def _gather(self, n_step: int | None, n_episode: int | None) -> Episodes:
        """Runs every agent for its own share of steps or episodes, and reports the episodes that ended.

        Each agent has a quota of its own, so that agents whose episodes happen to be short do not fill the statistics.
        """
        self._driver.refuse_agents()
        with self._one_thread():
            return self._gathered(n_step, n_episode)

    def _gathered(self, n_step: int | None, n_episode: int | None) -> Episodes:
        begin, steps_before = perf_counter(), self.env_steps
        result = Episodes()
        watch = _Watch(self.agents)
        if n_episode is not None:
            share, rest = divmod(n_episode, len(self.agents))
            for i, agent in enumerate(self.agents):
                agent.quota_episodes = share + (i < rest)
        else:
            assert n_step is not None
            n = sum(agent.n_envs for agent in self.agents)
            share = -(-n_step // n)
            if n_step % n:
                warnings.warn(f"collect: n_step {n_step} is not a multiple of {n} environments; collecting {share * n}", stacklevel=4)
            for agent in self.agents:
                agent.quota_steps = share * agent.n_envs
        for agent in self.agents:
            agent.env.observe([*self._hooks(), watch])
        try:
            while self._advance():
                pass
        finally:
            for agent in self.agents:
                agent.quota_steps = agent.quota_episodes = None
                agent.env.observe(self._hooks())
        for agent in self.agents:
            result.returns += watch.returns[agent.index]
            result.lengths += watch.lengths[agent.index]
            result.idxs += watch.idxs[agent.index]
        result.n_steps, result.seconds = self.env_steps - steps_before, perf_counter() - begin
        return result

    def _hooks(self) -> list[Hook]:
        return []

    def close(self, drain: bool = False) -> None:
        """Stops the agents and closes their environments. May be called twice.

        Args:
            drain: Whether requests that are waiting are served first. Else they are answered with `Stopped`.

        Raises:
            RuntimeError: with `drain`, an environment that does not come back within 10 s. All is closed then all the same.
            TaskFailed: with `drain`, what a task raised.
        """
        try:
            if drain:
                self._cut(DRAIN_PATIENCE)
        finally:
            self._halt()
            for agent in self.agents:
                if agent.env is not None and not self._borrowed:
                    agent.env.close()
            if self._driver.hosted:
                self._driver.close()


class _Watch(Hook):
    """Episodes by agent; counts down the agents' quotas."""

    def __init__(self, agents: list[Agent]) -> None:
        self.returns: dict[int, list[Any]] = {agent.index: [] for agent in agents}
        self.lengths: dict[int, list[int]] = {agent.index: [] for agent in agents}
        self.idxs: dict[int, list[int]] = {agent.index: [] for agent in agents}

    def post_episode(self, agent: Agent, interrupted: bool) -> None:
        if not interrupted and (agent.quota_episodes is None or agent.quota_episodes > 0):
            self.returns[agent.index].append(agent.env.episode_return)
            self.lengths[agent.index].append(agent.env.episode_length)
            stored = ((helper.buffer, helper.lanes[agent.env.env_index]) for helper in agent.helpers.values() if helper.buffer is not None)
            self.idxs[agent.index].append(next((buffer.episode_start(lane) for buffer, lane in stored), -1))
            if agent.quota_episodes is not None:
                agent.quota_episodes -= 1


class Robot(Crew):
    """Several computation tasks, many agents, one run loop.

    Args:
        env: A gymnasium id, a factory, or (with one agent) an environment. None: the agents only learn (offline data).
        tasks: Name → `ComputationTask`, in the order that breaks ties.
        agent: Zero-argument function that makes an agent, e.g. its class.
        n_agents: Agents, each with an environment of its own.
        driver: 'cooperative' (greenlets, deterministic), 'threads', 'processes' (workers on all cores and other machines, each with a block of
            the agents; their options: `parl_like.drivers.processes.Processes`), or 'ray' (`parl_like.drivers.ray_cluster.Ray`).
        mode: 'sync': all agents unroll, then the tasks train, one `train_iter` after the other. 'async': agents never wait for
            training.
        seed: Decides everything random: one `SeedSequence` spawns the generators of tasks, agents, helpers and buffers.
        trace: Keep a `TraceHash`; costs about 2 µs a step.
        eval_env: What `evaluate` and `play` use, such as held-out levels; None: as `env`.
        eval_explore: Evaluations draw actions as training does, instead of taking the best ones: for policies that are meant to be drawn from,
            and may run in circles otherwise. (A schedule of exploration, such as ε, begins anew.)
    """

    def __init__(
        self, env: EnvSource = None, *, tasks: Mapping[str, ComputationTask], agent: Callable[[], Agent] = Agent, n_agents: int = 1,
        driver: str | DriverOptions = "cooperative", mode: Literal["sync", "async"] = "sync", seed: int = 0, trace: bool = False, eval_env: EnvSource = None,
        eval_explore: bool = False,
    ) -> None:
        if n_agents < 1:
            raise ValueError(f"Robot: n_agents is {n_agents}; expected at least 1")
        if mode not in ("sync", "async"):
            raise ValueError(f"Robot: mode is {mode!r}; expected 'sync' or 'async'")
        for name, task in tasks.items():
            if not isinstance(task, ComputationTask):
                raise TypeError(f"Robot: task {name!r} is {type(task).__name__}; expected ComputationTask(algorithm or function, helper=…)")
        for name, task in tasks.items():
            twin = next((other for other, one in tasks.items() if one is task and other != name), None)
            if twin is not None:
                raise ValueError(f"Robot: tasks {name!r} and {twin!r} are one ComputationTask; make one for each (`Shared` lets tasks have one network)")
        if not isinstance(driver, str):
            tasks = driver.place(tasks)
        if not callable(agent):
            raise TypeError(f"Robot: agent is {type(agent).__name__}; expected a function that makes one, such as its class")
        if is_made(env) and n_agents > 1:
            raise ValueError(f"Robot: {n_agents} agents cannot share one environment; give a factory (`lambda: gym.make(...)`) or an id")
        self.seed, self.eval_env, self.eval_explore = seed, eval_env, eval_explore
        root = np.random.SeedSequence(seed)
        task_seed, agent_seed, self._evaluation_seed = root.spawn(3)
        for (name, task), child in zip(tasks.items(), task_seed.spawn(len(tasks)), strict=True):
            task.name = name
            task.build(child)
        self._trace = TraceHash() if trace else None
        self._run_hooks: list[Hook] = []
        self.iterations = 0
        self._saves: list[Path] = []
        self._departed_time_steps = 0
        super().__init__(tasks, env, agent, n_agents, agent_seed, driver, mode == "sync", "collect")
        self._observe()

    def add_agents(self, n: int = 1) -> list[Agent]:
        """Lets `n` more agents join, between two iterations. Open episodes end here, as at a checkpoint, and everybody goes on.

        Buffers grow by the lanes of the new agents. A robot that loads a checkpoint of this one needs as many agents.

        Raises:
            ValueError: the robot was given an environment itself, of which there is only one; n is below 1.
        """
        if n < 1:
            raise ValueError(f"add_agents: n is {n}; expected at least 1")
        if is_made(self._env):
            raise ValueError("add_agents: the agents cannot share one environment; give the robot a factory (`lambda: gym.make(...)`) or an id")
        self._refuse_hosted("add_agents")
        self._cut()
        self._halt()
        new = self._enlist(n)
        self._observe()
        return new

    def remove_agent(self, agent: Agent) -> None:
        """Lets an agent leave, between two iterations, and closes its environment. Open episodes end as with `add_agents`; what the
        agent stored stays.

        Raises:
            ValueError: it is no agent of this robot, or the only one.
        """
        if agent not in self.agents or len(self.agents) == 1:
            raise ValueError(f"remove_agent: {agent} is {'the only' if agent in self.agents else 'no'} agent of this robot; "
                             f"there are {', '.join(map(str, self.agents))}")
        self._refuse_hosted("remove_agent")
        self._cut()
        self._halt()
        self.agents.remove(agent)
        for name, helper in agent.helpers.items():
            helper.comm.close()
            if helper.buffer is not None:
                self._freed.setdefault(name, []).append(helper.lanes)
        if agent.env is not None:
            self._departed_time_steps += agent.env.time_steps
            agent.env.close()

    def _refuse_hosted(self, what: str) -> None:
        if self._driver.hosted:
            raise ValueError(f"{what}: under driver={self.driver_name!r} the agents are divided over the workers once; make the robot with as many as are needed")

    # ------------------------------------------------------------------------------------------------------------- running

    def run(self, stop: StopCondition | None = None, hooks: Hook | Iterable[Hook] = ()) -> None:
        """Runs until `stop` says so; without it, until interrupted. Begins with new episodes, and ends those that are open then.

        Training requests that are open at the end are still served (not under the threads driver, where that could mean to wait
        for an environment): with `OnPolicyHelper(unroll=5)`, 20 steps are learned from in 4 lessons.

        Raises:
            What an agent, an environment or a task raised, named. POST_EXPERIMENT fires all the same.
        """
        if stop is not None and not isinstance(stop, StopCondition):
            raise TypeError(f"Robot.run: stop is {stop!r}; expected a StopCondition, e.g. StopAfterSteps(1000) of parl_like.stages")
        self._driver.refuse_agents()
        with self._one_thread():
            self._run(stop, [hooks] if isinstance(hooks, Hook) else list(hooks))
        for name, why in self.never_learned().items():
            log.warning("task %r never learned: %s", name, why)

    def _run(self, stop: StopCondition | None, hooks: list[Hook]) -> None:
        if self._unsound:
            self._halt()
        self._saves.clear()
        self._run_hooks = hooks
        self._observe()
        try:
            if stop is not None:
                stop.begin(self)
            self._stop = stop
            for call in overridden(hooks, "pre_experiment"):
                call(self)
            while not self.stop_requested and self._advance():
                self.iterations += 1
                self._save_as_asked()
                if stop is not None and stop.after_iteration(self):
                    break
            self._stop = None
            self._save_as_asked()
            if self.driver_name != "threads":
                self._cut()
            self._halt()
            self._raise()
        finally:
            self._stop = None
            self._halt()
            self._error = None
            self._run_hooks = []
            self._observe()
            for call in overridden(hooks, "post_experiment"):
                call(self)

    def never_learned(self) -> dict[str, str]:
        """Tasks that could learn, but have not done a single optimiser step since they were built or loaded: name → why."""
        return {name: self._why_not(name, task) for name, task in self.tasks.items() if task.train and not task.algorithm.updates
                and any(next(network.parameters(), None) is not None for network in task.algorithm.networks().values())}

    def _why_not(self, name: str, task: ComputationTask) -> str:
        """Why a task has not learned."""
        helper = (task.helper or AgentHelper)()
        if not helper.learns:
            return ("its agents have no helper that learns; give the ComputationTask helper=OnPolicyHelper or OffPolicyHelper, or train=False "
                    "where that is meant")
        if self._driver.hosted:
            return f"no lesson was due yet, or no agent calls helpers[{name!r}].store(...)"
        rows, warmup = sum(agent.helpers[name].steps for agent in self.agents), getattr(helper, "warmup", 0)
        if not rows:
            return f"no row was stored for it: no agent calls helpers[{name!r}].store(...)"
        if warmup > rows:
            return f"{rows} rows were stored, and it begins with {warmup} (warmup, batch_size); train for longer, or lower them"
        return f"{rows} rows were stored, but no lesson was due yet; train for longer, or learn more often"

    def train_iter(self) -> dict[str, float]:
        """One iteration of a sync robot: every learning agent unrolls with unchanged parameters, then the tasks train.

        Returns:
            The metrics of the training, by 'task/metric'.
        """
        if not self.sync:
            raise ValueError("train_iter: this robot is async, where an iteration is not defined; use run(stop) or mode='sync'")
        if not any(agent.learns for agent in self.agents):
            raise ValueError("train_iter: no helper of this robot learns; use collect() or evaluate()")
        if self._advance():
            self.iterations += 1
        self._save_as_asked()
        return {f"{name}/{key}": value for name, w in self.wrappers.items() for key, value in w.trainings.last_result.items()}

    def iterate(self, stop_steps: int) -> Iterator[int]:
        """Iterations until `env_steps` has reached `stop_steps`, so up to one iteration beyond; the agents stay where they are."""
        while self.env_steps < stop_steps and self._advance():
            self.iterations += 1
            self._save_as_asked()
            yield self.iterations
        self._save_as_asked()

    def epochs(
        self, n_epochs: int, steps_per_epoch: int, *, evaluate_episodes: int = 10, stop: Callable[[float], bool] | None = None
    ) -> Iterator[tuple[int, dict[str, float], dict[str, Any]]]:
        """`for epoch, stats, info in robot.epochs(...)`: train for `steps_per_epoch` environment steps, then evaluate.

        The robot is evaluated once before the first epoch. `stop(mean_return)` ends the iteration. Several robots may be
        advanced together with `zip`; nothing is shared between them.

        Yields:
            epoch from 1; stats: `metrics()` and 'test/return/mean', …; info: 'best_return', 'best_epoch', 'env_steps', 'seconds'.
        """
        if n_epochs < 1 or steps_per_epoch < 1:
            raise ValueError(f"epochs: n_epochs is {n_epochs} and steps_per_epoch {steps_per_epoch}; expected at least 1 each")
        begin = perf_counter()
        info: dict[str, Any] = {"best_return": self.evaluate(evaluate_episodes).mean_return, "best_epoch": 0}
        for epoch in range(1, n_epochs + 1):
            for _ in self.iterate(self.env_steps + steps_per_epoch):
                pass
            test = self.evaluate(evaluate_episodes)
            if test.mean_return > info["best_return"]:
                info |= {"best_return": test.mean_return, "best_epoch": epoch}
            info |= {"env_steps": self.env_steps, "seconds": perf_counter() - begin}
            stats = {**self.metrics(), "test/return/mean": test.mean_return, "test/return/std": test.std_return}
            yield epoch, stats, dict(info)
            if stop is not None and stop(test.mean_return):
                return

    def collect(self, *, n_step: int | None = None, n_episode: int | None = None) -> Episodes:
        """Acts and stores without learning: exactly one of `n_step` (all agents together) and `n_episode`.

        `n_step` goes on where the agents are, and leaves them in mid-episode; `n_episode` counts whole episodes from a reset.
        """
        if (n_step is None) == (n_episode is None):
            raise ValueError(f"collect: give exactly one of n_step and n_episode; got n_step={n_step}, n_episode={n_episode}")
        for name, value in (("n_step", n_step), ("n_episode", n_episode)):
            if value is not None and value < 1:
                raise ValueError(f"collect: {name} is {value}; expected at least 1")
        if any(agent.env is None for agent in self.agents):
            raise ValueError("collect: this robot has no environment")
        if n_episode is not None and self._started:
            self._cut()
        self._collect_only(True)
        try:
            return self._gather(n_step, n_episode)
        finally:
            self._collect_only(False)

    def _collect_only(self, yes: bool) -> None:
        """Whether helpers store without learning."""
        self._driver.collecting = yes
        for agent in self.agents:
            for helper in agent.helpers.values():
                helper.collecting = yes

    def update(self, task: str, batch_size: int = 0) -> dict[str, Any]:
        """One training request by hand, from what is stored: a custom loop is `collect()` and `update()` by turns.

        Args:
            task: Its name.
            batch_size: Random rows of an off-policy task; 0: all rows of the buffer. An on-policy task learns from all rows since
                the last time, and forgets them.

        Returns:
            The training return; {} where nothing is stored.

        Raises:
            NotEnoughRows: the buffer has fewer rows than `batch_size`, or no whole episode where those are learned from.
        """
        if task not in self.tasks:
            raise KeyError(unknown("task", task, self.tasks))
        if self._driver.hosted:
            raise ValueError(f"update: the rows are in worker processes (driver={self.driver_name!r}); use train_iter() or run(), or another driver")
        buffer = self.buffers.get(task)
        if buffer is None or not len(buffer):
            return {}
        helpers = [agent.helpers[task] for agent in self.agents]
        first, done = helpers[0], None
        if isinstance(first, OffPolicyHelper):
            rows, done = first.lesson(batch_size) if batch_size else (first.rows_at(buffer.sample_indices(0)), None)
        elif isinstance(first, OnPolicyHelper):
            if batch_size:
                raise ValueError(f"update: task {task!r} learns on-policy, from all rows since the last time; leave batch_size out")
            parts = [h.take() for h in helpers if isinstance(h, OnPolicyHelper) and h.ready()] or [first.take()]
            rows = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
        else:
            raise ValueError(f"update: task {task!r} has a {type(first).__name__}; expected OffPolicyHelper or OnPolicyHelper, or call helper.learn()")
        result = self.tasks[task].learn(rows)
        self.wrappers[task].trainings.last_result = {name: value for name, value in result.items() if not np.ndim(value)}
        if done is not None:
            done(result)
        return result

    def evaluate(self, episodes: int = 10, *, seed: int | None = None, env: EnvSource = None, n_agents: int | None = None) -> Episodes:
        """Episodes in test mode, greedy unless `eval_explore`, with agents, environments and queues of their own; nothing is stored or counted.

        Args:
            episodes: How many, spread evenly over the evaluating agents.
            seed: Seeds the environments; None: the robot's seed. Two calls with one seed see the same start states.
            env: Another environment than the training one. An environment itself (not a factory) is used by one agent, and not
                closed.
            n_agents: How many evaluate at once; None: as many as train, at most `episodes`.

        Raises:
            ValueError: there is no environment, or the robot was given one that cannot be made a second time.
        """
        if episodes < 1:
            raise ValueError(f"evaluate: episodes is {episodes}; expected at least 1")
        crew = self._evaluators(min(n_agents or len(self.agents), episodes), seed, env)
        try:
            return crew._gather(None, episodes)
        finally:
            crew.close()

    def _evaluators(self, n: int, seed: int | None, env: EnvSource = None) -> Crew:
        source = self._evaluation_source(env)
        borrowed = is_made(source)
        if borrowed:
            n = 1
        sequence = self._evaluation_seed if seed is None else np.random.SeedSequence(seed)
        # A copy: spawn() counts its calls, and every evaluation shall see the same seeds.
        sequence = np.random.SeedSequence(entropy=sequence.entropy, spawn_key=sequence.spawn_key)
        crew = Crew(self.tasks, source, self._make_agent, n, sequence, "cooperative", True, "test", "evaluator", self.transforms)
        crew._borrowed, crew.told = borrowed, self.told
        if self.eval_explore:
            for agent in crew.agents:
                for helper in agent.helpers.values():
                    helper.explore()
        return crew

    def _evaluation_source(self, env: EnvSource) -> Any:
        """Of what evaluations make their environments: a factory, or an environment of the caller that is theirs for the time."""
        if env is not None:
            return partial(make_one, env) if isinstance(env, str) else env
        source = self._env if self.eval_env is None else self.eval_env
        if source is None:
            raise ValueError("evaluate: this robot has no environment; give one as env=")
        # The training environment itself is in the middle of an episode.
        return _again(source) if is_made(source) else partial(gym.make, source, disable_env_checker=True) if isinstance(source, str) else source

    def watch(self, hook: Hook, *, seed: int | None = None, env: EnvSource = None, max_steps: int = 0) -> float:
        """One episode as `evaluate` plays them, before the eyes of a hook, with an agent and environment of its own; returns its return.

        Args:
            seed, env: As for `evaluate`.
            max_steps: Environment steps after which it stops; 0: at the end of the episode. The return is then what there was so far.
        """
        crew = self._evaluators(1, seed, env)
        if max_steps:
            crew._stop = StopAfterSteps(max_steps)
        try:
            (agent,) = crew.agents
            agent.quota_episodes = 1
            watch = _Watch(crew.agents)
            agent.env.observe([watch, hook])
            while crew._advance():
                pass
            finished = watch.returns[agent.index]
            return float(finished[0] if finished else agent.env.episode_return)
        finally:
            crew.close()

    def play(
        self, path: str | Path, *, seed: int | None = None, frames_per_second: int = 30, env: EnvSource = None, max_steps: int = 0,
    ) -> float:
        """One episode as `evaluate` plays them, as an animated GIF at `path`; returns its return.

        The factory is called as for `evaluate`, with `render_mode="rgb_array"` where it takes a render mode; an environment that was made
        for another mode is switched to this one.

        Args:
            seed, env, max_steps: As for `watch`. An environment itself must draw pictures already.

        Raises:
            ValueError: the environment does not draw itself, or there is none.
        """
        source = self._evaluation_source(env)
        film = Film()
        try:
            total = self.watch(film, seed=seed, env=source if is_made(source) else drawable(source), max_steps=max_steps)
        except AgentFailed:
            if film.fault is not None:
                raise film.fault from None
            raise
        write_gif(path, film.pictures, frames_per_second)
        return total

    # ----------------------------------------------------------------------------------------------------------- observing

    def _hooks(self) -> list[Hook]:
        return self._run_hooks if self._trace is None or self._driver.hosted else [*self._run_hooks, self._trace]

    def _tracing(self) -> bool:
        return self._trace is not None

    def _observe(self) -> None:
        for agent in self.agents:
            if agent.env is not None:
                agent.env.observe(self._hooks())

    def counters(self) -> dict[str, int]:
        """'env_steps' (the agents' actions), 'time_steps' (the environments' own steps, more where actions are repeated), 'episodes',
        'iterations', and per task 'updates/RL' (optimiser steps) and 'rows/RL' (rows learned from)."""
        time_steps = self._departed_time_steps + sum(agent.env.time_steps for agent in self.agents if agent.env is not None)
        out = {"env_steps": self.env_steps, "time_steps": time_steps, "episodes": self.episodes, "iterations": self.iterations}
        for name, task in self.tasks.items():
            out |= {f"updates/{name}": task.algorithm.updates, f"rows/{name}": task.rows_learned}
        return out

    def metrics(self) -> dict[str, float]:
        """Flat and ready to log: 'return/mean' over the last 100 episodes, 'RL/loss', 'RL/predict/mean_batch', 'RL/dropped' (rows
        that were too old for an on-policy task), …"""
        out: dict[str, float] = {}
        if self.recent_returns:
            returns = np.asarray(self.recent_returns, dtype=np.float64)
            out |= {"return/mean": float(returns.mean()), "return/max": float(returns.max()), "return/last": float(np.mean(returns[-1])),
                    "episode/length": float(np.mean(self.recent_lengths))}
        if self.bad_values:
            out["bad_values"] = float(self.bad_values)
        for name, wrapper in self.wrappers.items():
            out |= {f"{name}/{key}": float(value) for key, value in wrapper.trainings.last_result.items()}
            out |= {f"{name}/{key}": float(value) for key, value in wrapper.summary().items()}
        out |= {f"{name}/dropped": float(dropped) for name, dropped in self.rows.dropped().items()}
        return {**out, **{key: float(value) for key, value in self.counters().items()}}

    def remarks(self) -> list[str]:
        """What a user should know at the end of a run and may not have seen: a sentence each; usually none."""
        return self.rows.remarks()

    def trace_hash(self) -> str | None:
        """Digest of every agent's trace and of all weights; None without `trace=True`."""
        if self._trace is None:
            return None
        if self._driver.hosted:
            self._trace.digests = self._driver.trace()
        weights = "".join(Model.weights_hash(n) for t in self.tasks.values() for n in t.algorithm.networks().values())  # type: ignore[arg-type]
        import hashlib

        return hashlib.blake2b((self._trace.hexdigest() + weights).encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return f"Robot({len(self.agents)} agents, tasks {', '.join(self.tasks) or 'none'}, {self.driver_name}, {self.env_steps} steps)"

    # --------------------------------------------------------------------------------------------------------------- state

    def checkpoint_boundary(self) -> None:
        """Ends all open episodes, with seams in the buffers, so that nothing outside `state_dict` is alive.

        A Python frame cannot be saved. A run that is to be resumed exactly therefore restarts its episodes at every checkpoint,
        whether it is interrupted there or not; the environments are seeded anew from the agents' generators.
        """
        self._cut()

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as arrays and JSON values; call `checkpoint_boundary` first."""
        out: dict[str, Any] = {f"task.{name}": task.state_dict() for name, task in self.tasks.items()}
        out |= {f"transforms.{name}": chain.state_dict() for name, chain in self.transforms.items() if len(chain)}
        if self._driver.hosted:
            out["workers"] = {str(number): state for number, state in enumerate(self._driver.fetch())}
        else:
            out |= {f"buffer.{name}": buffer.state_dict() for name, buffer in self.buffers.items()}
            out["agents"] = {str(agent.index): agent.state_dict() for agent in self.agents}
        out["counters"] = {
            "env_steps": self.env_steps, "episodes": self.episodes, "iterations": self.iterations, "seed": self.seed,
            "returns": [np.asarray(r, np.float64).tolist() for r in self.recent_returns], "lengths": list(self.recent_lengths),
            "trace": {} if self._trace is None else {str(i): d.hex() for i, d in self._trace.digests.items()},
            "rows": self.rows.state_dict(), "departed_time_steps": self._departed_time_steps, "wrappers": {name: wrapper.state_dict() for name, wrapper in self.wrappers.items()},
        }
        return out

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()` into a robot that was built the same way.

        Raises:
            ValueError: tasks, agents, buffers or shapes differ; the message names the first difference.
        """
        expected = {f"task.{n}" for n in self.tasks} | {f"buffer.{n}" for n in self.buffers} | {"workers" if self._driver.hosted else "agents", "counters"}
        expected |= {f"transforms.{n}" for n, chain in self.transforms.items() if len(chain)}
        if state.keys() != expected:
            raise ValueError(f"Robot: the saved state has {sorted(state)}; expected {sorted(expected)}: build the robot as it was saved")
        there = [index for part in state["workers"].values() for index in part["agents"]] if self._driver.hosted else list(state["agents"])
        if set(there) != {str(agent.index) for agent in self.agents}:
            raise ValueError(f"Robot: the saved state has {len(there)} agents, this robot {len(self.agents)}; set n_agents "
                             f"(there: {', '.join(there)}; here: {', '.join(str(agent.index) for agent in self.agents)})")
        if self._driver.hosted and len(state["workers"]) != len(self._driver.workers):
            raise ValueError(f"Robot: the saved state has {len(state['workers'])} workers, this robot {len(self._driver.workers)}; set Processes(workers="
                             f"{len(state['workers'])})")
        self._halt()
        for name, task in self.tasks.items():
            task.load_state_dict(state[f"task.{name}"])
        for name, buffer in self.buffers.items():
            buffer.load_state_dict(state[f"buffer.{name}"])
        for name, chain in self.transforms.items():
            if len(chain):
                chain.load_state_dict(state[f"transforms.{name}"])
        if self._driver.hosted:
            learns = {name: task.learns for name, task in self.tasks.items()}
            self._driver.load([{**state["workers"][str(worker.number)], "learns": learns} for worker in self._driver.workers])
        else:
            for agent in self.agents:
                agent.load_state_dict(state["agents"][str(agent.index)])
                agent.fresh = True
        counters = state["counters"]
        self.env_steps, self.episodes, self.iterations = counters["env_steps"], counters["episodes"], counters["iterations"]
        self.recent_returns = deque((np.asarray(r) if isinstance(r, list) else r for r in counters["returns"]), maxlen=100)
        self.recent_lengths = deque(counters["lengths"], maxlen=100)
        self.rows.load_state_dict(counters.get("rows", {}))
        self._departed_time_steps = counters.get("departed_time_steps", 0)
        for name, counted in counters.get("wrappers", {}).items():
            self.wrappers[name].load_state_dict(counted)
        if self._trace is not None:
            self._trace.digests = {int(i): bytes.fromhex(d) for i, d in counters["trace"].items()}

    def save(self, path: str | Path) -> None:
        """Writes a checkpoint directory, atomically, without code in it. Episodes restart, see `checkpoint_boundary`."""
        self.checkpoint_boundary()
        write_archive(Path(path), self.state_dict())

    def request_save(self, path: str | Path) -> None:
        """`save` at the end of the running iteration. For hooks and agents, which cannot save at once: they would wait for themselves.

        Where the disk refuses, there is a warning and the run goes on.
        """
        self._saves.append(Path(path))

    def _save_as_asked(self) -> None:
        while self._saves:
            path = self._saves.pop(0)
            try:
                self.save(path)
            except OSError as error:
                warnings.warn(f"request_save: could not save to {path}: {error}", RuntimeWarning, stacklevel=3)

    def load(self, path: str | Path, *, partial: bool = False) -> list[str]:
        """Takes over what `save` wrote.

        Args:
            partial: Only those tensors of the networks that fit, for a model or environment that has changed since; optimisers,
                buffers and counters stay as they are.

        Returns:
            With `partial` what was left out, 'task network tensor' each; else nothing.
        """
        state = read_archive(Path(path))[0]
        if not partial:
            self.load_state_dict(state)
            return []
        known = {name: state[f"task.{name}"] for name in self.tasks if f"task.{name}" in state}
        return [f"{name} {left}" for name, saved in known.items() for left in self.tasks[name].load_fitting(saved)]

    def __enter__(self) -> Robot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _again(env: Any) -> Callable[..., Any]:
    """A factory of environments like this one, arguments and registered wrappers included; it takes a render mode."""
    spec = None
    if isinstance(env, gym.Env):
        with suppress(gym.error.Error, ValueError):
            spec = copy.deepcopy(env.spec)
    if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        why = "is not registered with gymnasium" if spec is None else "has a wrapper that does not say how it was made"
        raise ValueError(
            f"the robot's environment {why}, so it cannot be made a second time; give the robot a factory "
            "(`lambda: MyEnv()`), or this call an environment of its own (env=)"
        )
    spec.disable_env_checker = True
    return partial(gym.make, spec)


def run_policy(
    policy: Callable[[Any], Any], env: EnvSource, stop: StopCondition | None = None, hooks: Hook | Iterable[Hook] = (), *, seed: int = 0,
) -> None:
    """Runs a plain function observation → action, without tasks or learning: `run_policy(lambda obs: 0, "CartPole-v1")`.

    Args:
        stop: None: after one episode.
        env: As for `Robot`; spaces are not needed. An environment itself is not closed.
    """

    class PolicyAgent(Agent):
        def run_one_episode(self) -> None:
            obs, _ = self.env.reset()
            done = False
            while not done:
                obs, _, terminated, truncated, _ = self.env.step(policy(obs))
                done = terminated or truncated

    with Robot(env, tasks={}, agent=PolicyAgent, seed=seed) as robot:
        robot._borrowed = is_made(env)
        robot.run(StopAfterEpisodes(1) if stop is None else stop, hooks)
