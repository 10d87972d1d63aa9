"""SegmentTree: the numbers of the specifications, the plain NumPy twin on random operations, and what rounding must not do."""

import copy
import pickle

import numpy as np
import pytest
from buffer_twins import SegmentTreeReference
from gil import let_others_run
from hypothesis import assume, given
from hypothesis import strategies as st

from parl_like.data.buffers._segment_tree import SegmentTree

KINDS = ("sum", "min")
TREES = (SegmentTree, SegmentTreeReference)


# ---- the numbers of the specifications


@pytest.mark.parametrize("make", TREES)
def test_prefix_search_finds_the_published_positions(make):
    """Tianshou's tree of ten, 0.1, 0, 0.1, 0, …; 0.2 is the total, in floats too."""
    tree = make(10)
    tree[np.arange(3)] = np.array([0.1, 0.0, 0.1])
    assert tree.find(np.array([0, 0.1, 0.1 + 1e-6, 0.2 - 1e-6])).tolist() == [0, 0, 2, 2]
    assert tree.total == 0.2
    with pytest.raises(ValueError, match="0.2" if make is SegmentTree else None):
        tree.find(0.2)


@pytest.mark.parametrize("make", TREES)
def test_a_circular_sum_tree_keeps_the_last_round(make):
    tree = make(8)
    for item in range(1, 17):
        tree[(item - 1) % 8] = float(item)
    assert tree.values.tolist() == [9, 10, 11, 12, 13, 14, 15, 16]
    assert tree.total == 100
    tree.fill(1.0)
    assert tree.find(np.arange(8) + 0.5).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def within_three_standard_errors(drawn, probability, n):
    error = np.sqrt(probability * (1 - probability) / n)
    return np.abs(drawn / n - probability) <= 3 * error


def test_samples_are_as_frequent_as_their_weights():
    weights = np.array([0.5, 0.0, 4.0, 1.0, 0.25, 8.0, 0.0, 2.0, 0.0, 3.0, 0.125])
    tree, n = SegmentTree(len(weights)), 200_000
    tree.fill(weights)
    drawn = np.bincount(tree.sample(n, np.random.default_rng(1)), minlength=len(weights))
    assert within_three_standard_errors(drawn, weights / weights.sum(), n).all()
    assert (drawn[weights == 0] == 0).all()


def test_samples_among_a_million_are_as_frequent_as_their_weights():
    rng = np.random.default_rng(3)
    weights = rng.random(1_000_000) ** 4
    weights[rng.random(1_000_000) < 0.3] = 0.0
    tree, n = SegmentTree(len(weights)), 1_000_000
    tree.fill(weights)
    drawn = tree.sample(n, rng)
    assert drawn.dtype == np.int64
    assert drawn.shape == (n,)
    assert (weights[drawn] > 0).all()
    # By place, and by size of the weight: single positions are drawn too seldom to be counted.
    for group in (np.arange(len(weights)) // 50_000, np.digitize(weights, [0.001, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8])):
        shares = np.bincount(group, weights) / weights.sum()
        assert within_three_standard_errors(np.bincount(group[drawn], minlength=len(shares)), shares, n).all()


# ---- the same as the twin


# Multiples of 2⁻¹⁰ below 2¹⁰: no sum of them is rounded, so tree and twin must agree to the last bit.
exact = st.integers(0, 2**20).map(lambda i: i / 1024)
exact_or_zero = st.one_of(exact, st.just(0.0))


@st.composite
def histories(draw):
    n, kind = draw(st.integers(1, 70)), draw(st.sampled_from(KINDS))
    places = st.integers(0, n - 1)
    weights = st.one_of(exact_or_zero, st.just(np.inf)) if kind == "min" else exact_or_zero
    pairs = st.lists(st.tuples(places, weights), max_size=90)
    return n, kind, draw(st.lists(st.one_of(st.tuples(places, weights), pairs, st.tuples(st.just(None), weights)), max_size=8))


def apply(tree, step):
    if isinstance(step, list):
        tree[np.array([place for place, _ in step], np.int64)] = np.array([weight for _, weight in step])
    elif step[0] is None:
        tree.fill(step[1])
    else:
        tree[step[0]] = step[1]


@given(histories(), st.data())
def test_tree_and_twin_agree(history, data):
    n, kind, steps = history
    tree, twin = SegmentTree(n, kind), SegmentTreeReference(n, kind)
    for step in steps:
        apply(tree, step)
        apply(twin, step)
        assert tree.values.tolist() == twin.values.tolist()
        assert tree.total == twin.total == tree.reduce()
        start, end = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
        assert tree.reduce(start, end) == twin.reduce(start, end)
        assert tree.reduce(start) == twin.reduce(start)
        places = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=5)), np.int64)
        assert tree[places].tolist() == twin[places].tolist()
    if kind == "sum" and tree.total:
        sums = np.cumsum(tree.values)
        asked = np.concatenate([[0.0], sums, sums - 2**-11, sums + 2**-11])
        asked = asked[(asked >= 0) & (asked < tree.total)]
        assert tree.find(asked).tolist() == twin.find(asked).tolist()
        seed = data.draw(st.integers(0, 99))
        drawn = [each.sample(40, np.random.default_rng(seed)).tolist() for each in (tree, twin)]
        assert drawn[0] == drawn[1]


