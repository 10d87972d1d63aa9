"""Fictitious play (Brown 1951) in games of several moves (Heinrich, Lanctot & Silver 2015): everybody answers the average of all.

    β_p = best response of player p to the average policies of the others
    S(I, a) ← S(I, a) + (what p does by β_p to get to I) · β_p(a|I),      average π̄(a|I) = S(I, a) / Σ_b S(I, b)

The weights make it the play of one of the best responses, drawn evenly at the beginning of each game. In a matrix game these are
the frequencies of actions. The average comes to an equilibrium in games for two with a sum of 0, and in some others.
"""

from __future__ import annotations

import numpy as np

from parl_like.algorithms.games.best_response import response_slots
from parl_like.algorithms.games.game_tree import GameTree, tree_of
from parl_like.algorithms.games.solver import Solver
from parl_like.envs.games.game import Game, TablePolicy


class FictitiousPlay(Solver):
    """Best responses to averages of best responses. The first ones answer even play, which does not count in the average.

    Differences:
        Players answer one after the other, as in Brown 1951; those of Heinrich et al. answer all at once (`alternating=False`).

    Args:
        game: Players move one after another (`TurnBased` makes it so), chance is known, payment comes at the end.
        alternating: A player answers what those before it have just added; else all answer the averages of the iteration before.

    Attributes:
        iterations: How many are done.
        sums: [S] the sums S, see `GameTree` for the slots.

    Raises:
        ValueError: the game lacks a trait.
    """

    arrays = ("sums",)

    def __init__(self, game: Game | GameTree, *, alternating: bool = True) -> None:
        self.tree, self.alternating = tree_of(game, "FictitiousPlay"), alternating
        self.game, self.iterations = self.tree.game, 0
        self.sums = np.zeros(len(self.tree.sets))

    def learn(self, iterations: int = 1) -> None:
        """Goes through so many iterations."""
        tree = self.tree
        for _ in range(iterations):
            self.iterations += 1
            average = tree.normalised(self.sums)
            for player in range(tree.game.n_players):
                response = np.zeros(len(self.sums))
                response[response_slots(tree, average, player)[0]] = 1.0
                moves = tree.moves[player]
                # All states of a set are reached by the same of p's own moves: the last of them says it for all.
                self.sums[tree.via[moves]] += tree.reach(tree.probabilities(response))[player, moves]
                if self.alternating:
                    average = tree.normalised(self.sums)

    def average_policy(self) -> TablePolicy:
        """π̄: what acts, and what is evaluated."""
        return self.tree.policy_of(self.tree.normalised(self.sums))
