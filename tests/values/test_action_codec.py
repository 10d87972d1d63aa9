"""ActionCodec: a policy's actions become the environment's and back, for every kind of space, against a plain reference."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st

from parl_like import ComputationTask
from parl_like.learning.algorithm import Algorithm
from parl_like.learning.model import Model
from parl_like.tasks.wrapper import ComputationWrapper
from parl_like.values.action_codec import ActionCodec, Unclipped

INF = np.inf
SPACES = {
    "discrete": Discrete(3), "discrete-start": Discrete(3, start=-5), "several": MultiDiscrete([2, 3]),
    "several-start": MultiDiscrete([2, 3], start=[4, -2]), "several-square": MultiDiscrete([[2, 3], [4, 2]]),
    "several-int32": MultiDiscrete([2, 3], dtype=np.int32), "binary": MultiBinary(3), "binary-square": MultiBinary((2, 2)),
    "box": Box(-2, 2, (2,), np.float32), "box-askew": Box(np.float32([0, -10]), np.float32([1, 30])),
    "box-number": Box(-3, 5, (), np.float32), "box-double": Box(-2, 2, (2,), np.float64), "box-square": Box(0, 4, (2, 2)),
    "box-point": Box(2, 2, (1,), np.float32), "unclipped": Unclipped(Box(-2, 2, (2,), np.float32)),
    "half-bounded": Box(np.float32([0, -INF]), np.float32([INF, 1])), "unbounded": Box(-INF, INF, (2,), np.float32),
    "unbounded-number": Box(-INF, INF, (), np.float64), "integers": Box(-3, 40, (2,), np.int64),
    "bytes": Box(0, 255, (1,), np.uint8),
    "dict": Dict({"arm": Tuple((Discrete(2, start=1), Box(0, 4, (2,), np.float32))), "flags": MultiBinary((2, 2))}),
    "tuple": Tuple((Box(-2, 2, (), np.float32), MultiDiscrete([2, 2], start=[1, 1]), Discrete(4))),
}


def parts_of(space, name="act"):
    """The arrays' spaces by flat name."""
    if isinstance(space, (Dict, Tuple)):
        items = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        return {inner: part for key, one in items for inner, part in parts_of(one, f"{name}.{key}").items()}
    return {name: space}


def nested(space, flat, name="act"):
    if isinstance(space, Dict):
        return {key: nested(one, flat, f"{name}.{key}") for key, one in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(nested(one, flat, f"{name}.{i}") for i, one in enumerate(space.spaces))
    return flat[name]


def flat_of(value, name="act"):
    if isinstance(value, dict):
        return {inner: one for key, part in value.items() for inner, one in flat_of(part, f"{name}.{key}").items()}
    if isinstance(value, tuple):
        return {inner: one for i, part in enumerate(value) for inner, one in flat_of(part, f"{name}.{i}").items()}
    return {name: value}


def drawn(space, rng, n):
    """n actions of a policy for one array's space, some of them outside [−1, 1]."""
    if isinstance(space, Discrete):
        return rng.integers(space.n, size=n)
    if isinstance(space, MultiDiscrete):
        return np.stack([rng.integers(k, size=n) for k in space.nvec.ravel()], 1)
    if isinstance(space, MultiBinary):
        return rng.integers(2, size=(n, int(np.prod(space.shape))))
    return rng.uniform(-1.5, 1.5, (n, *space.shape)).astype(space.dtype if space.dtype.kind == "f" else np.float32)


def reference(space, act):
    """One action of a policy for one array's space, as the environment takes it: number by number."""
    if isinstance(space, Discrete):
        return int(act) + int(space.start)
    if isinstance(space, MultiDiscrete):
        return np.array([int(a) + int(s) for a, s in zip(act, space.start.ravel(), strict=True)]).reshape(space.shape)
    if isinstance(space, MultiBinary):
        return np.array([int(a) for a in act]).reshape(space.shape)
    out, scaled = np.zeros(space.shape), np.isfinite([space.low, space.high]).all()
    for at in np.ndindex(space.shape):
        low, high, x = float(space.low[at]), float(space.high[at]), float(act[at])
        if scaled:
            x = (low + high) / 2 + x * (high - low) / 2
        if space.dtype.kind != "f":
            x = round(x)
        out[at] = x if isinstance(space, Unclipped) else min(max(x, low), high)
    return out


def check_round_trip(space, seed, n=7):
    codec, rng, parts = ActionCodec(space), np.random.default_rng(seed), parts_of(space)
    out = {name: drawn(part, rng, n) for name, part in parts.items()}
    given = {name: column.copy() for name, column in out.items()}
    assert codec.names == list(parts) and codec.structured == isinstance(space, (Dict, Tuple)) and codec.space is space
    assert [(spec.name, spec.shape, spec.dtype) for spec in codec.specs] == [
        (name, column.shape[1:], column.dtype) for name, column in out.items()]
    stacked, one_by_one = codec.to_env(out), codec.listed(out)
    columns = flat_of(stacked)
    assert list(columns) == codec.names and len(one_by_one) == n
    for i in range(n):
        rows = flat_of(one_by_one[i])
        for name, part in parts.items():
            expected = reference(part, out[name][i])
            whole = part.dtype.kind != "f"
            for got in (columns[name][i], rows[name]):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=0.501 if whole and isinstance(part, Box) else 1e-5)
            assert columns[name].dtype == part.dtype and np.array_equal(columns[name][i], rows[name])
            assert type(rows[name]) is (int if isinstance(part, Discrete) else np.ndarray)
        assert space.contains(one_by_one[i])
    for name, column in columns.items():
        assert not column.flags.writeable and not np.may_share_memory(column, out[name])
        assert np.array_equal(codec.env_columns(out)[name], column) and np.array_equal(out[name], given[name])
    check_way_back(codec, out, stacked, one_by_one, columns)


