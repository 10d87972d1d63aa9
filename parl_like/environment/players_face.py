"""PlayersFace: an environment of several players as agents know it, with turns (AEC) or parallel, as PettingZoo defines them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from parl_like.environment.action_check import ActionCheck
from parl_like.environment.face import ENDED, EnvFace
from parl_like.environment.player_view import PlayerView, takes_turns
from parl_like.environment.players_env import ParallelEnv, PlayersEnv, Turn, TurnEnv
from parl_like.environment.previous_turns import PreviousTurns
from parl_like.environment.value_check import OutputCheck
from parl_like.interfaces import ActingAgent
from parl_like.values.errors import AgentFailed, unknown
from parl_like.values.spec import Space, Spec


class PlayersCheck(OutputCheck):
    """The check of what several players see and get: of each by its own space.

    Args:
        views: By player.
    """

    def __init__(self, env: PlayersEnv, on_bad_value: Literal["raise", "drop", "replace"]) -> None:
        super().__init__(env, on_bad_value)
        self._of = {player: OutputCheck(view, on_bad_value) for player, view in env.views.items()}
        self.rewards = Spec("rew", (len(env.players),), np.dtype(np.float64))

    def observation(self, obs: Mapping[str, object]) -> Any:  # type: ignore[override]
        seen = {player: self._of[player].observation(part) for player, part in obs.items()}
        return obs if all(seen[player] is part for player, part in obs.items()) else seen

    def value(self, spec: Spec, value: object) -> Any:
        return value if spec is self.rewards and np.ndim(value) == 0 else super().value(spec, value)  # type: ignore[arg-type]


class PlayersFace(EnvFace):
    """An environment of several players behind a face that everything passes, with the methods that PettingZoo's have: with turns
    `agent_iter`, `last` and `step(action)`, parallel `reset` and `step(actions)`, which give dicts by player. Any other attribute
    is the environment's own.

    One step of it is one player's action, or with `parallel` that of all who are there. Its reward is a vector, in the order of
    `players`, and so is the return of an episode.

    A player's observation with a legal mask is `obs` and `mask`, see `PlayerView`. What a player got before it has acted at all
    counts to its first row.

    Attributes:
        players: All names that may ever be there, in the order of the vectors.
        parallel: Whether all act at once.
        last_step: (observations, actions, rewards [n], terminated, truncated, info) of the last step, the first two by player:
            of who is to act now or has left with this step, and of who acted. Actions are None after a reset.
        turns: How many actions each player has taken in this episode.
    """

    owes_rows = True
    _env: Any  # a PlayersEnv

    def __init__(self, env: object, agent: ActingAgent) -> None:
        made: TurnEnv | ParallelEnv = TurnEnv(env) if takes_turns(env) else ParallelEnv(env)
        super().__init__(made, agent)  # type: ignore[arg-type]
        for name in ("observation_space", "action_space"):
            del vars(self)[name]  # methods here
        self.parallel = isinstance(made, ParallelEnv)
        self.players = made.players
        self.turns = dict.fromkeys(made.players, 0)
        self._output = PlayersCheck(made, agent.on_bad_value)
        self._checks = {name: ActionCheck(f"{agent}, player {name!r}", view.action_space) for name, view in made.views.items()}
        self._rows = self.carried.waiting = PreviousTurns(self, made, agent)
        self.observe([])

    # --------------------------------------------------------------------------------------------------------- who is there

    @property
    def agents(self) -> list[str]:
        """Return the players that are there: who act, and who have a last turn to take."""
        alive: list[str] = self._env.alive
        return alive

    def view_of(self, player: str) -> PlayerView:
        """Return how one player sees the environment. Raises KeyError where there is none of this name."""
        if player not in self._env.views:
            raise KeyError(f"{self._agent}: its environment: {unknown('player', player, self.players)}")
        view: PlayerView = self._env.views[player]
        return view

    def observation_space(self, player: str) -> Space:
        """Return the space of one player's observations."""
        space: Space = self.view_of(player).observation_space
        return space

    def action_space(self, player: str) -> Space:  # type: ignore[override]
        """Return the space of one player's actions."""
        space: Space = self.view_of(player).action_space
        return space

    def returns(self) -> dict[str, float]:
        """Return each player's return of the running, or just finished, episode."""
        total = np.broadcast_to(np.asarray(self.episode_return, np.float64), (len(self.players),))
        return dict(zip(self.players, total.tolist(), strict=True))

    # ------------------------------------------------------------------------------------------------------------- by turns

    @property
    def agent_selection(self) -> str:
        """Return whose turn it is: who leaves comes first. Raises AgentFailed where the episode is over."""
        return self._turn().player

    def _turn(self) -> Turn:
        if self.parallel:
            raise AgentFailed(f"{self._agent}: the players of its environment act at once; use reset() and step(actions), or "
                              "give pettingzoo.utils.parallel_to_aec(env)")
        turn: Turn | None = self._env.leaving[0] if self._env.leaving else self._env.now
        if turn is None:
            raise AgentFailed(f"{self._agent}: the episode of its environment is over, or has not begun; call reset() first")
        return turn

    def agent_iter(self, max_iter: int = 2**63) -> Iterator[str]:
        """Yield whose turn it is, until nobody is left. Each turn takes one `step`.

        Raises:
            AgentFailed: a turn was left without a step.
        """
        for _ in range(max_iter):
            if not self._env.alive:
                return
            turn = self._turn()
            yield turn.player
            if self._env.alive and turn is self._turn():
                raise AgentFailed(f"{self._agent}: the turn of {turn.player!r} was left without step(action); a turn takes one "
                                  "step, of None where the player is done")

    def last(self) -> tuple[Any, float, bool, bool, Mapping[str, object]]:
        """Return the turn of who is to act: observation, reward since its turn before, terminated, truncated, info."""
        turn = self._turn()
        return turn.obs, turn.reward, turn.terminated, turn.truncated, turn.info

    def previous(self) -> tuple[object, object] | None:
        """Return (observation, action) of this player's turn before, of which `last` tells what came of it; None: this is its
        first. Who asks stores that row: where a checkpoint comes before the turn's step, it is not told again."""
        return self._rows.of(self._turn())

    # ----------------------------------------------------------------------------------------------------------------- steps

    def step(self, act: Any) -> Any:
        """Take one player's action, None where it is done; or the actions of all who are there, a dict by player.

        Returns:
            Parallel: observations, rewards, terminations, truncations and infos by player: of who acted, observations also of who
            is there now. With turns: None, see `last`.

        Raises:
            AgentFailed: the game has not begun or is over, or the environment raised or returned what cannot be.
        """
        env = self._env
        if self.parallel:
            if act.keys() != set(env.alive):
                there = ", ".join(env.alive) or "nobody, for the episode is over; call reset() first"
                raise AgentFailed(f"{self._agent}: there are actions of {', '.join(act) or 'nobody'}; expected one of each who "
                                  f"is there: {there}")
            for player, one in act.items():
                self._checks[player].one(one)
            obs: Any = self._take(super().step(act), act)
            turns = env.turns
            for player in obs.keys() - act.keys():
                self._begins(player)
            return (obs, {p: turn.reward for p, turn in turns.items()}, {p: turn.terminated for p, turn in turns.items()},
                    {p: turn.truncated for p, turn in turns.items()}, {p: turn.info for p, turn in turns.items()})
        turn = self._turn()
        if turn.is_last:
            if act is not None:
                raise AgentFailed(f"{self._agent}: {turn.player!r} is done, and takes the action {act!r}; expected None")
            env.leaving.popleft()
            self._rows.previous.pop(turn.player, None)
            if env.now is not None:
                self._begins(turn.player)  # where it comes back into this game
            return None
        self._checks[turn.player].one(act)
        self._take(super().step({turn.player: act}), (turn.player,))
        self._rows.previous[turn.player] = turn.obs, act
        return None

    def _take(self, given: tuple[Any, ...], players: Iterable[str]) -> object:
        """Count a step of these players; return the observations."""
        self._env.take(given[0], given[1])
        for player in players:
            self.turns[player] += 1
        return given[0]

    def _begins(self, player: str) -> None:
        """Let a player forget what it saw in this episode before it left."""
        for helper in self._agent.helpers.values():
            if helper.role == player:
                helper.acting.begin(0)

    def _begin(self, obs: object, info: dict[str, object]) -> None:
        self.turns = dict.fromkeys(self.players, 0)
        self._rows.forget()
        self._env.take(obs, 0.0)
        super()._begin(obs, info)
        self.episode_return = self._env.begun.copy()

    def end_episode(self) -> None:
        """Fire POST_EPISODE as `EnvFace.end_episode`. Last rows come after the step that ends the episode: where the agent has
        left before it stored all, those players' rows get a cut, too."""
        if self._phase is ENDED:
            self._agent.cut()
        super().end_episode()

    @property
    def cut_short(self) -> int:  # type: ignore[override]
        """Return how many episodes `limit` has ended."""
        return self._env.cut_short  # type: ignore[no-any-return]

    def limit(self, steps: int) -> None:
        self._env.limit = steps
