"""Batch, requirement by requirement: T1 … T19 of the Tianshou list."""

import copy
import doctest
import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    ExpTransform,
    Independent,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

import parl_like.values.batch
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.factory import create_algorithm_func
from parl_like.values.batch import Batch

torch.set_num_threads(1)


def rng():
    return np.random.default_rng(0)


def nested_batch():
    """Numpy, torch and nested leaves, two rows."""
    return Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros((2, 2)))


def leaf_kinds():
    """One leaf of every kind that has rows, a text, a None and a reserved field; three rows."""
    return Batch(
        obs={"image": np.arange(12, dtype=np.uint8).reshape(3, 2, 2), "goal": {"x": np.array([0.5, 1.5, np.nan], np.float32)}},
        act=torch.tensor([1, 2, 3]),
        done=[True, False, True],
        info=["a", None, "c"],
        name="run",
        state=None,
        hidden=Batch(),
    )


# ---- T1 construction


def test_t1_keyword_arguments():
    b = Batch(a=4, b=[5, 5], c="2312312", d=("a", -2, -3))
    assert b.a == 4 and np.shape(b.a) == () and b.a.dtype.kind == "i"
    np.testing.assert_array_equal(b.b, [5, 5])
    assert b.c == "2312312" and type(b.c) is str
    assert b.d.dtype == object and b.d.tolist() == ["a", "-2", "-3"]


def test_t1_dict_batch_and_both():
    b = Batch({"a": [1, 2], "b": {"c": {"d": [3.0, 4.0]}}})
    assert isinstance(b.b, Batch) and isinstance(b.b.c, Batch)
    np.testing.assert_array_equal(b.b.c.d, [3.0, 4.0])
    assert Batch(b) == b and Batch(b) is not b
    assert Batch(b, e=1).e == 1 and "e" not in b


@pytest.mark.parametrize("make", [list, tuple, lambda parts: np.array(parts, object)])
def test_t1_list_of_dicts_or_batches_is_stacked(make):
    b = Batch(make([{"a": 1.0, "b": {"c": 2}}, {"a": 3.0, "b": {"c": 4}}]))
    np.testing.assert_array_equal(b.a, [1.0, 3.0])
    np.testing.assert_array_equal(b.b.c, [2, 4])
    assert Batch([Batch(a=1), Batch(a=2)]).a.tolist() == [1, 2]
    assert Batch(obs=[{"x": 1}, Batch(x=2)]).obs.x.tolist() == [1, 2]


@pytest.mark.parametrize("value", [3, "text", 1.5, [1, 2]])
def test_t1_refuses_what_has_no_names(value):
    with pytest.raises((TypeError, ValueError), match="expected"):
        Batch(value)


# ---- T2 conversion


@pytest.mark.parametrize("value", [3, 2.5, True, np.float32(1.5), np.int8(-1), np.bool_(False)])
def test_t2_numbers_become_zero_dimensional_arrays(value):
    leaf = Batch(x=value).x
    assert leaf == value and np.shape(leaf) == ()
    assert leaf.dtype == np.asarray(value).dtype


def test_t2_text_arrays_become_objects_and_none_stays():
    assert Batch(x=np.array(["ab", "c"])).x.dtype == object
    assert Batch(x=None).x is None
    assert Batch(x=[1, None]).x.tolist() == [1, None]
    assert Batch(x=["ab", "c"]).x.tolist() == ["ab", "c"]


def test_t2_lists_of_tensors():
    stacked = Batch(x=[torch.ones(3), torch.zeros(3)]).x
    assert isinstance(stacked, torch.Tensor) and stacked.shape == (2, 3)
    with pytest.raises(TypeError, match="different|equal shapes"):
        Batch(x=[torch.ones(3), torch.ones(2)])
    mixed = Batch(x=[torch.ones(2), None]).x
    assert mixed.dtype == object and mixed[1] is None and mixed[0].shape == (2,)


def test_t2_ragged_lists_become_object_arrays():
    ragged = Batch(x=[np.zeros(2), np.zeros(3)]).x
    assert ragged.dtype == object and ragged.shape == (2,) and ragged[1].shape == (3,)
    same_start = Batch(x=[np.zeros((2, 3)), np.zeros((2, 4))]).x
    assert same_start.dtype == object and same_start.shape == (2,)


def test_t2_lists_that_mix_batches_with_other_values_keep_them_as_objects():
    row = Batch(a=[1, 2, 3])
    leaf = Batch(x=[row, None]).x
    assert leaf.shape == (2,) and leaf[0] is row
    assert Batch(x=[row, [4, 5, 6]]).x.shape == (2,)
    assert Batch(x=[Batch(a=1), None]).x.shape == (2,)


def test_t2_numpy_and_torch_coexist():
    b = nested_batch()
    assert isinstance(b.obs.index, np.ndarray) and isinstance(b.act, torch.Tensor)


# ---- T3 attributes and keys


def test_t3_attribute_and_key_are_the_same_field():
    b = Batch(a=1)
    b.b = np.array([3, 4, 5])
    assert b["b"] is b.b
    b["c"] = {"d": [1, 2]}
    assert isinstance(b.c, Batch) and b.c["d"].tolist() == [1, 2]
    b.e = 3
    assert np.shape(b["e"]) == ()
    del b.e
    assert "e" not in b


def test_t3_unknown_fields_are_named():
    b = Batch(obs=1, act=2)
    with pytest.raises(AttributeError, match="'rew'.*obs, act"):
        b.rew  # noqa: B018
    with pytest.raises(KeyError, match="'rew'.*obs, act"):
        b["rew"]
    with pytest.raises(AttributeError, match="'rew'"):
        del b.rew
    with pytest.raises(KeyError, match="no field 'rew'"):
        b.pop("rew")


@pytest.mark.parametrize("key", [1, None, ("a",)])
def test_t3_only_text_names_fields(key):
    with pytest.raises(TypeError, match="expected str"):
        Batch({key: 1})
    with pytest.raises(TypeError, match="expected str"):
        Batch().update({key: 1})


PUBLIC = sorted(name for name in vars(Batch) if not name.startswith("_"))


