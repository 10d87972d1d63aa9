"""What a run directory says of machines: nothing where it is looked at, and where it goes on, what the user has said, too."""

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from parl_like import ComputationTask, load_run
from parl_like.drivers.ray.cluster import Ray
from parl_like.drivers.ray.connection import CONNECTION
from parl_like.drivers.ray.resources import ActorResources
from parl_like.drivers.ray.tasks import RayTask
from parl_like.lab import experiment as experiments
from parl_like.lab import foreign, runner
from parl_like.lab.cli import main
from parl_like.lab.config import ExperimentConfig, Workers, resolve, to_dict
from parl_like.lab.dashboard import robot_state
from parl_like.lab.runs.checkpoint import Checkpoints
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import ConfigError, dump_yaml, load_yaml
from parl_like.robots import thinker_shared
from parl_like.robots.thinker import ray as thinker_ray

SMALL = ["total_steps=40", "n_agents=2", "eval_episodes=2", "tensorboard=false", "checkpoint_every=20"]
STRANGE = [
    {"driver": "ray", "workers": {"tasks": {"RL": {"num_cpus": 0}}}}, {"driver": "ray"}, {"driver": "processes"},
    {"workers": {"address": "10.0.0.1:6379"}}, {"driver": "processes", "workers": {"count": 64, "memory_limit": 1}},
    {"driver": "ray", "workers": {"num_cpus": 1000.0, "tasks": {"RL": {"resources": {"node:10.0.0.1": 0.1}}}}},
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def train(*words, run="run"):
    assert main(["train", "dqn-cartpole", *SMALL, f"run_dir={run}", *words]) == 0
    return RunDir(Path(run))


def change(run, **values):
    """The configuration as somebody else may have written it, with keys one below the other."""
    config = load_yaml(run.config_file.read_text())
    for key, value in values.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    run.config_file.write_text(dump_yaml(config))


@pytest.fixture
def nothing_starts(monkeypatch):
    """Neither a worker process nor a connection to Ray."""
    def refused(*args, **options):
        raise AssertionError("it was started")

    monkeypatch.setattr(CONNECTION, "open", refused)
    monkeypatch.setattr("parl_like.drivers.workers.processes.LocalLink.open", refused)


@pytest.mark.parametrize("strange", STRANGE, ids=str)
def test_a_run_is_looked_at_in_this_process_whatever_its_directory_says(strange, nothing_starts):
    run = train()
    before = run.result()["evaluation"]
    change(run, **strange)
    assert runner.evaluate("run")["mean_return"] == before["mean_return"]
    assert runner.play("run", max_steps=3)
    with load_run("run") as robot:
        assert robot.driver_name == "cooperative" and type(robot.tasks["RL"]).__name__ == "ComputationTask"
    assert main(["report", "run"]) == 0


@pytest.mark.parametrize("strange", STRANGE, ids=str)
def test_it_goes_on_only_where_the_user_has_said_it_too(strange, nothing_starts, capsys):
    run = train()
    change(run, **strange)
    before = run.config_file.read_bytes()
    assert main(["resume", "run", "total_steps=60"]) == 2
    said = capsys.readouterr().err
    assert "machines and what is taken there, which a run directory may not choose; if you trust it, give" in said
    for key in strange:
        assert key in said
    assert run.config_file.read_bytes() == before


def test_a_silent_host_is_not_spoken_to(monkeypatch):
    run = train()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(0.0)
        change(run, driver="ray", workers={"address": f"127.0.0.1:{silent.getsockname()[1]}"})
        assert runner.evaluate("run")["episodes"] == 2
        with pytest.raises(ConfigError, match="may not choose"):
            runner.resume("run", {"total_steps": 60})
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("task", [
    {"runtime_env": {"py_executable": "/bin/touch mark ; python"}}, {"runtime_env": {"env_vars": {"LD_PRELOAD": "x"}}},
    {"scheduling_strategy": "SPREAD"}, {"max_restarts": 3}, {"name": "x", "lifetime": "detached"}, {"label_selector": {"a": "b"}},
], ids=str)
def test_an_actor_asks_for_resources_and_nothing_else(task, capsys):
    name = next(iter(task))
    with pytest.raises(ConfigError, match=f"no key 'workers.tasks.RL.{name}'; its keys are accelerator_type, memory, num_cpus"):
        resolve(ExperimentConfig, {"driver": "ray", "workers": {"tasks": {"RL": task}}})
    with pytest.raises(ValueError, match=f"Ray: tasks: no resource '{name}'"):
        Ray(tasks={"RL": task})
    with pytest.raises(ValueError, match=f"no resource '{name}'"):
        RayTask(ComputationTask(lambda: None), resources=task)
    run = train()
    change(run, driver="ray", workers={"tasks": {"RL": task}})
    for words in (["eval", "run"], ["play", "run"], ["resume", "run", "total_steps=60", "driver=ray"]):
        assert main(words) == 2 and f"workers.tasks.RL.{name}" in capsys.readouterr().err
    assert sorted(os.listdir()) == ["run", "state"]


def test_resources_are_typed():
    given = {"num_cpus": 0.5, "num_gpus": 1, "memory": 1 << 30, "resources": {"own": 1}, "accelerator_type": "A100"}
    config = resolve(ExperimentConfig, {"workers": {"tasks": {"RL": given, "model": {}}}})
    assert config.workers.tasks == {"RL": ActorResources(**given), "model": ActorResources()}
    assert to_dict(config)["workers"]["tasks"] == {"RL": given, "model": {}}
    assert resolve(ExperimentConfig, to_dict(config)) == config
    assert ActorResources(**given).asked() == given and ActorResources().asked() == {}
    assert Ray(tasks={"RL": given}) == Ray(tasks={"RL": ActorResources(**given)})
    for wrong in ({"num_cpus": -1}, {"num_gpus": "1"}, {"memory": 0}, {"resources": {"a": "b"}}, {"accelerator_type": 3}):
        with pytest.raises(ConfigError, match="workers.tasks.RL"):
            resolve(ExperimentConfig, {"workers": {"tasks": {"RL": wrong}}})
        with pytest.raises(ValueError, match="Ray: tasks: Expected"):
            Ray(tasks={"RL": wrong})


def test_a_run_of_the_user_s_own_goes_on_without_a_word_and_a_changed_one_is_said_again(capsys):
    run = train("driver=processes", "workers.count=2", "warmup=8", "batch_size=8")
    drawn = robot_state.read(run)  # what a dashboard says of a run with workers, at its end
    (task,) = drawn["tasks"]
    assert (drawn["driver"], drawn["n_agents"], drawn["n_envs"], drawn["step"]) == ("processes", 2, 2, 40)
    assert [(one["worker"], one["restarts"], one["agents"]) for one in drawn["workers"]] == [(0, 0, [0]), (1, 0, [1])]
    assert {one["status"] for one in drawn["workers"]} <= {"ready", "running", "slow"}  # slow where others are busy
    assert (task["name"], task["algorithm"], task["learns"], task["learn"]["max_rows"]) == ("RL", "DQN", True, 8)
    assert task["version"] == task["updates"] > 0 and sum(one["steps"] for one in drawn["agents"]) == 40
    before = run.result()
    assert runner.evaluate("run")["mean_return"] == before["evaluation"]["mean_return"], "what acts is all that it takes"
    with load_run("run") as robot:
        assert robot.driver_name == "cooperative" and robot.env_steps == before["env_steps"]
        robot.run(10)
    assert main(["resume", "run", "total_steps=400"]) == 0
    assert main(["resume", "run", "total_steps=800", "workers.step_limit=50"]) == 0, "its new configuration is known, too"
    assert main(["resume", "run", "total_steps=1200"]) == 0
    assert resolve(ExperimentConfig, {"workers": run.config()["workers"]}).workers == Workers(count=2, step_limit=50.0)
    Path("state/parl_like/ran").unlink()
    capsys.readouterr()
    assert main(["resume", "run", "total_steps=1600"]) == 2
    words = capsys.readouterr().err.partition("if you trust it, give ")[2].partition(" again")[0].split()
    assert words == ["driver=processes", "workers.count=2", "workers.step_limit=50.0"]
    assert main(["resume", "run", "total_steps=1600", *words[:2]]) == 2, "all of it"
    assert main(["resume", "run", "total_steps=1600", *words]) == 0
    assert main(["resume", "run", "total_steps=2000"]) == 0


def test_threads_are_of_this_process(capsys):
    run = train()
    change(run, driver="threads")
    with load_run("run") as robot:
        assert robot.driver_name == "cooperative"
    assert main(["resume", "run", "total_steps=60"]) == 2
    assert "is not that of the checkpoint: 'driver' is 'cooperative' there" in capsys.readouterr().err


def test_an_instance_of_ray_has_typed_sizes(monkeypatch):
    asked = {}
    monkeypatch.setattr(CONNECTION, "open", lambda address=None, **size: asked.update(size) or 1 / 0)
    for given, seen in (({}, (None, None, 256 << 20)), ({"ray_cpu": 3, "ray_gpu": 0, "ray_mem": 0.5}, (3, 0, 500_000_000))):
        with pytest.raises(ZeroDivisionError):
            thinker_ray.ray_init(**given)
        assert tuple(asked.values()) == seen


def test_a_run_with_a_shared_model_is_looked_at_without_ray(nothing_starts, monkeypatch):
    """Whose robot has its model in an actor where it trains. As a stranger's directory may have it: another experiment's name."""
    monkeypatch.setattr("parl_like.drivers.ray.tasks.the_ray", lambda: 1 / 0)
    monkeypatch.setattr(thinker_ray, "the_ray", lambda: 1 / 0)
    config = experiments.get("thinker-sokoban-shared").config
    small = {"env_options": {"size": 5, "n_boxes": 1, "obs": "planes", "max_steps": 12}, "eval_options": {}, "n_agents": 1,
             "env_n": 1, "rec_t": 2, "max_depth": 1, "total_steps": 100, "actor_unroll_len": 4, "actor_batch_size": 1,
             "widths": [2, 2, 2], "tree_rep_rnn": False, "model_downscale_c": 64, "model_batch_size": 4, "model_unroll_len": 2,
             "model_return_n": 1, "model_warm_up_n": 10, "model_buffer_n": 100, "max_replay_ratio": 1.0, "eval_episodes": 1,
             "driver": "cooperative"}
    one = resolve(thinker_shared.Config, config, small)
    with foreign.Foreign(Path("config.yaml"), {}, [config, small], False, alone=True).in_force():
        robot = thinker_shared.build(one)
    with robot:
        for _ in robot.iterate(16):
            pass
        saved = robot.state_dict()
        assert robot.counters()["updates/model"] >= 1
    run = RunDir.create("thinker-sokoban-shared", {**to_dict(one), "run_dir": "run", "driver": "ray",
                                                   "workers": {"address": "10.0.0.1:6379"}})
    Checkpoints(run.checkpoints).save(16, saved, {"config": to_dict(one)})
    run.update(state="finished")
    assert runner.evaluate("run")["episodes"] == 1
    with load_run("run") as loaded:
        here = loaded.tasks["model"].state_dict()["networks"]["model"]
        assert here and all(np.array_equal(value, here[name]) for name, value in saved["task.model"]["networks"]["model"].items())
    with pytest.raises(ConfigError, match="workers.address='10.0.0.1:6379': machines"):
        runner.resume("run", {"total_steps": 200})
