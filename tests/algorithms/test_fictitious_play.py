"""Fictitious play and exploitability descent: equilibria of matrix games, poker, single steps by hand."""

import numpy as np
import pytest

from parl_like.algorithms.games import (
    ExploitabilityDescent,
    FictitiousPlay,
    best_response,
    expected_returns,
    game_value,
    nash_conv,
)
from parl_like.algorithms.games.exploitability_descent import projected
from parl_like.algorithms.games.game_tree import GameTree
from parl_like.envs.games import Kuhn, Leduc, MatrixGame, RockPaperScissors, TurnBased, uniform

BIASED = [[0, -1, 3], [1, 0, -1], [-1, 1, 0]]  # rock beats scissors three times


@pytest.mark.parametrize(("game", "equilibrium"), [
    (RockPaperScissors(), [[1 / 3] * 3] * 2), (MatrixGame([[2, -1], [-1, 1]]), [[0.4, 0.6]] * 2),
    (MatrixGame(BIASED), [[0.2, 7 / 15, 1 / 3], [1 / 3, 7 / 15, 0.2]]),
], ids=["rps", "pennies", "biased"])
def test_averages_are_within_two_hundredths_of_the_equilibrium(game, equilibrium):
    one = FictitiousPlay(TurnBased(game))
    one.learn(2000)
    table = one.average_policy().table
    for player, expected in enumerate(equilibrium):
        np.testing.assert_allclose(table[str(player)][:len(expected)], expected, atol=0.02)


def test_counts_of_two_iterations_by_hand():
    """Against even play all actions of rps are as good, so player 0 begins with rock; player 1 answers with paper, it with
    scissors."""
    one = FictitiousPlay(TurnBased(RockPaperScissors()))
    one.learn()
    assert one.sums.tolist() == [1, 0, 0, 0, 1, 0]
    one.learn()
    assert one.sums.tolist() == [1, 0, 1, 1, 1, 0], "rock wins, draws or loses once against rock and scissors; the first is taken"
    both = FictitiousPlay(TurnBased(RockPaperScissors()), alternating=False)
    both.learn(2)
    assert both.sums.tolist() == [1, 1, 0, 1, 1, 0]


def test_the_average_is_that_of_the_best_responses_as_whole_strategies():
    """The averaged policy pays what the single best responses pay on average, by the weights of its information sets."""
    tree, one, responses = GameTree(Kuhn()), FictitiousPlay(GameTree(Kuhn()), alternating=False), []
    for _ in range(5):
        average = one.average_policy()
        responses.append(best_response(tree, average, 0))
        one.learn()
    returns = [expected_returns(tree, [response, uniform])[0] for response in responses]
    assert expected_returns(tree, [one.average_policy(), uniform])[0] == pytest.approx(np.mean(returns), abs=1e-12)


@pytest.mark.parametrize(("game", "iterations", "bound"), [(Kuhn(), 300, 0.01), (Kuhn(3), 300, 0.1), (Leduc(), 200, 0.4)],
                         ids=str)
def test_fictitious_play_in_poker(game, iterations, bound):
    one = FictitiousPlay(game)
    one.learn(iterations)
    assert nash_conv(one.tree, one.average_policy()) < bound


@pytest.mark.parametrize(("game", "iterations", "bound"), [(Kuhn(), 1000, 0.005), (Leduc(), 300, 0.15)], ids=str)
def test_exploitability_descends_in_poker(game, iterations, bound):
    one = ExploitabilityDescent(game)
    one.learn(iterations)
    assert nash_conv(one.tree, one.average_policy()) < bound


def test_two_steps_of_descent_by_hand():
    """Against even play in [[2, −1], [−1, 1]] player 1 takes the second action, so that player 0's are worth (−1, 1), and player
    0 the first, so that player 1's are worth (−2, 1). Steps of 0.2 lead to (0.3, 0.7), and to (0.1, 0.7), from which the simplex
    is 0.1 away in both. Then the best responses are the other two."""
    one = ExploitabilityDescent(TurnBased(MatrixGame([[2, -1], [-1, 1]])), lr=0.2)
    one.learn()
    np.testing.assert_allclose(one.array, [0.3, 0.7, 0.2, 0.8], atol=1e-12)
    one.learn()
    step = 0.2 / np.sqrt(2)
    np.testing.assert_allclose(one.array, [0.3 + 1.5 * step, 0.7 - 1.5 * step, 0.2 + step, 0.8 - step], atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_point_of_the_simplex(seed):
    tree = GameTree(Leduc())
    values = np.random.default_rng(seed).normal(size=len(tree.sets), scale=0.7)
    found = projected(tree, values)
    assert (found >= 0).all()
    np.testing.assert_allclose(np.bincount(tree.sets, found), 1.0, atol=1e-12)
    for index in range(0, len(tree.keys), 7):
        slots = np.flatnonzero(tree.sets == index)
        gap = (values - found)[slots]  # equal wherever something is left
        np.testing.assert_allclose(gap[found[slots] > 0], gap.max(), atol=1e-12)


def test_what_is_refused():
    with pytest.raises(ValueError, match="FictitiousPlay cannot play this game: it needs dynamics 'sequential'"):
        FictitiousPlay(RockPaperScissors())
    with pytest.raises(ValueError, match="ExploitabilityDescent cannot play this game: it needs n_players 2 .it has 3."):
        ExploitabilityDescent(Kuhn(3))
    with pytest.raises(ValueError, match="lr is 0; expected above 0"):
        ExploitabilityDescent(Kuhn(), lr=0)


def test_the_values_of_these_games():
    pytest.importorskip("scipy")
    assert game_value(TurnBased(MatrixGame(BIASED))) == pytest.approx(2 / 15, abs=1e-9)
