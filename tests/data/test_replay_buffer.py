"""ReplayBuffer: the literal numbers of the Tianshou seed (T20 to T30, T35 to T39, T48), lanes, laws, errors, and its saved
state."""

import copy
import json
import pickle
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_like.data.buffers._rows import RowBlock
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer, VectorReplayBuffer
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec, SpecError


def spec(name, shape=(), dtype="float64"):
    return Spec(name, shape, np.dtype(dtype))


SPECS = [
    spec("obs", (2,), "float32"), spec("act", (), "int64"), spec("rew"), spec("terminated", (), "bool"),
    spec("truncated", (), "bool"), spec("obs_next", (2,), "float32"),
]  # fmt: skip


def values(i, terminated=False, truncated=False):
    """One row of SPECS that says which one it is."""
    return np.full(2, i, np.float32), i, float(i), terminated, truncated, np.full(2, i + 1, np.float32)


def row(i, terminated=False, truncated=False, **more):
    return Batch(obs=i, act=i, rew=i, terminated=terminated, truncated=truncated, obs_next=i + 1, **more)


def filled(size, n, ends=lambda i: False, first=0, **options):
    buffer = ReplayBuffer(size, **options)
    for i in range(first, first + n):
        buffer.add(row(i, ends(i)))
    return buffer


def pushed(size, n_lanes=1, rows=(), **options):
    """A buffer of SPECS with rows (lane, i, ends)."""
    buffer = ReplayBuffer(size, n_lanes, **options)
    buffer.allocate(SPECS)
    for lane, i, ends in rows:
        buffer.push(lane, values(i, ends))
    return buffer


def snapshot(buffer):
    return json.dumps(buffer.state_dict(), default=lambda array: array.tolist())


# ---- T20 to T22: names, flags, memory


def test_three_rows_in_a_memory_of_twenty():
    buffer = filled(20, 3)
    assert len(buffer) == 3
    np.testing.assert_array_equal(buffer.obs, [0, 1, 2] + [0] * 17)
    np.testing.assert_array_equal(buffer.obs_next[:4], [1, 2, 3, 0])


def test_a_full_buffer_gives_up_its_oldest_rows():
    buffer = filled(10, 15)
    assert len(buffer) == 10
    np.testing.assert_array_equal(buffer.obs, [10, 11, 12, 13, 14, 5, 6, 7, 8, 9])


def test_dtypes_are_inferred():
    buffer = ReplayBuffer(4)
    buffer.add(Batch(obs=np.zeros(3, np.uint8), act=1, rew=2, terminated=0, truncated=False))
    kinds = {name: column.dtype.name for name, column in buffer.columns.items()}
    assert kinds == {"obs": "uint8", "act": "int64", "rew": "float64", "terminated": "bool", "truncated": "bool"}
    short = ReplayBuffer(4, rew_dtype=np.float32)
    short.add(row(0))
    short.add(row(2**24))
    short.add(row(1))
    assert short.rew.dtype == np.float32
    np.testing.assert_array_equal(short.rew, [0, 2**24, 1, 0])
    assert short.add(row(1, True))[1].tolist() == [2**24 + 2]  # float32 cannot count on from 2²⁴


def test_a_reward_is_not_rounded_to_a_whole_number():
    whole = ReplayBuffer(4)
    whole.allocate([*SPECS[:2], spec("rew", (), "int64"), *SPECS[3:]])
    with pytest.raises(SpecError, match="'rew'.*int64.*float64"):
        whole.add(dict(zip([s.name for s in SPECS], (*values(0)[:2], 1.5, *values(0)[3:]), strict=True)))


@pytest.mark.parametrize("name", ["obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy", "extra"])
def test_names_of_rows_cannot_be_assigned(name):
    buffer = ReplayBuffer(4)
    buffer.add(row(0, extra=1.0))
    with pytest.raises(ValueError, match=f"'{name}' names stored rows"):
        setattr(buffer, name, 1)


def test_fields_do_not_hide_what_the_buffer_means_by_a_name():
    buffer = ReplayBuffer(4)
    buffer.add(row(0, size=7, push=8, rng=9, tail=1.5))
    assert buffer.size == 4 and callable(buffer.push) and len(buffer.sample_indices(2)) == 2
    assert (buffer.get(0, "size"), buffer.get(0, "push"), buffer.get(0, "rng")) == (7, 8, 9)
    buffer.add(row(1, late=3))
    assert buffer.tail.tolist() == [1.5, 0, 0, 0] and buffer.late.tolist() == [0, 3, 0, 0]
    buffer.size = 4  # its own attributes stay assignable


def test_done_is_either_flag():
    buffer = ReplayBuffer(4)
    for terminated, truncated in [(0, 0), (1, 0), (0, 1), (1, 1)]:
        buffer.add(row(0, terminated, truncated))
    assert (
        buffer.done.tolist() == buffer[:].done.tolist() == buffer.get(slice(None), "done").tolist() == [False, True, True, True]
    )
    with pytest.raises(ValueError, match="'done' disagrees"):
        buffer.add(row(0, done=True))
    with pytest.raises(ValueError, match="add needs 'terminated'.*done is computed"):
        ReplayBuffer(4).add(Batch(obs=0, act=0, rew=0, done=True))


# ---- T23: what add returns


