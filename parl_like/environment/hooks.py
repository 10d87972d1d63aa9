"""Six stages around experiment, episode and act, and the hooks that observe them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache
from hashlib import blake2b
from time import perf_counter
from typing import Any

import numpy as np

from parl_like.interfaces import AgentPort, RunPort, UsersAgent, UsersRobot
from parl_like.values import plain
from parl_like.values.errors import nearest
from parl_like.values.plain import State
from parl_like.values.spec import Info, leaves


class Stage(Enum):
    """When a hook is called. The value is the name of the hook's method."""

    PRE_EXPERIMENT = "pre_experiment"
    PRE_EPISODE = "pre_episode"
    PRE_ACT = "pre_act"
    POST_ACT = "post_act"
    POST_EPISODE = "post_episode"
    POST_EXPERIMENT = "post_experiment"


class Hook:
    """Observes a run. Override what you need; a method that is not overridden costs nothing.

    Order: PRE_EXPERIMENT; per episode PRE_EPISODE (after the reset); per action PRE_ACT, the environment's step, POST_ACT; then
    POST_EPISODE (after the agent's code is done with the episode), `interrupted` where a stop, an error or the agent's own code
    cut the episode; POST_EXPERIMENT, always, also after an error. At every stage the agent's helpers come before the hooks (a
    helper hears of a stage for which it has a method), and hooks in the order in which they were given. Hooks never move data.
    Hooks are called one at a time, also where agents are threads; so there they cannot ask a task.

    Of a `VectorAgent`, PRE_ACT and POST_ACT are those of all its environments together; PRE_EPISODE and POST_EPISODE come for
    each environment, whose number is `agent.env.env_index`.
    """

    def pre_experiment(self, robot: UsersRobot) -> None:
        """A run of `robot` begins."""

    def pre_episode(self, agent: UsersAgent) -> None:
        """The environment of `agent` was reset; `agent.env.last[0]` is the observation."""

    def pre_act(self, agent: UsersAgent, act: Any) -> None:
        """`act` is about to be taken."""

    def post_act(self, agent: UsersAgent) -> None:
        """`agent.env.last_step` is (observation, action, reward, terminated, truncated, info) of the step."""

    def post_episode(self, agent: UsersAgent, interrupted: bool) -> None:
        """`agent.env.episode_return` and `.episode_length` are the episode's; `interrupted`: it was cut before its end."""

    def post_experiment(self, robot: UsersRobot) -> None:
        """The run has ended, perhaps with an error."""

    def metrics(self) -> dict[str, float]:
        """Return numbers for `Robot.metrics`, and so for `metrics.csv`, by name; where the robot has one of that name, its own
        counts. Asked between iterations."""
        return {}

    def state_dict(self) -> State:
        """Return what a checkpoint keeps of it, where it belongs to a robot."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Take over what `state_dict` gave."""

    def __add__(self, other: Hook | list[Hook]) -> list[Hook]:
        """`a + b + c` is the list of the three, in this order."""
        return [self, other] if isinstance(other, Hook) else [self, *other]

    def __radd__(self, other: list[Hook]) -> list[Hook]:
        return [*other, self]


class StageHook(Hook):
    """Calls `function(robot_or_agent, *rest)` at one stage: `StageHook(Stage.POST_EPISODE, print)`."""

    def __init__(self, stage: Stage, function: Callable[..., None]) -> None:
        setattr(self, stage.value, function)


class EpisodeStats(Hook):
    """Return and length of every finished episode, in the order of their ends, as lists."""

    def __init__(self) -> None:
        self.returns: list[object] = []
        self.lengths: list[int] = []

    def post_episode(self, agent: AgentPort, interrupted: bool) -> None:
        if not interrupted:
            self.returns.append(agent.env.episode_return)
            self.lengths.append(agent.env.episode_length)


