"""Actions are the environment's in arrays and data sets, and the policy's in buffers: with every action space, both ways."""

import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st

from parl_like import ComputationTask, OfflineHelper, OffPolicyHelper, ReplayBuffer, Robot, VectorAgent, create_algorithm_func
from parl_like.algorithms import BC
from parl_like.data.buffers.cached import CachedReplayBuffer
from parl_like.data.buffers.episodes import EpisodeBuffer
from parl_like.data.buffers.fields import loaded_space, saved_space
from parl_like.data.buffers.reservoir import ReservoirBuffer
from parl_like.data.buffers.saving import load_buffer
from parl_like.data.datasets import from_arrays, from_minari, to_arrays, to_minari
from parl_like.data.storage.archive import read_components, write_archive
from parl_like.data.storage.tree_encoding import ArchiveError
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.envs.vector import make_vector_env
from parl_like.models import MLPActorCritic
from parl_like.values.action_codec import ActionCodec
from parl_like.values.spec import SpecError, as_space, leaves, nest

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")  # of metadata that a test need not have

X = Box(-1, 1, (2,), np.float32)
INF = np.inf
SPACES = {
    "discrete": Discrete(3), "offset": Discrete(3, start=-5), "several": MultiDiscrete([2, 3]),
    "several-offset": MultiDiscrete([2, 3], start=[4, -2]), "several-square": MultiDiscrete([[2, 3], [4, 2]]),
    "several-small": MultiDiscrete([2, 3], dtype=np.int32), "binary": MultiBinary(3), "binary-square": MultiBinary((2, 2)),
    "box": Box(-2, 2, (1,), np.float32), "box-askew": Box(np.float32([0, -10]), np.float32([1, 30])),
    "box-number": Box(-3, 5, (), np.float32), "box-double": Box(-2, 2, (2,), np.float64),
    "box-square": Box(0, 4, (2, 2), np.float32),
    "half": Box(np.float32([0, -INF]), np.float32([INF, 1])), "unbounded": Box(-INF, INF, (2,), np.float32),
    "integers": Box(-3, 40, (2,), np.int64), "bytes": Box(0, 255, (1,), np.uint8), "point": Box(2, 2, (1,), np.float32),
    "nested": Dict({"arm": Tuple((Discrete(2, start=1), Box(0, 4, (2,), np.float32))), "flags": MultiBinary(2)}),
    "tuple": Tuple((Box(-2, 2, (1,), np.float32), MultiDiscrete([2, 2], start=[1, 1]))),
}


class Logged(gym.Env):
    """Notes the actions that come, and pays nothing. Observations are numbers, or a Dict with an image."""

    def __init__(self, space, images=False):
        self.action_space, self.images, self.acts = space, images, []
        picture = Box(0, 255, (4, 4, 1), np.uint8)
        self.observation_space = Dict({"image": picture, "x": X}) if images else X

    def obs(self):
        x = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"image": self.np_random.integers(0, 256, (4, 4, 1), np.uint8), "x": x} if self.images else x

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 7
        return self.obs(), {}

    def step(self, act):
        assert self.action_space.contains(act), act
        self.acts.append({name: np.array(part) for name, part in leaves(act, "act")})
        self.left -= 1
        return self.obs(), 0.0, self.left == 0, False, {}


def recorder(space, obs, size=100, **options):
    func = create_algorithm_func(MLPActorCritic, dict(obs=obs, act=space, hidden=[8]), BC, {})
    return {"RL": ComputationTask(func, partial(OffPolicyHelper, size=size, batch_size=8, warmup=size, **options))}


def recorded(space, n=40, images=False, **options):
    """The buffer of a robot that acted, and the actions that its environment got, by flat names [N, …]."""
    env = Logged(space, images)
    with Robot(env, tasks=recorder(space, env.observation_space, **options), seed=1) as robot:
        robot.run(StopAfterSteps(n))
        buffer = robot.buffers["RL"]
    return buffer, {name: np.stack([act[name] for act in env.acts]) for name in env.acts[0]}


def same(a, b, close=False):
    a, b = dict(leaves(a, "", loose=True)), dict(leaves(b, "", loose=True))
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape), name
        if close and a[name].dtype.kind == "f":
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-5, err_msg=name)
        else:
            assert np.array_equal(a[name], b[name]), name


def acts_of(buffer):
    return {name: column[: len(buffer)] for name, column in buffer.columns.items() if name.split(".")[0] == "act"}


