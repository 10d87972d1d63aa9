"""Transforms (A24 to A31): each built-in row by row, the order, the phases, and that rollout and replay give the same."""

import copy
import pickle
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.storage.archive import read_archive, write_archive
from parl_like.data.transforms import (
    FrameStacker,
    FunctionalReward,
    FunctionalRewardTransformer,
    Hindsight,
    Identity,
    ImageScale,
    Moments,
    ObservationCast,
    ObservationClip,
    ObservationNormalizer,
    ObservationTransform,
    ReturnScaling,
    RewardClipping,
    RewardNormalizer,
    RewardScaling,
    RewardShifting,
    RewardTransform,
    Source,
    Tier,
    Transform,
    Transforms,
    UntransformedTimeStep,
    goal_reached,
)
from parl_like.values.batch import Batch
from parl_like.values.spec import Spec

BOX = gym.spaces.Box(-5.0, 5.0, (2,), np.float32)


def source(buffer=None, indices=(), seed=0, last_index=None):
    indices = np.asarray(indices, np.int64)
    return Source(buffer, indices, np.random.default_rng(seed),
                  indices if last_index is None else np.asarray(last_index, np.int64))


def replay(transform, buffer=None, indices=(), seed=0, **rows):
    rows = {name.replace("__", "."): np.asarray(value) for name, value in rows.items()}
    before = copy.deepcopy(rows)
    out = transform.replay(rows, source(buffer, indices, seed))
    np.testing.assert_equal(rows, before)  # arguments stay as they are
    return out


def observe(transform, **obs):
    obs = {name.replace("__", "."): np.asarray(value) for name, value in obs.items()}
    before = copy.deepcopy(obs)
    out = transform.observe(obs)
    np.testing.assert_equal(obs, before)
    return out


def rollout_and_replay(transform, obs):
    """What both ways make of the same observations, once it is sure that it is the same."""
    seen = observe(transform, obs=obs)["obs"]
    rows = replay(transform, obs=obs, obs_next=obs, act=[7])
    np.testing.assert_array_equal(rows["obs"], seen)
    np.testing.assert_array_equal(rows["obs_next"], seen)
    assert rows["obs"].dtype == seen.dtype and rows["act"].tolist() == [7]
    return seen


# ---- A28, row by row


def test_identity_changes_nothing():
    assert observe(Identity(), obs=[1, 2])["obs"].tolist() == [1, 2]
    assert Identity().reward(np.array([3.0])).tolist() == [3.0]
    assert {k: v.tolist() for k, v in replay(Identity(), obs=[1], rew=[2.0]).items()} == {"obs": [1], "rew": [2.0]}
    assert Identity().space(BOX) is BOX and Identity().state_dict() == {}


@pytest.mark.parametrize(("low", "expected"), [(0, [0.0, 0.2, 1.0]), (-1, [-1.0, -0.6, 1.0])])
def test_image_scale(low, expected):
    transform = ImageScale(low)
    seen = rollout_and_replay(transform, np.array([[0, 51, 255]], np.uint8))
    np.testing.assert_allclose(seen, [expected], rtol=1e-6, atol=1e-7)
    assert seen.dtype == np.float32 and seen.max() == 1
    space = transform.space(gym.spaces.Box(0, 255, (3,), np.uint8))
    assert space == gym.spaces.Box(low, 1, (3,), np.float32) and seen[0] in space


def test_observation_clip_and_cast():
    clip = ObservationClip(-1, 2)
    assert rollout_and_replay(clip, np.array([[-3, 0, 4]], np.int16)).tolist() == [[-1, 0, 2]]
    assert observe(clip, obs=np.array([3], np.int16))["obs"].dtype == np.int16
    assert clip.space(BOX) == gym.spaces.Box(-1.0, 2.0, (2,), np.float32)
    cast = ObservationCast(np.float16)
    assert rollout_and_replay(cast, np.array([[0.5]])).dtype == np.float16
    assert cast.space(BOX) == gym.spaces.Box(-5, 5, (2,), np.float16)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (RewardClipping(), [-1.0, 0.5, 1.0]),
        (RewardClipping(0, 2), [0.0, 0.5, 2.0]),
        (RewardScaling(10), [-30.0, 5.0, 40.0]),
        (RewardShifting(1), [-2.0, 1.5, 5.0]),
        (FunctionalReward(np.sign), [-1.0, 1.0, 1.0]),
        (FunctionalRewardTransformer(abs), [3.0, 0.5, 4.0]),
    ],
)
def test_rewards(transform, expected):
    rew = [-3.0, 0.5, 4.0]
    assert transform.reward(np.array(rew)).tolist() == expected
    assert replay(transform, rew=rew)["rew"].tolist() == expected
    assert transform.space(BOX) is BOX and observe(transform, obs=[9])["obs"].tolist() == [9]
    assert replay(transform, obs=[9])["obs"].tolist() == [9]  # a read without rewards


def test_rewards_that_look_ahead_stay_0_where_they_do_not_count():
    rew, valid = [[1.0, 2.0], [3.0, 0.0]], [2, 1]
    assert replay(RewardShifting(1), rew=rew, valid=valid)["rew"].tolist() == [[2, 3], [4, 0]]
    vector = np.array(rew)[:, :, None] * [1, 10]
    shifted = replay(RewardShifting(1), rew=vector, valid=valid)["rew"]
    assert shifted.tolist() == [[[2, 11], [3, 21]], [[4, 31], [0, 0]]]
    normalizer = RewardNormalizer()
    replay(normalizer, rew=rew, valid=valid)
    assert normalizer.moments["rew"].mean == 2  # of 1, 2, 3


