"""Sweeps: spaces of settings, the runs that they stand for, and searches for the best of them."""

import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from terminals import Terminal

from parl_like.lab import cli
from parl_like.lab.runs.outbox import RunError
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.sweeps import spaces, sweep
from parl_like.lab.sweeps.spaces import Interval
from parl_like.lab.yaml_text import ConfigError


@pytest.mark.parametrize(("word", "values"), [
    ("lr=1e-4,1e-3", [1e-4, 1e-3]), ("hidden=[64,64],[256]", [[64, 64], [256]]), ("seed=0..4", Interval(0, 4)),
    ("lr=1e-5..1e-2", Interval(1e-5, 1e-2)), ("on=true,false", [True, False]), ("name='a,b',c", ["a,b", "c"]),
    ("x=1,1.0,true", [1, 1.0, True]), ("path=../a", ["../a"]), ("path=../a,../b", ["../a", "../b"]),
    ("act={a: 1, b: 2}", [{"a": 1, "b": 2}]),
    ("env=", [""]), ("env=a,''", ["a", ""]), ("name=a..b", ["a..b"]), ("lr=-1..1", Interval(-1, 1)),
])
def test_what_words_stand_for(word, values):
    found = spaces.space_of([word])[word.partition("=")[0]]
    assert found == values and list(map(type, found)) == list(map(type, values))


@pytest.mark.parametrize("words", [["lr"], ["=1,2"], ["lr=2..1"], ["lr=1..b"], ["lr=1..inf"], ["lr=1..2,3"], ["lr=1,1"],
                                   ["lr=1", "lr=2"], ["lr=[1"], ["lr=1..true"], ["lr=1,"], ["lr=1,,2"]])
def test_words_that_stand_for_nothing_are_refused(words):
    with pytest.raises(ConfigError, match="lr|key=value"):
        spaces.space_of(words)


def test_all_combinations_and_some_at_random():
    space = spaces.space_of(["a=1,2", "b=0..2"])
    assert spaces.grid(space) == [{"a": a, "b": b} for a in (1, 2) for b in (0, 1, 2)] and spaces.grid({}) == [{}]
    with pytest.raises(ConfigError, match="--random"):
        spaces.grid(spaces.space_of(["lr=1e-5..1e-2"]))
    with pytest.raises(ConfigError, match="at most 10,000 runs, got 100,020,001"):
        spaces.grid(spaces.space_of(["a=0..10000", "b=0..10000"]))
    space = spaces.space_of(["lr=1e-5..1e-1", "n=3..5", "x=-1.0..1.0", "act=relu,tanh"])
    drawn = list(spaces.drawn(space, 300))
    assert list(spaces.drawn(space, 20)) == drawn[:20]
    rates = np.array([one["lr"] for one in drawn])
    assert rates.min() >= 1e-5 and rates.max() <= 1e-1 and 0.35 < (rates < 1e-3).mean() < 0.65, "even in the logarithm"
    assert {one["n"] for one in drawn} == {3, 4, 5} and all(type(one["n"]) is int for one in drawn)
    assert min(one["x"] for one in drawn) < -0.9 and {one["act"] for one in drawn} == {"relu", "tanh"}
    assert all(float(f"{one['x']:.4g}") == one["x"] for one in drawn)


def test_seeds():
    assert spaces.seeds_of(Interval(2, 4)) == [2, 3, 4] and spaces.seeds_of([7]) == [7]
    for wrong in ([True], [-1], ["x"], [0.5]):
        with pytest.raises(ConfigError, match="whole numbers from 0"):
            spaces.seeds_of(wrong)


@pytest.fixture
def started(fake_experiment, monkeypatch):
    """Runs happen in this process; the words of each, and by `FAILS` which of them fail."""
    words_of = []

    def start(words, stop):
        words_of.append(" ".join(words))
        if "n_agents=13" in words:
            raise RunError("thirteen is too many")
        return cli.main([*words, "--json"])

    monkeypatch.setattr(sweep, "in_a_process", start)
    return words_of


