"""Interfaces of turn-based games: what one must offer to learning by play and to algorithms that walk the tree."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from parl_like.values.spec import Array

CHANCE = -1
"""`State.player` where chance moves next."""
TERMINAL = -2
"""`State.player` where the game is over."""
SIMULTANEOUS = -3
"""`State.player` where all players move at once. A move is then one number for all their actions, see `Game.joint`."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The kind of a game.

    Attributes:
        n_players: Of them, chance not counted.
        dynamics: Players move one after another, or at once.
        information: Whether every player knows all that has happened.
        chance: "deterministic": none. "explicit": the states where chance moves are nodes of the tree with known probabilities.
            "sampled": such nodes, but only drawing is possible. "stochastic": chance is inside the moves.
        reward: "terminal": at the end only. "step": at any move.
        utility: Of all players together.
        actions: "minimal": every action is always legal. "full": some are not, see the mask.
        styles: How a state can be read.
        default_policy: What a player does who has no policy of its own.
    """

    n_players: int
    dynamics: Literal["sequential", "simultaneous"] = "sequential"
    information: Literal["perfect", "imperfect"] = "imperfect"
    chance: Literal["deterministic", "stochastic", "explicit", "sampled"] = "explicit"
    reward: Literal["step", "terminal"] = "terminal"
    utility: Literal["zero_sum", "identical", "general"] = "zero_sum"
    actions: Literal["minimal", "full"] = "full"
    styles: tuple[str, ...] = ("history", "key", "tensor")
    default_policy: str = "uniform"

    def require(self, who: str, **needed: Any) -> None:
        """Checks what an algorithm needs before it runs.

        Args:
            who: The algorithm, for the message.
            needed: Trait → the value it must have, or a tuple, list or set of which one must be it; of `styles` all must be
                there.

        Raises:
            ValueError: naming every trait that is missing.
            TypeError: there is no trait of that name.
        """
        known = {field.name for field in fields(self)}
        missing = []
        for name, value in needed.items():
            if name not in known:
                raise TypeError(f"there is no trait {name!r}; there are {', '.join(sorted(known))}")
            has, allowed = getattr(self, name), tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (value,)
            if not (set(allowed) <= set(has) if name == "styles" else has in allowed):
                missing.append(f"{name} {' or '.join(map(repr, allowed)) if name != 'styles' else list(allowed)} (it has "
                               f"{has!r})")
        if missing:
            raise ValueError(f"{who} cannot play this game: it needs {', '.join(missing)}")


class Game(ABC):
    """The rules of one game. Holds no position: see `State`.

    Attributes:
        traits: See `Traits`.
        n_players, n_actions: Players 0 …, actions 0 … of the players.
        tensor_size: Numbers of `State.tensor`.
        max_moves: Most decisions of players in a game.
        utility_range: Least and largest utility that a player can get.
    """

    traits: Traits
    n_players: int
    n_actions: int
    tensor_size: int
    max_moves: int
    utility_range: tuple[float, float]

    @abstractmethod
    def start(self) -> State:
        """A new game before its first move."""

    def joint(self, actions: Sequence[int]) -> int:
        """The move of all players at once: the number of their actions, of which the last player's runs fastest."""
        number = 0
        for action in actions:
            number = number * self.n_actions + operator.index(action)
        return number

    def replay(self, history: Sequence[int]) -> State:
        """The state after these moves of players and chance. Raises ValueError where one is not legal."""
        state = self.start()
        for action in history:
            state.apply(action)
        return state

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_players={self.n_players})"