def test_untransformed_keeps_raw_rows():
    chain = Transforms([UntransformedTimeStep(), ObservationClip(-1, 1), RewardScaling(2)])
    rows = replay(chain, obs=[3.0], obs_next=[4.0], rew=[5.0], act=[6])
    assert {k: v.tolist() for k, v in rows.items()} == {
        "obs": [1], "obs_next": [1], "rew": [10], "act": [6],
        "untransformed.obs": [3], "untransformed.obs_next": [4], "untransformed.rew": [5], "untransformed.act": [6],
    }  # fmt: skip
    assert observe(chain, obs=[3.0]).keys() == {"obs"} and chain.space(gym.spaces.Box(-3, 3)) == gym.spaces.Box(-1, 1)


def test_only_the_named_leaves_change():
    space = gym.spaces.Dict({"b": gym.spaces.Box(0, 255, (2,), np.uint8), "a": gym.spaces.Tuple((BOX, gym.spaces.Discrete(3)))})
    chain = Transforms([FrameStacker(2, ["obs.a.1", "obs.b"]), ImageScale(fields="obs.b"), ObservationClip(-1, 1, "obs.a.0")])
    made = chain.space(space)
    assert made["b"] == gym.spaces.Box(0, 1, (2, 2), np.float32) and list(made.spaces) == list(space.spaces)
    assert made["a"][0] == gym.spaces.Box(-1, 1, (2,), np.float32) and made["a"][1] == gym.spaces.Box(0, 2, (2,), np.int64)
    seen = observe(chain, obs__b=np.array([[0, 255]], np.uint8), obs__a__0=np.array([[9, 0]], np.float32), obs__a__1=[2])
    assert (
        seen["obs.b"].tolist() == [[[0, 1], [0, 1]]]
        and seen["obs.a.0"].tolist() == [[1, 0]]
        and seen["obs.a.1"].tolist() == [[2, 2]]
    )
    ordered = gym.spaces.Dict([("z", BOX), ("a", BOX)])
    assert list(ObservationClip(-1, 1, "obs.a").space(ordered).spaces) == ["z", "a"]


# ---- A26: order


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([RewardClipping(), FrameStacker(4)], "FrameStacker.* after RewardClipping.*raw.*row-wise"),
        ([ImageScale(), Identity(), Hindsight()], "Hindsight.* after ImageScale"),
        ([FrameStacker(2), UntransformedTimeStep()], "UntransformedTimeStep.* after FrameStacker.*keeps raw"),
        ([FrameStacker(4), Hindsight()], "Hindsight.* after FrameStacker.*new goals are stacked"),
        ([FrameStacker(4), FrameStacker(2, "obs.x")], "at most one FrameStacker"),
        ([Hindsight(), Hindsight()], "at most one Hindsight"),
        ([UntransformedTimeStep(), UntransformedTimeStep()], "at most one UntransformedTimeStep"),
        ([RewardClipping], "got .*RewardClipping.*Transform object"),
        (["clip"], "got 'clip'"),
    ],
)
def test_a_wrong_chain_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        Transforms(wrong)


def test_a_single_transform_is_checked_too():
    class Odd(Transform):
        tier = 2.5

    with pytest.raises(ValueError, match="Odd.*tier"):
        Transforms([Odd()])


def test_a_chain_in_order():
    chain = Transforms([UntransformedTimeStep(), Hindsight(), FrameStacker(4), RewardClipping(), Identity()])
    assert len(chain) == 5 and [t.tier for t in chain] == [1, 2, 2, 3, 3] and Tier.ROW == 3
    assert "FrameStacker(stack=4, fields=('obs',)), RewardClipping(low=-1.0, high=1.0)" in repr(chain)
    assert len(Transforms()) == 0


# ---- A29: moments


def test_running_moments_are_those_of_all_rows():
    moments, rng = Moments(), np.random.default_rng(1)
    assert (moments.mean, moments.std) == (0, 1)
    rows = rng.normal(1e4, [1, 10], (60, 2)).astype(np.float32)
    for part in np.split(rows, [1, 7, 7, 40]):
        moments.update(part)
    np.testing.assert_allclose(moments.mean, rows.mean(0, np.float64), rtol=1e-12)
    np.testing.assert_allclose(moments.std, rows.std(0, np.float64), rtol=1e-9)


def test_exponential_moments_weigh_batches():
    moments = Moments(rate=0.25)
    moments.update(np.array([0.0, 4.0]))
    assert (moments.mean, moments.std) == (2, 2)
    moments.update(np.array([10.0]))
    # A mixture of both batches with weights 3/4 and 1/4: mean 4, variance ¾·(4 + 2²) + ¼·(0 + 6²).
    np.testing.assert_allclose((moments.mean, moments.std**2), (4, 15))


def test_windowed_moments_forget():
    moments, batches = Moments(window=2), [np.array([100.0, 300.0]), np.array([1.0, 2.0, 6.0]), np.array([5.0])]
    for i, batch in enumerate(batches):
        moments.update(batch)
        kept = np.concatenate(batches[max(0, i - 1) : i + 1])
        np.testing.assert_allclose((moments.mean, moments.std), (kept.mean(), kept.std()))