@pytest.mark.parametrize("key", PUBLIC)
def test_t3_a_field_named_like_a_method_is_reached_as_an_item_and_hides_nothing(key):
    """An observation space may have keys `keys`, `values`, `shape`: the field is there, the methods go on working."""
    column, plain = np.arange(6.0).reshape(3, 2), Batch(obs={"x": np.arange(6.0).reshape(3, 2)})
    made = Batch({"obs": {key: column}})
    by_item = Batch(obs=Batch())
    by_item["obs"][key] = column
    for b in (made, by_item, Batch.nest({f"obs.{key}": column}), pickle.loads(pickle.dumps(made)), copy.deepcopy(made),
              Batch(made)):
        b = Batch(b, copy=True)
        obs = b.obs
        assert obs[key].tolist() == column.tolist() and key in obs and obs.get(key) is obs[key]
        assert list(obs.keys()) == list(dict(obs.items())) == [key] and len(list(obs.values())) == 1
        assert obs.shape == (3, 2) and len(b) == 3 and b[1].obs[key].tolist() == [2.0, 3.0]
        assert list(b.leaves()) == [f"obs.{key}"] and b == Batch(b.to_dict()) != plain
        assert b.to_torch().to_numpy() == b and not b.hasnull() and (b + 1).obs[key][0].tolist() == [1.0, 2.0]
        assert Batch.stack(list(b)) == Batch.cat(list(b.split(2, shuffle=False))) == b
        assert Batch().stack_([obs[0]]).cat_(Batch(obs[1:2]).empty()) == Batch({key: [[0.0, 1.0], [0.0, 0.0]]})
        b[0] = {"obs": {key: 7}}
        assert obs.apply_values_transform(np.sum)[key] == 7 + 7 + column[1:].sum()
        assert "array" in repr(b) and dict(**obs).keys() == {key}
        obs[key] = column
        assert obs.pop(key) is column and obs.is_empty()


@pytest.mark.parametrize("key", ["keys", "shape", "stack"])
def test_t3_an_attribute_that_is_a_method_is_never_taken_for_a_field(key):
    b = Batch({key: 1})
    with pytest.raises(AttributeError, match=rf"'{key}' is the name of a method; .*batch\['{key}'\] = value"):
        setattr(b, key, 2)
    with pytest.raises(AttributeError, match=rf"'{key}' is the name of a method; .*batch\.pop\('{key}'\)"):
        delattr(b, key)
    assert b[key] == 1


@pytest.mark.parametrize("key", ["_put", "__len__", "__dict__"])
def test_t3_a_field_may_not_hide_what_python_looks_up(key):
    with pytest.raises(ValueError, match=f"'{key}' would hide"):
        Batch({key: 1})
    with pytest.raises(ValueError, match=f"'{key}' would hide"):
        Batch()[key] = 1
    with pytest.raises(AttributeError, match=f"'{key}' would hide"):
        setattr(Batch(), key, 1)
    with pytest.raises(ValueError, match="would hide"):
        Batch.nest({f"obs.{key}": 1})


# ---- T4 indexing


def test_t4_the_literal_example():
    data = nested_batch()
    data[:, 1] += 6
    np.testing.assert_array_equal(data[-1].obs.index, [0, 6, 0])
    assert torch.equal(data[-1].act, torch.tensor([0.0, 6.0]))
    np.testing.assert_array_equal(data[0].obs.index, [0, 6, 0])
    assert torch.equal(data[0].act, torch.tensor([0.0, 6.0]))


@pytest.mark.parametrize(
    "index",
    [
        0, -1, np.int64(2), slice(1, 3), slice(None, None, -1), slice(None, None, 2), [0, 2], [], np.array([3, 3, 0]),
        np.array([3, 1], np.uint8), np.arange(4)[::-1], np.array([True, False, True, False]), torch.tensor([1, 0]),
        (slice(1, 3), 0), (0, 1), (np.array([0, 1]), np.array([1, 0])), Ellipsis,
    ],
    ids=str,
)  # fmt: skip
def test_t4_every_kind_of_index_means_the_same_for_numpy_and_torch(index):
    column = np.arange(8).reshape(4, 2)
    got = Batch(a=column, b={"c": torch.as_tensor(column.copy())})[index]
    plain = index.numpy() if isinstance(index, torch.Tensor) else index
    np.testing.assert_array_equal(got.a, column[plain])
    assert isinstance(got.b.c, torch.Tensor)
    np.testing.assert_array_equal(got.b.c.numpy(), column[plain])


BACKWARDS = slice(None, None, -1)


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), BACKWARDS), (BACKWARDS, 0), (BACKWARDS, BACKWARDS), (..., BACKWARDS), (BACKWARDS, ..., 0), (0, BACKWARDS),
        ([0, 1], BACKWARDS), (None, BACKWARDS), (np.array([True, False, True, False]), BACKWARDS),
        (np.ones((4, 3), bool), BACKWARDS),
        (slice(3, None, -2), slice(1, None, -1), -1), (slice(0, 0), BACKWARDS), (torch.tensor([0, 1]), BACKWARDS), (BACKWARDS,),
        (slice(None), np.array([1, 0], np.uint8)), (np.array([0, 1])[::-1],), [[0, 1], [1, 2]],
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_t4_an_index_in_numpys_language_reads_and_writes_the_same_elements_of_a_tensor(index):
    column = np.arange(24).reshape(4, 3, 2)
    got = Batch(a=column, b={"c": torch.as_tensor(column.copy())})[index]
    assert got.b.c.shape == got.a.shape and got.b.c.tolist() == got.a.tolist()
    b = Batch(a=column.copy(), b={"c": torch.as_tensor(column.copy())})
    b[index] = {"a": -got.a, "b": {"c": -got.b.c}}
    assert b.b.c.tolist() == b.a.tolist() and (not got.a.any() or (b.a < 0).any())
    b[index] += 100
    assert b.b.c.tolist() == b.a.tolist()
    assert b.empty(index).b.c.tolist() == b.empty(index).a.tolist()


def test_t4_a_backward_index_with_too_many_axes_or_a_wrong_row():
    for leaf in (np.zeros((4, 3)), torch.zeros(4, 3)):
        for index in ((BACKWARDS, 0, 0), (9, BACKWARDS), (BACKWARDS, 3)):
            with pytest.raises(IndexError, match="'x'"):
                Batch(x=leaf)[index]