def test_add_returns_position_return_length_and_start():
    buffer = ReplayBuffer(9)
    ended = {}
    for i in range(16):
        position, total, length, start = buffer.add(row(i, i % 5 == 0))
        assert position.shape == total.shape == length.shape == start.shape == (1,)
        assert position[0] == i % 9
        ended[i] = (length[0], total[0], start[0])
    # The episodes are rows 0, 1 to 5, 6 to 10, 11 to 15: 15 = 1 + … + 5, and the second 5 rows make 25 more.
    expected = {0: (1, 0, 0), 5: (5, 15, 1), 10: (5, 40, 6), 15: (5, 65, 11 - 9)}
    assert {i: v for i, v in ended.items() if v[0]} == expected
    assert all(v[:2] == (0, 0) for i, v in ended.items() if i not in expected)


def test_the_return_of_a_vector_reward_is_a_vector():
    buffer = ReplayBuffer(5)
    for i in range(3):
        _, total, length, _ = buffer.add(Batch(obs=0, act=0, rew=[1.0, i], terminated=i == 2, truncated=False))
    assert total.tolist() == [[3.0, 3.0]] and length.tolist() == [3]
    assert buffer.add(Batch(obs=0, act=0, rew=[1.0, 1.0], terminated=False, truncated=False))[1].tolist() == [[0.0, 0.0]]


# ---- T24 to T27: the seed's case: 3 rows without an end, then a buffer of 10 that saw 15, where rows 0, 4, 8, 12 end episodes


def every_fourth(i):
    return i % 4 == 0


@pytest.fixture
def joined():
    buffer = filled(20, 3)
    assert buffer.update(filled(10, 15, every_fourth)).tolist() == list(range(3, 13))
    return buffer


def test_update_appends_in_time_order(joined):
    np.testing.assert_array_equal(joined.obs, [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14] + [0] * 7)
    assert len(joined) == 13


def test_sample_indices(joined):
    assert joined.sample_indices(0).tolist() == list(range(13))
    drawn = joined.sample_indices(1000)
    assert drawn.shape == (1000,) and set(drawn.tolist()) == set(range(13))
    assert joined.sample_indices(None).shape == (13,)
    assert joined.sample_indices(-1).shape == (0,)
    for n in (0, 5, None):
        assert ReplayBuffer(5).sample_indices(n).shape == (0,)


def test_prev_and_next(joined):
    # Positions 6 (row 8) and 10 (row 12) end an episode, 12 is the newest. prev(3) = 2 although rows 2 and 5 never met: "join".
    every = np.arange(13)
    assert joined.prev(every).tolist() == [0, 0, 1, 2, 3, 4, 5, 7, 7, 8, 9, 11, 11]
    assert joined.next(every).tolist() == [1, 2, 3, 4, 5, 6, 6, 8, 9, 10, 10, 12, 12]
    assert joined.prev(3) == 2 and joined.next(6) == 6


def test_prev_and_next_stop_at_the_oldest_and_newest_row_of_a_full_lane():
    buffer = filled(5, 7)  # slots hold rows 5, 6, 2, 3, 4: position 2 is the oldest, 1 the newest
    assert buffer.prev([0, 1, 2, 3, 4]).tolist() == [4, 0, 2, 2, 3]
    assert buffer.next([0, 1, 2, 3, 4]).tolist() == [1, 1, 3, 4, 0]


def test_a_truncating_cut_ends_both_ends():
    buffer, other = filled(20, 3), filled(10, 15, every_fourth)
    buffer.update(other, cut="truncate")
    assert np.flatnonzero(buffer.truncated).tolist() == [2, 12] and not other.truncated.any()
    assert buffer.prev([3]).tolist() == [3] and buffer.next([2]).tolist() == [2]
    assert buffer.add(row(15))[2].tolist() == [0]
    assert buffer.prev([13]).tolist() == [13]
    # A source whose last episode is over gets no second flag.
    closed = filled(20, 3)
    source = filled(5, 5, every_fourth)
    source.truncated[2] = True
    closed.update(source, cut="truncate")
    assert np.flatnonzero(closed.truncated).tolist() == [2, 5]  # our newest row, and the flag that the source had already


def test_unfinished_index(joined):
    assert joined.unfinished_index().tolist() == [12]
    joined.add(row(15, True))
    assert joined.unfinished_index().tolist() == []
    assert ReplayBuffer(3).unfinished_index().tolist() == []


def test_update_between_lanes_fields_and_sizes():
    two = pushed(8, 2, [(0, 0, False), (1, 10, True), (0, 1, False)])
    one = ReplayBuffer(8)
    assert one.update(two).tolist() == [0, 1, 2]
    assert one.act[:3].tolist() == [0, 1, 10]
    cut = ReplayBuffer(8)
    cut.update(two, cut="truncate")
    assert cut.truncated[:3].tolist() == [False, True, False]
    again = ReplayBuffer(4, 2)
    again.update(two)
    assert again.update(two).tolist() == [0, 1, 3]  # lane 0 (slots 0, 1) is full and starts again
    assert again.act.tolist() == [0, 1, 10, 10]
    tiny = ReplayBuffer(2)
    assert tiny.update(filled(5, 5)).tolist() == [0, 1, 0, 1, 0]
    assert tiny[:].obs.tolist() == [3, 4]
    assert len(one.update(ReplayBuffer(3))) == 0
    with pytest.raises(ValueError, match="2 lanes cannot go into 3"):
        ReplayBuffer(9, 3).update(two)
    with pytest.raises(ValueError, match="'join' or 'truncate'"):
        one.update(two, cut="glue")


def test_update_from_itself_and_with_unequal_fields():
    buffer = filled(10, 2)
    assert buffer.update(buffer).tolist() == [2, 3]
    assert buffer.obs[:5].tolist() == [0, 1, 0, 1, 0]
    extra = ReplayBuffer(5)
    extra.add(Batch(obs=7, act=7, rew=7, terminated=0, truncated=0, policy={"p": 0.5}))
    buffer.update(extra)
    assert buffer.policy.p[:5].tolist() == [0, 0, 0, 0, 0.5] and buffer.obs_next[:5].tolist() == [1, 2, 1, 2, 0]
    before = snapshot(buffer)
    with pytest.raises(SpecError, match="'obs'"):
        buffer.update(pushed(3, 1, [(0, 0, False)]))
    assert snapshot(buffer) == before


