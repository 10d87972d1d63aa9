"""An agent that acts by the values of states: it looks one step ahead, and goes where the value is best.

    tasks = {"RL": ComputationTask(create_algorithm_func(VTable, spaces, TD, {"policy": None}), OnlineHelper)}
    robot = Robot(lambda: RandomWalk(), agent=ValueAgent, tasks=tasks)

The task learns values alone, without a policy of its own, and every step goes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parl_like.agents.agent import Agent

Value = Callable[[Any], float]
"""Observation → its value."""


class ValueAgent(Agent):
    """Acts by what its task predicts as `v` of states; override `choose` for another map from values to actions.

    The environment has Discrete actions from 0 on, `clone_state` and `restore_state`, and forgets nothing by them.

    Attributes:
        task: Name of the task that has the values. gamma: Discount of what follows.
        epsilon: Share of random actions; 0 in tests.
    """

    task, gamma, epsilon = "RL", 1.0, 0.1

    def choose(self, env: Any, value: Value) -> int:
        """Return the first of the actions whose reward and next value are best, by trying each from the state of `env` now."""
        begin, worth = env.clone_state(), []
        for action in range(int(env.action_space.n)):
            obs, rew, terminated, _, _ = env.step(action)
            worth.append(rew + self.gamma * (0.0 if terminated else value(obs)))
            env.restore_state(begin)
        return max(range(len(worth)), key=worth.__getitem__)

    def run_one_episode(self) -> None:
        helper, bare = self.helpers[self.task], self.env.unwrapped
        obs, _ = self.env.reset()
        done: Any = False
        while not done:
            if helper.mode != "test" and self.rng.random() < self.epsilon:
                action = int(self.rng.integers(int(bare.action_space.n)))  # type: ignore[attr-defined]
            else:
                action = self.choose(bare, lambda state: float(helper.predict(state)["v"]))
            after, rew, terminated, truncated, info = self.env.step(action)
            helper.store(obs, action, rew, after, terminated, truncated, info)
            obs, done = after, terminated or truncated