def test_t4_a_gradient_flows_through_a_backward_index():
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    (Batch(x=x)[:, ::-1].x * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [[3.0, 2.0, 1.0]] * 2


def test_t4_errors():
    with pytest.raises(IndexError, match="empty Batch"):
        Batch()[0]
    with pytest.raises(IndexError, match="'obs'.*'x'"):
        Batch(obs={"x": np.zeros(2)})[2]
    with pytest.raises(IndexError, match="'x'"):
        Batch(x=torch.zeros(2))[2]
    with pytest.raises(IndexError, match="'a'"):
        Batch(a=4, b=[5, 5])[0]


def test_t4_leaves_without_rows_and_reserved_fields_go_with_every_row():
    row = leaf_kinds()[1]
    assert row.name == "run" and row.state is None and row.info is None
    assert row.hidden == Batch() and row.obs.goal.x == np.float32(1.5)


# ---- T5 arithmetic


def test_t5_in_place_and_out_of_place():
    b = Batch(x=np.array([1.0, 2.0]), y={"z": torch.tensor([3.0, 4.0])}, later=Batch())
    x, z = b.x, b.y.z
    assert (b + 1) == Batch(x=[2.0, 3.0], y={"z": [4.0, 5.0]}, later=Batch())
    assert (b - b) == Batch(x=[0.0, 0.0], y={"z": [0.0, 0.0]}, later=Batch())
    assert (b * 2) == Batch(x=[2.0, 4.0], y={"z": [6.0, 8.0]}, later=Batch())
    assert (b / 2) == Batch(x=[0.5, 1.0], y={"z": [1.5, 2.0]}, later=Batch())
    assert b.x is x and x.tolist() == [1.0, 2.0] and z.tolist() == [3.0, 4.0]
    nested = b.y
    b += b
    b -= 1
    b *= 4
    b /= 2
    assert b.x is x and b.y is nested and b.y.z is z  # the same arrays, changed
    assert x.tolist() == [2.0, 6.0] and z.tolist() == [10.0, 14.0]


@pytest.mark.parametrize("operation", ["__add__", "__sub__", "__mul__", "__truediv__"])
def test_t5_out_of_place_never_aliases(operation):
    b = Batch(x=np.ones(2), y={"z": torch.ones(2)}, later=Batch())
    result = getattr(b, operation)(1)
    assert not np.shares_memory(result.x, b.x)
    assert result.y is not b.y and result.y.z.data_ptr() != b.y.z.data_ptr()
    assert result.later is not b.later


def test_t5_other_operands_are_refused():
    b = Batch(x=np.ones(2), y={"z": np.ones(2)})
    for other in ("a", None, [1, 2], np.ones(2), torch.ones(2), {"x": 1}):
        with pytest.raises(TypeError):
            b + other
        with pytest.raises(TypeError):
            b -= other
        with pytest.raises(TypeError):
            other + b
    with pytest.raises(TypeError):
        b * b
    with pytest.raises(TypeError):
        b /= b
    for other in (Batch(x=np.ones(2)), Batch(x=np.ones(2), y=np.ones(2)), Batch(x=np.ones(2), y={"w": np.ones(2)})):
        with pytest.raises(TypeError, match="same"):
            b + other


def test_t5_a_refused_operation_changes_nothing():
    b = Batch(x=np.ones(2), name="run")
    with pytest.raises(TypeError, match="'name'"):
        b += 1
    with pytest.raises(TypeError, match="'name'"):
        b * 2
    assert b.x.tolist() == [1.0, 1.0]


# ---- T6 item assignment


def test_t6_rows_from_batches_and_mappings():
    b = Batch(a=[1, 2, 3], b={"c": torch.tensor([1.0, 2.0, 3.0])})
    b[0] = Batch(a=7, b={"c": 8.0})
    b[1:] = {"a": [5, 6], "b": {"c": np.array([0.5, 1.5])}}
    assert b == Batch(a=[7, 5, 6], b={"c": [8.0, 0.5, 1.5]})
    assert isinstance(b.b.c, torch.Tensor)
    b[1:] = {"a": torch.tensor([3.0, 4.0], requires_grad=True), "b": {"c": [1, 2]}}
    assert b.a.tolist() == [7, 3, 4]
    rows = Batch(a=[1, 2], name="run", state=None)
    rows[0] = rows[1]  # what all rows share may be given again
    assert rows == Batch(a=[2, 2], name="run", state=None)


def test_t6_missing_fields_become_zero_or_none():
    b = Batch(a=[1, 2], info=["x", "y"], obs={"goal": [3.0, 4.0]}, t=torch.tensor([1, 2]), name="run", later=Batch())
    b[1] = {}
    assert b == Batch(a=[1, 0], info=["x", None], obs={"goal": [3.0, 0.0]}, t=[1, 0], name="run", later=Batch())
    b[0] = Batch(a=9, obs=Batch())
    assert b.a.tolist() == [9, 0] and b.obs.goal.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [1, 1.5, None, "text", np.zeros(2)])
def test_t6_bare_values_are_refused(value):
    b = Batch(a=[1, 2])
    with pytest.raises(ValueError, match=r"b\.x\[index\] = value"):
        b[0] = value


@pytest.mark.parametrize(
    "rows",
    [
        {"a": 5, "new": 1},
        {"a": 5, "obs": {"new": 1}},
        {"a": 5, "obs": 1},
        {"a": {"b": 1}},
        {"a": 5, "later": 1},
        {"a": 5, "name": "x"},
    ],
    ids=str,
)
def test_t6_unknown_fields_are_refused_before_anything_is_written(rows):
    b = Batch(a=[1, 2], obs={"goal": [3.0, 4.0]}, later=Batch(), name="run")
    with pytest.raises(ValueError, match="field '"):
        b[0] = rows
    assert b.a.tolist() == [1, 2]


# ---- T7 printing


def test_t7_printing():
    assert repr(Batch()) == "Batch()"
    b = Batch(
        a=4,
        b=[5, 5],
        c="2312312",
        d=("a", -2, -3),
        e={"f": torch.zeros(2), "later": Batch()},
        g=np.zeros((64, 4)),
        h=None,
        i=np.eye(2),
    )
    assert repr(b).splitlines() == [
        "Batch(",
        "    a: array(4),",
        "    b: array([5, 5]),",
        "    c: '2312312',",
        "    d: array(['a', '-2', '-3'], dtype=object),",
        "    e: Batch(",
        "        f: tensor([0., 0.]),",
        "        later: Batch(),",
        "    ),",
        "    g: array(shape=(64, 4), dtype=float64),",
        "    h: None,",
        "    i: array([[1., 0.], [0., 1.]]),",
        ")",
    ]


