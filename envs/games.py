"""Turn-based games: what a game must offer to learning by play and to algorithms that walk the tree; Kuhn poker, Leduc poker, tic-tac-toe.

A `Game` says how many players and actions there are and which `Traits` it has, and starts a `State`. A state knows who is to move (a player,
chance, or nobody), what is legal, and what each player knows: the *information state*, as a text (`key`, for tables) and as numbers
(`tensor`, for networks). It is changed in place by `apply` and taken back by `undo`, so a walk over the whole tree copies nothing. `GameEnv` is
a game as one player's gymnasium environment.

Sources of the rules: H. W. Kuhn, "A simplified two-person poker" (1950), and for more players the rule of Szafron, Gibson, Sturtevant,
"A parameterized family of equilibrium profiles for three-player Kuhn poker" (2013); F. Southey et al., "Bayes' bluff: opponent modelling in
poker" (2005) for Leduc; the traits are those of OpenSpiel (Lanctot et al., 2019).
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from parl_like.data.archive import rng_state, set_rng_state
from parl_like.spec import Array

CHANCE = -1
"""`State.player` where chance moves next."""
TERMINAL = -2
"""`State.player` where the game is over."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What kind of game it is.

    Attributes:
        n_players: Of them, chance not counted.
        dynamics: Players move one after another, or at once.
        information: Whether every player knows all that has happened.
        chance: "deterministic": none. "explicit": the states where chance moves are nodes of the tree with known probabilities. "sampled":
            such nodes, but only drawing is possible. "stochastic": chance is inside the moves.
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
            needed: Trait → the value it must have, or a tuple, list or set of which one must be it; of `styles` all must be there.

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
                missing.append(f"{name} {' or '.join(map(repr, allowed)) if name != 'styles' else list(allowed)} (it has {has!r})")
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

    def replay(self, history: Sequence[int]) -> State:
        """The state after these moves of players and chance. Raises ValueError where one is not legal."""
        state = self.start()
        for action in history:
            state.apply(action)
        return state

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_players={self.n_players})"


class State(ABC):
    """One position of a game, changed in place.

    Attributes:
        game: Its rules.
        history: All moves so far, those of chance included.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.history: list[int] = []

    # What a game writes -------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def player(self) -> int:
        """Who moves next: 0 …, `CHANCE` or `TERMINAL`."""

    @abstractmethod
    def legal(self) -> Sequence[int]:
        """Legal actions in rising order; of chance the outcomes that can happen; none at the end."""

    @abstractmethod
    def chance(self) -> list[tuple[int, float]]:
        """(outcome, probability) of every outcome of chance, which is to move."""

    @abstractmethod
    def returns(self) -> tuple[float, ...]:
        """Utility of every player; zeros before the end."""

    @abstractmethod
    def key(self, player: int | None = None) -> str:
        """What a player knows, as text: equal exactly where it knows the same. Keys of different players to move differ.

        Args:
            player: None: who moves next.
        """

    @abstractmethod
    def tensor(self, player: int | None = None) -> Array:
        """What a player knows, as [tensor_size] float32 of 0 and 1, newly allocated; for one player equal exactly where the keys are."""

    @abstractmethod
    def _play(self, action: int) -> None:
        """Makes a legal move; `history` already ends with it."""

    @abstractmethod
    def _take_back(self, action: int) -> None:
        """Undoes the last move; `history` no longer holds it."""

    # What every game has ------------------------------------------------------------------------------------------------

    @property
    def is_terminal(self) -> bool:
        return self.player == TERMINAL

    def apply(self, action: int) -> None:
        """Makes the move of who is to move. Raises ValueError where it is not legal."""
        action = operator.index(action)
        legal = self.legal()
        if action not in legal:
            raise ValueError(f"{self.game}: move {action} of {self._name(self.player)} after {self.history} is not legal; "
                             f"{'legal are ' + ', '.join(map(str, legal)) if legal else 'the game is over'}")
        self.history.append(action)
        self._play(action)

    def undo(self) -> None:
        """Takes the last move back. Raises IndexError where there is none."""
        if not self.history:
            raise IndexError(f"{self.game}: there is no move to take back")
        self._take_back(self.history.pop())

    def clone(self) -> State:
        """A state of its own in the same position."""
        return self.game.replay(self.history)

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
        return {CHANCE: "chance", TERMINAL: "nobody"}.get(player, f"player {player}")

    def __str__(self) -> str:
        return f"{self.game}: {' '.join(map(str, self.history)) or 'start'}; {self._name(self.player)} to move"


Policy = Callable[[State], Sequence[float] | Array]
"""State of whose player's turn it is → probability of every action [n_actions], 0 for illegal ones. It should read `key()`, `tensor()` and
`legal()` only, since the state also knows what the player does not."""


def uniform(state: State) -> Array:
    """The policy that takes every legal action with the same probability."""
    mask: Array = state.mask().astype(np.float64)
    mask /= mask.sum()
    return mask


# ------------------------------------------------------------------------------------------------------------- exact evaluation


def expected_returns(state: State, policies: Policy | Sequence[Policy]) -> Array:
    """Expected utility [n_players] float64 of going on from a state, exactly, by a walk over all that can happen.

    Args:
        policies: One for each player, or one for all.
    """
    each = [policies] * state.game.n_players if callable(policies) else list(policies)
    if len(each) != state.game.n_players:
        raise ValueError(f"{len(each)} policies for {state.game}")

    def walk() -> Array:
        player = state.player
        if player == TERMINAL:
            return np.array(state.returns())
        if player == CHANCE:
            moves = state.chance()
        else:
            chances = each[player](state)
            moves = [(a, float(chances[a])) for a in state.legal()]
        total = np.zeros(state.game.n_players)
        for action, chance in moves:
            if chance:
                state.apply(action)
                total += chance * walk()
                state.undo()
        return total

    return walk()


def information_sets(game: Game) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Key → (player, legal actions) of every information state in which somebody decides, in the order of a walk over the whole tree."""
    sets: dict[str, tuple[int, tuple[int, ...]]] = {}
    state = game.start()

    def walk() -> None:
        if state.player >= 0:
            sets.setdefault(state.key(), (state.player, tuple(state.legal())))
        for action in tuple(state.legal()):
            state.apply(action)
            walk()
            state.undo()

    walk()
    return sets


