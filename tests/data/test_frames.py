"""Frame stacks, next observations that are not stored, n-step and sequence windows: against plain lists of transitions."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_like import Batch, ReplayBuffer, Spec
from parl_like.values.spec import SpecError


def tianshou_case(**options):
    """9 slots, 16 rows, an end at every multiple of 5; the observation is {'id': i}."""
    buffer = ReplayBuffer(9, stack_num=4, ignore_obs_next=True, **options)
    for i in range(16):
        buffer.add(Batch(obs={"id": i}, act=i, rew=i, terminated=i % 5 == 0, truncated=False, obs_next={"id": i + 1}))
    return buffer


STACKS = [[7, 7, 8, 9], [7, 8, 9, 10], [11, 11, 11, 11], [11, 11, 11, 12], [11, 11, 12, 13], [11, 12, 13, 14], [12, 13, 14, 15],
          [7, 7, 7, 7], [7, 7, 7, 8]]  # fmt: skip


def test_t32_frames_are_stacked():
    buffer = tianshou_case()
    assert buffer.obs.id.tolist() == [9, 10, 11, 12, 13, 14, 15, 7, 8]
    assert np.flatnonzero(buffer.done).tolist() == [1, 6]
    assert buffer.get(np.arange(9), "obs").id.tolist() == STACKS
    assert buffer[np.arange(9)].obs.id.tolist() == STACKS
    assert buffer[3].obs.id.tolist() == STACKS[3]  # of one row the stack axis is the first
    assert buffer[3].act.shape == () and buffer[np.arange(9)].act.shape == (9,)  # only observations are stacked


def test_t33_the_next_observation_is_looked_up():
    buffer = tianshou_case()
    assert "obs_next" not in {name.partition(".")[0] for name in buffer.columns}
    expected = [[7, 7, 7, 8], [7, 7, 8, 9], [7, 8, 9, 10], [7, 8, 9, 10], [11, 11, 11, 12], [11, 11, 12, 13], [11, 12, 13, 14],
                [12, 13, 14, 15], [12, 13, 14, 15]]  # fmt: skip
    assert buffer[:].obs_next.id.tolist() == expected
    assert buffer[np.array([7, 8, 0, 1, 2, 3, 4, 5, 6])].obs_next.id.tolist() == expected
    assert buffer.get(7, "obs_next").id.tolist() == expected[0]


def test_t34_only_rows_with_a_whole_stack():
    buffer = tianshou_case(sample_avail=True)
    assert sorted(buffer.sample_indices(0).tolist()) == [1, 5, 6]
    assert set(buffer.sample_indices(200).tolist()) == {1, 5, 6}


def test_rows_whose_frames_were_overwritten_are_not_drawn():
    buffer = tianshou_case()  # 7, 8 and 9 stand at the oldest end
    assert set(buffer.sample_indices(500).tolist()) == {1, 2, 3, 4, 5, 6}
    assert buffer.sample_indices(0).tolist() == [7, 8, 0, 1, 2, 3, 4, 5, 6]
    counts = np.bincount(buffer.sample_indices(60_000), minlength=7)[1:7]
    assert np.abs(counts - 10_000).max() < 4 * np.sqrt(10_000 * 5 / 6)


def test_the_final_observation_of_a_truncated_episode_is_kept():
    buffer = ReplayBuffer(6, ignore_obs_next=True)
    for i in range(4):
        buffer.add(dict(obs=i, act=0, rew=0.0, terminated=False, truncated=i == 2, obs_next=i + 1 if i != 2 else 77))
    assert buffer[:].obs_next.tolist() == [1, 2, 77, 4]  # the newest row's, too
    assert buffer[2].obs_next == 77 and buffer.get(2, "obs_next") == 77
    buffer.truncate_open(0)
    buffer.add(dict(obs=50, act=0, rew=0.0, terminated=True, truncated=True, obs_next=60))
    assert buffer[:].obs_next.tolist() == [1, 2, 77, 4, 50]  # of a true end nothing may be looked up
    for i in range(3):
        buffer.add(dict(obs=i, act=0, rew=0.0, terminated=False, truncated=False, obs_next=i + 1))
    assert buffer[:].obs_next.tolist() == [77, 4, 50, 1, 2, 3] and sorted(buffer._memory.finals.table) == [2, 3]
    buffer.add(dict(obs=3, act=0, rew=0.0, terminated=False, truncated=False, obs_next=4))
    assert buffer[:].obs_next.tolist() == [4, 50, 1, 2, 3, 4] and sorted(buffer._memory.finals.table) == [3], "it went"
    buffer.reset()
    assert not buffer._memory.finals.table


def test_only_the_newest_frame_is_stored():
    buffer = ReplayBuffer(9, stack_num=3, ignore_obs_next=True, save_only_last_obs=True)
    frames = np.arange(10, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 5), np.uint8)
    stack = lambda i: frames[[max(i - 2, 0), max(i - 1, 0), i]]  # noqa: E731
    for i in range(5):
        buffer.add(dict(obs=stack(i), act=i, rew=0.0, terminated=False, truncated=i == 4, obs_next=stack(i + 1)))
    assert buffer.columns["obs"].shape == (9, 4, 5) and buffer.columns["obs"].dtype == np.uint8
    batch = buffer[:]
    for i in range(5):
        np.testing.assert_array_equal(batch.obs[i], stack(i))
        np.testing.assert_array_equal(batch.obs_next[i], stack(i + 1))
    with pytest.raises(SpecError, match=r"field 'obs': expected \(3, 4, 5\) uint8, got \(3, 2, 5\)"):
        buffer.add(dict(obs=frames[:3, :2], act=0, rew=0.0, terminated=False, truncated=False, obs_next=stack(0)))
    assert len(buffer) == 5
    with pytest.raises(SpecError, match="save_only_last_obs takes observations of stacked frames"):
        ReplayBuffer(9, save_only_last_obs=True).add(dict(obs=1, act=0, rew=0.0, terminated=False, truncated=False))


def test_a_bad_next_observation_leaves_everything_as_it_was():
    buffer = ReplayBuffer(3, ignore_obs_next=True)
    good = dict(obs=np.zeros(2), act=0, rew=0.0, terminated=False, truncated=False, obs_next=np.ones(2))
    for _ in range(3):
        buffer.add(good)
    for bad in (np.array([1, np.nan]), np.zeros(3)):
        with pytest.raises(SpecError, match="field 'obs_next'"):
            buffer.add({**good, "obs_next": bad})
        with pytest.raises(SpecError, match="field 'obs_next'"):
            buffer.push(0, (np.zeros(2), 0, 0.0, False, False, bad))
        with pytest.raises(SpecError, match="field 'obs_next'"):
            buffer.push_rows([0],
                             (np.zeros((1, 2)), np.zeros(1, int), np.zeros(1), np.zeros(1, bool), np.zeros(1, bool), bad[None]))
    assert buffer[:].obs_next.tolist() == [[0, 0], [0, 0], [1, 1]] and buffer._memory.ring.written.tolist() == [3]


@pytest.mark.parametrize("options", [dict(size=3, stack_num=4), dict(size=8, n_lanes=4, stack_num=3)])
def test_lanes_smaller_than_the_stack_are_refused(options):
    with pytest.raises(ValueError, match=r"lanes of \d rows are smaller than a stack of \d frames; give it size ≥ \d+"):
        ReplayBuffer(**options)


def test_a_buffer_without_a_whole_row_says_so():
    buffer = ReplayBuffer(9, stack_num=4, sample_avail=True)
    buffer.add(dict(obs=0, act=0, rew=0.0, terminated=False, truncated=False, obs_next=1))
    with pytest.raises(ValueError, match="none of 0 rows has 3 rows before it and 0 after it"):
        buffer.sample(5)
    with pytest.raises(ValueError, match="none of 3 rows has 0 rows before it and 3 after it; add rows first"):
        ReplayBuffer.sample_indices(plain(3), 5, ahead=3)


def plain(n):
    buffer = ReplayBuffer(9)
    for i in range(n):
        buffer.add(dict(obs=i, act=0, rew=0.0, terminated=False, truncated=False, obs_next=i + 1))
    return buffer


def test_rows_with_enough_followers_are_drawn():
    buffer = plain(7)
    assert set(buffer.sample_indices(300, ahead=3).tolist()) == {0, 1, 2, 3}
    full = plain(12)  # 9 slots: 9, 10, 11 and then 3, …
    assert set(full.sample_indices(300, behind=2).tolist()) == {5, 6, 7, 8, 0, 1, 2}
    buffer.truncate_open(0)  # nothing follows an end, so nothing is missing
    assert set(buffer.sample_indices(300, ahead=3).tolist()) == set(range(7))


# ------------------------------------------------------------------------------------------------- against a list of transitions


episodes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6),
                              st.sampled_from(["terminated", "truncated", "both", "cut", "open"])), max_size=14)


class Model:
    """What a buffer should say, from the plain list of all transitions of each lane."""

    def __init__(self, lanes, size, stack, ignore):
        self.rows = [[] for _ in range(lanes)]  # (frame, next frame, rew, terminated, truncated)
        self.size, self.stack, self.ignore = size, stack, ignore

    def of(self, lane):
        """Indices of the lane's rows that are still kept, oldest first."""
        return range(max(len(self.rows[lane]) - self.size, 0), len(self.rows[lane]))

    def ends(self, lane, i):
        return self.rows[lane][i][3] or self.rows[lane][i][4]

    def frames(self, lane, i):
        found = [self.rows[lane][i][0]]
        while len(found) < self.stack:
            i = i - 1 if i - 1 in self.of(lane) and not self.ends(lane, i - 1) else i
            found.append(self.rows[lane][i][0])
        return found[::-1]

    def next_frames(self, lane, i):
        row = self.rows[lane][i]
        return self.frames(lane, i) if self.ignore and row[3] else [*self.frames(lane, i)[1:], row[1]]

    def ahead(self, lane, i, n):
        """The rows from i on, at most n, in the episode."""
        found = [i]
        while len(found) < n and not self.ends(lane, found[-1]) and found[-1] + 1 in self.of(lane):
            found.append(found[-1] + 1)
        return found

    def before(self, lane, i, n):
        found = []
        while len(found) < n and i - 1 in self.of(lane) and not self.ends(lane, i - 1):
            i -= 1
            found.insert(0, i)
        return found


