"""Reports: numbers against examples by hand, what is refused, and the files."""

import copy
import csv
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from lab_fakes import FakeRobot

from parl_like.lab.cli import main
from parl_like.lab.config import ExperimentConfig, to_dict
from parl_like.lab.reports import plots
from parl_like.lab.reports.report import _table, improvement, markdown, page, profile, report
from parl_like.lab.runs.metrics import MetricsLog, as_csv
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import UsageError, load_yaml

pytestmark = pytest.mark.usefixtures("fake_experiment")


def make(name, score=None, evaluated=(), seconds=10.0, expect=60.0, stopped_by=None, experiment="fake", differs=(), **config):
    """A run as training leaves it: the score of its evaluation after training, and those while training, one each 100 steps."""
    seed, config = config.pop("seed", int(name[-1])), {"env": "Fake-v0", **config}
    config = {**to_dict(ExperimentConfig(run_dir=f"runs/{name}", seed=seed)), **config}
    run = RunDir.create(experiment, config, differs=dict(differs))
    for number, value in enumerate(evaluated):
        numbers = {"episodes": 5, "mean_return": value, "score": value}
        MetricsLog(run).write({"step": number * 100, **{f"eval/{key}": one for key, one in numbers.items()}})
    MetricsLog(run).write({"step": 400, "return/mean": 1.0})
    if score is not None:
        evaluation = {"episodes": 5, "mean_return": score, "score": score}
        run.save_result({"evaluation": evaluation, "env_steps": 410, "seconds": seconds, "stopped_by": stopped_by,
                         "expect": {"mean_return": [expect, None]}})
        run.ended("stopped" if stopped_by else "finished", "")
    return run


def changed(run, wrong):
    run.save_config({**run.config(), **wrong})
    return run


