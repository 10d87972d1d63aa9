"""Followers: what Weights & Biases, Trackio and MLflow get of a run, in local files; nothing is sent, and no key is kept."""

import csv
import json
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from parl_like import Robot, load_run
from parl_like.lab import following, runner
from parl_like.lab.cli import main
from parl_like.lab.following import Facts, Follower, MLflowHook, TrackioHook, WandbHook
from parl_like.lab.yaml_text import UsageError

KEY = "0123456789abcdef0123456789abcdef01234567"
KEYS = ("WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "TRACKIO_WRITE_TOKEN")
ONLINE = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
          "TRACKIO_SPACE_ID": "somebody/space", "TRACKIO_SERVER_URL": "http://127.0.0.1:9"}
SHORT = ("total_steps=400", "n_agents=2", "OnPolicyHelper.unroll=20", "eval_every=200", "eval_episodes=2", "metrics_every=100",
         "tensorboard=false", "hidden=[4]")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory; keys, and variables that would send a run somewhere, in the environment."""
    monkeypatch.chdir(tmp_path)
    for name, value in {**dict.fromkeys(KEYS, KEY), **ONLINE, "TRACKIO_DIR": str(tmp_path / "trackio")}.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_ERROR_REPORTING", "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, {"WANDB_ERROR_REPORTING": "false"}.get(name, "true"))


def train(hook, *words):
    return main(["train", "ppo-cartpole", "run_dir=run", f"hooks=[{hook}]", *SHORT, *words])


def table():
    with open("run/metrics.csv") as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


def keyless(*folders):
    """No file holds a key."""
    files = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]


class Heard(Follower):
    """A service that remembers what it got, and breaks where it is told to."""

    breaks, all = "", []

    def begin(self, facts):
        self.facts, self.rows, self.ends = facts, [], []
        Heard.all.append(self)
        if self.breaks == "begin":
            raise OSError("no service\x1b[2J")
        return self.ends.append

    def send(self, step, numbers):
        if self.breaks == "send":
            raise OSError("no service")
        self.rows.append((step, numbers))


@pytest.fixture
def heard(monkeypatch):
    monkeypatch.setattr(Heard, "all", [])
    monkeypatch.setattr(following, "Heard", Heard, raising=False)
    monkeypatch.setattr(Heard, "__module__", "parl_like.lab.following")
    return Heard.all


def test_a_service_gets_the_rows_of_the_run_and_how_it_ended(heard):
    assert train("Heard") == 0
    (one,) = heard
    rows = [{"step": step, **numbers} for step, numbers in one.rows]
    assert rows == table() and any("eval/score" in row for row in rows)
    assert one.ends == ["finished"] and one.facts.name == "run" and one.facts.folder == Path("run").absolute()
    assert one.facts.settings["robot"]["tasks"]["RL"]["PPO"] and one.facts.settings["seed"] == 0
    assert main(["resume", "run", "total_steps=500"]) == 0
    again = heard[-1]
    assert again.facts.id == one.facts.id and again.rows[0][0] > one.rows[-1][0]
    with load_run("run") as robot:
        robot.evaluate(1)
    assert len(heard) == 2


@pytest.mark.parametrize("breaks", ["begin", "send"])
def test_a_service_that_breaks_ends_no_run(heard, monkeypatch, breaks, capsys):
    monkeypatch.setattr(Heard, "breaks", breaks)
    assert train("Heard") == 0
    out = capsys.readouterr().out
    assert out.count("Heard follows no longer: OSError: no service") == 1 and "\x1b" not in out


def test_a_run_that_fails_is_told(heard, monkeypatch):
    monkeypatch.setattr(Robot, "metrics", lambda self: 1 / 0)
    assert train("Heard") == 1
    assert heard[0].ends == ["failed"]


def test_a_script_that_closes_nothing_ends_the_following_before_the_service_ends(heard, monkeypatch):
    """Exit handlers run in the reverse order of their registration, and a service registers its own when it begins."""
    order = []
    monkeypatch.setattr(following.atexit, "register", order.append)
    monkeypatch.setattr(Heard, "begin", lambda self, facts, begin=Heard.begin: order.append("service") or begin(self, facts))
    with Robot.of("PPO", "CartPole-v1", n_agents=2, unroll=20, hidden=[4]) as robot:
        robot.run(100, hooks=[hook := Heard()])
    service, ours = order
    assert (service, hook.ends) == ("service", [])
    ours(), ours()
    assert hook.ends == ["finished"]


@pytest.mark.parametrize("driver", ["cooperative", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_script_hands_over_metrics(heard, driver):
    hook = Heard(every=100)
    with Robot.of("PPO", "CartPole-v1", n_agents=2, unroll=20, hidden=[4], driver=driver) as robot:
        robot.run(400, hooks=hook)
        robot.run(40, hooks=hook)
    steps = [step for step, _ in hook.rows]
    assert steps == sorted(steps) and {400, 440} <= {40 * (step // 40) for step in steps} and len(steps) >= 5
    assert hook.rows[-1][1]["updates/RL"] > 0 and hook.ends == [] and hook.facts.settings["robot.tasks.RL.PPO.lam"] == 0.95
    hook.close()
    hook.close()
    assert hook.ends == ["finished"] and len(heard) == 1


def test_a_package_that_is_missing_names_the_extra_before_there_is_a_run(monkeypatch, capsys):
    for name in ("wandb", "trackio", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    for hook, extra in (("WandbHook", "wandb"), ("TrackioHook", "trackio"), ("MLflowHook", "mlflow")):
        assert train(hook) == 1
        assert f"pip install 'parl_like[{extra}]'" in capsys.readouterr().err and not Path("run").exists()
    with pytest.raises(ImportError, match="wandb"), Robot.of("PPO", "CartPole-v1", hooks=WandbHook()) as robot:
        robot.run(10)


@pytest.mark.parametrize(("words", "message"), [
    (["WandbHook", "WandbHook.mode=on"], "WandbHook.mode' expects one of 'offline', 'online'"),
    (["WandbHook", f"WandbHook.api_key={KEY}"], "no key 'WandbHook.api_key'"),
    (["TrackioHook", "TrackioHook.space=me/space"], "expected a space with mode='online' alone"),
    (["TrackioHook", "TrackioHook.mode=online"], "expected a space with mode='online' alone"),
    (["MLflowHook", "MLflowHook.uri=http://here"], "mode is 'offline'; give mode='online'"),
    (["MLflowHook", f"MLflowHook.uri=http://me:{KEY}@here", "MLflowHook.mode=online"], "a name or a password in it"),
    (["WandbHook", "WandbHook.every=0"], "every is 0; expected at least 1"),
])
def test_what_is_refused_before_there_is_a_run(words, message, capsys):
    assert train(*words) == 2
    assert message in capsys.readouterr().err and not Path("run").exists()


def test_a_strangers_run_directory_may_not_send_anything(heard):
    assert train("LossLog") == 0
    text = Path("run/config.yaml").read_text()
    for hook in ("WandbHook", "TrackioHook", "MLflowHook", "Timeline"):
        Path("run/config.yaml").write_text(text.replace("LossLog", hook))
        with pytest.raises(UsageError, match="send what it sees, which a run directory may not ask for"):
            runner.resume("run", {"total_steps": 800})


def records(data):
    """The records of a W&B file: LevelDB's log behind a header of seven bytes."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768  # the end of a block
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the last piece of it
            yield whole
            whole = b""


