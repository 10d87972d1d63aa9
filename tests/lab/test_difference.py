"""Why two runs differ."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from parl_like.data.datasets import from_arrays, rows_hash
from parl_like.lab import cli, snapshot
from parl_like.lab.reports.difference import difference, in_words
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import UsageError

pytestmark = pytest.mark.usefixtures("fake_experiment")


def trained(name, *words):
    assert cli.main(["train", "fake", f"run_dir={name}", "metrics_every=50", *words, "--json"]) == 0
    return RunDir.open(name)


def test_two_runs_of_one_configuration_are_the_same(capsys):
    a, b = trained("a"), trained("b")
    found = difference(a, b)
    assert found["rows"] == [] and found["metrics"]["first_other"] is None
    assert found["metrics"]["rows"] == 8 and found["metrics"]["last_same"] == 400
    assert in_words(found) == ["metrics: the same to step 400, where the shorter table ends"]
    capsys.readouterr()
    assert cli.main(["diff", "a", "b"]) == 0 and "are the same" in capsys.readouterr().out


def test_what_differs_is_said(capsys):
    a, b = trained("a"), trained("b", "seed=3", "n_agents=5")
    b.update(versions={**b.info().versions, "torch": "0"}, resumed=1)
    rows = {row["what"]: (row["a"], row["b"]) for row in difference(a, b)["rows"]}
    assert rows.items() >= {"setting seed": (0, 3), "setting n_agents": (2, 5), "resumed": (0, 1)}.items()
    assert rows["version torch"][1] == "0" and "result mean_return" in rows and "setting run_dir" not in rows
    capsys.readouterr()
    assert cli.main(["diff", "a", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0].keys() == {"what", "a", "b"}


def test_files_of_the_sources_that_are_not_the_same_are_named(capsys):
    """Commits say nothing of what was changed since."""
    a, b = trained("a"), trained("b")
    files = snapshot.kept(b)
    files["parl_like/__init__.py"] += b"\n"
    b.update(sources=snapshot.hash_of(files))
    b.outbox.replace(f"sources/{b.info().sources[:16]}.tar.gz", snapshot.packed({**files, "parl_like/new.py": b""}))
    with pytest.raises(UsageError, match="they were changed"):
        difference(a, b)
    b.outbox.replace(f"sources/{b.info().sources[:16]}.tar.gz", snapshot.packed(files))
    assert "parl_like/__init__.py" in difference(a, b)["files"]
    capsys.readouterr()
    assert cli.main(["diff", "a", "b"]) == 0
    said = capsys.readouterr().out
    assert "code: not the same in parl_like/__init__.py" in said and "are the same" not in said


def test_other_recorded_rows_are_told():
    rng = np.random.default_rng(0)
    for name in "ab":
        n = 100
        rows = from_arrays(obs=rng.normal(size=(n, 4)).astype(np.float32), act=rng.integers(2, size=n), rew=np.ones(n),
                           terminated=np.arange(n) % 10 == 9)
        rows.save("rows")
        assert cli.main(["train", "bc-cartpole", "data=rows", f"run_dir={name}", "total_steps=4", "eval_episodes=1", "hidden=[4]",
                         "batch_size=8", "eval_score=mean_return", "tensorboard=false", "--quiet"]) == 0
    a, b = RunDir.open("a"), RunDir.open("b")
    assert b.info().data == {"rows": rows_hash(rows)} != a.info().data
    assert {row["what"]: (row["a"], row["b"]) for row in difference(a, b)["rows"]}["data rows"] == (
        a.info().data["rows"], b.info().data["rows"])


def test_the_step_at_which_metrics_part_is_found():
    a = trained("a")
    shutil.copytree("a", "b")
    header, *lines = a.metrics_file.read_text().splitlines()
    column, clock = header.split(",").index("episodes"), header.split(",").index("elapsed_s")
    cells = [line.split(",") for line in lines]
    cells[5][column], cells[2][clock] = "77", "99"
    Path("b", "metrics.csv").write_text("\n".join([header, *map(",".join, cells)]) + "\n")
    found = difference(a, RunDir.open("b"))["metrics"]
    assert (found["rows"], found["last_same"], found["first_other"]) == (6, 250, 300)
    assert found["columns"].keys() == {"episodes"} and found["columns"]["episodes"][1] == 77
    assert in_words({"files": [], "metrics": found})[0].startswith("metrics: the same to step 250, other at step 300: episodes ")


def test_a_run_without_metrics_and_one_of_another_experiment():
    a = trained("a")
    shutil.copytree("a", "b")
    Path("b", "metrics.csv").unlink()
    assert in_words(difference(a, RunDir.open("b"))) == ["metrics: there are none to compare"]
    assert cli.main(["diff", "a", "nowhere"]) == 2
