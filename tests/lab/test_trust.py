"""A run directory that somebody else made or changed: nothing in it is imported, followed or waited for, and what is wrong in it
is said."""

import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
import types
from pathlib import Path

import numpy as np
import pytest
from lab_fakes import MODULE, FakeRobot, experiment

from parl_like.data.storage import archive
from parl_like.data.storage.archive import ArchiveError
from parl_like.lab import experiment as experiments
from parl_like.lab import foreign, runner, session
from parl_like.lab.cli import main
from parl_like.lab.config import flat, nested, resolve, to_dict
from parl_like.lab.reports import plots
from parl_like.lab.runs import rundir, stored
from parl_like.lab.runs.checkpoint import Checkpoints, verify
from parl_like.lab.runs.rundir import RunDir
from parl_like.lab.yaml_text import ConfigError, UsageError, dump_yaml, load_yaml, show
from parl_like.robots import single

OURS = (UsageError, ArchiveError)


@pytest.fixture(autouse=True)
def clean(fake_experiment, monkeypatch):
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: True)
    monkeypatch.setattr(session, "END_PATIENCE_S", 0.0)  # nothing that refuses here will take something later


def train(run_dir="run", **overrides):
    one = experiments.get("fake")
    assert runner.train(one, resolve(MODULE.Config, one.config, {"run_dir": run_dir, **overrides})) == 0
    return RunDir(Path(run_dir))


def listed(run_dir):
    """The command itself: what it cannot read is a row of its table, or a line and exit code 2."""
    assert main(["list", "--json", "--runs", "."]) == 0


def checked(run_dir):
    assert main(["verify", run_dir, "--json"]) in (0, 1, 2)


def drawn(run_dir):
    """All of `plot` but the picture."""
    run = RunDir.open(run_dir)
    plots.settings([run])
    plots.curves(run, "return/mean")


VERBS = {
    "eval": runner.evaluate, "play": runner.play, "resume": lambda run: runner.resume(run, {"total_steps": 420}),
    "plot": drawn, "list": listed, "verify": checked,
    "diff": lambda run: main(["diff", run, run, "--json"]), "load_run": lambda run: runner.load_run(run).close(),
}


# ---- what would be imported


@pytest.mark.parametrize("where", [{"env": "evil:Id-v0"}, {"options": {"inner": ["x", "evil.deep:Id-v0"]}}], ids=str)
@pytest.mark.parametrize("verb", ["eval", "play", "resume", "load_run"])
def test_a_run_directory_asks_for_no_import(verb, where):
    train(**where)  # the user's own command line may
    before = dict(FakeRobot.__dict__)
    with pytest.raises(ConfigError, match=r"would import a module, which a run directory may not ask for; if you trust it, give"):
        VERBS[verb]("run")
    assert dict(FakeRobot.__dict__) == before, "no robot was built"


def test_what_the_user_gives_again_is_taken():
    train(env="mine:Id-v0")
    given = {"env": "mine:Id-v0"}
    assert runner.evaluate("run", overrides=given)["episodes"] == 5
    assert runner.play("run", overrides=given)
    assert runner.resume("run", {**given, "total_steps": 410}) == 0
    runner.load_run("run", env="mine:Id-v0").close()
    assert main(["eval", "run", "env=mine:Id-v0", "--json"]) == 0
    assert main(["play", "run", "env=mine:Id-v0"]) == 0
    with pytest.raises(ConfigError, match="a run keeps its configuration: 'env' is 'mine:Id-v0' there and 'other:Id-v0' "
                                          "now|would import"):
        runner.evaluate("run", overrides={"env": "other:Id-v0"})


