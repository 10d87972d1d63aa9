"""The repository holds source and little else: whatever is tracked is of a kind listed here."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = {".py", ".pyx", ".pxd", ".pyi", ".cpp", ".h", ".sh", ".md", ".yaml", ".toml", ".txt", ".json", ".svg",
          ".html", ".css", ".js", ".ipynb"}
NAMES = {".gitignore", "CITATION.cff", "LICENSE", "MANIFEST.in", "Makefile", "py.typed", "run"}
# Not text, and here all the same: pictures of the documents, Sokoban's levels, a checkpoint of the first format, policies.
BINARIES = ("docs/*.png", "docs/*.gif", "envs/sokoban/level_sets/*.txt.gz", "tests/data/frozen_format_*/*.safetensors",
            "robots/pretrained/*/policy/*.safetensors")
LARGEST = 800_000  # bytes: the curves of docs/marks.json


def is_source(path):
    """Whether a path, relative to the repository, is of a kind that is tracked."""
    return path.suffix in SOURCE or path.name in NAMES or any(path.match(pattern) for pattern in BINARIES)


def tracked():
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: there is nothing tracked")
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in out.split("\0") if name and (ROOT / name).is_file()]  # not the links to the four areas


@pytest.mark.checkout
def test_only_source_is_tracked():
    files = tracked()
    assert len(files) > 200
    assert not [str(path) for path in files if not is_source(path)]
    assert not [str(path) for path in files if (ROOT / path).stat().st_size > LARGEST]


@pytest.mark.checkout
def test_text_is_text():
    binary = [path for path in tracked() if not any(path.match(pattern) for pattern in BINARIES)]
    assert not [str(path) for path in binary if b"\0" in (ROOT / path).read_bytes()]


@pytest.mark.parametrize("name",
                         ["parl_like/run/robot.py.orig", "a.rej", "a.py~", "core", "models/w.pt", "runs.zip", "envs/_worker.so",
                          "docs/a.mp4"])
def test_what_is_left_behind_is_seen(name):
    assert not is_source(Path(name))
