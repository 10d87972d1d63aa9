"""The registry: names lead to experiments, experiments to robot modules, and nothing leads anywhere else."""

import math
import subprocess
import sys
import types

import pytest

from parl_like.lab import experiment as experiments
from parl_like.lab.experiment import Bounds, Experiment, ExperimentError, get, names, register
from parl_like.lab.yaml_text import ConfigError


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(experiments, "_registered", {})
    monkeypatch.setattr(experiments, "_modules", {})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An experiments folder in place of the installed one."""
    (tmp_path / "experiments").mkdir()
    monkeypatch.setattr(experiments, "_robots_folders", lambda: [tmp_path])
    return tmp_path / "experiments"


def test_a_yaml_file_is_an_experiment(folder):
    (folder / "cart-easy.yaml").write_text(
        "robot: dqn\ndescription: balances\nexpect: {mean_return: 475, episodes: 100, loss: {at_most: 0.5}}\nconfig: {lr: "
        "1e-3}\n")
    assert names() == ["cart-easy"]
    one = get("cart-easy")
    assert (one.name, one.robot, one.description, one.config, one.eval_episodes) == (
        "cart-easy",
        "dqn",
        "balances",
        {"lr": 1e-3},
        100,
    )
    assert one.bounds == {"mean_return": Bounds(at_least=475.0), "loss": Bounds(at_most=0.5)}


def test_an_unknown_name_is_answered_with_the_nearest(folder):
    (folder / "cartpole.yaml").write_text("robot: dqn")
    with pytest.raises(ExperimentError, match="no experiment 'cartpol'; did you mean 'cartpole'?"):
        get("cartpol")


@pytest.mark.parametrize("robot", ["os.path", "../x", "a/b", "Dqn", "", "a\n", "1a", "-", "a" * 65])
def test_a_robot_name_cannot_leave_its_package(folder, robot):
    (folder / "evil.yaml").write_text(f"robot: {robot!r}")
    with pytest.raises(ConfigError, match="robot"):
        get("evil")


@pytest.mark.parametrize("text", ["robot: dqn\nextra: 1", "description: no robot", "robot: dqn\nexpect: {mean_return: high}",
                                  "robot: dqn\nname: other", "robot: dqn\nconfig: [1]", "robot: dqn\nexpect: {a: {above: 1}}"])
def test_a_malformed_file_is_refused(folder, text):
    (folder / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        get("bad")


def test_user_code_registers_once(folder):
    one = register(Experiment(name="mine", robot="dqn"))
    assert register(Experiment(name="mine", robot="dqn")) == one == get("mine")
    with pytest.raises(ExperimentError, match="exists already"):
        register(Experiment(name="mine", robot="ppo"))
    (folder / "cartpole.yaml").write_text("robot: dqn")
    with pytest.raises(ExperimentError, match="exists already"):
        register(Experiment(name="cartpole", robot="dqn"))
    with pytest.raises(ExperimentError, match="robot"):
        register(Experiment(name="worse", robot="os.path"))


def test_the_robot_module_is_imported_by_name(monkeypatch):
    fake = types.ModuleType("parl_like.robots.fake_robot")
    fake.Config, fake.build = object, object
    monkeypatch.setitem(sys.modules, "parl_like.robots.fake_robot", fake)
    assert Experiment(name="x", robot="fake_robot").module() is fake
    del fake.build
    with pytest.raises(ExperimentError, match="has no 'build'"):
        Experiment(name="x", robot="fake_robot").module()
    with pytest.raises(ExperimentError, match="no robot 'no_such_robot'"):
        Experiment(name="x", robot="no_such_robot").module()


def test_a_registered_module_needs_no_package():
    mine = types.ModuleType("mine")
    mine.Config, mine.build = object, object
    assert register(Experiment(name="mine", robot="mine"), module=mine).module() is mine


def test_verdict():
    one = Experiment(name="x", robot="dqn", expect={"mean_return": 475.0, "loss": Bounds(at_most=0.5), "episodes": 100})
    assert one.verdict({"mean_return": 475.0, "loss": 0.5}) is True
    assert one.verdict({"mean_return": 474.9, "loss": 0.1}) is False
    assert one.verdict({"mean_return": 500.0, "loss": 0.6}) is False
    assert one.verdict({"mean_return": 500.0}) is False
    assert one.verdict({"mean_return": math.nan, "loss": 0.1}) is False
    assert Experiment(name="x", robot="dqn", expect={"episodes": 3}).verdict({}) is None


def test_the_installed_experiments_are_whole():
    for name in names():
        one = get(name)
        assert one.description, f"{name}.yaml has no description"


def test_listing_loads_neither_torch_nor_matplotlib():
    code = ("import sys, parl_like.lab.cli, parl_like.lab.config, parl_like.lab.experiment as e; [e.get(n) for n in e.names()]; "
            "assert parl_like.lab.cli.main(['list']) == 0; sys.exit(any(m in sys.modules for m in ('torch', 'matplotlib')))")
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("fields", "message"), [
    ({"robot": "a.b"}, "robot is 'a.b'; expected the name of a module below parl_like.robots: lower-case letters"),
    ({"name": "X Y"}, "name is 'X Y'; expected lower-case letters, digits, - and _"),
])
def test_a_name_of_other_characters_is_refused_in_words(fields, message):
    with pytest.raises(ExperimentError, match=message):
        register(Experiment(**{"name": "mine", "robot": "dqn", **fields}))