def test_what_is_to_be_given_again_is_named_where_a_run_ends(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mine", types.ModuleType("mine"))
    train(env="mine:Id-v0", options={"note": "12:30"})
    assert capsys.readouterr().out == ""
    assert main(["train", "fake", "env=mine:Id-v0", "run_dir=other"]) == 0
    hint = capsys.readouterr().out.splitlines()[-1]
    assert hint == "next: `parl-like play other env=mine:Id-v0` or `parl-like plot other`"
    config = resolve(single.Config, {"hooks": ["mine:Hook", "TimePerStep"], "run_dir": "a:b",
                                     "env": {"id": "CartPole-v1", "wrappers": ["mine:Wrapper"]},
                                     "parts": {"robot.tasks.RL.DQN.explorer": "mine:Explorer"}})
    assert foreign.imported(config) == {"hooks": ["mine:Hook", "TimePerStep"], "env.wrappers": ["mine:Wrapper"],
                                        "robot.tasks.RL.DQN.explorer": "mine:Explorer"}


@pytest.mark.parametrize("options", [
    {"inner": [["mine:A", 3], ["b"]]}, {"inner": [{"id": "mine:B", "n": [1, 2]}, "c"]}, {"1": {"0": "mine:C"}},
    {"a[0]": "mine:D"}, {"deep": {"er": [[["mine:E"]]]}}], ids=str)
def test_a_value_that_is_to_be_given_again_has_the_form_that_it_had(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "mine", types.ModuleType("mine"))
    config = resolve(MODULE.Config, {"options": options})
    assert nested(foreign.imported(config), {}) == {"options": options}
    (key, value), = foreign.imported(config).items()
    rule = foreign.Foreign(Path("config.yaml"), to_dict(config), [], ran=False)
    name = next(text for text in flat(options).values() if str(text).startswith("mine:"))
    assert f"if you trust it, give {key}={show(value)} again" in str(rule.refusal(name))


def test_texts_with_a_colon_that_import_nothing_are_no_matter(tmp_path):
    train(run_dir=str(tmp_path / "a:b"), device="cuda:0", options={"note": "12:30"})
    assert runner.evaluate(str(tmp_path / "a:b"))["episodes"] == 5


WOULD = "would import a module, which a run directory may not ask for"


@pytest.mark.parametrize(("key", "value", "said"), [
    (["env", "id"], "evil:CartPole-v1", WOULD),
    (["env", "wrappers"], ["evil:Wrapper"], WOULD),
    (["algorithm"], "evil:DQN", WOULD),
    (["model"], "evil:MLPQ", WOULD),
    (["helper"], "evil:OffPolicyHelper", WOULD),
    (["robot", "tasks.RL.func.algorithm"], "evil:DQN", "Config has no key 'robot.tasks.RL.func.algorithm'"),
], ids=lambda value: "" if isinstance(value, list) else None)
def test_nothing_that_a_run_directory_names_is_imported(key, value, said, tmp_path, monkeypatch, capsys):
    """With a real robot, and a module that could be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil.py").write_text("open('imported', 'w')")
    assert main(["train", "dqn-cartpole", "run_dir=real", "total_steps=20", "n_agents=1", "eval_episodes=1",
                 "tensorboard=false"]) == 0
    file = tmp_path / "real" / "config.yaml"
    config = load_yaml(file.read_text(), str(file))
    inside = config
    for name in key[:-1]:
        inside = inside.setdefault(name, {})
    inside[key[-1]] = value
    file.write_text(dump_yaml(config))
    capsys.readouterr()
    for verb in (["eval", "real"], ["play", "real"], ["resume", "real", "total_steps=40"]):
        assert main(verb) == 2
        assert said in capsys.readouterr().err, verb
    with pytest.raises(ConfigError, match=said):
        runner.load_run("real")
    assert not (tmp_path / "imported").exists()


def test_what_the_experiment_itself_names_is_trusted(monkeypatch):
    """It is the user's own code, which has been imported."""
    monkeypatch.setattr(experiments, "_registered", {})
    experiments.register(experiment(config={"env": "mine:Id-v0"}), module=MODULE)
    train()
    assert runner.evaluate("run")["episodes"] == 5


def test_git_is_asked_in_our_own_checkout_only_and_starts_nothing(tmp_path, monkeypatch):
    def repository(folder):
        folder.mkdir()
        (folder / "monitor").write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
        (folder / "monitor").chmod(0o755)
        for words in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "a"], ["add", "monitor"],
                      ["commit", "-qm", "a"],
                      ["config", "core.fsmonitor", str(folder / "monitor")]):
            subprocess.run(["git", "-C", str(folder), *words], check=True)
        (tmp_path / "started").unlink(missing_ok=True)
        return folder

    monkeypatch.chdir(repository(tmp_path / "here"))
    monkeypatch.setattr(rundir, "__file__", str(tmp_path / "installed" / "parl_like" / "lab" / "runs" / "rundir.py"))
    assert rundir.git_state() is None
    monkeypatch.setattr(rundir, "__file__", str(repository(tmp_path / "ours") / "parl_like" / "lab" / "runs" / "rundir.py"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "here" / ".git"))
    state = rundir.git_state()
    assert state is not None and not state.dirty
    assert not (tmp_path / "started").exists()


# ---- what would be followed, or waited for

