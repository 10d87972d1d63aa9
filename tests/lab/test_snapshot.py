"""Snapshots of sources: a run is evaluated as it was made, only by sources that the user has run or trusts, from memory alone."""

import importlib.abc
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from gzip import compress

import pytest

from parl_like.lab import snapshot, user_experiments
from parl_like.lab.cli import main
from parl_like.lab.experiment import ExperimentSource
from parl_like.lab.runs.rundir import RunDir, RunError
from parl_like.lab.snapshot_importer import SourceFinder
from parl_like.lab.yaml_text import UsageError

ROBOT = '''
import sys
import gymnasium as gym
import numpy as np
import parl_like
from beside import REWARD
from parl_like.robots.single import Config, build as build_one

class Paid(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, act):
        return np.zeros(2, np.float32), REWARD, True, False, {}

def build(config):
    return build_one(config, Paid)

parl_like.register(parl_like.Experiment(name="paid", robot="own", config={"total_steps": 64, "n_agents": 2, "unroll": 8,
    "minibatches": 1, "tensorboard": False, "eval_episodes": 1}), sys.modules[__name__])
'''


def command(*words, code=0, state="state"):
    done = subprocess.run([sys.executable, "-m", "parl_like", *words], capture_output=True, text=True,
                          env={**os.environ, "XDG_STATE_HOME": os.path.abspath(state)}, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout if not code else done.stderr


@pytest.mark.usefixtures("fake_experiment")
def test_the_sources_are_there_when_the_run_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "_cache", lambda: tmp_path / "cache")
    packed = snapshot.packed
    monkeypatch.setattr(snapshot, "packed", lambda files: (time.sleep(1.0), packed(files))[1])
    assert main(["train", "fake", "total_steps=10", "run_dir=run"]) == 0
    assert len(list(RunDir.open("run").path.glob("sources/*.tar.gz"))) == 1


