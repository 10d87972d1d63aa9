"""What the dashboard says of run directories: right numbers, of what is there now; hostile ones harm nobody."""

import base64
import hashlib
import itertools
import json
import os
import re
import shutil
import time

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from dashboards import COLUMNS, Served, make_run, row

from parl_like.lab.dashboard import board as boards
from parl_like.lab.dashboard import catalogue, columns
from parl_like.lab.dashboard.board import Board, NotThere
from parl_like.lab.dashboard.columns import Column, bucketed, cells, cells_reference, header_of
from parl_like.lab.dashboard.export import export
from parl_like.lab.reports.plots import POINTS, curves
from parl_like.lab.runs.metrics import METRICS, as_csv
from parl_like.lab.runs.outbox import RunError

NASTY = [
    "",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1",
    "-2.5e-3",
    "x",
    "=1+1",
    "1_0",
    " 7",
    "0x10",
    "1" * 40,
    "é",
    "\x1b[31m",
    "--",
    "1e",
    ".",
]


def told(board, metric, ids=None):
    """All curves of a metric."""
    return {one["run"]: one for one in board.whole([metric], board.runs()["ids"] if ids is None else ids)}


def only(board):
    found = board.runs()
    assert len(found["runs"]) == 1 and found["runs"][0]["id"] == found["ids"][0]
    return found["runs"][0]


# ---- columns


@pytest.mark.parametrize("seed", range(8))
def test_many_cells_at_once_are_what_one_by_one_are(seed):
    rng = np.random.default_rng(seed)
    width = int(rng.integers(1, 7))
    lines = []
    for _ in range(int(rng.integers(0, 60))):
        n = width if rng.random() < 0.9 else int(rng.integers(1, 9))
        lines.append(",".join(NASTY[rng.integers(len(NASTY))] if rng.random() < 0.4 else repr(rng.normal()) for _ in range(n)))
    text = "".join(f"{line}\n" for line in lines).encode()
    wanted = rng.integers(width, size=3).tolist()
    if width == 1:
        text = text.replace(b"\n\n", b"\n").removeprefix(b"\n")  # Python's reader takes an empty line for none
    np.testing.assert_array_equal(cells(text, width, wanted), cells_reference(text, width, wanted))


def test_cells_in_quotation_marks_are_read_too():
    np.testing.assert_array_equal(cells(b'1,"2",3\n4,5,"6,7"\n', 3, [1, 2]), [[2, 5], [3, np.nan]])


def test_a_header_may_have_line_ends_and_commas_in_names():
    text = as_csv([["step", "a,b", "c\nd", 'e"f'], ["1", "2", "3", "4"]])
    assert header_of(text) == (["step", "a,b", "c\nd", 'e"f'], b"1,2,3,4\n")
    assert header_of(b'step,"a\n') == ([], b"")


def test_a_curve_is_that_of_the_plots(tmp_path):
    run = make_run(tmp_path, "one", rows=500)
    column = Column(run.path, run.path, "RL/loss")
    assert column.advance(time.perf_counter() + 60) == (True, False)
    steps, values = curves(run, "RL/loss")["RL/loss"]
    np.testing.assert_array_equal(column.points()[:2], [steps, values])
    np.testing.assert_array_equal(column.points()[2], np.arange(500))


def test_a_long_curve_is_thinned_like_that_of_the_plots(tmp_path):
    lines = "".join(f"{i},{i / 100},{(i * 7919) % 1009}\n" for i in range(3 * POINTS))
    run = make_run(tmp_path, "one", table=b"step,elapsed_s,x\n" + lines.encode())
    column = Column(run.path, run.path, "x")
    column.advance(time.perf_counter() + 60)
    points = column.points()
    assert POINTS // 2 <= points.shape[1] <= POINTS
    assert (points[1].min(), points[1].max()) == (0, 1008)
    assert (np.diff(points[0]) > 0).all() and points[0, -1] == 3 * POINTS - 1


def test_first_episodes_that_end_are_no_means(tmp_path):
    table = b"step,elapsed_s,return/mean,episode/first_open\n1,1,5,2\n2,2,6,1\n3,3,7,\n4,4,8,0\n"
    run = make_run(tmp_path, "one", table=table)
    column = Column(run.path, run.path, "return/mean")
    column.advance(time.perf_counter() + 60)
    assert column.points()[1].tolist() == [7, 8] == curves(run, "return/mean")["return/mean"][1].tolist()