def test_moments_of_nothing_and_of_a_constant():
    moments = Moments()
    moments.update(np.zeros((0, 2)))
    assert moments.normalize(np.array([3.0])) == 3
    moments.update(np.full((4, 2), 7.0))
    assert moments.normalize(np.full((1, 2), 7.0)).tolist() == [[0, 0]]
    assert moments.normalize(np.full((1, 2), 9.0), clip=3).tolist() == [[3, 3]]


def test_moments_refuse():
    with pytest.raises(ValueError, match="at most one"):
        Moments(0.1, 3)
    for args in ((0.0,), (1.5,), (None, 0)):
        with pytest.raises(ValueError, match="expected rate in"):
            Moments(*args)
    moments = Moments()
    moments.update(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"rows \(3,\), got \(1,\)"):
        moments.update(np.ones((2, 1)))
    with pytest.raises(ValueError, match="not finite"):
        moments.update(np.full((2, 3), np.inf))
    assert moments.mean.tolist() == [1, 1, 1]


KINDS = {"running": {}, "exponential": {"rate": 0.5}, "windowed": {"window": 2}}


@pytest.mark.parametrize("kind", KINDS)
def test_observation_normalizer(kind):
    transform = ObservationNormalizer(clip=1.5, update_on="rollout", moments=Moments(**KINDS[kind]))
    first = observe(transform, obs=np.array([[0, 10], [4, 30]], np.float32))["obs"]
    assert first.dtype == np.float32 and first.tolist() == [[-1, -1], [1, 1]]  # mean (2, 20), std (2, 10)
    rows = replay(transform, obs=[[6.0, 20.0]], obs_next=[[2.0, 15.0]])
    assert rows["obs"].tolist() == [[1.5, 0]] and rows["obs_next"].tolist() == [[0, -0.5]]
    assert transform.space(BOX) == gym.spaces.Box(-1.5, 1.5, (2,), np.float32)
    assert ObservationNormalizer().space(BOX) == gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_reward_normalizer():
    both = {"rew": [1.0, 3.0, 3.0, 5.0]}  # mean 3, variance 2
    np.testing.assert_allclose(replay(RewardNormalizer(), **both)["rew"] * np.sqrt(2), [-2, 0, 0, 2])
    np.testing.assert_allclose(replay(RewardNormalizer(subtract_mean=False), **both)["rew"] * np.sqrt(2), [1, 3, 3, 5])
    np.testing.assert_allclose(replay(RewardNormalizer(clip=1), **both)["rew"], [-1, 0, 0, 1])
    assert replay(RewardNormalizer(), rew=np.ones((2, 3), np.float32))["rew"].dtype == np.float32


def test_return_scaling_worked_out_by_hand():
    """Returns with γ = ½: environment 0: 4, 2 + 2 = 4, then a new episode: 2; environment 1: 0, 2, 1 + 3 = 4."""
    chain = Transforms([ReturnScaling(gamma=0.5, clip=3)])
    helper = chain.for_helper(2)
    for env in range(2):
        helper.begin(env)
    for rew in ([4.0, 0.0], [2.0, 2.0]):
        helper.reward(np.array(rew))
    helper.begin(0)
    helper.reward(np.array([2.0, 3.0]))
    std = np.std([4, 0, 4, 2, 2, 4])
    np.testing.assert_allclose(replay(chain, rew=[1.0, -2.0, 100.0])["rew"], [1 / std, -2 / std, 3], rtol=1e-12)
    assert replay(chain, rew=np.ones(3, np.float32))["rew"].dtype == np.float32
    before = chain.state_dict()
    chain.for_helper(2, "test").reward(np.array([50.0, 0.0]))
    np.testing.assert_equal(chain.state_dict(), before)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_return_scaling_is_that_of_running_statistics_over_all_steps(gamma):
    """Four environments, some of which stand still at a step; against the definition."""
    rng, chain = np.random.default_rng(0), Transforms([ReturnScaling(gamma, clip=None)])
    helper, returns, seen = chain.for_helper(4), np.zeros(4), []
    for _ in range(50):
        for env in np.flatnonzero(rng.random(4) < 0.1):
            helper.begin(int(env))
            returns[env] = 0
        mask, rew = rng.random(4) < 0.8, rng.normal(size=4)
        helper.reward(rew[mask], mask)
        returns[mask] = gamma * returns[mask] + rew[mask]
        seen += returns[mask].tolist()
        later = rng.normal(size=5)
        np.testing.assert_allclose(replay(chain, rew=later)["rew"], later / np.std(seen), rtol=1e-9)


def test_return_scaling_refuses():
    for gamma in (-0.1, 1.5):
        with pytest.raises(ValueError, match="gamma"):
            ReturnScaling(gamma)
    with pytest.raises(ValueError, match="1 numbers, one for each environment"):
        Transforms([ReturnScaling()]).for_helper(1).reward(np.ones(2))


def test_returns_of_open_episodes_are_memory():
    chain = Transforms([RewardScaling(2.0), ReturnScaling(gamma=1.0)])
    old, new = chain.for_helper(2), chain.for_helper(2)
    old.reward(np.array([1.0, 3.0]))
    kept = old.memory
    old.reward(np.array([1.0, 1.0]))
    assert [part.tolist() for part in kept] == [[2.0, 6.0]], "a copy"
    new.memory = kept
    new.reward(np.array([1.0, 1.0]))
    assert new.memory[0].tolist() == old.memory[0].tolist() == [4.0, 8.0]


# ---- A29: phases