WRONG = [{"env": -1}, {"env": {"id": 0.5}}, {"eval_env": True}, {"env_options": 3}, {"seed": [1]}, {"eval_options": "\ud800"}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_configuration_of_other_types_is_refused_by_name(wrong):
    with pytest.raises(UsageError, match="config.yaml is not readable"):
        report([changed(make("a0", 1.0), wrong)])


def test_numbers_that_no_float_holds_are_as_good_as_no_result():
    run = make("a0", 1.0)
    (run.path / "result.json").write_text((run.path / "result.json").read_text().replace("410", "1" + "0" * 400))
    assert run.result() is None
    (run.path / "run.json").write_text((run.path / "run.json").read_text().replace('"resumed": 0', '"resumed": 1' + "0" * 400))
    with pytest.raises(UsageError, match="over 64 bits"):
        run.info()


def test_the_numbers_of_a_group():
    a = make("a0", 40.0, [0, 70, 80], 10.0), make("a1", 50.0, [0, 30, 65], 30.0), make("a2", 60.0, [0, 20, 20], 20.0)
    a += make("a3", 70.0, [0, 60, 60], 90.0), make("a4", 200.0)
    (group,) = report(a)["groups"]
    assert (group["group"], group["runs"], group["env_steps"]) == ("fake", 5, [410, 410])
    assert group["scores"] == [40, 50, 60, 70, 200]
    assert (group["iqm"], group["median"], group["mean"]) == (60, 60, 84)  # without 40 and 200: mean of 50, 60, 70
    assert 40 <= group["interval"][0] < 60 < group["interval"][1] <= 200
    assert (group["best"], group["seconds"], group["mark"]) == (200, 20, 60)
    assert group["optimality_gap"] == 6  # (20 + 10 + 0 + 0 + 0) / 5
    # At 60 first at step 100, 200, never, 100; the fifth was not evaluated while training. Median of 100, 100, 200, ∞.
    assert (group["evaluated"], group["reached"], group["steps_to_mark"]) == (4, 3, 150)
    (group,) = report(a, mark=75.0)["groups"]
    assert (group["mark"], group["optimality_gap"]) == (75, 16)  # (35 + 25 + 15 + 5 + 0) / 5
    assert (group["reached"], group["steps_to_mark"]) == (1, None)
    assert "| 200 | 20 | 75 | 16 | ∞ (1 of 4) |" in markdown(report(a, mark=75.0))
    assert report(a, mark=0.0)["groups"][0]["steps_to_mark"] == 0


def test_the_probability_of_improvement():
    # Of nine pairs 5 > 1, 5 > 3 and 4 > 1, 4 > 3, and 3 > 1 are higher, 5 = 5 and 3 = 3 are equal: (5 + 2 / 2) / 9.
    share, (low, high) = improvement([5, 4, 3], [1, 3, 5])
    assert share == pytest.approx(6 / 9) and 0 <= low < share < high <= 1
    assert improvement([1, 3, 5], [5, 4, 3])[0] == pytest.approx(3 / 9)
    assert improvement([2, 3], [0, 1]) == (1, (1, 1)) and improvement([7.0], [7.0, 8.0]) == (0.25, None)
    # Of two against two, equal chances of each draw: P is 0 or 1 with chance 1/16 at least, more than 2.5 %.
    assert improvement([0, 2], [1, 1])[1] == (0, 1)


def test_the_numbers_of_rliable():
    """Those of its own tests: runs × tasks of two algorithms. P(x > y) there is the mean over tasks of each task's share."""
    x, y = np.array([[1, 2], [2, 2], [1, 1], [2, 1]]), np.array([[1, 1], [2, 2], [3, 3]])
    assert plots.iqm(x.ravel()) == 1.5 and plots.iqm(y.ravel()) == 2
    assert np.mean([improvement(x[:, task], y[:, task])[0] for task in range(2)]) == pytest.approx(1 / 3)


def test_the_performance_profile():
    assert profile([1, 2, 2, 5], [0, 1, 2, 4.9, 5]).tolist() == [1, 0.75, 0.25, 0.25, 0]


def test_groups_are_those_of_the_learning_curve_and_are_compared():
    runs = [make("a0", 10.0, lr=1), make("a1", 20.0, lr=1), make("b0", 15.0, lr=2), make("b1", 25.0, lr=2)]
    found = report([*runs, RunDir(Path("runs/../runs/a0"))])
    assert [(group["group"], group["scores"]) for group in found["groups"]] == [("fake lr=1", [10, 20]), ("fake lr=2", [15, 25])]
    (pair,) = found["improvements"]
    assert (pair["a"], pair["b"], pair["probability"]) == ("fake lr=1", "fake lr=2", 0.25)
    assert "| fake lr=1 | fake lr=2 | 0.25 [0, " in markdown(found) and found["notes"] == []
    assert report(runs[:1])["groups"][0]["interval"] is None


def test_what_a_run_counts_with():
    stopped = make("a0", 99.0, [1, 7, 4], stopped_by="SIGINT")
    running, finished = make("a1", evaluated=[1, 9, 5]), make("a2", 3.0, [1, 2, 8])
    found = report([stopped, running, finished])
    keys = "score", "best", "after_training"
    assert [[run[key] for key in keys] for run in found["runs"]] == [[4, 7, False], [5, 9, False], [3, 8, True]]
    assert found["notes"] == [
        "runs/a0 is stopped: its score is that of its last evaluation while training.",
        "runs/a1 is running: its score is that of its last evaluation while training.",
        "fake: its runs expect different scores, so it has no mark; give one with --mark."]  # of the results 60, of `fake` 50


def test_the_mark_is_what_the_experiment_expects_of_this_score_and_task():
    marks = [report([run])["groups"][0]["mark"] for run in (
        make("a0", evaluated=[1]), make("b0", evaluated=[1], differs={"env": "Other-v0"}),
        make("c0", evaluated=[1], experiment="unknown"), make("d0", 1.0, expect=7),
        make("e0", 1.0, expect=7, eval_score="min_return"))]
    assert marks == [50, None, None, 7, None]
    other = make("f0", 1.0)
    other.save_result({**other.result(), "evaluation": {"mean_return": 1.0, "score": -3.0}})  # a score of the robot's own
    assert (report([other])["groups"][0]["mark"], report([other])["groups"][0]["scores"]) == (None, [-3])


def test_what_a_reader_must_know_is_said():
    found = report([make("a0", 1.0), make("a1", 1.0, seed=0), make("b0", 1.0, expect=7, lr=2)])
    assert [note.partition(":")[0] for note in found["notes"]] == [
        "fake", "The marks of the groups differ, so gaps and steps to them cannot be compared; --mark gives all the same."]
    assert "the same seed" in found["notes"][0] and len(report([make("c0", 1.0)], mark=3.0)["notes"]) == 0


def test_what_cannot_be_compared_is_refused():
    good = make("a0", 1.0)
    with pytest.raises(UsageError, match="expected run directories, got none"):
        report([])
    with pytest.raises(UsageError, match=r"runs/a1 \(state running\): expected an evaluation with a score, but it has none"):
        report([good, make("a1")])
    with pytest.raises(UsageError, match="its last one has nan"):
        report([good, make("a2", math.nan)])
    pendulum = make("a3", 1.0, env={"id": "Pendulum-v1", "options": {"g": 5}, "vector": 2})
    with pytest.raises(UsageError, match=r"same task, got Fake-v0 \(runs/a0\), Pendulum-v1 g=5 \(runs/a3\); .* a report of each"):
        report([good, pendulum])
    evaluated = make("a4", 1.0, env={"id": "Train-v0", "options": {"g": 1}}, eval_env={"id": "Pendulum-v1", "options": {"g": 5}})
    assert len(report([pendulum, evaluated])["groups"]) == 2, "evaluations play the same"
    with pytest.raises(UsageError, match="the same eval_score, got mean_return .*, success_rate "):
        report([good, make("a5", 1.0, eval_score="success_rate")])
    with pytest.raises(UsageError, match="expected a finite number, got nan"):
        report([good], mark=math.nan)


def test_the_command_writes_a_folder(capsys, monkeypatch):
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)
    monkeypatch.setattr(FakeRobot, "at_step", {})
    for seed in (0, 1):
        assert main(f"train fake run_dir=runs/r{seed} seed={seed} eval_every=100 total_steps=200".split()) == 0
    make("<b>|3", 1.0)
    capsys.readouterr()
    assert main("report r0 r1 runs/<b>|3 --out out --json".split()) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["files"] == [f"out/{name}" for name in ("report.md", "report.html", "report.csv", "runs.csv")]
    assert err.splitlines()[0] == plots.MISSING
    assert main("report r0 r1 runs/<b>|3".split()) == 0
    assert capsys.readouterr() == (Path("out/report.md").read_text(), "")
    rows = list(csv.DictReader(Path("out/runs.csv").open()))
    results = [json.loads(Path(f"runs/r{seed}/result.json").read_text()) for seed in (0, 1)]
    assert [float(row["score"]) for row in rows[:2]] == [result["evaluation"]["score"] for result in results]
    assert [(row["evaluated"], row["env_steps"]) for row in rows] == [("3", "200"), ("3", "200"), ("0", "410")]
    assert len(list(csv.DictReader(Path("out/report.csv").open()))) == len(json.loads(out)["groups"])
    Path("file").touch()
    assert main("report r0 file r1 runs/<b>|3".split()) == 0
    assert capsys.readouterr() == (Path("out/report.md").read_text(), "file is a file, not a run directory: passed over\n")
    assert main("report r0 runs r1 runs/<b>|3".split()) == 0
    assert capsys.readouterr() == (Path("out/report.md").read_text(), "runs is a folder of runs (runs/*): passed over\n")
    assert main("report runs".split()) == 0 and len(capsys.readouterr()[0]) == len(Path("out/report.md").read_text())
    assert main("report file".split()) == 2 and "file is no run directory" in capsys.readouterr()[1]
    assert main("report r0 --out file/out".split()) == 2
    assert "error: cannot write the report to file/out" in capsys.readouterr()[1]
    assert main("report nothing".split()) == 2 and "nothing is no run directory" in capsys.readouterr()[1]


