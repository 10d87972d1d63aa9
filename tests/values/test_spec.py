"""Spec, and the flat, dotted names of nested values: what fits, what is refused, and in which words."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch

from parl_like.values.batch import Batch
from parl_like.values.spec import Spec, SpecError, leaves, nest, specs_of

REW = Spec("rew", (), np.dtype(np.float64), owner="task 'RL'")
OBS = Spec("obs", (3,), np.dtype(np.float32), owner="task 'RL'")


# ---- leaves and nest


@pytest.mark.parametrize("value", [np.ones(3), 1, 1.5, None, "text", [1, 2], np.float32(1), torch.ones(2)], ids=str)
def test_what_is_not_nested_is_its_own_leaf(value):
    ((name, leaf),) = leaves(value, "obs")
    assert name == "obs" and leaf is value


def test_nested_values_have_dotted_names():
    x, y, z = np.ones(1), np.ones(2), np.ones(3)
    assert list(leaves({"b": x, "a": (y, {"c": z})}, "obs")) == [("obs.b", x), ("obs.a.0", y), ("obs.a.1.c", z)]
    assert list(leaves({"b": x, "a": (y, z)}, "")) == [("b", x), ("a.0", y), ("a.1", z)]
    assert nest({"obs.b": x, "obs.a.0": y, "act": z}) == {"obs": {"b": x, "a": {"0": y}}, "act": z}


def test_a_batch_stands_for_a_mapping_of_its_fields():
    x, y = np.ones(1), np.ones(2)
    tree = {"x": x, "goal": {"y": y}}
    for value in (Batch(tree), {"x": x, "goal": Batch(y=y)}, Batch(x=x, goal=Batch(y=y), later=Batch())):
        assert list(leaves(value, "obs")) == [("obs.x", x), ("obs.goal.y", y)]
        assert list(leaves(value, "")) == [("x", x), ("goal.y", y)]
    assert list(leaves((Batch(x=x), y), "obs")) == [("obs.0.x", x), ("obs.1", y)]
    assert list(leaves(Batch({"keys": x, "leaves": y}), "obs")) == [("obs.keys", x), ("obs.leaves", y)]


@pytest.mark.parametrize("empty", [{}, (), Batch(), {"a": {}}, {"a": ((), Batch())}], ids=str)
def test_what_is_empty_has_no_leaf(empty):
    assert list(leaves(empty, "obs")) == []
    assert [name for name, _ in leaves({"x": 1, "later": empty}, "obs")] == ["obs.x"]


@pytest.mark.parametrize("value", [{"a.b": 1}, {"a": {"b.c": 1}}, {"": 1}, {"a": {"": 1}}, ({"a.b": 1},), Batch({"a.b": 1})],
                         ids=str)
def test_a_key_that_no_flat_name_can_carry_is_refused(value):
    for name in ("obs", ""):
        with pytest.raises(ValueError, match=r"key '(a\.b|b\.c|)'( of '.*')?: expected a name without dots.*rename"):
            list(leaves(value, name))


def test_a_space_with_such_a_key_is_refused_when_the_specs_are_made():
    with pytest.raises(ValueError, match=r"key 'a\.b' of 'obs': expected a name without dots.*rename"):
        specs_of(gym.spaces.Dict({"a.b": gym.spaces.Discrete(2)}), "obs")


@pytest.mark.parametrize("flat",
                         [{"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}, {"a.b": np.ones(2), "a.b.c": 1},
                          {"a.b.c": 1, "a.b": np.ones(2)}], ids=str)
def test_names_that_contradict_each_other_are_refused(flat):
    with pytest.raises(ValueError, match="'a.*' is both a value and the group of '"):
        nest(flat)


# ---- convert


class Loose:
    """No number, no container."""


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (REW, "1.0", r"expected \(\) float64, got \(\) <U3, the text '1\.0'; give numbers, here just one, not text$"),
        (REW, "many words " * 20, r"the text 'many words .{0,60}; give numbers, here just one, not text"),
        (REW, b"1", r"the text b'1'; give numbers, here just one"),
        (REW, {"a": 1}, r"got a dict object; give numbers, here just one$"),
        (REW, Loose(), r"got a Loose object; give numbers, here just one$"),
        (OBS, "1.0", r"expected \(3,\) float32, got \(\) <U3, the text '1\.0'; give numbers in the shape \(3,\), not text$"),
        (OBS, ["1.0", "a", "b"], r"got \(3,\) <U3 with the text '1\.0' in it; give numbers in the shape \(3,\), not text$"),
        (OBS, [1.0, None, 2.0], r"got \(3,\) object with None in it; give numbers in the shape \(3,\)$"),
        (OBS, {"a": np.ones(3)}, r"got a dict object; give numbers in the shape \(3,\)$"),
        (OBS, Batch(a=np.ones(3)), r"got a Batch object; give numbers in the shape \(3,\)$"),
    ],
)  # fmt: skip
def test_what_holds_no_numbers_is_refused_in_plain_words(spec, value, message):
    with pytest.raises(SpecError, match=rf"^task 'RL', field '{spec.name}': .*{message}"):
        spec.convert(value)


def test_an_integer_that_is_too_long():
    with pytest.raises(SpecError, match=r"field 'n': expected \(\) int64, got \(\) object with 1180591620717411303424 in it; "
                                        r"give numbers, here just one"):
        Spec("n", (), np.dtype(np.int64)).convert(2**70)


def test_rows_that_hold_no_numbers():
    with pytest.raises(SpecError, match=r"field 'obs': expected \('N', 3\) float32, got \(1, 3\) <U1 with the text 'a' in it; "
                                        r"give numbers"):
        OBS.convert([["a", "b", "c"]], rows=True)
    with pytest.raises(SpecError, match=r"field 'rew': expected \('N',\) float64, got \(\) <U1, the text '1'; give numbers"):
        REW.convert("1", rows=True)


# ---- check_bounds


DISCRETE = specs_of(gym.spaces.Discrete(4, start=-1), "act")["act"].owned_by("task 'RL'")
MULTI = specs_of(gym.spaces.MultiDiscrete([3, 5], start=[0, 10]), "act")["act"]
LEVELS = specs_of(gym.spaces.Box(0, 9, (2,), np.uint8), "obs")["obs"]


@pytest.mark.parametrize(
    ("spec", "legal", "illegal", "message"),
    [
        (DISCRETE, [-1, 0, 2], [3, -2, 99], r"^task 'RL', field 'act': expected \(\) int64, got {}; stay within \[-1, 2\], the "
                                            r"bounds of the space$"),
        (MULTI, [[0, 10], [2, 14]], [[3, 10], [0, 15], [0, 9], [-1, 12]], r"field 'act': .* got -?\d+ at \(\d,\); stay within "
                                                                          r"\[\d+, \d+\]"),
        (LEVELS, [[0, 9]], [[0, 10], [255, 0]], r"field 'obs': .* got \d+ at \(\d,\); stay within \[0, 9\]"),
    ],
)  # fmt: skip
def test_integers_outside_the_bounds_are_refused(spec, legal, illegal, message):
    for value in legal:
        spec.check_bounds(spec.convert(value))
    spec.check_bounds(spec.convert(np.array(legal, spec.dtype), rows=True))
    spec.check_bounds(spec.zeros(0))
    for value in illegal:
        with pytest.raises(SpecError, match=message.format(value)):
            spec.check_bounds(spec.convert(value))
        rows = np.array([legal[0], value], spec.dtype)
        with pytest.raises(SpecError, match=r"'N'.* got -?\d+ at \(1,( \d)?\); stay within"):
            spec.check_bounds(spec.convert(rows, rows=True))


def test_the_message_names_the_bounds_of_the_entry():
    with pytest.raises(SpecError, match=r"got 15 at \(1,\); stay within \[10, 14\]"):
        MULTI.check_bounds(np.array([0, 15]))
    with pytest.raises(SpecError, match=r"got 3 at \(1, 0\); stay within \[0, 2\]"):
        MULTI.check_bounds(np.array([[0, 10], [3, 10]]))


@pytest.mark.parametrize(
    "spec",
    [
        specs_of(gym.spaces.Box(0, 1, (2,), np.float32), "obs")["obs"],
        specs_of(gym.spaces.Box(0, 255, (2,), np.uint8), "obs")["obs"],
        Spec("obs", (2,), np.dtype(np.int64)),
        Spec("obs", (2,), np.dtype(bool)),
    ],
    ids=lambda spec: str(spec.dtype),
)
def test_without_integer_bounds_nothing_is_looked_at(spec):
    assert spec.integer_bounds is None
    spec.check_bounds(object())  # type: ignore[arg-type]


def test_specs_with_bounds_travel_and_compare_as_before():
    DISCRETE.check_bounds(np.array(0))
    twin = pickle.loads(pickle.dumps(DISCRETE))
    assert twin == DISCRETE == Spec("act", (), np.dtype(np.int64)) and hash(twin) == hash(DISCRETE)
    with pytest.raises(SpecError, match="bounds of the space"):
        twin.check_bounds(np.array(9))


@pytest.mark.parametrize("space, name", [
    (gym.spaces.Box(0, 1, (0,)), "obs"), (gym.spaces.Box(0, 1, (3, 0)), "obs"), (gym.spaces.MultiDiscrete([]), "obs"),
    (gym.spaces.Dict({}), "obs"), (gym.spaces.Tuple(()), "obs"),
    (gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(0, 1, (0,))}), "obs.b"),
    (gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Dict({})}), "obs.b"),
    (gym.spaces.Tuple([gym.spaces.Tuple(())]), "obs.0")], ids=str)
def test_a_space_that_holds_no_number_is_refused_by_name(space, name):
    with pytest.raises(ValueError, match=f"space of {name!r} is .*holds no number"):
        specs_of(space, "obs")


def test_a_type_of_numpy_is_a_dtype():
    spec = Spec("noise", (2,), np.float32)
    assert spec == Spec("noise", (2,), np.dtype(np.float32)) and spec.convert([1, 2]).dtype == np.float32
