"""TimeStep's discount table (ALF A14 to A20), the row between two steps, and the PARL, ALF and SARTSA views of stored rows."""

from itertools import pairwise

import numpy as np
import pytest

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.experience import Experience, as_alf, as_parl_record, as_sartsa, experience
from parl_like.data.timestep import StepType, TimeStep, discount_of, first_step, next_step
from parl_like.values.batch import Batch


def steps_of(n, terminated=True, env_id=0, first=0):
    """An episode of n actions: observation t at step t, action 10 + t, reward t / 2 for it."""
    steps = [first_step(first, env_id, {"t": 0})]
    for t in range(first, first + n):
        end = t == first + n - 1
        steps.append(next_step(t + 1, t / 2, end and terminated, end and not terminated, 10 + t, env_id, {"t": t + 1 - first}))
    return steps


def rows_of(*episodes, state=True):
    """Rows of episodes (n, terminated) one after the other, as a buffer gives them; the last one stays open for None."""
    buffer = ReplayBuffer(50)
    first = 0
    for n, terminated in episodes:
        steps = steps_of(n, terminated is True, env_id=3, first=first)
        for step, following in pairwise(steps):
            row = experience(step, following, state=[first, 1.0] if state else None).row()
            buffer.add({**row, "truncated": row["truncated"] and terminated is not None})
        first += n + 100
    return buffer[:]


# ---- TimeStep


def test_fields_and_step_types():
    assert TimeStep._fields == (
        "step_type", "reward", "discount", "observation", "prev_action", "env_id", "untransformed", "env_info",
    )  # fmt: skip
    assert [(t.name, int(t)) for t in StepType] == [("FIRST", 0), ("MID", 1), ("LAST", 2)]
    assert first_step(7, 2) == (StepType.FIRST, 0.0, 1.0, 7, None, 2, None, {})
    assert next_step(8, -1.5, False, False, 3, 2, {"k": 1}) == (StepType.MID, -1.5, 1.0, 8, 3, 2, None, {"k": 1})


@pytest.mark.parametrize(
    ("step", "step_type", "discount", "bootstraps", "is_learned"),
    [
        (first_step(0), StepType.FIRST, 1.0, False, True),
        (next_step(0, 1.0, False, False, 0), StepType.MID, 1.0, True, True),
        (next_step(0, 1.0, True, False, 0), StepType.LAST, 0.0, False, False),  # ended by the task
        (next_step(0, 1.0, False, True, 0), StepType.LAST, 1.0, True, False),  # time limit
        (next_step(0, 1.0, True, True, 0), StepType.LAST, 0.0, False, False),  # a true end exactly on the limit
    ],
)
def test_discount_table(step, step_type, discount, bootstraps, is_learned):
    assert (step.step_type, step.discount) == (step_type, discount)
    assert (step.bootstraps, step.is_learned) == (bootstraps, is_learned)
    assert (step.is_first, step.is_last) == (step_type == StepType.FIRST, step_type == StepType.LAST)


@pytest.mark.parametrize("flag", [np.True_, np.array(True), True])
def test_numpy_flags_are_flags(flag):
    assert next_step(0, 0.0, flag, False, 0).discount == 0.0
    assert next_step(0, 0.0, False, flag, 0).step_type == StepType.LAST
    assert discount_of(flag) == 0.0 and isinstance(discount_of(flag), float)


@pytest.mark.parametrize("flag", [1, 0.0, None, "yes", np.array([True]), np.array(1)])
def test_other_flags_are_refused(flag):
    with pytest.raises(TypeError, match="`terminated` is .*expected a bool"):
        next_step(0, 0.0, flag, False, 0)
    with pytest.raises(TypeError, match="`truncated` is .*expected a bool"):
        next_step(0, 0.0, False, flag, 0)


def test_discount_of_arrays():
    discount = discount_of(np.array([[True, False], [False, False]]))
    assert discount.dtype == np.float64 and discount.tolist() == [[0.0, 1.0], [1.0, 1.0]]
    with pytest.raises(TypeError, match="array of int64; expected bool"):
        discount_of(np.array([1, 0]))


def test_a_step_cannot_be_changed():
    with pytest.raises(AttributeError):
        first_step(0).reward = 1.0


# ---- Experience


def test_a_row_shifts_reward_and_action():
    first, mid, last = steps_of(2, env_id=4)
    assert experience(first, mid, state=5, policy=6) == Experience(0, 10, 0.0, False, False, 1, 5, 6, {"t": 1}, 4)
    assert experience(mid, last) == Experience(1, 11, 0.5, True, False, 2, None, None, {"t": 2}, 4)
    assert experience(mid, steps_of(2, terminated=False, env_id=4)[2])[3:5] == (False, True)
    assert experience(mid, next_step(2, 0.5, True, True, 11, 4))[3:5] == (True, False)
    assert list(experience(first, mid).row()) == ["obs", "act", "rew", "terminated", "truncated", "obs_next", "info", "env_id"]


def test_no_row_crosses_an_episode_border():
    first, mid, last = steps_of(2)
    with pytest.raises(ValueError, match="LAST followed by FIRST crosses"):
        experience(last, first)
    with pytest.raises(ValueError, match="MID followed by FIRST crosses"):
        experience(mid, first)
    with pytest.raises(ValueError, match="LAST followed by MID crosses"):
        experience(last, mid)
    with pytest.raises(ValueError, match="environments 0 and 1"):
        experience(first, steps_of(2, env_id=1)[1])


# ---- views


