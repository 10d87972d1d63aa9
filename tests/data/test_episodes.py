"""EpisodeBuffer and CachedReplayBuffer against plain lists of episodes, their errors and saved states; the windows of J16."""

import json
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_like.data.buffers.cached import CachedReplayBuffer
from parl_like.data.buffers.episodes import EpisodeBuffer, FinishedEpisodes
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.storage import tree_encoding
from parl_like.data.storage.archive import read_archive, write_archive
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec


def spec(name, shape=(), dtype="float64"):
    return Spec(name, shape, np.dtype(dtype))


SPECS = [
    spec("obs", (2,), "float32"), spec("act", (), "int64"), spec("rew"), spec("terminated", (), "bool"),
    spec("truncated", (), "bool"),
]  # fmt: skip


def values(i, terminated=False, truncated=False):
    return np.full(2, i, np.float32), i, float(i), terminated, truncated


def row(i, terminated=False, truncated=False, **more):
    return Batch(obs=i, act=i, rew=i, terminated=terminated, truncated=truncated, **more)


def rows(numbers, ends, **more):
    return Batch(obs=numbers, act=numbers, rew=numbers, terminated=ends, truncated=[False] * len(numbers), **more)


def filled(lengths, **options):
    """Rows 0, 1, … in episodes of these lengths; a last one that is negative stays open."""
    buffer = EpisodeBuffer(**options)
    i = 0
    for length in lengths:
        for t in range(abs(length)):
            buffer.add(row(i, length > 0 and t == length - 1))
            i += 1
    return buffer


def acts(buffer):
    return [episode.act.tolist() for episode in buffer.episodes]


def snapshot(buffer):
    return json.dumps(buffer.state_dict(), default=lambda array: array.tolist())


# ---- EpisodeBuffer: writing


def test_an_episode_is_seen_when_it_is_over():
    buffer = EpisodeBuffer()
    assert (len(buffer), buffer.n_episodes, buffer.specs) == (0, 0, ())
    assert [x.tolist() for x in buffer.add(row(3))] == [[-1], [0], [0], [-1]]
    assert (len(buffer), buffer.n_episodes, buffer.open_rows.tolist()) == (0, 0, [1])
    assert [x.tolist() for x in buffer.add(row(4, truncated=True))] == [[1], [7], [2], [0]]
    assert [x.tolist() for x in buffer.add(row(5, True))] == [[2], [5], [1], [2]]
    assert (len(buffer), buffer.n_episodes, buffer.open_rows.tolist()) == (3, 2, [0])
    assert acts(buffer) == [[3, 4], [5]]
    assert buffer.episode(0) == Batch(obs=[3, 4], act=[3, 4], rew=[3.0, 4.0], terminated=[False] * 2, truncated=[False, True],
                                      done=[False, True])


def test_unbounded_memory_keeps_every_episode_of_every_length():
    lengths = [1, 200, 3, 77, 1000]
    buffer = filled(lengths)
    assert len(buffer) == sum(lengths) and [len(e.act) for e in buffer.episodes] == lengths
    assert buffer[:].act.tolist() == list(range(sum(lengths)))


def test_bounds_take_whole_episodes_oldest_first():
    assert acts(filled([2, 3, 1, 2], max_rows=5)) == [[5], [6, 7]]  # 8 rows; without the oldest two episodes 3
    assert acts(filled([2, 3, 1, 2], max_rows=6)) == [[2, 3, 4], [5], [6, 7]]
    assert acts(filled([2, 3, 1, 2], max_episodes=2)) == [[5], [6, 7]]
    assert acts(filled([2, 3, 1, 2], max_rows=2, max_episodes=2)) == [[6, 7]]
    too_long = filled([2, 9], max_rows=4)
    assert acts(too_long) == [list(range(2, 11))] and len(too_long) == 9  # the newest stays, however long
    assert acts(filled([2, 9, 1], max_rows=4)) == [[11]]
    assert len(filled([2, -9], max_rows=4)) == 2  # open rows do not count


def test_positions_are_those_after_the_call():
    buffer = filled([2, 3], max_episodes=2)
    position, _, length, start = buffer.add(row(9, True))
    assert (position[0], length[0], start[0]) == (3, 1, 3) and buffer.dropped == 2
    # Two episodes end in one call, and only one may stay.
    one = EpisodeBuffer(max_episodes=1, n_lanes=2)
    positions, returns, lengths, starts = one.add(rows([7, 8], [True, True]))
    assert (positions.tolist(), returns.tolist(), lengths.tolist(), starts.tolist()) == ([-1, 0], [7, 8], [1, 1], [-1, 0])


