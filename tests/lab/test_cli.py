"""The command line: verbs, exit codes, one-line errors, JSON."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from lab_fakes import MODULE, FakeRobot, signal_here

import parl_like
from parl_like.lab import doctor
from parl_like.lab import experiment as experiments
from parl_like.lab.cli import main
from parl_like.lab.reports import marks, plots
from parl_like.lab.reports.marks import Mark
from parl_like.lab.yaml_text import load_yaml
from parl_like.values.errors import TaskFailed


@pytest.fixture(autouse=True)
def clean(fake_experiment, monkeypatch):
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)


@pytest.fixture
def command(capsys):
    """Runs one command line; gives exit code, standard output, standard error."""

    def run(line):
        code = main(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_train_eval_play_list_verify_resume(command, tmp_path):
    code, out, _ = command("train fake run_dir=runs/one total_steps=200 seed=3")
    assert code == 0
    assert out.splitlines()[0] == "fake: counts; loading ..."
    assert "next: `parl-like play runs/one`" in out.splitlines()[-1]

    code, out, _ = command("eval runs/one --episodes 4 --json")
    assert code == 0
    numbers = json.loads(out)
    assert numbers["episodes"] == 4
    assert {"mean_return", "std_return", "min_return", "max_return", "step", "seed"} <= numbers.keys()
    assert command("eval one")[1].splitlines()[0].split() == ["run", "runs/one"]

    code, out, _ = command("play one --episodes 2 --seed 3")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (
        0,
        ["runs/one/videos/episode_3.gif:", "runs/one/videos/episode_4.gif:",  # before each film is written
         "runs/one/videos/episode_3.gif", "runs/one/videos/episode_4.gif"],
    )

    code, out, _ = command("list --json")
    (run,) = json.loads(out)["runs"]
    assert (run["run"], run["experiment"], run["state"], run["steps"]) == ("one", "fake", "finished", 200)
    assert run["last_return"] > 0
    assert {"family": "fake", "name": "fake", "robot": "fake", "description": "counts"} in json.loads(out)["experiments"]
    assert run["score"] == json.loads((tmp_path / "runs" / "one" / "result.json").read_text())["evaluation"]["mean_return"]
    assert run["differs"] == {"seed": 3, "total_steps": 200}
    code, out, _ = command("list")
    assert code == 0
    assert any(line.split()[:4] == ["one", "fake", "finished", "200"] for line in out.splitlines())
    assert f"{run['score']:.4g}" in out and "seed=3 total_steps=200" in out

    code, out, _ = command("verify one --json")
    assert code == 0
    assert [row["checkpoint"] for row in json.loads(out)["checkpoints"]] == ["000000000", "000000100", "000000200"]

    assert command("resume one total_steps=300")[0] == 0
    assert json.loads(command("eval one --json")[1])["step"] == 300
    assert json.loads(command("eval one --json --checkpoint 100")[1])["step"] == 100


def test_words_may_stand_anywhere_and_a_file_comes_before_them(command, tmp_path):
    (tmp_path / "mine.yaml").write_text("total_steps: 1e3\nlr: 0.25\n")
    code, out, err = command("train --show-config fake seed=3 --config mine.yaml lr=2 --debug n_agents=1")
    assert code == 0
    shown = load_yaml(out)
    assert [shown[key] for key in ("total_steps", "lr", "seed", "n_agents", "checkpoint_every")] == [1000, 2.0, 3, 1, 100]
    assert err == "fake: counts; loading ...\n"
    assert os.listdir(tmp_path) == ["mine.yaml"]


def test_json_is_data_for_what_can_be_set_and_for_marks(command, monkeypatch):
    code, out, _ = command("train fake --show-config --json seed=3")
    assert code == 0 and json.loads(out) == load_yaml(command("train fake --show-config seed=3")[1])
    marked = Mark(experiment="fake", seed=0, differs={}, env_steps=1, score=2.0, evaluation={},
                  expect={"mean_return": (1.0, None)}, solved=True, seconds=0.1, configuration="a", code="b", versions={},
                  git=None)
    monkeypatch.setattr(marks, "measure", lambda *_, **__: marks.MarksOutcome([marked], []))
    (one,) = json.loads(command("marks fake --json")[1])
    assert (one["experiment"], one["score"], one["expect"]) == ("fake", 2.0, {"mean_return": [1.0, None]})


def test_a_key_given_twice_is_told_where_people_read(command):
    line = "seed is 4, as 'seed=4' says; 'seed=3', which came before, does not count"
    assert line in command("train fake run_dir=run total_steps=200 seed=3 seed=4")[1].splitlines()
    assert line in command("train fake --show-config seed=3 seed=4")[2].splitlines()
    _, out, err = command("resume run --json total_steps=300 total_steps=400")
    assert "total_steps is 400, as 'total_steps=400' says; 'total_steps=300', which came before, does not count" in err
    assert json.loads(out)["env_steps"] == 400


def test_json_leaves_standard_output_to_the_machine(command):
    code, out, err = command("train fake run_dir=run total_steps=100 --json")
    assert code == 0
    result = json.loads(out)
    assert (result["run"], result["state"], result["solved"], result["env_steps"]) == ("run", "finished", False, 100)
    assert "finished: mean return" in err


def test_exit_codes_of_a_stop_and_of_a_failure(command, monkeypatch):
    monkeypatch.setattr(FakeRobot, "at_step", {50: signal_here(2)})
    code, out, _ = command("train fake run_dir=stopped --json")
    assert (code, json.loads(out)["state"]) == (3, "stopped")
    monkeypatch.setattr(FakeRobot, "at_step", {50: lambda: 1 / 0})
    code, out, err = command("train fake run_dir=failed --json")
    assert (code, json.loads(out)["exit_reason"]) == (1, "ZeroDivisionError: division by zero")
    assert "Traceback" not in err
    assert "Traceback" in command("train fake run_dir=failed2 --debug")[1]


@pytest.mark.parametrize(("line", "message"), [
    ("train fak", "no experiment 'fak'; did you mean 'fake'?"),
    ("train fake sed=1", "Config has no key 'sed'; did you mean 'seed'?"),
    ("train fake seed=-1", "Config: key 'seed' expects `int` >= 0, got -1 (int)"),
    ("train fake seed", "expected key=value, got 'seed'; write for example seed=3 or hidden=[64,64]"),
    ("train fake refuse=true run_dir=r", "Config: key 'refuse' must be false; set refuse=false"),
    ("train fake --config none.yaml", "cannot read none.yaml: No such file or directory"),
    ("train fake run_dir=full", "run_dir full exists and is not empty; empty it, or give another run_dir="),
    ("eval nowhere", "nowhere is no run directory (it has no run.json); `parl-like list` shows the runs"),
    ("resume nowhere", "nowhere is no run directory (it has no run.json); `parl-like list` shows the runs"),
    ("eval nowhere --episodes 0", "argument --episodes: expected a whole number from 1, got '0'; see `parl-like eval --help`"),
    ("train", "the following arguments are required: EXPERIMENT; see `parl-like train --help`"),
    ("trian fake", "no verb 'trian'; did you mean 'train'?"),
    ("train fake --steps 3", "unrecognized arguments: --steps 3; configuration is written key=value, e.g. total_steps=2000"),
    ("train fake --env X --reward_clip -1", "e.g. total_steps=2000; here: env=X reward_clip=-1; see `parl-like --help`"),
    ("train fake --env=X seed=3 --drc", "unrecognized arguments: --env=X --drc; configuration is written key=value, e.g. "
                                        "total_steps=2000; here: env=X drc=true"),
    ("", "the following arguments are required: VERB; see `parl-like --help`"),
])
def test_wrong_usage_is_one_line_and_exit_code_2(command, tmp_path, line, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, _, err = command(line)
    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert message in err


def test_a_checkpoint_that_is_not_there(command):
    command("train fake run_dir=run total_steps=200")
    assert command("eval run --checkpoint 150")[::2] == (2, "error: run has no checkpoint of step 150; it has 0, 100, 200\n")
    assert command("eval run --checkpoint ../x")[::2] == (2, "error: checkpoint '../x': expected latest, best, or an env step\n")


def test_a_run_without_a_checkpoint_is_wrong_usage(command, monkeypatch, tmp_path):
    command("train fake run_dir=run total_steps=200")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    for line in ("eval run", "play run", "resume run total_steps=300"):
        assert command(line)[::2] == (2, "error: run has no checkpoint yet; start a new run with `parl-like train fake`\n")


def test_a_damaged_checkpoint_is_found_and_never_used_silently(command, tmp_path):
    command("train fake run_dir=run total_steps=200")
    for folder in ("000000000", "000000100", "000000200"):
        for file in (tmp_path / "run" / "checkpoints" / folder).glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    code, out, _ = command("verify run")
    assert code == 1
    assert out.count("\n") >= 2
    code, _, err = command("eval run")
    assert code == 1
    assert err.startswith("error: ArchiveError: ")
    assert command("resume run total_steps=300")[0] == 1


def test_plot(command, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    command("train fake run_dir=runs/a total_steps=200")
    command("train fake run_dir=runs/b total_steps=200 seed=1")
    code, _, err = command("plot a")
    assert (code, err.count("\n")) == (2, 1)
    assert "pip install 'parl_like[plot]'" in err
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: False)
    assert command("plot a") == (0, "runs/a/plots/learning_curve.png\n", "")
    assert json.loads(command("plot a b --json")[1]) == {"picture": "runs/learning_curves.png"}
    assert command("plot a --metric RL/loss --out loss.svg")[0] == 0
    assert (tmp_path / "loss.svg").is_file()
    assert command("plot a --out curve") == (0, "curve.png\n", "")
    assert (tmp_path / "curve.png").is_file()
    code, _, err = command("plot a --out loss.svg/curve.png")
    assert (code, err) == (2, "error: cannot write the picture loss.svg/curve.png: [Errno 17] File exists: 'loss.svg'\n")
    code, _, err = command("plot a --metric RL/los")
    assert code == 2
    assert "no metric 'RL/los'" in err


def test_list_survives_a_damaged_run_and_experiment(command, tmp_path, monkeypatch):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "broken.yaml").write_text("robot: [")
    monkeypatch.setattr(experiments, "_robots_folders", lambda: [tmp_path])
    (tmp_path / "runs" / "odd").mkdir(parents=True)
    (tmp_path / "runs" / "odd" / "run.json").write_text("{")
    (tmp_path / "runs" / "odd" / "metrics.csv").write_bytes(b"step,a\n\xff\x00,3\n")
    code, out, _ = command("list --json")
    assert code == 0
    listed = json.loads(out)
    assert [one["name"] for one in listed["experiments"]] == ["broken", "fake"]
    assert "not valid YAML" in listed["experiments"][0]["description"]
    assert listed["runs"][0]["state"].startswith("unreadable")


def test_bench_runs_the_repository_s_module(command, tmp_path, monkeypatch):
    root = tmp_path / "repository"
    (root / "parl_like").mkdir(parents=True)
    monkeypatch.setattr(parl_like, "__file__", str(root / "parl_like" / "__init__.py"))
    decoy = tmp_path / "decoy" / "benchmarks"
    decoy.mkdir(parents=True)
    (decoy / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(decoy.parent), *sys.path])
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)
    code, _, err = command("bench some-thing")
    assert code == 2
    assert "benchmarks live in the repository" in err
    (root / "benchmarks").mkdir()
    (root / "benchmarks" / "__init__.py").touch()
    (root / "benchmarks" / "helpers.py").touch()  # no `main`: no benchmark
    (root / "benchmarks" / "some_thing.py").write_text("\"Some.\"\ndef main(argv):\n    print(argv)\n    return 7\n")
    assert command("bench some-thing --json --rounds 3") == (7, "['--json', '--rounds', '3']\n", "")
    assert command("bench --json some-thing x")[:2] == (7, "['--json', 'x']\n")
    assert command("bench") == (0, "some-thing\n", "")
    code, _, err = command("bench some-thin")
    assert (code, err) == (2, "error: no benchmark 'some-thin'; did you mean 'some-thing'?\n")
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)
    monkeypatch.delitem(sys.modules, "benchmarks.some_thing", raising=False)


def test_doctor(command):
    code, out, _ = command("doctor --json")
    report = json.loads(out)
    assert code == (1 if "missing" in report["packages"].values() else 0)
    assert report["packages"]["torch"] != ""
    assert report["cores"] >= 1
    assert report["memory_gb"] >= report["memory_free_gb"] > 0
    assert {"plot", "tb", "grid", "minigrid", "atari", "mujoco", "box2d", "pettingzoo", "ray", "peers"} <= report["extras"].keys()
    assert re.fullmatch(r"\d+ modules", report["computing"]["compiled"])
    assert not [value for value in report["computing"].values() if "not known" in value]
    assert report["extra_packages"]["plot"].keys() == {"matplotlib"}
    lines = command("doctor")[1].splitlines()
    assert lines[0].split()[0] == "parl_like" and all(len(line) < 200 for line in lines)
    assert {line.split()[0] for line in lines} >= {"python", "torch", "numpy", "gymnasium", "compiled", "torch_threads", "cores"}


def test_doctor_says_what_is_broken(command, monkeypatch):
    monkeypatch.setattr(doctor, "compiled_modules", lambda: (["data._returns"], ["learning._native"]))
    monkeypatch.setattr(doctor, "numpy_blas", lambda: 1 / 0)
    code, out, _ = command("doctor")
    assert code == 1
    assert re.search(r"^compiled +1 modules; missing: learning\._native$", out, re.MULTILINE)
    assert re.search(r"^numpy_blas +not known: ZeroDivisionError: division by zero$", out, re.MULTILINE)


def test_doctor_says_how_to_get_what_an_extra_lacks():
    assert doctor._extra("tb", True, {"tensorboard": "2", "protobuf": "6"}) == "tensorboard 2, protobuf 6"
    assert doctor._extra("tb", True, {"tensorboard": "2", "protobuf": "missing"}) == (
        "tensorboard 2, but not protobuf; pip install 'parl_like[tb]'")
    assert doctor._extra("plot", False, {"matplotlib": "missing"}) == "not found (matplotlib); pip install 'parl_like[plot]'"


@pytest.mark.checkout
def test_doctor_knows_every_extra(command):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert json.loads(command("doctor --json")[1])["extras"].keys() == project["optional-dependencies"].keys() - {"dev"}


def test_help_names_every_verb_and_loads_nothing(command):
    code, out, _ = command("--help")
    assert code == 0
    for verb in ("train", "resume", "eval", "play", "list", "plot", "report", "bench", "verify", "doctor"):
        assert f"\n    {verb} " in out
        assert command(f"{verb} --help")[0] == 0


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "parl_like", "train", "no-such"], check=False, capture_output=True, text=True,
                          timeout=200)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no experiment 'no-such'")


def test_an_interrupt_outside_training_is_no_traceback(command, monkeypatch):
    monkeypatch.setattr(experiments, "names", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert command("list") == (130, "", "interrupted\n")


def test_an_interrupt_before_the_first_step_leaves_nothing(command, monkeypatch, tmp_path):
    monkeypatch.setattr(MODULE, "build", lambda config: signal_here(2)())
    assert command("train fake run_dir=run")[::2] == (130, "interrupted\n")
    assert os.listdir(tmp_path) == []


def test_an_unexpected_error_is_one_line_unless_debugged(command, monkeypatch):
    def broken():
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(experiments, "names", broken)
    code, out, err = command("list")
    assert (code, out, err.splitlines()[-1]) == (1, "", "error: RuntimeError: two lines (`--traceback` shows where)")
    shown = err.splitlines()[:-1]  # the lines of whoever wrote what failed, and none of ours
    assert len(shown) <= 10 and shown[0] == "your own lines, most recent call last:" and "in broken" in shown[1]
    assert not any("parl_like/lab" in line for line in shown)
    for whole in ("--traceback", "--debug"):
        code, _, err = command(f"list {whole}")
        assert code == 1 and "Traceback (most recent call last):" in err and "cli.py" in err
    monkeypatch.setenv("PARL_LIKE_TRACEBACK", "1")
    assert "cli.py" in command("list")[2]


LEAVING = """
import atexit, signal, sys, time
from parl_like.lab import cli