@pytest.mark.parametrize("mode", ["collect", "update", "test"])
@pytest.mark.parametrize("phase", ["replay", "rollout", "never"])
def test_statistics_change_in_their_phase_only(phase, mode):
    shared = Transforms([ObservationNormalizer(update_on=phase), RewardNormalizer(update_on=phase)])
    chain = shared.for_helper(2, mode)
    assert all(own.update == (mode != "test") for own in chain) and all(each.update for each in shared)

    def means():
        return [next(iter(transform.moments.values())).mean for transform in shared]

    rew = np.array([1.0, 5.0])
    observe(chain, obs=[2.0, 4.0])
    chain.reward(rew)
    assert means() == ([3, 3] if phase == "rollout" and mode != "test" else [0, 0])
    seen = means()
    rows = replay(chain, obs=[6.0, 8.0], obs_next=[50.0, 50.0], rew=[7.0, 9.0])
    assert means() == ([7, 8] if phase == "replay" and mode != "test" else seen)
    if phase == "replay" and mode != "test":
        assert rows["obs"].tolist() == [-1, 1]  # a batch counts before it is transformed
    chain = shared.for_helper(2, "test")
    seen = means()
    observe(chain, obs=[0.0, 0.0])
    replay(chain, obs=[0.0, 0.0], rew=rew)
    chain.reward(rew)
    assert means() == seen


def test_the_default_phase_is_replay():
    assert ObservationNormalizer().update_on == RewardNormalizer().update_on == "replay"


def test_helpers_share_statistics_but_not_memory():
    shared = Transforms([FrameStacker(2), ObservationNormalizer(update_on="rollout")])
    one, two, test = shared.for_helper(1), shared.for_helper(2), shared.for_helper(1, "test")
    observe(one, obs=[2.0])
    observe(two, obs=[5.0, 8.0])
    assert all(list(chain)[1].moments["obs"].mean.tolist() == [5, 5] for chain in (shared, one, two, test))
    np.testing.assert_array_equal(observe(test, obs=[5.0])["obs"], [[0, 0]])  # two frames, both of its own


# ---- checkpoints


@pytest.mark.parametrize("kind", KINDS)
def test_state_round_trip(kind, tmp_path):
    def chain():
        moments = Moments(**KINDS[kind])
        return Transforms([Identity(), ObservationNormalizer(fields=["obs.x", "obs.y"], moments=moments),
                           RewardNormalizer(moments=moments)])

    rng, old, new = np.random.default_rng(0), chain(), chain()
    new.load_state_dict(old.state_dict())  # nothing seen yet

    def batch():
        return {"obs.x": rng.normal(2, 3, (5, 2)), "obs.y": rng.normal(size=5), "rew": rng.normal(size=5)}

    for _ in range(3):
        replay(old, **batch())
    state = old.state_dict()
    assert state.keys() == {"1 ObservationNormalizer", "2 RewardNormalizer"}
    write_archive(tmp_path / "archive", {"transforms": state})
    new.load_state_dict(read_archive(tmp_path / "archive")[0]["transforms"])
    np.testing.assert_equal(new.state_dict(), state)
    later = batch()
    np.testing.assert_equal(replay(new, **later), replay(old, **later))
    np.testing.assert_equal(new.state_dict(), old.state_dict())  # after one more batch, too
    assert list(new)[1].moments["obs.x"].mean.any()
    with pytest.raises(ValueError, match="statistics are of .*expected"):
        Transforms([RewardNormalizer()]).load_state_dict(state)
    with pytest.raises(ValueError, match="saved fields are"):
        ObservationNormalizer().load_state_dict(state["1 ObservationNormalizer"])
    with pytest.raises(ValueError, match="expected"):
        RewardNormalizer(moments=Moments(window=77)).load_state_dict(state["2 RewardNormalizer"])


def test_a_chain_can_be_copied_and_pickled():
    chain = Transforms([Hindsight(), FrameStacker(2), ObservationNormalizer()])
    for other in (copy.deepcopy(chain), pickle.loads(pickle.dumps(chain))):
        assert repr(other) == repr(chain)


# ---- A31: frames


def test_stacks_are_those_of_tianshou():
    """T32: size 9, 16 rows, an end wherever i % 5 == 0."""
    buffer = ReplayBuffer(9)
    for i in range(16):
        buffer.add(Batch(obs={"id": i}, act=i, rew=i, terminated=i % 5 == 0, truncated=False, obs_next={"id": i + 1}))
    expected = [[7, 7, 8, 9], [7, 8, 9, 10], [11, 11, 11, 11], [11, 11, 11, 12], [11, 11, 12, 13], [11, 12, 13, 14],
                [12, 13, 14, 15],
                [7, 7, 7, 7], [7, 7, 7, 8]]  # fmt: skip
    indices = np.arange(9)
    assert buffer.stacked(indices, ["obs.id"], 4)["obs.id"].tolist() == expected
    rows = FrameStacker(4, "obs.id").replay(buffer.take(indices), source(buffer, indices))
    assert rows["obs.id"].tolist() == expected
    # The frame after each row is its own obs_next, at an end too.
    assert rows["obs_next.id"].tolist() == [[*row[1:], row[-1] + 1] for row in expected]
    assert rows["act"].tolist() == buffer.columns["act"].tolist()


def test_frames_of_rows_that_look_ahead():
    buffer = ReplayBuffer(6)
    for i in range(5):
        buffer.add(Batch(obs=i, act=0, rew=i, terminated=i == 3, truncated=False, obs_next=i + 1))
    ahead = buffer.n_step(np.array([0, 2]), 3)
    rows = {"obs": np.array([0, 2]), "obs_next": buffer.columns["obs_next"][ahead["last_index"]]}
    out = FrameStacker(3).replay(rows, source(buffer, [0, 2], last_index=ahead["last_index"]))
    assert out["obs"].tolist() == [[0, 0, 0], [0, 1, 2]]
    assert out["obs_next"].tolist() == [[1, 2, 3], [2, 3, 4]]


