"""Sokoban as gymnasium environments: ids, checker, vector environment, automatic resets, rendering, state."""

import subprocess
import sys
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parl_like import Robot
from parl_like.envs.sokoban import SPRITES, LevelError, Levels, SokobanEnv, SokobanVectorEnv, solve
from parl_like.envs.sokoban.env import FOLDERS
from parl_like.envs.sokoban.levels import from_text

IDS = {"Sokoban-v0": "train", "Sokoban-test-v0": "test", "Sokoban-medium-v0": "medium", "Sokoban-hard-v0": "hard"}
TINY = "; 0\n#####\n#@$.#\n#####\n#####\n#####\n"


@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_own_checker(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(name)
        check_env(env.unwrapped)
    assert env.observation_space == gym.spaces.Box(0, 255, (3, 80, 80), np.uint8) and env.action_space == gym.spaces.Discrete(5)


@pytest.mark.parametrize("options", [
    {"obs": "planes"}, {"size": 5, "n_boxes": 1}, {"size": 7, "n_boxes": 2, "n_danger": 3, "obs": "planes"}, {"pomdp": True},
], ids=str)
def test_the_checker_with_options(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("Sokoban-v0", **options).unwrapped)


@pytest.mark.parametrize("code", [
    "import gymnasium; env = gymnasium.make('parl_like.envs:Sokoban-test-v0')",
    "import gymnasium, parl_like.envs.tabular; env = gymnasium.make('Sokoban-test-v0')",
    "from parl_like.envs.make import make_env; env = make_env('Sokoban-test-v0')",
])
def test_a_fresh_process_knows_the_ids(code):
    code += "; print(env.reset(seed=0)[0].shape)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout == "(3, 80, 80)\n", done.stderr
    envs = gym.make_vec("Sokoban-v0", 3, vectorization_mode="vector_entry_point", size=7, n_boxes=2, obs="planes")
    assert isinstance(envs, SokobanVectorEnv) and envs.reset()[0].shape == (3, 5, 7, 7)


# ------------------------------------------------------------------------------------------------------------------ levels


def test_every_id_takes_its_folder_of_a_checkout(tmp_path, monkeypatch):
    for i, folder in enumerate(FOLDERS.values()):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "000.txt").write_text(Levels.generate(i + 1, 10, 4).text())
    monkeypatch.setenv("PARL_LIKE_BOXOBAN", str(tmp_path))
    for name, kind in IDS.items():
        for env in (gym.make(name), gym.make(name, levels=tmp_path)):
            assert len(env.unwrapped.levels) == 1 + list(FOLDERS).index(kind)
    assert gym.make("Sokoban-v0").unwrapped.note == f"Sokoban: 1 levels of 10×10 from {tmp_path / 'unfiltered/train'}"
    assert gym.make("Sokoban-v0", size=7, n_boxes=2).unwrapped.levels is Levels.shipped(7, 2)  # a checkout has no such boards
    (tmp_path / "hard" / "000.txt").write_text(TINY)
    with pytest.raises(LevelError, match=r"hard/000.txt, line 2, level 0: row 0 has 5 characters; expected 10"):
        SokobanEnv(tmp_path, "hard")
    (tmp_path / "hard" / "000.txt").unlink()
    (tmp_path / "hard").rmdir()
    with pytest.raises(FileNotFoundError, match="holds neither level files nor the folder 'hard' of a Boxoban checkout"):
        SokobanEnv(tmp_path, "hard")


@pytest.mark.parametrize("driver", ["cooperative", "processes"])
@pytest.mark.parametrize("env", [SokobanEnv, partial(SokobanVectorEnv, 2), partial(gym.make, "Sokoban-v0"),
                                 lambda: SyncVectorEnv([SokobanEnv])], ids=["one", "vector", "id", "made a vector"])
def test_a_robot_notes_which_levels_it_plays(env, driver, monkeypatch):
    monkeypatch.delenv("PARL_LIKE_BOXOBAN", raising=False)
    with Robot.of("A2C", env, n_agents=2, driver=driver) as robot:
        assert [note for note in robot.notes if not note.startswith("task ")] == [
            "Sokoban: 5,000 levels that were generated for this package (10x10-4-train); Boxoban's 900,000 "
            "are played where PARL_LIKE_BOXOBAN names a checkout of them"]


@pytest.mark.parametrize(("kind", "size"), [("train", "900,000"), ("test", "1,000"), ("medium", "50,000"), ("hard", "3,332")])
def test_the_note_names_the_size_of_boxobans_set_of_this_kind(kind, size, monkeypatch):
    monkeypatch.delenv("PARL_LIKE_BOXOBAN", raising=False)
    try:
        note = SokobanEnv(kind=kind).note
    except FileNotFoundError:
        pytest.skip("no set of this kind ships with the package")
    assert f"Boxoban's {size} are played" in note