# ---- T28 to T30: reading


def test_sample_gives_the_rows_at_its_indices():
    buffer = filled(10, 15, every_fourth, rng=np.random.default_rng(3))
    batch, indices = buffer.sample(7)
    assert batch == buffer[indices] and batch.obs.tolist() == buffer.obs[indices].tolist()
    assert list(batch.keys()) == ["obs", "act", "rew", "terminated", "truncated", "obs_next", "done"]
    np.testing.assert_array_equal(buffer.sample(0)[1], buffer.sample_indices(0))
    assert buffer.sample(-1)[0].obs.shape == (0,)


def test_equal_generators_draw_equal_rows():
    one, two = (filled(10, 15, rng=np.random.default_rng(5)) for _ in range(2))
    assert one.sample_indices(20).tolist() == two.sample_indices(20).tolist()
    drawn = one.sample_indices(20, np.random.default_rng(9))
    assert drawn.tolist() == np.floor(np.random.default_rng(9).random(20) * 10).tolist()
    assert one.sample_indices(20).tolist() == two.sample_indices(20).tolist()  # the explicit generator left their own alone


def test_sampling_nothing_from_nothing():
    assert len(ReplayBuffer(3).sample(0)[1]) == 0
    with pytest.raises(ValueError, match="empty buffer"):
        ReplayBuffer(3).sample(1)
    with pytest.raises(ValueError, match="empty buffer"):
        pushed(3).sample(1)


def test_columns_and_rows_agree():
    buffer = filled(10, 15)
    for i in range(10):
        assert buffer.obs[i] == buffer[i].obs == buffer.get(i, "obs")
    assert buffer[3].obs.shape == ()
    assert buffer.get([3, 4], "obs").tolist() == [13, 14]


def test_slices_are_in_time_order_and_integers_are_positions():
    buffer = filled(10, 15)
    assert buffer[:].obs.tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert buffer[0:3].obs.tolist() == [5, 6, 7]
    assert buffer[-2:].obs.tolist() == [13, 14] and buffer[::-5].obs.tolist() == [14, 9]
    assert buffer[[0, 1, 2]].obs.tolist() == [10, 11, 12]
    assert buffer[buffer.obs > 12].obs.tolist() == [13, 14]
    assert buffer[np.empty(0, np.int64)].obs.shape == (0,)
    assert len(ReplayBuffer(3)[:]) == 0


@pytest.mark.parametrize("index", [3, -1, [0, 3], [0, -1], 20, [0.5], "obs", np.zeros(3, bool), None])
def test_positions_without_a_row_are_refused(index):
    buffer = filled(20, 3)
    with pytest.raises(IndexError, match="rows=3 of 20"):
        buffer[index]
    with pytest.raises(IndexError, match="position -1 holds no row"):
        filled(3, 3)[-1]  # the newest row in storage or in time? The latter is buffer[-1:]


# ---- T35 and T36: nested and late fields


def test_nested_observations():
    buffer = ReplayBuffer(6)
    for i in range(8):
        obs = {"mask": i, "image": {"mat": np.full((3, 3), i + 0.5)}}
        buffer.add(Batch(obs=obs, act=i, rew=i, terminated=0, truncated=0, obs_next=obs, info={}))
    assert [s.name for s in buffer.specs][:2] == ["obs.mask", "obs.image.mat"]
    assert buffer.obs.mask.tolist() == [6, 7, 2, 3, 4, 5] and buffer.obs.image.mat.shape == (6, 3, 3)
    assert buffer[:].obs.image.mat[:, 1, 2].tolist() == [2.5, 3.5, 4.5, 5.5, 6.5, 7.5]
    assert buffer.get([0, 2], "obs.image").mat[:, 0, 0].tolist() == [6.5, 2.5]
    assert buffer.get(0, "obs").mask == 6
    assert buffer.info == Batch() and buffer[:].info == Batch()


def test_late_and_missing_fields_are_zero():
    buffer = filled(6, 2)
    kept = buffer.obs
    buffer.add(row(2, info={"k": 2.5}, policy={"a": [1, 2]}))
    assert buffer.info.k.tolist() == [0, 0, 2.5, 0, 0, 0] and buffer.policy.a[2].tolist() == [1, 2]
    buffer.add(row(3, info={}))
    assert buffer.info.k[3] == 0 and buffer.obs is kept
    buffer.add({"obs": 4, "act": 4, "rew": 4, "terminated": False, "truncated": False})
    assert buffer.obs_next[:5].tolist() == [1, 2, 3, 4, 0]
    for _ in range(4):
        buffer.add(row(9))
    assert buffer.info.k.tolist() == [0] * 6  # the old value of a slot does not shine through


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="add needs 'act'; got obs, rew"):
        ReplayBuffer(3).add({"obs": 1, "rew": 1.0, "terminated": False, "truncated": False})
    with pytest.raises(AttributeError, match="obs"):
        _ = ReplayBuffer(3).obs
    with pytest.raises(KeyError, match="no field 'nothing'"):
        filled(3, 1).get(0, "nothing")


