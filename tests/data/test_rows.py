"""RowBlock against its plain NumPy twin: on random fields and values, right and wrong, both store the same or refuse the same way."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parl_like.data.rows import RowBlock, RowBlockReference
from parl_like.spec import Spec, SpecError

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
    """None, or the kind and words of the refusal."""
    with np.errstate(over="ignore"):
        try:
            write(*args)
        except Exception as error:
            return type(error), str(error)
    return None


def assert_same_columns(block, reference):
    for name in block.names:
        np.testing.assert_array_equal(block.arrays[name], reference.arrays[name], err_msg=name)
        assert block.arrays[name].dtype == reference.arrays[name].dtype


@given(fields, st.data())
@settings(max_examples=400, deadline=None)
def test_a_row_is_stored_or_refused_as_by_the_reference(specs, data):
    block, reference = RowBlock(specs, 3), RowBlockReference(specs, 3)
    for _ in range(3):
        row = data.draw(st.integers(0, 2))
        values = tuple(data.draw(st.one_of(fitting(spec), nearly_fitting(spec), wrong)) for spec in specs)
        assert outcome(block.write, row, values) == outcome(reference.write, row, values)
        assert_same_columns(block, reference)


@given(fields, st.data())
@settings(max_examples=100, deadline=None)
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
@settings(max_examples=200, deadline=None)
def test_several_rows_are_stored_or_refused_as_by_the_reference(specs, data):
    block, reference = RowBlock(specs, 5), RowBlockReference(specs, 5)
    n = data.draw(st.integers(1, 3))
    values = []
    for spec in specs:
        column = Spec(spec.name, (n, *spec.shape), spec.dtype)
        values.append(data.draw(st.one_of(fitting(column), nearly_fitting(column), wrong)))
    assert outcome(block.write_rows, 1, n, tuple(values)) == outcome(reference.write_rows, 1, n, tuple(values))
    assert_same_columns(block, reference)