WRONG_STEPS = [
    (5, 1.0), (-1, 1.0), (2**70, 1.0), ([0, 5], 1.0), ([0, -1], [1.0, 1.0]), (np.array([2**63], np.uint64), 1.0), (True, 1.0),
    (1.0, 1.0), (np.ones(5, bool), 1.0), ([0.5], 1.0), (0, -1.0), (0, np.nan), ([0, 1], [1.0, -1e-300]), ([0, 1], [1.0, np.nan]),
    ([0, 1], [1.0, 1.0, 1.0]), ([0, 1], [[1.0], [2.0]]), (0, [1.0]), (0, [1.0, 2.0]),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [*WRONG_STEPS, ([0, 1], [1.0, np.inf]), (0, np.inf), (0, 1e308)], ids=str)
def test_tree_and_twin_refuse_the_same_and_stay_as_they_were(step, kind):
    raised = []
    for make in TREES:
        tree = make(5, kind)
        tree.fill([4.0, 1.0, 3.0, 2.0, 5.0])
        before = tree.values
        try:
            tree[step[0]] = step[1]
            raised.append(None)
        except (ValueError, IndexError) as error:
            raised.append(type(error))
            assert tree.values.tolist() == before.tolist()
            assert tree.total == {"sum": 15.0, "min": 1.0}[kind]
    assert raised[0] is raised[1]
    assert raised[0] is not None or kind == "min"  # +inf and the greatest floats are fine for a minimum


@pytest.mark.parametrize("make", TREES)
def test_the_last_value_of_a_position_that_comes_twice_stays(make):
    for n in (4, 1000):  # rebuilt as a whole, and node by node
        tree = make(n)
        tree[[1, 3, 1, 3, 1]] = [1.0, 2.0, 3.0, 4.0, 5.0]
        assert tree[[0, 1, 2, 3]].tolist() == [0, 5, 0, 4]
        assert tree.total == 9


@pytest.mark.parametrize("make", TREES)
def test_shapes(make):
    tree = make(6)
    tree[np.array([[0, 1], [2, 3]])] = np.array([[1.0, 2.0], [3.0, 4.0]], order="F")
    assert tree.values.tolist() == [1, 2, 3, 4, 0, 0]
    assert tree[np.array([[3], [0]], np.uint8)].tolist() == [[4], [1]]
    assert tree[2] == 3.0
    assert tree.find(np.array([[0.5, 1.5], [9.5, 3.0]])).tolist() == [[0, 1], [3, 1]]
    tree[[]] = []
    tree[[4, 5]] = 7
    assert tree.values.tolist() == [1, 2, 3, 4, 7, 7]
    assert len(tree) == 6
    assert tree.find([]).tolist() == []


def test_one_position_is_read_and_found_as_a_number():
    tree = SegmentTree(3)
    tree.fill([1, 2, 3])
    assert type(tree[1]) is float
    assert type(tree.find(1.5)) is int
    assert type(tree.total) is float
    assert type(tree.reduce(0, 2)) is float


# ---- what a caller is told