def check_way_back(codec, out, stacked, one_by_one, columns):
    """The policy's actions again, where they were inside the bounds; and always what becomes the same action."""
    back = dict(zip(codec.names, codec.to_policy(stacked), strict=True))
    again = codec.to_env({name: column.copy() for name, column in back.items()})
    for (name, part), spec in zip(parts_of(codec.space).items(), codec.specs, strict=True):
        assert (back[name].shape[1:], back[name].dtype) == (spec.shape, spec.dtype)
        for i, act in enumerate(one_by_one):
            single = codec.to_policy(act)[codec.names.index(name)]
            assert single.dtype == spec.dtype and np.array_equal(single, back[name][i])
        np.testing.assert_allclose(flat_of(again)[name], columns[name], rtol=1e-5, atol=1e-5)
        if not isinstance(part, Box):
            assert np.array_equal(back[name], out[name])
        elif part.dtype.kind == "f" and (part.low < part.high).all():
            low, high = (-1, 1) if np.isfinite([part.low, part.high]).all() else (part.low, part.high)
            kept = out[name] if isinstance(part, Unclipped) else np.clip(out[name], low, high)
            np.testing.assert_allclose(back[name], kept, rtol=1e-5, atol=1e-5)
    for name, column in codec.policy_columns(columns).items():
        assert np.array_equal(column, back[name])


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_actions_of_each_space_go_round(space):
    for seed in range(5):
        check_round_trip(space, seed)


LEAVES = st.sampled_from([space for space in SPACES.values() if not isinstance(space, (Dict, Tuple, Unclipped))])


@given(st.recursive(LEAVES, lambda inner: st.one_of(
    st.builds(Tuple, st.lists(inner, min_size=1, max_size=3)),
    st.builds(Dict, st.dictionaries(st.sampled_from("abc"), inner, min_size=1))), max_leaves=5), st.integers(0, 999))
def test_actions_of_any_nested_space_go_round(space, seed):
    check_round_trip(space, seed, 3)


def test_where_the_environment_takes_the_policys_actions_nothing_is_mapped():
    same = {"discrete", "several", "unbounded", "unbounded-number"}
    assert {name for name, space in SPACES.items() if ActionCodec(space).identity} == same


def test_choices_have_their_bounds():
    codec = ActionCodec(Dict({"a": Discrete(3, start=5), "b": MultiBinary(2), "c": MultiDiscrete([[2, 3]]), "d": Box(0, 1)}))
    assert {name: (spec.shape, np.ravel(spec.low).tolist(), np.ravel(spec.high).tolist()) for name, spec in
            codec.choices.items()} == {"act.a": ((), [0], [2]), "act.b": ((2,), [0, 0], [1, 1]), "act.c": ((2,), [0, 0], [1, 2])}


def test_what_is_more_precise_than_it_may_be_stored_is_rounded():
    out = {"act": np.array([[0.1, 0.2]]), "log_prob": np.array([0.3]), "value": np.array([0.4])}
    acts = ActionCodec(Box(-INF, INF, (2,), np.float32)).listed(out)
    assert acts[0].dtype == np.float32 and out["act"].dtype == out["log_prob"].dtype == np.float32
    assert out["value"].dtype == np.float64


def test_parts_that_the_space_lacks_are_refused():
    codec = ActionCodec(Dict({"a": Discrete(2), "b": Discrete(2)}))
    with pytest.raises(ValueError, match=r"action: expected act.a, act.b, got act.a; give what the action space Dict\("):
        codec.to_policy({"a": 1})


def test_without_an_action_space_outputs_are_no_actions():
    codec = ActionCodec(None)
    assert codec.space is None and codec.identity and not codec.structured and not codec.specs and not codec.choices
    assert codec.listed({"reward": np.zeros(3), "log_prob": np.zeros(3)}) is None
    assert codec.listed({"act": np.array([4, 5])}) == [4, 5]
    assert ActionCodec(SPACES["dict"]).listed({"reward": np.zeros(3)}) is None


class Dreams(Algorithm):
    """A world model: it has an action space, for its input, and gives outputs that are no actions."""

    def predict(self, inputs):
        return {"reward": inputs.obs}


def test_a_wrapper_has_the_codec_of_its_models_action_space():
    """No helper has to join before."""
    wrapper = ComputationWrapper(ComputationTask(Dreams(Model(Box(0, 1, (1,)), SPACES["box-askew"]))))
    assert wrapper.codec is wrapper.predictions.codec and wrapper.codec.space == SPACES["box-askew"]


def test_a_space_without_a_fixed_shape_is_refused_by_name():
    with pytest.raises(TypeError, match="'act.name' is Text, which has no fixed shape"):
        ActionCodec(Dict({"name": gym.spaces.Text(4)}))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_choices_reach_the_environment_as_int64_whatever_a_prediction_gives(dtype):
    for space, act in ((Discrete(3), [0, 2]), (MultiDiscrete([2, 3]), [[0, 2], [1, 1]])):
        given = np.array(act, dtype)
        made = ActionCodec(space).to_env({"act": given})
        assert made.dtype == np.int64 and made.tolist() == act and not np.may_share_memory(made, given)
