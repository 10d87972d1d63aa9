"""Agents of several players, each with a helper of its own: `TurnAgent` where they act by turns, `SimultaneousAgent` where all
act at once. They are short, and meant to be read: write yours like them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from parl_like.agents.agent import Agent
from parl_like.agents.helper import AgentHelper
from parl_like.environment.face import EnvFace
from parl_like.environment.players_face import PlayersFace
from parl_like.values.errors import AgentFailed


class PlayersAgent(Agent):
    """An agent of several players: who plays which role of which task.

    Args:
        roles: See `Agent.roles`; None: all players of the environment share each task.
        on_bad_value: See `Agent`.
    """

    parallel: bool | None = None  # whether all players act at once; None: either
    env: PlayersFace

    def __init__(self, roles: Mapping[str, Sequence[str]] | None = None, *,
                 on_bad_value: Literal["raise", "drop", "replace"] | None = None) -> None:
        super().__init__(on_bad_value=on_bad_value)
        if roles is not None:
            self.roles = roles

    def face_of(self, env: object) -> EnvFace:
        """Return the environment behind its face. Raises TypeError where its players do not act as this agent lets them."""
        face = super().face_of(env)
        if not isinstance(face, PlayersFace):
            raise TypeError(f"{self}: {type(self).__name__} is for environments of several players, as PettingZoo defines them, "
                            f"and {type(env).__name__} has one; use Agent")
        if self.parallel not in (None, face.parallel):
            other, turned = (("SimultaneousAgent", "pettingzoo.utils.parallel_to_aec(env)") if face.parallel else
                             ("TurnAgent", "pettingzoo.utils.aec_to_parallel(env)"))
            raise TypeError(f"{self}: the players of {type(env).__name__} act {'at once' if face.parallel else 'by turns'}, and "
                            f"{type(self).__name__} lets them act {'at once' if self.parallel else 'by turns'}; use {other}, or "
                            f"give {turned}")
        return face

    def actor(self, player: str) -> AgentHelper:
        """Return the helper that acts for a player: of the first task where it has a role. Override it for another choice, such
        as a task that does not learn.

        Raises:
            AgentFailed: it has none.
        """
        for helper in self.helpers.values():
            if helper.role == player:
                return helper
        raise AgentFailed(f"{self}: player {player!r} has no role at any task; name it in roles={{'task': ({player!r}, …)}}")


class TurnAgent(PlayersAgent):
    """Players that act by turns (AEC). A row is what a player saw at a turn, did, got until its next one, and saw then."""

    parallel = False

    def run_one_episode(self) -> None:
        """Act for each player in its turn, until the episode has ended for all."""
        env = self.env
        env.reset()
        for player in env.agent_iter():
            helper = self.actor(player)
            obs, rew, terminated, truncated, info = env.last()
            if (before := env.previous()) is not None:
                helper.store(*before, rew, obs, terminated, truncated, info)
            env.step(None if terminated or truncated else helper.predict(obs))


class SimultaneousAgent(PlayersAgent):
    """Players that act all at once (parallel)."""

    parallel = True

    def run_one_episode(self) -> None:
        """Act for all players that still play at once, until none does."""
        env = self.env
        obs, _ = env.reset()
        while env.agents:
            acts = {player: self.actor(player).predict(obs[player]) for player in env.agents}
            obs_next, rews, terminated, truncated, infos = env.step(acts)
            for player, act in acts.items():
                self.actor(player).store(obs[player], act, rews[player], obs_next[player], terminated[player], truncated[player],
                                         infos[player])
            obs = obs_next
