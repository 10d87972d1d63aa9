"""Sokoban's levels: files, what is wrong with files, the generator, the solver, the sets that ship."""

import gzip
import hashlib
import os

import numpy as np
import pytest

from parl_like.envs.sokoban import SPRITES, Boards, LevelError, Levels, SokobanEnv, solve
from parl_like.envs.sokoban import levels as levels_module
from parl_like.envs.sokoban.levels import default_min_pushes, from_text, to_text
from parl_like.envs.sokoban.make_levels import SETS, main

ONE = "#####\n#@$.#\n#####\n#####\n#####\n"
TWO = "#####\n#% $#\n#$ .#\n#   #\n#####\n"
GOOD = f"; 0\n{ONE}\n; 1\n{TWO}\n"


def play(tiles, actions):
    """Rewards of a game from counter 0, without a time limit."""
    levels = Levels.of([tiles])
    boards = Boards(1, levels.size, levels.packed, SPRITES, max_steps=100_000)
    boards.reset(counter=0)
    rew, terminated = np.zeros(1), np.zeros(1, bool)
    total = 0.0
    for action in actions:
        assert not terminated[0]
        boards.step(np.array([action]), rew, terminated, np.zeros(1, bool))
        total += rew[0]
    return total, bool(terminated[0])


# ------------------------------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("text",
                         [GOOD, GOOD.replace("\n", "\r\n"), GOOD.rstrip("\n"), GOOD.replace("\n\n", "\n"),
                          "\n\n" + GOOD + "\n\n"],
                         ids=["as it is", "windows", "no newline at the end", "no blank lines", "more blank lines"])
def test_reading(text):
    levels = Levels.parse(text)
    assert (len(levels), levels.size) == (2, 5)
    assert [to_text(levels[i]) for i in range(2)] == [ONE, TWO]
    assert levels.text() == GOOD


def test_every_code_has_its_character_and_others_are_walls():
    text = "#####\n# $!@\n.^&*%\n????x\n#####\n"
    codes = from_text(text)
    assert codes.reshape(-1).tolist() == [0] * 5 + [0, 1, 2, 3, 4] + [6, 7, 8, 9, 5] + [0] * 10
    levels = Levels.parse("; 0\n" + ONE.replace("#####", "#?x\t#", 1))
    assert to_text(levels[0]) == ONE


@pytest.mark.parametrize(("text", "line", "level", "what"), [
    ("", 0, None, "no level in the file"),
    (ONE, 1, None, "expected a line that begins with ';' before each level"),
    (GOOD + "#####\n", 15, 1, "expected a line that begins with ';' before each level"),
    (f"; 0\n{ONE}; 1\n#####\n#@$#\n", 9, 1, "row 1 has 4 characters; expected 5"),
    (f"; 0\n{ONE}; 1\n#####\n\n", 9, 1, "row 1 has 0 characters; expected 5"),
    (f"; 0\n{ONE}; 1\n#####\n#@$.# \n", 9, 1, "row 1 has 6 characters; expected 5"),
    ("; 0\n##\n", 2, 0, "the row has 2 characters; boards have 3 to 10"),
    ("; 0\n###########\n", 2, 0, "the row has 11 characters; boards have 3 to 10"),
    (f"; 0\n{ONE}; 1\n#####\n; 2\n", 9, 1, "the level before this line has 1 row; expected 5"),
    (f"; 0\n{ONE}; 1\n#####\n#####\n", 9, 1, "the file ends after 2 rows of the level"),
    (f"; 0\n{ONE.replace('@', ' ')}", 6, 0, "0 players; expected exactly one"),
    (f"; 0\n{ONE}; 1\n{ONE.replace('#####', '#%#*#', 1)}", 12, 1, "3 players; expected exactly one"),
    (f"; 0\n{ONE.replace('$', ' ')}", 6, 0, "no box"),
    (f"; 0\n{ONE.replace('.', ' ')}", 6, 0, "1 box but 0 targets"),
    (f"; 0\n{TWO.replace('%', '@')}", 6, 0, "2 boxes but 1 target"),
    (f"; 0\n{ONE.replace('$.', '! ')}", 6, 0, "every box is on a target already"),
])
def test_what_is_wrong_is_said_with_its_place(text, line, level, what, tmp_path):
    path = tmp_path / "000.txt"
    path.write_text(text)
    with pytest.raises(LevelError) as caught:
        Levels.load(path)
    assert str(caught.value).startswith(f"{path}, line {line}{'' if level is None else f', level {level}'}: {what}")