# ------------------------------------------------------------------------------------------------------------------------ Kuhn


class Kuhn(Game):
    """Kuhn poker: n players, n + 1 cards, one bet.

    Everybody puts 1 into the pot and gets a card, of which the highest is n. Actions in turn: 0 pass, 1 bet (1 more). Until somebody bets,
    the turn goes round once; after a bet each of the others may once bet as well (call) or pass (fold). The highest card of those who bet,
    or of all if nobody did, takes the pot. Chance deals one card after the other; its outcomes are cards.

    Key: own card and the actions so far, `2pb`. Tensor: player [n], card [n + 1], then [2n − 1, 2] pass or bet at each turn.
    """

    def __init__(self, n_players: int = 2) -> None:
        n = operator.index(n_players)
        if not 2 <= n <= 9:
            raise ValueError(f"Kuhn: n_players is {n}; expected 2 to 9")
        self.n_players, self.n_actions = n, 2
        self.traits = Traits(n_players=n, actions="minimal")
        self.max_moves = 2 * n - 1
        self.tensor_size = n + (n + 1) + 2 * self.max_moves
        self.utility_range = (-2.0, 2.0 * (n - 1))

    def start(self) -> KuhnState:
        return KuhnState(self)


class KuhnState(State):
    """A position of Kuhn poker. `cards`: of the players so far. `bets`: the actions so far."""

    def __init__(self, game: Kuhn) -> None:
        super().__init__(game)
        self.cards: list[int] = []
        self.bets: list[int] = []

    @property
    def player(self) -> int:
        n, turns = self.game.n_players, len(self.bets)
        if len(self.cards) < n:
            return CHANCE
        last = self.bets.index(1) + n if 1 in self.bets else n  # turns of the whole game, unless somebody bets yet
        return TERMINAL if turns == last else turns % n

    def legal(self) -> Sequence[int]:
        player = self.player
        if player == CHANCE:
            return [card for card in range(self.game.n_players + 1) if card not in self.cards]
        return () if player == TERMINAL else (0, 1)

    def chance(self) -> list[tuple[int, float]]:
        cards = self.legal()
        return [(card, 1.0 / len(cards)) for card in cards]

    def _play(self, action: int) -> None:
        (self.cards if len(self.cards) < self.game.n_players else self.bets).append(action)

    def _take_back(self, action: int) -> None:
        (self.bets or self.cards).pop()

    def returns(self) -> tuple[float, ...]:
        n = self.game.n_players
        if self.player != TERMINAL:
            return (0.0,) * n
        bettors = {turn % n for turn, bet in enumerate(self.bets) if bet}
        winner = max(bettors or range(n), key=self.cards.__getitem__)
        paid = [2.0 if player in bettors else 1.0 for player in range(n)]
        return tuple(sum(paid) - own if player == winner else -own for player, own in enumerate(paid))

    def key(self, player: int | None = None) -> str:
        viewer = self._viewer(player)
        return f"{self.cards[viewer] if viewer < len(self.cards) else '?'}{''.join('pb'[bet] for bet in self.bets)}"

    def tensor(self, player: int | None = None) -> Array:
        viewer, n = self._viewer(player), self.game.n_players
        out = np.zeros(self.game.tensor_size, np.float32)
        out[viewer] = 1.0
        if viewer < len(self.cards):
            out[n + self.cards[viewer]] = 1.0
        for turn, bet in enumerate(self.bets):
            out[2 * n + 1 + 2 * turn + bet] = 1.0
        return out