def command(capsys, *words):
    capsys.readouterr()
    code = cli.main(["sweep", "fake", *words, "--json", "--out", "sweeps"])
    return code, json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def test_each_run_is_made_once_and_the_best_settings_come_first(started, capsys):
    code, found = command(capsys, "seed=0..1", "n_agents=1,2", "total_steps=200")
    assert code == 0 and len(started) == 4 and all("total_steps=200" in words for words in started)
    assert [(one["settings"], one["seed"], one["state"]) for one in found["trials"]] == [
        ({"n_agents": n}, seed, "finished") for n in (1, 2) for seed in (0, 1)]
    assert {RunDir.open(one["run"]).config()["n_agents"] for one in found["trials"]} == {1, 2}
    assert [group["runs"] for group in found["groups"]] == [2, 2]
    assert found["groups"][0]["iqm"] >= found["groups"][1]["iqm"]
    code, again = command(capsys, "seed=0..2", "n_agents=1,2", "total_steps=200")
    assert code == 0 and len(started) == 6 and [group["runs"] for group in again["groups"]] == [3, 3]


def test_several_environments_have_a_table_each(started, capsys):
    code, found = command(capsys, "seed=0..1", "env=Fake-v0,CartPole-v1", "total_steps=200")
    assert code == 0 and list(found["tasks"]) == ["Fake-v0", "CartPole-v1"] and "groups" not in found
    assert [len(one["runs"]) for one in found["tasks"].values()] == [2, 2]
    assert cli.main(["sweep", "fake", "seed=0..1", "env=Fake-v0,CartPole-v1", "total_steps=200", "--out", "sweeps"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("Fake-v0:\n") < shown.index("env=Fake-v0") < shown.index("CartPole-v1:\n") < shown.index("env=CartPole-v1")


def test_a_run_that_fails_stops_no_other_and_is_listed(started, capsys):
    code, found = command(capsys, "n_agents=1,13,2", "total_steps=200")
    assert code == 1 and [one["state"] for one in found["trials"]] == ["finished", "failed", "finished"]
    assert found["trials"][1]["reason"] == "thirteen is too many"
    assert cli.main(["sweep", "fake", "n_agents=13", "--out", "sweeps"]) == 1
    said = capsys.readouterr().out
    assert "failed: seed=0: thirteen is too many" in said and "no run has ended with a score" in said


def test_what_is_wrong_is_refused_before_a_run_begins(started, capsys):
    for words in (["n_agents=1,x"], ["n_agent=1,2"], ["n_agents=1,2", "--random", "2", "--optuna", "2"], ["seed=x"]):
        assert cli.main(["sweep", "fake", *words, "--out", "sweeps"]) == 2
    assert started == [] and not Path("sweeps").exists()
    Path("sweeps").touch()
    capsys.readouterr()
    assert cli.main(["sweep", "fake", "--out", "sweeps"]) == 2 and started == []
    assert "cannot write runs to sweeps: File exists; give another --out" in capsys.readouterr().err


@pytest.mark.parametrize("way", [(), ("--random", "5"), ("--optuna", "5"), ("--ray",)])
def test_what_the_robot_refuses_is_refused_before_a_run_begins(started, monkeypatch, capsys, way):
    """Its settings are those of what it is built of, so only a robot that is built knows them."""
    pytest.importorskip("optuna") if "--optuna" in way else None
    monkeypatch.setattr(sweep, "on_ray", lambda address: pytest.fail("Ray was started"))
    assert cli.main(["sweep", "fake", "refuse=false,true", "lr=0.1..0.5" if way[:-1] else "lr=0.1", "--out", "sweeps", *way]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: refuse=true") and told.endswith(": Config: key 'refuse' must be false; set refuse=false\n")
    assert started == [] and not Path("sweeps").exists()


@pytest.mark.parametrize(("words", "said"), [
    (["misspelt=1,2"], "misspelt=1: Config has no key 'misspelt'"), (["misspelt=1"], "Config has no key 'misspelt'"),
    (["lr=1e-3,x"], "lr=x: Config: key 'lr' expects"), (["seed=0..9", "hidden=[64],[32],5"], "hidden=5: Config: key"),
    (["hidden=[64],[32]", "curiosity=RND"], "write more of the name"),
    (["algorithm=PPO,DQN", "clip=0.1,0.2"], "algorithm=DQN clip=0.2: Config has no")])
def test_a_setting_that_no_part_has_or_several_or_of_another_type_is_refused_once(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "in_a_process", lambda words, stop: pytest.fail("a run began"))
    assert cli.main(["sweep", "ppo-cartpole", "total_steps=100", *words]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_each_value_is_tried_in_one_robot():
    space = spaces.space_of(["a=1,2,3", "b=x,y", "c=0..9", "lr=1e-5..1e-2"])
    assert spaces.each_value(space) == [{"a": 1, "b": "x", "c": 0, "lr": 1e-5}, {"a": 2, "b": "y", "c": 9, "lr": 1e-2},
                                        {"a": 3, "b": "y", "c": 9, "lr": 1e-2}]
    assert spaces.each_value({}) == [{}]


def test_a_run_that_was_interrupted_goes_on(started, capsys):
    _, found = command(capsys, "total_steps=200", "checkpoint_every=100")
    run = RunDir.open(found["trials"][0]["run"])
    run.update(state="stopped")
    (run.path / "result.json").unlink()
    code, _ = command(capsys, "total_steps=200", "checkpoint_every=100")
    assert code == 0 and started[-1].startswith(f"resume {run.path} --exact") and run.info().state == "finished"


def test_ctrl_c_ends_runs_and_begins_no_more(started, monkeypatch):
    made = sweep.Sweep("fake", {"total_steps": 200}, Path("sweeps"), start=lambda words, stop: 3 if until(stop) else 0)
    trials = [made.trial({"n_agents": n}, 0) for n in (1, 2, 3)]

    def strikes():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run_all([lambda trial=trial: made.run(trial) for trial in trials], strikes)
    assert [trial.state for trial in trials] == ["waiting"] * 3 and made.failed == []


def test_ctrl_c_while_the_first_run_is_started_ends_it(started, monkeypatch):
    class Struck(ThreadPoolExecutor):
        def submit(self, *words, **options):
            super().submit(*words, **options)
            assert runs.wait(60)
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "ThreadPoolExecutor", Struck)
    told, runs = [], threading.Event()

    def start(words, stop):
        runs.set()
        late = time.monotonic() + 10
        while not stop() and time.monotonic() < late:
            time.sleep(0.01)
        told.append(stop())
        return 3

    made = sweep.Sweep("fake", {"total_steps": 200}, Path("sweeps"), start=start)
    with pytest.raises(KeyboardInterrupt):
        made.run_all([lambda: made.run(made.trial({}, 0))])
    assert told == [True]


def test_sigterm_ends_runs_as_ctrl_c_does(fake_experiment, monkeypatch, capsys):
    def start(words, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        return 3 if until(stop) else 0

    monkeypatch.setattr(sweep, "in_a_process", start)
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["sweep", "fake", "n_agents=1,2", "--out", "sweeps"]) == 3
    assert "the same command goes on" in capsys.readouterr().err and signal.getsignal(signal.SIGTERM) is before


def test_a_run_that_another_sweep_began_at_the_same_time_is_waited_for(fake_experiment, monkeypatch, capsys):
    began = []

    def start(words, stop):
        began.append(words)
        assert cli.main([*words, "--json"]) == 0  # the other one's
        raise RunError("it is in use by process 7")

    monkeypatch.setattr(sweep, "in_a_process", start)
    code, found = command(capsys, "total_steps=200")
    assert code == 0 and len(began) == 1 and [one["state"] for one in found["trials"]] == ["finished"]


def test_a_run_that_was_killed_before_it_had_saved_begins_anew(started, capsys):
    _, found = command(capsys, "total_steps=200")
    run = RunDir.open(found["trials"][0]["run"])
    run.update(state="running", pid=2**31 - 1)
    shutil.rmtree(run.checkpoints)
    (run.path / "result.json").unlink()
    code, _ = command(capsys, "total_steps=200")
    assert code == 0 and started[-1].startswith("train fake") and run.info().state == "finished"
    assert RunDir.open(f"{run.path}_left1").state() == "died"


def test_runs_without_a_score_are_named_and_the_others_compared(started, capsys):
    command(capsys, "n_agents=1,2", "total_steps=200")
    _, found = command(capsys, "n_agents=1,2", "total_steps=200")
    run = RunDir.open(found["trials"][0]["run"])
    run.save_result(run.result() | {"evaluation": {"score": math.nan}})
    code, again = command(capsys, "n_agents=1,2", "total_steps=200")
    assert code == 0 and [one["run"] for one in again["runs"]] == [found["trials"][1]["run"]]
    assert cli.main(["sweep", "fake", "n_agents=1,2", "total_steps=200", "--out", "sweeps"]) == 0
    assert "no score: n_agents=1 seed=0" in capsys.readouterr().out


def test_where_runs_are_is_no_setting_of_a_sweep(started, capsys):
    for word in ("run_dir=a,b", "run_dir=a"):
        assert cli.main(["sweep", "fake", word, "--out", "sweeps"]) == 2
        assert "--out" in capsys.readouterr().err
    assert started == []


def test_other_code_of_the_users_or_other_recorded_rows_make_other_runs(started, monkeypatch):
    made = sweep.Sweep("fake", {}, Path("sweeps"))
    first = made.trial({}, 0)
    assert made.trial({}, 0) is first
    with monkeypatch.context() as patched:
        patched.setattr(sweep.user_experiments, "code_hash", lambda name, ours: "other" + ours)
        assert made.trial({}, 0).folder != first.folder
    monkeypatch.setattr(sweep.recorded, "named_in", lambda settings: ["mine"])
    monkeypatch.setattr(sweep.recording, "rows_of", lambda settings, say: {"mine": "7" * 64})
    assert sweep.Sweep("fake", {}, Path("sweeps")).trial({}, 0).folder != first.folder


def until(stop):
    while not stop():
        time.sleep(0.01)
    return True


def test_the_table_fits_its_terminal(started):
    made = sweep.Sweep("fake", {}, Path("sweeps"))
    for n in range(1, 60):
        made.trial({"n_agents": n, "eval_score": "x" * 100}, 0)
    made.trials[7].state, made.trials[3].state = "running", "failed"
    lines = sweep.table(made.trials, 24, 0.0)
    assert len(lines) <= 23 and len(sweep.table(made.trials, 3, 0.0)) == 2
    assert lines[0].startswith("59 runs: 1 running, 1 failed, 57 waiting; ")
    assert lines[2].startswith("running") and "n_agents=8 " in lines[2] and lines[3].startswith("failed")


@pytest.mark.parametrize("fails", [False, True])
def test_on_a_terminal_the_table_is_drawn_over_and_each_row_is_one_line(started, monkeypatch, fails):
    monkeypatch.setattr(sweep, "LOOK_S", 0.02)
    words = [f"env={'a' * 90},{'字' * 40}", "seed=0..1", "total_steps=200", *["n_agents=13"] * fails]
    with Terminal(80, 24) as shown, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", shown.stream)
        assert cli.main(["sweep", "fake", *words, "--out", "sweeps"]) == fails
    assert not [line for line in shown.broken if line.startswith(tuple(f"{state:8}  " for state in sweep.STATES))]
    assert sum(line.startswith("4 runs: ") for line in shown.lines) == 1, "it is drawn over the one before"
    assert f"4 runs: 4 {'failed' if fails else 'finished'};" in "\n".join(shown.lines)
    assert sum(line.startswith("failed    ") for line in shown.lines) == 4 * fails


def test_a_process_that_fails_says_why():
    with pytest.raises(RunError, match="no experiment 'no-such'|unknown experiment|no-such"):
        sweep.in_a_process(["train", "no-such"], bool)
    assert sweep.in_a_process(["--version"], bool) == 0


WORDS = ["seed=0,1", "metrics_every=50..5000", "total_steps=200", "--optuna"]


def test_optuna_searches_and_goes_on(started, capsys):
    pytest.importorskip("optuna")
    code, found = command(capsys, *WORDS, "3")
    assert code == 0 and len(found["trials"]) == len(started) == 6 and found["best"].startswith("best: metrics_every=")
    code, again = command(capsys, *WORDS, "3")
    assert code == 0 and again["best"] == found["best"] and len(started) == len(again["trials"]) == 6
    code, more = command(capsys, *WORDS, "5")
    assert code == 0 and len(started) == len(more["trials"]) == 10


def test_a_search_with_other_settings_is_another_one(started, capsys):
    pytest.importorskip("optuna")
    _, found = command(capsys, "metrics_every=50..100", "total_steps=200", "--optuna", "1")
    code, other = command(capsys, "metrics_every=50..100", "total_steps=400", "--optuna", "1")
    assert code == 0 and len(started) == 2 and "total_steps=400" in started[1] and len(other["groups"]) == 1
    code, listed = command(capsys, "metrics_every=50,100", "total_steps=200", "--optuna", "1")
    assert code == 0 and listed["best"] and listed["trials"][0]["settings"]["metrics_every"] in (50, 100)


def test_a_trial_without_a_score_ends_no_other(started, capsys, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(sweep.Trial, "score", lambda trial: 1.0 if len(started) == 2 else math.nan)
    code, found = command(capsys, "metrics_every=50..5000", "total_steps=200", "--optuna", "2")
    assert code == 0 and [one["state"] for one in found["trials"]] == ["finished"] * 2 and found["best"].endswith("with 1")


def test_two_searches_at_once_leave_each_other_their_trials(started, capsys):
    optuna = pytest.importorskip("optuna")
    from parl_like.lab.sweeps import tuning

    space, made = spaces.space_of(["metrics_every=50..5000"]), sweep.Sweep("fake", {}, Path("sweeps"))
    one = tuning.study_of(made, space, [0])
    asked = one.ask(tuning.distributions(space))
    asked.set_user_attr(tuning.WHOSE, tuning._me())
    tuning.study_of(made, space, [0])
    one.tell(asked, 1.0)
    assert [trial.state for trial in one.trials] == [optuna.trial.TrialState.COMPLETE]


def test_other_recorded_rows_are_another_search(started, monkeypatch):
    pytest.importorskip("optuna")
    from parl_like.lab.sweeps import tuning

    space, made = spaces.space_of(["metrics_every=50..5000"]), sweep.Sweep("fake", {}, Path("sweeps"))
    names = [tuning.study_of(made, space, [0]).study_name for _ in "ab"]
    monkeypatch.setattr(made, "_data_of", lambda config: {"cartpole-replay": "another hash"})
    names.append(tuning.study_of(made, space, [0]).study_name)
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("text", ["{}\n[]\n", "[]\n[]\n", "7\n7\n", "nothing"])
def test_a_damaged_search_is_refused(started, capsys, text):
    pytest.importorskip("optuna")
    Path("sweeps").mkdir()
    Path("sweeps", "optuna.log").write_text(text)
    assert cli.main(["sweep", "fake", "metrics_every=50..5000", "--optuna", "1", "--out", "sweeps"]) == 2
    assert "give another --out" in capsys.readouterr().err
    Path("sweeps", "optuna.log").unlink()
    os.mkfifo("sweeps/optuna.log")
    assert cli.main(["sweep", "fake", "metrics_every=50..5000", "--optuna", "1", "--out", "sweeps"]) == 2
    Path("file").touch()
    assert cli.main(["sweep", "fake", "metrics_every=50..5000", "--optuna", "1", "--out", "file"]) == 2


def test_a_trial_that_was_under_way_when_the_search_was_killed_is_made_again(started, capsys):
    pytest.importorskip("optuna")
    from parl_like.lab.sweeps import tuning

    space = spaces.space_of(["metrics_every=50..5000"])
    killed = tuning.study_of(sweep.Sweep("fake", {"total_steps": 200}, Path("sweeps")), space, [0, 1])
    asked = killed.ask(tuning.distributions(space))
    _, found = command(capsys, *WORDS, "1")
    assert {one["settings"]["metrics_every"] for one in found["trials"]} == {asked.params["metrics_every"]}


def test_a_run_that_falls_behind_ends_early(started, capsys, monkeypatch):
    optuna, train = pytest.importorskip("optuna"), sweep.in_a_process
    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda: optuna.pruners.ThresholdPruner(lower=1e9))
    monkeypatch.setattr(sweep, "in_a_process", lambda words, stop: train(words, stop) or 3 * stop())
    code, found = command(capsys, *WORDS, "1", "eval_every=100")
    assert code == 0 and [one["state"] for one in found["trials"]] == ["pruned", "waiting"] and found["best"] == ""


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_runs_are_tasks_of_ray(tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "qlearning-frozenlake", "seed=0,1", "total_steps=1000", "lr=0.1,text", "--ray", "--json"]
    assert cli.main(words) == 1
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [one["state"] for one in found["trials"]] == ["finished", "finished", "failed", "failed"]
    assert "expects float" in found["trials"][2]["reason"] and len(list(Path("runs/sweeps").iterdir())) == 2