def test_the_examples_in_the_docstrings_print_what_they_say():
    failed, tried = doctest.testmod(parl_like.values.batch)
    assert (failed, tried) == (0, 3)


# ---- T8 length, shape, iteration


def test_t8_length_and_shape():
    assert len(Batch()) == 0 and len(Batch(a=Batch(), b={"c": {}})) == 0
    b = Batch(a=np.zeros((3, 4)), b={"c": torch.zeros(2, 5, 6)}, name="run", later=Batch())
    assert len(b) == 2 and b.shape == (2, 4)
    assert Batch(a=np.zeros((5, 3, 2))).shape == (5, 3, 2)
    assert Batch().shape == () and Batch(a=1).shape == ()


@pytest.mark.parametrize(
    "fields", [{"a": 1}, {"a": 4, "b": [5, 5]}, {"a": "text"}, {"a": None}, {"a": {"b": 1.0}}, {"a": torch.tensor(1)}]
)
def test_t8_scalars_have_no_length(fields):
    with pytest.raises(TypeError, match="row axis"):
        len(Batch(fields))
    with pytest.raises(TypeError, match="row axis"):
        list(Batch(fields))


def test_t8_iteration_yields_the_rows():
    assert list(Batch()) == []  # terminates: indexing alone would go on for ever (issue 116)
    assert list(Batch(later=Batch())) == []
    assert list(Batch(a=[1, 2], b={"c": [3, 4]})) == [Batch(a=1, b={"c": 3}), Batch(a=2, b={"c": 4})]


# ---- T9 stack


