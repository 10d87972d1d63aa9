"""An agent that acts at two time resolutions: one task chooses goals, another one the actions that lead to them.

    goal    sees {obs, prev_goal}, gives a goal; one row per goal: the observation in which it was chosen, the rewards until it
            was left, the steps that took.
    RL      sees {obs, goal}, gives an action; one row per step.

Both tasks learn whenever their own helper says so, and nothing but the goal passes from one to the other. A robot with it
(`choose` and `follow` build algorithms over these observations, with `goal_space` and the environment's actions):

    tasks = {
        "goal": ComputationTask(choose, lambda: OffPolicyHelper(learn_every=1, batch_size=32, extras=GOAL_EXTRAS)),
        "RL": ComputationTask(follow, lambda: OnPolicyHelper(unroll=64)),
    }
    robot = Robot(make_env, agent=GoalAgent, tasks=tasks)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import gymnasium as gym
import numpy as np

from parl_like.agents.agent import Agent
from parl_like.agents.row_format import DURATION
from parl_like.values.spec import Spec


class Left(IntEnum):
    """Why a goal was left."""

    ACHIEVED = 0
    ABORTED = 1
    EPISODE_END = 2


GOAL_EXTRAS = (DURATION, Spec("left", (), np.dtype(np.int64), 0, 2))
"""`extras` of the helper of task 'goal': the steps that a goal took, by which algorithms discount, and why it was left
(`Left`)."""


@dataclass(slots=True)
class Followed:
    """The outcome of an action, or of a goal that was followed until it was left.

    Attributes:
        obs: The observation then. rew: Σ γᵏ r_k. duration: steps of the environment. left: why it was left.
        terminated, truncated: Whether the episode ended, and how.
    """

    obs: Any
    rew: float
    duration: int
    left: Left
    terminated: bool
    truncated: bool

    def extra(self) -> dict[str, int]:
        """Return the columns `GOAL_EXTRAS` of the goal's row."""
        return {"duration": self.duration, "left": int(self.left)}