@pytest.mark.parametrize("piece", [7, 64, 1 << 20])
def test_a_growing_table_is_read_on_and_a_torn_line_later(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(columns.GrowingFile.read, "__defaults__", (piece,))
    run = make_run(tmp_path, "one", table=b"step,x\n1,10\n2,20\n3,")
    column = Column(run.path, run.path, "x")
    column.advance(time.perf_counter() + 60)
    assert column.points()[1].tolist() == [10, 20]
    with open(run.metrics_file, "ab") as file:
        file.write(b"30\n4,40\n")
    assert column.advance(time.perf_counter() + 60)[0]
    assert column.points()[1].tolist() == [10, 20, 30, 40]
    assert column.advance(time.perf_counter() + 60) == (False, False)


def test_another_table_is_read_anew(tmp_path):
    """A new column replaces the file; a resumed run drops rows."""
    run = make_run(tmp_path, "one", table=b"step,x\n1,10\n2,20\n")
    column = Column(run.path, run.path, "x")
    column.advance(time.perf_counter() + 60)
    run.outbox.replace(METRICS, b"step,y,x\n1,5,11\n")
    column.advance(time.perf_counter() + 60)
    assert column.points()[1].tolist() == [11]
    run.metrics_file.unlink()
    assert column.advance(time.perf_counter() + 60) == (False, False)


def test_buckets_keep_means_and_peaks():
    x = np.arange(10_000.0)
    y = np.where(x == 5_001, 1e6, np.sin(x))
    found = bucketed(x, y, 100)
    assert len(found["x"]) == 100 and max(found["high"]) == 1e6 and np.isclose(np.mean(found["y"]), y.mean(), rtol=1e-5)
    assert bucketed(np.array([1.0, 2.0]), np.array([1 / 3, -2e-300]), 100) == {"x": [1.0, 2.0], "y": [0.3333333, -2e-300]}
    assert bucketed(np.array([0.0]), np.array([np.nan])) == {"x": [0.0], "y": [None]}


# ---- the table, and what changes


def test_a_row_has_what_the_run_says(tmp_path):
    make_run(tmp_path, "a/one", rows=10, seed=3, differs={"lr": 0.5, "seed": 3})
    found = only(Board([tmp_path]))
    assert {
        key: found[key]
        for key in ("name", "state", "experiment", "setting", "seed", "steps", "total", "score", "return", "seconds")
    } == {
        "name": "a/one",
        "state": "finished",
        "experiment": "fake",
        "setting": "lr=0.5",
        "seed": "3",
        "steps": 900,
        "total": 1000,
        "score": 53,
        "return": row(9, 3)[3],
        "seconds": 9,
    }


def test_only_what_has_changed_is_told_again(tmp_path):
    one, _ = make_run(tmp_path, "one", state="running"), make_run(tmp_path, "two")
    board = Board([tmp_path])
    first = board.runs()
    curve = board.curves(["RL/loss"], first["ids"])
    assert len(first["runs"]) == len(curve["curves"]) == 2 and not first["more"] and not curve["more"]
    assert board.runs(first["now"])["runs"] == [] and board.curves(["RL/loss"], first["ids"], curve["now"])["curves"] == []
    one.outbox.append(METRICS, as_csv([[str(one) for one in row(10)]]))
    again = board.runs(curve["now"])
    assert [(one["name"], one["steps"]) for one in again["runs"]] == [("one", 1000)]
    curve = board.curves(["RL/loss"], first["ids"], curve["now"])["curves"]
    assert len(curve) == 1 and curve[0]["points"]["x"][-1] == 1000


def test_a_run_that_begins_while_the_page_is_open_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "SCAN_S", 0.0)
    board = Board([tmp_path])
    assert board.runs()["ids"] == []
    make_run(tmp_path, "sweeps/x/one")
    assert only(board)["name"] == "sweeps/x/one"


def test_a_died_run_is_not_running(tmp_path):
    run = make_run(tmp_path, "one", state="running")
    board = Board([tmp_path])
    assert only(board)["state"] == "running"
    run.update(pid=2**31 - 1)
    assert only(board)["state"] == "died"


