"""NFSP, neural fictitious self-play (Heinrich & Silver 2016): a task learns the best response to what players do on average, and
a second task learns that average.

    best      DQN on the steps of whoever plays by it or not, against all others: Q → the best response to their average policies
    average   maximum likelihood of what best responses do, an even sample of all times: Π → their average

In each game every player follows its best response with probability η, else the average. The average policy comes near an
equilibrium of a game for two with a sum of 0. The score of an evaluation is −`nash_conv` of the average policy.

Differences:
    - All players share both tasks, for observations say whose they are; in the paper each has networks of its own.
    - The average learns what the best response would do without exploring; in the paper what it did. So ε may be large, 0.5 to
      0.1; the paper's begins at 0.06.
    - η is 0.25; the paper's is 0.1.
    - Adam and double Q-learning; the paper has gradient descent and plain Q-learning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta

from parl_like.agents.agent import Agent
from parl_like.agents.off_policy import OffPolicyHelper
from parl_like.agents.reservoir import ReservoirHelper
from parl_like.algorithms.bc import BC
from parl_like.algorithms.dqn import DQN
from parl_like.algorithms.games import nash_conv
from parl_like.envs.games import Game, Kuhn, Leduc, LiarsDice, State
from parl_like.envs.games.all_seats import AllSeats
from parl_like.learning.device_copy import send
from parl_like.learning.factory import create_algorithm_func
from parl_like.learning.span import Span
from parl_like.models.mlp import MLPQ, MLPActorCritic
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import PartsConfig, made_anew, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.tasks.task import ComputationTask
from parl_like.values.spec import Array

GAMES: dict[str, Callable[[], Game]] = {"leduc": Leduc, "liars-dice": LiarsDice}
DEFAULTS: dict[str, Any] = {
    "DQN.n_step": 1, "DQN.gamma": 1.0, "DQN.target_period": 300, "DQN.lr": 1e-3,
    "DQN.epsilon": {"start": 0.5, "end": 0.1}, "BC.lr": {"start": 1e-3, "end": 0.0},
    "OffPolicyHelper.size": 100_000, "OffPolicyHelper.batch_size": 128, "OffPolicyHelper.learn_every": 8,
    "OffPolicyHelper.warmup": 1_000, "ReservoirHelper.size": 50_000, "ReservoirHelper.batch_size": 128,
    "ReservoirHelper.learn_every": 8, "ReservoirHelper.warmup": 128,
}


class Config(PartsConfig, frozen=True, kw_only=True):
    """The networks and both tasks' arguments are settings: `DQN.lr`, `ReservoirHelper.size`, `tasks.average.BC.lr`, ….

    Attributes:
        game: Which one is played.
        players: Of Kuhn poker.
        eta: η, the share of games in which a player follows its best response.
    """

    game: Literal["kuhn", "leduc", "liars-dice"] = "kuhn"
    players: Annotated[int, Meta(ge=2, le=9)] = 2
    eta: Annotated[float, Meta(gt=0, le=1)] = 0.25


class NFSPAgent(Agent):
    """Plays all players of a game, each by its best response or by the average.

    Args:
        eta: How often by the best response.
    """

    def __init__(self, eta: float) -> None:
        self.eta = eta

    def run_one_episode(self) -> None:
        best, average = self.helpers["best"], self.helpers["average"]
        obs, info = self.env.reset()
        by_best = (self.rng.random(self.env.game.n_players) < self.eta) & (best.mode != "test")
        last: dict[int, tuple[Any, Any]] = {}  # player → what it saw and did in its last turn
        done = False
        while not done:
            player = info["player"]
            if player in last:
                best.store(*last[player], 0.0, obs, False, False)
            if by_best[player]:
                act = best.predict(obs)
                response = int(best.outputs["q"].argmax())  # what it would do if it did not explore
                average.store(obs, response, 0.0, obs, False, False)
            else:
                act = average.predict(obs)
            last[player] = obs, act
            obs, _, done, _, info = self.env.step(act)
        # What a player gets, it gets at the end; no two utilities are further apart than 1, where DQN's loss is not squared any
        # more and so does not go to a mean.
        low, high = self.env.game.utility_range
        for player, (seen, act) in last.items():
            best.store(seen, act, info["returns"][player] / (high - low), obs, True, False)


def average_policy(robot: Robot) -> Any:
    """The average policy of a robot, as a policy of game states."""
    task = robot.tasks["average"]
    model = task.algorithm.model

    @torch.no_grad()
    def policy(state: State) -> Array:
        obs = send({"obs": state.tensor()[None], "mask": state.mask()[None]}, task.device)
        out: Array = model.policy(obs)[0]["logits"].double().softmax(-1)[0].cpu().numpy()
        return out

    return policy


def build(config: Config) -> Robot:
    parts = Parts(config.parts, DEFAULTS, config.__struct_fields__, Span(config.total_steps))
    game = Kuhn(config.players) if config.game == "kuhn" else GAMES[config.game]()
    game.traits.require("NFSP", reward="terminal", chance=("deterministic", "explicit"), styles=("key", "tensor"))
    source = partial(AllSeats, game)
    spaces, _ = probed(source)

    def task(name: str, model: type, algorithm: type, helper: type, share: float) -> ComputationTask:
        """One that learns from a share of all rows."""
        where = f"tasks.{name}"
        args = parts.args(where, helper, acts=config.total_steps / config.n_agents)
        updates = config.total_steps * share / parts.of(where, helper)["learn_every"]
        func = create_algorithm_func(model, {**spaces, **parts.args(where, model)}, algorithm,
                                     parts.args(where, algorithm, updates=updates))
        return ComputationTask(func, made_anew(helper, args), device=config.device,
                               **parts.args(where, ComputationTask, skip=("device",)))

    tasks = {"best": task("best", MLPQ, DQN, OffPolicyHelper, 1.0),
             "average": task("average", MLPActorCritic, BC, ReservoirHelper, config.eta)}

    def score(robot: Robot, episodes: object) -> float:
        return -nash_conv(game, average_policy(robot))

    return robot_with(config, source, tasks, partial(NFSPAgent, config.eta), parts=parts, score=score)