def test_declared_fields_may_be_fewer_than_usual():
    buffer = ReplayBuffer(3)
    buffer.allocate([spec("goal"), *SPECS[3:5]])
    buffer.add({"goal": 0.5, "terminated": False, "truncated": False})
    _, total, length, _ = buffer.add({"goal": 1.5, "terminated": False, "truncated": True})
    assert buffer.goal.tolist() == [0.5, 1.5, 0] and total.tolist() == [0] and length.tolist() == [2]
    with pytest.raises(ValueError, match="add needs 'truncated'"):
        buffer.add({"goal": 0.5, "terminated": False})


# ---- T37: reset


def test_reset_may_keep_the_statistics_of_open_episodes():
    for keep, length, total in [(True, 4, 6), (False, 1, 3)]:
        buffer = filled(9, 3)
        buffer.reset(keep_statistics=keep)
        assert len(buffer) == 0 and buffer.sample_indices(0).size == 0 and buffer.unfinished_index().size == 0
        position, episode_return, episode_length, start = buffer.add(row(3, True))
        assert (position[0], episode_length[0], episode_return[0], start[0]) == (0, length, total, 0)


# ---- T38 and T39: lanes


def test_a_row_per_environment():
    buffer = VectorReplayBuffer(20, 4)
    batch = Batch(obs=[1, 2, 3], act=[1, 2, 3], rew=[1, 2, 3], terminated=[0, 0, 1], truncated=[0, 0, 0])
    positions, returns, lengths, starts = buffer.add(batch, [0, 1, 2])
    assert positions.tolist() == [0, 5, 10] and lengths.tolist() == [0, 0, 1] and returns.tolist() == [0, 0, 3]
    assert starts.tolist() == [0, 5, 10]
    assert buffer.unfinished_index().tolist() == [0, 5]
    positions, returns, lengths, _ = buffer.add(Batch(batch, terminated=[1, 0, 1]), [2, 3, 0])
    assert positions.tolist() == [11, 15, 1]
    assert lengths.tolist() == [1, 0, 2] and returns.tolist() == [1, 0, 4]
    assert buffer[:].obs.tolist() == [1, 3, 2, 3, 1, 2]  # lane after lane, each in time order
    assert buffer.unfinished_index().tolist() == [5, 15]


def test_lanes_are_equal_parts_rounded_up():
    buffer = ReplayBuffer(20, 3)
    assert (buffer.lane_size, buffer.capacity) == (7, 21)
    buffer.allocate(SPECS)
    assert buffer.push_rows([0, 1, 2], [np.stack(c) for c in zip(*map(values, range(3)), strict=True)]).tolist() == [0, 7, 14]


def test_without_lanes_every_lane_gets_a_row():
    three = {"obs": [1, 2, 3], "act": [0] * 3, "rew": [0] * 3, "terminated": [0] * 3, "truncated": [0] * 3}
    buffer = ReplayBuffer(6, 3)
    assert buffer.add(three)[0].tolist() == [0, 2, 4]
    with pytest.raises(SpecError, match="'obs'.*give 2 rows"):
        buffer.add(three, [0, 1])
    assert ReplayBuffer(4).add(three, [0, 0, 0])[0].tolist() == [0, 1, 2]  # one environment, three rows of it


def test_sampling_is_uniform_over_rows_whatever_the_fill_of_their_lanes():
    # Lanes of 5 slots with 1, 0, 5 and 3 rows: each of the 9 rows has probability 1/9.
    rows = [(lane, i, False) for lane, n in enumerate([1, 0, 7, 3]) for i in range(n)]
    buffer = pushed(20, 4, rows)
    drawn = Counter(buffer.sample_indices(9000).tolist())
    assert set(drawn) == {0, 10, 11, 12, 13, 14, 15, 16, 17}
    # 6 standard errors of a binomial count: 6 · sqrt(9000 · 1/9 · 8/9) = 179
    assert all(abs(count - 1000) < 179 for count in drawn.values())


def test_prev_and_next_never_leave_their_lane():
    buffer = pushed(6, 2, [(0, 0, False), (0, 1, False), (1, 10, False), (1, 11, False), (1, 12, False), (1, 13, False)])
    # Lane 1 is full: slots 3, 4, 5 hold rows 13, 11, 12.
    assert buffer.prev([0, 1, 3, 4, 5]).tolist() == [0, 0, 5, 4, 4]
    assert buffer.next([0, 1, 3, 4, 5]).tolist() == [1, 1, 3, 5, 3]
    assert buffer.unfinished_index().tolist() == [1, 3]
    assert buffer[:].act.tolist() == [0, 1, 11, 12, 13]
    assert buffer.lane_rows(1)["act"].tolist() == [11, 12, 13] and buffer.lane_rows(0)["act"].tolist() == [0, 1]


def test_a_lane_can_be_emptied_alone():
    buffer = pushed(6, 2, [(0, 0, False), (0, 1, False), (1, 10, False)])
    buffer.clear_lane(0)
    assert len(buffer) == 1 and buffer[:].act.tolist() == [10] and len(buffer.lane_rows(0)["act"]) == 0
    assert buffer.push(0, values(5)) == 0
    assert buffer.lane_rows(0)["act"].tolist() == [5]


def test_window_runs_round_inside_its_lane():
    buffer = ReplayBuffer(15, 3)
    assert buffer.window(4, 2).tolist() == [4, 0, 1]
    assert buffer.window(8, 7).tolist() == [8, 9, 5, 6]
    assert buffer.window(5, 10).tolist() == [5, 6, 7, 8, 9] and buffer.window(6, 6).tolist() == []
    for start, stop in [(4, 6), (8, 4), (-1, 2), (15, 16)]:
        with pytest.raises(ValueError, match="leaves its lane"):
            buffer.window(start, stop)


# ---- n_step