def test_rollout_frames_begin_anew_by_environment():
    stacker = FrameStacker(3).for_helper(2)
    assert observe(stacker, obs=[1, 10])["obs"].tolist() == [[1, 1, 1], [10, 10, 10]]
    assert observe(stacker, obs=[2, 20])["obs"].tolist() == [[1, 1, 2], [10, 10, 20]]
    stacker.begin(1)
    assert observe(stacker, obs=[3, 30])["obs"].tolist() == [[1, 2, 3], [30, 30, 30]]
    assert observe(stacker, obs=[4, 40])["obs"].tolist() == [[2, 3, 4], [30, 30, 40]]
    with pytest.raises(ValueError, match=r"FrameStacker.*'obs'.*2 rows.*got 1"):
        observe(stacker, obs=[4])


def test_remembered_frames_do_not_follow_the_environment():
    stacker, shown = FrameStacker(2), np.array([[1.0]])
    stacker.observe({"obs": shown})
    shown[:] = 2  # drawn into the same array
    assert stacker.observe({"obs": shown})["obs"].tolist() == [[[1], [2]]]


def test_stacked_space():
    space = FrameStacker(3).space(gym.spaces.Box(np.array([0, 1]), np.array([2, 3]), dtype=np.int8))
    assert (
        space.shape == (3, 2)
        and space.dtype == np.int8
        and space.low.tolist() == [[0, 1]] * 3
        and space.high.tolist() == [[2, 3]] * 3
    )
    assert FrameStacker(2).space(gym.spaces.MultiBinary(2)) == gym.spaces.Box(0, 1, (2, 2), np.int8)


@given(
    seed=st.integers(0, 2**20), n_lanes=st.integers(1, 3), lane_size=st.integers(1, 9), ticks=st.integers(1, 25),
    stack=st.integers(1, 4), end=st.sampled_from([0.0, 0.2, 0.6]), extra_tick=st.booleans(),
)  # fmt: skip
def test_rollout_and_replay_agree(seed, n_lanes, lane_size, ticks, stack, end, extra_tick):
    """A25: raw rows in the buffer, the same chain both ways; and the frames are those of plain lists of episodes."""
    rng = np.random.default_rng(seed)
    chain = Transforms([UntransformedTimeStep(), FrameStacker(stack), ObservationNormalizer(update_on="never"),
                        ObservationClip(-40, 40)])
    list(chain)[2].moments["obs"].update(rng.normal(1, 2, (50, stack, 2)))
    chain = chain.for_helper(n_lanes)
    normalizer, clip = list(chain)[2:]
    buffer = ReplayBuffer(n_lanes * lane_size, n_lanes)
    buffer.allocate([Spec("obs", (2,), np.dtype(np.float32)), *(Spec(n, (), np.dtype(bool)) for n in ("terminated", "truncated")),
                     Spec("obs_next", (2,), np.dtype(np.float32))])  # fmt: skip
    lists = [[] for _ in range(n_lanes)]  # by lane: position, observations of the episode so far, what rollout saw, obs_next
    episodes = [[] for _ in range(n_lanes)]
    obs = rng.normal(0, 20, (n_lanes, 2)).astype(np.float32)
    final = np.zeros(n_lanes, bool)  # environments that show a final observation, as gymnasium's NEXT_STEP mode does
    for lane in range(n_lanes):
        chain.begin(lane)
    for _ in range(ticks):
        seen = chain.observe({"obs": obs})["obs"]
        obs_next = rng.normal(0, 20, obs.shape).astype(np.float32)
        done = (rng.random(n_lanes) < end) & ~final
        lanes = np.flatnonzero(~final)
        positions = buffer.push_rows(lanes, [obs[lanes], done[lanes], np.zeros(len(lanes), bool), obs_next[lanes]])
        for lane, position in zip(lanes, positions, strict=True):
            episodes[lane].append(obs[lane])
            lists[lane].append((position, list(episodes[lane]), seen[lane], obs_next[lane]))
        for lane in np.flatnonzero(final if extra_tick else done):
            episodes[lane] = []
            chain.begin(lane)
        obs = rng.normal(0, 20, obs.shape).astype(np.float32)
        obs[~done] = obs_next[~done]
        final = done if extra_tick else final
        obs[final] = obs_next[final]

    def frames_of(observations, kept):
        """The newest `stack` of them, of which `kept` still exist."""
        observations = observations[-kept:]
        return clip.apply("obs", normalizer.apply("obs", np.stack(([observations[0]] * stack + observations)[-stack:])[None]))[0]

    for rows in lists:
        for age, (position, observations, rolled, after) in enumerate(reversed(rows[-lane_size:])):
            stored = min(len(rows), lane_size) - age
            out = chain.replay(buffer.take(np.array([position])), source(buffer, [position]))
            np.testing.assert_array_equal(out["obs"][0], frames_of(observations, stored))
            # obs_next has one frame more, and the stack of obs one frame less of the past.
            padded = [observations[-stored:][0]] * stack + observations[-stored:]
            np.testing.assert_array_equal(out["obs_next"][0], frames_of([*padded[-stack:], after], stack))
            np.testing.assert_array_equal(out["untransformed.obs"][0], observations[-1])
            if stored >= min(stack, len(observations)):
                np.testing.assert_array_equal(out["obs"][0], rolled)


