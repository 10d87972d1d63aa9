"""Connect four."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parl_like.envs.games.game import TERMINAL, Game, State, Traits
from parl_like.values.spec import Array

ROWS, COLUMNS = 6, 7
WAYS = ((0, 1), (1, 0), (1, 1), (1, -1))


class ConnectFour(Game):
    """Connect four: stones fall to the lowest free place of a column, 7 columns of 6; four in a line win 1, the other loses 1; a
    full board is a draw. Player 0 (`x`) begins.

    Actions: the columns 0 … 6. Key: the rows from the lowest, `x......|.......|…`. Tensor: [6, 7] own stones, [6, 7] the other's.
    """

    def __init__(self) -> None:
        self.n_players, self.n_actions, self.tensor_size, self.max_moves = 2, COLUMNS, 2 * ROWS * COLUMNS, ROWS * COLUMNS
        self.traits = Traits(n_players=2, information="perfect", chance="deterministic")
        self.utility_range = (-1.0, 1.0)

    def start(self) -> ConnectFourState:
        return ConnectFourState(self)

    def __repr__(self) -> str:
        return "ConnectFour()"


class ConnectFourState(State):
    """A position of connect four.

    Attributes:
        columns: The stones of each column, from the lowest, 0 of x and 1 of o.
        won: Whether the player who moved last has a line.
    """

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self.columns: list[list[int]] = [[] for _ in range(COLUMNS)]
        self.won = False

    @property
    def player(self) -> int:
        return TERMINAL if self.won or len(self.history) == ROWS * COLUMNS else len(self.history) % 2

    def legal(self) -> Sequence[int]:
        return () if self.won else [column for column in range(COLUMNS) if len(self.columns[column]) < ROWS]

    def chance(self) -> list[tuple[int, float]]:
        return []

    def apply(self, action: int) -> None:
        stone = len(self.history) % 2
        super().apply(action)
        self.columns[action].append(stone)
        self.won = any(self._line(action, stone, *way) for way in WAYS)

    def clone(self) -> ConnectFourState:
        other = type(self)(self.game)  # search clones often, and a replay looks at every line again
        other.history, other.columns, other.won = self.history.copy(), [column.copy() for column in self.columns], self.won
        return other

    def undo(self) -> None:
        last = self.history[-1:]
        super().undo()
        self.columns[last[0]].pop()
        self.won = False  # or there would have been no move after it

    def _line(self, column: int, stone: int, right: int, up: int) -> bool:
        """Return whether the highest stone of a column is one of four in this direction."""
        row, long = len(self.columns[column]) - 1, 1
        for sign in (1, -1):
            x, y = column + sign * right, row + sign * up
            while 0 <= x < COLUMNS and 0 <= y < len(self.columns[x]) and self.columns[x][y] == stone:
                x, y, long = x + sign * right, y + sign * up, long + 1
        return long >= 4

    def returns(self) -> tuple[float, ...]:
        if not self.won:
            return (0.0, 0.0)
        return (1.0, -1.0) if len(self.history) % 2 else (-1.0, 1.0)

    def rows(self) -> list[str]:
        """The rows from the lowest, as text."""
        return ["".join("xo"[column[row]] if row < len(column) else "." for column in self.columns) for row in range(ROWS)]

    def key(self, player: int | None = None) -> str:
        return "|".join(self.rows())

    def tensor(self, player: int | None = None) -> Array:
        own = "xo"[self._viewer(player)]
        board = [cell for row in self.rows() for cell in row]
        return np.array([[cell == own for cell in board], [cell not in (own, ".") for cell in board]], np.float32).reshape(-1)

    def __str__(self) -> str:
        return "".join(f"{row}\n" for row in reversed(self.rows()))
