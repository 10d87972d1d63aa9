"""A game as arrays: its whole tree is walked once, and then every pass over all positions is a few operations of NumPy.

Positions lie level by level, so that a pass down multiplies, and a pass up sums, one level at a time. A *slot* is an action of an
information set. A behaviour policy of all players is one array [slots]; those of a player's sets lie side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from parl_like.envs.games.game import CHANCE, TERMINAL, Game, Policy, State, TablePolicy, asked, fits, per_seat
from parl_like.values.limits import MOST_BYTES, check_array
from parl_like.values.spec import Array


class GameTree:
    """The tree of a game, N positions, I information sets, S slots.

    Args:
        game: Players move one after another, and chance has known probabilities. All positions must fit into memory: 300 bytes
            for each, and 8 bytes for each and each player must be within what `parl_like.values.limits` allows.
        who: Names the algorithm in errors.

    Attributes:
        parent, mover, via, chance: [N], of the move into a position: from where, who made it (chance: n_players), its slot (of
            chance −1), and the probability of a move of chance (of a player 1). The root has itself for a parent.
        payoff: [n_players, N] utilities at the end, 0 elsewhere.
        levels: Of each depth from 1 on, (first, end) of its positions.
        keys, players, first: [I], in the order of players: the key of a set, its player, and its first slot.
        sets, actions: [S]: the set of a slot and its action.
        own: Player → slice of its slots.
        moves: Player → the positions that its moves lead to.

    Raises:
        ValueError: the game lacks a trait, is too large, or states of one key differ in player or actions.
    """

    def __init__(self, game: Game, who: str = "GameTree") -> None:
        game.traits.require(who, dynamics="sequential", chance=("explicit", "deterministic"), reward="terminal", styles=("key",))
        self.game, n = game, game.n_players
        walk = _Walk(game.start(), who)
        order = np.argsort(walk.depth, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        ranked = sorted(walk.sets.items(), key=lambda item: item[1].player)  # stable: within a player as they were met
        self.keys = [key for key, _ in ranked]
        self.histories = [one.history for _, one in ranked]
        self.players = np.array([one.player for _, one in ranked], np.intp)
        self.actions = np.array([action for _, one in ranked for action in one.legal], np.intp)
        self.sets = np.repeat(np.arange(len(ranked)), [len(one.legal) for _, one in ranked])
        self.first = np.searchsorted(self.sets, np.arange(len(ranked)))
        slot_of = np.zeros(len(ranked) + 1, np.intp)  # by the number that the walk gave a set; the last: of chance
        slot_of[[one.number for _, one in ranked]] = self.first
        self.parent = place[np.array(walk.parent)[order]]
        self.mover = np.array(walk.mover)[order]
        self.chance = np.array(walk.chance)[order]
        self.via = np.where(self.mover < n, slot_of[np.array(walk.at)[order]] + np.array(walk.which)[order], -1)
        self.payoff = np.zeros((n, len(order)))
        ends = np.array(list(walk.payoff), np.intp)
        self.payoff[:, place[ends]] = np.array(list(walk.payoff.values())).T
        depth = np.array(walk.depth)[order]
        bounds = [0, *(np.flatnonzero(np.diff(depth)) + 1).tolist(), len(depth)]
        self.levels = list(zip(bounds[1:-1], bounds[2:], strict=True))
        slots = np.searchsorted(self.players[self.sets], np.arange(n + 1))
        self.own = [slice(int(slots[p]), int(slots[p + 1])) for p in range(n)]
        self.moves = [np.flatnonzero(self.mover == p) for p in range(n)]
        self._stages: dict[int, list[Array]] = {}
        self._moved = np.flatnonzero(self.mover[1:] < n) + 1

    # Policies -----------------------------------------------------------------------------------------------------------

    def uniform(self) -> Array:
        """[S]: every action with the same probability."""
        return self.normalised(np.zeros(len(self.sets)))

    def normalised(self, weights: Array) -> Array:
        """[S]: probabilities in proportion to weights ≥ 0; even where all of a set are 0."""
        total, size = np.bincount(self.sets, weights)[self.sets], np.bincount(self.sets)[self.sets]
        return np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / size)

    def array_of(self, policy: Policy | Sequence[Policy]) -> Array:
        """[S]: the policy, or those of all seats, asked in every information set.

        Raises:
            ValueError: it gives no probabilities of legal actions.
        """
        policies = per_seat("policy", self.game, policy)
        out = np.zeros(len(self.sets))
        for key, player, history, own in zip(self.keys, self.players, self.histories, self._slots(), strict=True):
            chosen = policies[player]
            chances = chosen.table.get(key) if type(chosen) is TablePolicy else None  # the state need not be made then
            if chances is None or not fits(chances, self.actions[own], self.game.n_actions):
                chances = asked("policy", chosen, self.game.replay(history))
            out[own] = chances[self.actions[own]]
        return out

    def _slots(self) -> list[slice]:
        """The slots of each set."""
        return [slice(*pair) for pair in pairwise([*self.first.tolist(), len(self.sets)])]

    def policy_of(self, array: Array) -> TablePolicy:
        """The policy that an array [S] says."""
        table = np.zeros((len(self.keys), self.game.n_actions))
        table[self.sets, self.actions] = array
        return TablePolicy(dict(zip(self.keys, table, strict=True)))

    # Passes -------------------------------------------------------------------------------------------------------------

    def probabilities(self, policy: Array) -> Array:
        """[N]: the probability of the move into each position."""
        out = self.chance.copy()
        out[self._moved] = policy[self.via[self._moved]]
        return out

    def reach(self, probabilities: Array) -> Array:
        """[n_players + 1, N]: the product of each mover's own probabilities up to a position; the last row is chance's."""
        out = np.ones((self.game.n_players + 1, len(self.parent)))
        out[self.mover, np.arange(len(self.parent))] = probabilities
        for first, end in self.levels:
            out[:, first:end] *= out[:, self.parent[first:end]]
        return out

    def values(self, probabilities: Array, player: int) -> Array:
        """[N]: the player's expected utility from each position on."""
        out: Array = self.payoff[player].copy()
        for first, end in reversed(self.levels):
            np.add.at(out, self.parent[first:end], probabilities[first:end] * out[first:end])
        return out

    def stages(self, player: int) -> list[Array]:
        """Positions but the root, in the order in which a player's best response is found: each array is of moves of the player,
        or of none, and the values of its positions follow from arrays before it.

        Raises:
            ValueError: the player was at positions of one information set by other moves of its own before: it forgets them;
                where nothing is hidden, by another number of moves.
        """
        if player not in self._stages:
            theirs, before, depth = self.mover == player, np.zeros(len(self.parent), np.intp), np.zeros(len(self.parent), np.intp)
            own = np.full(len(self.parent), -1, np.intp)  # the slot of the player's move before the last one
            for d, (first, end) in enumerate(self.levels):
                above = self.parent[first:end]
                before[first:end], depth[first:end] = before[above] + theirs[above], d  # moves of the player before the last one
                own[first:end] = np.where(theirs[above], self.via[above], own[above])
            moves = self.moves[player]
            slots, earlier = self.via[moves], np.zeros(len(self.sets), np.intp)
            perfect = self.game.traits.information == "perfect"
            known = before if perfect else own  # what follows does not depend on how one came where nothing is hidden
            earlier[slots] = known[moves]
            if (wrong := np.flatnonzero(earlier[slots] != known[moves])).size:
                raise ValueError(f"{self.game}: states with the key {self.keys[self.sets[slots[wrong[0]]]]!r} come after "
                                 f"different {'numbers of ' * perfect}moves of player {player}; a best response needs a "
                                 "player that remembers its moves")
            kinds = np.stack([-before, ~theirs, np.where(theirs, 0, -depth)])[:, 1:]
            order = np.lexsort(kinds[::-1])
            changes = np.flatnonzero(np.diff(kinds[:, order]).any(0)) + 1
            self._stages[player] = np.split(order + 1, changes) if len(order) else []
        return self._stages[player]