@pytest.fixture
def minari(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return minari


# ------------------------------------------------------------------------------------------------ round trips


CASES = {f"{name}-{way}": (space, options, False) for name, space in SPACES.items()
         for way, options in (("policy", {}), ("random", {"random_steps": 100}))} | {"images": (SPACES["box"], {}, True)}


@pytest.mark.parametrize(("space", "options", "images"), CASES.values(), ids=CASES)
def test_a_recorded_buffer_goes_through_minari_and_back(minari, space, options, images):
    """The data set has what the environment got, bit for bit; the buffer of it what the policy did, inside the bounds."""
    buffer, got = recorded(space, images=images, **options)
    assert buffer.act_space == space and len(buffer) == 40
    saved = to_minari(buffer, "test/recorded-v0", env=Logged(space, images))
    same({"act": to_arrays(buffer)["act"]}, as_nested(got))
    actions = [as_flat(episode.actions) for episode in saved.iterate_episodes()]
    same({name: np.concatenate([part[name] for part in actions]) for name in got}, got)
    again = from_minari(saved)
    assert again.act_space == space
    same(to_arrays(again), to_arrays(buffer), close=True)
    mine, theirs = acts_of(buffer), acts_of(again)
    assert [(name, column.shape, column.dtype) for name, column in mine.items()] == [
        (name, column.shape, column.dtype) for name, column in theirs.items()]
    for name, part in dict(part_spaces(space)).items():
        if not isinstance(part, Box):
            assert np.array_equal(mine[name], theirs[name])
        elif part.dtype.kind == "f":  # of whole numbers the environment knows the rounded ones alone
            bounded = np.isfinite(part.low).all() and np.isfinite(part.high).all() and (part.low < part.high).all()
            inside = np.clip(mine[name], -1, 1) if bounded else np.clip(mine[name], part.low, part.high)
            np.testing.assert_allclose(theirs[name], inside if (part.low < part.high).all() else 0, atol=1e-5, rtol=1e-5)


def part_spaces(space, name="act"):
    if isinstance(space, (Dict, Tuple)):
        items = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        return [one for key, part in items for one in part_spaces(part, f"{name}.{key}")]
    return [(name, space)]


def as_flat(actions):
    return {name: np.asarray(part) for name, part in leaves(actions, "act")}


def as_nested(flat):
    return nest(flat)


def sampled(space, n, seed=0):
    """n of the environment's actions, stacked as the space nests them."""
    space.seed(seed)
    rows = [dict(leaves(space.sample(), "act")) for _ in range(n)]
    flat = {name: np.array([row[name] for row in rows], part.dtype) for name, part in part_spaces(space)}
    return as_space(space, flat, "act")


@pytest.mark.parametrize("kind", [EpisodeBuffer, CachedReplayBuffer])
def test_buffers_of_whole_episodes_go_out_as_well(minari, kind):
    buffer = EpisodeBuffer() if kind is EpisodeBuffer else CachedReplayBuffer(ReplayBuffer(20), 1)
    buffer.act_space = SPACES["box"]
    for i in range(8):  # the last two are of an open episode
        buffer.add({"obs": np.full(2, i, np.float32), "act": np.float32([0.1 * i]), "rew": 0.0, "terminated": i % 3 == 2,
                    "truncated": False, "obs_next": np.full(2, i + 1, np.float32)})
    assert to_arrays(buffer)["act"][:, 0] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    saved = to_minari(buffer, "test/whole-v0", observation_space=Box(0, 9, (2,), np.float32))
    assert [len(episode.actions) for episode in saved.iterate_episodes()] == [3, 3] and saved.action_space == SPACES["box"]
    with pytest.raises(TypeError, match="to_arrays: ReservoirBuffer.*keeps single rows in no order"):
        to_arrays(ReservoirBuffer(4))


def test_offline_data_beside_an_environment_is_converted():
    """Whoever acts there: rows of the environment's torque are cloned as they are."""
    x = np.random.default_rng(0).uniform(-1, 1, (256, 3)).astype(np.float32)
    data = from_arrays(x, np.full((256, 1), 0.8, np.float32), np.zeros(256), np.ones(256, bool), obs_next=x)
    with Robot.of("BC", "Pendulum-v1", helper="OfflineHelper", data=data, seed=0, lr=0.02, hidden=[16]) as robot:
        robot.run(150)
        assert robot.act(x[0]) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("told", [False, True], ids=["arrays", "arrays-with-space"])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_arrays_of_the_environment_come_out_as_they_went_in(minari, space, told):
    acts, x = sampled(space, 12), np.zeros((13, 2), np.float32)
    more = {"action_space": space} if told else {}
    buffer = from_arrays(x[:-1], acts, np.zeros(12), np.arange(12) == 11, obs_next=x[1:], **more)
    same({"act": to_arrays(buffer)["act"]}, as_nested(as_flat(acts)), close=told)
    saved = to_minari(buffer, "test/arrays-v0", observation_space=X, action_space=space)
    same(as_flat(next(saved.iterate_episodes()).actions), as_flat(acts), close=told)


def leaf_space():
    """Any space of one array that an environment may have."""
    shape = st.sampled_from([(), (1,), (3,), (2, 2)])
    whole = st.integers(-9, 9)
    pairs = st.tuples(st.floats(-50, 50, width=32), st.floats(0.125, 50, width=32))
    return st.one_of(
        st.builds(lambda n, start: Discrete(n, start=start), st.integers(1, 6), whole),
        st.builds(lambda n, start: MultiDiscrete(n, start=[start] * len(n)), st.lists(st.integers(1, 5), min_size=1, max_size=3),
                  whole),
        st.builds(MultiBinary, st.sampled_from([1, 3, (2, 2)])),
        st.builds(lambda pair, shape, dtype: Box(pair[0], pair[0] + pair[1], shape, dtype), pairs, shape,
                  st.sampled_from([np.float32, np.float64])),
        st.builds(lambda low, width, shape, dtype: Box(low, low + width, shape, dtype), whole, st.integers(0, 60), shape,
                  st.sampled_from([np.int8, np.int32, np.int64])),
        st.builds(lambda shape, ends: Box(*ends, shape, np.float32), shape, st.sampled_from([(-INF, INF), (0, INF), (-INF, 3)])),
    )


def any_space():
    return st.recursive(leaf_space(), lambda inner: st.one_of(
        st.builds(Tuple, st.lists(inner, min_size=1, max_size=3)),
        st.builds(Dict, st.dictionaries(st.sampled_from("abc"), inner, min_size=1))), max_leaves=4)


@given(any_space(), st.integers(0, 99))
def test_any_action_space_goes_round(space, seed):
    """arrays → buffer → arrays; the actions of the buffer are those that the map makes the environment's of; and the space of a
    saved buffer."""
    acts, x = sampled(space, 5, seed), np.zeros((5, 2), np.float32)
    data = dict(obs=x, act=acts, rew=np.zeros(5), terminated=np.ones(5, bool), obs_next=x)
    plain, told = from_arrays(**data), from_arrays(**data, action_space=space)
    assert plain.act_space is None and told.act_space == space
    same(to_arrays(plain), {**data, "act": as_nested(as_flat(acts))["act"], "truncated": np.zeros(5, bool)})
    same(to_arrays(told), to_arrays(plain), close=True)
    stored = acts_of(told)
    same(as_flat(ActionCodec(space).to_env(stored)), as_flat(acts), close=True)
    same(acts_of(plain.in_policy_units(space)), stored)
    assert loaded_space(saved_space(space)) == space




# ------------------------------------------------------------------------------------------------ learning


def taught(space, action, n=256, **options):
    """BC of one action, learned from arrays of the environment; the action that it does then."""
    x = np.random.default_rng(0).uniform(-1, 1, (n, 2)).astype(np.float32)
    data = from_arrays(x, action, np.zeros(n), np.ones(n, bool), obs_next=x)
    func = create_algorithm_func(MLPActorCritic, dict(obs=X, act=space, hidden=[16]), BC, dict(lr=0.02))
    with Robot(tasks={"RL": ComputationTask(func, lambda: OfflineHelper(data, batch_size=64, **options))}, seed=0) as robot:
        robot.run(150)
        assert data.act_space is None and np.array_equal(to_arrays(data)["act"], action)  # as it was given
        assert robot.buffers["RL"].act_space == space
        return robot.act(x[0])


@pytest.mark.parametrize("in_order", [False, True])
def test_torque_of_the_environment_is_cloned_as_it_is(in_order):
    act = taught(Box(-2, 2, (1,), np.float32), np.full((256, 1), 0.8, np.float32), in_order=in_order)
    assert act == pytest.approx(0.8, abs=0.05)


def test_choices_of_the_environment_are_cloned_as_they_are():
    assert taught(Discrete(4, start=3), np.full(256, 5)) == 5
    several = taught(MultiDiscrete([2, 3], start=[1, 7]), np.tile([2, 7], (256, 1)))
    assert several.tolist() == [2, 7]


def test_data_of_an_environment_and_of_robots_make_the_same_updates(tmp_path):
    """However rows come to an OfflineHelper: a robot's buffer, its file, its arrays, and the environment's own."""
    space = SPACES["nested"]
    buffer, _ = recorded(space)
    buffer.save(tmp_path / "rows")
    with Robot(tasks=recorder(space, X), seed=0) as robot:
        model = robot.tasks["RL"].algorithm.model
    arrays = to_arrays(buffer)
    columns = {}
    for name, data in (("robot", buffer), ("file", load_buffer(tmp_path / "rows")), ("arrays", from_arrays(**arrays)),
                       ("told", from_arrays(**arrays, action_space=space))):
        func = create_algorithm_func(MLPActorCritic, dict(obs=X, act=model.act_space, hidden=[8]), BC, {})
        with Robot(tasks={"RL": ComputationTask(func, lambda data=data: OfflineHelper(data, batch_size=8))}, seed=0) as robot:
            columns[name] = acts_of(robot.buffers["RL"])
    for name in ("file", "arrays", "told"):
        for key, column in columns["robot"].items():
            clipped = np.clip(column, -1, 1) if column.dtype.kind == "f" and name != "file" else column
            np.testing.assert_allclose(columns[name][key], clipped, atol=1e-5, err_msg=name)


def expert(obs):
    """Pendulum's torque [N, 1] by a rule that swings up and holds."""
    cos, sin, speed = obs[..., 0], obs[..., 1], obs[..., 2]
    angle = np.arctan2(sin, cos)
    energy = 0.5 * speed**2 / 3 * 1.0 + 5.0 * cos  # of a rod of mass and length 1; upright 5
    swing = np.clip(2.0 * np.sign(speed + 1e-6) * np.clip(5.0 - energy, -1, 1), -2, 2)
    hold = np.clip(-12.0 * angle - 3.0 * speed, -2, 2)
    return np.where((cos > 0.85) & (np.abs(speed) < 4), hold, swing)[..., None].astype(np.float32)


def returns_of(policy, episodes, seed=1000):
    env, total = gym.make("Pendulum-v1"), []
    for i in range(episodes):
        obs, _ = env.reset(seed=seed + i)
        total.append(0.0)
        for _ in range(200):
            obs, rew, *_ = env.step(policy(obs))
            total[-1] += rew
    return float(np.mean(total))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["arrays", "minari"])
