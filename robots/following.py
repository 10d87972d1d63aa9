"""FollowingAgent: an agent that follows something for a while, an option or a skill, and may show it beside the observation."""

from __future__ import annotations

from typing import Any

from parl_like.agents.agent import Agent


class FollowingAgent(Agent):
    """Plays an episode while it follows something; subclasses say what, and what tasks see. All helpers store every step."""

    def begin(self) -> None:
        """Choose what is followed from the next reset on. Default: nothing."""

    def shown(self, obs: Any) -> Any:
        """Return what tasks see of an observation. Default: itself."""
        return obs

    def choose(self, seen: Any) -> tuple[Any, Any]:
        """Return the environment's action, and the action of the row that is stored. Default: the first task's, for both."""
        act = next(iter(self.helpers.values())).predict(seen)
        return act, act

    def run_one_episode(self) -> None:
        helpers, step = list(self.helpers.values()), self.env.step
        self.begin()
        obs, _ = self.env.reset()
        seen, done = self.shown(obs), False
        while not done:
            act, kept = self.choose(seen)
            obs, rew, terminated, truncated, info = step(act)
            after = self.shown(obs)
            for helper in helpers:
                helper.store(seen, kept, rew, after, terminated, truncated, info)
            seen, done = after, terminated or truncated
