"""Conditions that end a run, alone or joined by `&` and `|`."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from parl_like.environment.hooks import Hook
from parl_like.interfaces import AgentPort, RunPort, UsersRobot
from parl_like.values.errors import unknown
from parl_like.values.user_calls import Guarded


class StopCondition(Guarded):
    """Consulted after every act; the run ends at once when it returns True: no agent takes another step. Compose with `&` and
    `|`. `StopWhenAgent` looks at agents and their environments, wherever these are.

    Subclasses write `__call__`. A composition asks both sides every time, so that counters inside see every act. Agents in
    threads ask one at a time.
    """

    def __call__(self, robot: UsersRobot) -> bool:
        raise TypeError(f"{type(self).__name__} has no __call__(robot) -> bool")

    def begin(self, robot: UsersRobot) -> None:
        """Called when a run starts: conditions count from here."""

    def after_iteration(self, robot: UsersRobot) -> bool:
        """The same question between two iterations, where no act is under way."""
        return False

    def most_steps(self) -> int | None:
        """Environment steps after which it ends a run at the latest, which schedules span; None: nobody knows."""
        return None

    def free_steps(self, robot: UsersRobot) -> float:
        """Environment steps that may be taken before it has to be asked again: workers take so many by themselves. 0: it is asked
        after every turn of the agents, for it may end the run at any of them."""
        return 0.0

    def watchers(self) -> list[StopWhenAgent]:
        """The conditions in it that are asked where the agents are."""
        return []

    def __and__(self, other: StopCondition) -> StopCondition:
        return _Both(self, other, all)

    def __or__(self, other: StopCondition) -> StopCondition:
        return _Both(self, other, any)


class _Both(StopCondition):
    def __init__(self, left: StopCondition, right: StopCondition, rule: Callable[[list[bool]], bool]) -> None:
        for side in (left, right):
            if not isinstance(side, StopCondition):
                raise TypeError(f"a stop condition was composed with {side!r}; expected a StopCondition, e.g. StopWhen(lambda "
                                "robot: ...)")
        self.sides, self.rule = (left, right), rule

    def begin(self, robot: RunPort) -> None:
        self._last = [False, False]
        for side in self.sides:
            side.begin(robot)

    def __call__(self, robot: RunPort) -> bool:
        self._last = [side(robot) for side in self.sides]
        return self.rule(self._last)

    def after_iteration(self, robot: RunPort) -> bool:
        # A side that does not know iterations still means what it said after the last act.
        return self.rule([side.after_iteration(robot) or last for side, last in zip(self.sides, self._last, strict=True)])

    def most_steps(self) -> int | None:
        known = [n for n in (side.most_steps() for side in self.sides) if n is not None]
        if self.rule is any:
            return min(known, default=None)
        return max(known) if len(known) == 2 else None

    def free_steps(self, robot: RunPort) -> float:
        return min(side.free_steps(robot) for side in self.sides)

    def watchers(self) -> list[StopWhenAgent]:
        return list(dict.fromkeys(one for side in self.sides for one in side.watchers()))


class _StopAfter(StopCondition):
    """After `n` more of what the robot counts."""

    counter: str

    def __init__(self, n: int) -> None:
        if n < 1 or n != int(n):
            raise ValueError(f"{type(self).__name__}: n is {n}; expected a whole number of at least 1")
        self.n = n

    def begin(self, robot: RunPort) -> None:
        self._end = getattr(robot, self.counter) + self.n

    def __call__(self, robot: RunPort) -> bool:
        return getattr(robot, self.counter) >= self._end  # type: ignore[no-any-return]


class StopAfterSteps(_StopAfter):
    """After `n` environment steps of this run, all agents together."""

    counter = "env_steps"

    def most_steps(self) -> int:
        return int(self.n)

    def free_steps(self, robot: RunPort) -> float:
        return float(self._end - robot.env_steps)


class StopAfterEpisodes(_StopAfter):
    """After `n` episodes of this run ended, all agents together; the act that ends the n-th is the last one."""

    counter = "episodes"


class StopAfterIterations(_StopAfter):
    """After `n` iterations of this run, before the next one begins: the same as `n` calls of `Robot.train_iter`."""

    counter = "iterations"
    after_iteration = _StopAfter.__call__

    def free_steps(self, robot: RunPort) -> float:
        return inf


class StopAfterSeconds(StopCondition):
    """`seconds` after the run began, by the monotonic clock.

    Raises:
        ValueError: seconds is below 0.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds >= 0:
            raise ValueError(f"StopAfterSeconds: seconds is {seconds}; expected a number of at least 0")
        self.seconds = seconds

    def begin(self, robot: RunPort) -> None:
        self._end = monotonic() + self.seconds

    def __call__(self, robot: RunPort) -> bool:
        return monotonic() >= self._end


def numbers(owner: object, returns: list[Any]) -> list[float]:
    """Returns of episodes that can be compared; raises TypeError where they are vectors."""
    if returns and np.ndim(returns[-1]):
        raise TypeError(f"{type(owner).__name__}: returns are vectors of shape {np.shape(returns[-1])}, one number is needed; "
                        "wrap the environment in parl_like.envs.wrappers.RewardWeights(env, weights), use StopWhen with a "
                        "rule of your own, or of several players StopAtReturn(threshold, player=…)")
    return returns