@pytest.mark.parametrize(
    ("act", "error", "told"),
    [
        (lambda tree: tree[5], IndexError, "no position 5; positions are 0 to 4"),
        (lambda tree: tree[[0, -2]], IndexError, "no position -2"),
        (lambda tree: tree[np.ones(5, bool)], IndexError, "flatnonzero"),
        (lambda tree: tree.__setitem__([1, 7], 1.0), IndexError, "no position 7"),
        (lambda tree: tree.__setitem__([1, 2], [1.0, -3.0]), ValueError, r"weight -3.0 at position 2; expected 0 ≤ weight"),
        (lambda tree: tree.__setitem__(4, float("nan")), ValueError, "weight nan at position 4"),
        (lambda tree: tree.__setitem__(4, float("inf")), ValueError, "weight inf at position 4"),
        (lambda tree: tree.__setitem__([1, 2], [1.0] * 3), ValueError, r"\(3,\) weights for \(2,\) positions"),
        (lambda tree: tree.reduce(2, 6), IndexError, r"range \[2, 6\)"),
        (lambda tree: tree.reduce(3, 2), IndexError, r"range \[3, 2\)"),
        (lambda tree: tree.reduce(-1), IndexError, r"range \[-1, None\)"),
        (lambda tree: tree.find([1.0, -0.5]), ValueError, "find got -0.5; expected 0 ≤ value < 15.0"),
        (lambda tree: tree.find(15.5), ValueError, "find got 15.5"),
        (lambda tree: tree.find(float("nan")), ValueError, "find got nan"),
        (lambda tree: tree.sample(-1, np.random.default_rng(0)), ValueError, "cannot sample -1"),
        (lambda tree: SegmentTree(5).sample(1, np.random.default_rng(0)), ValueError, "all weights are 0"),
        (lambda tree: SegmentTree(5).find(0.0), ValueError, "find got 0.0"),
        (lambda tree: SegmentTree(5, "min").find(0.0), ValueError, "kind 'sum'"),
        (lambda tree: SegmentTree(5, "min").sample(1, np.random.default_rng(0)), ValueError, "kind 'sum'"),
        (lambda tree: SegmentTree(0), ValueError, "at least 1"),
        (lambda tree: SegmentTree(5, "max"), ValueError, "'max'"),
    ],
)
def test_errors_say_what_is_wrong(act, error, told):
    tree = SegmentTree(5)
    tree.fill([4.0, 1.0, 3.0, 2.0, 5.0])
    with pytest.raises(error, match=told):
        act(tree)
    assert tree.values.tolist() == [4, 1, 3, 2, 5]


# ---- rounding

weights_of_any_size = st.one_of(
    st.just(0.0), st.floats(0, 1), st.floats(0, 1e300), st.sampled_from([5e-324, 1e-310, 0.1, 0.2, 0.3, 1.0, 1e16, 2.0**60])
)


@given(st.lists(weights_of_any_size, min_size=1, max_size=40), st.data())
def test_a_weight_of_zero_is_never_found(weights, data):
    tree = SegmentTree(len(weights))
    tree.fill(weights)
    assume(tree.total > 0)
    edges = [tree.reduce(0, end) for end in range(len(weights) + 1)]
    asked = [v for edge in edges for v in (edge, np.nextafter(edge, 0), np.nextafter(edge, np.inf)) if 0 < v < tree.total]
    asked.append(data.draw(st.floats(0, 1, exclude_min=True, exclude_max=True)) * tree.total)
    asked = [v for v in asked if 0 < v < tree.total]
    found = tree.find(asked)
    assert ((found >= 0) & (found < len(weights))).all()
    assert (tree[found] > 0).all()
    for v, i in zip(asked, found.tolist(), strict=True):  # and it is the right one, as far as the sums are
        slack = 1e-13 * tree.total
        assert tree.reduce(0, i) <= v + slack
        assert v <= tree.reduce(0, i + 1) + slack


class Fixed:
    """A generator whose numbers are all `u`."""

    def __init__(self, u):
        self.u = u

    def random(self, n):
        return np.full(n, self.u)


@pytest.mark.parametrize("u", [0.0, np.nextafter(1.0, 0.0), 0.5])
@pytest.mark.parametrize("weight", [5e-324, 1e-310, 0.1, 1e300])
def test_the_ends_of_the_draw_hit_weights(u, weight):
    """u = 0 draws the total, which the last position with a weight answers for; a subnormal total times almost 0 is 0."""
    tree = SegmentTree(9)
    tree[[2, 6]] = weight
    assert tree[tree.sample(3, Fixed(u))].tolist() == [weight] * 3
    if u == 0:
        assert tree.sample(1, Fixed(u)).tolist() == [6]


def test_sums_do_not_drift():
    """Thousands of great weights come and go; what is left is what a fresh tree says, to the last bit."""
    rng, tree, n = np.random.default_rng(0), SegmentTree(50), 50
    for _ in range(2000):
        tree[rng.integers(n, size=5)] = 1e12 * rng.random(5)
        tree[int(rng.integers(n))] = 1e15 * rng.random()
    small = rng.random(n) * 1e-6
    for i in range(n):
        tree[i] = float(small[i])
    fresh = SegmentTree(n)
    fresh.fill(small)
    assert tree.nodes.tolist() == fresh.nodes.tolist()
    assert tree.total == pytest.approx(small.sum(), rel=1e-14)


