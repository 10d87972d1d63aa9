"""An agent that acts by the values of states: it looks one step ahead, and goes where the value is best.

    tasks = {"RL": ComputationTask(create_algorithm_func(VTable, spaces, TD, {"policy": None}), OnlineHelper)}
    robot = Robot(lambda: RandomWalk(), agent=ValueAgent, tasks=tasks)

The task learns values alone, without a policy of its own, and every step goes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from parl_like.agents.agent import Agent
from parl_like.algorithms.tables.dynamic_programming import FiniteModel, model_of
from parl_like.data.rng import rng_state

Value = Callable[[Any], float]
"""Observation → its value."""


class ValueAgent(Agent):
    """Acts by what its task predicts as `v` of states; override `choose` for another map from values to actions.

    The environment has Discrete actions from 0 on. Either it has a table that `model_of` knows, and observations are its states:
    then actions have their expected values. Or it has `clone_state` and `restore_state`, and each action is tried. That is for
    environments whose steps draw nothing from `np_random`, or else the agent would see what the real step will draw.

    Attributes:
        task: Name of the task that has the values. gamma: Discount of what follows.
        epsilon: Share of random actions; 0 in tests.
    """

    task, gamma, epsilon = "RL", 1.0, 0.1

    @cached_property
    def model(self) -> FiniteModel | None:
        """The table of the environment; None: it has none."""
        try:
            return model_of(self.env)
        except TypeError:
            return None

    def choose(self, env: Any, obs: Any, value: Value) -> int:
        """Return the first of the actions whose reward and next value are best in the state of `env` now, which `obs` shows.

        Raises:
            ValueError: `env` has no table, and a step draws random numbers.
        """
        return int(np.argmax(self._tried(env, value) if self.model is None else self._expected(self.model, int(obs), value)))

    def _expected(self, model: FiniteModel, state: int, value: Value) -> Any:
        values = np.zeros(len(model.start))
        for after in np.flatnonzero(model.moves[state].any(0)).tolist():
            values[after] = value(after)
        return model.rewards[state] + self.gamma * (model.moves[state] @ values)

    def _tried(self, env: Any, value: Value) -> list[float]:
        begin, worth = env.clone_state(), []
        for action in range(int(env.action_space.n)):
            before = rng_state(env.np_random)
            obs, rew, terminated, _, _ = env.step(action)
            drew = rng_state(env.np_random) != before
            env.restore_state(begin)
            if drew:  # the clone has the generator, so the real step would draw the same
                raise ValueError(f"{type(self).__name__}: a step of {env} draws random numbers, which a trial would foresee; "
                                 "expected an environment without chance, or one with a table (see model_of)")
            worth.append(rew + self.gamma * (0.0 if terminated else value(obs)))
        return worth

    def run_one_episode(self) -> None:
        helper, bare = self.helpers[self.task], self.env.unwrapped
        obs, _ = self.env.reset()
        done: Any = False
        while not done:
            if helper.mode != "test" and self.rng.random() < self.epsilon:
                action = int(self.rng.integers(int(bare.action_space.n)))  # type: ignore[attr-defined]
            else:
                action = self.choose(bare, obs, lambda state: float(helper.predict(state)["v"]))
            after, rew, terminated, truncated, info = self.env.step(action)
            helper.store(obs, action, rew, after, terminated, truncated, info)
            obs, done = after, terminated or truncated
