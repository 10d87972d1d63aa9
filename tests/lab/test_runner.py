"""Runs of a fake robot: what they leave, how they stop, fail and go on, and that going on is the same as never having stopped."""

import csv
import errno
import io
import itertools
import json
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest
from lab_fakes import MODULE, FakeRobot, experiment, signal_here

from parl_like.data.buffers.replay_buffer import ReplayBuffer
from parl_like.lab import config as configs
from parl_like.lab import evaluations, runner, session
from parl_like.lab import experiment as experiments
from parl_like.lab.reports import plots
from parl_like.lab.runs import checkpoint
from parl_like.lab.runs import metrics as metrics_files
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.lock import RunLock
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import ConfigError, UsageError
from parl_like.values.errors import Diverged, TaskFailed


@pytest.fixture(autouse=True)
def clean(fake_experiment, monkeypatch):
    monkeypatch.setattr(FakeRobot, "on_save", None)
    monkeypatch.setattr(FakeRobot, "closed", 0)
    monkeypatch.setattr(session, "GIVE_UP_S", 0.0)
    monkeypatch.setattr(session, "END_PATIENCE_S", 0.0)
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)  # a picture takes a second; one test draws it


def train(run_dir="run", report=None, **overrides):
    """Exit code, run, and what a person saw."""
    stream = io.StringIO()
    one = experiments.get("fake")
    config = configs.resolve(MODULE.Config, one.config, {"run_dir": run_dir, **overrides})
    code = runner.train(one, config, stream=stream, report=report)
    return code, RunDir(Path(run_dir)), stream.getvalue()


def resume(run_dir="run", overrides=None, **options):
    stream = io.StringIO()
    code = runner.resume(run_dir, overrides, stream=stream, **options)
    return code, RunDir(Path(run_dir)), stream.getvalue()


def rows(run):
    """metrics.csv without what the clock decides."""
    with open(run.metrics_file, newline="") as file:
        return [{key: cell for key, cell in row.items() if not key.endswith("_s")} for row in csv.DictReader(file)]


def state(run, which="latest"):
    """The robot of a checkpoint."""
    robot = FakeRobot(MODULE.Config())
    where = which if which == "latest" else run.checkpoints / f"{which:09d}"
    robot.load_state_dict(Checkpoints(run.checkpoints).load(where).tree)
    return robot


def events(run, kind):
    lines = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


# ---- a run that goes well


def test_a_run_leaves_everything():
    reports = []
    code, run, screen = train(report=reports.append)
    assert code == 0
    info = run.info()
    assert (info.state, info.exit_reason, info.experiment) == ("finished", "", "fake")
    assert [row["step"] for row in rows(run)] == ["50", "100", "150", "200", "250", "300", "350", "400"]
    assert [event["step"] for event in events(run, "checkpoint")] == [0, 100, 200, 300, 400]
    assert (state(run).env_steps, state(run).boundaries) == (400, 5), "a boundary before every save, and nowhere else"
    result = run.result()
    assert result["solved"] is True
    assert (result["env_steps"], result["evaluation"]["episodes"], result["evaluation"]["regret"]) == (400, 5, 0.25)
    assert result["trace_hash"] == state(run).trace.hex()
    assert reports == [{"run": "run", "state": "finished", "exit_reason": "", **result}]
    assert screen.splitlines()[0].startswith("train fake (robot fake, 2 agents, cooperative, seed 0): 400 env steps -> run; "
                                             "Ctrl-C")
    verdict, speed, place, then = screen.splitlines()[-4:]
    assert verdict.startswith("solved: mean return ")
    assert verdict.endswith("over 5 episodes; expected mean_return at least 50")
    assert speed.startswith("400 env steps in ")
    assert place.startswith("everything is in run; ")
    assert then == "next: `parl-like play run` or `parl-like plot run`"
    assert "everything is in run" in run.log_file.read_text()
    assert FakeRobot.closed == 1


def test_the_goal_of_an_experiment_says_nothing_of_another_environment():
    code, run, screen = train(env="Other-v0")
    assert (code, run.result()["solved"], run.result()["expect"], run.result()["evaluation"]["episodes"]) == (0, None, {}, 5)
    assert "over 5 episodes (this experiment's goal is one of another environment)" in screen and "solved" not in screen