def test_both_ways_are_clipped_and_the_buffer_is_raw():
    chain = Transforms([ObservationClip(-1, 1), RewardClipping()])
    buffer = ReplayBuffer(4)
    seen = chain.observe({"obs": np.array([5.0])})["obs"]
    buffer.add(Batch(obs=5.0, act=0, rew=9, terminated=False, truncated=False, obs_next=-7.0))
    rows = chain.replay(buffer.take(np.array([0])), source(buffer, [0]))
    assert seen == rows["obs"] == rows["rew"] == chain.reward(np.array(9.0)) == 1 and rows["obs_next"] == -1
    assert (buffer.obs[0], buffer.obs_next[0], buffer.rew[0]) == (5, -7, 9)


# ---- A30: hindsight


def goals(lane_size=20, n_lanes=1, steps=12, ends=(4, 9), rew=-1.0, goal=-1.0):
    """Row t of lane k reaches goal 100 k + t. Its own goal is `goal`, far from all; None: what it reaches."""
    buffer = ReplayBuffer(lane_size * n_lanes, n_lanes)
    for t in range(steps):
        at = [[100.0 * k + t] for k in range(n_lanes)]
        desired = np.array(at) if goal is None else np.full((n_lanes, 1), goal)
        obs = {"achieved_goal": np.array(at) - 1, "desired_goal": desired}
        after = {"achieved_goal": np.array(at), "desired_goal": desired}
        buffer.add(
            Batch(obs=obs, act=np.zeros(n_lanes), rew=np.full(n_lanes, rew), terminated=np.full(n_lanes, t in ends),
                  truncated=np.zeros(n_lanes, bool), obs_next=after), lanes=np.arange(n_lanes),
        )  # fmt: skip
    return buffer


@pytest.mark.parametrize(("lane_size", "n_lanes"), [(20, 1), (20, 3), (7, 1), (7, 3), (5, 2)])
def test_new_goals_are_achieved_later_in_the_same_episode(lane_size, n_lanes):
    buffer, ends = goals(lane_size, n_lanes), [4, 9, 11]
    indices = np.repeat(buffer.sample_indices(0), 200)
    rows = Hindsight(share=1).replay(buffer.take(indices), source(buffer, indices))
    np.testing.assert_array_equal(rows["obs.desired_goal"], rows["obs_next.desired_goal"])
    own = buffer.columns["obs_next.achieved_goal"][indices][:, 0]
    for i in np.unique(indices):
        first = own[indices == i][0]
        last = first - first % 100 + min(e for e in ends if e >= first % 100)
        found, counts = np.unique(rows["obs.desired_goal"][indices == i], return_counts=True)
        assert found.tolist() == np.arange(first, last + 1).tolist()
        assert counts.min() > 0.5 * 200 / len(found)  # each as likely as the others
    np.testing.assert_array_equal(rows["rew"], np.where(rows["obs.desired_goal"][:, 0] == own, 0, -1))
    np.testing.assert_array_equal(rows["obs.achieved_goal"], buffer.columns["obs.achieved_goal"][indices])


def at_goal(achieved, goal):
    return goal_reached(achieved, goal) == 0.0


def test_an_end_by_reaching_the_goal_belongs_to_the_goal():
    """Rows 4 and 9 ended their episodes at their own goals. With a new goal a row ends where it reaches that one, and nowhere
    else; so its target is the reward 0 alone exactly there. Without the function ends stay where they were."""
    buffer = goals()
    at = buffer.columns["obs_next.desired_goal"]
    at[:] = np.repeat([4.0, 9.0, 50.0], [5, 5, 10])[:, None]
    buffer.columns["rew"][[4, 9]] = 0.0
    indices = np.repeat(np.arange(12), 100)
    rows = Hindsight(share=0.5, compute_terminated=at_goal).replay(buffer.take(indices), source(buffer, indices))
    new = rows["obs_next.desired_goal"][:, 0] != at[indices, 0]
    np.testing.assert_array_equal(rows["terminated"], rows["rew"] == 0)
    assert rows["terminated"].dtype == bool and (new & rows["terminated"]).any()
    stay = Hindsight(share=0.5).replay(buffer.take(indices), source(buffer, indices))
    np.testing.assert_array_equal(stay["terminated"], np.isin(indices, [4, 9]))


def test_ends_that_the_function_does_not_know_are_told_once():
    buffer, indices = goals(), np.arange(10)  # row 4 ended far from its goal
    her = Hindsight(share=0, compute_terminated=at_goal)
    with pytest.warns(RuntimeWarning, match="2 of 10 rows with their own goal.*terminated True stored, False recomputed"):
        rows = her.replay(buffer.take(indices), source(buffer, indices))
    np.testing.assert_array_equal(rows["terminated"], np.isin(indices, [4, 9]))
    with pytest.raises(ValueError, match=r"'terminated'.*\(10,\) bool, got \(10,\) float64"):
        Hindsight(compute_terminated=goal_reached).replay(buffer.take(indices), source(buffer, indices))


def test_the_share_of_new_goals():
    buffer = goals()
    indices = buffer.sample_indices(4000, np.random.default_rng(3))
    for share in (0.0, 0.8, 1.0):
        rows = Hindsight(share=share).replay(buffer.take(indices), source(buffer, indices))
        new = rows["obs.desired_goal"][:, 0] >= 0
        assert abs(new.mean() - share) < 0.03 and (share == 0.8 or new.mean() == share)
        assert (rows["rew"][~new] == -1).all() and rows["rew"].dtype == buffer.columns["rew"].dtype
    assert Hindsight().share == 0.8