def test_services_are_asked_for_local_files_alone(tmp_path, monkeypatch):
    """The slow tests have the services themselves."""
    asked = {}
    run = SimpleNamespace(define_metric=lambda *_, **__: None, info=SimpleNamespace(run_id="1"))
    client = SimpleNamespace(get_experiment_by_name=lambda _: run, create_run=lambda *_, **__: run,
                             log_batch=lambda *_, **__: None)
    run.experiment_id = "1"
    fakes = {"wandb": SimpleNamespace(Settings=dict, init=lambda **how: asked.update(how) or run), "mlflow": ModuleType("mlflow"),
             "mlflow.tracking": SimpleNamespace(MlflowClient=lambda tracking_uri: asked.update(uri=tracking_uri) or client),
             "mlflow.entities": SimpleNamespace(Metric=None, Param=lambda *_: None)}
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)
    for hook in (WandbHook(), MLflowHook()):
        hook.begin(Facts("run", "run-1", {"lr": 1}, tmp_path))
    assert asked["mode"] == "offline" and asked["dir"] == str(tmp_path) and asked["uri"] == (tmp_path / "mlruns").as_uri()
    assert asked["settings"].items() >= {"save_code": False, "disable_git": True, "x_disable_meta": True}.items()


@pytest.mark.slow
def test_wandb_offline():
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    assert train("WandbHook", "WandbHook.project=mine") == 0
    (path,) = Path("run/wandb").glob("offline-run-*/*.wandb")
    rows, configs, runs = [], {}, []
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            rows.append({"step": row["env_steps"], **{key: value for key, value in row.items()
                                                      if key != "env_steps" and not key.startswith("_")}})
        if record.HasField("run"):
            runs.append((record.run.project, record.run.display_name))
            configs |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    assert rows == table() and runs[0] == ("mine", "run") and configs["total_steps"] == 400
    keyless("run")


