"""Search in games that hide nothing, by their rules: Monte Carlo tree search (Coulom 2006; Kocsis & Szepesvári 2006).

`GameSearch` looks ahead from n positions at once. Each simulation reaches one new position from each, and a function says of all
of them together what they are worth: a network, or, in `MCTS`, games that are played at random to their end. How the trees are
searched is in `parl_like.algorithms.search.tree`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from parl_like.algorithms.search.tree import STANDARD, Evaluation, Found, Leaves, SearchRule, SearchTree, visit_policy
from parl_like.envs.games.game import Game, State
from parl_like.values.spec import Array

Evaluate = Callable[[Sequence[State]], tuple[Array, Array]]
"""Positions → values [m] for who moves in each, and logits [m, n_actions] of what it does."""


class GameSearch:
    """Trees of positions, n at once.

    Args:
        game: Two players move in turn; nothing is hidden or left to chance, and what one wins the other loses.
        simulations: Of each search.
        evaluate: See `Evaluate`. Positions that are over are not asked for, for the rules say what they are worth.
        rule: How trees are searched.

    Raises:
        ValueError: the game is another one, or simulations is below 1.
    """

    def __init__(self, game: Game, simulations: int, evaluate: Evaluate, rule: SearchRule = STANDARD) -> None:
        game.traits.require(type(self).__name__, n_players=2, dynamics="sequential", information="perfect", utility="zero_sum",
                            chance="deterministic")
        if simulations < 1:
            raise ValueError(f"{type(self).__name__}: simulations is {simulations}; expected at least 1")
        self.game, self.simulations, self.evaluate, self.rule = game, simulations, evaluate, rule
        self._tree: SearchTree | None = None
        self._states: list[list[State]] = []

    def search(self, positions: Sequence[State], noise: Array | None = None, share: float = 0.25) -> Found:
        """Search from positions, which stay as they are, and return what was found; players are those to move.

        Args:
            positions: n of them, none of which is over.
            noise, share: As for `SearchTree.begin`.
        """
        n, actions = len(positions), self.game.n_actions
        if self._tree is None or self._tree.n != n:
            self._tree = SearchTree(n, actions, self.simulations, self.rule)
        value, logits = self.evaluate(positions)
        self._states = [[one] for one in positions]
        self._tree.begin(logits, value, player=np.array([one.player for one in positions]), legal=self._legal(positions),
                         noise=noise, share=share)
        found = self._tree.run(self.simulations, self._leaves)
        self._states = []
        return found

    def _leaves(self, leaves: Leaves) -> Evaluation:
        """Make the positions of leaves, and ask what they are worth."""
        made, reward = [], np.zeros(len(leaves.tree))
        for i, (tree, parent, action, _) in enumerate(zip(*(column.tolist() for column in leaves), strict=True)):
            before = self._states[tree][parent]
            after = before.clone()
            after.apply(action)
            self._states[tree].append(after)
            made.append(after)
            reward[i] = after.returns()[before.player] - before.returns()[before.player]
        players = np.array([one.player for one in made])
        done = players < 0
        value, logits = np.zeros(len(made)), np.zeros((len(made), self.game.n_actions))
        if not done.all():
            value[~done], logits[~done] = self.evaluate([one for one, over in zip(made, done, strict=True) if not over])
        return Evaluation(reward, done, value, logits, players, self._legal(made))

    def _legal(self, positions: Sequence[State]) -> Array:
        return np.stack([one.mask() for one in positions])


class MCTS(GameSearch):
    """A policy that looks ahead by UCT, and judges positions by games that are played at random to their end. With more and more
    simulations it plays the best moves. It learns nothing.

    Differences:
        - Returns are averaged on the way up; Coulom mixes their mean with the largest.
        - c is 1.4 for utilities in [−1, 1]; that of Kocsis & Szepesvári is √2 for rewards in [0, 1].

    Args:
        game: As for `GameSearch`.
        simulations: Of each move.
        playouts: Random games from each new position.
        exploration: c of UCT, in units of utility.
        temperature: Of the policy, see `visit_policy`.
        seed: Of the random games.

    Raises:
        ValueError: as `GameSearch`, or playouts is below 1.
    """

    def __init__(self, game: Game, simulations: int = 200, *, playouts: int = 1, exploration: float = 1.4,
                 temperature: float = 0.0, seed: int = 0) -> None:
        super().__init__(game, simulations, self._play_out, SearchRule("uct", exploration))
        if playouts < 1:
            raise ValueError(f"MCTS: playouts is {playouts}; expected at least 1")
        self.playouts, self.temperature, self.rng = playouts, temperature, np.random.default_rng(seed)

    def __call__(self, state: State) -> Array:
        """Return the probability of every action, [n_actions]."""
        policy: Array = visit_policy(self.search([state]).visits, self.temperature)[0]
        return policy

    def _play_out(self, positions: Sequence[State]) -> tuple[Array, Array]:
        value = np.array([np.mean([self._played(one) for _ in range(self.playouts)]) for one in positions])
        return value, np.zeros((len(positions), self.game.n_actions))

    def _played(self, position: State) -> float:
        """Return what who moves gets in one random game."""
        state = position.clone()
        while state.player >= 0:
            legal = state.legal()
            state.apply(legal[int(self.rng.random() * len(legal))])
        return state.returns()[position.player]
