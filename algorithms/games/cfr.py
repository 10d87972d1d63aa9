"""Counterfactual regret minimisation: CFR (Zinkevich et al. 2007) and CFR+ (Tammelin 2014), on the whole tree at once.

With u_p(h) player p's expected utility from a state h on, and c_p(h) the product of what all but p do to get to h:

    R(I, a) ← R(I, a) + Σ_h c_p(h) · (u_p(ha) − u_p(h))      over the states h of I; CFR+: R ← max(R, 0) after that
    π(a|I) = max(R(I, a), 0) / Σ_b max(R(I, b), 0)     even where no regret is above 0 (regret matching, Hart & Mas-Colell 2000)
    S(I, a) ← S(I, a) + w_t · (what p does to get to I) · π(a|I)          w_t = 1; linear: w_t = max(t − delay, 0)

What is near an equilibrium is the average, S normalised, not π: in games of two with a sum of 0 its `nash_conv` falls at least as
1 / √iterations. One iteration updates the players one after the other, each against what those before it do now.
"""

from __future__ import annotations

import operator

import numpy as np

from parl_like.algorithms.games.game_tree import GameTree, tree_of, without
from parl_like.algorithms.games.solver import Solver
from parl_like.envs.games.game import Game, TablePolicy
from parl_like.values.plain import State


class CFR(Solver):
    """Regret matching in every information set of a game.

    Differences:
        Players are updated one after the other; the paper updates all at once (`alternating=False`).

    Args:
        game: Players move one after another, chance is known, payment comes at the end. All positions must fit into memory; else
            see `parl_like.algorithms.games.mccfr`.
        plus: Regret matching+: regrets never fall below 0.
        linear: Later iterations count more: w_t = t − delay.
        delay: So many iterations count nothing in the average.
        alternating: Players are updated one after the other; else all at once, from the same π.

    Attributes:
        iterations: How many are done.
        regrets, sums: [S] R and S, see `GameTree` for the slots.

    Raises:
        ValueError: the game lacks a trait, or `delay` is negative.
    """

    arrays = ("regrets", "sums")

    def __init__(self, game: Game | GameTree, *, plus: bool = False, linear: bool = False, delay: int = 0,
                 alternating: bool = True) -> None:
        self.tree = tree_of(game, type(self).__name__)
        self.game = self.tree.game
        if operator.index(delay) < 0:
            raise ValueError(f"{type(self).__name__}: delay is {delay}; expected at least 0")
        self.plus, self.linear, self.delay, self.alternating = plus, linear, delay, alternating
        self.iterations = 0
        self.regrets, self.sums = np.zeros((2, len(self.tree.sets)))
        self._policy = self.tree.uniform()

    def learn(self, iterations: int = 1) -> None:
        """Goes through so many iterations."""
        for _ in range(iterations):
            self.iterations += 1
            after = self.iterations - self.delay
            weight = max(after, 0) if self.linear else float(after > 0)
            for player in range(self.tree.game.n_players):
                self._update(player, weight)
                if self.alternating:
                    self._match()
            if not self.alternating:
                self._match()

    def _update(self, player: int, weight: float) -> None:
        tree = self.tree
        probabilities, moves = tree.probabilities(self._policy), tree.moves[player]
        values, reach = tree.values(probabilities, player), tree.reach(probabilities)
        before, slots = tree.parent[moves], tree.via[moves]
        np.add.at(self.regrets, slots, without(reach, player)[before] * (values[moves] - values[before]))
        np.add.at(self.sums, slots, weight * reach[player][before] * probabilities[moves])

    def _match(self) -> None:
        positive = np.maximum(self.regrets, 0.0)
        if self.plus:
            self.regrets = positive
        self._policy = self.tree.normalised(positive)

    def _take(self, learned: State) -> None:
        super()._take(learned)
        self._match()

    def policy(self) -> TablePolicy:
        """π, which the next iteration begins with."""
        return self.tree.policy_of(self._policy)

    def average_policy(self) -> TablePolicy:
        """The average of all iterations: what acts, and what is evaluated."""
        return self.tree.policy_of(self.tree.normalised(self.sums))


class CFRPlus(CFR):
    """CFR with regret matching+ and linear averages, which is much faster in practice. The arguments are those of `CFR`.

    Differences:
        None: it is the paper's algorithm, whose d is `delay`.
    """

    def __init__(self, game: Game | GameTree, *, plus: bool = True, linear: bool = True, delay: int = 0,
                 alternating: bool = True) -> None:
        super().__init__(game, plus=plus, linear=linear, delay=delay, alternating=alternating)
