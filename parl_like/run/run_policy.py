"""run_policy: a plain function acts in an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from parl_like.agents.agent import Agent
from parl_like.environment.factory import EnvSource, is_made
from parl_like.environment.hooks import Hook
from parl_like.environment.stop_conditions import StopAfterEpisodes, StopCondition
from parl_like.run.robot import Robot


def run_policy(
    policy: Callable[[Any], object], env: EnvSource, stop: StopCondition | None = None, hooks: Hook | Iterable[Hook] = (), *,
    seed: int = 0,
) -> None:
    """Runs a plain function observation → action, without tasks or learning: `run_policy(lambda obs: 0, "CartPole-v1")`.

    Args:
        stop: None: after one episode.
        env: As for `Robot`; spaces are not needed. An environment itself is not closed.
    """

    class PolicyAgent(Agent):
        def run_one_episode(self) -> None:
            obs, _ = self.env.reset()
            while not self.env.is_over:
                obs = self.env.step(policy(obs))[0]

    with Robot(env, tasks={}, agent=PolicyAgent, seed=seed) as robot:
        robot.pool.borrowed = is_made(env)
        robot.run(StopAfterEpisodes(1) if stop is None else stop, hooks)
