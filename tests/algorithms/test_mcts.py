"""Search in games by their rules: the best moves of tic-tac-toe, found and not lost."""

import numpy as np
import pytest

from parl_like.algorithms.games import MCTS, minimax
from parl_like.algorithms.games.mcts import GameSearch
from parl_like.envs.games import ConnectFour, Kuhn, TicTacToe


def after(state, action):
    following = state.clone()
    following.apply(action)
    return following


def positions(n, seed=0):
    """Positions of tic-tac-toe with 2 to 6 stones that are not over."""
    rng, found = np.random.default_rng(seed), []
    while len(found) < n:
        state = TicTacToe().start()
        for _ in range(int(rng.integers(2, 7))):
            if not state.is_terminal:
                state.apply(int(rng.choice(state.legal())))
        found += [state] * (not state.is_terminal)
    return found


def is_best(state, action):
    sign = 1 if state.player == 0 else -1
    value = {a: sign * minimax(after(state, a), table=True).value for a in state.legal()}
    return value[action] == max(value.values())


@pytest.mark.parametrize("networkless", [False, True])
def test_the_best_moves_of_tic_tac_toe(networkless):
    """By random games, and, as a perfect model does it, by the rules alone: all positions are worth 0 but those that are over.
    All trees are searched in step."""
    states, game = positions(16), TicTacToe()
    nothing = lambda some: (np.zeros(len(some)), np.zeros((len(some), 9)))  # noqa: E731
    one = GameSearch(game, 500, nothing) if networkless else MCTS(game, 500)
    before = [list(state.history) for state in states]
    found = one.search(states)
    assert [list(state.history) for state in states] == before
    assert all(is_best(state, action) for state, action in zip(states, found.visits.argmax(1).tolist(), strict=True))
    assert all((found.visits[i] > 0).nonzero()[0].tolist() == list(state.legal()) for i, state in enumerate(states))


def worst(policy, seat, state, known):
    """What a policy gets at worst."""
    if state.is_terminal:
        return state.returns()[seat]
    if (key := state.key(0)) not in known:
        mine = state.player == seat
        actions = [int(policy(state).argmax())] if mine else state.legal()
        known[key] = min(worst(policy, seat, after(state, action), known) for action in actions)
    return known[key]


@pytest.mark.slow
@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nobody_beats_it_at_tic_tac_toe(seat, seed):
    assert worst(MCTS(TicTacToe(), 1500, seed=seed), seat, TicTacToe().start(), {}) == 0


def test_a_win_and_a_threat_in_connect_four():
    search = MCTS(ConnectFour(), 300)
    assert search(ConnectFour().replay([3, 0, 3, 0, 3, 0])).argmax() == 3, "four in a column"
    assert search(ConnectFour().replay([3, 0, 3, 0, 3])).argmax() == 3, "the only one that does not lose at once"


def test_a_policy_of_the_visits():
    policy = MCTS(TicTacToe(), 50, temperature=1.0)(TicTacToe().replay([4, 0]))
    assert policy.sum() == pytest.approx(1) and policy[4] == policy[0] == 0
    assert set((policy * 50).round(6)) == set(np.round(policy * 50)), "shares of 50 visits"
    one, other = (MCTS(TicTacToe(), 50, temperature=1.0, seed=3)(TicTacToe().start()) for _ in range(2))
    assert (one == other).all()


def test_what_is_refused():
    with pytest.raises(ValueError, match="MCTS cannot play this game: it needs information 'perfect'"):
        MCTS(Kuhn())
    with pytest.raises(ValueError, match="simulations is 0"):
        MCTS(TicTacToe(), 0)
    with pytest.raises(ValueError, match="playouts is 0"):
        MCTS(TicTacToe(), playouts=0)