def filled(history, lanes, size, stack, ignore, only_last, way):
    buffer = ReplayBuffer(size * lanes, lanes, stack_num=stack, ignore_obs_next=ignore, save_only_last_obs=only_last)
    model = Model(lanes, size, stack, ignore)
    shape = (2,) if only_last else ()
    buffer.allocate([Spec("obs.x", shape, np.dtype(np.int64)), Spec("act", (), np.dtype(np.int64)),
                     Spec("rew", (), np.dtype(np.float64)),
                     Spec("terminated", (), np.dtype(bool)), Spec("truncated", (), np.dtype(bool)),
                     Spec("obs_next.x", shape, np.dtype(np.int64))])
    frame, open_at = 0, {}
    for lane, length, end in history:
        lane %= lanes
        for t in range(length):
            if lane in open_at:
                now = open_at.pop(lane)
            else:
                frame, now = frame + 1, frame
            frame, following = frame + 1, frame
            last = t == length - 1
            terminated, truncated = last and end in ("terminated", "both"), last and end in ("truncated", "both")
            given = [np.array([-1, x]) if only_last else x for x in (now, following)]
            if way == "add":
                rows = dict(obs={"x": [given[0]]}, act=[now], rew=[now / 2], terminated=[terminated], truncated=[truncated],
                            obs_next={"x": [given[1]]})
                buffer.add(rows, [lane])
            else:
                buffer.push(lane, (given[0], now, now / 2, terminated, truncated, given[1]))
            model.rows[lane].append([now, following, now / 2, terminated, truncated])
            if not (last and end != "open"):
                open_at[lane] = following
        if end == "cut":
            buffer.truncate_open(lane)
            open_at.pop(lane, None)
            if model.rows[lane] and not model.ends(lane, -1):
                model.rows[lane][-1][4] = True
    return buffer, model


