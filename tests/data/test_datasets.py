"""Fixed data: arrays and Minari datasets become the rows they mean, nothing is bootstrapped from what is not known, and back."""

import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from agent_fakes import Recorder
from hypothesis import given
from hypothesis import strategies as st

from parl_like import ComputationTask, OfflineHelper, Robot
from parl_like.data.buffers.prioritized import PrioritizedReplayBuffer
from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.data.buffers.saving import load_buffer, save_buffer
from parl_like.data.datasets import from_arrays, from_minari, to_arrays, to_minari
from parl_like.environment.stop_conditions import StopAfterSteps
from parl_like.values.spec import SpecError, leaves

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")  # of metadata that a test need not have

OBS = gym.spaces.Dict({"a": gym.spaces.Box(-9, 9, (2,), np.float32),
                       "b": gym.spaces.Tuple((gym.spaces.Discrete(99), gym.spaces.MultiBinary(3)))})
ACT = gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.Box(-1, 1, (1,), np.float64)))


def columns(n):
    """Fields of n rows without ends."""
    i = np.arange(n)
    return {"obs": i.astype(np.float32), "act": i, "rew": i / 2, "terminated": np.zeros(n, bool)}


def equal(a, b):
    a, b = dict(leaves(a, "")), dict(leaves(b, ""))
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]) for name in a)


# ------------------------------------------------------------------------------------------------ arrays


def test_the_next_observation_is_that_of_the_next_row():
    data = columns(5)
    data["terminated"][[1, 4]] = True
    buffer = from_arrays(**data)
    rows = buffer[:]
    assert rows.obs.tolist() == [0, 1, 2, 3, 4] and rows.obs_next.tolist() == [1, 1, 3, 4, 4]  # at a terminated row: obs
    assert rows.done.tolist() == [False, True, False, False, True] and buffer.capacity == 5
    assert rows.obs.dtype == np.float32 and rows.act.dtype == np.int64 and rows.rew.dtype == np.float64


