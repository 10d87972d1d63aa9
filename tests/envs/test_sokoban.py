"""Sokoban's rules: golden games, the compiled boards against the plain ones of sokoban_twin.py, state, seeds, arguments."""

import importlib.util
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from sokoban_twin import ReferenceBoard

from parl_like.envs.sokoban import SPRITES, Boards, Levels
from parl_like.envs.sokoban.levels import from_text, to_text

SHARED = Path(os.environ.get("PARL_LIKE_SHARED", "")) if os.environ.get("PARL_LIKE_SHARED") else None
needs_shared = pytest.mark.skipif(SHARED is None, reason="PARL_LIKE_SHARED does not name the folder with data/ and spec/")

FOUR = """\
##########
#@ $.    #
#  $.    #
#  $.    #
#  $.    #
#        #
#        #
#        #
#        #
##########
"""


def boards_of(*texts, n=1, **options):
    levels = Levels.of([from_text(text) for text in texts])
    return Boards(n, levels.size, levels.packed, SPRITES, **options)


class Game:
    """One board, step by step."""

    def __init__(self, text, counter=0, **options):
        self.boards = boards_of(text, **options)
        self.boards.reset(counter=counter)
        self.rew, self.flags = np.zeros(1), np.zeros((3, 1), bool)

    def __call__(self, action):
        self.boards.step(np.array([action]), self.rew, self.flags[0], self.flags[1], None, self.flags[2])
        return round(float(self.rew[0]), 9), bool(self.flags[0, 0]), bool(self.flags[1, 0])

    @property
    def text(self):
        return to_text(self.boards.tiles(0))


# ----------------------------------------------------------------------------------------------------------------- golden numbers


def test_the_golden_game():
    """thinker_golden.json, sokoban: box 1 home, a no-op push against the box below, box 1 off and on again, ... sum 13.73."""
    game = Game(FOUR)
    actions = [4, 4, 1, 4, 0, 2, 4, 4, 1, 3, 2, 2, 2, 2, 3, 3, 3, 1, 1, 1, 4, 3, 2, 4, 3, 2, 4, 0, 4]
    special = {1: 0.99, 3: -1.01, 9: 0.99, 20: 0.99, 23: 0.99, 26: 10.99, 27: 0.0, 28: 0.0}
    total = 0.0
    for t, action in enumerate(actions):
        rew, terminated, truncated = game(action)
        total += rew
        assert (rew, terminated, truncated) == (special.get(t, -0.01), t >= 26, False), t
        assert game.boards.counter_of(0) == t + 1  # it goes on counting after the end
    assert round(total, 9) == 13.73
    assert game.text.split("\n")[1:6] == ["#   !    #", "#   !    #", "#   !    #", "#  @!    #", "#        #"]


def test_time_runs_out():
    game = Game(FOUR)
    steps = [game(0) for _ in range(121)]
    assert steps[:119] == [(-0.01, False, False)] * 119
    assert steps[119:] == [(-0.01, False, True), (0.0, False, True)]
    assert game.boards.counter_of(0) == 119


def test_solved_in_the_very_last_step():
    game = Game("#####\n#@$.#\n#####\n#####\n#####\n", counter=119)
    assert game(4) == (10.99, True, True)
    assert game(0) == (0.0, True, True)


def test_a_solved_game_is_truncated_too_when_its_counter_gets_there():
    game = Game("#####\n#@$.#\n#####\n#####\n#####\n", counter=117)
    assert [game(action) for action in (4, 0, 0)] == [(10.99, True, False), (0.0, True, False), (0.0, True, True)]


@needs_shared
def test_the_golden_trace_on_the_first_boxoban_level():
    golden = json.loads((SHARED / "spec" / "thinker_golden.json").read_text())["sokoban"]
    levels = Levels.load(SHARED / "data" / "boxoban" / "unfiltered_train" / "000.txt", n_boxes=4)
    assert len(levels) == 1000 and levels[0].reshape(-1).tolist() == golden["boxoban_unfiltered_train_level0"]
    game = Game(to_text(levels[0]))
    assert [game(action)[0] for action in golden["level0_action"]] == golden["level0_reward"]
    assert game.boards.tiles(0).reshape(-1).tolist() == golden["level0_final_grid"]
    game = Game(to_text(np.array(golden["grid0"]).reshape(10, 10)))
    assert [game(action) for action in golden["action"]] == [
        (rew, bool(done), bool(truncated))
        for rew, done, truncated in zip(golden["reward"], golden["done"], golden["truncated"], strict=True)]
    assert game.boards.tiles(0).reshape(-1).tolist() == golden["final_grid"]


