"""Self-play: a task that learns by play against frozen older selves of its own, which are rated by Elo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from parl_like.agents.helper import AgentHelper
from parl_like.agents.players import TurnAgent
from parl_like.environment.hooks import Hook
from parl_like.interfaces import AgentPort, RunPort
from parl_like.learning.algorithm import Algorithm
from parl_like.tasks.task import ComputationTask
from parl_like.values import plain
from parl_like.values.plain import State

SPREAD, STEP = 400.0, 32.0
"""Points of Elo that make ten to one of the expected scores; and the most that a game moves a rating."""


def expected_score(rating: float, other: float) -> float:
    """Return what a player is expected to score against another, 0 to 1: 1 / (1 + 10^((other − rating) / 400)) (Elo 1978)."""
    odds: float = 10.0 ** ((other - rating) / SPREAD)
    return 1.0 / (1.0 + odds)


class OldSelf(ComputationTask):
    """A task that does not learn: an older version of another, whose algorithm is made in the same way.

    Args:
        algorithm: The function that builds the algorithm of the learning task, too.

    Attributes:
        rating: Points of Elo above the learning task, whose rating is 0.
    """

    def __init__(self, algorithm: Callable[[], Algorithm]) -> None:
        super().__init__(algorithm, train=False)
        self.rating = 0.0

    def state_dict(self) -> State:
        return {**super().state_dict(), "rating": self.rating}

    def load_state_dict(self, state: State) -> None:
        rating = plain.number(state.get("rating", 0.0))
        super().load_state_dict({name: part for name, part in state.items() if name != "rating"})
        self.rating = rating


class VersionPool(Hook):
    """The pool of older selves: whenever so many episodes have ended, the oldest one becomes what the learning task is now.

    Give it to `Robot.run`. Where agents are in this process it rates the older selves, too: by each game of an agent's `opponent`
    (`SelfPlayAgent`), a win being 1, a draw ½.

    Args:
        old: Names of the `OldSelf` tasks. task: of the one that learns.
        every: Episodes between two versions.
    """

    def __init__(self, old: Sequence[str] = ("old0", "old1", "old2", "old3"), task: str = "RL", every: int = 200) -> None:
        if every < 1 or not old:
            raise ValueError(f"VersionPool: every is {every} and old {list(old)}; expected at least 1, and the name of a task")
        self.old, self.task, self.every = tuple(old), task, every
        self._seen: int | None = None

    def pre_experiment(self, robot: RunPort) -> None:
        if self._seen is None:
            self._seen = robot.episodes
        if not self._seen:
            for name in self.old:
                self._keep(robot, name)

    def post_episode(self, agent: AgentPort, interrupted: bool) -> None:
        if interrupted:
            return
        self._rate(agent)
        self._seen = (self._seen or 0) + 1
        if self._seen % self.every == 0:
            self._keep(agent.robot, self.old[(self._seen // self.every - 1) % len(self.old)])

    def _keep(self, robot: RunPort, name: str) -> None:
        kept = self._older(robot)[name]
        kept.sync_from(cast(ComputationTask, robot.tasks[self.task]))
        kept.rating = 0.0

    def _older(self, robot: RunPort) -> dict[str, OldSelf]:
        """Return the tasks of the older selves."""
        return {name: cast(OldSelf, robot.tasks[name]) for name in self.old}

    def _rate(self, agent: AgentPort) -> None:
        """Move the ratings after a game against an older self. The learning task's own would move by as much in the other
        direction; it stays 0, so all others move with it."""
        opponent, seat = getattr(agent, "opponent", None), getattr(agent, "seat", None)
        if opponent not in self.old or not hasattr(agent.env, "returns"):
            return
        returns = dict(agent.env.returns())
        own = returns.pop(seat)
        best = max(returns.values())
        score = 1.0 if own > best else 0.5 if own == best else 0.0
        older = self._older(agent.robot)
        gain = STEP * (score - expected_score(0.0, older[opponent].rating))
        for one in older.values():
            one.rating -= gain
        older[opponent].rating -= gain

    def ratings(self, robot: RunPort) -> dict[str, float]:
        """Return the rating of each older self, in points above the learning task."""
        return {name: one.rating for name, one in self._older(robot).items()}


class SelfPlayAgent(TurnAgent):
    """Plays by turns with itself: a seat, drawn for each episode, is the learning task's; the others are an older self's, or,
    with probability `latest`, the learning task's, too.

    Args:
        old: Names of the tasks of older selves. task: of the one that learns.
        latest: See above.

    Attributes:
        seat: The player that the learning task surely is, in this episode. opponent: The task of the others.
    """

    def __init__(self, old: Sequence[str] = ("old0", "old1", "old2", "old3"), task: str = "RL", latest: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= latest <= 1.0:
            raise ValueError(f"SelfPlayAgent: latest is {latest}; expected a probability")
        self.old, self.task, self.latest = tuple(old), task, latest
        self.seat, self.opponent = "", task

    def run_one_episode(self) -> None:
        players = self.env.players
        self.seat = players[int(self.rng.integers(len(players)))]
        draws = self.rng.random() < self.latest
        self.opponent = self.task if draws else self.old[int(self.rng.integers(len(self.old)))]
        super().run_one_episode()

    def actor(self, player: str) -> AgentHelper:
        return self.helpers[self.task if player == self.seat else self.opponent, player]


def with_older_selves(algorithm: Callable[[], Algorithm], helper: Callable[[], object], n: int = 4,
                      **options: Any) -> dict[str, ComputationTask]:
    """Return the tasks of a self-play robot: `RL`, which learns, and `old0` … of its `n` older selves.

    Args:
        algorithm: Function that builds an algorithm. helper: Of `RL`.
        options: As for `ComputationTask`, of `RL`.
    """
    tasks: dict[str, ComputationTask] = {"RL": ComputationTask(algorithm, helper, **options)}
    return tasks | {f"old{i}": OldSelf(algorithm) for i in range(n)}