@pytest.mark.slow
def test_a_script_with_wandb_says_nothing_at_its_end():
    pytest.importorskip("wandb")
    Path("script.py").write_text("from parl_like import Robot\nfrom parl_like.lab.following import WandbHook\n"
                                 "robot = Robot.of('PPO', 'CartPole-v1', n_agents=2, hidden=[4])\n"
                                 "robot.run(500, hooks=[WandbHook()])\n")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_mlflow_offline():
    pytest.importorskip("mlflow")
    assert train("MLflowHook", "MLflowHook.experiment=mine") == 0
    (meta,) = [path for path in Path("run/mlruns").glob("*/*/meta.yaml")]
    assert "status: 3" in meta.read_text()  # FINISHED
    rows = [line.split() for line in (meta.parent / "metrics" / "return" / "mean").read_text().splitlines()]
    assert [(float(step), float(value)) for _, value, step in rows] == [
        (row["step"], row["return/mean"]) for row in table() if "return/mean" in row]
    assert (meta.parent / "params" / "total_steps").read_text() == "400"
    keyless("run")


def test_trackio_offline(tmp_path):
    pytest.importorskip("trackio", reason="trackio brings gradio and pandas, so `make test` is without it; `make extras` runs it")
    code = f"import sys; from parl_like.lab.cli import main; sys.exit(main({['train', 'ppo-cartpole', *SHORT]!r} + sys.argv[1:]))"
    words = ["run_dir=run", "hooks=[TrackioHook]", "TrackioHook.project=mine"]  # where it writes is fixed when it is imported
    assert subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, timeout=120).returncode == 0
    with sqlite3.connect(tmp_path / "trackio" / "mine.db") as base:
        rows = [{"step": step, **json.loads(metrics)} for step, metrics in base.execute("select step, metrics from metrics")]
    assert rows == table()
    keyless("run", "trackio")


def test_what_hides_variables_puts_them_back():
    with following._without("TRACKIO_", "TRACKIO_DIR"):
        assert [name for name in os.environ if name.startswith("TRACKIO_")] == ["TRACKIO_DIR"]
    assert os.environ["TRACKIO_SPACE_ID"] == "somebody/space"


def test_hooks_are_made_by_plain_arguments():
    assert (WandbHook(project="p").mode, TrackioHook(space="a/b", mode="online").space) == ("offline", "a/b")