def script():
    path = Path(__file__).resolve().parent.parent / "conformance" / "replay_sokoban.py"
    spec = importlib.util.spec_from_file_location("replay_sokoban", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_shared
def test_recorded_games(capsys):
    assert script().main([str(SHARED / "data" / "sokoban_traces.json"), str(SHARED / "data" / "boxoban")]) == 0
    assert capsys.readouterr().out == "0 of 2000 steps differ, 0 of 16 final grids\n"


def test_replaying_finds_what_differs(tmp_path, capsys):
    (tmp_path / "000.txt").write_text(f"; 0\n{FOUR}\n; 1\n{FOUR}\n")
    final = FOUR.replace("@ $.", "  @!", 1)
    good = {"file": "000.txt", "level": 1, "action": [4, 4, 1], "reward": [-0.01, 0.99, -0.01], "done": [0, 0, 0],
            "truncated": [0, 0, 0],
            "final_grid": from_text(final).reshape(-1).tolist()}
    for games, expected in [
        ([good, good], "0 of 6 steps differ, 0 of 2 final grids"),
        ([good, good | {"reward": [-0.01, 1.01, -0.02]}], "2 of 6 steps differ, 0 of 2 final grids"),
        ([good | {"done": [0, 0, 1]}], "1 of 3 steps differ, 0 of 1 final grids"),
        ([good | {"truncated": [1, 0, 0]}], "1 of 3 steps differ, 0 of 1 final grids"),
        ([good | {"final_grid": [0] * 100}], "0 of 3 steps differ, 1 of 1 final grids"),
        ([good | {"level": 2}], "3 of 3 steps differ, 1 of 1 final grids"),
        ([good | {"reward": [-0.01]}], "3 of 3 steps differ, 1 of 1 final grids"),
    ]:
        (tmp_path / "traces.json").write_text(json.dumps(games))
        assert script().main([str(tmp_path / "traces.json"), str(tmp_path)]) == (not expected.startswith("0 of 6"))
        assert capsys.readouterr().out.splitlines()[-1] == expected


# -------------------------------------------------------------------------------------------------------------- rules, one by one


@pytest.mark.parametrize(("before", "action", "after", "rew"), [
    ("#####\n# @ #\n# $ #\n# . #\n#####\n", 1, "#####\n# @ #\n# $ #\n# . #\n#####\n", -0.01),  # against a wall
    ("#####\n# @ #\n# $ #\n#  .#\n#####\n", 2, "#####\n#   #\n# @ #\n# $.#\n#####\n", -0.01),  # a push
    ("#####\n#   #\n# @ #\n# $.#\n#####\n", 2, "#####\n#   #\n# @ #\n# $.#\n#####\n", -0.01),  # a box against a wall
    ("#####\n#@$$#\n#  .#\n#  .#\n#####\n", 4, "#####\n#@$$#\n#  .#\n#  .#\n#####\n", -0.01),  # a box against a box
    ("#####\n#@$.#\n#$ .#\n#   #\n#####\n", 4, "#####\n# @!#\n#$ .#\n#   #\n#####\n", 0.99),  # onto a target
    ("#####\n#@! #\n#$ .#\n#   #\n#####\n", 4, "#####\n# %$#\n#$ .#\n#   #\n#####\n", -1.01),  # off one; the player stands on it
    ("#####\n#@!.#\n#$ .#\n#$  #\n#####\n", 4, "#####\n# %!#\n#$ .#\n#$  #\n#####\n", -0.01),  # from one target to another
    ("#####\n#@. #\n#$  #\n#   #\n#####\n", 4, "#####\n# % #\n#$  #\n#   #\n#####\n", -0.01),  # the player onto a target
    ("#####\n#@^ #\n#$ .#\n#   #\n#####\n", 4, "#####\n# * #\n#$ .#\n#   #\n#####\n", -0.01),  # onto danger
    ("#####\n#@$^#\n#  .#\n#   #\n#####\n", 4, "#####\n# @&#\n#  .#\n#   #\n#####\n", -0.01),  # a box onto danger
    ("#####\n#@& #\n#  .#\n#   #\n#####\n", 4, "#####\n# *$#\n#  .#\n#   #\n#####\n", -0.01),  # and off it
    ("@$  #\n#####\n#####\n###.#\n#####\n", 3, "@$  #\n#####\n#####\n###.#\n#####\n", -0.01),  # nothing lies outside
    ("#####\n#####\n##.##\n#  $@\n#####\n", 3, "#####\n#####\n##.##\n# $@ \n#####\n", -0.01),  # from the edge
    ("#$@ #\n#####\n##.##\n#   #\n#####\n".replace("#$@", "$@ ", 1), 3, "$@  #\n#####\n##.##\n#   #\n#####\n", -0.01),
    # a box at the edge
])
def test_one_step(before, action, after, rew):
    game = Game(before)
    assert game(action) == (rew, False, False)
    assert game.text == after
    assert game.flags[2, 0] == ("*" in after)


@pytest.mark.parametrize("size", [5, pytest.param(7, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [
    {}, {"planes": True}, {"n_danger": 4}, {"pomdp": True}, {"n_danger": 3, "pomdp": True, "planes": True, "max_steps": 30},
], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("autoreset", [0, 1, 2])
def test_the_boards_play_as_the_reference_does(size, options, in_place, autoreset):
    """Random play: every observation, reward, flag and tile, through wins, time limits and automatic resets."""
    levels = Levels.shipped(size, 1)
    n, rng = 3, np.random.default_rng([size, in_place, autoreset])
    boards = Boards(n, size, levels.packed, SPRITES, autoreset=autoreset, **options)
    references = [ReferenceBoard(levels, 100 + i, **options) for i in range(n)]
    for i in range(n):
        boards.seed(i, 100 + i)
    boards.reset()
    obs, final = np.zeros((n, *boards.obs_shape), np.uint8), np.zeros(boards.obs_shape, np.uint8)
    rew, terminated, truncated, cost = np.zeros(n), np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, bool)
    boards.observe(obs, in_place)
    np.testing.assert_array_equal(obs, [reference.reset() for reference in references])
    ends = 0
    for t in range(130):
        actions = rng.integers(0, 5, n)
        over = [reference.done for reference in references]
        if not in_place:
            obs = np.zeros_like(obs)
        ended = boards.step(actions, rew, terminated, truncated, obs, cost, in_place)
        for i, reference in enumerate(references):
            if autoreset == 1 and over[i]:
                expected = reference.reset(), 0.0, False, False, False
            else:
                expected = reference.step(actions[i])
            got = [rew[i], terminated[i], truncated[i], cost[i]]
            np.testing.assert_allclose(got, expected[1:], rtol=0, atol=1e-12, err_msg=f"step {t} of board {i}")
            ended -= reference.done and not over[i]
            if autoreset == 2 and reference.done:
                boards.final_obs(i, final)
                np.testing.assert_array_equal(final, expected[0])
                np.testing.assert_array_equal(boards.tiles(i, ended=True), reference.tiles)
                expected = (reference.reset(),)
                ends += 1
            np.testing.assert_array_equal(obs[i], expected[0], err_msg=f"step {t} of board {i}")
            np.testing.assert_array_equal(boards.tiles(i), reference.tiles)
            assert (boards.level_of(i), boards.counter_of(i)) == (reference.level, reference.counter)
        assert ended == 0  # as many as the references counted
    assert autoreset != 2 or ends > 0


def test_sprites_differ_and_are_images():
    assert SPRITES.shape == (10, 3, 8, 8) and SPRITES.dtype == np.uint8
    assert len({sprite.tobytes() for sprite in SPRITES}) == 10


def test_planes_say_what_is_where():
    boards = boards_of("#####\n#@! #\n#$%.#\n#&^ #\n#####\n".replace("%", "."), planes=True)
    obs = np.zeros((1, 5, 5, 5), np.uint8)
    boards.observe(obs)
    rows = ["".join(map(str, plane[row, 1:4])) for row in (1, 2, 3) for plane in obs[0]]
    #                wall   target  box   player danger
    assert rows == ["000", "010", "010", "100", "000",
                    "000", "011", "100", "000", "000",
                    "000", "000", "100", "000", "110"]


def test_danger_lies_on_empty_floor_only_and_a_small_room_gets_what_fits():
    boards = boards_of("#####\n#@$.#\n#  ##\n#####\n#####\n", n_danger=5)
    boards.reset()
    assert to_text(boards.tiles(0)) == "#####\n#@$.#\n#^^##\n#####\n#####\n"


def test_under_pomdp_the_truth_stays_hidden_and_whole():
    levels = Levels.shipped(7, 2)
    boards = Boards(1, 7, levels.packed, SPRITES, pomdp=True, planes=True)
    obs = np.zeros((1, *boards.obs_shape), np.uint8)
    away = 0
    for _ in range(50):
        boards.reset()
        before = boards.tiles(0)
        boards.observe(obs)
        np.testing.assert_array_equal(boards.tiles(0), before)
        shown, true = np.argwhere(obs[0, 3])[0], np.argwhere(before == 4)[0]
        assert abs(shown - true).sum() <= 1 and before[tuple(shown)] in (1, 4, 6)
        np.testing.assert_array_equal(obs[0, 2], before == 2)
        away += (shown != true).any()
    assert 0 < away < 50


# --------------------------------------------------------------------------------------------------------------- drawing in place


def test_drawing_in_place_touches_only_what_changes():
    boards = boards_of(FOUR)
    obs, spare = np.zeros((2, 1, 3, 80, 80), np.uint8)
    args = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    boards.reset(counter=0)
    boards.observe(obs, in_place=True)
    obs[:] = 1
    boards.step(np.array([4]), *args, obs, None, True)
    assert (obs[0, :, 8:16, 24:] == 1).all() and (obs[0, :, 16:] == 1).all()
    np.testing.assert_array_equal(obs[0, :, 8:16, 8:24], np.concatenate([SPRITES[1], SPRITES[4]], axis=2))
    boards.step(np.array([4]), *args, spare, None, True)  # another array: all of it
    whole = np.zeros_like(obs)
    boards.observe(whole)
    np.testing.assert_array_equal(spare, whole)
    boards.step(np.array([3]), *args, None)  # drawn nowhere, so nothing is known of `spare`
    boards.step(np.array([0]), *args, spare, None, True)
    boards.observe(whole)
    np.testing.assert_array_equal(spare, whole)


# ---------------------------------------------------------------------------------------------------------------- state and seeds


@pytest.mark.parametrize("options", [{}, {"n_danger": 3, "pomdp": True}])
@pytest.mark.parametrize("autoreset", [0, 1, 2])
@pytest.mark.parametrize("in_place", [False, True])
def test_restored_boards_go_on_exactly(options, autoreset, in_place):
    levels = Levels.shipped(6, 1)
    n = 4
    actions = np.random.default_rng(0).integers(0, 5, (400, n))

    def play(boards, steps, obs):
        trace = []
        args = np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)
        boards.observe(obs, in_place)
        for act in steps:
            boards.step(act, *args, obs, None, in_place)
            trace.append([obs.tobytes(), *(array.tolist() for array in args)])
        return trace

    boards = Boards(n, 6, levels.packed, SPRITES, autoreset=autoreset, **options)
    obs = np.zeros((n, *boards.obs_shape), np.uint8)
    play(boards, actions[:90], obs)
    state = boards.clone_state()
    trace = play(boards, actions[90:], obs)
    boards.restore_state(state)
    assert play(boards, actions[90:], obs) == trace
    other = Boards(n, 6, levels.packed, SPRITES, autoreset=autoreset, **options)
    other.restore_state(state)
    assert play(other, actions[90:], np.zeros_like(obs)) == trace
    # and one board by itself, in another place
    one = boards.clone_state([2])
    other.restore_state(one, [0])
    assert all((other.clone_state([0])[name] == one[name]).all() for name in one)


def test_a_state_that_cannot_be_is_refused_before_anything_changes():
    levels = Levels.shipped(7, 2)
    boards = Boards(2, 7, levels.packed, SPRITES)
    good = boards.clone_state()
    solved = good["tiles"].copy()
    solved[0][solved[0] == 2] = 3

    def wrong(name, value):
        return good | {name: value}

    two = good["tiles"].copy()
    two[1][np.where(two[1] == 1)[0][0], np.where(two[1] == 1)[1][0]] = 4
    for state, message in [
        ({k: v for k, v in good.items() if k != "rng"}, "'rng' is missing"),
        (wrong("tiles", good["tiles"][:1]), r"'tiles' is \(1, 7, 7\) uint8; expected \(2, 7, 7\) uint8"),
        (wrong("counter", good["counter"].astype(np.int64)), r"'counter' is \(2,\) int64"),
        (wrong("tiles", np.full_like(good["tiles"], 11)), "row 0 has the tile code 11"),
        (wrong("tiles", two), "row 1 has not exactly one player"),
        (wrong("tiles", solved), "row 0 has no box left but is not done"),
        (wrong("counter", np.array([0, 120], np.int32)), "row 1 has the counter 120; expected 0 to 119"),
        (wrong("level", np.array([0, len(levels)])), f"row 1 is of level {len(levels)}"),
        (wrong("shown", np.array([0, 0], np.uint8)), "row 0 shows the player at cell 0"),
        (wrong("shown", np.array([49, 0], np.uint8)), "row 0 shows the player at cell 49"),
    ]:
        with pytest.raises(ValueError, match=f"^Boards.restore_state: {message}"):
            boards.restore_state(state)
        assert all((boards.clone_state()[name] == good[name]).all() for name in good)


def test_the_same_numbers_on_every_platform():
    """The first levels and counters of seed 7, written down."""
    levels = Levels.shipped(10, 4)
    boards = Boards(1, 10, levels.packed, SPRITES)
    boards.seed(0, 7)
    drawn = []
    for _ in range(6):
        boards.reset()
        drawn.append((boards.level_of(0), boards.counter_of(0)))
    assert drawn == [(3607, 3), (2746, 3), (1740, 1), (4578, 5), (4315, 0), (4563, 2)]


def test_levels_and_counters_are_uniform():
    levels = Levels(Levels.shipped(7, 2).packed[:10].copy(), 7)
    boards = Boards(1, 7, levels.packed, SPRITES)
    boards.seed(0, 0)
    n, counts = 6000, np.zeros((10, 6), int)
    for _ in range(n):
        boards.reset()
        counts[boards.level_of(0), boards.counter_of(0)] += 1
    expected = n / 60
    assert ((counts - expected) ** 2 / expected).sum() < 98.3  # chi-square, 59 degrees of freedom, 0.001; the seed is fixed


def test_neighbouring_seeds_have_nothing_in_common():
    levels = Levels.shipped(10, 4)
    boards = Boards(64, 10, levels.packed, SPRITES)
    rows = []
    for i in range(64):
        boards.seed(i, i)
    for _ in range(4):
        boards.reset()
        rows.append([boards.level_of(i) for i in range(64)])
    assert len(np.unique(rows)) > 240  # of 256; 5,000 levels to draw from


# ------------------------------------------------------------------------------------------------------------------ arguments


def test_wrong_arguments_are_named():
    levels = Levels.shipped(7, 2)
    for options, message in [
        ({"n": 0}, "n is 0"), ({"size": 11}, "size is 11"), ({"size": 8}, "levels has 50000 items; expected 64000"),
        ({"n_danger": -1}, "n_danger"),
        ({"max_steps": 6}, "max_steps is 6"), ({"autoreset": 3}, "autoreset is 3"),
        ({"levels": levels.packed[:0]}, "there are no levels"),
        ({"sprites": SPRITES[:9]}, "sprites has 1728 items; expected 1920"),
    ]:
        given = {"n": 1, "size": 7, "levels": levels.packed, "sprites": SPRITES} | options
        with pytest.raises(ValueError, match=f"^Boards: {message}"):
            Boards(given.pop("n"), given.pop("size"), given.pop("levels"), given.pop("sprites"), **given)


def test_arrays_that_do_not_fit_are_refused_and_nothing_moves():
    levels = Levels.shipped(7, 2)
    boards = Boards(2, 7, levels.packed, SPRITES)
    before = boards.clone_state()
    acts, rew, flags, obs = np.array([1, 2]), np.zeros(2), np.zeros(2, bool), np.zeros((2, 3, 56, 56), np.uint8)
    frozen = obs.copy()
    frozen.flags.writeable = False
    for error, message, args in [
        (TypeError, "actions has items of type 'i'", (acts.astype(np.int32), rew, flags, flags, obs)),
        (TypeError, "actions has items of type 'd'", (acts.astype(float), rew, flags, flags, obs)),
        (ValueError, "actions has 1 items; expected 2", (acts[:1], rew, flags, flags, obs)),
        (TypeError, "rew has items of type 'l'", (acts, acts, flags, flags, obs)),
        (TypeError, "terminated: expected a writable C-contiguous array", (acts, rew, None, flags, obs)),
        (ValueError, "truncated has 3 items", (acts, rew, flags, np.zeros(3, bool), obs)),
        (ValueError, "obs has 9408 items; expected 18816", (acts, rew, flags, flags, obs[:1])),
        (TypeError, "obs: expected a writable C-contiguous array", (acts, rew, flags, flags, obs[..., ::-1])),
        (TypeError, "obs: expected a writable C-contiguous array", (acts, rew, flags, flags, frozen)),
        (TypeError, "cost has items of type 'd'", (acts, rew, flags, flags, obs, rew)),
    ]:
        with pytest.raises(error, match=f"^Boards: {message}"):
            boards.step(*args)
    for bad in ([0, 5], [-1, 0]):
        with pytest.raises(ValueError, match=rf"^Boards.step: board {bad.index(min(bad) if min(bad) < 0 else 5)} got action "
                                             r"(5|-1)"):
            boards.step(np.array(bad), rew, flags, flags)
    assert all((boards.clone_state()[name] == before[name]).all() for name in before)
    for call in (boards.tiles, boards.level_of, boards.counter_of, lambda i: boards.seed(i, 0), lambda i: boards.reset([i])):
        with pytest.raises(IndexError, match="there is no board 2; there are 2"):
            call(2)
    with pytest.raises(ValueError, match="there is no level 2000"):
        boards.reset(level=2000)
    with pytest.raises(ValueError, match="counter is 120"):
        boards.reset(counter=120)


def test_the_action_of_a_board_that_begins_anew_is_not_looked_at():
    boards = boards_of("#####\n#@$.#\n#####\n#####\n#####\n", autoreset=1)
    args = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    assert boards.step(np.array([4]), *args) == 1
    assert boards.step(np.array([99]), *args) == 0
    with pytest.raises(ValueError):
        boards.step(np.array([99]), *args)


def test_rewards_in_single_precision():
    boards = boards_of("#####\n#@$.#\n#####\n#####\n#####\n")
    rew = np.zeros(1, np.float32)
    boards.step(np.array([4]), rew, np.zeros(1, bool), np.zeros(1, bool))
    assert rew[0] == np.float32(10.99)


def test_threads_with_boards_of_their_own_share_the_levels():
    levels = Levels.shipped(10, 4)
    actions = np.random.default_rng(0).integers(0, 5, (300, 8))

    def play():
        boards = Boards(8, 10, levels.packed, SPRITES, autoreset=2)
        args = np.zeros(8), np.zeros(8, bool), np.zeros(8, bool), np.zeros((8, 3, 80, 80), np.uint8)
        for act in actions:
            boards.step(act, *args, None, True)
        return args[3].tobytes()

    alone, results = play(), []
    threads = [threading.Thread(target=lambda: results.append(play()), name=f"player {i}") for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), f"{thread.name} still plays"
    assert results == [alone] * 3


def test_two_threads_in_the_same_boards_are_told():
    boards = Boards(2048, 10, Levels.shipped(10, 4).packed, SPRITES)
    args = np.zeros(2048), np.zeros(2048, bool), np.zeros(2048, bool), np.zeros((2048, 3, 80, 80), np.uint8)
    seen, actions = threading.Event(), np.zeros(2048, np.int64)

    def step():
        while not seen.is_set():
            boards.step(actions, *args)

    thread = threading.Thread(target=step, name="stepper")
    thread.start()
    try:
        for _ in range(1_000_000):  # the other lets go of the GIL while it draws
            boards.level_of(0)
        pytest.fail("no call met the other thread's")
    except RuntimeError as error:
        assert str(error) == "Boards: another thread is in a call of the same boards"
    finally:
        seen.set()
        thread.join(timeout=30)
    assert not thread.is_alive()
    boards.level_of(0)
