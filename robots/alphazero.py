"""AlphaZero: self-play by search with a network, and one task that learns from what search finds (Silver et al. 2017, 2018).

Each agent plays both players of its game. It searches before each move, and asks the task for judgements of new positions; those
of all agents are one batch. The first moves are drawn by their visits, with noise at the root; later ones are the most visited.
When a game is over, each of its positions becomes a row: what search found there, and what who moved got.

The score of an evaluation is the share of games that are not lost, half of them from each seat: against random moves, or against
`MCTS`, which judges positions by random games.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.algorithms.alphazero import AlphaZero
from parl_like.algorithms.games.mcts import MCTS, GameSearch
from parl_like.algorithms.search.tree import SearchRule, root_noise, visit_policy
from parl_like.envs.games import ConnectFour, Game, TicTacToe, uniform
from parl_like.envs.games import State as Position
from parl_like.envs.games.all_seats import AllSeats
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.mlp import MLPActorCritic
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import Count, PartsConfig, Positive, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values.spec import Array

GAMES: dict[str, Callable[[], Game]] = {"tic-tac-toe": TicTacToe, "connect-four": ConnectFour}
DEFAULTS: dict[str, Any] = {
    "MLPActorCritic.hidden": [128, 128], "MLPActorCritic.shared": True, "MLPActorCritic.activation": "relu",
    "AlphaZero.lr": {"start": 2e-3, "end": 1e-4}, "OffPolicyHelper.size": 20_000, "OffPolicyHelper.batch_size": 128,
    "OffPolicyHelper.learn_every": 4, "OffPolicyHelper.warmup": 500,
}


class AlphaZeroAgent(Agent):
    """Plays both players of a game by search, and stores each position when its game is over.

    Args:
        simulations: Of each move.
        exploration: c of PUCT.
        alpha: Of the Dirichlet noise at the root. share: Of the noise in the root's prior.
        drawn_moves: Moves of a game, from its first on, that are drawn by their visits.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(self, simulations: int = 25, *, exploration: float = 1.5, alpha: float = 1.0, share: float = 0.25,
                 drawn_moves: int = 6) -> None:
        super().__init__()
        if simulations < 1 or not alpha > 0 or not 0 <= share <= 1 or drawn_moves < 0:
            raise ValueError(f"AlphaZeroAgent: simulations is {simulations}, alpha {alpha}, share {share} and drawn_moves "
                             f"{drawn_moves}; expected at least 1, above 0, a share, and at least 0")
        self.simulations, self.alpha, self.share, self.drawn_moves = simulations, alpha, share, drawn_moves
        self.rule = SearchRule(exploration=exploration)

    def judged(self, positions: Sequence[Position]) -> tuple[Array, Array]:
        """Return values and logits of positions, which the task computes with those of other agents."""
        out = self.helpers["RL"].ask(observed(positions))
        return np.array(out["value"]), np.array(out["logits"])

    def run_one_episode(self) -> None:
        """Play one game."""
        helper, env = self.helpers["RL"], self.env
        learns = helper.mode != "test"
        search = GameSearch(env.game, self.simulations, self.judged, self.rule)
        obs, info = env.reset()
        played: list[tuple[Any, int, Array, int]] = []  # observation, action, π, who moved
        done = False
        while not done:
            noise = root_noise(self.rng, obs["mask"][None], self.alpha) if learns else None
            visits = search.search([env.state], noise, self.share).visits
            policy = visit_policy(visits)[0]
            drawn = learns and len(env.state.history) < self.drawn_moves
            act = int(self.rng.choice(len(policy), p=policy)) if drawn else int(visits[0].argmax())
            played.append((obs, act, policy.astype(np.float32), info["player"]))
            obs, _, done, _, info = env.step(act)
        for seen, act, policy, player in played:
            helper.store(seen, act, info["returns"][player], seen, True, False, extra={"search_policy": policy})


