"""The exact value of a game for two with a sum of 0, by linear programming in sequence form (Koller, Megiddo & von Stengel 1996).

A realisation plan x says with what probability player 0 does all of a sequence of its own actions, x_∅ = 1. With σ_p(I) the
sequence of player p before an information set I, and σ_p(z) that before an end z:

    max v_∅   over x ≥ 0 and v:      Σ_a x(I, a) = x(σ_0(I))                                      for every set I of player 0
                                     v(I) ≤ Σ v(I'), σ_1(I') = (I, a),  + Σ_z P(z) u_0(z) x(σ_0(z)), σ_1(z) = (I, a)   of player 1

v_∅ is the sum of v over the first sets of player 1 and of the ends before them; P(z) is what chance does to get to z. Its size is
that of the tree, not of the strategies. SciPy solves it; it comes with the extra `games`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parl_like.algorithms.games.game_tree import GameTree, tree_of
from parl_like.envs.games.game import Game
from parl_like.values.spec import Array


def game_value(game: Game | GameTree) -> float:
    """The mean utility of player 0 where both play an equilibrium, to about ten digits.

    Differences:
        A linear program solves games with a sum of 0 alone; the paper solves others, too, by Lemke's algorithm.

    Raises:
        ImportError: SciPy is not installed.
        ValueError: the game lacks a trait, such as two players with a sum of 0.
        RuntimeError: SciPy finds no solution.
    """
    try:
        from scipy.optimize import linprog
    except ImportError:
        raise ImportError("game_value needs SciPy, which comes with the extra: pip install 'parl_like[games]'") from None
    tree = tree_of(game, "game_value")
    tree.game.traits.require("game_value", n_players=2, utility="zero_sum")
    n_x, n_v = tree.own[0].stop, int((tree.players == 1).sum())  # columns: x of each slot of player 0, then v; one of x_∅ = 1
    n_sets, fixed = len(tree.keys) - n_v, n_x + n_v
    last = _last_slots(tree)
    before = np.full(len(tree.keys), -1)
    for player in (0, 1):
        moves = tree.moves[player]
        before[tree.sets[tree.via[moves]]] = last[player, tree.parent[moves]]

    plan = _Rows(n_sets, fixed + 1)
    plan.add(tree.sets[:n_x], np.arange(n_x), 1.0)
    plan.add(np.arange(n_sets), np.where(before[:n_sets] < 0, fixed, before[:n_sets]), -1.0)

    # Rows: the slots of player 1, then ∅, where v_∅ is what is looked for.
    bounds, slots = _Rows(tree.own[1].stop - n_x + 1, fixed + 1), np.arange(n_x, tree.own[1].stop)
    bounds.add(slots - n_x, n_x + tree.sets[slots] - n_sets, 1.0)
    bounds.add(np.where(before[n_sets:] < 0, len(slots), before[n_sets:] - n_x), n_x + np.arange(n_v), -1.0)
    ends = np.setdiff1d(np.arange(len(tree.parent)), tree.parent)
    reach = tree.reach(tree.probabilities(tree.uniform()))[-1]
    bounds.add(np.where(last[1, ends] < 0, len(slots), last[1, ends] - n_x),
               np.where(last[0, ends] < 0, fixed, last[0, ends]), -reach[ends] * tree.payoff[0, ends])

    of_plan, of_bounds = plan.matrix(), bounds.matrix()
    limits = [(0.0, None)] * n_x + [(None, None)] * n_v + [(1.0, 1.0)]
    solved: Any = linprog(of_bounds[[-1]].toarray()[0], A_ub=of_bounds[:-1], b_ub=np.zeros(len(slots)), A_eq=of_plan,
                          b_eq=np.zeros(n_sets), bounds=limits)
    if not solved.success:
        raise RuntimeError(f"game_value: SciPy found no solution: {solved.message}")
    return -float(solved.fun)


class _Rows:
    """A sparse matrix that is written entry by entry; what is written twice is summed."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.parts: list[tuple[Array, Array, Array]] = []

    def add(self, rows: Array, columns: Array, values: Array | float) -> None:
        self.parts.append((rows, columns, np.broadcast_to(values, rows.shape)))

    def matrix(self) -> Any:
        from scipy.sparse import coo_array

        rows, columns, values = (np.concatenate(part) for part in zip(*self.parts, strict=True))
        return coo_array((values, (rows, columns)), self.shape).tocsr()


def _last_slots(tree: GameTree) -> Array:
    """[2, N]: the last slot that each player has chosen on the way to a position; −1: none."""
    last = np.full((2, len(tree.parent)), -1)
    for first, end in tree.levels:
        for player in (0, 1):
            moved = tree.mover[first:end] == player
            last[player, first:end] = np.where(moved, tree.via[first:end], last[player, tree.parent[first:end]])
    return last