def test_t9_the_literal_example():
    parts = [{"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 5, "d": 6}, {"c": 7, "b": 6, "d": 9}]
    got = Batch.stack([Batch(part) for part in parts])
    assert {key: value.tolist() for key, value in got.items()} == {"a": [1, 4, 0], "b": [2, 5, 6], "c": [3, 0, 7], "d": [0, 6, 9]}
    assert all(value.dtype.kind == "i" for value in got.values())
    assert Batch.stack(parts) == got


def test_t9_nested_torch_and_object_leaves():
    got = Batch.stack([{"obs": {"x": torch.ones(2)}, "info": "a"}, {"obs": {"y": np.ones(3, np.float32)}}, {"info": None}])
    assert torch.equal(got.obs.x, torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert got.obs.y.dtype == np.float32 and got.obs.y.tolist() == [[0] * 3, [1] * 3, [0] * 3]
    assert got.info.tolist() == ["a", None, None]


def test_t9_axis():
    a, b = Batch(x=np.zeros((2, 3)), y=torch.zeros(2)), Batch(x=np.ones((2, 3)), y=torch.ones(2))
    got = Batch.stack([a, b], axis=1)
    assert got.x.shape == (2, 2, 3) and got.x[:, 1].min() == 1 and got.y.tolist() == [[0, 1], [0, 1]]
    with pytest.raises(ValueError, match="'y'.*axis 1"):
        Batch.stack([a, Batch(x=np.zeros((2, 3)))], axis=1)
    with pytest.raises(ValueError, match="'x'"):
        Batch.stack([Batch(x=np.zeros((2, 3))), Batch(x=np.zeros((2, 4)))], axis=1)


def test_t9_refusals_and_nothing():
    assert Batch.stack([]) == Batch() and Batch.cat([]) == Batch()
    for verb in (Batch.stack, Batch.cat):
        with pytest.raises(ValueError, match="list"):
            verb([[Batch(a=1)], [Batch(a=2)]])
    with pytest.raises(ValueError, match="'a' is a Batch in some parts"):
        Batch.stack([{"a": 1}, {"a": {"b": 1}}])


def test_t9_shapes_that_differ():
    ragged = Batch.stack([{"x": np.zeros(2)}, {"x": np.zeros(3)}]).x
    assert ragged.dtype == object and [len(part) for part in ragged] == [2, 3]
    with pytest.raises(TypeError, match="shapes"):
        Batch.stack([{"x": torch.zeros(2)}, {"x": torch.zeros(3)}])


# ---- T10 cat


def test_t10_cat():
    got = Batch.cat(
        [
            Batch(a=[1, 2], b={"c": torch.tensor([1.0, 2.0])}, name="run"),
            {"a": [3], "b": {"c": torch.tensor([3.0])}, "name": "run"},
        ]
    )
    assert got == Batch(a=[1, 2, 3], b={"c": [1.0, 2.0, 3.0]}, name="run")
    assert isinstance(got.b.c, torch.Tensor)
    assert Batch.cat([Batch(), Batch(a=[1])]) == Batch(a=[1])


def test_t10_cat_is_strict_unless_told_to_pad():
    full, part = Batch(a=[1, 2], b={"c": [3.0, 4.0], "d": ["x", "y"]}), Batch(a=[5], b={"c": [6.0]})
    for parts in ([full, part], [part, full]):
        with pytest.raises(ValueError, match=r"'b\.d'.*pad=True"):
            Batch.cat(parts)
    assert Batch.cat([full, part], pad=True) == Batch(a=[1, 2, 5], b={"c": [3.0, 4.0, 6.0], "d": ["x", "y", None]})
    assert Batch.cat([part, Batch(t=torch.ones(2, 3))], pad=True) == Batch(
        a=[5, 0, 0], b={"c": [6.0, 0, 0]}, t=[[0] * 3, [1] * 3, [1] * 3]
    )


def test_t10_cat_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="'a'.*axis 0"):
        Batch.cat([{"a": np.zeros((2, 3))}, {"a": np.zeros((2, 4))}])
    with pytest.raises(ValueError, match="'a'"):
        Batch.cat([{"a": 1}, {"a": 2}])
    with pytest.raises(TypeError, match="'a' is a tensor in some parts"):
        Batch.cat([{"a": torch.zeros(2)}, {"a": np.zeros(2)}])
    with pytest.raises(ValueError, match="'name' has no row axis"):
        Batch.cat([{"name": "x", "a": [1]}, {"name": "y", "a": [1]}])


def test_t10_in_place_forms():
    b = Batch(a=[1, 2])
    same = b
    b.cat_([Batch(a=[3]), {"a": [4]}])
    b.cat_(Batch(a=[5]))
    assert same.a.tolist() == [1, 2, 3, 4, 5]
    grown = Batch()
    grown.cat_(Batch(a=[1]))
    assert grown == Batch(a=[1])
    row = Batch(a=1)
    row.stack_([{"a": 2}, {"b": 3}])
    assert row == Batch(a=[1, 2, 0], b=[0, 0, 3])
    first = Batch()
    first.stack_([Batch(a=1), Batch(a=2)])
    assert first == Batch(a=[1, 2])


# ---- T11 split


def sizes(parts):
    return [len(part) for part in parts]


@pytest.mark.parametrize(
    ("size", "merge_last", "expected"),
    [(3, True, [3, 3, 4]), (3, False, [3, 3, 3, 1]), (7, True, [10]), (7, False, [7, 3]), (5, True, [5, 5]), (-1, False, [10]),
     (-1, True, [10]), (10, True, [10]), (11, True, [10]), (1, False, [1] * 10)],
)  # fmt: skip
@pytest.mark.parametrize("shuffle", [False, True])
def test_t11_every_row_exactly_once(size, merge_last, expected, shuffle):
    b = Batch(a=np.arange(10), b={"c": torch.arange(10)})
    parts = list(b.split(size, shuffle=shuffle, merge_last=merge_last, rng=rng() if shuffle else None))
    assert sizes(parts) == expected
    rows = Batch.cat(parts)
    assert rows.a.tolist() == rows.b.c.tolist()
    assert sorted(rows.a.tolist()) == list(range(10))
    assert (rows.a.tolist() == list(range(10))) is not shuffle


def test_t11_refusals_come_at_the_call():
    b = Batch(a=np.arange(10))
    for size in (0, -2):
        with pytest.raises(ValueError, match="size"):
            b.split(size, shuffle=False)
    with pytest.raises(TypeError, match="rng"):
        b.split(3)
    assert list(Batch().split(3, shuffle=False)) == list(Batch(a=[]).split(-1, rng=rng())) == []


def test_t11_the_generator_decides_the_order():
    b = Batch(a=np.arange(10))
    first = [part.a.tolist() for part in b.split(4, rng=np.random.default_rng(1))]
    assert first == [part.a.tolist() for part in b.split(4, rng=np.random.default_rng(1))]
    assert first != [part.a.tolist() for part in b.split(4, rng=np.random.default_rng(2))]


# ---- T12 mapping interface


def test_t12_mapping():
    b = Batch(a=1, b=[2])
    assert list(b.keys()) == ["a", "b"] and next(iter(b.values())) == 1 and dict(b.items())["b"].tolist() == [2]
    assert "a" in b and "z" not in b
    assert b.get("z") is None and b.get("z", 5) == 5 and b.get("a") == 1
    assert b.pop("a") == 1 and "a" not in b and b.pop("a", "gone") == "gone"
    b.update({"c": [1, 2]}, d={"e": 3})
    b.update(Batch(f=4))
    assert isinstance(b.d, Batch) and b.f == 4 and b.c.tolist() == [1, 2]
    with pytest.raises(TypeError, match="expected a mapping"):
        b.update(3)


def test_t12_is_empty():
    assert Batch().is_empty() and Batch().is_empty(recurse=True)
    assert not Batch(b={"c": {}}).is_empty() and Batch(b={"c": {}}).is_empty(recurse=True)
    assert not Batch(a=None).is_empty(recurse=True)


# ---- T13 reserved fields


def test_t13_reserved_fields_take_part_in_stack_and_cat():
    reserved, filled = Batch(a=[1, 2], b=Batch()), Batch(a=[3], b=[[5.0, 6.0]])
    assert Batch.cat([reserved, filled]) == Batch(a=[1, 2, 3], b=[[0, 0], [0, 0], [5.0, 6.0]])
    assert Batch.cat([reserved, reserved]) == Batch(a=[1, 2, 1, 2], b=Batch())
    assert Batch.cat([Batch(a=[1]), Batch(a=[2], later=Batch())]) == Batch(a=[1, 2], later=Batch())
    assert Batch.stack([Batch(b=Batch()), Batch(b=7)]).b.tolist() == [0, 7]
    assert Batch.stack([Batch(b=Batch()), Batch(b={"c": 7})]) == Batch(b={"c": [0, 7]})


def test_t13_reserved_fields_below_filled_ones():
    a = Batch(a={"a": np.ones((3, 4))}, b=np.ones((3, 4)))
    b = Batch(a={"a": Batch(), "t": Batch()}, b=np.ones((3, 4)))
    got = Batch.cat([a, b, a])
    np.testing.assert_array_equal(got.a.a, np.concatenate([np.ones((3, 4)), np.zeros((3, 4)), np.ones((3, 4))]))
    assert got.a.t.is_empty() and got.b.shape == (9, 4)


# ---- T14 clearing


def test_t14_clearing():
    b = leaf_kinds()
    image = b.obs.image
    cleared = b.empty([0, 2])
    assert b == leaf_kinds()
    assert cleared.obs.image.reshape(3, -1).any(axis=1).tolist() == [False, True, False]
    assert cleared.act.tolist() == [0, 2, 0] and cleared.done.tolist() == [False, False, False]
    assert cleared.info.tolist() == [None, None, None] and cleared.name == "run"
    assert cleared.obs.goal.x.tolist() == [0, 1.5, 0]
    assert b.empty_(1) is b and b.obs.image is image
    assert b.act.tolist() == [1, 0, 3] and b.info.tolist() == ["a", None, "c"]
    b.empty_()
    assert not b.obs.image.any() and b.act.tolist() == [0, 0, 0] and b.name is None and b.info.tolist() == [None] * 3
    assert Batch(a=[1.0, 2.0])[0].empty() == Batch(a=0.0)


# ---- T15 device and dtype


def test_t15_conversions_copy():
    b = leaf_kinds()
    t = b.to_torch()
    assert isinstance(b.done, np.ndarray) and isinstance(t.done, torch.Tensor)
    assert (t.obs.image.dtype, t.obs.goal.x.dtype, t.done.dtype, t.act.dtype) == (
        torch.uint8,
        torch.float32,
        torch.bool,
        torch.int64,
    )
    assert t.info.dtype == object and t.name == "run" and t.state is None and t.hidden.is_empty()
    assert t.act.data_ptr() != b.act.data_ptr()
    t.obs.image += 1
    assert b == leaf_kinds()
    back = t.to_numpy()
    assert isinstance(back.act, np.ndarray) and back.obs.goal.x.dtype == np.float32
    back.act += 1
    assert t.act.tolist() == [1, 2, 3]
    n = b.to_numpy()
    n.obs.image += 1
    assert b == leaf_kinds()
    assert b.to_torch(torch.float32).done.tolist() == [1.0, 0.0, 1.0]
    assert Batch(x=torch.ones(2, dtype=torch.bfloat16, requires_grad=True)).to_numpy().x.dtype == np.float32
    assert Batch(a=3).to_torch().a.shape == ()
    elsewhere = Batch(a=[3], b={"c": torch.ones(1)}).to_torch(device="meta")
    assert elsewhere.a.device.type == elsewhere.b.c.device.type == "meta"


def test_t15_in_place_forms_share_memory():
    b = leaf_kinds()
    image, nested = b.obs.image, b.obs
    assert b.to_torch_() is b and b.obs is nested
    b.obs.image += 1
    assert image[0, 0, 0] == 1
    b.to_numpy_()
    assert np.shares_memory(b.obs.image, image)
    b.to_torch_(dtype=torch.float64)
    assert b.obs.image.dtype == torch.float64


def test_t15_arrays_that_torch_cannot_share_are_copied(recwarn):
    frozen = np.arange(3)
    frozen.flags.writeable = False
    b = Batch(frozen=frozen, backwards=np.arange(3)[::-1]).to_torch_()
    assert b.frozen.tolist() == [0, 1, 2] and b.backwards.tolist() == [2, 1, 0]
    b.frozen += 1
    assert frozen.tolist() == [0, 1, 2] and not recwarn.list


# ---- T16 equality and helpers


def test_t16_equality():
    assert leaf_kinds() == leaf_kinds() and leaf_kinds().to_torch() == leaf_kinds()
    assert Batch(a=[1, 2], b=3) == Batch(b=3, a=[1, 2])
    assert Batch(a=1) != Batch(a=1, b=2) != Batch(a=1) and Batch(a=["x"]) != Batch(a=["x", "y"])
    assert Batch(a=Batch()) != Batch() and Batch(a=[1]) != Batch(a=1) and Batch(a=[1]) != Batch(a={"b": [1]})
    assert Batch(a=[1, 2]) != Batch(a=[1, 3]) and Batch(a=[1]) != Batch(b=[1]) and Batch(a=None) != Batch(a=0)
    assert Batch(a=["x", None]) == Batch(a=["x", None]) and Batch(a=["x", None]) != Batch(a=["x", "y"])
    assert Batch(a=[np.zeros(2), np.zeros(3)]) == Batch(a=[np.zeros(2), np.zeros(3)])
    assert Batch(a=[1.0, np.nan]) == Batch(a=[1.0, np.nan])
    assert Batch() != {} and Batch(a=np.ones(2)) != np.ones(2)
    assert (np.ones(2) == Batch(a=np.ones(2))) is False  # numpy does not compare with each row
    with pytest.raises(TypeError, match="unhashable"):
        hash(Batch())


class Loose:
    """Compares value by value, as arrays do."""

    def __init__(self, *values):
        self.values = np.array(values)

    def __eq__(self, other):
        return self.values == other.values

    __hash__ = None


def test_t16_equality_is_one_bool_whatever_the_leaves_are():
    def pair(value):
        leaf = np.empty(1, object)
        leaf[0] = value
        return Batch(a=value, b=leaf)

    for make in (
        lambda x: Loose(1, x), lambda x: {"k": np.array([1, x])}, lambda x: (1, np.array([1, x])),
        lambda x: {"k": [torch.tensor([1, x])]},
        lambda x: {"k": {"l": Loose(x, 1)}}, lambda x: frozenset([x]),
    ):  # fmt: skip
        assert (pair(make(2)) == pair(make(2))) is True and (pair(make(2)) == pair(make(3))) is False
    assert pair((1, 2)) != pair((1, 2, 3)) and pair({"a": np.ones(2)}) != pair({"b": np.ones(2)}) and pair([1]) != pair(None)


LOC = torch.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: Normal(LOC, 1.0), lambda: Normal(LOC, 2.0)),
        (lambda: Normal(LOC, 1.0), lambda: Normal(LOC[:, :1], 1.0)),
        (lambda: Normal(LOC, 1.0), lambda: Laplace(LOC, 1.0)),
        (lambda: Categorical(logits=LOC), lambda: Categorical(logits=LOC.flip(-1))),
        (lambda: Bernoulli(probs=LOC / 9), lambda: Bernoulli(logits=LOC / 9)),
        (lambda: Beta(LOC + 1, LOC + 2), lambda: Beta(LOC + 2, LOC + 2)),
        (lambda: Independent(Normal(LOC, 1.0), 1), lambda: Independent(Normal(LOC, 2.0), 1)),
        (lambda: Independent(Normal(LOC, 1.0), 1), lambda: Independent(Normal(LOC, 1.0), 2)),
        (lambda: TransformedDistribution(Normal(LOC, 1.0), [TanhTransform()]),
         lambda: TransformedDistribution(Normal(LOC, 2.0), [TanhTransform()])),
        (lambda: TransformedDistribution(Normal(LOC, 1.0), [TanhTransform()]),
         lambda: TransformedDistribution(Normal(LOC, 1.0), [ExpTransform()])),
        (lambda: MultivariateNormal(LOC, torch.eye(2)), lambda: MultivariateNormal(LOC, 2 * torch.eye(2))),
        (
            lambda: MixtureSameFamily(Categorical(logits=LOC), Normal(LOC, 1.0)),
            lambda: MixtureSameFamily(Categorical(logits=LOC), Normal(LOC, 2.0)),
        ),
    ],
)  # fmt: skip
def test_t16_distributions_are_equal_when_their_parameters_are(make, other):
    used = make()
    for name in ("probs", "logits", "precision_matrix"):  # torch keeps what it computes from the parameters
        getattr(used, name, None)
    for same in (make(), used, copy.deepcopy(used), pickle.loads(pickle.dumps(used))):
        assert (Batch(d=make()) == Batch(d=same)) is True and (Batch(d=same) == Batch(d=make())) is True
    assert (Batch(d=make()) == Batch(d=other())) is False and Batch(d=make()) != Batch(d=LOC) != Batch(d=make())