def test_the_number_of_boxes_and_the_size_may_be_demanded():
    assert len(Levels.parse(GOOD)) == 2
    with pytest.raises(LevelError, match="^text, line 13, level 1: 2 boxes; expected 1$"):
        Levels.parse(GOOD, n_boxes=1)
    with pytest.raises(LevelError, match="^text, line 2, level 0: row 0 has 5 characters; expected 7$"):
        Levels.parse(GOOD, size=7)


def test_a_folder_is_read_in_the_order_of_names_once(tmp_path):
    (tmp_path / "001.txt").write_text(f"; 0\n{TWO}")
    (tmp_path / "000.txt").write_text(f"; 0\n{ONE}")
    (tmp_path / "002.txt.gz").write_bytes(gzip.compress(f"; 0\n{ONE}".encode()))
    (tmp_path / "README.md").write_text("not a level")
    (tmp_path / "LICENSE.txt").write_text("not a level")
    levels = Levels.load(tmp_path)
    assert [to_text(levels[i]) for i in range(len(levels))] == [ONE, TWO, ONE]
    assert Levels.load(str(tmp_path)) is levels
    assert Levels.load(tmp_path, n_boxes=0, size=5) is not levels
    (tmp_path / "003.txt").write_text(f"; 0\n{TWO}")
    assert len(Levels.load(tmp_path)) == 4  # the folder is another one now
    (tmp_path / "003.txt").write_text(f"; 0\n{'#' * 6}\n")
    with pytest.raises(LevelError, match=r"003.txt, line 2, level 0: row 0 has 6 characters; expected 5"):
        Levels.load(tmp_path)
    (tmp_path / "003.txt").unlink()
    (tmp_path / "002.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(LevelError, match=r"002.txt.gz: not a whole gzip file"):
        Levels.load(tmp_path)


def test_no_such_levels(tmp_path):
    with pytest.raises(FileNotFoundError, match="no level file"):
        Levels.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Levels.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no 'train' levels of 5×5 with 4 boxes ship with the package"):
        Levels.shipped(5, 4)
    with pytest.raises(IndexError, match="there is no level 2; there are 2"):
        Levels.parse(GOOD)[2]


def test_levels_are_kept_compactly_and_cannot_be_written():
    levels = Levels.shipped(10, 4)
    assert levels.packed.nbytes == 50 * len(levels)
    with pytest.raises(ValueError, match="read-only"):
        levels.packed[0, 0] = 1
    with pytest.raises(ValueError, match=r"packed is \(2, 3\) uint8; expected \(n ≥ 1, 13\) uint8"):
        Levels(np.zeros((2, 3), np.uint8), 5)


def test_levels_of_arrays():
    levels = Levels.of([from_text(ONE), from_text(TWO)])
    assert levels.text() == GOOD
    for tiles, message in [
        ([from_text(ONE), from_text(ONE.replace("@", " "))], "levels, level 1: 0 players"),
        ([from_text(ONE), np.pad(from_text(ONE), (0, 1))], "levels, level 1: it is 6×6; those before are 5×5"),
        ([], "levels: no level"),
    ]:
        with pytest.raises(LevelError, match=f"^{message}"):
            Levels.of(tiles)
    with pytest.raises(ValueError, match="tiles hold the code 10"):
        Levels.of([np.full((5, 5), 10)])
    with pytest.raises(ValueError, match="tiles are 5 × 4"):
        Levels.of([np.zeros((5, 4))])


# ------------------------------------------------------------------------------------------------------------------ solving


def test_a_solution_worked_out_by_hand():
    # One push to the right: up to the left of the box, then right.
    tiles = from_text("#####\n#   #\n# $.#\n#@  #\n#####\n")
    solution = solve(tiles)
    assert (solution.solvable, solution.pushes, solution.actions.tolist()) == (True, 1, [1, 4])
    assert play(tiles, solution.actions) == (pytest.approx(11 - 0.02), True)


@pytest.mark.parametrize(("text", "solvable"), [
    ("#####\n#$ .#\n#  @#\n#   #\n#####\n", False),  # in a corner
    ("#####\n#@$ #\n## ##\n##.##\n#####\n", False),  # the player cannot get behind it
    ("######\n#@ $.#\n# $$.#\n#   .#\n#    #\n######\n", True),
    ("######\n#.$$.#\n# $$ #\n#.  .#\n#@   #\n######\n", False),  # four in a square
])
def test_what_can_be_solved(text, solvable):
    solution = solve(from_text(text))
    assert solution.solvable is solvable
    assert (len(solution.actions) > 0) == solvable


def test_the_limit_leaves_it_open():
    levels = Levels.shipped(10, 4, "hard")
    assert solve(levels[0], limit=10).solvable is None
    assert solve(levels[0]).solvable


def brute_force(tiles):
    """Least pushes, by walking through all positions with the boards themselves; None: cannot be solved."""
    levels = Levels.of([tiles])
    boards = Boards(1, levels.size, levels.packed, SPRITES, max_steps=1_000_000)
    boards.reset(counter=0)
    start = boards.clone_state()
    args = np.zeros(1), np.zeros(1, bool), np.zeros(1, bool)
    layer, seen, pushes = [start], {start["tiles"].tobytes()}, 0
    while layer:
        pushed = []
        while layer:  # all that is reached with so many pushes
            state = layer.pop()
            for action in range(1, 5):
                boards.restore_state(state)
                boards.step(np.array([action]), *args)
                after = boards.clone_state()
                boxes = [np.isin(s["tiles"], (2, 3)) for s in (state, after)]
                is_push = (boxes[0] != boxes[1]).any()
                if args[1][0]:
                    return pushes + 1
                if after["tiles"].tobytes() not in seen:
                    if not is_push:
                        seen.add(after["tiles"].tobytes())
                    (pushed if is_push else layer).append(after)
        layer, pushes = [s for s in pushed if s["tiles"].tobytes() not in seen], pushes + 1
        seen |= {s["tiles"].tobytes() for s in layer}
    return None


@pytest.mark.parametrize(("size", "n_boxes"), [(5, 1), (5, 2), (6, 1), (6, 2)])
def test_solutions_have_the_fewest_pushes(size, n_boxes):
    """Also on levels that cannot be solved: boxes and player thrown anywhere into the rooms."""
    levels, rng, unsolvable = Levels.shipped(size, n_boxes), np.random.default_rng([size, n_boxes]), 0
    for i in range(8):
        tiles = levels[i]
        if i >= 4:
            room = np.where(tiles == 0, 0, 1).astype(np.uint8)
            cells = rng.permutation(np.argwhere(room))[: 2 * n_boxes + 1]
            for code, cell in zip([4] + [2] * n_boxes + [6] * n_boxes, cells, strict=True):
                room[tuple(cell)] = code
            tiles = room
        expected, solution = brute_force(tiles), solve(tiles)
        assert (solution.pushes if solution.solvable else None) == expected
        unsolvable += expected is None
    assert unsolvable > 0


# ------------------------------------------------------------------------------------------------------------------ making


@pytest.mark.parametrize(("size", "n_boxes"), [(size, n) for size in range(5, 11) for n in range(1, 5) if (size, n) != (5, 4)])
def test_every_generated_level_is_solved_by_playing_it(size, n_boxes):
    levels = Levels.generate(40, size, n_boxes, seed=size)
    for i in range(len(levels)):
        tiles = levels[i]
        assert [(tiles == code).sum() for code in (2, 4, 6)] == [n_boxes, 1, n_boxes]
        assert np.isin(tiles, (0, 1, 2, 4, 6)).all()
        assert not (tiles[[0, -1]].any() or tiles[:, [0, -1]].any())
        solution = solve(tiles)
        assert solution.solvable and solution.pushes >= default_min_pushes(size, n_boxes)
        total, solved = play(tiles, solution.actions)
        assert solved and total == pytest.approx(10 + n_boxes - 0.01 * len(solution.actions))


def test_a_level_depends_on_its_seed_and_index_only():
    levels = Levels.generate(20, 8, 3, seed=5)
    assert (Levels.generate(5, 8, 3, seed=5, first=10).packed == levels.packed[10:15]).all()
    assert not (Levels.generate(20, 8, 3, seed=6).packed == levels.packed).all(axis=1).any()
    assert len(np.unique(Levels.generate(300, 8, 3).packed, axis=0)) == 300


def test_generated_levels_are_the_same_on_every_platform():
    text = Levels.generate(50, 7, 2, seed=3).text() + Levels.generate(50, 10, 4, seed=2**64 - 1).text()
    assert hashlib.sha256(text.encode()).hexdigest() == "c1d0f53abad2c2a4f0f4bbd36cf1414e91647ee8fef4559137b9b427c4ec12d4"


def test_what_cannot_be_generated():
    for args, message in [((0, 7, 2), "n=0, size=7"), ((1, 4, 1), "size=4"), ((1, 11, 1), "size=11"), ((1, 7, 5), "n_boxes=5"),
                          ((1, 7, 2, -1), "seed=-1")]:
        with pytest.raises(ValueError, match=message):
            Levels.generate(*args)
    with pytest.raises(ValueError, match="no 5×5 level with 1 boxes and 50 pushes found for level 0 of seed 0"):
        Levels.generate(1, 5, 1, min_pushes=50)


# ------------------------------------------------------------------------------------------------------------------ what ships


@pytest.mark.parametrize("one", SETS, ids=lambda one: one.name)
def test_shipped_levels_are_different_and_solvable(one):
    levels = Levels.shipped(one.size, one.n_boxes, one.kind)
    assert len(levels) == one.n or (one.size == 5 and len(levels) > 200)
    assert len(np.unique(levels.packed, axis=0)) == len(levels)
    for i in range(0, len(levels), max(len(levels) // 60, 1)):
        solution = solve(levels[i])
        assert solution.solvable and solution.expanded >= one.hardness


def test_no_level_is_in_two_sets():
    sets = [Levels.shipped(10, 4, kind).packed for kind in ("train", "test", "medium", "hard")]
    assert len(np.unique(np.concatenate(sets), axis=0)) == sum(map(len, sets))


@pytest.mark.parametrize("size", range(6, 10))
@pytest.mark.parametrize("n_boxes", range(1, 5))
def test_held_out_levels_are_not_trained_on(size, n_boxes):
    train, test = Levels.shipped(size, n_boxes).packed, Levels.shipped(size, n_boxes, "test").packed
    assert len(test) == 500 and len(np.unique(np.concatenate([train, test]), axis=0)) == len(train) + len(test)


def test_the_command_makes_what_ships(tmp_path, capsys):
    assert main(["--only", "5x5-2", "--check"]) == 0
    assert main(["--only", "7x7-2-test", "--check"]) == 0
    assert main(["--only", "7x7-2-train", "--folder", str(tmp_path)]) == 0
    made = Levels.load(tmp_path / "7x7-2-train.txt.gz")
    assert (made.packed == Levels.shipped(7, 2).packed).all()
    (tmp_path / "7x7-2-train.txt.gz").write_bytes(gzip.compress(made.text()[:-1].encode()))
    assert main(["--only", "7x7-2-train", "--folder", str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "7x7-2-train.txt.gz: differs"


@pytest.mark.slow
def test_the_command_makes_all_that_ships():
    assert main(["--check"]) == 0


# ---- files that nobody would make by accident


@pytest.mark.parametrize("name", ["levels.txt", "levels.txt.gz", "folder/000.txt", "folder/000.txt.gz"])
def test_a_pipe_in_place_of_levels_is_not_waited_for(name, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    for make in (Levels.load, SokobanEnv):
        with pytest.raises(LevelError, match="it is not a plain file; a set of levels is plain files with at most"):
            make(path if path.parent == tmp_path else path.parent)


def test_an_endless_file_in_place_of_levels_is_refused(tmp_path):
    for name in ("a.txt", "a.txt.gz"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(LevelError, match="it is not a plain file"):
            Levels.load(tmp_path / name)
    with pytest.raises(LevelError, match="it is not a plain file"):
        Levels.load("/dev/zero")


def test_packed_levels_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(levels_module, "MAX_TEXT", 1_000_000)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"; 0\n" * 1_000_000))
    with pytest.raises(LevelError, match=r"bomb.txt.gz: it has over 1000000 bytes; .* at most 1,000,000 bytes of text together"):
        Levels.load(tmp_path / "bomb.txt.gz")


def test_a_set_s_files_have_one_limit_together(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"; 0\n{ONE}")
    whole = 3 * len(f"; 0\n{ONE}")
    monkeypatch.setattr(levels_module, "MAX_TEXT", whole)
    assert len(Levels.load(tmp_path)) == 3
    monkeypatch.setattr(levels_module, "MAX_TEXT", whole - 1)
    (tmp_path / "2.txt").touch()  # another set, so not the one that is known already
    os.utime(tmp_path / "2.txt", ns=(1, 1))
    with pytest.raises(LevelError, match=r"2\.txt: it has .* bytes; expected at most"):
        Levels.load(tmp_path)


def test_a_folder_with_too_many_names_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(levels_module, "MAX_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"; 0\n{ONE}")
    with pytest.raises(LevelError, match="it has over 2 entries; give a level file, or a folder of level files"):
        Levels.load(tmp_path)
