"""Liar's dice for two, with one die each."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from parl_like.envs.games.game import CHANCE, TERMINAL, Game, State, Traits
from parl_like.values.spec import Array


class LiarsDice(Game):
    """Liar's dice: both players roll a die that the other does not see, and then outbid each other in turn.

    A bid says that at least so many of both dice show a face: actions 0 … 2 faces − 1 are 1-1, 1-2, …, 2-1, 2-2, …, and each must
    be higher than the one before. The highest face counts as any. Action 2 faces, "liar", doubts the last bid: it wins 1 if the
    bid is wrong, and else who made the bid wins 1; the other loses 1.

    Key: own die, the bids so far, `5:0,3`. Tensor: player [2], own die [faces], [2 faces] each bid whether it was made.

    Args:
        faces: Of each die, 2 to 9.

    Raises:
        ValueError: faces is not in 2 … 9.
    """

    def __init__(self, faces: int = 6) -> None:
        self.faces = operator.index(faces)
        if not 2 <= self.faces <= 9:
            raise ValueError(f"LiarsDice: faces is {faces}; expected 2 to 9")
        self.n_players, self.n_actions = 2, 2 * self.faces + 1
        self.traits = Traits(n_players=2)
        self.max_moves = self.n_actions
        self.tensor_size = 2 + 3 * self.faces
        self.utility_range = (-1.0, 1.0)

    def start(self) -> LiarsDiceState:
        return LiarsDiceState(self)

    def __repr__(self) -> str:
        return f"LiarsDice(faces={self.faces})"


class LiarsDiceState(State):
    """A position of liar's dice: the history is both dice, faces from 0 on, then the bids."""

    game: LiarsDice

    @property
    def player(self) -> int:
        bids = len(self.history) - 2
        if bids < 0:
            return CHANCE
        return TERMINAL if bids and self.history[-1] == self.game.n_actions - 1 else bids % 2

    def legal(self) -> Sequence[int]:
        player = self.player
        if player < 0:
            return range(self.game.faces) if player == CHANCE else ()
        return range(self.history[-1] + 1, self.game.n_actions) if len(self.history) > 2 else range(self.game.n_actions - 1)

    def chance(self) -> list[tuple[int, float]]:
        return [(face, 1.0 / self.game.faces) for face in range(self.game.faces)]

    def returns(self) -> tuple[float, ...]:
        if self.player != TERMINAL:
            return (0.0, 0.0)
        more, face = divmod(self.history[-2], self.game.faces)
        bidder = len(self.history) % 2  # two dice, then as many moves; the last is the doubter's
        true = sum(die in (face, self.game.faces - 1) for die in self.history[:2]) > more
        won = 1.0 if true == (bidder == 0) else -1.0
        return (won, -won)

    def key(self, player: int | None = None) -> str:
        viewer = self._viewer(player)
        return f"{self.history[viewer] if viewer < len(self.history) else '?'}:{','.join(map(str, self.history[2:]))}"

    def tensor(self, player: int | None = None) -> Array:
        viewer, out = self._viewer(player), np.zeros(self.game.tensor_size, np.float32)
        out[viewer] = 1.0
        if viewer < len(self.history):
            out[2 + self.history[viewer]] = 1.0
        out[[2 + self.game.faces + bid for bid in self.history[2:] if bid < self.game.n_actions - 1]] = 1.0
        return out