def test_parl_records():
    # Two actions and a true end; one action and a time limit; two actions, still open. 5 rows, 5 + 3 records.
    rows = rows_of((2, True), (1, False), (2, None))
    records = as_parl_record(rows)
    assert list(records.keys()) == ["inputs", "states", "actions", "rewards", "has_action", "game_over"]
    assert records.inputs.tolist() == [0, 1, 2, 102, 103, 203, 204, 205]
    assert records.actions.tolist() == [10, 11, 0, 112, 0, 213, 214, 0]
    assert records.rewards.tolist() == [0, 0.5, 0, 51, 0, 101.5, 102, 0]
    assert records.has_action.tolist() == [True, True, False, True, False, True, True, False]
    assert records.game_over.tolist() == [0, 0, 1, 0, 2, 0, 0, 0]
    assert records.states.tolist() == [[0, 1], [0, 1], [0, 0], [102, 1], [0, 0], [203, 1], [203, 1], [0, 0]]


def test_next_fields_are_those_of_the_following_record():
    rows = rows_of((3, True), (4, False), (2, None))
    records = as_parl_record(rows)
    own = np.flatnonzero(records.has_action)
    assert len(own) == len(rows) == 9 and len(records) == 9 + 3
    np.testing.assert_array_equal(records.inputs[own], rows.obs)
    np.testing.assert_array_equal(records.inputs[own + 1], rows.obs_next)
    np.testing.assert_array_equal(records.game_over[own + 1] == 1, rows.terminated)
    np.testing.assert_array_equal(records.game_over[own + 1] == 2, rows.truncated)
    assert not records.game_over[own].any()  # the status is of this step, not of the next one


def test_alf_steps_are_the_steps_that_the_rows_came_from():
    steps = [*steps_of(2, True, 3), *steps_of(1, False, 3, first=102), *steps_of(2, False, 3, first=203)]
    view = as_alf(rows_of((2, True), (1, False), (2, None)))
    assert set(view.keys()) == set(TimeStep._fields)
    assert view.step_type.tolist() == [0, 1, 2, 0, 2, 0, 1, 1]
    assert view.discount.tolist() == [1, 1, 0, 1, 1, 1, 1, 1]
    assert view.reward.tolist() == [s.reward for s in steps]
    assert view.observation.tolist() == [s.observation for s in steps]
    assert view.prev_action.tolist() == [0 if s.prev_action is None else s.prev_action for s in steps]
    assert view.env_id.tolist() == [3] * 8
    assert view.env_info.t.tolist() == [s.env_info["t"] for s in steps]
    assert view.untransformed == Batch()


def test_sartsa_traces():
    # J13: four transitions into 3 slots: state i, action i, reward i / 2, terminal when i is even; then state 5, action 5.
    buffer = ReplayBuffer(3)
    for i in range(1, 5):
        buffer.add(Batch(obs=i, act=i, rew=i / 2, terminated=i % 2 == 0, truncated=False, obs_next=i + 1))
    traces = as_sartsa(buffer[:], act=5)
    assert traces.state.tolist() == [2, 3, 4, 5] and traces.action.tolist() == [2, 3, 4, 5]
    assert traces.reward.tolist() == [1.0, 1.5, 2.0] and traces.terminal.tolist() == [True, False, True]
    assert traces.action_mask.tolist() == [True, True, True, True]
    # Without a known next action the last slot is a masked constant, not a draw from some generator.
    traces = as_sartsa(buffer[:])
    assert traces.action.tolist() == [2, 3, 4, 0] and traces.action_mask.tolist() == [True, True, True, False]


def test_views_of_nested_fields():
    buffer = ReplayBuffer(5)
    for t in range(3):
        obs, obs_next = ({"a": u, "b": {"c": np.full(2, u)}} for u in (t, t + 1))
        act = {"move": t, "look": [t, t]}
        buffer.add(Batch(obs=obs, act=act, rew=[t, 0.0], terminated=False, truncated=t == 2, obs_next=obs_next))
    rows = buffer[:]
    assert as_parl_record(rows).inputs.b.c.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert as_parl_record(rows).game_over.tolist() == [0, 0, 0, 2] and "states" not in as_parl_record(rows)
    alf = as_alf(rows)
    assert alf.prev_action.look.tolist() == [[0, 0], [0, 0], [1, 1], [2, 2]] and alf.reward[:, 0].tolist() == [0, 0, 1, 2]
    assert alf.env_info == Batch() and alf.env_id.tolist() == [0] * 4
    traces = as_sartsa(rows, act={"move": 7, "look": [8, 9]})
    assert traces.action.move.tolist() == [0, 1, 2, 7] and traces.action.look[-1].tolist() == [8, 9]
    assert traces.state.a.tolist() == [0, 1, 2, 3] and traces.terminal.tolist() == [False, False, True]


@pytest.mark.parametrize("view", [as_parl_record, as_alf, as_sartsa])
def test_views_are_read_only_and_leave_the_rows_alone(view):
    rows = rows_of((2, True), (1, False))
    seen = view(rows)
    for array in seen.leaves().values():
        assert not array.flags.writeable
    for array in rows.leaves().values():
        assert array.flags.writeable
    assert view(dict(rows_of((1, True)).to_dict())) == view(rows_of((1, True)))


@pytest.mark.parametrize("view", [as_parl_record, as_alf, as_sartsa])
def test_rows_that_are_no_history_are_refused(view):
    rows = rows_of((3, True))
    with pytest.raises(ValueError, match="rows 0 and 1 are not consecutive"):
        view(rows[[0, 2]])
    with pytest.raises(ValueError, match="no rows"):
        view(rows[:0])
    rows.pop("obs_next")
    with pytest.raises(ValueError, match="no field 'obs_next'"):
        view(rows)