def test_an_expert_of_pendulum_is_cloned(minari, way):
    """Normalised: 0 is random play, 1 the expert."""
    env, rows = gym.make("Pendulum-v1"), []
    for i in range(100):
        obs, _ = env.reset(seed=i)
        for t in range(200):
            act = expert(obs)
            after, rew, *_ = env.step(act)
            rows.append((obs, act, rew, False, t == 199, after))
            obs = after
    names = ("obs", "act", "rew", "terminated", "truncated", "obs_next")
    data = from_arrays(**dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True)))
    assert np.abs(to_arrays(data)["act"]).max() > 1.5
    if way == "minari":
        data = from_minari(to_minari(data, "test/expert-v0", env=env))
    func = create_algorithm_func(MLPActorCritic, dict(obs=env.observation_space, act=env.action_space, hidden=[64, 64]), BC,
                                 dict(lr=1e-3))
    with Robot(tasks={"RL": ComputationTask(func, lambda: OfflineHelper(data, batch_size=256))}, seed=0) as robot:
        robot.run(6_000)
        cloned = returns_of(robot.act, 50)
    env.action_space.seed(0)
    best, worst = returns_of(expert, 50), returns_of(lambda obs: env.action_space.sample(), 50)
    print(way, worst, cloned, best, (cloned - worst) / (best - worst))
    assert (cloned - worst) / (best - worst) > 0.9


