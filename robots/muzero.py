"""MuZero: a world model and what it is worth, two tasks that learn together; agents search in the model before they act.

The task `model` learns h, g and rewards, `prediction` policy and value; the latent states, which they share, are learned by both.
Agents ask `model` alone, which has the other's network, too: so each simulation is one prediction for all agents at once. What
search found, the policy of its visits and the root's value, is stored with each step; see `parl_like.algorithms.muzero`.

A game (`game`) is played from both sides, and the score of an evaluation is the share of games that are not lost against random
moves, half of them from each seat. In an environment it is the mean return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from parl_like.agents.agent import Agent
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.vector_agent import VectorAgent
from parl_like.algorithms.muzero import MuZero, MuZeroModel, search_columns
from parl_like.algorithms.search.latent import LatentSearch
from parl_like.algorithms.search.tree import Found, root_noise, visit_policy
from parl_like.envs.games import Game, uniform
from parl_like.envs.games import State as Position
from parl_like.envs.games.all_seats import AllSeats
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.explorers.base import legal as legal_of
from parl_like.learning.factory import Shared, create_algorithm_func
from parl_like.learning.schedule import Schedule, value_of
from parl_like.learning.span import Span
from parl_like.models.heads import mask_key
from parl_like.models.muzero_net import LatentPrediction, LatentWorld, MuZeroNet
from parl_like.robots.alphazero import GAMES, not_lost, observed
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import Env, PartsConfig, Positive, env_of, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.row_slots import Owner
from parl_like.tasks.task import ComputationTask
from parl_like.values.spec import Info, Spec, leaves


class MuZeroAgent(VectorAgent):
    """Searches in the world model before each action, in n environments at once, and stores what it found. Of a game (`AllSeats`)
    it plays both sides.

    Args:
        n_envs: Environments that are made where the robot's are single ones.
        simulations: Of each action.
        gamma: γ of the search, that of `MuZero`.
        alpha: Of the Dirichlet noise at the root. share: Of the noise in the root's prior.
        temperature: Of the policy that actions are drawn from, see `visit_policy`; a schedule counts this agent's steps.
        drawn_moves: Steps of an episode, from its first on, whose actions are drawn; later ones are the most visited. None: all.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(self, n_envs: int = 16, *, simulations: int = 25, gamma: float = 0.997, alpha: float = 0.25, share: float = 0.25,
                 temperature: float | Schedule = 1.0, drawn_moves: int | None = None) -> None:
        super().__init__(n_envs)
        if simulations < 1 or not alpha > 0 or not 0 <= share <= 1 or (drawn_moves or 0) < 0:
            raise ValueError(f"MuZeroAgent: simulations is {simulations}, alpha {alpha}, share {share} and drawn_moves "
                             f"{drawn_moves}; expected at least 1, above 0, a share, and at least 0")
        self.simulations, self.gamma, self.alpha, self.share = simulations, gamma, alpha, share
        self.temperature, self.drawn_moves = temperature, drawn_moves
        self.player, self.found = np.zeros(0, np.int64), Found(*np.zeros((3, 0, 0)))

    def join(self, make: Callable[[], Any]) -> None:
        """Make the environments, and claim rows for latent states.

        Raises:
            TypeError: their actions are no choice. ValueError: a game is none of two players who move in turn, and of whom one
                wins what the other loses.
        """
        made: list[Any] = []

        def one() -> Any:
            made.append(make())
            return made[-1]

        super().join(one)
        first, seen, space = made[0], self.env.observation_space, self.env.action_space
        assert seen is not None
        if not isinstance(space, gym.spaces.Discrete):
            raise TypeError(f"{self}: MuZeroAgent is for Discrete actions, and {first} has {space}; wrap it "
                            "(parl_like.envs.wrappers.Discretize)")
        game = getattr(first.unwrapped, "game", None) if isinstance(first.unwrapped, AllSeats) else None
        if game is not None:
            game.traits.require("MuZeroAgent", n_players=2, dynamics="sequential", information="perfect", utility="zero_sum",
                                chance="deterministic")
        self.start, self.mask = int(space.start), mask_key(seen, space)
        self.searches = LatentSearch(
            lambda rows: self.helpers["model"].ask(rows), int(space.n), self.simulations, gamma=self.gamma,
            players=1 if game is None else 2, first=self.claim("model", self.n_envs * (self.simulations + 1)))

    def choose(self, obs: Any, info: Info) -> Any:
        """Search from these observations, and draw actions by its visits; where nothing is learned they are the most visited."""
        learns, n = self.helpers["model"].mode != "test", self.n_envs
        legal = np.ones((n, self.searches.n_actions), bool) if self.mask is None else legal_of(np.asarray(obs[self.mask]))
        self.player = np.array(info["player"], np.int64) if self.searches.players == 2 else np.zeros(n, np.int64)
        noise = root_noise(self.rng, legal, self.alpha) if learns else None
        found = self.found = self.searches.search(dict(leaves(obs, "obs")), legal, self.player, noise, self.share)
        act = found.visits.argmax(1)
        if learns:
            policy = visit_policy(found.visits, value_of(self.temperature, self.steps))
            drawn = (policy.cumsum(1) < self.rng.random((n, 1))).sum(1).clip(max=found.visits.shape[1] - 1)
            late = self.env.episode_lengths >= (np.inf if self.drawn_moves is None else self.drawn_moves)
            act = np.where(late, act, drawn)
        return act + self.start

    def remember(self, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, info: Info) -> None:
        """Store the steps for both tasks, with what search has found for the one that learns from it."""
        gained = np.where(self.player == 1, -rew, rew)  # `AllSeats` gives the rewards of player 0
        rows = obs, act, gained, self.env.obs_next, terminated, truncated, info, self.env.valid
        self.helpers["model"].store(*rows)
        self.helpers["prediction"].store(*rows, extra={
            "search_policy": visit_policy(self.found.visits).astype(np.float32),
            "root_value": self.found.value.astype(np.float32), "player": self.player})


