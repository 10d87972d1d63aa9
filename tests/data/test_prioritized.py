"""PrioritizedReplayBuffer: T40, the traps beside it, and what it shares with the plain buffer."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_like import PrioritizedReplayBuffer, ReplayBuffer
from parl_like.data.buffers.prioritized import EPS
from parl_like.learning.algorithm import Linear


def row(i, **more):
    return dict(obs=i, act=i, rew=float(i), terminated=False, truncated=False, obs_next=i + 1, **more)


def filled(n, size=None, **options):
    buffer = PrioritizedReplayBuffer(size or n, **options)
    for i in range(n):
        buffer.add(row(i))
    return buffer


def shares(buffer, draws=40_000, **options):
    return np.bincount(buffer.sample_indices(draws, np.random.default_rng(1), **options), minlength=buffer.capacity) / draws


def test_rows_are_drawn_in_proportion_to_their_weights():
    buffer = filled(10, alpha=0.7)
    td = np.array([-5.0, 0.1, 0, 3, 2, -1, 0.5, 9, 0.01, 1])
    buffer.update_weight(np.arange(10), td)
    weight = (np.abs(td) + EPS) ** 0.7
    expected, n = weight / weight.sum(), 40_000
    assert (np.abs(shares(buffer, n) - expected) <= 3 * np.sqrt(expected * (1 - expected) / n) + 1e-12).all()


def test_new_rows_get_the_largest_priority_so_far():
    buffer = filled(3, 9, alpha=0.5)
    assert buffer._sum.values[:3].tolist() == [1, 1, 1]
    buffer.update_weight([0, 1], [-4.0, 0.25])
    buffer.add(row(3))
    buffer.push(0, (4, 4, 4.0, False, False, 5))
    buffer.push_rows([0], tuple(np.array([v]) for v in (5, 5, 5.0, False, False, 6)))
    np.testing.assert_allclose(buffer._sum.values[:6], [2, 0.5, 1, 2, 2, 2], rtol=1e-6)
    buffer.update_weight([0], [0.0])  # the largest so far stays the largest so far
    buffer.add(row(6))
    assert buffer._sum[6] == pytest.approx(2, rel=1e-6)


def test_weights_undo_the_unequal_chances():
    """With β = 1 and without normalisation the weighted mean of what is drawn is the plain mean of the rows."""
    buffer = filled(20, alpha=1.0, beta=1.0, weight_norm=False)
    rng = np.random.default_rng(0)
    td = rng.uniform(0.1, 4, 20)
    buffer.update_weight(np.arange(20), td)
    batch, indices = buffer.sample(60_000, rng)
    smallest = td.min() + EPS
    np.testing.assert_allclose(batch.weight, ((td[indices] + EPS) / smallest) ** -1.0, rtol=1e-5)
    x = batch.weight * batch.rew
    expected = np.mean(np.arange(20)) * (smallest / np.mean(td + EPS))  # weights are relative to the smallest
    assert abs(x.mean() - expected) < 3 * x.std() / np.sqrt(len(x))


def test_the_weights_of_a_batch():
    buffer = filled(4, alpha=0.5, beta=0.8)
    buffer.update_weight(np.arange(4), [1.0, 4.0, 16.0, 64.0])
    raw = np.array([1, 2, 4, 8]) ** -0.8
    np.testing.assert_allclose(buffer[np.arange(4)].weight, raw, rtol=1e-6)
    np.testing.assert_allclose(buffer[np.array([2, 3])].weight, raw[2:] / raw[2], rtol=1e-6)  # divided by the batch's largest
    assert buffer.get(3, "weight") == 1 and buffer[3].weight == 1
    assert buffer[np.arange(4)].weight.dtype == np.float32
    buffer.weight_norm = False
    np.testing.assert_allclose(buffer.get(np.array([2, 3]), "weight"), raw[2:], rtol=1e-6)
    buffer.update_weight([0], [16.0])  # the smallest is what is smallest now, not what ever was
    np.testing.assert_allclose(buffer[np.arange(4)].weight, np.array([2, 1, 2, 4]) ** -0.8, rtol=1e-6)


def test_beta_follows_its_schedule():
    buffer = filled(4, beta=Linear(0.4, 1.0, 10))
    assert buffer.beta == pytest.approx(0.4)
    for _ in range(5):
        buffer.sample(2)
    assert buffer.beta == pytest.approx(0.7)
    buffer.sample(0)  # nothing is drawn
    assert buffer.beta == pytest.approx(0.7)


def test_a_row_that_was_overwritten_keeps_the_priority_of_the_new_one():
    """A training return may come when the rows it speaks of are gone."""
    buffer = filled(4)
    indices = np.array([0, 1, 3])
    serials = buffer.serials(indices)
    buffer.add(row(4))
    assert buffer.update_weight(indices, [9.0, 9.0, 9.0], serials) == 1
    assert buffer._sum[0] == 1 and buffer._sum[1] == buffer._sum[3] > 1
    buffer.reset()
    assert buffer.update_weight(indices, [9.0, 9.0, 9.0], serials) == 3


def test_duplicates_last_wins():
    buffer = filled(4, alpha=1.0)
    buffer.update_weight([2, 2, 1, 2], [5, 6, 7, 8])
    np.testing.assert_allclose(buffer._sum.values, [1, 7, 8, 1], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_no_number_no_priority(bad):
    buffer = filled(4)
    before = buffer._sum.values
    with pytest.raises(ValueError, match=r"priority (nan|inf) at place 1; expected finite numbers"):
        buffer.update_weight([0, 1], [3.0, bad])
    with pytest.raises(IndexError, match="position 7 holds no row"):
        buffer.update_weight([0, 7], [3.0, 3.0])
    with pytest.raises(ValueError, match="weights for"):
        buffer.update_weight([0, 1], [3.0, 3.0, 3.0])
    assert buffer._sum.values.tolist() == before.tolist() and buffer.max_priority == 1


@pytest.mark.parametrize(("options", "message"), [
    (dict(alpha=0), "alpha is 0"), (dict(alpha=-1), "alpha is -1"), (dict(alpha=float("nan")), "alpha is nan"),
    (dict(beta=-0.1), "beta is -0.1"),
])
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        PrioritizedReplayBuffer(4, **options)


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="cannot sample 3 rows from an empty buffer"):
        PrioritizedReplayBuffer(4).sample(3)
    with pytest.raises(ValueError, match="'weight' is made here"):
        filled(4).add(row(1, weight=1.0))


def test_rows_that_cannot_be_had_whole_weigh_nothing():
    """Trap 5: a sequence would run past the newest row; a stack has lost its frames. The others keep their proportions."""
    buffer = PrioritizedReplayBuffer(8, alpha=1.0, stack_num=3)
    for i in range(12):
        buffer.add(row(i))  # rows 4 … 11, at positions 4 … 7, 0 … 3
    buffer.update_weight(np.arange(8), np.arange(1.0, 9.0))
    whole = [6, 7, 0, 1]  # rows 6 … 9: two before them, two after
    weight = np.zeros(8)
    weight[whole] = np.array(whole) + 1.0
    expected = weight / weight.sum()
    assert (np.abs(shares(buffer, ahead=2) - expected) <= 3 * np.sqrt(expected * (1 - expected) / 40_000)).all()


def test_a_rare_whole_row_is_found():
    buffer = filled(2000, alpha=1.0)
    buffer.update_weight(np.arange(2000), 1e6)
    buffer.update_weight([0, 1], [1e-3, 3e-3])
    drawn = buffer.sample_indices(4000, np.random.default_rng(0), ahead=1998)
    assert set(drawn.tolist()) == {0, 1} and 0.7 < np.mean(drawn == 1) < 0.8


def test_lanes_come_and_go():
    buffer = PrioritizedReplayBuffer(6, 3, alpha=1.0)
    buffer.add({name: np.array([value] * 3) for name, value in row(1).items()})
    buffer.update_weight([0, 2, 4], [2.0, 3.0, 4.0])
    buffer.add_lanes(1)
    np.testing.assert_allclose(buffer._sum.values, [2, 0, 3, 0, 4, 0, 0, 0], rtol=1e-6)
    buffer.clear_lane(1)
    assert set(buffer.sample_indices(100).tolist()) == {0, 4} and buffer.capacity == 8
    np.testing.assert_allclose(buffer.get(np.array([0, 4]), "weight"), [1, 2**-0.4], rtol=1e-6)  # the smallest is 2


def test_rows_of_another_buffer_are_taken_over():
    source = ReplayBuffer(5)
    for i in range(5):
        source.add(row(i))
    buffer = PrioritizedReplayBuffer(9)
    buffer.update(source)
    assert buffer[:].obs.tolist() == [0, 1, 2, 3, 4] and buffer._sum.total == 5
    plain = ReplayBuffer(9)
    plain.update(buffer)
    assert plain[:].obs.tolist() == [0, 1, 2, 3, 4] and "weight" not in plain.columns


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 40), st.integers(0, 2**31))
def test_saved_pickled_and_gone_on_alike(lanes, size, n, seed):
    rng = np.random.default_rng(seed)
    buffer = PrioritizedReplayBuffer(lanes * size, lanes, 3, beta=0.5)
    for i in range(n):
        buffer.add({name: [value] for name, value in row(i).items()}, [rng.integers(lanes)])
        if i % 3 == 0:
            buffer.update_weight(buffer.sample_indices(4), rng.normal(size=4))
    loaded = PrioritizedReplayBuffer(lanes * size, lanes)
    loaded.load_state_dict(buffer.state_dict())
    for other in (loaded, pickle.loads(pickle.dumps(buffer))):
        assert other._sum.values.tolist() == buffer._sum.values.tolist()
        assert (other.max_priority, other.batches_drawn) == (buffer.max_priority, buffer.batches_drawn)
    if n:
        draws = [b.sample_indices(20).tolist() for b in (buffer, loaded)]
        assert draws[0] == draws[1]


def test_a_saved_buffer_without_priorities_is_refused():
    plain = ReplayBuffer(4)
    plain.add(row(0))
    with pytest.raises(ValueError, match="the saved buffer has no priorities"):
        PrioritizedReplayBuffer(4).load_state_dict(plain.state_dict())


def test_threads_share_it():
    buffer = PrioritizedReplayBuffer(100, threadsafe=True)
    buffer.add(row(0))
    with buffer.lock:
        assert buffer.update_weight([0], [1.0]) == 0


def test_a_million_rows():
    """Writing, drawing and updating touch few nodes of the tree, so a buffer of any size is as fast."""
    buffer = PrioritizedReplayBuffer(1_000_000)
    n = 1 << 16
    rows = tuple(np.zeros(n, dtype) for dtype in (int, int, float, bool, bool, int))
    buffer.add(row(0))
    for _ in range(16):
        buffer.push_rows(np.zeros(n, int), rows)
    assert len(buffer) == 1_000_000
    before = buffer._sum.nodes.copy()
    indices = buffer.sample_indices(256)
    buffer.update_weight(indices, np.linspace(0, 5, 256))
    assert (buffer._sum.nodes != before).sum() <= 256 * 21
    assert buffer._sum.total == pytest.approx(buffer._sum.values.sum())


def test_a_copy_has_priorities_of_its_own():
    import copy

    buffer = filled(4, alpha=1.0)
    for other in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        other.update_weight(np.arange(4), [1.0, 2.0, 3.0, 4.0])
        np.testing.assert_allclose(other.state_dict()["weights"], [1, 2, 3, 4], rtol=1e-6)
        np.testing.assert_allclose(other.get(np.arange(4), "weight"), np.array([1, 2, 3, 4]) ** -0.4, rtol=1e-5)
    assert buffer._sum.values.tolist() == [1, 1, 1, 1]


def test_weights_of_another_alpha_are_refused():
    state = filled(4, alpha=1.0).state_dict()
    with pytest.raises(ValueError, match="the saved weights are of alpha=1.0, this buffer has 0.5"):
        PrioritizedReplayBuffer(4, alpha=0.5).load_state_dict(state)


def test_everything_that_reads_or_writes_is_under_the_lock():
    kind = PrioritizedReplayBuffer
    public = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))}
    free = {"allocate", "episode_start", "is_full", "lane_positions", "lane_rows", "load", "make_threadsafe",
            "positions", "read_shape", "save", "stacked",
            "take", "unfinished_index", "window"}
    assert public - set(PrioritizedReplayBuffer.locked) == free
