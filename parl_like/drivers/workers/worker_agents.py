"""The agents of one worker: a pool with the cooperative driver, whose batches are sent to the robot instead of being served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from importlib import import_module
from time import perf_counter, sleep
from typing import Any, TypeAlias

import numpy as np
from greenlet import getcurrent

from parl_like.agents.agent import Agent
from parl_like.drivers.cooperative import CooperativeDriver
from parl_like.drivers.messages import ERRORS, Kind, Message, text_of
from parl_like.drivers.workers.proxies import AlgorithmProxy, TaskProxy
from parl_like.environment.factory import make_one
from parl_like.environment.hooks import Hook, TraceHash
from parl_like.interfaces import AgentPort, RunPort
from parl_like.learning.algorithm import Algorithm
from parl_like.process.child import RestartBudget
from parl_like.run.agent_maker import AgentMaker
from parl_like.run.agent_pool import AgentPool
from parl_like.run.driver import CALLED_BY_AGENT
from parl_like.run.helper_maker import HelperMaker
from parl_like.run.pool_options import PoolOptions
from parl_like.run.statistics import Counted, Statistics
from parl_like.run.unread import Reads
from parl_like.tasks.prediction_queue import PredictionQueue
from parl_like.tasks.queues import RequestBatch, RequestQueue
from parl_like.tasks.task import ComputationTask
from parl_like.tasks.tickets import Counters, Ticket
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.agent_orders import AgentSignal
from parl_like.values.errors import Interrupted, Stopped, TaskFailed

BACK_OFF, PERIOD = 0.1, 60.0
"""Seconds before an agent's second new environment, doubled for each further one, at most 10; and after how many they are
forgotten."""

COUNTS = tuple(field.name for field in fields(Counters))
"""In the order in which a worker tells what its queues have counted."""

MANY_ENVS = 1 << 20
"""More environments than an agent drives."""


@dataclass
class Recipe:
    """Everything that a worker's process needs to know.

    Attributes:
        name: Of the worker, and no other of this robot.
        agents: Index and seed (entropy, spawn key) of each of its agents.
        seed: Of the worker's own generators, such as its buffers'.
        n_agents: Of all workers. n_envs: Of the agent that the robot made as an example.
        shared: Folder of the blocks that both processes map; empty: all rows travel in messages.
        watching: Functions of `StopWhenAgent`, which are asked of each agent after each act.
        reads: Settings that nothing has read.
    """

    name: str
    tasks: dict[str, TaskProxy]
    env: Any
    agent: Callable[[], Agent]
    label: str
    mode: Any
    sync: bool
    agents: list[tuple[int, Any, tuple[int, ...]]]
    seed: tuple[Any, tuple[int, ...]]
    trace: bool
    agent_restarts: int
    n_agents: int
    n_envs: int
    watching: list[Callable[[Agent], bool]] = field(default_factory=list)
    reads: Reads = field(default_factory=Reads)
    shared: str = ""


Request: TypeAlias = tuple[int, RequestQueue, RequestBatch]
"""Its number, and whose batch it is."""

ROUNDS = 16
"""Predictions of replicas after which a worker lets the robot have its turn. A number, not a time, so that two runs are the
same."""

HALVES_S = 0.001
"""Seconds for which the agents of a worker act before they ask again, from which on they ask in two halves, by turns."""


class RemoteDriver(CooperativeDriver):
    """Agents as greenlets, whose batches are served elsewhere; predictions of replicas here.

    Args:
        failed: See `CooperativeDriver`.
        again: Called with an agent and what its code raised; whether it begins anew.
    """

    def __init__(self, failed: Callable[[Agent, BaseException], None], again: Callable[[Agent, Exception], bool]) -> None:
        super().__init__(False, failed)
        self._again = again
        self.sent: dict[int, tuple[Any, Any]] = {}  # request → queue, batch
        self._requests = 0
        self._agent_s = 0.0  # from an agent's reply until it asks again, a running mean

    def _main(self, agent: Agent) -> None:
        try:
            while True:
                try:
                    agent.run()
                    return
                except (Stopped, TaskFailed):
                    raise
                except Exception as error:  # noqa: BLE001  of the agent or its environment, whatever it is
                    if not self._again(agent, error):
                        raise
        except BaseException as error:  # noqa: BLE001  whatever ends an agent is reported
            self._failed(agent, error)
        finally:
            self._leave(agent)

    def run_in_halves(self, send: Callable[[Request], object]) -> None:
        """Run agents as `run_ready` does. As soon as half of them wait for a prediction of the robot, send their rows: it
        predicts while the other half acts (async).

        Not where all agents together act for less than `HALVES_S`: there two messages cost more than they save.
        """
        ready, agents = self.ready, self.agents
        begin, n = perf_counter(), len(ready)
        if self._agent_s * len(agents) < HALVES_S:
            self.run_ready()
        else:
            self._hub = getcurrent()
            half = (sum(agent.n_envs for agent in agents) + 1) // 2
            asked = [queue for queue in self.predictions if queue.task.serve != "replica"]
            while ready and not self.stopping:
                ready.popleft().switch()
                for queue in asked:
                    if queue.rows >= half and ready:
                        for request in self._take(queue):
                            send(request)
        if n:
            each = (perf_counter() - begin) / n
            self._agent_s = 0.9 * self._agent_s + 0.1 * each if self._agent_s else each

    def batches(self) -> list[Request]:
        """Take what waits for the robot, in the order of tasks."""
        return [request for queue in self.queues if queue.kind == "learn" or queue.task.serve != "replica"
                for request in self._take(queue)]

    def _take(self, queue: RequestQueue) -> Iterator[Request]:
        while (batch := queue.take()) is not None:
            self._requests += 1
            self.sent[self._requests] = queue, batch
            yield self._requests, queue, batch

    def pace(self) -> list[int]:
        """`Agent.progress` of those that learn and do not wait for updates, as of one agent; empty where there are none."""
        found = [progress for agent in self.rounds.learners if (progress := agent.progress()) is not None]
        return [min(steps for steps, _ in found), int(any(due for _, due in found))] if found else []

    def waiting_here(self) -> list[PredictionQueue]:
        """Queues of replicas with requests."""
        return [queue for queue in self.predictions if queue.rows and queue.task.serve == "replica"]

    def rests(self) -> bool:
        """Return whether an agent lets the robot have its turn."""
        return bool(self._resting)

    def answers_come(self) -> bool:
        """Return whether an agent waits for an update that was sent and itself waits for nobody (async, and no `min_rows`)."""
        return any(ticket.waiter is not None for queue, batch in self.sent.values()
                   if queue.kind == "learn" and queue.rule.min_rows is None for ticket in batch.tickets)

    def answer(self, message: Message) -> None:
        """Takes over a reply. One that nobody waits for, of before a stop, is dropped."""
        queue, batch = self.sent.pop(message.request, (None, None))
        if queue is None:
            return
        tickets: list[Ticket] = batch.tickets
        if message.kind is Kind.FAILED:
            if queue.kind == "predict" and queue.task.bisect and len(tickets) > 1:
                for half in queue.halves(batch):  # asked again, so that in the end only who is to blame hears
                    queue.batches.append(half)
                    queue.rows += half.rows
                queue.recycle(batch)
                return
            kind = ERRORS.get(message.notes["type"], TaskFailed)
            for ticket in tickets:
                ticket.error = kind(text_of(message))
        else:
            queue.task.learns = message.notes["learns"]
            if queue.kind == "predict":
                queue.answer(tickets, message.arrays, message.notes["version"])
            else:
                result = {name: value if value.ndim else value[()] for name, value in message.arrays.items()}
                for ticket in tickets:
                    ticket.out, ticket.version = result, message.notes["version"]
        queue.counters.late += queue.count_late(tickets)
        queue.recycle(batch)
        self.wake(tickets)

    def halt(self, agents: Sequence[Agent], signal: AgentSignal, patience: float | None = None) -> list[Agent]:
        if signal == AgentSignal.STOP:
            for queue, batch in self.sent.values():
                queue.recycle(batch)  # the robot has no eye on it any more
                for ticket in batch.tickets:
                    ticket.error = Stopped(f"{ticket.agent}, task {queue.task.name!r}: the robot stopped")
                self.wake(batch.tickets)
            self.sent.clear()
            return super().halt(agents, signal, patience)
        for agent in agents:
            agent.tell(signal)
        self.resume(list(self.parked))
        return []


class EpisodeReport(Hook):
    """Tells the robot's hooks of episodes that have ended: agent, environment, return, length."""

    def __init__(self, episodes: list[tuple[int, int, object, int]]) -> None:
        self.episodes = episodes

    def post_episode(self, agent: AgentPort, interrupted: bool) -> None:
        if not interrupted:
            self.episodes.append((agent.index, agent.env.env_index, agent.env.episode_return, agent.env.episode_length))
            if agent.quota.episodes is not None and agent.quota.episodes > 0:
                agent.quota.episodes -= 1