def test_rows_whose_next_observation_is_unknown_are_left_out():
    data = columns(8)
    data["terminated"][3] = True
    data["truncated"] = np.isin(np.arange(8), [2, 4, 5])  # row 3 is an episode of its own, as are 4 and 5
    with pytest.warns(UserWarning, match="4 of 8 rows are left out.*give obs_next"):
        buffer = from_arrays(**data)
    rows = buffer[:]
    assert rows.obs.tolist() == [0, 1, 3, 6] and rows.obs_next.tolist() == [1, 2, 3, 7]
    assert rows.terminated.tolist() == [False, False, True, False] and rows.truncated.tolist() == [False, True, False, True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full = from_arrays(**data, obs_next=data["obs"] + 1)
    assert (
        len(full) == 8
        and full[:].obs_next.tolist() == list(range(1, 9))
        and full[:].truncated.tolist() == data["truncated"].tolist()
    )


@given(st.lists(st.sampled_from(["go", "end", "cut"]), min_size=1, max_size=12))
def test_every_next_observation_is_true(kinds):
    """Observation i follows i − 1 inside an episode; a row that is neither terminated nor known to lead to i + 1 may not be
    there."""
    data = columns(len(kinds))
    data["terminated"], data["truncated"] = np.array(kinds) == "end", np.array(kinds) == "cut"
    known = [kind == "end" or (kind == "go" and i + 1 < len(kinds)) for i, kind in enumerate(kinds)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not any(known):
            with pytest.raises(ValueError, match="no row is left"):
                from_arrays(**data)
            return
        rows = from_arrays(**data)[:]
    assert rows.obs.tolist() == np.flatnonzero(known).tolist()
    for i, obs in enumerate(rows.obs.astype(int).tolist()):
        assert rows.terminated[i] == (kinds[obs] == "end")
        assert rows.obs_next[i] == obs + (kinds[obs] == "go")
        goes_on = not rows.done[i]
        assert not goes_on or (i + 1 < len(rows) and rows.obs[i + 1] == obs + 1)


def test_nested_fields_sizes_and_more():
    n = 6
    obs = {"x": np.zeros((n, 2), np.float32), "y": (np.arange(n), np.ones(n, bool))}
    buffer = from_arrays(obs, {"l": np.arange(n)}, np.ones((n, 2), np.float32), [0] * 5 + [1], obs_next=obs, size=4,
                         info={"k": np.arange(n)})
    assert len(buffer) == 4 and buffer[:].info.k.tolist() == [2, 3, 4, 5]  # the oldest rows are gone
    assert {"obs.x", "obs.y.0", "obs.y.1", "obs_next.y.1", "act.l", "info.k"} <= set(buffer.columns)
    assert buffer.columns["rew"].dtype == np.float64 and buffer.columns["terminated"].dtype == bool


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"act": np.arange(3)}, r"'act': expected 4 rows.*got \(3,\)"),
        ({"obs": {"a": np.zeros((4, 2)), "b": np.array([0, 1, np.nan, 3])}}, r"'obs.b'.*NaN in row 2"),
        ({"rew": np.array([0, np.nan, 0, 0])}, r"'rew'.*NaN in row 1"),
        ({"obs_next": np.array([0, 0, 0, np.nan], np.float32)}, r"'obs_next'.*NaN in row 3"),
        ({"obs_next": np.zeros((4, 2))}, r"'obs_next': expected \[N, …\] like 'obs'"),
        ({"obs_next": {"a": np.zeros(4)}}, "'obs_next': expected"),
        ({"terminated": np.array([0, 2, 0, 1])}, "'terminated': expected one flag per row"),
        ({"truncated": np.zeros((4, 1), bool)}, "'truncated': expected one flag per row"),
        ({"act": np.array(["a"] * 4)}, "'act': expected an array"),
        ({"act": [[1], [1, 2], [1], [1]]}, "'act': got a ragged list"),
        ({"act": 3}, "'act': expected an array"),
        ({"terminated": np.zeros(0, bool)}, "no rows"),
    ],
)
def test_bad_arrays_are_refused(change, expected):
    with pytest.raises((SpecError, ValueError), match=expected):
        from_arrays(**{**columns(4), **change})


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("options", [{}, {"ignore_obs_next": True}, {"stack_num": 2}])
@pytest.mark.parametrize("n", [3, 25])
def test_arrays_of_a_buffer_make_the_same_rows(kind, options, n):
    buffer = kind(20, n_lanes=2, **options)
    for i in range(n):
        ends = np.array([i % 5 == 4, False])
        obs = np.array([i, 100 + i], np.float32)
        buffer.add({"obs": obs, "act": obs * 2, "rew": obs, "terminated": ends, "truncated": [False, i == 7],
                    "obs_next": obs + 1})
    arrays = to_arrays(buffer)
    assert len(arrays["rew"]) == len(buffer) and "done" not in arrays and "weight" not in arrays
    newest = np.cumsum([len(buffer.lane_rows(lane)["rew"]) for lane in range(2)]) - 1
    assert (arrays["truncated"] | arrays["terminated"])[newest].all()  # lanes do not run into each other
    again = from_arrays(**arrays)
    assert equal(to_arrays(again), arrays)
    rows = buffer[:]
    assert np.array_equal(arrays["obs_next"], rows.obs_next) and np.array_equal(arrays["terminated"], rows.terminated)
    assert np.flatnonzero(arrays["truncated"] != rows.truncated).tolist() == [i for i in newest.tolist() if not rows.done[i]]
    arrays["obs"][:] = 0
    assert buffer[:] == rows  # copies


# ------------------------------------------------------------------------------------------------ Minari