def test_lanes_do_not_mix():
    buffer = EpisodeBuffer(n_lanes=3)
    buffer.allocate(SPECS)
    for lane, i, ends in [(0, 0, False), (1, 10, False), (2, 20, True), (1, 11, True), (0, 1, False)]:
        assert buffer.push(lane, values(i, ends)) == {20: 0, 11: 2}.get(i, -1)
    assert acts(buffer) == [[20], [10, 11]] and buffer.open_rows.tolist() == [2, 0, 0]
    columns = [np.stack(column) for column in zip(values(2, True), values(12), strict=True)]
    assert buffer.push_rows([0, 1], columns).tolist() == [5, -1]
    assert acts(buffer) == [[20], [10, 11], [0, 1, 2]]


def test_many_rows_of_one_lane_in_one_call():
    buffer = EpisodeBuffer()
    positions, returns, lengths, starts = buffer.add(rows(range(5), [False, True, True, False, False]), [0] * 5)
    assert positions.tolist() == [-1, 1, 2, -1, -1] and starts.tolist() == [-1, 0, 2, -1, -1]
    assert returns.tolist() == [0, 1, 2, 0, 0] and lengths.tolist() == [0, 2, 1, 0, 0]
    assert buffer.push_rows([0, 0], [[8, 9], [8, 9], [8.0, 9.0], [False, True], [False, False]]).tolist() == [-1, 6]
    assert acts(buffer) == [[0, 1], [2], [3, 4, 8, 9]]


def test_late_missing_nested_and_empty_fields():
    buffer = EpisodeBuffer()
    buffer.add(row(0, True, info={}))
    assert buffer.episode(0).info == buffer[:].info == Batch()
    buffer.add(row(1))
    buffer.add(row(2, True, info={"k": {"deep": [2.5, 3.5]}}))
    assert [e.info.k.deep.tolist() for e in buffer.episodes] == [[[0, 0]], [[0, 0], [2.5, 3.5]]]
    buffer.add(row(3, True))
    assert buffer["info.k.deep"].tolist() == [[0, 0], [0, 0], [2.5, 3.5], [0, 0]] == buffer[:].info.k.deep.tolist()


def test_the_return_of_a_vector_reward_is_a_vector():
    buffer = EpisodeBuffer()
    buffer.add(Batch(obs=0, act=0, rew=[1.0, 2.0], terminated=False, truncated=False))
    assert buffer.add(Batch(obs=0, act=0, rew=[1.0, 3.0], terminated=True, truncated=False))[1].tolist() == [[2, 5]]


def test_fields_can_be_removed():
    buffer = filled([2, 1, -2])
    buffer.add(row(9, info={"a": 1, "b": 2}))
    kept = buffer.episode(0)
    buffer.remove("info")
    buffer.remove("obs")
    assert [s.name for s in buffer.specs] == ["act", "rew", "terminated", "truncated"] and list(kept.keys())[0] == "obs"
    buffer.push(0, (5, 0.5, True, False))
    assert acts(buffer) == [[0, 1], [2], [3, 4, 9, 5]] and "obs" not in buffer.episode(-1)
    with pytest.raises(KeyError, match="no field 'obs'"):
        buffer.remove("obs")
    with pytest.raises(ValueError, match="'truncated' cannot be removed"):
        buffer.remove("truncated")


def test_open_episodes_can_be_ended_and_dropped():
    buffer = EpisodeBuffer(n_lanes=2)
    buffer.add(rows([0, 10], [False, False]))
    buffer.add(rows([1, 11], [False, False]))
    assert buffer.truncate_open(1) and not buffer.truncate_open(1)
    assert acts(buffer) == [[10, 11]] and buffer.episode(0).truncated.tolist() == [False, True] and buffer.episode(0).done[1]
    buffer.clear_lane(0)
    buffer.add(rows([5], [True]), [0])
    assert acts(buffer) == [[10, 11], [5]]
    buffer.add(rows([6], [False]), [0])
    buffer.reset()
    assert (len(buffer), buffer.n_episodes, buffer.open_rows.tolist(), buffer.dropped) == (0, 0, [0, 0], 3)
    assert buffer.add(rows([7], [True]), [0])[0].tolist() == [0]


def test_lanes_can_be_added():
    buffer = filled([2, -2])
    buffer.add_lanes(2)
    buffer.add(rows([4, 50, 60], [True, False, True]))
    assert acts(buffer) == [[0, 1], [2, 3, 4], [60]] and buffer.open_rows.tolist() == [0, 1, 0]


