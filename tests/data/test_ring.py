"""Ring against its plain NumPy twin: after any history of writes both hold the same rows and see the same neighbours."""

import pickle

import numpy as np
import pytest
from buffer_twins import RingReference
from hypothesis import given
from hypothesis import strategies as st

from parl_like.data.buffers._rows import Ring
from parl_like.values.spec import Spec, SpecError

SPECS = [
    Spec("obs", (2, 3), np.dtype(np.uint8)), Spec("act", (), np.dtype(np.int64)), Spec("rew", (), np.dtype(np.float64)),
    Spec("terminated", (), np.dtype(bool)), Spec("truncated", (), np.dtype(bool)), Spec("x", (2,), np.dtype(np.float32)),
    Spec("half", (1,), np.dtype(np.float16)), Spec("none", (0,), np.dtype(np.float32)),
]  # fmt: skip


def row(i, end=0):
    """Row number i. `end`: 1 terminated, 2 truncated, 3 both."""
    return (np.full((2, 3), i % 256, np.uint8), i, i / 2, bool(end & 1), bool(end & 2), np.full(2, i, np.float32),
            np.float16([i % 7]),
            np.zeros(0, np.float32))


histories = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 3), st.sampled_from([0, 0, 0, 1, 2, 3])),
        st.tuples(st.just("rows"), st.lists(st.integers(0, 3), max_size=9), st.sampled_from([0, 0, 1, 2])),
        st.tuples(st.just("clear"), st.integers(0, 3), st.just(0)),
    ),
    max_size=30,
)


def played(history, lanes, size):
    ring, reference = Ring(SPECS, lanes, size), RingReference(SPECS, lanes, size)
    number = 0
    for what, where, end in history:
        if what == "push":
            number += 1
            assert ring.push(where % lanes, row(number, end)) == reference.push(where % lanes, row(number, end))
        elif what == "clear":
            ring.clear(where % lanes)
            reference.clear(where % lanes)
        else:
            into = np.array(where, np.int64) % lanes
            rows = [row(number + 1 + i, end if i % 3 == 2 else 0) for i in range(len(into))]
            number += len(into)
            columns = tuple(np.stack(c) if c else s.zeros(0)
                            for s, c in zip(SPECS, list(zip(*rows, strict=True)) or [()] * len(SPECS), strict=True))
            columns = tuple(np.asarray(c, s.dtype) for s, c in zip(SPECS, columns, strict=True))
            assert ring.push_rows(into, columns).tolist() == reference.push_rows(into, columns).tolist()
    return ring, reference


def check_equal(ring, reference, stack=3, ahead=2):
    assert ring.count.tolist() == reference.count and ring.cursor.tolist() == reference.cursor
    assert ring.written.tolist() == reference.written and ring.total == reference.total
    positions = np.array([position for lane in reference.lanes for position in lane], np.int64)
    for name, column in reference.block.arrays.items():
        got = ring.block.arrays[name]
        assert got.dtype == column.dtype
        np.testing.assert_array_equal(got[positions], column[positions])
    numbers = np.arange(len(positions))[::-1]
    np.testing.assert_array_equal(ring.numbered(numbers), reference.numbered(numbers))
    some = positions[::-2]
    np.testing.assert_array_equal(ring.next(some), reference.next(some))
    np.testing.assert_array_equal(ring.prev(some), reference.prev(some))
    np.testing.assert_array_equal(ring.episode_end(some), reference.episode_end(some))
    for left, right in zip(ring.around(some, stack - 1, ahead), reference.around(some, stack - 1, ahead), strict=True):
        np.testing.assert_array_equal(left, right)
    for full in (True, False):
        np.testing.assert_array_equal(ring.whole(some, stack, ahead, full), reference.whole(some, stack, ahead, full))
        np.testing.assert_array_equal(ring.whole(some, 1, 0, full), reference.whole(some, 1, 0, full))
    for field in (2, 5):
        ours, theirs = ring.n_step(some, ahead + 1, field), reference.n_step(some, ahead + 1, field)
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name])


@given(histories, st.integers(1, 4), st.integers(1, 7), st.integers(1, 5), st.integers(0, 4))
def test_both_hold_the_same_and_see_the_same(history, lanes, size, stack, ahead):
    check_equal(*played(history, lanes, size), stack, ahead)


@given(histories, st.integers(1, 4), st.integers(1, 7))
def test_a_pickled_ring_goes_on(history, lanes, size):
    ring, reference = played(history, lanes, size)
    ring = pickle.loads(pickle.dumps(ring))
    ring.push(0, row(99, 2))
    reference.push(0, row(99, 2))
    check_equal(ring, reference)


WRONG = [
    (0, np.zeros((4, 2, 2), np.uint8)), (0, np.zeros((3, 2, 3), np.uint8)), (1, np.zeros(4)), (2, np.array([0, 1, np.nan, 3.0])),
    (3, np.array([0, 1, 2, 3])), (5, np.zeros((4, 2))), (5, None), (2, "rew"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_rows_that_do_not_fit_change_nothing(field, value):
    ring, reference = played([("rows", [0, 1, 0, 1], 0), ("push", 0, 0)], 2, 2)
    columns = [np.stack(c).astype(s.dtype) for s, c in zip(SPECS, zip(*[row(i) for i in range(4)], strict=True), strict=True)]
    columns[field] = value
    with pytest.raises(SpecError, match=SPECS[field].name):
        ring.push_rows(np.array([0, 1, 0, 1]), tuple(columns))
    check_equal(ring, reference)


def test_values_are_taken_from_any_layout():
    ring = Ring(SPECS[2:6], 2, 4)
    turned = np.arange(8, dtype=np.float32).reshape(2, 4).T
    swapped = np.arange(4).astype(">f8")
    ring.push_rows([0, 1, 0, 1], (swapped, [False] * 4, np.zeros(8, bool)[::2], turned))
    assert ring.block.arrays["rew"][[0, 4, 1, 5]].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(ring.block.arrays["x"][[0, 4, 1, 5]], turned)


def test_what_does_not_exist_is_refused():
    ring = Ring(SPECS, 2, 4)
    for lane in (-1, 2):
        with pytest.raises(IndexError, match=f"lane {lane} of 2"):
            ring.push(lane, row(0))
        with pytest.raises(IndexError, match=f"lane {lane} of 2"):
            ring.clear(lane)
    with pytest.raises(IndexError, match="2 values for fields"):
        ring.push(0, (1, 2))
    with pytest.raises(IndexError, match="2 values for fields"):
        ring.push_rows([0], (1, 2))
    with pytest.raises(ValueError, match="books of 1 lanes; expected 2"):
        ring.set([0], [0], [0])
    for number in (-1, 0):
        with pytest.raises(IndexError, match=f"row {number} of 0"):
            ring.numbered([number])
    with pytest.raises(ValueError, match="2 axes; expected one"):
        ring.serials(np.zeros((2, 2), np.int64))
    assert ring.total == 0