def without(reach: Array, player: int) -> Array:
    """[N]: what all but a player do to get to each position, of `GameTree.reach`."""
    out: Array = np.prod(reach[:player], 0) * np.prod(reach[player + 1:], 0)
    return out


class _Set(NamedTuple):
    number: int
    player: int
    legal: tuple[int, ...]
    history: list[int]  # of the first state


class _Walk:
    """Lists of all positions, as a walk meets them, depth first. `who` asks for them, for the refusal of too many."""

    def __init__(self, state: State, who: str) -> None:
        self.who, self.rows = who, state.game.n_players + 1
        self.most = MOST_BYTES // (8 * self.rows)
        self.depth, self.parent, self.mover, self.chance, self.at, self.which = [0], [0], [state.game.n_players], [1.0], [-1], [0]
        self.payoff: dict[int, tuple[float, ...]] = {}
        self.sets: dict[str, _Set] = {}
        self._go_on(state, 0, 1)

    def _go_on(self, state: State, here: int, depth: int) -> None:
        player = state.player
        if player == TERMINAL:
            self.payoff[here] = state.returns()
            return
        if player == CHANCE:
            at, moves = -1, state.chance()
        else:
            key, legal = state.key(), tuple(state.legal())
            known = self.sets.setdefault(key, _Set(len(self.sets), player, legal, list(state.history)))
            at = known.number
            if (known.player, known.legal) != (player, legal):
                raise ValueError(f"{state.game}: states with the key {key!r} differ in who moves or in what is legal: player "
                                 f"{known.player} with {known.legal}, player {player} with {legal}")
            moves = [(action, 1.0) for action in legal]
        for which, (action, chance) in enumerate(moves):
            child = len(self.depth)
            if child >= self.most:
                check_array(f"{self.who}: {state.game} has more than {child} positions", self.rows, child + 1, dtype=np.float64,
                            lower="the size of the game, or take ExternalSampling or OutcomeSampling, which keep no tree")
            self.depth.append(depth)
            self.parent.append(here)
            self.mover.append(state.game.n_players if player == CHANCE else player)
            self.chance.append(chance)
            self.at.append(at)
            self.which.append(which)
            state.apply(action)
            self._go_on(state, child, depth + 1)
            state.undo()


def tree_of(game: Game | GameTree, who: str) -> GameTree:
    """The tree itself, or that of the game."""
    return game if isinstance(game, GameTree) else GameTree(game, who)