class GoalAgent(Agent):
    """Chooses a goal, follows it for at least one step until it is achieved, aborted or the episode ends, and chooses the next.

    The goal's row has the reward Σ γᵏ r_k of its n steps and the duration n, so that its target is Σ γᵏ r_k + γⁿ V(s'): a
    semi-Markov decision process (Sutton, Precup & Singh 1999). A goal that is left open by an interruption leaves no row.

    To the worker, each goal is an episode of its own: achieved is an end (terminated), aborted a cut (truncated), and the next
    goal a new beginning. So the value of one goal never leaks into that of another. It sees the time limit of the environment as
    a cut, too.

    More levels are more of the same: with `below`, the task that follows a goal sets goals itself, which that one follows.
    Rows of the middle level have a duration then, so `GOAL_EXTRAS` belong to both helpers.

    Attributes:
        tasks: Who chooses goals, and who follows them. below: Another `GoalAgent`, whose first task is the second of these: it
            says when its goals are left, and what a step towards them is worth, and is no agent of the robot's. above: Whose
            `below` this one is.
        goal: The one that is followed; None: none was chosen yet.
        goal_horizon: Steps after which a goal is aborted; None: never.
        goal_gamma: γ per step inside a goal; None: that of the goal's own algorithm, 1 where it has none. 1 sums the rewards.
    """

    tasks: tuple[str, str] = ("goal", "RL")
    below: GoalAgent | None = None
    above: GoalAgent | None = None
    goal: Any = None
    goal_horizon: int | None = None
    goal_gamma: float | None = None

    def goal_achieved(self, obs: Any, goal: Any) -> bool:
        """Return whether `obs`, after a step towards it, is the goal. Default: equal to it."""
        return bool(np.array_equal(obs, goal))

    def aborted(self, obs: Any, goal: Any, steps: int) -> bool:
        """Return whether to give the goal up in `obs`, after `steps` steps. Default: at the horizon."""
        return self.goal_horizon is not None and steps >= self.goal_horizon

    def intrinsic_reward(self, obs: Any, goal: Any, obs_next: Any) -> float:
        """The worker's reward for the step from `obs` to `obs_next`. Default: 1 where it achieves the goal, else 0."""
        return float(self.goal_achieved(obs_next, goal))

    def goal_obs(self, obs: Any, prev_goal: Any) -> Any:
        """Return what the task that chooses goals sees."""
        return {"obs": obs, "prev_goal": prev_goal}

    def worker_obs(self, obs: Any, goal: Any) -> Any:
        """Return what the task that follows them sees."""
        return {"obs": obs, "goal": goal}

    def first_goal(self) -> Any:
        """The `prev_goal` of an episode's beginning: zero, or the first value of a Discrete space."""
        space = self.helpers[self.tasks[0]].model.act_space
        return int(space.start) if isinstance(space, gym.spaces.Discrete) else np.zeros(space.shape, space.dtype)

    def goal_name(self, goal: Any) -> str:
        """A goal in words, for captions."""
        return str(goal)

    def caption(self) -> str:
        if self.goal is None:
            return ""
        own = f"goal: {self.goal_name(self.goal)}   (chosen by task {self.tasks[0]!r})"
        return own if self.below is None else f"{own}   {self.below.caption()}".rstrip()

    def run_one_episode(self) -> None:
        self.goal = None
        obs, _ = self.env.reset()
        self._join()
        goal, done, chooser = self.first_goal(), False, self.helpers[self.tasks[0]]
        while not done:
            prev_goal, goal = goal, chooser.predict(self.goal_obs(obs, goal))
            step = self.follow(obs, goal)
            chooser.store(self.goal_obs(obs, prev_goal), goal, step.rew, self.goal_obs(step.obs, goal), step.terminated,
                          step.truncated, extra=step.extra())
            obs, done = step.obs, step.terminated or step.truncated

    def _join(self) -> None:
        """Give all levels below this agent's environment and helpers.

        Raises:
            ValueError: the tasks of two levels do not meet, or a level is another agent's, too.
        """
        upper = self
        while (lower := upper.below) is not None:
            if lower.tasks[0] != upper.tasks[1]:
                raise ValueError(f"{type(upper).__name__}: its tasks are {upper.tasks} and those of `below` {lower.tasks}; the "
                                 f"first task of `below` follows the goals here: expected {upper.tasks[1]!r}")
            if lower.above not in (None, upper):
                raise ValueError(f"{type(upper).__name__}: its `below` is another agent's, too; make one for each agent: "
                                 "agent=lambda: Upper(..., below=Lower(...))")
            lower.above, lower.env, lower.helpers = upper, self.env, self.helpers
            upper = lower

    def follow(self, start: Any, goal: Any) -> Followed:
        """Act under one goal until it is left, and store the rows of the task that follows it. Return what came of it."""
        chooser, worker, self.goal = self.helpers[self.tasks[0]], self.helpers[self.tasks[1]], goal
        gamma = float(getattr(chooser.task.algorithm, "gamma", 1.0)) if self.goal_gamma is None else self.goal_gamma
        obs, rew, scale, steps, left = start, 0.0, 1.0, 0, None
        while left is None:
            act = worker.predict(self.worker_obs(obs, goal))
            step, info = self.act(obs, act)
            rew, scale, steps = rew + scale * step.rew, scale * gamma**step.duration, steps + step.duration
            if self.goal_achieved(step.obs, goal):
                left = Left.ACHIEVED
            elif self.aborted(step.obs, goal, steps):
                left = Left.ABORTED
            elif step.terminated or step.truncated:
                left = Left.EPISODE_END
            worker.store(
                self.worker_obs(obs, goal), act, self.intrinsic_reward(obs, goal, step.obs), self.worker_obs(step.obs, goal),
                step.terminated or left == Left.ACHIEVED, step.truncated or left == Left.ABORTED, info,
                extra=None if self.below is None else step.extra(),
            )
            obs = step.obs
        return Followed(obs, rew, steps, left, step.terminated, step.truncated)

    def act(self, obs: Any, act: Any) -> tuple[Followed, Mapping[str, Any] | None]:
        """Do what the task that follows a goal has chosen: an action, or a goal of the level below. Return what came of it, and
        the info of a step."""
        if self.below is not None:
            return self.below.follow(obs, act), None
        obs_next, rew, terminated, truncated, info = self.env.step(act)
        return Followed(obs_next, rew, 1, Left.EPISODE_END, terminated, truncated), info
