"""A disk that is full for a while, or to the end, and a run directory that is deleted under a run."""

import csv
import errno
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab_fakes import MODULE, FakeRobot

from parl_like.lab import experiment as experiments
from parl_like.lab import runner, session
from parl_like.lab.config import resolve
from parl_like.lab.reports import plots
from parl_like.lab.runs import metrics, outbox
from parl_like.lab.runs.metrics import MetricsLog, read_metrics
from parl_like.lab.runs.outbox import Outbox, RunError
from parl_like.lab.runs.rundir import RunDir


@pytest.fixture(autouse=True)
def clean(fake_experiment, monkeypatch):
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)
    monkeypatch.setattr(session, "END_PATIENCE_S", 0.0)
    monkeypatch.setattr(outbox, "RETRY_S", 0.0)


def train(**overrides):
    stream = io.StringIO()
    one = experiments.get("fake")
    config = resolve(MODULE.Config, one.config, {"run_dir": "run", "metrics_every": 10, **overrides})
    code = runner.train(one, config, stream=stream)
    return code, RunDir(Path("run")), stream.getvalue()


class Full:
    """A disk without room: no new byte is written, but a file's own bytes can be written over. After `partly` bytes more."""

    def __init__(self, monkeypatch, partly=0):
        self.on, self.partly, write = False, partly, os.write

        def refuse(file, data):
            if self.on:
                n, self.partly = min(self.partly, len(data)), 0
                if not n:
                    raise OSError(errno.ENOSPC, "No space left on device")
                data = bytes(data[:n])
            return write(file, data)

        monkeypatch.setattr(os, "write", refuse)

    def begin(self):
        self.on = True

    def end(self):
        self.on = False


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("partly", [0, 5])
@pytest.mark.parametrize("begin", [5, 105, 195])
def test_a_disk_that_is_full_for_a_while_costs_nothing(monkeypatch, begin, partly):
    disk = Full(monkeypatch, partly)
    monkeypatch.setattr(FakeRobot, "at_step", {begin: disk.begin, 305: disk.end})
    code, run, screen = train(tensorboard=True)
    assert (code, run.state(), run.outbox.flush()) == (0, "finished", [])
    with open(run.metrics_file, newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(10, 401, 10))
    assert [line["step"] for line in lines(run.path / "events.jsonl") if line["event"] == "checkpoint"][-1] == 400
    assert screen.count("waits in memory until it can be written") == 1, "one warning for one cause"
    assert len(run.log_file.read_text().splitlines()) == len(re.findall(r"(?m)^\d{4}-\d\d-\d\d ", run.log_file.read_text())) > 4
    assert sorted(path.name for path in run.path.iterdir() if ".partial." in path.name) == []
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run.tensorboard)).Reload()
    assert [event.step for event in events.Scalars("episodes")] == list(range(10, 401, 10))