def test_levels_by_file_folder_and_object(tmp_path):
    (tmp_path / "a.txt").write_text(TINY)
    for levels in (tmp_path / "a.txt", str(tmp_path), Levels.parse(TINY)):
        env = SokobanEnv(levels, size=0, n_boxes=0)
        obs, info = env.reset(seed=1)
        assert obs.shape == (3, 40, 40) and info == {"level": 0}
        assert env.step(4)[1:] == (10.99, True, False, {})


def test_all_environments_share_one_level_set():
    a, b = SokobanEnv(), SokobanVectorEnv(4)
    assert a.levels is b.levels


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"kind": "easy"}, ValueError, "kind is 'easy'; expected one of train, test, medium, hard"),
    ({"obs": "rgb"}, ValueError, "obs is 'rgb'; expected 'image' or 'planes'"),
    ({"render_mode": "human"}, ValueError, "render_mode is 'human'"),
    ({"size": 5, "n_boxes": 4}, FileNotFoundError, "no 'train' levels of 5×5 with 4 boxes ship"),
    ({"n_danger": -1}, ValueError, "n_danger is -1"),
])
def test_wrong_arguments(options, error, message):
    for make in (SokobanEnv, lambda **options: SokobanVectorEnv(2, **options)):
        with pytest.raises(error, match=message):
            make(**options)


# ------------------------------------------------------------------------------------------------------------------ one game


def test_a_seed_fixes_the_games_and_none_does_not():
    def levels(env, **first):
        return [env.reset(**(first if k == 0 else {}))[1]["level"] for k in range(20)]

    assert levels(SokobanEnv(), seed=3) == levels(SokobanEnv(), seed=3) != levels(SokobanEnv(), seed=4)
    assert levels(SokobanEnv()) != levels(SokobanEnv())


def test_options_of_reset():
    env = SokobanEnv(size=7, n_boxes=2)
    _, info = env.reset(seed=0, options={"level": 17, "counter": 118})
    assert info == {"level": 17}
    np.testing.assert_array_equal(env.boards.tiles(0), env.levels[17])
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    with pytest.raises(ValueError, match="reset has no option 'lvl'"):
        env.reset(options={"lvl": 1})


def test_a_solution_solves_it():
    env = SokobanEnv()
    for level in (0, 1, 2):
        env.reset(options={"level": level, "counter": 0})
        actions = solve(env.levels[level]).actions
        total = sum(env.step(action)[1] for action in actions)
        assert total == pytest.approx(14 - 0.01 * len(actions)) and env.step(0)[1:4] == (0.0, True, False)


def test_an_action_must_be_a_whole_number_that_exists():
    env = SokobanEnv()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(TypeError):
        env.step(1.0)
    with pytest.raises(ValueError, match="board 0 got action 5"):
        env.step(5)