def test_n_step_returns_of_the_seed():
    # T48: 12 rows in 10 slots, reward i + 1, terminated i % 4 == 3, γ 0.1, value of a state = −(reward of the row there).
    buffer = filled(10, 0)
    for i in range(12):
        buffer.add(Batch(row(i, i % 4 == 3), rew=i + 1))
    indices = np.array([2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    expected = {
        1: [2.6, 4, 4.4, 5.3, 6.2, 8, 8, 8.9, 9.8, 12],
        2: [3.4, 4, 5.53, 6.62, 7.8, 8, 9.89, 10.98, 12.2, 12],
        10: [3.4, 4, 5.678, 6.78, 7.8, 8, 10.122, 11.22, 12.2, 12],
    }
    for n, targets in expected.items():
        ahead = buffer.n_step(indices, n)
        assert ahead["rew"].shape == (10, n)
        discounted = (ahead["rew"] * 0.1 ** np.arange(n)).sum(axis=1)
        value = -buffer.rew[(ahead["last_index"] + 1) % 10] * ~buffer.terminated[ahead["last_index"]]
        np.testing.assert_allclose(discounted + 0.1 ** ahead["valid"] * value, targets, rtol=1e-12)


def test_n_step_stops_at_an_end_the_newest_row_and_the_lane():
    # Lane 0, slots 0 … 3: rows 4, 1, 2 (end), 3, of which 4 is the newest. Lane 1, slots 4, 5: rows 10, 11.
    rows = [(0, 0, False), (0, 1, False), (0, 2, True), (0, 3, False), (0, 4, False), (1, 10, False), (1, 11, False)]
    ahead = pushed(8, 2, rows).n_step(np.array([1, 2, 3, 0, 4, 5]), 3)
    assert ahead["rew"].tolist() == [[1, 2, 0], [2, 0, 0], [3, 4, 0], [4, 0, 0], [10, 11, 0], [11, 0, 0]]
    assert ahead["valid"].tolist() == [2, 1, 2, 1, 2, 1]
    assert ahead["last_index"].tolist() == [2, 2, 0, 0, 5, 5]


def test_n_step_of_vector_rewards_and_its_errors():
    buffer = ReplayBuffer(3)
    for i in range(3):
        buffer.add(Batch(row(i), rew=[i, -i]))
    assert buffer.n_step(np.array([0]), 2)["rew"].tolist() == [[[0, 0], [1, -1]]]
    with pytest.raises(ValueError, match="at least 1"):
        buffer.n_step(np.array([0]), 0)
    bare = ReplayBuffer(3)
    bare.allocate(SPECS[3:5])
    with pytest.raises(ValueError, match="needs the field 'rew'"):
        bare.n_step(np.array([0]), 1)


@given(st.data())
def test_n_step_and_neighbours_follow_the_history(data):
    """Against plain lists: what each lane still remembers of what was pushed to it."""
    n_lanes, size, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    buffer = pushed(size, n_lanes)
    history = [[] for _ in range(n_lanes)]
    pushes = data.draw(st.lists(st.tuples(st.integers(0, n_lanes - 1), st.booleans(), st.booleans()), max_size=30))
    for i, (lane, terminated, truncated) in enumerate(pushes):
        history[lane].append((buffer.push(lane, values(i, terminated, truncated)), i, terminated or truncated))
    for lane in history:
        del lane[: -buffer.lane_size]
    assert buffer.sample_indices(0).tolist() == [position for lane in history for position, _, _ in lane]
    assert buffer[:].act.tolist() == [i for lane in history for _, i, _ in lane] if pushes else len(buffer) == 0
    for lane in history:
        for at, (position, _, end) in enumerate(lane):
            follow = [lane[at]]
            while len(follow) < n and not follow[-1][2] and at + len(follow) < len(lane):
                follow.append(lane[at + len(follow)])
            ahead = buffer.n_step(np.array([position]), n)
            assert ahead["rew"][0].tolist() == [float(i) for _, i, _ in follow] + [0.0] * (n - len(follow))
            assert (ahead["valid"][0], ahead["last_index"][0]) == (len(follow), follow[-1][0])
            assert buffer.next(position) == (position if end or at + 1 == len(lane) else lane[at + 1][0])
            assert buffer.prev(position) == (position if at == 0 or lane[at - 1][2] else lane[at - 1][0])


# ---- push: the hot path


def test_push_add_and_push_rows_store_the_same():
    one, two, three = (pushed(6, 2) for _ in range(3))
    for i in range(5):
        columns = [np.stack(c) for c in zip(values(i, i == 2), values(10 + i), strict=True)]
        for lane, first in ((0, i), (1, 10 + i)):
            one.push(lane, values(first, first == 2))
        assert two.push_rows([0, 1], columns).tolist() == [i % 3, 3 + i % 3]
        three.add(Batch(dict(zip([s.name for s in SPECS], columns, strict=True))))
    for name in one.columns:
        np.testing.assert_array_equal(one.columns[name], two.columns[name])
        np.testing.assert_array_equal(one.columns[name], three.columns[name])
    assert one[:] == two[:] == three[:] and one[:].act.tolist() == [2, 3, 4, 12, 13, 14]


BAD = [
    ((np.zeros(3, np.float32), 0, 0.0, False, False, np.zeros(2, np.float32)), "obs", "drop|check"),
    ((np.zeros(2, np.float64), 0, 0.0, False, False, np.zeros(2, np.float32)), "obs", "float64; astype"),
    ((np.ones(2, np.float32), 0.5, 0.0, False, False, np.zeros(2, np.float32)), "act", "float64"),
    ((np.ones(2, np.float32), 0, None, False, False, np.zeros(2, np.float32)), "rew", "None"),
    ((np.ones(2, np.float32), 0, 0.0, 1, False, np.zeros(2, np.float32)), "terminated", "int64"),
    ((np.ones(2, np.float32), 0, 0.0, False, False, np.array([0, np.nan], np.float32)), "obs_next", "NaN"),
]


@pytest.mark.parametrize(("bad", "field", "words"), BAD, ids=[field + " " + words for _, field, words in BAD])
@pytest.mark.parametrize("n", [1, 4])
def test_a_row_that_does_not_fit_changes_nothing(bad, field, words, n):
    buffer = pushed(3, 1, [(0, i, False) for i in range(n)])  # with n = 4 the write would replace the oldest row
    before = snapshot(buffer)
    with pytest.raises(SpecError, match=f"'{field}'.*({words})"):
        buffer.push(0, bad)
    rows = [None if value is None else np.asarray(value)[None] for value in bad]
    with pytest.raises(SpecError, match=f"'{field}'.*({words})"):
        buffer.push_rows([0], rows)
    if field != "terminated":  # add takes 1 for True
        with pytest.raises(SpecError, match=f"'{field}'.*({words})"):
            buffer.add(dict(zip([s.name for s in SPECS], bad, strict=True)))
    assert snapshot(buffer) == before


def test_fields_that_are_no_numbers_are_named():
    buffer = filled(4, 2)
    before = snapshot(buffer)
    for info, name in [({"a": {"b": None}}, "info.a.b"), ({"text": "x"}, "info.text"), ({"rag": [[1], [1, 2]]}, "info.rag")]:
        with pytest.raises(SpecError, match=f"'{name}'"):
            buffer.add(row(0, info=info))
        with pytest.raises(SpecError, match=f"'{name}'"):
            buffer.add(dict(row(0).items(), info=info))
    assert snapshot(buffer) == before
    with pytest.raises(SpecError, match="'terminated'.*expected"):
        buffer.add(row(0, terminated=2))
    with pytest.raises(ValueError, match="'obs' cannot be both"):
        buffer.add(dict(row(0).items()) | {"obs.x": 1})
    assert snapshot(buffer) == before


def test_lanes_that_do_not_exist():
    buffer = pushed(6, 2)
    for lane in (2, -1):
        with pytest.raises(ValueError, match="no lane .*0 to 1"):
            buffer.push(lane, values(0))
        with pytest.raises(ValueError, match="no lane .*0 to 1"):
            buffer.push_rows([0, lane], [np.stack(c) for c in zip(values(0), values(1), strict=True)])
        with pytest.raises(ValueError, match="no lane .*0 to 1"):
            buffer.truncate_open(lane)
        with pytest.raises(ValueError, match="no lane .*0 to 1"):
            buffer.clear_lane(lane)
    with pytest.raises(ValueError, match="expected a list or array of integers"):
        buffer.add(row(0), [0.5])
    assert len(buffer) == 0


def test_a_first_row_of_no_lane_lays_out_no_fields():
    buffer = ReplayBuffer(8, n_lanes=2)
    with pytest.raises(ValueError, match="there is no lane 2"):
        buffer.add({"obs": np.zeros((1, 2)), "act": [0], "rew": [1.0], "terminated": [False], "truncated": [False]}, [2])
    assert not buffer.specs and len(buffer) == 0


def test_push_needs_fields():
    buffer = ReplayBuffer(3)
    with pytest.raises(ValueError, match=r"allocate\(specs\)"):
        buffer.push(0, values(0))
    with pytest.raises(ValueError, match=r"allocate\(specs\)"):
        buffer.push_rows([0], [])
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (SPECS[:4], "'truncated' is missing"),
        ([*SPECS[:3], spec("terminated"), SPECS[4]], "'terminated' is Spec.*expected one bool"),
        ([*SPECS, SPECS[0]], "double"),
        ([*SPECS, spec("done", (), "bool")], "'done' is computed"),
        ([*SPECS, spec("obs.x")], "'obs' cannot be both"),
        ([*SPECS, spec("name", (), "object")], "'name' has dtype object"),
    ],
)
def test_specs_that_cannot_be_stored(specs, words):
    with pytest.raises(ValueError, match=words):
        ReplayBuffer(3).allocate(specs)