class EpisodeMetrics(Hook):
    """Metrics of the newest episodes, over keys of their last info and by environment: `info/KEY`, their mean over all
    environments, and `return/env_N` and `info/KEY/env_N`, those of the environment N, counted through all agents.

    Args:
        info: Keys of `info`, whose values are numbers (True is 1); an episode whose last info lacks one does not count for it.
        by_env: Whether there are numbers for each environment.
        keep: Episodes that a mean is over, at most; of each environment so many, too.

    Raises:
        TypeError: info is a text. ValueError: keep is below 1; or a run: `info` is given and the environments are in worker
            processes, or a value is no number.
    """

    def __init__(self, info: Sequence[str] = (), by_env: bool = False, keep: int = 100) -> None:
        if isinstance(info, str):
            raise TypeError(f"EpisodeMetrics: info is {info!r}; expected a list of keys, such as [{info!r}]")
        if keep < 1:
            raise ValueError(f"EpisodeMetrics: keep is {keep}; expected at least 1")
        self.info, self.by_env, self.keep = tuple(info), by_env, keep
        self._seen: dict[str, deque[float]] = {}

    def pre_experiment(self, robot: UsersRobot) -> None:
        if self.info and robot.driver_name in ("processes", "ray"):
            raise ValueError(f"EpisodeMetrics: info is {list(self.info)}, and infos stay in the worker processes of driver="
                             f"{robot.driver_name!r}; leave it out there, or put the number into the reward or the observation")

    def post_episode(self, agent: AgentPort, interrupted: bool) -> None:
        if interrupted:
            return
        numbers = {}
        if self.info:
            last = final_info(agent.env)
            numbers = {f"info/{key}": last[key] for key in self.info if key in last}
        own = f"/env_{agent.first_env + agent.env.env_index}" if self.by_env else ""
        for name, value in numbers.items():
            self._add([name, f"{name}{own}"] if own else [name], value)
        if own:
            self._add([f"return{own}"], np.mean(agent.env.episode_return))

    def _add(self, names: Sequence[str], value: Any) -> None:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"EpisodeMetrics: {names[0]} is {value!r:.60}; expected a number") from None
        for name in names:
            self._seen.setdefault(name, deque(maxlen=self.keep)).append(number)

    def metrics(self) -> dict[str, float]:
        return {name: float(np.mean(list(numbers))) for name, numbers in sorted(self._seen.items())}

    def state_dict(self) -> State:
        return {"seen": {name: list(numbers) for name, numbers in self._seen.items()}}

    def load_state_dict(self, state: State) -> None:
        seen = {name: map(plain.number, plain.listed(numbers)) for name, numbers in plain.entries(state["seen"]).items()}
        self._seen = {name: deque(numbers, maxlen=self.keep) for name, numbers in seen.items()}


class RewardsPerEpisode(Hook):
    """The rewards of every episode, in lists by environment; the running episode is the last list of its environment.

    Attributes:
        rewards: (agent's index, index of the environment in the agent, 0 for a single one) → a list of rewards per episode.
    """

    def __init__(self) -> None:
        self.rewards: dict[tuple[int, int], list[list[float]]] = {}

    def pre_episode(self, agent: AgentPort) -> None:
        self.rewards.setdefault((agent.index, agent.env.env_index), []).append([])

    def post_act(self, agent: AgentPort) -> None:
        rew = agent.env.last_step[2]
        rows = [(i, float(rew[i])) for i in np.flatnonzero(agent.env.valid).tolist()] if agent.vector else [(0, rew)]
        for i, value in rows:
            self.rewards[agent.index, i][-1].append(value)


class TimePerStep(Hook):
    """Seconds between PRE_ACT and POST_ACT, the environment's own time, of the last `keep` steps."""

    def __init__(self, keep: int = 1000) -> None:
        self.seconds: deque[float] = deque(maxlen=keep)
        self._begin: dict[int, float] = {}

    def pre_act(self, agent: AgentPort, act: Any) -> None:
        self._begin[agent.index] = perf_counter()

    def post_act(self, agent: AgentPort) -> None:
        begin = self._begin.pop(agent.index, None)
        if begin is not None:  # else it came in the middle of a step
            self.seconds.append(perf_counter() - begin)