# ------------------------------------------------------------------------------------------------ buffers


def test_files_keep_the_action_space(tmp_path):
    for name, space in SPACES.items():
        buffer, _ = recorded(space, 20)
        for path in ("rows", *["rows.h5"] * (name in ("box", "nested"))):
            if path.endswith("h5"):
                pytest.importorskip("h5py")
            buffer.save(tmp_path / name / path)
            again = ReplayBuffer.load(tmp_path / name / path)
            assert again.act_space == space
            same(to_arrays(again), to_arrays(buffer))
    for kind in (ReservoirBuffer(4), CachedReplayBuffer(ReplayBuffer(4), 1)):
        kind.add({"obs": 1.0, "act": 0.5, "rew": 0.0, "terminated": True, "truncated": False})
        kind.act_space = Box(-2, 2, (), np.float64)
        kind.save(tmp_path / type(kind).__name__)
        assert load_buffer(tmp_path / type(kind).__name__).act_space == kind.act_space


def changed(path, change):
    """The file with another head."""
    tree, _, _ = read_components(path, lambda name: False)
    change(tree["buffer"])
    write_archive(path, tree, {"replay": 1, "kind": "ReplayBuffer", "rows": 20})


def test_a_file_of_before_says_that_its_units_are_not_known(tmp_path):
    buffer, _ = recorded(SPACES["box"], 20)
    buffer.save(tmp_path / "rows")
    changed(tmp_path / "rows", lambda head: head.pop("act_space"))
    with pytest.warns(UserWarning, match="before files said whose units.*set buffer.act_space = env.action_space"):
        assert ReplayBuffer.load(tmp_path / "rows").act_space is None
    choices, _ = recorded(SPACES["discrete"], 20)
    choices.save(tmp_path / "choices")
    changed(tmp_path / "choices", lambda head: head.pop("act_space"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ReplayBuffer.load(tmp_path / "choices")


@pytest.mark.parametrize("wrong", [
    {"kind": "Text"}, {"kind": ["Box"]}, {"kind": "Discrete", "n": 0, "start": 0}, {"kind": "Discrete", "n": "3", "start": 0},
    {"kind": "Box", "shape": [1], "low": 3, "high": 4}, {"kind": "Box", "shape": [2], "low": np.zeros(1), "high": np.ones(1)},
    {"kind": "Box", "shape": [1], "low": np.ones(1), "high": np.zeros(1)}, {"kind": "Tuple", "keys": ["0"], "parts": []},
    {"kind": "MultiDiscrete", "shape": [1], "nvec": np.zeros(1, np.int64), "start": np.zeros(1, np.int64)},
    {"kind": "Box", "shape": [3], "low": np.zeros(3), "high": np.ones(3)}, {"kind": "Discrete", "n": 2, "start": 0}, {}, 3,
    {"kind": "MultiBinary", "n": [2**40]}, {"kind": "MultiBinary", "n": ["a"]},
])  # fmt: skip
def test_a_file_with_a_wrong_action_space_is_refused(tmp_path, wrong):
    buffer, _ = recorded(SPACES["box"], 20)
    buffer.save(tmp_path / "rows")
    changed(tmp_path / "rows", lambda head: head.update(act_space=wrong))
    with pytest.raises(ArchiveError):
        load_buffer(tmp_path / "rows")


def test_rows_of_others_are_converted_where_they_are_appended():
    space = SPACES["box"]
    buffer, _ = recorded(space, 20)
    x = np.zeros((3, 2), np.float32)
    demo = from_arrays(x, np.float32([[0.8], [-2], [3]]), np.zeros(3), np.ones(3, bool), obs_next=x)
    at = buffer.update(demo)
    assert buffer.columns["act"][at].tolist() == [[np.float32(0.4)], [-1], [1.5]]  # what lies outside stays there
    assert to_arrays(buffer)["act"][-3:].tolist() == [[np.float32(0.8)], [-2], [2]]
    plain = ReplayBuffer(50)
    plain.add({"obs": x[0], "act": np.float32([0.8]), "rew": 0.0, "terminated": True, "truncated": False, "obs_next": x[0]})
    plain.update(buffer)
    assert plain.act_space is None and plain.columns["act"][:].max() == 2
    empty = ReplayBuffer(50)
    empty.update(buffer)
    assert empty.act_space == space and empty[:] == buffer[:]
    other = from_arrays(x, np.zeros((3, 1), np.float32), np.zeros(3), np.ones(3, bool), obs_next=x, action_space=Box(-1, 1, (1,)))
    with pytest.raises(SpecError, match=r"expected actions of Box\(-2.0, 2.0, \(1,\), float32\), got those of Box\(-1.0"):
        buffer.update(other)


def test_demonstrations_in_a_buffer_that_learns():
    """A helper may be given a buffer that has rows."""
    space, x = SPACES["box"], np.zeros((30, 2), np.float32)

    def filled(size, n_lanes, rng):
        return from_arrays(x, np.full((30, 1), 1.0, np.float32), np.zeros(30), np.ones(30, bool), obs_next=x, size=size)

    env = Logged(space)
    with Robot(env, tasks=recorder(space, X, buffer=filled), seed=0) as robot:
        robot.run(StopAfterSteps(5))
        buffer = robot.buffers["RL"]
        assert (buffer.columns["act"][:30] == 0.5).all() and len(buffer) == 35
        assert np.array_equal(to_arrays(buffer)["act"][30:], np.stack([act["act"] for act in env.acts]))


def test_actions_that_are_none_of_the_space_are_refused(minari):
    x = np.zeros((3, 2), np.float32)
    data = dict(obs=x, rew=np.zeros(3), terminated=np.ones(3, bool), obs_next=x)
    for space, act, expected in (
        (Discrete(3, start=1), [1, 0, 2], r"'act': expected \('N',\) int64, got \(3,\) int64 with 0 in row 1"),
        (Discrete(3), [1.0, 0, 2], r"'act': expected \('N',\) int64, got \(3,\) float64; give the environment's actions"),
        (Box(-2, 2, (1,)), [1.0, 0, 2], r"'act': expected \('N', 1\) float32, got \(3,\) float64"),
        (MultiDiscrete([2, 3]), [[1, 2], [1, 3], [0, 0]], r"'act'.*with 3 in row 1"),
        (MultiBinary(2), [[1, 1], [1, 2], [0, 0]], r"'act'.*with 2 in row 1"),
        (Dict({"a": Discrete(2)}), {"a": [0, 1, 2]}, "'act.a'.*with 2 in row 2"),
    ):
        with pytest.raises(SpecError, match=f"from_arrays, field {expected}"):
            from_arrays(**data, act=act if isinstance(act, dict) else np.array(act), action_space=space)
        plain = from_arrays(**data, act=act if isinstance(act, dict) else np.array(act))
        func = create_algorithm_func(MLPActorCritic, dict(obs=X, act=space, hidden=[8]), BC, {})
        with pytest.raises(SpecError, match=f"Robot: task 'RL'.*field {expected}"):
            Robot(tasks={"RL": ComputationTask(func, lambda plain=plain: OfflineHelper(plain, batch_size=2))})


def test_rows_of_another_action_space_are_refused(minari):
    buffer, _ = recorded(SPACES["box"], 20)
    with pytest.raises(ValueError, match=r"actions of ReplayBuffer.* are of Box\(-2.0.*the dataset's of Box\(-1.0"):
        to_minari(buffer, "test/other-v0", observation_space=X, action_space=Box(-1, 1, (1,), np.float32))
    func = create_algorithm_func(MLPActorCritic, dict(obs=X, act=Box(-1, 1, (1,), np.float32), hidden=[8]), BC, {})
    with pytest.raises(SpecError, match="Robot: task 'RL'.*expected actions of Box.*got those of Box"):
        Robot(tasks={"RL": ComputationTask(func, lambda: OfflineHelper(buffer, batch_size=2))})
    cached = CachedReplayBuffer(ReplayBuffer(4), 1)
    cached.add({"obs": np.zeros(2, np.float32), "act": np.zeros(1, np.float32), "rew": 0.0, "terminated": True,
                "truncated": False})
    with pytest.raises(ValueError, match="has rows, and whose units.*say buffer.act_space = env.action_space"):
        Robot(Logged(SPACES["box"]), tasks=recorder(SPACES["box"], X, buffer=lambda *args: cached))


def test_vector_agents_record_the_same_units(minari):
    """The space of a vector environment's buffer is that of one environment."""
    tasks = recorder(SPACES["box"], X)
    with Robot(lambda: make_vector_env(partial(Logged, SPACES["box"]), 3), tasks=tasks, agent=VectorAgent, seed=0) as robot:
        robot.run(StopAfterSteps(30))
        buffer = robot.buffers["RL"]
        saved = to_minari(buffer, "test/lanes-v0", env=Logged(SPACES["box"]))
    acts = np.concatenate([episode.actions for episode in saved.iterate_episodes()])
    np.testing.assert_allclose(acts, np.clip(buffer[:].act, -1, 1) * 2, atol=1e-6)