def test_a_page_s_link_stays_good(tmp_path):
    make_run(tmp_path, "one")
    assert Board([tmp_path]).runs()["ids"] == Board([tmp_path / "one"]).runs()["ids"]


def test_long_work_is_divided_among_answers(tmp_path, monkeypatch):
    for i in range(6):
        make_run(tmp_path, f"run{i}", seed=i)
    monkeypatch.setattr(boards, "TURN_S", 0.0)
    board = Board([tmp_path])
    first = board.runs()
    assert first["more"] and len(first["runs"]) == 6  # all are there at once; settings come later
    while first["more"]:
        first = board.runs()
    assert sorted(one["seed"] for one in first["runs"]) == list("012345")
    asked, found = 0, set()
    while True:
        answer = board.curves(["RL/loss"], first["ids"])
        found |= {one["run"] for one in answer["curves"]}
        asked += 1
        if not answer["more"]:
            break
    assert asked > 1 and found == {*first["ids"]}


def test_curves_that_have_no_room_in_an_answer_come_with_the_next_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(boards, "MAX_POINTS", 70)  # two of ten points: 40 numbers each
    runs = [make_run(tmp_path, f"run{i}", state="running") for i in range(5)]
    board = Board([tmp_path])
    ids = board.runs()["ids"]
    answers = [board.curves(["RL/loss"], ids)]
    while answers[-1]["more"]:
        answers.append(board.curves(["RL/loss"], ids, answers[-1]["now"]))
    assert [len(one["curves"]) for one in answers] == [2, 2, 1]
    assert {one["run"] for answer in answers for one in answer["curves"]} == {*ids}
    now = answers[-1]["now"]
    assert board.curves(["RL/loss"], ids, now)["curves"] == []
    # What changes while the rest is on its way comes, too, and nothing is told twice.
    first = board.curves(["RL/loss"], ids)
    for run in runs:
        run.outbox.append(METRICS, as_csv([[str(one) for one in row(10)]]))
    found, now, more = [], first["now"], True
    while more:
        answer = board.curves(["RL/loss"] * 2, ids * 2, now)
        found, now, more = found + answer["curves"], answer["now"], answer["more"]
    assert sorted(one["run"] for one in found) == sorted(ids) and {one["points"]["x"][-1] for one in found} == {1000}
    assert len(board.whole(["RL/loss", "return/mean"], ids)) == 10


def test_robot_events_settings_and_differences(tmp_path):
    make_run(tmp_path, "one", config={"lr": 0.5})
    make_run(tmp_path, "two", config={"lr": 0.25}, seed=1)
    board = Board([tmp_path])
    ids = {one["name"]: one["id"] for one in board.runs()["runs"]}
    found = board.run(ids["one"])
    task = found["robot"]["tasks"][0]
    assert found["settings"]["lr"] == "0.5" and [one["event"] for one in found["events"]] == ["warning", "started"]
    assert (task["predict"]["batch"], task["predict"]["rows_per_s"], task["predict"]["queue_depth"]) == (4, 100, 3)
    assert (task["learn"]["batch"], task["learn"]["max_rows"], task["rows_per_s"], task["version"]) == (64, 64, 640, 80)
    assert [(one["status"], one["restarts"]) for one in found["robot"]["workers"]] == [("running", 2), ("starting", 0)]
    assert found["robot"]["steps_per_s"] == 100
    rows = {one["what"]: one["values"] for one in board.differences([ids["one"], ids["two"]])["rows"]}
    assert rows["setting lr"] == ["0.5", "0.25"] and rows["setting seed"] == ["0", "1"]


def test_a_run_without_a_description_has_tasks_from_its_metrics(tmp_path):
    make_run(tmp_path, "one", description=None)
    board = Board([tmp_path])
    robot = board.run(only(board)["id"])["robot"]
    assert [one["name"] for one in robot["tasks"]] == ["RL"] and robot["n_agents"] is None