def test_t16_an_algorithm_factory_with_arrays_among_its_arguments_compares():
    def factory(mean=1.0, **more):
        return create_algorithm_func(dict, {"mean": np.array([mean, 2.0]), "sizes": [4, np.ones(2)], **more}, Algorithm,
                                     {"lr": 0.1})

    assert (factory() == factory()) is True and (factory() == factory(mean=3.0)) is False
    assert factory() != factory(scale=1) and factory() != 3 and (factory(scale=1) == factory(scale=torch.ones(3))) is False
    assert factory(init=torch.ones(3)) == factory(init=torch.ones(3)) != factory(init=torch.zeros(3))


def test_t16_to_dict():
    b = leaf_kinds()
    plain = b.to_dict()
    assert type(plain["obs"]["goal"]) is dict and plain["obs"]["image"] is b.obs.image and plain["hidden"] == {}


def test_t16_nulls():
    b = Batch(a=[1.0, np.nan, 3.0], b={"c": ["x", "y", None]}, d=torch.tensor([[1.0, 2.0]] * 3), e=[1, 2, 3], g="text")
    mask = b.isnull()
    assert mask.a.tolist() == [False, True, False] and mask.b.c.tolist() == [False, False, True]
    assert mask.d.shape == (3, 2) and not mask.d.any() and not mask.e.any() and not mask.g
    assert b.hasnull() and Batch(a=None).hasnull() and Batch(a={"b": np.nan}).hasnull()
    assert Batch(a=np.array([None, np.nan, "x", 1], object)).isnull().a.tolist() == [True, True, False, False]
    kept = b.dropnull()
    assert not kept.hasnull() and len(kept) == 1 and kept.a.tolist() == [1.0] and kept.b.c.tolist() == ["x"]
    assert Batch(a=torch.tensor([[1.0, np.nan], [1.0, 2.0]])).dropnull().a.tolist() == [[1.0, 2.0]]