def test_a_real_limit_of_the_system_is_survived(tmp_path):
    """No file may grow while the robot is between steps 105 and 305."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(f"""
        import resource, sys
        sys.path.insert(0, {str(Path(__file__).parents[1] / "fakes")!r})
        from lab_fakes import MODULE, FakeRobot, experiment
        from parl_like.lab import config, experiment as experiments, runner

        def limit(size):
            return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        FakeRobot.at_step = {{105: limit(0), 305: limit(resource.RLIM_INFINITY)}}
        one = experiments.register(experiment(), module=MODULE)
        given = {{"run_dir": "run", "metrics_every": 10, "tensorboard": True, "checkpoint_every": 150}}
        sys.exit(runner.train(one, config.resolve(MODULE.Config, one.config, given), stream=sys.stdout))
    """))
    done = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDir(tmp_path / "run")
    assert run.info().state == "finished"
    assert read_metrics(run)["step"] == list(range(10, 401, 10))
    assert "Traceback" not in done.stdout + done.stderr


def test_a_run_that_ends_by_a_full_disk_does_not_stay_running(monkeypatch):
    disk = Full(monkeypatch)
    monkeypatch.setattr(FakeRobot, "at_step", {335: disk.begin})
    code, run, screen = train()
    assert code == 1
    assert json.loads((run.path / "run.json").read_text())["state"] == "failed", "in the file itself, in the room that it had"
    assert "No space left on device" in screen.splitlines()[-2] or "could not be saved" in screen.splitlines()[-1]
    disk.end()
    monkeypatch.setattr(FakeRobot, "at_step", {})
    assert runner.resume("run") == 0
    assert read_metrics(RunDir(Path("run")))["step"] == list(range(10, 401, 10))


def test_a_run_whose_result_cannot_be_written_fails(monkeypatch):
    disk = Full(monkeypatch)
    evaluate = FakeRobot.evaluate
    monkeypatch.setattr(FakeRobot, "evaluate", lambda self, **options: (disk.begin(), evaluate(self, **options))[1])
    code, run, screen = train()
    assert (code, json.loads((run.path / "run.json").read_text())["state"]) == (1, "failed")
    assert "the disk did not take" in screen.splitlines()[-1] and "result.json" in screen.splitlines()[-1]


@pytest.mark.parametrize("what", ["folder", "full"])
def test_a_description_that_cannot_be_written_costs_the_run_nothing(monkeypatch, what):
    """Nobody waits for the picture of a robot, so no run may fail for want of it."""
    real, tried = outbox.replace_file, []

    def replaced(path, data, **options):
        if path.name == "robot.json":
            tried.append(data)
            if what == "full":
                raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data, **options)

    monkeypatch.setattr(outbox, "replace_file", replaced)
    monkeypatch.setattr(session, "DESCRIBE_S", 0.0)
    monkeypatch.setattr(session, "DESCRIBE_SHARE", float("inf"))
    monkeypatch.setattr(FakeRobot, "at_step", {5: lambda: os.makedirs("run/robot.json/mine")} if what == "folder" else {})
    code, run, screen = train()
    assert (code, run.state(), run.outbox.flush()) == (0, "finished", []) and len(tried) == 41
    assert "robot.json" not in screen and [path.name for path in run.path.iterdir() if ".partial." in path.name] == []


def test_descriptions_take_a_small_share_of_the_time(monkeypatch):
    """Each look at this clock takes half a second, so a description does, too: the next one comes after a hundred."""
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr(session, "time", SimpleNamespace(perf_counter=lambda: next(clock), monotonic=time.monotonic))
    described, describe = [], FakeRobot.describe
    monkeypatch.setattr(FakeRobot, "describe", lambda self: (described.append(1), describe(self))[1])
    assert train()[0] == 0 and next(clock) > 30
    assert len(described) == 2, "in the first row, and at the end"


def test_a_disk_that_is_full_at_the_end_is_waited_for(monkeypatch):
    disk = Full(monkeypatch)
    monkeypatch.setattr(session, "END_PATIENCE_S", 30.0)
    monkeypatch.setattr(outbox, "RETRY_S", 0.05)
    timer = threading.Timer(1.0, disk.end)
    monkeypatch.setattr(FakeRobot, "at_step", {400: lambda: (disk.begin(), timer.start())})
    code, run, _ = train()
    timer.join()
    assert (code, run.info().state, run.result()["env_steps"]) == (0, "finished", 400)


def test_a_run_is_not_begun_on_a_full_disk(monkeypatch):
    Full(monkeypatch).begin()
    with pytest.raises(RunError, match=r"cannot write run\.json, config\.yaml in run; free space"):
        train()


def test_memory_for_what_waits_is_bounded_and_what_is_lost_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox, "MAX_WAITING", 100)
    disk, warnings = Full(monkeypatch), []
    box = Outbox(tmp_path, warnings.append)
    disk.begin()
    for number in range(100):
        box.append("file", b"%09d\n" % number)
    disk.end()
    assert box.flush() == []
    assert (tmp_path / "file").read_bytes() == b"".join(b"%09d\n" % number for number in range(10))
    assert len(warnings) == 2 and "90 lines were lost" in warnings[1]


def test_what_waits_can_be_read(tmp_path, monkeypatch):
    run, disk = RunDir(tmp_path), Full(monkeypatch, partly=7)
    MetricsLog(run).write({"step": 1, "a": 1.0})
    disk.begin()
    MetricsLog(run).write({"step": 2, "a": 2.0})
    MetricsLog(run).write({"step": 3, "b": 3.0})
    run.save_result({"a": 1})
    assert (read_metrics(run)["step"], run.result()) == ([1, 2, 3], {"a": 1})
    metrics.truncate(run, 2)
    disk.end()
    assert run.outbox.flush() == [] and run.metrics_file.read_text() == "step,a,b\n1,1,\n2,2,\n"


def test_many_threads_share_an_outbox(tmp_path, monkeypatch):
    disk, box = Full(monkeypatch, partly=3), Outbox(tmp_path, lambda text: None)

    def write(name):
        for number in range(300):
            box.append("file", f"{name}{number:05}\n".encode())
            if number in (50, 200):
                disk.on = not disk.on

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    disk.end()
    assert box.flush() == []
    found = (tmp_path / "file").read_text().split()
    for name in "abcd":
        assert [line for line in found if line[0] == name] == [f"{name}{number:05}" for number in range(300)]


def test_json_is_written_over_only_where_it_fits(tmp_path):
    box = Outbox(tmp_path)
    (tmp_path / "file").write_text('{"a": 1}   \n')
    assert not box.overwrite("file", b'{"a": 1234567890}')
    assert box.overwrite("file", b'{"b": 23}')
    assert json.loads((tmp_path / "file").read_text()) == {"b": 23}
    assert not box.overwrite("none", b"{}")


# ---- a directory that is deleted


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("step", [105, 199])
def test_a_run_directory_that_is_deleted_is_one_clear_error(monkeypatch, tmp_path, step, back):
    def delete():
        shutil.rmtree("run")
        if back:
            os.mkdir("run")

    monkeypatch.setattr(FakeRobot, "at_step", {step: delete})
    code, _, screen = train(tensorboard=True)
    assert code == 1
    assert screen.count("error") == 1 and "warning" not in screen
    assert screen.splitlines()[-1] == ("error: the run directory run was deleted or replaced while it was in use; nothing more "
                                       "can be saved in it")
    assert os.listdir(tmp_path) == ["run"] * back and (not back or os.listdir("run") == []), "nothing was made anew"
