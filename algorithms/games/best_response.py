"""Measures of a policy: best responses to it, and how much players could win by them.

    value_p(π) = E_π[u_p]        br_p(π) = max over π'_p of value_p(π'_p, π_{-p})
    nash_conv(π) = Σ_p br_p(π) − value_p(π)        exploitability(π) = nash_conv(π) / n_players

for any number of players; 0 exactly at a Nash equilibrium. All are exact: the whole tree is walked, so of a game that is walked
more than once make its `GameTree`. A best response is found from the end of the game on: in an information set the action of the
largest

    q(I, a) = Σ over the states h of I of (what the others and chance do to get to h) · value(h, a)

(Johanson et al. 2011, "Accelerating best response calculation in large extensive games").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from parl_like.algorithms.games.game_tree import GameTree, tree_of, without
from parl_like.envs.games.game import Game, Policy, State
from parl_like.values.spec import Array


class BestResponse(NamedTuple):
    """The best that one player can do against the others; a policy of that player.

    Attributes:
        actions: Key of each of its information sets → action. Of equally good ones the first; so where the others never let it
            come to that.
        value: What it gets on average.
    """

    actions: dict[str, int]
    value: float

    def __call__(self, state: State) -> Array:
        chances: Array = np.eye(state.game.n_actions)[self.actions[state.key()]]
        return chances


def best_response(game: Game | GameTree, policy: Policy | Sequence[Policy], player: int) -> BestResponse:
    """The best response of a player to a policy, or to those of all seats (its own is not read).

    Differences:
        All positions are walked as arrays, level by level; the paper walks over public states, and in parallel.

    Raises:
        ValueError: there is no such player, the policy gives no probabilities, or the game lacks a trait: players move one after
            another, chance is known, payment comes at the end, states have keys; or a player forgets how often it has acted.
    """
    tree = tree_of(game, "best_response")
    if not 0 <= player < tree.game.n_players:
        raise ValueError(f"best_response: player is {player}; expected 0 to {tree.game.n_players - 1}")
    return response_to(tree, tree.array_of(policy), player)


def expected_returns(game: Game | GameTree, policy: Policy | Sequence[Policy]) -> Array:
    """[n_players]: the expected utility of each player where all follow the policy. Raises ValueError as `best_response` does.

    Differences:
        None: it is an average over the tree.
    """
    tree = tree_of(game, "expected_returns")
    return returns_of(tree, tree.array_of(policy))


def nash_conv(game: Game | GameTree, policy: Policy | Sequence[Policy]) -> float:
    """The sum over all players of what each could win by a best response. Raises ValueError as `best_response` does.

    Differences:
        None: it is the sum at the top of this module.
    """
    tree = tree_of(game, "nash_conv")
    array = tree.array_of(policy)
    return float(sum(response_to(tree, array, player).value for player in range(tree.game.n_players))
                 - returns_of(tree, array).sum())


def exploitability(game: Game | GameTree, policy: Policy | Sequence[Policy]) -> float:
    """`nash_conv` for each player on average, as OpenSpiel has it. Raises ValueError as `best_response` does.

    Differences:
        None: it is OpenSpiel's. Some papers have this name for the whole `nash_conv`.
    """
    tree = tree_of(game, "exploitability")
    return nash_conv(tree, policy) / tree.game.n_players


def returns_of(tree: GameTree, policy: Array) -> Array:
    """[n_players]: as `expected_returns`, of a policy as an array."""
    probabilities = tree.probabilities(policy)
    return np.array([tree.values(probabilities, player)[0] for player in range(tree.game.n_players)])


def response_to(tree: GameTree, policy: Array, player: int) -> BestResponse:
    """As `best_response`, to a policy as an array."""
    chosen, value = response_slots(tree, policy, player)
    sets = range(len(tree.keys))
    actions = tree.actions[chosen].tolist()
    own = (i for i in sets if tree.players[i] == player)
    return BestResponse(dict(zip((tree.keys[i] for i in own), actions, strict=True)), value)


def response_slots(tree: GameTree, policy: Array, player: int) -> tuple[Array, float]:
    """The slot that a best response chooses in each set of the player, and its value."""
    probabilities = tree.probabilities(policy)
    weights = without(tree.reach(probabilities), player)
    values, own = tree.payoff[player].copy(), tree.own[player]
    sets = tree.sets[own] - (tree.sets[own.start] if own.stop > own.start else 0)
    first = np.searchsorted(sets, np.arange(sets[-1] + 1 if len(sets) else 0))
    chosen = np.zeros(len(first), np.intp)
    near = 1e-12 * max(1.0, float(np.abs(values).max()))  # the rounding of sums must not choose between equally good actions
    for edges in tree.stages(player):
        parents = tree.parent[edges]
        if tree.mover[edges[0]] != player:
            np.add.at(values, parents, probabilities[edges] * values[edges])
            continue
        slots = tree.via[edges] - own.start
        there = np.unique(sets[slots])
        q = np.bincount(slots, weights[parents] * values[edges], len(sets))
        good = np.flatnonzero(q >= np.maximum.reduceat(q, first)[sets] - near)
        chosen[there] = good[np.searchsorted(sets[good], there)]
        taken = slots == chosen[sets[slots]]
        values[parents[taken]] = values[edges[taken]]
    return chosen + own.start, float(values[0])
