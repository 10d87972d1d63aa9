"""Tic-tac-toe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parl_like.envs.games.game import TERMINAL, Game, State, Traits
from parl_like.values.spec import Array

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
    """A position of tic-tac-toe."""

    @property
    def board(self) -> list[str]:
        """Nine of ".", "x", "o"."""
        board = ["."] * 9
        for turn, cell in enumerate(self.history):
            board[cell] = "xo"[turn % 2]
        return board

    @property
    def won(self) -> bool:
        """Return whether the player who moved last has a line."""
        board = self.board
        return any(board[a] == board[b] == board[c] != "." for a, b, c in LINES)

    @property
    def player(self) -> int:
        return TERMINAL if len(self.history) == 9 or self.won else len(self.history) % 2

    def clone(self) -> TicTacToeState:
        other = type(self)(self.game)  # search clones often
        other.history = self.history.copy()
        return other

    def legal(self) -> Sequence[int]:
        return () if self.won else [cell for cell in range(9) if cell not in self.history]

    def chance(self) -> list[tuple[int, float]]:
        return []

    def returns(self) -> tuple[float, ...]:
        if not self.won:
            return (0.0, 0.0)
        return (1.0, -1.0) if len(self.history) % 2 else (-1.0, 1.0)

    def key(self, player: int | None = None) -> str:
        return "".join(self.board)

    def tensor(self, player: int | None = None) -> Array:
        own, other = "xo" if self._viewer(player) == 0 else "ox"
        board = self.board
        return np.array([[cell == stone for cell in board] for stone in (own, other)], np.float32).reshape(18)

    def __str__(self) -> str:
        key = self.key()
        return "".join(f"{key[row:row + 3]}\n" for row in (0, 3, 6))