FILES = ["run.json", "config.yaml", "result.json", "metrics.csv", "events.jsonl", "log.txt", "run.lock",
         "checkpoints/LATEST",
         "checkpoints/BEST", "checkpoints/000000400/manifest.json", "checkpoints/000000400/RL.json", "videos/episode_1000000.gif"]
FOLDERS = ["checkpoints", "checkpoints/000000400", "videos", "plots", "tb"]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def replaced(path, kind, outside):
    """Puts a link to what was there, moved outside, a link to an endless file, a pipe, or a second name, in its place."""
    target = outside / path.name
    if path.exists():
        shutil.move(path, target)
    elif kind in ("link", "hard link"):
        target.write_bytes(b"")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "hard link":
        os.link(target, path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in FILES for kind in ("link", "pipe")),
        *(
            (name, kind)
            for name in ("config.yaml", "metrics.csv", "events.jsonl", "videos/episode_1000000.gif")
            for kind in ("zero", "hard link")
        ),
    ],
)
def test_only_plain_files_are_read_and_written(tmp_path, name, kind):
    run = train("pattern")
    run.videos.mkdir()
    outside = tmp_path / "outside"
    for verb, do in VERBS.items():
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.rmtree(outside, ignore_errors=True)
        shutil.copytree(run.path, tmp_path / "run")
        outside.mkdir()
        replaced(tmp_path / "run" / name, kind, outside)
        before = contents(outside)
        try:
            do("run")
        except OURS as error:
            assert name.rpartition("/")[2] in str(error) or "checkpoint" in str(error), f"{verb}: {error}"
        assert contents(outside) == before, f"{verb} wrote through {name}"


def test_a_run_of_a_gpu_is_looked_at_and_goes_on_where_there_is_none(monkeypatch):
    import torch

    run = train()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run.save_config({**run.config(), "device": "cuda:0"})
    with stored.to_look_at(run, {}, "") as (_, config):
        assert config.device == "cpu"
    with stored.to_resume(run, {"device": "cpu", "total_steps": 420}, "") as found:
        assert found.config.device == "cpu"


@pytest.mark.parametrize("name", ["events.jsonl", "log.txt", "metrics.csv"])
@pytest.mark.parametrize("kind", ["pipe", "link", "hard link"])
def test_what_cannot_be_appended_to_is_said_before_the_first_step(tmp_path, monkeypatch, name, kind):
    run = train()
    (tmp_path / "outside").mkdir()
    replaced(run.path / name, kind, tmp_path / "outside")
    before = contents(run.path)
    monkeypatch.setattr(session.Session, "_train", lambda *arguments: pytest.fail("a step was trained"))
    with pytest.raises(rundir.RunError, match=f"{name}.*(remove it|is not readable)"):
        runner.resume("run", {"total_steps": 420})
    assert contents(run.path) == before


@pytest.mark.parametrize("name", FOLDERS)
def test_no_linked_directory_is_entered(tmp_path, name):
    run = train("pattern", tensorboard=True)
    run.videos.mkdir()
    run.plots.mkdir()
    outside = tmp_path / "outside"
    for verb, do in VERBS.items():
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.rmtree(outside, ignore_errors=True)
        shutil.copytree(run.path, tmp_path / "run")
        outside.mkdir()
        moved = tmp_path / "run" / name
        if not moved.exists():
            moved.mkdir()
        shutil.move(moved, outside / "folder")
        moved.symlink_to(outside / "folder", target_is_directory=True)
        before = contents(outside)
        try:
            do("run")
        except OURS:
            pass
        assert contents(outside) == before, f"{verb} wrote through {name}"


def test_a_picture_replaces_a_link_and_does_not_follow_it(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "matplotlib_missing", lambda: False)
    run = train()
    (tmp_path / "precious").write_text("mine")
    shutil.rmtree(run.plots)
    run.plots.mkdir()
    (run.plots / "learning_curve.png").symlink_to(tmp_path / "precious")
    assert main(["plot", "run"]) == 0
    assert (tmp_path / "precious").read_text() == "mine"
    shutil.rmtree(run.plots)
    (tmp_path / "folder").mkdir()
    run.plots.symlink_to(tmp_path / "folder")
    assert main(["plot", "run"]) == 2
    assert os.listdir(tmp_path / "folder") == []


# ---- what would take all memory


def sparse(path):
    """The same bytes, where zeros take no room on the disk."""
    data = path.read_bytes()
    head = len(data.rstrip(b"\0"))
    path.write_bytes(data[:head])
    os.truncate(path, len(data))


