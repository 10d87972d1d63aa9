"""Policies that ship: they are what their index says, score what was recorded, and nothing else is used for them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import parl_like
from parl_like import Policy
from parl_like.lab import pretrained, runner
from parl_like.lab.cli import main
from parl_like.lab.yaml_text import UsageError

SHIPPED = pretrained.shipped()
FOLDER = Path(parl_like.__file__).parent / "robots" / "pretrained"
QUICK = ("ppo-recall",)


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_index_has_every_file_and_each_policy_is_small():
    assert {"ppo-cartpole", "dqn-cartpole", "ppo-pendulum"} <= set(SHIPPED)
    for name, one in SHIPPED.items():
        files = {path.relative_to(FOLDER / name).as_posix(): path for path in (FOLDER / name).rglob("*") if path.is_file()}
        assert files.keys() == one.files.keys()
        assert sum(path.stat().st_size for path in files.values()) < 200_000
    assert {path.name for path in FOLDER.iterdir()} == {*SHIPPED, "index.json"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SHIPPED])
def test_each_scores_what_was_recorded(name):
    numbers = runner.evaluate(pretrained.run_of(name))
    assert (numbers["episodes"], numbers["step"]) == (SHIPPED[name].episodes, SHIPPED[name].step)
    assert numbers["score"] == pytest.approx(SHIPPED[name].score, rel=0.05)  # other machines round otherwise


def test_verbs_take_the_name_of_an_experiment(capsys):
    assert main(["eval", "dqn-cartpole", "--pretrained", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_return"] == 500
    assert main(["play", "dqn-cartpole", "--pretrained", "--steps", "5"]) == 0
    assert main(["export", "ppo-recall", "--pretrained", "--out", "policy"]) == 0
    policy = Policy.load("policy")
    assert policy.remembers and policy.action_space.contains(policy(policy.observation_space.sample()))
    capsys.readouterr()
    assert main(["eval", "ppo-cartpol", "--pretrained"]) == 2
    assert "did you mean 'ppo-cartpole'" in capsys.readouterr().err


def test_a_file_that_is_another_is_refused(tmp_path, monkeypatch):
    copy = pretrained.run_of("ppo-recall")
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("total_steps: 150000", "total_steps: 150001"))
    with pytest.raises(UsageError, match="config.yaml: expected the file that shipped.*move runs/pretrained/ppo-recall away"):
        pretrained.run_of("ppo-recall")
    shutil.rmtree(copy)

    package = tmp_path / "package"
    shutil.copytree(FOLDER, package)
    monkeypatch.setattr(pretrained, "_folder", lambda: package)
    assert pretrained.run_of("ppo-recall") == copy
    weights = package / "ppo-recall" / "policy" / "task.RL.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(UsageError, match="task.RL.safetensors: expected the file that shipped.*install parl_like again"):
        pretrained.run_of("ppo-recall")
    weights.unlink()
    weights.symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="it is a link"):
        pretrained.run_of("ppo-recall")


def test_what_is_kept_of_a_run_is_what_acts(tmp_path, monkeypatch):
    assert main(["train", "dqn-cartpole", "total_steps=300", "n_agents=2", "warmup=100", "hidden=[16]", "tensorboard=false",
                 "eval_episodes=3", "run_dir=run"]) == 0
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(pretrained, "_folder", lambda: package)
    one = pretrained.keep(Path("run"))
    recorded = json.loads(Path("run/result.json").read_text())["evaluation"]
    assert (one.step, one.score, one.episodes) == (300, recorded["score"], 3) and pretrained.shipped() == {"dqn-cartpole": one}
    with runner.load_run("run") as own, runner.load_run(pretrained.run_of("dqn-cartpole")) as shipped:
        obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
        assert (own.act(obs) == shipped.act(obs)).all()
        networks = shipped.tasks["RL"].algorithm.networks()
        assert networks["target"].weights_hash() == networks["model"].weights_hash(), "it has just followed"
    monkeypatch.setattr(pretrained, "MOST_BYTES", 1_000)
    with pytest.raises(UsageError, match="takes .* bytes; expected at most 1000"):
        pretrained.keep(Path("run"))