settings_of_a_buffer = dict(
    history=episodes, lanes=st.integers(1, 3), size=st.integers(3, 8), stack=st.integers(1, 3), ignore=st.booleans(),
    only_last=st.booleans(),
    way=st.sampled_from(["add", "push"]),
)


@given(**settings_of_a_buffer, n=st.integers(1, 5))
def test_rows_equal_the_list_of_transitions(history, lanes, size, stack, ignore, only_last, way, n):
    buffer, model = filled(history, lanes, size, stack, ignore, only_last, way)
    buffer = pickle.loads(pickle.dumps(buffer))
    copied = ReplayBuffer(size * lanes, lanes, stack_num=stack, ignore_obs_next=ignore, save_only_last_obs=only_last)
    copied.load_state_dict(buffer.state_dict())
    joined = ReplayBuffer(sum(map(len, model.rows)) + 3, 1, ignore_obs_next=not ignore, stack_num=stack)
    positions = buffer.sample_indices(0)
    for source in (buffer, copied):
        batch, at = source[positions], 0
        ahead = source.n_step(positions, n)
        late = source.gather(positions, last=ahead["last_index"])
        rows, real = source.sequences(positions, n, burn_in=2)
        for lane in range(lanes):
            assert source.serials(positions[at : at + len(model.of(lane))]).tolist() == list(model.of(lane))
            for i in model.of(lane):
                squeeze = (lambda x: x) if stack > 1 else (lambda x: x[0])
                assert batch.obs.x[at].tolist() == squeeze(model.frames(lane, i))
                assert batch.obs_next.x[at].tolist() == squeeze(model.next_frames(lane, i))
                assert (batch.rew[at], batch.terminated[at], batch.truncated[at]) == tuple(model.rows[lane][i][2:])
                following = model.ahead(lane, i, n)
                assert ahead["valid"][at] == len(following)
                assert ahead["rew"][at].tolist() == [model.rows[lane][j][2] for j in following] + [0] * (n - len(following))
                assert late["obs_next.x"][at].tolist() == squeeze(model.next_frames(lane, following[-1]))
                assert late["terminated"][at] == model.rows[lane][following[-1]][3]
                assert late["obs.x"][at].tolist() == squeeze(model.frames(lane, i))
                sequence = model.before(lane, i, 2) + following
                assert source.columns["act"][rows[at][real[at]]].tolist() == [model.rows[lane][j][0] for j in sequence]
                assert real[at, 2] and real[at].sum() == len(sequence)
                at += 1
    if not only_last:
        joined.update(buffer, "truncate")
        if len(joined):
            unstacked = [model.rows[lane][i][1] for lane in range(lanes) for i in model.of(lane)]
            newest = joined[:].obs_next.x
            got = (newest[:, -1] if stack > 1 else newest).tolist()
            own = [model.rows[lane][i] for lane in range(lanes) for i in model.of(lane)]
            assert all(g == e or row[3] for g, e, row in zip(got, unstacked, own, strict=True))