def test_a_task_that_never_learned_is_said_at_the_end():
    _, run, screen = train()
    assert (run.result()["never_learned"], run.result()["remarks"]) == ({}, [])
    assert "never learned" not in screen
    code, run, screen = train("short", total_steps=50)
    assert (code, run.result()["never_learned"]) == (0, {"RL": "too few rows"})
    assert screen.count("warning: task 'RL' never learned: too few rows") == 1
    assert [event["text"] for event in events(run,
                                              "warning")] == run.result()["remarks"] == ["task 'RL' never learned: too few rows"]


def test_the_header_has_what_every_run_has_and_what_is_known_only_after_learning():
    _, run, _ = train(total_steps=100)
    before, after = rows(run)
    assert {"return/mean", "return/last", "episode/length", "RL/loss", "updates/RL", "step"} <= before.keys()
    assert (before["RL/loss"], before["updates/RL"], after["updates/RL"]) == ("", "0", "40")
    assert 0 < float(after["RL/loss"]) < 1


def test_the_picture_is_drawn_at_the_end(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: False)
    _, run, screen = train()
    assert (run.plots / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "learning curve: run/plots/learning_curve.png" in screen


def test_missing_extras_are_one_line_each(monkeypatch):
    monkeypatch.setattr(metrics_files, "tensorboard_missing", lambda: True)
    code, run, screen = train(tensorboard=True)
    assert code == 0
    assert screen.count("tensorboard is not installed") == screen.count("matplotlib is not installed") == 1
    assert not run.tensorboard.exists()


def test_not_solved_is_said_and_still_exit_code_0():
    one = experiments.register(experiment(name="hard", expect={"mean_return": 1e9, "episodes": 5}), module=MODULE)
    stream = io.StringIO()
    code = runner.train(one, configs.resolve(MODULE.Config, one.config, {"run_dir": "run"}), stream=stream)
    assert (code, RunDir(Path("run")).result()["solved"]) == (0, False)
    assert "\nnot solved: mean return " in stream.getvalue()


def test_a_run_that_is_shorter_than_its_experiment_is_not_held_to_its_goal():
    code, run, screen = train(total_steps=100)
    assert (code, run.result()["solved"]) == (0, False)
    assert "\nfinished: mean return " in screen
    assert "after 100 of the experiment's 400 steps; at their end it expects mean_return at least 50" in screen


def test_without_a_goal_there_is_no_verdict():
    one = experiments.register(experiment(name="aimless", expect={}), module=MODULE)
    stream = io.StringIO()
    runner.train(one, configs.resolve(MODULE.Config, one.config, {"run_dir": "run"}), stream=stream)
    assert RunDir(Path("run")).result()["solved"] is None
    assert RunDir(Path("run")).result()["evaluation"]["episodes"] == evaluations.DEFAULT_EVAL_EPISODES
    assert "finished: mean return" in stream.getvalue()


def test_an_overshooting_robot_is_saved_where_it_stands():
    _, run, _ = train(n_agents=7, checkpoint_every=100, total_steps=250)
    assert [event["step"] for event in events(run, "checkpoint")] == [0, 105, 203, 252]


def test_checkpoint_only_at_the_end():
    _, run, _ = train(checkpoint_every=0)
    assert [event["step"] for event in events(run, "checkpoint")] == [400]


def test_two_runs_of_one_seed_are_equal_and_of_two_seeds_are_not():
    runs = [train(f"run{i}", seed=seed)[1] for i, seed in enumerate((3, 3, 4))]
    assert rows(runs[0]) == rows(runs[1])
    assert rows(runs[0]) != rows(runs[2])
    hashes = [run.result()["trace_hash"] for run in runs]
    assert hashes[0] == hashes[1] != hashes[2]


# ---- resuming


def same(a, b):
    assert rows(a) == rows(b)
    assert vars(state(a)) | {"config": 0} == vars(state(b)) | {"config": 0}
    assert a.result()["trace_hash"] == b.result()["trace_hash"]
    assert a.result()["evaluation"] == b.result()["evaluation"]


def test_n_steps_resumed_to_2n_equal_2n_steps():
    _, whole, _ = train("whole", total_steps=800)
    train("parts", total_steps=400)
    code, parts, screen = resume("parts", {"total_steps": 800})
    assert code == 0
    assert "resume fake" in screen
    same(whole, parts)
    assert (parts.info().resumed, parts.info().state, parts.config()["total_steps"]) == (1, "finished", 800)


def test_a_run_cut_between_checkpoints_resumes_from_the_last_one_exactly(monkeypatch):
    _, whole, _ = train("whole")

    def power_cut():
        raise SystemExit

    monkeypatch.setattr(FakeRobot, "at_step", {288: power_cut})
    monkeypatch.setattr(session.Session, "_failed", lambda self, error: 1)  # nothing is written any more
    with pytest.raises(SystemExit):
        train("cut")
    monkeypatch.setattr(FakeRobot, "at_step", {})
    assert rows(RunDir(Path("cut")))[-1]["step"] == "250"
    code, cut, _ = resume("cut")
    assert code == 0
    same(whole, cut)


def test_an_older_checkpoint_can_be_chosen():
    _, whole, _ = train("whole", total_steps=800)
    train("parts")
    _, parts, _ = resume("parts", {"total_steps": 800}, which="200")
    same(whole, parts)


def test_seconds_add_up_over_the_parts(monkeypatch):
    # By a clock that runs faster in the first part: how long the parts really take is the machine's affair.
    real, faster = time.perf_counter, 1_000_000.0
    started = real()
    monkeypatch.setattr(time, "perf_counter", lambda: started + (real() - started) * faster)
    train(total_steps=200)
    before = RunDir(Path("run")).result()["seconds"]
    monkeypatch.setattr(time, "perf_counter", real)
    resume(overrides={"total_steps": 400})
    seconds = RunDir(Path("run")).result()["seconds"]
    assert 0 < seconds < before + 100 and seconds > 100


def test_a_finished_run_is_not_resumed_by_accident():
    train()
    with pytest.raises(UsageError, match="has finished its 400 steps; to train longer: `parl-like resume run total_steps=800`"):
        resume()
    assert RunDir(Path("run")).state() == "finished"


@pytest.mark.parametrize("total_steps", [300, 400, 402])
def test_a_finished_run_is_not_resumed_to_what_it_has_done_already(total_steps):
    _, run, _ = train(n_agents=3)
    assert state(run).env_steps == 402
    with pytest.raises(UsageError, match="run has finished its 400 steps; to train longer: `parl-like resume run "
                                         "total_steps=804`"):
        resume(overrides={"total_steps": total_steps})
    assert resume(overrides={"total_steps": 804})[0] == 0


def test_a_resumed_run_stays_where_it_is():
    _, run, _ = train()
    with pytest.raises(ConfigError, match="'run_dir' is 'run' there and 'elsewhere' now"):
        resume(overrides={"run_dir": "elsewhere", "total_steps": 800})
    run.path.rename("moved")
    assert resume("moved", {"total_steps": 800})[0] == 0


def test_a_resumed_run_keeps_its_configuration():
    train()
    said = r"'lr' is 0\.5 there and 0\.1 now; only checkpoint_buffers, device, eval_.* total_steps, .*may change"
    with pytest.raises(ConfigError, match=said):
        resume(overrides={"lr": 0.1, "total_steps": 800})
    with pytest.raises(ConfigError, match="no key 'total_step'; did you mean 'total_steps'"):
        resume(overrides={"total_step": 800})


def test_an_edited_configuration_file_is_refused():
    _, run, _ = train()
    run.save_config({**run.config(), "lr": 0.1})
    with pytest.raises(ConfigError, match="is not that of the checkpoint: 'lr' is 0.5 there and 0.1 now"):
        resume(overrides={"total_steps": 800})
    run.save_config({**run.config(), "module": "os.path"})
    with pytest.raises(ConfigError, match="Config has no key 'module'"):
        resume(overrides={"total_steps": 800})


def test_a_configuration_of_before_a_field_was_added_is_accepted():
    _, run, _ = train()
    tree = run.config()
    del tree["refuse"]
    run.save_config(tree)
    with pytest.raises(UsageError, match="has finished"):
        resume()


def test_a_run_directory_imports_nothing_but_registered_robots(tmp_path):
    _, run, _ = train()
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    for name in ("evil", "os"):
        run.update(experiment=name)
        with pytest.raises(UsageError, match="no experiment"):
            resume()


@pytest.mark.parametrize("damage", [
    lambda file: file.write_bytes(b"step,return/mean\n\xff\xfe\n"),
    lambda file: file.write_text("step," + 2_000_000 * "x"),
    lambda file: file.write_text("step\n" + "1\n" * 2_000_001),
    lambda file: (file.unlink(), file.mkdir()),
    lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
    lambda file: (file.unlink(), os.mkfifo(file)),
], ids=["no text", "no line", "too long", "folder", "link", "pipe"])
def test_a_run_whose_metrics_are_damaged_is_refused_and_stays_as_it_was(damage):
    _, run, _ = train()
    damage(run.metrics_file)
    before = {name: (run.path / name).read_bytes() for name in ("run.json", "config.yaml", "events.jsonl", "result.json")}
    with pytest.raises(UsageError, match=r"metrics\.csv is (no table that a run wrote|not readable)"):
        resume(overrides={"total_steps": 800})
    assert {name: (run.path / name).read_bytes() for name in before} == before


def test_one_process_per_run():
    _, run, _ = train()
    with RunLock(run.path), pytest.raises(Exception, match=str(os.getpid())):
        resume(overrides={"total_steps": 800})


# ---- stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_iteration_and_a_save(monkeypatch, number, capfd):
    monkeypatch.setattr(FakeRobot, "at_step", {135: signal_here(number)})
    before = signal.getsignal(number)
    code, run, screen = train()
    assert code == 3
    assert (run.state(), run.info().exit_reason) == ("stopped", number.name)
    assert [event["step"] for event in events(run, "checkpoint")] == [0, 100, 136]
    assert [row["step"] for row in rows(run)] == ["50", "100", "136"]
    assert run.result() is None
    assert screen.splitlines()[-1] == f"stopped by {number.name} at env step 136; continue with `parl-like resume run`"
    assert f"{number.name}: stopping after this iteration" in capfd.readouterr().err
    assert signal.getsignal(number) is before
    assert FakeRobot.closed == 1
    monkeypatch.setattr(FakeRobot, "at_step", {})
    code, run, screen = resume()
    assert (code, run.state(), state(run).env_steps) == (0, "finished", 400)
    assert "continuing from step 136, where the run was stopped; `--exact` would repeat the 36 steps since the last" in screen
    assert next(event["step"] for event in events(run, "resumed")) == 136
    assert [row["step"] for row in rows(run)] == ["50", "100", "136", "150", "200", "250", "300", "350", "400"]


def test_a_signal_asks_for_a_checkpoint_and_training_goes_on(monkeypatch, capfd):
    monkeypatch.setattr(FakeRobot, "at_step", {135: signal_here(signal.SIGUSR1)})
    before = signal.getsignal(signal.SIGUSR1)
    code, run, _ = train()
    assert (code, run.state(), state(run).env_steps) == (0, "finished", 400)
    assert [event["step"] for event in events(run, "checkpoint")] == [0, 100, 136, 200, 300, 400]
    assert "SIGUSR1: a checkpoint after this iteration; training goes on" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGUSR1) is before