def test_pictures_are_served_by_their_id(tmp_path):
    run = make_run(tmp_path, "one")
    run.videos.mkdir()
    (run.videos / "episode_1.gif").write_bytes(b"GIF89a")
    (run.videos / "evil.svg").write_bytes(b"<svg/>")
    (run.videos / "evil.html").write_bytes(b"<script/>")
    with Served(tmp_path) as site:
        name = site.json("/api/runs")["ids"][0]
        files = site.json(f"/api/run/{name}")["files"]
        assert [(one["name"], one["kind"]) for one in files] == [("videos/episode_1.gif", "image/gif")]
        status, headers, body = site.ask(f"/picture/{name}/{files[0]['id']}")
        assert (status, headers["content-type"], body) == (200, "image/gif", b"GIF89a")
        assert site.ask(f"/picture/{name}/videos%2fepisode_1.gif")[0] == site.ask(f"/picture/{name}/x")[0] == 404


# ---- hostile directories


def test_a_run_that_is_deleted_while_it_is_exported_is_left_out(tmp_path, monkeypatch):
    gone, _ = make_run(tmp_path, "gone"), make_run(tmp_path, "stays")
    run = Board.run

    def deletes(board, name):
        shutil.rmtree(gone.path, ignore_errors=True)
        return run(board, name)

    monkeypatch.setattr(Board, "run", deletes)
    assert export([tmp_path], tmp_path / "page.html")["runs"] == 1
    assert b"worker 0 was replaced" in (tmp_path / "page.html").read_bytes()


def test_a_picture_has_a_size(tmp_path, monkeypatch):
    run = make_run(tmp_path, "one")
    run.videos.mkdir()
    (run.videos / "episode_1.gif").write_bytes(b"GIF89a")
    board = Board([tmp_path])
    name = only(board)["id"]
    file = board.run(name)["files"][0]["id"]
    assert board.picture(name, file) == (b"GIF89a", "image/gif")
    monkeypatch.setattr(boards, "MAX_PICTURE", 5)
    with pytest.raises(NotThere):
        board.picture(name, file)