def test_buffers_of_newest_frames_take_over_from_each_other():
    make = lambda n: ReplayBuffer(n, stack_num=3, save_only_last_obs=True, ignore_obs_next=True)  # noqa: E731
    one, two, plain = make(5), make(9), ReplayBuffer(9)
    frames = lambda i: np.arange(i - 2, i + 1).clip(0)[:, None]  # noqa: E731
    for i in range(4):
        one.add(dict(obs=frames(i), act=i, rew=0.0, terminated=False, truncated=i == 3, obs_next=frames(i + 1)))
    two.update(one)
    assert two[:].obs.tolist() == one[:].obs.tolist() and two[:].obs_next.tolist() == one[:].obs_next.tolist()
    two.add(dict(obs=frames(0), act=0, rew=0.0, terminated=False, truncated=False, obs_next=frames(1)))
    plain.update(one)
    assert plain[:].obs.tolist() == [[0], [1], [2], [3]] and plain[:].obs_next.tolist() == [[1], [2], [3], [4]]
    for wrong in (2, 4):
        with pytest.raises(SpecError, match=r"expected \(3, 1\) int64.*stacks of that many frames"):
            one.push(0, (np.zeros((wrong, 1), int), 0, 0.0, False, False, frames(0)))


def test_all_rows_are_taken_over_and_sliced_also_where_only_whole_stacks_are_drawn():
    buffer = ReplayBuffer(9, stack_num=3, sample_avail=True)
    for i in range(7):
        buffer.add(dict(obs=i, act=i, rew=0.0, terminated=False, truncated=i == 3, obs_next=i + 1))
    target = ReplayBuffer(9)
    assert len(target.update(buffer)) == 7 and target[:].act.tolist() == buffer[:].act.tolist() == list(range(7))


def test_obs_next_is_looked_up_also_where_it_was_never_given():
    buffer = ReplayBuffer(9, ignore_obs_next=True)
    for i in range(4):
        buffer.add(dict(obs={"x": i}, act=i, rew=0.0, terminated=i == 1, truncated=False))
    assert buffer[:].obs_next.x.tolist() == [1, 1, 3, 3] and buffer.get(2, "obs_next").x == 3


def test_obs_next_must_have_the_fields_of_obs():
    with pytest.raises(ValueError, match="field 'obs_next.b' is .* and 'obs.b' is not"):
        ReplayBuffer(9,
                     ignore_obs_next=True).add(dict(obs={"a": 1}, act=0, rew=0.0, terminated=False, truncated=False,
                                                    obs_next={"a": 1, "b": 2}))


def test_an_empty_buffer_is_loaded_over_a_full_one():
    buffer, empty = ReplayBuffer(4, ignore_obs_next=True), ReplayBuffer(4, ignore_obs_next=True)
    row = dict(obs=1, act=0, rew=0.0, terminated=False, truncated=True, obs_next=7)
    buffer.add(row)
    buffer.load_state_dict(empty.state_dict())
    assert len(buffer) == 0
    buffer.add({**row, "truncated": False, "obs_next": 9})
    assert buffer[:].obs_next.tolist() == [9]


def test_positions_outside_of_the_memory_crash_nothing():
    buffer = plain(5)
    for wrong in (10**12, -(10**9), 9, -1):
        for call in (lambda w: buffer.n_step(np.array([w]), 3), lambda w: buffer.sequences(np.array([w]), 2),
                     lambda w: buffer.gather(np.array([w]), np.array([w]))):
            if call is not None and not (wrong == -1 and "gather" in call.__code__.co_names):
                with pytest.raises(IndexError):
                    call(wrong)
        assert buffer.serials(np.array([wrong])).tolist() == [-1]
    state = buffer.state_dict()
    for damage in (dict(cursor=[10**9]), dict(cursor=[-3]), dict(count=[4])):
        with pytest.raises(ValueError):
            ReplayBuffer(9).load_state_dict({**state, **damage})
