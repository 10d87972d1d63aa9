"""Exact values of games by linear programming: published digits, matrix games, and what a solver comes near to."""

import numpy as np
import pytest

from parl_like.algorithms.games import CFRPlus, expected_returns, game_value, nash_conv
from parl_like.algorithms.games.game_tree import GameTree
from parl_like.envs.games import Kuhn, Leduc, LiarsDice, MatrixGame, RockPaperScissors, TurnBased

pytest.importorskip("scipy", reason="SciPy comes with the extra games")


@pytest.mark.parametrize(("game", "value"), [
    (Kuhn(), -1 / 18), (Leduc(), -0.085606424078), (Leduc(suits=True), -0.085606424078), (LiarsDice(4), 1 / 16),
    pytest.param(LiarsDice(), -0.027131782945736, marks=pytest.mark.slow),
    (TurnBased(RockPaperScissors()), 0.0), (TurnBased(MatrixGame([[2, -1], [-1, 1]])), 0.2),
    (TurnBased(MatrixGame([[3, 1, 7], [4, 2, 2]])), 2.0), (TurnBased(MatrixGame([[5.0]])), 5.0),
], ids=str)
def test_published_values(game, value):
    assert game_value(game) == pytest.approx(value, abs=5e-13)


def test_cfr_plus_comes_near_the_value():
    tree = GameTree(LiarsDice(3))
    one = CFRPlus(tree)
    one.learn(300)
    gain = nash_conv(tree, one.average_policy())
    assert gain < 0.0005
    assert abs(expected_returns(tree, one.average_policy())[0] - game_value(tree)) < gain, "no player can win more than that"


def test_random_matrices_have_a_value_between_their_best_rows_and_columns():
    for seed in range(5):
        table = np.random.default_rng(seed).normal(size=(3, 4))
        value = game_value(TurnBased(MatrixGame(table)))
        assert table.min(1).max() - 1e-9 <= value <= table.max(0).min() + 1e-9
        assert game_value(TurnBased(MatrixGame(-table.T))) == pytest.approx(-value, abs=1e-9)


def test_what_is_refused():
    with pytest.raises(ValueError, match="game_value cannot play this game: it needs n_players 2 .it has 3."):
        game_value(Kuhn(3))
    with pytest.raises(ValueError, match="it needs utility 'zero_sum' .it has 'general'."):
        game_value(TurnBased(MatrixGame([[[1, 1], [0, 3]], [[3, 0], [2, 2]]])))
