"""Releases: the same bytes twice, a wheel that installs without a compiler, and mypy on users' code beside it (mostly slow)."""

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import release
import test_users_types as users

import parl_like

pytestmark = pytest.mark.checkout
ROOT = Path(__file__).resolve().parent.parent
ROBOT = """
from parl_like import Robot
with Robot.of("PPO", "CartPole-v1", n_agents=2, seed=0) as robot:
    robot.run(600)
    print(robot.counters()["updates/RL"] > 0)
"""


def packed(names, mode, seconds, owner):
    out = io.BytesIO()
    with gzip.GzipFile("made", "wb", 9, out, mtime=seconds) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name in names:
            one = tarfile.TarInfo(name)
            one.size, one.mode, one.mtime, one.uname, one.uid = len(name), mode, seconds, owner, seconds
            tar.addfile(one, io.BytesIO(name.encode()))
    return out.getvalue()


def test_an_sdist_has_no_owner_no_order_and_one_time():
    mine = release.normalised(packed(["b", "a"], 0o664, 5, "me"), 400_000_000)
    assert mine == release.normalised(packed(["a", "b"], 0o600, 7, "you"), 400_000_000)
    assert mine != release.normalised(packed(["a", "b"], 0o755, 7, "you"), 400_000_000)
    with tarfile.open(fileobj=io.BytesIO(mine)) as tar:
        assert [(one.name, one.mode, one.mtime, one.uid, one.uname) for one in tar] == [
            (name, 0o644, 400_000_000, 0, "") for name in ("a", "b")]


def test_a_difference_is_named(tmp_path):
    for name, text in (("one", "1"), ("other", "2")):
        (tmp_path / name).mkdir()
        with zipfile.ZipFile(tmp_path / name / "a.whl", "w") as archive:
            archive.writestr("same.py", "x")
            archive.writestr("its.py", text)
    one, other = tmp_path / "one" / "a.whl", tmp_path / "other" / "a.whl"
    assert release.difference(one, one) == "" and release.difference(one, other) == "a.whl differs: its.py"


def test_sources_are_the_tracked_files(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: there is nothing tracked")
    tree = release.sources(tmp_path / "tree")
    assert (tree / "setup.py").is_file() and (tree / "parl_like" / "algorithms").is_symlink()
    assert not list(tree.rglob("*.so")) and not (tree / ".git").exists() and not (tree / "build").exists()


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == parl_like.__version__
    named = [one.rpartition(" ")[2] for one in project["classifiers"] if one.startswith("Programming Language :: Python :: ")]
    assert tuple(named) == release.TRIED and project["requires-python"] == f">={named[0]}"
    assert set(named) <= set(release.PYTHONS)
    tried = f"Wheels of {release.TRIED[1]} and {release.TRIED[2]} are built, and their compiled modules load."
    assert tried in (ROOT / "docs/start/install.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Sdist and wheel of this Python, built."""
    return release.build([Path(sys.executable)], tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def inside(made, tmp_path_factory):
    """The Python of an empty venv with the wheel and what it depends on; nothing could be compiled there."""
    return release.installed(made[1], Path(sys.executable), tmp_path_factory.mktemp("clean") / "venv")


def run(command, folder):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run([str(word) for word in command], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_builds_have_the_same_bytes(made, tmp_path):
    again = release.build([Path(sys.executable)], tmp_path)
    assert [release.difference(*pair) for pair in zip(made, again, strict=True)] == ["", ""]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_says_what_it_is_and_has_what_it_should(made):
    assert re.fullmatch(r"parl_like-[\d.]+-cp3\d+-cp3\d+-manylinux_2_\d+_x86_64[\w.]*\.whl", made[1].name), made[1].name
    names = set(release.contents(made[1]))
    assert "parl_like/py.typed" in names and not [name for name in names if name.endswith((".pyx", ".c", ".cpp"))]
    assert {stub.name for stub in ROOT.rglob("_*.pyi") if ".venv" not in stub.parts and "build" not in stub.parts} == {
        Path(name).name for name in names if Path(name).name.startswith("_") and name.endswith(".pyi")}
    sources = {name.partition("/")[2] for name in release.contents(made[0])}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "constraints.txt", "setup.py", "docs/start/install.md"} <= sources
    assert not [name for name in sources if name.endswith((".so", ".c", ".cpp", ".pyc")) or name.startswith("build/")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_robot_learns_from_the_wheel_in_a_clean_venv(inside, tmp_path):
    done = run([inside, "-c", ROBOT], tmp_path)
    assert done.stdout == "True\n", done.stderr
    said = run([inside.parent / "parl-like", "--version"], tmp_path).stdout
    assert said.startswith(f"parl-like {parl_like.__version__} (python 3.")
    report = run([inside.parent / "parl-like", "doctor"], tmp_path)
    assert report.returncode == 0 and re.search(r"^installed +wheel$", report.stdout, re.MULTILINE), report.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mypy_reads_the_types_of_the_wheel(inside, tmp_path):
    """The checkout is not in sight: what mypy says comes from the installed files and `py.typed`."""
    pytest.importorskip("mypy")
    for name, code in users.CODES.items():
        (tmp_path / f"users_{name}.py").write_text(code, encoding="utf-8")
    options = ["--python-executable", inside, "--no-error-summary", "--hide-error-context", "--config-file", os.devnull]
    done = run([sys.executable, "-m", "mypy", "--strict", *options, *(f"users_{name}.py" for name in users.CODES)], tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert not [line for line in errors if not line.startswith(("users_refused.py", "users_other_types.py"))], errors
    assert sum(line.startswith("users_refused.py") for line in errors) == 3, done.stdout + done.stderr
