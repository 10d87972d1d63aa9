"""Kuhn poker for two and more, and Leduc poker.

Sources of the rules: H. W. Kuhn, "A simplified two-person poker" (1950), and for more players the rule of Szafron, Gibson,
Sturtevant, "A parameterized family of equilibrium profiles for three-player Kuhn poker" (2013); F. Southey et al., "Bayes' bluff:
opponent modelling in poker" (2005) for Leduc.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from parl_like.envs.games.game import CHANCE, TERMINAL, Game, State, Traits
from parl_like.values.spec import Array


class Kuhn(Game):
    """Kuhn poker: n players, n + 1 cards, one bet.

    Everybody puts 1 into the pot and gets a card, of which the highest is n. Actions in turn: 0 pass, 1 bet (1 more). Until
    somebody bets, the turn goes round once; after a bet each of the others may once bet as well (call) or pass (fold). The
    highest card of those who bet, or of all if nobody did, takes the pot. Chance deals one card after the other; its outcomes are
    cards.

    Key: own card and the actions so far, `2pb`. Tensor: player [n], card [n + 1], then [2n − 1, 2] pass or bet at each turn.

    Raises:
        ValueError: n_players is not in 2 … 9.
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
    """A position of Kuhn poker: the history is the cards of the players, then their actions."""

    @property
    def bets(self) -> list[int]:
        """The actions so far."""
        return self.history[self.game.n_players:]

    @property
    def player(self) -> int:
        n, bets = self.game.n_players, self.bets
        if len(self.history) < n:
            return CHANCE
        last = bets.index(1) + n if 1 in bets else n  # turns of the whole game, unless somebody bets yet
        return TERMINAL if len(bets) == last else len(bets) % n

    def legal(self) -> Sequence[int]:
        player = self.player
        if player == CHANCE:
            return [card for card in range(self.game.n_players + 1) if card not in self.history]
        return () if player == TERMINAL else (0, 1)

    def chance(self) -> list[tuple[int, float]]:
        cards = self.legal()
        return [(card, 1.0 / len(cards)) for card in cards]

    def returns(self) -> tuple[float, ...]:
        n = self.game.n_players
        if self.player != TERMINAL:
            return (0.0,) * n
        bettors = {turn % n for turn, bet in enumerate(self.bets) if bet}
        winner = max(bettors or range(n), key=self.history.__getitem__)
        paid = [2.0 if player in bettors else 1.0 for player in range(n)]
        return tuple(sum(paid) - own if player == winner else -own for player, own in enumerate(paid))

    def key(self, player: int | None = None) -> str:
        viewer = self._viewer(player)
        return f"{self.history[viewer] if viewer < len(self.history) else '?'}{''.join('pb'[bet] for bet in self.bets)}"

    def tensor(self, player: int | None = None) -> Array:
        viewer, n = self._viewer(player), self.game.n_players
        out = np.zeros(self.game.tensor_size, np.float32)
        out[viewer] = 1.0
        if viewer < len(self.history):
            out[n + self.history[viewer]] = 1.0
        for turn, bet in enumerate(self.bets):
            out[2 * n + 1 + 2 * turn + bet] = 1.0
        return out


class Leduc(Game):
    """Leduc poker for two: six cards, three ranks twice; two rounds of betting, a public card between them.

    Everybody puts 1 into the pot and gets a private card. Player 0 begins both rounds. Actions: 0 fold (only against a raise), 1
    call or check, 2 raise: by 2 in the first round and 4 in the second, at most two raises a round. Who has the rank of the
    public card wins; else the higher rank; equal ranks share. Suits never matter, so chance deals ranks 0, 1, 2, and there are
    288 information sets.

    Key: private card, actions of round one, public card, actions of round two: `2:cr|0:`. Tensor: player [2], private card [3],
    public card [3], then [2 rounds, 4 turns, 2] call or raise; a fold needs no place, for it ends the game.

    Args:
        suits: Chance deals cards 0 … 5, of rank card // 2, and players tell them apart, as in OpenSpiel: 936 information sets, 6
            places for each card. It is the same game in more positions.
    """

    def __init__(self, suits: bool = False) -> None:
        self.suits = suits
        self.n_cards = 6 if suits else 3  # of which a player sees one
        self.n_players, self.n_actions, self.tensor_size, self.max_moves = 2, 3, 18 + 2 * self.n_cards, 8
        self.traits = Traits(n_players=2)
        self.utility_range = (-13.0, 13.0)

    def start(self) -> LeducState:
        return LeducState(self)

    def __repr__(self) -> str:
        return "Leduc(suits=True)" if self.suits else "Leduc()"