def test_sigusr1_in_an_iteration_without_a_step_saves_and_training_goes_on(monkeypatch):
    """Such as an update from recorded rows, before agents act."""
    iterate = FakeRobot.iterate

    def first_without(robot, stop):
        if not robot.env_steps and not robot.boundaries:
            signal_here(signal.SIGUSR1)()
            yield 0
        yield from iterate(robot, stop)

    monkeypatch.setattr(FakeRobot, "iterate", first_without)
    code, run, _ = train(checkpoint_every=0)
    assert (code, run.state(), state(run).env_steps) == (0, "finished", 400)
    assert [event["step"] for event in events(run, "checkpoint")] == [0, 400]


def test_a_run_stopped_between_checkpoints_equals_an_uninterrupted_one(monkeypatch):
    _, run, _ = train(run_dir="whole")
    whole = run.result()["trace_hash"]
    assert whole
    monkeypatch.setattr(FakeRobot, "at_step", {135: signal_here(signal.SIGTERM)})
    train()
    monkeypatch.setattr(FakeRobot, "at_step", {})
    _, run, screen = resume(which="exact")
    assert "continuing from step 100, the last scheduled checkpoint, and repeating 36 steps" in screen
    assert run.result()["trace_hash"] == whole


def test_resume_from_the_interruption_itself_on_request(monkeypatch):
    monkeypatch.setattr(FakeRobot, "at_step", {135: signal_here(signal.SIGTERM)})
    train()
    monkeypatch.setattr(FakeRobot, "at_step", {})
    code, run, screen = resume(which="latest")
    assert (code, state(run).env_steps) == (0, 400)
    assert "last scheduled checkpoint" not in screen
    assert next(event["step"] for event in events(run, "resumed")) == 136