# ----------------------------------------------------------------------------------------------------------------------- Leduc


class Leduc(Game):
    """Leduc poker for two: six cards, three ranks of two suits; two rounds of betting, a public card between them.

    Everybody puts 1 into the pot and gets a private card. Player 0 begins both rounds. Actions: 0 fold (only against a raise), 1 call or check,
    2 raise: by 2 in the first round and 4 in the second, at most two raises a round. Who has the rank of the public card wins; else the
    higher rank; equal ranks share.

    Key: private card, actions of round one, public card, actions of round two: `2:cr|0:`. Tensor: player [2], private card [3], public
    card [3], then [2 rounds, 4 turns, 2] call or raise; a fold needs no place, for it ends the game. Cards are [6] with suits.

    Args:
        suits: Suits never matter. False: chance deals ranks 0, 1, 2, and there are 288 information sets. True: it deals cards 0 … 5, rank
            card // 2, and there are 936, as OpenSpiel counts. Values and equilibria are the same.
    """

    def __init__(self, suits: bool = False) -> None:
        self.n_players, self.n_actions = 2, 3
        self.suits = suits
        self.traits = Traits(n_players=2)
        self.max_moves = 8
        self.n_cards = 6 if suits else 3
        self.tensor_size = 2 + 2 * self.n_cards + 16
        self.utility_range = (-13.0, 13.0)

    def start(self) -> LeducState:
        return LeducState(self)

    def __repr__(self) -> str:
        return f"Leduc(suits={self.suits})"


