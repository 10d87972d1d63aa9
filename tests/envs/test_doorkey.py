"""The room with a key: one walk with every observation worked out by hand, its state, and what is refused."""

import gymnasium as gym
import numpy as np
import pytest

from parl_like.envs.doorkey import DoorKey

pytest.importorskip("minigrid")
LEFT, RIGHT, FORWARD, PICK_UP, TOGGLE = range(5)


def room():
    """Columns from the left: wall, agent's side, wall with the door on top, exit's side, wall. The agent looks at the door, the
    key is below."""
    env = DoorKey(5, max_steps=20)
    env.reset(seed=0)
    state = env.clone_state()
    grid = np.full((5, 5, 3), (2, 5, 0), np.uint8)  # [column, row]: wall, grey
    for column, row, what in [(1, 1, (1, 0, 0)), (1, 2, (5, 4, 0)), (1, 3, (1, 0, 0)), (2, 1, (4, 4, 2)), (3, 1, (1, 0, 0)),
                              (3, 2, (1, 0, 0)),
                              (3, 3, (8, 1, 0))]:
        grid[column, row] = what  # free, yellow key, locked yellow door, green goal
    env.restore_state(state | {"grid": grid, "places": np.array([[1, 2], [2, 1], [3, 3]]), "pos": [1, 1], "dir": 0})
    return env


def test_a_walk_by_hand():
    env = room()
    # heading: east, south, west, north; ahead: free, wall, key, door, exit; then carried, open, and forward and right in fifths.
    walk = [
        (None, "east", "door", 0, 0, (0, 1, 1, 0, 2, 2)),
        (FORWARD, "east", "door", 0, 0, (0, 1, 1, 0, 2, 2)),  # locked
        (TOGGLE, "east", "door", 0, 0, (0, 1, 1, 0, 2, 2)),
        (LEFT, "north", "wall", 0, 0, (-1, 0, 0, 1, -2, 2)),
        (RIGHT, "east", "door", 0, 0, (0, 1, 1, 0, 2, 2)),
        (RIGHT, "south", "key", 0, 0, (1, 0, 0, -1, 2, -2)),
        (PICK_UP, "south", "free", 1, 0, (1, 0, 0, -1, 2, -2)),
        (LEFT, "east", "door", 1, 0, (0, 1, 1, 0, 2, 2)),
        (TOGGLE, "east", "door", 1, 1, (0, 1, 1, 0, 2, 2)),
        (FORWARD, "east", "free", 1, 1, (-1, 1, 0, 0, 1, 2)),
        (FORWARD, "east", "wall", 1, 1, (-2, 1, -1, 0, 0, 2)),
        (RIGHT, "south", "free", 1, 1, (1, 2, 0, 1, 2, 0)),
        (FORWARD, "south", "exit", 1, 1, (0, 2, -1, 1, 1, 0)),
        (FORWARD, "south", "wall", 1, 1, (-1, 2, -2, 1, 0, 0)),
    ]
    for i, (action, heading, ahead, carried, door, ways) in enumerate(walk):
        if action is None:
            obs = env.observe()
        else:
            obs, reward, terminated, truncated, _ = env.step(action)
            assert (terminated, truncated) == (i == len(walk) - 1, False)
            assert reward == pytest.approx((1 - 0.9 * 13 / 20) * terminated)
        expected = [name == heading for name in ("east", "south", "west", "north")]
        expected += [name == ahead for name in ("free", "wall", "key", "door", "exit")]
        np.testing.assert_allclose(obs, [*expected, carried, door, *np.array(ways) / 5], atol=1e-6, err_msg=str(i))
        assert obs in env.observation_space


def test_time_runs_out():
    env = room()
    assert [env.step(LEFT)[2:4] for _ in range(20)] == [(False, False)] * 19 + [(False, True)]


def test_every_moment_of_the_walk_can_be_gone_back_to():
    env, actions = room(), [RIGHT, PICK_UP, LEFT, TOGGLE, FORWARD, TOGGLE, FORWARD, RIGHT, FORWARD, FORWARD]
    states, seen = [env.clone_state()], []
    for action in actions:
        seen.append(env.step(action))
        states.append(env.clone_state())
    later = [env.reset()[0] for _ in range(3)]
    copies = [str(state) for state in states]
    for i, state in enumerate(states):
        for other in (env, DoorKey(5, max_steps=20)):
            other.restore_state(state)
            again = [other.step(action) for action in actions[i:]]
            for (obs, *rest), (wanted, *expected) in zip(again, seen[i:], strict=True):
                assert rest == expected
                np.testing.assert_array_equal(obs, wanted)
            np.testing.assert_array_equal([other.reset()[0] for _ in range(3)], later)
            np.testing.assert_array_equal(other.np_random.random(), np.random.default_rng(0).random())
            other.restore_state(state)
    assert [str(state) for state in states] == copies
    with pytest.raises(ValueError, match=r"the state is of a room \(5, 5\); expected \(6, 6\)"):
        DoorKey(6).restore_state(states[0])


def test_a_seed_makes_the_room():
    rooms = [DoorKey(8) for _ in range(2)]
    first, again = ([env.reset(seed=seed)[0].tobytes() for seed in range(5)] for env in rooms)
    assert first == again and len(set(first)) == 5
    assert rooms[0].np_random.random() == rooms[1].np_random.random() == np.random.default_rng(4).random()


def test_bad_calls_are_named():
    for options in ({"size": 4}, {"max_steps": 0}):
        with pytest.raises(ValueError, match="expected a size of at least 5 and a step"):
            DoorKey(**options)
    env = DoorKey(5)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    with pytest.raises(gym.error.ResetNeeded, match="clone_state"):
        env.clone_state()
    env.reset()
    for wrong in (-1, 5):
        with pytest.raises(ValueError, match=f"action is {wrong}; expected 0 … 4"):
            env.step(wrong)
