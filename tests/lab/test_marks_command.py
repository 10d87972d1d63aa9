"""Marks: scores of experiments over seeds, kept in a file and a table."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from lab_fakes import FakeRobot
from recorded_rows import small_data

from parl_like.lab import cli
from parl_like.lab.reports import marks
from parl_like.lab.runs import trained
from parl_like.lab.yaml_text import UsageError

pytestmark = pytest.mark.usefixtures("fake_experiment")


@pytest.fixture
def measure():
    """Measures the fake experiment in this process; gives marks, and the command lines that were run. `failed`: of the last."""

    def run(seeds=2, names=("fake",), **overrides):
        lines = []

        def train(words):
            lines.append(" ".join(words))
            return cli.main([*words, "--json"])

        found, run.failed = marks.measure(names, seeds, overrides, file=Path("docs/marks.json"), runs=Path("marks"), train=train,
                                          say=lambda line: None)
        return found, lines

    return run


def test_each_seed_is_trained_once_and_its_last_evaluation_is_the_score(measure):
    found, lines = measure(seeds=3)
    assert [(mark.experiment, mark.seed, mark.env_steps) for mark in found] == [("fake", seed, 400) for seed in range(3)]
    assert len(lines) == 3 and lines[1].startswith("train fake run_dir=marks/fake_") and lines[1].endswith(" seed=1")
    for mark, line in zip(found, lines, strict=True):
        result = json.loads(Path(line.split("run_dir=")[1].split()[0], "result.json").read_text())
        assert (mark.score, mark.solved) == (result["evaluation"]["mean_return"], True)
        assert mark.expect == {"mean_return": (50.0, None)} and mark.evaluation["episodes"] == 5 and mark.versions["numpy"]
    assert len({mark.score for mark in found}) == 3
    again, lines = measure(seeds=4)
    assert again[:3] == found and len(lines) == 1 and lines[0].endswith("seed=3")


def test_a_mark_keeps_the_curve_and_the_machine(measure, monkeypatch):
    monkeypatch.setattr(marks, "CURVE", 3)
    (found,), _ = measure(seeds=1)
    metrics = [row.split(",") for row in next(Path("marks").glob("*/metrics.csv")).read_text().splitlines()]
    columns = [metrics[0].index(name) for name in ("step", "elapsed_s", "return/mean")]
    rows = [tuple(float(row[at]) for at in columns) for row in metrics[1:] if row[columns[2]]]
    assert len(rows) >= 2 and 2 <= len(found.curve) <= 3
    for one, whole in zip((found.curve[0], found.curve[-1]), (rows[0], rows[-1]), strict=True):
        assert one == pytest.approx(whole, rel=1e-4, abs=0.006)
    assert " core" in found.machine


def test_the_score_is_that_of_the_evaluation(measure, monkeypatch):
    """As of an experiment that counts successes (`eval_score`), whose mean return says little."""
    evaluate = FakeRobot.evaluate

    def by_the_best(robot, **options):
        seen = evaluate(robot, **options)
        seen.score = seen.max_return
        return seen

    monkeypatch.setattr(FakeRobot, "evaluate", by_the_best)
    (found,), _ = measure(seeds=1)
    assert found.score == found.evaluation["max_return"] != found.evaluation["mean_return"]


def test_another_configuration_or_other_code_is_measured_anew(measure, monkeypatch):
    first, _ = measure(seeds=1)
    other, lines = measure(seeds=1, lr=0.25)
    assert lines[0].endswith("seed=0 lr=0.25") and other[0].differs == {"lr": 0.25} and other[0].score != first[0].score
    assert measure(seeds=1) == (first, []) and len(marks.load(Path("docs/marks.json"))) == 2
    assert measure(seeds=1, log_every_s=1.0) == (first, [])  # changes no score
    monkeypatch.setattr(marks, "code_hash", lambda: "other")
    found, lines = measure(seeds=1)
    assert len(lines) == 1 and found[0].code == "other" and found[0].score == first[0].score
    assert len(marks.load(Path("docs/marks.json"))) == 2  # the mark of the old code has gone


def test_marks_of_an_experiment_as_it_was_make_room_for_those_of_today(measure, monkeypatch):
    measure(seeds=2), measure(seeds=1, lr=0.25)
    monkeypatch.setattr(marks, "configuration_hash", lambda *_: "another one")  # as when its YAML has changed
    found, lines = measure(seeds=1)
    assert len(lines) == 1 and found[0].configuration == "another one"
    kept = marks.load(Path("docs/marks.json"))
    assert [mark.differs for mark in kept if mark != found[0]] == [{"lr": 0.25}] and len(kept) == 2


def test_an_interrupted_run_is_resumed_and_a_failed_one_stops_no_other(measure, monkeypatch):
    whole, _ = measure(seeds=2)
    Path("docs/marks.json").unlink()
    for run in Path("marks").iterdir():
        run.rename(f"{run}_old")
    monkeypatch.setattr(FakeRobot, "at_step", {250: lambda: 1 / 0})
    found, lines = measure(seeds=2)
    assert found == [] and len(lines) == 2 and all(line.endswith("exit code 1, see its log.txt") for line in measure.failed)
    assert marks.load(Path("docs/marks.json")) == []
    monkeypatch.setattr(FakeRobot, "at_step", {})
    found, lines = measure(seeds=2)
    assert [line.split()[0] for line in lines] == ["resume", "resume"]
    assert [mark.score for mark in found] == [mark.score for mark in whole]


def test_runs_that_fail_are_told_below_the_others_marks(measure, monkeypatch, capsys):
    """They are no wrong usage, so the exit code is 1; and a mark that older code has left is not taken for theirs."""
    measure(seeds=1)
    monkeypatch.setattr(marks, "code_hash", lambda: "other")
    monkeypatch.setattr(FakeRobot, "at_step", {250: lambda: 1 / 0})
    monkeypatch.setattr(trained, "in_a_process", lambda words: cli.main(words))
    assert cli.main(["marks", "fake", "--seeds", "1", "--runs", "marks"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("failed: fake seed 0: marks/fake_") and said[-1].endswith("exit code 1, see its log.txt")
    assert not any("`fake`" in line for line in said)


def test_marks_that_another_command_writes_meanwhile_stay(measure, monkeypatch):
    others = []

    def another():
        if not others:
            others.append(None)
            others[:] = measure(seeds=1, lr=0.25)[0]

    monkeypatch.setattr(FakeRobot, "at_step", {250: another})
    found, _ = measure(seeds=1)
    assert len(others) == len(found) == 1
    assert sorted(mark.differs.get("lr", 0) for mark in marks.load(Path("docs/marks.json"))) == [0, 0.25]


def test_a_seed_is_not_given_beside_how_many(measure):
    with pytest.raises(UsageError, match="seed=3: marks trains the seeds 0 … N - 1; give --seeds N instead"):
        measure(seeds=1, seed=3)


def test_the_table(measure):
    found, _ = measure(seeds=3)
    found += measure(seeds=1, lr=0.25)[0]
    scores = " ".join(f"{mark.score:.4g}" for mark in found[:3])
    middle = sorted(mark.score for mark in found[:3])[1]
    lines = marks.table(found)
    assert len(lines) == 4
    assert f"| `fake` | 400 | ≥ 50 | {scores} | {middle:.4g} | 3 of 3 |" in lines
    assert any(line.startswith("| `fake` lr=0.25 | 400 |") for line in lines)
    unasked = [msgspec.structs.replace(mark, expect={}, solved=None) for mark in found[:3]]
    assert marks.table(unasked)[-1].endswith(f"| 400 | – | {scores} | {middle:.4g} | – |")
    page = Path("docs/marks.md").read_text()
    assert all(line in page.splitlines() for line in lines) and page == marks.page(marks.load(Path("docs/marks.json")))
    assert "Solvers" not in page  # for there are none among these


def test_what_cannot_be_is_refused_before_anything_is_trained(measure):
    with pytest.raises(UsageError, match="fake"):
        measure(names=["fakes"])
    with pytest.raises(UsageError, match="lr"):
        measure(lr=-1.0)
    Path("docs").mkdir()
    Path("docs/marks.json").write_text("[1]")
    with pytest.raises(UsageError, match="holds no marks"):
        measure()
    assert not Path("marks").exists()


@pytest.mark.parametrize("change", [{"seconds": None}, {"evaluation": {}}, {"evaluation": {"score": "x"}}, {"env_steps": "x"},
                                    {"expect": {"mean_return": [1]}}, {"solved": "x"}, "gone"], ids=str)
def test_a_result_of_somebody_else_is_no_mark(change, measure):
    measure(seeds=1)
    file = next(Path("marks").glob("*/result.json"))
    result = json.loads(file.read_text())
    file.write_text(json.dumps({"experiment": "fake"} if change == "gone" else {**result, **change}))
    Path("docs/marks.json").unlink()
    found, _ = measure(seeds=1)
    assert [mark.score for mark in found] == [result["evaluation"]["score"]] * (not measure.failed)
    assert all("remove the directory, and it is trained anew" in line or "exit code" in line for line in measure.failed)


def test_the_hash_of_the_code_is_that_of_every_source(tmp_path, monkeypatch):
    package = tmp_path / "package"
    (package / "lab").mkdir(parents=True)
    (tmp_path / "linked").mkdir()
    (package / "linked").symlink_to(tmp_path / "linked")
    files = [package / "lab" / "marks.py", package / "a.pyx", tmp_path / "linked" / "b.py"]
    for file in files:
        file.write_text("1")
    monkeypatch.setattr(marks, "__file__", str(files[0]))
    seen = {marks.code_hash()}
    for file in files:
        file.write_text("2")
        seen.add(marks.code_hash())
    assert len(seen) == 4


def test_the_page_of_the_documentation_is_that_of_its_file():
    docs = Path(__file__).resolve().parents[2] / "docs"
    assert (docs / "marks.md").read_text(encoding="utf-8") == marks.page(marks.load(docs / "marks.json"))


@pytest.mark.slow
def test_the_command_trains_in_processes_of_its_own(tmp_path):
    line = "marks a2c-cartpole total_steps=2048 eval_episodes=2 --seeds 2 --jobs 2 --out marks.json --json"
    command = [sys.executable, "-m", "parl_like", *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [mark["seed"] for mark in json.loads(done.stdout)] == [0, 1]
    assert len(list((tmp_path / "runs" / "marks").iterdir())) == 2


def test_a_data_set_with_other_rows_is_measured_anew(measure, tmp_path):
    """Its name, or its path, is the same; the mark of the rows of before goes."""
    data, short = tmp_path / "rows", {"total_steps": 20, "batch_size": 16, "eval_score": "mean_return", "eval_episodes": 1}
    shutil.copytree(small_data("CartPole-v1"), data)
    first, lines = measure(1, ("bc-cartpole",), data=str(data), **short)
    assert len(lines) == 1 and measure(1, ("bc-cartpole",), data=str(data), **short) == (first, [])
    shutil.rmtree(data)
    shutil.copytree(small_data("CartPole-v1", 13), data)
    other, lines = measure(1, ("bc-cartpole",), data=str(data), **short)
    assert len(lines) == 1 and other[0].configuration != first[0].configuration and other[0].differs == first[0].differs
    assert marks.load(Path("docs/marks.json")) == other