class LeducState(State):
    """A position of Leduc poker. `cards`: private of 0, of 1, public, as far as dealt. `rounds`: the actions of both rounds."""

    game: Leduc

    def __init__(self, game: Leduc) -> None:
        super().__init__(game)
        self.cards: list[int] = []
        self.rounds: tuple[list[int], list[int]] = ([], [])

    @property
    def player(self) -> int:
        if len(self.cards) < 2:
            return CHANCE
        bets = self.rounds[len(self.cards) - 2]
        if bets and bets[-1] == 0:
            return TERMINAL
        if len(bets) >= 2 and bets[-1] == 1:  # a call that answers
            return CHANCE if len(self.cards) == 2 else TERMINAL
        return len(bets) % 2

    def legal(self) -> Sequence[int]:
        player = self.player
        if player == CHANCE:
            copies = 1 if self.game.suits else 2
            return [card for card in range(self.game.n_cards) if self.cards.count(card) < copies]
        if player == TERMINAL:
            return ()
        bets = self.rounds[len(self.cards) - 2]
        return (((0, 1) if bets and bets[-1] == 2 else (1,)) + ((2,) if bets.count(2) < 2 else ()))

    def chance(self) -> list[tuple[int, float]]:
        copies, left = 1 if self.game.suits else 2, 6 - len(self.cards)
        return [(card, (copies - self.cards.count(card)) / left) for card in self.legal()]

    def _play(self, action: int) -> None:
        where = self.cards if self.player == CHANCE else self.rounds[len(self.cards) - 2]
        where.append(action)

    def _take_back(self, action: int) -> None:
        first, second = self.rounds
        (second or (self.cards if len(self.cards) == 3 else first or self.cards)).pop()

    def returns(self) -> tuple[float, ...]:
        if self.player != TERMINAL:
            return (0.0, 0.0)
        paid = [1.0, 1.0]
        for bets, size in zip(self.rounds, (2.0, 4.0), strict=True):
            for turn, action in enumerate(bets):
                me = turn % 2
                if action == 0:
                    return (-paid[0], paid[0]) if me == 0 else (paid[1], -paid[1])
                paid[me] = paid[1 - me] + (size if action == 2 else 0.0)
        ranks = [card // 2 if self.game.suits else card for card in self.cards]
        strength = [rank + (3 if rank == ranks[2] else 0) for rank in ranks[:2]]
        won = paid[0] * ((strength[0] > strength[1]) - (strength[0] < strength[1]))
        return (won, -won)

    def key(self, player: int | None = None) -> str:
        viewer = self._viewer(player)
        first, second = ("".join("fcr"[action] for action in bets) for bets in self.rounds)
        text = f"{self.cards[viewer] if viewer < len(self.cards) else '?'}:{first}"
        return text + (f"|{self.cards[2]}:{second}" if len(self.cards) == 3 else "")

    def tensor(self, player: int | None = None) -> Array:
        viewer, n = self._viewer(player), self.game.n_cards
        out = np.zeros(self.game.tensor_size, np.float32)
        out[viewer] = 1.0
        if viewer < len(self.cards):
            out[2 + self.cards[viewer]] = 1.0
        if len(self.cards) == 3:
            out[2 + n + self.cards[2]] = 1.0
        for i, bets in enumerate(self.rounds):
            for turn, action in enumerate(bets):
                if action:
                    out[2 + 2 * n + 8 * i + 2 * turn + action - 1] = 1.0
        return out


# ----------------------------------------------------------------------------------------------------------------- tic-tac-toe

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class TicTacToe(Game):
    """Tic-tac-toe: three in a line of a 3 × 3 board wins 1, the other loses 1; a full board is a draw. Player 0 (`x`) begins.

    Actions: the cells 0 … 8, row by row. Key: the board, `x.o......`. Tensor: [9] own stones, [9] the other's.
    """

    def __init__(self) -> None:
        self.n_players, self.n_actions, self.tensor_size, self.max_moves = 2, 9, 18, 9
        self.traits = Traits(n_players=2, information="perfect", chance="deterministic")
        self.utility_range = (-1.0, 1.0)

    def start(self) -> TicTacToeState:
        return TicTacToeState(self)

    def __repr__(self) -> str:
        return "TicTacToe()"


class TicTacToeState(State):
    """A position of tic-tac-toe. `board`: nine of ".", "x", "o". `won`: the player who moved last has a line."""

    def __init__(self, game: TicTacToe) -> None:
        super().__init__(game)
        self.board = ["."] * 9
        self.won = False

    @property
    def player(self) -> int:
        return TERMINAL if self.won or len(self.history) == 9 else len(self.history) % 2

    def legal(self) -> Sequence[int]:
        return () if self.won else [cell for cell in range(9) if self.board[cell] == "."]

    def chance(self) -> list[tuple[int, float]]:
        return []

    def _play(self, action: int) -> None:
        stone = "ox"[len(self.history) % 2]
        board = self.board
        board[action] = stone
        self.won = any(board[a] == board[b] == board[c] == stone for a, b, c in LINES)

    def _take_back(self, action: int) -> None:
        self.board[action], self.won = ".", False

    def returns(self) -> tuple[float, ...]:
        if not self.won:
            return (0.0, 0.0)
        return (1.0, -1.0) if len(self.history) % 2 else (-1.0, 1.0)

    def key(self, player: int | None = None) -> str:
        return "".join(self.board)

    def tensor(self, player: int | None = None) -> Array:
        own, other = "xo" if self._viewer(player) == 0 else "ox"
        return np.array([[cell == stone for cell in self.board] for stone in (own, other)], np.float32).reshape(18)

    def __str__(self) -> str:
        return "\n".join("".join(self.board[row : row + 3]) for row in (0, 3, 6)) + "\n"


# ------------------------------------------------------------------------------------------------------------ gymnasium's view

FRUITLESS = 1000
"""Games in a row that are over before the player's first move, after which a reset gives up."""


def draw(moves: Sequence[tuple[int, float]], rng: np.random.Generator) -> int:
    """One of (action, probability), by one random number; the probabilities need not sum to exactly 1. Never one of probability 0."""
    bounds = list(accumulate(chance for _, chance in moves))
    return moves[bisect_right(bounds[:-1], rng.random() * bounds[-1])][0]


class GameEnv(gym.Env[Any, Any]):
    """A game as one player's environment; chance and the other players move between its turns.

    Observation: `obs` [tensor_size] float32, what the player knows; `mask` [n_actions] int8, 1 for the legal actions, zeros at the end.
    Reward: the change of the player's utility since its last turn. Games that are over before its first turn are played again.

    Info of `reset`: `player`, its seat in this game. `reset` takes the option `player`.

    Args:
        game: The game.
        policy: Of the other players, or one for every seat (its own is not asked).
        player: Its seat; None: drawn anew for every game.
        illegal: What an illegal action does. None: it raises ValueError, since an agent that reads the mask takes none. A number: the
            game ends with this reward.
        render_mode: "ansi": the true state as text.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 2}

    def __init__(
        self, game: Game, policy: Policy | Sequence[Policy] = uniform, player: int | None = 0, *, illegal: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        game.traits.require("GameEnv", dynamics="sequential", styles=("tensor",))
        self.game = game
        self.policies = [policy] * game.n_players if callable(policy) else list(policy)
        if len(self.policies) != game.n_players:
            raise ValueError(f"GameEnv: {len(self.policies)} policies; expected one, or {game.n_players} for {game}")
        if render_mode not in (None, "ansi"):
            raise ValueError(f"GameEnv: render_mode is {render_mode!r}; expected 'ansi' or None")
        self.seat = self._checked(player)
        self.player = self.seat or 0
        self.illegal = illegal
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Dict({
            "mask": gym.spaces.MultiBinary(game.n_actions), "obs": gym.spaces.Box(0.0, 1.0, (game.tensor_size,), np.float32)})
        self.action_space = gym.spaces.Discrete(game.n_actions)
        self.state = game.start()
        self._over = True

    def _checked(self, player: Any) -> int | None:
        if player is None:
            return None
        seat = operator.index(player)
        if not 0 <= seat < self.game.n_players:
            raise ValueError(f"GameEnv: player is {seat}; expected 0 to {self.game.n_players - 1}, or None for a random one")
        return seat

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if unknown := set(options or {}) - {"player"}:
            raise ValueError(f"GameEnv: reset has no option {', '.join(map(repr, sorted(unknown)))}; there is 'player'")
        chosen = self._checked((options or {}).get("player", self.seat))
        for _ in range(FRUITLESS):
            self.player = int(self.np_random.integers(self.game.n_players)) if chosen is None else chosen
            self.state = self.game.start()
            self._others()
            if not self.state.is_terminal:
                self._over = False
                return self._observe(), {"player": self.player}
        raise RuntimeError(f"GameEnv: player {self.player} of {self.game} had no turn in {FRUITLESS} games")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise gym.error.ResetNeeded("GameEnv: step() without an open game; call reset() first")
        action = operator.index(action)
        if self.illegal is not None and action not in self.state.legal():
            self._over = True
            return {**self._observe(), "mask": np.zeros(self.game.n_actions, np.int8)}, float(self.illegal), True, False, {}
        before = self.state.returns()[self.player]
        self.state.apply(action)
        self._others()
        self._over = self.state.is_terminal
        return self._observe(), self.state.returns()[self.player] - before, self._over, False, {}

    def _others(self) -> None:
        """Lets chance and the other players move until it is the player's turn or the game is over."""
        state = self.state
        while (turn := state.player) not in (self.player, TERMINAL):
            if turn == CHANCE:
                moves = state.chance()
            else:
                chances = np.asarray(self.policies[turn](state), np.float64)
                fits = chances.shape == (self.game.n_actions,) and bool((chances >= 0).all())
                moves = [(a, float(chances[a])) for a in state.legal()] if fits else []
                if abs(sum(p for _, p in moves) - 1.0) > 1e-6:
                    raise ValueError(f"GameEnv: the policy of player {turn} gave {chances.tolist()} after {state.history}; expected a "
                                     f"probability for each of {self.game.n_actions} actions, 0 but for {list(state.legal())}")
            state.apply(draw(moves, self.np_random))

    def _observe(self) -> dict[str, Array]:
        return {"mask": self.state.mask(), "obs": self.state.tensor(self.player)}

    def render(self) -> Any:
        return str(self.state) if self.render_mode == "ansi" else None

    def clone_state(self) -> dict[str, Any]:
        """Everything that what comes next depends on, but for what the other players' policies keep: plain values."""
        return {"history": list(self.state.history), "player": self.player, "over": self._over, "rng": rng_state(self.np_random)}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to a cloned state, also one of another environment with the same game and arguments."""
        position = self.game.replay(state["history"])
        set_rng_state(self.np_random, state["rng"])
        self.state, self.player, self._over = position, state["player"], state["over"]