class TraceHash(Hook):
    """A digest of everything that happened: per agent a chain over every reset, action, reward, observation and end.

    Chained, so that it can be saved as text and continued: digest ← H(digest ‖ event).
    """

    def __init__(self) -> None:
        self.digests: dict[int, bytes] = {}

    def post_act(self, agent: AgentPort) -> None:
        obs, act, rew, terminated, truncated, _ = agent.env.last_step
        event = blake2b(self.digests.get(agent.index, b""), digest_size=16)
        for _, leaf in leaves({"obs": obs, "act": act, "rew": rew, "end": (terminated, truncated)}, ""):
            event.update(b"-" if leaf is None else np.ascontiguousarray(leaf).tobytes())
        self.digests[agent.index] = event.digest()

    pre_episode = post_act

    def hexdigest(self) -> str:
        """Return one digest of all agents' chains, 32 hexadecimal digits."""
        return blake2b(b"".join(self.digests[index] for index in sorted(self.digests)), digest_size=16).hexdigest()


class _EveryN(Hook):
    def __init__(self, n: int, function: Callable[[Any], None]) -> None:
        if n < 1:
            raise ValueError(f"{type(self).__name__}: n is {n}; expected at least 1")
        self.n, self.function, self.calls = n, function, 0  # calls: of the function
        self._seen: int | None = None

    def _count(self, robot: RunPort, before: int, now: int) -> None:
        """Passed, not hit: the environments of a vector agent step together, and threads may count past a multiple."""
        self._seen = max(before, now)
        if now // self.n > before // self.n:
            self.calls += 1
            self.function(robot)


class EveryNSteps(_EveryN):
    """Calls `function(robot)` whenever the whole robot's environment steps pass a multiple of `n`, once after each act that does.

    An agent calls it, so it cannot run, save or close the robot, which would wait for that agent. It can ask for a save at the
    end of the iteration: `EveryNSteps(10_000, lambda robot: robot.request_save(path))`.
    """

    counts_only = True  # no agent is looked at, so it may be called for many steps of a worker process at once

    def pre_experiment(self, robot: RunPort) -> None:
        self._seen = robot.env_steps

    def post_act(self, agent: AgentPort) -> None:
        steps = agent.robot.env_steps
        self._count(agent.robot, steps - 1 if self._seen is None else self._seen, steps)


class EveryNEpisodes(_EveryN):
    """Calls `function(robot)` after every `n`-th finished episode that this hook has seen, all agents together.

    Args:
        stage: `Stage.PRE_EPISODE`: when every `n`-th of them begins, instead.

    Raises:
        ValueError: n is below 1, or stage is another one.
    """

    def __init__(self, n: int, function: Callable[[Any], None], stage: Stage = Stage.POST_EPISODE) -> None:
        super().__init__(n, function)
        if stage not in (Stage.PRE_EPISODE, Stage.POST_EPISODE):
            raise ValueError(f"EveryNEpisodes: stage is {stage}; expected Stage.PRE_EPISODE or Stage.POST_EPISODE")
        self.stage = stage
        for name in {"pre_episode", "post_episode"} - {stage.value}:
            if getattr(type(self), name) is getattr(EveryNEpisodes, name):
                setattr(self, name, getattr(super(), name))  # it does not listen: beginnings are not heard of in workers

    def pre_episode(self, agent: AgentPort) -> None:
        if self.stage is Stage.PRE_EPISODE:
            self._one_more(agent)

    def post_episode(self, agent: AgentPort, interrupted: bool) -> None:
        if self.stage is Stage.POST_EPISODE:
            self._one_more(agent, interrupted)

    def _one_more(self, agent: AgentPort, interrupted: bool = False) -> None:
        if not interrupted:
            self._count(agent.robot, self._seen or 0, (self._seen or 0) + 1)

    def state_dict(self) -> State:
        return {"seen": self._seen or 0}

    def load_state_dict(self, state: State) -> None:
        self._seen = plain.whole(state["seen"])


