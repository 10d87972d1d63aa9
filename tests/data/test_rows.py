"""RowBlock against its plain NumPy twin: on random fields and values, right and wrong, both store the same or refuse the same
way."""

import numpy as np
import pytest
from buffer_twins import RowBlockReference
from hypothesis import given
from hypothesis import strategies as st

from parl_like.data.buffers._rows import RowBlock
from parl_like.values.spec import Spec, SpecError

DTYPES = ("bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64")
SHAPES = ((), (1,), (3,), (2, 2), (0,), (1, 2, 2))

dtypes = st.sampled_from(DTYPES).map(np.dtype)
shapes = st.sampled_from(SHAPES)
numbers = st.one_of(st.booleans(), st.integers(-3, 100), st.floats(-8, 8, width=16), st.just(float("nan")), st.just(float("inf")))


@st.composite
def arrays(draw, dtype=dtypes, shape=shapes, sound=False):
    """A small array, in one of the memory layouts that a caller may bring."""
    kind, shape = draw(dtype), draw(shape)
    n = int(np.prod(shape))
    some = st.floats(-8, 8, width=16) if sound else numbers
    drawn = [v if np.isfinite(v) or kind.kind == "f" else 0 for v in draw(st.lists(some, min_size=n, max_size=n))]
    array = np.array([abs(v) if kind.kind == "u" else v for v in drawn], np.float64).astype(kind).reshape(shape)
    layout = draw(st.sampled_from(["C", "F", "strided", "readonly", "swapped"]))
    if layout == "F":
        return np.asfortranarray(array) if array.ndim else array
    if layout == "strided" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if layout == "readonly":
        array.setflags(write=False)
    if layout == "swapped":
        return array.astype(array.dtype.newbyteorder())
    return array


def fitting(spec):
    """Values of the right shape and dtype, as arrays, NumPy scalars or lists."""
    array = arrays(st.just(spec.dtype), st.just(spec.shape), sound=True)
    lists = array.map(lambda a: a.tolist() if a.size else a)  # an empty list does not say what it holds
    return st.one_of(array, array.map(lambda a: a[()]), lists)


def nearly_fitting(spec):
    """The right shape and dtype, but NaN and infinity are possible."""
    return arrays(st.just(spec.dtype), st.just(spec.shape))


wrong = st.one_of(
    arrays(), arrays().map(lambda a: a.tolist()), numbers, st.none(), st.just("text"), st.just([[1], [1, 2]]), st.just([None]),
    st.just({"x": None}), st.just(1 + 2j), st.integers(2**62, 2**65), st.just(1e300),
    st.binary(max_size=4).map(bytearray), arrays().map(lambda a: memoryview(a) if a.dtype.isnative else a),
)  # fmt: skip
fields = st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=4).map(
    lambda kinds: [Spec(f"field{i}", shape, dtype) for i, (dtype, shape) in enumerate(kinds)]
)


def outcome(write, *args):
    """None, or the words of the refusal. Any other error than a SpecError fails the test."""
    with np.errstate(over="ignore"):
        try:
            write(*args)
        except SpecError as error:
            return str(error)
    return None


def assert_same_columns(block, reference):
    for name in block.names:
        np.testing.assert_array_equal(block.arrays[name], reference.arrays[name], err_msg=name)
        assert block.arrays[name].dtype == reference.arrays[name].dtype


@given(fields, st.data())
def test_a_row_is_stored_or_refused_as_by_the_reference(specs, data):
    block, reference = RowBlock(specs, 3), RowBlockReference(specs, 3)
    for _ in range(3):
        row = data.draw(st.integers(0, 2))
        values = tuple(data.draw(st.one_of(fitting(spec), nearly_fitting(spec), wrong)) for spec in specs)
        assert outcome(block.write, row, values) == outcome(reference.write, row, values)
        assert_same_columns(block, reference)


@given(fields, st.data())
def test_fitting_rows_are_stored(specs, data):
    block, reference = RowBlock(specs, 2), RowBlockReference(specs, 2)
    values = tuple(data.draw(fitting(spec)) for spec in specs)
    block.write(1, values)
    reference.write(1, values)
    assert_same_columns(block, reference)
    for spec, value in zip(specs, values, strict=True):
        np.testing.assert_array_equal(block.arrays[spec.name][1], np.asarray(value).astype(spec.dtype))
        assert not block.arrays[spec.name][0].any()


@given(fields, st.data())
def test_several_rows_are_stored_or_refused_as_by_the_reference(specs, data):
    block, reference = RowBlock(specs, 5), RowBlockReference(specs, 5)
    n = data.draw(st.integers(1, 3))
    values = []
    for spec in specs:
        column = Spec(spec.name, (n, *spec.shape), spec.dtype)
        values.append(data.draw(st.one_of(fitting(column), nearly_fitting(column), wrong)))
    assert outcome(block.write_rows, 1, n, tuple(values)) == outcome(reference.write_rows, 1, n, tuple(values))
    assert_same_columns(block, reference)