def test_links_lead_nowhere(tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    make_run(secret, "hidden")
    (secret / "x.png").write_bytes(b"\x89PNG secret")
    runs = tmp_path / "runs"
    run = make_run(runs, "one")
    run.videos.mkdir()
    (run.videos / "x.png").symlink_to(secret / "x.png")
    run.plots.symlink_to(secret)
    (runs / "linked").symlink_to(secret / "hidden")
    (runs / "folder").symlink_to(secret)
    make_run(runs, "two")
    for name in ("metrics.csv", "events.jsonl", "robot.json", "config.yaml", "result.json"):
        (runs / "two" / name).unlink(missing_ok=True)
        (runs / "two" / name).symlink_to(secret / "hidden" / name)
    board = Board([runs])
    ids = {one["name"]: one["id"] for one in board.runs()["runs"]}
    assert {*ids} == {"one", "two"}
    assert board.run(ids["one"])["files"] == []
    two = board.run(ids["two"])
    assert two["row"]["steps"] is None and two["settings"] == {} and two["events"] == [] and two["robot"] == {}
    assert told(board, "RL/loss").keys() <= {ids["one"]}


def test_a_run_that_becomes_a_link_is_gone(tmp_path):
    make_run(tmp_path / "other", "secret")
    run = make_run(tmp_path / "runs", "one")
    board = Board([tmp_path / "runs"])
    name = only(board)["id"]
    run.path.rename(tmp_path / "moved")
    run.path.symlink_to(tmp_path / "other" / "secret")
    assert board.runs()["runs"][0]["state"] == "deleted"
    with pytest.raises(NotThere):
        board.run(name)
    assert board.curves(["RL/loss"], [name])["curves"] == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_is_deleted_while_it_is_shown_harms_no_other(tmp_path, when):
    gone, _ = make_run(tmp_path, "gone"), make_run(tmp_path, "stays")
    board = Board([tmp_path])
    ids = {one["name"]: one["id"] for one in board.runs()["runs"]}
    if when == "after":
        told(board, "RL/loss")
        board.run(ids["gone"])
    for folder, _, files in os.walk(gone.path, topdown=False):
        for name in files:
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    assert {one["name"]: one["state"] for one in board.runs()["runs"]} == {"gone": "deleted", "stays": "finished"}
    assert ids["stays"] in told(board, "RL/loss") and board.run(ids["stays"])["events"]
    with pytest.raises(NotThere):
        board.run(ids["gone"])
    assert {"what": "readable", "values": [None, "it was deleted"]} in board.differences([ids["stays"], ids["gone"]])["rows"]
    board.catalogue._next = 0.0  # a look for runs is due
    assert [one["name"] for one in board.runs()["runs"]] == ["stays"]


EVIL = "<script>alert(1)</script>\x1b[31mred\x1b[0m\x00\u202egnp=1+1"


def test_texts_have_no_control_characters(tmp_path):
    name = EVIL.replace("/", "").replace("\0", "")
    make_run(
        tmp_path,
        name,
        config={"lr": EVIL},
        differs={"lr": EVIL},
        columns=[*COLUMNS[:-1], EVIL],
        description={
            "tasks": [{"name": EVIL, "algorithm": EVIL, "predict": EVIL}],
            "workers": EVIL,
            "agents": [EVIL],
            "n_agents": EVIL,
        },
    )
    board = Board([tmp_path])
    found = board.runs()
    text = json.dumps([found, board.run(found["ids"][0]), board.differences(found["ids"] * 2)], ensure_ascii=False)
    assert all(one.isprintable() for one in text) and "red" in text and "[31m" not in text
    shown = next(one for one in found["metrics"] if "script" in one)
    assert told(board, shown)  # and by this name it is asked for


def test_names_that_are_no_utf_8_are_shown(tmp_path):
    make_run(tmp_path, os.fsdecode(b"caf\xe9"))
    with Served(tmp_path) as site:
        assert site.json("/api/runs")["runs"][0]["name"] == "caf\\udce9"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", b"{"),
        ("run.json", b"[]"),
        ("run.json", b"[" * 100_000),
        ("run.json", b"\xff\xfe"),
        ("run.json", b'{"name": 3}'),
        ("robot.json", b'{"tasks": 3, "workers": {}, "agents": [[[]]]}'),
        ("robot.json", b"[1]"),
        ("robot.json", b'{"tasks": [{"name": "RL", "helper": ' + b"[" * 900 + b"]" * 900 + b"}]}"),
        ("robot.json", b'{"n_agents": 1' + b"0" * 500 + b"}"),
        ("robot.json", b'{"tasks": [{"name": {"a": []}, "predict": 3, "learn": {"max_rows": "x"}}]}'),
        ("events.jsonl", b'\xff\n{}\n[]\n{"event": {}}\n' + b"[" * 5_000),
        ("result.json", b'{"evaluation": 3}'),
        ("result.json", b"3"),
        ("result.json", b'{"remarks": {"a": 1}, "notes": 3}'),
        ("config.yaml", b"a: &x [*x]"),
        ("config.yaml", b"!!python/object:os.system x"),
        ("config.yaml", b"seed: [1]\ntotal_steps: {}\n"),
        ("metrics.csv", b""),
        ("metrics.csv", b"\0" * 3_000_000),
        ("metrics.csv", b"step\n" * 1000),
        ("metrics.csv", b"step,step,x,x\n1,2,3,4\n"),
        ("metrics.csv", b"x\n1\n2\n"),
        ("metrics.csv", b'step,"x\n1,2\n'),
        ("metrics.csv", b"step,x\n" + b"9" * 400 + b"," + b"9" * 400 + b"\n1,nan\n2,inf\n3,1e308\n4,-1e308\n"),
        ("metrics.csv", (",".join(f"c{i}" for i in range(30_000)) + "\n").encode()),
        ("metrics.csv", b"step,x\r\n1,2\r\n"),
    ],
    ids=itertools.count(),
)
def test_a_damaged_file_shows_and_harms_no_other(tmp_path, name, text):
    run = make_run(tmp_path, "damaged")
    make_run(tmp_path, "good")
    (run.path / name).unlink()
    (run.path / name).write_bytes(text)
    board = Board([tmp_path])
    found = board.runs()
    rows = {one["name"]: one for one in found["runs"]}
    assert rows["good"]["state"] == "finished" and rows["good"]["score"] == 50
    if name == "run.json":
        assert rows["damaged"]["state"] == "damaged" and rows["damaged"]["note"]
    for metric in ("RL/loss", "x", "c7", "step"):
        curve = told(board, metric)
        json.dumps(curve, allow_nan=False)
        assert metric != "RL/loss" or rows["good"]["id"] in curve
    for one in found["ids"]:
        json.dumps(board.run(one), allow_nan=False)
    json.dumps(board.differences(found["ids"]), allow_nan=False)


