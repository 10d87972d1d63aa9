"""Rows of any layout given to `add`: the compiled way stores, counts and refuses as the plain one, leaf by leaf."""

import pickle
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
import torch
from buffer_twins import EpisodeCountsReference

from parl_like import Batch, PrioritizedReplayBuffer, ReplayBuffer
from parl_like.data.buffers._adding import EpisodeCounts, FieldPaths

LAYOUTS = (
    {"obs": (np.float32, (3,)), "act": (np.int64, ()), "rew": (np.float64, ())},
    {"obs": {"a": (np.uint8, (2, 2)), "b": {"c": (np.int64, ())}}, "act": (np.float32, (2,)), "rew": (np.float32, ()),
     "info": {"x": (np.float64, (0,))}},
    {"obs": (np.float64, ()), "act": {"0": (np.int64, (2,)), "1": (np.bool_, ())}, "rew": (np.float64, (2,)), "policy": {}},
)  # fmt: skip
FLAGS = {"terminated": (np.bool_, ()), "truncated": (np.bool_, ())}


def drawn(layout, rng, n):
    """Rows of a layout: values of n environments, or of one where n is None."""
    if isinstance(layout, dict):
        return {key: drawn(part, rng, n) for key, part in layout.items()}
    dtype, shape = layout
    values = rng.integers(0, 2 if dtype is np.bool_ else 9, shape if n is None else (n, *shape)).astype(dtype)
    return values[()]


def rude(value, rng):
    """A leaf as somebody may well give it: right in another way, or wrong."""
    array = np.asarray(value)
    ways = [
        lambda: value, lambda: array.tolist(), lambda: np.asfortranarray(array) if array.ndim else array,
        lambda: np.repeat(array, 2, -1)[..., ::2] if array.ndim else array, lambda: array.astype(array.dtype.newbyteorder()),
        lambda: array.astype(np.float64), lambda: array.astype(np.int16), lambda: torch.from_numpy(np.array(array)),
        lambda: array[None], lambda: array.astype(np.float32) * np.nan, lambda: "text", lambda: None,
        lambda: {"more": array}, lambda: tuple(array.tolist()) if array.ndim else array,
    ]  # fmt: skip
    return ways[rng.integers(len(ways))]()


def with_rudeness(rows, rng):
    """The rows, in which at most two things are odd."""
    for _ in range(rng.integers(3)):
        part = rows
        while True:
            key = list(part)[rng.integers(len(part))] if part else "nothing"
            if not isinstance(part.get(key), dict) or not part[key] or rng.random() < 0.1:
                break
            part = part[key]
        what = rng.integers(8)
        if what == 0:
            part.pop(key, None)
        elif what == 1:
            part["extra"] = rng.integers(9)
        elif what == 2:
            part["nothing"] = {}
        elif what == 3 and isinstance(rows.get("obs"), dict) and "a" in rows["obs"]:
            rows["obs.a"] = rows["obs"].pop("a")
        elif isinstance(part.get(key), (np.ndarray, np.generic)):
            part[key] = rude(part[key], rng)
    return rows


def plainly(rows):
    """The same rows as mappings that are no dicts, which are taken leaf by leaf."""
    return MappingProxyType({key: plainly(part) if isinstance(part, Mapping) else part for key, part in rows.items()})


def outcome(buffer, rows, lanes):
    try:
        return [array.tolist() for array in buffer.add(rows, lanes)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return type(error), str(error)


def check_same(fast, plain):
    assert fast.specs == plain.specs and len(fast) == len(plain) and fast.empty_keys == plain.empty_keys
    for name, column in plain.columns.items():
        np.testing.assert_array_equal(fast.columns[name], column)
        assert fast.columns[name].dtype == column.dtype
    ours, theirs = fast.state_dict(), plain.state_dict()
    assert all(ours[key] == theirs[key] for key in ("count", "cursor", "written", "open", "specs"))


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, partial(ReplayBuffer, ignore_obs_next=True)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_any_layout_are_stored_as_by_the_plain_way(kind, layout):
    refused = taken = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n_lanes, size = int(rng.integers(1, 4)), int(rng.integers(1, 8))
        fast, plain = kind(size, n_lanes), kind(size, n_lanes)
        for _ in range(12):
            n = None if n_lanes == 1 and rng.random() < 0.5 else int(rng.integers(2 * size + 2))  # also more than have room
            lanes = None if n is None else rng.integers(0, n_lanes, n)
            rows = with_rudeness(drawn({**layout, **FLAGS}, rng, n), rng)
            given = Batch(rows) if rng.random() < 0.1 and all(isinstance(v, np.ndarray) for v in rows.values()) else rows
            first, second = outcome(fast, given, lanes), outcome(plain, plainly(rows), lanes)
            assert first == second
            refused, taken = refused + isinstance(first, tuple), taken + isinstance(first, list)
        check_same(fast, plain)
        check_same(pickle.loads(pickle.dumps(fast)), plain)
    assert refused > 20 and taken > 60


def test_paths_give_the_values_of_the_fields_in_their_order():
    paths = FieldPaths(["obs.a", "act", "obs.b.c", "rew"], ["info"])
    nested = {"rew": 4, "obs": {"b": {"c": 3}, "a": 1}, "act": 2}
    assert paths.values(nested) == paths.values({**nested, "info": {}}) == (1, 2, 3, 4)
    assert paths.values(Batch(nested)) == (1, 2, 3, 4)
    assert paths.names == ("obs.a", "act", "obs.b.c", "rew")
    changes = ({"more": 1}, {"more": {}}, {"obs": {"a": 1}}, {"obs": 1}, {"obs": {"b": {"c": 3}}, "obs.a": 1})
    assert [paths.values({**nested, **change}) for change in changes] == [None] * len(changes)
    assert [paths.values(rows) for rows in (MappingProxyType(nested), {}, [], None)] == [None] * 4
    assert FieldPaths([]).values({}) is None


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_open_episodes_are_counted_as_by_the_reference(shape):
    rng = np.random.default_rng(0)
    counts, reference = EpisodeCounts(np.zeros(5, np.int64)), EpisodeCountsReference(5)
    for i in range(200):
        n = int(rng.integers(0, 9))
        lanes, positions = rng.integers(0, 5, n), rng.integers(0, 100, n)
        rew = rng.integers(-4, 5, (n, *shape)).astype(np.float32)
        flags = rng.random((2, n)) < 0.2
        expected = reference.count(lanes, positions, rew, flags.any(0))
        if n == 1 and i % 2:
            at, *got = counts.count_row(int(lanes[0]), int(positions[0]), rew[0] if shape else float(rew[0]), bool(flags.any()))
            assert at.tolist() == positions.tolist()
        else:
            got = counts.count(lanes, positions, rew, *flags)
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if i == 100:
            counts = pickle.loads(pickle.dumps(counts))