def test_texts_of_runs_are_no_formulas_and_no_html():
    assert _table([{"run": "=1+1", "score": -1.5}]) == as_csv([["run", "score"], ["'=1+1", "-1.5"]])
    found = report([make("a6", 1.0)])
    html = page({**found, "notes": ["<b>note"], "groups": [{**found["groups"][0], "group": "<b>group"}]})
    assert "<b>" not in html and "&lt;b&gt;note" in html and "&lt;b&gt;group" in html


def test_with_matplotlib_the_page_holds_its_pictures(capsys):
    pytest.importorskip("matplotlib")
    make("a0", 1.0, [0, 1, 2], note="<b>|x"), make("a1", 2.0, [0, 2, 3], note="y")
    assert main("report a0 a1 --out out".split()) == 0
    text, written = capsys.readouterr()
    assert written.split()[-2:] == ["out/learning_curves.png", "out/performance_profile.png"]
    assert r"| fake note=&lt;b&gt;\|x | 1 |" in text
    html = Path("out/report.html").read_text()
    assert html.count("data:image/png;base64,iVBOR") == 2 and "&lt;b&gt;|x" in html and "<b>" not in html
    assert not re.search(r"https?:|<script|<link|src=\"[^d]", html)
    assert "![learning curves](learning_curves.png)" in Path("out/report.md").read_text()
    assert "<img" not in page(report([RunDir(Path("runs/a0"))]))