def test_the_default_reward():
    achieved = np.array([[0.0, 0.0], [0.03, 0.04], [0.04, 0.04]])
    assert goal_reached(achieved, np.zeros((3, 2))).tolist() == [0, 0, -1]
    assert goal_reached(np.zeros(2), np.array([0.01, 1])).tolist() == [0, -1]  # goals that are numbers


def test_another_reward_and_other_fields():
    buffer = ReplayBuffer(3)
    buffer.add(Batch(obs={"is": 1.0, "want": 5.0}, act=0, rew=3, terminated=False, truncated=False,
                     obs_next={"is": 2.0, "want": 5.0}))
    her = Hindsight(lambda achieved, goal: abs(achieved - goal), 1, "obs.is", "obs.want")
    rows = replay(her, buffer, [0], **{name.replace(".", "__"): column for name, column in buffer.take(np.array([0])).items()})
    assert (rows["obs.want"], rows["obs_next.want"], rows["rew"]) == (2, 2, 0)


def test_disagreeing_rewards_are_told_once():
    buffer = goals(rew=7)
    indices = np.arange(10)
    her = Hindsight(share=0.5)
    with pytest.warns(RuntimeWarning, match=r"of .* rows with their own goal.*7\.0 stored, -1\.0 recomputed"):
        rows = her.replay(buffer.take(indices), source(buffer, indices))
    own = rows["obs.desired_goal"][:, 0] == -1
    assert own.any() and (rows["rew"][own] == 7).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        her.replay(buffer.take(indices), source(buffer, indices))


def test_new_goals_are_raw_and_pass_through_the_rest_of_the_chain():
    """A27: with a goal of its own every row keeps it; relabelled or not, the goals end in the same units."""
    buffer = goals(steps=400, ends=range(9, 400, 10), lane_size=400, goal=250.0, rew=-1.0)
    indices = buffer.sample_indices(5000, np.random.default_rng(5))  # another seed than `source`: both draw uniform numbers
    normalizer = ObservationNormalizer(fields=["obs.desired_goal", "obs.achieved_goal"], update_on="replay")
    chain = Transforms([UntransformedTimeStep(), Hindsight(lambda a, g: -np.ones(len(g)), 0.5), normalizer])
    rows = chain.replay(buffer.take(indices), source(buffer, indices))
    mean, std = (getattr(normalizer.moments["obs.desired_goal"], name) for name in ("mean", "std"))
    raw = rows["obs.desired_goal"] * std + mean
    new = np.abs(raw[:, 0] - 250) > 1e-3
    assert 0.45 < new.mean() < 0.55
    ahead = np.round(raw[new] - rows["untransformed.obs_next.achieved_goal"][new], 3)
    assert set(ahead.ravel().tolist()) == set(range(10))  # what was reached 0 to 9 rows later, in the environment's units
    np.testing.assert_allclose(rows["obs.desired_goal"].mean(), 0, atol=1e-5)  # all goals counted, as the model gets them
    np.testing.assert_allclose(rows["obs.desired_goal"].std(), 1, atol=1e-5)
    # Goals of both kinds that follow one law have the same statistics.
    same = goals(steps=400, ends=range(400), lane_size=400, goal=None,
                 rew=0.0)  # episodes of one row: what it reached is its only goal
    src = source(same, indices % 400)
    normalizer = ObservationNormalizer(fields="obs.desired_goal")
    rows = Transforms([Hindsight(share=0.5), normalizer]).replay(same.take(src.indices), src)
    new = src.relabelled["obs.desired_goal"]
    found = rows["obs.desired_goal"]
    assert abs(found[new].mean() - found[~new].mean()) < 0.1 and abs(found[new].std() - found[~new].std()) < 0.1
    np.testing.assert_array_equal(found,
                                  normalizer.apply("obs.desired_goal", same.columns["obs_next.achieved_goal"][src.indices]))


def test_new_goals_are_stacked():
    buffer = goals()
    indices = np.array([2, 3])
    src = source(buffer, indices)
    rows = Transforms([Hindsight(share=1),
                       FrameStacker(3, ["obs.desired_goal", "obs.achieved_goal"])]).replay(buffer.take(indices), src)
    goal = rows["obs.desired_goal"][:, -1:]
    assert (goal >= 2).all() and (rows["obs.desired_goal"] == goal).all() and (rows["obs_next.desired_goal"] == goal).all()
    assert rows["obs.achieved_goal"][:, :, 0].tolist() == [[-1, 0, 1], [0, 1, 2]]


# ---- bad input


