"""Files that a run's configuration, or a command, names."""

import contextlib
import os
import shutil

import pytest

from parl_like.lab.cli import main
from parl_like.lab.reports import marks
from parl_like.lab.user_experiments import registered
from parl_like.lab.yaml_text import ConfigError, UsageError, dump_yaml, load_yaml, load_yaml_file
from parl_like.robots.thinker import make as thinker

RUN = ["run_dir=run", "total_steps=40", "eval_episodes=1", "n_agents=1", "tensorboard=false"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in Sokoban."""
    path = tmp_path_factory.mktemp("trained") / "run"
    with contextlib.chdir(path.parent):
        assert main(["train", "dqn-cartpole", *RUN, "env.id=Sokoban-v0", "env.options={size: 5, n_boxes: 1}"]) == 0
    return path


@pytest.mark.parametrize("named", ["pipe", "/dev/zero", "link", "folder"])
@pytest.mark.parametrize("verb", [["eval", "run"], ["play", "run"], ["resume", "run", "total_steps=80"]],
                         ids=lambda verb: verb[0])
def test_levels_that_a_run_names_are_not_waited_for(verb, named, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "run")
    os.mkfifo("pipe")
    os.symlink("/dev/zero", "link")
    os.mkdir("folder")
    os.mkfifo("folder/000.txt.gz")
    file = tmp_path / "run" / "config.yaml"
    env = {"id": "Sokoban-v0", "options": {"size": 5, "n_boxes": 1, "levels": named}}
    file.write_text(dump_yaml({**load_yaml(file.read_text()), "env": env}))
    capsys.readouterr()
    assert main(verb) == 2
    error = capsys.readouterr().err
    assert "it is not a plain file" in error and named in error and error.count("\n") == 1


def test_files_that_an_environment_of_others_opens_are_looked_at(tmp_path, capsys, monkeypatch):
    """The library of the environment opens them as it likes."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("model.xml")
    assert main(["train", "dqn-cartpole", *RUN, "env.options={xml_file: model.xml}"]) == 2
    error = capsys.readouterr().err
    assert "key 'env.options.xml_file' names 'model.xml', and it is not a plain file; give a plain file" in error


@pytest.mark.parametrize("read", [
    load_yaml_file, lambda path: thinker.make("Sokoban-v0", config=path), marks.load, lambda path: registered(str(path)),
    lambda path: main(["train", "dqn-cartpole", "--config", str(path)]),
], ids=["yaml", "thinker", "marks", "experiment", "command"])  # fmt: skip
def test_a_pipe_is_never_waited_for(read, tmp_path, capsys):
    path = tmp_path / "named.py"
    os.mkfifo(path)
    try:
        assert read(path) == 2
        error = capsys.readouterr().err
    except UsageError as raised:
        error = str(raised)
    assert "it is not a plain file" in error


def test_a_log_that_is_a_pipe_does_not_hold_a_thinker(tmp_path):
    os.mkfifo(tmp_path / "logs_model.csv")
    from parl_like.robots.thinker.env import ModelLog

    with pytest.raises(OSError, match="it is not a plain file"):
        ModelLog(tmp_path / "logs_model.csv")


def test_a_configuration_has_a_size(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="it has 1000001 bytes; expected at most 1000000"):
        load_yaml_file(tmp_path / "c.yaml")