def test_a_signal_while_saving_leaves_a_whole_checkpoint(monkeypatch):
    monkeypatch.setattr(FakeRobot, "on_save", signal_here(signal.SIGTERM))
    code, run, _ = train()
    assert (code, run.state(), state(run).env_steps) == (3, "stopped", 0)


@pytest.mark.parametrize("after", [0, 2])
def test_a_signal_during_the_evaluation_ends_it_and_a_resume_evaluates_anew(monkeypatch, after):
    evaluate = FakeRobot.evaluate

    def interrupted(self, *, stop, **options):
        asked = itertools.count()

        def strikes(robot):
            if next(asked) == after:
                signal_here(signal.SIGTERM)()
            return stop(robot)

        return evaluate(self, stop=strikes, **options)

    with monkeypatch.context() as struck:
        struck.setattr(FakeRobot, "evaluate", interrupted)
        code, run, screen = train()
    assert (code, run.state(), run.info().exit_reason, state(run).env_steps) == (3, "stopped", "SIGTERM", 400)
    result = run.result()
    assert (result["stopped_by"], result["solved"], result["evaluation"]["episodes"]) == ("SIGTERM", None, after)
    assert screen.splitlines()[-2] == f"the evaluation was stopped after {after} of 5 episodes"
    code, run, _ = resume()
    assert (code, run.state(), run.result()["stopped_by"], run.result()["solved"]) == (0, "finished", None, True)
    assert (run.result()["evaluation"]["episodes"], state(run).boundaries) == (5, 5)


