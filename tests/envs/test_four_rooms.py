"""Four rooms: their size, how steps slip, the goal that moves, and state."""

import numpy as np
import pytest

from parl_like.envs.four_rooms import FourRooms


def test_the_rooms_of_the_paper():
    env = FourRooms()
    assert env.n_states == 104 and env.n_actions == 4 and env.cells[62].tolist() == [7, 9]
    # A doorway has walls at two sides: of each such cell two steps stay.
    walls = np.array([sum(to == s for to in env.reached[s]) for s in range(104)])
    straight = [s for s in range(104) if walls[s] == 2 and (env.reached[s][0] == s) == (env.reached[s][2] == s)]
    assert [env.cells[s].tolist() for s in straight] == [[3, 6], [6, 2], [7, 9], [10, 6]]
    # From the first cell, a corner: up and left stay. Right is meant, and comes of 2/3; each other of 1/9.
    assert env.P[0, 1, 1] == pytest.approx(2 / 3) and env.P[0, 1, 0] == pytest.approx(2 / 9)
    assert env.P[0, 1, env.reached[0][2]] == pytest.approx(1 / 9)
    assert env.start[62] == 0 and env.start[0] == pytest.approx(1 / 103)


def test_the_best_policy_reaches_the_goal_from_everywhere():
    env = FourRooms()
    values = env.optimal(0.99)
    assert (np.delete(values, 62) > 0.5).all() and max(np.delete(values, 62)) == max(values[env.reached[62]])


def test_the_goal_moves_at_the_first_reset_after_so_many_steps():
    env = FourRooms(62, 89, 3)
    env.reset(seed=0, options={"state": 0})
    for _ in range(2):
        env.step(0)
    env.reset(options={"state": 0})
    assert env.goal == 62 and env.step(0)[2] is False
    env.reset(options={"state": 0})
    assert env.goal == 89 and env.start[62] > 0
    state = env.clone_state()
    first = [env.step(1) for _ in range(20)]
    other = FourRooms(62, 89, 3)
    other.restore_state(state)
    assert [other.step(1) for _ in range(20)] == first and other.goal == 89 and other.steps == env.steps
    with pytest.raises(ValueError, match="its goal in cell 89; here it is in one of"):
        FourRooms().restore_state(state)


def test_its_picture():
    env = FourRooms(render_mode="ansi")
    env.reset(seed=0, options={"state": 0})
    rows = env.render().split()
    assert rows[1][1] == "*" and rows[7][9] == "G" and len(rows) == 13


@pytest.mark.parametrize("wrong", [{"goal": 104}, {"moved": -1}, {"moves_after": -1}])
def test_what_does_not_exist_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FourRooms(**wrong)
