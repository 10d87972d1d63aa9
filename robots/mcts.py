"""Search with the true environment: no task and no network, an agent alone, which looks ahead before each action.

The agent keeps states of its environment (`clone_state`, see docs/search.md), takes actions in a second one from there, and
judges where they lead by random actions to a depth. It learns nothing, so an episode is as good as the last one; an environment's
chance is in its state, so search sees what it will do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents.agent import Agent
from parl_like.algorithms.search.tree import Evaluation, Leaves, SearchRule, SearchTree
from parl_like.envs.thinker.snapshots import CopiedEnvs, EnvSnapshots
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.span import Span
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import Env, PartsConfig, env_of, probed, robot_with
from parl_like.run.robot import Robot
from parl_like.values.spec import Array


class MCTSAgent(Agent):
    """Takes the action that search by UCT has visited most.

    Args:
        simulations: Of each action.
        depth: Steps of a random continuation; 0: states are worth nothing in themselves.
        playouts: Random continuations of each new state.
        exploration: c, see `parl_like.algorithms.search.tree`; values are normalised, so it is in units of the span of returns.
        gamma: γ.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(self, simulations: int = 100, *, depth: int = 50, playouts: int = 1, exploration: float = 1.0,
                 gamma: float = 0.99) -> None:
        super().__init__()
        if simulations < 1 or depth < 0 or playouts < 1:
            raise ValueError(f"MCTSAgent: simulations is {simulations}, depth {depth} and playouts {playouts}; expected at least "
                             "1, 0 and 1")
        self.simulations, self.depth, self.playouts = simulations, depth, playouts
        self.rule = SearchRule("uct", exploration, gamma=gamma, normalize=True)

    def join(self, make: Callable[[], Any]) -> None:
        """Make the environment, and one in which search acts.

        Raises:
            TypeError: its actions are no choice, or it can be neither cloned nor copied.
        """
        made: list[Any] = []

        def one() -> Any:
            made.append(make())
            return made[0]

        super().join(one)
        space = self.env.action_space
        if not isinstance(space, gym.spaces.Discrete):
            raise TypeError(f"{self}: MCTSAgent is for Discrete actions, and {made[0]} has {space}; wrap it "
                            "(parl_like.envs.wrappers.Discretize)")
        slots = self.simulations + 3
        sim = make()
        self.snapshots: EnvSnapshots | CopiedEnvs
        try:
            self.snapshots = EnvSnapshots(made, slots, sim)
        except TypeError:  # it does not say what it remembers
            sim.close()
            self.snapshots = CopiedEnvs(made, slots)
        self.start, self.spare = int(space.start), slots - 2  # two slots that continuations go through by turns
        self.tree = SearchTree(1, int(space.n), self.simulations, self.rule)

    def run_one_episode(self) -> None:
        """Search before each action, until the episode ends."""
        self.env.reset()
        done = False
        while not done:
            self.agent_pool.driver.rest(self)  # it asks no task, and others want their turn
            self.obey()
            _, _, terminated, truncated, _ = self.env.step(self.best())
            done = terminated or truncated

    def best(self) -> int:
        """Return the action that is visited most from the environment's present state."""
        self.snapshots.take(np.zeros(1, np.int64))
        self.tree.begin(np.zeros((1, self.tree.n_actions)), np.array([self.continued(0)]))
        return self.start + int(self.tree.run(self.simulations, self.evaluate).visits[0].argmax())

    def evaluate(self, leaves: Leaves) -> Evaluation:
        """Step from the state of the parent, and judge where that leads."""
        _, reward, done = self.snapshots.step(leaves.parent, leaves.node, leaves.action + self.start)
        value = 0.0 if done[0] else self.continued(int(leaves.node[0]))
        return Evaluation(reward, done, np.array([value]), np.zeros((1, self.tree.n_actions)))

    def continued(self, node: int) -> float:
        """Return the mean return of random continuations from the state of a node."""
        total = 0.0
        for _ in range(self.playouts if self.depth else 0):
            at, scale = node, 1.0
            for step, act in enumerate(self.rng.integers(self.tree.n_actions, size=self.depth).tolist()):
                to = self.spare + step % 2
                _, reward, done = self.snapshots.step(*_numbers(at, to, act + self.start))
                total, scale, at = total + scale * float(reward[0]), scale * self.rule.gamma, to
                if done[0]:
                    break
        return total / self.playouts


def _numbers(*values: int) -> tuple[Array, ...]:
    """One array [1] for each value."""
    return tuple(np.array([value]) for value in values)


class Config(PartsConfig, frozen=True, kw_only=True):
    """The arguments of `MCTSAgent` are settings: `simulations`, `MCTSAgent.gamma`, …."""

    env: Env = Env(id="FrozenLake-v1", options={"is_slippery": False})


def build(config: Config) -> Robot:
    """Return the robot of a configuration.

    Raises:
        ConfigError: the environment is one of several players or environments.
    """
    parts = Parts(config.parts, {}, config.__struct_fields__, Span(config.total_steps))
    source = env_of(config.env, parts)
    _, agent = probed(source)
    if agent is not Agent:
        raise ConfigError(f"Config: key 'env': {config.env.id} is no single environment of one player, which search acts in")
    return robot_with(config, source, {}, partial(MCTSAgent, **parts.args("", MCTSAgent)), parts=parts)