def test_pop():
    buffer = filled([2, 3, 1, -2])
    first = buffer.pop()
    assert first.act.tolist() == [0, 1] and acts(buffer) == [[2, 3, 4], [5]] and len(buffer) == 4
    assert buffer.sample_indices(0).tolist() == [0, 1, 2, 3] and buffer["act"].tolist() == [2, 3, 4, 5]
    assert [e.act.tolist() for e in buffer.pop_all()] == [[2, 3, 4], [5]] and buffer.pop_all() == []
    buffer.add(row(8, True))
    assert acts(buffer) == [[6, 7, 8]]  # the open episode went on
    buffer.pop()
    with pytest.raises(IndexError, match="no finished episode 0"):
        buffer.pop()


def test_views_of_episodes_are_read_only_and_never_change():
    buffer = filled([3, 2], max_rows=6)
    seen = buffer.episodes
    for i in range(100, 200):
        buffer.add(row(i, i % 3 == 0, late=i))
    buffer.reset()
    buffer.add(row(300, True))
    assert [e.act.tolist() for e in seen] == [[0, 1, 2], [3, 4]]
    assert np.shares_memory(buffer.episode(0).act, buffer.episode(-1).act)
    with pytest.raises(ValueError, match="read-only"):
        seen[0].act[0] = 1


# ---- EpisodeBuffer: reading


def test_rows_by_position_mask_and_name():
    buffer = filled([2, 3, 2, -4], max_rows=5)
    assert buffer[:].act.tolist() == [2, 3, 4, 5, 6] and buffer[-2:].act.tolist() == [5, 6]
    assert buffer[1].act == 3 and buffer[[[0, 4]]].act.tolist() == [[2, 6]]
    assert buffer[buffer["act"] > 4].act.tolist() == [5, 6] and buffer.get([0, 2], "done").tolist() == [False, True]
    for index in (5, -1, [0, 9]):
        with pytest.raises(IndexError, match="position (5|-1|9) holds no row; positions are 0 to 4"):
            buffer[index]
    for index in (0.5, np.ones(3, bool)):
        with pytest.raises(IndexError, match="expected a slice, integers, a mask of 5 bools, or a name"):
            buffer[index]
    with pytest.raises(KeyError, match="no field 'nothing'"):
        buffer["nothing"]
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"no finished episode {index}"):
            buffer.episode(index)


def test_rows_are_drawn_as_from_a_replay_buffer():
    buffer, plain = filled([2, 3, 2, -4], rng=3), ReplayBuffer(7, rng=3)
    for i in range(7):
        plain.add(row(i, i in (1, 4, 6)))
    batch, indices = buffer.sample(50)
    theirs, same = plain.sample(50)
    assert indices.tolist() == same.tolist() and batch == theirs == buffer[indices]
    own = np.random.default_rng(8)
    assert set(buffer.sample_indices(200, own).tolist()) == set(range(7))
    assert buffer.sample(5)[1].tolist() == plain.sample(5)[1].tolist()  # the other generator left its own alone
    assert len(buffer.sample(None)[1]) == 7 and len(buffer.sample(-1)[1]) == 0 and buffer.sample(0)[1].tolist() == list(range(7))