def test_allocating_twice():
    buffer = pushed(3)
    memory = buffer.obs
    buffer.allocate(SPECS)
    assert buffer.obs is memory
    with pytest.raises(ValueError, match=r"already allocated; 'obs' \(2,\) float32 here, 'obs' \(3,\) float32 there"):
        buffer.allocate([spec("obs", (3,), "float32"), *SPECS[1:]])
    with pytest.raises(ValueError, match="'obs_next' only here"):
        buffer.allocate(SPECS[:-1])


@pytest.mark.parametrize(("size", "lanes"), [(0, 1), (5, 0)])
def test_sizes(size, lanes):
    with pytest.raises(ValueError, match="at least 1"):
        ReplayBuffer(size, lanes)


# ---- interrupted episodes


def test_truncate_open():
    buffer = pushed(6, 2, [(0, 0, False), (0, 1, False), (1, 10, True)])
    assert buffer.truncate_open(0) and not buffer.truncate_open(0)  # the second time the row ends already
    assert buffer.truncated.tolist() == [False, True, False, False, False, False]
    assert not buffer.truncate_open(1) and not buffer.truncated[3]
    assert not pushed(6, 2).truncate_open(0)
    for i in range(2, 5):
        buffer.push(0, values(i))
    assert buffer.truncate_open(0) and buffer[:].truncated.tolist() == [False, False, True, False]  # the newest sits in slot 1


