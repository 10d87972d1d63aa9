"""Search in a learned model (Schrittwieser et al. 2020): the nodes of trees are latent states, which whoever has the model keeps.

Actions of the root are masked; below it the model is asked for all of them, for it does not say what is legal, nor whether an
episode has ended: it learns that nothing comes then. Values are normalised, so that PUCT has the paper's constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from parl_like.algorithms.search._tree import Kernel
from parl_like.algorithms.search.tree import Evaluation, Found, Leaves, SearchRule, SearchTree, Trees
from parl_like.values.spec import Array

Ask = Callable[[dict[str, Array]], Mapping[str, Array]]
"""Requests by the names of `MuZeroNet.inputs`, [m] rows → `reward`, `value` [m] and `logits` [m, A]."""


class LatentSearch:
    """Trees of latent states, n at once; each simulation is one request of n rows.

    Args:
        ask: The model; under drivers of several agents it joins the requests of all of them.
        n_actions: A.
        simulations: Of each search.
        gamma: γ.
        players: 1, or 2 who move in turn, and what one wins the other loses.
        first: Of the rows that the model keeps for these searches, n · (simulations + 1) in a row.
        kernel: Of the trees, see `SearchTree`.

    Raises:
        ValueError: a number is out of its range.
    """

    def __init__(self, ask: Ask, n_actions: int, simulations: int, *, gamma: float = 0.997, players: int = 1, first: int = 0,
                 kernel: Callable[..., Trees] = Kernel) -> None:
        if simulations < 1 or players not in (1, 2) or first < 0:
            raise ValueError(f"LatentSearch: simulations is {simulations}, players {players} and first {first}; expected at "
                             "least 1, 1 or 2, and at least 0")
        self.ask, self.n_actions, self.simulations, self.players, self.first = ask, n_actions, simulations, players, first
        self.rule, self.kernel = SearchRule(gamma=gamma, normalize=True), kernel
        self._tree: SearchTree | None = None
        self._obs: Mapping[str, Array] = {}
        self._player = np.zeros((0, 0), np.int64)

    def search(self, obs: Mapping[str, Array], legal: Array, player: Array, noise: Array | None = None,
               share: float = 0.25) -> Found:
        """Search from n observations, and return what was found; values are those of who moves.

        Args:
            obs: By flat name, [n, …] each.
            legal: [n, A] bool. player: [n] int, who moves, 0 or 1.
            noise, share: As for `SearchTree.begin`.
        """
        n = len(player)
        if self._tree is None or self._tree.n != n:
            self._tree = SearchTree(n, self.n_actions, self.simulations, self.rule, self.kernel)
            self._player = np.zeros((n, self.simulations + 1), np.int64)
            self._base = self.first + (self.simulations + 1) * np.arange(n)
            self._nothing = np.zeros(n, np.int64)
        self._obs, self._player[:, 0] = obs, player
        nothing = self._nothing
        out = self.ask({**obs, "op": nothing, "act": nothing, "parent": nothing, "node": self._base})
        self._tree.begin(out["logits"], out["value"], player=player, legal=legal, noise=noise, share=share)
        return self._tree.run(self.simulations, self._leaves)

    def _leaves(self, leaves: Leaves) -> Evaluation:
        """Ask for the latent states of leaves; each tree has one, for no state is over."""
        tree, parent, action, node = leaves
        out = self.ask({**self._obs, "op": self._nothing + 1, "act": action, "parent": self._base + parent,
                        "node": self._base + node})
        player = (self._player[tree, parent] + 1) % self.players
        self._player[tree, node] = player
        return Evaluation(out["reward"], self._nothing, out["value"], out["logits"], player)