def test_a_signal_after_the_last_episode_of_the_evaluation_changes_nothing(monkeypatch):
    evaluate = FakeRobot.evaluate

    def interrupted(self, **options):
        seen = evaluate(self, **options)
        signal_here(signal.SIGINT)()
        return seen

    monkeypatch.setattr(FakeRobot, "evaluate", interrupted)
    code, run, _ = train()
    assert (code, run.state(), run.result()["solved"]) == (0, "finished", True)


def test_a_run_that_died_in_its_evaluation_is_finished_by_resuming(monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(FakeRobot, "evaluate", lambda self, **_: 1 / 0)
        assert train()[0] == 1
    code, run, _ = resume()
    assert (code, run.state(), state(run).env_steps, state(run).boundaries) == (0, "finished", 400, 5)


def test_the_second_signal_leaves_at_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(f"""
        import signal, sys, time
        sys.path.insert(0, {str(Path(__file__).parents[1] / "fakes")!r})
        from lab_fakes import MODULE, FakeRobot, experiment, signal_here
        from parl_like.lab import config, experiment as experiments, runner

        def twice():
            signal_here(signal.SIGINT)()
            signal_here(signal.SIGINT)()
            time.sleep(600)

        FakeRobot.at_step = {{150: twice}}
        one = experiments.register(experiment(), module=MODULE)
        sys.exit(runner.train(one, config.resolve(MODULE.Config, one.config, {{"run_dir": "run"}}), stream=sys.stdout))
    """))
    done = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    run = RunDir(tmp_path / "run")
    assert run.state() == "stopped"
    assert "second signal" in run.info().exit_reason
    assert state(run).env_steps == 100


# ---- failing


def test_a_failure_leaves_what_there_is(monkeypatch):
    monkeypatch.setattr(FakeRobot, "at_step", {135: lambda: 1 / 0})
    code, run, screen = train()
    assert code == 1
    assert (run.state(), run.info().exit_reason) == ("failed", "ZeroDivisionError: division by zero")
    assert screen.splitlines()[-1] == ("error: ZeroDivisionError: division by zero; the traceback is in run/log.txt; "
                                       "continue from step 100 with `parl-like resume run`")
    assert "Traceback" not in screen
    assert "lab_fakes.py" in run.log_file.read_text()
    assert [row["step"] for row in rows(run)] == ["50", "100", "135"]
    assert state(run).env_steps == 135
    assert FakeRobot.closed == 1