def interrupted(words):
    raise KeyboardInterrupt

atexit.register(lambda: (print("leaving", flush=True), time.sleep(60)))
signal.signal(signal.SIGINT, signal.default_int_handler)
cli._parse = interrupted
sys.exit(cli.main())
"""


def test_a_second_ctrl_c_while_everything_ends_leaves_at_once_and_without_a_traceback():
    with subprocess.Popen([sys.executable, "-c", LEAVING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "leaving\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert said == "interrupted\n" and process.returncode == -signal.SIGINT


def test_the_traceback_that_an_error_brings_along_is_not_shown(command, monkeypatch):
    command("train fake run_dir=run total_steps=100")
    failed = TaskFailed("task 'RL': predict failed\nTraceback (most recent call last):\n  File \"mine.py\", line 7")
    monkeypatch.setattr(FakeRobot, "evaluate", lambda *_, **__: (_ for _ in ()).throw(failed))
    code, _, err = command("eval run")
    assert (code, err.splitlines()[-1]) == (1, "error: TaskFailed: task 'RL': predict failed (`--traceback` shows where)")


@pytest.mark.parametrize(("word", "message"), [
    ("README.md", "README.md is a file; expected an experiment"), ("./README.md", "./README.md is a file; expected"),
    ("mine.yaml", "mine.yaml is a file; expected an experiment"),
    (".", ". is a directory; expected an experiment"), ("no/where", "no/where is the path of nothing; expected an experiment"),
    ("run", "run is a run directory, which goes on with `parl-like resume run`"),
])
def test_a_path_that_is_no_experiment_is_told_what_it_is(command, word, message, tmp_path):
    for name in ("README.md", "mine.yaml"):
        (tmp_path / name).write_text("words")
    command("train fake run_dir=run total_steps=100")
    code, _, err = command(f"train {word}")
    assert code == 2 and err.startswith(f"error: {message}") and "FILE.py:NAME" in err
    assert ("NAME --config mine.yaml" in err) == word.endswith(".yaml")


def test_a_list_of_runs_that_are_not_there_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 0, "nobody has trained yet"
    assert main(["list", "--runs", "rums"]) == 2
    assert "error: --runs rums: there is no such directory; give the one that" in capsys.readouterr().err


@pytest.mark.usefixtures("fake_experiment")
def test_quiet_shows_nothing_and_the_log_has_it(tmp_path, capfd):
    assert main(["train", "fake", "--quiet", "seed=1", "seed=2", f"run_dir={tmp_path / 'run'}"]) == 0
    assert main(["resume", str(tmp_path / "run"), "--quiet", "total_steps=800"]) == 0
    assert capfd.readouterr() == ("", "") and "solved" in (tmp_path / "run" / "log.txt").read_text()
    assert main(["train", "fake", "--quiet", "totl_steps=1"]) == 2
    assert "total_steps" in capfd.readouterr().err