def test_t16_apply_values_transform():
    b = Batch(a=np.ones(2), b={"c": np.ones(2)}, later=Batch())
    got = b.apply_values_transform(lambda value: value * 3)
    assert got == Batch(a=[3, 3], b={"c": [3, 3]}, later=Batch()) and b.a.tolist() == [1, 1]
    assert got.b is not b.b


def test_t16_set_array_at_key():
    b = Batch(a=[1, 2, 3], obs={"x": [1, 2, 3]})
    b.set_array_at_key(np.array([4, 5, 6]), "b")
    b.set_array_at_key(np.array([7, 8]), "b", index=[0, 2])
    assert b.b.tolist() == [7, 5, 8]
    b.set_array_at_key(np.array([[1.5, 2.5]]), "c", index=[1])
    np.testing.assert_array_equal(b.c, [[np.nan, np.nan], [1.5, 2.5], [np.nan, np.nan]])
    b.set_array_at_key([1, 2], "d", index=slice(0, 2), default_value=-1)
    assert b.d.tolist() == [1, 2, -1]
    b.set_array_at_key(["x"], "e", index=[2])
    assert b.e.tolist() == [None, None, "x"]
    b.set_array_at_key(torch.tensor([9]), "f", index=[0], default_value=0)
    assert isinstance(b.f, torch.Tensor) and b.f.tolist() == [9, 0, 0]
    with pytest.raises(ValueError, match="default_value"):
        b.set_array_at_key([1], "g", index=[0])
    with pytest.raises(ValueError, match="'obs' is a Batch"):
        b.set_array_at_key([1], "obs", index=[0])
    with pytest.raises(ValueError, match="2 rows; expected 3"):
        b.set_array_at_key([1, 2], "h")


def test_t16_distributions_as_leaves():
    loc = torch.arange(6.0).reshape(3, 2)
    b = Batch(
        normal=Normal(loc, 1.0),
        independent=Independent(Normal(loc, 2.0), 1),
        categorical=Categorical(logits=loc),
        bernoulli=Bernoulli(logits=loc),
    )
    assert len(b) == 3
    act = torch.zeros(3, 2)
    for index in (1, slice(0, 2), slice(None, None, -1), np.array([2, 0]), np.array([True, False, True])):
        rows = b[index]
        at = torch.as_tensor(np.arange(3)[index].copy())
        assert torch.equal(rows.normal.loc, loc[at])
        assert torch.equal(rows.independent.log_prob(act[at]), b.independent.log_prob(act)[at])
        assert torch.allclose(rows.categorical.probs, b.categorical.probs[at])
        assert torch.equal(rows.bernoulli.log_prob(act[at]), b.bernoulli.log_prob(act)[at])
    assert [type(row.categorical) for row in b] == [Categorical] * 3
    corner = Batch(d=Normal(loc, 1.0), c=Categorical(logits=torch.zeros(3, 2, 5)))[::-1, 0]
    assert corner.d.loc.tolist() == [4.0, 2.0, 0.0] and corner.c.logits.shape == (3, 5)
    with pytest.raises(IndexError, match="'categorical'"):
        Batch(categorical=b.categorical)[:, 0]  # the choices are no axis of the batch
    with pytest.raises(TypeError, match="Beta.*store its parameters"):
        Batch(d=Beta(torch.ones(2), torch.ones(2)))[0]


# ---- T17 aliasing


def test_t17_construction_is_by_reference_and_copy_is_deep():
    array, tensor = np.zeros(2), torch.zeros(2)
    shared = Batch(x=array, y={"z": tensor})
    shared.x[0] = 1
    shared.y.z[0] = 1
    assert array[0] == 1 and tensor[0] == 1
    assert Batch(shared).y is shared.y
    own = Batch({"x": array, "y": shared.y}, copy=True)
    own.x[1] = 5
    own.y.z[1] = 5
    assert array[1] == 0 and tensor[1] == 0
    again = Batch(shared, copy=True)
    again.y.w = 1
    assert "w" not in shared.y


# ---- T18 serialisation