def test_an_episode_is_found_without_a_look_at_the_others():
    n = 5_000
    buffer = EpisodeBuffer()
    buffer.allocate(SPECS)
    numbers, ends = np.arange(n), np.ones(n, bool)
    buffer.push_rows([0] * n, (np.zeros((n, 2), np.float32), numbers, numbers * 1.0, ends, ~ends))
    tracemalloc.start()
    try:
        found = [buffer.episode(at).act.tolist() for at in (0, n // 2, -1)]
        assert tracemalloc.get_traced_memory()[1] < 20_000, "a list of all lengths takes 40,000 bytes"
    finally:
        tracemalloc.stop()
    assert found == [[0], [n // 2], [n - 1]]


def test_finished_episodes_as_in_a_list_of_lengths():
    rng, lengths, finished = np.random.default_rng(0), [], FinishedEpisodes()
    for _ in range(3_000):
        if lengths and rng.random() < 0.45:
            assert finished.pop() == lengths.pop(0)
        else:
            lengths.append(int(rng.integers(1, 9)))
            finished.append(lengths[-1])
        assert len(finished) == len(lengths)
        if lengths:
            at = int(rng.integers(len(lengths)))
            assert finished.rows(at) == slice(sum(lengths[:at]), sum(lengths[: at + 1]))
    assert finished.lengths().tolist() == lengths == FinishedEpisodes(lengths).lengths().tolist()
    assert len(finished._bounds) < 2 * len(lengths) + 202, "what was dropped takes no memory for ever"


def test_sampled_episodes():
    buffer = filled([1, 2, 9, 3], max_episodes=3)
    drawn = [e.act[0] for e in buffer.sample_episodes(900)]
    # 300 of each expected, whatever the length; 6 standard errors are 6 · sqrt(900 · 1/3 · 2/3) = 85
    assert {int(x) for x in drawn} == {1, 3, 12} and all(abs(drawn.count(x) - 300) < 85 for x in (1, 3, 12))


def test_nothing_is_drawn_from_nothing():
    buffer = filled([-3])
    assert len(buffer.sample(0)[1]) == len(buffer.sample(None)[1]) == 0 and buffer.sample_episodes(0) == []
    for draw in (buffer.sample, buffer.sample_episodes):
        with pytest.raises(ValueError, match="cannot sample 1 .* without a finished episode.*open=1 in 1|open=1 in 1.*cannot "
                                             "sample 1"):
            draw(1)


# ---- EpisodeBuffer: errors and saving


@pytest.mark.parametrize("options", [dict(max_rows=0), dict(max_episodes=0), dict(n_lanes=0)])
def test_bounds_are_at_least_one(options):
    with pytest.raises(ValueError, match="expected all at least 1"):
        EpisodeBuffer(**options)


def buffers():
    return [EpisodeBuffer(n_lanes=2), CachedReplayBuffer(ReplayBuffer(20), 2)]


@pytest.mark.parametrize("buffer", buffers(), ids=repr)
def test_what_does_not_fit_changes_nothing(buffer):
    for _ in range(2):
        buffer.add(rows([0, 1], [False, True]))
    before, specs = snapshot(buffer), buffer.specs
    for wrong, lanes, words in [
        (Batch(rows([1, 2], [False, True]), obs=[1, float("nan")]), None, "'obs'"),
        (Batch(rows([1, 2], [False, True]), obs=[[1], [2]], late=[1, 2]), None, "'obs'"),
        (rows([1, 2, 3], [False, True, False]), None, "give 2 rows"),
        (rows([1, 2], [False, True]), [0, 2], "no lane 2"),
        (Batch(rows([1, 2], [False, True]), rew=[0.5, float("nan")]), [0, 0], "'rew'"),
        (Batch(rows([1, 2], [False, True]), late=["a", "b"]), None, "'late'"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            buffer.add(wrong, lanes)
        assert snapshot(buffer) == before and buffer.specs == specs
    good = (1, 1, 1.0, False, False)
    for lane, wrong, words in [(2, good, "no lane 2"), (-1, good, "no lane -1"), (0, good[:3], "push got 3 values"),
                               (0, ("x", *good[1:]), "'obs'")]:
        with pytest.raises(ValueError, match=words):
            buffer.push(lane, wrong)
    columns = [[1, 2], [1, 2], [1.0, 2.0], [True, False], [False, False]]
    for lanes in ([0, 1], [1, 1]):
        for wrong, words in [([*columns[:2], [1.0, float("nan")], *columns[3:]], "'rew'"), (columns[:4], "4 values"),
                             ([columns[0][:1], *columns[1:]], "give 2 rows")]:  # fmt: skip
            with pytest.raises(ValueError, match=words):
                buffer.push_rows(lanes, wrong)
    for wrong in (lambda: buffer.truncate_open(2), lambda: buffer.clear_lane(5), lambda: buffer.allocate(SPECS)):
        with pytest.raises(ValueError, match="no lane|already allocated"):
            wrong()
    assert snapshot(buffer) == before and buffer.specs == specs


@pytest.mark.parametrize("buffer", buffers(), ids=repr)
def test_push_needs_fields(buffer):
    with pytest.raises(ValueError, match="allocate"):
        buffer.push(0, values(0))
    with pytest.raises(ValueError, match="allocate"):
        buffer.push_rows([0, 0], [[0], [0]])
    with pytest.raises(ValueError, match="add needs 'act'"):
        buffer.add({"obs": [1, 2]})
    assert buffer.specs == ()


def through_json(state):
    """A saved state as a file gives it back: arrays apart, everything is JSON."""
    if isinstance(state, dict):
        return {key: through_json(value) for key, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else json.loads(json.dumps(state))


@pytest.mark.parametrize("way", ["state", "pickle"])
@pytest.mark.parametrize("make", [
    lambda: EpisodeBuffer(max_rows=60, n_lanes=2, rng=np.random.default_rng(4)),
    lambda: CachedReplayBuffer(PrioritizedReplayBuffer(60, rng=np.random.default_rng(4)), 2, 50),
    lambda: CachedReplayBuffer(ReplayBuffer(100, 2, np.random.default_rng(4)), 2),
], ids=["episodes", "one lane", "two lanes"])  # fmt: skip
def test_a_saved_buffer_goes_on_as_if_nothing_had_happened(make, way):
    buffer, copy = make(), make()
    copy.add(rows([7, 7], [True, False], info={"k": [0.5, 0.5]}))
    for i in range(90):
        buffer.add(rows([i, 100 + i], [i % 7 == 6, i % 20 == 19], info={"k": [0.5, i]}))
    buffer.sample(3)
    if way == "pickle":
        copy = pickle.loads(pickle.dumps(buffer))
    else:
        copy.load_state_dict(through_json(buffer.state_dict()))
    for _ in range(2):
        assert snapshot(copy) == snapshot(buffer) and copy[:] == buffer[:] and len(copy) == len(buffer) > 20
        assert copy.sample_indices(50).tolist() == buffer.sample_indices(50).tolist()
        for mine, theirs in zip(copy.add(rows([8, 9], [False, True])), buffer.add(rows([8, 9], [False, True])), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert copy.open_rows.tolist() == buffer.open_rows.tolist() == [8, 0]
    if isinstance(buffer, EpisodeBuffer):
        assert acts(copy) == acts(buffer) and copy.dropped == buffer.dropped > 0


def test_any_number_of_episodes_is_saved_and_lengths_of_older_files_are_read(tmp_path, monkeypatch):
    """An archive has room for few plain values, and for arrays of any length."""
    buffer = EpisodeBuffer()
    buffer.allocate(SPECS)
    buffer.push(0, values(0, True))
    for _ in range(5_000):
        buffer.push(0, values(1, True))
    monkeypatch.setattr(tree_encoding, "MAX_PARTS", 1_000)
    write_archive(tmp_path / "saved", {"buffer": buffer.state_dict()})
    state = read_archive(tmp_path / "saved")[0]["buffer"]
    assert state["lengths"].dtype == np.int64 and len(state["lengths"]) == 5_001
    for lengths in (state["lengths"], state["lengths"].tolist()):
        copy = EpisodeBuffer()
        copy.load_state_dict(state | {"lengths": lengths})
        assert snapshot(copy) == snapshot(buffer) and copy.n_episodes == 5_001
        copy.pop()
        assert type(copy.state_dict()["dropped"]) is int


@pytest.mark.parametrize("lengths", [[3, -1], [2**63, 2], [[1, 1]], [1.5, 0.5], [np.nan, 1], [1], [[1], 1], [2]],
                         ids=["negative", "huge", "shape", "fractions", "nan", "few", "ragged", "joined"])
def test_lengths_of_a_damaged_file_are_refused(lengths):
    buffer = filled([1, 1])
    before = snapshot(buffer)
    with pytest.raises(ValueError):
        buffer.load_state_dict(buffer.state_dict() | {"lengths": lengths})
    assert snapshot(buffer) == before


def test_a_state_that_does_not_fit_changes_nothing():
    buffer = filled([2, -1], max_rows=9)
    before = snapshot(buffer)
    other = EpisodeBuffer(max_rows=9)
    other.allocate(SPECS)
    for state, words in [
        (EpisodeBuffer(max_rows=8).state_dict(), "saved max_rows is 8, this buffer's 9"),
        (EpisodeBuffer(9, n_lanes=2).state_dict(), "saved n_lanes is 2"),
        (buffer.state_dict() | {"rng": {"kind": "MT19937"}}, "MT19937"),
        (other.state_dict(), r"saved fields are obs \(2,\) float32.*this buffer's obs \(\) int64"),
        (buffer.state_dict() | {"lengths": [1]}, "make 1 rows, but 2 are there"),
    ]:
        with pytest.raises(ValueError, match=words):
            buffer.load_state_dict(state)
    assert snapshot(buffer) == before
    cached = CachedReplayBuffer(ReplayBuffer(20), 2, 5)
    cached.add(rows([0, 1], [False, True]))
    before = snapshot(cached)
    for other, words in [(CachedReplayBuffer(ReplayBuffer(20), 2, 6), "max_episode_length is 6"),
                         (CachedReplayBuffer(ReplayBuffer(30), 2, 5), "size is 30")]:
        other.add(rows([0, 1], [False, True]))
        with pytest.raises(ValueError, match=words):
            cached.load_state_dict(other.state_dict())
    assert snapshot(cached) == before


# ---- CachedReplayBuffer (T42)


def test_episodes_of_many_environments_lie_whole_in_one_lane():
    main = ReplayBuffer(8)
    buffer = CachedReplayBuffer(main, 3)
    assert [x.tolist() for x in buffer.add(rows([0, 10, 20], [False, False, True]))] == [
        [-1, -1, 0],
        [0, 0, 20],
        [0, 0, 1],
        [-1, -1, 0],
    ]
    assert [x.tolist() for x in buffer.add(rows([1, 11], [False, True]), [0, 1])] == [[-1, 2], [0, 21], [0, 2], [-1, 1]]
    assert main[:].act.tolist() == [20, 10, 11] and len(buffer) == 3 and buffer.open_rows.tolist() == [2, 0, 0]
    assert (
        buffer.truncate_open(0)
        and main[:].act.tolist() == [20, 10, 11, 0, 1]
        and main[:].truncated.tolist() == [False] * 4 + [True]
    )
    # It passes on what is main's: rows 3 and 4 are one episode.
    assert buffer.next([3]).tolist() == [4] and buffer.n_step(np.array([3]), 3)["valid"].tolist() == [2]
    assert buffer.sample(0)[0] == buffer[:] == main[:] and buffer.capacity == 8 and buffer.obs is main.obs
    for i in range(5):
        last = buffer.add(rows([50 + i], [i == 4]), [2])
    assert [x.tolist() for x in last] == [[1], [260], [5], [5]]  # five rows from slot 5 on, round to 1
    assert main[:].act.tolist() == [11, 0, 1, 50, 51, 52, 53, 54]


def test_lane_to_lane():
    main = ReplayBuffer(12, 2)
    buffer = CachedReplayBuffer(main, 2)
    buffer.add(rows([0, 10], [False, False]))
    assert buffer.add(rows([1, 11], [True, True]))[0].tolist() == [1, 7]
    assert main.lane_rows(0)["act"].tolist() == [0, 1] and main.lane_rows(1)["act"].tolist() == [10, 11]
    buffer.add_lanes(1)
    buffer.add(rows([22], [True]), [2])
    assert main.n_lanes == 3 and main.lane_rows(2)["act"].tolist() == [22]
    buffer.add(rows([5], [False]), [0])
    buffer.reset()
    assert len(main) == 0 and buffer.open_rows.tolist() == [0, 0, 0]


def test_an_episode_that_is_too_long_is_refused():
    for lanes in ([0], [0, 1]):
        buffer = CachedReplayBuffer(ReplayBuffer(50), 2, 20)
        buffer.allocate(SPECS)
        for i in range(20):
            buffer.push(0, values(i))
        before = snapshot(buffer)
        words = r"episode of lane 0 has 20 rows, as many as it may.*larger max_episode_length.*truncate_open\(0\)"
        with pytest.raises(ValueError, match=words):
            buffer.push(0, values(20, True))
        columns = [np.stack(column) for column in zip(*[values(20, True)] * len(lanes), strict=True)]
        with pytest.raises(ValueError, match=words):
            buffer.push_rows(lanes, columns)
        row_ = Batch(zip_specs(columns))
        with pytest.raises(ValueError, match=words):
            buffer.add(Batch(row_, late=[1] * len(lanes)), lanes)
        assert snapshot(buffer) == before and len(buffer.specs) == len(SPECS)
        assert buffer.truncate_open(0) and buffer.push(0, values(20, True)) == 20 and buffer.act[:21].tolist() == list(range(21))
    # Several rows of a lane in one call: all or none.
    short = CachedReplayBuffer(ReplayBuffer(9), 1, 2)
    short.add(row(0))
    before = snapshot(short)
    with pytest.raises(ValueError, match="has 2 rows"):
        short.add(rows([1, 2, 3, 4], [True, False, False, False]), [0] * 4)
    with pytest.raises(ValueError, match="has 2 rows"):
        short.push_rows([0] * 4, [[1, 2, 3, 4]] * 3 + [[True, False, False, False], [False] * 4])
    assert snapshot(short) == before
    assert short.add(rows([1, 2, 3], [True, False, True]), [0] * 3)[2].tolist() == [2, 0, 2]


def zip_specs(columns):
    return {s.name: column for s, column in zip(SPECS, columns, strict=True)}


def test_what_main_must_be():
    for n_lanes, main, longest, words in [
        (3, ReplayBuffer(20, 2), None, "3 lanes cannot go into ReplayBuffer"),
        (0, ReplayBuffer(20), None, "0 lanes"),
        (1, ReplayBuffer(20), 0, "max_episode_length is 0; expected 1 to 20"),
        (2, ReplayBuffer(20, 2), 11, "max_episode_length is 11; expected 1 to 10"),
    ]:
        with pytest.raises(ValueError, match=words):
            CachedReplayBuffer(main, n_lanes, longest)
    main = ReplayBuffer(20)
    main.add(row(0))
    with pytest.raises(ValueError, match=r"lane 0 .* has an open episode.*main.truncate_open\(0\)"):
        CachedReplayBuffer(main, 2)
    main.truncate_open(0)
    buffer = CachedReplayBuffer(main, 2)  # its fields are known
    assert buffer.push(1, (1, 1, 1.0, True, False)) == 1
    with pytest.raises(AttributeError, match="nothing"):
        buffer.nothing  # noqa: B018


def test_priorities_are_mains():
    main = PrioritizedReplayBuffer(20, rng=1)
    buffer = CachedReplayBuffer(main, 2)
    buffer.add(rows([0, 10], [False, True]))
    buffer.update_weight(np.array([0]), [3.0])
    buffer.add(rows([1, 11], [True, False]))
    assert main[:].act.tolist() == [10, 0, 1] and buffer.max_priority == pytest.approx(3)
    batch, indices = buffer.sample(20)
    assert batch.weight.shape == (20,) and set(indices.tolist()) <= {0, 1, 2}
    before = snapshot(buffer)
    with pytest.raises(ValueError, match="'weight' is made here"):
        buffer.add(rows([2, 12], [False, False], weight=[1, 1]))
    assert snapshot(buffer) == before
    buffer.add(rows([2, 12], [True, True], late=[7, 8]))
    assert buffer[:].late.tolist() == [0, 0, 0, 7, 0, 8] and buffer[:].act.tolist() == [10, 0, 1, 2, 11, 12]


def test_main_may_learn_fields_from_somebody_else():
    main = ReplayBuffer(20)
    buffer = CachedReplayBuffer(main, 2)
    buffer.add(rows([0, 10], [False, False]))
    main.add(row(50, True, other=7))
    buffer.truncate_open(0)
    assert main[:].other.tolist() == [7, 0]
    buffer.add(rows([1, 11], [True, True], own=[3, 4]))
    assert (
        main[:].act.tolist() == [50, 0, 1, 10, 11]
        and main[:].own.tolist() == [0, 0, 3, 0, 4]
        and main[:].other.tolist() == [7, 0, 0, 0, 0]
    )
    assert [s.name for s in buffer.specs][-2:] == ["other", "own"]


def test_main_may_look_obs_next_up():
    main = ReplayBuffer(20, ignore_obs_next=True, stack_num=2)
    buffer = CachedReplayBuffer(main, 2)
    buffer.add(rows([0, 10], [False, False], obs_next=[1, 11]))
    buffer.add(rows([1, 11], [False, True], obs_next=[2, 99]))
    buffer.truncate_open(0)
    assert buffer[:].obs.tolist() == [[10, 10], [10, 11], [0, 0], [0, 1]]
    assert buffer[:].obs_next.tolist() == [[10, 11], [10, 11], [0, 1], [1, 2]]


# ---- against plain lists

EVENTS = st.lists(st.tuples(st.integers(0, 2),
                            st.sampled_from(["row", "row", "row", "terminated", "truncated", "close", "drop"])), max_size=60)


def play(buffer, events, way):
    """Writes rows 0, 1, … as the events say; returns finished episodes (lane, rows, whether truncated) and open rows of each
    lane."""
    done, opened = [], [[], [], []]
    names = [s.name for s in SPECS]
    for i, (lane, event) in enumerate(events):
        if event == "close":
            assert buffer.truncate_open(lane) == bool(opened[lane])
            if opened[lane]:
                done.append((lane, opened[lane], True))
            opened[lane] = []
        elif event == "drop":
            buffer.clear_lane(lane)
            opened[lane] = []
        else:
            flags = event == "terminated", event == "truncated"
            opened[lane].append(i)
            given = values(i, *flags)
            if way == "push":
                ended = buffer.push(lane, given)
            elif way == "push_rows":
                ended = buffer.push_rows([lane], [np.asarray(v)[None] for v in given])[0]
            else:
                columns = {name: np.asarray(v)[None] for name, v in zip(names, given, strict=True)}
                ended, total, length, start = (x[0] for x in buffer.add(columns, [lane]))
                assert (total, length) == ((sum(opened[lane]), len(opened[lane])) if any(flags) else (0, 0))
                assert buffer[int(start)].act == opened[lane][0] if any(flags) else start == -1
            assert (ended >= 0) == any(flags)
            if any(flags):
                assert buffer[int(ended)].act == i
                done.append((lane, opened[lane], flags[1]))
                opened[lane] = []
        assert buffer.open_rows.tolist() == [len(rows_) for rows_ in opened]
    return done, opened


@given(
    EVENTS, st.sampled_from(["push", "push_rows", "add"]), st.none() | st.integers(1, 12), st.none() | st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
)  # fmt: skip
def test_episodes_as_in_a_list(events, way, max_rows, max_episodes, pops, reload):
    buffer = EpisodeBuffer(max_rows, max_episodes, n_lanes=3)
    buffer.allocate(SPECS)
    done, opened = play(buffer, events, way)
    kept = []
    for episode in done:
        kept.append(episode)
        while len(kept) > 1 and (len(kept) > (max_episodes or 99) or sum(len(e[1]) for e in kept) > (max_rows or 999)):
            kept.pop(0)
    for _ in range(min(pops, len(kept))):
        assert buffer.pop().act.tolist() == kept.pop(0)[1]
    if reload:
        state = buffer.state_dict()
        buffer = EpisodeBuffer(max_rows, max_episodes, n_lanes=3)
        buffer.load_state_dict(through_json(state))
    flat = [i for _, numbers, _ in kept for i in numbers]
    assert acts(buffer) == [numbers for _, numbers, _ in kept] and len(buffer) == len(flat)
    assert [bool(e.truncated[-1]) for e in buffer.episodes] == [truncated for _, _, truncated in kept]
    assert all(e.done.tolist() == [False] * (len(e.act) - 1) + [True] for e in buffer.episodes)
    assert buffer["act"].tolist() == flat and (not flat or set(buffer.sample(9)[0].act.tolist()) <= set(flat))
    assert buffer.dropped + len(buffer) == sum(len(numbers) for _, numbers, _ in done)
    for lane in range(3):
        buffer.truncate_open(lane)
    left = [numbers for numbers in opened if numbers]
    assert acts(buffer)[-1:] == (left or [numbers for _, numbers, _ in kept])[-1:]


@given(EVENTS, st.sampled_from(["push", "push_rows", "add"]), st.sampled_from([1, 3]))
def test_cached_rows_reach_main_by_episode(events, way, main_lanes):
    main = ReplayBuffer(60 * main_lanes, main_lanes)
    buffer = CachedReplayBuffer(main, 3)
    buffer.allocate(SPECS)
    done, _ = play(buffer, events, way)
    for lane in range(main_lanes):
        assert main.lane_rows(lane)["act"].tolist() == [i
                                                        for k, numbers, _ in done for i in numbers
                                                        if main_lanes == 1 or k == lane]
    assert not len(main.unfinished_index())


# ---- J16: windows of consecutive rows. 1 … 5, and the 2nd and 3rd of them.


def one_to_five(**options):
    buffer = ReplayBuffer(5, **options)
    for i in range(1, 6):
        buffer.add(row(i))
    return buffer


def test_stacks_of_two():
    assert one_to_five(stack_num=2).get([1, 2], "obs").tolist() == [[1, 2], [2, 3]]
    buffer = one_to_five()
    positions, real = buffer.sequences(np.array([1, 2]), 1, burn_in=1)
    assert buffer.obs[positions].tolist() == [[1, 2], [2, 3]] and real.all()


def test_horizons_of_three():
    buffer = one_to_five()
    positions, real = buffer.sequences(np.array([1, 2]), 3)
    assert buffer.obs[positions].tolist() == [[2, 3, 4], [3, 4, 5]] and real.all()
    assert buffer.n_step(np.array([1, 2]), 3)["rew"].tolist() == [[2, 3, 4], [3, 4, 5]]


def test_a_horizon_is_cut_at_the_first_terminal():
    buffer = ReplayBuffer(5)
    for i in range(1, 6):
        buffer.add(row(i, i == 3))
    out = buffer.n_step(np.array([1, 2]), 3)
    assert out["rew"].tolist() == [[2, 3, 0], [3, 0, 0]] and out["valid"].tolist() == [2, 1]
