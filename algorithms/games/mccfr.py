"""Monte Carlo CFR (Lanctot et al. 2009): regrets from sampled games, of a game whose tree need not fit into memory.

Both estimate the regrets of `parl_like.algorithms.games.cfr` without bias, one player p at a time, with regret matching, π(a|I)
in proportion to max(R(I, a), 0):

External sampling draws what chance and the others do, and tries all of p's own actions:

    u(h) = Σ_a π(a|I) u(ha),      R(I, a) ← R(I, a) + u(ha) − u(h)

Outcome sampling plays one game, in which p takes each action with probability ξ(a|I) = ε / |A| + (1 − ε) π(a|I) and the others
follow π. With ξ_p(h) the product of what p tried on the way to h, an action that was drawn has

    u(ha) = u(h of the next) / ξ(a|I),   the others 0,   u(h) = Σ_a π(a|I) u(ha),      R ← R + (u(ha) − u(h)) / ξ_p(h)

What the others never do needs no sample, for no regret of p counts it.

The average policy sums what a player does to get to I, times π(·|I), in the mean over samples, with a weight that is the same in
all iterations. So whoever is averaged follows π, and the others must try everything: else sets that they avoid for a while would
be left out for so long. Of two players the sums are those of who does not learn: external sampling adds π(·|I) at its sets,
outcome sampling π(·|I) / ξ_p(h). Of more players a third one follows π as well, and may avoid something. There each player's
sums come from a game of its own, in which it is drawn by π and all others evenly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np

from parl_like.algorithms.games.solver import Solver
from parl_like.data.rng import rng_state, set_rng_state
from parl_like.envs.games.env import draw
from parl_like.envs.games.game import CHANCE, TERMINAL, Game, TablePolicy
from parl_like.envs.games.game import State as Position
from parl_like.values import plain
from parl_like.values.plain import State

Row = tuple[list[float], list[float]]
"""Regrets, and sums for the average, of the legal actions of one information set in their order."""


class MCCFR(Solver):
    """The base of both ways of sampling.

    Args:
        game: Players move one after another, chance can be drawn from, payment comes at the end.
        seed: Of what is drawn.

    Attributes:
        iterations: How many are done; one is a game, or a walk, for each player.
        rows: Key → regrets and sums, of the information sets that were seen so far.

    Raises:
        ValueError: the game lacks a trait.
    """

    def __init__(self, game: Game, *, seed: int = 0) -> None:
        game.traits.require(type(self).__name__, dynamics="sequential", chance=("explicit", "deterministic"), reward="terminal",
                            styles=("key",))
        self.game, self.rng = game, np.random.default_rng(seed)
        self.iterations = 0
        self.rows: dict[str, Row] = {}
        self._legal: dict[str, Sequence[int]] = {}

    def learn(self, iterations: int = 1) -> None:
        """Goes through so many iterations."""
        for _ in range(iterations):
            self.iterations += 1
            for player in range(self.game.n_players):
                if self.game.n_players != 2:
                    self._average(self.game.start(), player)
                self._sample(self.game.start(), player)

    @abstractmethod
    def _sample(self, state: Position, player: int) -> float:
        """Updates what a player's regrets are by one sample, from a position on, and of two players the other's sums. Returns an
        estimate of the player's utility."""

    def _average(self, state: Position, player: int) -> None:
        """Adds to a player's sums along one game, in which the others' moves are drawn evenly."""
        while (mover := state.player) != TERMINAL:
            if mover == CHANCE:
                state.apply(draw(state.chance(), self.rng))
                continue
            (regrets, sums), legal = self._row(state)
            chances = [1.0 / len(legal)] * len(legal)
            if mover == player:
                chances = matched(regrets)
                for i, chance in enumerate(chances):
                    sums[i] += chance
            state.apply(legal[self._drawn(chances)])

    def _row(self, state: Position) -> tuple[Row, Sequence[int]]:
        """Return the row of where a player is to move, and the legal actions."""
        key = state.key()
        row = self.rows.get(key)
        if row is None:
            legal = self._legal[key] = tuple(state.legal())
            row = self.rows[key] = ([0.0] * len(legal), [0.0] * len(legal))
        return row, self._legal[key]

    def _drawn(self, chances: Sequence[float]) -> int:
        """One of 0 … by these probabilities."""
        return draw(list(enumerate(chances)), self.rng)

    def _learned(self) -> State:
        keys = [key.encode() for key in self.rows]
        actions = [self._legal[key] for key in self.rows]
        regrets, sums = ([one for row in self.rows.values() for one in row[column]] for column in (0, 1))
        return {"keys": np.frombuffer(b"".join(keys), np.uint8).copy(), "lengths": np.array([*map(len, keys)], np.int64),
                "sizes": np.array([*map(len, actions)], np.int64), "actions": np.array([*chain(*actions)], np.int64),
                "regrets": np.array(regrets, np.float64), "sums": np.array(sums, np.float64), "rng": rng_state(self.rng)}

    def _take(self, learned: State) -> None:
        own = {name: plain.array(learned[name]) for name in ("keys", "lengths", "sizes", "actions", "regrets", "sums")}
        sizes, actions = own["sizes"], own["actions"]
        if not (len(sizes) == len(own["lengths"]) and (sizes > 0).all() and (own["lengths"] >= 0).all()
                and own["lengths"].sum() == len(own["keys"]) and sizes.sum() == len(actions) == len(own["regrets"])
                == len(own["sums"]) and ((actions >= 0) & (actions < self.game.n_actions)).all()
                and np.isfinite(own["regrets"]).all() and np.isfinite(own["sums"]).all()):
            raise ValueError(f"{type(self).__name__}: the state's rows do not fit each other; expected finite numbers, for legal "
                             f"actions below {self.game.n_actions} of each key")
        rng = np.random.default_rng()
        set_rng_state(rng, learned["rng"])
        text, ends = own["keys"].tobytes(), np.cumsum(own["lengths"]).tolist()
        keys = [text[first:end].decode() for first, end in zip([0, *ends], ends, strict=False)]
        cuts = np.cumsum(sizes)[:-1]
        columns = [[part.tolist() for part in np.split(own[name], cuts)] if len(sizes) else []
                   for name in ("regrets", "sums", "actions")]
        self.rows = {key: (regrets, sums) for key, regrets, sums in zip(keys, *columns[:2], strict=True)}
        self._legal = {key: tuple(legal) for key, legal in zip(keys, columns[2], strict=True)}
        self.rng = rng

    def policy(self) -> TablePolicy:
        """π, which the next iteration begins with."""
        return self._table([matched(regrets) for regrets, _ in self.rows.values()])

    def average_policy(self) -> TablePolicy:
        """The average of all iterations: what acts, and what is evaluated."""
        return self._table([matched(sums) for _, sums in self.rows.values()])

    def _table(self, chances: Sequence[Sequence[float]]) -> TablePolicy:
        table = {}
        for key, row in zip(self.rows, chances, strict=True):
            table[key] = np.zeros(self.game.n_actions)
            table[key][list(self._legal[key])] = row
        return TablePolicy(table)


