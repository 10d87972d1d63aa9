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
from parl_like.spec import Array


class Kuhn(Game):
    """Kuhn poker: n players, n + 1 cards, one bet.

    Everybody puts 1 into the pot and gets a card, of which the highest is n. Actions in turn: 0 pass, 1 bet (1 more). Until
    somebody bets, the turn goes round once; after a bet each of the others may once bet as well (call) or pass (fold). The
    highest card of those who bet, or of all if nobody did, takes the pot. Chance deals one card after the other; its outcomes are
    cards.

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


class Leduc(Game):
    """Leduc poker for two: six cards, three ranks of two suits; two rounds of betting, a public card between them.

    Everybody puts 1 into the pot and gets a private card. Player 0 begins both rounds. Actions: 0 fold (only against a raise), 1
    call or check, 2 raise: by 2 in the first round and 4 in the second, at most two raises a round. Who has the rank of the
    public card wins; else the higher rank; equal ranks share.

    Key: private card, actions of round one, public card, actions of round two: `2:cr|0:`. Tensor: player [2], private card [3],
    public card [3], then [2 rounds, 4 turns, 2] call or raise; a fold needs no place, for it ends the game. Cards are [6] with
    suits.

    Args:
        suits: Suits never matter. False: chance deals ranks 0, 1, 2, and there are 288 information sets. True: it deals cards 0 …
            5, rank card // 2, and there are 936, as OpenSpiel counts. Values and equilibria are the same.
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