def test_huge_and_odd_files_are_not_read(tmp_path):
    run = make_run(tmp_path, "one")
    make_run(tmp_path, "good")
    for name in ("metrics.csv", "events.jsonl", "robot.json", "result.json", "config.yaml"):
        (run.path / name).unlink()
    for name in ("metrics.csv", "result.json", "robot.json"):
        with open(run.path / name, "wb") as file:
            file.truncate(1 << 40)  # a hole of a terabyte
    for name in ("events.jsonl", "config.yaml"):
        os.mkfifo(run.path / name)
    board = Board([tmp_path])
    started = time.process_time()
    ids = {one["name"]: one["id"] for one in board.runs()["runs"]}
    assert board.run(ids["one"])["notes"] and list(told(board, "RL/loss")) == [ids["good"]]
    assert time.process_time() - started < 5


def test_a_folder_of_very_many_files_is_left_in_the_middle(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "MAX_ENTRIES", 500)
    monkeypatch.setattr(catalogue, "MAX_RUNS", 3)
    run = make_run(tmp_path, "a0")
    for i in range(1, 6):
        make_run(tmp_path, f"a{i}")
    run.videos.mkdir()
    for i in range(600):
        (run.videos / f"{i}.png").touch()
    looked = []
    scan = os.scandir

    class Counted:
        def __init__(self, folder):
            self.entries = scan(folder)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.entries.close()

        def __iter__(self):
            return self

        def __next__(self):
            looked.append(1)
            return next(self.entries)

    monkeypatch.setattr(os, "scandir", Counted)
    board = Board([tmp_path])
    assert len(board.runs()["ids"]) == 3 and "6 runs: the newest 3 are shown" in board.runs()["notes"][0]
    entry = catalogue.Entry("x", "x", run, str(run.path), tmp_path)
    assert len(catalogue.pictures(entry)) <= catalogue.MAX_FILES and len(looked) < 200
    junk = tmp_path / "b"
    junk.mkdir()
    for i in range(600):
        (junk / f"{i}").touch()
    looked.clear()
    board = Board([junk])
    assert board.runs()["ids"] == [] and "only the first 500" in board.runs()["notes"][0] and len(looked) <= 502


def test_a_table_whose_header_never_ends_is_given_up(tmp_path):
    run = make_run(tmp_path, "one")
    column = Column(run.path, run.path, "RL/loss")
    column.advance(time.perf_counter() + 60)
    run.outbox.replace(METRICS, b'"' + b"x\n" * 5_000_000)  # another table while its curve is followed
    with pytest.raises(RunError, match="its header has no end"):
        column.advance(time.perf_counter() + 60)
    assert len(column._head) < 5_000_000


def test_of_a_robot_only_so_much_is_told(tmp_path):
    make_run(tmp_path, "one", description={"tasks": [{"name": str(i)} for i in range(500)], "agents": [{}] * 9_000,
                                           "workers": [{}] * 500})
    board = Board([tmp_path])
    robot = board.run(only(board)["id"])["robot"]
    assert [len(robot[key]) for key in ("tasks", "agents", "workers")] == [64, 256, 64]


def test_whatever_a_run_has_much_of_only_so_much_is_told(tmp_path, monkeypatch):
    for name in ("one", "two", "three"):
        run = make_run(tmp_path, name, config={name: "x" * 900, **dict.fromkeys("abcdef", name)},
                       columns=["step", *(f"{name}{i}" for i in range(14))])
    run.videos.mkdir()
    for i in range(5):
        run.event("note", text=str(i))
        (run.videos / f"{i}.png").touch()
    for module, name, most in ((boards, "TEXT", 100), (boards, "MAX_EVENTS", 3), (boards, "MAX_ROWS", 4), (boards, "COMPARED", 2),
                               (boards, "MAX_COLUMNS", 2), (catalogue, "MAX_FILES", 2)):
        monkeypatch.setattr(module, name, most)
    board = Board([tmp_path])
    found = board.runs()
    ids = {one["name"]: one["id"] for one in found["runs"]}
    told, differs = board.run(ids["three"]), board.differences([*ids.values()])
    assert len(told["events"]) == 3 and len(told["settings"]) == 4 and len(told["files"]) == 2 and len(found["metrics"]) == 2
    assert len(differs["runs"]) == 2 == len(differs["rows"][0]["values"]) and len(differs["rows"]) == 4
    assert max(len(text) for text in told["settings"].values()) < 150


