"""Minimax, and alpha-beta: the value of a game for two that hides nothing, and who should play what.

    v(h) = u(h) at the end,   max_a v(ha) where player 0 moves,   min_a v(ha) where player 1 does,   Σ_o P(o) v(ho) where chance
    does

(von Neumann 1928), with u the utility of player 0 in a game with a sum of 0. Alpha-beta (Knuth & Moore 1975) keeps what the two
can reach elsewhere, α ≤ v ≤ β, and leaves out what cannot lie between, so it visits fewer positions for the same values:

    at player 0: v ← max(v, v(ha)), α ← max(α, v), no further action once v ≥ β;      at player 1 the same with min and α

In a position of chance nothing is left out. Without `table` every history is a position of its own; with it positions of one key
are looked at once, which is right in games whose key says all that matters, such as a board.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from parl_like.envs.games.game import CHANCE, TERMINAL, Game, State


class Solved(NamedTuple):
    """The result of a search.

    Attributes:
        value: What player 0 gets if both play best; player 1 gets −value.
        action: The first best action of who is to move; None where nobody is.
        visited: Positions that were looked at.
    """

    value: float
    action: int | None
    visited: int


def minimax(position: Game | State, *, table: bool = False) -> Solved:
    """The value of a game, or of a position, by all that can follow. `table`: see above.

    Differences:
        None: it is that recursion, with positions of chance averaged.

    Raises:
        ValueError: the game lacks a trait: two players who move in turn, know everything, and win what the other loses.
    """
    return _search("minimax", position, prune=False, table=table)


def alpha_beta(position: Game | State, *, table: bool = False) -> Solved:
    """As `minimax`, by less; with `table` bounds of values are kept, too.

    Differences:
        Positions of chance are averaged, and `table` keeps values and bounds by key; the paper has neither.
    """
    return _search("alpha_beta", position, prune=True, table=table)


def _search(who: str, position: Game | State, *, prune: bool, table: bool) -> Solved:
    state = position.start() if isinstance(position, Game) else position.clone()
    state.game.traits.require(who, n_players=2, dynamics="sequential", information="perfect", utility="zero_sum",
                              chance=("deterministic", "explicit"))
    known: dict[tuple[str, int], tuple[float, float]] = {}  # between what the value lies
    visited = 0

    def value(alpha: float, beta: float) -> float:
        nonlocal visited
        player, key = state.player, (state.key(0), state.player) if table else ("", 0)
        least, most = known.get(key, (-inf, inf))
        if least >= beta or least == most:
            return least
        if most <= alpha:
            return most
        alpha, beta, visited = max(alpha, least), min(beta, most), visited + 1
        if player == TERMINAL:
            return state.returns()[0]
        if player == CHANCE:
            return sum(chance * after(outcome, -inf, inf) for outcome, chance in state.chance())
        best, low, high = (-inf, alpha, beta) if player == 0 else (inf, alpha, beta)
        for action in tuple(state.legal()):
            one = after(action, low, high) if prune else after(action, -inf, inf)
            best = max(best, one) if player == 0 else min(best, one)
            if player == 0:
                low = max(low, best)
            else:
                high = min(high, best)
            if prune and low >= high:
                break
        if table:
            known[key] = best if best > alpha else least, best if best < beta else most
        return best

    def after(action: int, alpha: float, beta: float) -> float:
        state.apply(action)
        one = value(alpha, beta)
        state.undo()
        return one

    if state.player < 0:
        return Solved(value(-inf, inf), None, visited)
    visited, sign = 1, 1 if state.player == 0 else -1
    best, chosen = -inf, None
    for action in tuple(state.legal()):
        limits = sorted((sign * best, sign * inf)) if prune else (-inf, inf)
        one = sign * after(action, *limits)
        if one > best:
            best, chosen = one, action
    return Solved(sign * best, chosen, visited)