def matched(weights: Sequence[float]) -> list[float]:
    """Probabilities in proportion to what is above 0; even where nothing is."""
    positive = [max(weight, 0.0) for weight in weights]
    total = sum(positive)
    return [one / total for one in positive] if total > 0 else [1.0 / len(weights)] * len(weights)


class ExternalSampling(MCCFR):
    """MCCFR that tries all actions of one player against drawn ones of chance and the others.

    Differences:
        For two players it is the paper's. Of more, averages are summed in games of their own, in which the others move evenly.
    """

    def _sample(self, state: Position, player: int) -> float:
        mover = state.player
        if mover == TERMINAL:
            return state.returns()[player]
        walk = partial(self._sample, state, player)
        if mover == CHANCE:
            return state.after(draw(state.chance(), self.rng), walk)
        (regrets, sums), legal = self._row(state)
        chances = matched(regrets)
        if mover != player:
            if self.game.n_players == 2:
                for i, chance in enumerate(chances):
                    sums[i] += chance
            return state.after(legal[self._drawn(chances)], walk)
        values = [state.after(action, walk) for action in legal]
        value = sum(chance * one for chance, one in zip(chances, values, strict=True))
        for i, one in enumerate(values):
            regrets[i] += one - value
        return value


class OutcomeSampling(MCCFR):
    """MCCFR that plays one game for each player.

    Differences:
        - Who learns explores, by ε, and the others follow π; in the paper a game may be drawn by any policies.
        - Of more than two players, averages are summed in games of their own, in which the others move evenly.

    Args:
        epsilon: ε, how much of what the player tries is even.
        The others: As for `MCCFR`.

    Raises:
        ValueError: epsilon is not in (0, 1].
    """

    def __init__(self, game: Game, *, epsilon: float = 0.6, seed: int = 0) -> None:
        super().__init__(game, seed=seed)
        if not 0.0 < epsilon <= 1.0:
            raise ValueError(f"OutcomeSampling: epsilon is {epsilon}; expected above 0, at most 1")
        self.epsilon = epsilon

    def _sample(self, state: Position, player: int, tried: float = 1.0) -> float:
        """Plays on. `tried`: the product of the probabilities by which the player itself got here."""
        mover = state.player
        if mover == TERMINAL:
            return state.returns()[player]
        if mover == CHANCE:
            state.apply(draw(state.chance(), self.rng))
            return self._sample(state, player, tried)
        (regrets, sums), legal = self._row(state)
        chances = matched(regrets)
        if mover != player:
            if self.game.n_players == 2:
                for i, chance in enumerate(chances):
                    sums[i] += chance / tried
            state.apply(legal[self._drawn(chances)])
            return self._sample(state, player, tried)
        even = self.epsilon / len(legal)
        tries = [even + (1.0 - self.epsilon) * chance for chance in chances]
        i = self._drawn(tries)
        state.apply(legal[i])
        value_of_drawn = self._sample(state, player, tried * tries[i]) / tries[i]
        value = chances[i] * value_of_drawn
        for j in range(len(legal)):
            regrets[j] += ((value_of_drawn if j == i else 0.0) - value) / tried
        return value