def test_a_file_of_holes_takes_no_memory(tmp_path):
    archive.write_archive(tmp_path / "a", {"x": np.zeros(100 << 20, np.uint8)})
    sparse(tmp_path / "a" / "x.0.npy")
    tracemalloc.start()
    with pytest.raises(ArchiveError, match="it claims 104857728 bytes, but is mostly holes"):
        archive.read_archive(tmp_path / "a")
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_what_no_machine_holds_is_refused_by_its_sizes(tmp_path, monkeypatch):
    archive.write_archive(tmp_path / "a", {"x": np.zeros(1000)})
    pages = os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(os, "sysconf", lambda name: pages if name == "SC_PAGE_SIZE" else 1)
    with pytest.raises(ArchiveError, match="expected arrays that fit into"):
        archive.read_archive(tmp_path / "a")


def test_a_task_that_is_much_larger_than_the_robot_s_own_is_not_read(tmp_path, monkeypatch):
    task = types.SimpleNamespace(state_dict=lambda: {"weights": {"w": np.zeros(10)}})
    check = runner._expected_by(types.SimpleNamespace(tasks={"RL": task}))
    archive.write_archive(tmp_path / "small", {"task.RL": {"w": np.zeros(1000)}, "other": np.zeros(1000)})
    assert archive.read_archive(tmp_path / "small", check)
    monkeypatch.setattr(runner, "STATE_ROOM", 1000)
    with pytest.raises(ArchiveError, match=r"task\.RL: expected about 80 bytes, as this robot's task has"):
        archive.read_archive(tmp_path / "small", check)


def test_too_little_memory_for_a_checkpoint_takes_the_one_before(tmp_path, monkeypatch):
    train()
    read = archive._read_file

    def refuse(path, *args):
        if path.parent.name == "000000400":
            raise MemoryError
        return read(path, *args)

    monkeypatch.setattr(archive, "_read_file", refuse)
    assert runner.evaluate("run")["step"] == 300


# ---- what says something else than it is


def test_a_checkpoint_under_another_step_s_name_is_refused(tmp_path):
    run = train()
    shutil.rmtree(run.checkpoints / "000000400")
    shutil.copytree(run.checkpoints / "000000100", run.checkpoints / "000000400")
    assert [(name, good) for name, good, _ in verify(run.checkpoints)][-1] == ("000000400", False)
    warnings = []
    loaded = Checkpoints(run.checkpoints, warn=warnings.append).load()
    assert loaded.path.name == "000000300" and "expected the checkpoint of step 400, got that of step 100" in warnings[0]
    with pytest.raises(ArchiveError, match="expected the checkpoint of step 400, got that of step 100"):
        runner.evaluate("run", which="400")


def test_a_state_of_other_types_is_refused_in_words(monkeypatch):
    train()
    monkeypatch.setattr(FakeRobot, "load_state_dict", lambda self, tree: tree["RL"]["weight"]["no"])
    with pytest.raises(ArchiveError, match=r"run/checkpoints/000000400: its state does not fit this robot"):
        runner.evaluate("run")


def test_a_state_that_the_robot_refuses_ends_the_command(tmp_path, capsys):
    """With a real robot: the refusal is its own error, and no error is its own cause."""
    words = "train dqn-cartpole run_dir=real total_steps=40 n_agents=1 eval_episodes=1 tensorboard=false"
    assert main(words.split()) == 0
    folder = Checkpoints(Path("real/checkpoints")).latest()
    tree, manifest = archive.read_archive(folder)
    tree["counters"]["env_steps"] = "many"
    tree["buffer.RL"]["open"] = {"start": [-1]}
    archive.write_archive(folder, tree, manifest.meta, over=True)
    assert main(["resume", "real", "total_steps=2000"]) == 1
    assert "its state does not fit this robot" in capsys.readouterr().err


def test_an_error_is_a_line_that_can_be_read(capsys):
    """However long the text is that a run directory puts into it."""
    run = train()
    run.save_config({**run.config(), "eval_score": "x" * 100_000})
    assert main(["eval", "run"]) == 2
    assert "characters left out" in (said := capsys.readouterr().err) and len(said) < 5_000


VALUES = [None, True, -1, 7, 10**30, 1.5, 1e308, "", "text", [], [1], {}, {"a": 1}]


def leaves(tree, path=()):
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in parts:
        yield (*path, key)
        yield from leaves(part, (*path, key))