class WatcherReport(Hook):
    """Asks the functions of the run's stop condition.

    Attributes:
        said: Numbers of those that said yes since the last turn.
    """

    def __init__(self, functions: Sequence[Callable[[Agent], bool]]) -> None:
        self.said: set[int] = set()
        self._functions = functions

    def post_act(self, agent: Agent) -> None:
        for number, function in enumerate(self._functions):
            if function(agent):
                self.said.add(number)


class Turns(Hook):
    """Lets the robot have its turn where agents act on and on, and ask for nothing.

    Attributes:
        left: Steps of this worker's agents before they do so.
    """

    def __init__(self, n_agents: int) -> None:
        self._steps = 4 * ROUNDS * n_agents  # those that ask have made fewer by then
        self.begin()

    def begin(self) -> None:
        """The robot has just had a turn."""
        self.left = self._steps

    def pre_act(self, agent: Agent, act: object) -> None:
        self.left -= 1
        if self.left < 0:
            agent.agent_pool.driver.rest(agent)
            if agent.signal is not None:
                agent.obey()


class WorkerStatistics(Statistics):
    """Counters that are sent to the robot.

    Attributes:
        ended: Episodes since the last turn, as `EpisodeReport` has them; those that the robot is to count have −1 for the agent,
            and the number of the environment among all.
        parts: Of the rewards of the latter, where there are any.
    """

    def __init__(self) -> None:
        super().__init__(warns=False)
        self.ended: list[tuple[int, int, object, int]] = []
        self.parts: list[object] = []

    def count_episode(self, env: int, episode_return: object, length: int, parts: Any = ()) -> None:
        self.ended.append((-1, env, episode_return, length))
        if len(parts):
            self.parts.append(parts)


