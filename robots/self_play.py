"""Self-play: a task that learns by play against frozen older selves of its own, which are rated by Elo.

The robot learns tic-tac-toe by DQN. The score of an evaluation is exact, of greedy play from both seats: the smaller of

    (wins + draws / 2 against random moves) / 0.95      draws against the best moves / 0.9

so 1 and more is good play against both. The best moves are those of minimax, each with the same probability.

Differences:
    It follows no single paper. Ratings are those of Elo (1978), with that of the learning task held at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from parl_like.agents.helper import AgentHelper
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.players import TurnAgent
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.games import minimax
from parl_like.drivers.workers.proxies import RemoteAgent
from parl_like.environment.hooks import Hook
from parl_like.envs.games import Game, TicTacToe, uniform
from parl_like.envs.games import State as Position
from parl_like.envs.games.players import GameAEC
from parl_like.interfaces import AgentPort, RunPort
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.mlp import MLPQ
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import PartsConfig, Positive, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values import plain
from parl_like.values.plain import State
from parl_like.values.spec import Array

DEFAULTS: dict[str, Any] = {
    "DQN.n_step": 1, "DQN.gamma": 1.0, "DQN.lr": {"start": 1e-3, "end": 0.0}, "DQN.epsilon": {"start": 0.5, "end": 0.1},
    "MLPQ.hidden": [128, 128], "OffPolicyHelper.size": 20_000, "OffPolicyHelper.batch_size": 128,
    "OffPolicyHelper.learn_every": 4, "OffPolicyHelper.warmup": 500,
}
WANTED = {"random": 0.95, "best": 0.9}
"""Points against random moves, and draws against the best ones, that make a score of 1."""
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
        device: As for `ComputationTask`.

    Attributes:
        rating: Points of Elo above the learning task, whose rating is 0.
    """

    def __init__(self, algorithm: Callable[[], Algorithm], device: str = "cpu") -> None:
        super().__init__(algorithm, train=False, device=device)
        self.rating = 0.0

    def state_dict(self) -> State:
        return {**super().state_dict(), "rating": self.rating}

    def load_state_dict(self, state: State) -> None:
        rating = plain.number(state.get("rating", 0.0))
        super().load_state_dict({name: part for name, part in state.items() if name != "rating"})
        self.rating = rating


