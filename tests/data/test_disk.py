"""Files that a setting or a command names, and who may open files at all."""

import ast
import gzip
import os
import socket
import threading
import tracemalloc
from pathlib import Path

import pytest

import parl_like
from parl_like.data.storage import safe_files
from parl_like.data.storage.safe_files import check_named, names_in, open_named, read_named


def odd(kind, path):
    """A path that is no plain file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "link to a pipe":
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to(path.with_name("pipe"))
    else:
        return Path("/dev/zero")
    return path


ODD = ("pipe", "socket", "folder", "device", "link to a device", "link to a pipe")


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_plain_file_is_refused_at_once(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = odd(kind, tmp_path / "odd")
    for unpacked in (None, 1000):
        with pytest.raises(OSError, match="it is not a plain file"):
            read_named(path, limit=1000, unpacked=unpacked)
    if kind == "folder":
        check_named(str(path))
    else:
        with pytest.raises(OSError, match="it is not a plain file"):
            check_named(str(path))


def test_a_pipe_that_takes_a_file_s_place_after_it_was_looked_at_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"text")
    look = os.stat

    def looked(path, **how):
        found = look(path, **how)
        os.unlink(path)
        os.mkfifo(path)
        return found

    monkeypatch.setattr(safe_files.os, "stat", looked)
    with pytest.raises(OSError, match="it is not a plain file"):
        open_named(tmp_path / "file")


def test_a_pipe_with_a_writer_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(end, b"text")
    with pytest.raises(OSError, match="not a plain file"):
        read_named(tmp_path / "pipe", limit=1000)
    os.close(end)


def test_links_to_plain_files_are_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert read_named(tmp_path / "link", limit=4) == b"text"
    assert read_named(str(tmp_path / "file"), limit=4) == b"text"


def test_more_bytes_than_the_limit_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(OSError, match="it has 5 bytes; expected at most 4"):
        read_named(tmp_path / "file", limit=4)
    (tmp_path / "holes").touch()
    os.truncate(tmp_path / "holes", 1 << 40)
    with pytest.raises(OSError, match="mostly holes"):
        read_named(tmp_path / "holes", limit=1 << 50)


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(tmp_path):
    """Files of /proc claim to be empty, and may have no end."""
    with pytest.raises(OSError, match="it has over 100 bytes"):
        read_named("/proc/self/maps", limit=100)
    assert read_named("/proc/self/maps", limit=10_000_000)


def test_a_packed_file_that_would_fill_the_memory_is_refused(tmp_path):
    with gzip.open(tmp_path / "bomb.gz", "wb", 9) as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    (tmp_path / "twice.gz").write_bytes((tmp_path / "bomb.gz").read_bytes() * 5)  # several members
    for name in ("bomb.gz", "twice.gz"):
        tracemalloc.start()
        with pytest.raises(OSError, match="it has over 5000000 bytes"):
            read_named(tmp_path / name, limit=5_000_000, unpacked=5_000_000)
        assert tracemalloc.get_traced_memory()[1] < 30e6
        tracemalloc.stop()


PACKED = gzip.compress(bytes(range(100)), mtime=0)


@pytest.mark.parametrize("data", [b"no gzip", PACKED[:-9], PACKED + b"more", PACKED[:20] + bytes(range(90)), b"\x1f\x8b"],
                         ids=["none", "cut", "more", "other", "head"])
def test_a_broken_packed_file_is_one_error(data, tmp_path):
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(OSError, match="not a whole gzip file"):
        read_named(tmp_path / "a.gz", limit=1000, unpacked=10_000)


def test_a_folder_has_a_number_of_names(tmp_path):
    for name in "cab":
        (tmp_path / name).touch()
    assert names_in(tmp_path, limit=3) == ["a", "b", "c"]
    with pytest.raises(OSError, match="it has over 2 entries"):
        names_in(tmp_path, limit=2)
    with pytest.raises(NotADirectoryError):
        names_in(tmp_path / "a", limit=2)


@pytest.mark.parametrize("text", ["", "\0", "x" * 5000, "nothing/here", "/etc/passwd/x", "cpu", "."])
def test_texts_that_name_nothing_are_no_matter(text):
    check_named(text)


def test_a_reader_does_not_wait_for_a_writer_that_comes_later(tmp_path):
    """Nobody ever opens the other end."""
    os.mkfifo(tmp_path / "pipe")
    done = threading.Event()

    def read():
        with pytest.raises(OSError):
            read_named(tmp_path / "pipe", limit=10)
        done.set()

    threading.Thread(target=read, daemon=True).start()
    assert done.wait(20)


# ---- who opens files

OPENERS = {"open", "fdopen", "read_text", "read_bytes", "decompress", "fromfile", "loadtxt", "genfromtxt", "memmap", "GzipFile",
           "ZipFile", "TarFile", "BZ2File", "LZMAFile", "is_tarfile", "File", "read_csv", "iterdir", "scandir", "listdir",
           "glob", "rglob", "os.walk"}
"""Names of functions and methods that open a file or a directory, whatever module they are of."""
ALLOWED = {
    # the one reader and writer
    "data/storage/safe_files.py": "open GzipFile scandir listdir",
    # inside a directory or a file that is opened by `disk`: descriptors made into files, names that `disk` opens
    "data/storage/archive.py": "open listdir",
    "data/storage/hdf5.py": "open File",
    "lab/runs/checkpoint.py": "scandir",
    "lab/runs/metrics.py": "open",
    "lab/runs/outbox.py": "open",
    "robots/thinker/env.py": "open",
    "robots/thinker/view.py": "open glob",
    "robots/thinker/make.py": "glob",
    # a run directory: whether it is empty, which there are, what is not ours in it
    "lab/runs/rundir.py": "iterdir os.walk glob",
    "lab/cli.py": "open",  # /dev/null
    "lab/commands/one_run.py": "open", "lab/commands/many_runs.py": "open",  # a run directory
    "lab/commands/tools.py": "glob read_text",  # benchmarks of the repository
    "lab/doctor.py": "os.walk read_text",  # the installed package, the processor
    "lab/runner.py": "open",
    "lab/recording.py": "open", "lab/policies/exporting.py": "open",  # a run directory
    # names of a folder up to a number, of which no link is followed; a descriptor made into a file
    "lab/dashboard/catalogue.py": "scandir", "lab/dashboard/columns.py": "open", "lab/dashboard/board.py": "open",
    "lab/dashboard/command.py": "open",  # a browser
    "lab/runs/trained.py": "open",
    "lab/sweeps/sweep.py": "open", "lab/sweeps/tuning.py": "open",
    # a tar file in memory, which was read by `safe_files`; memory that is handed to a process
    "lab/snapshot.py": "open decompress", "lab/snapshot_importer.py": "open",
    "lab/pretrained.py": "open rglob read_bytes",  # a run directory; what this process has just made
    # what the package itself consists of
    "lab/experiment.py": "glob listdir",
    "lab/reports/marks.py": "open read_bytes iterdir rglob",
    "envs/minatar.py": "glob",
    # what this process has just made
    "lab/reports/report.py": "read_bytes",
    "lab/user_experiments.py": "open",
    # sockets, connections, shared memory of this process, /dev/null
    "drivers/ray/cluster.py": "open",
    "drivers/ray/tasks.py": "open",
    "drivers/workers/hosted.py": "open",
    "drivers/workers/shared_rows.py": "open", "drivers/workers/shared_parameters.py": "open",
    "process/fork_server.py": "open",
    "robots/thinker/ray.py": "open",
    # a tool of the repository: writes the level sets
    "envs/sokoban/make_levels.py": "decompress read_bytes",
}
"""File → what in it may be called. A new one: read by `parl_like.data.storage.safe_files`, or say here why that need not be."""


def test_only_the_careful_reader_opens_files():
    package = Path(parl_like.__file__).parent
    found = {}
    for area in (package, *(path for path in package.iterdir() if path.is_symlink())):  # of a checkout
        for path in area.rglob("*.py"):
            calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            if names := {name for call in calls for name in (call, call.rpartition(".")[2]) if name in OPENERS}:
                found[str(path.relative_to(package))] = names
    allowed = {file: set(names.split()) for file, names in ALLOWED.items()}
    assert {file: names - allowed.get(file, set()) for file, names in found.items() if names - allowed.get(file, set())} == {}
    assert {file: names - found.get(file, set()) for file, names in allowed.items() if names - found.get(file, set())} == {}