@pytest.mark.slow  # seven processes
def test_a_changed_source_is_evaluated_as_it_was(tmp_path, monkeypatch):
    """As ALF's: train, change a constant, evaluate both ways."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "robot.py").write_text(ROBOT)
    (tmp_path / "beside.py").write_text("REWARD = 1.0\n")
    command("train", "robot.py", "run_dir=run")
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["sources"]
    file, = (tmp_path / "run" / "sources").iterdir()
    assert file.name == f"{kept[:16]}.tar.gz" and file.stat().st_size < 1_000_000
    files = snapshot.unpacked(file.read_bytes(), file)
    assert {"robot.py", "beside.py", "parl_like/__init__.py", "parl_like/lab/cli.py", "parl_like/algorithms/ppo.py"} <= set(files)
    assert files["beside.py"] == b"REWARD = 1.0\n" and "__main__.py" not in files

    (tmp_path / "beside.py").write_text("REWARD = 3.0\n")
    (tmp_path / "robot.py").write_text(ROBOT.replace('"unroll": 8', '"unroll":  8'))  # other bytes, so that it is another source

    def evaluated(*more):
        return json.loads(command("eval", "run", "--json", *more))["mean_return"]

    assert evaluated("--from", "robot.py") == 3.0
    assert evaluated("--snapshot") == 1.0
    assert evaluated("--trust", kept) == 1.0

    # somebody else, who has run nothing of it
    said = command("eval", "run", "--snapshot", code=2, state="other")
    assert "sources that you have not run" in said and f"--trust {kept}" in said
    assert "sources that you have not run" in command("eval", "run", "--trust", "0" * 64, code=2, state="other")
    assert set(os.listdir(tmp_path)) - {"__pycache__"} <= {"beside.py", "other", "robot.py", "run", "state"}


def run_with(tmp_path, files, digest=None):
    """A run directory with these packed sources, as somebody may have made it."""
    config = {"run_dir": str(tmp_path / "run"), "seed": 0}
    run = RunDir.create("ppo-cartpole", config)
    data = files if isinstance(files, bytes) else snapshot.packed(files)
    digest = digest or snapshot.hash_of(files)
    run.update(sources=digest)
    run.outbox.replace(f"sources/{digest[:16]}.tar.gz", data)
    assert run.outbox.flush() == []
    return run


def test_the_project_itself_is_the_snapshot(tmp_path, capfd):
    files = snapshot.imported()
    files["parl_like/lab/cli.py"] += b"\ndef main(argv=None):\n    print('as it was', argv, __file__)\n    return 7\n"
    run = run_with(tmp_path, files)
    with pytest.raises(UsageError, match="sources that you have not run"):
        snapshot.run_again(run, ["eval", "x"], "")
    user_experiments.remember_sources(run.info().sources)
    assert snapshot.run_again(run, ["eval", "x"], "") == 7
    said = capfd.readouterr().out
    assert f"as it was ['eval', 'x'] {run.path}/sources/" in said and "parl_like/lab/cli.py" in said


def test_what_the_sources_lack_is_found_as_it_was_installed(tmp_path, monkeypatch):
    """An editable installation puts no folder on the path: it has a finder of its own."""
    package = tmp_path / "installed_by_a_finder"
    package.mkdir()
    (package / "__init__.py").write_text("whose = 'installed'")
    (package / "compiled.py").write_text("whose = 'installed'")

    class Editable(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, path, target=None):
            if fullname != package.name:
                return None
            return importlib.util.spec_from_file_location(fullname, package / "__init__.py",
                                                          submodule_search_locations=[str(package)])

    ours = SourceFinder({f"{package.name}/__init__.py": b"whose = 'kept'"}, "run")
    monkeypatch.setattr(sys, "meta_path", [ours, *sys.meta_path, Editable()])
    try:
        assert importlib.import_module(f"{package.name}.compiled").whose == "installed"
        assert sys.modules[package.name].whose == "kept"
    finally:
        for name in (package.name, f"{package.name}.compiled"):
            sys.modules.pop(name, None)


def test_a_module_that_the_sources_do_not_have_is_not_imported(tmp_path, monkeypatch):
    """Of a stranger's run directory whose sources the user knows, being those of parl_like, but not what run.json names."""
    run = run_with(tmp_path, {"a.py": b"x = 1\n", "b/__init__.py": b""})
    user_experiments.remember_sources(run.info().sources)
    ran = []
    monkeypatch.setattr(snapshot, "_in_a_process", lambda *args: ran.append(args) or 0)
    for source in (ExperimentSource(module="antigravity"), ExperimentSource(module="a.b"), ExperimentSource(file="/x/this.py")):
        run.update(source=source)
        with pytest.raises(UsageError, match="which its sources do not have, so nothing was imported.*--from FILE"):
            snapshot.run_again(run, ["eval", "x"], "")
    for source in (ExperimentSource(module="b"), ExperimentSource(file="/x/a.py")):
        run.update(source=source)
        assert snapshot.run_again(run, ["eval", "x"], "") == 0
    assert len(ran) == 2