ODD = ["null", "true", "-1", "0.5", "1" + "0" * 30, "1" + "0" * 400, "1" + "0" * 5000, "1e999", "NaN", '""', "[]", "[1]", "{}",
       r'"\u001b]0;x\u0007\u202e"', r'"\ud800"', '{"a": {"b": [null]}}', "[" * 15 + "]" * 15, "[" * 10_000 + "]" * 10_000,
       '"evil:Thing"', '"' + "x" * 50_000 + '"']


def places(tree, path=()):
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in parts:
        yield (*path, key)
        yield from places(part, (*path, key))


def odd_files(run):
    """(file, text): each value of the files that commands look at, with something else in its place."""
    for name in ("run.json", "result.json", "config.yaml"):
        text = (run.path / name).read_text()
        tree = load_yaml(text) if name == "config.yaml" else json.loads(text)
        for where in places(tree):
            changed = inside = copy.deepcopy(tree)
            for key in where[:-1]:
                inside = inside[key]
            inside[where[-1]] = "@"
            yield from ((name, json.dumps(changed).replace('"@"', value)) for value in ODD)  # JSON is YAML


@pytest.mark.parametrize("tried", [10, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_whatever_stands_in_a_run_directory_is_shown_or_refused_in_one_line(tried, capsys, monkeypatch):
    monkeypatch.setattr(plots, "RESAMPLES", 10)
    env = {"id": "Fake-v0", "options": {"a": 1}}
    run = make("odd0", 5.0, [1.0, 2.0], env=env, eval_env=env, env_options={"b": 2}, eval_options={}, eval_score="")
    make("good0", 6.0, env="Fake-v0")
    cases = list(odd_files(run))
    kept = {name: (run.path / name).read_bytes() for name in ("run.json", "result.json", "config.yaml")}
    for name, text in random.Random(0).sample(cases, tried):
        (run.path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        for words in (["list"], ["list", "--json"], ["report", "runs/odd0"], ["report", "runs/odd0", "runs/good0", "--json"]):
            code = main(words)
            out, err = capsys.readouterr()
            assert code in (0, 2), f"{words}: {name}: {text[:2000]}: {err[-500:]}"
            assert len(err) < 5_000 and err.count("\n") <= 1
            assert all(one.isprintable() or one == "\n" for one in out + err)
        (run.path / name).write_bytes(kept[name])
