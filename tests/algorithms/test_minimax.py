"""Minimax and alpha-beta: known values, equal results by less work, chance, and what is refused."""

import numpy as np
import pytest

from parl_like.algorithms.games import alpha_beta, minimax
from parl_like.envs.games import CHANCE, TERMINAL, ConnectFour, Game, Kuhn, State, TicTacToe, Traits


def test_tic_tac_toe_is_a_draw():
    every, pruned = minimax(TicTacToe(), table=True), alpha_beta(TicTacToe())
    assert every.value == pruned.value == 0 and every.action == pruned.action == 0
    assert pruned.visited == 18_297, "of 549,946"
    assert alpha_beta(TicTacToe(), table=True).visited == 3_220 < every.visited == 7_382


@pytest.mark.slow
def test_all_positions_of_tic_tac_toe_are_visited_without_pruning():
    assert minimax(TicTacToe()) == (0.0, 0, 549_946)


def positions(game, least, most, n, seed=0):
    """Positions after some random moves."""
    rng, found = np.random.default_rng(seed), []
    while len(found) < n:
        state = game.start()
        for _ in range(int(rng.integers(least, most))):
            if not state.is_terminal:
                state.apply(int(rng.choice(state.legal())))
        found.append(state)
    return found


@pytest.mark.parametrize("state", positions(TicTacToe(), 3, 9, 25), ids=lambda state: "".join(map(str, state.history)))
def test_both_find_the_same_by_less(state):
    before = list(state.history)
    results = [search(state, table=table) for search in (minimax, alpha_beta) for table in (False, True)]
    assert len({(one.value, one.action) for one in results}) == 1
    assert results[2].visited <= results[0].visited and results[3].visited <= results[1].visited
    assert state.history == before and (results[0].action is None) == state.is_terminal


@pytest.mark.parametrize("state", positions(ConnectFour(), 33, 38, 5), ids=str)
def test_ends_of_connect_four(state):
    assert minimax(state, table=True)[:2] == alpha_beta(state, table=True)[:2]


def test_the_only_move_that_saves_the_game():
    state = TicTacToe().replay([4, 0, 8, 2])  # o threatens cell 1
    assert alpha_beta(state)[:2] == minimax(state)[:2] == (0.0, 1)
    assert alpha_beta(TicTacToe().replay([0, 3, 1, 4]))[:2] == (1.0, 2)
    assert alpha_beta(TicTacToe().replay([0, 3, 1, 4, 8]))[:2] == (-1.0, 2)  # which blocks first and wins later
    assert alpha_beta(TicTacToe().replay([0, 3, 1, 4, 2])) == (1.0, None, 1)


class Coins(Game):
    """Player 0 takes 0.4, or leaves the choice to chance: then player 1 says what it may lose with each side of a coin."""

    def __init__(self):
        self.n_players, self.n_actions, self.tensor_size, self.max_moves = 2, 2, 1, 2
        self.traits, self.utility_range = Traits(n_players=2, information="perfect"), (0.0, 3.0)

    def start(self):
        return CoinsState(self)


class CoinsState(State):
    tensor = None

    @property
    def player(self):
        if self.history[:1] == [0]:
            return TERMINAL
        return (0, CHANCE, 1, TERMINAL)[len(self.history)]

    def legal(self):
        return () if self.player == TERMINAL else (0, 1)

    def chance(self):
        return [(0, 0.25), (1, 0.75)]

    def returns(self):
        if self.player != TERMINAL:
            return (0.0, 0.0)
        won = 0.4 if len(self.history) == 1 else [[1.0, 2.0], [3.0, 0.5]][self.history[1]][self.history[2]]
        return (won, -won)

    def key(self, player=None):
        return str(self.history)


@pytest.mark.parametrize("search", [minimax, alpha_beta])
def test_chance_is_averaged(search):
    """Player 1 leaves 1 on the first side and 0.5 on the other: 0.25 · 1 + 0.75 · 0.5 = 0.625 is more than 0.4."""
    assert search(Coins())[:2] == (0.625, 1)
    assert search(Coins().replay([1])) == (0.625, None, 7) and search(Coins().replay([1, 1]))[:2] == (0.5, 1)


@pytest.mark.parametrize("search", [minimax, alpha_beta])
def test_games_that_hide_something_are_refused(search):
    with pytest.raises(ValueError, match=f"{search.__name__} cannot play this game: it needs n_players 2 .it has 3., "
                                         "information 'perfect' .it has 'imperfect'."):
        search(Kuhn(3))
