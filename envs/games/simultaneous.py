"""Games in which players move at once: matrix games, and any of them as one in which they move one after another, unseen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from parl_like.envs.games.game import SIMULTANEOUS, TERMINAL, Game, State, Traits
from parl_like.values.spec import Array


class MatrixGame(Game):
    """One move of all players at once, and what they get for it.

    Key: the player, `0`. Tensor: player [n_players].

    Args:
        payoffs: [A_0, …, A_{n-1}, n]: what each of n players gets for their actions; or [A_0, A_1], what the first of two gets,
            and the other loses.

    Raises:
        ValueError: payoffs have another shape, or hold a number that is not finite.
    """

    def __init__(self, payoffs: object) -> None:
        table = np.asarray(payoffs, np.float64)
        given = table.shape
        if table.ndim == 2:
            table = np.stack([table, -table], -1)
        n = table.shape[-1] if table.ndim else 0
        if table.ndim != n + 1 or n < 2 or not table.size or not np.isfinite(table).all():
            raise ValueError(f"MatrixGame: payoffs have the shape {given}; expected finite numbers [A, B] of a game "
                             "for two with a sum of 0, or [A_0, …, A_{n-1}, n] of one for n")
        self.payoffs, self.sizes = table, table.shape[:-1]
        self.n_players, self.n_actions, self.tensor_size, self.max_moves = n, max(self.sizes), n, n
        zero, same = bool(np.allclose(table.sum(-1), 0.0)), bool((table == table[..., :1]).all())
        self.traits = Traits(
            n_players=n, dynamics="simultaneous", chance="deterministic", utility="zero_sum" if zero else "identical" if same else
            "general", actions="minimal" if len(set(self.sizes)) == 1 else "full")
        self.utility_range = float(table.min()), float(table.max())

    def start(self) -> MatrixState:
        return MatrixState(self)


class RockPaperScissors(MatrixGame):
    """Rock-paper-scissors: actions 0 rock, 1 paper, 2 scissors; who wins gets 1, the other loses 1."""

    def __init__(self) -> None:
        super().__init__([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])

    def __repr__(self) -> str:
        return "RockPaperScissors()"


class MatrixState(State):
    """Before or after the one move of a matrix game."""

    game: MatrixGame

    @property
    def player(self) -> int:
        return TERMINAL if self.history else SIMULTANEOUS

    def legal(self) -> Sequence[int]:
        return () if self.history else [self.game.joint(actions) for actions in product(*map(range, self.game.sizes))]

    def legal_of(self, player: int) -> Sequence[int]:
        return () if self.history else range(self.game.sizes[self._viewer(player)])

    def chance(self) -> list[tuple[int, float]]:
        return []

    def returns(self) -> tuple[float, ...]:
        if not self.history:
            return (0.0,) * self.game.n_players
        actions = np.unravel_index(self.history[0], (self.game.n_actions,) * self.game.n_players)
        return tuple(self.game.payoffs[actions].tolist())

    def key(self, player: int | None = None) -> str:
        return str(self._viewer(player))

    def tensor(self, player: int | None = None) -> Array:
        seat: Array = np.eye(self.game.n_players, dtype=np.float32)[self._viewer(player)]
        return seat


class TurnBased(Game):
    """A game of simultaneous moves in which players move one after another, and nobody sees what the others have just chosen: the
    same game for whoever walks trees, or plays in `GameEnv`. Keys and tensors are those of the game.

    Raises:
        ValueError: players move one after another already.
    """

    def __init__(self, game: Game) -> None:
        game.traits.require("TurnBased", dynamics="simultaneous")
        self.of = game
        self.traits = replace(game.traits, dynamics="sequential", information="imperfect")
        self.n_players, self.n_actions, self.tensor_size = game.n_players, game.n_actions, game.tensor_size
        self.max_moves, self.utility_range = game.max_moves, game.utility_range

    def start(self) -> TurnBasedState:
        return TurnBasedState(self)

    def __repr__(self) -> str:
        return f"TurnBased({self.of})"


class TurnBasedState(State):
    """A position of the game, and what the first players have chosen there."""

    game: TurnBased

    def __init__(self, game: TurnBased) -> None:
        super().__init__(game)
        self.inner = game.of.start()
        self.chosen: list[int] = []
        self._before: list[list[int]] = []  # what was chosen before each move

    @property
    def player(self) -> int:
        player = self.inner.player
        return len(self.chosen) if player == SIMULTANEOUS else player

    def legal(self) -> Sequence[int]:
        return self.inner.legal_of(len(self.chosen)) if self.inner.player == SIMULTANEOUS else self.inner.legal()

    def chance(self) -> list[tuple[int, float]]:
        return self.inner.chance()

    def apply(self, action: int) -> None:
        super().apply(action)
        self._before.append(self.chosen)
        if self.inner.player != SIMULTANEOUS:
            self.inner.apply(action)
            return
        self.chosen = [*self.chosen, action]
        if len(self.chosen) == self.game.n_players:
            self.inner.apply(self.game.of.joint(self.chosen))
            self.chosen = []

    def undo(self) -> None:
        super().undo()
        if not self.chosen:
            self.inner.undo()
        self.chosen = self._before.pop()

    def returns(self) -> tuple[float, ...]:
        return self.inner.returns()

    def key(self, player: int | None = None) -> str:
        return self.inner.key(self._viewer(player))

    def tensor(self, player: int | None = None) -> Array:
        return self.inner.tensor(self._viewer(player))
