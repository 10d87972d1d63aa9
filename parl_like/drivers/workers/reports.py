"""Reports: what workers say has happened, where the robot counts it and hooks hear of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.drivers.messages import ERRORS, Message, RemoteError, text_of
from parl_like.drivers.workers.handle import WorkerHandle
from parl_like.drivers.workers.worker_agents import COUNTS, ROUNDS
from parl_like.environment.hooks import Hook, overridden
from parl_like.environment.stop_conditions import StopWhenAgent
from parl_like.run.agent_pool import AgentPool
from parl_like.tasks.queues import RequestQueue
from parl_like.values.errors import AgentFailed
from parl_like.values.spec import Array

Ended: TypeAlias = tuple[WorkerHandle, tuple[int, int], int, int, object, int, Any]
"""Worker; the number of its message, and its turn in that; agent, environment, return, length and parts of the rewards."""


def _episodes(reported: Iterable[tuple[WorkerHandle, Mapping[str, Array]]]) -> Iterator[Ended]:
    messages: Counter[WorkerHandle] = Counter()
    for worker, columns in reported:
        messages[worker] += 1
        parts, rounds = iter(columns.get("parts", ())), columns.get("round")
        lists = (columns[name].tolist() for name in ("agent", "env", "return", "length") if name in columns)
        for i, (index, env, episode_return, length) in enumerate(zip(*lists, strict=True)):
            value = np.array(episode_return) if isinstance(episode_return, list) else episode_return
            turn = messages[worker], 0 if rounds is None else int(rounds[i])
            yield worker, turn, index, env, value, length, next(parts, ()) if index < 0 else ()


class Reports:
    """Counts steps and episodes of workers in the robot's pool, and calls its hooks and stop conditions.

    Args:
        pool: Called for the robot's pool; while the agents wait, that is a weak proxy of it.
        failed: Called with an agent and what a hook or a stop condition raised.

    Attributes:
        calling: A hook or a stop condition is being called.
        agent_restarts: How often an agent began anew in its worker.
    """

    def __init__(self, pool: Callable[[], AgentPool], failed: Callable[[Any, BaseException], None]) -> None:
        self._pool, self._failed = pool, failed
        self.calling = False
        self.agent_restarts = 0
        self._post_episode: Sequence[Callable[..., None]] = ()  # hooks of ended episodes, and of many steps at once
        self._post_steps: Sequence[Hook] = ()
        self._watchers: Sequence[StopWhenAgent] = ()
        self._hooks_called = False

    def take_hooks_called(self) -> bool:
        """Return whether a hook has been called that may have changed parameters, since this was asked last."""
        called, self._hooks_called = self._hooks_called, False
        return called

    def observe(self, hooks: list[Any]) -> None:
        """Take the robot's hooks, from now on.

        Raises:
            ValueError: one listens to what happens in the workers.
        """
        pool = self._pool()
        self._watchers = [hook for hook in hooks if isinstance(hook, StopWhenAgent)]
        # The workers have their own of these.
        hooks = [hook for hook in hooks if hook is not pool.trace and not isinstance(hook, StopWhenAgent)]
        for hook in hooks:
            heard = [stage for stage in ("pre_episode", "pre_act", "post_act") if overridden([hook], stage)]
            if heard and not getattr(hook, "counts_only", False):
                raise ValueError(f"{type(hook).__name__} listens to {', '.join(heard)}, which happen in worker processes; under "
                                 f"driver={pool.driver_name!r} hooks hear "
                                 "of the experiment and of ended episodes (post_episode). Put the rest into the agent, or use "
                                 "another driver")
        self._post_steps = [hook for hook in hooks if getattr(hook, "counts_only", False)]
        self._post_episode = overridden(hooks, "post_episode")

    def free_rounds(self, lanes: int, under_way: int) -> int:
        """Return how many turns `lanes` environments may take before hooks and the stop condition have to hear of it, where so
        many steps are under way already."""
        free = self._pool().free_steps
        if self._post_steps or self._post_episode:
            return 1
        return ROUNDS if free is None else int(max(1, min(ROUNDS, (free() - under_way) // max(lanes, 1))))

    def count(self, worker: WorkerHandle, queues: Sequence[RequestQueue], notes: Mapping[str, Any]) -> None:
        """Count what the agents of a worker have done in a turn, and what its queues have."""
        pool, agent = self._pool(), worker.agents[0]
        for queue in queues:
            counters = queue.counters
            for name, n in zip(COUNTS, notes.get(f"{queue.kind} {queue.task.name}", ()), strict=False):
                setattr(counters, name, getattr(counters, name) + n)
            if queue.kind == "learn" and (rows := notes.get(f"rows {queue.task.name}")):
                pool.statistics.count_rows(queue.task.name, *rows)
        pool.take_over(notes)
        for number in notes.get("watched", ()):
            if number < len(self._watchers):  # else of a run before
                self._watchers[number].said = True
        if "steps" in notes:
            if agent.env is not None:
                agent.env.time_steps += notes["time"]
            pool.statistics.env_steps += notes["steps"]
            with self._called(agent):
                for hook in self._post_steps:
                    calls = getattr(hook, "calls", None)  # of the user's function; a hook of the user's own counts none
                    hook.post_act(agent)
                    self._hooks_called |= calls is None or getattr(hook, "calls", None) != calls
                if pool.should_stop is not None and pool.should_stop(pool.robot):
                    pool.request_stop()
        if "stop" in notes:
            pool.request_stop()

    @contextmanager
    def _called(self, agent: Agent) -> Iterator[None]:
        """Around calls of hooks and stop conditions, whose errors are as if the agent had raised them."""
        self.calling = True
        try:
            yield
        except BaseException as error:  # noqa: BLE001  as in an agent
            self._failed(agent, error)
        finally:
            self.calling = False

    def count_episodes(self, reported: Iterable[tuple[WorkerHandle, Mapping[str, Array]]]) -> None:
        """Count episodes that have ended, and tell hooks of them, turn by turn as the robot would have heard of each.

        Args:
            reported: Workers, and columns `agent` (−1: to be counted only), `env`, `return`, `length`, `parts` of the rewards of
                those that are counted, and `round`, where the worker has taken several turns.
        """
        pool = self._pool()
        for worker, _, index, env, value, length, parts in sorted(_episodes(reported), key=itemgetter(1)):
            if index < 0:
                pool.statistics.count_episode(env, value, length, parts)
                continue
            agent = worker.agents[index - worker.agents[0].index]
            agent.env.episode_return, agent.env.episode_length, agent.env.env_index = value, length, env
            with self._called(agent):
                for call in self._post_episode:
                    self._hooks_called = True
                    call(agent, False)

    def begun_anew(self, worker: WorkerHandle, message: Message) -> tuple[str, str] | None:
        """Return why an agent begins anew, and a text with its traceback; None: it does not, see `error_of`."""
        agent, name, text, said = self._failure(worker, message)
        if not message.notes["again"]:
            return None
        self.agent_restarts += 1
        return f"{name}: {said}", f"{agent} begins anew after {name}: {text}\n{text_of(message, 'trace')}"

    def error_of(self, worker: WorkerHandle, message: Message) -> tuple[Agent, BaseException]:
        """Return which agent has raised, the first where building them failed, and the error to raise here."""
        agent, name, text, said = self._failure(worker, message)
        if name in ERRORS and name != "ValueError":
            error: BaseException = ERRORS[name](text)
        else:
            what = f"{agent}: run_one_episode" if message.notes["agent"] >= 0 else f"{worker}: building its agents"
            error = AgentFailed(f"{what} raised {name}: {said}")
        error.__cause__ = RemoteError(f"in {worker}:\n{text_of(message, 'trace')}")
        return agent, error

    @staticmethod
    def _failure(worker: WorkerHandle, message: Message) -> tuple[Agent, str, str, str]:
        """Return agent, kind of the error, its text, and that without the agent's name."""
        index, text = message.notes["agent"], text_of(message)
        agent = worker.agents[index - worker.agents[0].index] if index >= 0 else worker.agents[0]
        return agent, message.notes["type"], text, text.removeprefix(f"{agent}: ")