class LeducState(State):
    """A position of Leduc poker: the history is two private cards, actions, the public card, actions."""

    game: Leduc

    def _left(self, card: int, cards: Sequence[int]) -> int:
        """Return how many of a card are not given out yet."""
        return 6 // self.game.n_cards - cards.count(card)

    def _parts(self) -> tuple[list[int], list[list[int]]]:
        """The cards given out so far, those of the players first; the actions of both rounds."""
        private, rest = self.history[:2], self.history[2:]
        end = next((k for k in range(2, len(rest)) if rest[k - 1] == 1), len(rest))  # a call that answers ends a round
        return private + rest[end:end + 1], [rest[:end], rest[end + 1:]]

    @property
    def player(self) -> int:
        cards, rounds = self._parts()
        if len(cards) < 2:
            return CHANCE
        bets = rounds[len(cards) - 2]
        if bets and bets[-1] == 0:
            return TERMINAL
        if len(bets) >= 2 and bets[-1] == 1:
            return CHANCE if len(cards) == 2 else TERMINAL
        return len(bets) % 2

    def legal(self) -> Sequence[int]:
        player = self.player
        cards, rounds = self._parts()
        if player == CHANCE:
            return [card for card in range(self.game.n_cards) if self._left(card, cards)]
        if player == TERMINAL:
            return ()
        bets = rounds[len(cards) - 2]
        return ((0, 1) if bets and bets[-1] == 2 else (1,)) + ((2,) if bets.count(2) < 2 else ())

    def chance(self) -> list[tuple[int, float]]:
        cards, _ = self._parts()
        return [(card, self._left(card, cards) / (6 - len(cards))) for card in self.legal()]

    def returns(self) -> tuple[float, ...]:
        if self.player != TERMINAL:
            return (0.0, 0.0)
        cards, rounds = self._parts()
        paid = [1.0, 1.0]
        for bets, size in zip(rounds, (2.0, 4.0), strict=True):
            for turn, action in enumerate(bets):
                me = turn % 2
                if action == 0:
                    return (-paid[0], paid[0]) if me == 0 else (paid[1], -paid[1])
                paid[me] = paid[1 - me] + (size if action == 2 else 0.0)
        *own, public = [card * 3 // self.game.n_cards for card in cards]
        strength = [rank + (3 if rank == public else 0) for rank in own]
        won = paid[0] * ((strength[0] > strength[1]) - (strength[0] < strength[1]))
        return (won, -won)

    def key(self, player: int | None = None) -> str:
        viewer = self._viewer(player)
        cards, rounds = self._parts()
        first, second = ("".join("fcr"[action] for action in bets) for bets in rounds)
        text = f"{cards[viewer] if viewer < len(cards) else '?'}:{first}"
        return text + (f"|{cards[2]}:{second}" if len(cards) == 3 else "")

    def tensor(self, player: int | None = None) -> Array:
        viewer = self._viewer(player)
        cards, rounds = self._parts()
        out, n = np.zeros(self.game.tensor_size, np.float32), self.game.n_cards
        out[viewer] = 1.0
        if viewer < len(cards):
            out[2 + cards[viewer]] = 1.0
        if len(cards) == 3:
            out[2 + n + cards[2]] = 1.0
        for i, bets in enumerate(rounds):
            for turn, action in enumerate(bets):
                if action:
                    out[1 + 2 * n + 8 * i + 2 * turn + action] = 1.0
        return out