class StopAtReturn(StopCondition):
    """When the mean return of the last `episodes` episodes, 1 to 100, reaches `threshold`.

    Args:
        player: Whose return it is, in environments of several players.

    Raises:
        ValueError: episodes is outside 1 to 100.
    """

    def __init__(self, threshold: float, episodes: int = 100, player: str | None = None) -> None:
        if not 1 <= episodes <= 100:
            raise ValueError(f"StopAtReturn: episodes is {episodes}; expected 1 to 100, as many as a robot's recent_returns "
                             "keeps")
        self.threshold, self.episodes, self.player = threshold, episodes, player
        self._index = 0

    def begin(self, robot: RunPort) -> None:
        """See `StopCondition.begin`. Raises ValueError where the robot has no such player."""
        if self.player is not None and self.player not in robot.players:
            raise ValueError(f"StopAtReturn: {unknown('player', self.player, robot.players)}")
        self._index = 0 if self.player is None else robot.players.index(self.player)

    def __call__(self, robot: RunPort) -> bool:
        recent = list(robot.recent_returns)[-self.episodes :]
        if len(recent) < self.episodes:
            return False
        values = numbers(self, recent) if self.player is None else [float(returns[self._index]) for returns in recent]
        return sum(values) / self.episodes >= self.threshold


class StopWithoutImprovement(StopCondition):
    """When `value(robot)`, read at the end of every episode, has not risen above its best by more than `delta` for `patience`
    episodes.

    Args:
        value: What should rise; None: the return of the episode that ended.

    Raises:
        ValueError: patience is below 1, or delta below 0.
    """

    def __init__(self, patience: int, delta: float = 0.0, value: Callable[[Any], float] | None = None) -> None:
        if patience < 1 or delta < 0:
            raise ValueError(f"StopWithoutImprovement: patience is {patience} and delta {delta}; expected patience ≥ 1 and "
                             "delta ≥ 0")
        self.patience, self.delta, self.value = patience, delta, value

    def begin(self, robot: RunPort) -> None:
        self._best, self._since, self._seen = float("-inf"), 0, robot.episodes

    def __call__(self, robot: RunPort) -> bool:
        new = robot.episodes - self._seen
        if new:
            self._seen = robot.episodes
            # A vector agent ends several episodes with one act.
            values = numbers(self, list(robot.recent_returns)[-new:]) if self.value is None else [self.value(robot)] * new
            for value in values:
                better = value > self._best + self.delta
                self._best, self._since = (value, 0) if better else (self._best, self._since + 1)
        return self._since >= self.patience


class StopSignal(StopCondition):
    """When `set()` was called, from a signal handler, another thread or a hook; it stays set until `clear()`."""

    _set = False

    def set(self) -> None:
        """From now on every run ends at once."""
        self._set = True

    def clear(self) -> None:
        """From now on runs go on."""
        self._set = False

    def __call__(self, robot: RunPort) -> bool:
        return self._set

    after_iteration = __call__


class StopWhen(StopCondition):
    """When `function(robot)` is true: any rule of your own."""

    def __init__(self, function: Callable[[Any], bool]) -> None:
        self.function = function

    def __call__(self, robot: RunPort) -> bool:
        return bool(self.function(robot))


class StopWhenAgent(StopCondition, Hook):
    """When `function(agent)` is true of an agent that has just acted: any rule about environments.

    It is asked beside the agent after each of its acts, also where that is in a worker process, and sees `agent.env`, its `last`
    step and attributes of the environment's own: `StopWhenAgent(lambda agent: agent.env.unwrapped.place > 9)`. Of a
    `VectorAgent`, `agent.env` has all its environments.

    Under drivers with workers the function is sent to them when they begin, and each has a copy: what one notes, no other sees.
    What a function said of any act counts when the robot hears of it: agents may have taken the steps of a turn since then (one,
    or with replicas up to 16). A run with another such condition than the run before begins with new workers, which take over
    the state of the old ones; open episodes are cut or carried over as at a checkpoint.
    """

    def __init__(self, function: Callable[[Any], bool]) -> None:
        self.function = function
        self.said = False

    def begin(self, robot: RunPort) -> None:
        self.said = False

    def watchers(self) -> list[StopWhenAgent]:
        return [self]

    def post_act(self, agent: AgentPort) -> None:
        self.said = self.said or bool(self.function(agent))

    def __call__(self, robot: RunPort) -> bool:
        return self.said


def question(stop: StopCondition) -> Callable[[Any], bool]:
    """Return what is asked after every act of a run that `stop` ends: `stop(robot)`. What agents said before counts once, for
    all places of a composition at which their condition stands."""
    watchers = stop.watchers()
    if not watchers:
        return stop

    def ask(robot: RunPort) -> bool:
        over = stop(robot)
        for watcher in watchers:
            watcher.said = False
        return over

    return ask