def test_truncate_open_forgets_the_statistics_of_the_episode():
    buffer = filled(9, 3)
    buffer.truncate_open(0)
    position, total, length, start = buffer.add(row(3, True))
    assert (position[0], total[0], length[0], start[0]) == (3, 3, 1, 3)


# ---- threads, printing, saving


def test_a_threadsafe_buffer_loses_no_row():
    buffer = pushed(4000, 1, threadsafe=True)

    def push_all():
        for i in range(1000):
            buffer.push(0, values(i))
            if i % 50 == 0:
                buffer.sample(4)

    threads = [threading.Thread(target=push_all, name=f"pusher {k}") for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive(), f"{thread.name} still waits for the lock"
    assert len(buffer) == 4000
    assert Counter(buffer.act.tolist()) == Counter(dict.fromkeys(range(1000), 4))


def test_a_threadsafe_buffer_keeps_a_second_writer_out():
    buffer = pushed(10, 1, threadsafe=True)
    quick = threading.Thread(target=buffer.push, args=(0, values(1)), name="quick")
    waited = []

    class Slow:
        """An observation whose reading takes until the second writer had its chance."""

        def __array__(self, dtype=None, copy=None):
            quick.start()
            quick.join(timeout=0.2)  # what ends it: the timeout, for the writer waits for us; without a lock it is done at once
            waited.append(quick.is_alive())
            return np.zeros(2, np.float32)

    buffer.push(0, (Slow(), *values(0)[1:]))
    quick.join(timeout=30)
    assert waited == [True] and not quick.is_alive()
    assert buffer[:].act.tolist() == [0, 1]


def test_what_it_prints():
    assert repr(ReplayBuffer(20)) == "ReplayBuffer(rows=0 of 20, lanes=1, fields=none yet)"
    buffer = pushed(20000, 64, [(0, 0, False), (1, 1, False)])
    assert repr(buffer) == "ReplayBuffer(rows=2 of 20032, lanes=64, fields=obs act rew terminated truncated obs_next)"
    wide = ReplayBuffer(2)
    wide.add(row(0, a=1, b=1, c=1, d={"x": 1, "y": 2}))
    assert repr(wide).endswith("fields=obs act rew terminated truncated obs_next a b …)")


def mixed():
    """Two lanes, one full and wrapped, with a nested and an empty field, and one open episode."""
    buffer = ReplayBuffer(6, 2, np.random.default_rng(4))
    for i in range(5):
        more = {
            "obs": {"x": [i, -i]},
            "act": [i, i],
            "rew": [0.1 * i, 1.0],
            "terminated": [i == 1, False],
            "truncated": [False] * 2,
        }
        buffer.add({**more, "info": {}})
    buffer.add({"obs": {"x": [7]}, "act": [7], "rew": [0.7], "terminated": [True], "truncated": [False]}, [1])
    return buffer


def through_json(state):
    """A saved state as a file gives it back: everything but the columns is JSON."""
    columns = state.pop("columns")
    return {**json.loads(json.dumps(state)), "columns": {name: column.copy() for name, column in columns.items()}}


@pytest.mark.parametrize("allocated", [False, True])
def test_a_saved_state_goes_on_as_if_nothing_had_happened(allocated):
    buffer, copy = mixed(), ReplayBuffer(6, 2, np.random.default_rng(99))
    buffer.sample_indices(3)
    if allocated:
        copy.allocate(buffer.specs[:5])
        copy.push(0, (9, 9, 9.0, True, False))
    copy.load_state_dict(through_json(buffer.state_dict()))
    for _ in range(2):
        assert snapshot(copy) == snapshot(buffer) and copy[:] == buffer[:] and len(copy) == len(buffer)
        assert copy.sample_indices(50).tolist() == buffer.sample_indices(50).tolist()
        more = {"obs": {"x": [8, 9]}, "act": [8, 9], "rew": [1.0, 2.0], "terminated": [True] * 2, "truncated": [False] * 2}
        for mine, theirs in zip(copy.add(more), buffer.add(more), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_saved_state_holds_filled_rows_only_and_is_a_copy():
    buffer = pushed(1000, 2, [(0, 0, False), (1, 1, True), (1, 2, False)])
    state = buffer.state_dict()
    assert state["columns"]["act"].tolist() == [0, 1, 2]
    buffer.push(0, values(3))
    assert state["columns"]["act"].tolist() == [0, 1, 2] and state["count"] == [1, 2]
    copy = pushed(1000, 2, [(0, 9, False)] * 5)
    copy.load_state_dict(state)
    assert copy.act[:3].tolist() == [0, 0, 0] and copy.act[500:503].tolist() == [1, 2, 0]
    empty = ReplayBuffer(4)
    empty.load_state_dict(through_json(ReplayBuffer(4).state_dict()))
    assert len(empty) == 0


def test_vector_returns_are_saved():
    buffer = ReplayBuffer(4)
    buffer.add(Batch(row(0), rew=[1.0, 2.0]))
    copy = ReplayBuffer(4)
    copy.load_state_dict(through_json(buffer.state_dict()))
    assert copy.add(Batch(row(1, True), rew=[1.0, 1.0]))[1].tolist() == [[2.0, 3.0]]


def test_a_generator_in_the_form_of_earlier_checkpoints_goes_on():
    buffer, copy = pushed(6, 2, [(0, i, False) for i in range(6)]), ReplayBuffer(6, 2)
    buffer.sample(3)
    copy.load_state_dict(through_json(buffer.state_dict() | {"rng": buffer.rng.bit_generator.state}))
    assert copy.sample_indices(20).tolist() == buffer.sample_indices(20).tolist()


def test_a_state_that_does_not_fit_changes_nothing():
    buffer = pushed(6, 2, [(0, 0, False)])
    before = snapshot(buffer)
    for other, words in [
        (pushed(8, 2), "saved size is 8, this buffer's 6"),
        (pushed(6, 1), "saved n_lanes is 1, this buffer's 2"),
        (mixed(), r"'obs' \(2,\) float32 here, 'obs.x' \(\) int64 there"),
    ]:
        with pytest.raises(ValueError, match=words):
            buffer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="MT19937"):
        buffer.load_state_dict(buffer.state_dict() | {"rng": {"kind": "MT19937"}})
    with pytest.raises(TypeError, match="MT19937"):
        ReplayBuffer(6, rng=np.random.Generator(np.random.MT19937(0))).state_dict()
    short = buffer.state_dict()
    short["columns"]["act"] = short["columns"]["act"][:0]
    with pytest.raises(SpecError, match="'act'.*give 1 rows"):
        buffer.load_state_dict(short)
    assert snapshot(buffer) == before


def test_a_subclass_may_choose_other_rows():
    class NewestFirst(ReplayBuffer):
        def sample_indices(self, n, rng=None):
            return super().sample_indices(0)[: -1 - n : -1] if n else super().sample_indices(0)

    buffer = NewestFirst(5)
    for i in range(7):
        buffer.add(row(i))
    batch, indices = buffer.sample(2)
    assert batch.obs.tolist() == [6, 5] and indices.tolist() == [1, 0]


@pytest.mark.parametrize("threadsafe", [False, True])
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_and_pickles_live_on(way, threadsafe):
    """Also before the fields are known; a deep copy writes into memory of its own."""
    assert len(way(ReplayBuffer(4, threadsafe=threadsafe))) == 0
    buffer = pushed(4, 1, threadsafe=threadsafe)
    for i in range(3):
        buffer.push(0, values(i))
    other = way(buffer)
    assert other.act.tolist()[:3] == [0, 1, 2] and other.state_dict()["rng"] == buffer.state_dict()["rng"]
    if way is copy.copy:
        return
    other.push(0, values(7))
    other.push(0, values(8))
    assert other.act.tolist() == [8, 1, 2, 7] and other.columns["act"] is not buffer.columns["act"]
    assert len(buffer) == 3 and buffer.act.tolist()[:3] == [0, 1, 2]


def test_a_row_block_is_copied_by_what_it_holds():
    block = RowBlock([Spec("x", (2,), np.dtype(np.float32))], 3)
    block.write(1, (np.array([1, 2], np.float32),))
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        other.write(2, (np.array([3, 4], np.float32),))
        assert other.arrays["x"].tolist() == [[0, 0], [1, 2], [3, 4]]
    assert block.arrays["x"].tolist() == [[0, 0], [1, 2], [0, 0]]


@pytest.mark.parametrize("make", [lambda x: np.stack([x, x], 1)[:, 1], lambda x: __import__("torch").from_numpy(x)],
                         ids=["strided", "torch"])
def test_rows_in_any_form_are_added_and_counted(make):
    buffer = ReplayBuffer(20, 2)
    for i in range(3):
        rew = make(np.array([i, 10.0 + i]))
        end = make(np.array([False, i == 2]))
        out = buffer.add(dict(obs=make(np.arange(2.0)), act=make(np.arange(2)), rew=rew, terminated=end,
                              truncated=make(np.zeros(2, bool))))
    assert len(buffer) == 6 and out[1].tolist() == [0, 33] and out[2].tolist() == [0, 3]


def test_printing_it_shows_the_columns_and_what_is_not_stored():
    buffer = ReplayBuffer(8, ignore_obs_next=True, stack_num=4)
    assert str(buffer) == repr(buffer)
    buffer.add({"obs": {"image": np.zeros((2, 3), np.uint8)}, "act": 0, "rew": 1.0, "terminated": False, "truncated": False,
                "obs_next": {"image": np.zeros((2, 3), np.uint8)}})
    assert str(buffer).splitlines() == [
        repr(buffer), "    obs.image: [8, 2, 3] uint8", "    act: [8] int64", "    rew: [8] float64", "    terminated: [8] bool",
        "    truncated: [8] bool", "    obs_next: not stored; obs of the next row",
        "    obs and obs_next are read as stacks of 4 frames"]
    whole = ReplayBuffer(4)
    whole.add(row(0))
    assert "    obs_next: [4] int64" in str(whole).splitlines() and "not stored" not in str(whole)


@pytest.mark.parametrize(("call", "ours"), [
    (lambda buffer: buffer.sample(batch_size=4), "sample: no option 'batch_size'; did you mean 'n'"),
    (lambda buffer: type(buffer)(total_size=20), "no option 'total_size'; did you mean 'size'"),
    (lambda buffer: type(buffer)(20, buffer_num=4), "no option 'buffer_num'; did you mean 'n_lanes'"),
    (lambda buffer: buffer.add(row(0), buffer_ids=[0]), "add: no option 'buffer_ids'; did you mean 'lanes'"),
    (lambda buffer: buffer.save_hdf5("rows.h5"), "what others call save_hdf5 is save here"),
    (lambda buffer: type(buffer).load_hdf5("rows.h5"), "what others call load_hdf5 is load here"),
    (lambda buffer: buffer.sample_index(4), "is sample_indices here"), (lambda buffer: buffer.maxsize, "is capacity here"),
    (lambda buffer: buffer.buffer_num, "is n_lanes here"),
])
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, VectorReplayBuffer])
def test_calls_of_others_are_told_our_names(kind, call, ours):
    with pytest.raises((TypeError, AttributeError), match=ours):
        call(kind(20))
    assert not hasattr(kind(20), "save_hdf5")
