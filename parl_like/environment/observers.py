"""Observers: whom an agent tells of the stages of its episodes."""

from __future__ import annotations

from collections.abc import Callable

from parl_like.environment.hooks import Hook, overridden
from parl_like.interfaces import ActingAgent


class Observers:
    """The calls of one agent's stages: those of its helpers, then those of the run's hooks.

    Attributes:
        pre_episode: Called with the agent. post_episode: with the agent and `interrupted`.
        pre_act: Called with the agent and its action. post_act: with the agent. These two lists stay the same objects, for an
            agent may wait in the middle of a step while its observers change.
        keep_info: Whether one of them keeps the info of a step, perhaps for long.
    """

    def __init__(self, agent: ActingAgent) -> None:
        self._agent = agent
        self.pre_episode: list[Callable[..., None]] = []
        self.pre_act: list[Callable[..., None]] = []
        self.post_act: list[Callable[..., None]] = []
        self.post_episode: list[Callable[..., None]] = []
        self.keep_info = False

    def renew(self, hooks: list[Hook]) -> None:
        """From now on the agent's helpers as they are, then `hooks`, hear of the stages."""
        in_turn, helpers = self._agent.agent_pool.in_turn, list(self._agent.helpers.values())
        self.pre_episode, self.pre_act[:], self.post_act[:], self.post_episode = (
            [*overridden(helpers, stage), *map(in_turn, overridden(hooks, stage))]
            for stage in ("pre_episode", "pre_act", "post_act", "post_episode"))
        self.keep_info = any(helper.store_info for helper in helpers)

    def catch_up(self, hooks: list[Hook]) -> None:
        """Tell hooks that come in the middle of an episode that it has begun."""
        for call in map(self._agent.agent_pool.in_turn, overridden(hooks, "pre_episode")):
            call(self._agent)