def test_the_traceback_that_a_task_sends_along_is_in_the_log_alone(monkeypatch):
    def failed():
        raise TaskFailed("task 'RL': learn failed: it is\nso\nTraceback (most recent call last):\n  File \"mine.py\", line 7")

    monkeypatch.setattr(FakeRobot, "at_step", {135: failed})
    _, run, screen = train()
    assert screen.splitlines()[-1].startswith("error: TaskFailed: task 'RL': learn failed: it is so; the traceback is in run/log")
    assert run.info().exit_reason == "TaskFailed: task 'RL': learn failed: it is\nso" and "mine.py" in run.log_file.read_text()


def test_a_usage_error_in_the_midst_of_training_is_a_failure_like_any_other(monkeypatch):
    def refuse():
        raise UsageError("too late to refuse")

    monkeypatch.setattr(FakeRobot, "at_step", {135: refuse})
    code, run, screen = train()
    assert (code, run.state(), state(run).env_steps) == (1, "failed", 135)
    assert "error: UsageError: too late to refuse" in screen


def named_and_taken(screen, monkeypatch):
    """The step that the message of a failed run names, and the one from which a plain resume then goes on."""
    monkeypatch.setattr(FakeRobot, "at_step", {})
    code, run, _ = resume()
    assert (code, run.state()) == (0, "finished")
    return int(re.search(r"continue from step (\d+) with `parl-like resume run`$", screen)[1]), events(run, "resumed")[-1]["step"]


@pytest.mark.parametrize(("every", "step"), [(100, 100), (0, 135)])
def test_a_failure_names_the_step_from_which_a_resume_goes_on(monkeypatch, every, step):
    monkeypatch.setattr(FakeRobot, "at_step", {135: lambda: 1 / 0})
    _, _, screen = train(checkpoint_every=every)
    assert named_and_taken(screen.strip(), monkeypatch) == (step, step)


def test_checkpoints_of_a_part_that_was_given_up_do_not_count_as_newer(monkeypatch):
    _, whole, _ = train("whole", total_steps=800)
    train()
    monkeypatch.setattr(FakeRobot, "at_step", {235: lambda: 1 / 0})
    _, run, screen = resume(overrides={"total_steps": 800}, which="100")
    assert (run.checkpoints / "000000400").is_dir()
    assert named_and_taken(screen.strip(), monkeypatch) == (200, 200)
    same(whole, run)


def test_a_run_directory_that_vanished_does_not_hide_what_happened(monkeypatch):
    def vanish():
        shutil.rmtree("run")
        raise RuntimeError("the cause")

    monkeypatch.setattr(FakeRobot, "at_step", {135: vanish})
    code, _, screen = train()
    assert code == 1
    assert "error: RuntimeError: the cause" in screen


def test_a_roll_back_moves_the_generators_of_buffers_too():
    """Else the same rows would bring training to the same end."""
    state = ReplayBuffer(4).state_dict()
    assert session._moved_on(state)["rng"] != state["rng"]


def test_divergence_has_an_exit_code_of_its_own(monkeypatch):
    def diverge():
        raise TaskFailed("learn failed") from Diverged("loss is nan")

    monkeypatch.setattr(FakeRobot, "at_step", {135: diverge})
    code, run, _ = train()
    assert (code, run.state(), run.info().exit_reason) == (4, "failed", "TaskFailed: learn failed")


def test_a_failure_that_also_breaks_saving_keeps_the_last_checkpoint(monkeypatch):
    def broken():
        FakeRobot.on_save = lambda: 1 / 0
        raise MemoryError("no room\nat all")

    monkeypatch.setattr(FakeRobot, "at_step", {135: broken})
    code, run, screen = train()
    assert (code, run.state(), state(run).env_steps) == (1, "failed", 100)
    assert screen.splitlines()[-1].startswith("error: MemoryError: no room at all; the traceback is in run/log.txt; continue "
                                              "from step 100")
    assert "could not save after the failure: ZeroDivisionError" in run.log_file.read_text()