def same_kinds(a, b):
    return [(k, type(v), getattr(v, "dtype", None)) for k, v in a.leaves().items()] == [
        (k, type(v), getattr(v, "dtype", None)) for k, v in b.leaves().items()
    ]


@pytest.mark.parametrize("through", [lambda b: pickle.loads(pickle.dumps(b)), copy.deepcopy, lambda b: Batch(b, copy=True)])
def test_t18_pickle_and_deepcopy_keep_dtype_keys_and_nesting(through):
    b = leaf_kinds()
    got = through(b)
    assert got == b and list(got.keys()) == list(b.keys()) and same_kinds(got, b)
    got.obs.image += 1
    got.obs.goal.extra = 1
    assert b == leaf_kinds()


def test_t18_shallow_copy_shares_leaves_not_fields():
    b = leaf_kinds()
    got = copy.copy(b)
    got.new = 1
    assert "new" not in b and got.act is b.act


def test_t18_flat_names_and_back():
    b = Batch(obs={"image": np.zeros((2, 3), np.uint8), "goal": {"x": np.zeros(2, np.float32)}}, act=torch.zeros(2))
    flat = b.leaves()
    assert list(flat) == ["obs.image", "obs.goal.x", "act"] and flat["obs.image"] is b.obs.image
    back = Batch.nest(flat)
    assert back == b and same_kinds(back, b) and isinstance(back.obs.goal, Batch)
    assert Batch(a=[1], later=Batch()).leaves().keys() == {"a"}
    assert Batch.nest(Batch(a=[1], later=Batch(), b={"c": [2], "d": {}}).leaves()) == Batch(
        a=[1], b={"c": [2]}
    )  # reserved: dropped


@pytest.mark.parametrize("tree",
                         [{"a.b": 1}, {"a": {"b.c": [1]}}, {"a.b": 1, "a": {"b": 2}}, {"": 1}, {"": {"a": 1}}, {"a": {"": 1}}],
                         ids=str)
def test_t18_a_name_that_would_not_survive_the_flat_form_is_refused_there(tree):
    b = Batch(tree)
    assert Batch(b.to_dict()) == b and pickle.loads(pickle.dumps(b)) == b  # elsewhere a name is a name
    with pytest.raises(ValueError, match="'.*': expected a name without dots.*rename"):
        b.leaves()


def test_dropnull_takes_any_name():
    b = Batch({"a.b": [1.0, np.nan, 3.0], "a": {"b": [1.0, 2.0, np.nan]}})
    assert b.dropnull() == Batch({"a.b": [1.0], "a": {"b": [1.0]}})


@pytest.mark.parametrize("flat",
                         [{"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}, {"a.b": np.ones(2), "a.b.c": 1},
                          {"a.b.c": 1, "a.b": torch.ones(2)}], ids=str)
def test_t18_flat_names_that_contradict_each_other_are_refused(flat):
    with pytest.raises(ValueError, match="both a value and"):
        Batch.nest(flat)


names = st.text("abcxyz", min_size=1, max_size=3)
columns = st.sampled_from(
    [np.arange(4, dtype=np.int16), np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2), np.eye(4, dtype=bool)]
)
trees = st.recursive(columns, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=6)


@given(st.dictionaries(names, trees, min_size=1, max_size=3))
def test_t18_any_nesting_survives_every_round_trip(tree):
    b = Batch(tree)
    assert Batch.nest(b.leaves()) == b and Batch(b.to_dict()) == b and pickle.loads(pickle.dumps(b)) == b
    assert Batch.stack(list(b)) == b
    assert Batch.cat(list(b.split(3, shuffle=False))) == b
    assert b.to_torch().to_numpy() == b and same_kinds(b.to_torch().to_numpy(), b)


# ---- T19 cost


def python_calls(function):
    """How many Python functions run inside `function()`. Unlike seconds, this does not depend on the machine. Garbage that other
    tests left is not collected meanwhile: its finalizers would be counted."""
    calls = []
    gc.disable()
    sys.setprofile(lambda frame, event, arg: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(calls) - 1  # without `function` itself


def test_t19_cost_in_python_calls():
    columns = {name: np.zeros((64, 4)) for name in ("obs", "act", "rew", "terminated", "obs_next")}
    b = Batch(columns)
    assert python_calls(lambda: b.obs) == 0
    assert python_calls(lambda: Batch._of(columns)) == 1
    assert python_calls(lambda: b[3]) <= 3, "row access converts nothing, however many fields there are"
    assert python_calls(lambda: b[np.arange(3)]) == python_calls(lambda: b[3:9]) == python_calls(lambda: b[3])
    assert python_calls(lambda: Batch(columns)) <= 2 + 2 * len(columns), "ready arrays pass through one check each"


def test_t19_row_access_copies_no_array_it_can_view():
    b = Batch(a=np.zeros((4, 2)), b={"c": torch.zeros(4, 2)})
    assert np.shares_memory(b[1:3].a, b.a) and np.shares_memory(b[1].a, b.a)
    assert b[1:3].b.c.untyped_storage().data_ptr() == b.b.c.untyped_storage().data_ptr()


def test_importing_batch_does_not_import_torch():
    code = ("import sys, parl_like.values.batch as m; b = m.Batch(a=[1, 2], b='x'); b[0]; repr(b); len(b); b == b\n"
            "print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- all or nothing


@pytest.mark.parametrize("change", [lambda b: b.__iadd__(1.5), lambda b: b.__itruediv__(2), lambda b: b.__imul__(0.5)])
def test_arithmetic_that_one_leaf_refuses_changes_none(change):
    for module in (np, torch):
        batch = Batch(f=module.ones(2), g=Batch(i=module.ones(2, dtype=module.int64)))
        with pytest.raises((TypeError, RuntimeError)):
            change(batch)
        assert batch.f.tolist() == [1, 1] and batch.g.i.tolist() == [1, 1]


@pytest.mark.parametrize("index", [0, slice(0, 2), [0, 2], np.array([True, False, True])])
def test_rows_that_one_leaf_refuses_change_none(index):
    for convert in (lambda b: b, lambda b: b.to_torch()):
        batch = convert(Batch(a=np.zeros(3), b=Batch(c=np.zeros((3, 2)))))
        with pytest.raises((ValueError, RuntimeError)):
            batch[index] = {"a": 1.0, "b": {"c": np.ones((5, 7))}}
        assert not batch.a.any() and not batch.b.c.any()