@pytest.fixture
def minari(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return minari


def episode(minari, start, n, terminated=True, cut=False):
    """n steps through the observations start … start + n."""
    i = np.arange(start, start + n + 1)
    obs = {"a": np.stack([i, -i], 1).astype(np.float32) / 100, "b": (i, np.stack([i % 2, i % 3 == 0, i > 3], 1).astype(np.int8))}
    act = (i[:-1] % 5, np.sin(i[:-1, None]))
    flags = [False] * (n - 1)
    return minari.data_collector.EpisodeBuffer(observations=obs, actions=act, rewards=(i[:-1] / 4).tolist(), infos={},
                                               terminations=[*flags, terminated], truncations=[*flags, cut])  # fmt: skip


@pytest.fixture
def dataset(minari):
    episodes = [episode(minari, 0, 3), episode(minari, 10, 1, False, True), episode(minari, 20, 4, False, False),
                episode(minari, 30, 2)]
    return minari.create_dataset_from_buffers("test/all-v0", episodes, observation_space=OBS, action_space=ACT)


def test_a_minari_dataset_becomes_rows_with_true_next_observations(dataset):
    for given_ in (dataset, "test/all-v0"):
        buffer = from_minari(given_)
        rows = buffer[:]
        assert rows.obs["b"]["0"].tolist() == [0, 1, 2, 10, 20, 21, 22, 23, 30, 31]
        assert rows.obs_next["b"]["0"].tolist() == [1, 2, 3, 11, 21, 22, 23, 24, 31, 32]
        assert np.flatnonzero(rows.terminated).tolist() == [2, 9]
        assert np.flatnonzero(rows.truncated).tolist() == [3, 7]  # row 7: its episode stops, though the data does not say so
        assert np.array_equal(rows.obs.a[:, 1], -rows.obs["b"]["0"].astype(np.float32) / 100)
        assert np.array_equal(rows.rew, rows.obs["b"]["0"] / 4) and np.array_equal(
            rows.act["1"][:, 0], np.sin(rows.obs["b"]["0"])
        )
    assert {name: column.dtype for name, column in buffer.columns.items() if not name.startswith("obs_next")} == {
        "obs.a": np.float32, "obs.b.0": np.int64, "obs.b.1": np.int8, "act.0": np.int64, "act.1": np.float64, "rew": np.float64,
        "terminated": bool, "truncated": bool,
    }  # fmt: skip
    assert len(from_minari(dataset, size=4)) == 4


def test_a_minari_dataset_goes_round(dataset, minari):
    buffer = from_minari(dataset)
    again = to_minari(buffer, "test/again-v0", observation_space=OBS, action_space=ACT, author="nobody")
    assert again.total_episodes == 4 and again.total_steps == 10
    assert equal(to_arrays(from_minari("test/again-v0")), to_arrays(buffer))
    for old, new in zip(dataset.iterate_episodes(), again.iterate_episodes(), strict=True):
        assert equal({"o": old.observations, "a": old.actions}, {"o": new.observations, "a": new.actions})
    assert again.observation_space == OBS and again.action_space == ACT
    with pytest.raises(ValueError):  # an id that is taken
        to_minari(buffer, "test/again-v0", observation_space=OBS, action_space=ACT)


def test_images_are_stored_exactly(minari):
    space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    obs = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    buffer = from_arrays(obs[:-1], np.zeros(5, np.int64), np.zeros(5), [0, 0, 0, 0, 1], obs_next=obs[1:])
    to_minari(buffer, "test/images-v0", observation_space=space, action_space=gym.spaces.Discrete(2))
    assert equal(to_arrays(from_minari("test/images-v0")), to_arrays(buffer))


def test_a_break_in_the_rows_ends_an_episode(minari):
    space = gym.spaces.Box(-99, 99, (), np.float64)
    obs = np.array([0.0, 1, 5, 6])
    buffer = from_arrays(obs, np.zeros(4, np.int64), obs, [0, 0, 0, 0], obs_next=obs + 1)
    saved = to_minari(buffer, "test/gaps-v0", observation_space=space, action_space=gym.spaces.Discrete(2))
    assert [e.observations.tolist() for e in saved.iterate_episodes()] == [[0, 1, 2], [5, 6, 7]]
    assert [e.truncations.tolist() for e in saved.iterate_episodes()] == [[False, True]] * 2


def test_recorded_rows_of_an_environment_become_a_dataset(minari):
    env = gym.make("CartPole-v1")
    buffer = ReplayBuffer(50)
    obs, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(50):
        act = int(rng.integers(2))
        after, rew, terminated, truncated, _ = env.step(act)
        buffer.add({"obs": obs, "act": act, "rew": rew, "terminated": terminated, "truncated": truncated, "obs_next": after})
        obs = env.reset()[0] if terminated or truncated else after
    for i, given_ in enumerate((env, "CartPole-v1")):
        saved = to_minari(buffer, f"test/cartpole{i}-v0", env=given_)
        assert saved.total_steps == 50 and saved.env_spec.id == "CartPole-v1"
        assert equal(to_arrays(from_minari(saved)), to_arrays(buffer))


def test_bad_calls_are_refused(dataset, minari):
    buffer = from_minari(dataset)
    for call, expected in (
        (lambda: to_minari(buffer, "test/x-v0"), "expected env, or observation_space"),
        (lambda: to_minari(ReplayBuffer(3), "test/x-v0", observation_space=OBS, action_space=ACT), "no rows"),
        (lambda: to_minari(buffer, "test/x-v0", observation_space=OBS["a"], action_space=ACT), "'obs': expected.*got none"),
        (lambda: to_minari(buffer, "test/x-v0", observation_space=OBS, action_space=gym.spaces.Tuple([ACT[1], ACT[0]])),
         "'act.0'"),
    ):
        with pytest.raises(ValueError, match=expected):
            call()
    assert [*minari.list_local_datasets()] == ["test/all-v0"]
    with pytest.raises(FileNotFoundError):
        from_minari("test/none-v0")


def test_an_episode_of_wrong_length_is_named(minari):
    whole = episode(minari, 0, 3)
    short = minari.data_collector.EpisodeBuffer(**{**vars(whole), "actions": tuple(part[:-1] for part in whole.actions)})
    saved = minari.create_dataset_from_buffers("test/short-v0", [short], observation_space=OBS, action_space=ACT)
    with pytest.raises(ValueError, match=r"episode 0: 'act.0' has 2 rows; expected 3"):
        from_minari(saved)


def test_a_missing_package_is_named(monkeypatch):
    for name in ("minari", "h5py"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=r"pip install 'parl_like\[minari\]'"):
                from_minari("test/all-v0")


# ------------------------------------------------------------------------------------------------ learning


@pytest.mark.parametrize("source", ["arrays", "minari", "file"])
def test_an_offline_helper_learns_from_it(request, tmp_path, source):
    data = from_arrays(np.arange(10, dtype=np.float32)[:, None], np.arange(10) % 2, np.ones(10), np.arange(10) == 9)
    if source == "minari":
        request.getfixturevalue("minari")
        to_minari(data, "test/walk-v0", observation_space=gym.spaces.Box(-9, 9, (1,)), action_space=gym.spaces.Discrete(2))
        data = from_minari("test/walk-v0")
    elif source == "file":
        save_buffer(data, tmp_path / "walk")
        data = load_buffer(tmp_path / "walk")
    tasks = {"RL": ComputationTask(Recorder(), lambda: OfflineHelper(data, batch_size=4))}
    with Robot(tasks=tasks, seed=3) as robot:
        robot.run(StopAfterSteps(6))
        updates = tasks["RL"].algorithm.updates_seen
    assert len(updates) == 6 and len(data) == 10
    for update in updates:
        obs, after, ends = update["obs"][:, 0], update["obs_next"][:, 0], update["terminated"]
        assert np.array_equal(after[~ends], obs[~ends] + 1) and np.array_equal(ends, obs == 9)
