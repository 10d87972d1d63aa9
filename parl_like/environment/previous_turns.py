"""PreviousTurns: what each player of an environment with turns saw and did at its turn before, for the row that its next turn
ends; also over a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from parl_like.data.storage.state_check import check_count
from parl_like.environment.action_check import ActionCheck
from parl_like.environment.player_view import PlayerView
from parl_like.environment.players_env import ParallelEnv, Turn, TurnEnv
from parl_like.environment.resumed_episode import NothingWaits, check_observation
from parl_like.interfaces import ActingAgent


class _Face(Protocol):
    turns: dict[str, int]

    def view_of(self, player: str) -> PlayerView: ...


class PreviousTurns(NothingWaits):
    """The turns before, by player.

    Args:
        face: Of the environment, with its count of turns. env: That environment. agent: Whose helpers store the rows.

    Attributes:
        previous: Player → (observation, action) of its turn before.
    """

    def __init__(self, face: _Face, env: TurnEnv | ParallelEnv, agent: ActingAgent) -> None:
        self._face, self._env, self._agent = face, env, agent
        self.previous: dict[str, tuple[Any, Any]] = {}
        self._asked: Turn | None = None  # in which `of` was asked last

    def of(self, turn: Turn) -> tuple[Any, Any] | None:
        """Return what the player of this turn saw and did before; None: it is its first."""
        self._asked = turn
        return self.previous.get(turn.player)

    def forget(self) -> None:
        """Forget all: an episode begins."""
        self.previous, self._asked = {}, None

    def held(self) -> object:
        """Return the count of turns; and `rows`, of each player that waits for its next turn: observation, action, and what its
        helpers keep of the prediction. Who was told already what came of its action waits no more."""
        now = self._env.now if isinstance(self._env, TurnEnv) else None
        told = None if now is None or now is not self._asked else now.player
        helpers = self._agent.helpers.values()
        rows = {player: [obs, act, {one.title: one.acting.waiting(act) for one in helpers if one.role == player}]
                for player, (obs, act) in self.previous.items() if player != told}
        return {"turns": dict(self._face.turns), "rows": rows}

    def check(self, rows: Any) -> None:
        """Raise ValueError, SpecError or AgentFailed for what is nothing that `held` gives here."""
        players = self._env.players
        if not isinstance(rows, Mapping) or set(rows["turns"]) != set(players) or not set(rows["rows"]) <= set(players):
            raise ValueError(f"rows that wait: expected those of players among {', '.join(players)}, got {rows!r:.60}")
        for count in rows["turns"].values():
            check_count(count, "turns")
        for player, (obs, act, kept) in rows["rows"].items():
            view = self._face.view_of(player)
            check_observation(view, obs)
            ActionCheck(f"{self._agent}, player {player!r}", view.action_space).one(act)
            helpers = {one.title: one for one in self._agent.helpers.values() if one.role == player}
            if kept.keys() != helpers.keys():
                raise ValueError(f"rows that wait: {player} has {', '.join(kept)}; expected {', '.join(helpers)}")
            for title, one in helpers.items():
                one.acting.check_waiting(kept[title])

    def take(self, rows: Any) -> None:
        """Take back what `held` gave, which has been checked."""
        self._face.turns = dict(rows["turns"])
        for player, (obs, act, kept) in rows["rows"].items():
            self.previous[player] = obs, act
            for one in self._agent.helpers.values():
                if one.role == player:
                    one.acting.take_waiting(act, kept[one.title])