def mutations(run):
    """(file, new content): every value in the plain files replaced by one of each type, and a manifest sealed anew."""
    manifest = run.checkpoints / "000000400" / "manifest.json"
    for file in (run.path / "run.json", run.path / "config.yaml", run.path / "result.json", manifest):
        text = file.read_text()
        tree = load_yaml(text) if file.suffix == ".yaml" else json.loads(text)
        tree.pop("sha256", None)
        for where in leaves(tree):
            for value in VALUES:
                changed = node = copy.deepcopy(tree)
                for key in where[:-1]:
                    node = node[key]
                node[where[-1]] = value
                body = json.dumps(changed, indent=1)  # JSON is YAML
                yield file, archive._sealed(body.removesuffix("\n}").encode()) if file == manifest else body.encode()


def try_some(tmp_path, count=None):
    """Do every verb with `count` of the mutations, or with all."""
    run = train("pattern")
    everything = list(mutations(run))
    for file, content in random.Random(0).sample(everything, len(everything) if count is None else count):
        for verb, do in VERBS.items():
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            shutil.copytree(run.path, tmp_path / "run")
            (tmp_path / "run" / file.relative_to(run.path)).write_bytes(content)
            try:
                do("run")
            except OURS:
                pass
            except Exception as error:
                raise AssertionError(f"{verb}: {file.name}: {content[:3000]!r}") from error


@pytest.mark.parametrize("wrong", ['{"evaluation": true}', '{"evaluation": 3}', '{"expect": [1]}', '{"seconds": "1"}'])
def test_a_result_with_wrong_types_is_as_good_as_none(wrong, tmp_path, capsys):
    run = train("run")
    (run.path / "result.json").write_text(wrong)
    assert run.result() is None
    assert main(["list", "--json", "--runs", "."]) == 0


def test_wrong_types_end_in_our_errors(tmp_path, capsys):
    try_some(tmp_path, 4)


def test_a_seed_beyond_all_numbers_is_refused(tmp_path, capsys):
    """Names of files are made of it."""
    run = train("pattern")
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1e+308").replace('"seed": 0', '"seed": 1e+308'))
    assert "e+308" in config.read_text()
    with pytest.raises(OURS, match="seed"):
        VERBS["play"](run.path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_wrong_types_end_in_our_errors(tmp_path, capsys):
    try_some(tmp_path)


@pytest.mark.parametrize("text",
                         [b"\xff\xfe\x00", b"a,b\n1,2\n", b'step,return/mean\n1,"',
                          b"step,return/mean\n" + b"9" * 200_000 + b",1\n",
                                  b"step\n\0\n", b"step,return/mean\ninf,1\nnan,2\n-1e999,3\n", b"\n\n\n",
                                  b"step,step,return/mean\n1,2,3\n"])
def test_tables_that_no_run_wrote(tmp_path, text, capsys):
    run = train("pattern")
    for verb, do in VERBS.items():
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(run.path, tmp_path / "run")
        (tmp_path / "run" / "metrics.csv").write_bytes(text)
        try:
            do("run")
        except OURS:
            pass
        except Exception as error:
            raise AssertionError(verb) from error


# ---- load_run


def test_load_run_gives_a_robot_to_use(tmp_path):
    """With a real robot: it acts and evaluates as the run did, and can go on."""
    from parl_like import load_run
    from parl_like.environment.stop_conditions import StopAfterSteps

    words = "train dqn-cartpole run_dir=real total_steps=200 n_agents=2 eval_episodes=2 tensorboard=false checkpoint_every=100"
    assert main(words.split()) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("real").rglob("*") if path.is_file()}
    with load_run("real") as robot, load_run("real", checkpoint="0") as earlier:
        trained = robot.env_steps
        assert trained >= 200 and earlier.env_steps == 0
        again = robot.evaluate(2, seed=1_000_000).numbers()
        assert again["mean_return"] == RunDir(Path("real")).result()["evaluation"]["mean_return"]
        assert robot.act(np.zeros(4, np.float32)) in (0, 1)
        robot.run(StopAfterSteps(20))
        assert robot.env_steps >= trained + 20
    assert {path: path.stat().st_mtime_ns for path in Path("real").rglob("*") if path.is_file()} == before, "nothing was written"
    for wrong in ({"run_dir": "none"}, {"run_dir": "real", "checkpoint": "50"}, {"run_dir": "real", "lr": 1.0}):
        with pytest.raises(UsageError):
            load_run(**wrong)
