"""Tables: gymnasium's contract, exact values against published and independently known ones, and state."""

import json
import warnings
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from parl_like.algorithms import PSRL
from parl_like.algorithms.tables.dynamic_programming import model_of
from parl_like.envs.tabular import RandomWalk, TableEnv
from parl_like.models import QTable
from parl_like.values.limits import TooLarge


def toy(name, **options):
    return TableEnv.from_gymnasium(gym.make(name, **options))


def slippery():
    """Three states, two actions; the second action slips back half the time, and costs."""
    P = np.zeros((3, 2, 3))
    P[0, 0, 0] = P[1, 0, 0] = 1.0
    P[0, 1] = P[1, 1] = [0.5, 0.0, 0.5]
    P[0, 1] = [0.5, 0.5, 0.0]
    return TableEnv(P, [[0.0, -1.0], [0.0, -1.0], [9.0, 9.0]], terminal=[2], start=[0.25, 0.75, 0.0])


MAKERS = {
    "walk": RandomWalk, "walk3": lambda: RandomWalk(3, (0.0, 1.0)), "table": slippery,
    "ansi": lambda: RandomWalk(render_mode="ansi"),
    "cliff": lambda: toy("CliffWalking-v1", is_slippery=True), "lake": lambda: toy("FrozenLake-v1"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_gymnasiums_own_checker(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*spec")  # made by hand, not by gymnasium.make
        check_env(make(), skip_render_check=True)


# -------------------------------------------------------------------------------------------------------------- random walk


def test_the_walk_has_the_values_of_the_book():
    np.testing.assert_allclose(RandomWalk().values(), [0, -2 / 3, -1 / 3, 0, 1 / 3, 2 / 3, 0], atol=1e-12)
    np.testing.assert_allclose(RandomWalk(7, (0.0, 1.0)).values(), np.array([0, 1, 2, 3, 4, 5, 0]) / 6, atol=1e-12)


@pytest.mark.parametrize(("n", "rewards"), [(3, (0.0, 1.0)), (7, (-1.0, 1.0)), (8, (2.0, 5.0)), (21, (-1.0, 1.0))])
def test_the_straight_line_solves_the_equations(n, rewards):
    env = RandomWalk(n, rewards)
    np.testing.assert_allclose(env.values()[1:-1], np.linspace(*rewards, n)[1:-1], atol=1e-12)


def test_the_walk_walks():
    env = RandomWalk(7)
    assert env.reset(seed=0) == (3, {})
    assert [env.step(a)[:4] for a in (0, 1, 1, 1, 1)] == [
        (2, 0.0, False, False), (3, 0.0, False, False), (4, 0.0, False, False), (5, 0.0, False, False), (6, 1.0, True, False)]
    with pytest.raises(gym.error.ResetNeeded, match="RandomWalk: step.. without an open episode"):
        env.step(0)
    env.reset()
    assert [env.step(0)[1:3] for _ in range(3)] == [(0.0, False), (0.0, False), (-1.0, True)]
    assert RandomWalk(8).reset()[0] == 3
    walk = RandomWalk(3, render_mode="ansi")
    walk.reset()
    assert walk.render() == ".*.\n"


def test_returns_of_played_walks_agree_with_the_value():
    env, rng, total = RandomWalk(7, (0.0, 1.0)), np.random.default_rng(1), 0.0
    for _ in range(2000):
        env.reset(options={"state": 1})
        over = False
        while not over:
            _, reward, over, _, _ = env.step(int(rng.integers(2)))
            total += reward
    assert abs(total / 2000 - 1 / 6) < 4 * np.sqrt(5 / 36 / 2000)


# -------------------------------------------------------------------------------------- exact values (learning_marks, section 2)


@pytest.mark.parametrize(("name", "options", "gamma", "value"), [
    ("CliffWalking-v1", {}, 1.0, -13.0),
    ("CliffWalking-v1", {"is_slippery": True}, 1.0, -64.709), ("CliffWalking-v1", {"is_slippery": True}, 0.99, -46.353),
    ("FrozenLake-v1", {}, 1.0, 0.823529), ("FrozenLake-v1", {}, 0.99, 0.542026), ("FrozenLake-v1", {}, 0.95, 0.180472),
    ("FrozenLake-v1", {"map_name": "8x8"}, 1.0, 1.0), ("FrozenLake-v1", {"map_name": "8x8"}, 0.99, 0.414640),
    ("FrozenLake-v1", {"is_slippery": False}, 1.0, 1.0), ("FrozenLake-v1", {"is_slippery": False}, 0.99, 0.950990),
    ("Taxi-v4", {}, 1.0, 7.93), ("Taxi-v4", {}, 0.99, 6.327),
], ids=str)
def test_optimal_values_of_gymnasiums_tables(name, options, gamma, value):
    env = toy(name, **options)
    digits = len(str(value).partition(".")[2])
    assert env.start @ env.optimal(gamma) == pytest.approx(value, abs=0.5001 * 10**-digits)


@pytest.mark.parametrize(("name", "map_name", "steps", "greedy", "best", "random"), [
    ("FrozenLake-v1", "4x4", 100, 0.7402, 0.7442, 0.0139), ("FrozenLake-v1", "8x8", 200, 0.8630, 0.9132, 0.0019),
])
def test_values_within_a_step_limit(name, map_name, steps, greedy, best, random):
    env = toy(name, map_name=map_name)
    policy = env.greedy(env.q_values(env.optimal(0.99), 0.99))
    assert env.values(policy, horizon=steps)[0] == pytest.approx(greedy, abs=6e-5)
    assert env.optimal(horizon=steps)[0] == pytest.approx(best, abs=6e-5)
    assert env.values(horizon=steps)[0] == pytest.approx(random, abs=6e-5)


def test_random_play_of_the_taxi():
    env = toy("Taxi-v4")
    assert env.start @ env.values(horizon=200) == pytest.approx(-771.09, abs=0.006)


def test_the_cliff_with_exploration():
    env = toy("CliffWalking-v1")
    assert env.start @ env.values(horizon=1000) == pytest.approx(-9512, abs=0.5)
    path = env.greedy(env.q_values(env.optimal()))
    soft = 0.9 * np.eye(4)[path] + 0.1 * env.uniform()
    assert env.start @ env.values(soft) == pytest.approx(-45.80, abs=0.006)
    # The best policy that takes a random action every tenth time is the best one of the table that does so by itself.
    trembling = TableEnv(0.9 * env.P + 0.1 * env.P.mean(1, keepdims=True), 0.9 * env.R + 0.1 * env.R.mean(1, keepdims=True),
                         terminal=[47], start=36)
    assert trembling.optimal()[36] == pytest.approx(-20.708, abs=6e-4)
    safe = env.greedy(trembling.q_values(trembling.optimal()))
    assert env.values(safe, horizon=100)[36] == -15


def test_a_table_solved_by_hand():
    env = slippery()
    # Always the second action: v1 = −1 + v0/2, v0 = −1 + (v0 + v1)/2, so v0 = −6, v1 = −4; the first action gives 0 for ever.
    np.testing.assert_allclose(env.values([1, 1, 0]), [-6, -4, 0], atol=1e-12)
    np.testing.assert_array_equal(env.optimal(), [0, 0, 0])
    np.testing.assert_allclose(env.values([1, 1, 0], 0.5), [-1.25 / (1 - 0.25 - 0.0625), -1 - 0.25 * 1.25 / 0.6875, 0],
                               atol=1e-12)
    np.testing.assert_allclose(env.values(np.array([[0, 1], [0, 1], [1, 0]]), horizon=2), [-2.0, -1.5, 0])


def test_tables_of_outcomes_and_rewards_of_the_next_state():
    # The same next state twice, with other rewards, once as an end: it is 0.5 + 0.2 likely.
    env = TableEnv.from_outcomes([[[(0.5, 1, 2.0, False), (0.2, 1, 7.0, True), (0.3, 0, 1.0, False)]], [[(1.0, 1, 0.0, True)]]])
    np.testing.assert_allclose(env.P[0, 0], [0.3, 0.7])
    np.testing.assert_allclose(env.R[0, 0], 0.5 * 2 + 0.2 * 7 + 0.3)
    np.testing.assert_allclose(env.goes_on[0, 0], [0.3, 0.5])
    R = np.arange(8.0).reshape(2, 2, 2)
    env = TableEnv([[0, 1], [1, 0]], R, terminal=[])
    np.testing.assert_array_equal(env.R, [[R[0, 0, 0], R[0, 1, 1]], [R[1, 0, 1], R[1, 1, 0]]])
    env.reset()
    assert env.step(1)[:2] == (1, R[0, 1, 1])
    env = TableEnv(np.full((2, 1, 2), 0.5), R[:, :1], terminal=[])
    np.testing.assert_array_equal(env.R, R[:, :1].mean(2))


def test_the_first_of_equal_actions_is_greedy():
    assert TableEnv.greedy([[0, 1e-12], [0, 1e-6], [3, -2]]).tolist() == [0, 1, 0]


def test_values_that_do_not_exist():
    env = slippery()
    np.testing.assert_array_equal(env.values([0, 1, 0]), [np.nan, np.nan, 0])  # 1 may fall to 0, which stays where it is
    endless = TableEnv([[0]], [[1.0]])
    assert endless.optimal(0.5)[0] == 2.0 and endless.values(gamma=0.5)[0] == 2.0
    assert np.isnan(endless.values()[0])


def test_an_undiscounted_optimum_without_a_bound(monkeypatch):
    monkeypatch.setattr("parl_like.envs.tabular.MAX_SWEEPS", 50)
    with pytest.raises(ArithmeticError, match="did not converge in 50 sweeps; use gamma < 1"):
        TableEnv([[0]], [[1.0]]).optimal()


def test_values_agree_with_play():
    env = slippery()
    env.reset(seed=5)
    assert set(env.reset()[0] for _ in range(60)) == {0, 1}
    total = 0.0
    for _ in range(2000):
        env.reset(options={"state": 0})
        over = False
        while not over:
            _, reward, over, truncated, _ = env.step(1)
            total += reward
            assert not truncated
    assert total / 2000 == pytest.approx(-6, abs=0.5)


# ------------------------------------------------------------------------------------------------------------- twin and state


@pytest.mark.parametrize("name", ["CliffWalking-v1", "FrozenLake-v1", "Taxi-v4"])
def test_the_twin_does_what_gymnasium_does(name):
    original, rng = gym.make(name).unwrapped, np.random.default_rng(0)
    twin = TableEnv.from_gymnasium(original)
    original.reset(seed=0)
    twin.reset(seed=0)
    for _ in range(300):
        state, action = int(original.s), int(rng.integers(twin.n_actions))
        twin.reset(options={"state": state})
        obs, reward, terminated, _, _ = twin.step(action)
        assert any((t, r, d) == (obs, reward, terminated) for _, t, r, d in original.P[state][action])
        if original.step(action)[2]:
            original.reset()


def test_slips_are_as_frequent_as_the_table_says():
    env = toy("FrozenLake-v1")
    env.reset(seed=2)
    counts = np.zeros(16)
    for _ in range(3000):
        env.reset(options={"state": 6})
        counts[env.step(2)[0]] += 1
    np.testing.assert_allclose(counts / 3000, env.P[6, 2], atol=0.04)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_restored_state_gives_the_same_trace(make):
    def play(env, n=200):
        trace = []
        for action in np.random.default_rng(3).integers(env.n_actions, size=n).tolist():
            step = env.step(action)
            trace.append(step)
            if step[2]:
                trace.append(env.reset())
        return trace

    env = make()
    env.reset(seed=9)
    if not env.step(0)[2]:
        env.np_random.integers(5, dtype=np.uint32)  # leaves half a word in the generator
    else:
        env.reset()
    state = json.loads(json.dumps(env.clone_state()))
    trace = play(env)
    env.restore_state(state)
    assert play(env) == trace
    other = make()
    other.restore_state(state)
    assert play(other) == trace


def test_the_end_is_part_of_the_state():
    env = RandomWalk(3)
    env.reset(seed=0)
    env.step(0)
    other = RandomWalk(3)
    other.reset(seed=1)
    other.restore_state(env.clone_state())
    with pytest.raises(gym.error.ResetNeeded):
        other.step(0)
    with pytest.raises(ValueError, match="cloned state 6 does not exist here; there are 3"):
        other.restore_state({**env.clone_state(), "state": 6})


# ------------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(("arguments", "message"), [
    (([0, 1], [[0.0]]), r"P has shape \(2,\)"),
    ((np.zeros((2, 1, 3)), np.zeros((2, 1))), r"P has shape \(2, 1, 3\)"),
    (([[0.5]], [[0.0]]), "holds float64; expected integers"),
    (([[0]], [0.0]), r"R has shape \(1,\); expected \(1, 1\) or \(1, 1, 1\)"),
    (([[1]], [[0.0]]), "state 0, action 0: next state 1"),
    (([[-1]], np.zeros((1, 1, 1))), "state 0, action 0: next state -1"),
    (([[0]], [[np.nan]]), "reward nan"),
    (([[[0.9]]], [[0.0]]), r"state 0, action 0: probabilities \[0.9\] do not sum to 1"),
    (([[[1.5, -0.5]], [[0.0, 1.0]]], np.zeros((2, 1))), "state 0, action 0: probabilities"),
])
def test_bad_tables(arguments, message):
    with pytest.raises(ValueError, match=message):
        TableEnv(*arguments)


def test_other_bad_input():
    for options, message in (({"terminal": [3]}, "terminal state 3 does not exist; there are 1"),
                             ({"start": 1}, "start state 1 does not"),
                             ({"start": [0.5]}, "expected a state or 1 probabilities"),
                             ({"render_mode": "human"}, "render_mode is 'human'")):
        with pytest.raises(ValueError, match=message):
            TableEnv([[0]], [[0.0]], **options)
    with pytest.raises(ValueError, match="state 1 has 2 actions, state 0 has 1"):
        TableEnv.from_outcomes({0: {0: [(1.0, 0, 0.0, True)]}, 1: {a: [(1.0, 0, 0.0, True)] for a in (0, 1)}})
    with pytest.raises(TypeError, match="has no table P"):
        TableEnv.from_gymnasium(gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="n is 2; expected at least 3"):
        RandomWalk(2)
    env = RandomWalk()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    with pytest.raises(ValueError, match="reset has no option 'x'; there is 'state'"):
        env.reset(options={"x": 1})
    with pytest.raises(ValueError, match="state 7 does not exist; there are 7"):
        env.reset(options={"state": 7})
    env.reset()
    for bad in (-1, 2):
        with pytest.raises(ValueError, match=f"action is {bad}; expected 0 to 1"):
            env.step(bad)
    for policy in (np.ones(3), [0, 0, 0, 0, 0, 0, 2], [0, 0, 0, 0, 0, 0, -1], np.full((7, 2), 0.4), np.tile([1.5, -0.5], (7, 1))):
        with pytest.raises(ValueError, match="policy of shape .*expected 7 actions or probabilities"):
            env.values(policy)
    for gamma in (-0.1, 1.1, np.nan):
        for ask in (env.values, env.optimal):
            with pytest.raises(ValueError, match=r"RandomWalk: gamma is .*expected a number in \[0, 1\]"):
                ask(gamma=gamma)


def test_tables_that_are_too_large_are_refused_before_they_are_made():
    n = 5_000
    with pytest.raises(TooLarge, match="TableEnv: 5000 states, 1 actions; that makes arrays .* lower the number of states"):
        TableEnv(np.zeros((n, 1), int), np.zeros((n, 1)))
    rows = {s: {0: [(1.0, 0, 0.0, True)]} for s in range(n)}
    with pytest.raises(TooLarge, match="5000 states, 1 actions"):
        model_of(SimpleNamespace(P=rows))
    with pytest.raises(TooLarge, match="QTable: 'table' of 10000000 states and 4 actions"):
        QTable(gym.spaces.Discrete(10**7), gym.spaces.Discrete(4))
    with pytest.raises(TooLarge, match="QTable: 'transitions' of 5000 states and 1 actions"):
        PSRL(QTable(gym.spaces.Discrete(n), gym.spaces.Discrete(1)))