def test_a_table_and_a_line_of_it_have_a_size(tmp_path, monkeypatch):
    run = make_run(tmp_path, "one", table=b"step,x\n1,2\n" + b"3" * 500)
    monkeypatch.setattr(columns, "MAX_LINE", 400)
    with pytest.raises(RunError, match="a line of over 400 bytes"):
        Column(run.path, run.path, "x").advance(time.perf_counter() + 60)
    monkeypatch.setattr(columns, "MAX_TABLE_BYTES", 100)
    with pytest.raises(RunError, match="is not readable"):
        Column(run.path, run.path, "x").advance(time.perf_counter() + 60)


def test_runs_far_below_a_folder_are_not_looked_for(tmp_path):
    make_run(tmp_path, "a/b/c/d/e")
    make_run(tmp_path, "a/b/c/d/e/f/g")  # below a run
    make_run(tmp_path, "1/2/3/4/5/6")
    assert [one["name"] for one in Board([tmp_path]).runs()["runs"]] == ["a/b/c/d/e"]


def test_an_exported_page_holds_texts_as_texts_and_asks_nobody(tmp_path):
    """`tests/lab/test_dashboard_page.py` opens it, where there is a browser."""
    make_run(tmp_path, "one", config={"lr": "</script><script>alert(1)</script>"})
    export([tmp_path], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in text and "\\u003cscript>alert(1)" in text
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', text)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy and "*" not in policy
    for tag in ("script", "style"):
        for body in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
            assert f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in policy


def test_memory_is_bounded(tmp_path, monkeypatch):
    for i in range(4):
        make_run(tmp_path, f"run{i}")
    monkeypatch.setattr(boards, "MAX_CURVES", 5)
    board = Board([tmp_path])
    for _ in range(3):
        for metric in COLUMNS[3:]:
            told(board, metric)
    assert len(board._curves) <= 5


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/io"), reason="the system does not count what a thread reads")
def test_a_live_update_reads_what_is_new_however_long_the_tables_are(tmp_path):
    def update(n):
        """Bytes read for a new row of one run of three, and length of the answer."""
        lines = as_csv([[str(one) for one in row(i)] for i in range(n)])
        runs = [make_run(tmp_path / str(n), f"run{i}", state="running", table=as_csv([COLUMNS]) + lines) for i in range(3)]
        board = Board([tmp_path / str(n)])
        ids = board.runs()["ids"]
        board.whole(["RL/loss", "return/mean"], ids)
        now = board.curves(["RL/loss", "return/mean"], ids)["now"]
        runs[0].outbox.append(METRICS, as_csv([[str(one) for one in row(n)]]))
        before = bytes_read()
        answer = board.runs(now), board.curves(["RL/loss", "return/mean"], ids, now)
        read = bytes_read() - before
        assert len(answer[0]["runs"]) == 1 and len(answer[1]["curves"]) == 2
        return read, len(json.dumps(answer))

    (short, said), (long, told) = update(2_000), update(20_000)
    assert long < 40_000 < 20_000 * 60 and abs(long - short) < 4_000
    assert told < 1.2 * said < 80_000


def bytes_read():
    """What this thread has read so far."""
    with open("/proc/thread-self/io", encoding="ascii") as file:
        return int(file.read().split()[1])


def test_looking_changes_nothing(tmp_path):
    run = make_run(tmp_path, "one")

    def state():
        return {
            path: (os.stat(path).st_mtime_ns, os.stat(path).st_size)
            for folder, _, files in os.walk(tmp_path)
            for path in [folder, *(os.path.join(folder, name) for name in files)]
        }

    before = state()
    with Served(tmp_path) as site:
        name = site.json("/api/runs")["ids"][0]
        site.json(f"/api/run/{name}")
        site.json(f"/api/curves?metric=RL/loss&runs={name}")
    assert state() == before and not (run.path / "run.lock").exists()