def player_of(robot: Robot, game: Game, simulations: int, gamma: float, n: int) -> Callable[[Sequence[Position]], list[int]]:
    """Return what search in a robot's model plays in up to n positions at once."""
    task, owner = robot.tasks["model"], Owner()
    first = task.row_slots.claim(owner, n * (simulations + 1))
    search = LatentSearch(lambda rows: task.act(rows, "test")[0], game.n_actions, simulations, gamma=gamma, players=2,
                          first=first)

    def played(positions: Sequence[Position], owner: Owner = owner) -> list[int]:
        obs = observed(positions)
        found = search.search(obs, obs["obs.mask"] > 0, np.array([one.player for one in positions]))
        return [int(action) for action in found.visits.argmax(1)]

    return played


class Config(PartsConfig, frozen=True, kw_only=True):
    """Networks and the arguments of tasks and agent are settings: `MuZero.lr`, `MuZeroAgent.simulations`, `LatentWorld.size`, ….

    Attributes:
        env: Which environment; `game` goes before it.
        game: Which game is played from both sides; 'none': none.
        eval_games: Games of an evaluation from each seat.
    """

    env: Env = Env(id="CartPole-v1")
    game: Literal["none", "tic-tac-toe", "connect-four"] = "none"
    eval_games: Positive = 100


DEFAULTS: dict[str, Any] = {
    "OffPolicyHelper.size": 100_000, "OffPolicyHelper.batch_size": 128, "OffPolicyHelper.learn_every": 4,
    "OffPolicyHelper.warmup": 1_000,
}


def build(config: Config) -> Robot:
    """Return the robot of a configuration.

    Raises:
        ConfigError: the environment is one of several players or environments.
    """
    parts = Parts(config.parts, DEFAULTS, config.__struct_fields__, Span(config.total_steps))
    game = None if config.game == "none" else GAMES[config.game]()
    source = env_of(config.env, parts) if game is None else partial(AllSeats, game)
    spaces, kind = probed(source)
    if kind not in (Agent, VectorAgent):
        raise ConfigError(f"Config: key 'env': {config.env.id} has several players; MuZero plays the games of key 'game'")
    if not isinstance(spaces["act"], gym.spaces.Discrete):
        raise ConfigError(f"Config: key 'env': {config.env.id} has actions {spaces['act']}, and MuZero is for Discrete ones; "
                          "wrap it (Discretize)")
    n, acts = int(spaces["act"].n), config.total_steps / config.n_agents
    world = Shared(LatentWorld, **spaces, **parts.args("", LatentWorld))
    size = parts.of("", LatentWorld)["size"]
    prediction = Shared(LatentPrediction, size, n, **parts.args("", LatentPrediction, skip=("size", "n_actions")))

    def task(name: str, algorithm: type[MuZero] | type[MuZeroModel], columns: Sequence[Spec], **net: Any) -> ComputationTask:
        where = f"tasks.{name}"
        helper, told = parts.args(where, OffPolicyHelper, acts=acts), parts.of(where, OffPolicyHelper)
        updates = config.total_steps * told["updates"] // (told["learn_every"] or 1)
        func = create_algorithm_func(MuZeroNet, {**spaces, "world": world, "prediction": prediction, **net}, algorithm,
                                     parts.args(where, algorithm, updates=updates))
        return ComputationTask(func, made_anew(OffPolicyHelper, {"extras": columns, **helper}), device=config.device,
                               **parts.args(where, ComputationTask, skip=("device",)))

    # The first task owns what both have, and what the second one only asks is learned by it.
    tasks = {"prediction": task("prediction", MuZero, search_columns(n), reward=None),
             "model": task("model", MuZeroModel, (), **parts.args("tasks.model", MuZeroNet))}
    gamma = parts.of("tasks.prediction", MuZero)["gamma"]
    agent = {**parts.args("", MuZeroAgent, updates=acts, skip=("gamma",)), "gamma": gamma}
    if game is None:
        return robot_with(config, source, tasks, partial(MuZeroAgent, **agent), parts=parts)
    simulations = parts.of("", MuZeroAgent)["simulations"]

    def score(robot: Robot, episodes: object) -> float:
        player = player_of(robot, game, simulations, gamma, 2 * config.eval_games)
        return not_lost(game, player, uniform, config.eval_games, seed=0)

    return robot_with(config, source, tasks, partial(MuZeroAgent, **agent), parts=parts, score=score)