@pytest.mark.parametrize(("raised", "seen"), [
    (ConfigError("refused"), ConfigError), (ValueError("no such device"), ConfigError),
    (RuntimeError("no such environment"), RuntimeError),
    (KeyboardInterrupt(), KeyboardInterrupt),
], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("run_dir", ["", "new/run", "mine"])
def test_a_robot_that_cannot_be_built_leaves_no_run(monkeypatch, tmp_path, raised, seen, run_dir):
    def build(config):
        raise raised

    mine = tmp_path / "mine"
    mine.mkdir()
    mine.chmod(0o755)
    monkeypatch.setattr(MODULE, "build", build)
    with pytest.raises(seen, match=str(raised) or None):
        train(run_dir)
    assert list(tmp_path.rglob("*")) == [mine]
    assert stat.S_IMODE(mine.stat().st_mode) == 0o755


def test_a_robot_that_cannot_be_built_again_leaves_the_run_as_it_was(monkeypatch):
    def contents(run):
        return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != "run.lock"}

    _, run, _ = train()
    before = contents(run)
    with monkeypatch.context() as broken:
        broken.setattr(FakeRobot, "load_state_dict", lambda self, tree: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            resume(overrides={"total_steps": 800})
        assert FakeRobot.closed == 2
        broken.setattr(FakeRobot, "__init__", lambda self, config: int("no such device"))
        with pytest.raises(ConfigError, match="no such device"):
            resume(overrides={"total_steps": 800})
        with pytest.raises(ConfigError, match="no such device"):
            runner.evaluate("run")
    assert contents(run) == before
    assert resume(overrides={"total_steps": 800})[0] == 0


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setattr(FakeRobot, "at_step", {5: lambda: 1 / 0})
    stream = io.StringIO()
    one = experiments.get("fake")
    runner.train(one, configs.resolve(MODULE.Config, one.config, {"run_dir": "run"}), stream=stream, debug=True)
    assert "Traceback" in stream.getvalue()


def test_a_robot_that_stands_still_is_an_error_and_no_endless_loop(monkeypatch):
    monkeypatch.setattr(FakeRobot, "iterate", lambda self, stop: iter(()))
    code, _, screen = train()
    assert code == 1
    assert "robot.iterate(100) ended at env step 0 without a step" in screen


def full_disk(monkeypatch, saves):
    """The disk refuses these saves, counted from 0."""
    write, count = checkpoint.write_archive, iter(range(1000))

    def refuse(*args, **options):
        if next(count) in saves:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*args, **options)

    monkeypatch.setattr(checkpoint, "write_archive", refuse)


def test_a_full_disk_is_survived_while_training_goes_on(monkeypatch):
    full_disk(monkeypatch, {1, 2})
    code, run, screen = train()
    assert (code, state(run).env_steps) == (0, 400)
    assert screen.count("No space left on device") == len(events(run, "warning")) == 2
    assert [event["step"] for event in events(run, "checkpoint")] == [0, 300, 400]


def test_a_disk_that_stays_full_ends_the_run(monkeypatch):
    full_disk(monkeypatch, range(1000))
    code, run, screen = train(total_steps=10_000)
    assert (code, run.state()) == (1, "failed")
    assert rows(run)[-1]["step"] == "200"
    assert "No space left on device" in screen.splitlines()[-1]


def test_the_last_checkpoint_must_be_saved(monkeypatch):
    full_disk(monkeypatch, {3, 4})  # that of step 400, and the attempt to rescue it
    code, run, screen = train()
    assert (code, run.state(), run.result()) == (1, "failed", None)
    assert "the last checkpoint, of env step 400, could not be saved" in screen.splitlines()[-1]


# ---- looking at a run


def test_evaluation_gives_the_numbers_of_the_result_again():
    _, run, _ = train(seed=5)
    numbers = runner.evaluate("run")
    assert {key: numbers[key] for key in run.result()["evaluation"]} == run.result()["evaluation"]
    assert (numbers["step"], numbers["seed"]) == (400, evaluations.EVAL_SEED + 5)
    few = runner.evaluate("run", episodes=3, seed=0, which="100")
    assert (few["episodes"], few["step"], few["seed"]) == (3, 100, 0)
    weight = state(run, 100).weight
    assert (few["mean_return"], few["min_return"], few["max_return"]) == (pytest.approx(weight + 1), weight, weight + 2)
    assert few["std_return"] == pytest.approx((2 / 3) ** 0.5)  # of the population: 0, 1, 2 around 1