def test_rendering():
    levels = Levels.of([from_text("#####\n#@$.#\n#! ^#\n#####\n#####\n")])
    env = SokobanEnv(levels, render_mode="ansi", pomdp=True)
    env.reset(seed=0)
    assert env.render() == "#####\n#@$.#\n#! ^#\n#####\n#####\n"
    env = SokobanEnv(levels, render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    assert image.shape == (160, 160, 3) and image.dtype == np.uint8
    np.testing.assert_array_equal(image[34::4, 33::4][:8, :8], SPRITES[4].transpose(1, 2, 0))
    obs, _ = env.reset()
    np.testing.assert_array_equal(image[::4, ::4].transpose(2, 0, 1), obs)
    assert SokobanEnv(levels).render() is None
    assert SokobanVectorEnv(2, levels, render_mode="ansi").render() == ("#####\n#@$.#\n#! ^#\n#####\n#####\n",) * 2


@pytest.mark.parametrize("options", [{}, {"n_danger": 3, "pomdp": True, "obs": "planes"}], ids=str)
def test_a_restored_game_goes_on_exactly_through_resets(options):
    env, other = SokobanEnv(size=6, n_boxes=1, **options), SokobanEnv(size=6, n_boxes=1, **options)
    actions = np.random.default_rng(0).integers(0, 5, 400)

    def play(env, actions):
        trace = []
        for action in actions:
            obs, rew, terminated, truncated, info = env.step(action)
            trace.append((obs.tobytes(), rew, terminated, truncated, info))
            if terminated or truncated:
                obs, info = env.reset()
                trace.append((obs.tobytes(), info))
        return trace

    env.reset(seed=5)
    play(env, actions[:70])
    state, seen = env.clone_state(), env.observe()
    trace = play(env, actions[70:])
    for again in (env, other):
        again.restore_state(state)
        np.testing.assert_array_equal(again.observe(), seen)
        assert play(again, actions[70:]) == trace


# ------------------------------------------------------------------------------------------------------------------ many games


def same(a, b):
    """Equal info dicts: values and masks."""
    assert a.keys() == b.keys()
    for key in a:
        if isinstance(a[key], dict):
            same(a[key], b[key])
        elif a[key].dtype == object:
            assert all((x is None) == (y is None) and (x is None or np.array_equal(x, y))
                       for x, y in zip(a[key], b[key], strict=True)), key
        else:
            np.testing.assert_array_equal(a[key], b[key], err_msg=key)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("options", [{}, {"n_danger": 4, "pomdp": True, "obs": "planes"}], ids=str)
def test_it_is_gymnasiums_vector_of_single_games(mode, copy, options):
    """Step by step: observations, rewards, flags and infos, over resets of some games, too."""
    n, options = 5, {"size": 5, "n_boxes": 1, "max_steps": 40} | options
    ours = SokobanVectorEnv(n, autoreset_mode=mode, copy=copy, **options)
    theirs = SyncVectorEnv([lambda: SokobanEnv(**options)] * n, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode and ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space and ours.num_envs == n
    rng, mask = np.random.default_rng(0), np.array([True, False, False, True, False])
    a, b = ours.reset(seed=11), theirs.reset(seed=11)
    for t in range(250):
        np.testing.assert_array_equal(a[0], b[0])
        same(a[-1], b[-1])
        if t == 100:
            a, b = ours.reset(options={"reset_mask": mask}), theirs.reset(options={"reset_mask": mask})
        elif t == 150:
            seeds = [1, None, 3, None, 5]
            a, b = ours.reset(seed=seeds), theirs.reset(seed=seeds)
        else:
            actions = rng.integers(0, 5, n)
            a, b = ours.step(actions), theirs.step(actions)
            for mine, other in zip(a[1:4], b[1:4], strict=True):
                np.testing.assert_array_equal(mine, other)
                assert mine.dtype == other.dtype


def test_without_automatic_reset_a_game_that_is_over_stays_over():
    envs = SokobanVectorEnv(2, Levels.parse(TINY), autoreset_mode="Disabled")
    envs.reset(seed=0)
    first, second = envs.step(np.array([4, 0])), envs.step(np.array([3, 0]))
    assert first[1].tolist() == [10.99, -0.01] and first[2].tolist() == [True, False]
    assert second[1].tolist() == [0.0, -0.01] and second[2].tolist() == [True, False]
    np.testing.assert_array_equal(first[0], second[0])
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.step(np.array([4, 4]))[2].tolist() == [True, True]


def test_copies_are_the_callers_own_and_in_place_is_one_array():
    envs = SokobanVectorEnv(3, copy=True)
    first = envs.reset(seed=0)[0]
    kept = first.copy()
    assert envs.step(np.ones(3, int))[0] is not first and (first == kept).all()
    envs = SokobanVectorEnv(3, copy=False)
    assert envs.reset(seed=0)[0] is envs.step(np.ones(3, int))[0]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_restored_games_go_on_exactly(copy, mode):
    envs = SokobanVectorEnv(4, size=5, n_boxes=1, max_steps=30, n_danger=2, pomdp=True, autoreset_mode=mode, copy=copy)
    actions = np.random.default_rng(1).integers(0, 5, (200, 4))

    def play(actions):
        return [(obs.tobytes(), *(part.tolist() for part in rest),
                 {k: np.array(v).tolist() for k, v in info.items() if "final" not in k})
                for obs, *rest, info in map(envs.step, actions)]

    envs.reset(seed=2)
    for act in actions[:120]:  # stop where a game has just ended
        _, _, terminated, truncated, _ = envs.step(act)
        if (terminated | truncated).any():
            break
    assert (terminated | truncated).any()
    state, seen = envs.clone_state(), envs.observe().copy()
    trace = play(actions[120:])
    envs.restore_state(state)
    np.testing.assert_array_equal(envs.observe(), seen)
    assert play(actions[120:]) == trace
    envs.restore_state(envs.clone_state([1]), [3])
    assert all(np.all(values[1] == values[3]) for values in envs.clone_state().values())


def test_wrong_calls_of_the_vector_environment():
    envs = SokobanVectorEnv(2)
    with pytest.raises(gym.error.ResetNeeded):
        envs.step([0, 0])
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(gym.error.ResetNeeded):
        envs.step([0, 0])
    envs.reset(seed=np.int64(0))
    for actions, error, message in [
        (np.zeros(3, int), ValueError, r"shape \(3,\); expected \(2,\)"), (np.zeros(2), TypeError, "actions are float64"),
        ([0, 7], ValueError, "board 1 got action 7"),
    ]:
        with pytest.raises(error, match=message):
            envs.step(actions)
    assert envs.step(np.zeros(2, np.int32))[1].tolist() == [-0.01, -0.01]
    for options in ({"reset_mask": [True, False]}, {"reset_mask": np.zeros(2, bool)}, {"reset_mask": np.ones(3, bool)}):
        with pytest.raises(ValueError, match="reset_mask is"):
            envs.reset(options=options)
    with pytest.raises(ValueError, match="3 seeds for 2 games"):
        envs.reset(seed=[1, 2, 3])
