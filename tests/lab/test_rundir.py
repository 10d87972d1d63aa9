"""The run directory: complete, private, replaced atomically, and suspicious of what it reads."""

import json
import os
import stat
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from parl_like.data.storage.safe_files import replace_file
from parl_like.lab.config import ExperimentConfig, resolve, to_dict
from parl_like.lab.runs import rundir
from parl_like.lab.runs.rundir import RunDir, RunError, plain, runs_in


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def create(**fields):
    return RunDir.create("cartpole", to_dict(ExperimentConfig(**fields)), ["parl-like", "train"])


def test_a_new_run_says_what_it_is():
    run = create(seed=3)
    info = run.info()
    assert (info.experiment, info.state, info.pid, info.exit_reason) == ("cartpole", "running", os.getpid(), "")
    assert info.name == run.path.name == f"{rundir.datetime.date.today()}_cartpole_s3"
    assert info.command == ["parl-like", "train"]
    assert {"python", "parl_like", "torch", "numpy"} <= info.versions.keys()
    assert run.state() == "running"
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


def test_the_configuration_loads_back_unchanged():
    config = ExperimentConfig(seed=3, total_steps=7, log_every_s=0.1)
    assert resolve(ExperimentConfig, RunDir.create("x", to_dict(config)).config()) == config


def test_default_names_never_meet():
    assert [create().path.name[10:] for _ in range(3)] == ["_cartpole_s0", "_cartpole_s0_2", "_cartpole_s0_3"]


def test_a_chosen_directory_may_be_empty_but_not_full(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o755)
    run = create(run_dir="mine")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    with pytest.raises(RunError, match="run_dir mine exists and is not empty; a run is under way there: wait for it, or give"):
        create(run_dir="mine")
    run.update(state="failed")
    with pytest.raises(RunError, match="run_dir mine exists and is not empty; empty it, or give another run_dir="):
        create(run_dir="mine")
    run.checkpoints.mkdir()
    with pytest.raises(RunError, match="`parl-like resume mine`"):
        create(run_dir="mine")
    run.path.rename("my run")
    with pytest.raises(RunError, match="`parl-like resume 'my run'`"):
        create(run_dir="my run")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot make the run directory"):
        create(run_dir="file")


def test_a_directory_that_is_refused_is_not_touched(tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign").chmod(0o755)
    (tmp_path / "foreign" / "file").touch()
    with pytest.raises(RunError, match="exists and is not empty"):
        create(run_dir="foreign")
    assert stat.S_IMODE((tmp_path / "foreign").stat().st_mode) == 0o755
    assert os.listdir(tmp_path / "foreign") == ["file"]


def test_a_chosen_directory_may_be_below_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert create(run_dir="~/mine").path == tmp_path / "home" / "mine"


def test_a_folder_that_cannot_hold_runs_is_a_usage_error(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(RunError, match="cannot make the run directory runs/.*; give another run_dir="):
        create()


def test_an_interrupt_while_the_versions_are_looked_up_leaves_no_directory(tmp_path, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(rundir, "git_state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create(run_dir="mine")
    assert os.listdir(tmp_path) == []


def test_open_finds_by_path_and_by_name():
    run = create()
    assert RunDir.open(run.path).path == run.path
    assert RunDir.open(run.path.name).path == run.path
    with pytest.raises(RunError, match=r"nowhere is no run directory"):
        RunDir.open("nowhere")
    assert [one.path for one in runs_in(run.path.parent)] == [run.path]
    assert runs_in(run.path / "none") == []


def test_ends_and_restarts_are_recorded():
    run = create()
    run.ended("stopped", "SIGINT")
    assert (run.state(), run.info().exit_reason) == ("stopped", "SIGINT")
    assert run.info().ended is not None
    run.save_result({"solved": True})
    run.restarted(["parl-like", "resume"])
    assert (run.state(), run.info().exit_reason, run.info().ended, run.info().resumed) == ("running", "", None, 1)
    assert run.result() is None, "the result of the part before is not the result of the run"


def test_a_run_whose_process_is_gone_has_died():
    run = create()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run.update(pid=gone.pid)
    assert run.state() == "died"
    run.update(pid=os.getpid(), process_started=1.0)  # the pid was given to another process since
    assert run.state() == "died"


@pytest.mark.parametrize("text", [
    "", "[]", "{}", "[" * 100_000, '{"state": "running"}', "\xff", " " * 1_000_001,
    '{"name": "x", "experiment": "../../os", "state": "running", "pid": 1, "process_started": 0, "started": ""}',
    '{"name": "x", "experiment": "ok", "state": "odd", "pid": 1, "process_started": 0, "started": ""}',
    '{"name": "x", "experiment": "ok", "state": "running", "pid": "1", "process_started": 0, "started": ""}',
], ids=lambda text: text[:30])
def test_a_damaged_run_json_is_refused(text):
    run = create()
    (run.path / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=r"run\.json"):
        run.info()


def test_a_newer_run_json_is_still_read():
    run = create()
    tree = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**tree, "added_later": 1}))
    assert msgspec.to_builtins(run.info()) == tree


def test_events_are_lines_of_json():
    run = create()
    run.event("started", pid=1)
    run.event("nan", value=float("nan"), text="a\nb", array=np.float32(0.5))
    first, second = (json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines())
    assert (first["event"], first["pid"]) == ("started", 1)
    assert (second["value"], second["text"], second["array"]) == (None, "a\nb", 0.5)


def test_results_come_back_and_damaged_ones_do_not():
    run = create()
    assert run.result() is None
    run.save_result({"mean": np.float64(1.5), "nan": float("inf"), "n": np.int64(3), "nested": {"a": (1, 2)}})
    assert run.result() == {"mean": 1.5, "nan": None, "n": 3, "nested": {"a": [1, 2]}}
    (run.path / "result.json").write_text("[1]")
    assert run.result() is None


def test_plain_keeps_what_json_knows():
    assert plain({"a": True, "b": None, 3: "x", "c": [1, 2.5]}) == {"a": True, "b": None, "3": "x", "c": [1, 2.5]}


def test_an_interrupted_write_leaves_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")
    with open(path) as reader:
        replace_file(path, b"later")
        assert reader.read() == "old", "who has it open sees the old text whole"
    replace_file(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["file"])


def test_git_state_survives_without_git(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rundir.git_state() is None


def test_a_count_that_could_not_be_counted_on_is_refused():
    run = create()
    text = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**text, "resumed": 2**63 - 1}))
    with pytest.raises(RunError, match=r"Expected `int` <= 9007199254740992 - at `\$.resumed`; put the file back as the"):
        run.info()
    (run.path / "run.json").write_bytes(b"x" * 1_000_001)
    with pytest.raises(RunError) as error:
        run.info()
    assert str(error.value).count("is not readable") == 1