class VersionPool(Hook):
    """The pool of older selves: whenever so many episodes have ended, the oldest one becomes what the learning task is now.

    Give it to `Robot` (or to each `Robot.run`) as a hook; it counts the episodes of each robot by themselves. Where agents are in
    this process it rates the older selves, too: by each game of an agent's `opponent` (`SelfPlayAgent`), a win being 1, a draw ½.
    Under other drivers only the agents know whom they have played: versions are kept there, and `ratings` is refused.

    Args:
        old: Names of the `OldSelf` tasks. task: of the one that learns.
        every: Episodes between two versions.

    Raises:
        ValueError: every is below 1, or old names no task.
    """

    def __init__(self, old: Sequence[str] = ("old0", "old1", "old2", "old3"), task: str = "RL", every: int = 200) -> None:
        if every < 1 or not old:
            raise ValueError(f"VersionPool: every is {every} and old {list(old)}; expected at least 1, and the name of a task")
        self.old, self.task, self.every = tuple(old), task, every
        self._seen: WeakKeyDictionary[object, int] = WeakKeyDictionary()  # by the learning task, for robots may share the hook

    def __reduce__(self) -> tuple[object, ...]:
        """A copy in another process has seen no robot."""
        return type(self), (self.old, self.task, self.every)

    def pre_experiment(self, robot: RunPort) -> None:
        self._seen[robot.tasks[self.task]] = robot.episodes
        if not robot.tasks[self.task].learns:  # ratings stay, for games may have been played
            for older in self._older(robot).values():
                older.sync_from(cast(ComputationTask, robot.tasks[self.task]))

    def post_episode(self, agent: AgentPort, interrupted: bool) -> None:
        if interrupted:
            return
        self._rate(agent)
        learner = agent.robot.tasks[self.task]
        seen = self._seen[learner] = self._seen.get(learner, 0) + 1
        if seen % self.every == 0:
            self._keep(agent.robot, self.old[(seen // self.every - 1) % len(self.old)])

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
        """Return the rating of each older self, in points above the learning task.

        Raises:
            ValueError: agents in other processes play, whose opponents are not known here.
        """
        if any(isinstance(agent, RemoteAgent) for agent in robot.agents):
            raise ValueError(f"VersionPool: {robot} plays in other processes, where the agents alone know whom they have played, "
                             "so nobody is rated; use driver='cooperative' or 'threads' for ratings")
        return {name: one.rating for name, one in self._older(robot).items()}


class SelfPlayAgent(TurnAgent):
    """Plays by turns with itself: a seat, drawn for each episode, is the learning task's; the others are an older self's, or,
    with probability `latest`, the learning task's, too. An episode that goes on after a checkpoint keeps both.

    Args:
        old: Names of the tasks of older selves. task: of the one that learns.
        latest: See above.

    Attributes:
        seat: The player that the learning task surely is, in this episode. opponent: The task of the others.

    Raises:
        ValueError: latest is no probability.
    """

    def __init__(self, old: Sequence[str] = ("old0", "old1", "old2", "old3"), task: str = "RL", latest: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= latest <= 1.0:
            raise ValueError(f"SelfPlayAgent: latest is {latest}; expected a probability")
        self.old, self.task, self.latest = tuple(old), task, latest
        self.seat, self.opponent = "", task
        self._held: tuple[str, str] | None = None  # both, of an episode that is held while others are played

    def run_one_episode(self) -> None:
        holds = self.env.carried.held is not None
        if holds and self.quota.episodes is None and (self._held or self.seat):  # that episode goes on now
            self.seat, self.opponent = self._held or (self.seat, self.opponent)
            self._held = None
        else:
            self._held = self._held or (self.seat, self.opponent) if holds and self.seat else None
            self._draw()
        super().run_one_episode()

    def _draw(self) -> None:
        players = self.env.players
        self.seat = players[int(self.rng.integers(len(players)))]
        draws = self.rng.random() < self.latest
        self.opponent = self.task if draws else self.old[int(self.rng.integers(len(self.old)))]

    def state_dict(self) -> State:
        """Return the state of an `Agent`, and who plays whom in the episode that is open."""
        seat, opponent = self._held or (self.seat, self.opponent)
        return {**super().state_dict(), "seat": seat, "opponent": opponent}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; raises as `Agent.load_state_dict`. Of players or tasks that are not there, both are
        drawn anew."""
        super().load_state_dict(state)
        seat, opponent = state.get("seat"), state.get("opponent")
        known = seat in self.env.players and opponent in (self.task, *self.old)
        self.seat, self.opponent = (str(seat), str(opponent)) if known else ("", self.task)
        self._held = None

    def actor(self, player: str) -> AgentHelper:
        return self.helpers[self.task if player == self.seat else self.opponent, player]


def with_older_selves(algorithm: Callable[[], Algorithm], helper: Callable[[], object], n: int = 4,
                      device: str = "cpu", **options: Any) -> dict[str, ComputationTask]:
    """Return the tasks of a self-play robot: `RL`, which learns, and `old0` … of its `n` older selves.

    Args:
        algorithm: Function that builds an algorithm. helper: Of `RL`.
        device: Of all. options: As for `ComputationTask`, of `RL`.
    """
    tasks: dict[str, ComputationTask] = {"RL": ComputationTask(algorithm, helper, device=device, **options)}
    return tasks | {f"old{i}": OldSelf(algorithm, device) for i in range(n)}


class Config(PartsConfig, frozen=True, kw_only=True):
    """The network and the arguments of the task, the agent and the hook are settings: `DQN.lr`, `SelfPlayAgent.latest`,
    `VersionPool.every`, ….

    Attributes:
        older: The number of older selves.
    """

    older: Positive = 4


def points(game: Game, policies: Sequence[Callable[[Position], Array]]) -> float:
    """Return what player 0 gets on average, exactly, where each player has a policy and nothing is hidden or left to chance."""
    known: dict[str, float] = {}
    state = game.start()

    def value() -> float:
        if state.is_terminal:
            return state.returns()[0]
        key = state.key(0)
        if key not in known:
            chances = policies[state.player](state)
            known[key] = sum(chances[act] * after(act) for act in tuple(state.legal()) if chances[act])
        return known[key]

    def after(act: int) -> float:
        state.apply(act)
        one = value()
        state.undo()
        return one

    return float(value())


class BestMoves:
    """The policy that takes each of the best moves, as minimax finds them, with the same probability."""

    def __init__(self) -> None:
        self._known: dict[str, Array] = {}

    def __call__(self, state: Position) -> Array:
        if (key := state.key(0)) not in self._known:
            values = np.full(state.game.n_actions, -np.inf)
            sign = 1.0 if state.player == 0 else -1.0
            for act in state.legal():
                after = state.clone()
                after.apply(act)
                values[act] = sign * minimax(after, table=True).value
            best = values == values.max()
            self._known[key] = best / best.sum()
        return self._known[key]


def greedy(robot: Robot) -> Callable[[Position], Array]:
    """Return the policy of a robot's first task."""
    def policy(state: Position) -> Array:
        chances = np.zeros(state.game.n_actions)
        chances[robot.act({"obs": state.tensor(), "mask": state.mask()})] = 1.0
        return chances

    return policy


def strength(robot: Robot, game: Game, best: Callable[[Position], Array]) -> dict[str, float]:
    """Return, of greedy play from both seats, `random`: points against random moves, a win 1 and a draw ½; and `best`: the share
    of draws against the best moves, in a game that nobody need lose."""
    own = greedy(robot)
    random, against = ((points(game, (own, other)) - points(game, (other, own))) / 2 for other in (uniform, best))
    return {"random": (1 + random) / 2, "best": 1 + against}


def build(config: Config) -> Robot:
    parts = Parts(config.parts, DEFAULTS, config.__struct_fields__, Span(config.total_steps))
    game, best = TicTacToe(), BestMoves()
    source = partial(GameAEC, game)
    spaces, _ = probed(source)
    old = [f"old{i}" for i in range(config.older)]
    agent = parts.args("", SelfPlayAgent, skip=("old", "task"))
    # The learning task has one seat in all games and the other one in a share `latest`, and a helper for each of two seats.
    share = (1 + parts.of("", SelfPlayAgent)["latest"]) / 2
    acts = config.total_steps * share / 2 / config.n_agents
    helper = parts.args("tasks.RL", OffPolicyHelper, acts=acts)
    updates = config.total_steps * share / parts.of("tasks.RL", OffPolicyHelper)["learn_every"]
    algorithm = create_algorithm_func(MLPQ, {**spaces, **parts.args("tasks.RL", MLPQ)}, DQN,
                                      parts.args("tasks.RL", DQN, updates=updates, acts=acts))
    tasks = with_older_selves(algorithm, made_anew(OffPolicyHelper, helper), config.older, device=config.device,
                              **parts.args("tasks.RL", ComputationTask, skip=("device",)))
    pool = VersionPool(old, **parts.args("", VersionPool, skip=("old", "task")))

    def score(robot: Robot, episodes: object) -> float:
        found = strength(robot, game, best)
        return min(found[name] / wanted for name, wanted in WANTED.items())

    return robot_with(config, source, tasks, partial(SelfPlayAgent, old, **agent), parts=parts, score=score, hooks=[pool])