GOALS = gym.spaces.Dict({"achieved_goal": BOX, "desired_goal": gym.spaces.Box(-1, 1, (3,))})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FrameStacker(0), "FrameStacker: stack is 0; expected at least 1"),
        (lambda: ImageScale(0.5), "ImageScale.*'low'.*0 or -1, got 0.5"),
        (lambda: ImageScale(fields="image"), "ImageScale.*'image'.*'obs.<name>'"),
        (lambda: ImageScale().space(BOX), "ImageScale.*'obs'.*expected uint8, got Box"),
        (lambda: ImageScale().observe({"obs": np.zeros(2)}), "ImageScale.*'obs'.*expected uint8, got float64"),
        (lambda: ObservationClip(1, 0), "ObservationClip.*'low'.*below high, 0, got 1"),
        (lambda: RewardClipping(1, 1), "RewardClipping.*'low'.*below high"),
        (lambda: ObservationNormalizer().space(gym.spaces.Discrete(2)), "ObservationNormalizer.*'obs'.*a Box, got Discrete"),
        (lambda: ObservationNormalizer(clip=0), "ObservationNormalizer: clip is 0; expected a number above 0"),
        (
            lambda: RewardNormalizer(update_on="train"),
            "RewardNormalizer.*'update_on'.*'replay', 'rollout' or 'never', got 'train'",
        ),
        (lambda: ObservationCast(fields="obs.x").space(BOX), "ObservationCast.*'obs.x'.*one of obs, got an unknown"),
        (lambda: FrameStacker(2, "obs.x").observe({"obs": np.zeros(1)}), "FrameStacker.*'obs.x'.*one of obs"),
        (lambda: ObservationClip(0, 1, "obs.x").observe({"obs": np.zeros(1)}), "ObservationClip.*'obs.x'.*one of obs"),
        (
            lambda: ObservationNormalizer(fields="obs.x").observe({"obs": np.zeros(1)}),
            "ObservationNormalizer.*'obs.x'.*one of obs",
        ),
        (lambda: Hindsight(share=1.1), r"Hindsight: share is 1.1; expected a number in \[0, 1\]"),
        (lambda: Hindsight(achieved="obs.x").space(GOALS), "Hindsight.*'obs.x'.*one of obs.achieved_goal"),
        (lambda: Hindsight().space(GOALS), r"Hindsight.*'obs.desired_goal'.*\(2,\), got \(3,\)"),
        (lambda: FunctionalReward(lambda r: r[:1]).reward(np.zeros(2)), r"FunctionalReward.*'rew'.*\(2,\) numbers, got \(1,\)"),
        (lambda: FunctionalReward(lambda r: r * np.nan).reward(np.zeros(2)), r"FunctionalReward.*'rew'.*NaN at \(0,\)"),
        (lambda: Transforms().for_helper(1, "train"), "mode is 'train'"),
    ],
)
def test_bad_input(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize(
    ("compute_reward", "says"),
    [(lambda a, g: np.zeros(g.shape), r"'rew'.*\(3,\) numbers, got \(3, 1\)"),
     (lambda a, g: g[:, 0] * np.nan, r"'rew'.*NaN at \(0,\)")],
)
def test_bad_recomputed_rewards(compute_reward, says):
    buffer, indices = goals(), np.arange(3)
    with pytest.raises(ValueError, match="Hindsight.*" + says):
        Hindsight(compute_reward).replay(buffer.take(indices), source(buffer, indices))


def test_hindsight_wants_whole_rows_of_one_step():
    buffer, indices = goals(), np.arange(3)
    rows = buffer.take(indices)
    with pytest.raises(ValueError, match="Hindsight.*'rew'.*one step: set n_step=1"):
        Hindsight().replay(rows | {"rew": np.zeros((3, 2))}, source(buffer, indices))
    with pytest.raises(ValueError, match="Hindsight.*'rew'.*one step"):
        Hindsight().replay(rows, source(buffer, indices, last_index=indices + 1))
    with pytest.raises(ValueError, match="Hindsight.*'obs_next.achieved_goal'.*in the rows"):
        Hindsight().replay({"rew": rows["rew"]}, source(buffer, indices))


def test_data_does_not_need_torch():
    code = ("import sys, parl_like.data.transforms\n"
            "print(sorted(m for m in sys.modules if m.split('.')[0] in ('parl_like', 'torch')))")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'torch" not in found and "parl_like.data.transforms" in found and "parl_like.agents.agent" not in found


# ------------------------------------------------------------------------------------------------------------------- updates


def test_what_is_counted_comes_into_use_with_the_next_update():
    moments = Moments()
    moments.count(np.array([1.0, 3.0]))
    assert (moments.mean, moments.std) == (0, 1)
    moments.renew(0)
    assert (moments.mean, moments.std) == (2, 1)
    moments.count(np.array([5.0, 7.0]))
    moments.renew(0)
    assert moments.mean == 2
    saved = moments.state_dict()
    loaded = Moments()
    loaded.load_state_dict(saved)
    for each in (moments, loaded):
        assert each.mean == 2
        each.renew(0)
        assert each.mean == 2
        each.renew(1)
        assert each.mean == 4
        each.update(np.array([4.0]))  # at once, whatever the update
        assert each.mean == 4 and each.state_dict()["n"].tolist() == [5]


def test_moments_that_wait_for_their_first_update_are_saved_as_waiting():
    moments, loaded = Moments(), Moments()
    moments.count(np.array([1.0, 3.0]))
    loaded.load_state_dict(moments.state_dict())
    assert (loaded.mean, loaded.std) == (0, 1)
    loaded.renew(0)
    assert loaded.mean == 2


@pytest.mark.parametrize(("kind", "method", "arguments"), [
    (ObservationTransform, "apply", ("obs", np.zeros((1, 2)))), (ObservationTransform, "box", ("obs", None)),
    (RewardTransform, "apply", (np.zeros(1),)),
])  # fmt: skip
def test_a_transform_that_lacks_a_method_is_told_which_to_write(kind, method, arguments):
    own = type("Own", (kind,), {})()
    with pytest.raises(NotImplementedError, match=rf"^Own: write {method}\(self, "):
        getattr(own, method)(*arguments)