class State(ABC):
    """One position of a game: all moves so far, from which everything else follows.

    Attributes:
        game: Its rules.
        history: Those moves, of chance included; changed in place.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.history: list[int] = []

    # What a game writes -------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def player(self) -> int:
        """Return who moves next: 0 …, `CHANCE`, `TERMINAL` or `SIMULTANEOUS`."""

    @abstractmethod
    def legal(self) -> Sequence[int]:
        """Legal actions in rising order; of chance the outcomes that can happen; of all at once their joint moves; none at the
        end."""

    @abstractmethod
    def chance(self) -> list[tuple[int, float]]:
        """(outcome, probability) of every outcome of chance, which is to move."""

    @abstractmethod
    def returns(self) -> tuple[float, ...]:
        """Utility of every player; zeros before the end."""

    @abstractmethod
    def key(self, player: int | None = None) -> str:
        """Return what a player knows, as text: equal exactly where it knows the same. Keys of different players to move differ.

        Args:
            player: None: who moves next.
        """

    @abstractmethod
    def tensor(self, player: int | None = None) -> Array:
        """Return what a player knows, as [tensor_size] float32 of 0 and 1, newly allocated; for one player equal exactly where
        the keys are."""

    # What every game has ------------------------------------------------------------------------------------------------

    @property
    def is_terminal(self) -> bool:
        """Return whether the game is over."""
        return self.player == TERMINAL

    def apply(self, action: int) -> None:
        """Makes the move of who is to move. Raises ValueError where it is not legal."""
        action = operator.index(action)
        legal = self.legal()
        if action not in legal:
            raise ValueError(f"{self.game}: move {action} of {self._name(self.player)} after {self.history} is not legal; "
                             f"{'legal are ' + ', '.join(map(str, legal)) if legal else 'the game is over'}")
        self.history.append(action)

    def undo(self) -> None:
        """Takes the last move back. Raises IndexError where there is none."""
        if not self.history:
            raise IndexError(f"{self.game}: there is no move to take back")
        self.history.pop()

    def clone(self) -> State:
        """A state of its own in the same position."""
        return self.game.replay(self.history)

    def after(self, action: int, look: Callable[[], float]) -> float:
        """Return what `look` returns after an action, which is taken back then."""
        self.apply(action)
        found = look()
        self.undo()
        return found

    def legal_of(self, player: int) -> Sequence[int]:
        """Legal actions of one player, in rising order: of who is to move, or of each where all move at once; else none."""
        return self.legal() if self.player == player else ()

    def mask(self) -> Array:
        """[n_actions] int8: 1 for the legal actions of the player to move; zeros where none is."""
        mask = np.zeros(self.game.n_actions, np.int8)
        if self.player >= 0:
            mask[list(self.legal())] = 1
        return mask

    def _viewer(self, player: int | None) -> int:
        """The player whose view is asked for."""
        viewer = self.player if player is None else player
        if not 0 <= viewer < self.game.n_players:
            if player is None:
                raise ValueError(f"{self.game}: it is no player's turn but that of {self._name(viewer)}; say whose view is meant")
            raise ValueError(f"{self.game}: there is no player {player}; there are {self.game.n_players}")
        return viewer

    @staticmethod
    def _name(player: int) -> str:
        return {CHANCE: "chance", TERMINAL: "nobody", SIMULTANEOUS: "all"}.get(player, f"player {player}")

    def __str__(self) -> str:
        return f"{self.game}: {' '.join(map(str, self.history)) or 'start'}; {self._name(self.player)} to move"


Policy = Callable[[State], Sequence[float] | Array]
"""State of whose player's turn it is → probability of every action [n_actions], 0 for illegal ones. It should read `key()`,
`tensor()` and `legal()` only, since the state also knows what the player does not."""


def uniform(state: State) -> Array:
    """The policy that takes every legal action with the same probability."""
    mask: Array = state.mask().astype(np.float64)
    mask /= mask.sum()
    return mask


class TablePolicy:
    """A policy in a table.

    Attributes:
        table: Key → probability of every action [n_actions]. Where a key is not in it, all legal actions are as likely.
    """

    def __init__(self, table: Mapping[str, Array]) -> None:
        self.table = table

    def __call__(self, state: State) -> Array:
        known = self.table.get(state.key())
        return uniform(state) if known is None else known


def per_seat(who: str, game: Game, policy: Policy | Sequence[Policy]) -> list[Policy]:
    """A policy for each player, of one for all or of as many. Raises ValueError where there are others."""
    policies = [policy] * game.n_players if callable(policy) else list(policy)
    if len(policies) != game.n_players:
        raise ValueError(f"{who}: {len(policies)} policies; expected one, or {game.n_players} for {game}")
    return policies


def asked(who: str, policy: Policy, state: State) -> Array:
    """[n_actions] float64: what a policy does in a state. Raises ValueError where these are no probabilities of legal actions."""
    chances, legal = np.asarray(policy(state), np.float64), list(state.legal())
    if not fits(chances, legal, state.game.n_actions):
        raise ValueError(f"{who}: the policy of player {state.player} gave {chances.tolist()} after {state.history}; expected a "
                         f"probability for each of {state.game.n_actions} actions, 0 but for {legal}")
    return chances


def fits(chances: Array, legal: Sequence[int] | Array, n_actions: int) -> bool:
    """Return whether these are probabilities of legal actions."""
    return chances.shape == (n_actions,) and bool((chances >= 0).all()) and abs(float(chances[legal].sum()) - 1.0) <= 1e-6
