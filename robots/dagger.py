"""DAgger, dataset aggregation (Ross, Gordon and Bagnell 2011): an agent goes where its policy leads, and stores what an expert
would do there.

    func = create_algorithm_func(MLPActorCritic, spaces, BC, {})
    tasks = {"RL": ComputationTask(func, OffPolicyHelper)}
    robot = Robot("CartPole-v1", agent=lambda: DAggerAgent(expert), tasks=tasks)

So the rows of the task's buffer are of states that the policy comes to, and none of these is new to what clones them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parl_like.agents.agent import Agent
from parl_like.values import plain
from parl_like.values.plain import State

Expert = Callable[[Any], Any]
"""Observation → the expert's action, both as the environment has them; such as `load_run("runs/expert").act`."""


class DAggerAgent(Agent):
    """Acts by its first task, and stores with each observation the action of an expert, in place of its own.

    In its i-th episode from 0 on the expert itself acts with probability β_i = decay^i in each step: in the first one always, as
    published. Evaluations have no expert.

    Args:
        expert: See above.
        decay: In [0, 1]; 0: the expert acts in the first episode alone.

    Raises:
        ValueError: decay is not in [0, 1].
    """

    def __init__(self, expert: Expert, decay: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"DAggerAgent: decay is {decay}; expected a number in [0, 1]")
        self.expert, self.decay, self.begun = expert, decay, 0

    def run_one_episode(self) -> None:
        helper = next(iter(self.helpers.values()))
        if helper.mode == "test":
            super().run_one_episode()
            return
        share, self.begun = self.decay**self.begun, self.begun + 1
        obs, _ = self.env.reset()
        over = False
        while not over:
            act, wanted = helper.predict(obs), self.expert(obs)
            after, rew, terminated, truncated, info = self.env.step(wanted if self.rng.random() < share else act)
            helper.store(obs, wanted, rew, after, terminated, truncated, info)
            obs, over = after, terminated or truncated

    def state_dict(self) -> State:
        """Return the state of an `Agent`, and how many episodes it has begun."""
        return {**super().state_dict(), "begun": self.begun}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave; raises as `Agent.load_state_dict`."""
        super().load_state_dict(state)
        self.begun = plain.whole(state["begun"])
