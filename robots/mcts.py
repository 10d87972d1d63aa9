"""Search with the true environment: no task and no network, an agent alone, which looks ahead before each action.

The agent keeps states of its environment (`clone_state`, see docs/recipes/planning.md), takes actions in a second one from
there, and judges where they lead by random actions to a depth. It learns nothing, so an episode is as good as the last one;
an environment's chance is in its state, so search sees what it will do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents.agent import Agent
from parl_like.algorithms.search.tree import Evaluation, Leaves, SearchRule, SearchTree
from parl_like.envs.thinker.snapshots import CopiedEnvs, EnvSnapshots, copied_env
from parl_like.lab.yaml_text import ConfigError
from parl_like.learning.explorers.base import legal
from parl_like.learning.span import Span
from parl_like.models.heads import mask_key
from parl_like.robots.settings import Parts
from parl_like.robots.spaces import Env, PartsConfig, env_of, probed, robot_with
from parl_like.run.robot import Robot


class MCTSAgent(Agent):
    """Takes the action that search by UCT has visited most. Where the observation has a `mask`, search and random continuations
    take the actions alone that it allows.

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
            TypeError: its actions are no choice, or it can be neither cloned nor copied. ValueError: its `mask` is none of its
                actions.
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
        seen = self.env.observation_space
        self.mask = None if seen is None else mask_key(seen, space)
        slots = self.simulations + 3
        sim = make()
        if sim.unwrapped is made[0].unwrapped:  # the robot has one environment, and search shall not act in it
            sim = copied_env(sim)
        self.snapshots: EnvSnapshots | CopiedEnvs
        try:
            self.snapshots = EnvSnapshots(made, slots, sim)
        except TypeError:  # it does not say what it remembers
            sim.close()
            self.snapshots = CopiedEnvs(made, slots)
            self.snapshots.take(np.zeros(1, np.int64))  # to be found out now
        self.start, self.spare = int(space.start), slots - 2  # two slots that continuations go through by turns
        self.tree = SearchTree(1, int(space.n), self.simulations, self.rule)
        self._legal = np.ones((slots, int(space.n)), bool)  # of the states in all slots

    def run_one_episode(self) -> None:
        """Search before each action, until the episode ends."""
        obs, _ = self.env.reset()
        done = False
        while not done:
            self.agent_pool.driver.rest(self)  # it asks no task, and others want their turn
            self.obey()
            obs, _, terminated, truncated, _ = self.env.step(self.best(obs))
            done = terminated or truncated

    def best(self, obs: Any) -> int:
        """Return the action that is visited most from the environment's present state, which shows `obs`."""
        self.snapshots.take(np.zeros(1, np.int64))
        self._see(0, obs)
        value = np.array([self.continued(0)])
        self.tree.begin(np.zeros((1, self.tree.n_actions)), value, legal=self._legal[:1])
        return self.start + int(self.tree.run(self.simulations, self.evaluate).visits[0].argmax())

    def evaluate(self, leaves: Leaves) -> Evaluation:
        """Step from the state of the parent, and judge where that leads."""
        parent, node, action = int(leaves.parent[0]), int(leaves.node[0]), int(leaves.action[0])
        reward, done = self._go(parent, node, action)
        value = 0.0 if done else self.continued(node)
        return Evaluation(np.array([reward]), np.array([done]), np.array([value]), np.zeros((1, self.tree.n_actions)),
                          legal=self._legal[node : node + 1])

    def continued(self, node: int) -> float:
        """Return the mean return of random continuations from the state of a node."""
        total = 0.0
        for _ in range(self.playouts if self.depth else 0):
            at, scale = node, 1.0
            drawn = self.rng.integers(self.tree.n_actions, size=self.depth) if self.mask is None else self.rng.random(self.depth)
            for step, number in enumerate(drawn.tolist()):
                to = self.spare + step % 2
                if self.mask is not None:
                    allowed = self._legal[at].nonzero()[0]
                    number = int(allowed[int(number * len(allowed))])
                reward, done = self._go(at, to, number)
                total, scale, at = total + scale * reward, scale * self.rule.gamma, to
                if done:
                    break
        return total / self.playouts

    def _go(self, parent: int, child: int, action: int) -> tuple[float, bool]:
        """Step from the state in a slot by an action from 0, and return the reward and whether the episode has ended."""
        obs, reward, done = self.snapshots.gone(parent, child, action + self.start)
        self._see(child, obs)
        return reward, done

    def _see(self, slot: int, obs: Any) -> None:
        """Note what the observation of the state in a slot allows."""
        if self.mask is not None:
            self._legal[slot] = legal(np.asarray(obs[self.mask]))


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