class RobotProxy(Counted, RunPort):
    """The robot, as agents in a worker know it: the counters, tasks and agents are those of this worker.

    Any other attribute of a robot raises RuntimeError, for the robot is in another process.
    """

    SHARED = ("sync", "trace", "stop_requested", "buffers", "transforms", "n_agents")
    """Attributes that a worker's own pool has, too."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool, self.statistics = pool, pool.statistics

    @property
    def mode(self) -> str:
        return self._pool.mode

    @property
    def driver_name(self) -> str:
        return self._pool.driver_name

    @property
    def tasks(self) -> dict[str, ComputationTask]:
        return self._pool.tasks

    @property
    def wrappers(self) -> dict[str, ComputationWrapper]:
        return self._pool.wrappers

    @property
    def agents(self) -> list[Agent]:
        return self._pool.agents

    @property
    def closed(self) -> bool:
        return False  # while its agents act

    def request_stop(self) -> None:
        self._pool.request_stop()

    def __getattr__(self, name: str) -> Any:
        if name in self.SHARED:
            return getattr(self._pool, name)
        if hasattr(import_module("parl_like.run.robot").Robot, name):
            raise RuntimeError(CALLED_BY_AGENT)
        raise AttributeError(f"{name}: the robot is in another process, and its agents' own attributes of it are those that they "
                             "set in their worker")


class WorkerAgentMaker(AgentMaker):
    """Makes the agents of a worker as its recipe says."""

    def __init__(self, pool: WorkerPool, helpers: HelperMaker, agents: list[Agent], recipe: Recipe) -> None:
        super().__init__(pool, helpers, agents)
        self._recipe = recipe

    def new_seeds(self, n: int) -> list[tuple[int, np.random.SeedSequence]]:
        return [(index, np.random.SeedSequence(entropy, spawn_key=key)) for index, entropy, key in self._recipe.agents]

    def first_env(self, agent: Agent) -> int:
        """Agents of other workers are not known here: each has room for as many environments as the example of an agent, and
        those with more have numbers behind all of these."""
        default = self._recipe.n_envs
        if agent.n_envs <= default:
            return agent.index * default
        return self._recipe.n_agents * default + agent.index * MANY_ENVS


class WorkerPool(AgentPool):
    """The agents of one worker, as a pool of their own.

    Args:
        report: Called with an agent's index, what its code raised, and whether it begins anew.
    """

    remote = True
    driver: RemoteDriver
    statistics: WorkerStatistics

    def __init__(self, recipe: Recipe, report: Callable[[int, BaseException, bool], None]) -> None:
        self.recipe, self._report = recipe, report
        entropy, key = recipe.seed
        seed = np.random.SeedSequence(entropy, spawn_key=key)
        self.wants_stop = False
        self.said: list[str] = []
        self._budgets = {index: RestartBudget(recipe.agent_restarts, PERIOD, BACK_OFF, 10.0) for index, _, _ in recipe.agents}
        tasks = {proxy.name: proxy.make(child) for proxy,
                 child in zip(recipe.tasks.values(), seed.spawn(len(recipe.tasks)), strict=True)}
        options = PoolOptions(tasks, recipe.env, recipe.agent, seed, "processes", recipe.sync, recipe.mode, recipe.label,
                              trace=TraceHash() if recipe.trace else None)
        super().__init__(options, lambda: self._proxy, WorkerStatistics())
        self.reads = recipe.reads
        self.reads.watch_proxy(Algorithm, AlgorithmProxy)
        self._proxy = RobotProxy(self)
        self.fill(len(recipe.agents))
        self.watching = WatcherReport(recipe.watching)
        self.turns = Turns(len(recipe.agents))
        self.hooks.begin([self.turns, EpisodeReport(self.statistics.ended), *([self.watching] if recipe.watching else [])])

    def _make_driver(self) -> Any:
        return RemoteDriver(self.agent_failed, self._again)

    def _make_maker(self) -> AgentMaker:
        return WorkerAgentMaker(self, self.helpers, self.agents, self.recipe)

    def _again(self, agent: Agent, error: Exception) -> bool:
        """Return whether an agent that raised begins anew, with a new environment; its open episode was cut off when it raised.

        Waits before it builds, longer each time, so that an environment which cannot be built does not take all the time there
        is.
        """
        pause = None if agent.signal is not None else self._budgets[agent.index].spend()
        if pause is None:
            return False
        self._report(agent.index, error, True)
        sleep(pause)
        try:
            if agent.env is not None:
                with suppress(Exception):  # it is broken
                    agent.env.close()
                time_steps = agent.env.time_steps
                agent.join(lambda: make_one(self.options.env))
                agent.env.time_steps = time_steps
                self.hooks.tell_agents()
        except Exception as second:  # noqa: BLE001  building it failed, too
            return self._again(agent, second)
        agent.needs_seed = True
        return True

    @property
    def n_agents(self) -> int:
        return self.recipe.n_agents

    def tell(self, text: str) -> None:
        self.said.append(text)  # the robot's process says it

    def request_stop(self) -> None:
        self.wants_stop = True
        for agent in self.agents:
            agent.tell(AgentSignal.PARK)

    def agent_failed(self, agent: Agent, error: BaseException) -> None:
        if not isinstance(error, (Stopped, Interrupted)):
            self._report(agent.index, error, False)
