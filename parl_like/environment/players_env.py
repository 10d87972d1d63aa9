"""Environments of several players, as PettingZoo defines them, in the form of gymnasium: an observation and an action are dicts
by player, a reward is a vector. `PlayersFace` shows them to agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from inspect import getattr_static
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from parl_like.environment.player_view import PlayerView
from parl_like.environment.value_check import PlayersOutput
from parl_like.values.spec import Array, Info

ByPlayer: TypeAlias = dict[str, Any]
"""Player → what it observes, or its info."""

_WRAPPERS = "pettingzoo.utils.wrappers."
STATELESS = {_WRAPPERS + name for name in (
    "base.BaseWrapper", "base_parallel.BaseParallelWrapper", "order_enforcing.OrderEnforcingWrapper",
    "assert_out_of_bounds.AssertOutOfBoundsWrapper", "clip_out_of_bounds.ClipOutOfBoundsWrapper",
    "capture_stdout.CaptureStdoutWrapper")}
"""Wrappers of PettingZoo that remember nothing once they were reset: exactly these classes, for a subclass may remember more."""


def _name(layer: object) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def keeper(env: Any) -> Any:
    """Return the outermost layer of an environment that knows the state of all within: those around it remember nothing. A
    wrapper passes on the methods of what it wraps, so only those of its own class count.

    Raises:
        TypeError: what a layer remembers is not known.
    """
    while _name(env) in STATELESS:
        env = env.env
    if any(getattr_static(env, method, None) is None for method in ("clone_state", "restore_state")):
        raise TypeError(f"clone_state: what {_name(env)} remembers is not known; give it the methods clone_state and "
                        "restore_state, about itself and what it wraps")
    return env


class Turn(NamedTuple):
    """A player's turn: what it is shown then; the flags and the info are its own.

    Attributes:
        given: The reward since its turn before. early: what it got before it had acted at all, for the row of its first action.
        first: Whether it has not acted yet.
    """

    player: str
    obs: Any
    given: float
    early: float
    first: bool
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]

    @property
    def reward(self) -> float:
        """Return the reward of the player's row that this turn ends. A first turn ends none: what came before counts to the
        first row, unless there is none."""
        return 0.0 if self.first and not self.is_last else self.given + self.early

    @property
    def is_last(self) -> bool:
        """Return whether the player leaves the game with it."""
        return self.terminated or self.truncated


class PlayersEnv(ABC):
    """The part that environments with turns and parallel ones share. What is not here is the environment's own.

    Args:
        env: The environment; its `possible_agents` are all players that may ever be there.

    Attributes:
        players: Their names, in this order in every vector. views: By player.
        limit: Steps after which an episode is cut off that has not ended; None: no bound.
        cut_short: Episodes that the limit has ended.
        begun: [n] float64, what players got before anybody acted.

    Raises:
        TypeError: a name is no text.
    """

    observation_space = action_space = None  # there is one for each player, see `views`

    def __init__(self, env: Any) -> None:
        self.env = env
        self.players: tuple[str, ...] = tuple(env.possible_agents)
        if other := [name for name in self.players if not isinstance(name, str)]:
            raise TypeError(f"{env}: the players' names are {other!r:.100}; expected texts, for roles are named by them")
        self.views = {player: PlayerView(env, player) for player in self.players}
        self.limit: int | None = None
        self.cut_short = 0
        self.begun = np.zeros(len(self.players))
        self._steps = 0
        self._early: dict[str, float] = {}  # what players got before an action of theirs, for their first row

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["env"], name)

    @property
    def unwrapped(self) -> Any:
        """The environment without its wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    @abstractmethod
    def alive(self) -> list[str]:
        """Return who is still in the game, or has a last turn to take."""

    @abstractmethod
    def take(self, obs: Mapping[str, object], rewards: object) -> None:
        """Take what became of the observations, and of the rewards [n] or 0, of the newest step: copies, and mended values."""

    def _taken(self, turn: Turn, obs: Mapping[str, object], rewards: Any) -> Turn:
        given = float(rewards[self.players.index(turn.player)]) if np.ndim(rewards) else turn.given
        return turn._replace(obs=obs[turn.player], given=given)

    def _is_late(self) -> bool:
        """Count a step; return whether the episode is to be cut off with it."""
        self._steps += 1
        return self.limit is not None and self._steps >= self.limit

    def _vector(self, rewards: Mapping[str, float]) -> Array:
        return np.array([rewards.get(player, 0.0) for player in self.players], np.float64)

    def clone_state(self) -> Info:
        """Everything that what comes next depends on. Raises TypeError where what the environment or a wrapper of it remembers
        is not known."""
        return {"env": keeper(self.env).clone_state(), "steps": self._steps, "early": dict(self._early)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        keeper(self.env).restore_state(state["env"])
        self._steps, self._early = state["steps"], dict(state["early"])


class TurnEnv(PlayersEnv):
    """An AEC environment. A step is one player's action, with all that comes until another one is to act: players who leave the
    game take their last turns (`leaving`) in it.

    The reward of a step is what was shown in it: to who is to move next, and to those who leave. So a player's rewards add up to
    what its turns have shown.

    Attributes:
        leaving: Last turns that the agent has not looked at yet. now: The turn of who is to act; None: the episode is over.
    """

    def __init__(self, env: object) -> None:
        super().__init__(env)
        self.leaving: deque[Turn] = deque()
        self.now: Turn | None = None
        self._acted: set[str] = set()

    @property
    def alive(self) -> list[str]:
        there = [] if self.now is None else list(self.env.agents)
        return [player for player in self.players if player in there or any(turn.player == player for turn in self.leaving)]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[ByPlayer, ByPlayer]:
        """Begin an episode; return the observation of who acts first, by its name."""
        self.env.reset(seed=seed, options=options)
        self._steps, self._early, self._acted = 0, {}, set()
        obs, self.begun, _, _, info = self._look()
        return obs, info

    def take(self, obs: Mapping[str, object], rewards: object) -> None:
        self.now = None if self.now is None else self._taken(self.now, obs, rewards)
        self.leaving = deque(self._taken(turn, obs, rewards) for turn in self.leaving)

    def step(self, acts: Mapping[str, Any]) -> tuple[ByPlayer, Array, bool, bool, ByPlayer]:
        """Make the move of who is to act."""
        assert self.now is not None
        (player, act), = acts.items()
        self._early.pop(player, None)
        if self.now.first:
            self._early[player] = self.now.given
            self._acted.add(player)
        before = set(self.env.agents)
        self.env.step(act)
        PlayersOutput.stepped(before, self.env.agents)
        return self._look(self._is_late())

    def _turn(self, player: str) -> Turn:
        """Return the turn of who is selected."""
        obs, rew, terminated, truncated, info = self.env.last()
        return self._shown(player, obs, rew, bool(terminated), bool(truncated), info)

    def _shown(self, player: str, obs: object, rew: object, terminated: bool, truncated: bool,
               info: Mapping[str, object]) -> Turn:
        return Turn(player, self.views[player].see(obs, info, terminated), PlayersOutput.number(player, rew),
                    self._early.get(player, 0.0), player not in self._acted, terminated, truncated, dict(info))

    def _look(self, late: bool = False) -> tuple[dict[str, object], Array, bool, bool, dict[str, object]]:
        """Let players leave who are done, and look at who is to act; where it is `late`, all leave."""
        env, turns = self.env, []
        self.leaving.clear()
        self.now = None
        while env.agents:
            PlayersOutput.known(env.agents, self.players)
            player = env.agent_selection
            turn = self._turn(player)
            turns.append(turn)
            if not turn.is_last:
                self.now = turn
                break
            self.leaving.append(turn)
            self._acted.discard(player)  # where it comes back, it begins anew
            self._early.pop(player, None)
            before = set(env.agents)
            env.step(None)
            PlayersOutput.stepped(before, env.agents, player)
        if late and self.now is not None:
            now, self.now = turns.pop(), None
            turns += (left := [self._cut(player, now) for player in list(env.agents)])
            self.leaving += left
            self.cut_short += 1
        over = self.now is None
        cut = over and any(turn.truncated and not turn.terminated for turn in self.leaving)
        return ({turn.player: turn.obs for turn in turns}, self._vector({turn.player: turn.given for turn in turns}),
                over and not cut, cut, {"players": {turn.player: turn.info for turn in turns}})

    def _cut(self, player: str, now: Turn) -> Turn:
        """Return the last turn of a player in an episode that is cut off when it is the turn of `now`."""
        if player == now.player:
            return now._replace(truncated=True)
        rew = getattr(self.env, "_cumulative_rewards", {}).get(player, 0.0)  # nobody else tells it, but at its turn
        return self._shown(player, self.env.observe(player), rew, False, True, self.env.infos.get(player, {}))

    def clone_state(self) -> Info:
        return {**super().clone_state(), "acted": sorted(self._acted)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        super().restore_state(state)
        self._acted = set(state["acted"])
        self._look()


class ParallelEnv(PlayersEnv):
    """A parallel environment: in a step all players act who are there.

    Attributes:
        turns: What the last step has shown to who acted in it, by player.
    """

    def __init__(self, env: object) -> None:
        super().__init__(env)
        self.turns: dict[str, Turn] = {}
        self._cut_off = False

    @property
    def alive(self) -> list[str]:
        return [] if self._cut_off else list(self.env.agents)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[ByPlayer, ByPlayer]:
        """Begin an episode; return the observations of all who are there."""
        obs, infos = PlayersOutput.pair(self.env.reset(seed=seed, options=options))
        self._steps, self._early, self.turns, self._cut_off = 0, {}, {}, False
        PlayersOutput.known(self.env.agents, self.players)
        return self._seen(obs, infos, self.env.agents, ()), {"players": {p: dict(info) for p, info in infos.items()}}

    def _seen(self, obs: Any, infos: Any, players: Iterable[str], ended: Iterable[str]) -> dict[str, object]:
        PlayersOutput.told("observation", players, obs)
        return {p: self.views[p].see(obs[p], infos.get(p, {}), p in ended) for p in players}

    def take(self, obs: Mapping[str, object], rewards: object) -> None:
        self.turns = {player: self._taken(turn, obs, rewards) for player, turn in self.turns.items()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        super().restore_state(state)
        self.turns, self._cut_off = {}, False

    def step(self, acts: Mapping[str, Any]) -> tuple[ByPlayer, Array, bool, bool, ByPlayer]:
        """Make everybody's move; return the observations of those who acted, and of those who are there now."""
        obs, rewards, terminations, truncations, infos = self.env.step(dict(acts))
        there = list(self.env.agents)
        PlayersOutput.known(there, self.players)
        late = self._is_late()
        PlayersOutput.told("reward, termination or truncation", acts, rewards, terminations, truncations)
        PlayersOutput.flagged(acts, there, terminations, truncations)
        given = {player: PlayersOutput.number(player, rew) for player, rew in rewards.items() if player in self.views}
        ended = [player for player in acts if terminations[player]]
        seen = self._seen(obs, infos, dict.fromkeys([*acts, *there]), ended)
        self.turns = {p: Turn(p, seen[p], given[p], self._early.pop(p, 0.0), False, bool(terminations[p]),
                              bool(truncations[p]) or (late and not terminations[p]), dict(infos.get(p, {}))) for p in acts}
        for player in given.keys() - acts.keys():
            self._early[player] = self._early.get(player, 0.0) + given[player]
        self._cut_off = late and bool(there)
        self.cut_short += self._cut_off
        over = late or not there
        cut = over and any(turn.truncated and not turn.terminated for turn in self.turns.values())
        return seen, self._vector(given), over and not cut, cut, {"players": {p: turn.info for p, turn in self.turns.items()}}