class LossLog(Hook):
    """Loss of each update, and what else the algorithm reports, by task.

    Looks after every act, and at the end, for the newest update. Where several have come since the last look it notes the last
    one: a table that learns from single rows, an async run, or a worker's turn.

    Attributes:
        rows: Task → a dict for each update: `updates` (so many so far), `env_steps` (when it was seen), and what it said.
    """

    counts_only, calls = True, 0  # it calls nothing of the user's

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, float]]] = {}
        self._updates: dict[str, int] = {}

    def pre_experiment(self, robot: UsersRobot) -> None:
        self._updates = {name: task.learns for name, task in robot.tasks.items()}

    def post_act(self, agent: AgentPort) -> None:
        self._look(agent.robot)

    def _look(self, robot: UsersRobot) -> None:
        for name, task in robot.tasks.items():
            if task.learns != self._updates.get(name, 0):
                self._updates[name] = task.learns
                said = {key: float(value) for key, value in robot.wrappers[name].trainings.last_result.items()}
                self.rows.setdefault(name, []).append({"updates": task.learns, "env_steps": robot.env_steps, **said})

    post_experiment = _look


def final_info(env: Any) -> dict[str, object]:
    """Return what an agent's environment said with the last step of the episode that has just ended; of a vector environment,
    the part of the one whose episode it was."""
    info: Info = env.last_step[5]
    if not hasattr(env, "n"):
        return info
    told, n, i = info.get("final_info", info), env.n, env.env_index
    given = {key: told.get(f"_{key}") for key, value in told.items() if not key.startswith("_") and np.shape(value)[:1] == (n,)}
    return {key: told[key][i] for key, has in given.items() if has is None or has[i]}


def hooks_of(given: Any, who: str = "Robot.run") -> list[Hook]:
    """The hooks that a run or a robot (`who`, for the message) was given, one or several; raises TypeError for what is none."""
    hooks = list(given) if isinstance(given, Iterable) and not isinstance(given, Hook) else [given]
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise TypeError(f"{who}: {hook!r} is no hook; expected objects of classes made from parl_like.Hook")
    return hooks


def overridden(observers: Sequence[Any], name: str) -> list[Callable[..., None]]:
    """The bound methods `name` of those observers that have one and do more than `Hook` at this stage.

    Raises:
        TypeError: an observer has a method that is named like a stage and is none, so that nobody would call it.
    """
    base = getattr(Hook, name)
    for observer in observers:
        _refuse_misspelt(observer.__class__)
    methods = [getattr(o, name) for o in observers if hasattr(o, name)]
    return [m for m in methods if getattr(m, "__func__", m) is not base]


_ELSEWHERE = {"_on_step": "post_act", "on_step": "post_act", "on_episode_step": "post_act", "on_episode_start": "pre_episode",
              "on_episode_end": "post_episode", "_on_training_start": "pre_experiment", "_on_training_end": "post_experiment"}
"""The names of callbacks in Stable-Baselines3 and RLlib → the stage here."""


@cache
def _refuse_misspelt(kind: type) -> None:
    stages = [stage.value for stage in Stage]
    for name in dir(kind):
        near = "" if name.startswith("_") or name in stages else nearest(name, stages, 0.8)
        near = _ELSEWHERE.get(name, near)
        another = name.startswith(("pre_", "post_")) and name not in stages
        if (near or another) and callable(getattr(kind, name, None)):
            way = f"did you mean {near!r}?" if near else f"there are {', '.join(map(repr, sorted(stages)))}."
            raise TypeError(f"{kind.__name__}.{name} is no stage; {way} A method that is none needs a name less like it")