SPECS = [Spec("obs", (2,), np.dtype("float32")), Spec("act", (), np.dtype("int64")), Spec("end", (), np.dtype("bool"))]
OBS = np.ones(2, np.float32)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_nan_is_refused_in_every_float_type(dtype, shape):
    specs = [Spec("x", shape, np.dtype(dtype))]
    values = np.ones(shape, dtype)
    values[(-1,) * len(shape)] = np.nan
    for rows in (RowBlock(specs, 2), RowBlockReference(specs, 2)):
        for value in (values, values[()], values.tolist()):
            with pytest.raises(SpecError, match="'x'.*NaN at"):
                rows.write(0, (value,))
        with pytest.raises(SpecError, match="'x'.*NaN at"):
            rows.write_rows(0, 1, (values[None],))
        assert not rows.arrays["x"].any()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((np.ones(3, np.float32), 1, True), r"'obs': expected \(2,\) float32, got \(3,\) float32; check"),
        ((np.ones((1, 2), np.float32), 1, True), r"'obs': .*drop the row axis: value\[0\]"),
        ((np.ones(2), 1, True), r"'obs': .*float64; astype\('float32'\)"),
        ((None, 1, True), "'obs': .*got None; give a value"),
        ((["a", "b"], 1, True), "'obs': .*give numbers"),
        ((OBS, 1.5, True), "'act': .*float64; astype"),
        ((OBS, None, True), "'act': .*got None"),
        ((OBS, [None], True), "'act': .*object"),
        ((OBS, 2**63, True), "'act': .*stay within"),
        ((OBS, -(2**63) - 1, True), "'act': "),
        ((OBS, 1, 1), "'end': .*int64; astype"),
        ((OBS, 1, {"x": None}), "'end': .*object; give numbers"),
    ],
)
def test_a_refusal_names_field_expected_and_got(values, words):
    for rows in (RowBlock(SPECS, 2), RowBlockReference(SPECS, 2)):
        with pytest.raises(SpecError, match=words):
            rows.write(1, values)


@pytest.mark.parametrize("end", [True, np.True_, np.array(True)])
@pytest.mark.parametrize("act", [3, True, np.int64(3), np.int8(3), np.array(3), np.uint64(3)])
def test_numpy_scalars_are_numbers_too(act, end):
    """`action_space.sample()` gives np.int64, and many environments give np.bool_ flags."""
    for rows in (RowBlock(SPECS, 2), RowBlockReference(SPECS, 2)):
        rows.write(1, (OBS, act, end))
        assert rows.arrays["act"].tolist() == [0, int(act)] and rows.arrays["end"].tolist() == [False, True]


def test_row_numbers_are_checked():
    rows = RowBlock(SPECS, 2)
    for row, values in [(2, (OBS, 1, True)), (-1, (OBS, 1, True)), (0, (OBS, 1))]:
        with pytest.raises(IndexError, match="RowBlock"):
            rows.write(row, values)
    with pytest.raises(IndexError, match="RowBlock"):
        rows.write_rows(1, 2, (np.ones((2, 2), np.float32), [1, 2], [True, True]))


def test_write_rows_with_too_few_rows_writes_nothing():
    for rows in (RowBlock(SPECS, 4), RowBlockReference(SPECS, 4)):
        with pytest.raises(SpecError, match="'end'.*give 2 rows"):
            rows.write_rows(0, 2, (np.ones((2, 2), np.float32), [1, 2], [True]))
        assert not any(column.any() for column in rows.arrays.values())


def test_existing_columns_are_written_in_place():
    columns = {spec.name: spec.zeros(3) for spec in SPECS}
    rows = RowBlock(SPECS, 3, columns)
    rows.write(2, (OBS, 5, True))
    assert columns["act"].tolist() == [0, 0, 5] and columns["obs"][2].tolist() == [1, 1]
    with pytest.raises(ValueError, match="column 'act' is"):
        RowBlock(SPECS, 3, {**columns, "act": np.zeros(3)})


BOUNDED = [Spec("one", (), np.dtype(np.int64), 2, 5), Spec("many", (2,), np.dtype(np.int64), np.array([0, 0]), np.array([3, 9])),
           Spec("byte", (), np.dtype(np.uint8), 0, 255), Spec("free", (), np.dtype(np.int64))]  # fmt: skip


@pytest.mark.parametrize("kind", [RowBlock, RowBlockReference])
@pytest.mark.parametrize("one", [int, np.int64, np.int32, np.array])
def test_integers_outside_of_their_space_are_refused(kind, one):
    block = kind(BOUNDED, 3)
    block.write(0, (one(2), np.array([3, 9]), one(255) if one is not np.array else np.uint8(255), 99))
    for bad, name, bounds in (((one(6), [0, 0], 0, 0), "one", r"6.*stay within \[2, 5\]"),
                              ((one(1), [0, 0], 0, 0), "one", r"1.*stay within \[2, 5\]"),
                              ((2, np.array([0, 10]), 0, 0), "many", r"10.*stay within \[0, 9\]"),
                              ((2, [-1, 0], 0, 0), "many", r"-1.*\[0, 3\]")):
        with pytest.raises(SpecError, match=f"field '{name}': .*got {bounds}"):
            block.write(1, bad)
    with pytest.raises(SpecError, match=r"field 'one'.*stay within \[2, 5\]"):
        block.write_rows(1, 2, (np.array([2, 6]), np.zeros((2, 2), int), np.zeros(2, np.uint8), np.zeros(2, int)))
    assert block.arrays["one"].tolist()[:1] == [2] and block.arrays["many"][0].tolist() == [3, 9]


@pytest.mark.parametrize("kind", [RowBlock, RowBlockReference])
def test_numbers_too_large_for_their_column_are_refused_and_infinity_stays(kind):
    block = kind([Spec("rew", (), np.dtype(np.float32)), Spec("half", (), np.dtype(np.float16))], 2)
    for value in (1e300, -1e39, np.float64(1e39)):
        with pytest.raises(SpecError, match=r"field 'rew': .*stay within ±3.403e\+38"):
            block.write(0, (value, 0.0))
    with pytest.raises(SpecError, match=r"field 'half': .*stay within ±6.55e\+04"):
        block.write(0, (0.0, 1e6))
    block.write(0, (float("inf"), -float("inf")))
    block.write(1, (3.4e38, 65504.0))
    assert block.arrays["rew"][0] == np.inf and block.arrays["half"].tolist() == [-np.inf, 65504.0]