def _tar(*entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, text in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, "/etc/passwd", len(text)
            tar.addfile(entry, io.BytesIO(text))
    return compress(out.getvalue())


def _odd(**changes):
    """A tar file of one header with these bytes at these places."""
    header = bytearray(tarfile.TarInfo("a.py").tobuf(tarfile.GNU_FORMAT))
    for at, value in changes.values():
        header[at : at + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return compress(bytes(header) + bytes(1024))


GOOD = ("a.py", tarfile.REGTYPE, b"x = 1\n")
BAD = {
    "no tar": (compress(b"x" * 2000), "no tar file"),
    "no gzip": (b"x" * 100, "no tar file"),
    "cut": (_tar(GOOD)[:-12], "fewer than it says|no tar file"),
    "more behind": (_tar(GOOD) + b"more", "more bytes"),
    "a bomb": (compress(bytes(80 << 20), 9), "more bytes"),
    "a link": (_tar(("a.py", tarfile.SYMTYPE, b"")), "an entry 'a.py'"),
    "a hard link": (_tar(("a.py", tarfile.LNKTYPE, b"")), "an entry 'a.py'"),
    "a folder above": (_tar(("../a.py", tarfile.REGTYPE, b"")), "an entry '../a.py'"),
    "an absolute name": (_tar(("/a.py", tarfile.REGTYPE, b"")), "an entry '/a.py'"),
    "a device": (_tar(("a.py", tarfile.CHRTYPE, b"")), "an entry 'a.py'"),
    "a library": (_tar(("a.so", tarfile.REGTYPE, b"")), "an entry 'a.so'"),
    "a sparse file of 8 GiB": (_odd(kind=(156, b"S"), size=(483, b"77777777777\0")), "an entry 'a.py'"),
    "a size below 0": (_odd(size=(124, b"\xff" * 10 + b"\xfc\0")), "an entry 'a.py' of -1024 bytes"),
    "more than there is": (_odd(size=(124, b"00077777777\0")), "an entry 'a.py'"),
    "a name that is no text": (_odd(name=(0, b"\xff.py")), "no tar file"),
    "a name twice": (_tar(GOOD, GOOD), "an entry 'a.py'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_snapshot_is_refused(name):
    data, said = BAD[name]
    with pytest.raises(UsageError, match=said):
        snapshot.unpacked(data, "file")


def test_a_snapshot_has_so_many_files(monkeypatch):
    data = _tar(GOOD, ("b.py", tarfile.REGTYPE, b""))
    assert snapshot.unpacked(data, "file").keys() == {"a.py", "b.py"}
    monkeypatch.setattr(snapshot, "MOST_FILES", 1)
    with pytest.raises(UsageError, match="over 1 files"):
        snapshot.unpacked(data, "file")


def test_sources_that_are_not_those_of_their_hash_are_refused(tmp_path):
    run = run_with(tmp_path, _tar(GOOD), "1" * 64)
    user_experiments.remember_sources("1" * 64)
    with pytest.raises(UsageError, match="expected sources with the hash 1111.*they were changed"):
        snapshot.run_again(run, ["eval", "x"], "")
    shutil.rmtree(run.path / "sources")
    with pytest.raises(UsageError, match="not readable"):
        snapshot.run_again(run, ["eval", "x"], "")
    run.update(sources="")
    with pytest.raises(UsageError, match="keeps no sources; it was trained with --no-snapshot"):
        snapshot.run_again(run, ["eval", "x"], "")


def test_equal_sources_are_packed_alike_and_none_are_kept_where_one_says_so(tmp_path, monkeypatch):
    deep = "a/" * 70 + "é.py"
    files = {"b.py": b"2", "a/__init__.py": b"1", deep: b"3"}
    assert snapshot.packed(files) == snapshot.packed(dict(reversed(files.items()))) and snapshot.unpacked(
        snapshot.packed(files), "") == files
    assert snapshot.hash_of(files) != snapshot.hash_of({**files, "b.py": b"3"}) != snapshot.hash_of({**files, "c.py": b"2"})
    monkeypatch.chdir(tmp_path)
    assert main(["train", "ppo-cartpole", "total_steps=64", "n_agents=2", "unroll=32", "tensorboard=false", "eval_episodes=1",
                 "run_dir=run", "--no-snapshot"]) == 0
    assert not (tmp_path / "run" / "sources").exists() and RunDir.open("run").info().sources == ""


def test_the_root_of_a_file_system_or_of_a_repository_is_no_run_directory(tmp_path):
    (tmp_path / "code" / ".git").mkdir(parents=True)
    for path, what in (("/", "file system"), (tmp_path / "code", "repository"), ("/proc", "file system")):
        with pytest.raises(RunError, match=f"is the root of a {what}; give a directory in it"):
            RunDir.create("ppo-cartpole", {"run_dir": str(path), "seed": 0})