def test_playing_writes_one_file_per_episode():
    _, run, _ = train()
    played = runner.play("run", episodes=2, seed=3)
    assert [Path(one["path"]).name for one in played] == ["episode_3.gif", "episode_4.gif"]
    assert all(Path(one["path"]).is_file() for one in played)
    assert played[1]["return"] == pytest.approx(state(run).weight + 4)


@pytest.mark.parametrize("verb", [runner.evaluate, runner.play, runner.resume])
@pytest.mark.parametrize("which", ["latest", "best"])
def test_a_run_without_a_checkpoint_cannot_be_used(verb, which):
    _, run, _ = train()
    shutil.rmtree(run.checkpoints)
    with pytest.raises(UsageError, match="run has no checkpoint yet; start a new run with `parl-like train fake`"):
        verb("run", which=which)
    run.update(source=experiments.ExperimentSource(file="/x/my robot.py", sha256="0" * 64))
    with pytest.raises(UsageError, match="start a new run with `parl-like train '/x/my robot.py:fake'`"):
        runner._choose(run, checkpoint.Checkpoints(run.checkpoints), which)


def test_warnings_of_the_framework_are_events_and_are_shown_once(monkeypatch):
    """F04: that a worker was replaced, and the exit code it ended with, are such a warning."""
    logger = logging.getLogger("parl_like.processes")
    text = "worker 1 ended with exit code 3; it is replaced"
    monkeypatch.setattr(FakeRobot, "at_step", {
        100: lambda: (logger.warning(f"{text}\nand more"), logger.info("this is none")),
        200: lambda: logger.error("odd \x1b[2J"), 300: lambda: logger.warning(text)})
    code, run, screen = train()
    assert code == 0
    assert [(line["source"], line["text"]) for line in events(run, "warning")] == [
        ("parl_like.processes", text), ("parl_like.processes", "odd \x1b[2J"), ("parl_like.processes", text)]
    assert screen.count(f"warning: {text}\n") == screen.count(text) == 1
    assert "warning: odd \\x1b[2J\n" in screen and "this is none" not in screen


def test_handlers_of_others_get_no_more_than_they_would(monkeypatch):
    """MinAtar, and many a library, installs one that prints all."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("parl_like.processes")
    monkeypatch.setattr(FakeRobot, "at_step", {100: lambda: (logger.info("detail"), logger.warning("replaced"))})
    logging.getLogger().addHandler(handler)
    try:
        assert train()[0] == 0
    finally:
        logging.getLogger().removeHandler(handler)
    assert [record.getMessage() for record in records if record.name.startswith("parl_like")] == ["replaced"]
    assert logging.getLogger("parl_like").propagate


def test_handlers_of_others_get_what_a_logger_below_parl_like_was_set_to(monkeypatch):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    low, high, below = (logging.getLogger(f"parl_like.{name}") for name in ("low", "high", "low.below"))
    monkeypatch.setattr(low, "level", logging.DEBUG)
    monkeypatch.setattr(high, "level", logging.ERROR)
    monkeypatch.setattr(FakeRobot, "at_step", {100: lambda: [one.log(level, f"{one.name} {level}") for one in (low, high, below)
                                                             for level in (logging.DEBUG, logging.WARNING)]})
    logging.getLogger().addHandler(handler)
    try:
        assert train()[0] == 0
    finally:
        logging.getLogger().removeHandler(handler)
    assert [record.getMessage() for record in records if record.name.startswith("parl_like")] == [
        f"parl_like.{name} {level}" for name in ("low", "low.below") for level in (logging.DEBUG, logging.WARNING)]


def test_warnings_of_python_are_shown_and_kept(monkeypatch):
    said = "\x1b[33man agent never steps\x1b[0m"
    monkeypatch.setattr(FakeRobot, "at_step", {100: lambda: warnings.warn(said, RuntimeWarning, stacklevel=1)})
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, run, screen = train()
    text = f"RuntimeWarning: an agent never steps ({__file__}:"
    assert code == 0 and warnings.showwarning is before
    assert screen.count(f"warning: {text}") == 1 and f"WARNING {text}" in run.log_file.read_text()
    assert [line["text"].startswith(text) for line in events(run, "warning")] == [True]


def test_the_failure_of_a_run_is_no_warning(monkeypatch):
    monkeypatch.setattr(FakeRobot, "at_step", {150: lambda: 1 / 0})
    code, _, screen = train()
    assert code == 1 and "warning" not in screen