def test_the_greatest_weights_do_not_overflow():
    tree = SegmentTree(5)
    tree.fill(np.finfo(np.float64).max / 8)
    assert np.isfinite(tree.total)
    assert set(tree.sample(200, np.random.default_rng(0)).tolist()) == {0, 1, 2, 3, 4}


# ---- cost, in nodes

MILLION = 1_000_000


def around(tree, positions):
    """Nodes that setting these positions has to write, and those that it has to read for it."""
    size = len(tree.nodes) // 2
    written = set()
    for i in {size + p for p in positions}:
        while i:
            written.add(i)
            i //= 2
    inner = [i for i in written if i < size]
    return written, written | {2 * i for i in inner} | {2 * i + 1 for i in inner}


@pytest.mark.parametrize("kind", KINDS)
def test_one_update_touches_one_path(kind):
    """All but the path and its neighbours is NaN: a path of 21 nodes is written, and nothing else so much as read."""
    tree = SegmentTree(MILLION, kind)
    tree.fill(2.0)
    written, read = around(tree, [123_456])
    assert len(written) == 21
    expected = {"sum": 2.0 * MILLION - 1.0, "min": 1.0}[kind]
    other = np.ones(len(tree.nodes), bool)
    other[list(read)] = False
    tree.nodes[other] = np.nan
    before = tree.nodes.copy()
    tree[123_456] = 1.0
    assert tree.total == expected
    assert set(np.flatnonzero((tree.nodes != before) & ~other)) == written
    assert np.isnan(tree.nodes[other]).all()


def test_a_batch_touches_its_paths():
    """32 positions: near the root the levels are computed as a whole; below 16 nodes per position only what must be is
    touched."""
    tree = SegmentTree(MILLION)
    tree.fill(2.0)
    rng = np.random.default_rng(0)
    positions = np.concatenate([rng.integers(MILLION, size=24), 777_777 + np.arange(8)])
    written, read = around(tree, positions.tolist())
    assert len(written) < 32 * 21
    other = np.ones(len(tree.nodes), bool)
    other[list(read)] = False
    other[: 16 * len(positions)] = False
    tree.nodes[other] = np.nan
    tree[positions] = 1.0
    assert tree.total == 2.0 * MILLION - 32
    assert np.isnan(tree.nodes[other]).all()


def test_a_search_reads_one_path():
    tree = SegmentTree(MILLION)
    tree.fill(1.0)
    _, read = around(tree, [700_000])
    other = np.ones(len(tree.nodes), bool)
    other[list(read)] = False
    tree.nodes[other] = np.nan
    assert tree.find(700_000.5) == 700_000


# ---- state


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, lambda tree: pickle.loads(pickle.dumps(tree))],
                         ids=["deep", "copy", "pickle"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_live_on_alone(way, kind):
    tree = SegmentTree(5, kind)
    tree[[1, 3]] = [2.0, 3.0]
    twin = way(tree)
    assert twin.nodes.tolist() == tree.nodes.tolist()
    assert (twin.kind, len(twin)) == (kind, 5)
    twin[0] = 1.0
    assert tree[0] == SegmentTree(5, kind)[0]
    assert twin.total == {"sum": 6.0, "min": 1.0}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_a_copy_that_restores_the_tree(kind):
    tree, other = SegmentTree(5, kind), SegmentTree(5, kind)
    tree[[1, 3]] = [2.0, 3.0]
    saved = tree.values
    other.fill(saved)
    assert other.nodes.tolist() == tree.nodes.tolist()
    saved[:] = 9.0
    assert tree[1] == 2.0


def test_equal_seeds_draw_equal_positions():
    tree = SegmentTree(100)
    tree.fill(np.arange(100))
    one, two = (tree.sample(50, np.random.default_rng(5)) for _ in range(2))
    assert one.tolist() == two.tolist()


# ---- the kernels let other threads run


@pytest.mark.parametrize("name", ["set", "find"])
def test_kernels_release_the_gil(name):
    # 300 at a time: from 500 on NumPy itself lets other threads run, and the test would not see the kernel.
    tree, positions = SegmentTree(100_000), np.arange(300) * 300
    tree.fill(1.0)
    call = {"set": lambda: tree.__setitem__(positions, 1.0), "find": lambda: tree.find(positions)}[name]
    let_others_run(call, 20_000, f"tree-{name}")
