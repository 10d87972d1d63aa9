"""ReservoirBuffer: every row seen is kept with the same probability, and what is kept is what was written."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parl_like.data.buffers.reservoir import ReservoirBuffer
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec, SpecError

SPECS = (Spec("obs", (2,), np.dtype(np.float32)), Spec("act", (), np.dtype(np.int64)), Spec("p.all", (3,), np.dtype(np.float64)))


def values(i):
    return np.full(2, i, np.float32), i, np.full(3, i / 8)


def pushed(size, n, rng=None):
    buffer = ReservoirBuffer(size, rng)
    buffer.allocate(SPECS)
    for i in range(n):
        buffer.push(values(i))
    return buffer


def items(buffer):
    return buffer.columns["act"][: len(buffer)].tolist()


def everything(buffer):
    """What must stay as it was when a row is refused."""
    kept = {name: column.tolist() for name, column in buffer.take(np.arange(len(buffer))).items()}
    return buffer.seen, len(buffer), buffer.specs, kept, buffer.rng.bit_generator.state


# ---- what is kept


def test_every_item_is_kept_equally_often():
    """The published numbers: capacity 3, items 1 … 10, 10,000 repetitions, each kept with frequency 0.3 ± 0.03. And every
    pair."""
    rng, n = np.random.default_rng(0), 10_000
    kept, slots, pairs = np.zeros(11), np.zeros((11, 3)), np.zeros((11, 11))
    for _ in range(n):
        buffer = ReservoirBuffer(3, rng)
        buffer.allocate([Spec("item", (), np.dtype(np.int64))])
        for item in range(1, 11):
            buffer.push((item,))
        held = buffer.columns["item"].tolist()
        kept[held] += 1
        for slot, item in enumerate(held):
            slots[item, slot] += 1
        for one, two in itertools.combinations(sorted(held), 2):
            pairs[one, two] += 1
    assert (np.abs(kept[1:] / n - 0.3) <= 0.03).all()
    # Three items of ten: 1/15 of all sets hold a given pair. Five standard errors, because there are 45 pairs.
    together = pairs[np.triu_indices(11, 1)]
    together = together[together > 0] / n
    assert len(together) == 45
    assert (np.abs(together - 1 / 15) <= 5 * np.sqrt(1 / 15 * 14 / 15 / n)).all()
    # Slot by slot: an item later than the third takes any slot equally often.
    assert (np.abs(slots[4:] / n - 0.1) <= 5 * np.sqrt(0.1 * 0.9 / n)).all()


@given(st.integers(1, 8), st.integers(0, 40), st.integers(0, 5))
def test_push_says_where_the_row_is(size, n, seed):
    buffer, model = ReservoirBuffer(size, seed), {}
    buffer.allocate(SPECS)
    for i in range(n):
        position = buffer.push(values(i))
        assert position == i if i < size else -1 <= position < size
        if position >= 0:
            model[position] = i
        assert (len(buffer), buffer.seen) == (min(i + 1, size), i + 1)
    assert items(buffer) == [model[k] for k in range(len(model))]
    for position, i in model.items():
        row = buffer.take(np.array([position]))
        for spec, value in zip(SPECS, values(i), strict=True):
            np.testing.assert_array_equal(row[spec.name][0], value)
            assert row[spec.name].dtype == spec.dtype


def test_equal_seeds_keep_equal_rows_and_others_do_not():
    assert items(pushed(5, 100, 1)) == items(pushed(5, 100, 1))
    assert items(pushed(5, 100)) == items(pushed(5, 100, 0))
    assert items(pushed(5, 100, 1)) != items(pushed(5, 100, 2))


def test_memory_is_taken_once():
    buffer = pushed(4, 1)
    before = {name: column.ctypes.data for name, column in buffer.columns.items()}
    for i in range(50):
        buffer.push(values(i))
    assert {name: column.ctypes.data for name, column in buffer.columns.items()} == before
    assert [column.shape for column in buffer.columns.values()] == [(4, 2), (4,), (4, 3)]


def test_what_was_pushed_may_change_afterwards():
    buffer = ReservoirBuffer(2)
    buffer.allocate([Spec("x", (1,), np.dtype(np.float64))])
    value = np.ones(1)
    buffer.push((value,))
    value[0] = 5.0
    assert buffer.columns["x"][0, 0] == 1.0


# ---- add


@pytest.mark.parametrize("make", [dict, Batch], ids=["dict", "Batch"])
def test_add_infers_the_fields_of_the_first_row(make):
    buffer = ReservoirBuffer(3)
    row = make(obs={"card": np.ones(2, np.float32), "pot": 3}, act=torch.tensor([0.5, 0.5]), weight=2.0)
    assert buffer.add(row) == 0
    assert [(s.name, s.shape, s.dtype.name) for s in buffer.specs] == [
        ("obs.card", (2,), "float32"), ("obs.pot", (), "int64"), ("act", (2,), "float32"), ("weight", (), "float64"),
    ]  # fmt: skip
    assert buffer.add({"weight": 4.0, "act": [1.0, 0.0], "obs": {"pot": 5, "card": np.zeros(2, np.float32)}}) == 1
    batch, positions = buffer.sample(0)
    assert positions.tolist() == [0, 1]
    assert batch.obs.pot.tolist() == [3, 5]
    assert batch.act.tolist() == [[0.5, 0.5], [1, 0]]
    assert batch.weight.tolist() == [2, 4]
    assert isinstance(batch.obs, Batch)


def test_add_and_push_keep_the_same():
    one, two = pushed(4, 60, 3), ReservoirBuffer(4, 3)
    for i in range(60):
        obs, act, p = values(i)
        two.add({"obs": obs, "act": act, "p": {"all": p}})
    assert items(one) == items(two)


# ---- bad rows

BAD_PUSHES = [
    (np.ones(3, np.float32), 1, np.ones(3)),
    (np.ones(2, np.float32), 1, np.array([0.0, np.nan, 0.0])),
    (np.ones(2, np.float32), 1.5, np.ones(3)),
    (np.ones(2, np.float32), 1, None),
    (np.ones(2, np.float32), "text", np.ones(3)),
    (np.ones(2, np.float64), 1, np.ones(3)),
]


@pytest.mark.parametrize("n", [2, 4, 400])
@pytest.mark.parametrize("bad", BAD_PUSHES, ids=range(len(BAD_PUSHES)))
def test_a_bad_row_leaves_the_buffer_as_it_was(n, bad):
    """Filling, full, and so late that hardly any row would be kept: the answer does not hang on chance."""
    buffer = pushed(4, n)
    before = everything(buffer)
    with pytest.raises(SpecError, match="field"):
        buffer.push(bad)
    with pytest.raises(SpecError, match="field"):
        buffer.add(dict(zip(("obs", "act", "p.all"), bad, strict=True)))
    assert everything(buffer) == before
    assert buffer.push(values(9)) < 4


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"obs": np.zeros(2, np.float32), "act": 1}, "'p.all': is missing in this row"),
        ({"obs": np.zeros(2, np.float32), "act": 1, "p": {"all": np.ones(3)}, "new": 1}, "'new': is not stored here"),
    ],
)
def test_other_fields_are_refused(row, told):
    buffer = pushed(4, 9)
    before = everything(buffer)
    with pytest.raises(SpecError, match=told):
        buffer.add(row)
    assert everything(buffer) == before


@pytest.mark.parametrize("value", ["text", None, [[1], [1, 2]], 1j, float("nan"), [1.0, float("nan")]], ids=str)
def test_a_bad_first_row_defines_nothing(value):
    buffer = ReservoirBuffer(4)
    with pytest.raises(SpecError, match="reservoir buffer, field 'x'"):
        buffer.add({"act": 1, "x": value})
    assert (buffer.specs, buffer.seen, len(buffer), buffer.columns) == ((), 0, 0, {})
    assert buffer.add({"act": 1.5}) == 0


@pytest.mark.parametrize(
    ("act", "error", "told"),
    [
        (lambda: ReservoirBuffer(0), ValueError, "size is 0; expected at least 1"),
        (lambda: ReservoirBuffer(3).push((1,)), ValueError, r"call allocate\(specs\) first"),
        (lambda: ReservoirBuffer(3).add({}), ValueError, "at least one"),
        (lambda: ReservoirBuffer(3).allocate([SPECS[0], SPECS[0]]), ValueError, "each name once"),
        (lambda: ReservoirBuffer(3).allocate([Spec("a", (), SPECS[0].dtype), Spec("a.b", (), SPECS[0].dtype)]), ValueError,
         "both"),
        (lambda: ReservoirBuffer(3).allocate([Spec("a", (), np.dtype("U3"))]), ValueError, "rows hold numbers"),
        (lambda: pushed(3, 1).allocate(SPECS[:2]), ValueError, "already allocated"),
        (lambda: pushed(3, 1).push((1,)), IndexError, "1 values"),
        (lambda: pushed(3, 0).sample(2), ValueError, "empty buffer"),
    ],
)
def test_errors_say_what_is_wrong(act, error, told):
    with pytest.raises(error, match=told):
        act()


def test_allocating_the_same_again_does_nothing():
    buffer = pushed(3, 2)
    buffer.allocate(SPECS)
    assert items(buffer) == [0, 1]


@pytest.mark.parametrize("name",
                         ["prev", "next", "n_step", "window", "done", "episode_start", "unfinished_index", "truncate_open"])
def test_there_is_no_time(name):
    buffer = pushed(3, 3)
    with pytest.raises(AttributeError, match=f"no '{name}'.*ReplayBuffer"):
        getattr(buffer, name)
    assert not hasattr(buffer, name)


# ---- sampling


def test_samples_are_uniform_over_the_kept_rows():
    buffer = pushed(10, 6)
    batch, positions = buffer.sample(60_000)
    assert positions.dtype == np.int64
    np.testing.assert_array_equal(batch.act, positions)  # nothing was replaced yet
    np.testing.assert_array_equal(batch.p.all[:, 0], positions / 8)
    counts = np.bincount(positions, minlength=10)
    assert (counts[6:] == 0).all()
    assert (np.abs(counts[:6] / 60_000 - 1 / 6) <= 4 * np.sqrt(5 / 36 / 60_000)).all()


def test_how_many():
    buffer = pushed(4, 3)
    assert buffer.sample_indices(0).tolist() == [0, 1, 2]
    assert buffer.sample_indices(None).shape == (3,)
    assert buffer.sample_indices(-1).tolist() == []
    assert ReservoirBuffer(3).sample(0)[1].tolist() == []


def test_a_foreign_generator_leaves_the_own_alone():
    buffer = pushed(5, 50)
    before = buffer.rng.bit_generator.state
    one, two = (buffer.sample(20, np.random.default_rng(7))[1].tolist() for _ in range(2))
    assert one == two
    assert buffer.rng.bit_generator.state == before


def test_a_sample_is_a_copy():
    buffer = pushed(3, 3)
    batch, _ = buffer.sample(0)
    batch.act[:] = 99
    assert items(buffer) == [0, 1, 2]


# ---- state


def load(buffer):
    other = ReservoirBuffer(buffer.size, 99)
    other.load_state_dict(copy.deepcopy(buffer.state_dict()))
    return other


def load_over(buffer):
    other = pushed(buffer.size, 17, 5)
    other.load_state_dict(copy.deepcopy(buffer.state_dict()))
    return other


@pytest.mark.parametrize("n", [0, 2, 40])
@pytest.mark.parametrize(
    "way", [load, load_over, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))],
    ids=["load", "load over", "deepcopy", "pickle"]
)
def test_a_restored_buffer_goes_on_as_the_first_would_have(way, n):
    first = pushed(4, n)
    second = way(first)
    assert everything(second) == everything(first)
    for i in range(100, 130):
        assert first.push(values(i)) == second.push(values(i))
    assert everything(second) == everything(first)
    first.columns["act"][:] = -1
    assert -1 not in items(second)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"size": 5}, "saved size is 5"),
        ({"rng": {"kind": "MT19937"}}, "MT19937"),
        ({"specs": [{"name": "act", "shape": [], "dtype": "<i8"}]}, "saved fields are act"),
        ({"seen": 2}, r"\(4, 2\) float32; give 2 rows"),
        ({"specs": []}, "saved fields are none"),
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_is_refused(change, told):
    state = {**pushed(4, 40).state_dict(), **change}
    buffer = pushed(4, 9, 3)
    before = everything(buffer)
    with pytest.raises(ValueError, match=told):
        buffer.load_state_dict(state)
    assert everything(buffer) == before
