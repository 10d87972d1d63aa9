"""Dynamic programming: the exact numbers of known problems, one policy by both methods, and models of any kind."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like.algorithms.tables import model_of, policy_evaluation, policy_iteration, value_iteration
from parl_like.envs.tabular import RandomWalk, TableEnv
from parl_like.envs.textbook import BlackjackTable, Maze, NChain, RiverSwim


@pytest.mark.parametrize(("name", "options", "gamma", "value"), [
    ("CliffWalking-v1", {}, 1.0, -13.0), ("CliffWalking-v1", {"is_slippery": True}, 0.99, -46.353),
    ("CliffWalking-v1", {"is_slippery": True}, 1.0, -64.709),
    ("FrozenLake-v1", {}, 1.0, 0.823529), ("FrozenLake-v1", {}, 0.99, 0.542026), ("FrozenLake-v1", {}, 0.95, 0.180472),
    ("FrozenLake-v1", {"map_name": "8x8"}, 0.99, 0.414640), ("FrozenLake-v1", {"is_slippery": False}, 0.99, 0.950990),
    ("Taxi-v4", {}, 1.0, 7.93), pytest.param("Taxi-v4", {}, 0.99, 6.327, marks=pytest.mark.slow),
], ids=str)
def test_value_iteration_has_the_exact_values_and_policy_iteration_the_same(name, options, gamma, value):
    env = gym.make(name, **options)
    found = value_iteration(env, gamma)
    digits = len(str(value).partition(".")[2])
    assert found.start_value == pytest.approx(value, abs=0.5001 * 10**-digits)
    if name != "Taxi-v4":  # its table takes a second
        np.testing.assert_allclose(found.values, TableEnv.from_gymnasium(env).optimal(gamma), atol=1e-9)
    if gamma < 1:
        other = policy_iteration(env, gamma)
        np.testing.assert_allclose(other.values, found.values, atol=1e-10, rtol=0)
        for policy in (found.policy, other.policy):
            np.testing.assert_allclose(policy_evaluation(env, policy, gamma), found.values, atol=1e-10, rtol=0)


def test_the_walk_and_blackjack_have_the_values_of_the_book():
    np.testing.assert_allclose(policy_evaluation(RandomWalk()), [0, -2 / 3, -1 / 3, 0, 1 / 3, 2 / 3, 0], atol=1e-12)
    table = BlackjackTable()
    sticks = np.ones(280, np.int64)  # on 20 and 21
    sticks[[BlackjackTable.number(total, dealer, soft) for total in (20, 21) for dealer in range(1, 11) for soft in (0, 1)]] = 0
    values = policy_evaluation(table, sticks)
    assert values[BlackjackTable.number(13, 2, True)] == pytest.approx(-0.27726, abs=1e-4)  # published from 10⁸ episodes
    assert table.start @ policy_evaluation(table) == pytest.approx(-0.401, abs=0.01)  # measured of gymnasium's
    best = value_iteration(table, 1.0)
    assert best.policy[BlackjackTable.number(16, 10, False)] == 1 and best.policy[BlackjackTable.number(12, 4, False)] == 0
    assert best.policy[BlackjackTable.number(18, 9, True)] == 1 and best.policy[BlackjackTable.number(19, 10, True)] == 0


def test_problems_of_the_textbooks():
    maze = value_iteration(Maze(), 0.95)
    assert maze.start_value == pytest.approx(0.95**13) and Maze().reset()[0] == 18  # 14 steps
    chain, river = value_iteration(NChain()), value_iteration(RiverSwim())
    assert chain.policy.tolist() == [0] * 5 and river.policy.tolist() == [1] * 6
    assert NChain().optimal(horizon=1000)[0] == pytest.approx(3665.8, abs=0.1)
    assert RiverSwim().optimal(horizon=20)[0] == pytest.approx(3.397, abs=0.001)
    assert policy_evaluation(RiverSwim(), [0] * 6, 0.99)[0] == pytest.approx(0.5)


def test_gymnasiums_blackjack_does_what_the_table_says():
    env, table, rng = gym.make("Blackjack-v1").unwrapped, BlackjackTable(), np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(300):
        (total, dealer, soft), action = env._get_obs(), int(rng.integers(2))
        s = BlackjackTable.number(int(total), int(dealer), bool(soft))
        (total, dealer, soft), reward, done, _, _ = env.step(action)
        after = 0 if done else BlackjackTable.number(int(total), int(dealer), bool(soft))
        assert (reward, done) in [(r, over) for t, r, over in table._nexts[s][action] if t == after]
        if done:
            env.reset()


class Own:
    """A class of a user's, with nothing but P."""

    P = {0: {0: [(1.0, 1, 2.0, False)], 1: [(0.5, 0, 0.0, False), (0.5, 1, 1.0, True)]},
         1: {a: [(1.0, 1, 0.0, True)] for a in (0, 1)}}


def test_any_table_is_a_model_and_nothing_else():
    model = model_of(Own())
    assert model.rewards.tolist() == [[2.0, 0.5], [0.0, 0.0]] and model.start.tolist() == [1.0, 0.0]
    assert model.moves[0].tolist() == [[0.0, 1.0], [0.5, 0.0]] and not model.moves[1].any()
    # 2 at once; or ½ and half the time again: 0.5 + 0.5 · 0.9 · 2 = 1.4.
    assert value_iteration(Own(), 0.9).values.tolist() == [2.0, 0.0] and model_of(model) is model
    assert policy_evaluation(Own(), [1, 0], 0.9)[0] == pytest.approx(0.5 / (1 - 0.45))
    with pytest.raises(TypeError, match=r"CartPole.* has no table P; expected a TableEnv"):
        value_iteration(gym.make("CartPole-v1"))


def test_what_has_no_value_is_said():
    endless = TableEnv([[0]], [[1.0]])
    assert np.isnan(policy_evaluation(endless)[0]) and policy_evaluation(endless, gamma=0.5)[0] == 2.0
    with pytest.raises(ArithmeticError, match="did not converge in 50 sweeps; use gamma < 1"):
        value_iteration(endless, 1.0, max_sweeps=50)
    with pytest.raises(ValueError, match=r"policy_iteration: gamma is 1.0; expected a number in \[0, 1\)"):
        policy_iteration(endless, 1.0)
    for policy in ([1], [[0.5]], np.zeros((2, 1))):
        with pytest.raises(ValueError, match=r"policy has shape .*; expected 1 actions or probabilities \(1, 1\)"):
            policy_evaluation(endless, policy)
    for gamma in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="gamma is"):
            value_iteration(endless, gamma)