def observed(positions: Sequence[Position]) -> dict[str, Array]:
    """Return positions as the task's inputs, as `AllSeats` shows them."""
    return {"obs.mask": np.stack([one.mask() for one in positions]), "obs.obs": np.stack([one.tensor() for one in positions])}


def player_of(robot: Robot, game: Game, simulations: int, exploration: float) -> Callable[[Sequence[Position]], list[int]]:
    """Return what a robot's network plays in n positions at once: with search, or, with 0 simulations, by itself."""
    task = robot.tasks["RL"]

    def judged(positions: Sequence[Position]) -> tuple[Array, Array]:
        out, _ = task.act(observed(positions), "test")
        return out["value"], out["logits"]

    if not simulations:
        return lambda positions: [int(action) for action in judged(positions)[1].argmax(1)]
    search = GameSearch(game, simulations, judged, SearchRule(exploration=exploration))
    return lambda positions: [int(action) for action in search.search(positions).visits.argmax(1)]


def not_lost(game: Game, player: Callable[[Sequence[Position]], list[int]], other: Callable[[Position], Array], n: int,
             seed: int) -> float:
    """Return the share of games that are not lost against another policy, of n from each seat, all played in step."""
    rng = np.random.default_rng(seed)
    games = [(game.start(), seat) for seat in (0, 1) for _ in range(n)]
    while going := [(state, seat) for state, seat in games if not state.is_terminal]:
        mine = [state for state, seat in going if state.player == seat]
        for state, seat in going:
            if state.player != seat:
                state.apply(int(rng.choice(game.n_actions, p=other(state))))
        if mine:
            for state, action in zip(mine, player(mine), strict=True):
                state.apply(action)
    return float(np.mean([state.returns()[seat] >= 0 for state, seat in games]))


class Config(PartsConfig, frozen=True, kw_only=True):
    """The network and the arguments of the task and the agent are settings: `AlphaZero.lr`, `AlphaZeroAgent.simulations`, ….

    Attributes:
        game: Which one is played.
        eval_games: Games of an evaluation from each seat.
        eval_simulations: Of each move in them; 0: the network plays by itself.
        opponent: Simulations of the other player, `MCTS`; 0: it moves at random.
    """

    game: Literal["tic-tac-toe", "connect-four"] = "tic-tac-toe"
    eval_games: Positive = 100
    eval_simulations: Count = 25
    opponent: Count = 0


def build(config: Config) -> Robot:
    parts = Parts(config.parts, DEFAULTS, config.__struct_fields__, Span(config.total_steps))
    game = GAMES[config.game]()
    source = partial(AllSeats, game)
    spaces, _ = probed(source)
    helper = parts.args("tasks.RL", OffPolicyHelper, acts=config.total_steps / config.n_agents)
    told = parts.of("tasks.RL", OffPolicyHelper)
    updates = config.total_steps * told["updates"] // (told["learn_every"] or 1)
    algorithm = create_algorithm_func(MLPActorCritic, {**spaces, **parts.args("tasks.RL", MLPActorCritic)}, AlphaZero,
                                      parts.args("tasks.RL", AlphaZero, updates=updates))
    extras = cast(AlphaZero, algorithm()).extras()
    task = ComputationTask(algorithm, made_anew(OffPolicyHelper, {"extras": extras, **helper}), device=config.device,
                           **parts.args("tasks.RL", ComputationTask, skip=("device",)))
    agent = parts.args("", AlphaZeroAgent)
    exploration = parts.of("", AlphaZeroAgent)["exploration"]

    def score(robot: Robot, episodes: object) -> float:
        other = MCTS(game, config.opponent) if config.opponent else uniform
        return not_lost(game, player_of(robot, game, config.eval_simulations, exploration), other, config.eval_games, seed=0)

    return robot_with(config, source, {"RL": task}, partial(AlphaZeroAgent, **agent), parts=parts, score=score)
